//go:build live

package live

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

// spec describes a lab; what is empty keeps the default.
type spec struct {
	wire   string
	hosts  string // YAML below hosts:; default a and b
	mtu    int    // of the planes' Ethernet
	impair string // YAML list entries of impair:
	extra  string // more YAML lines
	flags  []string
	as     []string // what runs the daemons: a command and its first arguments
}

func (s spec) yaml() string {
	var b strings.Builder
	hosts := "  a: {addr: 10.0.0.1/24}\n  b: {addr: 10.0.0.2/24}\n"
	if s.hosts != "" {
		hosts = s.hosts
	}
	b.WriteString("name: live\nhosts:\n" + hosts + "planes: 4\n")
	if s.wire != "" {
		fmt.Fprintf(&b, "wire: %s\n", s.wire)
	}
	if s.mtu != 0 {
		fmt.Fprintf(&b, "plane: {mtu: %d}\n", s.mtu)
	}
	if s.impair != "" {
		fmt.Fprintf(&b, "impair:\n%s\n", s.impair)
	}
	b.WriteString(s.extra)
	return b.String()
}

// lab is a lab that is up: hosts a (10.0.0.1) and b (10.0.0.2), four planes.
type lab struct {
	nicemu string
	prefix []string // runs nicemu as somebody else
	env    []string
	dir    string
}

// up brings a lab up, and down when the test ends.
func up(t testing.TB, s spec) *lab {
	t.Helper()
	return upOn(t, station(t), s)
}

// upOn is up at a station.
func upOn(t testing.TB, l *lab, s spec) *lab {
	t.Helper()
	needWire(t, s.wire)
	l.env = append(l.env, "MR_LAB=live") // one of the user's own may be up as well
	file := filepath.Join(l.dir, "lab.yaml")
	if err := os.WriteFile(file, []byte(s.yaml()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("status at the end:\n%s", l.try(10*time.Second, "status"))
		}
		if out, err := l.command(30*time.Second, "lab", "down", "live").CombinedOutput(); err != nil {
			t.Errorf("lab down: %v\n%s", err, out)
		}
	})
	starter := *l
	starter.prefix = append(slices.Clone(l.prefix), s.as...)
	starter.nice(t, 30*time.Second, append([]string{"lab", "up", file}, s.flags...)...)
	return l
}

// station is a runtime directory without a lab in it.
func station(t testing.TB) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "mr-live") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	env := append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "NO_COLOR=1")
	return &lab{nicemu: build(t, "bin/nicemu"), env: env, dir: dir}
}

// command prepares nicemu with a bound on its life: asked to stop first, killed three seconds later.
func (l *lab) command(limit time.Duration, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	time.AfterFunc(limit+5*time.Second, cancel)
	args = append(append(slices.Clone(l.prefix), l.nicemu), args...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = l.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	return cmd
}

// nice runs nicemu, which must succeed, and returns what it printed on stdout.
func (l *lab) nice(t testing.TB, limit time.Duration, args ...string) string {
	t.Helper()
	cmd := l.command(limit, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("nicemu %s: %v\n%s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String()
}

// try runs nicemu and returns all it printed and its exit code as "exit N".
func (l *lab) try(limit time.Duration, args ...string) string {
	cmd := l.command(limit, args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return fmt.Sprintf("%sexit %d", out, cmd.ProcessState.ExitCode())
}

// on runs a program on a host; it must succeed.
func (l *lab) on(t testing.TB, limit time.Duration, host string, program ...string) string {
	t.Helper()
	return l.nice(t, limit, append([]string{"lab", "exec", host, "--"}, program...)...)
}

// start starts a program on a host and returns without waiting.
func (l *lab) start(t testing.TB, limit time.Duration, host string, program ...string) *job {
	t.Helper()
	j := &job{name: host + ": " + strings.Join(program, " "), cmd: l.command(limit, append([]string{"lab", "exec", host, "--"}, program...)...)}
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
	j.begin(t)
	return j
}

// json runs a management command with --json and decodes its answer.
func (l *lab) json(t testing.TB, out any, args ...string) {
	t.Helper()
	text := l.nice(t, 10*time.Second, append(args, "--json")...)
	if err := json.Unmarshal([]byte(text), out); err != nil {
		t.Fatalf("nicemu %s --json: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// job is a running program.
type job struct {
	name string
	cmd  *exec.Cmd
	out  bed.Output
	done chan struct{}
	err  error
}

func (j *job) begin(t testing.TB) {
	t.Helper()
	if err := j.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", j.name, err)
	}
	j.done = make(chan struct{})
	go func() {
		j.err = j.cmd.Wait()
		close(j.done)
	}()
	t.Cleanup(func() {
		if j.running() {
			j.cmd.Process.Signal(syscall.SIGTERM)
		}
		<-j.done // bounded by the command's own limit
	})
}

func (j *job) running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

// wait waits for the end, which must be a success.
func (j *job) wait(t testing.TB) string {
	t.Helper()
	<-j.done
	if j.err != nil {
		t.Errorf("%s: %v\n%s", j.name, j.err, brief(j.out.String()))
	}
	return j.out.String()
}

// eventually polls until ok says so, and fails the test with what it said last otherwise.
func eventually(t testing.TB, limit time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s\n%s", limit, what, state)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func sorted(m map[string]int) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%d ", k, m[k])
	}
	return b.String()
}

func sigkill(pid int) error {
	if pid <= 1 {
		return fmt.Errorf("no such process: %d", pid)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}
