package fabric

import (
	"fmt"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// tier of a switch.
type tier uint8

const (
	leafTier tier = iota
	aggTier
	topTier // spines, cores
)

var tierNames = [...]string{"leaf", "agg", "spine", "core"}

// node is a switch.
type node struct {
	tier  tier
	plane uint8
	index int32 // among those of its tier and plane
	pod   int32 // of leaves and aggs in a fat tree
	dom   int32
	up    []int32 // ports
	down  []int32 // ports: of a leaf by the host's place, of a spine by leaf, of an agg by the leaf's place in the pod, of a core by pod
	salt  uint64
}

// shape is where hosts are, the same in every plane.
type shape struct {
	t      *plan.Topology
	leafOf []int32 // of a host
	place  []int32 // of a host at its leaf
	leaves int
	podOf  []int32 // of a leaf
	inPod  []int32 // place of a leaf in its pod
}

func newShape(t *plan.Topology) *shape {
	s := &shape{t: t, leafOf: make([]int32, t.Hosts), place: make([]int32, t.Hosts), leaves: t.Leaves()}
	for h := range s.leafOf {
		s.leafOf[h] = int32(t.LeafOf(h))
		switch t.Kind {
		case plan.Single:
			s.place[h] = int32(h)
		case plan.Rail:
			s.place[h] = int32(h / t.Group % t.Leaf)
		case plan.LeafSpine, plan.FatTree:
			s.place[h] = int32(h % t.Leaf)
		}
	}
	s.podOf, s.inPod = make([]int32, s.leaves), make([]int32, s.leaves)
	if t.Kind == plan.FatTree {
		per := t.Pod / t.Leaf
		for l := range s.podOf {
			s.podOf[l], s.inPod[l] = int32(t.PodOf(l)), int32(l%per)
		}
	}
	return s
}

// atLeaf is how many hosts a leaf has room for.
func (s *shape) atLeaf() int {
	if s.t.Kind == plan.Single {
		return s.t.Hosts
	}
	return s.t.Leaf
}

// domains says which of so many threads a leaf belongs to: its hosts go with it, and with them all planes. Whole pods stay
// together, so that what crosses threads takes a long link.
func (s *shape) domain(leaf int32, threads int) int32 {
	if s.t.Kind == plan.FatTree {
		pods := s.t.Hosts / s.t.Pod
		return s.podOf[leaf] * int32(min(threads, pods)) / int32(pods)
	}
	return leaf * int32(min(threads, s.leaves)) / int32(s.leaves)
}

// build makes all switches and links.
func (n *Net) build() {
	t := n.t
	n.hostUp = make([][]int32, t.Hosts)
	for pl := range t.Planes {
		leaves := make([]int32, n.shape.leaves)
		for l := range leaves {
			leaves[l] = n.addNode(leafTier, pl, l, n.shape.domain(int32(l), n.threads))
			n.nodes[leaves[l]].pod = n.shape.podOf[l]
			n.nodes[leaves[l]].down = make([]int32, n.shape.atLeaf())
		}
		for h := range t.Hosts {
			l := leaves[n.shape.leafOf[h]]
			up, down := n.addLink(pl, end{host: int32(h), sw: -1}, end{host: -1, sw: l}, n.hostLink())
			n.hostUp[h] = append(n.hostUp[h], up)
			n.nodes[l].down[n.shape.place[h]] = down
		}
		switch t.Kind {
		case plan.Single:
		case plan.LeafSpine, plan.Rail:
			for s := range t.Spines {
				top := n.addNode(topTier, pl, s, int32(s%n.threads))
				for l, leaf := range leaves {
					n.join(pl, leaf, top, l)
				}
			}
		case plan.FatTree:
			n.buildPods(pl, leaves)
		}
	}
}

func (n *Net) buildPods(pl int, leaves []int32) {
	t := n.t
	pods, perPod, perAgg := t.Hosts/t.Pod, t.Pod/t.Leaf, t.Cores/t.Aggs
	cores := make([]int32, t.Cores)
	for c := range cores {
		cores[c] = n.addNode(topTier, pl, c, int32(c%n.threads))
	}
	for p := range pods {
		for a := range t.Aggs {
			agg := n.addNode(aggTier, pl, p*t.Aggs+a, n.shape.domain(int32(p*perPod), n.threads))
			n.nodes[agg].pod = int32(p)
			for l := range perPod {
				n.join(pl, leaves[p*perPod+l], agg, l)
			}
			for c := range perAgg {
				n.join(pl, agg, cores[a*perAgg+c], p)
			}
		}
	}
}

// join links a switch with one above it, whose down port number k it gets.
func (n *Net) join(pl int, low, high int32, k int) {
	up, down := n.addLink(pl, end{host: -1, sw: low}, end{host: -1, sw: high}, n.coreLink())
	n.nodes[low].up = append(n.nodes[low].up, up)
	for len(n.nodes[high].down) <= k {
		n.nodes[high].down = append(n.nodes[high].down, -1)
	}
	n.nodes[high].down[k] = down
}

func (n *Net) addNode(t tier, pl, index int, dom int32) int32 {
	n.nodes = append(n.nodes, node{tier: t, plane: uint8(pl), index: int32(index), dom: dom, salt: mix(n.seed ^ uint64(len(n.nodes)+1)*0x9e3779b97f4a7c15)})
	return int32(len(n.nodes) - 1)
}

// end is one end of a link: a host or a switch.
type end struct{ host, sw int32 }

func (n *Net) endName(e end) string {
	if e.host >= 0 {
		return fmt.Sprintf("host%d", e.host)
	}
	x := &n.nodes[e.sw]
	name := tierNames[x.tier]
	if x.tier == topTier && n.t.Kind == plan.FatTree {
		name = "core"
	}
	return fmt.Sprintf("%s%d", name, x.index)
}

func (n *Net) endDom(e end) int32 {
	if e.host >= 0 {
		return n.shape.domain(n.shape.leafOf[e.host], n.threads)
	}
	return n.nodes[e.sw].dom
}

// addLink makes both directions; the first is from a to b.
func (n *Net) addLink(pl int, a, b end, s link.Spec) (ab, ba int32) {
	ab, ba = int32(len(n.ports)), int32(len(n.ports)+1)
	n.ports = append(n.ports, n.port(pl, a, b, ab, ba, s), n.port(pl, b, a, ba, ab, s))
	return ab, ba
}

func (n *Net) port(pl int, from, to end, id, back int32, s link.Spec) Port {
	x := Port{id: id, back: back, dom: n.endDom(from), toDom: n.endDom(to), host: to.host, sw: to.sw, fromHost: from.host, plane: uint8(pl),
		control: n.sw.ControlClass, trim: n.sw.Trim, base: s, Name: fmt.Sprintf("%d/%s>%s", pl, n.endName(from), n.endName(to))}
	if from.host >= 0 { // a host has no reason to lose what it sends
		x.base.Queue, x.base.ECNMin, x.base.ECNMax, x.trim = 0, 0, 0, false
	}
	x.m.Init(n.seed, x.Name)
	if n.pfc.XOFF > 0 {
		x.fifo = &fifo{}
	}
	return x
}

func (n *Net) hostLink() link.Spec {
	return link.Spec{RateBps: n.t.RateBps, Delay: n.t.Delay, Queue: n.sw.Queue, ECNMin: n.sw.ECNMin, ECNMax: n.sw.ECNMax, ECNProb: n.sw.ECNProb}
}

func (n *Net) coreLink() link.Spec {
	s := n.hostLink()
	s.RateBps, s.Delay = n.t.UpBps, n.t.UpDelay
	return s
}

// mix scrambles.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// route is the port by which a packet leaves a switch. Uplinks are chosen by a hash of what a switch sees of a flow, and of the
// switch itself; or, packet by packet, the one with the shortest queue.
func (d *domain) route(now int64, x *node, p *Packet) *Port {
	n := d.n
	leaf := n.shape.leafOf[p.To]
	switch x.tier {
	case leafTier:
		if leaf == x.index {
			return &n.ports[x.down[n.shape.place[p.To]]]
		}
	case aggTier:
		if n.shape.podOf[leaf] == x.pod {
			return &n.ports[x.down[n.shape.inPod[leaf]]]
		}
	case topTier:
		if n.t.Kind == plan.FatTree {
			return &n.ports[x.down[n.shape.podOf[leaf]]]
		}
		return &n.ports[x.down[leaf]]
	}
	h := mix(uint64(p.From)<<40^uint64(p.To)<<16^uint64(p.SrcPort)^x.salt) >> 32
	k := len(x.up)
	i := int(h * uint64(k) >> 32)
	if n.adaptive && p.Payload {
		best := &n.ports[x.up[i]]
		least := best.load(now)
		for j := 1; j < k && least > 0; j++ {
			y := &n.ports[x.up[(i+j)%k]]
			if l := y.load(now); l < least {
				best, least = y, l
			}
		}
		return best
	}
	return &n.ports[x.up[i]]
}

// Way names the links that a packet of a host takes as things are now.
func (n *Net) Way(p *Packet) (links []string) {
	for x := &n.ports[n.hostUp[p.From][p.Plane]]; ; x = n.doms[0].route(int64(n.Now), &n.nodes[x.sw], p) {
		links = append(links, x.Name)
		if x.host >= 0 {
			return links
		}
	}
}
