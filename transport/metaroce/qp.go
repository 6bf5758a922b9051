package metaroce

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/internal/timerq"
	"github.com/metaroce/metaroce/transport"
)

// QPState is the state of a QP as verbs has it.
type QPState uint8

// States.
const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateErr
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "ERR"}

func (s QPState) String() string { return qpStateNames[s] }

// QPConfig is what a QP is made with.
type QPConfig struct {
	Owner      any // handed back to the Host
	SQEntries  int // power of two
	MaxSendSGE int
	SRQ        bool // receives come from an SRQ: no receive limit is told to the peer
}

// RTRAttr is what a QP needs to receive.
type RTRAttr struct {
	Local, Remote   netip.Addr // GIDs
	RemoteQPN       uint32
	RQPSN           uint32
	PathMTU         int // bytes
	MaxDestRdAtomic int
	MinRNRTimer     uint8 // code
	TrafficClass    uint8
}

// RTSAttr is what a QP needs to send.
type RTSAttr struct {
	SQPSN       uint32
	Timeout     uint8 // code: 4.096 µs << Timeout; 0 = for ever
	RetryCnt    uint8
	RNRRetry    uint8 // 7 = for ever
	MaxRdAtomic int
}

// QP is one reliable connection.
type QP struct {
	e          *Engine
	a          *assoc
	owner      any
	qpn        uint32
	remoteQPN  uint32
	inc        uint32 // incarnation: transmissions of an earlier one mean nothing
	state      QPState
	srq        bool
	tos        uint8
	talked     bool // something of it was acknowledged or received
	served     bool // a request packet of the peer was taken in hand
	inRing     bool
	left       int   // packets left of its turn
	respTurn   bool  // a response goes before a request, if there are both
	respWaits  bool  // in the list of QPs that wait for a response buffer
	limitDirty uint8 // acks that still have to tell its receive limit
	touched    bool  // in the list of QPs that commit works on
	mtu        int
	ringNext   *QP
	due        timerq.Node[QP]
	minTS      uint32 // packets with an older peer clock belong to a former life
	haveMinTS  bool
	lived      bool      // its number had a former life of late
	boundAt    mono.Time // when it became able to receive

	req requester
	rsp responder
}

func newQP(e *Engine, qpn uint32, c QPConfig) *QP {
	q := &QP{e: e, qpn: qpn, owner: c.Owner, srq: c.SRQ}
	q.due.Init(q, qpn)
	n := 1
	for n < c.SQEntries {
		n *= 2
	}
	q.req.sq = make([]wqe, n)
	sges := make([]transport.SGE, n*c.MaxSendSGE)
	for i := range q.req.sq {
		q.req.sq[i].SGE = sges[i*c.MaxSendSGE : i*c.MaxSendSGE : (i+1)*c.MaxSendSGE]
	}
	q.clear()
	return q
}

// Number returns the QP's number.
func (q *QP) Number() uint32 { return q.qpn }

// State returns the QP's state.
func (q *QP) State() QPState { return q.state }

// ToInit moves RESET to INIT.
func (q *QP) ToInit() { q.state = StateInit }

// ToRTR binds the QP to its peer. It reports false when there is no room for another peer.
func (q *QP) ToRTR(now mono.Time, r RTRAttr) bool {
	e := q.e
	e.tick(now)
	//= MR-QP-004
	a := e.assocFor(r.Local, r.Remote, true)
	if a == nil {
		return false
	}
	q.a, q.remoteQPN, q.mtu, q.tos = a, r.RemoteQPN, min(r.PathMTU, maxPayload), r.TrafficClass&^3
	s := &q.rsp
	s.start(firstPSN(r.RQPSN), r.MaxDestRdAtomic, r.MinRNRTimer)
	q.beginLife()
	q.state = StateRTR
	a.attach(q)
	//= MR-QP-005
	if s.posted > 0 && !q.srq {
		a.rx.noteLimit(q)
	}
	return true
}

// firstPSN is the 64-bit number that a first PSN of the wire stands for: not so low that a distance could go below 0.
//
// = MR-REL-053
func firstPSN(psn uint32) uint64 { return 1<<32 + uint64(psn&serial.PSNMask) }

// ToRTS lets the QP send.
func (q *QP) ToRTS(now mono.Time, r RTSAttr) {
	q.e.tick(now)
	q.req.start(firstPSN(r.SQPSN), r)
	q.state = StateRTS
}

// Change takes over what may change after RTS: timers, retries and limits at any time, the addresses in SQD once
// nothing is outstanding. It reports false when there is no room for another peer; then nothing has changed.
func (q *QP) Change(now mono.Time, r RTRAttr, s RTSAttr) bool {
	q.e.tick(now)
	if q.a == nil || q.state != StateRTS && q.state != StateSQD {
		return true
	}
	//= MR-QP-012
	if !q.rebind(r.Local, r.Remote) {
		return false
	}
	q.tos = r.TrafficClass &^ 3
	q.rsp.minRNR, q.rsp.maxRd = r.MinRNRTimer, min(max(r.MaxDestRdAtomic, 0), rdMax)
	q.rsp.reads = roomFor(q.rsp.reads, q.rsp.readHead, q.rsp.maxRd)
	q.req.limits(s)
	q.wake()
	q.retime()
	return true
}

// rebind takes the QP to the association with another address of its peer, or of ours. What is in flight on the way to
// the old one goes again to the new one.
func (q *QP) rebind(local, remote netip.Addr) bool {
	old := q.a
	if local == old.local && remote == old.remote {
		return true
	}
	//= MR-QP-004
	a := q.e.assocFor(local, remote, true)
	if a == nil {
		return false
	}
	q.a = a
	a.attach(q)
	q.lived, q.haveMinTS = false, false // the peer's clock may be another one there; the connection goes on
	for i := range old.planes {
		old.planes[i].abandon(q)
	}
	old.rx.forgetQP(q)
	old.detach(q)
	if q.rsp.posted > 0 && !q.srq {
		a.rx.noteLimit(q)
	}
	return true
}

// abandon ends what a QP has in flight on a plane as lost for the QP; the plane takes no notice.
func (pl *planeTx) abandon(q *QP) {
	e := pl.a.e
	for i := pl.head; i != 0; {
		r := &e.recs[i]
		next, kind, psn, p := r.next, r.kind, r.psn, r.path
		if r.q == q && r.inc == q.inc {
			e.dropRec(i)
			p.advance(e)
			q.onLost(kind, psn)
		}
		i = next
	}
}

// ToSQD stops fetching new requests; what is under way finishes.
func (q *QP) ToSQD() {
	if q.state == StateRTS {
		q.state = StateSQD
	}
}

// Resume leaves SQD.
func (q *QP) Resume(now mono.Time) {
	q.e.tick(now)
	//= MR-QP-011
	if q.state == StateSQD {
		q.state = StateRTS
		q.req.since = q.e.now
		q.wake()
		q.retime()
	}
}

// Drained reports whether nothing is unfinished, in SQD: nothing that was begun.
func (q *QP) Drained() bool { return !q.unfinished() }

// Begun reports whether anything of the connection may have been carried out at either end, completions or not: a request
// of the peer has arrived, or something sent was acknowledged.
func (q *QP) Begun() bool { return q.talked || q.served }

// ToError puts the QP into the error state at the program's wish and flushes it.
func (q *QP) ToError(now mono.Time) {
	q.e.tick(now)
	if q.state == StateErr || q.state == StateReset {
		q.state = StateErr
		return
	}
	q.state = StateErr
	q.flush()
}

// Reset takes the QP back to RESET: everything posted is forgotten without completions.
func (q *QP) Reset(now mono.Time) {
	q.e.tick(now)
	q.release()
	q.clear()
}

// Destroy ends the QP.
func (q *QP) Destroy(now mono.Time) {
	q.e.tick(now)
	q.release()
	q.clear()
	delete(q.e.qps, q.qpn)
	if x := q.e.lastQP; x != nil && x.qpn == q.qpn {
		q.e.lastQP = nil
	}
}

// release gives back everything the QP holds: bound receives of an SRQ to its head, newest first.
func (q *QP) release() {
	s := &q.rsp
	for n := s.bound.hi; n > s.bound.lo; n-- {
		//= MR-MSG-055
		if r := *s.bound.at(n - 1); r != nil && q.srq && !planted.Is(planted.ResetKeepsBound) {
			q.e.host.ReturnRecv(q.owner, r)
		}
	}
	//= MR-QP-024
	s.free(q.e)
	q.e.endLife(q.qpn)
	if q.a != nil {
		q.a.detach(q)
		q.a.rx.forgetQP(q)
		q.a.rx.forgetFailures(q)
	}
	q.e.timers.Set(&q.due, never)
}

// clear is the state of a QP in RESET. Its transmissions in flight become nobody's.
func (q *QP) clear() {
	sq := q.req.sq
	//= MR-MSG-096 MR-REL-033 MR-QP-025 MR-QP-026
	q.inc++
	q.state, q.a, q.talked, q.served, q.lived, q.haveMinTS = StateReset, nil, false, false, false, false
	q.req = requester{sq: sq, ps: ring[pst]{s: q.req.ps.s}, rdRing: q.req.rdRing, seen: ring[bool]{s: q.req.seen.s}, stop: never64}
	q.rsp = responder{slots: ring[slot]{s: q.rsp.slots.s}, wrote: ring[wroteBlock]{s: q.rsp.wrote.s}, bound: ring[*transport.RecvWR]{s: q.rsp.bound.s}, resps: ring[respPkt]{s: q.rsp.resps.s}, reads: q.rsp.reads}
	q.rsp.bound.init(firstSSN)
	q.rsp.nbind = firstSSN
}

const (
	never64  = 1<<64 - 1
	firstSSN = 1 << 32 // 64-bit form of the first send number, 0 on the wire
)

// peerGone ends the QP because its peer is a new one that knows nothing of it.
func (q *QP) peerGone() {
	if q.state < StateRTR || q.state == StateErr {
		if q.a != nil {
			q.a.detach(q)
		}
		return
	}
	q.failRequester(transport.RetryExcErr)
}

// flush completes everything that is still posted as flushed. The QP is in the error state.
func (q *QP) flush() {
	//= MR-QP-020
	q.flushSends()
	q.flushRecvs()
	q.rsp.drop(q.e)
	if q.a != nil {
		q.a.rx.forgetQP(q)
	}
	q.retime()
}

func (q *QP) flushRecvs() {
	s := &q.rsp
	info := transport.RecvInfo{Status: transport.WRFlushErr}
	for ; s.bound.lo < s.bound.hi; s.bound.lo++ {
		//= MR-MSG-055
		if p := s.bound.at(s.bound.lo); *p != nil && !planted.Is(planted.ErrorKeepsBound) {
			q.e.host.RecvDone(q.owner, *p, info)
			*p = nil
		}
	}
	if q.srq {
		return
	}
	for {
		r := q.e.host.TakeRecv(q.owner)
		if r == nil {
			return
		}
		q.e.host.RecvDone(q.owner, r, info)
	}
}

// wake puts the QP among those that want to send.
func (q *QP) wake() {
	if q.a != nil && q.state >= StateRTR && !q.inRing {
		q.a.active.push(q)
		q.a.heat()
	}
}

// RecvPosted says that n more receives were posted.
func (q *QP) RecvPosted(now mono.Time, n uint32) {
	q.e.tick(now)
	//= MR-QP-021
	if q.state == StateErr && !q.srq {
		q.flushRecvs()
		return
	}
	//= MR-MSG-060
	q.rsp.posted += uint64(n)
	//= MR-REL-027 MR-MSG-060
	if q.a != nil && q.state >= StateRTR && q.state != StateErr && !q.srq {
		q.a.rx.noteLimit(q)
	}
}

// runQPTimers serves the QPs whose time has come.
func (e *Engine) runQPTimers() {
	for e.timers.Next() <= e.now {
		q := e.timers.First()
		e.timers.Set(&q.due, never)
		q.onTimer()
		q.retime()
	}
}
