package device_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

const (
	xrcSendRTR = 1<<0 | 1<<7 | 1<<8 | 1<<20 | 1<<12
	oCreat     = 0o100
	oExcl      = 0o200
	queueBase  = 0x77
)

// member is a program of an XRC domain: a shared receive queue with a number.
type member struct {
	*prog
	xrcd, srq, num uint32
	q              *hostqtest.Shared
}

func (w *world) member(t testing.TB, n *device.NIC, key device.Inode) *member {
	t.Helper()
	m := &member{prog: newProg(t, n)}
	m.xrcd = must(m.ctx.OpenXRCD(&hostq.OpenXRCD{Flags: oCreat}, key))(t)
	m.q = m.NewShared(16, 128)
	m.srq = must(m.ctx.CreateSRQ(&hostq.CreateSRQ{PD: m.pd, Type: 1, Entries: 16, MaxSGE: 2, Stride: 128, Ring: m.q.Off, Slots: m.q.Slots,
		Cookie: srqCookie, CQ: m.cq, XRCD: m.xrcd}))(t)
	m.num = m.ctx.SRQNumber(m.srq)
	return m
}

// sender makes an XRC_SEND QP.
func (p *prog) sender() *qpair {
	p.t.Helper()
	q := &qpair{SQ: p.NewQueue(64, 640, p.bell)}
	p.bell++
	q.QP = must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 9, SendCQ: p.cq, SQEntries: 64, SQStride: 640, MaxSendSGE: 8, MaxInline: 256,
		SQRing: q.SQ.Off, SQDoorbell: q.SQ.Bell, Cookie: 0x9b}))(p.t)
	return q
}

func (m *member) responder(cookie uint64) *qpair {
	m.t.Helper()
	return &qpair{QP: must(m.ctx.CreateQP(&hostq.CreateQP{Type: 10, XRCD: m.xrcd, Cookie: cookie}))(m.t)}
}

// xrcWorld is a requester and two programs that share the responding QP, which the first of them made.
func xrcWorld(t *testing.T, policy device.Policy) (w *world, a *prog, qa *qpair, x, y *member, qx *qpair) {
	w = newWorldOf(t, false, policy)
	a = newProg(t, w.nics[0])
	x, y = w.member(t, w.nics[1], device.Inode{Dev: 1, Ino: 5}), w.member(t, w.nics[1], device.Inode{Dev: 1, Ino: 5})
	qa, qx = a.sender(), x.responder(0xa1)
	a.climb(qa, x.nic.Addrs()[0], qx.QPN(), toInit, xrcSendRTR, toRTS)
	x.climb(qx, a.nic.Addrs()[0], qa.QPN(), toInit, toRTR, 0)
	return w, a, qa, x, y, qx
}

func (a *prog) request(q *qpair, id uint64, op uint8, srqn uint32, key uint32, n uint32) {
	post(q, hostq.SQE{WRID: id, Opcode: op, Flags: hostq.SendSignaled, RKey: key, RemoteAddr: ramBase + 0x8000, XRCSRQN: srqn}, nil, a.sge(0, n))
}

// TestXRC: one connection serves two programs; receives, completions, keys and memory are of the one whose queue is named.
func TestXRC(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w, a, qa, x, y, qx := xrcWorld(t, policy)
		if x.num == 0 || x.num == y.num || x.num > 0xFFFFFF {
			t.Fatalf("numbers %d and %d", x.num, y.num)
		}
		for i, m := range []*member{x, y, y, x} {
			for k := range 4000 {
				a.ram.b[k] = byte(i + k*3)
			}
			for _, n := range []uint32{20, 4000} { // in the completion, and in memory
				id := uint64(100*i) + uint64(n)
				m.q.Post(uint32(i), id, m.sge(0x4000, 4000))
				a.request(qa, 1, hostq.WRSend, m.num, 0, n)
				w.want(a, 1, transport.OK)
				e := w.want(m.prog, id, transport.OK)
				//= MR-COEX-061 MR-COEX-063
				if e.QPN != qx.QPN() || e.SrcQP != qa.QPN() || e.ByteLen != n || e.Slot != uint32(i) || e.Flags != hostq.CQESRQ|hostq.CQEXRC || e.SRQ != m.srq {
					t.Errorf("%+v", e)
				}
				got := m.ram.b[0x4000 : 0x4000+n]
				if n <= hostq.CQEInline {
					got = e.Data[:e.InlineLen]
				}
				if !bytes.Equal(got, a.ram.b[:n]) {
					t.Errorf("message %d of %d bytes: wrong bytes", i, n)
				}
			}
			a.request(qa, 2, hostq.WRWrite, m.num, m.mr.Key(), 3000)
			w.want(a, 2, transport.OK)
			clear(a.ram.b[:3000])
			a.request(qa, 3, hostq.WRRead, m.num, m.mr.Key(), 3000)
			w.want(a, 3, transport.OK)
			a.request(qa, 4, hostq.WRFetchAdd, m.num, m.mr.Key(), 8)
			w.want(a, 4, transport.OK)
			if a.ram.b[2999] != byte(i+2999*3&0xff) || m.ram.b[0x8000+2999] != byte(i+2999*3&0xff) {
				t.Errorf("message %d: WRITE and READ", i)
			}
		}
		//= MR-COEX-020
		for _, i := range append(a.nic.QPInfos(), x.nic.QPInfos()...) {
			if i.Transport != "rocev2" || i.Type != "XRC_SEND" && i.Type != "XRC_RECV" || i.RemoteQPN != qa.QPN() && i.RemoteQPN != qx.QPN() {
				t.Errorf("%+v", i)
			}
		}
		//= MR-COEX-062
		a.request(qa, 5, hostq.WRWrite, y.num, x.mr.Key(), 8) // a key of the other program
		w.want(a, 5, transport.RemAccessErr)
	})
}

// TestXRCErrors: requests that end the connection, and what its programs are told.
func TestXRCErrors(t *testing.T) {
	for name, c := range map[string]struct {
		op    uint8
		srqn  func(x, y *member) uint32
		want  transport.Status
		event uint32
	}{
		"no such queue":     {hostq.WRSend, func(x, _ *member) uint32 { return (x.num + queueBase) & 0xFFFFFF }, transport.RemInvReqErr, 2},
		"of another domain": {hostq.WRSend, func(_, y *member) uint32 { return y.num }, transport.RemInvReqErr, 2},
		"its memory":        {hostq.WRWrite, func(_, y *member) uint32 { return y.num }, transport.RemAccessErr, 3},
	} {
		w, a, qa, x, _, qx := xrcWorld(t, device.Auto)
		z := w.member(t, w.nics[1], device.Inode{}) // alone
		z.q.Post(0, 1, z.sge(0, 100))
		b := w.member(t, w.nics[1], device.Inode{Dev: 1, Ino: 5})
		open := must(b.ctx.OpenQP(&hostq.OpenQP{XRCD: b.xrcd, QPN: qx.QPN(), Cookie: 0xb2}))(t)
		a.request(qa, 1, c.op, c.srqn(x, z), z.mr.Key(), 8)
		//= MR-COEX-061 MR-COEX-062
		w.want(a, 1, c.want)
		if len(x.ev.async) != 1 || len(b.ev.async) != 1 || x.ev.async[0] != (hostq.AsyncEvent{Cookie: 0xa1, Type: c.event}) || b.ev.async[0] != (hostq.AsyncEvent{Cookie: 0xb2, Type: c.event}) {
			t.Errorf("%s: events %+v, %+v", name, x.ev.async, b.ev.async)
		}
		var m hostq.ModifyQP
		if err := b.ctx.QueryQP(open.Handle(), &m); err != nil || device.State(m.QPState) != device.Err {
			t.Errorf("%s: %v, state %d", name, err, m.QPState)
		}
	}
}

// TestXRCLives: the QP goes on when the program that made it closes it or ends; with its last user it goes, and the domain.
func TestXRCLives(t *testing.T) {
	for _, exit := range []bool{false, true} {
		w, a, qa, x, y, qx := xrcWorld(t, device.Auto)
		q := must(y.ctx.OpenQP(&hostq.OpenQP{XRCD: y.xrcd, QPN: qx.QPN()}))(t)
		if q.QPN() != qx.QPN() {
			t.Fatal("another number")
		}
		if err := y.ctx.CloseXRCD(y.xrcd); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("closed while in use: %v", err)
		}
		x.q.Post(0, 1, x.sge(0, 100))
		if exit {
			x.ctx.Close(w.now)
		} else if _, err := x.ctx.DestroyQP(qx.Handle()); err != nil {
			t.Fatal(err)
		}
		y.q.Post(0, 7, y.sge(0, 100))
		a.request(qa, 1, hostq.WRSend, y.num, 0, 80)
		w.want(a, 1, transport.OK)
		//= MR-COEX-064
		w.want(y.prog, 7, transport.OK)
		a.request(qa, 2, hostq.WRSend, x.num, 0, 80)
		if exit {
			w.want(a, 2, transport.RemInvReqErr)
		} else {
			w.want(a, 2, transport.OK)
			w.want(x.prog, 1, transport.OK)
			x.ctx.Close(w.now)
		}
		if l := y.nic.C.Live; l.QPs != 1 || l.XRCDs != 1 || l.SRQs != 1 {
			t.Errorf("exit %v: %+v", exit, l)
		}
		y.ctx.Close(w.now)
		if l := y.nic.C.Live; l != (device.Live{}) {
			t.Errorf("exit %v: left %+v", exit, l)
		}
		w.step(50)
	}
}

// TestXRCGone: a queue that goes in the middle of a message takes its receive along; nobody writes to its program any more.
func TestXRCGone(t *testing.T) {
	w, a, qa, x, y, _ := xrcWorld(t, device.Auto)
	y.q.Post(0, 7, y.sge(0, 600_000))
	a.request(qa, 1, hostq.WRSend, y.num, 0, 600_000)
	for range 200 {
		w.step(1)
		if y.ram.b[5000] = 1; y.ram.calls > 0 {
			break
		}
	}
	if _, err := y.ctx.DestroySRQ(y.srq); err != nil {
		t.Fatal(err)
	}
	calls := y.ram.calls
	w.want(a, 1, transport.RemOpErr)
	if y.ram.calls != calls || calls == 0 {
		t.Errorf("%d calls, %d before the queue went", y.ram.calls, calls)
	}
	if _, ok := y.CQ.Poll(); ok {
		t.Error("a completion of a queue that is gone")
	}
	x.ctx.Close(w.now)
	y.ctx.Close(w.now)
	if l := y.nic.C.Live; l != (device.Live{}) {
		t.Errorf("left %+v", l)
	}
}

// TestXRCReturns: a receive that a message had begun to fill comes back, first in line, when the QP is reset.
func TestXRCReturns(t *testing.T) {
	w, a, qa, x, y, qx := xrcWorld(t, device.Auto)
	y.q.Post(0, 7, y.sge(0, 600_000))
	a.request(qa, 1, hostq.WRSend, y.num, 0, 600_000)
	for y.ram.calls == 0 {
		w.step(1)
	}
	reset := func(p *prog, q *qpair) {
		m := attr(q.Handle(), device.Reset, p.nic.Addrs()[0], 0)
		m.Mask = 1
		if err := p.ctx.ModifyQP(w.now, m); err != nil {
			t.Fatal(err)
		}
	}
	reset(x.prog, qx)
	reset(a, qa)
	w.now = w.now.Add(mono.Second)
	w.step(10)
	a.climb(qa, x.nic.Addrs()[0], qx.QPN(), toInit, xrcSendRTR, toRTS)
	x.climb(qx, a.nic.Addrs()[0], qa.QPN(), toInit, toRTR, 0)
	a.request(qa, 2, hostq.WRSend, y.num, 0, 80)
	w.want(y.prog, 7, transport.OK)
}

// TestXRCDomains: who may open what, as Linux has it.
func TestXRCDomains(t *testing.T) {
	w := newWorld(t, false)
	a, b := newProg(t, w.nics[0]), newProg(t, w.nics[0])
	file, other := device.Inode{Dev: 3, Ino: 9}, device.Inode{Dev: 4, Ino: 9}
	try := func(p *prog, key device.Inode, flags uint32, want error) uint32 {
		t.Helper()
		h, err := p.ctx.OpenXRCD(&hostq.OpenXRCD{Flags: flags}, key)
		if !errors.Is(err, want) {
			t.Errorf("%v with %#o: %v, want %v", key, flags, err, want)
		}
		return h
	}
	try(a, file, 0, syscall.EAGAIN)
	try(a, file, 0o1000, syscall.EINVAL)
	h := try(a, file, oCreat|oExcl, nil)
	try(b, file, oCreat|oExcl, syscall.EINVAL)
	h2 := try(b, file, 0, nil)
	try(b, other, 0, syscall.EAGAIN)
	try(b, device.Inode{}, 0, nil)
	alone := try(a, device.Inode{}, oCreat, nil)
	if l := a.nic.C.Live.XRCDs; l != 3 {
		t.Errorf("%d domains", l)
	}
	q := must(a.ctx.CreateQP(&hostq.CreateQP{Type: 10, XRCD: h}))(t)
	s := w.member(t, w.nics[1], file)
	for name, err := range map[string]error{
		"of another domain": second(a.ctx.OpenQP(&hostq.OpenQP{XRCD: alone, QPN: q.QPN()})),
		"no number":         second(b.ctx.OpenQP(&hostq.OpenQP{XRCD: h2, QPN: q.QPN() + 1})),
		"no domain":         second(b.ctx.OpenQP(&hostq.OpenQP{QPN: q.QPN()})),
		"no XRC QP":         second(b.ctx.OpenQP(&hostq.OpenQP{XRCD: h2, QPN: b.qp().QPN()})),
		"QP, no domain":     second(a.ctx.CreateQP(&hostq.CreateQP{Type: 10, PD: a.pd})),
		"RC in a domain":    second(a.ctx.CreateQP(&hostq.CreateQP{Type: 2, PD: a.pd, SendCQ: a.cq, RecvCQ: a.cq, XRCD: h})),
		"sender, no CQ":     second(a.ctx.CreateQP(&hostq.CreateQP{Type: 9, PD: a.pd})),
		"sender with SRQ":   second(a.ctx.CreateQP(&hostq.CreateQP{Type: 9, PD: a.pd, SendCQ: a.cq, SRQ: 1})),
		"SRQ, no CQ":        second(a.ctx.CreateSRQ(&hostq.CreateSRQ{PD: a.pd, Type: 1, XRCD: h, Entries: 16, MaxSGE: 1, Stride: 64})),
		"SRQ, no domain":    second(a.ctx.CreateSRQ(&hostq.CreateSRQ{PD: a.pd, Type: 1, CQ: a.cq, Entries: 16, MaxSGE: 1, Stride: 64})),
		"RC with its queue": second(s.ctx.CreateQP(&hostq.CreateQP{Type: 2, PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq})),
		"close nothing":     a.ctx.CloseXRCD(99),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.ctx.CloseXRCD(h); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closed with a QP in it: %v", err)
	}
	if _, err := a.ctx.DestroyQP(q.Handle()); err != nil {
		t.Error(err)
	}
	for _, x := range []uint32{h, alone} {
		if err := a.ctx.CloseXRCD(x); err != nil {
			t.Error(err)
		}
	}
	try(a, file, oCreat|oExcl, syscall.EINVAL) // the other program has it still
	b.ctx.Close(w.now)
	try(a, file, 0, syscall.EAGAIN)
	a.ctx.Close(w.now)
	if l := a.nic.C.Live; l != (device.Live{}) {
		t.Errorf("left %+v", l)
	}
}

func second[T any](_ T, err error) error { return err }

// TestXRCChain: of two requests in one burst the first finds the memory of one program gone. The second, to another
// program's, is behind a failed one and writes nothing.
func TestXRCChain(t *testing.T) {
	w, a, qa, x, y, _ := xrcWorld(t, device.Auto)
	gone := must(x.ctx.RegMR(&hostq.RegMR{PD: x.pd, Addr: ramBase + 8*ramBytes, IOVA: ramBase, Length: ramBytes, Access: allRight}))(t)
	write := func(id uint64, srqn, key uint32) {
		qa.SQ.PutSend(hostq.SQE{WRID: id, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: key, RemoteAddr: ramBase + 0x8000, XRCSRQN: srqn}, nil, a.sge(0, 64))
	}
	copy(a.ram.b, bytes.Repeat([]byte{0x5a}, 64))
	write(1, x.num, gone.Key())
	write(2, y.num, y.mr.Key())
	qa.SQ.Ring()
	w.want(a, 1, transport.RemAccessErr)
	w.want(a, 2, transport.WRFlushErr)
	if y.ram.b[0x8000] != 0 {
		t.Error("a request behind a failed one wrote into another program's memory")
	}
}

// TestXRCHandles: each handle of a QP counts, so that no program can have more of them than of QPs.
func TestXRCHandles(t *testing.T) {
	_, _, _, x, y, qx := xrcWorld(t, device.Auto)
	before := x.nic.C.Live.QPs
	q := must(y.ctx.OpenQP(&hostq.OpenQP{XRCD: y.xrcd, QPN: qx.QPN()}))(t)
	if n := x.nic.C.Live.QPs; n != before+1 {
		t.Errorf("%d QPs, %d before it was opened again", n, before)
	}
	if _, err := y.ctx.DestroyQP(q.Handle()); err != nil || x.nic.C.Live.QPs != before {
		t.Errorf("%v, %d QPs", err, x.nic.C.Live.QPs)
	}
}
