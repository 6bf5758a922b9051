package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
)

// recState is what is known of a transmission.
type recState uint8

const (
	recFree  recState = iota
	recOut            // in flight
	recLost           // called lost or timed out; kept for late acknowledgements, while there is room
	recEnded          // about to be freed
)

// txKind says to what a transmission belongs.
type txKind uint8

const (
	txRequest  txKind = iota // psn is a request PSN of the QP
	txResponse               // psn is a number of the QP's responses
)

// txRec is one transmission. In flight are transmissions, not packets: each ends as acknowledged or lost even when
// its PSN is long done, else the window leaks.
type txRec struct {
	q          *QP
	path       *txPath
	psn        uint64
	sent       mono.Time
	size       int32 // what it counts in the window
	prev, next int32 // in flight: of the same plane, in order of sending; lost: of all, oldest first
	seq        uint32
	inc        uint32 // incarnation of the QP
	kind       txKind
	state      recState
	_          [8]byte // a line of the processor's cache each, not parts of two
}

// newRec records a transmission on p. The caller has checked room.
func (e *Engine) newRec(p *txPath, q *QP, kind txKind, psn uint64, size int) *txRec {
	if e.recFree == 0 {
		e.freeRec(e.lostHead)
	}
	i := e.recFree
	r := &e.recs[i]
	e.recFree = r.next
	//= MR-REL-004
	slot := &p.ring[p.next%pathRing]
	if old := *slot; old != 0 {
		e.freeRec(old) // a lost one that nobody acknowledged in time
	}
	*slot = i
	pl := p.pl
	size = max(size, minCharge)
	r.q, r.path, r.psn, r.sent, r.size = q, p, psn, e.now, int32(size)
	r.prev, r.next, r.seq, r.inc, r.kind, r.state = pl.tail, 0, p.next, q.inc, kind, recOut
	if pl.tail == 0 {
		pl.head = i
	} else {
		e.recs[pl.tail].next = i
	}
	pl.tail = i
	//= MR-REL-005
	pl.inflight += size
	pl.wantBase()
	if pl.asked++; pl.askedAt == 0 {
		pl.askedAt = e.now
	}
	//= MR-REL-001 MR-REL-002
	p.next++
	p.sent++
	pl.sent++
	return r
}

// endFlight takes a record out of its plane's list and window.
func (e *Engine) endFlight(r *txRec) {
	pl := r.path.pl
	if r.prev == 0 {
		pl.head = r.next
	} else {
		e.recs[r.prev].next = r.next
	}
	if r.next == 0 {
		pl.tail = r.prev
	} else {
		e.recs[r.next].prev = r.prev
	}
	r.prev, r.next = 0, 0
	//= MR-REL-005
	if planted.Is(planted.WindowLeak) && r.q.inc != r.inc {
		return
	}
	pl.inflight -= int(r.size)
	if pl.inflight < 0 {
		panic("metaroce: window below zero")
	}
}

// freeRec returns a record to the free list. It must not be in flight.
func (e *Engine) freeRec(i int32) { e.free(i, &e.recs[i]) }

func (e *Engine) free(i int32, r *txRec) {
	switch r.state {
	case recOut:
		panic("metaroce: record freed in flight")
	case recFree:
		panic("metaroce: record freed twice")
	case recLost:
		e.unlinkLost(r)
	case recEnded:
	}
	if s := &r.path.ring[r.seq%pathRing]; *s == i {
		*s = 0
	}
	*r = txRec{}
	r.next = e.recFree
	e.recFree = i
}

// dropRec ends a record without telling anybody.
func (e *Engine) dropRec(i int32) {
	r := &e.recs[i]
	if r.state == recOut {
		e.endFlight(r)
		r.state = recEnded
	}
	e.free(i, r)
}

// linkLost puts a record among the lost ones that may be freed when records run out.
func (e *Engine) linkLost(i int32) {
	r := &e.recs[i]
	r.state, r.prev, r.next = recLost, e.lostTail, 0
	if e.lostTail == 0 {
		e.lostHead = i
	} else {
		e.recs[e.lostTail].next = i
	}
	e.lostTail = i
}

func (e *Engine) unlinkLost(r *txRec) {
	if r.prev == 0 {
		e.lostHead = r.next
	} else {
		e.recs[r.prev].next = r.next
	}
	if r.next == 0 {
		e.lostTail = r.prev
	} else {
		e.recs[r.next].prev = r.prev
	}
	r.prev, r.next = 0, 0
}

// forgetPath frees the remembered losses of a path.
func (e *Engine) forgetPath(p *txPath) {
	for _, i := range p.ring {
		if i != 0 && e.recs[i].state == recLost {
			e.freeRec(i)
		}
	}
}

// find returns the record of a path's sequence, or nil.
func (e *Engine) find(p *txPath, seq uint32) (int32, *txRec) {
	i := p.ring[seq%pathRing]
	if i == 0 || e.recs[i].seq != seq {
		return 0, nil
	}
	return i, &e.recs[i]
}

// lose calls a transmission lost: its bytes leave the window now, its packet is sent again unless a copy is under way.
func (e *Engine) lose(i int32) {
	r := &e.recs[i]
	p, size := r.path, int(r.size)
	e.endFlight(r)
	e.linkLost(i)
	p.lostCnt++
	p.pl.lost++
	if !e.trimming {
		p.noteLost()
		p.pl.noteSize(size, true)
	}
	p.pl.a.lastLoss = e.now
	p.pl.win.OnLoss(e.now, size)
	p.pl.cwnd = p.pl.win.Window()
	//= MR-REL-045 MR-MSG-096
	if r.q.inc == r.inc && (!planted.Is(planted.RequestLostForGood) || r.kind != txRequest) {
		r.q.onLost(r.kind, r.psn)
	}
}

// ack ends a transmission as received. late: it had been called lost.
func (e *Engine) ack(i int32, r *txRec) (size int, sent mono.Time, late bool) {
	size, sent, late = int(r.size), r.sent, r.state == recLost
	q, kind, psn, inc := r.q, r.kind, r.psn, r.inc
	if !late {
		e.endFlight(r)
		r.state = recEnded
	}
	e.free(i, r)
	//= MR-REL-033 MR-MSG-096
	if q.inc == inc || planted.Is(planted.OldAcksCount) {
		q.onAcked(kind, psn, !late)
	}
	return size, sent, late
}

// advance moves una past everything that is resolved.
func (p *txPath) advance(e *Engine) {
	for p.una != p.next {
		if _, r := e.find(p, p.una); r != nil && r.state == recOut {
			return
		}
		p.una++
	}
}

// outstanding is the span of unresolved sequences.
func (p *txPath) outstanding() int { return int(serial.U32(p.next).Sub(serial.U32(p.una))) }
