package device_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

const (
	ucToRTR = 1<<0 | 1<<7 | 1<<8 | 1<<20 | 1<<12
	ucToRTS = 1<<0 | 1<<16
)

// typed makes a QP of a service with queues of its own.
func (p *prog) typed(typ uint32) *qpair {
	p.t.Helper()
	q := &qpair{SQ: p.NewQueue(64, 640, p.bell), RQ: p.NewQueue(64, 576, p.bell+1)}
	p.bell += 2
	q.QP = must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: typ, SendCQ: p.cq, RecvCQ: p.cq, SQEntries: 64, SQStride: 640, RQEntries: 64, RQStride: 576,
		MaxSendSGE: 8, MaxRecvSGE: 8, MaxInline: 256, SQRing: q.SQ.Off, RQRing: q.RQ.Off, SQDoorbell: q.SQ.Bell, RQDoorbell: q.RQ.Bell, Cookie: 0x9b}))(p.t)
	return q
}

// climb takes a QP up by the masks given.
func (p *prog) climb(q *qpair, remote netip.Addr, qpn uint32, init, rtr, rts uint32) {
	p.t.Helper()
	for i, mask := range []uint32{init, rtr, rts} {
		m := attr(q.Handle(), device.Init+device.State(i), remote, qpn)
		if m.Mask = mask; mask == 0 {
			return
		}
		if err := p.ctx.ModifyQP(p.nic.Now(), m); err != nil {
			p.t.Fatalf("to %v: %v", device.Init+device.State(i), err)
		}
	}
}

func ucPair(t *testing.T, policy device.Policy) (w *world, a, b *prog, qa, qb *qpair) {
	w = newWorldOf(t, false, policy)
	a, b = newProg(t, w.nics[0]), newProg(t, w.nics[1])
	qa, qb = a.typed(3), b.typed(3)
	a.climb(qa, b.nic.Addrs()[0], qb.QPN(), toInit, ucToRTR, ucToRTS)
	b.climb(qb, a.nic.Addrs()[0], qa.QPN(), toInit, ucToRTR, ucToRTS)
	return w, a, b, qa, qb
}

// TestUC: SENDs and WRITEs of UC, whatever the policy, as RoCEv2; what was not received is nobody's failure.
func TestUC(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w, a, b, qa, qb := ucPair(t, policy)
		copy(a.ram.b, "what is sent")
		//= MR-COEX-051
		post(qa, hostq.SQE{WRID: 1, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 5000)) // nothing is posted
		w.want(a, 1, transport.OK)
		w.step(50)
		receive(qb, 101, b.sge(0x8000, 8000))
		post(qa, hostq.SQE{WRID: 2, Opcode: hostq.WRSendImm, Imm: 77, Flags: hostq.SendSignaled}, nil, a.sge(0, 5000))
		w.want(a, 2, transport.OK)
		e := w.want(b, 101, transport.OK)
		if e.ByteLen != 5000 || e.SrcQP != qa.QPN() || e.QPN != qb.QPN() || e.Imm != 77 || e.WCFlags != wcWithImm || string(b.ram.b[0x8000:0x800c]) != "what is sent" {
			t.Errorf("%+v", e)
		}
		//= MR-COEX-052
		post(qa, hostq.SQE{WRID: 3, Opcode: hostq.WRWrite, RKey: b.mr.Key() + 1, RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, 5000))
		w.want(a, 3, transport.OK)
		receive(qb, 102)
		post(qa, hostq.SQE{WRID: 4, Opcode: hostq.WRWriteImm, RKey: b.mr.Key(), RemoteAddr: ramBase + 0x6000, Flags: hostq.SendSignaled}, nil, a.sge(0, 12))
		w.want(a, 4, transport.OK)
		if e = w.want(b, 102, transport.OK); e.ByteLen != 12 || e.Opcode != 129 || string(b.ram.b[0x6000:0x600c]) != "what is sent" {
			t.Errorf("%+v", e)
		}
		//= MR-COEX-020
		for _, i := range a.nic.QPInfos() {
			if i.Type != "UC" || i.Transport != "rocev2" || i.RemoteQPN != qb.QPN() {
				t.Errorf("%+v", i)
			}
		}
		if c := b.nic.RoCEv2().C; c.DropUCNoRecv != 1 || c.DropUCAccess != 1 || len(a.ev.async)+len(b.ev.async) != 0 {
			t.Errorf("%+v", c)
		}
		post(qa, hostq.SQE{WRID: 5, Opcode: hostq.WRRead, RKey: b.mr.Key(), RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, 12))
		w.want(a, 5, transport.LocQPOpErr)
		if a.state(qa) != device.Err || b.state(qb) != device.RTS {
			t.Error("the states are", a.state(qa), b.state(qb))
		}
	})
}

// TestUCModify: attributes that have to do with answers are refused.
func TestUCModify(t *testing.T) {
	w := newWorld(t, false)
	a := newProg(t, w.nics[0])
	q := a.typed(3)
	step := func(to device.State, mask uint32) error {
		m := attr(q.Handle(), to, w.nics[1].Addrs()[0], 0x50)
		m.Mask = mask
		return a.ctx.ModifyQP(w.now, m)
	}
	for _, s := range []struct {
		to   device.State
		mask uint32
		ok   bool
	}{
		{device.Init, toInit, true}, {device.RTR, toRTR, false}, {device.RTR, ucToRTR &^ (1 << 12), false}, {device.RTR, ucToRTR, true},
		{device.RTS, toRTS, false}, {device.RTS, 1, false}, {device.RTS, ucToRTS, true}, {device.RTS, 1 | 1<<15, false}, {device.SQD, 1, true},
		{device.SQD, 1 | 1<<9, false}, {device.SQD, 1 | 1<<7, true}, {device.RTS, 1, true}, {device.Err, 1, true}, {device.Reset, 1, true},
	} {
		if err := step(s.to, s.mask); (err == nil) != s.ok || err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("to %v with %#x: %v", s.to, s.mask, err)
		}
	}
}
