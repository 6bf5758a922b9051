package device

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// side is the engine that a QP lives in.
type side uint8

const (
	sideMR side = iota
	sideIB
)

// muxQP is a QP that can change its engine. It remembers what it was told, to tell it again.
type muxQP struct {
	m      *mux
	qpn    uint32
	cfg    EngineQPConfig
	owner  *QP
	eng    EngineQP
	side   side
	open   *waiting // it waits for its peer; see mux.open
	rtr    RTRAttr
	rts    RTSAttr
	openAt int // its place there
	// Where the program's queues stood when the connection began.
	sqBase, rqBase uint32
}

// CreateQP implements Engine.
func (m *mux) CreateQP(qpn uint32, c EngineQPConfig) EngineQP {
	q := &muxQP{m: m, qpn: qpn, cfg: c, owner: c.Owner.(*QP)}
	s := sideMR
	//= MR-COEX-020
	if c.Type != transport.RC || m.mr == nil {
		s = sideIB
	}
	if !q.create(s) {
		return nil
	}
	m.qps[qpn] = q
	return q
}

// create makes the QP in an engine.
func (q *muxQP) create(s side) bool {
	e := q.m.mr
	if s == sideIB {
		e = q.m.ib
	}
	if q.eng = e.CreateQP(q.qpn, q.cfg); q.eng == nil {
		return false
	}
	q.side = s
	q.m.on[s]++
	return true
}

// leave takes the QP out of its engine.
func (q *muxQP) leave(now mono.Time) {
	q.eng.Destroy(now)
	q.m.on[q.side]--
}

// move takes a connection to the other engine. Nothing of it was sent or received; what the program has posted is still
// in its queues, or fetched anew.
func (q *muxQP) move(now mono.Time, to side) {
	q.leave(now)
	q.create(to)
	q.eng.ToInit()
	q.eng.RecvPosted(now, q.owner.rq.seen-q.owner.rq.idx)
	if !q.eng.ToRTR(now, q.rtr) {
		q.owner.failLater(evQPFatal)
		return
	}
	if q.owner.state >= RTS {
		q.eng.ToRTS(now, q.rts)
	}
	if q.owner.state == SQD {
		q.eng.ToSQD()
	}
	q.owner.again()
}

// untouched reports whether nothing of the connection has been carried out here: no request is complete, no receive taken,
// nothing served that needs neither, and it is alive.
func (q *muxQP) untouched() bool {
	o := q.owner
	if e, ok := q.eng.(interface{ Begun() bool }); ok && e.Begun() {
		return false
	}
	//= MR-COEX-025
	return o.state >= RTR && o.state <= SQD && o.sq.idx-o.sqOut == q.sqBase && o.rq.idx == q.rqBase
}

// ToInit implements EngineQP.
func (q *muxQP) ToInit() {
	q.sqBase, q.rqBase = q.owner.sq.idx, q.owner.rq.idx
	q.eng.ToInit()
}

// ToRTR implements EngineQP: the peer is known now, and with it the engine.
func (q *muxQP) ToRTR(now mono.Time, a RTRAttr) bool {
	q.rtr = a
	if q.cfg.Type == transport.RC {
		s, open := q.m.choose(now, &a)
		if s != q.side {
			q.leave(now)
			q.create(s)
			q.eng.ToInit()
			q.eng.RecvPosted(now, q.owner.rq.seen-q.owner.rq.idx)
		}
		if open {
			q.m.wait(q)
		}
	}
	if !q.eng.ToRTR(now, a) {
		q.m.close(q)
		return false
	}
	return true
}

// ToRTS implements EngineQP.
func (q *muxQP) ToRTS(now mono.Time, a RTSAttr) {
	q.rts = a
	q.eng.ToRTS(now, a)
}

// ToSQD implements EngineQP.
func (q *muxQP) ToSQD() { q.eng.ToSQD() }

// Drained reports whether nothing that was begun is outstanding.
func (q *muxQP) Drained() bool {
	e, ok := q.eng.(interface{ Drained() bool })
	return ok && e.Drained()
}

// Resume implements EngineQP.
func (q *muxQP) Resume(now mono.Time) { q.eng.Resume(now) }

// Change implements EngineQP. A QP that waits for a peer to speak waits for the new one; one that has an engine keeps it.
func (q *muxQP) Change(now mono.Time, a RTRAttr, s RTSAttr) bool {
	if q.open == nil || a.LocalAddr == q.rtr.LocalAddr && a.RemoteAddr == q.rtr.RemoteAddr {
		if !q.eng.Change(now, a, s) {
			return false
		}
		q.rtr, q.rts = a, s
		return true
	}
	if !q.eng.Change(now, a, s) {
		return false
	}
	q.m.close(q)
	q.rtr, q.rts = a, s
	to, open := q.m.choose(now, &a)
	if to != q.side {
		q.move(now, to)
	}
	if open {
		q.m.wait(q)
	} else {
		q.owner.more()
	}
	return true
}

// SetQKey implements EngineQP.
func (q *muxQP) SetQKey(k uint32) { q.eng.SetQKey(k) }

// ToError implements EngineQP.
func (q *muxQP) ToError(now mono.Time) {
	q.m.close(q)
	q.eng.ToError(now)
}

// Reset implements EngineQP.
func (q *muxQP) Reset(now mono.Time) {
	q.m.close(q)
	q.eng.Reset(now)
}

// Destroy implements EngineQP.
func (q *muxQP) Destroy(now mono.Time) {
	q.m.close(q)
	q.leave(now)
	delete(q.m.qps, q.qpn)
}

// NextWR implements EngineQP. An undecided QP takes nothing: it stays in the program's queue.
func (q *muxQP) NextWR() *transport.SendWR {
	//= MR-COEX-021
	if q.open != nil && q.side == sideMR {
		return nil
	}
	return q.eng.NextWR()
}

// Post implements EngineQP.
func (q *muxQP) Post(now mono.Time) { q.eng.Post(now) }

// RecvPosted implements EngineQP.
func (q *muxQP) RecvPosted(now mono.Time, n uint32) { q.eng.RecvPosted(now, n) }

// Attach and Detach implement GroupQP.
func (q *muxQP) Attach(g netip.Addr) {
	if e, ok := q.eng.(GroupQP); ok {
		e.Attach(g)
	}
}

// Detach implements GroupQP.
func (q *muxQP) Detach(g netip.Addr) {
	if e, ok := q.eng.(GroupQP); ok {
		e.Detach(g)
	}
}

// more lets the engine have what waits in the send queue.
func (q *QP) more() {
	if q.sqFull {
		q.sqFull = false
		q.ctx.nic.ring(&q.sq)
	}
}

// again takes back to the queue what was fetched and has not completed: another engine begins with it.
func (q *QP) again() {
	q.sq.idx -= q.sqOut
	q.sqOut = 0
	q.sqFull = true
	q.more()
}

// transportOf names the engine of a QP.
func transportOf(e EngineQP) string {
	q, ok := e.(*muxQP)
	switch {
	case !ok:
		return ""
	case q.side == sideMR:
		return "metaroce"
	}
	return "rocev2"
}
