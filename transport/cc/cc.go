// Package cc holds the congestion controllers: one window of bytes per (association, plane). Paths only steer.
// Source: protocol.md section 4 and the trials behind it.
package cc

import "github.com/metaroce/metaroce/internal/mono"

// Sample is what one acknowledgement says about a plane.
type Sample struct {
	Now   mono.Time
	Bytes int           // newly acknowledged
	RTT   mono.Duration // of the newest packet, without the receiver's hold; 0 = no sample
	Base  mono.Duration // smallest round trip known of this plane
	CE    bool          // congestion was marked since the last sample
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
}

// DelayECN is the default controller: grows while delay is under target, cuts in proportion to the excess at most
// once a round trip, never for loss alone. ECN cuts only together with delay over target.
type DelayECN struct {
	l        Limits
	cwnd     float64
	qdelay   float64 // smoothed queueing delay, ns
	rtt      float64 // smoothed round trip, ns
	lastCut  mono.Time
	calm     int // round trips in a row under target
	roundAt  mono.Time
	ackedR   int // bytes acknowledged and lost in this round
	lostR    int
	lossMean float64 // share lost, mean over about 64 packets
	ce       bool
}

// NewDelayECN returns a controller with its start window.
func NewDelayECN(l Limits) *DelayECN {
	c := &DelayECN{l: l}
	c.Reset(l.Start)
	return c
}

// Reset implements Controller.
func (c *DelayECN) Reset(w int) {
	*c = DelayECN{l: c.l, cwnd: float64(min(max(w, c.l.Packet), c.l.Max)), rtt: c.rtt}
}

// Window implements Controller.
func (c *DelayECN) Window() int { return int(c.cwnd) }

// OnLoss implements Controller: remembers, does not cut.
func (c *DelayECN) OnLoss(_ mono.Time, bytes int) {
	c.lostR += bytes
	share := min(1, float64(bytes)/float64(c.l.Packet)/64)
	c.lossMean += (1 - c.lossMean) * share
}

// OnAck implements Controller.
func (c *DelayECN) OnAck(s Sample) {
	c.ackedR += s.Bytes
	c.lossMean -= c.lossMean * min(1, float64(s.Bytes)/float64(c.l.Packet)/64)
	c.ce = c.ce || s.CE
	if s.RTT > 0 {
		if c.rtt == 0 {
			c.rtt = float64(s.RTT)
		}
		c.rtt += (float64(s.RTT) - c.rtt) / 8
		c.qdelay += (float64(s.RTT-s.Base) - c.qdelay) / 8
	}
	target := float64(c.l.Target)
	over := c.qdelay > target
	// at most 12.5 % of the window a round trip (four times that after three calm ones), plus one packet
	if !over {
		gain := 0.125
		if c.calm >= 3 {
			gain = 0.5
		}
		c.cwnd += float64(s.Bytes) * (gain + float64(c.l.Packet)/max(c.cwnd, 1))
	} else if s.Now.Sub(c.lastCut) > mono.Duration(c.rtt) {
		cut := min(0.5, (c.qdelay-target)/c.qdelay)
		if c.ce {
			cut = max(cut, 0.125)
		}
		c.cwnd *= 1 - cut
		c.lastCut, c.calm, c.ce = s.Now, 0, false
	}
	if s.Now.Sub(c.roundAt) > mono.Duration(c.rtt) {
		c.endRound(s.Now, over)
	}
	c.cwnd = min(max(c.cwnd, float64(c.l.Packet)), float64(c.l.Max))
}

// endRound applies the loss rule: over 20 % in the last round and as a mean of 64 packets (policer, black hole)
// the window becomes what was delivered in the round.
func (c *DelayECN) endRound(now mono.Time, over bool) {
	if total := c.ackedR + c.lostR; total >= 8*c.l.Packet && c.lostR*5 > total && c.lossMean > 0.2 {
		c.cwnd = float64(c.ackedR)
		c.calm = 0
	} else if !over {
		c.calm++
	}
	c.roundAt, c.ackedR, c.lostR, c.ce = now, 0, 0, false
}

// Fixed is a window that never changes, for tests and comparisons.
type Fixed struct{ W int }

// OnAck implements Controller.
func (f *Fixed) OnAck(Sample) {}

// OnLoss implements Controller.
func (f *Fixed) OnLoss(mono.Time, int) {}

// Window implements Controller.
func (f *Fixed) Window() int { return f.W }

// Reset implements Controller.
func (f *Fixed) Reset(w int) { f.W = w }
