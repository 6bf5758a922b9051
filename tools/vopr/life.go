package vopr

import (
	"github.com/metaroce/metaroce/internal/mono"
)

// newConn makes a connection between two nodes and brings it up.
func (w *World) newConn(a, b *node) *conn {
	c := &conn{id: len(w.conns)}
	for i, n := range [2]*node{a, b} {
		c.slot[i] = w.newSlot(n, w.plan.has(SRQ) && (n.i+c.id)%2 == 0)
	}
	w.conns = append(w.conns, c)
	c.connect()
	return c
}

func (w *World) newSlot(n *node, shared bool) *slot {
	w.nextQPN += uint32(1 + w.rnd.IntN(3))
	s := &slot{n: n, num: w.nextQPN, srq: shared}
	s.create()
	return s
}

func (s *slot) create() {
	depth := s.n.w.plan.Depth
	s.qp = s.n.eng.NewQP(s.num, QPConfig{Owner: s, SQ: depth, SGEs: 4, SRQ: s.srq})
	s.qp.ToInit()
	s.there = true
}

// connect begins a new life of the connection.
func (c *conn) connect() {
	w := c.slot[0].n.w
	for _, s := range c.slot {
		ready := s.n.stuck
		if s.n.started != 0 { // machines take longer to start than packets to arrive
			ready = max(ready, s.n.started.Add(w.lifetime()))
		}
		if ready > w.now {
			c.at = ready
			w.after(ready.Sub(w.now), c.connect)
			return
		}
	}
	c.life++
	c.at = 0
	for i := range c.end {
		s := c.slot[i]
		if !s.there { // its machine was started again meanwhile
			s.create()
		}
		e := &end{c: c, s: s, n: s.n, num: s.num}
		e.psn = w.rnd.Uint32() & 0xFFFFFF
		if w.plan.has(Wrap) {
			e.psn = 0xFFFFFF - uint32(w.rnd.IntN(40))
		}
		if w.plan.has(Reuse) { // many programs begin with the same number each time
			e.psn = uint32(1000 * i)
		}
		if s.srq {
			if s.n.srq == nil {
				s.n.srq = &srq{n: s.n, pool: w.plan.SRQPool}
			}
			e.srq = s.n.srq
		}
		c.end[i], s.end = e, e
	}
	a, b := c.end[0], c.end[1]
	a.peer, b.peer = b, a
	a.out = w.newFlow(a, b)
	b.out = w.newFlow(b, a)
	a.in, b.in = b.out, a.out
	w.tr("connection %d, life %d: n%d QP %#x psn %#x and n%d QP %#x psn %#x, flows %d and %d", c.id, c.life, a.n.i, a.num, a.psn,
		b.n.i, b.num, b.psn, a.out.id, b.out.id)
	first, second := a, b
	if w.rnd.IntN(2) == 0 {
		first, second = b, a
	}
	if !w.plan.has(Late) {
		a.postRecv(8)
		b.postRecv(8)
	}
	first.join()
	if w.plan.has(Skew) && w.rnd.IntN(2) == 0 {
		d := mono.Duration(w.rnd.IntN(1000)) * mono.Microsecond
		if w.rnd.IntN(3) > 0 {
			d /= 50
		}
		w.after(d, second.join)
		return
	}
	second.join()
}

// join takes an end to RTS.
func (e *end) join() {
	if e.over || e.up || e.errored {
		return
	}
	if e.n.stuck > e.n.w.now {
		e.n.w.after(e.n.stuck.Sub(e.n.w.now), e.join)
		return
	}
	p := &e.n.w.plan
	e.up = e.s.qp.Connect(e.n.clock(), Connection{Local: e.n.addr, Remote: e.peer.n.addr, RemoteQPN: e.peer.num, SQPSN: e.psn, RQPSN: e.peer.psn,
		MTU: p.MTU, Rd: p.Rd, MinRNR: p.MinRNR, Timeout: p.Timeout, Retry: p.Retry, RNR: p.RNR})
	if !e.up {
		fail("P13", "no room for another peer")
	}
	e.n.dirty = true
}

func (w *World) newFlow(req, rsp *end) *flow {
	f := &flow{w: w, id: len(w.flows), req: req, rsp: rsp, fell: never, poison: never, mustFail: never}
	if w.now < max(req.n.darkTill, rsp.n.darkTill) {
		f.excuse = "a blackout"
	}
	w.flows = append(w.flows, f)
	w.newZone(f, zoneMain, w.plan.Zone)
	w.newZone(f, zoneRelaxed, w.plan.Zone/2+16)
	w.newZone(f, zoneMortal, w.plan.Zone/2+16)
	if w.plan.has(Shared) && rsp.n.shared == nil {
		w.nextKey++
		rsp.n.shared = &sharedCells{reg: rsp.n.alloc(16), rkey: w.nextKey}
	}
	if c := rsp.n.shared; c != nil {
		rsp.n.keys[c.rkey] = &key{reg: c.reg, write: true, read: true, atomic: true}
	}
	return f
}

// end ends a life: what is under way means nothing any more, and nothing of it may show.
func (e *end) finish(why string) {
	if e.over {
		return
	}
	e.over = true
	e.in.excuse = why
	e.rq = nil
	for _, z := range e.in.zones {
		z.shut = true
	}
	for _, x := range e.out.ops[e.out.done:] { // nobody will ever know what became of them
		if x.shared {
			e.peer.n.shared.maybe[x.cell]++
		}
	}
	if !e.errored {
		return
	}
	if f := e.out; f.done < len(f.ops) {
		fail("P16", "%v was not flushed", f.ops[f.done])
	}
	for _, r := range e.recvs {
		if !r.done {
			fail("P16", "receive %d of flow %d was not flushed", r.wr.ID, e.in.id)
		}
	}
}

// reset takes a QP back to RESET, or destroys it and makes another one.
func (e *end) reset() {
	w := e.n.w
	if e.over {
		return
	}
	if w.rnd.IntN(2) == 0 {
		w.tr("n%d  reset QP %#x, flow %d", e.n.i, e.s.num, e.out.id)
		e.s.qp.Reset(e.n.clock())
		e.finish("the peer's QP was reset")
		e.s.qp.ToInit()
	} else {
		e.destroy()
		if w.rnd.IntN(2) == 0 && !w.plan.has(Reuse) {
			w.nextQPN += uint32(1 + w.rnd.IntN(3))
			e.s.num = w.nextQPN
		}
		e.s.create()
	}
	e.n.dirty = true
}

func (e *end) destroy() {
	if !e.s.there || e.s.end != e {
		return
	}
	e.n.w.tr("n%d  destroy QP %#x, flow %d", e.n.i, e.s.num, e.out.id)
	e.s.there = false
	e.s.qp.Destroy(e.n.clock())
	e.finish("the peer's QP was destroyed")
	e.n.dirty = true
}

// toError is the program's wish.
func (e *end) toError() {
	if e.over || e.errored || !e.up {
		return
	}
	e.n.w.tr("n%d  QP %#x to error, flow %d", e.n.i, e.s.num, e.out.id)
	e.errored = true
	e.in.excuse = "the peer's program put its QP into error"
	e.s.qp.ToError(e.n.clock())
	e.n.dirty = true
}

// broken reports whether a connection has to be made anew.
func (c *conn) broken() bool {
	return !c.end[0].alive() || !c.end[1].alive()
}

// again ends both ends and connects them again, some when nothing of them can be in the network any more.
func (c *conn) again() {
	w := c.slot[0].n.w
	if c.at != 0 || c.slot[0].n.stuck > w.now || c.slot[1].n.stuck > w.now {
		return
	}
	for _, e := range c.end {
		if e.s.there {
			e.reset()
		}
	}
	wait := w.lifetime()
	if w.plan.has(Reuse) { // what they sent is still on its way
		wait = mono.Duration(w.rnd.IntN(1 + w.rnd.IntN(int(2*w.plan.Link.Delay))))
	}
	c.at = w.now.Add(wait)
	w.after(wait, c.connect)
}

// lifetime is how long a packet may be on its way: the TIME-WAIT of a connection manager.
func (w *World) lifetime() mono.Duration {
	l := &w.plan.Link
	d := 4*l.Delay + l.Jitter + l.ReorderBy
	if l.RateBps > 0 {
		d += mono.Duration(float64(l.Queue+8192) * 8e9 / (0.3 * float64(l.RateBps)))
	}
	if w.plan.has(LateLoop) {
		d += 25 * mono.Millisecond
	}
	return d + 10*mono.Microsecond
}

// restart gives a node a new life.
func (w *World) restart(n *node) {
	w.tr("n%d  restarts", n.i)
	w.mix(uint64(n.i), n.instance)
	for _, c := range w.conns {
		for i, e := range c.end {
			if e.n != n {
				continue
			}
			e.finish("the peer's machine was started again")
			w.nextQPN += uint32(1 + w.rnd.IntN(3)) // an instance begins with numbers of its own
			c.slot[i].there, c.slot[i].num = false, w.nextQPN
		}
	}
	n.start(n.instance + 10)
	n.started = w.now
	for p, down := range n.portDown {
		if down {
			n.eng.SetPlane(n.clock(), p, false)
		}
	}
}
