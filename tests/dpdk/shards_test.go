//go:build dpdk

package dpdk

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"
)

// upShards starts a daemon with two NICs that share its ports.
func (s *station) upShards(name string, addrs [2]string, wires []string, more ...string) (mr0, mr1 *nic) {
	s.t.Helper()
	mr0 = s.up(name, addrs[0], wires, append([]string{"--shards", "2", "--addr", addrs[1] + "/24"}, more...)...)
	return mr0, mr0.other("mr1", addrs[1])
}

var addrsA, addrsB = [2]string{"10.0.0.1", "10.0.0.11"}, [2]string{"10.0.0.2", "10.0.0.12"}

// shards are two daemons with two NICs each, joined by planes over memif, where a port has one queue: the second NICs' packets
// go through the first ones' threads.
func shards(t *testing.T, planes int) (a0, a1, b0, b1 *nic) {
	t.Helper()
	s := newStation(t)
	a0, a1 = s.upShards("a", addrsA, s.memif("server", planes))
	b0, b1 = s.upShards("b", addrsB, s.memif("client", planes))
	for _, n := range []*nic{a0, a1, b0, b1} {
		n.await(planes)
	}
	return a0, a1, b0, b1
}

// TestShards: every NIC reaches every other one, in its own daemon and in another, with all kinds of operations, several at a
// time and at a loss; programs that die leave nothing.
func TestShards(t *testing.T) {
	installed(t, "ib_write_bw", "rping")
	a0, a1, b0, b1 := shards(t, 2)
	pairs := [][2]*nic{{a0, a1}, {a1, b1}}
	if full() {
		pairs = append(pairs, [2]*nic{a0, b1}, [2]*nic{a1, b0}, [2]*nic{b1, b0}, [2]*nic{a0, b0})
	}
	for _, p := range pairs {
		for _, program := range []string{"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_lat"} {
			perftest(p[0], p[1], program, "-n", "200")
		}
		// found by address, with messages of connection management that cross threads
		s := p[0].start(20*time.Second, "rping", "-s", "-a", p[0].addr, "-p", "17471", "-C", "20", "-V")
		time.Sleep(300 * time.Millisecond)
		c := p[1].start(20*time.Second, "rping", "-c", "-a", p[0].addr, "-p", "17471", "-C", "20", "-V")
		c.wait()
		s.wait()
	}
	var wg sync.WaitGroup
	for _, p := range [][2]*nic{{a0, b0}, {a1, b1}} { // both threads of both daemons at once
		s, c := programs(60*time.Second, p[0], p[1], "-p", "ib_write_bw", "-F", "-n", "1000", "-q", "4")
		wg.Go(func() {
			<-c.done
			<-s.done
		})
		defer func() { c.wait(); s.wait() }()
	}
	wg.Wait()
	for _, n := range []*nic{a1, b0, b1} {
		for i, sent := range n.sent() {
			if sent == 0 {
				t.Errorf("plane %d of %s carried nothing", i, n.full())
			}
		}
	}
	for _, n := range []*nic{a0, b0} {
		n.impair("loss=2%", "reorder=2%:200us")
	}
	integrity(a1, b1)
	integrity(a0, a1)

	s, c := programs(30*time.Second, a1, b1, "-p", "ib_write_bw", "-F", "-D", "20", "-q", "4")
	b1.flows(c)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	for _, n := range []*nic{a1, b1} {
		eventually(t, 5*time.Second, n.full()+" has freed everything", func() bool {
			st := n.status()
			return len(st.Contexts) == 0 && st.Objects.QPs == 0 && st.Objects.MRs == 0
		})
	}
}

// TestShardsKilled: a daemon with two NICs is killed under load of both and started again; the other one lives, and both its
// NICs have their planes back.
func TestShardsKilled(t *testing.T) {
	installed(t, "ib_write_bw")
	a0, a1, b0, b1 := shards(t, 1)
	var jobs []*job
	for _, p := range [][2]*nic{{a0, b0}, {a1, b1}} {
		s, c := programs(30*time.Second, p[0], p[1], "-p", "ib_write_bw", "-F", "-D", "20")
		p[1].flows(c)
		jobs = append(jobs, s, c)
	}
	kill(t, a0)
	for _, j := range jobs {
		select {
		case <-j.done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s still runs 20 s after the daemon was killed", j.name)
		}
	}
	eventually(t, 10*time.Second, "the other one knows", func() bool { return b1.status().Planes[0].Link == "down" })
	a0.upShards("a", addrsA, a0.memif("server", 1))
	for _, n := range []*nic{a0, a1, b0, b1} {
		n.await(1)
	}
	perftest(a1, b1, "ib_write_bw", "-n", "200")
	perftest(b1, a0, "ib_write_bw", "-n", "200")
}

// TestShardsQueues: NICs with queues of their own, on ports that spread what they receive in their own way; the emulator is at
// the other end.
func TestShardsQueues(t *testing.T) {
	installed(t, "ib_write_bw")
	for _, driver := range []string{"net_tap", "net_af_packet"} {
		if driver != "net_tap" && !full() {
			continue
		}
		t.Run(driver, func(t *testing.T) {
			s := newStation(t)
			const mtu = 1500
			s.isolate(mtu)
			var wires []string
			for i := range 2 {
				if driver == "net_tap" {
					wires = append(wires, fmt.Sprintf("dpdk:net_tap%d,iface=dt%d", i, i))
					continue
				}
				s.ip("link add v%d mtu %d type veth peer name w%d mtu %d", i, mtu, i, mtu)
				s.ip("link set v%d up", i)
				s.ip("link set w%d master br%d up", i, i)
				s.run("ethtool", "-K", fmt.Sprint("w", i), "gso", "off", "tso", "off", "tx-udp-segmentation", "off") // AF_PACKET would see nicemu's super-packets whole
				wires = append(wires, fmt.Sprintf("dpdk:net_af_packet%d,iface=v%d,qpairs=2", i, i))
			}
			b0, b1 := s.upShards("b", addrsB, wires, "--mtu", strconv.Itoa(mtu))
			if driver == "net_tap" {
				for i := range 2 {
					s.ip("link set dt%d master br%d up", i, i)
				}
			}
			a := s.emulated("a", addrsA[0], mtu)
			for _, n := range []*nic{a, b0, b1} {
				n.await(2)
			}
			for _, b := range []*nic{b0, b1} {
				perftest(a, b, "ib_write_bw", "-n", "200")
				perftest(b, a, "ib_send_bw", "-n", "200")
				perftest(a, b, "ib_atomic_lat", "-n", "200")
			}
			for _, n := range []*nic{a, b0} {
				n.impair("loss=2%")
			}
			integrity(a, b1)
			integrity(b0, b1)
		})
	}
}
