package cmd

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/lab"
)

// supervise runs a program with our streams and returns its exit code as an error (nil for 0).
func (e *env) supervise(path string, argv, environ []string) error {
	c := exec.Command(path)
	c.Args, c.Env = argv, environ
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	code, err := runChild(c, nil)
	if err != nil {
		return lab.NotStarted(argv[0], err)
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// runChild runs c to its end and passes signals on to it. The child dies with us: PDEATHSIG belongs to the thread that forked, so this one stays.
func runChild(c *exec.Cmd, started func(pid int)) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = unix.SIGKILL
	forward := catchSignals()
	if err := c.Start(); err != nil {
		forward(nil)
		return 0, err
	}
	stop := forward(c.Process)
	if started != nil {
		started(c.Process.Pid)
	}
	err := c.Wait()
	stop()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		return 0, err
	}
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return c.ProcessState.ExitCode(), nil
}

// catchSignals keeps signals from ending us. What it returns passes them on to a process, those that came since
// included, until stop is called; without a process it gives up.
func catchSignals() (forward func(p *os.Process) (stop func())) {
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	return func(p *os.Process) func() {
		if p == nil {
			signal.Stop(sigs)
			return nil
		}
		done, forwarded := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(forwarded)
			for {
				select {
				case s := <-sigs:
					// A terminal sends these to the whole foreground group, the program included.
					if (s == unix.SIGINT || s == unix.SIGQUIT) && inForeground() {
						continue
					}
					_ = p.Signal(s)
				case <-done:
					return
				}
			}
		}()
		return func() {
			signal.Stop(sigs)
			close(done)
			<-forwarded
		}
	}
}

// inForeground reports whether our process group owns the terminal.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}
