package plan

import (
	"math"
	"math/bits"

	"github.com/metaroce/metaroce/internal/mono"
)

// HeaderBytes are BTH … ICRC of a MetaRoCE WRITE packet other than the last: BTH 12, MPH 16, RETH 16, ICRC 4. With an
// Overhead of 16 a full packet of 4096 bytes is 4160 bytes on the wire, as in htsim.
const HeaderBytes = 48

// RoCEv2Header is the same of RoCEv2: BTH 12, ICRC 4.
const RoCEv2Header = 16

// Tiers is the number of switch tiers that the longest path climbs.
func (t *Topology) Tiers() int {
	switch {
	case t.Kind == FatTree && t.Pods() > 1:
		return 3
	case t.Kind == Single || t.Leaves() == 1:
		return 1
	}
	return 2
}

// Leaves is the number of leaf switches of a plane; the one switch of a Single is leaf 0.
func (t *Topology) Leaves() int {
	switch t.Kind {
	case LeafSpine, FatTree:
		return t.Hosts / t.Leaf
	case Rail:
		return t.Hosts / t.Leaf // Hosts/Group servers, Leaf of them at each of Group leaves
	case Single:
	}
	return 1
}

// LeafOf is the leaf that a host hangs on. Rail: the leaves of rail 0 come first, and servers fill the leaves of each rail in
// order.
func (t *Topology) LeafOf(host int) int {
	switch t.Kind {
	case LeafSpine, FatTree:
		return host / t.Leaf
	case Rail:
		return host%t.Group*(t.Leaves()/t.Group) + host/t.Group/t.Leaf
	case Single:
	}
	return 0
}

// Pods is the number of pods of a fat tree, 1 elsewhere.
func (t *Topology) Pods() int {
	if t.Kind != FatTree {
		return 1
	}
	return t.Hosts / t.Pod
}

// PodOf is the pod of a leaf of a fat tree.
func (t *Topology) PodOf(leaf int) int {
	if t.Kind != FatTree {
		return 0
	}
	return leaf / (t.Pod / t.Leaf)
}

// CoresOf returns the cores first … end-1 that aggregation switch agg (counted through all pods) is linked to.
func (t *Topology) CoresOf(agg int) (first, end int) {
	per := t.Cores / t.Aggs
	return agg % t.Aggs * per, (agg%t.Aggs + 1) * per
}

// Level is the tier that packets between two hosts climb to: 0 their leaf, 1 spines or aggregation switches, 2 cores.
func (t *Topology) Level(a, b int) int {
	l, m := t.LeafOf(a), t.LeafOf(b)
	switch {
	case l == m:
		return 0
	case t.PodOf(l) == t.PodOf(m):
		return 1
	}
	return 2
}

// Behind is what follows when a packet has left its host, over a path of a level: the delays of its links, and the picoseconds
// that each byte takes on those after the first, stored and forwarded.
func (t *Topology) Behind(level int) (delay mono.Duration, psPerByte float64) {
	between := float64(2 * level)
	return 2*t.Delay + mono.Duration(2*level)*t.UpDelay, 8e12/float64(t.RateBps) + between*8e12/float64(t.UpBps)
}

// WireBytes is the length of a full packet on the wire.
func (t *Topology) WireBytes() int { return t.MTU + t.header() + t.Overhead }

func (t *Topology) header() int {
	if t.Header > 0 {
		return t.Header
	}
	return HeaderBytes
}

// RTT is the unloaded round trip over the longest path: a full packet there and an answer of HeaderBytes + Overhead back,
// stored and forwarded at each switch.
func (t *Topology) RTT() mono.Duration {
	packets := uint64(t.WireBytes()+t.header()+t.Overhead) * 8
	up := uint64(2*t.Tiers() - 2) // links between switches on the way; two more are those of the hosts
	ps := 2 * packets * 1e12 / t.RateBps
	ps += up * (packets * 1e12 / t.UpBps)
	return mono.Duration((ps+500)/1000) + 4*t.Delay + 2*mono.Duration(up)*t.UpDelay
}

// BDP is the bandwidth-delay product in bytes: what a host's link carries within RTT.
func (t *Topology) BDP() int {
	n, _ := carried(t.RateBps/8, t.RTT())
	return n
}

// carried is what so much a second comes to in a time, and whether there is a part of one more. The product has more than 64 bits.
func carried(rate uint64, d mono.Duration) (n int, more bool) {
	hi, lo := bits.Mul64(rate, uint64(d))
	if hi >= 1e9 {
		return math.MaxInt, false
	}
	q, rest := bits.Div64(hi, lo, 1e9)
	return int(min(q, math.MaxInt)), rest > 0
}
