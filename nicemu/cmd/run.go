package cmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/nicemu/lab"
)

func (e *env) runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run a program over the NICs of a daemon", ArgsUsage: "[--] PROGRAM [ARGUMENT…]",
		Description: example("nicemu up --addr 10.0.0.1/24", "nicemu run -- ibv_devinfo") +
			"\n\nThe program finds our libibverbs.so.1 through LD_LIBRARY_PATH, and the files of a real NIC in /sys and /dev\n" +
			"through a view: a mount namespace (root), a user and mount namespace (anybody), answered system calls (seccomp,\n" +
			"where namespaces are refused, as in Docker), or none. It has ports, GIDs and counters, which follow the NIC\n" +
			"(docs/view.md). seccomp costs about 35 µs for each call that names a file, and programs with the\n" +
			"set-user-ID bit get no other rights.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "nic", Usage: "which NICs the program sees: HOST/mrN, HOST or mrN, comma-separated"},
			&cli.StringFlag{Name: "view", Usage: "auto, mount, user, seccomp or none", Value: "auto"},
			&cli.BoolFlag{Name: "gid-attrs", Usage: "show gid_attrs too (new UCX then wants a kernel route to every peer)"},
		},
		Action: e.run,
	}
}

func (e *env) envCommand() *cli.Command {
	return &cli.Command{
		Name: "env", Usage: "print the variables that `run` sets, for IDEs, systemd units and containers", ArgsUsage: "[HOST]",
		Description: example("eval \"$(nicemu env)\"", "nicemu env a"),
		Flags: []cli.Flag{
			jsonFlag(), labFlag(),
			&cli.StringFlag{Name: "nic", Usage: "which NICs the program sees"},
			&cli.BoolFlag{Name: "plain", Usage: "NAME=VALUE without export, for env files"},
		},
		Action: e.printEnv, BashComplete: completeWords(hostNames),
	}
}

func (e *env) printEnv(c *cli.Context) error {
	dir, err := libDir()
	if err != nil {
		return err
	}
	var set [][2]string
	if host := c.Args().First(); host != "" {
		s, h, err := labWithHost(c.String("lab"), host)
		if err != nil {
			return err
		}
		set = s.HostEnv(h, dir)
	} else {
		t, err := findTarget(c.String("nic"))
		if err != nil {
			return err
		}
		e.noteOthers(t, c.String("nic"))
		set = lab.Env(dir, t.socket, t.nicArg)
	}
	if c.Bool("json") {
		m := map[string]string{}
		for _, kv := range set {
			m[kv[0]] = kv[1]
		}
		return e.printJSON(m)
	}
	for _, kv := range set {
		if c.Bool("plain") {
			fmt.Fprintf(e.out, "%s=%s\n", kv[0], kv[1])
		} else {
			fmt.Fprintf(e.out, "export %s='%s'\n", kv[0], strings.ReplaceAll(kv[1], "'", `'\''`))
		}
	}
	return nil
}

func (e *env) run(c *cli.Context) error {
	argv := c.Args().Slice()
	if len(argv) == 0 {
		return fail.Usagef("which program? nicemu run -- PROGRAM")
	}
	modes, err := viewModes(c.String("view"))
	if err != nil {
		return err
	}
	dir, err := libDir()
	if err != nil {
		return err
	}
	t, err := findTarget(c.String("nic"))
	if err != nil {
		return err
	}
	e.noteOthers(t, c.String("nic"))
	path, err := lab.LookPath(argv[0])
	if err != nil {
		return err
	}
	environ := lab.WithEnv(lab.Env(dir, t.socket, t.nicArg))
	before := t.hellos()
	var refused error
	p := viewed{path: path, argv: argv, environ: environ, say: c.Bool("verbose")}
	for _, m := range modes {
		code, err := e.runIn(m, t, p, c.Bool("gid-attrs"))
		var no *noView
		if errors.As(err, &no) {
			if c.Bool("verbose") {
				e.note("view: %s does not work here: %v", m.name, no.cause)
			}
			refused = no.cause
			continue
		}
		if err != nil {
			return lab.NotStarted(argv[0], err)
		}
		if m.answers { // who answers has a connection as well
			before++
		}
		e.warnUnreached(t, before, path)
		if code != 0 {
			return exitCode(code)
		}
		return nil
	}
	return fail.Lackf("the view is refused here: %w", refused)
}

// warnUnreached says so when the program ended without ever speaking to the daemon, and why that may be.
func (e *env) warnUnreached(t *target, before uint64, path string) {
	after := t.hellos()
	if before == unknownHellos || after != before {
		return
	}
	why := whyUnreached(path)
	if why == "" {
		why = "it may not use verbs at all, or a program that it started dropped LD_LIBRARY_PATH"
	}
	e.note("nicemu: %s never reached our libibverbs (%s)", filepath.Base(path), why)
}
