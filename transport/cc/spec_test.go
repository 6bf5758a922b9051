package cc

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

const (
	packet = 4096
	start  = 256 << 10
	rtt    = 100 * mono.Microsecond
)

// rounds runs a controller for n round trips in which a share of the packets is lost; delay is what queues add. It
// returns the smallest window and the bytes delivered in the last round.
func rounds(c *DelayECN, n int, share float64, delay mono.Duration, ce bool) (low, delivered int) {
	low = c.Window()
	now := mono.Time(0)
	lost := 0.0
	for range n {
		w := c.Window()
		delivered = 0
		for sent := 0; sent < w; sent += packet {
			now = now.Add(rtt * packet / mono.Duration(w))
			if lost += share; lost >= 1 {
				lost--
				c.OnLoss(now, packet)
			} else {
				delivered += packet
				c.OnAck(Sample{Now: now, Bytes: packet, RTT: rtt + delay, Base: rtt, CE: ce, Full: true})
			}
			low = min(low, c.Window())
		}
	}
	return low, delivered
}

func controller() *DelayECN {
	return NewDelayECN(Limits{Packet: packet, Start: start, Max: 4 << 20, Target: 10 * mono.Microsecond})
}

// TestLossAlone: up to a fifth lost, the window does not shrink; beyond, it becomes what gets through.
func TestLossAlone(t *testing.T) {
	for _, share := range []float64{0.01, 0.05, 0.10, 0.15, 0.18} {
		//= MR-CC-004
		if low, _ := rounds(controller(), 100, share, 0, false); low < start {
			t.Errorf("%.0f %% loss: the window shrank to %d", 100*share, low)
		}
	}
	//= MR-CC-004
	if low, delivered := rounds(controller(), 100, 0.5, 0, false); low > start/2 || low < packet {
		t.Errorf("half of all lost: the window is %d at least, %d were delivered at last", low, delivered)
	}
}

// TestLossAtTheLimit: a fifth lost at random is no policer; the window stays in sight of what it was.
func TestLossAtTheLimit(t *testing.T) {
	c := controller()
	rnd := rng.New(1, "loss")
	now, sum := mono.Time(0), 0
	const n = 2000
	for range n {
		w := c.Window()
		for sent := 0; sent < w; sent += packet {
			now = now.Add(rtt * packet / mono.Duration(w))
			if rnd.Chance(0.2) {
				c.OnLoss(now, packet)
			} else {
				c.OnAck(Sample{Now: now, Bytes: packet, RTT: rtt, Base: rtt, Full: true})
			}
		}
		sum += c.Window()
	}
	//= MR-CC-004
	if mean := sum / n; mean < start/2 {
		t.Errorf("the window is %d on average", mean)
	}
}

// TestPolicer: a policer that lets a part of the window through is found, whatever the window was.
func TestPolicer(t *testing.T) {
	for _, most := range []int{8, 32, 128} { // packets a round trip
		c := controller()
		now, lost, sent := mono.Time(0), 0, 0
		for i := range 400 {
			w := c.Window()
			for k := 0; k*packet < w; k++ {
				now = now.Add(rtt * packet / mono.Duration(w))
				if k%max(w/packet/most, 1) != 0 || k >= 2*most { // spread over the round trip
					c.OnLoss(now, packet)
					lost++
				} else {
					c.OnAck(Sample{Now: now, Bytes: packet, RTT: rtt, Base: rtt, Full: true})
				}
				sent++
			}
			if i == 100 {
				lost, sent = 0, 0
			}
		}
		//= MR-CC-004
		if share := float64(lost) / float64(sent); share > 0.4 || c.Window() > 4*most*packet {
			t.Errorf("policer of %d packets: window of %d, %.0f %% lost", most, c.Window()/packet, 100*share)
		}
	}
}

// TestMarksAlone: marks shrink the window only together with delay.
func TestMarksAlone(t *testing.T) {
	//= MR-CC-005
	if low, _ := rounds(controller(), 100, 0, 0, true); low < start {
		t.Errorf("marks alone: the window shrank to %d", low)
	}
	//= MR-CC-005 MR-CC-007
	if low, _ := rounds(controller(), 100, 0, 50*mono.Microsecond, true); low > start/2 {
		t.Errorf("marks and delay: the window is %d at least", low)
	}
}

// TestGrowth: no faster than the spec allows.
func TestGrowth(t *testing.T) {
	c := controller()
	for i := range 20 {
		was := c.Window()
		rounds(c, 1, 0, 0, false)
		most := was/8 + 2*packet
		if i >= 3 {
			most = was/2 + 2*packet
		}
		//= MR-CC-007
		if grown := c.Window() - was; grown > most+most/4 { // rounds of the test and of the controller overlap
			t.Errorf("round %d: from %d by %d", i, was, grown)
		}
	}
}

// TestFarTarget: over a long round trip a delay that is small beside it is no reason to shrink.
func TestFarTarget(t *testing.T) {
	c := controller()
	c.OnAck(Sample{Now: 1, Bytes: packet, RTT: 10 * mono.Millisecond, Base: 10 * mono.Millisecond, Full: true})
	for i := range 1000 {
		now := mono.Time(i) * mono.Time(mono.Millisecond)
		c.OnAck(Sample{Now: now, Bytes: packet, RTT: 11 * mono.Millisecond, Base: 10 * mono.Millisecond, Full: true})
	}
	//= MR-CC-006
	if c.Window() < start {
		t.Errorf("the window shrank to %d", c.Window())
	}
}

// TestPolite: it halves on loss, once a round trip, and grows slowly from then on.
func TestPolite(t *testing.T) {
	c := NewPolite(Limits{Packet: packet, Start: start, Max: 4 << 20, Target: 10 * mono.Microsecond})
	c.OnAck(Sample{Now: 1, Bytes: packet, RTT: rtt, Base: rtt, Full: true})
	was := c.Window()
	now := mono.Time(10 * rtt)
	for range 5 {
		c.OnLoss(now, packet)
	}
	//= MR-CC-031
	if w := c.Window(); w < was/2-1 || w > was/2+1 {
		t.Errorf("5 losses in a round trip: %d of %d", w, was)
	}
	c.OnLoss(now.Add(2*rtt), packet)
	//= MR-CC-031
	if w := c.Window(); w > was/4+1 {
		t.Errorf("another one later: %d of %d", w, was)
	}
	was = c.Window()
	rounds(c, 10, 0, 0, false)
	//= MR-CC-031
	if w := c.Window(); w < was+8*packet || w > was+13*packet {
		t.Errorf("after 10 round trips: %d, was %d", w, was)
	}
}

// TestUnevenWays: while one packet in five is fast the network is not full, and the window stays; when all are late it is cut. Where
// the wire's noise is above the target the mean decides.
func TestUnevenWays(t *testing.T) {
	//= MR-CC-006
	for _, c := range []struct {
		noise mono.Duration
		fast  int // of ten packets
		cut   bool
	}{{0, 2, false}, {0, 0, true}, {mono.Millisecond, 2, true}, {mono.Millisecond, 9, false}} {
		const target = 10 * mono.Microsecond
		d := NewDelayECN(Limits{Packet: packet, Start: start, Max: 4 << 20, Target: target, Noise: c.noise})
		now, low := mono.Time(0), start
		for i := range 20 * start / packet {
			now = now.Add(rtt * packet / start)
			q := 4 * target
			if i%10 < c.fast {
				q = 0
			}
			d.OnAck(Sample{Now: now, Bytes: packet, RTT: rtt + q, Base: rtt, CE: true})
			low = min(low, d.Window())
		}
		if cut := low < start; cut != c.cut {
			t.Errorf("noise %d, %d of 10 fast: window %d of %d, cut %v", c.noise, c.fast, low, start, cut)
		}
	}
}

// TestBurstInALargeWindow: a quarter of one round trip, lost in a burst, is no policer, wherever in the round it falls.
func TestBurstInALargeWindow(t *testing.T) {
	//= MR-CC-004
	const w = 100 * packet
	for first := 500; first < 600; first += 10 {
		c := NewDelayECN(Limits{Packet: packet, Start: w, Max: w, Target: 10 * mono.Microsecond})
		now := mono.Time(0)
		for i := range 1000 {
			now = now.Add(rtt / 100)
			if i >= first && i < first+30 {
				c.OnLoss(now, packet)
			} else {
				c.OnAck(Sample{Now: now, Bytes: packet, RTT: rtt, Base: rtt, Full: true})
			}
			if c.Window() < w {
				t.Fatalf("burst from %d on, packet %d: window %d of %d", first, i, c.Window(), w)
			}
		}
	}
}
