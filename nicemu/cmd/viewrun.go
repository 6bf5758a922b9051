package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/space"
	"github.com/metaroce/metaroce/nicemu/view"
)

// runCommand is the hidden second half of `run`, inside the new namespaces.
const runCommand = "__run"

// viewMode is how a program gets to see the files of a NIC.
type viewMode struct {
	name    string
	attr    func() *syscall.SysProcAttr // the namespaces of one by mounts
	answers bool                        // by answered system calls
}

func (m viewMode) none() bool { return m.attr == nil && !m.answers }

func viewModes(want string) ([]viewMode, error) {
	mount := viewMode{name: "mount namespace", attr: func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	}}
	user := viewMode{name: "user and mount namespace", attr: func() *syscall.SysProcAttr {
		a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		space.IntoUserNS(a)
		return a
	}}
	answered := viewMode{name: "answered system calls (seccomp)", answers: true}
	none := viewMode{name: "none: library path only"}
	switch want {
	case "auto":
		if os.Getuid() == 0 {
			return []viewMode{mount, user, answered, none}, nil
		}
		return []viewMode{user, answered, none}, nil
	case "mount":
		return []viewMode{mount}, nil
	case "user":
		return []viewMode{user}, nil
	case "seccomp":
		return []viewMode{answered}, nil
	case "none":
		return []viewMode{none}, nil
	}
	return nil, fail.Usagef("--view %s: one of auto, mount, user, seccomp, none", want)
}

// viewed is a program that is to run behind a view.
type viewed struct {
	path          string
	argv, environ []string
	say, quiet    bool // say which view it is; keep the program's streams closed
}

// streams gives a command ours, or none.
func (p *viewed) streams(c *exec.Cmd) {
	if !p.quiet {
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
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

// noView says that a mode does not work; the program has not been started.
type noView struct{ cause error }

func (n *noView) Error() string { return n.cause.Error() }

// runIn runs the program in one mode. Whether the mode works is seen by doing it: the second half reports on a socket
// before it becomes the program.
func (e *env) runIn(m viewMode, t *target, p viewed, gidAttrs bool) (int, error) {
	spec := view.Spec{NICs: t.view(), GIDAttrs: gidAttrs}
	if m.attr != nil {
		base, err := rundir.Dir()
		if err != nil {
			return 0, &noView{err}
		}
		spec.Work = filepath.Join(base, "view")
		if err := os.MkdirAll(spec.Work, 0o755); err != nil {
			return 0, &noView{err}
		}
		return e.runViewed(m, spec, t.ports, p)
	}
	var err error
	if spec.Work, err = plainTree(t, spec); m.answers {
		if err != nil {
			return 0, &noView{err}
		}
		return e.runAnswered(m, spec, t.socket, p)
	}
	if p.say {
		e.note("view: %s", m.name)
	}
	c := exec.Command(p.path)
	c.Args, c.Env = p.argv, p.environ
	p.streams(c)
	if err == nil {
		c.Env = append(c.Env, "MR_SYSFS="+spec.Work)
		if f, err := view.OpenFiles(spec.Class()); err == nil {
			defer keep(spec, f, t.ports)()
		}
	}
	return runChild(c, nil)
}

// plainTree writes the tree of /sys as plain files, for programs that ask our library where sysfs is and for answered
// system calls. It is the same for every run over these NICs, so that it need not be removed while one still reads; `down`
// removes it.
func plainTree(t *target, s view.Spec) (string, error) {
	base, err := rundir.Dir()
	if err != nil {
		return "", err
	}
	name := strings.ReplaceAll(strings.Join(t.nicArg, ","), "/", "-")
	if s.GIDAttrs {
		name += ".gid-attrs"
	}
	dir := filepath.Join(base, "sysfs", filepath.Base(t.socket), name)
	return dir, view.Write(dir, s)
}

// keep lets a tree follow its NICs until what it returns is called.
func keep(s view.Spec, f *view.Files, ask view.Source) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		view.Follow(ctx, ask, []*view.Kept{{Spec: s, Files: f}})
		f.Close()
	}()
	return func() { cancel(); <-done }
}

// report is what the second half has to say: the directory of its tree, or why there is none.
type report struct {
	tree *os.File
	text string
}

// runViewed runs a program behind a view by mounts, and keeps the view up to date as ask says.
func (e *env) runViewed(m viewMode, spec view.Spec, ask view.Source, p viewed) (int, error) {
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/"
	}
	text, err := json.Marshal(inside{View: spec, Path: p.path, Argv: p.argv, Cwd: cwd, Outside: space.Here("mnt")})
	if err != nil {
		return 0, err
	}
	c, err := self(runCommand, string(text))
	if err != nil {
		return 0, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer ours.Close()
	c.Env, c.ExtraFiles, c.SysProcAttr = p.environ, []*os.File{theirs}, m.attr()
	p.streams(c)
	said := make(chan report, 1)
	stop := func() {}
	code, err := runChild(c, func(int) {
		theirs.Close()
		r := hear(ours) // ends when the socket closes on exec
		if r.text == "" && p.say {
			e.note("view: %s", m.name)
		}
		if r.tree != nil && ask != nil {
			if f, err := view.OpenFiles(fmt.Sprintf("/proc/self/fd/%d", r.tree.Fd())); err == nil {
				stop = keep(spec, f, ask)
			}
		}
		said <- r
	})
	stop()
	if err != nil {
		theirs.Close()
		return 0, &noView{err}
	}
	r := <-said
	if r.tree != nil {
		r.tree.Close()
	}
	if r.text != "" {
		return 0, &noView{errors.New(r.text)}
	}
	return code, nil
}

// socketPair is a stream of bytes and descriptors.
func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "report"), os.NewFile(uintptr(fds[1]), "report"), nil
}

// hear reads a report to its end.
func hear(from *os.File) (r report) {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(int(from.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if fd, ok := passedFD(oob[:max(oobn, 0)]); ok {
			r.tree = os.NewFile(uintptr(fd), "tree")
			continue
		}
		if err != nil || n == 0 {
			return r
		}
		r.text += string(buf[:n])
	}
}

// passedFD is the descriptor that came with a message.
func passedFD(oob []byte) (int, bool) {
	if len(oob) == 0 {
		return -1, false
	}
	cms, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(cms) != 1 {
		return -1, false
	}
	fds, err := unix.ParseUnixRights(&cms[0])
	if err != nil || len(fds) != 1 {
		return -1, false
	}
	return fds[0], true
}

// runInside is the second half: it makes the view, says whether that worked, and becomes the program.
func runInside(args []string) error {
	sock := os.NewFile(3, "report")
	syscall.CloseOnExec(3)
	var in inside
	if len(args) != 1 || sock == nil || json.Unmarshal([]byte(args[0]), &in) != nil || in.Outside == space.Here("mnt") {
		return fail.Usagef("%s is for nicemu's own use", runCommand)
	}
	refuse := func(err error) error {
		fmt.Fprint(sock, err)
		return exitCode(fail.Lacking)
	}
	runtime.LockOSThread() // capabilities and the exec belong to one thread
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return refuse(fmt.Errorf("cannot separate the mounts: %w", err))
	}
	if _, err := view.Mount(in.View); err != nil {
		return refuse(err)
	}
	// Who started us keeps the tree up to date. Without that it shows the NIC as it was, which is no reason to fail.
	if fd, err := unix.Open(in.View.Class(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Sendmsg(3, []byte{'.'}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
		_ = unix.Close(fd)
	}
	// The program gets no more rights than its user has.
	if os.Getuid() != 0 {
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
	_ = os.Chdir(in.Cwd) // the old directory's name may now lead into the view
	return become(in.Path, in.Argv)
}

// become turns this process into the program. It only returns when that fails, having said so.
func become(path string, argv []string) error {
	err := lab.NotStarted(argv[0], syscall.Exec(path, argv, os.Environ()))
	fmt.Fprintf(os.Stderr, "nicemu: %v\n", err)
	return exitCode(fail.Code(err))
}
