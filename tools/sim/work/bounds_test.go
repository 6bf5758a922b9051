package work

import (
	"math"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// TestBounds: against the closed forms, with full packets only.
func TestBounds(t *testing.T) {
	const head = "topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, planes: 2, rate: 100Gbit, delay: 1us}\nworkload:\n"
	for _, x := range []struct {
		work     string
		messages int
		bytes    float64 // of the busiest host one way, payload
		steps    int
	}{
		{"[{pattern: permutation, add: 5, size: 1MiB}]", 16, 1 << 20, 1},
		{"[{pattern: ring, size: 1MiB}]", 16 * 30, 30.0 / 16 * (1 << 20), 30},
		{"[{pattern: incast, senders: 8, target: 3, size: 64KiB}]", 8, 8 * (64 << 10), 1},
		{"[{pattern: all-to-all, size: 64KiB}]", 16 * 15, 15 * (64 << 10), 15},
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
		full := float64(p.Topology.WireBytes()) / float64(p.Topology.MTU)
		want := x.bytes*full*8/200e9 + p.Topology.RTT().Seconds()
		if got := b[0].Ideal.Seconds(); b[0].Messages != x.messages || b[0].Steps != x.steps || math.Abs(got-want) > 2e-9 {
			t.Errorf("%s: %+v, want %d messages, %d steps, %.9f s", x.work, b[0], x.messages, x.steps, want)
		}
		if b[1].Messages != b[0].Messages || b[1].Ideal != b[0].Ideal || b[1].Bytes != b[0].Bytes {
			t.Errorf("%s: all are %+v, the one group %+v", x.work, b[1], b[0])
		}
	}
}
