package device_test

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// ram is a program's memory: one mapping at base; everything else faults.
type ram struct {
	base  uint64
	b     []byte
	gone  bool
	calls int

	pieces []int // of what was written
}

func (r *ram) piece(s device.Seg) []byte {
	off := s.Addr - r.base
	if s.Addr < r.base || off+uint64(len(s.Buf)) > uint64(len(r.b)) {
		return nil
	}
	return r.b[off : off+uint64(len(s.Buf))]
}

func (r *ram) each(segs []device.Seg, f func(mem, buf []byte)) (int, error) {
	r.calls++
	if r.gone {
		return 0, device.ErrGone
	}
	for i, s := range segs {
		m := r.piece(s)
		if m == nil {
			return i, device.ErrFault
		}
		f(m, s.Buf)
	}
	return len(segs), nil
}

func (r *ram) Read(segs []device.Seg) (int, error) {
	return r.each(segs, func(m, b []byte) { copy(b, m) })
}

func (r *ram) Write(segs []device.Seg) (int, error) {
	return r.each(segs, func(m, b []byte) { r.pieces = append(r.pieces, copy(m, b)) })
}

// events is a Notifier with sockets that may be full.
type events struct {
	full  bool
	comp  []hostq.CompEvent
	async []hostq.AsyncEvent
}

func (e *events) CompEvent(_ uint32, v hostq.CompEvent) bool {
	if e.full {
		return false
	}
	e.comp = append(e.comp, v)
	return true
}

func (e *events) AsyncEvent(v hostq.AsyncEvent) bool {
	if e.full {
		return false
	}
	e.async = append(e.async, v)
	return true
}

// prog is a program with one PD, one region over all of its memory, one CQ with a channel, and QPs.
type prog struct {
	t   testing.TB
	nic *device.NIC
	ctx *device.Context
	ram *ram
	ev  *events
	*hostqtest.Prog
	pd, cq, ch uint32
	mr         *device.MR
	CQ         *hostqtest.Queue
	bell       uint32
}

type qpair struct {
	*device.QP
	SQ, RQ *hostqtest.Queue
}

const (
	ramBase  = 0x10000000
	ramBytes = 1 << 20
	allRight = 0xf // local write, remote write, read, atomic
)

func newProg(t testing.TB, n *device.NIC) *prog {
	ev := &events{}
	p := newProgWith(t, n, ev)
	p.ev = ev
	return p
}

// newProgWith is newProg with a Notifier of one's own.
func newProgWith(t testing.TB, n *device.NIC, out device.Notifier) *prog {
	p := &prog{t: t, nic: n, ram: &ram{base: ramBase, b: make([]byte, ramBytes)}}
	mem := hostq.NewTestMem(8 << 20)
	p.Prog = hostqtest.New(mem)
	p.ctx = n.OpenContext(device.ContextConfig{Mem: mem, Space: p.ram, Notifier: out, Program: "test", PID: 1})
	p.pd = must(p.ctx.AllocPD())(t)
	p.ch = must(p.ctx.CreateChannel())(t)
	p.mr = must(p.ctx.RegMR(&hostq.RegMR{PD: p.pd, Addr: ramBase, IOVA: ramBase, Length: ramBytes, Access: allRight}))(t)
	p.CQ = p.NewQueue(1024, 128, 0)
	p.cq = must(p.ctx.CreateCQ(&hostq.CreateCQ{Entries: 1024, Ring: p.CQ.Off, Channel: p.ch, Cookie: 0xc0}))(t)
	return p
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (p *prog) qpOn(cq uint32) *qpair {
	p.t.Helper()
	q := &qpair{SQ: p.NewQueue(64, 640, p.bell), RQ: p.NewQueue(64, 576, p.bell+1)}
	p.bell += 2
	q.QP = must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: cq, RecvCQ: cq, SQEntries: 64, SQStride: 640, RQEntries: 64, RQStride: 576,
		MaxSendSGE: 8, MaxRecvSGE: 8, MaxInline: 256, SQRing: q.SQ.Off, RQRing: q.RQ.Off, SQDoorbell: q.SQ.Bell, RQDoorbell: q.RQ.Bell, Cookie: 0x9b}))(p.t)
	return q
}

func (p *prog) qp() *qpair { return p.qpOn(p.cq) }

// thin is a QP with small queues.
func (p *prog) thin() *qpair {
	p.t.Helper()
	q := &qpair{SQ: p.NewQueue(4, 128, p.bell), RQ: p.NewQueue(1, 64, p.bell+1)}
	p.bell += 2
	q.QP = must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 2, SendCQ: p.cq, RecvCQ: p.cq, SQEntries: 4, SQStride: 128, RQEntries: 1, RQStride: 64,
		MaxSendSGE: 1, MaxRecvSGE: 1, SQRing: q.SQ.Off, RQRing: q.RQ.Off, SQDoorbell: q.SQ.Bell, RQDoorbell: q.RQ.Bell}))(p.t)
	return q
}

// Masks of enum ibv_qp_attr_mask for the usual way up.
const (
	toInit = 1<<0 | 1<<4 | 1<<5 | 1<<3
	toRTR  = 1<<0 | 1<<7 | 1<<8 | 1<<20 | 1<<12 | 1<<17 | 1<<15
	toRTS  = 1<<0 | 1<<9 | 1<<10 | 1<<11 | 1<<16 | 1<<13
)

func attr(h uint32, state device.State, remote netip.Addr, qpn uint32) *hostq.ModifyQP {
	return &hostq.ModifyQP{Handle: h, QPState: uint32(state), PortNum: 1, QPAccessFlags: allRight, PathMTU: 3, DestQPNum: qpn,
		AH: hostq.AHAttr{DGID: remote.As16(), IsGlobal: 1, PortNum: 1, HopLimit: 64}, MaxRdAtomic: 16, MaxDestRdAtomic: 16,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1, SQPSN: 7, RQPSN: 7}
}

func (p *prog) up(q *qpair, remote netip.Addr, qpn uint32) {
	p.t.Helper()
	p.upFrom(q, 0, remote, qpn)
}

// upFrom is up with the GID of an index.
func (p *prog) upFrom(q *qpair, gid uint8, remote netip.Addr, qpn uint32) {
	p.t.Helper()
	for _, s := range []struct {
		to   device.State
		mask uint32
	}{{device.Init, toInit}, {device.RTR, toRTR}, {device.RTS, toRTS}} {
		m := attr(q.Handle(), s.to, remote, qpn)
		m.Mask, m.AH.SGIDIndex = s.mask, gid
		if err := p.ctx.ModifyQP(p.nic.Now(), m); err != nil {
			p.t.Fatalf("to %v: %v", s.to, err)
		}
	}
}

func (p *prog) state(q *qpair) device.State {
	var m hostq.ModifyQP
	if err := p.ctx.QueryQP(q.Handle(), &m); err != nil {
		p.t.Fatal(err)
	}
	return device.State(m.QPState)
}

func (p *prog) sge(off, n uint32) hostq.SGE {
	return hostq.SGE{Addr: ramBase + uint64(off), Length: n, LKey: p.mr.Key()}
}

// world is two NICs with engine doubles, or real engines, and a clock.
type world struct {
	now   mono.Time
	nics  []*device.NIC
	ports []*devicetest.Wire
}

func newWorld(t testing.TB, double bool) *world { return newWorldOf(t, double, device.Auto) }

func newWorldOf(t testing.TB, double bool, policy device.Policy) *world {
	nets := devicetest.NewNet()
	w := &world{now: 1e9}
	x, y := devicetest.NewWire(4300)
	w.ports = []*devicetest.Wire{x, y}
	for i, port := range w.ports {
		c := device.Config{Name: string(rune('a'+i)) + "/mr0", Dev: "mr0", Seed: uint64(i + 1), Instance: 1, Ports: []device.Port{port}, Transport: policy,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}}
		if double {
			c.NewEngine = nets.New
		}
		n, err := device.New(c)
		if err != nil {
			t.Fatal(err)
		}
		w.nics = append(w.nics, n)
	}
	w.step(1)
	return w
}

func (w *world) step(n int) {
	for range n {
		w.now += 10_000
		for _, x := range w.nics {
			x.Step(w.now)
		}
	}
}

// pair is two connected programs.
func (w *world) pair(t testing.TB) (a, b *prog, qa, qb *qpair) {
	a, b = newProg(t, w.nics[0]), newProg(t, w.nics[1])
	qa, qb = a.qp(), b.qp()
	a.up(qa, b.nic.Addrs()[0], qb.QPN())
	b.up(qb, a.nic.Addrs()[0], qa.QPN())
	return a, b, qa, qb
}

// want steps until the CQ has a completion, and checks its status.
func (w *world) want(p *prog, id uint64, s transport.Status) hostq.CQE {
	p.t.Helper()
	for range 200000 {
		if e, ok := p.CQ.Poll(); ok {
			if e.WRID != id || transport.Status(e.Status) != s {
				p.t.Fatalf("completion %d %v, want %d %v", e.WRID, transport.Status(e.Status), id, s)
			}
			return e
		}
		w.step(1)
	}
	p.t.Fatalf("no completion %d %v", id, s)
	return hostq.CQE{}
}
