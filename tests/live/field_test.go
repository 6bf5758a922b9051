//go:build live

package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The cases F.. are what people ran into who do this work with other software; each must be right here.

// TestF01Repeat: an RC program in a loop on one NIC, as the CI of a verbs binding does it: connect, move data, check it.
// 100 runs, 100 passes; 20 without MR_LIVE=full.
func TestF01Repeat(t *testing.T) {
	needProgram(t, "ibv_rc_pingpong")
	l := oneNIC(t)
	runs := 20
	if want("full") {
		runs = 100
	}
	start := time.Now()
	for i := range runs {
		p := port()
		s := l.run(t, 20*time.Second, "ibv_rc_pingpong", "-g", "0", "-c", "-n", "20", "-p", p)
		c := l.run(t, 20*time.Second, "sh", "-c", retry("ibv_rc_pingpong -g 0 -c -n 20 -p "+p+" 127.0.0.1"))
		c.wait(t)
		s.wait(t)
		if t.Failed() {
			t.Fatalf("run %d of %d failed", i+1, runs)
		}
	}
	t.Logf("%d runs in %v", runs, time.Since(start).Round(time.Millisecond))
}

// retry wraps a client that gives up when the server does not listen yet.
func retry(client string) string {
	return "for i in 1 2 3 4 5 6 7 8 9 10; do " + client + " && exit 0; sleep 0.1; done; exit 1"
}

// TestF05GIDIndexes: every GID index in the table works, for programs of both packages, read both ways, over MetaRoCE alone. A
// wire of UDP sockets does not say which address a datagram is for.
func TestF05GIDIndexes(t *testing.T) {
	for _, wire := range []string{"mem", "udp"} {
		t.Run(wire, func(t *testing.T) { everyGID(t, wire) })
	}
}

func everyGID(t *testing.T, wire string) {
	l := up(t, spec{wire: wire, hosts: "  a: {addr: [10.0.0.1/24, 10.1.0.1/24, 'fd00::1/64', 'fd01::1/64'], transport: metaroce}\n" +
		"  b: {addr: [10.0.0.2/24, 10.1.0.2/24, 'fd00::2/64', 'fd01::2/64'], transport: metaroce}\n"})
	for i := range 4 {
		x := fmt.Sprint(i)
		t.Run("index-"+x, func(t *testing.T) {
			p := port()
			s := l.start(t, 20*time.Second, "a", "ibv_rc_pingpong", "-g", x, "-c", "-n", "50", "-p", p)
			l.listening(t, "a", p, s)
			l.on(t, 20*time.Second, "b", "ibv_rc_pingpong", "-g", x, "-c", "-n", "50", "-p", p, addrOf["a"])
			s.wait(t)
			l.pair(t, 20*time.Second, "a", "b", "ib_read_bw", "-x", x, "-n", "100")
			l.pair(t, 20*time.Second, "b", "a", "ib_read_bw", "-x", x, "-n", "100")
		})
	}
	out := l.try(10*time.Second, "lab", "exec", "a", "--", "ibv_rc_pingpong", "-g", "4", "-n", "1")
	if strings.Contains(out, "exit 0") {
		t.Errorf("a GID index past the table should fail at once:\n%s", out)
	}
}

// TestF07Group: an ordinary user on a NIC that root started, when the administrator allowed the group; refused with a clear
// message otherwise.
func TestF07Group(t *testing.T) {
	needRoot(t)
	needProgram(t, "setpriv", "ib_write_bw")
	l := station(t)
	l.nicemu = installed(t)
	os.Chmod(l.dir, 0o755)
	l.nic(t, "--group", "daemon") // a group every Debian has
	user := func(group string) *lab {
		u := *l
		u.prefix = asNobody(group)
		return &u
	}
	allowed, refused := user("daemon"), user("nogroup")
	p := port()
	s := allowed.run(t, 20*time.Second, "ib_write_bw", "-F", "-n", "200", "-p", p)
	c := allowed.run(t, 20*time.Second, "sh", "-c", retry("ib_write_bw -F -n 200 -p "+p+" 127.0.0.1"))
	c.wait(t)
	s.wait(t)
	out := refused.try(10*time.Second, "run", "--", "ibv_devinfo")
	if strings.Contains(out, "exit 0") || !strings.Contains(out, "may not use") || !strings.Contains(out, "--group") {
		t.Errorf("a user outside the group should be told that he may not, and about --group, got:\n%s", out)
	}
}

// TestF16Loopback: client and server on the same NIC.
func TestF16Loopback(t *testing.T) {
	l := up(t, spec{wire: "mem"})
	for _, program := range []string{"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw", "ib_write_lat"} {
		l.pair(t, 20*time.Second, "a", "a", program, "-n", "200")
	}
}

// TestF18Memlock: containers come with a limit of 64 KiB on locked memory; nothing of ours locks any.
func TestF18Memlock(t *testing.T) {
	l := oneNIC(t)
	p := port()
	limited := "ulimit -l 64 && exec ib_write_bw -F -s 8388608 -n 20 -p " + p
	s := l.run(t, 20*time.Second, "sh", "-c", limited)
	c := l.run(t, 20*time.Second, "sh", "-c", retry("(ulimit -l 64 && exec ib_write_bw -F -s 8388608 -n 20 -p "+p+" 127.0.0.1)"))
	c.wait(t)
	s.wait(t)
}

// TestF40Order: a WRITE of data, then a flag by WRITE or FETCH_ADD, over four planes with loss and reordering, while the
// other side polls memory. A flag seen before its data is a violation. 20,000 rounds; with MR_LIVE=soak a million.
func TestF40OrderSoak(t *testing.T) {
	rounds := "20000"
	if want("soak") {
		rounds = "1000000"
	}
	l := up(t, spec{wire: "mem", impair: "  - {loss: 5%, reorder: 10%}"})
	l.verbs(t, 50*time.Minute, "mr_flag", "-n", rounds)
}

// oneNIC starts a single NIC with `nicemu up`, for both ends of a program.
func oneNIC(t testing.TB) *lab {
	t.Helper()
	l := station(t)
	l.nic(t)
	return l
}

// nic starts a NIC with `nicemu up`; it goes down when the test ends.
func (l *lab) nic(t testing.TB, flags ...string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("status at the end:\n%s", l.try(10*time.Second, "status"))
		}
		l.nice(t, 10*time.Second, "down")
	})
	l.nice(t, 20*time.Second, append([]string{"up", "--addr", "10.0.0.1/24", "--wire", "mem:"}, flags...)...)
}

// run starts a program on the single NIC.
func (l *lab) run(t testing.TB, limit time.Duration, program ...string) *job {
	t.Helper()
	j := &job{name: strings.Join(program, " "), cmd: l.command(limit, append([]string{"run", "--"}, program...)...)}
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
	j.begin(t)
	return j
}

// installed copies what was built to where every user may read it, as `make install` does, and returns the nicemu there.
func installed(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	chmodParents(t, root)
	if out, err := exec.Command("make", "-C", "../..", "install", "PREFIX="+root).CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	return filepath.Join(root, "bin/nicemu")
}

func asNobody(group string) []string {
	return []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--groups", group, "--"}
}

// userStation is a station of an ordinary user.
func userStation(t testing.TB) *lab {
	t.Helper()
	needProgram(t, "setpriv")
	l := station(t)
	l.nicemu = installed(t)
	l.prefix = asNobody("nogroup")
	if err := os.Chown(l.dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	return l
}

// chmodParents opens the test's temporary directories to other users.
func chmodParents(t testing.TB, dir string) {
	t.Helper()
	for d := dir; strings.Contains(d, "Test"); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
