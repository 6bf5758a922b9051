package transporttest

import (
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// down is a link that carries nothing.
func down() link.Spec {
	l := usual()
	l.Down = true
	return l
}

// far is a network with long round trips.
func far(d mono.Duration) link.Spec {
	l := usual()
	l.RateBps, l.Delay, l.Queue = 1e9, d, 8<<20
	return l
}

// wide takes congestion control out of the picture.
func wide(c *metaroce.Config) { c.FixedWindow = 512 << 10 }

// TestFarPeers: round trips much longer than an association expects before its first sample.
func TestFarPeers(t *testing.T) {
	for _, d := range []mono.Duration{mono.Millisecond, 5 * mono.Millisecond, 50 * mono.Millisecond} {
		for _, planes := range []int{1, 3} {
			w := New(Config{Seed: 1, Planes: planes, Link: far(d), Engine: wide})
			a, b := w.Nodes[0], w.Nodes[1]
			p, _ := w.Connect(a, b, QPOptions{Timeout: 20})
			b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
			const n = 100
			for range n {
				p.Send(WR{Op: transport.OpWrite, N: 20_000, Key: 7})
			}
			t0 := w.Now
			limit := 40*d + 100*mono.Millisecond
			w.RunUntil(10*second, func() bool { return len(p.Sends) == n })
			if took := w.Now.Sub(t0); len(p.Sends) < n || took > limit {
				t.Errorf("delay %v, %d planes: %d of %d in %v; retransmits %d failures %d returns %d", d, planes, len(p.Sends), n, took,
					a.E.C.Retransmits, a.E.C.PlaneFailures, a.E.C.PlaneReturns)
			}
		}
	}
}

// TestDelayGrows: a network that becomes slow at once.
func TestDelayGrows(t *testing.T) {
	for _, planes := range []int{1, 3} {
		w := New(Config{Seed: 1, Planes: planes, Link: usual(), Engine: wide})
		a, b := w.Nodes[0], w.Nodes[1]
		p, _ := w.Connect(a, b, QPOptions{Timeout: 20})
		b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
		post := func() { p.Send(WR{Op: transport.OpWrite, N: 20_000, Key: 7}) }
		for range 10 {
			post()
		}
		p.OnSend = func(Completion) { post() }
		w.Run(5 * mono.Millisecond)
		w.SetLinks(far(20 * mono.Millisecond))
		w.Run(400 * mono.Millisecond)
		n, f := len(p.Sends), a.E.C.PlaneFailures
		r := a.E.C.Retransmits
		w.Run(400 * mono.Millisecond)
		if got := len(p.Sends) - n; got < 12 || a.E.C.PlaneFailures != f {
			t.Errorf("%d planes: %d done in 10 round trips, %d more failures, retransmits %d then %d", planes, got, a.E.C.PlaneFailures-f, r, a.E.C.Retransmits-r)
		}
	}
}

// TestFarPlaneReturns: a plane comes back although its round trip is longer than the time between the first probes.
func TestFarPlaneReturns(t *testing.T) {
	for _, d := range []mono.Duration{mono.Millisecond, 10 * mono.Millisecond, 60 * mono.Millisecond} {
		for _, planes := range []int{1, 2} {
			w := New(Config{Seed: 1, Planes: planes, Link: far(d)})
			a, b := w.Nodes[0], w.Nodes[1]
			p, q := w.Connect(a, b, QPOptions{Timeout: 22})
			ping(t, w, p, q, "first")
			a.E.SetPlane(w.Now, 0, false)
			w.SetPlane(0, down())
			w.Run(second / 10)
			w.SetPlane(0, far(d))
			a.E.SetPlane(w.Now, 0, true)
			ok := w.RunUntil(second, func() bool { return a.E.C.PlaneReturns == 1 })
			if !ok {
				t.Errorf("delay %v, %d planes: not back", d, planes)
			}
			ping(t, w, p, q, "after")
		}
	}
}

// TestIdlePlaneReturns: a plane comes back although nothing is sent and the first probes get lost.
func TestIdlePlaneReturns(t *testing.T) {
	for _, planes := range []int{1, 3} {
		w := New(Config{Seed: 1, Planes: planes, Link: usual()})
		a, b := w.Nodes[0], w.Nodes[1]
		p, q := w.Connect(a, b, QPOptions{})
		ping(t, w, p, q, "first")
		w.Run(mono.Millisecond)
		w.SetPlane(0, down())
		a.E.SetPlane(w.Now, 0, false)
		w.Run(mono.Millisecond)
		a.E.SetPlane(w.Now, 0, true)
		w.Run(20 * mono.Millisecond) // probes go nowhere
		w.SetPlane(0, usual())
		if !w.RunUntil(second, func() bool { return a.E.C.PlaneReturns == 1 }) {
			t.Errorf("%d planes: not back; %d probes", planes, a.E.C.ProbesSent)
		}
	}
}

// TestDeadPeerIsCheap: while a peer is dead the engine does not ask to be called all the time.
func TestDeadPeerIsCheap(t *testing.T) {
	for _, planes := range []int{1, 4, 16} {
		w := New(Config{Seed: 1, Planes: planes, Link: usual(), Engine: func(c *metaroce.Config) {
			for i := range c.Planes {
				c.Planes[i].TimerNoise = 2 * mono.Millisecond
			}
		}})
		a, b := w.Nodes[0], w.Nodes[1]
		p, q := w.Connect(a, b, QPOptions{Timeout: 255})
		b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
		ping(t, w, p, q, "first")
		for range 64 {
			p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
		}
		w.Run(200 * mono.Microsecond)
		w.SetLinks(down())
		end := w.Now.Add(2 * second)
		calls := 0
		for w.Now < end {
			a.step()
			calls++
			w.Now = max(w.Now+1, mono.Min(a.E.NextTimeout(), w.Now.Add(20*mono.Millisecond)))
		}
		if limit := 1500 * planes; calls > limit {
			t.Errorf("%d planes: %d calls in 2 s", planes, calls)
		}
	}
}

// TestProbesPassDataDoesNot: a plane on which probes get through and data does not is no reason for a storm.
func TestProbesPassDataDoesNot(t *testing.T) {
	for _, planes := range []int{1, 3} {
		s := newScript(t, Config{Seed: 1, Planes: planes})
		p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{Timeout: 22})
		q.Recv(1, 0, 100)
		p.Send(WR{Op: transport.OpSend, N: 100})
		s.done(p, 1)
		n, filter := 0, true
		s.fate = func(x *sent) mono.Duration {
			if x.Op.IsData() && filter {
				n++
				return lost
			}
			return 0
		}
		q.Recv(1, 0, 100)
		p.Send(WR{Op: transport.OpSend, N: 100})
		s.run(second)
		if n > 300*planes {
			t.Errorf("%d planes: %d transmissions of one packet in a second", planes, n)
		}
		filter = false
		t0 := s.w.Now
		s.done(p, 2)
		if took := s.w.Now.Sub(t0); took > 300*mono.Millisecond {
			t.Errorf("%d planes: works again after %v", planes, took)
		}
	}
}

// TestLostRecordsAreNoLeak: what is remembered of lost packets does not keep others from being sent.
func TestLostRecordsAreNoLeak(t *testing.T) {
	l := usual()
	l.Loss = 0.3
	w := New(Config{Seed: 1, Planes: 2, Link: l, Engine: func(c *metaroce.Config) { c.TxRecords = 300 }})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{SQ: 64, Timeout: 22})
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	post := func() { p.Send(WR{Op: transport.OpWrite, N: 10_000, Key: 7}) }
	p.OnSend = func(c Completion) {
		if c.Status != transport.OK {
			t.Fatalf("%+v", c)
		}
		post()
	}
	for range 50 {
		post()
	}
	if !w.RunUntil(2*second, func() bool { return len(p.Sends) > 3000 }) {
		t.Errorf("stuck at %d: records full %d times, in flight %d\n%s", len(p.Sends), a.E.C.TxRecordsFull, a.E.InFlight(), p.Dump())
	}
}

// TestPlanesDiffer: the two ends have different numbers of planes.
func TestPlanesDiffer(t *testing.T) {
	for _, x := range [][2]int{{1, 4}, {4, 1}, {16, 2}, {2, 16}, {16, 16}} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			w := New(Config{Seed: 1, Planes: max(x[0], x[1]), Link: usual(), Engine: func(c *metaroce.Config) { c.Planes = c.Planes[:x[c.NICID-100]] }})
			a, b := w.Nodes[0], w.Nodes[1]
			p, q := w.Connect(a, b, QPOptions{})
			ping(t, w, p, q, "first")
			ping(t, w, q, p, "first back")
			a.Keys[7] = Key{0, 4 << 20, true, true, true, false}
			b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
			for range 20 {
				p.Send(WR{Op: transport.OpWrite, N: 100_000, Key: 7})
				q.Send(WR{Op: transport.OpRead, N: 100_000, Key: 7})
			}
			ok := w.RunUntil(100*mono.Millisecond, func() bool { return len(p.Sends) == 21 && len(q.Sends) == 21 })
			for i, n := range w.Nodes {
				if !ok || n.E.C.Retransmits > 10 || n.E.C.PlaneFailures > 0 || n.E.C.DropPlane > 0 {
					t.Errorf("node %d: done %v retransmits %d failures %d", i, ok, n.E.C.Retransmits, n.E.C.PlaneFailures)
				}
			}
		})
	}
}

// TestPlanesComeLate: links that come up one after the other, before and after the QPs.
func TestPlanesComeLate(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 4, Link: down()})
	a, b := w.Nodes[0], w.Nodes[1]
	set := func(plane int, up bool) {
		l := down()
		if up {
			l = usual()
		}
		w.SetPlane(plane, l)
		a.E.SetPlane(w.Now, plane, up)
		b.E.SetPlane(w.Now, plane, up)
	}
	for i := range 4 {
		set(i, false)
	}
	p, q := w.Connect(a, b, QPOptions{Timeout: 22})
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p.Send(WR{Op: transport.OpWrite, N: 100_000, Key: 7})
	w.Run(50 * mono.Millisecond)
	for i := 3; i >= 0; i-- {
		set(i, true)
		ping(t, w, p, q, fmt.Sprint("plane ", i))
		w.Run(50 * mono.Millisecond)
	}
	for _, as := range append(a.E.Assocs(), b.E.Assocs()...) {
		for _, pl := range as.Planes {
			if pl.State != "active" {
				t.Errorf("plane %d is %s", pl.Plane, pl.State)
			}
		}
	}
	for i := range 4 { // all away and back, while data flows
		p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
		w.Run(20 * mono.Microsecond)
		set(i, false)
	}
	w.Run(30 * mono.Millisecond)
	for i := range 4 {
		set(i, true)
	}
	if !w.RunUntil(second, func() bool { return len(p.Sends) == 9 }) {
		t.Errorf("stuck at %d: %s", len(p.Sends), p.Dump())
	}
}
