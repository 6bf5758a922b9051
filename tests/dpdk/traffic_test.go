//go:build dpdk

package dpdk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/tools/bed"
)

// planesOf are the numbers of planes that a run tries.
func planesOf() []int {
	if full() {
		return []int{2, 4}
	}
	return []int{2}
}

// TestPrograms: Debian's programs, unmodified, over two daemons and a number of planes; all planes carry.
func TestPrograms(t *testing.T) {
	installed(t, "ibv_rc_pingpong", "ib_write_bw")
	for _, planes := range planesOf() {
		t.Run(fmt.Sprint(planes, " planes"), func(t *testing.T) {
			a, b := pair(t, planes)
			s, c := programs(20*time.Second, a, b, "-p", "ibv_rc_pingpong", "-g", "0", "-c", "-n", "500")
			c.wait()
			s.wait()
			n := "200"
			for _, p := range []string{"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_lat"} {
				if strings.Contains(p, "atomic") {
					perftest(a, b, p, "-n", n)
					continue
				}
				perftest(a, b, p, "-n", n)
				if full() && strings.HasSuffix(p, "_bw") {
					perftest(a, b, p, "-n", n, "-a")
					perftest(a, b, p, "-n", n, "-b", "-q", "4")
				}
			}
			for i, sent := range b.sent() {
				if sent == 0 {
					t.Errorf("plane %d carried nothing", i)
				}
			}
		})
	}
}

// TestIntegrity: what arrives is what was sent, at 10 % loss, with packets out of order, doubled and damaged.
func TestIntegrity(t *testing.T) {
	for _, planes := range planesOf() {
		t.Run(fmt.Sprint(planes, " planes"), func(t *testing.T) {
			a, b := pair(t, planes)
			for _, n := range []*nic{a, b} {
				n.impair("loss=10%", "reorder=5%:200us", "dup=2%", "corrupt=1%")
			}
			integrity(a, b)
		})
	}
}

// TestPlanePulled: a plane goes and comes back while a program runs. The program does not notice, the other plane carries.
func TestPlanePulled(t *testing.T) {
	installed(t, "ib_write_bw")
	a, b := pair(t, 2)
	s, c := programs(40*time.Second, a, b, "-p", "ib_write_bw", "-F", "-D", "6")
	b.flows(c)
	speed := func() []float64 {
		first := b.sent()
		time.Sleep(time.Second)
		second := b.sent()
		for i := range second {
			second[i] -= first[i]
		}
		return second
	}
	before := speed()
	b.ask("plane", api.PlaneArgs{Plane: 1, Up: false}, nil)
	time.Sleep(200 * time.Millisecond)
	without := speed()
	b.ask("plane", api.PlaneArgs{Plane: 1, Up: true}, nil)
	time.Sleep(time.Second)
	after := speed()
	c.wait()
	s.wait()
	t.Logf("bytes a second: before %.0f, without plane 1 %.0f, after %.0f", before, without, after)
	if before[1] == 0 || without[1] > before[1]/20 || without[0] < (before[0]+before[1])/4 || after[1] == 0 {
		t.Error("the other plane did not take over, or the plane is not used again")
	}
}

// TestKillProgram: kill -9 of a program in the middle of its work. Its peer ends, the daemons free everything.
func TestKillProgram(t *testing.T) {
	installed(t, "ib_write_bw")
	a, b := pair(t, 2)
	s, c := programs(30*time.Second, a, b, "-p", "ib_write_bw", "-F", "-D", "20", "-q", "4")
	b.flows(c)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(10 * time.Second):
		t.Error("the other side still runs 10 s later")
	}
	for _, n := range []*nic{a, b} {
		eventually(t, 5*time.Second, n.name+" has freed everything", func() bool {
			st := n.status()
			return len(st.Contexts) == 0 && st.Objects.QPs == 0 && st.Objects.MRs == 0
		})
	}
	perftest(a, b, "ib_write_bw", "-n", "200")
}

// TestClean: what was started ends within its time, and leaves no socket, no process and no file, also after kill -9.
func TestClean(t *testing.T) {
	s := newStation(t)
	a := s.up("a", "10.0.0.1", s.memif("server", 2))
	runtime := "/var/run/dpdk"
	if os.Getuid() != 0 {
		runtime = filepath.Join(s.dir, "dpdk")
	}
	dirs, err := filepath.Glob(filepath.Join(runtime, "mroce-a-mr0-*")) // other people's, too
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no directory of DPDK's environment in %s: %v", runtime, err)
	}
	prefix := dirs[0]
	for _, d := range dirs[1:] {
		if newer(d, prefix) {
			prefix = d
		}
	}
	left := func() (names []string) {
		for _, p := range []string{a.socket, filepath.Join(s.dir, "m.sock"), filepath.Join(s.dir, "mroce", "a-mr0"), prefix} {
			if _, err := os.Lstat(p); err == nil {
				names = append(names, p)
			}
		}
		return names
	}
	if n := len(left()); n != 4 {
		t.Errorf("while it runs: %d of 4 files: %v", n, left())
	}
	began := time.Now()
	if out, rc := s.try("down", "a/mr0"); rc != 0 || len(left()) != 0 {
		t.Errorf("exit %d, left: %v\n%s", rc, left(), out)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the end took %v", took)
	}
	// killed: the next start clears away what is left, the stale memif socket as well
	a = s.up("a", "10.0.0.1", s.memif("server", 2))
	kill(t, a)
	a = s.up("a", "10.0.0.1", s.memif("server", 2))
	if out, rc := s.try("down", "a/mr0"); rc != 0 || len(left()) != 0 {
		t.Errorf("after a kill: exit %d, left: %v\n%s", rc, left(), out)
	}
	a = s.up("a", "10.0.0.1", s.memif("server", 2))
	kill(t, a)
	if out, rc := s.try("down", "a/mr0"); rc != 0 || slices.Contains(left(), prefix) || slices.Contains(left(), a.socket) {
		t.Errorf("down after a kill: exit %d, left: %v\n%s", rc, left(), out)
	}
}

// TestMPI: all-reduce and all-to-all of both MPIs between ranks on the two daemons, every byte checked by the program.
func TestMPI(t *testing.T) {
	if !full() {
		return
	}
	a, b := pair(t, 4)
	for _, m := range bed.MPIs {
		installed(t, "mpirun."+m, "mpicc."+m)
		program := filepath.Join(a.dir, "collectives."+m)
		if err := bed.CompileMPI(m, "../clients/mpi/collectives.c", program); err != nil {
			t.Fatal(err)
		}
		for _, op := range []string{"all-reduce", "all-to-all"} {
			before := a.sent()
			rank := func(n *nic) []string {
				return []string{"-n", "1", "env", "MR_SOCKET=" + n.socket, build(t, "bin/nicemu"), "run", "--", program, "check", op}
			}
			args := []string{"mpirun." + m, "-bind-to", "none"}
			if m == "openmpi" {
				args = append(args, "--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")
			}
			cmd := a.command(90*time.Second, append(append(append(args, rank(a)...), ":"), rank(b)...)...)
			cmd.Env = append(cmd.Env, "UCX_TLS=rc_v,self", "UCX_NET_DEVICES=mr0:1", "MPIR_CVAR_NOLOCAL=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), op+" 16777216 ok") {
				t.Errorf("%s %s: %v\n%s", m, op, err, out)
			}
			for i, sent := range a.sent() {
				if sent-before[i] < 1<<20 {
					t.Errorf("%s %s: plane %d carried %.0f bytes", m, op, i, sent-before[i])
				}
			}
		}
	}
}

func newer(a, b string) bool {
	fa, errA := os.Stat(a)
	fb, errB := os.Stat(b)
	return errA == nil && errB == nil && fa.ModTime().After(fb.ModTime())
}

// TestCapture: both daemons write from their first packet to their last, and a command takes one plane of a running one.
func TestCapture(t *testing.T) {
	installed(t, "ib_write_bw")
	s := newStation(t)
	files := []string{filepath.Join(s.dir, "a.pcapng"), filepath.Join(s.dir, "b.pcapng"), filepath.Join(s.dir, "c.pcapng")}
	a := s.up("a", "10.0.0.1", s.memif("server", 2), "--capture", files[0])
	b := s.up("b", "10.0.0.2", s.memif("client", 2), "--capture", files[1])
	a.await(2)
	b.await(2)
	perftest(a, b, "ib_write_bw", "-n", "50")
	out, err := s.command(10*time.Second, build(t, "bin/nicemu"), "capture", "--nic", "a/mr0", "-w", files[2], "--for", "1s").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is running") {
		t.Errorf("a second capture of the same planes: %v\n%s", err, out)
	}
	if out, rc := s.try("down", "--all"); rc != 0 {
		t.Fatalf("down: exit %d\n%s", rc, out)
	}
	for i, f := range files[:2] {
		sent, received := packets(t, f, []string{a.addr, b.addr}[i])
		if sent < 20 || received < 20 {
			t.Errorf("%s: %d packets sent, %d received", f, sent, received)
		}
	}
	a = s.up("a", "10.0.0.1", s.memif("server", 2))
	b = s.up("b", "10.0.0.2", s.memif("client", 2))
	a.await(2)
	b.await(2)
	tap := s.command(20*time.Second, build(t, "bin/nicemu"), "capture", "--nic", "a/mr0", "--plane", "1", "-w", files[2])
	if err := tap.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "a capture", func() bool { st, err := os.Stat(files[2]); return err == nil && st.Size() > 0 })
	perftest(a, b, "ib_write_bw", "-n", "200")
	_ = tap.Process.Signal(syscall.SIGTERM)
	if err := tap.Wait(); err != nil {
		t.Error(err)
	}
	if sent, received := packets(t, files[2], a.addr); sent+received < 50 {
		t.Errorf("plane 1: %d packets sent, %d received", sent, received)
	}
}

// packets counts the UDP packets of a file from and to an address.
func packets(t *testing.T, file, addr string) (sent, received int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return sent, received
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
		ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		if ip == nil || p.Layer(layers.LayerTypeUDP) == nil {
			continue
		}
		if ip.SrcIP.String() == addr {
			sent++
		}
		if ip.DstIP.String() == addr {
			received++
		}
	}
}

// TestRate: bare frames between two processes, whichever ends first; both end well, though each loses its peer under way.
func TestRate(t *testing.T) {
	s := newStation(t)
	rounds := 3
	if full() {
		rounds = 20
	}
	for i := range rounds {
		rate := func(role, side, d string) *exec.Cmd {
			wire := fmt.Sprintf("dpdk:net_memif0,role=%s,socket=%s/rate%d.sock", role, s.dir, i)
			return s.command(30*time.Second, build(t, "bin/mroce-dpdk"), "rate", "--json", "--for", d, "--wire", wire, side)
		}
		var out bytes.Buffer
		receive := rate("server", "receive", "200ms")
		receive.Stdout, receive.Stderr = &out, &out
		if err := receive.Start(); err != nil {
			t.Fatal(err)
		}
		text, err := rate("client", "send", []string{"100ms", "200ms", "300ms"}[i%3]).CombinedOutput()
		if err != nil {
			t.Errorf("round %d: send: %v\n%s", i, err, text)
		}
		if err := receive.Wait(); err != nil || !strings.Contains(out.String(), `"frames":`) {
			t.Errorf("round %d: receive: %v\n%s", i, err, out.String())
		}
	}
}
