package rocev2

import "github.com/metaroce/metaroce/transport"

// Local requests (binding a memory window, ending a key of one's own) take their place in the order of the QP and no
// PSN. They are carried out when all before them have been sent, once, however often the QP goes back.

// passed reports whether a request holds up nobody for a reason of its own NIC.
func (w *wqe) passed() bool { return !w.Op.IsLocal() || w.ran }

// postLocal takes in a local request.
func (q *QP) postLocal(w *wqe) {
	r := &q.req
	w.last = w.first - 1
	if w.Fail != transport.OK && r.stop > w.first {
		r.stop, w.failed = w.first, w.Fail
		q.complete()
		return
	}
	q.runLocals()
}

// Begun reports whether something was carried out that must not be again, completed or not.
func (q *QP) Begun() bool { return q.req.ranLocal }

// runLocals carries out the local requests whose turn it is, and reports whether none is left in front of the next packet.
func (q *QP) runLocals() bool {
	r := &q.req
	for r.cur < r.tail {
		w := r.wq(r.cur)
		if !w.Op.IsLocal() {
			return true
		}
		if !w.ran {
			// What fails behind it may have stopped the QP at the very PSN that it stands before; what failed in front did below.
			if q.state != StateRTS || w.failed != transport.OK || r.next != w.first || r.next > r.stop || w.Flags&transport.FlagFence != 0 && r.rdHead < r.rdTail {
				return false
			}
			if s := q.e.host.RunLocal(q.owner, &w.SendWR); s != transport.OK {
				r.stop, w.failed = w.first, s
				q.complete()
				return false
			}
			w.ran, r.ranLocal = true, true
		}
		r.cur++
		q.complete()
	}
	return true
}
