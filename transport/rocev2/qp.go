package rocev2

import (
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/internal/timerq"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
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
	Type       transport.QPType
	SQEntries  int
	MaxSendSGE int
	SRQ        bool
}

// RTRAttr is what a QP needs to receive. UD uses none of it but Local, if at all; UC no READs and no RNR.
type RTRAttr struct {
	Local, Remote   netip.Addr // GIDs
	RemoteQPN       uint32
	RQPSN           uint32
	PathMTU         int // bytes
	MaxDestRdAtomic int
	MinRNRTimer     uint8 // code
	TrafficClass    uint8
	HopLimit        uint8
	FlowLabel       uint32
}

// RTSAttr is what a QP needs to send.
type RTSAttr struct {
	SQPSN       uint32
	Timeout     uint8 // code: 4.096 µs << Timeout; 0 = for ever
	RetryCnt    uint8
	RNRRetry    uint8 // 7 = for ever
	MaxRdAtomic int
}

// QP is one connection, reliable or not, or one datagram QP.
type QP struct {
	e         *Engine
	owner     any
	typ       transport.QPType
	srq       bool
	state     QPState
	qpn       uint32
	inc       uint32 // incarnation: work on packets of an earlier one is void
	remoteQPN uint32
	qkey      uint32
	local     netip.Addr
	remote    netip.Addr
	mtu       int
	window    uint64 // packets
	readChunk uint64 // response packets that one READ request asks for at most; see setReadChunk
	tos, ttl  uint8
	flowLabel uint32
	srcPort   uint16

	plane    int // -1: none carries packets of its MTU
	shift    int // planes passed over, after timeouts
	timeouts int // in a row

	inRing, inCtl     bool
	ringNext, ctlNext *QP
	left              int // packets left of its turn
	groups            int // multicast groups that it is attached to
	respTurn          bool
	due               timerq.Node[QP]

	flow    cc.DCQCN
	paceAt  mono.Time // nothing of it goes before
	waited  bool      // for paceAt, with something to send since
	cnpDue  bool
	cnpAt   mono.Time // when the last CNP was made
	deadReq bool      // scratch of a transmission whose memory is gone
	deadRsp bool

	req requester
	rsp responder
}

func newQP(e *Engine, qpn uint32, c QPConfig) *QP {
	q := &QP{e: e, qpn: qpn, owner: c.Owner, typ: c.Type, srq: c.SRQ}
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
	if c.Type == transport.UD {
		dests := make([]transport.UDDest, n)
		for i := range dests {
			q.req.sq[i].Dest = &dests[i]
		}
	}
	q.clear()
	return q
}

// Number returns the QP's number.
func (q *QP) Number() uint32 { return q.qpn }

// State returns the QP's state.
func (q *QP) State() QPState { return q.state }

// Plane returns the plane that the QP sends on, or -1.
func (q *QP) Plane() int { return q.plane }

// ToInit moves RESET to INIT.
func (q *QP) ToInit() { q.state = StateInit }

// ToRTR binds the QP to its peer. There is always room for another one.
func (q *QP) ToRTR(now mono.Time, r RTRAttr) bool {
	q.e.tick(now)
	q.local, q.remote, q.remoteQPN = r.Local, r.Remote, r.RemoteQPN&(1<<24-1)
	q.mtu = min(max(r.PathMTU, 256), maxPayload)
	q.tos, q.ttl, q.flowLabel = r.TrafficClass&^3, r.HopLimit, r.FlowLabel&0xfffff
	q.srcPort = sourcePort(q.flowLabel, q.qpn, q.remoteQPN)
	q.rsp.start(firstPSN(r.RQPSN), r.MaxDestRdAtomic, r.MinRNRTimer)
	q.state = StateRTR
	q.plane = -1
	q.settlePlane()
	return true
}

// sourcePort is the entropy of a QP: from the flow label as the kernel does it, else from the QP numbers.
func sourcePort(label, l, r uint32) uint16 {
	if label == 0 {
		p := uint64(l) * uint64(max(r, 1))
		p ^= p >> 20
		p ^= p >> 40
		label = uint32(p & 0xfffff)
	}
	return 0xC000 | uint16(label&0x3fff^label>>14)
}

// firstPSN is the 64-bit number that a first PSN of the wire stands for: not so low that a distance could go below 0.
func firstPSN(psn uint32) uint64 { return 1<<32 + uint64(psn&serial.PSNMask) }

// ToRTS lets the QP send.
func (q *QP) ToRTS(now mono.Time, r RTSAttr) {
	q.e.tick(now)
	q.req.start(firstPSN(r.SQPSN), r)
	q.setReadChunk()
	q.state = StateRTS
	q.req.since = q.e.now
}

// Change takes over what may change after RTS: timers, retries and limits at any time, the addresses in SQD once
// nothing is outstanding.
func (q *QP) Change(now mono.Time, r RTRAttr, s RTSAttr) bool {
	q.e.tick(now)
	if q.typ == transport.UD || q.state != StateRTS && q.state != StateSQD {
		return true
	}
	q.local, q.remote = r.Local, r.Remote
	q.tos, q.ttl, q.flowLabel = r.TrafficClass&^3, r.HopLimit, r.FlowLabel&0xfffff
	q.srcPort = sourcePort(q.flowLabel, q.qpn, q.remoteQPN)
	q.rsp.minRNR = r.MinRNRTimer
	q.rsp.remember(r.MaxDestRdAtomic)
	q.req.limits(s) // what a READ request asks for stays: those that are posted have their numbers
	q.settlePlane()
	q.wake()
	q.retime()
	return true
}

// SetQKey sets the key of a UD QP.
func (q *QP) SetQKey(k uint32) { q.qkey = k }

// ToSQD stops beginning new requests; what is under way finishes.
func (q *QP) ToSQD() {
	if q.state == StateRTS {
		q.state = StateSQD
	}
}

// Drained reports whether nothing that was begun is outstanding. Datagrams that are posted and not sent are not begun.
func (q *QP) Drained() bool {
	r := &q.req
	if q.typ == transport.UD {
		return r.head == r.cur
	}
	return r.head == r.tail || r.wq(r.head).first >= r.max
}

// Resume leaves SQD.
func (q *QP) Resume(now mono.Time) {
	q.e.tick(now)
	if q.state == StateSQD {
		q.state = StateRTS
		q.wake()
	}
}

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
	e := q.e
	e.tick(now)
	q.release()
	q.clear()
	delete(e.qps, q.qpn)
	if i, ok := e.place(q.qpn); ok && e.list[i] == q {
		e.list = slices.Delete(e.list, i, i+1)
	}
	for g := range e.groups {
		if q.groups == 0 {
			break
		}
		e.Detach(q, g)
	}
}

// release gives back what the QP holds and takes it off every list.
func (q *QP) release() {
	e := q.e
	if r := q.rsp.recv; r != nil && q.srq {
		e.host.ReturnRecv(q.owner, r)
	}
	for i := 0; i < len(e.planes) && q.inRing; i++ {
		e.planes[i].ring.remove(q)
	}
	if q.inCtl {
		e.ctl.removeCtl(q)
	}
	e.timers.Set(&q.due, never)
}

// clear is the state of a QP in RESET.
func (q *QP) clear() {
	q.inc++
	q.state, q.plane, q.shift, q.timeouts, q.left = StateReset, -1, 0, 0, 0
	q.paceAt, q.waited, q.cnpDue, q.cnpAt, q.flow, q.respTurn = 0, false, false, 0, cc.DCQCN{}, false
	q.req = requester{sq: q.req.sq, stop: never64}
	q.rsp = responder{res: q.rsp.res}
}

const never64 = 1<<64 - 1

// flush completes everything that is still posted as flushed. The QP is in the error state.
func (q *QP) flush() {
	q.flushSends()
	q.flushRecvs()
	if q.rsp.fatal == 0 {
		q.rsp.forget()
	}
	q.retime()
}

// flushRecvs completes the receives in hand, oldest first, then those that are posted.
func (q *QP) flushRecvs() {
	e, s := q.e, &q.rsp
	info := transport.RecvInfo{Status: transport.WRFlushErr}
	recv := s.recv
	s.recv, s.kind = nil, msgNone
	for i := e.in.settling; i < len(e.in.jobs); i++ { // taken in this burst and not settled
		j := &e.in.jobs[i]
		if j.q != q || j.recv == nil {
			continue
		}
		r := j.recv
		if j.recv = nil; r == recv {
			continue // goes last
		}
		if j.last { // a longer message's receive is in several jobs
			e.host.RecvDone(q.owner, r, info)
		}
	}
	if recv != nil {
		e.host.RecvDone(q.owner, recv, info)
	}
	for !q.srq {
		r := e.host.TakeRecv(q.owner)
		if r == nil {
			return
		}
		e.host.RecvDone(q.owner, r, info)
	}
}

// RecvPosted says that n more receives were posted.
func (q *QP) RecvPosted(now mono.Time, _ uint32) {
	q.e.tick(now)
	if q.state == StateErr && !q.srq {
		q.flushRecvs()
	}
}

// choices lists the planes that carry the QP's packets, and are up unless any will do, by weight: the first is its own.
func (q *QP) choices(order *[maxPlanes]int, any bool) (n int) {
	e := q.e
	for i := range e.planes {
		if !any && !e.planes[i].up || q.typ != transport.UD && q.mtu+overheadOf(q.typ) > e.cfg.Planes[i].PacketMax {
			continue
		}
		k := n
		for ; k > 0 && q.weight(order[k-1]) < q.weight(i); k-- {
			order[k] = order[k-1]
		}
		order[k] = i
		n++
	}
	return n
}

// settlePlane puts the QP on its plane: by hash among those that are up, so that only QPs of a plane that fails move, and
// come back with it.
func (q *QP) settlePlane() {
	if q.state < StateRTR {
		return
	}
	e := q.e
	var order [maxPlanes]int
	n := q.choices(&order, false)
	if n == 0 && q.plane < 0 {
		n = q.choices(&order, true)
	}
	if n == 0 {
		return // where it was: its packets are lost, and its timer tells
	}
	to := order[q.shift%n]
	if to == q.plane {
		return
	}
	if q.plane >= 0 {
		e.C.PlaneMoves++
	}
	q.plane = to
	q.timeouts = 0
	q.flow.Start(&e.planes[to].dcqcn)
	q.window = q.windowOn(to)
	q.wake()
}

// windowOn is the QP's window on a plane, in packets.
func (q *QP) windowOn(plane int) uint64 {
	w := q.e.cfg.Window
	if w == 0 {
		w = max(defaultWindow, int(float64(q.e.cfg.Planes[plane].RateBps)/8*windowTime.Seconds()))
	}
	return uint64(min(max(w/q.mtu, 1), maxWindow))
}

// setReadChunk fixes the pieces that long READs are asked for in: their responses are acknowledged by nothing, so what a
// request asks for is what may be in flight. The pieces stay the same on every plane that the QP may move to, or a request
// that is made again would not fit what the responder remembers.
func (q *QP) setReadChunk() {
	var order [maxPlanes]int
	q.readChunk = maxWindow
	for i := range q.choices(&order, true) {
		q.readChunk = min(q.readChunk, q.windowOn(order[i]))
	}
	if q.req.maxRd > 1 {
		q.readChunk = max(q.readChunk/2, 1)
	}
}

// follow moves to the plane where the peer repeats itself: our answers seem not to reach it from ours.
func (q *QP) follow(plane int) {
	if plane == q.plane {
		return
	}
	var order [maxPlanes]int
	for i := range q.choices(&order, false) {
		if order[i] == plane {
			q.shift = i
			q.settlePlane()
			return
		}
	}
}

// weight is the same at both ends.
func (q *QP) weight(plane int) uint64 {
	x := uint64(max(q.qpn, q.remoteQPN))<<32 ^ uint64(min(q.qpn, q.remoteQPN))<<8 ^ uint64(plane) ^ 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// wake puts the QP among those that want to send.
func (q *QP) wake() {
	if q.state >= StateRTR && q.plane >= 0 && !q.inRing {
		q.e.planes[q.plane].ring.push(q)
	}
}

// answerSoon puts the QP among those with an answer to send.
func (q *QP) answerSoon() {
	if !q.inCtl && q.plane >= 0 {
		q.e.ctl.pushCtl(q)
	}
}
