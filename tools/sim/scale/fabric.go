package scale

import (
	"cmp"
	"fmt"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Failure is what is lost before the collective begins to be measured again: whole planes, so many spines (aggregation
// switches and their cores in a fat tree) of every plane, and a share of the links between switches.
type Failure struct {
	Planes int     `json:"planes,omitempty"`
	Spines int     `json:"spines,omitempty"`
	Links  float64 `json:"links,omitempty"`
}

// Any reports whether something is lost.
func (f Failure) Any() bool { return f != Failure{} }

// Fabric is the fluid view of a plan's topology: each host has a link up and down, each leaf one to the tier above, each pod
// one to the cores, with the sum of the rates of what they stand for.
type Fabric struct {
	T    plan.Topology
	Fail Failure

	planes, ups int // that are left: planes, uplinks of a leaf in a plane
	leaf        int // hosts at a leaf
	block       int // hosts that the fabric repeats itself after: a leaf, a pod, the servers of a set of rails
	leaves      int // in a block
}

// NewFabric checks a topology as far as this package relies on it: every leaf and pod is full.
func NewFabric(t plan.Topology, fail Failure) (*Fabric, error) {
	t.Planes = max(t.Planes, 1)
	if t.UpBps == 0 { // no plan has been here to fill in what was left out; there, 0 may be meant
		t.UpBps, t.UpDelay = t.RateBps, cmp.Or(t.UpDelay, t.Delay)
		t.Overhead = cmp.Or(t.Overhead, 66)
	}
	if t.MTU == 0 {
		t.MTU = 4096
	}
	f := &Fabric{T: t, Fail: fail, planes: t.Planes - fail.Planes}
	up := 0
	switch t.Kind {
	case plan.Single:
		f.leaf, f.block, f.leaves = t.Hosts, 1, 1
	case plan.LeafSpine:
		f.leaf, f.block, f.leaves, up = t.Leaf, t.Leaf, 1, t.Spines
	case plan.FatTree:
		f.leaf, f.block, up = t.Leaf, t.Pod, t.Aggs
		if t.Leaf > 0 {
			f.leaves = t.Pod / t.Leaf
		}
		if t.Leaf < 1 || t.Pod%t.Leaf != 0 || t.Aggs < 1 || t.Cores < t.Aggs || t.Cores%t.Aggs != 0 {
			return nil, fmt.Errorf("a pod of %d hosts with leaves of %d, %d aggregation switches, %d cores does not go up", t.Pod, t.Leaf, t.Aggs, t.Cores)
		}
	case plan.Rail:
		f.leaf, f.block, f.leaves, up = t.Leaf, t.Leaf*t.Group, t.Group, t.Spines
	default:
		return nil, fmt.Errorf("unknown kind of topology %q", t.Kind)
	}
	f.ups = up - fail.Spines
	switch {
	case t.Hosts < 2 || t.RateBps == 0:
		return nil, fmt.Errorf("%d hosts at %d bit/s: at least 2 and a rate are needed", t.Hosts, t.RateBps)
	case f.block < 1 || t.Hosts%f.block != 0:
		return nil, fmt.Errorf("%d hosts do not fill leaves and pods: a multiple of %d is needed", t.Hosts, f.block)
	case f.planes < 1:
		return nil, fmt.Errorf("%d of %d planes lost: nothing is left", fail.Planes, t.Planes)
	case t.Hosts > f.leaf && f.ups < 1:
		return nil, fmt.Errorf("%d of %d spines lost: nothing is left", fail.Spines, up)
	case fail.Links < 0 || fail.Links >= 1:
		return nil, fmt.Errorf("a share of %v of the links lost: nothing is left", fail.Links)
	}
	return f, nil
}

func (f *Fabric) leafOf(h int) int {
	if f.T.Kind == plan.Rail {
		return h/f.block*f.leaves + h%f.T.Group
	}
	return h / f.leaf
}

func (f *Fabric) podOf(h int) int {
	if f.T.Kind == plan.FatTree {
		return h / f.T.Pod
	}
	return 0
}

// level is the tier that traffic between two hosts climbs to: 0 their leaf, 1 spines or aggregation switches, 2 cores.
func (f *Fabric) level(a, b int) int {
	switch {
	case f.leafOf(a) == f.leafOf(b):
		return 0
	case f.podOf(a) == f.podOf(b):
		return 1
	}
	return 2
}

// Tiers is the number of tiers of switches.
func (f *Fabric) Tiers() int {
	return f.level(0, f.T.Hosts-1) + 1
}

// Rates of the links, bytes a second, planes and parallel links together.
func (f *Fabric) hostRate() float64 { return float64(f.T.RateBps) / 8 * float64(f.planes) }
func (f *Fabric) leafRate() float64 {
	return float64(f.T.UpBps) / 8 * float64(f.planes*f.ups) * (1 - f.Fail.Links)
}
func (f *Fabric) podRate() float64 {
	if f.T.Kind != plan.FatTree {
		return 0
	}
	return float64(f.T.UpBps) / 8 * float64(f.planes*f.ups*(f.T.Cores/f.T.Aggs)) * (1 - f.Fail.Links)
}

// oneWay is the time of the first bit, and of a packet of so many bytes on the wire that is stored and sent on by each
// switch, over the path of a level. The first link's own time is the flow's.
func (f *Fabric) oneWay(level int, packet float64) float64 {
	between := float64(2 * level)
	d := 2*f.T.Delay.Seconds() + between*f.T.UpDelay.Seconds()
	return d + packet*8*(1/float64(f.T.RateBps)+between/float64(f.T.UpBps))
}

// RTT is the unloaded round trip of a level in seconds: a full packet there, an acknowledgement back.
func (f *Fabric) RTT(level int, t *Transport) float64 {
	full, ack := t.packet(f, f.T.MTU), t.ackPacket(f)
	return f.oneWay(level, full) + f.oneWay(level, ack) + 8*(full+ack)/float64(f.T.RateBps)
}

// Design returns a non-blocking fabric for n hosts with switches of 512 ports: one leaf and spine tier up to 131,072 hosts,
// three tiers above, as multi-plane networks of NICs with many slow ports are built. n must fill the leaves; over divides the
// uplinks (1: as many as hosts).
func Design(n, planes, over int, rateBps uint64) (plan.Topology, error) {
	const half = 256 // ports down, and as many up
	t := plan.Topology{Hosts: n, Planes: planes, RateBps: rateBps / uint64(max(planes, 1)), MTU: 4096, Overhead: 66}
	if n < 2 || over < 1 || planes < 1 || t.RateBps == 0 {
		return t, fmt.Errorf("%d hosts, %d planes, %d bit/s: at least 2 hosts, 1 plane and a rate are needed", n, planes, rateBps)
	}
	t.Leaf = 1
	for t.Leaf*t.Leaf < n && t.Leaf < half {
		t.Leaf *= 2
	}
	for t.Leaf > 1 && n%t.Leaf != 0 {
		t.Leaf /= 2
	}
	if n/t.Leaf > 2*half && n <= 2*half*half || t.Leaf%over != 0 {
		return t, fmt.Errorf("%d hosts do not fill leaves of a size that fits: take a multiple of %d", n, half*over)
	}
	t.Kind, t.Spines = plan.LeafSpine, t.Leaf/over
	if n > 2*half*half {
		t.Kind, t.Spines = plan.FatTree, 0
		t.Pod = half * t.Leaf
		t.Aggs = t.Leaf / over
		t.Cores = t.Aggs * half / over
		if n%t.Pod != 0 {
			return t, fmt.Errorf("%d hosts do not fill pods of %d", n, t.Pod)
		}
	}
	return t, nil
}
