package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
)

// DaemonCommand is the hidden command that runs a daemon.
const DaemonCommand = "daemon"

// patience is how long a daemon may take until its socket answers.
const patience = 20 * time.Second

// Launch is a daemon to be started: this program again, with the hidden command.
type Launch struct {
	Name     string // of this program, as it begins its messages
	Config   string // file to serve
	Socket   string
	Log      string
	Files    []*os.File // descriptors from 3 on
	Recorded func(rundir.Process) error
}

// Start starts a daemon in a session of its own and waits until its socket answers.
func (l *Launch) Start(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(l.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command(exe, DaemonCommand, "--recorded", l.Config)
	stay, err := c.StdinPipe() // a daemon that nobody has recorded ends with us
	if err != nil {
		return err
	}
	defer stay.Close()
	c.Dir = "/"
	c.Stdout, c.Stderr = log, log
	c.ExtraFiles = l.Files
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return fmt.Errorf("cannot start the daemon: %w", err)
	}
	p, err := rundir.Record(c.Process.Pid)
	if err != nil {
		_ = c.Process.Kill()
		return errors.Join(err, c.Wait())
	}
	if err := l.Recorded(p); err != nil {
		return err
	}
	if _, err := stay.Write([]byte{'!'}); err != nil {
		return fmt.Errorf("the daemon ended at once: %w; %s", err, l.lastLine())
	}
	exited := make(chan struct{})
	go func() { _ = c.Wait(); close(exited) }()
	return l.await(ctx, exited, c)
}

func (l *Launch) await(ctx context.Context, exited chan struct{}, c *exec.Cmd) error {
	limit := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-exited:
			code := c.ProcessState.ExitCode()
			if code <= 0 {
				code = fail.Failed
			}
			return fail.New(code, "the daemon did not start: %s", l.lastLine())
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fail.Failf("the daemon does not answer at %s after %v; its log: %s", l.Socket, patience, l.Log)
		case <-tick.C:
			if Answers(l.Socket) {
				return nil
			}
		}
	}
}

// WaitRecorded is the daemon's side of Start: it returns when the process is recorded.
func WaitRecorded() error {
	if n, err := os.Stdin.Read(make([]byte, 1)); n != 1 {
		return fail.Failf("who started this daemon is gone: %w", err)
	}
	return nil
}

// CheckSocket refuses a control socket that cannot be, or is another's.
func CheckSocket(path string) error {
	if len(path) > 107 {
		return fail.Failf("the path of the control socket is too long (%d of at most 107 letters): %s; set XDG_RUNTIME_DIR to a shorter directory", len(path), path)
	}
	if Answers(path) {
		return fail.Failf("a daemon answers at %s already, and it is not ours", path)
	}
	return nil
}

// CheckGroup refuses a group that does not exist before anything is made for it.
func CheckGroup(name string) error {
	if name == "" {
		return nil
	}
	if _, err := strconv.Atoi(name); err == nil {
		return nil
	}
	if _, err := user.LookupGroup(name); err != nil {
		return fail.Usagef("--group %s: this machine has no group of that name (`getent group` lists them)", name)
	}
	return nil
}

// CheckDMA reads a --dma: "" is the best way that works.
func CheckDMA(how string) (string, error) {
	switch how {
	case "auto":
		return "", nil
	case "assist":
		return how, nil
	}
	return "", fail.Usagef("--dma %s: auto or assist", how)
}

// Answers reports whether somebody listens at a control socket.
func Answers(socket string) bool {
	c, err := net.DialTimeout("unixpacket", socket, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// lastLine is what a daemon said last, without what only a log needs.
func (l *Launch) lastLine() string {
	text, err := os.ReadFile(l.Log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], l.Name+": ")
	if err != nil || last == "" {
		return "it said nothing; see " + l.Log
	}
	return last
}
