// Package cmd is the command line of nicemu.
package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/doctor"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/space"
)

// env is what commands share.
type env struct {
	out, err io.Writer
	version  string
}

// Main runs the program and returns its exit code.
func Main(args []string, version string) int {
	out := &results{to: os.Stdout}
	e := &env{out: out, err: os.Stderr, version: version}
	// Steps of our own, run inside namespaces: they must not depend on flags.
	if len(args) > 1 {
		switch args[1] {
		case space.TryCommand:
			return e.exit(space.TryInside(args[2:]), false)
		case space.HoldCommand:
			return e.exit(space.Hold(), false)
		case lab.StepCommand:
			return e.exit(lab.Step(args[2:]), false)
		case runCommand:
			return e.exit(runInside(args[2:]), false)
		case answerCommand:
			return e.exit(runAnswer(args[2:]), false)
		case filterCommand:
			return e.exit(runFilter(args[2:]), false)
		case doctor.ProbeCommand:
			return e.exit(doctor.Probe(args[2:]), false)
		}
	}
	if version == "unknown" {
		e.version = builtFrom()
	}
	app := e.app()
	ctx, stop := untilSignal()
	defer stop()
	args, err := arrange(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	if err == nil && out.err != nil && !errors.Is(out.err, syscall.EPIPE) {
		err = fail.Failf("cannot write the results: %w", out.err)
	}
	return e.exit(err, verbose(args))
}

// errInterrupted is the cause of a context that Ctrl-C ended.
var errInterrupted = errors.New("interrupted")

// untilSignal returns a context that Ctrl-C or SIGTERM ends. A second one stops the program at once: after the first the
// signals have their default effect again.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-ch:
			signal.Stop(ch)
			if s == os.Interrupt {
				cancel(errInterrupted)
			}
			cancel(nil)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		cancel(nil)
	}
}

// ended is what a command returns that goes on until somebody ends it: who asked it to end (SIGTERM) has what was wanted, and
// Ctrl-C is told (exit code 130), as everywhere.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return ctx.Err()
	}
	return nil
}

// results is stdout. It keeps the first error, which printing would drop: a script must not take a full disk for "done".
type results struct {
	to  *os.File
	err error
}

func (r *results) Write(b []byte) (int, error) {
	n, err := r.to.Write(b)
	if r.err == nil {
		r.err = err
	}
	return n, err
}

// builtFrom is the commit that a plain `go build` recorded.
func builtFrom() string {
	version, dirty := "unknown", ""
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 7:
			version = s.Value[:7]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if version == "unknown" {
		return version
	}
	return version + dirty
}

func verbose(args []string) bool {
	for _, a := range args {
		switch a {
		case "-v", "--verbose":
			return true
		case "--":
			return false
		}
	}
	return false
}

// exit prints an error and returns its code.
func (e *env) exit(err error, chain bool) int {
	if err == nil {
		return fail.OK
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	var le *labfile.Error
	c := fail.Code(err)
	if errors.As(err, &le) {
		c = fail.Usage
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(e.err, "nicemu: stopped")
		return fail.Stopped
	}
	fmt.Fprintf(e.err, "nicemu: %v\n", err)
	for cause := errors.Unwrap(err); chain && cause != nil; cause = errors.Unwrap(cause) {
		fmt.Fprintf(e.err, "  because: %v\n", cause)
	}
	return c
}

// exitCode ends the program with the code of another program, and no message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

const helpEnvironment = `Variables that nicemu and its libraries read; a flag wins over a variable, a variable over a lab file.

  MR_SOCKET         control socket of the daemon; else the first that answers of
                    $XDG_RUNTIME_DIR/mroce/*.sock, /tmp/mroce-UID/*.sock, /run/mroce/*.sock
  MR_NIC            which NICs a program sees: a comma-separated list of HOST/mrN, HOST or mrN; empty = all
  MR_LIB            directory of our libibverbs.so.1; else ../lib or ../lib/mroce beside nicemu
  MR_SYSFS          where our libibverbs says sysfs is; set where no view can be mounted
  MR_DEV_NAME       name of the device node, such as ../null where /dev/infiniband exists but has none
  MR_LAB            which lab is meant, when several are up
  MR_VERBOSE        1: our libibverbs says on stderr why it finds no NIC, or lost it
  MR_POLL_SLEEP_US  let an idle ibv_poll_cq sleep up to so many microseconds (default 0: it yields)
  NO_COLOR          no colour
  XDG_RUNTIME_DIR   sockets and state go to mroce/ below it

` + "`nicemu run` and `nicemu lab exec` set LD_LIBRARY_PATH, MR_SOCKET and MR_NIC; `nicemu env` prints them.\n"

func (e *env) app() *cli.App {
	app := &cli.App{
		Name:    "nicemu",
		Usage:   "an RDMA NIC in software, and labs of them",
		Version: e.version,
		Description: "Example, as it stands:\n" +
			"  nicemu lab up two-hosts\n" +
			"  nicemu lab exec a -- ibv_rc_pingpong -g 0 -c & sleep 1\n" +
			"  nicemu lab exec b -- ibv_rc_pingpong -g 0 -c 10.0.0.1\n" +
			"  nicemu lab down\n\n" +
			"`nicemu doctor` says what this machine can do. `nicemu help environment` lists the variables.",
		Writer: e.out, ErrWriter: e.err,
		EnableBashCompletion: true, Suggest: true, HideHelpCommand: true, HideVersion: false,
		UseShortOptionHandling: false,
		Flags:                  []cli.Flag{verboseFlag(), cli.HelpFlag},
		ExitErrHandler:         func(*cli.Context, error) {},
		OnUsageError:           usageError,
		CommandNotFound:        nil,
		Action:                 e.noCommand,
	}
	app.Commands = []*cli.Command{
		e.doctorCommand(), e.upCommand(), e.downCommand(), e.runCommand(), e.envCommand(), e.labCommand(), e.demoCommand(),
	}
	app.Commands = append(app.Commands, e.managementCommands()...)
	app.Commands = append(app.Commands, e.daemonCommand(), e.completionCommand(), e.helpCommand(), e.manCommand())
	prepare(app.Commands)
	return app
}

func verboseFlag() cli.Flag {
	return &cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "say more; on errors, why"}
}

// prepare gives every command what all have.
func prepare(cmds []*cli.Command) {
	for _, c := range cmds {
		c.OnUsageError = usageError
		c.HideHelpCommand = true
		c.Flags = append(c.Flags, verboseFlag())
		if len(c.Subcommands) > 0 {
			prepare(c.Subcommands)
			if c.Action == nil {
				c.Action = subcommandNeeded
			}
		}
	}
}

// badValue is how the flag package words a value that it cannot read.
var badValue = regexp.MustCompile(`^invalid (?:boolean )?value "?(.*?)"? for (?:flag )?-+([a-z-]+): `)

// flagWants says what a flag takes.
func flagWants(flags []cli.Flag, name string) string {
	for _, f := range flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		switch f.(type) {
		case *cli.DurationFlag:
			return "a time such as 500ms or 10s"
		case *cli.IntFlag:
			return "a whole number"
		case *cli.BoolFlag:
			return "nothing, or =true or =false"
		}
	}
	return "another value"
}

// usageError is how a wrong flag is told.
func usageError(c *cli.Context, err error, _ bool) error {
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "flag provided but not defined: -"); ok {
		msg = "unknown flag --" + strings.TrimLeft(name, "-")
		var known []string
		for _, f := range c.Command.Flags {
			known = append(known, f.Names()...)
		}
		if near := labfile.Nearest(strings.TrimLeft(name, "-"), known); near != "" {
			msg += fmt.Sprintf("; did you mean --%s?", near)
		}
	}
	if m := badValue.FindStringSubmatch(msg); m != nil {
		msg = fmt.Sprintf("--%s %s: it takes %s", m[2], m[1], flagWants(c.Command.Flags, m[2]))
	}
	if name, ok := strings.CutPrefix(msg, "flag needs an argument: -"); ok {
		msg = "--" + strings.TrimLeft(name, "-") + " needs a value"
	}
	return fail.Usagef("%s (`%s --help` shows what there is)", msg, c.Command.HelpName)
}

func (e *env) noCommand(c *cli.Context) error {
	if c.Args().Len() == 0 {
		return cli.ShowAppHelp(c)
	}
	return unknownCommand("nicemu", c.Args().First(), c.App.Commands)
}

func subcommandNeeded(c *cli.Context) error {
	if c.Args().Len() == 0 {
		return cli.ShowSubcommandHelp(c)
	}
	return unknownCommand(c.Command.HelpName, c.Args().First(), c.Command.Subcommands)
}

func unknownCommand(of, name string, cmds []*cli.Command) error {
	var known []string
	for _, k := range cmds {
		if !k.Hidden {
			known = append(known, k.Names()...)
		}
	}
	if near := labfile.Nearest(name, known); near != "" {
		return fail.Usagef("no command %q; did you mean `%s %s`?", name, of, near)
	}
	return fail.Usagef("no command %q; `%s --help` lists them", name, of)
}

func (e *env) helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Aliases: []string{"h"}, Usage: "help for a command, or `environment`", ArgsUsage: "[COMMAND…]",
		Action: func(c *cli.Context) error {
			if c.Args().First() == "environment" {
				fmt.Fprint(e.out, helpEnvironment)
				return nil
			}
			app := e.app()
			if c.Args().Len() == 0 {
				return app.RunContext(c.Context, []string{"nicemu", "--help"})
			}
			return app.RunContext(c.Context, append(append([]string{"nicemu"}, c.Args().Slice()...), "--help"))
		},
	}
}

func (e *env) manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Hidden: true, Usage: "print the man page",
		Action: func(c *cli.Context) error {
			text, err := e.app().ToManWithSection(1)
			if err == nil {
				_, err = io.WriteString(e.out, text)
			}
			return err
		},
	}
}

// example is the first thing that a command's help shows.
func example(lines ...string) string { return "Example:\n  " + strings.Join(lines, "\n  ") }

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "for scripts: one JSON object on stdout"}
}

// printJSON prints one object on one line.
func (e *env) printJSON(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// note prints progress and decisions on stderr.
func (e *env) note(format string, args ...any) { fmt.Fprintf(e.err, format+"\n", args...) }

// libDir finds the directory of our libibverbs.so.1: MR_LIB, else beside this program.
func libDir() (string, error) {
	if dir := os.Getenv("MR_LIB"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "libibverbs.so.1")); err != nil {
			return "", fail.Lackf("MR_LIB=%s holds no libibverbs.so.1", dir)
		}
		return filepath.Abs(dir)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	var tried []string
	for _, rel := range []string{"../lib/mroce", "../lib"} {
		dir := filepath.Join(filepath.Dir(exe), rel)
		if ours(filepath.Join(dir, "libibverbs.so.1")) {
			return dir, nil
		}
		tried = append(tried, dir)
	}
	return "", fail.Lackf("our libibverbs.so.1 is in none of %s; build it with `make`, or set MR_LIB", strings.Join(tried, ", "))
}

// ours reports whether a library is ours and not a distribution's: /usr/lib may hold one by the same name.
func ours(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(text), "MR_SOCKET")
}

// child runs another command of this program with our streams.
func self(args ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(exe, args...), nil
}
