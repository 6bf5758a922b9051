package device_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/transport"
)

// shared is two programs, the second of which has QPs with one shared receive queue.
type shared struct {
	*world
	a, b   *prog
	qa, qb []*qpair
	q      *hostqtest.Shared
	handle uint32
}

const srqCookie = 0x5a

func newShared(t *testing.T, policy device.Policy, qps int) *shared {
	w := newWorldOf(t, false, policy)
	s := &shared{world: w, a: newProg(t, w.nics[0]), b: newProg(t, w.nics[1])}
	s.q = s.b.NewShared(16, 128)
	s.handle = must(s.b.ctx.CreateSRQ(&hostq.CreateSRQ{PD: s.b.pd, Entries: 16, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots, Cookie: srqCookie}))(t)
	for range qps {
		qa, qb := s.a.qp(), s.qp(t)
		s.a.up(qa, s.b.nic.Addrs()[0], qb.QPN())
		s.b.up(qb, s.a.nic.Addrs()[0], qa.QPN())
		s.qa, s.qb = append(s.qa, qa), append(s.qb, qb)
	}
	return s
}

// qp is a QP of the second program.
func (s *shared) qp(t *testing.T) *qpair {
	p := s.b
	q := &qpair{SQ: p.NewQueue(64, 640, p.bell)}
	p.bell++
	q.QP = must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq, SRQ: s.handle, SQEntries: 64, SQStride: 640,
		MaxSendSGE: 8, MaxInline: 256, SQRing: q.SQ.Off, SQDoorbell: q.SQ.Bell, Cookie: 0x9b}))(t)
	return q
}

func (s *shared) send(i int, n uint32) {
	s.qa[i].SQ.PutSend(hostq.SQE{Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, s.a.sge(0, n))
	s.qa[i].SQ.Ring()
}

func policies(t *testing.T, f func(t *testing.T, p device.Policy)) {
	for _, p := range []device.Policy{device.Auto, device.OnlyRoCEv2} {
		t.Run(p.String(), func(t *testing.T) { f(t, p) })
	}
}

// TestSharedReceives: QPs take from one queue in the order of posting, whatever slots the receives are in, and each
// completion says where and whose it was.
func TestSharedReceives(t *testing.T) {
	policies(t, func(t *testing.T, p device.Policy) {
		s := newShared(t, p, 3)
		for i, slot := range []uint32{7, 3, 15, 0, 9} {
			s.q.Post(slot, uint64(100+i), s.b.sge(uint32(1000*i), 500))
		}
		copy(s.a.ram.b, "what is sent")
		for i, slot := range []uint32{7, 3, 15, 0, 9} {
			k := i % 3
			s.send(k, uint32(70+i))
			e := s.want(s.b, uint64(100+i), transport.OK)
			if e.QPN != s.qb[k].QPN() || e.Slot != slot || e.Flags != hostq.CQESRQ || e.ByteLen != uint32(70+i) {
				t.Errorf("completion %+v", e)
			}
			if string(s.b.ram.b[1000*i:][:12]) != "what is sent" {
				t.Errorf("receive %d has other bytes", i)
			}
			s.want(s.a, 0, transport.OK)
		}
		s.send(1, 8) // nothing is there; it waits
		s.step(200)
		if _, ok := s.b.CQ.Poll(); ok {
			t.Error("a completion without a receive")
		}
		s.q.Post(1, 7, s.b.sge(0, 500))
		s.want(s.b, 7, transport.OK)
	})
}

// TestSharedLimit: one event when fewer are left than asked for, not before and not again.
func TestSharedLimit(t *testing.T) {
	s := newShared(t, device.Auto, 1)
	for i := range uint32(4) {
		s.q.Post(i, uint64(i), s.b.sge(0, 500))
	}
	if err := s.b.ctx.ModifySRQ(&hostq.SRQAttr{Handle: s.handle, Mask: 2, Limit: 3}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, 1, 1, 1} {
		s.send(0, 8)
		s.want(s.b, uint64(i), transport.OK)
		if n := len(s.b.ev.async); n != want || n == 1 && s.b.ev.async[0] != (hostq.AsyncEvent{Cookie: srqCookie, Type: 15}) {
			t.Errorf("after %d receives: events %+v", i+1, s.b.ev.async)
		}
	}
	var q hostq.SRQAttr
	if err := s.b.ctx.QuerySRQ(s.handle, &q); err != nil || q.Limit != 0 || q.MaxWR != 16 || q.MaxSGE != 2 {
		t.Errorf("%+v %v", q, err)
	}
	for name, r := range map[string]*hostq.SRQAttr{"limit": {Handle: s.handle, Mask: 2, Limit: 17}, "mask": {Handle: s.handle, Mask: 8}, "handle": {Handle: 99}} {
		if err := s.b.ctx.ModifySRQ(r); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSharedEnds: a QP that fails flushes what it has taken and says that it takes no more; one that goes gives back what
// it has taken, first in line again; the queue stays as long as a QP uses it.
func TestSharedEnds(t *testing.T) {
	policies(t, func(t *testing.T, p device.Policy) {
		s := newShared(t, p, 2)
		if _, err := s.b.ctx.DestroySRQ(s.handle); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("destroyed while in use: %v", err)
		}
		for i := range uint32(4) {
			s.q.Post(i, uint64(i), s.b.sge(0, 10))
		}
		s.send(0, 100) // does not fit: the QP fails, its receive with it
		s.want(s.b, 0, transport.LocLenErr)
		s.want(s.a, 0, transport.RemInvReqErr)
		var types []uint32
		for _, e := range s.b.ev.async {
			types = append(types, e.Type)
		}
		if len(types) != 2 || types[1] != 16 {
			t.Errorf("events %v, want the failure's and LAST_WQE_REACHED", types)
		}
		s.send(1, 8)
		s.want(s.b, 1, transport.OK)
		for _, q := range s.qb {
			if _, err := s.b.ctx.DestroyQP(q.Handle()); err != nil {
				t.Error(err)
			}
		}
		if _, err := s.b.ctx.DestroySRQ(s.handle); err != nil {
			t.Error(err)
		}
		if err := s.b.ctx.FreePD(s.b.pd); !errors.Is(err, syscall.EBUSY) { // the region is left
			t.Error(err)
		}
		s.b.ctx.Close(s.now)
		if l := s.b.nic.C.Live; l != (device.Live{}) {
			t.Errorf("left: %+v", l)
		}
	})
}

// TestSharedHostile: what no library writes ends the queue with an event, and nobody else.
func TestSharedHostile(t *testing.T) {
	for name, bad := range map[string]func(s *shared){
		"slot":     func(s *shared) { s.q.PostRaw(16) },
		"huge":     func(s *shared) { s.q.PostRaw(0xFFFFFFFF) },
		"producer": func(s *shared) { s.q.Prod += 100; s.q.PostRaw(0) },
	} {
		s := newShared(t, device.Auto, 1)
		bad(s)
		s.send(0, 8)
		s.step(300)
		if len(s.b.ev.async) == 0 || s.b.ev.async[0] != (hostq.AsyncEvent{Cookie: srqCookie, Type: 14}) || s.b.ctx.Dead {
			t.Errorf("%s: events %+v, dead %v", name, s.b.ev.async, s.b.ctx.Dead)
		}
	}
	s := newShared(t, device.Auto, 0)
	for name, r := range map[string]*hostq.CreateSRQ{
		"no PD":     {PD: 99, Entries: 16, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots},
		"size":      {PD: s.b.pd, Entries: 15, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots},
		"stride":    {PD: s.b.pd, Entries: 16, MaxSGE: 2, Stride: 100, Ring: s.q.Off, Slots: s.q.Slots},
		"list":      {PD: s.b.pd, Entries: 16, MaxSGE: 1000, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots},
		"ring":      {PD: s.b.pd, Entries: 16, MaxSGE: 2, Stride: 128, Ring: 64, Slots: s.q.Slots},
		"slots":     {PD: s.b.pd, Entries: 16, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: 8<<20 - 64},
		"unaligned": {PD: s.b.pd, Entries: 16, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots + 8},
		"limit":     {PD: s.b.pd, Entries: 16, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots, Limit: 17},
	} {
		if _, err := s.b.ctx.CreateSRQ(r); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.b.ctx.CreateQP(&hostq.CreateQP{PD: s.b.pd, Type: 2, SendCQ: s.b.cq, RecvCQ: s.b.cq, SRQ: 77}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a QP with an SRQ that is not there: %v", err)
	}
}
