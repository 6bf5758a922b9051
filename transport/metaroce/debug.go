package metaroce

import "fmt"

// Dump describes the QP's counters in one line, for a failing test's message.
func (q *QP) Dump() string {
	r, s := &q.req, &q.rsp
	first := pst{}
	if r.una < r.next {
		first = *r.ps.at(r.una)
	}
	return fmt.Sprintf("qp %#x %v wqe %d..%d (cur %d) psn %d/%d/%d first %+v rtx %d parked %d rd %d..%d atomics %d limit %v %d sent %d blocked %d | exp %d arr %d top %d bound %d..%d posted %d reads %d resps %d/%d/%d waiting %d in ring %v due %v",
		q.qpn, q.state, r.head, r.tail, r.cur, r.una-firstSSN, r.next-firstSSN, r.end-firstSSN, first, r.rtx.len(), r.parked.len(),
		r.rdLow-firstSSN, r.nrd-firstSSN, r.atomics, r.haveLimit, r.limit-firstSSN, r.sentSSN-firstSSN, r.blockedAt,
		s.exp-firstSSN, s.arr-firstSSN, s.top-firstSSN, s.bound.lo-firstSSN, s.nbind-firstSSN, s.posted, s.nreads,
		s.resps.lo-firstResp, s.respNext-firstResp, s.resps.hi-firstResp, s.waiting, q.inRing, q.due.Due())
}
