//go:build dpdk

package dpdk

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tests/need"
)

// isolate puts the station into a network namespace of its own, with two bridges that are planes.
func (s *station) isolate(mtu int) {
	s.t.Helper()
	if os.Getuid() != 0 {
		need.Skip(s.t, "needs root: interfaces in a network namespace")
	}
	need.Programs(s.t, "unshare", "nsenter", "ip", "ethtool")
	holder := exec.Command("unshare", "-n", "sleep", "600")
	if err := holder.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.inside = nil // what is left to do works from outside
		holder.Process.Kill()
		holder.Wait() // killed
	})
	s.proc = "/proc/" + strconv.Itoa(holder.Process.Pid)
	own, _ := os.Readlink("/proc/self/ns/net")
	eventually(s.t, 5*time.Second, "a namespace", func() bool {
		ns, err := os.Readlink(s.proc + "/ns/net")
		comm, _ := os.ReadFile(s.proc + "/comm")
		return err == nil && ns != own && strings.TrimSpace(string(comm)) == "sleep"
	})
	s.inside = []string{"nsenter", "-n", "-t", strconv.Itoa(holder.Process.Pid)}
	s.ip("link set lo up")
	for i := range 2 {
		s.ip("link add br%d type bridge", i)
		s.ip("link set br%d mtu %d up", i, mtu)
	}
}

func (s *station) ip(format string, args ...any) {
	s.t.Helper()
	s.run("ip", strings.Fields(fmt.Sprintf(format, args...))...)
}

func (s *station) run(program string, args ...string) {
	s.t.Helper()
	if out, err := s.command(10*time.Second, append([]string{program}, args...)...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// emulated starts nicemu with a TAP on each bridge.
func (s *station) emulated(name, addr string, mtu int) *nic {
	s.t.Helper()
	nicemu := build(s.t, "bin/nicemu")
	args := []string{nicemu, "up", "--nic", name + "/mr0", "--addr", addr + "/24", "--mtu", strconv.Itoa(mtu), "--wire", "tap:nt0?bridge=br0", "--wire", "tap:nt1?bridge=br1"}
	if out, err := s.command(20*time.Second, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("nicemu up: %v\n%s", err, out)
	}
	s.t.Cleanup(func() {
		if out, err := s.command(20*time.Second, nicemu, "down", name+"/mr0").CombinedOutput(); err != nil {
			s.t.Errorf("nicemu down: %v\n%s", err, out)
		}
	})
	return s.nic(name, addr)
}

// TestBesideNicemu: the reference implementation and the emulator on one set of planes, which are bridges: programs in both
// directions, loss, a plane that goes, a port that is lost.
func TestBesideNicemu(t *testing.T) {
	installed(t, "ib_write_bw")
	for _, c := range []struct {
		driver string
		mtu    int
		wires  func(s *station) []string
		attach func(s *station)
		second string // plane 1's interface
	}{
		{"net_tap", 1500, func(*station) []string { return []string{"dpdk:net_tap0,iface=dt0", "dpdk:net_tap1,iface=dt1"} }, func(s *station) {
			for i := range 2 {
				s.ip("link set dt%d master br%d up", i, i)
			}
		}, "dt1"},
		{"net_af_packet", 4300, func(s *station) []string {
			for i := range 2 {
				s.ip("link add v%d mtu 4300 type veth peer name w%d mtu 4300", i, i)
				s.ip("link set v%d up", i)
				s.ip("link set w%d master br%d up", i, i)
				s.run("ethtool", "-K", fmt.Sprint("w", i), "gso", "off", "tso", "off", "tx-udp-segmentation", "off") // AF_PACKET would see nicemu's super-packets whole
			}
			return []string{"dpdk:net_af_packet0,iface=v0", "dpdk:net_af_packet1,iface=v1"}
		}, func(*station) {}, "v1"},
	} {
		if c.driver != "net_tap" && !full() {
			continue
		}
		t.Run(c.driver, func(t *testing.T) {
			s := newStation(t)
			s.isolate(c.mtu)
			b := s.up("b", "10.0.0.2", c.wires(s), "--mtu", strconv.Itoa(c.mtu), "--", "--no-huge", "-m", "256")
			c.attach(s)
			a := s.emulated("a", "10.0.0.1", c.mtu)
			a.await(2)
			b.await(2)
			for _, p := range []string{"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_lat"} {
				perftest(a, b, p, "-n", "200")
				perftest(b, a, p, "-n", "200")
			}
			for _, n := range []*nic{a, b} {
				n.impair("loss=2%")
			}
			integrity(a, b)
			s.ip("link set br1 down")
			integrity(b, a)
			for i, sent := range b.sent() {
				if sent == 0 {
					t.Errorf("plane %d carried nothing", i)
				}
			}
			if !full() {
				return
			}
			s.ip("link set br1 up") // a port that is lost while it carries
			b.await(2)
			go func() {
				time.Sleep(2 * time.Second)
				s.command(10*time.Second, "ip", "link", "del", c.second).Run() // seen below
			}()
			integrity(a, b)
			eventually(t, 5*time.Second, "the lost port's plane is down", func() bool { return b.status().Planes[1].Link == "down" })
		})
	}
}
