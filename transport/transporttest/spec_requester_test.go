package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// respond answers a READ or an atomic of the node.
func (f *forge) respond(q *QP, psn, no, off uint32, tail bool, b []byte) pktOut {
	h := wire.Header{Op: wire.OpReadResp, Flags: wire.FlagAckReq, DestQP: q.Number(), PSN: serialPSN(psn), ReadNo: no, ReadOff: off}
	if tail {
		h.Flags |= wire.FlagTail
	}
	p := f.packet(h, b)
	return pktOut{data(f.deliver(p)), answer(f.log, p)}
}

func (f *forge) result(q *QP, psn, no uint32, v uint64) pktOut {
	h := wire.Header{Op: wire.OpAtomicResp, Flags: wire.FlagTail | wire.FlagAckReq, DestQP: q.Number(), PSN: serialPSN(psn), ReadNo: no, Result: v}
	p := f.packet(h, nil)
	return pktOut{data(f.deliver(p)), answer(f.log, p)}
}

// pktOut is what came of a packet: what the node sent, and how it answered.
type pktOut struct {
	sent   []*sent
	answer string
}

// ops names what was sent.
func ops(xs []*sent) (s string) {
	for _, x := range xs {
		s += x.Op.String() + " "
	}
	return s
}

// TestSpecFence: a fenced request waits for the answers to earlier READs and atomics, not for acknowledgements.
func TestSpecFence(t *testing.T) {
	f, q := receiver(t, Config{Seed: 1})
	q.Send(WR{Op: transport.OpRead, N: 8})
	q.Send(WR{Op: transport.OpFetchAdd, N: 8})
	q.Send(WR{Op: transport.OpWrite, N: 8, Remote: 4096, Flags: transport.FlagFence})
	xs := data(f.collect())
	//= MR-MSG-013
	if ops(xs) != "READ FETCH_ADD " {
		t.Fatalf("sent %s", ops(xs))
	}
	//= MR-REL-049
	if xs[1].Flags&wire.FlagAckReq == 0 {
		t.Error("the last packet before the fence asks for no acknowledgement")
	}
	//= MR-MSG-013
	if ys := data(f.deliver(f.acks(xs...))); len(ys) != 0 {
		t.Errorf("acknowledged, not answered: sent %s", ops(ys))
	}
	if ys := f.result(q, 0, 1, 5).sent; len(ys) != 0 {
		t.Errorf("the READ is unanswered: sent %s", ops(ys))
	}
	if ys := f.respond(q, 1, 0, 0, true, bytesOf(1, 8)).sent; ops(ys) != "WRITE " {
		t.Errorf("all answered: sent %s", ops(ys))
	}
}

// TestSpecImplicitFence: a WRITE to bytes of an unanswered atomic waits, and one elsewhere says that it is pending.
func TestSpecImplicitFence(t *testing.T) {
	for _, c := range []struct {
		addr  uint64
		n     uint32
		key   uint32
		waits bool
	}{{992, 8, 7, false}, {993, 8, 7, true}, {1007, 1, 7, true}, {1008, 100, 7, false}, {0, 5000, 7, true}, {1000, 8, 8, true}} {
		f, q := receiver(t, Config{Seed: 2})
		q.Send(WR{Op: transport.OpFetchAdd, N: 8, Remote: 1000, Key: 7})
		q.Send(WR{Op: transport.OpWrite, N: c.n, Remote: c.addr, Key: c.key})
		xs := data(f.collect())
		//= MR-MSG-014
		if got := len(of(xs, wire.OpWrite)) == 0; got != c.waits {
			t.Errorf("WRITE of %d at %d: waits %v", c.n, c.addr, got)
		}
		for _, x := range of(xs, wire.OpWrite) {
			//= MR-MSG-015
			if x.Flags&wire.FlagAtomicPending == 0 {
				t.Errorf("WRITE of %d at %d does not tell of the atomic", c.n, c.addr)
			}
		}
		for _, x := range of(f.result(q, 0, 0, 5).sent, wire.OpWrite) {
			if x.Flags&wire.FlagAtomicPending != 0 {
				t.Error("the atomic is answered, the flag is still set")
			}
		}
	}
}

// TestSpecReadWindow: READ n waits for the answers to all up to n - max_rd_atomic.
func TestSpecReadWindow(t *testing.T) {
	f := newForge(t, Config{Seed: 3})
	q := f.qp(QPOptions{Rd: 2, Timeout: 22})
	for range 5 {
		q.Send(WR{Op: transport.OpRead, N: 8})
	}
	//= MR-MSG-016
	if xs := data(f.collect()); len(xs) != 2 {
		t.Fatalf("%d sent", len(xs))
	}
	if xs := f.respond(q, 0, 1, 0, true, bytesOf(1, 8)).sent; len(xs) != 0 { // one is open, but it is number 0
		t.Errorf("sent %s", ops(xs))
	}
	if xs := f.respond(q, 1, 0, 0, true, bytesOf(1, 8)).sent; len(xs) != 2 {
		t.Errorf("sent %s", ops(xs))
	}
}

// TestSpecSQD: what was begun is finished, nothing else is begun.
func TestSpecSQD(t *testing.T) {
	f, q := receiver(t, Config{Seed: 4})
	f.deliver(f.ack(acked{Planes: []wire.PlaneBlock{{Plane: 0, Grant: 10_000}}}))
	q.Send(WR{Op: transport.OpWrite, N: 50_000})
	q.Send(WR{Op: transport.OpWrite, N: 1})
	xs := data(f.collect())
	q.ToSQD()
	sent := len(xs)
	for range 30 {
		xs = data(f.deliver(f.acks(xs...)))
		sent += len(xs)
	}
	//= MR-MSG-017
	if sent != 13 || len(q.Sends) != 1 || q.Sends[0].Status != transport.OK {
		t.Errorf("%d packets sent, %+v", sent, q.Sends)
	}
	q.Resume(f.w.Now)
	if xs := data(f.collect()); len(xs) != 1 {
		t.Errorf("after SQD: %v", xs)
	}
}

// TestSpecLimit: the receive limit, and how a requester gets past a lost one.
func TestSpecLimit(t *testing.T) {
	f := newForge(t, Config{Seed: 5})
	f.hello.MaxHold = 0
	q := f.qp(QPOptions{MTU: 1024, MinRNR: 14, Timeout: 22}) // 1.28 ms
	q.Send(WR{Op: transport.OpSend, N: 10})
	//= MR-MSG-061
	if xs := data(f.collect()); len(xs) != 1 {
		t.Errorf("before the first limit: sent %s", ops(xs))
	}
	limit := func(n uint32) []*sent {
		return data(f.deliver(f.ack(acked{QPs: []wire.QPBlock{{QPN: q.Number(), Limit: n}}})))
	}
	f.deliver(f.acks(data(f.log)...))
	limit(2)
	q.Send(WR{Op: transport.OpSend, N: 2000})
	q.Send(WR{Op: transport.OpWriteImm, N: 2000})
	q.Send(WR{Op: transport.OpSend, N: 2000})
	xs := data(f.collect())
	//= MR-MSG-061
	if ops(xs) != "SEND SEND WRITE " {
		t.Fatalf("limit 2: sent %s", ops(xs))
	}
	f.deliver(f.acks(xs...))
	//= MR-REL-034
	if xs := limit(1); len(xs) != 0 {
		t.Errorf("limit back to 1: sent %s", ops(xs))
	}
	xs = limit(3)
	//= MR-MSG-061 MR-REL-034
	if ops(xs) != "WRITE_IMM " {
		t.Errorf("limit 3: sent %s", ops(xs))
	}
	f.deliver(f.acks(xs...))
	limit(2) // an older one

	// the limit stays: the next packet goes anyway
	at := f.w.Now
	xs = data(f.wait(20 * mono.Millisecond))
	//= MR-MSG-062
	if len(xs) == 0 || xs[0].At.Sub(at) != 1280*mono.Microsecond {
		t.Errorf("past the limit: %v from %v on", xs, at)
	}
}

// TestSpecOldLimit: a limit that comes late takes nothing back.
func TestSpecOldLimit(t *testing.T) {
	f := newForge(t, Config{Seed: 5})
	q := f.qp(QPOptions{Timeout: 22})
	for _, n := range []uint32{5, 2, 0xFFFFFFF0} { // the last one is before 0
		f.deliver(f.ack(acked{QPs: []wire.QPBlock{{QPN: q.Number(), Limit: n}}}))
	}
	for range 6 {
		q.Send(WR{Op: transport.OpSend, N: 10})
	}
	//= MR-REL-034
	if xs := data(f.collect()); len(xs) != 5 {
		t.Errorf("limit 5, then older ones: %d sent", len(xs))
	}
}

// TestSpecPastLimit: the waits before packets that go past the limit double.
func TestSpecPastLimit(t *testing.T) {
	f := newForge(t, Config{Seed: 5})
	q := f.qp(QPOptions{MTU: 1024, MinRNR: 14, Timeout: 22})
	f.deliver(f.ack(acked{QPs: []wire.QPBlock{{QPN: q.Number(), Limit: 0}}}))
	for range 5 {
		q.Send(WR{Op: transport.OpSend, N: 100})
	}
	var fresh []*sent
	last := uint32(0)
	for range 100 { // each is acknowledged after 50 µs
		for _, x := range data(f.wait(mono.Millisecond)) {
			if uint32(x.PSN) >= last {
				fresh = append(fresh, x)
				last = uint32(x.PSN) + 1
			}
			f.deliver(f.acks(x))
		}
	}
	//= MR-MSG-062
	if len(fresh) != 5 {
		t.Fatalf("%d packets went past the limit", len(fresh))
	}
	for i := 2; i < len(fresh); i++ {
		was, is := fresh[i-1].At.Sub(fresh[i-2].At), fresh[i].At.Sub(fresh[i-1].At)
		if is < 2*was-10*mono.Microsecond || is > 2*was+1100*mono.Microsecond {
			t.Errorf("wait %v after %v", is, was)
		}
	}
}

// TestSpecLateReceives: a receiver that is late by milliseconds does not end a QP that may not try again; one that never posts does.
func TestSpecLateReceives(t *testing.T) {
	for _, late := range []mono.Duration{15 * mono.Millisecond, second} {
		w := New(Config{Seed: 9, Planes: 2, Link: usual()})
		p, q := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{RNRRetry: 255})
		q.Recv(0, 0, 100)
		p.Send(WR{ID: 0, Op: transport.OpSend, N: 100})
		w.Run(mono.Millisecond)
		p.Send(WR{ID: 1, Op: transport.OpSend, N: 100})
		w.Run(late)
		q.Recv(1, 0, 100)
		w.Run(200 * mono.Millisecond)
		want := transport.OK
		if late == second {
			want = transport.RnrRetryExcErr
		}
		//= MR-MSG-062
		if len(p.Sends) != 2 || p.Sends[1].Status != want {
			t.Errorf("%v late: %v, want %v\n%s", late, p.Sends, want, p.Dump())
		}
	}
}

// TestSpecRNR: what a requester does about RNR.
func TestSpecRNR(t *testing.T) {
	f := newForge(t, Config{Seed: 6})
	q := f.qp(QPOptions{MTU: 1024, RNRRetry: 3, Timeout: 22})
	q.Send(WR{Op: transport.OpSend, N: 3000})
	xs := data(f.collect())
	q.Send(WR{Op: transport.OpWrite, N: 10})
	rnr := func(x *sent, inOrder bool) []*sent {
		r := refuses(x, q, wire.RefuseRNR)
		r.Timer, r.InOrder = 14, inOrder // 1.28 ms
		return f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{r}}))
	}
	at := f.w.Now
	out := rnr(xs[0], true)
	//= MR-MSG-064
	if len(data(out)) != 0 {
		t.Errorf("while PSN 0 is parked: sent %s", ops(out))
	}
	//= MR-MSG-063
	if n := f.flying(0); n != len(xs[1].Data)+len(xs[2].Data) {
		t.Errorf("%d bytes in flight", n)
	}
	f.deliver(f.acks(xs[1], xs[2]))
	parked := func() (zero []*sent) { // waits for PSN 0, acknowledges everything else
		for _, x := range data(f.wait(1280 * mono.Microsecond)) {
			if x.PSN == 0 {
				zero = append(zero, x)
			} else {
				f.deliver(f.acks(x))
			}
		}
		return zero
	}
	xs = parked()
	//= MR-MSG-063 MR-MSG-064
	if len(xs) == 0 || xs[0].PSN != 0 || xs[0].At.Sub(at) != 1280*mono.Microsecond {
		t.Fatalf("parked for %v, then %v", xs[0].At.Sub(at), xs)
	}
	// out of order: none of these counts; 2, 3, 4 in order do
	for i := range 9 {
		rnr(xs[0], false)
		xs = parked()
		//= MR-MSG-065
		if len(xs) == 0 {
			t.Fatalf("gave up after %d refusals out of order: %+v", i+1, q.Sends)
		}
	}
	for range 2 {
		rnr(xs[0], true)
		xs = parked()
	}
	//= MR-MSG-065
	if len(q.Sends) != 0 {
		t.Fatalf("gave up after 3 of 3 tries: %+v", q.Sends)
	}
	rnr(xs[0], true)
	//= MR-MSG-065 MR-MSG-001
	if len(q.Sends) != 2 || q.Sends[0].Status != transport.RnrRetryExcErr || q.Sends[1].Status != transport.WRFlushErr {
		t.Errorf("after the 4th: %+v", q.Sends)
	}
}

// TestSpecRNRCount: what rnr_retry counts, case by case. rnr_retry is 1: the second counted refusal ends the QP.
func TestSpecRNRCount(t *testing.T) {
	const wait = 1280 * mono.Microsecond
	begin := func(retry uint8) (*forge, *QP, *sent, func(x *sent)) {
		f := newForge(t, Config{Seed: 7})
		q := f.qp(QPOptions{RNRRetry: retry, Timeout: 22})
		q.Send(WR{Op: transport.OpSend, N: 10})
		x := data(f.collect())[0]
		return f, q, x, func(x *sent) {
			r := refuses(x, q, wire.RefuseRNR)
			r.Timer = 14
			f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{r}}))
		}
	}
	t.Run("for ever", func(t *testing.T) {
		f, q, x, rnr := begin(7)
		for range 40 {
			rnr(x)
			x = data(f.wait(wait))[0]
		}
		//= MR-MSG-065
		if q.Failed {
			t.Error("7 does not mean for ever")
		}
	})
	t.Run("two transmissions of one wait", func(t *testing.T) {
		f, q, x, rnr := begin(1)
		y := data(f.wait(1100 * mono.Microsecond)) // called lost, sent again
		if len(y) != 1 {
			t.Fatalf("sent again %v", y)
		}
		rnr(x)
		rnr(y[0])
		//= MR-MSG-065
		if q.Failed {
			t.Error("two refusals of one wait count as two")
		}
		z := data(f.wait(wait))
		rnr(z[len(z)-1])
		if !q.Failed {
			t.Error("the second wait is not counted")
		}
	})
	t.Run("one in flight", func(t *testing.T) {
		f, q, x, rnr := begin(255) // no retry at all
		y := data(f.wait(1100 * mono.Microsecond))
		rnr(x)
		//= MR-MSG-066
		if q.Failed {
			t.Error("gave up with a transmission in flight")
		}
		rnr(y[0])
		if !q.Failed {
			t.Error("goes on without tries")
		}
	})
	t.Run("the acknowledgement in between is lost", func(t *testing.T) {
		f, q, x, rnr := begin(1)
		rnr(x)
		q.Send(WR{Op: transport.OpSend, N: 10})
		ys := data(f.wait(wait + 10*mono.Microsecond))
		if len(ys) != 2 || ys[1].PSN != 1 {
			t.Fatalf("sent %v", ys)
		}
		rnr(ys[1]) // PSN 0 was accepted, the next one is refused in its turn
		f.deliver(f.acks(ys[0]))
		//= MR-MSG-065
		if q.Failed {
			t.Error("refusals of two PSNs count together")
		}
	})
	t.Run("anew for each PSN", func(t *testing.T) {
		f, q, x, rnr := begin(1)
		q.Send(WR{Op: transport.OpSend, N: 10})
		rnr(x)
		xs := data(f.wait(wait))
		f.deliver(f.acks(xs...))
		for range 3 {
			q.Send(WR{Op: transport.OpSend, N: 10})
			xs = data(f.collect())
			rnr(xs[0])
			xs = data(f.wait(wait))
			f.deliver(f.acks(xs...))
		}
		//= MR-MSG-065
		if q.Failed {
			t.Error("refusals of different PSNs count together")
		}
	})
}

// TestSpecNoQP: a QP that is gone is asked for once each timeout, retry_cnt times.
func TestSpecNoQP(t *testing.T) {
	f := newForge(t, Config{Seed: 8})
	q := f.qp(QPOptions{Timeout: 10, Retry: 2}) // 4.194304 ms
	const timeout = 4194304 * mono.Nanosecond
	q.Send(WR{Op: transport.OpWrite, N: 10})
	x := data(f.collect())[0]
	for try := range 3 {
		at := f.w.Now
		r := refuses(x, q, wire.RefuseNoQP)
		r.QPN = 0
		f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{r}}))
		if try == 2 {
			break
		}
		xs := data(f.wait(timeout))
		//= MR-MSG-088
		if len(xs) != 1 || xs[0].At.Sub(at) != timeout || q.Failed {
			t.Fatalf("try %d: sent %v, failed %v", try, xs, q.Failed)
		}
		x = xs[0]
	}
	//= MR-MSG-088
	if len(q.Sends) != 1 || q.Sends[0].Status != transport.RetryExcErr {
		t.Errorf("%+v", q.Sends)
	}
	//= MR-MSG-089
	if f.flying(0) != 0 || f.n.E.C.LostTime+f.n.E.C.LostGap+f.n.E.C.LostTimeout != 0 {
		t.Errorf("%d bytes in flight, %+v", f.flying(0), f.n.E.C)
	}
}

// TestSpecRefusalIsNoLoss: a refused number in the middle of a path is no gap.
func TestSpecRefusalIsNoLoss(t *testing.T) {
	f := newStranger(t, Config{Seed: 9})
	f.hello.PathLimit = 1
	f.meet()
	q := f.qp(QPOptions{Timeout: 22})
	xs := f.writes(q, 10)
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{refuses(xs[2], q, wire.RefuseLater)}}))
	f.deliver(f.acks(append(xs[:2:2], xs[3:]...)...))
	//= MR-MSG-089
	if c := f.n.E.C; c.LostGap+c.LostTime+c.LostTimeout != 0 || f.flying(0) != 0 {
		t.Errorf("%+v", c)
	}
	if ys := data(f.wait(10 * mono.Millisecond)); len(ys) == 0 || ys[0].PSN != xs[2].PSN {
		t.Errorf("sent again: %v", ys)
	}
}

// TestSpecFatal: a fatal refusal is cumulative, beats an acknowledgement, and becomes the right status.
func TestSpecFatal(t *testing.T) {
	for code, want := range map[wire.RefusalCode]transport.Status{wire.RefuseInvalid: transport.RemInvReqErr,
		wire.RefuseAccess: transport.RemAccessErr, wire.RefuseOp: transport.RemOpErr, 0x7E: transport.RemOpErr, 0x40: transport.RemOpErr} {
		f := newForge(t, Config{Seed: 10})
		q := f.qp(QPOptions{Timeout: 22})
		for id := range uint64(5) {
			q.Send(WR{ID: id, Op: transport.OpWrite, N: 10})
		}
		xs := data(f.collect())
		f.deliver(f.acks(xs[2], xs[3])) // the failed one was held, and the next
		r := refuses(xs[4], q, code)
		r.PSN = xs[2].PSN
		f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{r}, Paths: []wire.PathBlock{{Path: xs[2].Header.Path, Highest: xs[2].Seq}}}))
		//= MR-MSG-081 MR-MSG-086 MR-MSG-003 MR-MSG-001 MR-WIRE-075
		got := []transport.Status{transport.OK, transport.OK, want, transport.WRFlushErr, transport.WRFlushErr}
		if len(q.Sends) != 5 {
			t.Fatalf("%#x: %+v", code, q.Sends)
		}
		for i, c := range q.Sends {
			if c.ID != uint64(i) || c.Status != got[i] {
				t.Errorf("%#x: completion %d: %+v, want %v", code, i, c, got[i])
			}
		}
	}
}

// TestSpecLowestFailure: of two failures the one of the lower PSN counts, whichever is told first.
func TestSpecLowestFailure(t *testing.T) {
	for _, swap := range []bool{false, true} {
		f := newForge(t, Config{Seed: 11})
		q := f.qp(QPOptions{Timeout: 22})
		q.Send(WR{ID: 0, Op: transport.OpWrite, N: 10})
		q.Send(WR{ID: 1, Op: transport.OpRead, N: 10})
		q.Send(WR{ID: 2, Op: transport.OpWrite, N: 10})
		q.Send(WR{ID: 3, Op: transport.OpWrite, N: 10})
		xs := data(f.collect())
		f.deliver(f.acks(xs[0], xs[1]))
		a := wire.RefusalBlock{Path: 0xFFFF, QPN: q.Number(), PSN: xs[1].PSN, Code: wire.RefuseAccess} // the READ's memory is gone
		b := refuses(xs[3], q, wire.RefuseInvalid)
		if swap {
			f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{b}}))
		}
		f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{a}}))
		f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{b}}))
		//= MR-MSG-082 MR-MSG-085 MR-MSG-090
		if len(q.Sends) != 4 || q.Sends[0].Status != transport.OK || q.Sends[1].Status != transport.RemAccessErr || q.Sends[2].Status != transport.WRFlushErr {
			t.Errorf("swap %v: %+v", swap, q.Sends)
		}
	}
}

// TestSpecTwoFailures: while an earlier READ is unanswered, two failures are told; the lower PSN's counts.
func TestSpecTwoFailures(t *testing.T) {
	f, q := receiver(t, Config{Seed: 11})
	q.Send(WR{ID: 0, Op: transport.OpRead, N: 10})
	for id := range uint64(3) {
		q.Send(WR{ID: id + 1, Op: transport.OpWrite, N: 10})
	}
	xs := data(f.collect())
	f.deliver(f.acks(xs[0]))
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{refuses(xs[2], q, wire.RefuseAccess)}}))
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{refuses(xs[3], q, wire.RefuseInvalid)}}))
	if len(q.Sends) != 0 {
		t.Fatalf("%+v", q.Sends)
	}
	f.respond(q, 0, 0, 0, true, bytesOf(1, 10))
	//= MR-MSG-082 MR-MSG-084
	for i, want := range []transport.Status{transport.OK, transport.OK, transport.RemAccessErr, transport.WRFlushErr} {
		if len(q.Sends) != 4 || q.Sends[i].Status != want {
			t.Errorf("%+v", q.Sends)
		}
	}
}

// TestSpecCompletion: what a success waits for.
func TestSpecCompletion(t *testing.T) {
	f, q := receiver(t, Config{Seed: 12})
	q.Send(WR{ID: 0, Op: transport.OpWrite, N: 8192})
	q.Send(WR{ID: 1, Op: transport.OpRead, N: 100, Local: 5000})
	q.Send(WR{ID: 2, Op: transport.OpSend, N: 10})
	xs := data(f.collect())
	f.deliver(f.acks(xs[0], xs[2], xs[3])) // all but the first WRITE's tail
	f.respond(q, 1, 0, 50, true, bytesOf(2, 50))
	n := func() int { return len(q.Sends) }
	//= MR-MSG-002 MR-MSG-001
	if n() != 0 {
		t.Errorf("a packet is missing: %+v", q.Sends)
	}
	f.deliver(f.acks(xs[1]))
	if n() != 1 || q.Sends[0].ID != 0 {
		t.Errorf("the READ is not answered: %+v", q.Sends)
	}
	//= MR-MSG-073
	if f.n.Mem[5000] != 0 || f.n.Mem[5050] != 2 {
		t.Error("the response is not where it belongs")
	}
	f.n.Mem[5050] = 77
	f.respond(q, 1, 0, 50, true, bytesOf(3, 50)) // the same response again
	//= MR-MSG-073 MR-MSG-002
	if f.n.Mem[5050] != 77 || n() != 1 {
		t.Error("a response was stored twice")
	}
	f.respond(q, 0, 0, 0, false, bytesOf(1, 50))
	//= MR-MSG-002
	if n() != 3 || f.n.Mem[5000] != 1 || q.Sends[1].Status != transport.OK || q.Sends[2].Status != transport.OK {
		t.Errorf("%+v", q.Sends)
	}
}
