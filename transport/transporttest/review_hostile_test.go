package transporttest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestSameSendTwice: two messages that claim the same receive.
func TestSameSendTwice(t *testing.T) {
	for _, first := range []uint32{0, 5} {
		for _, together := range []bool{true, false} {
			f := newForge(t, Config{Seed: 1})
			q := f.qp(QPOptions{})
			for i := range uint64(10) {
				q.Recv(i, 0, 100)
			}
			x, y := f.send(q, 0, "T", first, 0, bytesOf(1, 80)), f.send(q, 1, "TA", first, 0, bytesOf(2, 80))
			if together {
				f.deliver(x, y)
			} else {
				f.deliver(x)
				f.deliver(y)
			}
			f.wait(mono.Millisecond)
			if !q.Failed {
				t.Errorf("first %d together %v: taken, %v", first, together, q.Received)
			}
			for i, c := range q.Received {
				if i > 0 && c.Status != transport.WRFlushErr {
					t.Errorf("%+v", c)
				}
			}
			if len(q.Received) != 10 {
				t.Errorf("%d of 10 receives ended", len(q.Received))
			}
		}
	}
}

// held reads a number out of a QP's description.
func held(q *QP, what, format string, args ...any) {
	s := q.Dump()
	fmt.Sscanf(s[strings.Index(s, what):], format, args...)
}

// TestAtomicFlood: a peer that never takes an answer cannot make the node keep them without end.
func TestAtomicFlood(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{Rd: 4})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	for i := range uint32(20_000) {
		f.deliver(f.atomic(q, i, 0, 7, 1))
		if q.Failed {
			return
		}
	}
	var lo, next, hi int
	held(q, "resps ", "resps %d/%d/%d", &lo, &next, &hi)
	if hi-lo > 4096 {
		t.Errorf("%d answers kept", hi-lo)
	}
}

// TestAnsweredTwice: a second answer to an atomic under another number changes nothing.
func TestAnsweredTwice(t *testing.T) {
	for _, together := range []bool{true, false} {
		f := newForge(t, Config{Seed: 1})
		q := f.qp(QPOptions{Rd: 4, SQ: 2})
		posted := uint64(0)
		post := func() {
			posted++
			q.Send(WR{ID: posted, Op: transport.OpFetchAdd, N: 8, Remote: 0, Key: 7})
		}
		post()
		q.OnSend = func(Completion) { post() } // into the place of the one that ended
		post()
		xs := data(f.collect())
		var ps []pkt.Packet
		for i := range uint32(2) {
			h := wire.Header{Op: wire.OpAtomicResp, DestQP: q.Number(), PSN: serialPSN(i), ReadNo: 0, Result: 5}
			ps = append(ps, f.packet(h, nil))
		}
		ps = append([]pkt.Packet{f.acks(xs...)}, ps...)
		if together {
			f.deliver(ps...)
		} else {
			for _, p := range ps {
				f.deliver(p)
			}
		}
		f.deliver(f.packet(wire.Header{Op: wire.OpAtomicResp, DestQP: q.Number(), PSN: 2, ReadNo: 1}, nil))
		f.deliver(f.acks(data(f.collect())...))
		if len(q.Sends) != 2 {
			t.Errorf("together %v: %d completions", together, len(q.Sends))
		}
		var n int
		held(q, "atomics ", "atomics %d", &n)
		if n < 0 || n > 2 {
			t.Errorf("together %v: %d atomics outstanding", together, n)
		}
	}
}

// TestRefusalsOfOddKinds: whatever a refusal says, the packet that it names is sent again or the request ends.
func TestRefusalsOfOddKinds(t *testing.T) {
	for _, x := range []struct {
		name string
		code wire.RefusalCode
		psn  uint32
	}{
		{"unknown, resend", 5, 0}, {"unknown, ignore", 0x90, 0}, {"ignore of another", 0xFF, 7},
		{"failed far ahead", wire.RefuseAccess, 1000}, {"failed far behind", wire.RefuseAccess, 0xFFFF00}, {"RNR of another", wire.RefuseRNR, 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newForge(t, Config{Seed: 1})
			q := f.qp(QPOptions{})
			q.Send(WR{ID: 1, Op: transport.OpWrite, N: 10, Key: 7})
			xs := data(f.collect())
			r := refuses(xs[0], q, x.code)
			r.PSN, r.Timer = serialPSN(x.psn), 1
			f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{r}}))
			for range 20 {
				if again := data(f.wait(10 * mono.Millisecond)); len(again) > 0 {
					f.deliver(f.acks(again[len(again)-1]))
				}
				f.deliver(f.acks(xs[0])) // the peer is alive
			}
			if len(q.Sends) != 1 || q.Sends[0].Status != transport.OK {
				t.Errorf("%v %s", q.Sends, q.Dump())
			}
		})
	}
}

// TestTwoFailures: the request before a local failure is done according to a refusal of a later one.
func TestTwoFailures(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{})
	for i := range uint64(3) {
		q.Send(WR{ID: i, Op: transport.OpWrite, N: 10, Key: 7})
	}
	first := data(f.collect())
	if len(first) != 3 {
		t.Fatal(first)
	}
	f.n.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemGather && op.WR.ID == 1 }
	again := data(f.wait(10 * mono.Millisecond))
	var last *sent
	for _, x := range again {
		if x.PSN == 0 {
			last = x
		}
	}
	if last == nil {
		t.Fatal("the first was not sent again")
	}
	r := refuses(last, q, wire.RefuseAccess)
	r.PSN = 2 // everything before was executed
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{r}}))
	f.wait(100 * mono.Millisecond)
	if len(q.Sends) != 3 || q.Sends[0].Status != transport.OK || q.Sends[1].Status != transport.LocProtErr || q.Sends[2].Status != transport.WRFlushErr {
		t.Errorf("%v\n%s", q.Sends, q.Dump())
	}
}

// TestReadGoneAfterFailure: a READ that was accepted before a request that failed loses its memory afterwards: the
// peer must learn of it.
func TestReadGoneAfterFailure(t *testing.T) {
	f := newForge(t, Config{Seed: 1, Engine: func(c *metaroce.Config) { c.FixedWindow = 10000 }})
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	resp := data(f.deliver(f.read(q, 0, 0, 7, 100_000)))
	if len(resp) == 0 || len(resp) > 4 {
		t.Fatalf("%d responses", len(resp))
	}
	p := f.write(q, 1, "TA", 0, 99, bytesOf(1, 10))
	f.want("the bad WRITE", f.deliver(p), p, "ACCESS")
	f.n.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemRead }
	xs := append(f.deliver(f.acks(resp...)), f.wait(mono.Millisecond)...)
	lowest := uint32(99)
	for _, x := range xs {
		for _, r := range x.Ack.Refusals {
			lowest = min(lowest, uint32(r.PSN))
		}
	}
	if lowest != 0 {
		t.Errorf("failed PSN told: %d, want 0", lowest)
	}
	var pb [wire.ProbeLen]byte
	pr := wire.Probe{Kind: wire.ProbeQP, QPN: q.Number(), PeerQPN: peerQPN, ReadNo: 0, PSN: 0}
	ans := of(f.deliver(f.packet(wire.Header{Op: wire.OpProbe}, pb[:wire.PutProbe(pb[:], &pr, wire.ProbeLen)])), wire.OpProbeAck)
	if len(ans) != 1 || ans[0].Probe.Answer != wire.AnswerFailed || ans[0].Probe.PSN != 0 {
		t.Errorf("PROBE is answered %+v", ans[0].Probe)
	}
}

// TestManyPieces: a tail whose bytes were overwritten in ever so many places by later packets costs bounded work, and
// the QP does not hang silently.
func TestManyPieces(t *testing.T) {
	for _, flags := range []string{"", "T"} {
		manyPieces(t, flags)
	}
}

func manyPieces(t *testing.T, flags string) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	var ps []pkt.Packet
	for i := range uint32(1500) { // bulk of one byte each, every other address
		ps = append(ps, f.write(q, 2+i, "", uint64(2*i), 7, bytesOf(2, 1)))
	}
	for range 3 { // sent again and again
		ps = append(ps, f.write(q, 1, flags, 0, 7, bytesOf(1, 4096)))
	}
	for len(ps) > 0 {
		n := min(64, len(ps))
		f.deliver(ps[:n]...)
		ps = ps[n:]
	}
	ops := 0
	f.n.After = func(*transport.MemOp) { ops++ }
	for range 50 {
		f.deliver(f.write(q, 0, "TA", 8192, 7, bytesOf(3, 10)))
		f.wait(mono.Millisecond)
	}
	if ops > 600 || f.n.E.C.RefusedLater > 0 {
		t.Errorf("%d memory operations, refused as LATER %d times", ops, f.n.E.C.RefusedLater)
	}
	if exp := 0; !q.Failed {
		if held(q, "exp ", "exp %d", &exp); exp < 2 {
			t.Errorf("stuck at %d", exp)
		}
	}
}

// TestFormerLife: what the peer sent to a QP before it was reset means nothing afterwards.
func TestFormerLife(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	o := QPOptions{}
	o.defaults()
	q := f.qp(o)
	f.n.Mem[0] = 1
	q.Send(WR{ID: 1, Op: transport.OpRead, N: 8, Key: 7})
	f.deliver(f.acks(data(f.collect())...))
	old := []pkt.Packet{
		f.packet(wire.Header{Op: wire.OpReadResp, DestQP: q.Number(), PSN: 0, ReadNo: 0}, bytesOf(9, 8)),
		f.ack(acked{Refusals: []wire.RefusalBlock{{Path: 0xFFFF, QPN: q.Number(), PSN: 0, Code: wire.RefuseAccess}}}),
		f.write(q, 0, "T", 0, 7, bytesOf(9, 8)),
	}
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	f.deliver(f.packet(wire.Header{Op: wire.OpAck}, make([]byte, 4))) // the clock is seen to go on
	q.Reset(f.w.Now)
	q.ToInit()
	f.join(q, o)
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	q.Send(WR{ID: 2, Op: transport.OpRead, N: 8, Key: 7})
	f.collect()
	f.deliver(old...)
	if len(q.Sends) != 0 || q.Failed || f.n.Mem[0] != 1 {
		t.Errorf("%v failed %v memory %d", q.Sends, q.Failed, f.n.Mem[0])
	}
}

// TestBogusAcks: each acknowledgement of what was never sent must not bring a handshake of its own.
func TestBogusAcks(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{})
	q.Send(WR{Op: transport.OpWrite, N: 10, Key: 7})
	x := data(f.collect())[0]
	n := 0
	for range 50 {
		n += len(of(f.deliver(f.ack(acked{Paths: []wire.PathBlock{{Path: x.Path, Highest: x.Seq + 50}}})), wire.OpHello))
	}
	if n != 1 {
		t.Errorf("50 bogus acks are answered by %d handshakes", n)
	}
}
