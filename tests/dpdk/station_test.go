//go:build dpdk

package dpdk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/tests/need"
	"github.com/metaroce/metaroce/tools/bed"
)

var (
	installed = need.Programs
	build     = need.Built
)

// full reports whether the whole is asked for; smoke is the part of every run.
func full() bool { return os.Getenv("MR_DPDK") == "full" }

// station is a place for daemons: a runtime directory of their own, and one for the wires' sockets.
type station struct {
	t      testing.TB
	dir    string
	env    []string
	inside []string // what runs a program in the station's network namespace
	proc   string   // /proc of a process there
}

func newStation(t testing.TB) *station {
	t.Helper()
	dir, err := os.MkdirTemp("", "mr-dpdk") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &station{t: t, dir: dir, proc: "/proc/self"}
	s.env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "LD_LIBRARY_PATH="+build(t, "lib"), "NO_COLOR=1")
	t.Cleanup(func() {
		for _, log := range s.logs() {
			if t.Failed() {
				text, _ := os.ReadFile(log)
				t.Logf("%s:\n%s", log, text)
			}
		}
		if out, err := s.command(20*time.Second, build(t, "bin/mroce-dpdk"), "down", "--all").CombinedOutput(); err != nil && !bytes.Contains(out, []byte("is up")) {
			t.Errorf("down: %v\n%s", err, out)
		}
		os.RemoveAll(dir)
	})
	return s
}

func (s *station) logs() []string {
	logs, _ := filepath.Glob(filepath.Join(s.dir, "mroce", "*", "daemon.log"))
	return logs
}

// command prepares a program with a bound on its life: asked to stop first, killed three seconds later.
func (s *station) command(limit time.Duration, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	time.AfterFunc(limit+5*time.Second, cancel)
	args = append(slices.Clone(s.inside), args...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = s.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	return cmd
}

// try runs mroce-dpdk and returns all it printed and its exit code.
func (s *station) try(args ...string) (string, int) {
	cmd := s.command(30*time.Second, append([]string{build(s.t, "bin/mroce-dpdk")}, args...)...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return fmt.Sprint(err), -1
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// nic is a daemon with one NIC that is up.
type nic struct {
	*station
	name, addr string
	dev        string // mr0 where it is ""
	socket     string
}

// up starts a daemon; more are further flags, and EAL's arguments behind --.
func (s *station) up(name, addr string, wires []string, more ...string) *nic {
	s.t.Helper()
	args := []string{"up", "--nic", name + "/mr0", "--addr", addr + "/24"}
	for _, w := range wires {
		args = append(args, "--wire", w)
	}
	if out, rc := s.try(append(args, more...)...); rc != 0 {
		s.t.Fatalf("mroce-dpdk %s: exit %d\n%s", strings.Join(args, " "), rc, out)
	}
	return s.nic(name, addr)
}

// nic is a NIC that is up; of a test that fails, what it counted and what happened are logged while it still is.
func (s *station) nic(name, addr string) *nic {
	s.t.Cleanup(func() {
		if !s.t.Failed() {
			return
		}
		for _, what := range []string{"paths", "stats", "events"} {
			out, _ := s.command(10*time.Second, build(s.t, "bin/nicemu"), what, "--nic", name+"/mr0").CombinedOutput()
			s.t.Logf("%s of %s:\n%s", what, name, out)
		}
	})
	return &nic{station: s, name: name, addr: addr, socket: filepath.Join(s.dir, "mroce", name+"-mr0.sock")}
}

// other is another NIC of the same daemon, one that shares its ports.
func (n *nic) other(dev, addr string) *nic {
	o := *n
	o.dev, o.addr = dev, addr
	return &o
}

// full is its name.
func (n *nic) full() string { return n.name + "/" + cmp.Or(n.dev, "mr0") }

// memif are the wires of one end of a number of planes.
func (s *station) memif(role string, planes int) (wires []string) {
	for i := range planes {
		wires = append(wires, fmt.Sprintf("dpdk:net_memif%d,id=%d,role=%s,socket=%s/m.sock", i, i, role, s.dir))
	}
	return wires
}

// pair is two daemons joined by planes over memif.
func pair(t testing.TB, planes int) (a, b *nic) {
	t.Helper()
	s := newStation(t)
	a = s.up("a", "10.0.0.1", s.memif("server", planes))
	b = s.up("b", "10.0.0.2", s.memif("client", planes))
	a.await(planes)
	b.await(planes)
	return a, b
}

// ask calls a management command.
func (n *nic) ask(cmd string, args, out any) {
	n.t.Helper()
	c, err := client.Dial(n.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	if err := c.MgmtNIC(cmd, n.full(), args, out); err != nil {
		n.t.Fatalf("%s: %v", cmd, err)
	}
}

// allPlanes calls a command that is about the daemon.
func (n *nic) daemon(cmd string, args any) {
	n.t.Helper()
	c, err := client.Dial(n.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	if err := c.Mgmt(cmd, args, nil); err != nil {
		n.t.Fatalf("%s: %v", cmd, err)
	}
}

func (n *nic) impair(words ...string) {
	n.t.Helper()
	n.daemon("impair", serve.ImpairArgs{Words: words})
}

func (n *nic) status() api.NICStatus {
	n.t.Helper()
	var s api.Status
	n.ask("status", nil, &s)
	return s.NICs[0]
}

// await waits until so many planes are up.
func (n *nic) await(planes int) {
	n.t.Helper()
	eventually(n.t, 10*time.Second, fmt.Sprintf("%s has %d planes", n.name, planes), func() bool {
		up := 0
		for _, p := range n.status().Planes {
			if p.Link == "up" && p.Admin == "up" {
				up++
			}
		}
		return up == planes
	})
}

// sent is how many bytes each plane has sent.
func (n *nic) sent() (tx []float64) {
	n.t.Helper()
	var s struct {
		NICs []struct {
			Planes []struct{ Counters map[string]float64 }
		}
	}
	n.ask("stats", nil, &s)
	for _, p := range s.NICs[0].Planes {
		tx = append(tx, p.Counters["mroce_tx_bytes_total"])
	}
	return tx
}

// flows waits until a program sends by the NIC.
func (n *nic) flows(j *job) {
	n.t.Helper()
	total := func() (sum float64) {
		for _, v := range n.sent() {
			sum += v
		}
		return sum
	}
	before := total()
	eventually(n.t, 15*time.Second, "traffic", func() bool {
		select {
		case <-j.done:
			n.t.Fatalf("%s ended by itself: %v\n%s", j.name, j.err, j.out.String())
		default:
		}
		return total()-before > 4<<20
	})
}

// pid is the daemon's process.
func (n *nic) pid() int {
	n.t.Helper()
	var s struct{ Process struct{ PID int } }
	text, err := os.ReadFile(filepath.Join(n.dir, "mroce", n.name+"-mr0", "dpdk.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || s.Process.PID <= 1 {
		n.t.Fatalf("no process of %s: %v", n.name, err)
	}
	return s.Process.PID
}

// job is a running program.
type job struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	out  bed.Output
	done chan struct{}
	err  error
}

// start starts a program on the NIC.
func (n *nic) start(limit time.Duration, program ...string) *job {
	n.t.Helper()
	j := &job{t: n.t, name: n.name + ": " + strings.Join(program, " "), cmd: n.command(limit, program...), done: make(chan struct{})}
	j.cmd.Env = append(j.cmd.Env, "MR_SOCKET="+n.socket, "MR_NIC="+n.full())
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
	if err := j.cmd.Start(); err != nil {
		n.t.Fatalf("%s: %v", j.name, err)
	}
	go func() {
		j.err = j.cmd.Wait()
		close(j.done)
	}()
	n.t.Cleanup(func() {
		select {
		case <-j.done:
		default:
			j.cmd.Process.Signal(syscall.SIGTERM)
			<-j.done // bounded by the command's own limit
		}
	})
	return j
}

// wait waits for the end, which must be a success.
func (j *job) wait() string {
	j.t.Helper()
	<-j.done
	if j.err != nil {
		j.t.Errorf("%s: %v\n%s", j.name, j.err, j.out.String())
	}
	return j.out.String()
}

// freePort is one that nobody has; other runs of these tests are on this machine, too.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// programs starts a server on one NIC and, once it listens, a client on the other; %s in the client's arguments is where.
// portFlag is how both are told their TCP port.
func programs(limit time.Duration, server, client *nic, portFlag string, args ...string) (s, c *job) {
	server.t.Helper()
	port := freePort(server.t)
	args = append(args, portFlag, strconv.Itoa(port))
	s = server.start(limit, args...)
	needle := fmt.Sprintf(":%04X 0", port) // a local address, then a remote one of zeros
	eventually(server.t, 10*time.Second, s.name+" listens", func() bool {
		four, _ := os.ReadFile(server.proc + "/net/tcp")
		six, _ := os.ReadFile(server.proc + "/net/tcp6")
		return strings.Contains(string(four)+string(six), needle)
	})
	return s, client.start(limit, append(args, "127.0.0.1")...)
}

// perftest runs a pair of one of its programs; both must succeed.
func perftest(server, client *nic, program string, args ...string) string {
	server.t.Helper()
	s, c := programs(40*time.Second, server, client, "-p", append([]string{program, "-F"}, args...)...)
	out := c.wait()
	if server.t.Failed() {
		s.cmd.Process.Signal(syscall.SIGTERM) // it may wait for ever for a client that failed
	}
	s.wait()
	return out
}

// integrity runs our program that fills, moves and checks memory.
func integrity(a, b *nic) {
	a.t.Helper()
	s, c := programs(90*time.Second, a, b, "-p", build(a.t, "tests/mr_integrity"))
	a.t.Log(strings.TrimSpace(c.wait()))
	s.wait()
}

// eventually polls until ok says so.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", limit, what)
		}
	}
}
