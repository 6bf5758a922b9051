package device_test

import (
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// TestOverrun: a full CQ raises CQ_ERR once and ends its QPs; a wild consumer index is the same.
func TestOverrun(t *testing.T) {
	for _, wild := range []bool{false, true} {
		w := newWorld(t, true)
		a, b, _, _ := w.pair(t)
		small := a.NewQueue(4, 128, 0)
		cq := must(a.ctx.CreateCQ(&hostq.CreateCQ{Entries: 4, Ring: small.Off, Cookie: 0x51}))(t)
		q := a.qpOn(cq)
		qb := b.qp()
		a.up(q, b.nic.Addrs()[0], qb.QPN())
		b.up(qb, a.nic.Addrs()[0], q.QPN())
		n := 5
		if wild {
			small.Hdr.Cons, n = 0x7fffffff, 1
		}
		for i := range n {
			q.SQ.PutSend(hostq.SQE{WRID: uint64(i), Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
		}
		q.SQ.Ring()
		w.step(100)
		if len(a.ev.async) != 2 || a.ev.async[0] != (hostq.AsyncEvent{Cookie: 0x51}) || a.ev.async[1].Type != 1 {
			t.Errorf("events %+v", a.ev.async)
		}
		if small.Flags() != hostq.RingOverrun || a.state(q) != device.Err {
			t.Errorf("flags %d, QP %v", small.Flags(), a.state(q))
		}
		if _, async, err := a.ctx.DestroyCQ(cq); err == nil {
			t.Errorf("destroyed in use, %d", async)
		}
		if _, err := a.ctx.DestroyQP(q.Handle()); err != nil {
			t.Error(err)
		}
		if _, async, err := a.ctx.DestroyCQ(cq); err != nil || async != 1 {
			t.Errorf("destroy: %v, %d events", err, async)
		}
	}
}

// TestEvents: one event for one arming; solicited arming waits for a solicited completion or an error; a full socket
// delays an event and never loses it.
func TestEvents(t *testing.T) {
	w := newWorld(t, true)
	a, b, qa, qb := w.pair(t)
	id := uint64(0)
	send := func(flags uint16) {
		id++
		qb.RQ.PutRecv(id, b.sge(0, 64))
		qb.RQ.Ring()
		qa.SQ.PutSend(hostq.SQE{WRID: id, Opcode: hostq.WRSend, Flags: flags}, nil, a.sge(0, 8))
		qa.SQ.Ring()
		w.want(b, id, transport.OK)
	}
	want := func(name string, n int) {
		t.Helper()
		if len(b.ev.comp) != n {
			t.Fatalf("%s: %d events, want %d", name, len(b.ev.comp), n)
		}
	}
	send(0)
	want("not armed", 0)
	b.CQ.Arm(hostq.ArmNext)
	send(0)
	send(0)
	want("armed once", 1)
	if b.ev.comp[0].Cookie != 0xc0 {
		t.Error("cookie")
	}
	b.CQ.Arm(hostq.ArmSolicited)
	send(0)
	//= MR-VRB-007
	want("not solicited", 1)
	send(hostq.SendSolicited)
	want("solicited", 2)
	b.ev.full = true
	b.CQ.Arm(hostq.ArmNext)
	send(0)
	b.CQ.Arm(hostq.ArmNext)
	send(0)
	want("socket full", 2)
	b.ev.full = false
	w.step(200)
	want("socket has room", 3)
	b.CQ.Arm(hostq.ArmSolicited)
	m := attr(qb.Handle(), device.Err, a.nic.Addrs()[0], 0)
	m.Mask = 1
	qb.RQ.PutRecv(99, b.sge(0, 64))
	qb.RQ.Ring()
	if err := b.ctx.ModifyQP(w.now, m); err != nil {
		t.Fatal(err)
	}
	w.want(b, 99, transport.WRFlushErr)
	//= MR-VRB-007
	want("an error counts as solicited", 4)
	if _, err := b.ctx.DestroyQP(qb.Handle()); err != nil {
		t.Fatal(err)
	}
	if comp, _, err := b.ctx.DestroyCQ(b.cq); err != nil || comp != 4 {
		t.Errorf("destroy: %v, %d events", err, comp)
	}
}

// TestResize moves unpolled completions to another ring.
func TestResize(t *testing.T) {
	w := newWorld(t, true)
	a, b, qa, _ := w.pair(t)
	for i := range 5 {
		qa.SQ.PutSend(hostq.SQE{WRID: uint64(i), Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
	}
	qa.SQ.Ring()
	w.want(a, 0, transport.OK)
	w.step(10)
	small := a.NewQueue(2, 128, 0)
	if a.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: a.cq, Entries: 2, Ring: small.Off}) == nil {
		t.Error("resized below what is in it")
	}
	next := a.NewQueue(8, 128, 0)
	if a.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: a.cq, Entries: 8, Ring: next.Off, Want: 2}) == nil {
		t.Fatal("more is waiting than the program wants room for")
	}
	if err := a.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: a.cq, Entries: 8, Ring: next.Off, Want: 8}); err != nil {
		t.Fatal(err)
	}
	next.Cons = a.CQ.Cons
	a.CQ = next
	for i := 1; i < 5; i++ {
		w.want(a, uint64(i), transport.OK)
	}
	qa.SQ.PutSend(hostq.SQE{WRID: 9, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
	qa.SQ.Ring()
	w.want(a, 9, transport.OK)
}

// TestReset: what was posted is forgotten, and the QP works again, whether the program sets its indices back or not.
func TestReset(t *testing.T) {
	for _, back := range []bool{false, true} {
		w := newWorld(t, true)
		a, b, qa, qb := w.pair(t)
		qb.RQ.PutRecv(1, b.sge(0, 64))
		qb.RQ.Ring()
		qa.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 8))
		qa.SQ.PutSend(hostq.SQE{WRID: 3, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 8))
		qa.SQ.Ring()
		w.want(b, 1, transport.OK)
		w.want(a, 2, transport.OK)
		w.step(10)
		for _, p := range []struct {
			*prog
			q *qpair
		}{{a, qa}, {b, qb}} {
			m := attr(p.q.Handle(), device.Reset, a.nic.Addrs()[0], 0)
			m.Mask = 1
			if err := p.ctx.ModifyQP(w.now, m); err != nil {
				t.Fatal(err)
			}
			if back {
				for _, r := range []struct{ prod *uint32 }{{&p.q.SQ.Prod}, {&p.q.RQ.Prod}} {
					*r.prod = 0
				}
				p.q.SQ.Hdr.Prod, p.q.RQ.Hdr.Prod = 0, 0
			}
		}
		a.up(qa, b.nic.Addrs()[0], qb.QPN())
		b.up(qb, a.nic.Addrs()[0], qa.QPN())
		qb.RQ.PutRecv(4, b.sge(0, 64))
		qb.RQ.Ring()
		qa.SQ.PutSend(hostq.SQE{WRID: 5, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 8))
		qa.SQ.Ring()
		w.want(b, 4, transport.OK)
		w.want(a, 5, transport.OK)
	}
}

// TestSleep: the flags of the doorbell protocol, and a doorbell rung while nobody looks.
func TestSleep(t *testing.T) {
	w := newWorld(t, true)
	a, b, qa, _ := w.pair(t)
	w.step(5)
	if a.nic.BeforeSleep() || a.Page().Asleep != 1 {
		t.Fatal("not ready to sleep")
	}
	woken := 0
	a.Wake = func() { woken++ }
	qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
	qa.SQ.Ring()
	if woken != 1 || !a.nic.BeforeSleep() {
		t.Error("the doorbell was not noticed")
	}
	a.nic.AfterSleep()
	if a.Page().Asleep != 0 {
		t.Error("still marked asleep")
	}
	w.want(a, 1, transport.OK)
}

// TestGone: when DMA says that the program is no more, the context is given up, and closing it frees everything.
func TestGone(t *testing.T) {
	w := newWorld(t, true)
	a, b, qa, _ := w.pair(t)
	b.ram.gone = true
	qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
	qa.SQ.Ring()
	w.want(a, 1, transport.RemAccessErr)
	if !b.ctx.Dead {
		t.Error("the context lives on")
	}
	b.ctx.Close(w.now)
	if b.nic.C.Live != (device.Live{}) {
		t.Errorf("left over: %+v", b.nic.C.Live)
	}
}

// TestOrder: the last 8 bytes of a write are stored after the rest, and neighbours become one call.
func TestOrder(t *testing.T) {
	w := newWorld(t, true)
	a, b, _, qb := w.pair(t)
	_ = a
	var segs []int
	b.ctx.Close(w.now)
	rec := &recorder{segs: &segs}
	p := &prog{t: t, nic: w.nics[1], ram: b.ram, ev: &events{}, Prog: b.Prog}
	p.ctx = w.nics[1].OpenContext(device.ContextConfig{Mem: b.Mem, Space: rec, Notifier: p.ev})
	p.pd = must(p.ctx.AllocPD())(t)
	p.mr = must(p.ctx.RegMR(&hostq.RegMR{PD: p.pd, Addr: ramBase, IOVA: ramBase, Length: ramBytes, Access: allRight}))(t)
	p.CQ = p.NewQueue(16, 128, 0)
	p.cq = must(p.ctx.CreateCQ(&hostq.CreateCQ{Entries: 16, Ring: p.CQ.Off}))(t)
	q := p.qp()
	m := attr(q.Handle(), device.Init, w.nics[0].Addrs()[0], 0)
	m.Mask = toInit
	if err := p.ctx.ModifyQP(w.now, m); err != nil {
		t.Fatal(err)
	}
	_ = qb
	ops := []transport.MemOp{
		{QP: q.QP, Kind: transport.MemWrite, Addr: ramBase, RKey: p.mr.Key(), Buf: make([]byte, 100), Chain: 1},
		{QP: q.QP, Kind: transport.MemWrite, Addr: ramBase + 100, RKey: p.mr.Key(), Buf: make([]byte, 8), Chain: 1},
		{QP: q.QP, Kind: transport.MemWrite, Addr: ramBase + 108, RKey: p.mr.Key() + 1, Buf: make([]byte, 8), Chain: 2},
		{QP: q.QP, Kind: transport.MemWrite, Addr: ramBase + 116, RKey: p.mr.Key(), Buf: make([]byte, 8), Chain: 2},
		{QP: q.QP, Kind: transport.MemWrite, Addr: ramBase + 124, RKey: p.mr.Key(), Buf: make([]byte, 3), Chain: 3},
		{QP: q.QP, Kind: transport.MemWrite, Addr: ramBase + 127, RKey: p.mr.Key(), Buf: nil},
		{QP: q.QP, Kind: transport.MemRead, Addr: ramBase, RKey: p.mr.Key(), Buf: make([]byte, 64)},
		{QP: q.QP, Kind: transport.MemFetchAdd, Addr: ramBase, RKey: p.mr.Key(), Compare: 1},
	}
	w.nics[1].DMA(ops)
	//= MR-MSG-023
	want := []int{-1, 92, 8, 8, 3, -2, 64, -2, 8, -1, 8}
	if len(segs) != len(want) {
		t.Fatalf("segments %v, want %v", segs, want)
	}
	for i := range want {
		if segs[i] != want[i] {
			t.Fatalf("segments %v, want %v", segs, want)
		}
	}
	for i, e := range []transport.MemErr{0, 0, transport.MemAccess, transport.MemSkipped, 0, 0, 0, 0} {
		if ops[i].Err != e {
			t.Errorf("operation %d: %v, want %v", i, ops[i].Err, e)
		}
	}
	segs = nil
	rec.fail = 92
	w.nics[1].DMA(ops[:5])
	for i, e := range []transport.MemErr{transport.MemFault, transport.MemSkipped, transport.MemAccess, transport.MemSkipped, 0} {
		if ops[i].Err != e {
			t.Errorf("after a fault, operation %d: %v, want %v", i, ops[i].Err, e)
		}
	}
}

// recorder notes calls (-1 write, -2 read) and the sizes of their segments.
type recorder struct {
	segs *[]int
	fail int // a segment of this size faults
}

func (r *recorder) call(mark int, segs []device.Seg) (int, error) {
	*r.segs = append(*r.segs, mark)
	for i, s := range segs {
		if len(s.Buf) == r.fail {
			return i, device.ErrFault
		}
		*r.segs = append(*r.segs, len(s.Buf))
	}
	return len(segs), nil
}

func (r *recorder) Write(s []device.Seg) (int, error) { return r.call(-1, s) }
func (r *recorder) Read(s []device.Seg) (int, error)  { return r.call(-2, s) }

// TestPlanes: a plane switched off and on is told to programs and shown.
func TestPlanes(t *testing.T) {
	w := newWorld(t, true)
	a, _, _, _ := w.pair(t)
	var p hostq.PortAttr
	n := w.nics[0]
	n.SetPlane(w.now, 0, false)
	if n.PortAttr(1, &p) != nil || p.State != 1 || p.PlanesUp != 0 {
		t.Errorf("port %+v", p)
	}
	n.SetPlane(w.now, 0, true)
	if n.PortAttr(1, &p) != nil || p.State != 4 || p.PlanesUp != 1 || p.ActiveMTU != 5 {
		t.Errorf("port %+v", p)
	}
	if len(a.ev.async) != 2 || a.ev.async[0].Type != 10 || a.ev.async[1].Type != 9 || a.ev.async[0].Port != 1 {
		t.Errorf("events %+v", a.ev.async)
	}
	if n.PortAttr(2, &p) == nil {
		t.Error("port 2")
	}
	if n.SetPlane(w.now, 1, true) {
		t.Error("plane 1")
	}
}

// TestNoAllocation: the steady state of Step, doorbell to completion, allocates nothing. The QP is connected to
// itself, so that the engine and the whole device take part and no driver does.
func TestNoAllocation(t *testing.T) {
	w := newWorld(t, false)
	a := newProg(t, w.nics[0])
	q := a.qp()
	a.up(q, a.nic.Addrs()[0], q.QPN())
	round := func() {
		for i := range 16 {
			q.RQ.PutRecv(uint64(i), a.sge(4096, 4096))
			q.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 3000), a.sge(8192, 100))
			q.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: a.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 4096))
		}
		q.RQ.Ring()
		q.SQ.Ring()
		for got := 0; got < 48; {
			w.now = w.now.Add(20 * mono.Microsecond)
			a.nic.Step(w.now)
			e, ok := a.CQ.Poll()
			for ; ok; e, ok = a.CQ.Poll() {
				if e.Status != 0 {
					t.Fatalf("completion %+v", e)
				}
				got++
			}
		}
	}
	for range 50 {
		round()
	}
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

// BenchmarkStep is a 4 KiB WRITE of a QP to itself through the whole device.
func BenchmarkStep(b *testing.B) {
	w := newWorld(b, false)
	a := newProg(b, w.nics[0])
	q := a.qp()
	a.up(q, a.nic.Addrs()[0], q.QPN())
	b.SetBytes(4096)
	b.ReportAllocs()
	posted, done := 0, 0
	for done < b.N {
		for posted-done < 32 && posted < b.N {
			q.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: a.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 4096))
			posted++
		}
		q.SQ.Ring()
		w.now = w.now.Add(20 * mono.Microsecond)
		a.nic.Step(w.now)
		for _, ok := a.CQ.Poll(); ok; _, ok = a.CQ.Poll() {
			done++
		}
	}
}
