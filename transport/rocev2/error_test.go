package rocev2_test

import (
	"bytes"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/transporttest"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

const anyStatus = transport.Status(255)

// TestFaults: what a request can do wrong, with and without loss. Those before it succeed, it takes the status, those
// behind it are flushed; the responder's receive and QP say their part.
func TestFaults(t *testing.T) {
	const n = 9000
	for _, x := range []struct {
		name  string
		wr    wr
		prep  func(p, q *qp)
		want  transport.Status // of the request
		there transport.Status // of the responder's QP
		recv  transport.Status // of the third receive
	}{
		{name: "key", wr: wr{op: transport.OpWrite, n: n, key: 8}, want: transport.RemAccessErr, there: transport.RemAccessErr, recv: transport.WRFlushErr},
		{name: "bounds", wr: wr{op: transport.OpWrite, n: n, key: 7, remote: 4<<20 - 100}, want: transport.RemAccessErr, there: transport.RemAccessErr, recv: transport.WRFlushErr},
		{name: "read key", wr: wr{op: transport.OpRead, n: n, key: 8}, want: transport.RemAccessErr, there: transport.RemAccessErr, recv: transport.WRFlushErr},
		{name: "atomic key", wr: wr{op: transport.OpFetchAdd, n: 8, key: 8}, want: transport.RemAccessErr, there: transport.RemAccessErr, recv: transport.WRFlushErr},
		{name: "misaligned", wr: wr{op: transport.OpCmpSwap, n: 8, key: 7, remote: 4}, want: transport.RemInvReqErr, there: transport.RemInvReqErr, recv: transport.WRFlushErr},
		{name: "too long", wr: wr{op: transport.OpSend, n: 10_001}, want: transport.RemInvReqErr, there: transport.LocLenErr, recv: transport.LocLenErr},
		{name: "bad receive", wr: wr{op: transport.OpSend, n: n}, prep: func(_, q *qp) { q.recvs[2].Fail = transport.LocProtErr },
			want: transport.RemOpErr, there: transport.LocProtErr, recv: transport.LocProtErr},
		{name: "receive gone", wr: wr{op: transport.OpSend, n: n}, prep: func(_, q *qp) {
			q.n.Fault = func(op *transport.MemOp) bool {
				return op.Kind == transport.MemScatter && op.Recv.ID == 2 && op.Off > 0
			}
		}, want: transport.RemOpErr, there: transport.LocProtErr, recv: transport.LocProtErr},
		{name: "invalidate", wr: wr{op: transport.OpSendInv, n: n, imm: 9}, prep: func(_, q *qp) {
			q.n.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemInvalidate }
		}, want: transport.RemAccessErr, there: transport.RemAccessErr, recv: transport.WRFlushErr},
		{name: "own list", wr: wr{op: transport.OpWrite, n: n, key: 7, fail: transport.LocProtErr}, want: transport.LocProtErr, recv: transport.OK},
		{name: "own memory", wr: wr{op: transport.OpWrite, n: n, key: 7}, prep: func(p, _ *qp) {
			p.n.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemGather && op.WR.ID == 4 && op.Off > 0 }
		}, want: transport.LocProtErr, recv: transport.OK},
		{name: "landing", wr: wr{op: transport.OpRead, n: n, key: 7}, prep: func(p, _ *qp) {
			p.n.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemLand && op.WR.ID == 4 && op.Off > 0 }
		}, want: transport.LocProtErr, recv: transport.OK},
		{name: "read gone", wr: wr{op: transport.OpRead, n: n, key: 7, remote: 64}, prep: func(_, q *qp) {
			q.n.Fault = func(op *transport.MemOp) bool {
				return op.Kind == transport.MemRead && op.Addr > 64+1024 && op.Addr < 9000
			}
		}, want: transport.RemAccessErr, there: transport.RemAccessErr, recv: anyStatus}, // what follows a READ may run before it
	} {
		for _, loss := range []float64{0, 0.1} {
			for seed := range uint64(8) {
				l := usual()
				l.Loss = loss
				w := newWorld(config{seed: seed, link: l, engine: func(c *rocev2.Config) { c.RTOMin = 50 * mono.Microsecond }})
				p, q := w.connect(w.nodes[0], w.nodes[1], options{mtu: 1024})
				for i := range 8 {
					q.recv(uint64(i), 0x200000, 10_000)
				}
				if x.prep != nil {
					x.prep(p, q)
				}
				p.send(wr{id: 0, op: transport.OpSend, n: 3000})
				p.send(wr{id: 1, op: transport.OpRead, n: 20_000, local: 0x100000, key: 7, remote: 0x10000})
				p.send(wr{id: 2, op: transport.OpWrite, n: 3000, key: 7, remote: 0x300000})
				p.send(wr{id: 3, op: transport.OpSend, n: 40})
				x.wr.id = 4
				p.send(x.wr)
				for i := range 3 {
					p.send(wr{id: uint64(5 + i), op: transport.OpSend, n: 10})
				}
				w.runUntil(second, func() bool { return len(p.sends) == 8 })
				w.run(mono.Millisecond)
				if len(p.sends) != 8 {
					t.Fatalf("%s, loss %v, seed %d: %d of 8 completions\n%s\n%s", x.name, loss, seed, len(p.sends), p.Dump(), q.Dump())
				}
				for i, c := range p.sends {
					want := transport.OK
					if i == 4 {
						want = x.want
					} else if i > 4 {
						want = transport.WRFlushErr
					}
					if c.id != uint64(i) || c.status != want {
						t.Errorf("%s, loss %v, seed %d: request %d ended with %v, want %v", x.name, loss, seed, c.id, c.status, want)
					}
				}
				if p.errors != 1 || p.err != x.want {
					t.Errorf("%s: requester's QP: %d errors, %v", x.name, p.errors, p.err)
				}
				if x.there != 0 && (q.errors != 1 || q.err != x.there || len(q.received) != 8 || q.received[2].status != x.recv && x.recv != anyStatus) || q.received[1].status != transport.OK {
					t.Errorf("%s, loss %v, seed %d: responder: %d errors, %v, received %+v", x.name, loss, seed, q.errors, q.err, q.received)
				}
				for i, c := range q.received {
					if c.id != uint64(i) {
						t.Errorf("%s: receives out of order: %+v", x.name, q.received)
					}
				}
			}
		}
	}
}

// TestRetryExceeded: a peer that is not there ends the QP after timeout · (retry_cnt + 1), with either timer.
func TestRetryExceeded(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		l := usual()
		l.Loss = 1
		w := newWorld(config{link: l, engine: func(c *rocev2.Config) { c.FixedRTO = fixed }})
		p, _ := w.connect(w.nodes[0], w.nodes[1], options{timeout: 12, retry: 3})
		t0 := w.now
		p.send(wr{id: 1, op: transport.OpSend, n: 100})
		p.send(wr{id: 2, op: transport.OpSend, n: 100})
		w.mustRun(t, second, func() bool { return len(p.sends) == 2 })
		if p.sends[0].status != transport.RetryExcErr || p.sends[1].status != transport.WRFlushErr || p.errors != 1 {
			t.Errorf("%+v", p.sends)
		}
		unit := 4096 * mono.Nanosecond << 12 // 16.8 ms
		least, most := 4*unit, 6*unit
		if d := w.now.Sub(t0); d < least || d > most {
			t.Errorf("fixed %v: after %v, want %v to %v", fixed, d, least, most)
		}
	}
	// No timeout: for ever.
	l := usual()
	l.Loss = 1
	w := newWorld(config{link: l})
	p, q := w.connect(w.nodes[0], w.nodes[1], options{timeout: 255})
	q.recv(1, 0, 100)
	p.send(wr{id: 1, op: transport.OpSend, n: 100})
	w.run(3 * second)
	w.setLinks(usual())
	w.mustRun(t, 2*second, func() bool { return len(p.sends) == 1 && p.sends[0].status == transport.OK })
}

// TestRNR: the requester waits as asked for, gives up after as many tries as it was told, and nothing is taken twice.
func TestRNR(t *testing.T) {
	w := newWorld(config{link: usual()})
	p, q := w.connect(w.nodes[0], w.nodes[1], options{rnrRetry: 3, minRNR: 12}) // 640 µs
	t0 := w.now
	p.send(wr{id: 1, op: transport.OpSend, n: 100_000})
	p.send(wr{id: 2, op: transport.OpSend, n: 100_000})
	w.mustRun(t, second, func() bool { return len(p.sends) == 2 })
	if p.sends[0].status != transport.RnrRetryExcErr || p.sends[1].status != transport.WRFlushErr || q.errors != 0 {
		t.Errorf("%+v", p.sends)
	}
	if d := w.now.Sub(t0).Micros(); d < 3*640 || d > 3*640+100 {
		t.Errorf("gave up after %v µs", d)
	}
	if c := &w.nodes[1].e.C; c.TxRNR != 4 || c.TxNaks != 0 {
		t.Errorf("%d RNR NAKs, %d others", c.TxRNR, c.TxNaks)
	}
	// With a receive in time it goes on; 7 means for ever; a WRITE with immediate needs one for its last packet.
	w = newWorld(config{link: usual()})
	p, q = w.connect(w.nodes[0], w.nodes[1], options{minRNR: 12, mtu: 1024})
	for i := range 10 {
		p.send(wr{id: uint64(i), op: transport.OpWriteImm, n: 10_000, key: 7, imm: uint32(i), remote: 0x1000})
	}
	for i := range 10 {
		w.run(20 * mono.Millisecond)
		if len(p.sends) != i || len(q.received) != i {
			t.Fatalf("%d sent, %d received, want %d", len(p.sends), len(q.received), i)
		}
		q.recv(uint64(i), 0, 0)
		w.mustRun(t, second, func() bool { return len(p.sends) == i+1 })
		if c := q.received[i]; c.imm != uint32(i) || c.n != 10_000 || c.op != transport.OpWriteImm {
			t.Errorf("%+v", c)
		}
	}
}

// TestOrderOfOpcodes: packets that do not follow from those before them end the QP with an invalid request.
func TestOrderOfOpcodes(t *testing.T) {
	for _, x := range []struct {
		name string
		pkts []ib.Header
		n    []int
	}{
		{"middle first", []ib.Header{{Op: ib.SendMiddle}}, []int{1024}},
		{"last first", []ib.Header{{Op: ib.WriteLast}}, []int{10}},
		{"short middle", []ib.Header{{Op: ib.SendFirst}, {Op: ib.SendMiddle}}, []int{1024, 1023}},
		{"first in the middle", []ib.Header{{Op: ib.SendFirst}, {Op: ib.SendOnly}}, []int{1024, 10}},
		{"READ in the middle", []ib.Header{{Op: ib.SendFirst}, {Op: ib.ReadRequest, RKey: 7, Len: 10}}, []int{1024, 0}},
		{"write after send", []ib.Header{{Op: ib.SendFirst}, {Op: ib.WriteLast}}, []int{1024, 10}},
		{"longer than said", []ib.Header{{Op: ib.WriteFirst, RKey: 7, Len: 1030}, {Op: ib.WriteLast}}, []int{1024, 7}},
		{"shorter than said", []ib.Header{{Op: ib.WriteFirst, RKey: 7, Len: 1030}, {Op: ib.WriteLast}}, []int{1024, 5}},
		{"only beyond the MTU", []ib.Header{{Op: ib.SendOnly}}, []int{1025}},
		{"empty last", []ib.Header{{Op: ib.SendFirst}, {Op: ib.SendLast}}, []int{1024, 0}},
		{"huge READ", []ib.Header{{Op: ib.ReadRequest, RKey: 7, Len: 1<<31 + 1}}, []int{0}},
		{"third READ of two", []ib.Header{{Op: ib.ReadRequest, RKey: 7, Len: 1}, {Op: ib.ReadRequest, RKey: 7, Len: 1}, {Op: ib.ReadRequest, RKey: 7, Len: 1}}, []int{0, 0, 0}},
	} {
		w := newWorld(config{link: usual()})
		_, q := w.connect(w.nodes[0], w.nodes[1], options{mtu: 1024, rd: 2})
		q.recv(1, 0, 10_000)
		q.recv(2, 0, 10_000)
		var ps []pkt.Packet
		for i, h := range x.pkts {
			h.PSN, h.PKey, h.DestQP = serial.PSN(i), ib.PKeyDefault, q.Number()
			ps = append(ps, craft(w, q, h, x.n[i]))
		}
		q.n.e.HandlePackets(w.now, ps)
		if q.errors != 1 || q.err != transport.RemInvReqErr || len(q.received) != 2 {
			t.Errorf("%s: %d errors, %v, received %+v", x.name, q.errors, q.err, q.received)
		}
		b := pkt.NewBatch(8, packetMax)
		var h ib.Header
		for range 5 {
			w.now = w.now.Add(mono.Microsecond)
			b.Reset()
			if q.n.e.Transmit(w.now, b); b.N > 0 {
				ib.Decode(b.Pkts[b.N-1].Data, &h)
			}
		}
		if h.Op != ib.Ack || h.Syndrome != ib.NakInvalid || int(h.PSN) != len(ps)-1 {
			t.Errorf("%s: answer %v %02x for PSN %d", x.name, h.Op, h.Syndrome, h.PSN)
		}
	}
}

// TestDuplicateAfterFailure: what was accepted behind a request that fails is forgotten, and says nothing of what may be
// acknowledged again before it.
func TestDuplicateAfterFailure(t *testing.T) {
	w := newWorld(config{link: usual()})
	_, q := w.connect(w.nodes[0], w.nodes[1], options{mtu: 1024, rd: 2})
	q.n.Keys[7] = transporttest.Key{Lo: 0, Hi: 4096, Write: true, Read: true, Atomic: true}
	q.recv(1, 0, 100)
	var ps []pkt.Packet
	for i, h := range []ib.Header{{Op: ib.FetchAdd, RKey: 7}, {Op: ib.FetchAdd, RKey: 7}, {Op: ib.SendOnly}, {Op: ib.WriteOnly, RKey: 8, Len: 8},
		{Op: ib.FetchAdd, RKey: 7}} {
		h.PSN, h.PKey, h.DestQP = serial.PSN(i), ib.PKeyDefault, q.Number()
		ps = append(ps, craft(w, q, h, int(h.Len)))
	}
	b := pkt.NewBatch(8, packetMax)
	answers := func(in ...pkt.Packet) (a []ib.Header) {
		q.n.e.HandlePackets(w.now, in)
		for range 5 {
			w.now = w.now.Add(mono.Microsecond)
			b.Reset()
			q.n.e.Transmit(w.now, b)
			for i := range b.N {
				var h ib.Header
				ib.Decode(b.Pkts[i].Data, &h)
				a = append(a, h)
			}
		}
		return a
	}
	first, send := bytes.Clone(ps[0].Data), ps[2]
	send.Data = bytes.Clone(send.Data)
	if a := answers(ps[:3]...); len(a) < 2 { // so that the next one may come
		t.Fatalf("answers %+v", a)
	}
	if a := answers(ps[3:]...); len(a) == 0 || a[len(a)-1].Syndrome != ib.NakAccess || a[len(a)-1].PSN != 3 {
		t.Fatalf("answers %+v", a)
	}
	if a := answers(send); len(a) != 1 || a[0].Op != ib.Ack || a[0].Syndrome.IsNak() || a[0].PSN != 2 {
		t.Errorf("the SEND again: %+v", a)
	}
	again := ps[0]
	again.Data = first
	if a := answers(again); len(a) != 0 { // two are remembered, and a later one came
		t.Errorf("an atomic that is remembered no more: %+v", a)
	}
}

// craft makes a packet to q from its peer.
func craft(w *world, q *qp, h ib.Header, n int) pkt.Packet {
	b := make([]byte, h.Size()+n+h.PadFor(n)+ib.ICRCLen)
	h.Put(b)
	p := pkt.Packet{Data: b, Src: w.nodes[1-q.n.i].addr, Dst: q.n.addr, SrcPort: 0xC000}
	var s ib.Summer
	s.Seal(&p)
	return p
}

// TestDropped: every packet that is not for a QP has its counter.
func TestDropped(t *testing.T) {
	w := newWorld(config{link: usual()})
	_, q := w.connect(w.nodes[0], w.nodes[1], options{mtu: 1024})
	e := q.n.e
	ok := ib.Header{Op: ib.SendOnly, PKey: ib.PKeyDefault, DestQP: q.Number()}
	with := func(f func(*ib.Header)) pkt.Packet {
		h := ok
		f(&h)
		return craft(w, q, h, 8)
	}
	stranger := craft(w, q, ok, 8)
	stranger.Src = w.nodes[1].addr
	new(ib.Summer).Seal(&stranger)
	broken := craft(w, q, ok, 8)
	broken.Data[20] ^= 1
	for _, x := range []struct {
		name string
		p    pkt.Packet
		c    *uint64
	}{
		{"opcode", with(func(h *ib.Header) { h.Op = 0x2D }), &e.C.Drop[ib.DropOpcode]},
		{"UC to RC", with(func(h *ib.Header) { h.Service = ib.UC }), &e.C.DropType},
		{"icrc", broken, &e.C.Drop[ib.DropICRC]},
		{"partition", with(func(h *ib.Header) { h.PKey = 0x8001 }), &e.C.DropPKey},
		{"no QP", with(func(h *ib.Header) { h.DestQP = 5 }), &e.C.DropQPN},
		{"multicast to RC", with(func(h *ib.Header) { h.DestQP = ib.MulticastQPN }), &e.C.DropQPN},
		{"UD to RC", with(func(h *ib.Header) { h.Op = ib.UDSend }), &e.C.DropType},
		{"stranger", stranger, &e.C.DropPeer},
		{"ahead", with(func(h *ib.Header) { h.PSN = 5 }), &e.C.DropAhead},
		{"READ had before", with(func(h *ib.Header) { h.Op, h.PSN = ib.FetchAdd, 0xFFFFFF }), &e.C.DropDuplicate},
		{"ack of nothing", with(func(h *ib.Header) { h.Op = ib.AtomicAck }), &e.C.DropResponse},
	} {
		if x.name == "READ had before" || x.name == "ack of nothing" {
			h := ok
			if h.Op, h.PSN = ib.FetchAdd, 0xFFFFFF; x.name == "ack of nothing" {
				h.Op = ib.AtomicAck
			}
			x.p = craft(w, q, h, 0)
		}
		before := *x.c
		e.HandlePackets(w.now, []pkt.Packet{x.p})
		if *x.c != before+1 {
			t.Errorf("%s: not counted: %+v", x.name, e.C)
		}
	}
	limited := with(func(h *ib.Header) { h.PKey = 0x7FFF })
	q.recv(1, 0, 100)
	if e.HandlePackets(w.now, []pkt.Packet{limited}); len(q.received) != 1 {
		t.Error("a limited member is not heard")
	}
}
