package rocev2

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// wqe is a send work request with its place in the numbers of its QP.
type wqe struct {
	transport.SendWR
	first, last uint64 // PSNs; those of a READ are its responses'
	ran         bool   // local: carried out
	failed      transport.Status
}

// requester is the sending half of a QP. Packet numbers are 64 bits wide here and cut to 24 on the wire:
//
//	una ≤ next ≤ max ≤ end: the oldest unacknowledged, the next to send, one past the highest ever sent, one past the
//	highest posted. Going back sets next to una; a READ that lost a response begins again in its middle.
type requester struct {
	sq                  []wqe
	head, tail          uint64 // work requests in the ring
	cur                 uint64 // work request of PSN next; UD: the next to send
	una, next, max, end uint64
	stop                uint64 // PSN that failed, or never64
	ranLocal            bool   // a local request has run

	maxRd          uint64
	rdEnd          [rdMax]uint64 // last PSNs of the READ and atomic requests that are out, oldest first
	rdHead, rdTail uint64
	rdCur          uint64 // work request that the next response is looked for from
	rx             uint64 // all responses below have arrived
	aheadResp      uint64 // the last response that came beyond a gap

	rnrUntil mono.Time
	rnrCnt   uint8
	rnrRetry uint8
	retries  uint8
	retryCnt uint8
	timeout  mono.Duration // 0 = none
	backoff  uint8
	since    mono.Time // of the last progress, or of the first request after idling
	backAt   mono.Time // when it went back last
	triedAt  mono.Time // of the last progress, or since when the present try lasts

	unasked  int  // packets since an acknowledgement was asked for
	ask      bool // ask with the next packet
	sampling bool
	sample   uint64 // PSN whose round trip is measured
	sampleAt mono.Time
	srtt     mono.Duration
	rttvar   mono.Duration
	rttMin   mono.Duration
}

func (r *requester) start(psn0 uint64, at RTSAttr) {
	r.una, r.next, r.max, r.end, r.rx = psn0, psn0, psn0, psn0, psn0
	r.limits(at)
	r.stop = never64
}

// limits takes over timers, retries and the number of READs and atomics outstanding.
func (r *requester) limits(at RTSAttr) {
	r.maxRd = uint64(min(max(at.MaxRdAtomic, 0), rdMax))
	r.retryCnt, r.rnrRetry = at.RetryCnt, at.RNRRetry
	r.timeout = 0
	if at.Timeout > 0 {
		r.timeout = mono.Duration(4096) << min(at.Timeout, 31)
	}
}

func (r *requester) wq(n uint64) *wqe { return &r.sq[n&uint64(len(r.sq)-1)] }

// NextWR returns the next free work request of the send ring, its SGE list empty, or nil when the ring is full.
func (q *QP) NextWR() *transport.SendWR {
	r := &q.req
	if r.tail-r.head == uint64(len(r.sq)) {
		return nil
	}
	w := r.wq(r.tail)
	sge, dest := w.SGE[:0], w.Dest
	*w = wqe{SendWR: transport.SendWR{SGE: sge, Dest: dest}}
	if dest != nil {
		*dest = transport.UDDest{}
	}
	return &w.SendWR
}

// Post commits the work request that NextWR returned.
func (q *QP) Post(now mono.Time) {
	q.e.tick(now)
	r := &q.req
	w := r.wq(r.tail)
	r.tail++
	if q.state != StateRTS && q.state != StateSQD {
		if q.state == StateErr {
			q.flushSends()
		}
		return
	}
	if q.typ == transport.UD {
		q.postUD(w)
		return
	}
	w.first, w.last = r.end, r.end
	if w.Op.IsLocal() {
		q.postLocal(w)
		return
	}
	if w.Length > 0 && !w.Op.IsAtomic() {
		w.last += (uint64(w.Length) - 1) / uint64(q.mtu)
	}
	r.end = w.last + 1
	switch {
	case !q.offers(w.Op): // it could never go
		q.refuse(w, transport.LocQPOpErr)
	case w.Length > 1<<31:
		q.refuse(w, transport.LocLenErr)
	case q.plane < 0:
		q.refuse(w, transport.RetryExcErr)
	}
	if w.Fail != transport.OK && r.stop > w.first {
		r.stop, w.failed = w.first, w.Fail
		q.complete()
		return
	}
	q.wake()
}

func (q *QP) refuse(w *wqe, s transport.Status) {
	if w.Fail == transport.OK {
		w.Fail = s
	}
}

// mayNext says whether the packet at next may go now, but for pacing.
func (q *QP) mayNext() bool {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD || !q.runLocals() {
		return false
	}
	if r.next >= r.end || r.next >= r.stop || r.next-r.una >= q.window || q.e.now < r.rnrUntil {
		return false
	}
	w := r.wq(r.cur)
	if r.next == w.first {
		if q.state == StateSQD && r.next == r.max {
			return false
		}
		if w.Flags&transport.FlagFence != 0 && r.rdHead < r.rdTail {
			return false
		}
	}
	return !w.Op.HasResponse() || r.rdTail-r.rdHead < r.maxRd
}

// fillRequest makes the packet at next and moves next past it.
func (q *QP) fillRequest(j *txJob, op *transport.MemOp) {
	r := &q.req
	now := q.e.now
	w := r.wq(r.cur)
	psn, h := r.next, &j.hdr
	j.psn, h.PSN, h.SRQN = psn, serial.Trunc(psn), w.SRQN
	i := psn - w.first
	off := uint32(i) * uint32(q.mtu)
	idle := r.una == r.max
	fresh := psn >= r.max
	last := psn
	switch {
	case w.Op == transport.OpRead:
		// Always up to the same places, so that a request made again stays within one that the responder remembers.
		c := q.readChunk
		last = min(w.last, w.first+(i/c+1)*c-1)
		h.Op, h.VA, h.RKey = ib.ReadRequest, w.RemoteAddr+uint64(off), w.RKey
		h.Len = min(w.Length-off, uint32(last-psn+1)*uint32(q.mtu))
	case w.Op.IsAtomic():
		h.Op, h.VA, h.RKey, h.Swap, h.Compare = ib.CmpSwap, w.RemoteAddr, w.RKey, w.Swap, w.Compare
		if w.Op == transport.OpFetchAdd {
			h.Op, h.Swap, h.Compare = ib.FetchAdd, w.Compare, 0
		}
	default:
		h.Op = dataOpcode(w.Op, psn == w.first, psn == w.last)
		h.VA, h.RKey, h.Len, h.Imm, h.Inv = w.RemoteAddr, w.RKey, w.Length, w.Imm, w.Imm
		h.SE = psn == w.last && w.Flags&transport.FlagSolicited != 0 && w.Op.TakesRecv()
		if j.n = int(min(w.Length-off, uint32(q.mtu))); j.n > 0 {
			j.op = opWanted
			op.Kind, op.WR, op.Off = transport.MemGather, &w.SendWR, off
		}
	}
	if w.Op.HasResponse() {
		r.rdEnd[r.rdTail%rdMax] = last
		r.rdTail++
	}
	if r.next = last + 1; r.next > w.last {
		r.cur++
	}
	if q.typ == transport.UC { // nothing will come back
		r.max = r.next
		return
	}
	if fresh {
		r.max = max(r.max, r.next)
	} else {
		q.e.C.Retransmits++
	}
	r.unasked++
	if r.ask || r.next > w.last || r.unasked >= q.e.cfg.AckEvery || !q.mayNext() {
		h.AckReq, r.ask, r.unasked = true, false, 0
		if fresh && !r.sampling {
			r.sampling, r.sample, r.sampleAt = true, psn, now
		}
	}
	if idle {
		r.since, r.triedAt = now, now
	}
	if q.due.Due() == never {
		q.retime()
	}
}

func dataOpcode(o transport.Op, first, last bool) ib.Opcode {
	write := o.IsWrite()
	switch {
	case first && !last && write:
		return ib.WriteFirst
	case first && !last:
		return ib.SendFirst
	case !last && write:
		return ib.WriteMiddle
	case !last:
		return ib.SendMiddle
	}
	// The last packet, alone or not.
	code := ib.SendLast
	switch o {
	case transport.OpWrite, transport.OpAtomicWrite:
		code = ib.WriteLast
	case transport.OpWriteImm:
		code = ib.WriteLastImm
	case transport.OpSendImm:
		code = ib.SendLastImm
	case transport.OpSendInv:
		code = ib.SendLastInv
	default: // a SEND
	}
	if !first {
		return code
	}
	if code == ib.SendLastInv {
		return ib.SendOnlyInv
	}
	return code + 2
}

// goBack sends again from the oldest packet that is not acknowledged.
func (q *QP) goBack() {
	r := &q.req
	if r.next == r.una && r.max == r.una {
		return
	}
	q.e.C.GoBacks++
	r.next = r.una
	for r.cur > r.head && (r.cur == r.tail || r.wq(r.cur).first > r.next) {
		r.cur--
	}
	for r.rdTail > r.rdHead && r.rdEnd[(r.rdTail-1)%rdMax] >= r.next {
		r.rdTail--
	}
	r.backAt, r.ask, r.sampling = q.e.now, true, false
	r.since = max(q.e.now, r.rnrUntil)
	q.wake()
	q.retime()
}

// again reports whether word of a gap at una is news: what was sent before going back is answered for a round trip.
func (q *QP) again() bool {
	r := &q.req
	rtt := r.rttMin
	if rtt == 0 {
		rtt = rttGuess
	}
	return q.e.now.Sub(r.backAt) >= rtt-rtt/8
}

// acked takes in that all PSNs below upto were received. READs and atomics end with their own response only: it
// reports false when an earlier response is missing that must have been sent before.
func (q *QP) acked(upto uint64) bool {
	r := &q.req
	whole := true
	for n := r.head; n < r.tail; n++ {
		w := r.wq(n)
		if w.first >= upto {
			break
		}
		if w.Op.HasResponse() && w.last >= r.una {
			whole = upto <= w.last
			upto = min(upto, w.first)
			break
		}
	}
	if upto > r.una {
		q.moveUna(upto)
	}
	return whole
}

// moveUna is progress.
func (q *QP) moveUna(to uint64) {
	r := &q.req
	r.una = to
	if r.next < to { // word of what was sent before going back
		r.next = to
		for r.cur < r.tail && r.wq(r.cur).last < to && r.wq(r.cur).passed() {
			r.cur++
		}
	}
	for r.rdHead < r.rdTail && r.rdEnd[r.rdHead%rdMax] < to {
		r.rdHead++
	}
	r.since, r.triedAt = q.e.now, q.e.now
	r.rnrUntil, r.rnrCnt, r.retries = 0, 0, 0
	q.timeouts = 0
	q.complete()
	q.wake()
	if q.state == StateErr {
		return
	}
	if r.una == r.max || q.due.Due() > r.since.Add(q.rto()) { // nothing to wait for, or the timer has become shorter
		q.retime()
	}
}

// complete reports what is done, in post order.
func (q *QP) complete() {
	r := &q.req
	for r.head < r.tail && q.state != StateErr {
		w := r.wq(r.head)
		if w.failed != transport.OK && r.una >= w.first {
			q.failRequester(w.failed)
			return
		}
		if r.una <= w.last || !w.passed() {
			return
		}
		r.head++
		r.rdCur = max(r.rdCur, r.head)
		q.e.host.SendDone(q.owner, &w.SendWR, transport.OK)
	}
}

// kill makes the request of a PSN fail once everything before it is done.
func (q *QP) kill(psn uint64, s transport.Status) {
	r := &q.req
	for n := r.head; n < r.tail; n++ {
		if w := r.wq(n); psn <= w.last {
			if r.stop > psn {
				r.stop, w.failed = psn, s
				q.complete()
			}
			return
		}
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
		q.e.host.SendDone(q.owner, &w.SendWR, transport.WRFlushErr)
	}
	r.cur = r.tail
	r.una, r.next, r.max = r.end, r.end, r.end
}

// rto is how long to wait for progress: the QP's own timeout, or an adaptive one while that is shorter.
func (q *QP) rto() mono.Duration {
	r := &q.req
	if q.e.cfg.FixedRTO || q.typ == transport.UC {
		return r.timeout
	}
	d := max(q.rtoMin(), r.srtt+4*r.rttvar)
	if r.srtt == 0 {
		d = max(d, rtoStart)
	}
	d <<= min(r.backoff, 20)
	if r.timeout > 0 {
		return min(d, r.timeout)
	}
	return min(d, rtoMax)
}

func (q *QP) rtoMin() mono.Duration {
	d := q.e.cfg.RTOMin
	if q.plane >= 0 {
		d = max(d, 4*q.e.cfg.Planes[q.plane].TimerNoise)
	}
	return d
}

// retime sets when the QP wants to be called.
func (q *QP) retime() {
	at := never
	r := &q.req
	if q.state == StateRTS || q.state == StateSQD {
		now := q.e.now
		if r.rnrUntil > now {
			at = r.rnrUntil
		} else if d := q.rto(); r.una < r.max && d > 0 {
			at = max(r.since.Add(d), now+1)
		}
	}
	if q.paceAt > q.e.now && q.state >= StateRTR {
		at = mono.Min(at, q.paceAt)
	}
	q.e.timers.Set(&q.due, at)
}

// onTimer serves whatever the QP waited for.
func (q *QP) onTimer() {
	r := &q.req
	now := q.e.now
	if d := q.rto(); (q.state == StateRTS || q.state == StateSQD) && r.una < r.max && d > 0 && now >= r.rnrUntil && now >= r.since.Add(d) {
		q.timedOut(d)
	}
	q.wake()
	q.retime()
}

// timedOut goes back. Only waits as long as the QP's own timeout count as tries: earlier ones are a gift.
func (q *QP) timedOut(d mono.Duration) {
	r := &q.req
	q.e.C.Timeouts++
	if r.timeout > 0 && d >= r.timeout {
		if !q.tried() {
			return
		}
	}
	r.backoff = min(r.backoff+1, 30)
	if q.timeouts++; q.timeouts >= timeoutsToMove && len(q.e.planes) > 1 {
		q.shift++
		q.settlePlane()
	}
	q.goBack()
}

// tried counts a try without progress. It reports false when it was the last one.
func (q *QP) tried() bool {
	r := &q.req
	if r.retries >= r.retryCnt {
		q.failRequester(transport.RetryExcErr)
		return false
	}
	r.retries++
	r.triedAt = q.e.now
	return true
}

// measure takes in a round trip.
func (q *QP) measure(psn uint64) {
	r := &q.req
	if !r.sampling || psn < r.sample {
		return
	}
	r.sampling, r.backoff = false, 0 // Karn's rule: what was sent again says nothing of the round trip, and keeps the back-off
	d := q.e.now.Sub(r.sampleAt)
	if r.srtt == 0 {
		r.srtt, r.rttvar, r.rttMin = d, d/2, d
		return
	}
	r.rttMin = min(r.rttMin, d)
	r.rttvar += (max(d-r.srtt, r.srtt-d) - r.rttvar) / 4
	r.srtt += (d - r.srtt) / 8
}
