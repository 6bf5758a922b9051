package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// ping sends one message and fails the test when it does not arrive.
func ping(t *testing.T, w *World, p, q *QP, what string) {
	t.Helper()
	s, r := len(p.Sends), len(q.Received)
	q.Recv(1, 0, 100)
	p.Send(WR{ID: 1, Op: transport.OpSend, N: 100})
	if !w.RunUntil(second, func() bool { return len(p.Sends) > s && len(q.Received) > r }) {
		t.Fatalf("%s: stuck\n%s\n%s\n%+v\n%+v", what, p.Dump(), q.Dump(), p.N.E.C, q.N.E.C)
	}
	if c := p.Sends[s]; c.Status != transport.OK {
		t.Fatalf("%s: %+v\n%+v", what, c, q.N.E.C)
	}
}

// idle lets time pass in which nothing happens.
func idle(w *World, d mono.Duration) {
	w.Run(20 * mono.Millisecond)
	w.Now = w.Now.Add(d)
}

// TestLongIdle: the 32-bit clock of packets wraps in 69 s. A QP that is silent or lives for longer works on.
func TestLongIdle(t *testing.T) {
	for _, gap := range []mono.Duration{10 * second, 35 * second, 50 * second, 68 * second, 100 * second} {
		w := New(Config{Seed: 1, Planes: 2, Link: usual()})
		a, b := w.Nodes[0], w.Nodes[1]
		p, q := w.Connect(a, b, QPOptions{})
		ping(t, w, p, q, "first")
		p2, q2 := w.Connect(a, b, QPOptions{}) // knows the peer's clock from the beginning
		ping(t, w, p2, q2, "second QP")
		for range 3 {
			idle(w, gap)
			ping(t, w, p, q, gap.String())
			ping(t, w, q, p, gap.String()+" back")
			ping(t, w, p2, q2, gap.String()+" second QP")
		}
	}
}

// TestLongLife: the same for a QP that is never silent for long.
func TestLongLife(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 2, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{})
	ping(t, w, p, q, "first")
	p2, q2 := w.Connect(a, b, QPOptions{})
	for i := range 40 {
		idle(w, 2*second)
		ping(t, w, p2, q2, mono.Duration(i*2).String())
		ping(t, w, q2, p2, mono.Duration(i*2).String())
	}
}

// TestStallOfOne: a node whose loop stood still while a timer was due stops its clock for that time; its peer, which
// was idle, does not. They still understand each other.
func TestStallOfOne(t *testing.T) {
	for _, gap := range []mono.Duration{20 * second, 40 * second, 60 * second} {
		w := New(Config{Seed: 1, Nodes: 3, Planes: 2, Link: usual()})
		a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
		p, q := w.Connect(a, b, QPOptions{})
		ping(t, w, p, q, "first")
		down := usual()
		down.Down = true
		for plane := range 2 {
			w.SetLink(1, 2, plane, down)
		}
		r, _ := w.Connect(b, c, QPOptions{Timeout: 255}) // a handshake that never ends: b always has a timer
		r.Send(WR{Op: transport.OpSend})
		w.Run(20 * mono.Millisecond)
		w.Now = w.Now.Add(gap)
		ping(t, w, p, q, "after the stall")
		ping(t, w, q, p, "after the stall, back")
	}
}
