//go:build interop

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const labIPv4, labIPv6 = "10.0.0.1", "fd00::1"

// lab is a lab of one host, a, with one NIC on one plane that reaches the VM.
type lab struct {
	nicemu string
	env    []string
	dir    string
}

// labIn is the lab that has, or had, its state in a directory.
func labIn(dir string) *lab {
	nicemu, _ := filepath.Abs("../../build/bin/nicemu") // an error is of the working directory
	return &lab{nicemu: nicemu, dir: dir, env: append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "NO_COLOR=1", "MR_LAB=interop")}
}

// down takes the lab down and says whether it did, or there was none.
func (l *lab) down() (ok bool, said string) {
	said = l.command(30*time.Second, "lab", "down", "interop").try()
	return strings.HasSuffix(said, "exit 0"), said
}

var uplinks atomic.Int32

// up brings a lab up beside the VM, and down when the test ends.
func up(t testing.TB, m *machine, transport string) *lab {
	t.Helper()
	dir, err := tempDir("iop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := labIn(dir)
	built(t, "bin/nicemu")
	file := filepath.Join(dir, "lab.yaml")
	yaml := fmt.Sprintf("name: interop\nhosts:\n  a: {addr: [%s/24, %s/64]}\nplanes: 1\nplane: {mtu: %d}\nwire: tap\ntransport: %s\n", labIPv4, labIPv6, mtu, transport)
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.healthy(t)
		if t.Failed() {
			t.Logf("status at the end:\n%s", l.command(10*time.Second, "status").try())
		}
		if ok, said := l.down(); !ok {
			t.Errorf("lab down: %s", said)
		}
	})
	l.nice(t, 30*time.Second, "lab", "up", file)
	l.join(t, m)
	return l
}

// join connects the lab's bridge with the VM's by a veth, which goes when the lab's namespace does.
func (l *lab) join(t testing.TB, m *machine) {
	t.Helper()
	var state struct{ Holder struct{ PID int } }
	text, err := os.ReadFile(filepath.Join(l.dir, "mroce", "interop", "state.json"))
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil || state.Holder.PID < 2 {
		t.Fatalf("who holds the lab's namespaces? %v\n%s", err, text)
	}
	ours := fmt.Sprintf("lab%d", uplinks.Add(1))
	ns, size := fabric(t, state.Holder.PID), strconv.Itoa(mtu)
	for _, cmd := range [][]string{
		{"ip", "-n", m.netns, "link", "add", ours, "mtu", size, "type", "veth", "peer", "name", "uplink", "mtu", size, "netns", ns},
		{"ip", "-n", m.netns, "link", "set", ours, "master", "br0", "up"},
		{"nsenter", "--net=" + ns, "ip", "link", "set", "uplink", "master", "plane0", "up"},
	} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	forwarding(t, "ip", "-n", m.netns, "-d", "link", "show", ours)
	forwarding(t, "nsenter", "--net="+ns, "ip", "-d", "link", "show", "uplink")
}

// fabric finds the namespace with the lab's bridges: that of one of the holder's threads, not always of the first.
func fabric(t testing.TB, holder int) string {
	t.Helper()
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", holder)) // an error is of the pattern
	for _, ns := range all {
		if exec.Command("nsenter", "--net="+ns, "ip", "link", "show", "plane0").Run() == nil {
			return ns
		}
	}
	t.Fatalf("no thread of %d has plane0: %v", holder, all)
	return ""
}

// forwarding waits until a bridge uses its new port: it hears of the link with up to a second's delay.
func forwarding(t testing.TB, show ...string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out, err := exec.Command(show[0], show[1:]...).CombinedOutput()
		if strings.Contains(string(out), "state forwarding") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the bridge does not use its port: %v\n%s", err, out)
		}
	}
}

// impair sets what the NIC's wire suffers, from the words of `lab impair`.
func (l *lab) impair(t testing.TB, words ...string) {
	t.Helper()
	l.nice(t, 10*time.Second, append([]string{"lab", "impair"}, words...)...)
}

// command prepares nicemu with a bound on its life: asked to stop first, killed three seconds later.
func (l *lab) command(limit time.Duration, args ...string) *command {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	time.AfterFunc(limit+5*time.Second, cancel)
	cmd := exec.CommandContext(ctx, l.nicemu, args...)
	cmd.Env = l.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	return &command{cmd}
}

type command struct{ *exec.Cmd }

// try runs it and returns all it printed and its exit code as "exit N".
func (c *command) try() string {
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return fmt.Sprintf("%sexit %d", out, c.ProcessState.ExitCode())
}

// nice runs nicemu, which must succeed, and returns what it printed on stdout.
func (l *lab) nice(t testing.TB, limit time.Duration, args ...string) string {
	t.Helper()
	c := l.command(limit, args...)
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("nicemu %s: %v\n%s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String()
}

func (l *lab) String() string { return "nicemu" }
func (l *lab) device() string { return "mr0" }
func (l *lab) addr(v6 bool) string {
	if v6 {
		return labIPv6
	}
	return labIPv4
}

// gid: the addresses in the order of the lab file.
func (l *lab) gid(v6 bool) string {
	if v6 {
		return "1"
	}
	return "0"
}

// start implements side.
func (l *lab) start(t testing.TB, limit time.Duration, program ...string) *run {
	t.Helper()
	c := l.command(limit, slices.Concat([]string{"lab", "exec", "a", "--"}, program)...)
	r := &run{name: "nicemu: " + strings.Join(program, " "), done: make(chan struct{})}
	c.Stdout, c.Stderr = &r.out, &r.out
	if err := c.Start(); err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	r.stop = func() { _ = c.Process.Signal(syscall.SIGTERM) } // it may have ended
	go func() {
		r.err = c.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		if r.running() {
			r.stop()
		}
		<-r.done // bounded by its limit
	})
	return r
}
