package device_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// Proofs of what spec/08-qp.md and spec/10-verbs.md ask of the part of a NIC that programs see.

// TestSpecDrained: the event comes once, when what was begun is complete, although more is posted; then the QP goes on.
func TestSpecDrained(t *testing.T) {
	for i, policy := range []device.Policy{0, device.Auto, device.OnlyRoCEv2} {
		double := i == 0
		w := newWorldOf(t, double, policy)
		a, b, qa, _ := w.pair(t)
		qa.SQ.PutSend(hostq.SQE{WRID: 99, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
		qa.SQ.Ring()
		w.want(a, 99, transport.OK) // the peers know each other
		const n = 40
		for i := range n {
			qa.SQ.PutSend(hostq.SQE{WRID: uint64(i), Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 100_000))
		}
		qa.SQ.Ring()
		a.nic.Step(w.now) // a part of it leaves
		m := attr(qa.Handle(), device.SQD, a.nic.Addrs()[0], 0)
		m.Mask, m.EnSQDAsyncNotify = 1|1<<2, 1
		if err := a.ctx.ModifyQP(w.now, m); err != nil {
			t.Fatal(err)
		}
		done := 0
		drain := func() {
			for range 400 {
				w.step(10)
				for _, ok := a.CQ.Poll(); ok; _, ok = a.CQ.Poll() {
					done++
				}
			}
		}
		drain()
		//= MR-QP-010
		if len(a.ev.async) != 1 || a.ev.async[0].Type != 5 || a.ev.async[0].Cookie != 0x9b {
			t.Errorf("%v: %d of %d done, events %+v", policy, done, n, a.ev.async)
		}
		var r hostq.ModifyQP
		if err := a.ctx.QueryQP(qa.Handle(), &r); err != nil || r.SQDraining != 0 {
			t.Errorf("%v: %v, draining %d", policy, err, r.SQDraining)
		}
		m = attr(qa.Handle(), device.RTS, a.nic.Addrs()[0], 0)
		m.Mask = 1
		if err := a.ctx.ModifyQP(w.now, m); err != nil {
			t.Fatal(err)
		}
		drain()
		//= MR-QP-011
		if done != n || len(a.ev.async) != 1 {
			t.Errorf("%v: %d of %d done at last, events %+v", policy, done, n, a.ev.async)
		}
	}
}

// TestSpecNumbers: numbers of special meaning are nobody's, and a number comes back late.
func TestSpecNumbers(t *testing.T) {
	w := newWorld(t, true)
	a := newProg(t, w.nics[0])
	seen := map[uint32]bool{}
	for range 300 {
		q := must(a.ctx.CreateQP(&hostq.CreateQP{PD: a.pd, Type: 2, SendCQ: a.cq, RecvCQ: a.cq}))(t)
		//= MR-QP-006 MR-COEX-003
		if n := q.QPN(); n < 2 || n >= 0xFFFFFF || seen[n] {
			t.Fatalf("number %#x", n)
		}
		seen[q.QPN()] = true
		if _, err := a.ctx.DestroyQP(q.Handle()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSpecNumbersOfInstances: a NIC that was started again gives out other numbers and keys than before.
func TestSpecNumbersOfInstances(t *testing.T) {
	seen := map[uint32]bool{}
	for i := range uint64(20) {
		x, _ := devicetest.NewWire(4300)
		n, err := device.New(device.Config{Name: "a/mr0", Dev: "mr0", Seed: 1, Instance: i + 1, Ports: []device.Port{x}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
		if err != nil {
			t.Fatal(err)
		}
		p := newProg(t, n)
		q := must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq}))(t)
		//= MR-QP-013 MR-QP-006
		if k := q.QPN(); k < 2 || k >= 0xFFFFFF || seen[k] || seen[p.mr.Key()] {
			t.Errorf("instance %d: number %#x, key %#x", i+1, k, p.mr.Key())
		}
		seen[q.QPN()], seen[p.mr.Key()] = true, true
	}
}

// TestSpecAsync: which failures are told by an event.
func TestSpecAsync(t *testing.T) {
	for _, c := range []struct {
		name  string
		sqe   hostq.SQE
		n     uint32
		event uint32 // 100 = none
		recv  transport.Status
	}{
		{"bad key", hostq.SQE{Opcode: hostq.WRWrite, RKey: 5, RemoteAddr: ramBase}, 8, 3, transport.WRFlushErr},
		{"misaligned atomic", hostq.SQE{Opcode: hostq.WRFetchAdd, RemoteAddr: ramBase + 4}, 8, 2, transport.WRFlushErr},
		{"receive too small", hostq.SQE{Opcode: hostq.WRSend}, 2000, 1, transport.LocLenErr},
		{"own list", hostq.SQE{Opcode: 99}, 8, 100, transport.OK},
	} {
		w := newWorld(t, false)
		a, b, qa, qb := w.pair(t)
		qb.RQ.PutRecv(1, b.sge(0, 1000))
		qb.RQ.PutRecv(2, b.sge(0, 1000))
		qb.RQ.Ring()
		e := c.sqe
		if e.RKey == 0 {
			e.RKey = b.mr.Key()
		}
		qa.SQ.PutSend(e, nil, a.sge(0, c.n))
		qa.SQ.Ring()
		for range 100 {
			w.step(10)
		}
		//= MR-QP-031
		if len(a.ev.async) != 0 || a.state(qa) != device.Err {
			t.Errorf("%s: the requester is in %v, events %+v", c.name, a.state(qa), a.ev.async)
		}
		if c.event == 100 {
			//= MR-QP-031
			if len(b.ev.async) != 0 || b.state(qb) != device.RTS {
				t.Errorf("%s: the responder is in %v, events %+v", c.name, b.state(qb), b.ev.async)
			}
			continue
		}
		//= MR-QP-030
		if len(b.ev.async) != 1 || b.ev.async[0].Type != c.event || b.ev.async[0].Cookie != 0x9b {
			t.Errorf("%s: events %+v", c.name, b.ev.async)
		}
		//= MR-QP-032
		w.want(b, 1, c.recv)
		w.want(b, 2, transport.WRFlushErr)
	}
}

// TestSpecLists: a message is its list, piece after piece; what has no length is not there.
func TestSpecLists(t *testing.T) {
	for _, double := range []bool{true, false} {
		w := newWorld(t, double)
		a, b, qa, qb := w.pair(t)
		for i := range 10_000 {
			a.ram.b[i], a.ram.b[20_000+i] = byte(i), byte(3*i)
		}
		nothing := hostq.SGE{Addr: 5, Length: 0, LKey: 12345}
		want := append(append([]byte(nil), a.ram.b[20_000:20_007]...), a.ram.b[100:5100]...)
		qb.RQ.PutRecv(1, b.sge(300_000, 3000), nothing, b.sge(400_000, 4000))
		qb.RQ.Ring()
		qa.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRSend}, nil, a.sge(20_000, 7), nothing, a.sge(100, 5000))
		qa.SQ.Ring()
		//= MR-VRB-001 MR-VRB-004
		if e := w.want(b, 1, transport.OK); e.ByteLen != 5007 || e.SrcQP != qa.QPN() || e.Opcode != 128 {
			t.Errorf("%+v", e)
		}
		if got := append(append([]byte(nil), b.ram.b[300_000:303_000]...), b.ram.b[400_000:402_007]...); !bytes.Equal(got, want) {
			t.Error("other bytes")
		}
		qb.RQ.PutRecv(3)
		qb.RQ.Ring()
		qa.SQ.PutSend(hostq.SQE{WRID: 4, Opcode: hostq.WRWriteImm, Imm: 7, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 9000))
		qa.SQ.Ring()
		//= MR-VRB-004
		if e := w.want(b, 3, transport.OK); e.ByteLen != 9000 || e.Opcode != 129 || e.Imm != 7 {
			t.Errorf("%+v", e)
		}
	}
}

// TestSpecOverTheEnd: a WRITE that begins in a region and ends behind it leaves no byte.
func TestSpecOverTheEnd(t *testing.T) {
	w := newWorld(t, false)
	a, b, qa, _ := w.pair(t)
	m := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: ramBase, IOVA: ramBase, Length: 20_000, Access: 1 | 1<<1}))(t)
	for i := range 20_001 {
		a.ram.b[i] = 7
	}
	qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, RKey: m.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 20_001))
	qa.SQ.Ring()
	//= MR-MSG-036
	w.want(a, 1, transport.RemAccessErr)
	if n := bytes.Count(b.ram.b[:20_000], []byte{7}); n > 0 {
		t.Errorf("%d bytes were written", n)
	}
}

// TestSpecRights: the QP has to grant an operation, too; bytes go only where the program may write.
func TestSpecRights(t *testing.T) {
	for _, op := range []uint8{hostq.WRWrite, hostq.WRRead, hostq.WRFetchAdd} {
		w := newWorld(t, false)
		a, b, qa, qb := w.pair(t)
		m := attr(qb.Handle(), device.RTS, a.nic.Addrs()[0], 0)
		m.Mask, m.QPAccessFlags = 1|1<<3, 0
		if err := b.ctx.ModifyQP(w.now, m); err != nil {
			t.Fatal(err)
		}
		qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: op, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
		qa.SQ.Ring()
		//= MR-VRB-020
		w.want(a, 1, transport.RemInvReqErr)
	}
	w := newWorld(t, false)
	a, b, qa, qb := w.pair(t)
	ro := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: ramBase, IOVA: ramBase, Length: 64, Access: 0}))(t)
	qb.RQ.PutRecv(1, hostq.SGE{Addr: ramBase, Length: 64, LKey: ro.Key()})
	qb.RQ.Ring()
	qa.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRSend}, nil, a.sge(0, 8))
	qa.SQ.Ring()
	//= MR-VRB-021 MR-QP-032
	w.want(b, 1, transport.LocProtErr)
	//= MR-VRB-021
	w.want(a, 2, transport.RemOpErr)
}
