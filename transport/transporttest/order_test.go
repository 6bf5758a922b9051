package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// rough is a network that reorders, loses, doubles and damages packets.
func rough() link.Spec {
	l := usual()
	l.RateBps, l.Loss, l.Reorder, l.ReorderBy, l.Duplicate, l.Corrupt = 10e9, 0.05, 0.1, 40*mono.Microsecond, 0.05, 0.01
	return l
}

// TestFlagAfterData writes a block of data, then a flag word, over and over into the same place; an observer looks
// after every single memory operation. Whoever sees flag g must see no byte older than block g (P02), whether the
// flag is a WRITE of its own, the end of the block, or an atomic.
func TestFlagAfterData(t *testing.T) {
	for _, kind := range []string{"write", "tail", "atomic"} {
		t.Run(kind, func(t *testing.T) {
			w := New(Config{Seed: 11, Planes: 4, Link: rough()})
			a, b := w.Nodes[0], w.Nodes[1]
			p, _ := w.Connect(a, b, QPOptions{SQ: 64})
			b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
			const size, rounds = 20_000, 200
			flagAt := uint64(size)
			if kind == "tail" {
				flagAt = size - 1
			}
			seen := byte(0)
			b.After = func(op *transport.MemOp) {
				g := b.Mem[flagAt]
				if g == seen {
					return
				}
				if int8(g-seen) < 0 {
					t.Fatalf("flag went back from %d to %d", seen, g)
				}
				seen = g
				for i := range uint64(size) {
					//= MR-VRB-031
					if int8(b.Mem[i]-g) < 0 {
						t.Fatalf("flag %d is visible, byte %d is still %d", g, i, b.Mem[i])
					}
				}
			}
			sent, posted, last := 0, 0, false
			post := func() {
				for posted < rounds && posted-sent < 12 {
					posted++
					src := uint64(posted%32) * 32768
					for i := range size + 1 {
						a.Mem[src+uint64(i)] = byte(posted)
					}
					p.Send(WR{ID: uint64(posted), Op: transport.OpWrite, Local: src, Remote: 0, N: size, Key: 7})
					switch kind {
					case "write":
						p.Send(WR{ID: uint64(posted), Op: transport.OpWrite, Local: src, Remote: flagAt, N: 1, Key: 7})
					case "atomic":
						p.Send(WR{ID: uint64(posted), Op: transport.OpFetchAdd, Local: 3 << 20, Remote: flagAt, N: 8, Key: 7, Compare: 1})
					}
				}
			}
			w.RunUntil(5*second, func() bool {
				sent = 0
				if n := len(p.Sends); n > 0 {
					sent = int(p.Sends[n-1].ID)
				}
				post()
				last = last || sent == rounds // the WRITE of the last round; its flag may still be under way
				return last && seen == byte(rounds)
			})
			if !last || seen != byte(rounds) {
				t.Fatalf("%d of %d rounds, flag %d", sent, rounds, seen)
			}
		})
	}
}

// TestPlaneFails takes one of four planes away in the middle and gives it back: no error, nearly all of the others'
// bandwidth, no message that waits long, and the plane carries data again.
func TestPlaneFails(t *testing.T) {
	w := New(Config{Seed: 5, Planes: 4, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{SQ: 64})
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	const n = 64 << 10
	last, worst := mono.Time(0), mono.Duration(0)
	post := func() { p.Send(WR{Op: transport.OpWrite, N: n, Key: 7}) }
	p.OnSend = func(c Completion) {
		if c.Status != transport.OK {
			t.Fatalf("%+v", c)
		}
		if last != 0 {
			worst = max(worst, c.At.Sub(last))
		}
		last = c.At
		post()
	}
	for range 60 {
		post()
	}
	rate := func(d mono.Duration) float64 {
		k, t0 := len(p.Sends), w.Now
		w.Run(d)
		return float64(len(p.Sends)-k) * n / w.Now.Sub(t0).Seconds()
	}
	w.Run(2 * mono.Millisecond)
	whole := rate(2 * mono.Millisecond)
	worst = 0
	down := usual()
	down.Down = true
	w.SetPlane(2, down)
	rate(200 * mono.Microsecond)
	three := rate(2 * mono.Millisecond)
	for _, as := range a.E.Assocs() {
		for _, pl := range as.Planes {
			t.Logf("plane %d %s window %d grant %d in flight %d srtt %v base %v lost %d", pl.Plane, pl.State, pl.Window, pl.Grant, pl.InFlight, pl.SRTT, pl.Base, pl.Lost)
		}
	}
	t.Log(p.Dump())
	t.Logf("4 planes %.0f Gbit/s, 3 planes %.0f (%.1f %% of 3/4), longest pause %v", whole*8/1e9, three*8/1e9, 100*three/whole/0.75, worst)
	if three < 0.9*0.75*whole {
		t.Errorf("3 planes carry %.1f %% of what they could", 100*three/whole/0.75)
	}
	if worst > 300*mono.Microsecond {
		t.Errorf("a message waited %v", worst)
	}
	w.SetPlane(2, usual())
	w.Run(10 * mono.Millisecond)
	if back := rate(2 * mono.Millisecond); back < 0.9*whole {
		t.Errorf("after the plane's return %.1f %%", 100*back/whole)
	}
	if a.E.C.PlaneFailures != 1 || a.E.C.PlaneReturns != 1 {
		t.Errorf("failures %d, returns %d", a.E.C.PlaneFailures, a.E.C.PlaneReturns)
	}
}

// TestAllPlanesFail: RETRY_EXC within timeout × (retry_cnt + 1), then everything flushed, then nothing goes on.
func TestAllPlanesFail(t *testing.T) {
	for _, planes := range []int{1, 4} {
		w := New(Config{Seed: 6, Planes: planes, Link: usual()})
		a, b := w.Nodes[0], w.Nodes[1]
		p, _ := w.Connect(a, b, QPOptions{Timeout: 10, Retry: 3})
		b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
		for range 200 {
			p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7})
		}
		w.Run(mono.Millisecond)
		down := usual()
		down.Down = true
		w.SetLinks(down)
		t0, n := w.Now, len(p.Sends)
		limit := 4 * (4096 << 10) * mono.Nanosecond
		w.RunUntil(second, func() bool { return len(p.Sends) == 200 })
		if len(p.Sends) != 200 {
			t.Fatalf("%d planes: hangs", planes)
		}
		for n < 200 && p.Sends[n].Status == transport.OK { // what was acknowledged on the way
			n++
		}
		if c := p.Sends[n]; c.Status != transport.RetryExcErr || c.At.Sub(t0) > limit+mono.Millisecond {
			t.Errorf("%d planes: %+v after %v, limit %v", planes, c, c.At.Sub(t0), limit)
		}
		for _, c := range p.Sends[n+1:] {
			if c.Status != transport.WRFlushErr {
				t.Errorf("%+v", c)
			}
		}
		if !p.Failed || p.Errors != 1 {
			t.Errorf("QPError called %d times", p.Errors)
		}
	}
}

// TestPeerRestarts: a NIC that comes back as a new instance ends the old QPs, and new ones work at once.
func TestPeerRestarts(t *testing.T) {
	w := New(Config{Seed: 7, Planes: 2, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{Timeout: 18})
	q.Recv(1, 0, 100)
	p.Send(WR{ID: 1, Op: transport.OpSend, N: 10})
	w.RunUntil(second, func() bool { return len(q.Received) == 1 && len(p.Sends) == 1 })
	b.Start(99)
	t0 := w.Now
	p.Send(WR{ID: 2, Op: transport.OpSend, N: 10})
	if !w.RunUntil(second, func() bool { return len(p.Sends) == 2 }) {
		t.Fatal("the old QP hangs")
	}
	if c := p.Sends[1]; c.Status != transport.RetryExcErr || c.At.Sub(t0) > 100*mono.Millisecond {
		t.Errorf("%+v after %v", c, c.At.Sub(t0))
	}
	p2, q2 := w.Connect(a, b, QPOptions{})
	q2.Recv(1, 0, 100)
	p2.Send(WR{ID: 3, Op: transport.OpSend, N: 10})
	if !w.RunUntil(second, func() bool { return len(q2.Received) == 1 && len(p2.Sends) == 1 }) || p2.Sends[0].Status != transport.OK {
		t.Fatalf("the new QP does not work: %+v", p2.Sends)
	}
}

// TestErrors: each bad request ends with the statuses that verbs users know, at both ends, in order.
func TestErrors(t *testing.T) {
	for _, x := range []struct {
		name   string
		wr     WR
		recv   int // size of the receive, -1 = none
		o      QPOptions
		fault  transport.MemKind
		status transport.Status
		remote transport.Status // of the responder's QP, OK = unharmed
		rcqe   transport.Status
	}{
		{"wrong key", WR{Op: transport.OpWrite, N: 10, Key: 99}, -1, QPOptions{}, 99, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"bounds", WR{Op: transport.OpWrite, Remote: 4090, N: 10, Key: 8}, -1, QPOptions{}, 99, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"no write right", WR{Op: transport.OpWrite, N: 10000, Key: 10}, -1, QPOptions{}, 99, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"no read right", WR{Op: transport.OpRead, N: 10, Key: 9}, -1, QPOptions{}, 99, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"no atomic right", WR{Op: transport.OpFetchAdd, N: 8, Key: 9}, -1, QPOptions{}, 99, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"misaligned", WR{Op: transport.OpFetchAdd, Remote: 4, N: 8, Key: 7}, -1, QPOptions{}, 99, transport.RemInvReqErr, transport.RemInvReqErr, transport.OK},
		{"receive too small", WR{Op: transport.OpSend, N: 100}, 50, QPOptions{}, 99, transport.RemInvReqErr, transport.LocLenErr, transport.LocLenErr},
		{"large, receive too small", WR{Op: transport.OpSend, N: 100000}, 50000, QPOptions{}, 99, transport.RemInvReqErr, transport.LocLenErr, transport.LocLenErr},
		{"no receive", WR{Op: transport.OpSend, N: 100}, -1, QPOptions{RNRRetry: 255, MinRNR: 1}, 99, transport.RnrRetryExcErr, transport.OK, transport.OK},
		{"no receive, 3 tries", WR{Op: transport.OpSend, N: 100}, -1, QPOptions{RNRRetry: 3, MinRNR: 1}, 99, transport.RnrRetryExcErr, transport.OK, transport.OK},
		{"local memory gone", WR{Op: transport.OpWrite, N: 10000, Key: 7}, -1, QPOptions{}, transport.MemGather, transport.LocProtErr, transport.OK, transport.OK},
		{"local memory gone for READ", WR{Op: transport.OpRead, N: 10000, Key: 7}, -1, QPOptions{}, transport.MemLand, transport.LocProtErr, transport.OK, transport.OK},
		{"remote memory gone", WR{Op: transport.OpWrite, N: 10000, Key: 7}, -1, QPOptions{}, transport.MemWrite, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"remote memory of READ gone", WR{Op: transport.OpRead, N: 10000, Key: 7}, -1, QPOptions{}, transport.MemRead, transport.RemAccessErr, transport.RemAccessErr, transport.OK},
		{"receive's memory gone", WR{Op: transport.OpSend, N: 10000}, 20000, QPOptions{}, transport.MemScatter, transport.RemOpErr, transport.LocProtErr, transport.LocProtErr},
	} {
		t.Run(x.name, func(t *testing.T) {
			for seed := range uint64(6) {
				l := usual()
				if seed > 0 {
					l = rough()
				}
				w := New(Config{Seed: 100 + seed, Planes: 1 + int(seed)%3, Link: l})
				a, b := w.Nodes[0], w.Nodes[1]
				o := x.o
				o.Timeout = 20
				p, q := w.Connect(a, b, o)
				b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
				b.Keys[8] = Key{0, 4096, true, true, true, false}
				b.Keys[9] = Key{0, 1 << 20, true, false, false, false}
				b.Keys[10] = Key{0, 1 << 20, false, true, false, false}
				// good ones before and after
				p.Send(WR{ID: 1, Op: transport.OpWrite, Local: 2 << 20, Remote: 512 << 10, N: 30000, Key: 7})
				p.Send(WR{ID: 2, Op: transport.OpRead, Local: 2 << 20, Remote: 512 << 10, N: 30000, Key: 7})
				if x.recv >= 0 {
					q.Recv(1, 0, uint32(x.recv))
				}
				bad := func(op *transport.MemOp) bool {
					return op.Kind == x.fault && (op.Addr < 512<<10 && (op.WR == nil || op.WR.ID == 3))
				}
				a.Fault, b.Fault = bad, bad
				x.wr.ID = 3
				p.Send(x.wr)
				p.Send(WR{ID: 4, Op: transport.OpWrite, Local: 2 << 20, Remote: 900 << 10, N: 100, Key: 7, Flags: 0})
				if !w.RunUntil(5*second, func() bool { return len(p.Sends) == 4 }) {
					t.Fatalf("seed %d: stuck: %v\n%s\n%s", seed, p.Sends, p.Dump(), q.Dump())
				}
				if p.Sends[0].Status != transport.OK || p.Sends[1].Status != transport.OK || p.Sends[2].Status != x.status || p.Sends[3].Status != transport.WRFlushErr {
					t.Errorf("seed %d: %v", seed, p.Sends)
				}
				if q.Err != x.remote {
					t.Errorf("seed %d: responder %v, want %v", seed, q.Err, x.remote)
				}
				if x.rcqe != transport.OK && (len(q.Received) == 0 || q.Received[0].Status != x.rcqe) {
					t.Errorf("seed %d: receive %v, want %v", seed, q.Received, x.rcqe)
				}
				if err := quiet(w, seed); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestSameSeedSameTrace: two runs of one seed deliver the same packets at the same times.
func TestSameSeedSameTrace(t *testing.T) {
	run := func(seed uint64) (uint64, uint64) {
		w := New(Config{Seed: seed, Planes: 3, Link: rough()})
		p, q := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{})
		w.Nodes[1].Keys[7] = Key{0, 1 << 20, true, true, true, false}
		for i := range uint64(20) {
			q.Recv(i, 0, 5000)
			p.Send(WR{Op: transport.OpSend, N: 5000})
			p.Send(WR{Op: transport.OpWrite, N: 50000, Key: 7})
			p.Send(WR{Op: transport.OpRead, N: 9000, Key: 7})
		}
		w.Run(20 * mono.Millisecond)
		return w.Hash, w.Wire
	}
	h1, n1 := run(1)
	h2, n2 := run(1)
	h3, _ := run(2)
	if h1 != h2 || n1 != n2 || n1 < 100 {
		t.Errorf("seed 1 twice: %x %d, %x %d", h1, n1, h2, n2)
	}
	if h1 == h3 {
		t.Error("another seed, same trace")
	}
}

// TestNoAllocation: in steady state the engine allocates nothing.
func TestNoAllocation(t *testing.T) {
	w := New(Config{Seed: 8, Planes: 4, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{SQ: 64})
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	post := func() { p.Send(WR{Op: transport.OpWrite, N: 64 << 10, Key: 7}) }
	for range 60 {
		post()
	}
	p.OnSend = func(Completion) { post() }
	w.Run(5 * mono.Millisecond)
	before := a.E.C.TxPackets
	var mallocs float64
	for range 20 {
		p.Sends = p.Sends[:0]
		// only the engines' own calls count; the world copies packets
		mallocs += testing.AllocsPerRun(1, func() {
			a.E.HandleTimers(w.Now)
			b.E.HandleTimers(w.Now)
			a.batch.Reset()
			a.E.Transmit(w.Now, a.batch)
			b.E.NextTimeout()
		})
		for i := range a.batch.N {
			w.send(a, &a.batch.Pkts[i])
		}
		w.Run(20 * mono.Microsecond)
	}
	if mallocs > 0 {
		t.Errorf("%v allocations", mallocs)
	}
	if a.E.C.TxPackets == before {
		t.Error("nothing was sent")
	}
}
