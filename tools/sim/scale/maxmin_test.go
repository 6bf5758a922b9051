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
				x.uses = append(x.uses, use{int32(l), w})
			}
		}
		if len(x.uses) > 0 {
			n.flows = append(n.flows, x)
		}
	}
	return n
}

// TestMaxMin checks what defines max–min fairness: no link carries more than its rate, and every flow has a link that is full
// and over which no flow is faster.
func TestMaxMin(t *testing.T) {
	r := rng.New(1, "max-min")
	for trial := range 2000 {
		n := randomNetwork(r, false)
		if len(n.flows) == 0 {
			continue
		}
		rates := newFiller(n.caps, n.flows).fill(n.flows, make([]bool, len(n.flows)))
		load, fastest := make([]float64, len(n.caps)), make([]float64, len(n.caps))
		for i, x := range n.flows {
			for _, u := range x.uses {
				load[u.link] += x.count * u.weight * rates[i]
				fastest[u.link] = max(fastest[u.link], rates[i])
			}
		}
		for l, c := range n.caps {
			if load[l] > c*(1+1e-9) {
				t.Fatalf("trial %d: link %d carries %v of %v", trial, l, load[l], c)
			}
		}
		for i, x := range n.flows {
			ok := false
			for _, u := range x.uses {
				ok = ok || load[u.link] >= n.caps[u.link]*(1-1e-9) && rates[i] >= fastest[u.link]*(1-1e-9)
			}
			if !ok {
				t.Fatalf("trial %d: flow %d at %v has no bottleneck", trial, i, rates[i])
			}
		}
	}
}

// slow is max–min fairness by its words: grow all rates together in the smallest step that fills a link, again and again.
func slow(caps []float64, flows []flow) []float64 {
	rates, fixed := make([]float64, len(flows)), make([]bool, len(flows))
	for {
		step, grows := math.Inf(1), false
		for l := range caps {
			used, sum := 0.0, 0.0
			for i, x := range flows {
				for _, u := range x.uses {
					if int(u.link) == l {
						used += x.count * u.weight * rates[i]
						if !fixed[i] {
							sum += x.count * u.weight
						}
					}
				}
			}
			if sum > 0 {
				step, grows = min(step, (caps[l]-used)/sum), true
			}
		}
		if !grows {
			return rates
		}
		for i := range flows {
			if !fixed[i] {
				rates[i] += step
			}
		}
		for l := range caps {
			used := 0.0
			for i, x := range flows {
				for _, u := range x.uses {
					if int(u.link) == l {
						used += x.count * u.weight * rates[i]
					}
				}
			}
			for i, x := range flows {
				for _, u := range x.uses {
					if int(u.link) == l && used >= caps[l]*(1-1e-12) {
						fixed[i] = true
					}
				}
			}
		}
	}
}

func TestFillAgainstSlow(t *testing.T) {
	r := rng.New(2, "slow")
	for trial := range 500 {
		n := randomNetwork(r, false)
		got := newFiller(n.caps, n.flows).fill(n.flows, make([]bool, len(n.flows)))
		for i, want := range slow(n.caps, n.flows) {
			if math.Abs(got[i]-want) > 1e-9*want {
				t.Fatalf("trial %d: flow %d: %v, by the definition %v", trial, i, got[i], want)
			}
		}
	}
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
	one := []use{{0, 1}}
	end := run([]float64{10}, []flow{{count: 1, bytes: 10, uses: one}, {count: 1, bytes: 40, uses: one}, {count: 0, bytes: 1, uses: one}})
	if end[0] != 2 || end[1] != 5 || end[2] != 0 {
		t.Errorf("ends %v, want 2, 5, 0", end)
	}
	if end := run([]float64{0}, []flow{{count: 1, bytes: 10, uses: one}}); !math.IsInf(end[0], 1) {
		t.Errorf("a flow over a dead link ends at %v", end[0])
	}
}
