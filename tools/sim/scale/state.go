package scale

import (
	"math"
	"math/bits"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Sizes of the reference engine's state in bytes, as spec/A2-scale.md has them; a test measures them anew with the engines.
const (
	assocBytes  = 3031 // association with one plane
	planeBytes  = 1381 // each further plane of it
	pathBytes   = 1280 + 88
	qpBytes     = 2015
	placeBytes  = 185 // of a send queue
	roceQPBytes = 2077
	roceWQE     = 176
	poolBytes   = 27_427_080

	pathsPerPlane = 64   // PathsPerPlane
	assocsMax     = 4096 // associations that the reference engine keeps
	sendQueue     = 128  // places that the figures here count with
)

// Control traffic.
const (
	baseProbes    = 1.0 // a second for each plane of each association in use (transport/metaroce: baseEvery)
	silentPackets = 3   // SilentPackets: that must have been sent on a plane before its silence says something
)

// State is what one NIC keeps and sends for a collective that goes on all the time.
type State struct {
	Peers        int     `json:"peers"` // NICs that it talks with
	QPs          int     `json:"qps"`
	Associations int     `json:"associations"`         // metaroce
	Over         bool    `json:"over_limit,omitempty"` // more than the reference engine keeps
	QPBytes      float64 `json:"qp_bytes"`
	AssocBytes   float64 `json:"association_bytes"`
	PathBytes    float64 `json:"path_bytes"`       // all paths in use
	OnePath      float64 `json:"path_bytes_least"` // one path for each plane
	Bytes        float64 `json:"state_bytes"`      // all of these, with all paths; without the engine's pools
	Probes       float64 `json:"probes_per_s"`
	Acks         float64 `json:"acks_per_s"` // at full rate, sent; as many come in
	Control      float64 `json:"control_packets_per_s"`
	// Time from a failure until what it swallowed has arrived another way and nothing goes there any more.
	PlaneRecovery float64 `json:"plane_recovery_s"`
	SpineRecovery float64 `json:"spine_recovery_s"`
	PlaneRTTs     float64 `json:"plane_recovery_rtt"`
	SpineRTTs     float64 `json:"spine_recovery_rtt"`
}

// peers is the number of NICs that one NIC talks with, and how many of them it sends to at one time.
func (c Collective) peers(n int) (all, active int) {
	log := func(n int) int { return bits.Len(uint(n - 1)) }
	switch c.Kind {
	case Ring, AllGather, ReduceScat:
		return min(2, n-1), 1
	case Tree: // two children and a parent in one tree, a parent in the other
		return min(4, n-1), min(4, n-1)
	case Halving:
		return log(n), 1
	case HierRing:
		return min(2, n/c.Group-1), 1
	case HierHalving:
		return log(n / c.Group), 1
	case AllToAll:
		return n - 1, n - 1
	case HierAllToAll:
		return n/c.Group - 1, n/c.Group - 1
	case Incast: // the target's
		return c.senders(n), c.senders(n)
	case Permutation: // one that it sends to, one that it receives from
	}
	return min(2, n-1), 1
}

// messageOf is the size of a collective's messages, the largest of them.
func (c Collective) messageOf(n int) int64 {
	switch c.Kind {
	case Ring, AllGather, ReduceScat, AllToAll:
		return ceilDiv(c.Size, int64(n))
	case HierRing, HierAllToAll:
		return ceilDiv(c.Size, int64(n)) * map[Kind]int64{HierRing: 1, HierAllToAll: int64(c.Group)}[c.Kind]
	case Halving:
		return ceilDiv(c.Size, 2)
	case HierHalving:
		return ceilDiv(c.Size, int64(2*c.Group))
	case Tree:
		slice := c.Slice
		if slice == 0 {
			slice = defaultSlice
		}
		return min(slice, ceilDiv(c.Size, 2))
	case Permutation, Incast:
	}
	return c.Size
}

// State returns what a NIC keeps and sends for a collective.
func (m *Model) State(c Collective) State {
	f, t := m.F, m.T
	n := f.T.Hosts
	peers, active := c.peers(n)
	s := State{Peers: peers, QPs: peers}
	rtt := f.RTT(f.Tiers()-1, t)
	msg := max(c.messageOf(n), 1)
	each := t.wireBytes(f, msg)
	s.Acks = f.hostRate() / each * t.acks(f, msg)
	if t.Kind == plan.RoCEv2 {
		s.QPs = peers * t.QPs
		s.QPBytes = float64(s.QPs) * (roceQPBytes + roceWQE*sendQueue)
		s.Bytes, s.Control = s.QPBytes, s.Acks
		s.PlaneRecovery = t.Silence.Value*t.RTO + rtt
		s.SpineRecovery = t.RTO + rtt
	} else {
		planes := f.T.Planes
		s.Associations = peers
		s.Over = peers > assocsMax
		s.QPBytes = float64(s.QPs) * (qpBytes + placeBytes*sendQueue)
		s.AssocBytes = float64(peers) * float64(assocBytes+planeBytes*(planes-1))
		s.OnePath = float64(peers * planes * pathBytes)
		s.PathBytes = s.OnePath * pathsPerPlane
		s.Bytes = s.QPBytes + s.AssocBytes + s.PathBytes
		s.Probes = baseProbes * float64(peers*f.planes)
		s.Control = s.Acks + 2*s.Probes // as many answers
		// The plane is left when it was silent for so long, and when enough was sent there to tell: each peer's packets are a part.
		again := t.Detect.Value*rtt + ackHold
		few := silentPackets * float64(planes*active) * t.packet(f, int(min(msg, int64(f.T.MTU)))) / f.hostRate()
		s.PlaneRecovery = math.Max(t.Silence.Value*rtt+ackHold, few) + again + rtt/2
		s.SpineRecovery = again + rtt/2
	}
	s.PlaneRTTs, s.SpineRTTs = s.PlaneRecovery/rtt, s.SpineRecovery/rtt
	return s
}
