package work

import (
	"math"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// TestBounds: against the closed forms, with full packets only. Hosts 3, 7, 11 and 15 of a ring send over spines.
func TestBounds(t *testing.T) {
	const head = "topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, planes: 2, rate: 100Gbit, delay: 1us}\nworkload:\n"
	const full, ack = 4210 * 8 / 100e9, (4210 - 4096) * 8 / 100e9
	// from when the last byte of a message has left: to its arrival, and to the acknowledgement's
	came := func(hops float64) float64 { return hops*1e-6 + (hops-1)*full }
	acked := func(hops float64) float64 { return came(hops) + hops*(1e-6+ack) }
	const packet = full / 2 // on two planes, of many
	for _, x := range []struct {
		work     string
		messages int
		steps    int
		want     float64
	}{
		{"[{pattern: permutation, add: 5, size: 1MiB}]", 16, 1, 256*packet + acked(4)},
		{"[{pattern: permutation, add: 5, size: 1MiB, start: 5us}]", 16, 1, 256*packet + acked(4)},
		{"[{pattern: permutation, hosts: 0-3, add: 1, size: 1MiB}]", 4, 1, 256*packet + acked(2)},
		{"[{pattern: permutation, add: 5, size: 4KiB}]", 16, 1, full + acked(4)},
		{"[{pattern: incast, senders: 8, target: 3, size: 64KiB}]", 8, 1, 8*16*packet + came(2) + 2*(1e-6+ack)},
		{"[{pattern: all-to-all, size: 64KiB}]", 16 * 15, 15, 15*16*packet + acked(2)},
		// 30 steps of 16 packets; of any 30 hops in a row 8 at most are over spines, the last of them among them
		{"[{pattern: ring, size: 1MiB}]", 16 * 30, 30, 30*16*packet + 22*came(2) + 7*came(4) + acked(4)},
		{"[{pattern: ring, size: 1MiB, acked: true}]", 16 * 30, 30, 30*16*packet + 22*acked(2) + 8*acked(4)},
		// 2 · 4 steps of 512, 256, 128, 64 KiB and back; the first two and the last two over spines
		{"[{pattern: halving, size: 1MiB}]", 2 * 16 * 4, 8, 2*(128+64+32+16)*packet + 4*came(2) + 3*came(4) + acked(4)},
	} {
		p, err := plan.Parse("x.yaml", []byte(head+"  "+x.work+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		g, err := Build(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := g.Bounds(&p.Topology)
		if got := b[0].Ideal.Seconds(); b[0].Messages != x.messages || b[0].Steps != x.steps || math.Abs(got-x.want) > 2e-9 {
			t.Errorf("%s: %+v, want %d messages, %d steps, %.9f s", x.work, b[0], x.messages, x.steps, x.want)
		}
		if all := b[0].Ideal + p.Workload[0].Start; b[1].Messages != b[0].Messages || b[1].Ideal != all || b[1].Bytes != b[0].Bytes {
			t.Errorf("%s: all are %+v, the one group %+v", x.work, b[1], b[0])
		}
	}
}
