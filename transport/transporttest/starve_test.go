package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// TestLightSenders: several nodes that send short messages, one after another, to one node on wires without a rate. They
// are far from filling anything; none may be slowed by the others' presence.
//
// = MR-CC-016
func TestLightSenders(t *testing.T) {
	noisy := func(c *metaroce.Config) {
		for i := range c.Planes {
			c.Planes[i].RateBps, c.Planes[i].TimerNoise = 0, 2*mono.Millisecond
		}
	}
	for _, engine := range []func(*metaroce.Config){noisy, func(c *metaroce.Config) { c.Planes[0].RateBps = 0 }} {
		for _, d := range []mono.Duration{50 * mono.Microsecond, mono.Millisecond, 25 * mono.Millisecond} {
			w := New(Config{Seed: 1, Nodes: 5, Planes: 1, Link: link.Spec{Delay: d}, Engine: engine})
			w.Nodes[0].Keys[7] = Key{0, 4 << 20, true, true, true, false}
			var qs []*QP
			for _, n := range w.Nodes[1:] {
				p, _ := w.Connect(n, w.Nodes[0], QPOptions{SQ: 16})
				post := func() { p.Send(WR{Op: transport.OpWrite, N: 64, Key: 7}) }
				p.OnSend = func(c Completion) {
					if c.Status != transport.OK {
						t.Errorf("delay %v: %v", d, c.Status)
						return
					}
					post()
				}
				post()
				qs = append(qs, p)
			}
			w.Run(400 * d)
			before := len(qs[0].Sends)
			w.Run(400 * d)
			if n := len(qs[0].Sends) - before; n < 150 {
				t.Errorf("delay %v, noise %v: %d messages in 200 round trips, grant %d", d, w.Nodes[0].E.Assocs()[0].SRTT, n, w.Nodes[1].E.Assocs()[0].Planes[0].Grant)
			}
		}
	}
}

// TestFewPaths: with two paths a loss leaves one for the packet that goes again. It must be found, by chance or not: nothing
// else would wake the QP.
//
// = MR-PATH-024
func TestFewPaths(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 1, Link: link.Spec{Delay: 5 * mono.Microsecond, Loss: 0.3}, Step: 10 * second})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p, _ := w.Connect(a, b, QPOptions{SQ: 16})
	if err := a.E.SetEntropies(w.Now, b.Addr, metaroce.Any, metaroce.Entropies{Count: 2}); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		n := len(p.Sends)
		p.Send(WR{Op: transport.OpWrite, N: 64, Key: 7})
		if !w.RunUntil(5*second, func() bool { return len(p.Sends) > n }) || p.Sends[n].Status != transport.OK {
			t.Fatalf("message %d: %+v", i, p.Sends[n:])
		}
	}
}

// TestFixedStays: the fixed window is that, also after its plane has been away.
func TestFixedStays(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 2, Link: link.Spec{Delay: 5 * mono.Microsecond}, Engine: func(c *metaroce.Config) { c.FixedWindow = 1 << 20 }})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{})
	ping(t, w, p, q, "first")
	a.E.SetPlane(w.Now, 0, false)
	w.Run(mono.Millisecond)
	a.E.SetPlane(w.Now, 0, true)
	if !w.RunUntil(second, func() bool { return a.E.C.PlaneReturns == 1 }) {
		t.Fatal("the plane does not return")
	}
	for _, x := range a.E.Assocs()[0].Planes {
		if x.Window != 1<<20 {
			t.Errorf("plane %d: window %d", x.Plane, x.Window)
		}
	}
}

// TestSlowerEnd: the window is bounded by the slower end's port: two bandwidth-delay products of 10 Gbit/s, although the
// sender's own port has 100.
//
// = MR-CC-008
func TestSlowerEnd(t *testing.T) {
	n := 0
	w := New(Config{Seed: 1, Planes: 1, Link: link.Spec{RateBps: 10e9, Delay: 4 * mono.Microsecond, Queue: 1 << 20}, Engine: func(c *metaroce.Config) {
		c.Planes[0].RateBps = []uint64{100e9, 10e9}[n]
		n++
	}})
	w.Nodes[1].Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p, _ := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{SQ: 16})
	for range 8 {
		p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
	}
	w.Run(4 * mono.Millisecond)
	x := w.Nodes[0].E.Assocs()[0].Planes[0]
	if most := int(2*10e9/8*x.Base.Seconds()) + 1; x.Base == 0 || x.Window > max(most, 4*4224) || x.Window < 4096 {
		t.Errorf("window %d, base %v, two products are %d", x.Window, x.Base, most)
	}
}

// TestFirstWindow: the first window is one bandwidth-delay product by the handshake's round trip, or GrantStart where no
// rate is known.
//
// = MR-CC-008
func TestFirstWindow(t *testing.T) {
	for _, x := range []struct {
		rate        uint64
		least, most int
	}{{100e9, 100_000, 130_000}, {20e9, 20_000, 30_000}, {1e9, 4 * 4096, 4 * 4096}, {0, 256 << 10, 256 << 10}} {
		w := New(Config{Seed: 1, Planes: 2, Link: link.Spec{RateBps: 100e9, Delay: 4 * mono.Microsecond, Queue: 1 << 20},
			Engine: func(c *metaroce.Config) { c.Planes[0].RateBps, c.Planes[1].RateBps = x.rate, x.rate }})
		w.Nodes[1].Keys[7] = Key{0, 4 << 20, true, true, true, false}
		p, _ := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{SQ: 16})
		p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
		if !w.RunUntil(second, func() bool { return w.Nodes[0].E.Assocs()[0].Planes[0].Sent > 0 }) {
			t.Fatal("nothing is sent")
		}
		for _, pl := range w.Nodes[0].E.Assocs()[0].Planes {
			if pl.Window < x.least || pl.Window > x.most {
				t.Errorf("%d bit/s: window %d, want %d to %d", x.rate, pl.Window, x.least, x.most)
			}
		}
	}
}

// TestMeasuredRate: on a wire without a rate the receiver's figure is what comes, frames included, within a few percent; it
// counts its senders, and what it says that it gave is what they have.
//
// = MR-CC-015
func TestMeasuredRate(t *testing.T) {
	const each = 10e9
	w := New(Config{Seed: 1, Nodes: 4, Planes: 1, Link: link.Spec{RateBps: each, Delay: 4 * mono.Microsecond, Queue: 1 << 20},
		Engine: func(c *metaroce.Config) { c.Planes[0].RateBps = 0 }})
	to := w.Nodes[0]
	to.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	if x := to.E.Ports(); len(x) != 1 || x[0].RateBps != 0 || x[0].Factor != 1.5 || x[0].Grant != 0 || x[0].Senders != 0 {
		t.Errorf("at first: %+v", x)
	}
	for _, n := range w.Nodes[1:] {
		p, _ := w.Connect(n, to, QPOptions{SQ: 64})
		for range 32 {
			p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
		}
	}
	w.Run(4 * mono.Millisecond)
	x := to.E.Ports()[0]
	if x.RateBps < 0.9*3*each || x.RateBps > 1.05*3*each || x.Senders != 3 {
		t.Errorf("%.1f Gbit/s from %d senders", x.RateBps/1e9, x.Senders)
	}
	least := 1 << 30
	for _, n := range w.Nodes[1:] {
		pl := n.E.Assocs()[0].Planes[0]
		least = min(least, pl.Grant)
		if pl.Target < 6*mono.Microsecond || pl.SRTT < pl.Base || pl.Base < 8*mono.Microsecond || pl.Queue < 0 {
			t.Errorf("%+v", pl)
		}
	}
	if x.Grant < least/2 || x.Grant > 2*least {
		t.Errorf("gave %d, they have %d", x.Grant, least)
	}
}

// TestMeasuredRateOfLateLoops: loops that come late stop the engines' clock for the time; the rate that a receiver measures is
// one of real time all the same. It was that of the time in which the loop ran: 200 times what came, live with busy cores.
//
// = MR-CC-013
func TestMeasuredRateOfLateLoops(t *testing.T) {
	w := New(Config{Seed: 1, Nodes: 2, Planes: 1, Link: link.Spec{RateBps: 10e9, Delay: 4 * mono.Microsecond, Queue: 4 << 20},
		Engine: func(c *metaroce.Config) {
			c.Planes[0].RateBps, c.Planes[0].TimerNoise, c.FixedWindow = 0, 2*mono.Millisecond, 1<<20 // it is about what is measured
		}})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p, _ := w.Connect(a, b, QPOptions{SQ: 64})
	post := func() { p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7}) }
	p.OnSend = func(Completion) { post() }
	for range 8 {
		post()
	}
	w.Run(mono.Millisecond)
	start, bytes := w.Now, b.E.C.RxBytes
	for w.Now.Sub(start) < 200*mono.Millisecond {
		w.Run(10 * mono.Microsecond)
		w.Now = w.Now.Add(mono.Millisecond)
	}
	came := 8 * float64(b.E.C.RxBytes-bytes) / w.Now.Sub(start).Seconds()
	if b.E.C.Stalls < 50 || came < 1e9 {
		t.Fatalf("%d stalls, %.1f Gbit/s", b.E.C.Stalls, came/1e9)
	}
	if x := b.E.Ports()[0]; x.RateBps < 0.9*came || x.RateBps > 1.5*came {
		t.Errorf("measured %.1f Gbit/s, %.1f came", x.RateBps/1e9, came/1e9)
	}
}

// TestSenderIsDone: who has sent the last packet that it has for now stops counting as a sender soon: grants of the others grow.
func TestSenderIsDone(t *testing.T) {
	w := New(Config{Seed: 2, Nodes: 3, Link: link.Spec{RateBps: 100e9, Delay: 5 * mono.Microsecond, Queue: 4 << 20},
		Engine: func(c *metaroce.Config) { c.Planes[0].RateBps, c.FixedWindow = 100e9, 64<<10 }})
	c := w.Nodes[2]
	c.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	last := mono.Time(0)
	for i := range 2 {
		p, _ := w.Connect(w.Nodes[i], c, QPOptions{SQ: 64})
		post := func() { p.Send(WR{Op: transport.OpWrite, N: 64 << 10, Key: 7}) }
		p.OnSend = func(Completion) {
			if i == 0 || w.Now < mono.Time(2*mono.Millisecond) {
				post()
			} else {
				last = w.Now // its last data came half a round trip ago
			}
		}
		post()
	}
	rtt := mono.Duration(0)
	w.RunUntil(10*mono.Millisecond, func() bool {
		rtt = w.Nodes[0].E.Assocs()[0].Planes[0].Base
		return last != 0
	})
	if n := c.E.Ports()[0].Senders; n != 2 || last == 0 {
		t.Fatalf("%d senders", n)
	}
	w.RunUntil(mono.Millisecond, func() bool { return c.E.Ports()[0].Senders == 1 })
	//= MR-CC-013
	if d := w.Now.Sub(last) + rtt/2; d > 2*rtt+rtt/2 || d < rtt {
		t.Errorf("it counted for %v, a round trip is %v", d, rtt)
	}
}
