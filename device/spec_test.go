package device_test

import (
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// Proofs of what spec/08-qp.md and spec/10-verbs.md ask of the part of a NIC that programs see.

// TestSpecDrained: the event comes once, when what was begun is complete, although more is posted; then the QP goes on.
func TestSpecDrained(t *testing.T) {
	for _, double := range []bool{true, false} {
		w := newWorld(t, double)
		a, b, qa, _ := w.pair(t)
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
			t.Errorf("double=%v: %d of %d done, events %+v", double, done, n, a.ev.async)
		}
		var r hostq.ModifyQP
		if err := a.ctx.QueryQP(qa.Handle(), &r); err != nil || r.SQDraining != 0 {
			t.Errorf("double=%v: %v, draining %d", double, err, r.SQDraining)
		}
		m = attr(qa.Handle(), device.RTS, a.nic.Addrs()[0], 0)
		m.Mask = 1
		if err := a.ctx.ModifyQP(w.now, m); err != nil {
			t.Fatal(err)
		}
		drain()
		//= MR-QP-011
		if done != n || len(a.ev.async) != 1 {
			t.Errorf("double=%v: %d of %d done at last, events %+v", double, done, n, a.ev.async)
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
		//= MR-QP-006
		if n := q.QPN(); n < 2 || n >= 0xFFFFFF || seen[n] {
			t.Fatalf("number %#x", n)
		}
		seen[q.QPN()] = true
		if _, err := a.ctx.DestroyQP(q.Handle()); err != nil {
			t.Fatal(err)
		}
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
