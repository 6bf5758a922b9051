package rocev2_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/transporttest"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// connectUC makes a connected pair of UC QPs.
func (w *world) connectUC(o options) (*qp, *qp) {
	o.defaults()
	p, q := w.nodes[0].newQP(transport.UC, o), w.nodes[1].newQP(transport.UC, o)
	p.join(q, o)
	q.join(p, o)
	return p, q
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// TestUC: messages of all kinds and lengths arrive whole, and are done when they are sent.
func TestUC(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := newWorld(config{link: usual(), v6: v6})
		a, b := w.nodes[0], w.nodes[1]
		p, q := w.connectUC(options{mtu: 1024, psn: 0xfffffe})
		fill(a.Mem[:100_000], 3)
		recvs := 0
		for i, op := range []transport.Op{transport.OpSend, transport.OpSendImm, transport.OpWrite, transport.OpWriteImm} {
			for k, n := range []uint32{0, 1, 64, 65, 1024, 1025, 4096, 70_001} {
				id, at := uint64(i*100+k), uint64(0x100000)
				clear(b.Mem[at : at+80_000])
				if op.TakesRecv() {
					q.recv(id, at, 80_000)
					recvs++
				}
				w.run(mono.Microsecond)
				p.send(wr{id: id, op: op, local: 11, remote: at, key: 7, n: n, imm: 0x1234, flags: transport.FlagSolicited})
				sent := len(p.sends)
				w.mustRun(t, mono.Millisecond, func() bool { return len(p.sends) == sent+1 && len(q.received) == recvs })
				w.run(20 * mono.Microsecond)
				if !bytes.Equal(b.Mem[at:at+uint64(n)], a.Mem[11:11+n]) || b.Mem[at+uint64(n)] != 0 {
					t.Errorf("%v of %d bytes: wrong bytes", op, n)
				}
				if c := p.sends[sent]; c.status != transport.OK || c.id != id {
					t.Errorf("%v of %d bytes: %+v", op, n, c)
				}
				if op.TakesRecv() {
					c := q.received[recvs-1]
					if imm := c.imm == 0x1234; c.id != id || c.status != transport.OK || c.op != op || c.n != n || imm != (op != transport.OpSend) || c.src != p.Number() || !c.se {
						t.Errorf("%v of %d bytes: %+v", op, n, c)
					}
				}
			}
		}
		if c := b.e.C; c.TxPackets != 0 || c.Duplicates != 0 || a.e.C.Retransmits != 0 || a.e.C.Timeouts != 0 || a.e.InFlight() != 0 {
			t.Errorf("something came back: %+v", c)
		}
	}
}

// TestUCLoss: whatever is lost, what arrives is whole and in order, in receives in the order of posting, none of which is lost.
func TestUCLoss(t *testing.T) {
	for seed := range uint64(20) {
		l := usual()
		l.Loss = 0.05
		w := newWorld(config{link: l, seed: seed})
		a, b := w.nodes[0], w.nodes[1]
		p, q := w.connectUC(options{mtu: 256})
		const n, size = 300, 700
		for i := range n {
			a.Mem[i] = byte(i)
			q.recv(uint64(i), uint64(0x10000+i*size), size)
		}
		for i := range n {
			at := uint64(0x1000)
			fill(a.Mem[at:at+size], i)
			for !p.send(wr{id: uint64(i), op: []transport.Op{transport.OpSendImm, transport.OpWriteImm}[i%2], local: at, remote: 0x400, key: 7, n: size, imm: uint32(i)}) {
				w.run(mono.Microsecond)
			}
			w.mustRun(t, mono.Millisecond, func() bool { return len(p.sends) == i+1 })
		}
		w.run(50 * mono.Microsecond)
		want := make([]byte, size)
		for k, c := range q.received {
			at := 0x10000 + k*size
			fill(want, int(c.imm))
			//= MR-COEX-050 MR-COEX-051
			if c.id != uint64(k) || c.status != transport.OK || c.n != size || k > 0 && c.imm <= q.received[k-1].imm || c.op == transport.OpSendImm && !bytes.Equal(b.Mem[at:at+size], want) {
				t.Fatalf("seed %d: receive %d: %+v", seed, k, c)
			}
		}
		if got := len(q.received); got < n*3/5 || got >= n || b.e.C.DropUCCut == 0 || b.e.C.DropUCGap == 0 {
			t.Errorf("seed %d: %d of %d arrived, %+v", seed, got, n, b.e.C)
		}
	}
}

// lose takes out packets of a run by number, counted from the first.
func (w *world) lose(which ...int) {
	n := 0
	w.tap = func(src, _, _ int, p *pkt.Packet) bool {
		if src != 0 {
			return true
		}
		n++
		for _, k := range which {
			if n-1 == k {
				return false
			}
		}
		return true
	}
}

// TestUCGaps: which messages of three survive, by the packets that are lost.
func TestUCGaps(t *testing.T) {
	for _, c := range []struct {
		lost []int
		got  string
	}{{nil, "abc"}, {[]int{0}, "bc"}, {[]int{1}, "bc"}, {[]int{2}, "bc"}, {[]int{3}, "ac"}, {[]int{4}, "ac"}, {[]int{5}, "ac"}, {[]int{8}, "ab"},
		{[]int{2, 3}, "c"}, {[]int{0, 1, 2}, "bc"}, {[]int{3, 4, 5}, "ac"}, {[]int{0, 3, 6}, ""}, {[]int{2, 5, 8}, ""}} {
		for _, op := range []transport.Op{transport.OpSendImm, transport.OpWriteImm} {
			w := newWorld(config{link: usual()})
			p, q := w.connectUC(options{mtu: 256})
			w.lose(c.lost...)
			for i := range 3 {
				q.recv(uint64(i), uint64(0x10000+0x1000*i), 600)
				p.send(wr{op: op, local: uint64(i), remote: 0x8000, key: 7, n: 600, imm: uint32('a' + i)})
			}
			w.run(50 * mono.Microsecond)
			got := ""
			for i, r := range q.received {
				got += string(rune(r.imm))
				if r.id != uint64(i) {
					t.Errorf("%v without %v: receive %d where %d is the next", op, c.lost, r.id, i)
				}
			}
			if got != c.got || len(p.sends) != 3 || p.sends[2].status != transport.OK {
				t.Errorf("%v without %v: %q, want %q", op, c.lost, got, c.got)
			}
		}
	}
}

// TestUCDrops: what cannot be carried out is dropped with its reason, nobody is told, and what follows is carried out.
func TestUCDrops(t *testing.T) {
	bad := transporttest.Key{Lo: 0x100, Hi: 0x200, Read: true}
	for name, c := range map[string]struct {
		wr      wr
		noRecv  bool
		counter func(c *rocev2.Counters) uint64
		after   int // receives taken by what follows
	}{
		"no receive":       {wr{op: transport.OpSend, n: 5000}, true, func(c *rocev2.Counters) uint64 { return c.DropUCNoRecv }, 0},
		"no receive, imm":  {wr{op: transport.OpWriteImm, n: 5000, remote: 0x1000, key: 7}, true, func(c *rocev2.Counters) uint64 { return c.DropUCNoRecv }, 0},
		"too long":         {wr{op: transport.OpSend, n: 5001}, false, func(c *rocev2.Counters) uint64 { return c.DropUCTooLong }, 1},
		"far too long":     {wr{op: transport.OpSend, n: 50_000}, false, func(c *rocev2.Counters) uint64 { return c.DropUCTooLong }, 1},
		"unknown key":      {wr{op: transport.OpWrite, n: 5000, remote: 0x1000, key: 9}, false, func(c *rocev2.Counters) uint64 { return c.DropUCAccess }, 1},
		"unknown key, imm": {wr{op: transport.OpWriteImm, n: 5000, remote: 0x1000, key: 9}, false, func(c *rocev2.Counters) uint64 { return c.DropUCAccess }, 1},
		"no right":         {wr{op: transport.OpWriteImm, n: 10, remote: 0x100, key: 8}, false, func(c *rocev2.Counters) uint64 { return c.DropUCAccess }, 1},
		"beyond its end":   {wr{op: transport.OpWrite, n: 5000, remote: 4<<20 - 4096, key: 7}, false, func(c *rocev2.Counters) uint64 { return c.DropUCAccess }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(config{link: usual()})
			a, b := w.nodes[0], w.nodes[1]
			b.Keys[8] = bad
			p, q := w.connectUC(options{mtu: 1024})
			fill(a.Mem[:5000], 1)
			if !c.noRecv {
				q.recv(1, 0x20000, 5000)
			}
			end := bytes.Clone(b.Mem[4<<20-4096:])
			p.send(c.wr)
			if c.noRecv {
				w.run(20 * mono.Microsecond)
				q.recv(1, 0x20000, 5000)
			}
			p.send(wr{id: 2, op: transport.OpSendImm, n: 5000, imm: 5}) // behind it, in the same burst where there is one
			w.run(50 * mono.Microsecond)
			//= MR-COEX-051 MR-COEX-052
			if got := c.counter(&b.e.C); got != 1 || q.errors != 0 || p.errors != 0 || len(p.sends) != 2 || p.sends[0].status != transport.OK {
				t.Errorf("%d dropped: %+v, sends %+v", got, b.e.C, p.sends)
			}
			if len(q.received) != 1 || q.received[0].id != 1 || q.received[0].imm != 5 || q.received[0].status != transport.OK || !bytes.Equal(b.Mem[0x20000:0x20000+5000], a.Mem[:5000]) {
				t.Errorf("what follows: %+v", q.received)
			}
			if !bytes.Equal(end, b.Mem[4<<20-4096:]) {
				t.Error("it wrote before the end of a region that is too short")
			}
			if b.e.C.TxPackets != 0 {
				t.Error("it was answered")
			}
		})
	}
}

// TestUCRefused: what UC does not have fails where it was posted, those before it are done.
func TestUCRefused(t *testing.T) {
	for _, x := range []struct {
		wr   wr
		want transport.Status
	}{{wr{n: 8, op: transport.OpRead}, transport.LocQPOpErr}, {wr{n: 8, op: transport.OpFetchAdd}, transport.LocQPOpErr}, {wr{n: 8, op: transport.OpCmpSwap}, transport.LocQPOpErr},
		{wr{n: 8, op: transport.OpSendInv}, transport.LocQPOpErr}, {wr{n: 8, op: transport.OpAtomicWrite}, transport.LocQPOpErr}, {wr{n: 8, op: transport.OpSend, fail: transport.LocProtErr}, transport.LocProtErr}} {
		w := newWorld(config{link: usual()})
		p, q := w.connectUC(options{})
		q.recv(1, 0, 100)
		p.send(wr{id: 1, op: transport.OpSend, n: 8})
		p.send(x.wr)
		p.send(wr{id: 3, op: transport.OpSend, n: 8})
		w.run(20 * mono.Microsecond)
		if len(p.sends) != 3 || p.sends[0].status != transport.OK || p.sends[1].status != x.want || p.sends[2].status != transport.WRFlushErr || p.err != x.want || len(q.received) != 1 {
			t.Errorf("%v: %+v %v", x.wr.op, p.sends, p.err)
		}
	}
}

// TestUCMemoryGone: at the sender the request fails, its message broken off; at the receiver the QP does.
func TestUCMemoryGone(t *testing.T) {
	w := newWorld(config{link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	p, q := w.connectUC(options{mtu: 256})
	a.Fault = func(op *transport.MemOp) bool {
		return op.Kind == transport.MemGather && op.WR.ID == 2 && op.Off >= 512
	}
	for i := range 3 {
		q.recv(uint64(i), 0x4000, 2000)
		p.send(wr{id: uint64(i + 1), op: transport.OpSend, n: 1000})
	}
	w.run(20 * mono.Microsecond)
	if len(p.sends) != 3 || p.sends[0].status != transport.OK || p.sends[1].status != transport.LocProtErr || p.sends[2].status != transport.WRFlushErr || len(q.received) != 1 || q.errors != 0 {
		t.Errorf("%+v, received %+v", p.sends, q.received)
	}
	p, q = w.connectUC(options{mtu: 256})
	b.Fault = func(op *transport.MemOp) bool {
		return op.Kind == transport.MemScatter && op.Recv.ID == 1 && op.Off > 0
	}
	for i := range 3 {
		q.recv(uint64(i), 0x4000, 2000)
		p.send(wr{id: uint64(i + 1), op: transport.OpSend, n: 1000})
	}
	w.run(20 * mono.Microsecond)
	var got string
	for _, c := range q.received {
		got += fmt.Sprint(c.id, " ", c.status, " ")
	}
	if got != "0 OK 1 LOC_PROT_ERR 2 WR_FLUSH_ERR " || q.err != transport.LocProtErr || q.errors != 1 {
		t.Errorf("%s, %v", got, q.err)
	}
	if b.e.C.TxPackets != 0 {
		t.Error("it was answered")
	}
}

// TestUCForm: packets that belong to no message, or are not as long as they must be.
func TestUCForm(t *testing.T) {
	w := newWorld(config{link: usual()})
	b := w.nodes[1]
	p, q := w.connectUC(options{mtu: 256})
	var sum ib.Summer
	inject := func(op ib.Opcode, n int, length uint32) {
		h := ib.Header{Op: op, Service: ib.UC, PKey: ib.PKeyDefault, DestQP: q.Number(), VA: 0x9000, RKey: 7, Len: length}
		x := pkt.Packet{Src: p.n.addr, Dst: b.addr, SrcPort: 0xc000, Data: make([]byte, h.Size()+n+h.PadFor(n)+ib.ICRCLen)}
		h.Put(x.Data)
		sum.Seal(&x)
		b.e.HandlePackets(w.now, []pkt.Packet{x})
	}
	q.recv(1, 0, 1000)
	for i, c := range []struct {
		op         ib.Opcode
		n          int
		length     uint32
		gap, wrong uint64
	}{{ib.SendMiddle, 256, 0, 1, 0}, {ib.WriteLast, 5, 0, 1, 0}, {ib.SendFirst, 255, 0, 0, 1}, {ib.SendOnly, 257, 0, 0, 1}, {ib.WriteFirst, 256, 256, 0, 1},
		{ib.WriteOnly, 4, 5, 0, 1}, {ib.WriteOnly, 5, 4, 0, 1}, {ib.WriteFirst, 256, 200, 0, 1}} {
		was := b.e.C
		inject(c.op, c.n, c.length)
		if b.e.C.DropUCGap-was.DropUCGap != c.gap || b.e.C.DropUCInvalid-was.DropUCInvalid != c.wrong {
			t.Errorf("case %d: %+v", i, b.e.C)
		}
	}
	q.ToError(w.now)
	inject(ib.SendOnly, 8, 0)
	if b.e.C.DropState != 1 || len(q.received) != 1 || q.received[0].status != transport.WRFlushErr {
		t.Errorf("in ERR: %+v %+v", b.e.C, q.received)
	}
	rc, _ := w.connect(b, w.nodes[0], options{})
	q = rc
	inject(ib.SendOnly, 8, 0)
	if b.e.C.DropType != 1 {
		t.Errorf("to a QP of RC: %+v", b.e.C)
	}
}

// TestUCPaced: congestion that is told of slows a sender down; SQD lets what was begun end and holds the rest.
func TestUCPaced(t *testing.T) {
	l := usual()
	w := newWorld(config{link: l})
	p, q := w.connectUC(options{mtu: 1024})
	w.tap = func(_, _, _ int, x *pkt.Packet) bool {
		if len(x.Data) > 500 {
			x.TOS |= pkt.CE
		}
		return true
	}
	for range 40 {
		p.send(wr{op: transport.OpWrite, n: 100_000, remote: 0x1000, key: 7})
	}
	w.run(2 * mono.Millisecond) // four times what the line needs
	if p.n.e.C.RxCNP == 0 || q.n.e.C.TxCNP == 0 || len(p.sends) < 4 || len(p.sends) > 30 {
		t.Errorf("not slowed: %d done, %+v", len(p.sends), p.n.e.C)
	}
	w = newWorld(config{link: link.Spec{RateBps: 1e9, Delay: mono.Microsecond}})
	p, q = w.connectUC(options{mtu: 1024})
	for i := range 4 {
		q.recv(uint64(i), 0x1000, 100_000)
		p.send(wr{op: transport.OpSend, n: 100_000})
	}
	w.run(100 * mono.Microsecond)
	p.ToSQD()
	w.run(10 * mono.Millisecond)
	if len(p.sends) == 0 || len(p.sends) == 4 || len(q.received) != len(p.sends) || !p.Drained() {
		t.Errorf("in SQD: %d sent, %d received", len(p.sends), len(q.received))
	}
	p.Resume(w.now)
	w.mustRun(t, 20*mono.Millisecond, func() bool { return len(q.received) == 4 })
}
