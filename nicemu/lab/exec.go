package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/nicemu/space"
	"github.com/metaroce/metaroce/nicemu/view"
)

// StepCommand is the hidden command that finishes entering a host: working directory, then the program.
const StepCommand = "__step"

// Env returns the variables that lead a program to a NIC of ours: `run` and `exec` set them, `env` prints them.
func Env(libdir, socket string, nics []string) [][2]string {
	path := libdir
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" && !strings.HasPrefix(old+":", libdir+":") {
		path += ":" + old
	}
	env := [][2]string{{"LD_LIBRARY_PATH", path}, {"MR_SOCKET", socket}}
	if len(nics) > 0 {
		env = append(env, [2]string{"MR_NIC", strings.Join(nics, ",")})
	}
	return env
}

// WithEnv returns the environment of this process with variables replaced.
func WithEnv(set [][2]string) []string {
	var env []string
next:
	for _, kv := range os.Environ() {
		for _, s := range set {
			if strings.HasPrefix(kv, s[0]+"=") {
				continue next
			}
		}
		env = append(env, kv)
	}
	for _, s := range set {
		env = append(env, s[0]+"="+s[1])
	}
	return env
}

// FindHost returns a host of the lab, with a suggestion when the name is wrong.
func (s *State) FindHost(name string) (*Host, error) {
	if h := s.Host(name); h != nil {
		return h, nil
	}
	if near := labfile.Nearest(name, s.HostNames()); near != "" {
		return nil, fail.Usagef("lab %s has no host %q; did you mean %q?", s.Name, name, near)
	}
	return nil, fail.Usagef("lab %s has no host %q; hosts: %s", s.Name, name, join(s.HostNames()))
}

// HostEnv is Env for a host of the lab.
func (s *State) HostEnv(h *Host, libdir string) [][2]string {
	var nics []string
	for _, n := range h.NICs {
		nics = append(nics, h.Name+"/"+n.Name)
	}
	env := Env(libdir, s.Daemons[h.Daemon].Socket, nics)
	if h.NS == nil && s.Kind == KindLab {
		env = append(env, [2]string{"MR_SYSFS", s.sysfs(h)})
	}
	return env
}

// sysfs is a tree for programs that ask our library where sysfs is, for hosts without a view.
func (s *State) sysfs(h *Host) string { return filepath.Join(s.dir, "sysfs", h.Name) }

// Prepare checks that the program can run in the host and records that it does, in this process. It returns the program's
// path and environment.
func (s *State) Prepare(h *Host, libdir string, argv []string) (path string, env []string, err error) {
	if s.Health() == "down" {
		return "", nil, fail.Failf("lab %s is not running any more (its daemon is gone; log: %s); `nicemu lab down %s` cleans up", s.Name, s.Daemons[0].Log, s.Name)
	}
	if d := s.Daemons[h.Daemon]; d.Process == nil || !d.Process.Alive() {
		return "", nil, fail.Failf("the daemon of host %s is gone (log: %s); `nicemu lab down %s` and `lab up` bring it back", h.Name, d.Log, s.Name)
	}
	if path, err = LookPath(argv[0]); err != nil {
		return "", nil, err
	}
	return path, WithEnv(s.HostEnv(h, libdir)), s.record(h, argv)
}

// Tree is what a host without a view of its own shows to programs whose calls are answered, or nil.
func (s *State) Tree(h *Host, version string) *view.Spec {
	if h.NS != nil || s.NoView || s.Kind != KindLab {
		return nil
	}
	return s.view(h, s.sysfs(h), version)
}

// Exec becomes the program, in the host. It only returns on error.
func (s *State) Exec(h *Host, libdir string, argv []string) error {
	path, env, err := s.Prepare(h, libdir, argv)
	if err != nil {
		return err
	}
	switch {
	case h.NS == nil:
		err = syscall.Exec(path, argv, env) //nolint:gosec // running the user's program is the point
	case s.Isolation == IsolateRoot:
		err = space.Enter(s.Holder.PID, *h.NS, path, argv, env)
	default:
		err = s.execBelowUser(h, path, argv, env)
	}
	return NotStarted(argv[0], err)
}

func (s *State) execBelowUser(h *Host, path string, argv, env []string) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fail.Lackf("`nsenter` is missing; install it: apt-get install util-linux")
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/"
	}
	cmd := space.EnterCommand(s.Holder.PID, *h.NS, []string{exe, StepCommand, cwd, path}, argv)
	return syscall.Exec(nsenter, cmd, env) //nolint:gosec // running the user's program is the point
}

// Step is the second half of entering: args are the directory, the program's path, and its arguments.
func Step(args []string) error {
	if len(args) < 3 {
		return fail.Usagef("%s is for nicemu's own use", StepCommand)
	}
	_ = os.Chdir(args[0])
	return NotStarted(args[2], syscall.Exec(args[1], args[2:], os.Environ())) //nolint:gosec // as above
}

// LookPath finds a program; the error has the code a shell would give.
func LookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(path)
	}
	if errors.Is(err, exec.ErrDot) {
		return filepath.Abs(path)
	}
	e := fail.New(127, "cannot find the program %q", name)
	if errors.Is(err, os.ErrPermission) {
		e = fail.New(126, "%q may not be run: %w", name, err)
	}
	if hint := PackageOf(name); hint != "" && e.Code == 127 {
		e.Msg += "; install it: apt-get install " + hint
	}
	return "", e
}

// PackageOf names the Debian package of programs that people run first.
func PackageOf(name string) string {
	switch {
	case strings.HasPrefix(name, "ib_") && (strings.HasSuffix(name, "_bw") || strings.HasSuffix(name, "_lat")):
		return "perftest"
	case strings.HasPrefix(name, "ibv_"):
		return "ibverbs-utils"
	case name == "rping" || name == "ucmatose":
		return "rdmacm-utils"
	}
	return ""
}

// NotStarted wraps the error of an exec that came back.
func NotStarted(name string, err error) error {
	var e *fail.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, syscall.ENOEXEC) {
		return fail.New(126, "%s is not a program (a script needs a #! line)", name)
	}
	return fail.New(126, "cannot run %s: %w", name, err)
}

// Program is one that `lab exec` started. Exec keeps the number of the process, so the record stays right.
type Program struct {
	Host    string         `json:"host"`
	Command string         `json:"command"`
	Process rundir.Process `json:"process"`
}

func (s *State) record(h *Host, argv []string) error {
	dir := filepath.Join(s.dir, "programs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot record the program: %w", err)
	}
	p, err := rundir.Record(os.Getpid())
	if err != nil {
		return err
	}
	text, err := json.Marshal(Program{Host: h.Name, Command: strings.Join(argv, " "), Process: p})
	if err != nil {
		return err
	}
	s.programs() // forgets those that have ended
	return os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), text, 0o600)
}

// programs lists the recorded programs that still run.
func (s *State) programs() []Program {
	dir := filepath.Join(s.dir, "programs")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var alive []Program
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var p Program
		text, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(text, &p) != nil {
			continue // being written
		}
		if !p.Process.Alive() {
			os.Remove(path)
			continue
		}
		alive = append(alive, p)
	}
	return alive
}

// Running lists the programs that run in the lab.
func (s *State) Running() []Program { return s.programs() }
