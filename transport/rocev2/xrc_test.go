package rocev2_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// queues are the shared receive queues of a node, by number.
type queues map[uint32][]*transport.RecvWR

// TakeXRC implements transport.XRCHost.
func (h host) TakeXRC(_ any, srqn uint32) (*transport.RecvWR, bool) {
	q, known := h.n.srqs[srqn]
	if len(q) == 0 {
		return nil, known
	}
	h.n.srqs[srqn] = q[1:]
	q[0].Queue = srqn
	return q[0], true
}

func (n *node) post(srqn uint32, id, addr uint64, size uint32) {
	n.srqs[srqn] = append(n.srqs[srqn], &transport.RecvWR{ID: id, SGE: []transport.SGE{{Addr: addr, Length: size}}, Length: size})
}

// connectXRC makes a requesting end at the first node and a responding one at the second.
func (w *world) connectXRC(o options) (*qp, *qp) {
	o.defaults()
	p, q := w.nodes[0].newQP(transport.XRCSend, o), w.nodes[1].newQP(transport.XRCRecv, o)
	w.nodes[1].srqs = queues{}
	p.join(q, o)
	q.join(p, o)
	return p, q
}

// TestXRC: every operation, over a network that loses; receives come from the queue that a request names, and memory is
// looked up for it.
func TestXRC(t *testing.T) {
	for seed := range uint64(6) {
		l := usual()
		if seed > 0 {
			l.Loss = 0.02
		}
		w := newWorld(config{link: l, seed: seed})
		a, b := w.nodes[0], w.nodes[1]
		p, q := w.connectXRC(options{mtu: 512, psn: 0xffff00})
		b.After = func(op *transport.MemOp) {
			switch op.Kind {
			case transport.MemWrite, transport.MemRead, transport.MemCheckRead, transport.MemFetchAdd:
				if want := uint32(op.Addr>>12) & 0xff; op.SRQN != want {
					t.Errorf("%v at %#x for queue %d, want %d", op.Kind, op.Addr, op.SRQN, want)
				}
			case transport.MemScatter:
				if op.Recv.Queue == nil {
					t.Error("a receive of no queue")
				}
			default:
			}
		}
		fill(a.Mem[:20_000], int(seed))
		const n = 240
		var want []string
		for i := range n {
			srqn := uint32(0x10 + i%3)
			x := wr{id: uint64(i), key: 7, remote: uint64(srqn) << 12, local: uint64(i), n: uint32(i * 9 % 3000), imm: uint32(i), srqn: srqn}
			switch x.op = []transport.Op{transport.OpSend, transport.OpSendImm, transport.OpWrite, transport.OpWriteImm, transport.OpRead, transport.OpFetchAdd, transport.OpSendInv}[i%7]; x.op {
			case transport.OpRead:
				x.local = 0x80000
			case transport.OpFetchAdd:
				x.n, x.local = 8, 0x80000
			default:
			}
			if x.op.TakesRecv() {
				b.post(srqn, uint64(i), uint64(0x100000+i*0x2000), 3000)
				want = append(want, fmt.Sprint(i, x.op, x.n))
			}
			p.send(x)
		}
		w.mustRun(t, 200*mono.Millisecond, func() bool { return len(p.sends) == n })
		w.run(100 * mono.Microsecond)
		for i, c := range p.sends {
			if c.id != uint64(i) || c.status != transport.OK {
				t.Fatalf("seed %d: %+v", seed, c)
			}
		}
		//= MR-COEX-061
		for i, c := range q.received {
			if got := fmt.Sprint(c.id, c.op, c.n); c.status != transport.OK || got != want[i] || c.src != p.Number() {
				t.Fatalf("seed %d: %+v, want %s", seed, c, want[i])
			}
			if at := 0x100000 + int(c.id)*0x2000; c.op != transport.OpWriteImm && !bytes.Equal(b.Mem[at:at+int(c.n)], a.Mem[c.id:c.id+uint64(c.n)]) {
				t.Fatalf("seed %d: receive %d has other bytes", seed, c.id)
			}
		}
		if len(q.received) != len(want) || seed > 0 && a.e.C.Retransmits == 0 {
			t.Errorf("seed %d: %d receives, want %d; %+v", seed, len(q.received), len(want), a.e.C)
		}
	}
}

// TestXRCQueues: one without a receive is waited for, one that is not there ends the connection.
func TestXRCQueues(t *testing.T) {
	w := newWorld(config{link: usual()})
	b := w.nodes[1]
	p, q := w.connectXRC(options{})
	b.srqs[1], b.srqs[2] = nil, nil
	b.post(2, 9, 0x1000, 100)
	p.send(wr{id: 1, op: transport.OpSend, n: 10, srqn: 1})
	w.run(100 * mono.Microsecond)
	if len(q.received) != 0 || w.nodes[0].e.C.RxRNR == 0 {
		t.Errorf("%+v", q.received)
	}
	b.post(1, 8, 0x1000, 100)
	w.mustRun(t, 10*mono.Millisecond, func() bool { return len(q.received) == 1 && len(p.sends) == 1 })
	if q.received[0].id != 8 {
		t.Errorf("from another queue: %+v", q.received)
	}
	for _, op := range []transport.Op{transport.OpSend, transport.OpWriteImm} {
		p, q = w.connectXRC(options{})
		p.send(wr{id: 2, op: op, n: 10, srqn: 3, remote: 0x100, key: 7})
		w.mustRun(t, 10*mono.Millisecond, func() bool { return len(p.sends) == 1 })
		if p.sends[0].status != transport.RemInvReqErr || q.err != transport.RemInvReqErr || len(q.received) != 0 {
			t.Errorf("%v to a queue that is not there: %+v, %v", op, p.sends, q.err)
		}
	}
	// A failing responder gives the receive in hand back to its queue as failed, one that is reset as it was.
	p, q = w.connectXRC(options{mtu: 256})
	b.post(5, 4, 0x1000, 300)
	p.send(wr{id: 3, op: transport.OpSend, n: 400, srqn: 5})
	w.mustRun(t, 10*mono.Millisecond, func() bool { return len(p.sends) == 1 })
	if len(q.received) != 1 || q.received[0].status != transport.LocLenErr || p.sends[0].status != transport.RemInvReqErr {
		t.Errorf("too long: %+v %+v", q.received, p.sends)
	}
}

// TestXRCForm: what belongs to the other end, and a message that changes its queue.
func TestXRCForm(t *testing.T) {
	w := newWorld(config{link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	p, q := w.connectXRC(options{mtu: 256, psn: 100})
	b.post(5, 1, 0x1000, 3000)
	b.post(6, 2, 0x1000, 3000)
	var sum ib.Summer
	inject := func(to *qp, from *node, h ib.Header, n int) {
		h.PKey, h.DestQP = ib.PKeyDefault, to.Number()
		x := pkt.Packet{Src: from.addr, Dst: to.n.addr, SrcPort: 0xc000, Data: make([]byte, h.Size()+n+h.PadFor(n)+ib.ICRCLen)}
		h.Put(x.Data)
		sum.Seal(&x)
		to.n.e.HandlePackets(w.now, []pkt.Packet{x})
	}
	for i, c := range []struct {
		to   *qp
		from *node
		h    ib.Header
	}{
		{p, b, ib.Header{Service: ib.XRC, Op: ib.SendOnly, SRQN: 5, PSN: 100}}, {q, a, ib.Header{Service: ib.XRC, Op: ib.Ack, PSN: 100}},
		{q, a, ib.Header{Service: ib.XRC, Op: ib.AtomicAck, PSN: 100}}, {q, a, ib.Header{Service: ib.RC, Op: ib.SendOnly, PSN: 100}},
		{q, a, ib.Header{Service: ib.UC, Op: ib.SendOnly, PSN: 100}},
	} {
		was := c.to.n.e.C.DropType
		if inject(c.to, c.from, c.h, 0); c.to.n.e.C.DropType != was+1 {
			t.Errorf("case %d: %+v", i, c.to.n.e.C)
		}
	}
	//= MR-COEX-060
	inject(q, a, ib.Header{Service: ib.XRC, Op: ib.SendFirst, SRQN: 5, PSN: 100}, 256)
	inject(q, a, ib.Header{Service: ib.XRC, Op: ib.SendLast, SRQN: 6, PSN: 101}, 8)
	if q.err != transport.RemInvReqErr || len(q.received) != 1 || q.received[0].id != 1 || q.received[0].status == transport.OK || len(b.srqs[6]) != 1 {
		t.Errorf("%v, %+v", q.err, q.received)
	}
	p, q = w.connectXRC(options{mtu: 256, psn: 100})
	b.post(5, 3, 0x1000, 3000)
	inject(q, a, ib.Header{Service: ib.XRC, Op: ib.SendFirst, SRQN: 5, PSN: 100}, 256)
	if len(b.srqs[5]) != 0 {
		t.Error("not taken")
	}
	q.Reset(w.now)
	if len(q.recvs) != 1 || q.recvs[0].ID != 3 || len(q.received) != 0 || p.errors != 0 {
		t.Errorf("a reset does not return the receive: %+v", q.received)
	}
}
