package device_test

import (
	"encoding/binary"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/rng"
)

// hostile plays a program that writes anything anywhere into its own memory, doorbells included, while an innocent
// pair works beside it on the same NICs.
func hostile(t testing.TB, data []byte) {
	w := newWorld(t, len(data)%2 == 0)
	a, b, qa, qb := w.pair(t)
	evil := newProg(t, w.nics[0])
	q := evil.qp()
	other := newProg(t, w.nics[1]) // the accomplice at the other end
	oq := other.qp()
	evil.up(q, b.nic.Addrs()[0], oq.QPN())
	other.up(oq, a.nic.Addrs()[0], q.QPN())
	ud, ah := evil.ud(), evil.ah(b.nic.Addrs()[0])
	sh := newVillainShared(t, w, evil, other)
	vx := newVillainXRC(t, w)
	le := binary.LittleEndian
	mem := evil.Mem.Bytes()
	for i := range 16 {
		oq.RQ.PutRecv(uint64(i), other.sge(0, 100))
	}
	oq.RQ.Ring()
	for len(data) >= 4 {
		op, n := data[0], min(int(data[1]), len(data)-4)
		where := int(le.Uint16(data[2:]))
		payload := data[4 : 4+n]
		data = data[4+n:]
		queue := []*hostqtest.Queue{q.SQ, q.RQ, evil.CQ}[op%3]
		switch op >> 4 {
		case 0: // a whole descriptor
			copy(queue.Slot(uint32(where)), payload)
			queue.Prod++
			queue.Ring()
		case 1: // ring with a wild index
			queue.Prod = uint32(where) << (op & 15)
			queue.Ring()
			queue.Prod = queue.Hdr.Cons
		case 2: // header bytes
			copy(mem[queue.Off+uint64(where%hostq.RingHdr):], payload)
		case 3: // doorbells
			copy(mem[where%hostq.CtxPageBytes:], payload)
		case 4: // a plausible work request with wild fields
			e := hostq.SQE{WRID: 1, Opcode: byte(where), Flags: uint16(where), RKey: other.mr.Key(), RemoteAddr: ramBase}
			copy(e.U[:], payload)
			e.InlineLen = uint32(where) << (op & 15)
			q.SQ.PutSend(e, payload, evil.sge(uint32(where), uint32(n)), hostq.SGE{Addr: uint64(where) << 48, Length: ^uint32(0), LKey: evil.mr.Key()})
			q.SQ.Ring()
		case 6: // a datagram, nearly right, to anybody
			e := to(1, byte(where)&3, ah^uint32(op&1), uint32(where), testQkey)
			if n >= 12 {
				copy(e.U[4*(op&3):], payload[:4])
			}
			ud.SQ.PutSend(e, nil, evil.sge(0, uint32(where)))
			ud.RQ.PutRecv(1, evil.sge(0, uint32(n)))
			ud.SQ.Ring()
			ud.RQ.Ring()
		case 7: // groups and handles that come and go
			m := &hostq.Mcast{QP: ud.Handle(), GID: [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: byte(where)}}
			if op&1 == 0 {
				evil.ctx.AttachMcast(m)
			} else {
				evil.ctx.DetachMcast(m)
				evil.ctx.DestroyAH(uint32(where) & 3)
			}
		case 5:
			evil.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: evil.cq, Entries: uint32(where), Ring: evil.CQ.Off})
		case 8: // a shared receive queue's slots and numbers
			sh.attack(op, where, payload)
		case 9: // windows that come and go, bound to anything
			attackWindows(evil, q, op, where, n)
		case 10: // XRC domains, queues and QPs that come and go under way
			vx.attack(w, op, where, uint32(n))
		default:
			w.step(1 + int(op&7))
		}
	}
	w.step(20)
	qb.RQ.PutRecv(1, b.sge(0, 64))
	qb.RQ.Ring()
	qa.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 8))
	qa.SQ.Ring()
	if b.ctx.Dead || a.ctx.Dead {
		t.Fatal("an innocent context died")
	}
	w.want(b, 1, 0)
	for _, p := range []*prog{a, b, evil, other, vx.from, vx.x.prog, vx.y.prog} {
		p.ctx.Close(w.now)
	}
	for _, n := range w.nics {
		if n.C.Live != (device.Live{}) {
			t.Fatalf("left over: %+v", n.C.Live)
		}
	}
}

// villainXRC is two programs of an XRC domain that do anything with it, and one that sends to any of their queues.
type villainXRC struct {
	from *prog
	q    *qpair
	x, y *member
	open []uint32 // handles of QPs, of either program
}

func newVillainXRC(t testing.TB, w *world) *villainXRC {
	file := device.Inode{Dev: 1, Ino: 2}
	v := &villainXRC{from: newProg(t, w.nics[0]), x: w.member(t, w.nics[1], file), y: w.member(t, w.nics[1], file)}
	v.q = v.from.sender()
	to := v.x.responder(1)
	v.open = append(v.open, to.Handle())
	v.from.climb(v.q, v.x.nic.Addrs()[0], to.QPN(), toInit, xrcSendRTR, toRTS)
	v.x.climb(to, v.from.nic.Addrs()[0], v.q.QPN(), toInit, toRTR, 0)
	return v
}

func (v *villainXRC) attack(w *world, op byte, where int, n uint32) {
	m := []*member{v.x, v.y}[where&1]
	some := v.open[where%len(v.open)]
	switch op & 15 {
	case 0, 1, 2:
		m.q.Post(uint32(where)&15, 1, m.sge(0, n*uint32(op)))
	case 3, 4, 5: // to its queue, or to one near it
		v.from.request(v.q, 1, uint8(where>>3)&7, m.num+uint32(where>>8)&1, m.mr.Key(), n*uint32(where&7))
	case 6:
		m.ctx.DestroySRQ(m.srq)
	case 7:
		m.ctx.DestroyQP(some)
	case 8:
		if q, err := m.ctx.OpenQP(&hostq.OpenQP{XRCD: m.xrcd, QPN: v.q.QPN() + uint32(where>>1)&3}); err == nil {
			v.open = append(v.open, q.Handle())
		}
	case 9:
		if q, err := m.ctx.CreateQP(&hostq.CreateQP{Type: 10, XRCD: uint32(where) & 3}); err == nil {
			v.open = append(v.open, q.Handle())
		}
	case 10:
		m.ctx.CloseXRCD(uint32(where>>1) & 3)
	case 11:
		m.ctx.OpenXRCD(&hostq.OpenXRCD{Flags: uint32(where)}, device.Inode{Ino: uint64(where>>8) & 3})
	case 12:
		r := attr(some, device.State(where>>1&7), v.from.nic.Addrs()[0], v.q.QPN())
		r.Mask = 1 | toRTR*uint32(where>>4&1)
		m.ctx.ModifyQP(w.now, r)
	default:
		w.step(int(n))
	}
}

// villainShared is a shared receive queue of a hostile program, with a QP to which an accomplice sends.
type villainShared struct {
	q      *hostqtest.Shared
	handle uint32
	evil   *prog
	other  *prog
	from   *qpair
}

func newVillainShared(t testing.TB, w *world, evil, other *prog) *villainShared {
	s := &villainShared{q: evil.NewShared(16, 128), evil: evil, other: other, from: other.qp()}
	s.handle = must(evil.ctx.CreateSRQ(&hostq.CreateSRQ{PD: evil.pd, Entries: 16, MaxSGE: 2, Stride: 128, Ring: s.q.Off, Slots: s.q.Slots, Cookie: 1}))(t)
	to := &qpair{SQ: evil.NewQueue(4, 128, evil.bell)}
	evil.bell++
	to.QP = must(evil.ctx.CreateQP(&hostq.CreateQP{PD: evil.pd, Type: 2, SendCQ: evil.cq, RecvCQ: evil.cq, SRQ: s.handle, SQEntries: 4, SQStride: 128,
		MaxSendSGE: 1, SQRing: to.SQ.Off, SQDoorbell: to.SQ.Bell}))(t)
	evil.up(to, other.nic.Addrs()[0], s.from.QPN())
	other.up(s.from, evil.nic.Addrs()[0], to.QPN())
	return s
}

func (s *villainShared) attack(op byte, where int, payload []byte) {
	mem := s.evil.Mem.Bytes()
	switch op & 7 {
	case 0:
		s.q.Post(uint32(where)&15, uint64(where), s.evil.sge(0, uint32(where)))
	case 1:
		s.q.PostRaw(uint32(where) << (op & 31))
	case 2:
		copy(mem[s.q.Slots+uint64(where)%(16*128-256):], payload)
	case 3:
		copy(mem[s.q.Off+uint64(where)%(hostq.RingHdr+64):], payload)
	case 4:
		s.evil.ctx.ModifySRQ(&hostq.SRQAttr{Handle: s.handle, Mask: uint32(len(payload)) & 3, Limit: uint32(where), MaxWR: uint32(where)})
	default:
		post(s.from, hostq.SQE{WRID: 1, Opcode: hostq.WRSend}, nil, s.other.sge(0, uint32(where)&0xfff))
	}
}

// attackWindows allocates, binds, invalidates and frees windows with keys that are nearly right.
func attackWindows(p *prog, q *qpair, op byte, where, n int) {
	key := p.mr.Key()
	if m, err := p.ctx.AllocMW(&hostq.AllocMW{PD: p.pd, Type: 1 + uint32(op&1)}); err == nil {
		key = m.Key() ^ uint32(n)&0xff
	}
	switch op & 7 {
	case 0, 1, 2:
		post(q, binding(1, key, p.mr, ramBase+uint64(where), uint64(n), uint32(where)), nil)
	case 3:
		post(q, hostq.SQE{WRID: 1, Opcode: hostq.WRLocalInv, Imm: key}, nil)
	case 4:
		post(q, hostq.SQE{WRID: 1, Opcode: hostq.WRSendInv, Imm: key}, nil, p.sge(0, uint32(n)))
	case 5:
		post(q, hostq.SQE{WRID: 1, Opcode: hostq.WRAtomicWrite, RKey: key, RemoteAddr: ramBase + uint64(where)}, nil, p.sge(0, uint32(n)))
	default:
		p.ctx.FreeMW(uint32(where) & 15)
		p.ctx.DeregMR(uint32(where) & 3)
	}
}

// FuzzQueues: nothing that a program writes into its shared memory harms the NIC or others.
func FuzzQueues(f *testing.F) {
	f.Add([]byte{0x40, 8, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x60, 0, 0, 0})
	f.Add([]byte{0x10, 0, 0xff, 0xff, 0x11, 0, 0xff, 0xff, 0x60, 0, 0, 0})
	f.Add([]byte{0x32, 16, 0, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x60, 0, 0, 0})
	f.Add([]byte{0x22, 4, 64, 0, 0, 0, 0, 1, 0x40, 1, 0, 0, 9, 0x60, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		hostile(t, data)
	})
}

// TestHostile runs the fuzzer's body over seeded noise.
func TestHostile(t *testing.T) {
	for seed := range uint64(60) {
		r := rng.New(seed, "hostile")
		data := make([]byte, 200+r.IntN(1500))
		for i := range data {
			data[i] = byte(r.Uint32())
			if i%2 == 1 && r.Chance(0.5) { // keep lengths short, so that there are many operations
				data[i] &= 31
			}
		}
		hostile(t, data)
	}
}
