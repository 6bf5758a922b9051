package metaroce

import "fmt"

// Audit checks the sums and bounds of the engine's state, which hold whenever no call is under way. It returns what is
// wrong, or "". For tests: it looks at everything.
func (e *Engine) Audit() string {
	if s := e.auditRecords(); s != "" {
		return s
	}
	held, resp := 0, 0
	for _, q := range e.qps {
		if s := q.audit(); s != "" {
			return fmt.Sprintf("QP %#x: %s", q.qpn, s)
		}
		s := &q.rsp
		for n := s.slots.lo; n < s.slots.hi; n++ {
			if s.slots.at(n).buf != 0 {
				held++
			}
		}
		resp += s.bufs
	}
	switch {
	case held != e.held.used():
		return fmt.Sprintf("%d held buffers, %d of them in use", e.held.used(), held)
	case resp != e.resp.used():
		return fmt.Sprintf("%d response buffers, %d of them in use", e.resp.used(), resp)
	}
	return ""
}

// auditRecords: each record is free, in flight on one plane, or lost; windows are the sums of what is in flight.
func (e *Engine) auditRecords() string {
	free, lost, out := 0, 0, 0
	for i := e.recFree; i != 0 && free <= len(e.recs); i = e.recs[i].next {
		free++
	}
	for i := e.lostHead; i != 0 && lost <= len(e.recs); i = e.recs[i].next {
		lost++
	}
	for _, a := range e.assocs {
		for k := range a.planes {
			pl := &a.planes[k]
			sum, n := 0, 0
			for i := pl.head; i != 0 && n <= len(e.recs); i = e.recs[i].next {
				r := &e.recs[i]
				if r.state != recOut || r.path.pl != pl {
					return fmt.Sprintf("plane %d of %s: record %d is not in flight there", k, a.name, i)
				}
				sum += int(r.size)
				n++
			}
			if sum != pl.inflight {
				return fmt.Sprintf("plane %d of %s: %d bytes in flight, the window counts %d", k, a.name, sum, pl.inflight)
			}
			out += n
			for _, p := range pl.paths {
				if p != nil && (p.outstanding() < 0 || p.outstanding() > pathRing) {
					return fmt.Sprintf("path %#x of %s: %d numbers outstanding", p.id, a.name, p.outstanding())
				}
			}
		}
		if len(a.rx.refusals) > maxRefusals {
			return fmt.Sprintf("%d refusals wait", len(a.rx.refusals))
		}
	}
	if free+lost+out != len(e.recs)-1 {
		return fmt.Sprintf("%d records: %d free, %d lost, %d in flight", len(e.recs)-1, free, lost, out)
	}
	return ""
}

// audit checks one QP: windows are windows, and a packet knows how many copies of it are in flight.
func (q *QP) audit() string {
	r, s, w := &q.req, &q.rsp, uint64(q.e.cfg.PSNWindow)
	switch {
	case r.next-r.una > w:
		return fmt.Sprintf("%d PSNs outstanding", r.next-r.una)
	case s.slots.hi-s.slots.lo > w:
		return fmt.Sprintf("%d PSNs ahead", s.slots.hi-s.slots.lo)
	case s.resps.hi-s.resps.lo > w:
		return fmt.Sprintf("%d responses kept", s.resps.hi-s.resps.lo)
	case s.bound.hi-s.bound.lo > w:
		return fmt.Sprintf("%d receives bound", s.bound.hi-s.bound.lo)
	case s.nreads > rdMax:
		return fmt.Sprintf("%d READs accepted", s.nreads)
	case q.a == nil:
		return ""
	}
	out := map[uint64]int{}
	for k := range q.a.planes {
		for i := q.a.planes[k].head; i != 0; i = q.e.recs[i].next {
			if x := &q.e.recs[i]; x.q == q && x.inc == q.inc && x.kind == txRequest {
				out[x.psn]++
			}
		}
	}
	for n := r.una; n < r.next; n++ {
		if p := r.ps.at(n); int(p.out) != out[n] && q.state != StateErr {
			return fmt.Sprintf("PSN %d counts %d copies in flight, there are %d", n-firstSSN, p.out, out[n])
		}
	}
	return ""
}
