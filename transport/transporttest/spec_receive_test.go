package transporttest

import (
	"bytes"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// slotAt is where receive i of these tests puts its data.
func slotAt(i int) uint64 { return 10_000 + uint64(i)*1000 }

// post posts n receives of 500 bytes, numbered on.
func (f *forge) post(q *QP, from, n int) {
	for i := from; i < from+n; i++ {
		q.Recv(uint64(i), slotAt(i), 500)
	}
}

// TestSpecMatching: the data of a SEND goes to the receive of its number, whatever arrives first.
func TestSpecMatching(t *testing.T) {
	f, q := receiver(t, Config{Seed: 1})
	f.post(q, 0, 4)
	h := to(q, wire.OpSendImm, 4, "TA")
	h.SSN, h.Imm = 3, 0x01020304
	imm := f.packet(h, bytesOf(4, 30))
	h = to(q, wire.OpWriteImm, 3, "TA")
	h.SSN, h.VA, h.RKey, h.Len, h.Imm = 2, 200, 7, 8, 77
	wimm := f.packet(h, bytesOf(3, 8))
	ps := []pkt.Packet{imm, f.send(q, 1, "TA", 0, 300, bytesOf(1, 100)), wimm, f.send(q, 2, "TA", 1, 0, bytesOf(2, 20))}
	for i, p := range ps {
		xs := f.deliver(p)
		f.want("ahead of its turn", xs, p, "ack")
		//= MR-MSG-051 MR-MSG-030 MR-VRB-030
		if len(q.Received) != 0 {
			t.Fatalf("after packet %d: received %+v", i, q.Received)
		}
	}
	f.deliver(f.send(q, 0, "A", 0, 0, bytesOf(9, 300)))
	//= MR-MSG-050
	for i, want := range [][]byte{append(bytesOf(9, 300), bytesOf(1, 100)...), bytesOf(2, 20), bytesOf(0, 500), bytesOf(4, 30)} {
		if got := f.n.Mem[slotAt(i) : slotAt(i)+uint64(len(want))]; !bytes.Equal(got, want) {
			t.Errorf("receive %d holds %v", i, got)
		}
	}
	//= MR-MSG-051
	want := []Completion{{ID: 0, Op: transport.OpSend, Len: 400}, {ID: 1, Op: transport.OpSend, Len: 20}, {ID: 2, Op: transport.OpWriteImm, Len: 8, Imm: 77},
		{ID: 3, Op: transport.OpSendImm, Len: 30, Imm: 0x01020304}}
	if len(q.Received) != 4 {
		t.Fatalf("received %+v", q.Received)
	}
	for i, c := range q.Received {
		c.At = 0
		if i == 2 {
			c.Len = 8 // of the WRITE: the whole of it
		}
		if c != want[i] {
			t.Errorf("receive %d: %+v, want %+v", i, c, want[i])
		}
	}
}

// TestSpecBinding: a later message takes no receive that an earlier one needs.
func TestSpecBinding(t *testing.T) {
	f, q := receiver(t, Config{Seed: 2})
	f.post(q, 0, 1)
	p := f.send(q, 1, "TA", 1, 0, bytesOf(2, 10))
	//= MR-MSG-052
	f.want("the second of one receive", f.deliver(p), p, "RNR")
	p = f.send(q, 0, "TA", 0, 0, bytesOf(1, 10))
	f.want("the first", f.deliver(p), p, "ack")
	f.post(q, 1, 2)
	p = f.send(q, 2, "TA", 2, 0, bytesOf(3, 10))
	f.want("the third", f.deliver(p), p, "ack")
	p = f.send(q, 1, "TA", 1, 0, bytesOf(2, 10))
	f.want("the second", f.deliver(p), p, "ack")
	//= MR-MSG-052 MR-MSG-051
	for i := range 3 {
		if len(q.Received) != 3 || q.Received[i].ID != uint64(i) || f.n.Mem[slotAt(i)] != byte(i+1) {
			t.Errorf("received %+v", q.Received)
		}
	}
}

// TestSpecInOrder: a refusal says whether its PSN was the lowest that had not arrived.
func TestSpecInOrder(t *testing.T) {
	f, q := receiver(t, Config{Seed: 3})
	inOrder := func(xs []*sent, psn uint32) bool {
		for _, x := range of(xs, wire.OpAck) {
			for _, r := range x.Ack.Refusals {
				if r.Code == wire.RefuseRNR && uint32(r.PSN) == psn && r.Seq == f.seq[0] {
					return r.InOrder
				}
			}
		}
		t.Fatalf("PSN %d is not refused", psn)
		return false
	}
	send := func(psn uint32) pkt.Packet { return f.send(q, psn, "TA", 0, 0, nil) }
	//= MR-MSG-067
	if inOrder(f.deliver(send(1)), 1) {
		t.Error("PSN 0 is missing")
	}
	if !inOrder(f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 8)), send(1)), 1) {
		t.Error("PSN 0 arrived in the same burst")
	}
	if !inOrder(f.deliver(send(1)), 1) {
		t.Error("PSN 0 arrived before")
	}
	if inOrder(f.deliver(f.write(q, 2, "TA", 0, 7, bytesOf(1, 8)), send(3)), 3) {
		t.Error("PSN 1 was refused: it has not arrived")
	}
	//= MR-MSG-044
	if f.n.Mem[0] != 1 || len(q.Received) != 0 {
		t.Error("a refused packet left a trace")
	}
}

// TestSpecReceiveTooSmall: it fails in its turn, at both ends.
func TestSpecReceiveTooSmall(t *testing.T) {
	f, q := receiver(t, Config{Seed: 4})
	f.post(q, 0, 2)
	late := f.write(q, 0, "TA", 0, 7, bytesOf(1, 8))
	f.deliver(f.send(q, 1, "", 0, 0, bytesOf(1, 400)), f.send(q, 2, "TA", 0, 400, bytesOf(1, 101)))
	if len(q.Received) != 0 {
		t.Fatalf("received %+v before the turn", q.Received)
	}
	xs := f.deliver(late)
	//= MR-MSG-053
	f.want("what released it", xs, late, "INVALID")
	//= MR-MSG-053 MR-MSG-055
	if len(q.Received) != 2 || q.Received[0].Status != transport.LocLenErr || q.Received[1].Status != transport.WRFlushErr {
		t.Errorf("received %+v", q.Received)
	}
}

// TestSpecInvalidate: the key goes when the SEND_INV's turn comes, and before the receive completes.
func TestSpecInvalidate(t *testing.T) {
	f, q := receiver(t, Config{Seed: 5})
	f.post(q, 0, 2)
	f.n.Keys[8] = Key{0, 4096, true, true, true, false}
	there := true
	q.OnRecv = func(c Completion) {
		if c.ID == 1 {
			_, there = f.n.Keys[8]
		}
	}
	h := to(q, wire.OpSendInv, 2, "TA")
	h.SSN, h.Inv = 1, 8
	f.deliver(f.packet(h, bytesOf(1, 8)))
	use := f.write(q, 1, "TA", 100, 8, bytesOf(1, 8))
	f.deliver(use)
	//= MR-MSG-054
	if _, ok := f.n.Keys[8]; !ok {
		t.Error("the key is gone before its turn")
	}
	p := f.send(q, 0, "TA", 0, 0, bytesOf(1, 8))
	f.want("the first", f.deliver(p), p, "ack")
	//= MR-MSG-054
	if there || len(q.Received) != 2 || f.n.Mem[100] != 1 {
		t.Errorf("key there at the completion: %v; received %+v", there, q.Received)
	}
}

// TestSpecBoundReceives: what becomes of bound receives when a QP ends.
func TestSpecBoundReceives(t *testing.T) {
	t.Run("error", func(t *testing.T) {
		f, q := receiver(t, Config{Seed: 6})
		f.post(q, 0, 4)
		f.deliver(f.send(q, 3, "TA", 2, 0, bytesOf(1, 8))) // binds 0, 1, 2
		q.ToError(f.w.Now)
		//= MR-MSG-055
		if len(q.Received) != 4 {
			t.Fatalf("received %+v", q.Received)
		}
		for i, c := range q.Received {
			if c.ID != uint64(i) || c.Status != transport.WRFlushErr {
				t.Errorf("receive %d: %+v", i, c)
			}
		}
	})
	for _, how := range []string{"reset", "destroy"} {
		t.Run(how+" with SRQ", func(t *testing.T) {
			f := newForge(t, Config{Seed: 6})
			q := srqQP(f)
			for i := range 5 {
				q.Recvs = append(q.Recvs, &transport.RecvWR{ID: uint64(i), SGE: []transport.SGE{{Addr: slotAt(i), Length: 500}}, Length: 500})
			}
			q.RecvPosted(f.w.Now, 5)
			xs := f.deliver(f.send(q, 3, "TA", 2, 0, bytesOf(1, 8)))
			xs = append(xs, f.wait(100*mono.Millisecond)...)
			//= MR-MSG-060
			for _, x := range of(xs, wire.OpAck) {
				if len(x.Ack.QPs) != 0 {
					t.Errorf("a limit for a QP with SRQ: %+v", x.Ack.QPs)
				}
			}
			if how == "reset" {
				q.Reset(f.w.Now)
			} else {
				q.Destroy(f.w.Now)
			}
			//= MR-MSG-055
			if len(q.Recvs) != 5 || len(q.Received) != 0 {
				t.Fatalf("%d receives are back", len(q.Recvs))
			}
			for i, r := range q.Recvs {
				if r.ID != uint64(i) {
					t.Errorf("receive %d of the SRQ is %d", i, r.ID)
				}
			}
		})
	}
}

// srqQP is a QP that takes its receives from an SRQ.
func srqQP(f *forge) *QP {
	q := &QP{N: f.n}
	q.QP = f.n.E.CreateQP(0x500, metaroce.QPConfig{Owner: q, SQEntries: 16, MaxSendSGE: 1, SRQ: true})
	q.ToInit()
	f.n.QPs = append(f.n.QPs, q)
	f.join(q, QPOptions{})
	return q
}

// TestSpecReadResend: a response that is sent again carries what was read first, until it is acknowledged.
func TestSpecReadResend(t *testing.T) {
	f, q := receiver(t, Config{Seed: 7})
	copy(f.n.Mem, bytesOf(5, 100))
	xs := data(f.deliver(f.read(q, 0, 0, 7, 100), f.atomic(q, 1, 200, 7, 9)))
	copy(f.n.Mem, bytesOf(6, 100))
	seen := 0
	for _, x := range data(f.wait(20 * mono.Millisecond)) {
		seen++
		//= MR-MSG-071 MR-MSG-072
		if x.Op == wire.OpReadResp && !bytes.Equal(x.Payload, bytesOf(5, 100)) || x.Op == wire.OpAtomicResp && x.Result != 0 {
			t.Errorf("%v: %v, result %d", x, x.Payload, x.Result)
		}
	}
	if seen < 4 {
		t.Fatalf("%d responses were sent again", seen)
	}
	f.deliver(f.acks(append(xs, data(f.log)...)...))
	if ys := data(f.wait(50 * mono.Millisecond)); len(ys) != 0 {
		t.Errorf("acknowledged, and sent again: %v", ys)
	}
}

// TestSpecReadWindowFrees: the turn of number n frees the responses up to n - max_dest_rd_atomic.
func TestSpecReadWindowFrees(t *testing.T) {
	f := newForge(t, Config{Seed: 8, Engine: func(c *metaroce.Config) { c.RespBuffers = 2 }})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	q := f.qp(QPOptions{Rd: 2, Timeout: 22})
	for psn := range uint32(2) {
		f.deliver(f.read(q, psn, 0, 7, 100))
	}
	n := len(data(f.log))
	//= MR-MSG-072
	for psn := uint32(2); psn < 8; psn++ { // not one response is acknowledged, and there are two buffers
		xs := data(f.deliver(f.read(q, psn, 0, 7, 100)))
		if len(xs) != 1 || xs[0].ReadNo != psn {
			t.Errorf("READ %d: responses %v", psn, xs)
		}
	}
	if n != 2 {
		t.Errorf("%d responses to two READs", n)
	}
	n = len(f.log)
	f.wait(20 * mono.Millisecond)
	for _, x := range data(f.log[n:]) {
		//= MR-MSG-072
		if x.ReadNo < 6 {
			t.Errorf("READ %d is still answered", x.ReadNo)
		}
	}
}

// TestSpecBadResponses: responses that do not fit their READ.
func TestSpecBadResponses(t *testing.T) {
	for name, bad := range map[string]func(f *forge, q *QP) pktOut{
		"beyond the end": func(f *forge, q *QP) pktOut { return f.respond(q, 0, 0, 96, true, bytesOf(1, 8)) },
		"far beyond":     func(f *forge, q *QP) pktOut { return f.respond(q, 0, 0, 0xFFFFFFFC, true, bytesOf(1, 8)) },
		"an atomic's":    func(f *forge, q *QP) pktOut { return f.result(q, 0, 0, 5) },
	} {
		f := newForge(t, Config{Seed: 9})
		q := f.qp(QPOptions{Timeout: 22})
		q.Send(WR{Op: transport.OpRead, N: 100})
		q.Send(WR{Op: transport.OpWrite, N: 100})
		f.collect()
		out := bad(f, q)
		//= MR-MSG-075 MR-REL-017
		if len(q.Sends) != 2 || q.Sends[0].Status != transport.BadRespErr || q.Sends[1].Status != transport.WRFlushErr || out.answer != "ack" {
			t.Errorf("%s: %+v, answered %q", name, q.Sends, out.answer)
		}
	}
}

// TestSpecAsk: a READ that was acknowledged and makes no progress is asked about, again and again.
func TestSpecAsk(t *testing.T) {
	f := newForge(t, Config{Seed: 10})
	q := f.qp(QPOptions{Timeout: 10}) // 4.194304 ms
	const timeout = 4194304 * mono.Nanosecond
	q.Send(WR{Op: transport.OpRead, N: 100})
	x := data(f.collect())[0]
	f.deliver(f.acks(x))
	at := f.w.Now
	ask := func() *sent {
		for _, y := range of(f.wait(timeout), wire.OpProbe) {
			if y.Probe.Kind == wire.ProbeQP {
				return y
			}
		}
		t.Fatal("nobody asks")
		return nil
	}
	for range 3 {
		y := ask()
		//= MR-MSG-076
		if y.At.Sub(at) != timeout || y.Probe.QPN != peerQPN || y.Probe.PeerQPN != q.Number() || y.Probe.ReadNo != 0 || y.Probe.PSN != uint32(x.PSN) {
			t.Errorf("%v later: %+v", y.At.Sub(at), y.Probe)
		}
		at = y.At
		pr := y.Probe
		pr.Answer = wire.AnswerPending
		f.probeAnswer(pr)
		//= MR-MSG-077
		if q.Failed {
			t.Fatal("PENDING ends the QP")
		}
	}
	pr := ask().Probe
	pr.Answer = wire.AnswerExecuted
	f.probeAnswer(pr)
	//= MR-MSG-077
	if q.Failed {
		t.Fatal("EXECUTED ends the QP")
	}
	pr.Answer = wire.AnswerUnknown
	f.probeAnswer(pr)
	if len(q.Sends) != 1 || q.Sends[0].Status == transport.OK {
		t.Errorf("UNKNOWN: %+v", q.Sends)
	}
	// UNKNOWN counts only for what was acknowledged; FAILED names the culprit
	r := f.qp(QPOptions{Timeout: 22})
	r.Send(WR{Op: transport.OpRead, N: 100})
	y := data(f.collect())[0]
	pr = wire.Probe{Kind: wire.ProbeQP, QPN: peerQPN, PeerQPN: r.Number(), ReadNo: 0, PSN: uint32(y.PSN), Answer: wire.AnswerUnknown}
	f.probeAnswer(pr)
	//= MR-MSG-077
	if r.Failed {
		t.Error("UNKNOWN ends a QP whose READ may still be under way")
	}
	pr.Answer, pr.Code = wire.AnswerFailed, wire.RefuseAccess
	f.deliver(f.acks(y))
	f.probeAnswer(pr)
	if len(r.Sends) != 1 || r.Sends[0].Status != transport.RemAccessErr {
		t.Errorf("FAILED: %+v", r.Sends)
	}
}

func (f *forge) probeAnswer(pr wire.Probe) {
	b := make([]byte, 64)
	n := wire.PutProbe(b, &pr, wire.ProbeLen)
	f.deliver(f.packet(wire.Header{Op: wire.OpProbeAck}, b[:n]))
}

// TestSpecAnswers: what a responder says of a READ.
func TestSpecAnswers(t *testing.T) {
	f, q := receiver(t, Config{Seed: 11})
	about := func(psn, no uint32) wire.Probe {
		xs := of(f.probe(wire.Probe{Kind: wire.ProbeQP, QPN: q.Number(), PeerQPN: peerQPN, ReadNo: no, PSN: psn}, 0, wire.ProbeLen), wire.OpProbeAck)
		if len(xs) != 1 {
			t.Fatalf("%d answers", len(xs))
		}
		return xs[0].Probe
	}
	//= MR-MSG-077
	f.deliver(f.read(q, 1, 0, 7, 8)) // PSN 0 is missing
	if a := about(1, 0); a.Answer != wire.AnswerPending {
		t.Errorf("queued: %v", a.Answer)
	}
	xs := data(f.deliver(f.write(q, 0, "TA", 100, 7, bytesOf(1, 8))))
	if a := about(1, 0); a.Answer != wire.AnswerExecuted {
		t.Errorf("executed: %v", a.Answer)
	}
	f.deliver(f.acks(xs...))
	if a := about(1, 0); a.Answer != wire.AnswerUnknown {
		t.Errorf("response acknowledged: %v", a.Answer)
	}
	f.deliver(f.write(q, 2, "TA", 0, 99, bytesOf(1, 8)))
	//= MR-MSG-077 MR-MSG-083
	for psn := uint32(2); psn < 5; psn++ {
		if a := about(psn, 1); a.Answer != wire.AnswerFailed || a.PSN != 2 || a.Code != wire.RefuseAccess {
			t.Errorf("PSN %d of a QP that failed at 2: %+v", psn, a)
		}
	}
	q.Destroy(f.w.Now)
	if a := about(1, 0); a.Answer != wire.AnswerUnknown {
		t.Errorf("no QP: %v", a.Answer)
	}
}

// TestSpecFailed: a responder that failed says so to everything, and answers the READs before.
func TestSpecFailed(t *testing.T) {
	f, q := receiver(t, Config{Seed: 12})
	xs := f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 8)), f.read(q, 1, 0, 7, 8), f.write(q, 2, "TA", 0, 99, bytesOf(1, 8)), f.write(q, 3, "", 500, 7, bytesOf(1, 8)))
	//= MR-MSG-084
	if rs := data(xs); len(rs) != 1 || rs[0].Op != wire.OpReadResp || rs[0].Payload[0] != 1 {
		t.Errorf("responses %v", rs)
	}
	for _, psn := range []uint32{2, 3, 4, 100, 0, 1} {
		p := f.write(q, psn, "TA", 700, 7, bytesOf(1, 8))
		ys := f.deliver(p)
		//= MR-MSG-083 MR-MSG-081 MR-MSG-091
		f.want("a failed QP", ys, p, "ACCESS")
		for _, r := range of(ys, wire.OpAck)[0].Ack.Refusals {
			if r.PSN != 2 || r.QPN != peerQPN {
				t.Errorf("PSN %d is answered %+v", psn, r)
			}
		}
		for _, b := range of(ys, wire.OpAck)[0].Ack.Paths {
			//= MR-MSG-091
			if names(&b, f.seq[0]) {
				t.Errorf("PSN %d is refused and reported", psn)
			}
		}
	}
	//= MR-MSG-003
	if f.n.Mem[700] != 0 {
		t.Error("something behind the failure was written")
	}
}

// TestSpecReadGone: memory that is gone before all of a READ was read fails the READ at its PSN.
func TestSpecReadGone(t *testing.T) {
	f, q := receiver(t, Config{Seed: 13})
	f.n.Keys[8] = Key{0, 1 << 20, true, true, true, false}
	f.deliver(f.ack(acked{Planes: []wire.PlaneBlock{{Plane: 0, Grant: 5000}}}))
	xs := data(f.deliver(f.read(q, 0, 0, 8, 50_000)))
	p := f.write(q, 1, "TA", 100, 7, bytesOf(1, 8))
	f.want("a WRITE after the READ", f.deliver(p), p, "ack")
	delete(f.n.Keys, 8)
	out := append(f.deliver(f.acks(xs...)), f.wait(100*mono.Microsecond)...)
	var r *wire.RefusalBlock
	for _, x := range of(out, wire.OpAck) {
		for i := range x.Ack.Refusals {
			r = &x.Ack.Refusals[i]
		}
	}
	//= MR-MSG-085 MR-MSG-090 MR-MSG-082
	if r == nil || r.Path != 0xFFFF || r.QPN != peerQPN || r.PSN != 0 || r.Code != wire.RefuseAccess || !q.Failed {
		t.Errorf("refusal %+v, failed %v", r, q.Failed)
	}
}

// TestSpecNotAble: requests to QPs that are not there or not able to receive.
func TestSpecNotAble(t *testing.T) {
	f, q := receiver(t, Config{Seed: 14})
	fresh := f.n.NewQP(QPOptions{}) // INIT
	dead := f.qp(QPOptions{})
	dead.ToError(f.w.Now)
	for _, c := range []struct {
		qpn, want uint32
	}{{0x7777, 0}, {fresh.Number(), 0}, {dead.Number(), peerQPN}, {0, 0}} {
		h := to(q, wire.OpSend, 5, "TA")
		h.DestQP = c.qpn
		p := f.packet(h, bytesOf(1, 8))
		xs := f.deliver(p)
		//= MR-MSG-087
		f.want("not able", xs, p, "NO_QP")
		for _, r := range of(xs, wire.OpAck)[0].Ack.Refusals {
			if r.QPN != c.want && r.Seq == f.seq[0] || r.PSN != 5 {
				t.Errorf("QP %#x: %+v", c.qpn, r)
			}
		}
	}
}

// TestSpecMisaligned: an atomic at an address that is no multiple of 8.
func TestSpecMisaligned(t *testing.T) {
	f, q := receiver(t, Config{Seed: 15})
	p := f.atomic(q, 0, 12, 7, 1)
	//= MR-WIRE-043
	f.want("misaligned", f.deliver(p), p, "INVALID")
	if f.n.Mem[12] != 0 {
		t.Error("it ran")
	}
}
