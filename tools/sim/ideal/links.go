package ideal

import (
	"fmt"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// link is one direction of a link.
type link struct {
	plane    int32
	group    int32
	from, to plan.Node
	rate     float64 // bytes a second, without changes
	now      float64 // with them
	later    mono.Duration
	bytes    float64 // that crossed it
	active   []*change
}

// change is an event of a plan while it lasts.
type change struct {
	c    plan.Change
	down bool // now: flapping links go up and down
}

// group is links of which a flow may use all at once: those of a host, of a leaf to the tier above it, of a pod to the cores,
// in one direction, over all planes. It counts as one link of their rates together.
type group struct {
	links []int32 // plane by plane, in each plane by the switch above
	rate  float64 // of all, as they are now
	below float64 // of the links to the hosts that stand behind it
	bytes float64 // that crossed it and are not yet shared out among the links

	counted bool // in the network's list of those that have such bytes
}

// network is the links of a plan. Groups are counted: hosts up, hosts down, leaves up, leaves down, pods up, pods down.
type network struct {
	t       *plan.Topology
	links   []link
	groups  []group
	uneven  bool // some link has another rate than it was built with
	delayed bool // some link has a delay added
	counted []int32
	toHosts []float64 // bytes, by plane
}

func newNetwork(t *plan.Topology) *network {
	n := &network{t: t, groups: make([]group, 2*(t.Hosts+t.Leaves()+t.Pods())), toHosts: make([]float64, t.Planes)}
	per := 0
	if t.Kind == plan.FatTree {
		per = t.Cores / t.Aggs
	}
	for pl := range t.Planes {
		for h := range t.Hosts {
			n.pair(pl, plan.Node{Kind: plan.HostNode, Index: h}, plan.Node{Kind: plan.LeafNode, Index: t.LeafOf(h)}, n.host(h), t.RateBps)
		}
		switch t.Kind {
		case plan.LeafSpine, plan.Rail:
			for s := range t.Spines {
				for l := range t.Leaves() {
					n.pair(pl, plan.Node{Kind: plan.LeafNode, Index: l}, plan.Node{Kind: plan.SpineNode, Index: s}, n.leaf(l), t.UpBps)
				}
			}
		case plan.FatTree:
			leaves := t.Pod / t.Leaf
			for a := range t.Aggs * t.Pods() {
				agg := plan.Node{Kind: plan.AggNode, Index: a}
				for l := a / t.Aggs * leaves; l < (a/t.Aggs+1)*leaves; l++ {
					n.pair(pl, plan.Node{Kind: plan.LeafNode, Index: l}, agg, n.leaf(l), t.UpBps)
				}
				for c := range per {
					n.pair(pl, agg, plan.Node{Kind: plan.CoreNode, Index: a%t.Aggs*per + c}, n.pod(a/t.Aggs), t.UpBps)
				}
			}
		case plan.Single:
		}
	}
	for h := range t.Hosts {
		l := t.LeafOf(h)
		for _, g := range []int32{n.host(h), n.leaf(l), n.pod(t.PodOf(l))} {
			for d := range int32(2) {
				n.groups[n.way(g, d)].below += float64(t.Planes) * float64(t.RateBps) / 8
			}
		}
	}
	n.sum()
	return n
}

// host, leaf and pod are the groups of what goes up; way turns one of them into that of a direction: 0 up, 1 down.
func (n *network) host(h int) int32 { return int32(h) }
func (n *network) leaf(l int) int32 { return int32(2*n.t.Hosts + l) }
func (n *network) pod(p int) int32  { return int32(2*(n.t.Hosts+n.t.Leaves()) + p) }

func (n *network) way(up, d int32) int32 {
	switch hosts, leaves := int32(n.t.Hosts), int32(n.t.Leaves()); {
	case up < 2*hosts:
		return up + d*hosts
	case up < 2*(hosts+leaves):
		return up + d*leaves
	}
	return up + d*int32(n.t.Pods())
}

// pair adds both directions of a link.
func (n *network) pair(pl int, low, high plan.Node, up int32, rate uint64) {
	for d := range int32(2) {
		g := n.way(up, d)
		x := link{plane: int32(pl), group: g, from: low, to: high, rate: float64(rate) / 8, now: float64(rate) / 8}
		if d == 1 {
			x.from, x.to = high, low
		}
		n.groups[g].links = append(n.groups[g].links, int32(len(n.links)))
		n.links = append(n.links, x)
	}
}

// sum works out what groups carry now.
func (n *network) sum() {
	n.uneven, n.delayed = false, false
	for i := range n.groups {
		g := &n.groups[i]
		g.rate = 0
		for _, l := range g.links {
			x := &n.links[l]
			g.rate += x.now
			n.uneven = n.uneven || x.now != x.rate
			n.delayed = n.delayed || x.later > 0
		}
	}
}

// carry counts bytes that cross a group.
func (n *network) carry(i int32, bytes float64) {
	g := &n.groups[i]
	if !g.counted {
		g.counted = true
		n.counted = append(n.counted, i)
	}
	g.bytes += bytes
}

// share divides what has crossed groups among their links, by the rates that these have had since the last change.
func (n *network) share() {
	for _, i := range n.counted {
		g := &n.groups[i]
		for _, l := range g.links {
			x := &n.links[l]
			part := g.bytes * x.now / g.rate // nothing crosses a group without a rate
			x.bytes += part
			if x.to.Kind == plan.HostNode {
				n.toHosts[x.plane] += part
			}
		}
		g.bytes, g.counted = 0, false
	}
	n.counted = n.counted[:0]
}

// path appends the groups from one host to another.
func (n *network) path(to []int32, a, b int32) []int32 {
	to = append(to, n.host(int(a)), n.way(n.host(int(b)), 1))
	l, m := n.t.LeafOf(int(a)), n.t.LeafOf(int(b))
	if l == m {
		return to
	}
	to = append(to, n.leaf(l), n.way(n.leaf(m), 1))
	if p, q := n.t.PodOf(l), n.t.PodOf(m); p != q {
		to = append(to, n.pod(p), n.way(n.pod(q), 1))
	}
	return to
}

// binds reports whether a group can hold a flow up that has passed the hosts' own links.
func (g *group) binds() bool { return g.rate < g.below }

// over folds something over the ways from one host to another in a plane: of links in a row, and of links beside each other.
func (n *network) over(pl int, p []int32, of func(*link) float64, row, beside func(a, b float64) float64) float64 {
	at := func(g int32, i int) float64 { return of(&n.links[n.groups[g].links[i]]) }
	x := row(at(p[0], pl), at(p[1], pl))
	if len(p) == 2 {
		return x
	}
	ups := len(n.groups[p[2]].links) / n.t.Planes
	var best float64
	for u := range ups {
		k := pl*ups + u
		y := row(at(p[2], k), at(p[3], k))
		if len(p) == 6 {
			per := len(n.groups[p[4]].links) / n.t.Planes / ups
			var top float64
			for c := range per {
				z := row(at(p[4], k*per+c), at(p[5], k*per+c))
				if c > 0 {
					z = beside(top, z)
				}
				top = z
			}
			y = row(y, top)
		}
		if u > 0 {
			y = beside(best, y)
		}
		best = y
	}
	return row(x, best)
}

// most is the rate between two hosts that have the network for themselves, over the groups of their path.
func (n *network) most(p []int32) (sum float64) {
	for pl := range n.t.Planes {
		sum += n.over(pl, p, func(x *link) float64 { return x.now }, func(a, b float64) float64 { return min(a, b) }, func(a, b float64) float64 { return a + b })
	}
	return sum
}

// later is the delay that events add to the shortest way between two hosts.
func (n *network) later(p []int32) mono.Duration {
	if !n.delayed {
		return 0
	}
	var least float64
	for pl := range n.t.Planes {
		d := n.over(pl, p, func(x *link) float64 { return float64(x.later) }, func(a, b float64) float64 { return a + b }, func(a, b float64) float64 { return min(a, b) })
		if pl == 0 || d < least {
			least = d
		}
	}
	return mono.Duration(least)
}

// targets are the links that an event is about.
func (n *network) targets(name string) ([]int32, error) {
	to, err := n.t.Target(name)
	if err != nil {
		return nil, fmt.Errorf("event at %w", err)
	}
	var hit []int32
	for i := range n.links {
		x := &n.links[i]
		is := to.Plane < 0 || int(x.plane) == to.Plane
		switch {
		case to.All:
		case to.Last:
			is = is && x.to.Kind == plan.HostNode
		case to.To != nil:
			is = is && (x.from == *to.Of && x.to == *to.To || x.from == *to.To && x.to == *to.Of)
		case to.Of != nil:
			is = is && (x.from == *to.Of || x.to == *to.Of)
		}
		if is {
			hit = append(hit, int32(i))
		}
	}
	return hit, nil
}

// apply begins or ends a change.
func (n *network) apply(hit []int32, c *change, on bool) {
	for _, i := range hit {
		x := &n.links[i]
		if on {
			x.active = append(x.active, c)
		} else if k := slices.Index(x.active, c); k >= 0 {
			x.active = slices.Delete(x.active, k, k+1)
		}
	}
	n.refresh(hit)
}

func (n *network) refresh(hit []int32) {
	for _, i := range hit {
		x := &n.links[i]
		x.now, x.later = x.rate, 0
		for _, c := range x.active {
			if c.c.Slow > 1 {
				x.now /= c.c.Slow
			}
			if c.down {
				x.now = 0
			}
			x.later += c.c.Delay
		}
	}
	n.sum()
}

// info describes a link as the packet level does.
func (n *network) info(i int) fabric.LinkInfo {
	x := &n.links[i]
	return fabric.LinkInfo{Name: fmt.Sprintf("%d/%v>%v", x.plane, x.from, x.to), Plane: int(x.plane), RateBps: uint64(x.rate * 8), ToHost: x.to.Kind == plan.HostNode,
		Bytes: uint64(x.bytes + 0.5), Packets: uint64(x.bytes/float64(n.t.WireBytes()) + 0.5)}
}
