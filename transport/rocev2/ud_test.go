package rocev2_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

const qkey = 0x11111111

// newUD makes a datagram QP that can send.
func (n *node) newUD(key uint32) *qp {
	o := options{}
	o.defaults()
	q := n.newQP(transport.UD, o)
	q.SetQKey(key)
	q.ToRTR(n.w.now, rocev2.RTRAttr{Local: n.addr})
	q.ToRTS(n.w.now, rocev2.RTSAttr{SQPSN: 5})
	return q
}

func (q *qp) dest(key uint32) transport.UDDest {
	return transport.UDDest{Remote: q.n.addr, QPN: q.Number(), QKey: key, TOS: 0x20, HopLimit: 9, FlowLabel: 0x12345}
}

func (q *qp) sendTo(x wr, d transport.UDDest) bool {
	d.Local = q.n.addr
	x.dest = d
	if x.op == 0 {
		x.op = transport.OpSend
	}
	return q.send(x)
}

func TestUD(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := newWorld(config{link: usual(), v6: v6})
		a, b := w.nodes[0], w.nodes[1]
		p, q := a.newUD(1), b.newUD(qkey)
		for i := range 9000 {
			a.Mem[i] = byte(i * 3)
		}
		var seen pkt.Packet
		w.tap = func(_, _, _ int, x *pkt.Packet) bool { seen = *x; return true }
		for i, n := range []uint32{0, 1, 64, 1000, 4096} {
			at := uint64(0x10000 * (i + 1))
			q.recv(uint64(i), at, n+40)
			p.sendTo(wr{id: uint64(i), op: transport.OpSendImm, local: 3, n: n, imm: 77, flags: transport.FlagSolicited}, q.dest(qkey))
			w.mustRun(t, mono.Millisecond, func() bool { return len(q.received) == i+1 && len(p.sends) == i+1 })
			c := q.received[i]
			c.at = 0
			if c != (completion{id: uint64(i), op: transport.OpSendImm, n: n + 40, imm: 77, src: p.Number(), grh: true, se: true}) {
				t.Errorf("%+v", c)
			}
			if !bytes.Equal(b.Mem[at+40:at+40+uint64(n)], a.Mem[3:3+n]) {
				t.Errorf("length %d: wrong bytes", n)
			}
			var grh [40]byte
			ib.PutGRH(grh[:], &seen)
			if !bytes.Equal(b.Mem[at:at+40], grh[:]) {
				t.Errorf("route header %x, want %x", b.Mem[at:at+40], grh)
			}
			ip := b.Mem[at : at+40]
			if v6 {
				if ip[0]>>4 != 6 || ip[7] != 9 || !bytes.Equal(ip[8:24], a.addr.AsSlice()) || binary.BigEndian.Uint32(ip)&0xfffff != 0x12345 {
					t.Errorf("route header %x", ip)
				}
			} else if ip = ip[20:]; ip[0] != 0x45 || ip[1] != 0x20 || ip[8] != 9 || !bytes.Equal(ip[12:16], a.addr.AsSlice()) || ip[9] != 17 {
				t.Errorf("route header %x", ip)
			}
		}
		var h ib.Header
		if ib.Decode(seen.Data, &h); h.PSN != 9 || h.SrcQP != p.Number() || h.QKey != qkey || seen.TOS != 0x20 {
			t.Errorf("%+v", h)
		}
	}
}

// TestUDRules: what is not received, and what a sender may not do.
func TestUDRules(t *testing.T) {
	w := newWorld(config{link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	p, q := a.newUD(0x80000005), b.newUD(qkey)
	c := &b.e.C
	try := func(name string, d transport.UDDest, n uint32, counter *uint64) {
		t.Helper()
		was := *counter
		p.sendTo(wr{n: n}, d)
		w.run(20 * mono.Microsecond)
		if *counter != was+1 || len(p.sends) == 0 || p.sends[len(p.sends)-1].status != transport.OK {
			t.Errorf("%s: %+v, %+v", name, *c, p.sends)
		}
	}
	try("no receive", q.dest(qkey), 10, &c.DropUDNoRecv)
	q.recv(1, 0, 100)
	try("wrong key", q.dest(qkey+1), 10, &c.DropQKey)
	try("no such QP", transport.UDDest{Remote: b.addr, QPN: 0x999, QKey: qkey}, 10, &c.DropQPN)
	rc, _ := w.connect(b, a, options{})
	try("not a datagram QP", rc.dest(qkey), 10, &c.DropType)
	try("too long", q.dest(qkey), 61, &c.DropUDTooLong)
	if len(q.received) != 1 || q.received[0].status != transport.LocLenErr || q.errors != 0 {
		t.Errorf("too long: %+v, %d errors", q.received, q.errors)
	}
	q.recv(2, 0, 100)
	p.sendTo(wr{n: 60}, q.dest(qkey))
	w.run(20 * mono.Microsecond)
	if len(q.received) != 2 || q.received[1].status != transport.OK || q.received[1].n != 100 {
		t.Errorf("%+v", q.received)
	}
	// A key with the top bit set asks for the QP's own.
	r := b.newUD(0x80000005)
	r.recv(3, 0, 100)
	p.sendTo(wr{n: 1}, r.dest(0x80010000))
	w.run(20 * mono.Microsecond)
	if len(r.received) != 1 {
		t.Error("the QP's own key was not used")
	}
	// Longer than a packet, and operations that datagrams do not have: the QP fails, those before it are done.
	for _, x := range []struct {
		wr   wr
		want transport.Status
	}{{wr{n: 4097}, transport.LocLenErr}, {wr{n: 8, op: transport.OpRead}, transport.LocQPOpErr}, {wr{n: 8, op: transport.OpSendInv}, transport.LocQPOpErr},
		{wr{n: 8, fail: transport.LocProtErr}, transport.LocProtErr}} {
		s := a.newUD(qkey)
		q.recv(4, 0, 100)
		s.sendTo(wr{id: 1, n: 8}, q.dest(qkey))
		s.sendTo(x.wr, q.dest(qkey))
		s.sendTo(wr{id: 3, n: 8}, q.dest(qkey))
		w.run(20 * mono.Microsecond)
		if len(s.sends) != 3 || s.sends[0].status != transport.OK || s.sends[1].status != x.want || s.sends[2].status != transport.WRFlushErr || s.err != x.want {
			t.Errorf("%+v: %+v %v", x.wr, s.sends, s.err)
		}
	}
	// Memory that is gone, at either end.
	s := a.newUD(qkey)
	a.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemGather && op.WR.ID == 2 }
	for i := range 3 {
		s.sendTo(wr{id: uint64(i + 1), n: 8}, q.dest(qkey))
	}
	w.run(20 * mono.Microsecond)
	if len(s.sends) != 3 || s.sends[0].status != transport.OK || s.sends[1].status != transport.LocProtErr || s.sends[2].status != transport.WRFlushErr {
		t.Errorf("%+v", s.sends)
	}
	b.Fault = func(op *transport.MemOp) bool { return op.Kind == transport.MemScatter }
	n := len(q.received)
	q.recv(5, 0, 100)
	q.recv(6, 0, 100)
	p.sendTo(wr{n: 8}, q.dest(qkey))
	w.run(20 * mono.Microsecond)
	if got := q.received[n:]; q.err != transport.LocProtErr || len(got) < 2 || got[0].status != transport.LocProtErr || got[len(got)-1].status != transport.WRFlushErr {
		t.Errorf("%v %+v", q.err, got)
	}
}

// TestUDMany: a stream of datagrams keeps its order and completes in order; SQD holds what is posted.
func TestUDMany(t *testing.T) {
	w := newWorld(config{link: usual()})
	p, q := w.nodes[0].newUD(1), w.nodes[1].newUD(qkey)
	for i := range 200 {
		q.recv(uint64(i), 0x1000, 5000)
		p.sendTo(wr{id: uint64(i), op: transport.OpSendImm, n: uint32(i * 20), imm: uint32(i)}, q.dest(qkey))
	}
	p.ToSQD()
	w.run(100 * mono.Microsecond)
	if len(p.sends) != 0 {
		t.Fatal("sent in SQD")
	}
	p.Resume(w.now)
	w.mustRun(t, mono.Millisecond, func() bool { return len(q.received) == 200 && len(p.sends) == 200 })
	for i := range 200 {
		if p.sends[i].id != uint64(i) || q.received[i].imm != uint32(i) || q.received[i].n != uint32(40+i*20) {
			t.Fatalf("%d: %+v %+v", i, p.sends[i], q.received[i])
		}
	}
}

func TestMulticast(t *testing.T) {
	group := netip.AddrFrom4([4]byte{239, 1, 2, 3})
	w := newWorld(config{link: usual(), nodes: 3})
	p := w.nodes[0].newUD(qkey)
	var members []*qp
	for i := range 6 {
		q := w.nodes[1+i%2].newUD(qkey)
		q.recv(1, uint64(0x1000*(i+1)), 1000)
		q.recv(2, uint64(0x1000*(i+1)), 1000)
		members = append(members, q)
		if i < 4 && !q.n.e.Attach(q.QP, group) || i < 4 && q.n.e.Attach(q.QP, group) {
			t.Error("attach")
		}
	}
	d := transport.UDDest{Remote: group, QPN: ib.MulticastQPN, QKey: qkey, HopLimit: 1}
	copy(w.nodes[0].Mem, "multicast")
	p.sendTo(wr{n: 9}, d)
	w.run(20 * mono.Microsecond)
	for i, q := range members {
		want := 0
		if i < 4 {
			want = 1
		}
		if len(q.received) != want || want == 1 && string(q.n.Mem[0x1000*(i+1)+40:][:9]) != "multicast" {
			t.Errorf("member %d: %+v", i, q.received)
		}
	}
	e := w.nodes[1].e
	if !e.Detach(members[0].QP, group) || e.Detach(members[0].QP, group) {
		t.Error("detach")
	}
	members[2].Destroy(w.now)
	p.sendTo(wr{n: 9}, d)
	w.run(20 * mono.Microsecond)
	if len(members[0].received) != 1 || len(members[2].received) != 1 || len(members[1].received) != 2 || e.C.DropGroup != 1 {
		t.Errorf("after leaving: %+v", e.C)
	}
}

// TestUDPlane: datagrams of a QP stay on one plane, and move when it goes down.
func TestUDPlane(t *testing.T) {
	w := newWorld(config{link: link.Spec{Delay: mono.Microsecond}, planes: 4})
	p, q := w.nodes[0].newUD(1), w.nodes[1].newUD(qkey)
	var planes [4]int
	w.tap = func(_, _, plane int, _ *pkt.Packet) bool { planes[plane]++; return true }
	send := func() {
		for range 10 {
			q.recv(1, 0, 100)
			p.sendTo(wr{n: 10}, q.dest(qkey))
		}
		w.run(20 * mono.Microsecond)
	}
	send()
	first := p.Plane()
	w.nodes[0].e.SetPlane(w.now, first, false)
	send()
	second := p.Plane()
	if planes[first] != 10 || planes[second] != 10 || first == second || len(q.received) != 20 {
		t.Errorf("%v, first %d, then %d, %d received", planes, first, second, len(q.received))
	}
	if w.nodes[0].e.SetPlane(w.now, first, true); p.Plane() != first {
		t.Error("does not come back")
	}
}
