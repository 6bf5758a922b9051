package maxmin

import (
	"math"
	"testing"

	"github.com/metaroce/metaroce/internal/rng"
)

type class struct {
	count float64
	uses  []Use
}

// randomNetwork has links of few different rates, so that ties happen, and flows over some of them.
func randomNetwork(r *rng.Source) (caps []float64, flows []class) {
	for range 1 + r.IntN(12) {
		caps = append(caps, float64(1+r.IntN(4)))
	}
	share := 0.1 + 0.3*r.Float64()
	for range 1 + r.IntN(30) {
		x := class{count: float64(1 + r.IntN(3))}
		for l := range caps {
			if r.Chance(share) {
				w := 1.0
				if r.Chance(0.3) {
					w = 0.1 + r.Float64()
				}
				x.uses = append(x.uses, Use{int32(l), w})
			}
		}
		if len(x.uses) > 0 {
			flows = append(flows, x)
		}
	}
	return caps, flows
}

func started(caps []float64, flows []class) *Solver {
	s := New(caps)
	for _, x := range flows {
		s.Start(s.Flow(x.count, x.uses))
	}
	s.Fill()
	return s
}

// TestMaxMin checks what defines max–min fairness: no link carries more than its rate, and every flow has a link that is full
// and over which no flow is faster.
func TestMaxMin(t *testing.T) {
	r := rng.New(1, "max-min")
	for trial := range 2000 {
		caps, flows := randomNetwork(r)
		s := started(caps, flows)
		load, fastest := make([]float64, len(caps)), make([]float64, len(caps))
		for i, x := range flows {
			for _, u := range x.uses {
				load[u.Link] += x.count * u.Weight * s.Rate(int32(i))
				fastest[u.Link] = max(fastest[u.Link], s.Rate(int32(i)))
			}
		}
		for l, c := range caps {
			if load[l] > c*(1+1e-9) {
				t.Fatalf("trial %d: link %d carries %v of %v", trial, l, load[l], c)
			}
		}
		for i, x := range flows {
			ok := false
			for _, u := range x.uses {
				ok = ok || load[u.Link] >= caps[u.Link]*(1-1e-9) && s.Rate(int32(i)) >= fastest[u.Link]*(1-1e-9)
			}
			if !ok {
				t.Fatalf("trial %d: flow %d at %v has no bottleneck", trial, i, s.Rate(int32(i)))
			}
		}
	}
}

// slow is max–min fairness by its words: grow all rates together in the smallest step that fills a link, again and again.
func slow(caps []float64, flows []class, on []bool) []float64 {
	rates, fixed := make([]float64, len(flows)), make([]bool, len(flows))
	used := make([]float64, len(caps))
	load := func() {
		clear(used)
		for i, x := range flows {
			for _, u := range x.uses {
				used[u.Link] += x.count * u.Weight * rates[i]
			}
		}
	}
	for {
		step, grows := math.Inf(1), false
		load()
		for l := range caps {
			sum := 0.0
			for i, x := range flows {
				for _, u := range x.uses {
					if int(u.Link) == l && !fixed[i] && on[i] {
						sum += x.count * u.Weight
					}
				}
			}
			if sum > 0 {
				step, grows = min(step, max(0, caps[l]-used[l])/sum), true
			}
		}
		if !grows {
			return rates
		}
		for i := range flows {
			if !fixed[i] && on[i] {
				rates[i] += step
			}
		}
		load()
		for i, x := range flows {
			for _, u := range x.uses {
				fixed[i] = fixed[i] || used[u.Link] >= caps[u.Link]*(1-1e-12)
			}
		}
	}
}

// TestAgainstSlow: flows that come and go and links that change leave the rates that the definition gives, those that Fill
// did not return included.
func TestAgainstSlow(t *testing.T) {
	r := rng.New(2, "slow")
	kept := 0
	for trial := range 300 {
		caps, flows := randomNetwork(r)
		s := started(caps, flows)
		on := make([]bool, len(flows))
		for i := range on {
			on[i] = true
		}
		for step := range 10 {
			for i, want := range slow(caps, flows, on) {
				if got := s.Rate(int32(i)); math.Abs(got-want) > 1e-9*max(want, 1e-3) {
					t.Fatalf("trial %d, step %d: flow %d: %v, by the definition %v", trial, step, i, got, want)
				}
			}
			for range r.IntN(3) {
				i := r.IntN(len(flows) + 1)
				switch {
				case i == len(flows):
					l := r.IntN(len(caps))
					caps[l] = float64(r.IntN(5))
					s.SetRate(int32(l), caps[l])
				case on[i]:
					s.Stop(int32(i))
					on[i] = false
				default:
					s.Start(int32(i))
					on[i] = true
				}
			}
			if n := len(s.Fill()); n < len(flows) {
				kept += len(flows) - n
			}
		}
	}
	if kept == 0 {
		t.Error("every Fill computed every flow anew: that of some alone was not tested")
	}
}

// TestNoAllocations: once it has grown, a solver takes nothing from the heap.
func TestNoAllocations(t *testing.T) {
	r := rng.New(4, "allocations")
	caps, flows := randomNetwork(r)
	s := started(caps, flows)
	if n := testing.AllocsPerRun(100, func() {
		s.Stop(0)
		s.Fill()
		s.Start(0)
		s.Fill()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
