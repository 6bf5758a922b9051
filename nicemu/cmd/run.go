package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/fail"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/rundir"
	"github.com/metaroce/metaroce/nicemu/space"
	"github.com/metaroce/metaroce/nicemu/view"
)

// runCommand is the hidden second half of `run`, inside the new namespaces.
const runCommand = "__run"

func (e *env) runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run a program over the NICs of a daemon", ArgsUsage: "[--] PROGRAM [ARGUMENT…]",
		Description: example("nicemu up --addr 10.0.0.1/24", "nicemu run -- ibv_devinfo") +
			"\n\nThe program finds our libibverbs.so.1 through LD_LIBRARY_PATH, and the files of a real NIC in /sys and /dev\n" +
			"through a view: a mount namespace (root), a user and mount namespace (anybody), or none where both are refused.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "nic", Usage: "which NICs the program sees: HOST/mrN, HOST or mrN, comma-separated"},
			&cli.StringFlag{Name: "view", Usage: "auto, mount, user or none", Value: "auto"},
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

// viewMode is how a program gets to see the files of a NIC.
type viewMode struct {
	name string
	attr func() *syscall.SysProcAttr // nil: no view
	cost string
}

func viewModes(want string) ([]viewMode, error) {
	mount := viewMode{"mount namespace", func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	}, ""}
	user := viewMode{"user and mount namespace", func() *syscall.SysProcAttr {
		a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		space.IntoUserNS(a)
		return a
	}, ""}
	none := viewMode{"none: library path only", nil, ""}
	switch want {
	case "auto":
		if os.Getuid() == 0 {
			return []viewMode{mount, user, none}, nil
		}
		return []viewMode{user, none}, nil
	case "mount":
		return []viewMode{mount}, nil
	case "user":
		return []viewMode{user}, nil
	case "none":
		return []viewMode{none}, nil
	}
	return nil, fail.Usagef("--view %s: one of auto, mount, user, none", want)
}

// inside is what the second half is told.
type inside struct {
	View view.Spec
	Path string
	Argv []string
	Cwd  string
	// Outside is the mount namespace that must not be changed: ours.
	Outside string
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
	for _, m := range modes {
		code, err := e.runIn(m, t, path, argv, environ, c.Bool("gid-attrs"), c.Bool("verbose"))
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
		e.warnUnreached(t, before, path)
		if code != 0 {
			return exitCode(code)
		}
		return nil
	}
	return fail.Lackf("the view is refused here: %w", refused)
}

// noView says that a mode does not work; the program has not been started.
type noView struct{ cause error }

func (n *noView) Error() string { return n.cause.Error() }

// runIn runs the program in one mode. Whether the mode works is seen by doing it: the second half reports on a pipe
// before it becomes the program.
func (e *env) runIn(m viewMode, t *target, path string, argv, environ []string, gidAttrs, say bool) (int, error) {
	if m.attr == nil {
		if say {
			e.note("view: %s", m.name)
		}
		c := exec.Command(path)
		c.Args, c.Env = argv, environ
		if dir, err := e.plainTree(t, gidAttrs); err == nil {
			c.Env = append(c.Env, "MR_SYSFS="+dir)
		}
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		return runChild(c, nil)
	}
	base, err := rundir.Dir()
	if err != nil {
		return 0, &noView{err}
	}
	work := filepath.Join(base, "view")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return 0, &noView{err}
	}
	return e.runViewed(m, view.Spec{Work: work, NICs: t.view(), GIDAttrs: gidAttrs}, path, argv, environ, say, false)
}

// plainTree writes the tree of /sys as plain files, for programs that ask our library where sysfs is. It is the same
// for every run over these NICs, so that it need not be removed while one still reads; `down` removes it.
func (e *env) plainTree(t *target, gidAttrs bool) (string, error) {
	base, err := rundir.Dir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "sysfs", filepath.Base(t.socket), strings.ReplaceAll(strings.Join(t.nicArg, ","), "/", "-"))
	return dir, view.Write(dir, view.Spec{NICs: t.view(), GIDAttrs: gidAttrs})
}

// runViewed runs a program behind a view.
func (e *env) runViewed(m viewMode, spec view.Spec, path string, argv, environ []string, say, quiet bool) (int, error) {
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/"
	}
	text, err := json.Marshal(inside{View: spec, Path: path, Argv: argv, Cwd: cwd, Outside: space.Here("mnt")})
	if err != nil {
		return 0, err
	}
	c, err := self(runCommand, string(text))
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	c.Env, c.ExtraFiles, c.SysProcAttr = environ, []*os.File{w}, m.attr()
	if quiet {
		c.Stdin, c.Stdout, c.Stderr = nil, io.Discard, io.Discard
	} else {
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	report := make(chan string, 1)
	code, err := runChild(c, func(int) {
		w.Close()
		go func() {
			text, _ := io.ReadAll(r) // ends when the pipe closes on exec
			if say && len(text) == 0 {
				e.note("view: %s", m.name)
			}
			report <- string(text)
		}()
	})
	if err != nil {
		w.Close()
		return 0, &noView{err}
	}
	if text := <-report; text != "" {
		return 0, &noView{errors.New(text)}
	}
	return code, nil
}

// runInside is the second half: it makes the view, says whether that worked, and becomes the program.
func runInside(args []string) error {
	pipe := os.NewFile(3, "report")
	syscall.CloseOnExec(3)
	var in inside
	if len(args) != 1 || pipe == nil || json.Unmarshal([]byte(args[0]), &in) != nil || in.Outside == space.Here("mnt") {
		return fail.Usagef("%s is for nicemu's own use", runCommand)
	}
	report := func(err error) error {
		fmt.Fprint(pipe, err)
		return exitCode(fail.Lacking)
	}
	runtime.LockOSThread() // capabilities and the exec belong to one thread
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return report(fmt.Errorf("cannot separate the mounts: %w", err))
	}
	if _, err := view.Mount(in.View); err != nil {
		return report(err)
	}
	// The program gets no more rights than its user has.
	if os.Getuid() != 0 {
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
	_ = os.Chdir(in.Cwd) // the old directory's name may now lead into the view
	err := syscall.Exec(in.Path, in.Argv, os.Environ())
	fmt.Fprintf(os.Stderr, "nicemu: %v\n", lab.NotStarted(in.Argv[0], err))
	return exitCode(fail.Code(lab.NotStarted(in.Argv[0], err)))
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
