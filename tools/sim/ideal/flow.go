package ideal

import (
	"math"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/maxmin"
)

// conn is all that one host sends to another one: a flow. Its messages go one after the other, as those of a queue pair do.
type conn struct {
	from, to int32
	level    int
	private  int32 // its own link in the solver: what is between its hosts where links are uneven; -1 = none yet
	place    int32 // in the heap of ends, -1 = none
	on       bool
	q        []posted // from head on
	head     int
	rate     float64 // bytes a second
	left     float64 // of the message in work, on the wire
	share    float64 // of it that is payload
	since    pico    // when left was so much
	began    pico
	end      pico
	path     []int32 // groups
	uses     []maxmin.Use
}

// posted is a message and when that was.
type posted struct {
	msg int32
	at  pico
}

// packets is how many a message fills, and the wire bytes of all of them and of the last.
func (w *World) packets(size int64) (n int64, all, last float64) {
	t := &w.p.Topology
	mtu, header := int64(t.MTU), int64(t.WireBytes()-t.MTU)
	n = max(1, (size+mtu-1)/mtu)
	return n, float64(size + n*header), float64(size - (n-1)*mtu + header)
}

// post puts a message behind those of its connection.
func (w *World) post(msg int32) {
	i := w.of[msg]
	c := &w.conns[i]
	c.q = append(c.q, posted{msg, w.now})
	if !c.on {
		c.on = true
		w.begin(c)
		w.choose(i)
		w.solver.Start(i)
	}
}

// begin takes up the first message of a connection.
func (w *World) begin(c *conn) {
	size := w.graph.Messages[c.q[c.head].msg].Size
	n, all, _ := w.packets(size)
	w.sent += uint64(n)
	c.left, c.share, c.since, c.began = all, float64(size)/all, w.now, w.now
}

// choose gives a connection its links: those that can hold it up.
func (w *World) choose(i int32) {
	c := &w.conns[i]
	if c.path == nil {
		c.path = w.net.path(make([]int32, 0, 2+2*c.level), c.from, c.to)
	}
	c.uses = c.uses[:0]
	for k, g := range c.path {
		if k < 2 || w.net.uneven || w.net.groups[g].binds() {
			c.uses = append(c.uses, maxmin.Use{Link: g, Weight: 1})
		}
	}
	if w.net.uneven {
		most := w.net.most(c.path)
		if c.private < 0 {
			c.private = w.solver.Link(most)
		}
		w.solver.SetRate(c.private, most)
		c.uses = append(c.uses, maxmin.Use{Link: c.private, Weight: 1})
	}
	w.solver.SetUses(i, c.uses)
}

// progress brings a connection to the present.
func (w *World) progress(c *conn) {
	if c.on && w.now > c.since {
		w.move(c, min(c.left, c.rate*float64(w.now-c.since)*1e-12))
		c.since = w.now
	}
}

// move counts bytes of a connection.
func (w *World) move(c *conn, bytes float64) {
	if bytes <= 0 {
		return
	}
	c.left -= bytes
	for _, g := range c.path {
		w.net.carry(g, bytes)
	}
	w.placed[c.to] += bytes * c.share
	w.sum += bytes * c.share
}

// endOf is when a connection's message has left its host at the rate that it has now.
func (w *World) endOf(c *conn) pico {
	if c.rate <= 0 {
		return never
	}
	t := math.Ceil(c.left / c.rate * 1e12)
	if t > math.MaxInt64/2 {
		return never
	}
	return c.since.add(pico(t))
}

// finish ends a message at its host. The next one of the connection follows at the same rate.
func (w *World) finish(i int32) {
	c := &w.conns[i]
	w.progress(c)
	w.move(c, c.left)
	p := c.q[c.head]
	w.leave(c, p)
	if c.head++; 2*c.head > len(c.q) {
		c.q = c.q[:copy(c.q, c.q[c.head:])]
		c.head = 0
	}
	if c.head == len(c.q) {
		c.on, c.rate = false, 0
		w.ends.remove(i)
		w.solver.Stop(i)
		return
	}
	w.begin(c)
	w.ends.set(i, w.endOf(c))
}

// leave works out when a message that has left arrives, and when its sender hears of it. A fluid takes all planes at once, its
// packets take one each: however the packets are dealt out, the plane that carries most of them needs its time.
func (w *World) leave(c *conn, p posted) {
	t := &w.p.Topology
	n, _, last := w.packets(w.graph.Messages[p.msg].Size)
	planes := int64(t.Planes)
	least := float64((n+planes-1)/planes-1)*float64(t.WireBytes()) + last
	gone := max(w.now, c.began.add(pico(least*8e12/float64(t.RateBps))))
	x := &w.way[c.level]
	came := gone.add(x.delay).add(pico(last*x.perByte + 0.5)).add(ps(w.net.later(c.path)))
	w.at(event{at: came, kind: isReceived, msg: p.msg, posted: p.at})
	back := x.back
	if w.net.delayed {
		back = back.add(ps(w.net.later(w.net.path(nil, c.to, c.from))))
	}
	w.at(event{at: came.add(back), kind: isAcked, msg: p.msg, posted: p.at})
}

// fulfil counts one thing that a message waited for.
func (w *World) fulfil(msg int32) {
	s := &w.msgs[msg]
	if s.pending--; s.pending > 0 {
		return
	}
	if d := w.graph.Messages[msg].Start; d > 0 {
		w.at(event{at: w.now.add(ps(mono.Duration(d))), kind: isReady, msg: msg})
		return
	}
	w.ready = append(w.ready, msg)
}

// postAll posts what has become ready; calculations end, and more may be ready then.
func (w *World) postAll() {
	for i := 0; i < len(w.ready); i++ {
		msg := w.ready[i]
		m, s := &w.graph.Messages[msg], &w.msgs[msg]
		s.posted = w.now.mono()
		if m.From != m.To {
			w.post(msg)
			continue
		}
		s.received, s.acked = s.posted, s.posted
		w.ended++
		w.follow(msg, false)
		w.follow(msg, true)
	}
	w.ready = w.ready[:0]
}

// follow lets the messages go on that waited for one.
func (w *World) follow(msg int32, acked bool) {
	for _, d := range w.next[w.nextAt[msg]:w.nextAt[msg+1]] {
		if d.Acked == acked {
			w.fulfil(d.Msg)
		}
	}
}

// happen is an event whose time has come.
func (w *World) happen(e event) {
	w.events++
	s := &w.msgs[e.msg]
	switch e.kind {
	case isReady:
		w.ready = append(w.ready, e.msg)
	case isReceived:
		if !w.steady {
			s.received = w.now.mono()
			w.follow(e.msg, false)
		}
	case isAcked:
		w.ended++
		if w.steady {
			if w.now >= w.warmAt {
				w.took = append(w.took, w.now.mono().Sub(e.posted.mono()))
			}
			w.ready = append(w.ready, e.msg)
			return
		}
		s.acked = w.now.mono()
		w.follow(e.msg, true)
	}
}
