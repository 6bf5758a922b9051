package scale

import (
	"fmt"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// pattern says who sends to whom in a step. Hosts are counted from 0; n of them are there.
type pattern struct {
	n    int
	name string                      // of steps whose connections are hashed alike; "" = counted anew each time
	to   func(i int) int             // one flow of each host
	all  int                         // or: each host to each other one whose number differs by a multiple of this
	list func(fn func(from, to int)) // or: these flows
	many int                         // flows of list
	// hold: a shift of the fabric by blocks of so many hosts changes nothing; nil = never.
	hold func(block int) bool
	side int // flows that one host sends or receives; 0 = 1
}

// shift sends from i to i+k.
func shift(n, k int) pattern {
	return pattern{n: n, name: fmt.Sprint("shift ", k), to: func(i int) int { return (i + k) % n }, hold: func(b int) bool { return n%b == 0 }}
}

// exchange sends from host r of server s to host r of server s xor k; servers have group hosts, their number is a power of two.
func exchange(n, k, group int) pattern {
	to := func(i int) int { return (i/group^k)*group + i%group }
	// Where a block is a power of two of servers, s xor k of a server shifted by blocks is s xor k shifted by other blocks.
	return pattern{n: n, name: fmt.Sprint("exchange ", k, group), to: to, hold: func(b int) bool { return n%b == 0 && b%group == 0 && b/group&(b/group-1) == 0 }}
}

// affine sends from i to (mul·i + add) mod n.
func affine(n, mul, add int) pattern {
	if mul == 1 {
		return shift(n, add)
	}
	return pattern{n: n, name: fmt.Sprint("affine ", mul, add), to: func(i int) int { return (mul*i + add) % n }}
}

// everyone sends to everyone whose number differs by a multiple of stride.
func everyone(n, stride int) pattern {
	return pattern{n: n, name: fmt.Sprint("everyone ", stride), all: stride, side: n/stride - 1}
}

// incast sends from the first hosts other than target to it.
func incast(n, senders, target int) pattern {
	return pattern{n: n, name: fmt.Sprint("incast ", senders, target), many: senders, side: senders, list: func(fn func(from, to int)) {
		for i, left := 0, senders; left > 0 && i < n; i++ {
			if i != target {
				fn(i, target)
				left--
			}
		}
	}}
}

// each calls fn for the flows of the first hosts; all flows of a list.
func (p pattern) each(first int, fn func(from, to int)) {
	switch {
	case p.list != nil:
		p.list(fn)
	case p.to != nil:
		for i := range first {
			if k := p.to(i); k != i {
				fn(i, k)
			}
		}
	default:
		for i := range first {
			for k := i % p.all; k < p.n; k += p.all {
				if k != i {
					fn(i, k)
				}
			}
		}
	}
}

// flows returns how many flows the pattern has among the first hosts.
func (p pattern) flows(first int) int {
	switch {
	case p.list != nil:
		return p.many
	case p.to != nil:
		return first
	}
	return first * (p.n/p.all - 1)
}

// network is a step as the solver takes it.
type network struct {
	caps  []float64
	flows []flow
	apart int // links from here on are between switches
}

// whole is the period that uses no symmetry.
func (f *Fabric) whole() int { return f.T.Hosts }

// period is the number of classes of hosts that the pattern needs: 1, a block, or all hosts.
func (f *Fabric) period(p pattern) int {
	rail := f.T.Kind == plan.Rail
	switch {
	case p.list == nil && p.to == nil && (p.all == 1 || !rail && f.leaf%p.all == 0 || rail && f.T.Group == p.all):
		return 1
	case p.hold != nil && p.n == f.T.Hosts && p.hold(f.block):
		return f.block
	}
	return f.whole()
}

// sprayed builds the step for bytes that spread evenly over planes and uplinks: a flow and, in the other direction, ack of its
// rate. period is the number of classes of hosts.
func (f *Fabric) sprayed(p pattern, period int, bytes, ack float64) network {
	if period == 1 && p.all > 0 {
		return f.uniform(p, bytes, ack)
	}
	times := float64(f.T.Hosts / period) // links of a class
	leaves := max(period/f.leaf, 1)
	pods := max(period/max(f.T.Pod, 1), 1)
	if f.T.Kind != plan.FatTree {
		pods = 0
	}
	n := network{caps: make([]float64, 2*period+2*leaves+2*pods), apart: 2 * period}
	fill := func(from, count int, rate float64) {
		for i := range count {
			n.caps[from+i] = rate * times
		}
	}
	fill(0, 2*period, f.hostRate())
	fill(2*period, 2*leaves, f.leafRate())
	fill(2*period+2*leaves, 2*pods, f.podRate())
	leaf := func(h int) int { return f.leafOf(h % period) }
	pod := func(h int) int { return f.podOf(h % period) }
	p.each(period, func(a, b int) {
		x := flow{count: times, bytes: bytes, level: f.level(a, b)}
		way := func(from, to int, w float64) {
			if w == 0 {
				return
			}
			x.uses = append(x.uses, use{Link: int32(from % period), Weight: w}, use{Link: int32(period + to%period), Weight: w})
			if x.level > 0 {
				x.uses = append(x.uses, use{Link: int32(2*period + leaf(from)), Weight: w}, use{Link: int32(2*period + leaves + leaf(to)), Weight: w})
			}
			if x.level > 1 {
				x.uses = append(x.uses, use{Link: int32(2*period + 2*leaves + pod(from)), Weight: w}, use{Link: int32(2*period + 2*leaves + pods + pod(to)), Weight: w})
			}
		}
		way(a, b, 1)
		way(b, a, ack)
		n.flows = append(n.flows, x)
	})
	return n
}

// uniform is sprayed for patterns in which every host does the same: three classes of flows at most, one link of each kind.
func (f *Fabric) uniform(p pattern, bytes, ack float64) network {
	hosts := float64(f.T.Hosts)
	n := network{caps: []float64{f.hostRate() * hosts, f.leafRate() * hosts / float64(f.leaf), 0}, apart: 1}
	if f.T.Kind == plan.FatTree {
		n.caps[2] = f.podRate() * hosts / float64(f.T.Pod)
	}
	var far [3]float64
	for k := p.all; k < f.T.Hosts; k += p.all {
		far[f.level(0, k)]++
	}
	for level, count := range far {
		if count == 0 {
			continue
		}
		x := flow{count: count * hosts, bytes: bytes, level: level}
		for l := range level + 1 {
			x.uses = append(x.uses, use{Link: int32(l), Weight: 1 + ack})
		}
		n.flows = append(n.flows, x)
	}
	return n
}

// apart is sprayed without any symmetry: every plane and every link between switches by itself. For tests and small fabrics.
func (f *Fabric) apart(p pattern, bytes, ack float64) network {
	ids := linkIDs{f: f, at: map[[5]int]int32{}}
	var n network
	p.each(f.T.Hosts, func(a, b int) {
		x := flow{count: 1, bytes: bytes, level: f.level(a, b)}
		ids.spray(&x, a, b, 1)
		if ack > 0 {
			ids.spray(&x, b, a, ack)
		}
		n.flows = append(n.flows, x)
	})
	n.caps = ids.caps
	return n
}
