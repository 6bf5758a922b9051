package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// rnrTimes are the waits behind the 5-bit RNR timer codes, in µs (IBTA table 45).
var rnrTimes = [32]mono.Duration{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560,
	3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}

func rnrTime(code uint8) mono.Duration { return rnrTimes[code&31] * mono.Microsecond }

// onRefused: a transmission arrived and was not accepted. It has left the window already; sent is when it left here.
func (q *QP) onRefused(psn uint64, f *wire.RefusalBlock, sent mono.Time) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD || psn >= r.next || psn < r.una {
		return
	}
	p := r.ps.at(psn)
	if p.out > 0 {
		p.out--
	}
	if p.acked {
		if w := r.wq(uint64(p.wqe)); f.Code == wire.RefuseNoQP && w.Op.HasResponse() && !w.answered {
			w.failed, r.stop = transport.RetryExcErr, min(r.stop, w.first) // accepted once, but it will never be executed
			q.complete()
		}
		return
	}
	now := q.e.now
	switch f.Code {
	case wire.RefuseRNR:
		wait := rnrTime(f.Timer)
		//= MR-MSG-063
		q.park(psn, p, now.Add(wait))
		// A try counts when it was this PSN's turn and it was sent after the last counted wait was over.
		//= MR-MSG-065
		if f.InOrder && psn != r.rnrHead {
			r.rnrCnt = 0
		}
		//= MR-MSG-065
		if (f.InOrder || planted.Is(planted.RNREarlyCounted)) && (sent >= r.rnrUntil || r.rnrCnt == 0) {
			r.rnrCnt++
			r.rnrHead = psn
		}
		if r.rnrUntil <= now || psn < r.rnrPSN {
			r.rnrPSN = psn
		}
		r.rnrUntil = max(r.rnrUntil, p.until)
		//= MR-MSG-065 MR-MSG-066
		if r.rnrRetry < 7 && r.rnrCnt > r.rnrRetry && psn == r.rnrHead && p.out == 0 {
			q.kill(psn, transport.RnrRetryExcErr)
		}
	case wire.RefuseNoQP:
		wait := r.timeout
		if wait == 0 {
			wait = 100 * mono.Millisecond
		}
		q.park(psn, p, now.Add(wait))
		//= MR-MSG-088
		if psn == r.una && sent >= r.triedAt || planted.Is(planted.NoQPCopiesCounted) { // copies of one try count once
			r.triedAt = now
			if r.retries++; r.timeout > 0 && r.retries > r.retryCnt {
				q.kill(psn, transport.RetryExcErr)
			}
		}
	default:
		q.park(psn, p, now.Add(max(q.a.srtt, 100*mono.Microsecond)))
	}
	q.retime()
}

// park takes a refused PSN out of the game until a time.
func (q *QP) park(psn uint64, p *pst, until mono.Time) {
	if !p.parked {
		q.req.parked.push(psn)
	}
	p.parked, p.until = true, until
	if r := &q.req; r.parkDue == 0 || until < r.parkDue {
		r.parkDue = until
	}
}

// unpark brings back what has waited long enough.
func (q *QP) unpark() {
	r := &q.req
	if r.parkDue == 0 || q.e.now < r.parkDue {
		return
	}
	r.parkDue = 0
	for n := r.parked.len(); n > 0; n-- {
		psn := r.parked.peek()
		r.parked.pop()
		if psn < r.una || psn >= r.next {
			continue
		}
		p := r.ps.at(psn)
		switch {
		case !p.parked:
		case p.until <= q.e.now:
			p.parked = false
			q.requeue(psn, p)
		default:
			r.parked.push(psn)
			if r.parkDue == 0 || p.until < r.parkDue {
				r.parkDue = p.until
			}
		}
	}
}

// onFailed: the responder says that a PSN failed. Cumulative: everything before it was executed.
func (q *QP) onFailed(f *wire.RefusalBlock) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		return
	}
	psn := f.PSN.Expand(r.una)
	if psn >= r.next {
		return
	}
	//= MR-MSG-086
	st := transport.RemOpErr
	switch f.Code {
	case wire.RefuseAccess:
		st = transport.RemAccessErr
	case wire.RefuseInvalid:
		st = transport.RemInvReqErr
	default: // RemOpErr
	}
	if psn < r.una && psn >= r.stop {
		return
	}
	//= MR-MSG-085
	if psn < r.una { // a READ or atomic that was accepted and could not be executed
		for n := r.head; n < r.tail && r.wq(n).first <= psn; n++ {
			if w := r.wq(n); w.last >= psn && w.Op.HasResponse() && !w.answered {
				w.failed, r.stop = st, psn
				q.complete()
				return
			}
		}
		return
	}
	//= MR-MSG-082
	if psn < r.stop { // the lowest failure counts
		r.stop = psn
		r.wq(uint64(r.ps.at(psn).wqe)).failed = st
	}
	//= MR-MSG-081
	for n := r.una; n < min(psn, r.stop) && !planted.Is(planted.FatalNotCumulative); n++ {
		r.ps.at(n).acked = true
		r.una, r.ps.lo = n+1, n+1
	}
	q.complete()
}

// onLimit takes in a receive limit; only the largest counts.
func (q *QP) onLimit(l uint32) {
	r := &q.req
	v := serial.Expand32(l, r.sentSSN)
	//= MR-REL-034
	if !r.haveLimit || v > r.limit {
		r.limit, r.haveLimit, r.blockedAt, r.limitWait = v, true, 0, 0
		q.wake()
	}
}

// retime computes when the QP's timer is due.
func (q *QP) retime() {
	r := &q.req
	t := never
	if q.state == StateRTS || q.state == StateSQD {
		if r.parkDue != 0 {
			t = max(r.parkDue, q.e.now)
		}
		if r.rnrUntil > q.e.now {
			t = mono.Min(t, r.rnrUntil)
		}
		if d := r.blockedAt.Add(r.limitWait); r.blockedAt != 0 && d > q.e.now { // later it is among those that want to send
			t = mono.Min(t, d)
		}
		//= MR-PATH-041
		if q.unfinished() && r.timeout > 0 {
			t = mono.Min(t, q.giveUpAt())
			if d := r.probedAt.Add(r.timeout); q.waitsForResponse() {
				t = mono.Min(t, max(d, r.since.Add(r.timeout)))
			}
		}
	}
	q.e.timers.Set(&q.due, t)
}

// giveUpAt is when a QP whose peer shows no sign of life ends.
func (q *QP) giveUpAt() mono.Time {
	r := &q.req
	//= MR-PATH-040
	t := max(q.a.lastHeard, r.since, r.rnrUntil) // while it waits by itself, nobody owes it an answer
	if r.blockedAt != 0 {
		t = max(t, r.blockedAt.Add(r.limitWait))
	}
	for i := range q.a.planes { // what a small window holds back is no silence of the peer
		if pl := &q.a.planes[i]; pl.state == planeActive && pl.inflight == 0 {
			t = max(t, mono.Min(pl.nextSend, q.e.now))
		}
	}
	return t.Add(r.timeout * mono.Duration(int(r.retryCnt)+1))
}

// watch sees to it that a QP whose oldest request waits for nothing but its response asks for it in time.
func (q *QP) watch() {
	r := &q.req
	if r.timeout == 0 || !q.waitsForResponse() {
		return
	}
	if at := max(r.probedAt, r.since).Add(r.timeout); at < q.due.Due() {
		q.e.timers.Set(&q.due, at)
	}
}

// unfinished reports whether a request waits for the peer. In SQD those that were not begun do not.
func (q *QP) unfinished() bool {
	r := &q.req
	return r.head < r.tail && (q.state != StateSQD || r.wq(r.head).first < r.next)
}

func (q *QP) waitsForResponse() bool {
	r := &q.req
	if r.head == r.tail {
		return false
	}
	w := r.wq(r.head)
	return w.Op.HasResponse() && !w.answered && r.una > w.last
}

func (q *QP) onTimer() {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		return
	}
	q.unpark()
	if q.unfinished() && r.timeout > 0 && q.giveUpAt() <= q.e.now {
		q.failRequester(transport.RetryExcErr)
		return
	}
	//= MR-MSG-076
	if r.timeout > 0 && q.waitsForResponse() && max(r.probedAt, r.since).Add(r.timeout) <= q.e.now {
		q.askForResponse()
	}
	q.wake()
}

// askForResponse asks what became of the oldest READ or atomic that makes no progress.
func (q *QP) askForResponse() {
	r := &q.req
	r.probedAt = q.e.now
	w := r.wq(r.head)
	if planted.Is(planted.NoReadProbe) {
		return
	}
	c := q.e.ctl.next()
	if c == nil || q.a.state != assocUp {
		return
	}
	pr := wire.Probe{Kind: wire.ProbeQP, QPN: q.remoteQPN, PeerQPN: q.qpn, ReadNo: uint32(w.rdno), PSN: uint32(serial.Trunc(w.first))}
	c.fill(q.a, q.a.rx.ackPlane(int(q.e.C.ProbesSent)), wire.OpProbe, wire.PutProbe(c.buf[:], &pr, wire.ProbeLen))
	q.e.C.ProbesSent++
}

// onProbeAnswer takes in what the peer says of a READ or atomic.
func (q *QP) onProbeAnswer(p *wire.Probe) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		return
	}
	switch p.Answer {
	case wire.AnswerFailed:
		f := wire.RefusalBlock{PSN: serial.PSN(p.PSN & serial.PSNMask), Code: p.Code}
		q.onFailed(&f)
	//= MR-MSG-077
	case wire.AnswerUnknown:
		n := serial.Expand32(p.ReadNo, r.rdLow)
		if n < r.rdLow || n >= r.rdLow+rdMax {
			return
		}
		w := r.wq(*r.rd(n))
		if w.rdno == n && w.Op.HasResponse() && !w.answered && r.una > w.last {
			w.failed, r.stop = transport.RetryExcErr, min(r.stop, w.first)
			q.complete()
		}
	default: // alive: the response is on its way, or will be
	}
}
