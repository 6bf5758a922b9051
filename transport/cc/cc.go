// Package cc holds the congestion controllers: one window of bytes per (association, plane). Paths only steer.
// Source: protocol.md section 4 and the trials behind it.
package cc

import (
	"math"

	"github.com/metaroce/metaroce/internal/mono"
)

// Sample is what one acknowledgement says about a plane.
type Sample struct {
	Now   mono.Time
	Bytes int           // newly acknowledged
	RTT   mono.Duration // of the newest packet, without the receiver's hold; 0 = no sample
	Base  mono.Duration // smallest round trip known of this plane
	CE    bool          // congestion was marked since the last sample
	Full  bool          // the window was in use: without that nothing is learnt from low delay
}

// Controller decides how many bytes may be in flight on one plane.
type Controller interface {
	// OnAck is called once for each path block that newly acknowledges something.
	OnAck(s Sample)
	// OnLoss is called when bytes are declared lost, after they left the in-flight count.
	OnLoss(now mono.Time, bytes int)
	// Window returns the window in bytes; at least one packet.
	Window() int
	// Reset puts the window to w bytes (start, plane back in service).
	Reset(w int)
}

// Limits bound a controller.
type Limits struct {
	Packet int           // bytes of a full packet
	Start  int           // first window
	Max    int           // largest window
	Target mono.Duration // queueing delay to stay under; the wire's timing noise at least
	Rate   float64       // bytes a nanosecond; where it is known (not 0), two bandwidth-delay products bound the window
	Noise  mono.Duration // what the wire's timing adds to the base RTT
}

// DelayECN is the default controller: grows while delay is under target, cuts in proportion to the excess at most
// once a round trip, never for loss alone. ECN cuts only together with delay over target.
type DelayECN struct {
	l       Limits
	cwnd    float64
	qdelay  float64 // queueing delay over about a window, ns: what one packet in ten stays under, or the mean
	rtt     float64 // smoothed round trip, ns
	lastCut mono.Time
	calm    int // round trips in a row far under target
	policed int // round trips left in which it grows slowly, after a cut for loss
	roundAt mono.Time
	acked   float64 // bytes acknowledged and lost in this round
	lost    float64
	seen    float64 // packets acknowledged and lost since the last cut for loss, the last lossSpan to twice as many
	gone    float64 // of these, lost
	marked  bool    // in this round
	polite  bool    // halve on loss
	humbled bool    // polite, and something was lost: no more quick growth
}

const (
	growth      = 0.125 // of the window a round trip, at most
	growthCalm  = 4     // times that after calmRounds
	slowGrowth  = 4     // a part of it after a cut for loss
	calmRounds  = 3
	cutShare    = 0.8 // of the excess delay
	cutMost     = 0.5
	lowShare    = 0.1 // of packets: the queueing delay that they stay under is the network's, more is that of their ways
	lowPace     = 2   // targets that it moves in a window at most
	lossSpan    = 64  // packets that a share lost is known from, at least …
	lossWindows = 4   // … and so many windows
	slowRounds  = 16  // round trips of slow growth after a cut for loss: a policer would be run into again
	lossLimit   = 0.2 // share lost, in the last round and of a span of packets, above which the window becomes what arrived
)

// NewDelayECN returns a controller with its start window.
func NewDelayECN(l Limits) *DelayECN {
	c := &DelayECN{l: l}
	c.Reset(l.Start)
	return c
}

// Reset implements Controller.
func (c *DelayECN) Reset(w int) {
	*c = DelayECN{l: c.l, cwnd: float64(min(max(w, c.l.Packet), c.l.Max)), rtt: c.rtt, polite: c.polite, humbled: c.humbled}
}

// Window implements Controller.
func (c *DelayECN) Window() int { return int(c.cwnd) }

// OnLoss implements Controller: remembers, does not cut.
func (c *DelayECN) OnLoss(now mono.Time, bytes int) {
	//= MR-CC-031
	if c.polite && (!c.humbled || now.Sub(c.lastCut) > mono.Duration(c.rtt)) {
		c.cwnd = max(c.cwnd/2, float64(c.l.Packet))
		c.lastCut, c.humbled = now, true
	}
	//= MR-CC-004
	c.lost += float64(bytes)
	n := float64(bytes) / float64(c.l.Packet)
	c.gone += n
	c.count(n)
}

// count keeps the share that is lost, over as many packets as make it known.
func (c *DelayECN) count(packets float64) {
	if c.seen += packets; c.seen >= 2*c.span() {
		c.seen, c.gone = c.seen/2, c.gone/2
	}
}

// span is how many packets a share lost is known from: in a large window a burst of losses is a good part of one round trip.
func (c *DelayECN) span() float64 { return max(lossSpan, lossWindows*c.cwnd/float64(c.l.Packet)) }

// OnAck implements Controller.
func (c *DelayECN) OnAck(s Sample) {
	//= MR-CC-006
	n, packet, target := float64(s.Bytes), float64(c.l.Packet), float64(max(c.l.Target, s.Base/8))
	c.acked += n
	c.count(n / packet)
	c.marked = c.marked || s.CE
	if s.RTT <= 0 {
		return
	}
	if c.rtt == 0 {
		c.rtt = float64(s.RTT)
	}
	q := float64(s.RTT - s.Base)
	c.rtt += (float64(s.RTT) - c.rtt) / 8
	c.delayed(q, target, min(0.5, max(0.02, n/c.cwnd)))
	share := n / max(c.cwnd, packet)
	if q < target && !s.CE && s.Full && !c.humbled {
		rate := growth
		if c.policed > 0 {
			rate /= slowGrowth
		}
		if c.calm >= calmRounds {
			rate *= growthCalm
		}
		inc := rate * c.cwnd
		if bdp := c.l.Rate * float64(s.Base+c.l.Noise); bdp > 0 { // an eighth of the product, a quarter after calm rounds
			inc = min(inc, bdp*math.Sqrt(rate*growth))
		}
		c.cwnd += share * inc * (target - q) / target
	}
	if s.Full {
		c.cwnd += share * packet // one packet a round trip: fairness
	}
	//= MR-CC-005 MR-CC-007
	if c.qdelay > target && s.Now.Sub(c.lastCut) > mono.Duration(c.rtt) {
		by := cutShare * (c.qdelay - target) / c.qdelay
		if c.marked {
			by = max(by, growth)
		}
		c.cwnd *= 1 - min(by, cutMost)
		c.lastCut = s.Now
	}
	if s.Now.Sub(c.roundAt) >= mono.Duration(c.rtt) {
		c.endRound(s.Now)
	}
	most := float64(c.l.Max)
	if c.l.Rate > 0 && s.Base > 0 {
		//= MR-CC-008
		most = min(most, max(2*c.l.Rate*float64(s.Base+c.l.Noise), 4*packet))
	}
	c.cwnd = min(max(c.cwnd, packet), most)
}

// delayed follows the queueing delay. While some ways are short the network is not full, only unevenly so, and a smaller window
// would leave room there: what counts is what a tenth of the packets stay under. Noise of the wire hides that, so there it is the mean.
func (c *DelayECN) delayed(q, target, gain float64) {
	//= MR-CC-006
	switch {
	case c.l.Noise > c.l.Target:
		c.qdelay += (q - c.qdelay) * gain
	case q > c.qdelay:
		c.qdelay = min(q, c.qdelay+lowShare*gain*lowPace*target)
	default:
		c.qdelay = max(q, c.qdelay-(1-lowShare)*gain*lowPace*target)
	}
}

// endRound applies the loss rule (policer, black hole): what is lost for lack of room is for grant, delay and ECN.
func (c *DelayECN) endRound(now mono.Time) {
	share := 0.0
	if total := c.acked + c.lost; total > 0 {
		share = c.lost / total
	}
	c.calm++
	if c.qdelay > float64(c.l.Target)/4 || c.marked || share > 0.15 || c.policed > 0 {
		c.calm = 0
	}
	c.policed = max(c.policed-1, 0)
	//= MR-CC-004
	if share > lossLimit && c.seen >= c.span() && c.gone > lossLimit*c.seen {
		delivered := c.acked * c.rtt / float64(max(now.Sub(c.roundAt), 1))
		c.cwnd = min(c.cwnd, max(delivered, c.cwnd*(1-c.gone/c.seen))) // one round of a few packets knows little
		c.lastCut, c.policed, c.seen, c.gone = now, slowRounds, 0, 0   // they were heeded: another cut takes other losses
	}
	c.roundAt, c.acked, c.lost, c.marked = now, 0, 0, false
}

// Fixed is a window that never changes, for tests and comparisons.
type Fixed struct{ W int }

// OnAck implements Controller.
func (f *Fixed) OnAck(Sample) {}

// OnLoss implements Controller.
func (f *Fixed) OnLoss(mono.Time, int) {}

// Window implements Controller.
func (f *Fixed) Window() int { return f.W }

// Reset implements Controller: nothing changes it, not even a new beginning.
func (f *Fixed) Reset(int) {}
