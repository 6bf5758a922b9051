package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// TestFairQPs: QPs of one association share it although its window opens by a packet or two at a time.
func TestFairQPs(t *testing.T) {
	for _, window := range []int{5000, 40_000} {
		w := New(Config{Seed: 1, Planes: 1, Link: usual(), Engine: func(c *metaroce.Config) { c.FixedWindow = window }})
		a, b := w.Nodes[0], w.Nodes[1]
		b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
		var qs []*QP
		for range 8 {
			p, _ := w.Connect(a, b, QPOptions{SQ: 16})
			qs = append(qs, p)
			post := func() { p.Send(WR{Op: transport.OpWrite, N: 100_000, Key: 7}) }
			p.OnSend = func(Completion) { post() }
			for range 4 {
				post()
			}
		}
		w.Run(20 * mono.Millisecond)
		least, most := 1<<30, 0
		for _, q := range qs {
			least, most = min(least, len(q.Sends)), max(most, len(q.Sends))
		}
		if least*2 < most || least < 5 {
			t.Errorf("window %d: between %d and %d messages each", window, least, most)
		}
	}
}

// TestReaderDoesNotStarve: a peer that reads without end does not keep the QP's own requests from going.
func TestReaderDoesNotStarve(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 1, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{SQ: 64, Rd: 64})
	a.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	post := func() { q.Send(WR{Op: transport.OpRead, N: 1 << 20, Key: 7}) }
	q.OnSend = func(Completion) { post() }
	for range 60 {
		post()
	}
	w.Run(5 * mono.Millisecond)
	for range 10 {
		n := len(p.Sends)
		t0 := w.Now
		p.Send(WR{Op: transport.OpWrite, N: 100_000, Key: 7})
		if !w.RunUntil(100*mono.Millisecond, func() bool { return len(p.Sends) > n }) || w.Now.Sub(t0) > mono.Millisecond {
			t.Fatalf("a WRITE of 100 kB took %v beside READs", w.Now.Sub(t0))
		}
	}
}

// TestDeadReader: a peer that dies in the middle of READs does not keep others from reading.
func TestDeadReader(t *testing.T) {
	w := New(Config{Seed: 1, Nodes: 4, Planes: 1, Link: usual(), Engine: func(c *metaroce.Config) { c.RespBuffers = 64 }})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	for _, c := range w.Nodes[2:] {
		p, _ := w.Connect(c, b, QPOptions{Timeout: 10})
		for range 16 {
			p.Send(WR{Op: transport.OpRead, N: 1 << 20, Key: 7})
		}
	}
	w.Run(100 * mono.Microsecond)
	for i := 2; i < 4; i++ {
		w.SetLink(1, i, 0, down())
		w.SetLink(i, 1, 0, down())
	}
	w.Run(50 * mono.Millisecond)
	p, q := w.Connect(a, b, QPOptions{})
	p.Send(WR{Op: transport.OpRead, N: 100_000, Key: 7})
	if !w.RunUntil(second, func() bool { return len(p.Sends) == 1 }) {
		t.Fatalf("stuck\n%s\n%s", p.Dump(), q.Dump())
	}
	if err := quiet3(w); err != "" {
		t.Error(err)
	}
}

// quiet3 destroys everything and looks for what is left.
func quiet3(w *World) string {
	for _, n := range w.Nodes {
		for _, q := range n.QPs {
			q.Destroy(w.Now)
		}
		if l := n.E.Leaks(); l != "" {
			return l
		}
	}
	return ""
}

// TestManyQPs: thousands of QPs, each with a message, both ways.
func TestManyQPs(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 4, Link: rough()})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	const n = 4000
	var ps, qs []*QP
	for range n {
		p, q := w.Connect(a, b, QPOptions{SQ: 4, Rd: 1})
		ps, qs = append(ps, p), append(qs, q)
		q.Recv(1, 0, 200)
		p.Send(WR{Op: transport.OpSend, N: 200})
		p.Send(WR{Op: transport.OpRead, N: 300, Key: 7})
	}
	done := 0
	for _, p := range ps {
		p.OnSend = func(c Completion) {
			if c.Status != transport.OK {
				t.Errorf("%+v", c)
			}
			done++
		}
	}
	if !w.RunUntil(second, func() bool { return done == 2*n }) {
		t.Fatalf("%d of %d; %+v", done, 2*n, a.E.C)
	}
	for i := range qs {
		if i%2 == 0 {
			qs[i].Destroy(w.Now)
		} else {
			ps[i].Reset(w.Now)
		}
	}
	w.Run(10 * mono.Millisecond)
	if err := quiet3(w); err != "" {
		t.Error(err)
	}
}
