package scale

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// near fails when got is further from want than a share.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if !(math.Abs(got-want) <= share*math.Abs(want)) {
		t.Errorf("%s: %.9g, want %.9g within %g %%", what, got, want, 100*share)
	}
}

// Topologies of the tests, each with hosts that fill it.
var fabrics = map[string]plan.Topology{
	"switch":     {Kind: plan.Single, Hosts: 16, Planes: 2},
	"leaf-spine": {Kind: plan.LeafSpine, Hosts: 32, Planes: 2, Leaf: 8, Spines: 8},
	"narrow":     {Kind: plan.LeafSpine, Hosts: 32, Planes: 4, Leaf: 8, Spines: 2},
	"fat-tree":   {Kind: plan.FatTree, Hosts: 64, Planes: 1, Pod: 16, Leaf: 4, Aggs: 4, Cores: 16},
	"thin tree":  {Kind: plan.FatTree, Hosts: 64, Planes: 2, Pod: 16, Leaf: 4, Aggs: 2, Cores: 2},
	"rail":       {Kind: plan.Rail, Hosts: 64, Planes: 2, Leaf: 4, Group: 4, Spines: 2},
}

// theory is the table without what was fitted, so that closed forms hold.
func theory() Table {
	t := Builtin()
	t.MetaRoCE.Fill.Value, t.MetaRoCE.Alpha.Value, t.MetaRoCE.Spread.Value = 1, 0, 0
	return t
}

func model(t *testing.T, topo plan.Topology, kind plan.TransportKind, loss float64) *Model {
	t.Helper()
	if topo.RateBps == 0 {
		topo.RateBps, topo.Delay = 100e9, mono.Microsecond
	}
	f, err := NewFabric(topo, Failure{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := NewTransport(kind, theory(), 0, 0, loss)
	if err != nil {
		t.Fatal(err)
	}
	return NewModel(f, x, 1)
}

func all(n int) map[string]pattern {
	return map[string]pattern{"ring": shift(n, 1), "shift 5": shift(n, 5), "half": shift(n, n/2), "xor 1": exchange(n, 1, 1), "xor half": exchange(n, n/2, 1),
		"rails": shift(n, 4), "xor rails": exchange(n, 2, 4), "affine": affine(n, 3, 1), "everyone": everyone(n, 1), "each rail": everyone(n, 4), "incast": incast(n, 7, 3)}
}

// TestClassesAgree: collapsed and uncollapsed give the same times: by classes of hosts, host by host, by each plane and each
// link between switches, and by counting.
func TestClassesAgree(t *testing.T) {
	for name, topo := range fabrics {
		m := model(t, topo, plan.MetaRoCE, 0)
		f := m.F
		for what, p := range all(topo.Hosts) {
			ends := func(n network) (last [3]float64) {
				for i, end := range run(n.caps, n.flows) {
					last[n.flows[i].level] = max(last[n.flows[i].level], end)
				}
				return last
			}
			const bytes, ack = 1e6, 0.0123
			want := ends(f.apart(p, bytes, ack))
			var most float64
			for _, period := range []int{f.period(p), f.whole()} {
				got := ends(f.sprayed(p, period, bytes, ack))
				for l := range got {
					near(t, fmt.Sprintf("%s, %s, %d classes: level %d", name, what, period, l), got[l], want[l], 1e-12)
					most = max(most, got[l])
				}
			}
			sec, between, _, far := f.counted(p, ack)
			near(t, fmt.Sprintf("%s, %s: counted", name, what), sec*bytes, most, 1e-12)
			n := f.sprayed(p, f.period(p), bytes, ack)
			near(t, fmt.Sprintf("%s, %s: between switches", name, what), between*bytes, busiestFrom(n.caps, n.flows, n.apart), 1e-12)
			if _, _, want := f.levels(p); far != want {
				t.Errorf("%s, %s: flows by level %v, by classes %v", name, what, far, want)
			}
		}
	}
}

// TestPeriods: symmetry is used where there is some: this is what makes a million hosts cheap.
func TestPeriods(t *testing.T) {
	for _, c := range []struct {
		fabric, pattern string
		want            int
	}{
		{"leaf-spine", "ring", 8}, {"leaf-spine", "everyone", 1}, {"leaf-spine", "each rail", 1}, {"leaf-spine", "affine", 32}, {"leaf-spine", "xor half", 8},
		{"fat-tree", "shift 5", 16}, {"fat-tree", "everyone", 1}, {"fat-tree", "incast", 64}, {"rail", "ring", 16}, {"rail", "each rail", 1}, {"switch", "half", 1},
	} {
		m := model(t, fabrics[c.fabric], plan.MetaRoCE, 0)
		if got := m.F.period(all(m.F.T.Hosts)[c.pattern]); got != c.want {
			t.Errorf("%s, %s: %d classes, want %d", c.fabric, c.pattern, got, c.want)
		}
	}
}

func run1(t *testing.T, m *Model, c Collective) Time {
	t.Helper()
	x, err := m.Run(c)
	if err != nil {
		t.Fatalf("%s: %v", c.Kind, err)
	}
	return x
}

// TestClosedForms: an ideal transport has no headers, so the textbook's forms hold.
func TestClosedForms(t *testing.T) {
	const n, size = 64, 64 << 20
	ls := plan.Topology{Kind: plan.LeafSpine, Hosts: n, Planes: 1, Leaf: 8, Spines: 8, RateBps: 400e9, Delay: mono.Microsecond, MTU: 4096}
	m := model(t, ls, plan.Ideal, 0)
	b := 400e9 / 8.0
	pkt := 4096 / b
	near1, far := 2e-6+pkt, 4e-6+3*pkt // latency in a leaf, and over a spine
	mean := (7*near1 + far) / 8
	near(t, "ring", run1(t, m, Collective{Kind: Ring, Size: size}).Seconds, 2*(n-1)*(size/n/b+mean), 1e-12)
	near(t, "all-gather", run1(t, m, Collective{Kind: AllGather, Size: size}).Seconds, (n-1)*(size/n/b+mean), 1e-12)
	near(t, "halving", run1(t, m, Collective{Kind: Halving, Size: size}).Seconds, 2*(n-1.0)/n*size/b+2*3*near1+2*3*far, 1e-12)
	near(t, "all-to-all", run1(t, m, Collective{Kind: AllToAll, Size: size}).Seconds, (n-1)*(size/n)/b+far, 1e-12)
	near(t, "permutation", run1(t, m, Collective{Kind: Permutation, Size: size}).Seconds, size/b+far, 1e-12)
	near(t, "incast", run1(t, m, Collective{Kind: Incast, Size: size, Senders: 32}).Seconds, 32*size/b+far, 1e-12)
	tree := run1(t, m, Collective{Kind: Tree, Size: 1 << 30})
	near(t, "tree, large", tree.Seconds, 2*(1<<30)/b, 0.02)

	ls.Spines = 2 // a quarter of what the hosts have
	m = model(t, ls, plan.Ideal, 0)
	near(t, "all-to-all, leaf's uplinks", run1(t, m, Collective{Kind: AllToAll, Size: size}).Seconds, 8*(n-8)*(size/n)/(2*b)+far, 1e-12)
	near(t, "its bound", run1(t, m, Collective{Kind: AllToAll, Size: size}).Bound, 8*(n-8)*(size/n)/(2*b), 1e-12)
	near(t, "permutation, leaf's uplinks", run1(t, m, Collective{Kind: Permutation, Size: size}).Seconds, 4*size/b+far, 1e-12)

	ft := plan.Topology{Kind: plan.FatTree, Hosts: n, Planes: 1, Pod: 16, Leaf: 4, Aggs: 4, Cores: 4, RateBps: 400e9, Delay: mono.Microsecond, MTU: 4096}
	m = model(t, ft, plan.Ideal, 0)
	near(t, "all-to-all, pod's uplinks", run1(t, m, Collective{Kind: AllToAll, Size: size}).Bound, 16*48*(size/n)/(4*b), 1e-12)
	near(t, "all-to-all, pods", run1(t, m, Collective{Kind: AllToAll, Size: size}).Seconds, 16*48*(size/n)/(4*b)+6e-6+5*pkt, 1e-12)
}

// TestLineRate: a flow alone takes its packets' time on the wire and the latency of the path; htsim's 64 MB took 5461.6 µs.
func TestLineRate(t *testing.T) {
	ls := plan.Topology{Kind: plan.LeafSpine, Hosts: 64, Leaf: 8, Spines: 8, RateBps: 100e9, Delay: mono.Microsecond, Overhead: 16}
	m := model(t, ls, plan.MetaRoCE, 0)
	x := run1(t, m, Collective{Kind: Incast, Size: 64 << 20, Senders: 1, Target: 63})
	near(t, "64 MB", x.Seconds, (5452.6+4+3*0.333)*1e-6, 2e-4)
	near(t, "round trip", m.F.RTT(1, m.T), 8e-6+4*4160*8/100e9, 0.02)
}

// TestHashed: counting connections gives what filling them in gives, and the binomial law what counting gives on average.
func TestHashed(t *testing.T) {
	for name, topo := range fabrics {
		for what, p := range all(topo.Hosts) {
			for _, qps := range []int{1, 4} {
				m := model(t, topo, plan.RoCEv2, 0)
				n := m.hash.connections(p, qps, 1e6)
				last := 0.0
				for _, end := range run(n.caps, n.flows) {
					last = max(last, end)
				}
				sec, level := m.hash.count(p, qps)
				near(t, fmt.Sprintf("%s, %s, %d connections", name, what, qps), sec*1e6, last, 1e-9)
				if _, want, _ := m.F.levels(p); level != want {
					t.Errorf("%s, %s: level %d, want %d", name, what, level, want)
				}
			}
		}
	}
}

// TestECMPCollisions: the slowdown of the permutation to the next leaf by the number of connections (notes of the simulators:
// 3.60, 2.23 and 1.58 at 1, 4 and 16).
func TestECMPCollisions(t *testing.T) {
	ls := plan.Topology{Kind: plan.LeafSpine, Hosts: 64, Leaf: 8, Spines: 8}
	for qps, want := range map[int]float64{1: 3.60, 4: 2.23, 16: 1.58} {
		sum := 0.0
		const seeds = 400
		for s := range seeds {
			m := model(t, ls, plan.RoCEv2, 0)
			m.hash = newHashed(m.F, uint64(s))
			sec, _ := m.hash.count(shift(64, 8), qps)
			sum += sec * 100e9 / 8 / float64(qps)
		}
		near(t, fmt.Sprintf("%d connections", qps), sum/seeds, want, 0.02)
	}
}

func TestBinomialLaw(t *testing.T) {
	for _, topo := range []plan.Topology{{Kind: plan.LeafSpine, Hosts: 256, Planes: 2, Leaf: 16, Spines: 16}, {Kind: plan.FatTree, Hosts: 256, Planes: 1, Pod: 64, Leaf: 8, Aggs: 8, Cores: 64}} {
		sum := 0.0
		m := model(t, topo, plan.RoCEv2, 0)
		for s := range 20 {
			m.hash = newHashed(m.F, uint64(s))
			sec, _ := m.hash.count(everyone(256, 1), 1)
			sum += sec / 20
		}
		sec, _ := m.hash.expect(everyone(256, 1), 1)
		near(t, string(topo.Kind), sec, sum, 0.03)
	}
	if got := largest(10, 1, 5); got != 10 {
		t.Errorf("all of 10 tries: %v", got)
	}
	near(t, "one coin, one link", largest(1001, 0.5, 1), 500, 0.003)
}

// TestLoss: selective repeat keeps 1-p, go-back-N what its closed form says (W = 25 packets, 1 %: 0.80; with a timer of 1 ms 0.64).
func TestLoss(t *testing.T) {
	ls := plan.Topology{Kind: plan.LeafSpine, Hosts: 64, Leaf: 8, Spines: 8, RateBps: 100e9, Delay: mono.Microsecond, MTU: 4096, Overhead: 16}
	big := Collective{Kind: Permutation, Size: 1 << 30}
	base := run1(t, model(t, ls, plan.MetaRoCE, 0), big).Seconds
	for _, p := range []float64{0.01, 0.05, 0.1} {
		near(t, fmt.Sprintf("metaroce, %v lost", p), base/run1(t, model(t, ls, plan.MetaRoCE, p), big).Seconds, 1-p, 2e-3)
	}
	m := model(t, ls, plan.RoCEv2, 0.01)
	near(t, "go-back-N, no timeouts", goBackN(m, 25, 1e-9), 0.80, 0.01)
	near(t, "go-back-N, 1 ms", goBackN(m, 25, 1e-3), 0.64, 0.01)
	near(t, "go-back-N, 67 ms", goBackN(m, 25, 67e-3), 0.05, 0.1)
	if tail := model(t, ls, plan.MetaRoCE, 0.01).T.tail(1e6, 1e-5); tail < 2.5*1.1e-5 || tail > 4*1.4e-5 {
		t.Errorf("a million packets at 1 %% need about three rounds, got %v s", tail)
	}
}

func goBackN(m *Model, w, rto float64) float64 {
	m.T.RTO = rto
	rate := 100e9 / 8.0
	return m.T.goodput(m.F, rate, w*m.T.packet(m.F, 4096)/rate)
}

// TestFailure: what is left carries everything.
func TestFailure(t *testing.T) {
	topo := plan.Topology{Kind: plan.LeafSpine, Hosts: 64, Planes: 4, Leaf: 8, Spines: 8, RateBps: 100e9, Delay: mono.Microsecond}
	whole := model(t, topo, plan.MetaRoCE, 0)
	c := Collective{Kind: Permutation, Size: 1 << 30}
	base := run1(t, whole, c).Seconds
	for _, x := range []struct {
		fail Failure
		left float64
	}{{Failure{Planes: 1}, 3.0 / 4}, {Failure{Spines: 2}, 6.0 / 8}, {Failure{Links: 0.25}, 0.75}} {
		f, err := NewFabric(topo, x.fail)
		if err != nil {
			t.Fatal(err)
		}
		near(t, fmt.Sprint(x.fail), base/run1(t, NewModel(f, whole.T, 1), c).Seconds, x.left, 2e-3)
	}
	for _, bad := range []Failure{{Planes: 4}, {Spines: 8}, {Links: 1}} {
		if _, err := NewFabric(topo, bad); err == nil || !strings.Contains(err.Error(), "nothing is left") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestMillion: a million hosts are designed, and every collective of theirs is found.
func TestMillion(t *testing.T) {
	topo, err := Design(1<<20, 8, 1, 800e9)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []plan.TransportKind{plan.MetaRoCE} {
		m := model(t, topo, kind, 0)
		for _, k := range Kinds {
			if k == Tree { // all edges are counted: TestClosedForms has it
				continue
			}
			x := run1(t, m, Collective{Kind: k, Size: 1 << 30, Group: 8, ServerBps: 3600e9, ServerAlpha: 1e-6})
			if !(x.Seconds > x.Bound && x.Bound > 0) {
				t.Errorf("%s: %v s, the bound is %v", k, x.Seconds, x.Bound)
			}
		}
	}
}

func TestDesign(t *testing.T) {
	for n, tiers := range map[int]int{64: 2, 1000: 2, 1024: 2, 10240: 2, 102400: 2, 131072: 2, 1 << 20: 3} {
		topo, err := Design(n, 8, 1, 800e9)
		if err != nil {
			t.Errorf("%d: %v", n, err)
			continue
		}
		topo.Delay = mono.Microsecond
		f, err := NewFabric(topo, Failure{})
		if err != nil {
			t.Errorf("%d: %v", n, err)
		} else if f.Tiers() != tiers || topo.RateBps != 100e9 {
			t.Errorf("%d hosts: %d tiers of %d bit/s", n, f.Tiers(), topo.RateBps)
		}
	}
	for _, n := range []int{0, 1, 131073, 1<<20 - 1} {
		if _, err := Design(n, 8, 1, 800e9); err == nil {
			t.Errorf("%d hosts have a design", n)
		}
	}
}

// TestTree: both trees have every host, reach the root in a logarithm of steps, and nobody has children in both.
func TestTree(t *testing.T) {
	for _, n := range []int{2, 3, 7, 8, 64, 100} {
		kids := make([][2]int, n)
		k := 0
		edges(n, func(child, parent int) {
			kids[parent][k%2]++
			k++
			if child == parent || child < 0 || parent < 0 || child >= n || parent >= n {
				t.Fatalf("n %d: edge %d to %d", n, child, parent)
			}
		})
		if k != 2*(n-1) {
			t.Errorf("n %d: %d edges", n, k)
		}
		for i, x := range kids {
			if n > 3 && n%2 == 0 && x[0] > 1 && x[1] > 1 {
				t.Errorf("n %d: host %d has two children in both trees", n, i)
			}
		}
		for i := 1; i < n; i++ {
			d := 0
			for j := i; j != 0; j = above(j, n) {
				if d++; d > 8 {
					t.Fatalf("n %d: host %d does not reach the root", n, i)
				}
			}
		}
	}
}

func TestTable(t *testing.T) {
	good := string(builtin)
	for _, c := range [][2]string{
		{strings.Replace(good, "value: 1.125", "value: -1", 1), "fit.yaml: metaroce: detect: -1 is not within"},
		{strings.Replace(good, "  silence:", "  silense:", 1), "line "},
		{"", "empty"},
		{strings.Replace(good, "    from: \"theory: upper", "    # from: \"theory: upper", 1), "rocev2: fill has no from"},
	} {
		if _, err := ParseTable("fit.yaml", []byte(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("error %v, want %q", err, c[1])
		}
	}
}

// TestFit: times made with other constants are fitted by these.
func TestFit(t *testing.T) {
	topo := plan.Topology{Kind: plan.LeafSpine, Hosts: 64, Leaf: 8, Spines: 8}
	want := theory()
	want.MetaRoCE.Fill.Value, want.MetaRoCE.Alpha.Value, want.MetaRoCE.Spread.Value = 0.9, 2, 0.7
	m := model(t, topo, plan.MetaRoCE, 0)
	var all []Comparison
	for _, c := range []Collective{{Kind: Ring, Size: 1 << 20}, {Kind: Ring, Size: 1 << 26}, {Kind: AllToAll, Size: 1 << 26}, {Kind: Permutation, Size: 1 << 23, Mul: 1, Add: 8},
		{Kind: Halving, Size: 1 << 22}, {Kind: Incast, Size: 1 << 20}} {
		x := run1(t, m, c)
		r := *m
		tr := *m.T
		tr.Constants, r.T = want.MetaRoCE, &tr
		all = append(all, Comparison{Transport: string(plan.MetaRoCE), Packet: run1(t, &r, c).Seconds, Flow: x.Seconds, time: x})
	}
	got := Fit(theory(), all).MetaRoCE
	near(t, "fill", got.Fill.Value, 0.9, 2e-3)
	near(t, "alpha", got.Alpha.Value, 2, 2e-2)
	near(t, "spread", got.Spread.Value, 0.7, 2e-2)
	if few := Fit(theory(), all[:3]).MetaRoCE; few != theory().MetaRoCE {
		t.Errorf("three runs were fitted: %+v", few)
	}
}

// TestShortMessages: what fits a packet is not cut over connections.
func TestShortMessages(t *testing.T) {
	m := model(t, plan.Topology{Kind: plan.LeafSpine, Hosts: 64, Leaf: 8, Spines: 8}, plan.RoCEv2, 0)
	c := Collective{Kind: AllToAll, Size: 64 << 10}
	one := run1(t, m, c).Seconds
	m.T.QPs = 16
	if got := run1(t, m, c).Seconds; got != one {
		t.Errorf("messages of 1 KiB over 16 connections take %v s, over one %v", got, one)
	}
}
