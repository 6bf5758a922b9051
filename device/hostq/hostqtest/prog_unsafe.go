// Package hostqtest plays the program's side of the shared memory, as libibverbs does in C. For tests and the simulator.
package hostqtest

import (
	"sync/atomic"
	"unsafe"

	"github.com/metaroce/metaroce/device/hostq"
)

// Prog is a program's view of its context memory.
type Prog struct {
	Mem  *hostq.Mem
	b    []byte
	page *hostq.CtxPage
	next uint64
	Wake func() // writes the eventfd
}

// New begins at the first page that rings may use.
func New(m *hostq.Mem) *Prog {
	p := &Prog{Mem: m, b: m.Bytes(), next: hostq.CtxPageBytes, Wake: func() {}}
	p.page = (*hostq.CtxPage)(unsafe.Pointer(&p.b[0]))
	p.page.Magic, p.page.ABIMajor = hostq.Magic, hostq.ABIMajor
	return p
}

// Page is the first page.
func (p *Prog) Page() *hostq.CtxPage { return p.page }

// Queue is a ring as its owner in the program sees it.
type Queue struct {
	p       *Prog
	Off     uint64
	Entries uint32
	Stride  uint32
	Bell    uint32
	Hdr     *hostq.RingHeader
	Prod    uint32 // SQ, RQ
	Cons    uint32 // CQ
}

// NewQueue lays out a ring.
func (p *Prog) NewQueue(entries, stride, bell uint32) *Queue {
	off := p.next
	size := uint64(hostq.RingHdr) + uint64(entries)*uint64(stride)
	p.next += (size + hostq.RingAlign - 1) &^ (hostq.RingAlign - 1)
	return &Queue{p: p, Off: off, Entries: entries, Stride: stride, Bell: bell, Hdr: (*hostq.RingHeader)(unsafe.Pointer(&p.b[off]))}
}

// Slot is the memory of entry i.
func (q *Queue) Slot(i uint32) []byte {
	o := q.Off + hostq.RingHdr + uint64(i&(q.Entries-1))*uint64(q.Stride)
	return q.p.b[o : o+uint64(q.Stride)]
}

// PutSend writes a send request without ringing.
func (q *Queue) PutSend(e hostq.SQE, inline []byte, sge ...hostq.SGE) {
	s := q.Slot(q.Prod)
	if e.Flags&hostq.SendInline != 0 {
		e.InlineLen = uint32(len(inline))
		copy(s[64:], inline)
	} else {
		e.NumSGE = uint8(len(sge))
	}
	copy(s, hostq.Bytes(&e))
	putSGEs(s[64:], sge)
	q.Prod++
}

// PutRecv writes a receive request without ringing.
func (q *Queue) PutRecv(id uint64, sge ...hostq.SGE) {
	s := q.Slot(q.Prod)
	e := hostq.RQE{WRID: id, NumSGE: uint32(len(sge))}
	copy(s, hostq.Bytes(&e))
	putSGEs(s[16:], sge)
	q.Prod++
}

func putSGEs(s []byte, sge []hostq.SGE) {
	for i := range sge {
		if (i+1)*16 <= len(s) {
			copy(s[i*16:], hostq.Bytes(&sge[i]))
		}
	}
}

// Shared is a shared receive queue as its program sees it. Which slots are free is the test's business.
type Shared struct {
	*Queue
	Slots uint64
	size  uint32
}

// NewShared lays out a ring of slot numbers and as many slots of stride bytes.
func (p *Prog) NewShared(entries, stride uint32) *Shared {
	s := &Shared{Queue: p.NewQueue(entries, 4, 0), Slots: p.next, size: stride}
	p.next += (uint64(entries)*uint64(stride) + hostq.RingAlign - 1) &^ (hostq.RingAlign - 1)
	return s
}

// Post writes a receive into a slot and publishes it.
func (s *Shared) Post(slot uint32, id uint64, sge ...hostq.SGE) {
	b := s.p.b[s.Slots+uint64(slot)*uint64(s.size):][:s.size]
	e := hostq.RQE{WRID: id, NumSGE: uint32(len(sge))}
	copy(b, hostq.Bytes(&e))
	putSGEs(b[16:], sge)
	s.PostRaw(slot)
}

// PostRaw publishes a slot number, whatever it is.
func (s *Shared) PostRaw(slot uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.Slot(s.Prod)[0])), slot)
	s.Prod++
	atomic.StoreUint32(&s.Hdr.Prod, s.Prod)
}

// Ring publishes what was put and rings the doorbell.
func (q *Queue) Ring() {
	atomic.StoreUint32(&q.Hdr.Prod, q.Prod)
	q.RingBell()
}

// RingBell rings without a change of the index.
func (q *Queue) RingBell() {
	d := q.Bell
	atomic.OrUint64(&q.p.page.Bell[d/64], 1<<(d%64))
	atomic.OrUint64(&q.p.page.Summary[d/4096], 1<<(d/64%64))
	if atomic.LoadUint32(&q.p.page.Asleep) != 0 {
		q.p.Wake()
	}
}

// Poll takes the next completion of a CQ.
func (q *Queue) Poll() (e hostq.CQE, ok bool) {
	if atomic.LoadUint32(&q.Hdr.Prod) == q.Cons {
		return e, false
	}
	copy(hostq.Bytes(&e), q.Slot(q.Cons))
	q.Cons++
	atomic.StoreUint32(&q.Hdr.Cons, q.Cons)
	return e, true
}

// Arm asks for an event.
func (q *Queue) Arm(how uint32) { atomic.StoreUint32(&q.Hdr.Arm, how) }

// Flags of the ring.
func (q *Queue) Flags() uint32 { return atomic.LoadUint32(&q.Hdr.Flags) }
