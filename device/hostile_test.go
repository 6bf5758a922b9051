package device_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/transport"
)

// modify changes the state alone.
func (p *prog) modify(q *qpair, to device.State, mask uint32) {
	p.t.Helper()
	m := attr(q.Handle(), to, p.nic.Addrs()[0], 0)
	m.Mask = mask
	if err := p.ctx.ModifyQP(p.nic.Now(), m); err != nil {
		p.t.Errorf("to %v: %v", to, err)
	}
}

// eager is a program that acts within the device's calls, as a thread on another core could.
type eager struct {
	events
	f func()
}

func (e *eager) CompEvent(uint32, hostq.CompEvent) bool {
	e.f()
	return true
}

// TestEndlessReceives: a program that posts receives as fast as they are flushed keeps nobody but itself waiting.
func TestEndlessReceives(t *testing.T) {
	w := newWorld(t, false)
	ev := &eager{}
	p := newProgWith(t, w.nics[0], ev)
	q := p.qp()
	p.modify(q, device.Init, toInit)
	flushed := 0
	ev.f = func() {
		if _, ok := p.CQ.Poll(); ok && flushed < 100000 {
			flushed++
			q.RQ.PutRecv(1)
			q.RQ.Ring()
			p.CQ.Arm(hostq.ArmNext)
		}
	}
	p.CQ.Arm(hostq.ArmNext)
	q.RQ.PutRecv(1)
	q.RQ.Ring()
	p.modify(q, device.Err, 1)
	w.step(10)
	if flushed == 0 || flushed > 10000 {
		t.Errorf("%d receives flushed in 10 steps", flushed)
	}
}

// TestBigProgramEnds: the end of a program with thousands of QPs, all with work, keeps the others waiting for some
// milliseconds, not for seconds: what it does for one QP does not depend on how many there are.
func TestBigProgramEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	const qps = 16000
	w := newWorld(t, true)
	p := newProg(t, w.nics[0])
	sq, rq := p.NewQueue(4, 128, 0), p.NewQueue(4, 64, 0)
	for i := range uint32(qps) { // they may share their rings: their program's own affair
		q, err := p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq, SQEntries: 4, SQStride: 128, RQEntries: 4, RQStride: 64,
			MaxSendSGE: 1, MaxRecvSGE: 1, SQRing: sq.Off, RQRing: rq.Off, SQDoorbell: 2*i + 2, RQDoorbell: 2*i + 3})
		if err != nil {
			t.Fatal(err)
		}
		p.modify(&qpair{QP: q}, device.Init, toInit)
		p.modify(&qpair{QP: q}, device.Err, 1) // rung for its flush
	}
	begin := time.Now()
	p.ctx.Close(w.now)
	if took := time.Since(begin); took > 300*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if p.nic.C.Live != (device.Live{}) {
		t.Errorf("left over: %+v", p.nic.C.Live)
	}
	w.step(3)
}

// TestUnreadEvents: a program that does not read its events costs the others next to nothing, and is given them all
// when it does.
func TestUnreadEvents(t *testing.T) {
	w := newWorld(t, true)
	ev := &deaf{deaf: true}
	p := newProgWith(t, w.nics[0], ev)
	for range 10 {
		p.nic.SetPlane(w.now, 0, false)
		p.nic.SetPlane(w.now, 0, true)
	}
	ev.offers = 0
	w.step(1000) // 10 ms
	if ev.offers == 0 || ev.offers > 20 {
		t.Errorf("offered %d times in 10 ms", ev.offers)
	}
	ev.deaf, ev.offers = false, 0
	w.step(200)
	if ev.offers != 20 {
		t.Errorf("%d events came, want 20", ev.offers)
	}
}

// deaf is a program whose sockets are full: all of them, or one channel's.
type deaf struct {
	deaf   bool
	full   uint32
	offers int
	comp   []uint64
}

func (d *deaf) CompEvent(channel uint32, e hostq.CompEvent) bool {
	d.offers++
	if d.deaf || channel == d.full {
		return false
	}
	d.comp = append(d.comp, e.Cookie)
	return true
}

func (d *deaf) AsyncEvent(hostq.AsyncEvent) bool {
	d.offers++
	return !d.deaf
}

// TestFullChannel: a channel that nobody reads does not hold up the program's other channels.
func TestFullChannel(t *testing.T) {
	w := newWorld(t, true)
	ev := &deaf{deaf: true}
	p := newProgWith(t, w.nics[0], ev)
	var queues []*hostqtest.Queue
	for cookie := range uint64(2) {
		ch := must(p.ctx.CreateChannel())(t)
		cq := p.NewQueue(16, 128, 0)
		queues = append(queues, cq)
		h := must(p.ctx.CreateCQ(&hostq.CreateCQ{Entries: 16, Ring: cq.Off, Channel: ch, Cookie: cookie}))(t)
		if cookie == 0 {
			ev.full = ch
		}
		q := p.qpOn(h)
		p.modify(q, device.Init, toInit)
		cq.Arm(hostq.ArmNext)
		q.RQ.PutRecv(1)
		q.RQ.Ring()
		p.modify(q, device.Err, 1)
		w.step(1)
	}
	if _, ok := queues[1].Poll(); !ok || len(ev.comp) != 0 {
		t.Fatalf("events %v", ev.comp)
	}
	ev.deaf = false
	w.step(200)
	if len(ev.comp) != 1 || ev.comp[0] != 1 {
		t.Errorf("events %v", ev.comp)
	}
}

// TestHugeQueues: QPs with the largest send queues on the same few pages cost the daemon a bounded amount, and a queue
// that is longer than what the daemon holds of it still works.
func TestHugeQueues(t *testing.T) {
	w := newWorld(t, false)
	p := newProg(t, w.nics[0])
	sq, rq := p.NewQueue(16384, 64, 0), p.NewQueue(4, 64, 0)
	before := heap()
	made := 0
	for i := range uint32(20) {
		if _, err := p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq, SQEntries: 16384, SQStride: 64, RQEntries: 4,
			RQStride: 64, MaxSendSGE: 32, MaxRecvSGE: 1, SQRing: sq.Off, RQRing: rq.Off, SQDoorbell: 2 * i, RQDoorbell: 2*i + 1}); err != nil {
			break
		}
		made++
	}
	if per := (heap() - before) / uint64(made); per > 3<<20 {
		t.Errorf("%d bytes a QP", per)
	}
	q := p.NewQueue(8192, 128, 2000)
	qp := must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq, SQEntries: 8192, SQStride: 128, MaxSendSGE: 1,
		SQRing: q.Off, SQDoorbell: q.Bell}))(t)
	p.up(&qpair{QP: qp}, p.nic.Addrs()[0], qp.QPN())
	for i := range uint64(8192) {
		e := hostq.SQE{WRID: i, Opcode: hostq.WRWrite, RKey: p.mr.Key(), RemoteAddr: ramBase}
		if i%64 == 63 {
			e.Flags = hostq.SendSignaled
		}
		q.PutSend(e, nil, p.sge(0, 8))
	}
	q.Ring()
	for i := uint64(63); i < 8192; i += 64 {
		w.want(p, i, transport.OK)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestResizeHostile: a consumer index that claims millions of waiting completions does not make the device copy them;
// a queue that overran says so in its new ring too.
func TestResizeHostile(t *testing.T) {
	w := newWorld(t, true)
	const many = 1 << 17
	mem := hostq.NewTestMem(64 << 20)
	p := &prog{t: t, nic: w.nics[0], Prog: hostqtest.New(mem), ev: &events{}}
	p.ctx = w.nics[0].OpenContext(device.ContextConfig{Mem: mem, Space: &ram{}, Notifier: p.ev})
	big, next := p.NewQueue(many, 128, 0), p.NewQueue(many, 128, 0)
	cq := must(p.ctx.CreateCQ(&hostq.CreateCQ{Entries: many, Ring: big.Off}))(t)
	big.Hdr.Cons -= many
	if err := p.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: cq, Entries: many, Ring: next.Off}); err == nil {
		t.Error("it copied them all")
	}
	p.pd = must(p.ctx.AllocPD())(t)
	q := p.qpOn(cq)
	p.modify(q, device.Init, toInit)
	q.RQ.PutRecv(1)
	q.RQ.Ring()
	p.modify(q, device.Err, 1)
	w.step(1)
	big.Hdr.Cons = 0
	if big.Flags() != hostq.RingOverrun {
		t.Fatal("no overrun")
	}
	if err := p.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: cq, Entries: many, Ring: next.Off}); err != nil || next.Flags() != hostq.RingOverrun {
		t.Errorf("resize: %v, flags %d", err, next.Flags())
	}
}
