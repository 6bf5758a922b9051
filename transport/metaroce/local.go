package metaroce

import (
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/transport"
)

// Local requests (binding a memory window, ending a key of one's own) take their place in the order of the QP and no
// number: they lie between the last PSN of the request before and the first of the one behind. They are carried out when
// all before them have begun, so that no later request tells the peer of a key that does not work yet.

// postLocal takes in a local request.
func (q *QP) postLocal(w *wqe, idle bool) {
	r := &q.req
	w.first, w.last, w.rdBefore = r.end, r.end-1, r.nrd
	if idle {
		r.since = q.e.now
	}
	if w.Fail != transport.OK && r.stop > w.first {
		r.stop, w.failed = w.first, w.Fail
		q.complete()
		return
	}
	if q.a.state == assocUp { // before that the QP may still turn to another engine, which would do it again
		q.runLocals()
	}
	q.wake()
	if q.due.Due() == never {
		q.retime()
	}
}

// fenced reports whether a local request waits for earlier READs and atomics.
func (w *wqe) fenced() bool {
	return w.Flags&transport.FlagFence != 0 && !planted.Is(planted.LocalsIgnoreFence)
}

// runLocals carries out the local requests whose turn it is, and reports whether none is left in front of the next packet.
func (q *QP) runLocals() bool {
	r := &q.req
	for r.cur < r.tail {
		w := r.wq(r.cur)
		if !w.Op.IsLocal() {
			return true
		}
		// What fails behind it may have stopped the QP at the very PSN that it stands before; what failed in front did below.
		//= MR-VRB-041 MR-MSG-017
		if q.state != StateRTS || w.failed != transport.OK || r.next > r.stop || w.fenced() && r.rdLow < w.rdBefore {
			if planted.Is(planted.LocalsWaitForNobody) && q.state == StateRTS && w.failed == transport.OK && r.next <= r.stop {
				r.cur++
				w.answered = true
				continue
			}
			return false
		}
		//= MR-VRB-040
		if s := q.e.host.RunLocal(q.owner, &w.SendWR); s != transport.OK {
			r.stop, w.failed = w.first, s
			q.complete()
			return false
		}
		r.cur++
		w.answered, q.served = true, true
		q.complete()
	}
	return true
}
