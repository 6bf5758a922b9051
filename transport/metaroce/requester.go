package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// wqe is a send work request with its place in the numbers of its QP.
type wqe struct {
	transport.SendWR
	first, last uint64 // PSNs
	ssn         uint64 // send number, of those that take a receive
	rdno        uint64 // number among READs and atomics
	rdBefore    uint64 // how many READs and atomics were posted before it
	got         uint32 // response bytes that landed
	answered    bool   // READ, atomic: all of the response is here; local: carried out
	failed      transport.Status
}

// pst is what the requester knows of one PSN between una and next.
type pst struct {
	wqe    uint16 // number of its work request, low bits
	path   uint16 // of its newest transmission
	out    uint8  // transmissions in flight
	acked  bool
	parked bool // refused: waits until the time below
	queued bool // on the resend queue
	until  mono.Time
}

// requester is the sending half of a QP.
type requester struct {
	sq         []wqe
	head, tail uint64 // work requests in the ring
	cur        uint64 // work request of PSN next
	una        uint64 // oldest PSN that is not acknowledged
	next       uint64 // next PSN never sent
	end        uint64 // one past the last PSN posted
	ps         ring[pst]
	rtx        fifo      // PSNs to send again
	parked     fifo      // refused PSNs, in order of refusal
	twin       uint64    // PSN that may go a second time at once; 0 = none
	late       uint64    // PSN that the probe time called lost last; 0 = none
	again      uint64    // the same, the second time: it goes again twice
	parkDue    mono.Time // when the first of them may go again; 0 = none

	nssn, sentSSN uint64 // next send number; one past the highest sent
	limit         uint64 // send numbers below it may go
	haveLimit     bool
	blockedAt     mono.Time // since when the limit blocks; 0 = it does not
	limitWait     mono.Duration

	nrd, rdLow uint64   // READs and atomics posted; the oldest that is unanswered
	rdRing     []uint64 // work request by READ number, within the window; a power of two
	maxRd      uint64
	atomics    int // sent and unanswered

	rnrPSN   uint64 // refused for want of a receive; nothing beyond goes before rnrUntil
	rnrHead  uint64 // PSN that rnrCnt counts for
	rnrUntil mono.Time
	rnrCnt   uint8
	rnrRetry uint8

	retries  uint8
	triedAt  mono.Time // when retries was counted last
	retryCnt uint8
	timeout  mono.Duration // 0 = none
	since    mono.Time     // of the last progress, or of the first request after idling
	probedAt mono.Time

	stop    uint64     // PSN that failed, or never64
	seen    ring[bool] // response packets by number
	respExp uint64     // all responses below have arrived
}

func (r *requester) start(psn0 uint64, at RTSAttr) {
	//= MR-REL-053
	r.una, r.next, r.end = psn0, psn0, psn0
	r.ps.init(psn0)
	r.nssn, r.sentSSN = firstSSN, firstSSN
	r.nrd, r.rdLow = firstSSN, firstSSN
	r.limits(at)
	r.stop = never64
	r.seen.init(firstResp)
	r.respExp = firstResp
}

// limits takes over timers, retries and the number of READs and atomics outstanding.
func (r *requester) limits(at RTSAttr) {
	r.maxRd = uint64(min(max(at.MaxRdAtomic, 0), rdMax))
	room := int(r.maxRd)
	if planted.Is(planted.NoReadLimit) {
		room = rdMax
	}
	r.rdRing = roomFor(r.rdRing, r.rdLow, room)
	r.retryCnt, r.rnrRetry = at.RetryCnt, at.RNRRetry
	r.timeout = 0
	if at.Timeout > 0 {
		r.timeout = mono.Duration(4096) << min(at.Timeout, 31)
	}
}

// rd is the work request of READ or atomic n, while that is within the window.
func (r *requester) rd(n uint64) *uint64 { return &r.rdRing[n&uint64(len(r.rdRing)-1)] }

func (r *requester) wq(n uint64) *wqe { return &r.sq[n&uint64(len(r.sq)-1)] }

// NextWR returns the next free work request of the send ring, its SGE list empty, or nil when the ring is full.
func (q *QP) NextWR() *transport.SendWR {
	r := &q.req
	if r.tail-r.head == uint64(len(r.sq)) {
		return nil
	}
	w := r.wq(r.tail)
	sge := w.SGE[:0]
	*w = wqe{SendWR: transport.SendWR{SGE: sge}}
	return &w.SendWR
}

// Post commits the work request that NextWR returned.
func (q *QP) Post(now mono.Time) {
	q.e.tick(now)
	r := &q.req
	w := r.wq(r.tail)
	idle := r.head == r.tail
	r.tail++
	if q.state != StateRTS && q.state != StateSQD {
		//= MR-QP-021
		if q.state == StateErr {
			q.flushSends()
		}
		return
	}
	if w.Op.IsLocal() {
		q.postLocal(w, idle)
		return
	}
	//= MR-MSG-010
	w.first, w.last = r.end, r.end
	w.rdBefore = r.nrd
	switch {
	case w.Op.HasResponse():
		//= MR-MSG-011
		w.rdno = r.nrd
		r.nrd++
	case w.Length > 0:
		w.last += uint64((int64(w.Length) - 1) / int64(q.mtu))
	}
	if w.Op.TakesRecv() {
		//= MR-MSG-011
		w.ssn = r.nssn
		r.nssn++
	}
	r.end = w.last + 1
	if idle {
		r.since = q.e.now
	}
	//= MR-VRB-009
	if w.Op.HasResponse() && r.maxRd == 0 && w.Fail == transport.OK { // it could never go
		w.Fail = transport.LocQPOpErr
	}
	if w.Fail != transport.OK && r.stop > w.first {
		r.stop = w.first
		w.failed = w.Fail
		q.complete()
		return
	}
	q.wake()
	if q.due.Due() == never {
		q.retime()
	}
}

// cut is where packet i of a work request begins. The last packet of a longer WRITE carries at least tailMin bytes,
// so that a flag at the end of a message is not cut in two.
func (q *QP) cut(w *wqe, i uint64) uint32 {
	mtu := uint64(q.mtu)
	at := i * mtu
	if at >= uint64(w.Length) {
		return w.Length
	}
	//= MR-MSG-012
	if rest := uint64(w.Length) - at; w.Op.IsWrite() && i > 0 && rest < tailMin && !planted.Is(planted.ShortTail) {
		return w.Length - tailMin
	}
	//= MR-WIRE-032
	return uint32(at)
}

// nextToSend names the next packet of the QP that may go now: responses and requests in turn, neither may starve the
// other. It changes nothing that a second call would not change again.
func (q *QP) nextToSend() (txKind, uint64, bool) {
	if q.respTurn {
		if n, ok := q.nextResponse(); ok {
			return txResponse, n, true
		}
	}
	if psn, ok := q.nextRequest(); ok {
		return txRequest, psn, true
	}
	if !q.respTurn {
		if n, ok := q.nextResponse(); ok {
			return txResponse, n, true
		}
	}
	return 0, 0, false
}

// nextRequest names the next request packet: resends first, then new ones.
func (q *QP) nextRequest() (uint64, bool) {
	//= MR-QP-001
	if q.state != StateRTS && q.state != StateSQD || q.a.state != assocUp {
		return 0, false
	}
	r := &q.req
	if psn := r.twin; psn != 0 {
		if psn >= r.una && psn < r.stop && r.ps.at(psn).out == 1 && !r.ps.at(psn).acked {
			return psn, true
		}
		r.twin = 0
	}
	//= MR-REL-046
	for r.rtx.len() > 0 {
		psn := r.rtx.peek()
		if psn >= r.una && psn < r.stop {
			//= MR-REL-045 MR-REL-048
			if p := r.ps.at(psn); !p.acked && p.out == 0 && !p.parked {
				return psn, true
			}
			r.ps.at(psn).queued = false
		}
		r.rtx.pop()
	}
	return r.next, q.mayNew()
}

// mayNew says whether the next never-sent PSN may go.
func (q *QP) mayNew() bool {
	r := &q.req
	now := q.e.now
	if !q.runLocals() {
		return false
	}
	//= MR-REL-050
	if r.next >= r.end || r.next >= r.stop || r.next >= r.una+uint64(q.e.cfg.PSNWindow) {
		return false
	}
	//= MR-MSG-064
	if now < r.rnrUntil && r.next > r.rnrPSN {
		return false
	}
	w := r.wq(r.cur)
	if w.first == r.next { // what holds a whole request back is decided at its first packet
		//= MR-MSG-017
		if q.state == StateSQD {
			return false
		}
		//= MR-MSG-013
		if planted.Is(planted.FenceWaitsForAckOnly) && w.Flags&transport.FlagFence != 0 {
			return r.una == w.first
		}
		if w.Flags&transport.FlagFence != 0 && r.rdLow < w.rdBefore && !planted.Is(planted.NoFence) {
			return false
		}
		//= MR-MSG-016
		if w.Op.HasResponse() && w.rdno >= r.rdLow+r.maxRd && (!planted.Is(planted.NoReadLimit) || w.rdno >= r.rdLow+rdMax) {
			return false
		}
	}
	//= MR-MSG-014
	if r.atomics > 0 && w.Op.IsWrite() && q.overAtomic(w) && !planted.Is(planted.NoAtomicFence) {
		return false
	}
	//= MR-MSG-061
	if w.Op.TakesRecv() && r.haveLimit && w.ssn >= r.limit && (w.Op.IsSend() || r.next == w.last) {
		return q.pastLimit()
	}
	r.blockedAt = 0
	return true
}

// overAtomic reports whether a WRITE touches the bytes of an unanswered atomic: then it waits, or the atomic might
// run after it and undo it (implicit fence).
func (q *QP) overAtomic(w *wqe) bool {
	r := &q.req
	for n := r.rdLow; n < w.rdBefore && n < r.rdLow+rdMax; n++ {
		x := r.wq(*r.rd(n))
		if x.rdno == n && x.Op.IsAtomic() && !x.answered &&
			w.RemoteAddr < x.RemoteAddr+8 && x.RemoteAddr < w.RemoteAddr+uint64(w.Length) {
			return true
		}
	}
	return false
}

// pastLimit decides for a QP that the receive limit holds back: after a while it sends its next packet anyway, or a
// lost limit would stop it for ever.
func (q *QP) pastLimit() bool {
	if planted.Is(planted.NoZeroWindowProbe) {
		return false
	}
	r := &q.req
	now := q.e.now
	if r.blockedAt == 0 {
		r.blockedAt = now
		//= MR-MSG-062
		r.limitWait = max(r.limitWait, q.a.srtt, rnrTime(q.rsp.minRNR))
		if r.rnrRetry < 7 { // an RNR counts, and may be the end of the QP where the peer is only late; limits seldom get lost
			r.limitWait = max(r.limitWait, limitPatience)
		}
		q.retime()
		return false
	}
	if at := r.blockedAt.Add(r.limitWait); now < at {
		if q.due.Due() > at {
			q.retime()
		}
		return false
	}
	return true
}

// sentBefore marks a packet that goes again, or beside its first transmission.
func (q *QP) sentBefore(psn uint64, h *wire.Header) {
	r := &q.req
	if psn == r.twin {
		//= MR-REL-048 MR-REL-064
		h.Flags |= wire.FlagCopy
		if r.twin == r.late {
			h.Flags |= wire.FlagRetransmit
		}
		r.twin = 0
		q.e.C.Twins++
		return
	}
	r.rtx.pop()
	r.ps.at(psn).queued = false
	//= MR-REL-048
	h.Flags |= wire.FlagRetransmit
	q.e.C.Retransmits++
	if psn == r.again {
		//= MR-REL-065
		r.again, r.twin = 0, psn
	}
}

// fillRequest writes the headers of one request packet and says where its payload is.
func (q *QP) fillRequest(j *txJob, h *wire.Header, op *transport.MemOp) {
	r := &q.req
	psn := j.psn
	fresh := psn == r.next
	if fresh {
		q.takeNext()
		q.wantTwin(psn)
	} else {
		q.sentBefore(psn, h)
	}
	p := r.ps.at(psn)
	p.out++
	w := r.wq(uint64(p.wqe))
	h.PSN = serial.Trunc(psn)
	//= MR-MSG-015
	if r.atomics > 0 && r.rdLow < w.rdBefore {
		h.Flags |= wire.FlagAtomicPending
	}
	tail := psn == w.last
	if tail {
		//= MR-WIRE-031
		h.Flags |= wire.FlagTail
		//= MR-WIRE-012
		h.SE = w.Flags&transport.FlagSolicited != 0 && w.Op.TakesRecv()
		h.BTHAckReq = true
	}
	//= MR-REL-049
	if !fresh || !q.mayNew() { // the last one for now: nothing follows that would bring an acknowledgement
		h.Flags |= wire.FlagAckReq
	}
	if w.Op.HasResponse() {
		h.VA, h.RKey, h.Len = w.RemoteAddr, w.RKey, w.Length
		switch w.Op {
		case transport.OpRead:
			h.Op = wire.OpRead
		case transport.OpCmpSwap:
			h.Op, h.Swap, h.Compare = wire.OpCmpSwap, w.Swap, w.Compare
		default:
			h.Op, h.Swap, h.Compare = wire.OpFetchAdd, w.Compare, 0
		}
		return
	}
	i := psn - w.first
	off := q.cut(w, i)
	n := int(q.cut(w, i+1) - off)
	//= MR-WIRE-040 MR-WIRE-041 MR-REL-047
	h.VA, h.RKey, h.Len, h.Off, h.SSN = w.RemoteAddr+uint64(off), w.RKey, w.Length-off, off, uint32(w.ssn)
	h.Imm, h.Inv = w.Imm, w.Imm
	h.Op = dataOpcode(w.Op, tail)
	j.n = n
	if n > 0 {
		j.op = opWanted
		op.Kind, op.WR, op.Off = transport.MemGather, &w.SendWR, off
	}
}

func dataOpcode(o transport.Op, tail bool) wire.Opcode {
	switch {
	//= MR-WIRE-030 MR-WIRE-034
	case o == transport.OpWriteImm && tail:
		return wire.OpWriteImm
	case o.IsWrite():
		return wire.OpWrite
	case o == transport.OpSendImm && tail:
		return wire.OpSendImm
	case o == transport.OpSendInv && tail:
		return wire.OpSendInv
	}
	return wire.OpSend
}

// takeNext moves next past a PSN that is being sent for the first time.
func (q *QP) takeNext() {
	r := &q.req
	w := r.wq(r.cur)
	r.ps.extend(r.next)
	r.ps.at(r.next).wqe = uint16(r.cur)
	if r.next == w.first && w.Op.HasResponse() {
		*r.rd(w.rdno) = r.cur
		if w.Op.IsAtomic() {
			r.atomics++
		}
	}
	if w.Op.TakesRecv() {
		r.sentSSN = max(r.sentSSN, w.ssn+1)
		if r.blockedAt != 0 { // it went past the limit: the next one waits longer
			//= MR-MSG-062
			r.blockedAt, r.limitWait = q.e.now, min(2*r.limitWait, 100*mono.Millisecond)
		}
	}
	if r.next == w.last {
		r.cur++
	}
	r.next++
}

// onAcked: a transmission was acknowledged. counted: it was in flight until now.
func (q *QP) onAcked(kind txKind, n uint64, counted bool) {
	q.talked = true
	if kind == txResponse {
		q.responseAcked(n, counted)
		return
	}
	r := &q.req
	if n < r.una || n >= r.next {
		return
	}
	p := r.ps.at(n)
	if counted && p.out > 0 {
		p.out--
	}
	if p.acked {
		return
	}
	p.acked, p.parked = true, false
	if n == r.una {
		q.advance()
	}
}

// advance moves una past what is acknowledged and completes what it can.
func (q *QP) advance() {
	r := &q.req
	for r.una < r.next && r.ps.at(r.una).acked {
		r.una++
	}
	r.ps.lo = r.una
	r.rnrCnt, r.retries = 0, 0
	r.since = q.e.now
	q.complete()
	q.watch()
	q.wake()
}

// onLost: a transmission is lost, its packet goes again unless a copy is under way.
func (q *QP) onLost(kind txKind, n uint64) {
	if kind == txResponse {
		q.responseLost(n)
		return
	}
	r := &q.req
	if n < r.una || n >= r.next {
		return
	}
	p := r.ps.at(n)
	if p.out > 0 {
		p.out--
	}
	q.requeue(n, p)
}

func (q *QP) requeue(n uint64, p *pst) {
	//= MR-REL-045 MR-PATH-042
	if p.acked || p.out > 0 || p.parked || p.queued {
		return
	}
	p.queued = true
	q.req.rtx.push(n)
	q.wake()
}

// complete reports what is done, in post order.
func (q *QP) complete() {
	r := &q.req
	for r.head < r.tail && q.state != StateErr {
		w := r.wq(r.head)
		//= MR-MSG-003
		if w.failed != transport.OK && r.una >= w.first {
			if q.e.commitFirst() {
				continue
			}
			q.failRequester(w.failed)
			return
		}
		//= MR-MSG-001 MR-MSG-002
		if planted.Is(planted.ReadDoneOnAck) && w.Op == transport.OpRead && r.una > w.last {
			w.answered = true
		}
		early := planted.Is(planted.CompleteOnLastAck) && !w.Op.IsLocal() && w.last >= r.una && w.last < r.next && r.ps.at(w.last).acked
		if r.una <= w.last && !early || (w.Op.HasResponse() || w.Op.IsLocal()) && !w.answered {
			return
		}
		r.head++
		r.since = q.e.now
		q.e.host.SendDone(q.owner, &w.SendWR, transport.OK)
	}
}

// failRequester ends the QP: the oldest request takes the status, the rest is flushed.
func (q *QP) failRequester(s transport.Status) {
	if q.state == StateErr {
		return
	}
	q.state = StateErr
	r := &q.req
	if r.head < r.tail {
		w := r.wq(r.head)
		r.head++
		q.e.host.SendDone(q.owner, &w.SendWR, s)
	}
	q.e.host.QPError(q.owner, false, s)
	q.flush()
}

func (q *QP) flushSends() {
	r := &q.req
	for r.head < r.tail {
		w := r.wq(r.head)
		r.head++
		//= MR-MSG-003 MR-MSG-086
		q.e.host.SendDone(q.owner, &w.SendWR, transport.WRFlushErr)
	}
	r.rtx.clear()
	r.parked.clear()
}

// kill makes the request of a PSN fail once everything before it is done.
func (q *QP) kill(psn uint64, s transport.Status) {
	r := &q.req
	if r.stop <= psn || psn < r.una || psn >= r.next {
		return
	}
	r.stop = psn
	w := r.wq(uint64(r.ps.at(psn).wqe))
	w.failed = s
	q.complete()
}

// payloadFailed: the memory of a packet to be sent is gone.
func (q *QP) payloadFailed(kind txKind, n uint64, err transport.MemErr) {
	if kind == txResponse {
		q.responseMemoryGone(n, err)
		return
	}
	r := &q.req
	if q.state == StateErr || n < r.una || n >= r.next {
		return
	}
	if p := r.ps.at(n); p.out > 0 {
		p.out--
	}
	q.kill(n, transport.LocProtErr)
}

// timedOut notes that a packet is sent again as nothing was heard of it: the second time it goes twice.
func (q *QP) timedOut(psn uint64) {
	r := &q.req
	if r.late == psn {
		r.again = psn
	}
	r.late = psn
}

// wantTwin has a message of one packet sent a second time, where copies are a small share of the bytes sent.
func (q *QP) wantTwin(psn uint64) {
	a, r := q.a, &q.req
	share := q.e.cfg.TwinShare
	if share == 0 {
		return
	}
	w := r.wq(uint64(r.ps.at(psn).wqe))
	size := float64(wire.MaxOverhead)
	if !w.Op.HasResponse() {
		i := psn - w.first
		size += float64(q.cut(w, i+1) - q.cut(w, i))
	}
	//= MR-REL-064
	a.twinCredit = min(a.twinCredit+share*size, twinCreditMax)
	if w.first == w.last && a.twinCredit >= size {
		a.twinCredit -= size
		r.twin = psn
	}
}

// twinCreditMax bounds how many copies a pause allows: some packets.
const twinCreditMax = 16 << 10
