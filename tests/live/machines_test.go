//go:build live

package live

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestTwoMachines is the README's example: two daemons that know nothing of each other but the addresses they were
// given, on two ordinary networks. The machines are network namespaces, the networks veths with an MTU of 1500.
func TestTwoMachines(t *testing.T) {
	needRoot(t)
	needProgram(t, "ip", "ib_write_bw")
	one, two := machine(t, 1), machine(t, 2)
	for i, net := range []string{"192.0.2", "198.51.100"} {
		dev := fmt.Sprintf("mr%d", i)
		ip(t, "link", "add", dev, "netns", one.netns, "type", "veth", "peer", "name", dev, "netns", two.netns)
		for n, m := range []*machineLab{one, two} {
			ip(t, "-n", m.netns, "addr", "add", fmt.Sprintf("%s.%d/24", net, n+1), "dev", dev)
			ip(t, "-n", m.netns, "link", "set", dev, "up")
		}
	}
	for n, m := range []*machineLab{one, two} {
		me, peer := n+1, 2-n
		m.nice(t, 20*time.Second, "up", "--mtu", "1500", "--addr", fmt.Sprintf("10.0.0.%d/24", me),
			"--wire", fmt.Sprintf("udp:192.0.2.%d:4791", me), "--wire", fmt.Sprintf("udp:198.51.100.%d:4791", me),
			"--peer", fmt.Sprintf("10.0.0.%d=0:192.0.2.%d:4791", peer, peer), "--peer", fmt.Sprintf("10.0.0.%d=1:198.51.100.%d:4791", peer, peer))
		t.Cleanup(func() { m.nice(t, 10*time.Second, "down") })
	}
	for _, program := range []string{"ib_write_bw", "ib_read_bw", "ib_send_lat"} {
		s := one.run(t, 20*time.Second, program, "-F", "-n", "500")
		c := two.run(t, 20*time.Second, "sh", "-c", retry(program+" -F -n 500 192.0.2.1"))
		out := c.wait(t)
		s.wait(t)
		if len(table(out)) != 1 {
			t.Errorf("%s: no result:\n%s", program, out)
		}
	}
}

type machineLab struct {
	*lab
	netns string
}

// machine makes a network namespace with a runtime directory of its own.
func machine(t testing.TB, n int) *machineLab {
	t.Helper()
	m := &machineLab{lab: station(t), netns: fmt.Sprintf("mrlive%d-%d", os.Getpid(), n)}
	ip(t, "netns", "add", m.netns)
	t.Cleanup(func() { ip(t, "netns", "del", m.netns) })
	ip(t, "-n", m.netns, "link", "set", "lo", "up")
	m.prefix = []string{"ip", "netns", "exec", m.netns}
	return m
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}
