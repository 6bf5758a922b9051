package scale

import (
	"math"
	"testing"

	"github.com/metaroce/metaroce/internal/rng"
)

// randomNetwork has links of few different rates, so that ties happen, and flows over some of them.
func randomNetwork(r *rng.Source, sameSize bool) network {
	var n network
	for range 1 + r.IntN(12) {
		n.caps = append(n.caps, float64(1+r.IntN(4)))
	}
	for range 1 + r.IntN(30) {
		x := flow{count: float64(1 + r.IntN(3)), bytes: 1}
		if !sameSize {
			x.bytes = 1 + 9*r.Float64()
		}
		for l := range n.caps {
			if r.Chance(0.3) {
				w := 1.0
				if r.Chance(0.3) {
					w = 0.1 + r.Float64()
				}
				x.uses = append(x.uses, use{Link: int32(l), Weight: w})
			}
		}
		if len(x.uses) > 0 {
			n.flows = append(n.flows, x)
		}
	}
	return n
}

// TestBusiest: with one size, the last flow ends when the busiest link has carried everything.
func TestBusiest(t *testing.T) {
	r := rng.New(3, "busiest")
	for trial := range 1000 {
		n := randomNetwork(r, true)
		last := 0.0
		for _, end := range run(n.caps, n.flows) {
			last = max(last, end)
		}
		if want := busiest(n.caps, n.flows); math.Abs(last-want) > 1e-9*want {
			t.Fatalf("trial %d: the last flow ends at %v, the busiest link needs %v", trial, last, want)
		}
	}
}

// TestRun: two flows share a link; when the short one has ended, the other has it for itself.
func TestRun(t *testing.T) {
	one := []use{{Link: 0, Weight: 1}}
	end := run([]float64{10}, []flow{{count: 1, bytes: 10, uses: one}, {count: 1, bytes: 40, uses: one}, {count: 0, bytes: 1, uses: one}})
	if end[0] != 2 || end[1] != 5 || end[2] != 0 {
		t.Errorf("ends %v, want 2, 5, 0", end)
	}
	if end := run([]float64{0}, []flow{{count: 1, bytes: 10, uses: one}}); !math.IsInf(end[0], 1) {
		t.Errorf("a flow over a dead link ends at %v", end[0])
	}
}
