package scale

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Kind is a collective as this package knows it: those of plans, and hierarchical ones.
type Kind string

// Collectives. Size is the buffer of a host, as nccl-tests counts it: all-to-all sends Size/n to each. Permutation and incast:
// Size is one message.
const (
	Ring         = Kind(plan.RingReduce)
	Tree         = Kind(plan.TreeReduce)
	Halving      = Kind(plan.Halving)
	AllGather    = Kind(plan.AllGather)
	ReduceScat   = Kind(plan.ReduceScat)
	AllToAll     = Kind(plan.AllToAll)
	Permutation  = Kind(plan.Permutation)
	Incast       = Kind(plan.Incast)
	HierRing     = Kind("hierarchical-ring")       // reduce-scatter in the server, a ring on each rail, all-gather in the server
	HierHalving  = Kind("hierarchical-halving")    // the same with recursive halving and doubling on the rails
	HierAllToAll = Kind("hierarchical-all-to-all") // in the server to the GPU of the destination's rail, then on each rail
)

// Kinds are all collectives.
var Kinds = []Kind{Ring, Tree, Halving, HierRing, HierHalving, AllGather, ReduceScat, AllToAll, HierAllToAll, Permutation, Incast}

// Collective is one operation of all hosts.
type Collective struct {
	Kind        Kind
	Size        int64   // bytes
	Group       int     // hierarchical: hosts, each a GPU with its NIC, of a server
	ServerBps   float64 // hierarchical: bit/s of each GPU to the others of its server
	ServerAlpha float64 // hierarchical: seconds of a step in the server
	Slice       int64   // tree: bytes of a piece of its pipeline; 0 = 128 KiB
	Mul, Add    int     // permutation: i to Mul·i + Add; Mul 0 = i to i + n/2
	Senders     int     // incast; 0 = 32
	Target      int
}

// Time is what a collective takes.
type Time struct {
	Seconds float64 `json:"seconds"`
	Bound   float64 `json:"bound_s"` // the busiest link's bytes at the line's payload rate, without any latency
	Steps   float64 `json:"steps"`   // one after the other
	Latency float64 `json:"latency_s"`
	Server  float64 `json:"server_s"` // inside of servers
	Wire    float64 `json:"wire_s"`   // bytes at fair rates
	Spread  float64 `json:"spread_s"` // packets that meet where sprayed bytes fill a link between switches
	unit    float64 // Spread at a constant of 1
	Bus     float64 `json:"bus_factor"` // bus bandwidth = Size/Seconds · Bus, as nccl-tests defines it
	Method  string  `json:"method"`
}

// run adds repeat steps.
func (m *Model) add(t *Time, p pattern, size int64, repeat float64, chain bool) error {
	s, err := m.step(p, size)
	if err != nil {
		return err
	}
	one, lat := s.barrier(), s.last-s.wire
	if chain {
		one, lat = s.chain(), s.mean
	}
	spread := s.spread * m.T.Spread.Value
	t.Seconds += repeat * (one + spread)
	t.Wire += repeat * s.wire
	t.Spread += repeat * spread
	t.unit += repeat * s.spread
	t.Latency += repeat * lat
	t.Steps += repeat
	t.Method = s.method
	return nil
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// Run computes a collective of all hosts.
func (m *Model) Run(c Collective) (Time, error) {
	n := m.F.T.Hosts
	var t Time
	if c.Size < 1 {
		return t, fmt.Errorf("a size of %d bytes: at least 1", c.Size)
	}
	var err error
	switch c.Kind {
	case Ring:
		err = m.add(&t, shift(n, 1), ceilDiv(c.Size, int64(n)), float64(2*(n-1)), true)
	case AllGather, ReduceScat:
		err = m.add(&t, shift(n, 1), ceilDiv(c.Size, int64(n)), float64(n-1), true)
	case Halving:
		err = m.halving(&t, n, 1, c.Size)
	case Tree:
		err = m.tree(&t, c)
	case AllToAll:
		err = m.add(&t, everyone(n, 1), ceilDiv(c.Size, int64(n)), 1, false)
	case Permutation:
		p := shift(n, n/2)
		if c.Mul != 0 {
			p = affine(n, c.Mul, c.Add)
		}
		err = m.add(&t, p, c.Size, 1, false)
	case Incast:
		k := c.senders(n)
		if k >= n || c.Target < 0 || c.Target >= n {
			return t, fmt.Errorf("incast of %d senders to host %d: there are %d hosts", k, c.Target, n)
		}
		err = m.add(&t, incast(n, k, c.Target), c.Size, 1, false)
	case HierRing, HierHalving, HierAllToAll:
		err = m.hierarchical(&t, c)
	default:
		return t, fmt.Errorf("unknown collective %q", c.Kind)
	}
	t.Bound, t.Bus = m.bound(c), c.bus(n)
	return t, err
}

func (c Collective) senders(n int) int {
	if c.Senders == 0 {
		return min(32, n-1)
	}
	return c.Senders
}

// halving is recursive halving and doubling among the hosts of each rail; what is beyond a power of two folds into it before
// and after.
func (m *Model) halving(t *Time, n, group int, size int64) error {
	servers := n / group
	k := bits.Len(uint(servers)) - 1
	if extra := servers - 1<<k; extra > 0 {
		list := func(back bool) pattern {
			return pattern{n: n, name: fmt.Sprint("fold ", group, back), many: extra * group, list: func(fn func(from, to int)) {
				for i := range extra * group {
					if a, b := group<<k+i, i; back {
						fn(b, a)
					} else {
						fn(a, b)
					}
				}
			}}
		}
		for _, back := range []bool{false, true} {
			if err := m.add(t, list(back), size, 1, false); err != nil {
				return err
			}
		}
	}
	for j := 1; j <= k; j++ {
		p := exchange(n, 1<<(k-j), group)
		if servers != 1<<k {
			to := p.to
			p = pattern{n: n, name: p.name + " of a power of two", to: func(i int) int {
				if i >= group<<k {
					return i
				}
				return to(i)
			}}
		}
		if err := m.add(t, p, ceilDiv(size, 1<<j), 2, false); err != nil { // there and back
			return err
		}
	}
	return nil
}

// hierarchical: 1/Group of the buffer of each GPU is reduced on its rail.
func (m *Model) hierarchical(t *Time, c Collective) error {
	n, g := m.F.T.Hosts, c.Group
	switch {
	case g < 2 || n%g != 0 || n/g < 2:
		return fmt.Errorf("servers of %d GPUs: at least 2, and they must divide %d hosts into at least 2 servers", g, n)
	case c.ServerBps <= 0:
		return fmt.Errorf("no rate inside of servers")
	}
	inside := func(bytes, steps float64) {
		t.Server += bytes*8/c.ServerBps + steps*c.ServerAlpha
		t.Steps += steps
	}
	size := float64(c.Size)
	part := ceilDiv(c.Size, int64(g))
	var err error
	switch c.Kind {
	case HierRing:
		inside(2*size*float64(g-1)/float64(g), 2)
		err = m.add(t, shift(n, g), ceilDiv(part, int64(n/g)), float64(2*(n/g-1)), true)
	case HierHalving:
		inside(2*size*float64(g-1)/float64(g), 2)
		err = m.halving(t, n, g, part)
	default: // what goes to other servers, to the GPU on its rail; the rest is there already
		inside(size*float64(g-1)/float64(g), 1)
		err = m.add(t, everyone(n, g), ceilDiv(c.Size*int64(g), int64(n)), 1, false)
	}
	t.Seconds += t.Server
	return err
}

// bus is nccl-tests' factor from algorithm to bus bandwidth.
func (c Collective) bus(n int) float64 {
	x := float64(n-1) / float64(n)
	switch c.Kind {
	case Ring, Tree, Halving, HierRing, HierHalving:
		return 2 * x
	case AllGather, ReduceScat, AllToAll, HierAllToAll:
		return x
	case Incast:
		return float64(c.senders(n))
	case Permutation:
	}
	return 1
}

// payload is the rate of a NIC's payload at full line rate, bytes a second: full packets, no acknowledgements, nothing lost.
func (m *Model) payload() float64 {
	f := m.F
	return float64(f.T.RateBps) / 8 * float64(f.T.Planes) * float64(f.T.MTU) / m.T.packet(f, f.T.MTU)
}

// bound is the least time by the bytes that must cross the busiest link of the whole fabric.
func (m *Model) bound(c Collective) float64 {
	n, s, b := float64(m.F.T.Hosts), float64(c.Size), m.payload()
	switch c.Kind {
	case Ring, Tree, Halving:
		return 2 * (n - 1) / n * s / b
	case AllGather, ReduceScat:
		return (n - 1) / n * s / b
	case AllToAll:
		return m.spreadBound(1, s/n)
	case HierAllToAll:
		return m.spreadBound(c.Group, s/n*float64(c.Group)) + s*float64(c.Group-1)/float64(c.Group)*8/c.ServerBps
	case Permutation:
		return s / b
	case Incast:
		return float64(c.senders(m.F.T.Hosts)) * s / b
	case HierRing, HierHalving:
		g := float64(c.Group)
		return 2*(n/g-1)/(n/g)*s/g/b + 2*s*(g-1)/g*8/c.ServerBps
	}
	return math.NaN()
}

// spreadBound is that of everyone to everyone of a rail with messages of so many bytes: the NIC's, or the leaf's H·(n-H)·m/(u·B).
func (m *Model) spreadBound(stride int, message float64) float64 {
	f := m.F
	hosts := float64(f.T.Hosts)
	b, ratio := m.payload(), float64(f.T.UpBps)/float64(f.T.RateBps)
	var far [3]float64
	for k := stride; k < f.T.Hosts; k += stride {
		far[f.level(0, k)]++
	}
	t := (far[0] + far[1] + far[2]) * message / b
	ups := float64(f.ups + f.Fail.Spines)
	if ups > 0 && hosts > float64(f.leaf) {
		t = max(t, float64(f.leaf)*(far[1]+far[2])*message/(ups*b*ratio))
	}
	if f.T.Kind == plan.FatTree && far[2] > 0 {
		t = max(t, float64(f.T.Pod)*far[2]*message/(float64(f.T.Cores)*b*ratio))
	}
	return t
}
