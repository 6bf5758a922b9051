//go:build dpdk

// Package cmd is the command line of mroce-dpdk.
package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/completion"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// env is what commands share.
type env struct {
	out, err io.Writer
	version  string
}

// Main runs the program and returns its exit code.
func Main(args []string, version string) int {
	e := &env{out: os.Stdout, err: os.Stderr, version: version}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return e.exit(e.app().RunContext(ctx, args))
}

func (e *env) app() *cli.App {
	app := &cli.App{
		Name: "mroce-dpdk", Usage: "an RDMA NIC on DPDK ports: the reference implementation",
		Version: e.version + " (" + dpdkx.Version() + ")", // whose bug it is, often
		Writer:  e.out, ErrWriter: e.err, EnableBashCompletion: true, Suggest: true, HideHelpCommand: true,
		DisableSliceFlagSeparator: true, // vdevs have commas
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return fail.Usagef("%w", err) },
		Commands:                  []*cli.Command{e.upCommand(), e.downCommand(), e.rateCommand(), e.daemonCommand(), e.completionCommand(), e.manCommand()},
	}
	for _, c := range app.Commands {
		c.OnUsageError, c.HideHelpCommand = usageError, true
	}
	return app
}

// usageError is how a wrong flag is told.
func usageError(c *cli.Context, err error, _ bool) error {
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "flag provided but not defined: -"); ok {
		msg = "unknown flag --" + strings.TrimLeft(name, "-")
	}
	return fail.Usagef("%s (`%s --help` shows what there is)", msg, c.Command.HelpName)
}

func (e *env) exit(err error) int {
	if err == nil {
		return fail.OK
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(e.err, "mroce-dpdk: stopped")
		return fail.Stopped
	}
	if topic, ok := strings.CutPrefix(err.Error(), "No help topic for "); ok { // how cli tells an unknown command
		err = fail.Usagef("no command %s", topic)
	}
	fmt.Fprintf(e.err, "mroce-dpdk: %v\n", err)
	return fail.Code(err)
}

func (e *env) printJSON(v any) error { return json.NewEncoder(e.out).Encode(v) }

func (e *env) note(format string, args ...any) { fmt.Fprintf(e.err, format+"\n", args...) }

func example(lines ...string) string {
	s := "Example:"
	for _, l := range lines {
		s += "\n  " + l
	}
	return s
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "for scripts: one JSON object on stdout"}
}

func (e *env) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print the completion script of a shell", ArgsUsage: "bash|zsh|fish", Description: example("source <(mroce-dpdk completion bash)"),
		Action: func(c *cli.Context) error {
			switch shell := c.Args().First(); shell {
			case "bash", "zsh":
				fmt.Fprint(e.out, completion.Script(shell, "mroce-dpdk"))
			case "fish":
				text, err := e.app().ToFishCompletion()
				if err != nil {
					return err
				}
				fmt.Fprint(e.out, text)
			default:
				return fail.Usagef("which shell? bash, zsh or fish")
			}
			return nil
		},
	}
}

func (e *env) manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Hidden: true, Usage: "print the man page",
		Action: func(*cli.Context) error {
			text, err := e.app().ToManWithSection(1)
			if err == nil {
				_, err = io.WriteString(e.out, text)
			}
			return err
		},
	}
}
