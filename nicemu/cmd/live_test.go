package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/space"
)

// TestMain lets the test binary be nicemu: daemons, holders and programs in hosts are this binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		switch os.Args[1] {
		case "test-serve":
			os.Exit(testServe(os.Args[2]))
		case "test-dial":
			os.Exit(testDial(os.Args[2]))
		}
		os.Exit(Main(os.Args, "test"))
	}
	goleak.VerifyTestMain(m)
}

// testServe accepts one connection and says hello; testDial prints what it hears.
func testServe(at string) int {
	l, err := net.Listen("tcp", at)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("listening")
	c, err := l.Accept()
	if err != nil {
		return 1
	}
	host, _ := os.Hostname()
	fmt.Fprintf(c, "hello from %s", host)
	c.Close()
	return 0
}

func testDial(at string) int {
	c, err := net.DialTimeout("tcp", at, 5*time.Second)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	text, _ := io.ReadAll(c)
	fmt.Printf("%s\n", text)
	return 0
}

// skip leaves a test out because this machine cannot run it. CI sets MR_TEST_REQUIRE=all: there it is a failure.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("would skip, and MR_TEST_REQUIRE=all asks for every test: "+format, args...)
	}
	t.Skipf(format, args...)
}

func needIsolation(t testing.TB, how lab.Isolation) {
	t.Helper()
	switch how {
	case lab.IsolateRoot:
		if os.Getuid() != 0 {
			skip(t, "needs root")
		}
		if err := space.Try(false); err != nil {
			skip(t, "%v", err)
		}
	case lab.IsolateUser:
		if err := space.Try(true); err != nil {
			skip(t, "%v", err)
		}
		if _, err := exec.LookPath("nsenter"); err != nil {
			skip(t, "needs nsenter (util-linux)")
		}
	case lab.IsolateNone:
	}
}

func needTAP(t testing.TB) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		skip(t, "no TAP: /dev/net/tun: %v", err)
	}
	unix.Close(fd)
}

// station gives the test a runtime directory of its own, and a library directory whose library no program here loads.
func station(t testing.TB) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mrt") // short: sockets lie below
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	lib := filepath.Join(dir, "lib")
	if err := os.Mkdir(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lib, "libibverbs.so.1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("MR_LIB", lib)
	for _, k := range []string{"MR_SOCKET", "MR_NIC", "MR_LAB"} {
		t.Setenv(k, "")
	}
	t.Cleanup(func() { // runs before the directory goes
		if out, code := nicemu("lab", "down", "--all"); code != 0 {
			t.Errorf("lab down --all: %d %s", code, out)
		}
		var left []string
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if left = ofStation(dir); len(left) == 0 {
				return
			}
		}
		t.Errorf("processes are left: %v", left)
	})
}

// ofStation lists the processes that live in a station, by their environment.
func ofStation(dir string) []string {
	var found []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || e.Name() == fmt.Sprint(os.Getpid()) || e.Name() == "self" || e.Name() == "thread-self" {
			continue
		}
		if slices.Contains(strings.Split(string(env), "\x00"), "XDG_RUNTIME_DIR="+dir) {
			cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			found = append(found, e.Name()+": "+strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return found
}

// nicemu runs a command as another process, bounded, and returns all it printed and its exit code.
func nicemu(args ...string) (string, int) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		return string(out) + err.Error(), -1
	}
	return string(out), c.ProcessState.ExitCode()
}

func must(t testing.TB, args ...string) string {
	t.Helper()
	out, code := nicemu(args...)
	if code != 0 {
		t.Fatalf("nicemu %s: exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

func mustFail(t testing.TB, code int, want string, args ...string) {
	t.Helper()
	out, got := nicemu(args...)
	if got != code || !strings.Contains(out, want) {
		t.Errorf("nicemu %s: exit %d, want %d with %q\n%s", strings.Join(args, " "), got, code, want, out)
	}
}

// running is a command in the background.
type running struct {
	pid  int
	out  *lockedBuffer
	done chan struct{}
	cmd  *exec.Cmd
}

// background starts a command; its output can be read while it runs.
func background(t testing.TB, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.WaitDelay = time.Second
	out := &lockedBuffer{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b := &running{pid: c.Process.Pid, out: out, done: make(chan struct{}), cmd: c}
	go func() { _ = c.Wait(); close(b.done) }()
	t.Cleanup(func() { _ = c.Process.Kill(); <-b.done; cancel() })
	return b
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func theLab(t testing.TB, name string) labInfo {
	t.Helper()
	for line := range strings.Lines(must(t, "lab", "ls", "--json")) {
		var l labInfo
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("lab %s is not listed", name)
	return labInfo{}
}

// TestLab goes through a lab's life over each wire in each kind of isolation.
func TestLab(t *testing.T) {
	for _, how := range []lab.Isolation{lab.IsolateRoot, lab.IsolateUser, lab.IsolateNone} {
		for _, wire := range []string{"tap", "udp", "mem"} {
			if how == lab.IsolateNone && wire == "tap" {
				continue
			}
			t.Run(string(how)+"/"+wire, func(t *testing.T) {
				needIsolation(t, how)
				if wire == "tap" {
					needTAP(t)
				}
				station(t)
				life(t, how, wire)
			})
		}
	}
}

func life(t *testing.T, how lab.Isolation, wire string) {
	must(t, "lab", "up", "two-hosts", "--wire", wire, "--isolation", string(how))
	l := theLab(t, "two-hosts")
	if l.State != "up" || l.Wire != wire || l.Isolation != string(how) || len(l.Hosts) != 2 || l.Planes != 4 {
		t.Errorf("lab ls: %+v", l)
	}
	mustFail(t, 1, "is up already", "lab", "up", "two-hosts")
	inHost(t, how, l)
	out := must(t, "lab", "exec", "b", "--", "env")
	if !strings.Contains(out, "MR_NIC=b/mr0\n") || !strings.Contains(out, "MR_SOCKET="+l.Sockets[0]) {
		t.Errorf("environment of b:\n%s", out)
	}
	if _, code := nicemu("lab", "exec", "b", "--", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exit code of a program: %d", code)
	}
	if out := must(t, "lab", "exec", "b", "echo $MR_NIC; true"); out != "b/mr0\n" {
		t.Errorf("a line for a shell: %q", out)
	}
	mustFail(t, 127, `cannot find the program "no-such"`, "lab", "exec", "a", "--", "no-such")
	mustFail(t, 2, `no host "c"`, "lab", "exec", "c", "--", "true")

	manage(t)
	last := ""
	defer func() { t.Log(last) }()
	c := background(t, "lab", "exec", "a", "--", "sleep", "60")
	until(t, "sleep", func() bool { last = must(t, "lab", "ls"); return strings.Contains(last, " 1\n") })
	p, err := rundir.Record(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	var daemons []rundir.Process
	for _, pid := range l.PIDs {
		d, err := rundir.Record(pid)
		if err != nil {
			t.Fatal(err)
		}
		daemons = append(daemons, d)
	}
	must(t, "lab", "down")
	if p.Alive() {
		t.Error("lab down left a program running")
	}
	for i, d := range daemons {
		if d.Alive() {
			t.Errorf("lab down left the daemon %d", l.PIDs[i])
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "mroce", "two*")); len(left) > 0 {
		t.Errorf("lab down left %v", left)
	}
}

// inHost looks at what a program in a host sees, and lets two of them talk by TCP.
func inHost(t *testing.T, how lab.Isolation, l labInfo) {
	t.Helper()
	name, addr := "a", "10.0.0.1"
	if how == lab.IsolateNone {
		name, addr = "127.0.1.1", "127.0.1.1"
	}
	if l.Hosts[0].Addrs[0] != addr {
		t.Errorf("address of a: %v", l.Hosts[0].Addrs)
	}
	cwd, _ := os.Getwd()
	if out := must(t, "lab", "exec", "a", "--", "pwd"); strings.TrimSpace(out) != cwd {
		t.Errorf("a program starts in %s", out)
	}
	if how == lab.IsolateNone {
		out := must(t, "lab", "exec", "b", "--", "cat", "/sys/class/infiniband/mr0/ports/1/gids/0", "/sys/class/infiniband_verbs/uverbs0/ibdev")
		if out != "0000:0000:0000:0000:0000:ffff:7f00:0102\nmr0\n" {
			t.Errorf("view of b, by answered calls: %q", out)
		}
	}
	if how != lab.IsolateNone {
		if out := must(t, "lab", "exec", "a", "hostname"); strings.TrimSpace(out) != "a" {
			t.Errorf("host name %s", out)
		}
		out := must(t, "lab", "exec", "b", "--", "cat", "/sys/class/infiniband/mr0/ports/1/gids/0", "/sys/class/infiniband_verbs/uverbs0/ibdev")
		if out != "0000:0000:0000:0000:0000:ffff:0a00:0002\nmr0\n" {
			t.Errorf("view of b:\n%s", out)
		}
		if out := must(t, "lab", "exec", "a", "--", "ls", "/sys/class/net"); strings.Join(strings.Fields(out), " ") != "lo mr0" {
			t.Errorf("interfaces of a: %s", out)
		}
		must(t, "lab", "exec", "a", "--", "test", "-c", "/dev/infiniband/uverbs0")
	}
	b := background(t, "lab", "exec", "a", "--", os.Args[0], "test-serve", addr+":7471")
	until(t, "listening", func() bool { return strings.Contains(b.out.String(), "listening") })
	heard := must(t, "lab", "exec", "b", "--", os.Args[0], "test-dial", name+":7471")
	if !strings.HasPrefix(heard, "hello from ") {
		t.Errorf("b heard %q", heard)
	}
}

// manage changes a running lab.
func manage(t *testing.T) {
	t.Helper()
	must(t, "lab", "impair", "--planes", "1-2", "loss=5%", "--host", "a", "delay=20us")
	out := must(t, "lab", "impair", "--json")
	if !strings.Contains(out, `{"nic":"a/mr0","plane":2,"words":"loss=5% delay=20us"}`) || !strings.Contains(out, `{"nic":"b/mr0","plane":2,"words":"clear"}`) {
		t.Errorf("impairments:\n%s", out)
	}
	mustFail(t, 2, "needs a percent sign", "lab", "impair", "loss=5")
	mustFail(t, 2, `did you mean "loss"`, "lab", "impair", "lost=5%")
	mustFail(t, 2, "planes 0 to 3", "lab", "impair", "--planes", "4", "loss=5%")
	must(t, "lab", "impair", "clear")

	planesUp := func() string {
		var up []string
		for line := range strings.Lines(must(t, "status")) {
			if f := strings.Fields(line); len(f) > 4 && strings.HasSuffix(f[0], "/mr0") {
				up = append(up, f[4])
			}
		}
		return strings.Join(up, " ")
	}
	must(t, "lab", "plane", "2", "down")
	until(t, "plane 2 down", func() bool { return planesUp() == "3/4 3/4" })
	must(t, "lab", "plane", "up", "2", "--host", "a")
	until(t, "plane 2 of a up", func() bool { return planesUp() == "4/4 3/4" })
	must(t, "lab", "plane", "2", "up")
	until(t, "plane 2 up", func() bool { return planesUp() == "4/4 4/4" })
	must(t, "plane", "down", "0", "--nic", "a/mr0")
	until(t, "plane 0 of a off", func() bool { return planesUp() == "3/4 4/4" })
	must(t, "plane", "up", "0", "--nic", "a/mr0")
	if out := must(t, "events", "--json"); !strings.Contains(out, `"kind":"plane-down"`) {
		t.Errorf("events:\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "a.pcapng")
	for _, args := range [][]string{{"lab", "capture", "a"}, {"capture", "--nic", "b/mr0"}} {
		os.Remove(file)
		must(t, append(args, "--plane", "0", "-w", file, "--for", "50ms")...)
		if text, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(text, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
			t.Errorf("%v: %d bytes, %v", args, len(text), err)
		}
	}
	for _, args := range [][]string{{"capture", "-w", file}, {"capture", "--nic", "a/mr0"}, {"capture", "--nic", "a/mr0", "--plane", "4", "-w", file}, {"up", "--addr", "10.9.9.9/24", "--capture", "-"}} {
		if out, code := nicemu(args...); code != 2 {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
}

// TestLost: a killed daemon or holder is seen, and what it left goes away at the next up or down.
func TestLost(t *testing.T) {
	station(t)
	must(t, "lab", "up", "two-hosts", "--wire", "mem")
	l := theLab(t, "two-hosts")
	if err := unix.Kill(l.PIDs[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "loss of the daemon", func() bool { return theLab(t, "two-hosts").State == "down" })
	mustFail(t, 1, "its daemon is gone", "lab", "exec", "a", "--", "true")
	if out := must(t, "lab", "up", "two-hosts", "--wire", "mem"); !strings.Contains(out, "clearing away") {
		t.Errorf("up after a loss:\n%s", out)
	}
	must(t, "lab", "exec", "a", "--", "true")
	must(t, "lab", "down")
	mustFail(t, 1, "no lab is up", "lab", "down")
}

func TestDaemonPerHost(t *testing.T) {
	station(t)
	mustFail(t, 2, "wire: mem lives in one daemon", "lab", "up", "two-hosts", "--wire", "mem", "--daemon-per-host")
	must(t, "lab", "up", "two-hosts", "--wire", "udp", "--daemon-per-host")
	l := theLab(t, "two-hosts")
	if len(l.PIDs) != 2 || l.Hosts[0].DaemonPID == l.Hosts[1].DaemonPID {
		t.Fatalf("%+v", l)
	}
	manage(t)
	if err := unix.Kill(l.Hosts[0].DaemonPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "loss of a's daemon", func() bool { return theLab(t, "two-hosts").State == "daemon a lost" })
	mustFail(t, 1, "the daemon of host a is gone", "lab", "exec", "a", "--", "ibv_devices")
	mustFail(t, 0, "left out: daemon a of two-hosts does not answer", "status")
	must(t, "lab", "exec", "b", "--", "true")
}

// TestTimed: at: and for: are kept by the daemon. Four seconds, since a look may take one (race builds).
func TestTimed(t *testing.T) {
	station(t)
	file := filepath.Join(t.TempDir(), "timed.yaml")
	text := "hosts: {a: {addr: 10.0.0.1/24}, b: {addr: 10.0.0.2/24}}\nplanes: 2\nimpair:\n  - {planes: 1, at: 300ms, for: 4s, down: true}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "lab", "up", file, "--wire", "mem")
	now := func() string { return must(t, "lab", "impair", "--json", "--planes", "1", "--host", "a") }
	until(t, "down", func() bool { return strings.Contains(now(), `"down"`) })
	until(t, "up again", func() bool { return strings.Contains(now(), `"clear"`) })
}

func TestLabRun(t *testing.T) {
	station(t)
	out, code := nicemu("lab", "run", "two-hosts", "--wire", "mem", "--", os.Args[0], "lab", "exec", "a", "--", "sh", "-c", "echo $MR_NIC; exit 5")
	if code != 5 || !strings.Contains(out, "a/mr0") {
		t.Errorf("exit %d\n%s", code, out)
	}
	mustFail(t, 1, "no lab is up", "lab", "down")
}

// TestUpRun goes through the life of a single NIC, with each view.
func TestUpRun(t *testing.T) {
	station(t)
	t.Setenv("MR_SOCKET", filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "none.sock")) // another daemon may run on this machine
	mustFail(t, 1, "no daemon answers at MR_SOCKET", "run", "--", "true")
	t.Setenv("MR_SOCKET", "")
	must(t, "up", "--nic", "here/mr0", "--addr", "10.0.0.1/24")
	t.Cleanup(func() { must(t, "down", "--all") })
	mustFail(t, 1, "is up already", "up", "--nic", "here/mr0", "--addr", "10.0.0.1/24")
	if out := must(t, "env", "--plain"); !strings.Contains(out, "MR_NIC=here/mr0\n") {
		t.Errorf("env:\n%s", out)
	}
	views := map[string]lab.Isolation{"mount": lab.IsolateRoot, "user": lab.IsolateUser, "seccomp": lab.IsolateNone, "none": lab.IsolateNone}
	for name, how := range views {
		t.Run(name, func(t *testing.T) {
			needIsolation(t, how)
			if name == "none" {
				mustFail(t, 1, "never reached our libibverbs", "run", "--view", "none", "--", "sh", "-c", "exit 1")
				return
			}
			out := must(t, "run", "-v", "--view", name, "--", "sh", "-c", "cat /sys/class/infiniband/mr0/ports/1/gids/0; test -c /dev/infiniband/uverbs0 && echo $MR_NIC; id -u")
			for _, want := range []string{"0000:0000:0000:0000:0000:ffff:0a00:0001\n", "here/mr0\n", map[bool]string{true: "seccomp", false: "namespace"}[name == "seccomp"], fmt.Sprintf("%d\n", os.Getuid())} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if _, code := nicemu("run", "--view", name, "--", "sh", "-c", "kill -9 $$"); code != 137 {
				t.Errorf("exit code of a killed program: %d", code)
			}
		})
	}
	must(t, "down", "here/mr0")
	mustFail(t, 1, "no NIC is up", "down")
}

func TestDoctor(t *testing.T) {
	station(t)
	out, code := nicemu("doctor", "--json")
	var r struct {
		Checks []struct{ Name, State, Detail string }
		Usable bool
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if (code == 0) != r.Usable || len(r.Checks) < 10 {
		t.Errorf("exit %d, usable %v, %d checks", code, r.Usable, len(r.Checks))
	}
	for _, c := range r.Checks {
		if c.State != "ok" && c.State != "limited" && c.State != "no" || c.Detail == "" {
			t.Errorf("check %+v", c)
		}
	}
}

// TestKilled: a `lab up` that is killed at any moment leaves nothing that `lab down --all` (in station) does not find.
func TestKilled(t *testing.T) {
	for _, after := range []time.Duration{5, 15, 25, 35, 45, 60} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			station(t)
			c := background(t, "lab", "up", "four-hosts", "--wire", "udp")
			time.Sleep(after * time.Millisecond)
			_ = c.cmd.Process.Kill()
			<-c.done
		})
	}
}

// TestStop: Ctrl-C in the middle of `lab up` leaves nothing.
func TestStop(t *testing.T) {
	station(t)
	for _, after := range []time.Duration{5, 20, 40, 80} {
		c := background(t, "lab", "up", "four-hosts", "--wire", "udp")
		time.Sleep(after * time.Millisecond)
		_ = c.cmd.Process.Signal(unix.SIGINT)
		<-c.done
		if c.cmd.ProcessState.ExitCode() == 0 {
			must(t, "lab", "down")
			continue
		}
		if code := c.cmd.ProcessState.ExitCode(); code != 130 && c.cmd.ProcessState.Exited() {
			t.Errorf("after %d ms: exit %d\n%s", after, code, c.out.String())
		}
		must(t, "lab", "down", "--all")
	}
}

// TestCtrlC: what goes on until somebody ends it cleans up and says 130 on Ctrl-C; asked to end (SIGTERM), it did what was
// wanted.
func TestCtrlC(t *testing.T) {
	station(t)
	must(t, "lab", "up", "two-hosts", "--wire", "mem")
	must(t, "plane", "down", "0", "--nic", "a/mr0") // an event to see
	file := filepath.Join(t.TempDir(), "a.pcapng")
	written := func(*running) bool { st, err := os.Stat(file); return err == nil && st.Size() > 0 }
	said := func(words string) func(b *running) bool {
		return func(b *running) bool { return strings.Contains(b.out.String(), words) }
	}
	for _, x := range []struct {
		args  []string
		ready func(b *running) bool
	}{
		{[]string{"events", "--follow"}, said("plane-down")},
		{[]string{"stats", "--watch", "--interval", "20ms"}, said("b/mr0")},
		{[]string{"lab", "capture", "a", "-w", file}, written},
		{[]string{"up", "--nic", "c/mr0", "--addr", "10.9.9.9/24", "--foreground"}, said("c/mr0:")},
	} {
		for _, s := range []struct {
			signal os.Signal
			code   int
		}{{unix.SIGINT, 130}, {unix.SIGTERM, 0}} {
			os.Remove(file)
			b := background(t, x.args...)
			until(t, strings.Join(x.args, " ")+" begins", func() bool { return x.ready(b) })
			if err := b.cmd.Process.Signal(s.signal); err != nil {
				t.Fatal(err)
			}
			<-b.done
			if code := b.cmd.ProcessState.ExitCode(); code != s.code {
				t.Errorf("%v, %v: exit %d, want %d\n%s", x.args, s.signal, code, s.code, b.out.String())
			}
			if out, code := nicemu("down", "c/mr0"); x.args[0] == "up" && code == 0 {
				t.Errorf("%v: the NIC was still up\n%s", s.signal, out)
			}
		}
	}
}
