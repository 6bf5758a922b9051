package vopr

import "github.com/metaroce/metaroce/internal/mono"

// act is one thing that a program or the world does.
func (w *World) act() {
	w.acts++
	r := w.rnd
	c := w.conns[r.IntN(len(w.conns))]
	e := c.end[r.IntN(2)]
	if e.n.stuck > w.now { // a NIC's loop takes up what its programs ask for, too
		return
	}
	switch v := r.IntN(100); {
	case v < 70:
		for range 1 + r.IntN(6) {
			if !e.out.postSend() {
				break
			}
		}
	case v < 85:
		if w.plan.has(Late) {
			e.postRecv(r.IntN(5))
		}
	default:
		w.fault(c, e)
	}
	if !w.plan.has(Late) || r.IntN(6) == 0 {
		w.topUp(e)
	}
	if c.broken() && w.plan.has(Reconnect) && r.IntN(4) == 0 {
		c.again()
	}
}

// topUp keeps some receives ahead.
func (w *World) topUp(e *end) {
	if e.srq != nil {
		e.postRecv(8)
	} else if n := 8 - (len(e.recvs) - e.nextRcv); n > 0 && !e.errored {
		e.postRecv(n)
	}
}

// fault draws one of the things that the plan allows to go wrong.
func (w *World) fault(c *conn, e *end) {
	p, r := &w.plan, w.rnd
	var can []func()
	add := func(f Feature, weight int, do func()) {
		if p.has(f) {
			for range weight {
				can = append(can, do)
			}
		}
	}
	add(Dereg, 2, func() { e.out.deregister() })
	add(QPError, 1, e.toError)
	add(QPGone, 1, func() {
		if r.IntN(2) == 0 {
			e.destroy()
		} else {
			e.reset()
		}
	})
	add(Reconnect, 1, func() {
		if r.IntN(3) == 0 || p.has(Reuse) {
			c.again()
		}
	})
	add(Restart, 1, func() {
		if r.IntN(4) == 0 {
			w.restart(e.n)
		}
	})
	add(SQD, 4, func() { e.drain() })
	add(Flap, 4, w.flap)
	add(Blackout, 1, func() {
		if r.IntN(4) == 0 {
			w.blackOut()
		}
	})
	add(Late, 3, func() {})
	if len(can) > 0 {
		can[r.IntN(len(can))]()
	}
}

// deregister ends a key by the program's wish.
func (f *flow) deregister() {
	z := f.zones[zoneMortal]
	if z.dead || f.rsp.over || f.rsp.n.keys[z.rkey[0]] == nil {
		return
	}
	f.w.tr("n%d  deregister %#x, flow %d", f.rsp.n.i, z.rkey[0], f.id)
	z.dead, z.dereg = true, true
	delete(f.rsp.n.keys, z.rkey[0])
}

// drain stops an end for a while.
func (e *end) drain() {
	if e.over || !e.up || e.errored || e.sqd {
		return
	}
	e.sqd = true
	e.s.qp.ToSQD()
	e.n.w.after(mono.Duration(e.n.w.rnd.IntN(500))*mono.Microsecond, e.resume)
}

func (e *end) resume() {
	if e.sqd && !e.over && !e.errored {
		e.s.qp.Resume(e.n.clock())
		e.n.dirty = true
	}
	e.sqd = false
}

// flap takes something away for a while: a node's port, or one direction of one plane between two nodes. Two nodes
// stay joined by a plane that works both ways.
func (w *World) flap() {
	r := w.rnd
	n, m, p := w.nodes[r.IntN(len(w.nodes))], w.nodes[r.IntN(len(w.nodes))], r.IntN(w.plan.Planes)
	span := mono.Duration(r.IntN(3000)) * mono.Microsecond
	if r.IntN(5) == 0 {
		span *= 10
	}
	if r.IntN(2) == 0 || n == m {
		if n.portDown[p] {
			return
		}
		w.port(n, p, true)
		for _, x := range w.nodes {
			if !w.joined(n.i, x.i) {
				w.port(n, p, false)
				return
			}
		}
		w.after(span, func() { w.port(n, p, false) })
		return
	}
	h := w.hop(n.i, m.i, p)
	if h.down {
		return
	}
	set := func(down bool) {
		w.tr("%s  down %v", pair(n.i, m.i, p), down)
		h.down = down
		w.apply(n.i, m.i, p)
	}
	set(true)
	if !w.joined(n.i, m.i) {
		set(false)
		return
	}
	w.after(span, func() { set(false) })
}

// port changes the link of a node's port; where the plan says so its engine hears of it.
func (w *World) port(n *node, p int, down bool) {
	w.tr("n%d  port %d down %v", n.i, p, down)
	n.portDown[p] = down
	for _, m := range w.nodes {
		w.apply(n.i, m.i, p)
		w.apply(m.i, n.i, p)
	}
	if w.plan.has(Told) || !down {
		n.eng.SetPlane(n.clock(), p, !down)
		n.dirty = true
	}
}

// blackOut takes every port of one node away, for long enough that QPs may give up, or not.
func (w *World) blackOut() {
	n := w.nodes[w.rnd.IntN(len(w.nodes))]
	for p := range w.plan.Planes {
		if n.portDown[p] {
			return
		}
	}
	span := mono.Duration(w.rnd.IntN(20)) * mono.Millisecond
	if w.rnd.IntN(2) == 0 {
		span *= 20
	}
	for _, f := range w.flows {
		if f.excuse == "" && (f.req.n == n || f.rsp.n == n) {
			f.excuse = "a blackout"
		}
	}
	n.darkTill = w.now.Add(span + 500*mono.Millisecond) // engines need a while to find out that it is over
	for p := range w.plan.Planes {
		w.port(n, p, true)
	}
	w.after(span, func() {
		for p := range w.plan.Planes {
			w.port(n, p, false)
		}
	})
}

// faultless reports whether nothing ever makes an engine resend by mistake or for a reason.
func (w *World) faultless() bool {
	return !w.plan.has(Loss | Burst | Jitter | Reorder | Duplicate | Corrupt | Slow | Flap | Blackout | Restart | LateLoop | Asymmetric)
}
