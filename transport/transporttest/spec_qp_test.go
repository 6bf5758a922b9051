package transporttest

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// toRTR takes a QP in INIT so far that it receives and does not send.
func (f *forge) toRTR(q *QP) {
	q.ToRTR(f.w.Now, metaroce.RTRAttr{Local: f.n.Addr, Remote: f.addr, RemoteQPN: peerQPN, PathMTU: 4096, MaxDestRdAtomic: 4})
}

// TestSpecStates: which states take request packets.
func TestSpecStates(t *testing.T) {
	for _, c := range []struct {
		name string
		to   func(f *forge, q *QP)
		want string
	}{
		{"INIT", func(*forge, *QP) {}, "NO_QP"},
		{"RTR", func(f *forge, q *QP) { f.toRTR(q) }, "ack"},
		{"RTS", func(f *forge, q *QP) { f.join(q, QPOptions{}) }, "ack"},
		{"SQD", func(f *forge, q *QP) { f.join(q, QPOptions{}); q.ToSQD() }, "ack"},
		{"ERR", func(f *forge, q *QP) { f.join(q, QPOptions{}); q.ToError(f.w.Now) }, "NO_QP"},
		{"ERR from INIT", func(f *forge, q *QP) { q.ToError(f.w.Now) }, "NO_QP"},
		{"RESET", func(f *forge, q *QP) { f.join(q, QPOptions{}); q.Reset(f.w.Now) }, "NO_QP"},
	} {
		f := newForge(t, Config{Seed: 1})
		f.n.Keys[7] = Key{0, 1 << 16, true, true, true, false}
		q := f.n.NewQP(QPOptions{})
		c.to(f, q)
		p, r := f.write(q, 0, "TA", 100, 7, bytesOf(9, 8)), f.read(q, 1, 0, 7, 64)
		xs := f.deliver(p, r)
		//= MR-QP-002 MR-QP-003 MR-QP-023
		f.want(c.name, xs, p, c.want)
		//= MR-QP-002 MR-QP-003
		if got, want := len(of(xs, wire.OpReadResp)), map[string]int{"ack": 1}[c.want]; got != want {
			t.Errorf("%s: %d responses to a READ", c.name, got)
		}
		if got := bytes.Contains(f.n.Mem, bytesOf(9, 8)); got != (c.want == "ack") {
			t.Errorf("%s: written %v", c.name, got)
		}
	}
}

// TestSpecSendsInRTS: a QP that only receives sends no requests, and is acknowledged all the same.
func TestSpecSendsInRTS(t *testing.T) {
	f := newForge(t, Config{Seed: 2})
	q := f.n.NewQP(QPOptions{})
	f.toRTR(q)
	//= MR-QP-001
	if xs := data(f.wait(10 * mono.Millisecond)); len(xs) != 0 {
		t.Errorf("in RTR it sends %v", xs)
	}
	q.ToRTS(f.w.Now, metaroce.RTSAttr{Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4})
	q.Send(WR{Op: transport.OpWrite, N: 8})
	xs := data(f.collect())
	//= MR-QP-001
	if len(xs) != 1 {
		t.Fatalf("in RTS it sends %v", xs)
	}
	q.ToError(f.w.Now)
	//= MR-QP-001 MR-QP-025
	if ys := data(f.wait(100 * mono.Millisecond)); len(ys) != 0 {
		t.Errorf("in ERR it sends %v", ys)
	}
}

// TestSpecBindsPeer: on the way to RTR the association is opened; packets of another one are not the QP's.
func TestSpecBindsPeer(t *testing.T) {
	f := newStranger(t, Config{Seed: 3})
	q := f.n.NewQP(QPOptions{})
	if xs := f.collect(); len(xs) != 0 {
		t.Errorf("in INIT it sends %v", xs)
	}
	f.toRTR(q)
	//= MR-QP-004
	if xs := of(f.collect(), wire.OpHello); len(xs) != 1 || xs[0].Hello.Stage != wire.HelloInit || xs[0].Dst != f.addr {
		t.Fatalf("on the way to RTR it sends %v", xs)
	}
}

// TestSpecChange: timers and limits that are changed hold for what was posted before; a new address of the peer takes what
// is in flight with it, and packets of the old one mean nothing any more.
func TestSpecChange(t *testing.T) {
	f := newForge(t, Config{Seed: 3})
	o := QPOptions{Timeout: 22, Rd: 1}
	q := f.qp(o)
	o.defaults()
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	change := func(remote netip.Addr, timeout, retry uint8, rd int) bool {
		return q.Change(f.w.Now, metaroce.RTRAttr{Local: f.n.Addr, Remote: remote, RemoteQPN: peerQPN, PathMTU: o.MTU, MaxDestRdAtomic: o.Rd, MinRNRTimer: 3},
			metaroce.RTSAttr{Timeout: timeout, RetryCnt: retry, RNRRetry: 7, MaxRdAtomic: rd})
	}
	for i := range uint64(3) {
		q.Send(WR{ID: i, Op: transport.OpRead, Local: 100 * i, Remote: 0, N: 8, Key: 7})
	}
	if xs := of(f.collect(), wire.OpRead); len(xs) != 1 {
		t.Fatalf("%d READs at a time", len(xs))
	}
	change(f.addr, 22, 7, 3)
	//= MR-QP-012
	if xs := of(f.collect(), wire.OpRead); len(xs) != 2 {
		t.Errorf("%d READs more", len(xs))
	}
	p := f.send(q, 0, "TA", 0, 0, bytesOf(1, 8))
	//= MR-QP-012
	if xs := f.deliver(p); len(of(xs, wire.OpAck)) == 0 || of(xs, wire.OpAck)[0].Ack.Refusals[0].Timer != 3 {
		t.Errorf("not refused with the new timer: %v", xs)
	}
	there := netip.MustParseAddr("10.0.9.8")
	q.ToSQD()
	if !change(there, 12, 0, 3) {
		t.Fatal("no room")
	}
	//= MR-QP-012 MR-QP-004
	if xs := of(f.collect(), wire.OpHello); len(xs) == 0 || xs[0].Dst != there {
		t.Fatalf("it sends %v", xs)
	}
	p = f.write(q, 0, "TA", 0, 7, bytesOf(1, 8))
	//= MR-QP-012 MR-QP-004
	f.want("from the old address", f.deliver(p), p, "NO_QP")
	old := f.tag
	f.addr, f.hello.Tag = there, peerTag+1
	f.meet()
	if f.tag == old {
		t.Fatal("the same association")
	}
	reads := map[uint32]bool{}
	for _, x := range of(append(f.log, f.collect()...), wire.OpRead) {
		if x.Dst == there {
			reads[uint32(x.PSN)] = true
		}
	}
	//= MR-QP-012
	if len(reads) != 3 {
		t.Errorf("READs to the new address: %v", reads)
	}
	f.seq = map[uint16]uint32{}
	p = f.write(q, 0, "TA", 0, 7, bytesOf(1, 8))
	f.want("from the new address", f.deliver(p), p, "ack")
	f.wait(20 * mono.Millisecond)
	//= MR-QP-012
	if !q.Failed || len(q.Sends) != 3 || q.Sends[0].Status != transport.RetryExcErr {
		t.Errorf("with one try of 16.8 ms: failed %v, %v", q.Failed, q.Sends)
	}
	f.n.E.SetPlane(f.w.Now, 0, false) // sums and bounds hold
	if s := f.n.E.Audit(); s != "" {
		t.Error(s)
	}
}

// TestSpecReceivesInInit: what was posted before the QP was able to receive counts.
func TestSpecReceivesInInit(t *testing.T) {
	f := newForge(t, Config{Seed: 4})
	q := f.n.NewQP(QPOptions{})
	q.Recv(1, 0, 100)
	q.Recv(2, 200, 100)
	f.join(q, QPOptions{})
	limit := uint32(0)
	for _, x := range of(f.wait(mono.Millisecond), wire.OpAck) {
		for _, b := range x.Ack.QPs {
			limit = b.Limit
		}
	}
	//= MR-QP-005
	if limit != 2 {
		t.Errorf("limit %d", limit)
	}
	p := f.send(q, 0, "TA", 0, 0, bytesOf(1, 8))
	xs := f.deliver(p)
	f.want("SEND", xs, p, "ack")
	//= MR-QP-005
	if len(q.Received) != 1 || q.Received[0].ID != 1 {
		t.Errorf("received %+v", q.Received)
	}
}

func statuses(cs []Completion) (s []transport.Status) {
	for _, c := range cs {
		s = append(s, c.Status)
	}
	return s
}

// TestSpecFlush: the request that failed has the cause, everything else is flushed in post order, and so is what is
// posted later. Then nothing is executed and nothing is sent.
func TestSpecFlush(t *testing.T) {
	f, q := receiver(t, Config{Seed: 5})
	for i := range 3 {
		q.Recv(uint64(10+i), 0, 64)
		q.Send(WR{ID: uint64(i), Op: transport.OpWrite, N: 8})
	}
	xs := data(f.collect())
	f.deliver(f.acks(xs[0]))
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{refuses(xs[1], q, wire.RefuseAccess)}}))
	q.Send(WR{ID: 3, Op: transport.OpWrite, N: 8})
	q.Recv(13, 0, 64)
	//= MR-QP-020 MR-QP-021
	want := []transport.Status{transport.OK, transport.RemAccessErr, transport.WRFlushErr, transport.WRFlushErr}
	for i, c := range q.Sends {
		if c.ID != uint64(i) || i < len(want) && c.Status != want[i] {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
	//= MR-QP-020 MR-QP-021
	for i, c := range q.Received {
		if c.ID != uint64(10+i) || c.Status != transport.WRFlushErr {
			t.Errorf("receive %d: %+v", i, c)
		}
	}
	if len(q.Sends) != 4 || len(q.Received) != 4 || q.Errors != 1 {
		t.Errorf("sends %v, receives %v, %d errors", statuses(q.Sends), statuses(q.Received), q.Errors)
	}
	p := f.write(q, 0, "TA", 100, 7, bytesOf(9, 8))
	//= MR-QP-022 MR-QP-023
	f.want("a request to it", f.deliver(p), p, "NO_QP")
	if bytes.Contains(f.n.Mem, bytesOf(9, 8)) {
		t.Error("it was executed")
	}
	//= MR-QP-022 MR-QP-025
	if ys := data(f.wait(100 * mono.Millisecond)); len(ys) != 0 {
		t.Errorf("it sends %v", ys)
	}
}

// TestSpecResponderFails: a failure found serving the peer ends the requester's half, too.
func TestSpecResponderFails(t *testing.T) {
	f, q := receiver(t, Config{Seed: 6})
	q.Send(WR{ID: 1, Op: transport.OpWrite, N: 8})
	q.Send(WR{ID: 2, Op: transport.OpRead, N: 8})
	xs := data(f.collect())
	p := f.write(q, 0, "TA", 100, 99, bytesOf(9, 8))
	f.want("bad key", f.deliver(p), p, "ACCESS")
	//= MR-QP-022 MR-QP-020
	if got := statuses(q.Sends); len(got) != 2 || got[0] != transport.WRFlushErr || got[1] != transport.WRFlushErr {
		t.Errorf("sends %v", got)
	}
	f.deliver(f.acks(xs...))
	//= MR-QP-025
	if ys := data(f.wait(100 * mono.Millisecond)); len(ys) != 0 || f.n.E.InFlight() != 0 {
		t.Errorf("it sends %v, %d in flight", ys, f.n.E.InFlight())
	}
}

// TestSpecForgets: reset and destroy forget without a completion what the QP had and held.
func TestSpecForgets(t *testing.T) {
	for _, destroy := range []bool{false, true} {
		f, q := receiver(t, Config{Seed: 7})
		q.Recv(1, 0, 64)
		q.Send(WR{Op: transport.OpSend, N: 8})
		q.Send(WR{Op: transport.OpRead, N: 8})
		mine := data(f.collect())
		f.deliver(f.read(q, 0, 0, 7, 4096), f.write(q, 2, "TA", 0, 7, bytesOf(9, 8))) // a response kept, a tail held
		if destroy {
			q.Destroy(f.w.Now)
		} else {
			q.Reset(f.w.Now)
		}
		//= MR-QP-024
		if len(q.Sends) != 0 || len(q.Received) != 0 || q.Errors != 0 {
			t.Errorf("completions %v %v", q.Sends, q.Received)
		}
		//= MR-QP-025
		if f.n.E.InFlight() != 3 {
			t.Errorf("%d in flight", f.n.E.InFlight())
		}
		f.deliver(f.acks(mine...))
		//= MR-QP-025
		if ys := data(f.wait(200 * mono.Millisecond)); len(ys) != 0 || f.n.E.InFlight() != 0 {
			t.Errorf("it sends %v, %d in flight", ys, f.n.E.InFlight())
		}
		if !destroy {
			//= MR-QP-026
			q.ToInit()
			q.Recv(5, 0, 64)
			f.join(q, QPOptions{Timeout: 22})
			q.Send(WR{Op: transport.OpSend, N: 8})
			q.Send(WR{Op: transport.OpRead, N: 8})
			xs := f.collect()
			f.w.Now = f.w.Now.Add(15 * mono.Millisecond) // what came at once might be of the former life
			if ys := data(xs); len(ys) != 2 || ys[0].PSN != 0 || ys[0].SSN != 0 || ys[1].PSN != 1 {
				t.Errorf("after reset: %v", ys)
			}
			if r := f.respond(q, 0, 0, 0, true, bytesOf(1, 8)); r.answer != "ack" {
				t.Errorf("response 0 is answered by %q", r.answer)
			}
			p := f.send(q, 0, "TA", 0, 0, bytesOf(2, 8))
			f.want("SEND 0", f.deliver(p), p, "ack")
			q.Destroy(f.w.Now)
		}
		//= MR-QP-024
		if s := f.n.E.Leaks(); s != "" {
			t.Error("left over:", s)
		}
	}
}

// TestSpecLongRead: 2^31 bytes are the most.
func TestSpecLongRead(t *testing.T) {
	for n, want := range map[uint32]string{1 << 31: "ack", 1<<31 + 1: "INVALID"} {
		f, q := receiver(t, Config{Seed: 8})
		f.n.Keys[8] = Key{0, 1 << 40, true, true, true, false}
		f.n.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemRead }
		p := f.read(q, 0, 0, 8, n)
		//= MR-VRB-006
		f.want("READ", f.deliver(p), p, want)
	}
}

// TestSpecTrafficClass: data packets have the DSCP of their QP and can be marked.
func TestSpecTrafficClass(t *testing.T) {
	f := newForge(t, Config{Seed: 9})
	q := f.n.NewQP(QPOptions{})
	q.ToRTR(f.w.Now, metaroce.RTRAttr{Local: f.n.Addr, Remote: f.addr, RemoteQPN: peerQPN, PathMTU: 4096, MaxDestRdAtomic: 4, TrafficClass: 0xB9})
	q.ToRTS(f.w.Now, metaroce.RTSAttr{Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4})
	q.Send(WR{Op: transport.OpWrite, N: 8})
	//= MR-COEX-040
	if xs := data(f.collect()); len(xs) != 1 || xs[0].TOS != 0xB8|2 {
		t.Errorf("type of service %#x", xs[0].TOS)
	}
}
