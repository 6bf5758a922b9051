//go:build dpdk

package dpdk

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tools/coll"
)

// collectives runs ranks through the plugin of RCCL and NCCL, spread over NICs; every value is checked.
func collectives(t *testing.T, nics []*nic, ranks int, most, factor string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	rows := 0
	err := coll.Run(ctx, coll.Options{
		Rank: build(t, "lib/collbench-rank"), Ranks: ranks, Root: fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		Args: append(strings.Fields("--min 8 --iters 1 --warmup 1 --colls all-reduce,all-reduce-tree,all-gather,reduce-scatter,broadcast,all-to-all,send-recv"),
			"--max", most, "--factor", factor, "--net", build(t, "lib/librccl-net.so")),
		Command: func(ctx context.Context, rank int, program ...string) *exec.Cmd {
			n := nics[rank%len(nics)]
			args := append(append([]string{}, n.inside...), program...)
			c := exec.CommandContext(ctx, args[0], args[1:]...)
			c.Env = append(append([]string{}, n.env...), "MR_SOCKET="+n.socket)
			c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
			return c
		},
		Line: func(_ *coll.Head, row *coll.Row, _ *coll.Storm, _ json.RawMessage) error {
			if row != nil {
				rows++
				if row.Wrong != 0 {
					t.Errorf("%s of %d bytes: %d values are wrong", row.Collective, row.Size, row.Wrong)
				}
			}
			return nil
		},
	})
	if err != nil || rows < 28 {
		t.Errorf("%d measurements: %v", rows, err)
	}
}

// TestCollectives: ranks on two daemons, without loss and with it, so that neighbours are on the same NIC and on another.
func TestCollectives(t *testing.T) {
	sizes, most, factor := []int{2}, "1048576", "32"
	if full() {
		sizes, most, factor = []int{2, 4, 8}, "67108864", "8"
	}
	a, b := pair(t, 2)
	for _, ranks := range sizes {
		for _, loss := range []string{"0%", "1%", "10%"} {
			t.Run(fmt.Sprintf("%d ranks, loss %s", ranks, loss), func(t *testing.T) {
				for _, n := range []*nic{a, b} {
					n.impair("loss=" + loss)
				}
				collectives(t, []*nic{a, b}, ranks, most, factor)
			})
		}
	}
	if full() {
		t.Run("four daemons on bridges", bridged)
	}
}

// bridged: four and eight ranks on four daemons with TAPs on two bridges, three of DPDK and one of nicemu.
func bridged(t *testing.T) {
	const mtu = 1500
	s := newStation(t)
	s.isolate(mtu)
	nics := []*nic{s.emulated("n", "10.0.0.1", mtu)}
	for i := range 3 {
		name := fmt.Sprint("d", i)
		wires := []string{fmt.Sprintf("dpdk:net_tap0,iface=%s.0", name), fmt.Sprintf("dpdk:net_tap1,iface=%s.1", name)}
		nics = append(nics, s.up(name, fmt.Sprintf("10.0.0.%d", 2+i), wires, "--mtu", fmt.Sprint(mtu), "--", "--no-huge", "-m", "256"))
		for plane := range 2 {
			s.ip("link set %s.%d master br%d up", name, plane, plane)
		}
	}
	for _, n := range nics {
		n.await(2)
	}
	for _, ranks := range []int{4, 8} {
		for _, loss := range []string{"0%", "1%"} {
			t.Run(fmt.Sprintf("%d ranks, loss %s", ranks, loss), func(t *testing.T) {
				for _, n := range nics {
					n.impair("loss=" + loss)
				}
				collectives(t, nics, ranks, "4194304", "16")
			})
		}
	}
}
