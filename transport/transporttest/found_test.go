package transporttest

// Faults that tools/vopr found, as short scripts.

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

// TestCoveredWriteStillNeedsItsKey: a WRITE under a wrong key fails although a later WRITE, which came first, has
// written all of its bytes, so that nothing of it is left to be placed.
func TestCoveredWriteStillNeedsItsKey(t *testing.T) {
	for seed := range uint64(40) {
		w := New(Config{Seed: seed, Planes: 2, Link: rough()})
		p, _ := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{})
		w.Nodes[1].Keys[7] = Key{0, 1 << 20, true, true, true, false}
		p.Send(WR{ID: 1, Op: transport.OpWrite, N: 64, Key: 7, Remote: 4096})
		p.Send(WR{ID: 2, Op: transport.OpWrite, N: 64, Key: 99})
		p.Send(WR{ID: 3, Op: transport.OpWrite, N: 5000, Key: 7})
		w.RunUntil(second, func() bool { return len(p.Sends) == 3 })
		if len(p.Sends) != 3 || p.Sends[1].Status != transport.RemAccessErr {
			t.Errorf("seed %d: %+v", seed, p.Sends)
		}
	}
}

// TestCoveredByABadWrite: a later WRITE that may not write is no newer data, also when it comes first in one burst.
func TestCoveredByABadWrite(t *testing.T) {
	for seed := range uint64(40) {
		l := rough()
		l.RateBps, l.Loss, l.Corrupt, l.Reorder, l.ReorderBy = 0, 0, 0, 0.3, 2*mono.Microsecond
		w := New(Config{Seed: seed, Planes: 1, Link: l})
		a, b := w.Nodes[0], w.Nodes[1]
		p, _ := w.Connect(a, b, QPOptions{})
		b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		for i := range 8192 {
			a.Mem[i] = 1
		}
		w.Run(mono.Millisecond) // the association is up
		p.Send(WR{ID: 1, Op: transport.OpWrite, N: 5000, Key: 7})
		p.Send(WR{ID: 2, Op: transport.OpWrite, N: 5000, Key: 99})
		for len(p.Sends) < 2 && w.Now < 5e9 {
			w.Now = w.Now.Add(8 * mono.Microsecond)
			w.Run(0)
		}
		if len(p.Sends) != 2 || p.Sends[1].Status != transport.RemAccessErr {
			t.Fatalf("seed %d: %+v", seed, p.Sends)
		}
		if p.Sends[0].Status == transport.OK && (b.Mem[0] != 1 || b.Mem[4999] != 1) {
			t.Fatalf("seed %d: the WRITE is complete and not in memory", seed)
		}
	}
}

// TestWriteBehindInvalidation: a WRITE behind a SEND with invalidate of its key fails and writes nothing, also when
// both arrive in one burst, in whatever order.
func TestWriteBehindInvalidation(t *testing.T) {
	for seed := range uint64(40) {
		l := rough()
		l.RateBps = 0
		if seed%4 == 0 {
			l.Loss, l.Reorder = 0, 0
		}
		w := New(Config{Seed: seed, Planes: 1 + int(seed)%2, Link: l})
		a, b := w.Nodes[0], w.Nodes[1]
		p, q := w.Connect(a, b, QPOptions{})
		b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		b.Keys[9] = Key{0, 1 << 20, true, true, true, false}
		q.Recv(1, 1<<20, 100)
		a.Mem[0] = 1
		p.Send(WR{ID: 1, Op: transport.OpWrite, N: 64, Key: 7, Remote: 4096})
		p.Send(WR{ID: 2, Op: transport.OpSendInv, N: 64, Imm: 9})
		p.Send(WR{ID: 3, Op: transport.OpWrite, N: 8, Key: 9})
		w.RunUntil(second, func() bool { return len(p.Sends) == 3 })
		if len(p.Sends) != 3 || p.Sends[1].Status != transport.OK || p.Sends[2].Status != transport.RemAccessErr || b.Mem[0] != 0 {
			t.Errorf("seed %d: %+v, memory %d", seed, p.Sends, b.Mem[0])
		}
	}
}

// TestInvalidateRefused: a key that cannot be invalidated makes the SEND fail like a bad key. The program is never told that
// the key is dead, and what follows does not run.
func TestInvalidateRefused(t *testing.T) {
	for seed := range uint64(40) {
		for _, n := range []uint32{0, 8, 64, 9000} {
			l := rough()
			if seed%4 == 0 {
				l = usual()
			}
			w := New(Config{Seed: seed, Planes: 1 + int(seed)%2, Link: l})
			a, b := w.Nodes[0], w.Nodes[1]
			p, q := w.Connect(a, b, QPOptions{})
			b.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemInvalidate }
			b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
			a.Mem[0] = 1
			for i := range uint64(4) {
				q.Recv(i, 1<<20+i<<16, 10_000)
			}
			p.Send(WR{ID: 0, Op: transport.OpSend, N: 8})
			p.Send(WR{ID: 1, Op: transport.OpRead, N: 64, Key: 7, Local: 2 << 20})
			p.Send(WR{ID: 2, Op: transport.OpSendInv, N: n, Imm: 9})
			p.Send(WR{ID: 3, Op: transport.OpWrite, N: 8, Key: 7, Remote: 4096})
			p.Send(WR{ID: 4, Op: transport.OpSend, N: 8})
			w.RunUntil(second, func() bool { return len(p.Sends) == 5 && len(q.Received) == 4 })
			if len(p.Sends) != 5 || len(q.Received) != 4 {
				t.Fatalf("seed %d, %d bytes: %d sends, %d receives", seed, n, len(p.Sends), len(q.Received))
			}
			for i, s := range []transport.Status{transport.OK, transport.OK, transport.RemAccessErr, transport.WRFlushErr, transport.WRFlushErr} {
				//= MR-MSG-054
				if p.Sends[i].Status != s {
					t.Errorf("seed %d, %d bytes: request %d: %v, want %v", seed, n, i, p.Sends[i].Status, s)
				}
			}
			for i, c := range q.Received {
				//= MR-MSG-054
				if want := []transport.Status{transport.OK, transport.WRFlushErr}[min(i, 1)]; c.Status != want || c.ID != uint64(i) {
					t.Errorf("seed %d, %d bytes: receive %+v", seed, n, c)
				}
			}
			if q.Err != transport.RemAccessErr || q.Errors != 1 {
				t.Errorf("seed %d, %d bytes: %v, %d errors", seed, n, q.Err, q.Errors)
			}
		}
	}
}

// TestNothingLandsAfterFlush: what arrived in the burst that also brings a QP to its end is in memory before its
// requests are flushed; afterwards their buffers are the program's.
func TestNothingLandsAfterFlush(t *testing.T) {
	for seed := range uint64(60) {
		w := New(Config{Seed: seed, Planes: 2, Link: rough()})
		a, b := w.Nodes[0], w.Nodes[1]
		p, q := w.Connect(a, b, QPOptions{MTU: 256})
		b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		a.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemLand && op.WR.ID == 2 }
		flushed := map[uint64]bool{}
		p.OnSend = func(c Completion) { flushed[c.ID] = c.Status == transport.WRFlushErr }
		a.After = func(op *transport.MemOp) {
			if op.Kind == transport.MemLand && flushed[op.WR.ID] {
				t.Fatalf("seed %d: READ %d lands after it was flushed", seed, op.WR.ID)
			}
		}
		w.Run(mono.Millisecond) // the association is up
		p.Send(WR{ID: 1, Op: transport.OpWrite, N: 2000, Key: 7})
		for id := uint64(2); id < 12; id++ {
			p.Send(WR{ID: id, Op: transport.OpRead, N: 200, Key: 7, Local: 1 << 20})
		}
		for len(p.Sends) < 11 && w.Now < 5e9 {
			w.Run(mono.Microsecond)
			w.Now = w.Now.Add(10 * mono.Microsecond) // loops that come late find bursts
		}
		if len(p.Sends) != 11 {
			t.Fatalf("seed %d: %d completions\n%s\n%s", seed, len(p.Sends), p.Dump(), q.Dump())
		}
	}
}

// TestProbesPassData: a sender whose data fills every batch measures its base RTT all the same. Probes came last: with one
// packet a batch, as a NIC takes them that has room for one, they went out when a window was full, or never.
func TestProbesPassData(t *testing.T) {
	w := New(Config{Seed: 1, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{})
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	w.Run(mono.Millisecond)
	sent := a.E.C.ProbesSent
	for range 4 {
		p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
	}
	one := pkt.NewBatch(1, PacketMax)
	for range 8 {
		a.E.HandleTimers(w.Now)
		one.Reset()
		//= MR-PATH-053
		if a.E.Transmit(w.Now, one); one.N != 1 {
			t.Fatal("no data was left: nothing is shown")
		}
	}
	if a.E.C.ProbesSent == sent {
		t.Error("data left no room for a probe")
	}
}

// TestBaseAskedAgain: a probe of the base RTT that gets lost is sent again soon. After a second, as before, a sender under
// load took the queues of its data for the way.
func TestBaseAskedAgain(t *testing.T) {
	l := usual()
	l.Loss = 0.3
	for seed := range uint64(20) {
		w := New(Config{Seed: seed, Link: l})
		a, b := w.Nodes[0], w.Nodes[1]
		p, _ := w.Connect(a, b, QPOptions{SQ: 64})
		b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		p.Send(WR{Op: transport.OpWrite, N: 64, Key: 7})
		if !w.RunUntil(second, func() bool { return len(p.Sends) == 1 }) {
			t.Fatalf("seed %d: no association", seed)
		}
		p.OnSend = func(Completion) { p.Send(WR{Op: transport.OpWrite, N: 1 << 16, Key: 7}) }
		p.Send(WR{Op: transport.OpWrite, N: 1 << 16, Key: 7})
		//= MR-PATH-053
		if !w.RunUntil(50*mono.Millisecond, func() bool { return a.E.C.ProbesAnswered > 0 }) {
			t.Errorf("seed %d: %d probes, none answered", seed, a.E.C.ProbesSent)
		}
	}
}

// TestSteadyRoundTrip: round trips that are all alike are no reason to forget them. Their mean deviation came down to 0,
// which meant "none measured yet": every 60 messages or so the next loss was waited for up to a round trip longer.
func TestSteadyRoundTrip(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 2, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{})
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	send := func() mono.Duration {
		began, n := w.Now, len(p.Sends)
		p.Send(WR{Op: transport.OpWrite, N: 64, Key: 7})
		if !w.RunUntil(mono.Millisecond*20, func() bool { return len(p.Sends) > n }) {
			t.Fatal("stuck")
		}
		return w.Now.Sub(began)
	}
	for range 500 {
		send()
	}
	for i := range 200 {
		down := usual()
		down.Loss = 1
		for pl := range 2 {
			w.SetLink(0, 1, pl, down)
		}
		n := len(p.Sends)
		began := w.Now
		p.Send(WR{Op: transport.OpWrite, N: 64, Key: 7})
		w.Step()
		for pl := range 2 {
			w.SetLink(0, 1, pl, usual())
		}
		w.RunUntil(20*mono.Millisecond, func() bool { return len(p.Sends) > n })
		//= MR-REL-042
		if d := w.Now.Sub(began); d > 20*mono.Microsecond {
			t.Fatalf("message %d: %v, more than two and a half round trips", i, d)
		}
		for range 7 {
			send()
		}
	}
}
