package rocev2

import (
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// onAck queues an acknowledgement: it counts after the responses that came before it in the burst.
func (e *Engine) onAck(q *QP, h *ib.Header) {
	if q.state != StateRTS && q.state != StateSQD {
		e.C.DropState++
		return
	}
	j := e.in.job(jobAck, q)
	j.psn, j.syndrome = h.PSN.Expand(q.req.una), h.Syndrome
}

// settleAck does what an acknowledgement says.
func (q *QP) settleAck(j *job) {
	e, r := q.e, &q.req
	if j.psn >= r.max || j.psn+1 < r.una || j.psn < r.una && !j.syndrome.IsAck() {
		e.C.DropResponse++
		return
	}
	q.measure(j.psn)
	switch {
	case j.syndrome.IsAck():
		e.C.RxAcks++
		if !q.acked(j.psn+1) && q.again() {
			e.C.ResponseGaps++
			q.goBack()
		}
	case j.syndrome.IsRNR():
		e.C.RxRNR++
		q.onRNR(j)
	case j.syndrome == ib.NakSequence:
		e.C.RxNaks++
		e.C.RxSequenceNaks++
		q.onSequenceNak(j.psn)
	default:
		e.C.RxNaks++
		q.onFatalNak(j)
	}
}

// onRNR waits as asked for and begins again at the refused packet.
func (q *QP) onRNR(j *job) {
	r := &q.req
	if !q.before(j.psn) {
		return
	}
	if q.e.now < r.rnrUntil { // one wait, however often it is said
		q.e.C.NaksIgnored++
		return
	}
	if r.rnrRetry < 7 && r.rnrCnt >= r.rnrRetry {
		q.kill(j.psn, transport.RnrRetryExcErr)
		return
	}
	r.rnrCnt = min(r.rnrCnt+1, 7)
	r.rnrUntil = q.e.now.Add(j.syndrome.Wait())
	q.goBack()
}

// before takes in that everything before a refused packet was received. It reports false when that ends or delays the
// matter: an earlier response is missing, or the QP failed.
func (q *QP) before(psn uint64) bool {
	if !q.acked(psn) || q.req.una < psn {
		if q.state != StateErr && q.again() {
			q.e.C.ResponseGaps++
			q.goBack()
		}
		return false
	}
	return q.state != StateErr
}

// onSequenceNak goes back, once a round trip. Without progress it is a try like a timeout, but counts no sooner than one:
// in congestion there may be many in a row.
func (q *QP) onSequenceNak(psn uint64) {
	r := &q.req
	was := r.una
	if !q.before(psn) {
		return
	}
	if r.una == was {
		if q.e.now < r.rnrUntil || !q.again() {
			q.e.C.NaksIgnored++
			return
		}
		if r.timeout > 0 && q.e.now.Sub(r.triedAt) >= r.timeout && !q.tried() {
			return
		}
	}
	q.goBack()
}

func (q *QP) onFatalNak(j *job) {
	if !q.before(j.psn) {
		return
	}
	s := transport.RemInvReqErr
	switch j.syndrome {
	case ib.NakAccess:
		s = transport.RemAccessErr
	case ib.NakOperation:
		s = transport.RemOpErr
	default:
	}
	q.kill(j.psn, s)
}

// nextResponse returns the READ or atomic whose response is awaited next, and that response's PSN.
func (r *requester) nextResponse() (*wqe, uint64) {
	for n := max(r.rdCur, r.head); n < r.tail; n++ {
		w := r.wq(n)
		if w.first >= r.max {
			break
		}
		if w.Op.HasResponse() && w.last >= r.rx {
			r.rdCur = n
			return w, max(r.rx, w.first)
		}
	}
	return nil, 0
}

// onResponse handles a response to a READ or atomic: in order, or not at all.
func (e *Engine) onResponse(q *QP, h *ib.Header, payload []byte) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		e.C.DropState++
		return
	}
	psn := h.PSN.Expand(r.una)
	w, want := r.nextResponse()
	if w == nil || psn < want || psn >= r.max {
		e.C.DropResponse++
		return
	}
	if psn > want {
		j := e.in.job(jobGap, q)
		j.psn = psn
		e.C.DropAhead++
		return
	}
	j := e.in.job(jobResponse, q)
	j.psn = psn
	off := uint32(psn-w.first) * uint32(q.mtu)
	switch {
	case h.Op == ib.AtomicAck && w.Op.IsAtomic():
		for i := range 8 {
			j.scratch[i] = byte(h.Result >> (8 * i)) // as the processor stores it
		}
		payload = j.scratch[:]
	case h.Op != ib.AtomicAck && w.Op == transport.OpRead && len(payload) == int(min(w.Length-off, uint32(q.mtu))):
	default:
		j.bad = true
	}
	r.rx = psn + 1
	if !j.bad && len(payload) > 0 {
		*e.in.op(j) = transport.MemOp{Kind: transport.MemLand, QP: q.owner, WR: &w.SendWR, Off: off, Buf: payload}
	}
}

// settleResponse: a response's bytes are in memory, or could not be written.
func (q *QP) settleResponse(j *job, err transport.MemErr) {
	r := &q.req
	q.measure(j.psn)
	q.acked(j.psn)
	if q.state == StateErr {
		return
	}
	switch {
	case j.bad:
		q.kill(j.psn, transport.BadRespErr)
	case err != transport.MemOK:
		q.kill(j.psn, transport.LocProtErr)
	default:
		r.aheadResp = 0
		q.moveUna(j.psn + 1)
	}
}

// settleGap: a response came beyond the one awaited. What was asked for before going back comes in rising order and for
// a round trip: when the numbers fall, or later, it is the second try that has a gap.
func (q *QP) settleGap(j *job) {
	r := &q.req
	slow := max(r.srtt+4*r.rttvar, rttGuess)
	if r.srtt == 0 {
		slow = rtoStart
	}
	news := r.aheadResp == 0 || j.psn <= r.aheadResp && q.again() || q.e.now.Sub(r.backAt) > slow
	r.aheadResp = j.psn
	if _, want := r.nextResponse(); news && j.psn > want {
		q.e.C.ResponseGaps++
		q.acked(want)
		if q.state != StateErr {
			q.goBack()
		}
	}
}
