package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// program is a program on a host of the demo. `lab exec` becomes the program, so its number is the program's.
type program struct {
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan struct{}
	err  error
}

// lockedBuffer is written by a running program and read by us.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (d *demo) program(host string, args []string) *program {
	p := &program{done: make(chan struct{})}
	p.cmd, p.err = self(append([]string{"lab", "exec", "--lab", d.lab.Name, host, "--"}, args...)...)
	return p
}

func (p *program) start() error {
	if p.err != nil {
		return p.err
	}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = &p.out, &p.out, time.Second
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

func (p *program) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errors.New("it did not end in time")
		}
		return ctx.Err()
	}
}

// stop ends a program that still runs, and waits for it.
func (p *program) stop() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(2 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (p *program) output(ctx context.Context) (string, string, error) {
	if err := p.start(); err != nil {
		return "", "", err
	}
	defer p.stop()
	if err := p.wait(ctx); err != nil {
		return "", "", fmt.Errorf("%w\n%s", err, p.out.String())
	}
	return p.out.String(), "", nil
}

// listening waits until the program, or another in its network namespace, listens on a TCP port.
func (p *program) listening(ctx context.Context, port int) error {
	want := fmt.Sprintf(":%04X ", port)
	for {
		for _, f := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, f))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				fields := strings.Fields(line)
				if len(fields) > 3 && fields[3] == "0A" && strings.HasSuffix(fields[1]+" ", want) {
					return nil
				}
			}
		}
		select {
		case <-p.done:
			return errors.Join(errors.New("it ended early"), p.err)
		case <-ctx.Done():
			return errors.New("it does not listen")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func isTerminalWriter(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isTerminal(f)
}

func countDevices(out string) (float64, bool) {
	n := strings.Count(out, "hca_id:")
	return float64(n), n > 0 && strings.Contains(out, "PORT_ACTIVE")
}

var perIter = regexp.MustCompile(`= ([0-9.]+) usec/iter`)

func pingpongMicros(out string) (float64, bool) {
	m := perIter.FindStringSubmatch(out)
	if m == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(m[1], 64)
	return v, err == nil
}

// column reads the n-th figure of perftest's result: the line of figures below the one that begins with #bytes.
func column(n int) func(string) (float64, bool) {
	return func(out string) (float64, bool) {
		head := false
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if head && len(f) >= n {
				v, err := strconv.ParseFloat(f[n-1], 64)
				return v, err == nil && v > 0
			}
			head = len(f) > 0 && f[0] == "#bytes"
		}
		return 0, false
	}
}
