//go:build dpdk

package dpdk

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kill ends a daemon by SIGKILL.
func kill(t testing.TB, n *nic) {
	t.Helper()
	pid := n.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, n.name+" is gone", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
}

// zombie reports whether nothing of a process lives but its entry, which nobody has read yet.
func zombie(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third field on
	return len(f) > 17 && f[0] == "Z" && f[17] == "1"                    // its only thread
}

// TestKillDaemon: kill -9 of one daemon, server or client of the memifs, under load. Its program and its peer's end with
// errors, the other daemon lives, and when the dead one is started again the links come back by themselves.
func TestKillDaemon(t *testing.T) {
	installed(t, "ib_write_bw")
	rounds := 1
	if full() {
		rounds = 5
	}
	for _, victim := range []string{"server", "client"} {
		t.Run(victim, func(t *testing.T) {
			a, b := pair(t, 2)
			for range rounds {
				s, c := programs(30*time.Second, a, b, "-p", "ib_write_bw", "-F", "-D", "20")
				b.flows(c)
				dead, other, role := a, b, "server"
				if victim == "client" {
					dead, other, role = b, a, "client"
				}
				otherPID := other.pid()
				kill(t, dead)
				for _, j := range []*job{s, c} {
					select {
					case <-j.done:
						if j == c && j.err == nil {
							t.Errorf("%s: no error", j.name)
						}
					case <-time.After(15 * time.Second):
						t.Fatalf("%s still runs 15 s after the daemon was killed:\n%s", j.name, j.out.String())
					}
				}
				if syscall.Kill(otherPID, 0) != nil {
					t.Fatalf("the daemon of %s died with the other", other.name)
				}
				dead.up(dead.name, dead.addr, dead.memif(role, 2))
				a.await(2)
				b.await(2)
				perftest(a, b, "ib_write_bw", "-n", "200")
			}
		})
	}
}

// TestRefused: what cannot be is said in one line that names it, with the exit code that belongs to it, and nothing stays.
func TestRefused(t *testing.T) {
	s := newStation(t)
	memif := s.memif("server", 1)[0]
	plain := filepath.Join(s.dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		wire string
		more []string
		code int
		text []string
	}{
		{"no device", "dpdk:net_bogus0", nil, 3, []string{"no such device", "net_bogus0"}},
		{"no port", "dpdk:7", nil, 3, []string{"no such device", "0 ports"}},
		{"no interface", "dpdk:net_af_packet0,iface=nope", nil, 3, []string{"no such device", "nope"}},
		{"no PCI device", "dpdk:0000:99:00.0", nil, 3, []string{"no such device"}},
		{"not a wire", "tap:x", nil, 2, []string{"dpdk:PORT"}},
		{"no socket", "dpdk:net_memif0,role=server,socket=" + plain, nil, 1, []string{"is no socket"}},
		{"EAL argument", memif, []string{"--", "--no-such-thing"}, 2, []string{"--no-such-thing"}},
		{"EAL core", memif, []string{"--", "-l", "4095"}, 2, []string{"-l"}},
		{"driver folder", memif, []string{"--", "-d", "/nonexistent/drivers"}, 3, []string{"/nonexistent/drivers", "-d FOLDER"}},
		{"little memory", memif, []string{"--", "--no-huge", "-m", "4"}, 3, []string{"too little memory", "-m"}},
		{"poll", memif, []string{"--poll", "sometimes"}, 2, []string{"adaptive or busy"}},
		{"many shards", memif, []string{"--shards", "9"}, 2, []string{"--shards 9", "1 to 8"}},
		{"shards without addresses", memif, []string{"--shards", "2"}, 2, []string{"1 addresses", "its own"}},
		{"shards without cores", memif, []string{"--shards", "2", "--addr", "10.0.0.3/24", "--poll", "busy", "--", "-l", "0"}, 2, []string{"as many cores", "-l 2,3"}},
		{"no list of cores", memif, []string{"--", "-l", "two"}, 2, []string{"-l two", "2,3"}},
		{"no wire", "", nil, 2, []string{"--wire dpdk:"}},
		{"unknown flag", memif, []string{"--wir", "x"}, 2, []string{"unknown flag --wir", "up --help"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"up", "--nic", "a/mr0", "--addr", "10.0.0.1/24"}
			if c.wire != "" {
				args = append(args, "--wire", c.wire)
			}
			out, code := s.try(append(args, c.more...)...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			last := lines[len(lines)-1]
			if code != c.code || !strings.HasPrefix(last, "mroce-dpdk: ") {
				t.Errorf("exit %d, want %d:\n%s", code, c.code, out)
			}
			for _, want := range c.text {
				if !strings.Contains(last, want) {
					t.Errorf("%q is not in the message:\n%s", want, last)
				}
			}
			if _, err := os.Lstat(filepath.Join(s.dir, "mroce", "a-mr0")); err == nil {
				t.Error("its directory stays")
			}
		})
	}
	if out, code := s.try("up", "--", "--help"); code != 0 || !strings.Contains(out, "--no-huge") {
		t.Errorf("EAL's help: exit %d\n%s", code, out)
	}
	a := s.up("a", "10.0.0.1", []string{memif})
	if out, code := s.try("up", "--nic", "b/mr0", "--addr", "10.0.0.2/24", "--wire", memif); code != 1 || !strings.Contains(out, "another process serves") {
		t.Errorf("a socket that somebody serves: exit %d\n%s", code, out)
	}
	if out, code := s.try("up", "--nic", "a/mr0", "--addr", "10.0.0.1/24", "--wire", memif); code != 1 || !strings.Contains(out, "is up already") {
		t.Errorf("up twice: exit %d\n%s", code, out)
	}
	_ = a
}

// TestOrder: who starts first does not matter: a client waits for its server.
func TestOrder(t *testing.T) {
	installed(t, "ib_write_bw")
	s := newStation(t)
	b := s.up("b", "10.0.0.2", s.memif("client", 2))
	time.Sleep(300 * time.Millisecond)
	if st := b.status(); st.State == "active" {
		t.Errorf("the NIC is %s without a link", st.State)
	}
	a := s.up("a", "10.0.0.1", s.memif("server", 2))
	a.await(2)
	b.await(2)
	perftest(a, b, "ib_write_bw", "-n", "200")
}

// TestQueues: a peer that is no daemon of ours, with as many queues, and with more. The latter is refused by the driver: the
// plane stays down, and works with the next peer.
func TestQueues(t *testing.T) {
	if !full() {
		return
	}
	installed(t, "dpdk-testpmd")
	s := newStation(t)
	a := s.up("a", "10.0.0.1", s.memif("server", 1))
	peer := func(queues string) (stop func()) {
		vdev := strings.TrimPrefix(s.memif("client", 1)[0], "dpdk:") + ",socket-abstract=no"
		cmd := s.command(30*time.Second, "dpdk-testpmd", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--file-prefix", filepath.Base(s.dir), "-l", "0,1",
			"--vdev", vdev, "--", "--rxq="+queues, "--txq="+queues, "--total-num-mbufs=2048", "-i")
		in, err := cmd.StdinPipe() // open, or it ends
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			in.Write([]byte("quit\n"))
			cmd.Wait() // its end is bounded
		}
	}
	stop := peer("2")
	time.Sleep(4 * time.Second)
	if st := a.status().Planes[0]; st.Link != "down" {
		t.Errorf("a peer with two queues: link %s", st.Link)
	}
	stop()
	stop = peer("1")
	a.await(1)
	stop()
	eventually(t, 5*time.Second, "the link goes with the peer", func() bool { return a.status().Planes[0].Link == "down" })
}
