package device

import (
	"math/bits"

	"github.com/metaroce/metaroce/transport"
)

// queueRing is the round of queues that may have work: first in, first out, each at most once.
type queueRing struct {
	q       []*queue // a power of two
	head, n uint64   // head counts up: the number of the first in the round
}

func (r *queueRing) len() int { return int(r.n) }

func (r *queueRing) at(i uint64) **queue { return &r.q[i&uint64(len(r.q)-1)] }

func (r *queueRing) push(w *queue) {
	if r.n == uint64(len(r.q)) {
		old := *r
		r.q = make([]*queue, max(64, 2*len(r.q)))
		for i := r.head; i < r.head+r.n; i++ {
			*r.at(i) = *old.at(i)
		}
	}
	w.turn = r.head + r.n
	*r.at(w.turn) = w
	r.n++
}

// pop returns nil for a queue that was dropped meanwhile.
func (r *queueRing) pop() *queue {
	w := *r.at(r.head)
	*r.at(r.head) = nil
	r.head++
	r.n--
	return w
}

func (r *queueRing) drop(w *queue) {
	if w.rung {
		w.rung = false
		*r.at(w.turn) = nil
	}
}

// ring puts a queue into the round.
func (n *NIC) ring(w *queue) {
	if w.hasRng && !w.rung {
		w.rung = true
		n.run.push(w)
	}
}

// Bounds of one look at the doorbells of a context.
const bellWordsPerStep = 64

// doorbells takes rung bells of all contexts and serves the round, both bounded.
func (n *NIC) doorbells() bool {
	worked := false
	for _, c := range n.contexts {
		if !c.Dead && c.takeBells() {
			worked = true
		}
	}
	budget := wrPerStep
	for turns := n.run.len(); turns > 0 && budget > 0; turns-- {
		w := n.run.pop()
		if w == nil {
			continue
		}
		w.rung = false
		if w.qp.ctx.Dead {
			continue
		}
		worked = true
		done, more := w.serve(min(wrPerQueue, budget))
		budget -= done
		if more {
			n.ring(w)
		}
		n.settle()
	}
	return worked
}

// takeBells moves rung bells into the round. Bits that are over the bound stay in c.sum for the next step.
func (c *Context) takeBells() bool {
	any, words := false, 0
	for s := range c.bellWords {
		b, ok := c.mem.TakeSummary(s)
		if !ok {
			c.fault()
			return any
		}
		c.sum[s] |= b
		for c.sum[s] != 0 && words < bellWordsPerStep {
			i := bits.TrailingZeros64(c.sum[s])
			c.sum[s] &^= 1 << i
			words++
			any = true
			if !c.takeBellWord(s*64 + i) {
				return any
			}
		}
	}
	return any
}

func (c *Context) takeBellWord(word int) bool {
	b, ok := c.mem.TakeBell(word)
	if !ok {
		c.fault()
		return false
	}
	qs := c.bells[word]
	if qs == nil { // a bell that belongs to nothing
		c.nic.C.StrayBells++
		return true
	}
	for ; b != 0; b &= b - 1 {
		if w := qs[bits.TrailingZeros64(b)]; w != nil {
			c.nic.ring(w)
		} else {
			c.nic.C.StrayBells++
		}
	}
	return true
}

// serve takes up to budget descriptors and reports how many it took and whether there are more.
func (w *queue) serve(budget int) (done int, more bool) {
	prod, ok := w.ring.Prod()
	if !ok {
		w.qp.ctx.fault()
		return 0, false
	}
	if prod-w.idx > w.ring.Entries() { // the producer index is nonsense
		w.qp.nonsense()
		return 0, false
	}
	if w.recv {
		return w.qp.serveRecv(prod, budget)
	}
	return w.qp.serveSend(prod, budget)
}

// nonsense: the program wrote what no library writes. Its QP ends.
func (q *QP) nonsense() {
	q.ctx.nic.C.BadDescriptors++
	if q.state == Err || q.state == Reset { // nothing can be flushed: what is there is unknown
		q.sync()
		return
	}
	q.sync()
	q.failLater(evQPFatal)
}

// serveSend fetches send work requests.
func (q *QP) serveSend(prod uint32, budget int) (done int, more bool) {
	w := &q.sq
	for w.idx != prod && done < budget {
		switch q.state {
		case RTS:
			wr := q.eng.NextWR()
			if wr == nil {
				q.sqFull = true
				return done, false
			}
			if !q.fetchSend(w.idx, wr) {
				return done, false
			}
			w.idx++
			q.sqOut++
			q.eng.Post(q.ctx.nic.now)
		case Err:
			if !q.flushSend(w.idx) {
				return done, false
			}
			w.idx++
		case Reset, Init, RTR, SQD, SQE, numStates: // they wait
			return done, false
		}
		done++
	}
	q.ctx.nic.C.SendWRs += uint64(done)
	if !w.ring.SetCons(w.idx) {
		q.ctx.fault()
	}
	return done, w.idx != prod
}

// serveRecv tells the engine of new receives; in ERR it flushes them.
func (q *QP) serveRecv(prod uint32, budget int) (done int, more bool) {
	switch q.state {
	case Init, RTR, RTS, SQD, SQE:
		if k := prod - q.rq.seen; k != 0 {
			q.rq.seen = prod
			q.ctx.nic.C.RecvWRs += uint64(k)
			q.eng.RecvPosted(q.ctx.nic.now, k)
		}
	case Err:
		for done < budget {
			r := q.takeRecv()
			if r == nil {
				return done, false
			}
			q.ctx.nic.RecvDone(q, r, transport.RecvInfo{Status: transport.WRFlushErr})
			done++
		}
		return done, q.rq.idx != prod
	case Reset, numStates:
	}
	return 1, false
}
