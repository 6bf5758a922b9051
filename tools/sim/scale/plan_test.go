package scale

import (
	"errors"
	"math"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

func planOf(t *testing.T, topology, rest string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse("x.yaml", []byte("topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, rate: 100Gbit"+topology+"}\n"+rest))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlanAsItIs: what a plan says of wires and losses is what is computed: none beside the packets, no delay between switches,
// losses one after the other.
func TestPlanAsItIs(t *testing.T) {
	const ring = "workload: [{pattern: permutation, add: 4, size: 64KiB}]\n"
	m, err := ForPlan(planOf(t, ", overhead: 0, delay: 1us, up_delay: 0us", ring), Builtin())
	if err != nil {
		t.Fatal(err)
	}
	if m.F.T.Overhead != 0 || m.F.T.UpDelay != 0 {
		t.Errorf("overhead %d, delay between switches %v: both are 0 in the plan", m.F.T.Overhead, m.F.T.UpDelay)
	}
	m, err = ForPlan(planOf(t, "", ring+"events: [{target: links, loss: 1%}, {target: links, loss: 2%}]\n"), Builtin())
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 - math.Pow(0.99*0.98, 4); math.Abs(m.T.Loss-want) > 1e-12 {
		t.Errorf("a loss of %v on four links, not %v", m.T.Loss, want)
	}
}

// TestOrderOfHosts: a pattern among all hosts in another order is another pattern.
func TestOrderOfHosts(t *testing.T) {
	p := planOf(t, "", "workload:\n  - {pattern: ring, size: 64KiB, hosts: 0-15}\n  - {pattern: ring, size: 64KiB, hosts: [0-14/2, 1-15/2]}\n  - {pattern: ring, size: 64KiB, hosts: 0-7}\n")
	m, err := ForPlan(p, Builtin())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, ErrNotModelled, ErrNotModelled} {
		if _, err := m.Work(p.Workload[i]); !errors.Is(err, want) {
			t.Errorf("part %d: %v, want %v", i, err, want)
		}
	}
}
