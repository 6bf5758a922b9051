// Command mroce holds the tools for engineers and researchers; `mroce --help` lists them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/completion"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C stops at once
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// env is what commands share.
type env struct{ out, err io.Writer }

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	e := &env{out, errs}
	usage := func(_ *cli.Context, err error, _ bool) error { return fail.Usagef("%w; see mroce --help", err) }
	app := &cli.App{
		Name: "mroce", Usage: "tools around MetaRoCE for engineers and researchers", Version: version,
		Writer: out, ErrWriter: errs, HideHelpCommand: true, EnableBashCompletion: true, Suggest: true,
		DisableSliceFlagSeparator: true, // values such as {kind: rocev2, qps: 4} have commas
		Commands:                  []*cli.Command{e.simCommand(), e.voprCommand(), e.figuresCommand(), e.collbenchCommand(), e.rcclCommand(), e.completionCommand(), e.manCommand()}, OnUsageError: usage,
		ExitErrHandler: func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fail.Usagef("no command %q; see mroce --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = usage
	}
	if n := len(args); n > 2 && args[n-1] == "--generate-bash-completion" && args[n-2] == "--" {
		args = slices.Delete(slices.Clone(args), n-2, n-1) // the word to complete, not the end of flags
	}
	err := app.RunContext(ctx, simFlagsFirst(app, args))
	var code exitCode
	switch {
	case err == nil:
		return fail.OK
	case errors.As(err, &code): // everything has been said
		return int(code)
	}
	fmt.Fprintf(errs, "mroce: %v\n", err)
	return fail.Code(err)
}

func (e *env) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print the completion script of a shell", ArgsUsage: "bash|zsh|fish",
		Description: "  source <(mroce completion bash)", BashComplete: completeWords(completion.Shells),
		Action: func(c *cli.Context) error {
			text := completion.Script(c.Args().First(), c.App.Name)
			if c.Args().First() == "fish" {
				var err error
				if text, err = c.App.ToFishCompletion(); err != nil {
					return err
				}
			}
			if text == "" {
				return fail.Usagef("which shell? bash, zsh or fish")
			}
			_, err := io.WriteString(e.out, text)
			return err
		},
	}
}

// completeWords completes an argument from a list; flags are completed by the default.
func completeWords(words []string) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		if last := os.Args[max(0, len(os.Args)-2)]; strings.HasPrefix(last, "-") {
			cli.DefaultCompleteWithFlags(c.Command)(c)
			return
		}
		fmt.Fprintln(c.App.Writer, strings.Join(words, "\n"))
	}
}

func (e *env) manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Hidden: true, Usage: "print the man page",
		Action: func(c *cli.Context) error {
			text, err := c.App.ToManWithSection(1)
			if err == nil {
				_, err = io.WriteString(e.out, text)
			}
			return err
		},
	}
}

// exitCode ends the program without a message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
