package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/daemon/serve"
)

// DaemonCommand is the hidden command that runs a daemon.
const DaemonCommand = "daemon"

// patience is how long a daemon may take until its socket answers.
const patience = 20 * time.Second

// startDaemon starts daemon i and waits until its socket answers.
func (s *State) startDaemon(ctx context.Context, i int, cfg *serve.Config, files []*os.File) error {
	d := &s.Daemons[i]
	if len(d.Socket) > 107 {
		return fail.Failf("the path of the control socket is too long (%d of at most 107 letters): %s; set XDG_RUNTIME_DIR to a shorter directory", len(d.Socket), d.Socket)
	}
	if answers(d.Socket) {
		return fail.Failf("a daemon answers at %s already, and it is not ours", d.Socket)
	}
	path := filepath.Join(s.dir, d.Name+".json")
	if err := cfg.Write(path); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(d.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command(exe, DaemonCommand, "--recorded", path)
	stay, err := c.StdinPipe() // a daemon that nobody has recorded ends with us
	if err != nil {
		return err
	}
	defer stay.Close()
	c.Dir = "/"
	c.Stdout, c.Stderr = log, log
	c.ExtraFiles = files
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return fmt.Errorf("cannot start the daemon: %w", err)
	}
	p, err := rundir.Record(c.Process.Pid)
	if err != nil {
		_ = c.Process.Kill()
		return errors.Join(err, c.Wait())
	}
	d.Process = &p
	if err := s.save(); err != nil {
		return err
	}
	if _, err := stay.Write([]byte{'!'}); err != nil {
		return fmt.Errorf("the daemon ended at once: %w; %s", err, lastLine(d.Log))
	}
	exited := make(chan struct{})
	go func() { _ = c.Wait(); close(exited) }()
	return s.await(ctx, d, exited, c)
}

func (s *State) await(ctx context.Context, d *Daemon, exited chan struct{}, c *exec.Cmd) error {
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
			return fail.New(code, "the daemon did not start: %s", lastLine(d.Log))
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fail.Failf("the daemon does not answer at %s after %v; its log: %s", d.Socket, patience, d.Log)
		case <-tick.C:
			if answers(d.Socket) {
				return nil
			}
		}
	}
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

// answers reports whether somebody listens at a control socket.
func answers(socket string) bool {
	c, err := net.DialTimeout("unixpacket", socket, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// lastLine is what a daemon said last, without what only a log needs.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "nicemu: ")
	if err != nil || last == "" {
		return "it said nothing; see " + path
	}
	return last
}
