package vopr

import (
	"fmt"
	"runtime/debug"

	"github.com/metaroce/metaroce/internal/mono"
)

// Options of a run.
type Options struct {
	Transport Transport         // MetaRoCE if it has no name
	With      Feature           // features that each seed has
	Trace     func(line string) // nil: none
}

// Result is what became of a seed.
type Result struct {
	Seed      uint64        `json:"seed"`
	Plan      Plan          `json:"-"`
	Hash      uint64        `json:"-"`
	Steps     uint64        `json:"steps"`
	Packets   uint64        `json:"packets"`
	Requests  int           `json:"requests"`
	Virtual   mono.Duration `json:"virtual_ns"`
	Violation *Violation    `json:"violation,omitempty"`
}

// Run plays one seed.
func Run(seed uint64, o Options) (r Result) {
	p := NewPlan(seed, o.With)
	if o.Transport.Name == "" {
		o.Transport = MetaRoCE
	}
	r.Seed, r.Plan = seed, p
	var w *World
	defer func() {
		if x := recover(); x != nil {
			v, is := x.(*Violation)
			if !is {
				v = &Violation{"PANIC", fmt.Sprintf("%v\n%s", x, debug.Stack())}
			}
			r.Violation = v
			if w != nil {
				w.tr("VIOLATION %s %s", v.Property, v.Msg)
			}
		}
		if w != nil {
			r.Hash, r.Steps, r.Packets, r.Requests, r.Virtual = w.hash, w.steps, w.packets, w.posted, w.now.Sub(startTime)
		}
	}()
	w = newWorld(p, o.Transport, o.Trace)
	w.tr("%v", p)
	w.play()
	w.heal()
	w.close()
	return r
}

// play makes the connections and lets things happen.
func (w *World) play() {
	p, r := &w.plan, w.rnd
	for i := range p.Conns {
		a := w.nodes[i%len(w.nodes)]
		b := w.nodes[(i+1+r.IntN(len(w.nodes)-1))%len(w.nodes)]
		if p.has(Self) && i == 1 {
			b = a
		}
		w.newConn(a, b)
	}
	for range p.Acts {
		w.act()
		d := mono.Duration(r.IntN(int(p.Pause)))
		switch r.IntN(20) {
		case 0:
			d *= 100
		case 1, 2:
			d *= 10
		}
		w.runTo(w.now.Add(d))
	}
	w.lastStand()
}

// lastStand ends QPs in the middle of something, so late that nobody connects them again: their peers must find out.
func (w *World) lastStand() {
	p, r := &w.plan, w.rnd
	if !p.has(QPGone|QPError|Bad|Dereg) || r.IntN(3) == 0 {
		return
	}
	for _, c := range w.conns {
		for range 6 {
			c.end[0].out.postSend()
			c.end[1].out.postSend()
		}
	}
	for _, c := range w.conns {
		w.runTo(w.now.Add(mono.Duration(r.IntN(int(p.Link.Delay) + 3000))))
		switch e := c.end[r.IntN(2)]; {
		case p.has(QPGone) && r.IntN(2) == 0:
			e.destroy()
		case p.has(QPError) && r.IntN(2) == 0:
			e.toError()
		case p.has(Dereg):
			e.out.deregister()
		}
	}
	w.runTo(w.now.Add(mono.Duration(r.IntN(4 * int(p.Link.Delay)))))
}

// patience is how long a healed world has: longer than every timeout times its retries.
const patience = 15 * mono.Second

// heal mends the network; then everything that was posted must end.
func (w *World) heal() {
	w.tr("healed")
	w.healed = true
	for _, n := range w.nodes {
		n.free, n.stuck = mono.Min(n.free, w.now), 0
		for p := range n.portDown {
			if n.portDown[p] {
				w.port(n, p, false)
			}
			n.eng.SetPlane(n.clock(), p, true)
		}
		n.dirty = true
	}
	w.applyAll()
	for _, c := range w.conns {
		for _, e := range c.end {
			e.resume()
		}
	}
	w.chatter()
	gap, last := 50*mono.Microsecond, -1
	for end := w.now.Add(patience); !w.drained(); {
		if w.now >= end {
			w.hangs()
		}
		if w.completed != last {
			gap, last = 50*mono.Microsecond, w.completed
		}
		w.runTo(w.now.Add(gap))
		gap = min(2*gap, 5*mono.Millisecond)
	}
	w.silent(4 * len(w.nodes) * len(w.nodes) * w.plan.Planes)
}

// chatter makes a connection between each two nodes that says something all the time: what hangs is not to be found
// by the silence of the peer's NIC.
func (w *World) chatter() {
	until := w.now.Add(patience)
	for i, a := range w.nodes {
		for _, b := range w.nodes[i+1:] {
			w.after(w.lifetime(), func() {
				c := w.newConn(a, b)
				w.say(c, until)
			})
		}
	}
}

func (w *World) say(c *conn, until mono.Time) {
	for _, e := range c.end {
		e.out.postSend()
	}
	if w.now < until && w.busy {
		w.after(80*mono.Millisecond, func() { w.say(c, until) })
	}
}

// silent: once nothing is left to say, nothing is said but what keeps the planes measured.
func (w *World) silent(probes int) {
	w.runTo(w.now.Add(mono.Second))
	before := w.packets
	w.runTo(w.now.Add(500 * mono.Millisecond))
	if n := int(w.packets - before); n > probes {
		fail("P13", "%d packets although nothing is left to say", n)
	}
}

// drained reports whether everything that was posted has ended. Programs go on meanwhile: they post receives, and
// destroy what is of no use any more.
func (w *World) drained() bool {
	done := true
	w.busy = false
	for _, c := range w.conns {
		if c.at != 0 {
			done = false
		}
		for _, e := range c.end {
			if e.over {
				continue
			}
			if e.out.done < len(e.out.ops) {
				done = false
				w.busy = w.busy || e.peer.over || e.peer.errored
			} else if e.srq == nil && e.peer.srq == nil {
				// it may stay: no other QP waits for its receives
			} else if e.errored || e.peer.over || e.peer.errored {
				e.destroy()
				continue
			}
			w.topUp(e)
		}
	}
	return done && len(w.later) == 0
}

func (w *World) hangs() {
	for _, c := range w.conns {
		for _, e := range c.end {
			if !e.over && e.out.done < len(e.out.ops) {
				fail("P13", "%v hangs, %d receives done of %d at the peer (over %v, error %v)\n  %s\n  %s", e.out.ops[e.out.done], e.peer.nextRcv,
					len(e.peer.recvs), e.peer.over, e.peer.errored, e.s.qp.Dump(), e.peer.s.qp.Dump())
			}
		}
	}
	fail("P13", "something hangs")
}

// close checks that new QPs work, ends everything and looks at what is left.
func (w *World) close() {
	for _, f := range w.flows {
		if f.failed || f.req.over || f.rsp.over {
			continue
		}
		if i := f.hidden(len(f.ops) - 1); i < len(f.ops) && f.ops[i].idx < min(f.poison, f.fell) {
			fail("P03", "in the end %v does not show", f.ops[i])
		}
	}
	w.plan.Features = w.plan.Features&(SRQ|Small|Wrap) | Send | Read
	w.plan.RNR, w.plan.Timeout, w.plan.Retry = 7, 17, 7
	w.runTo(w.now.Add(w.lifetime()))
	for i, a := range w.nodes {
		for _, b := range w.nodes[i+1:] {
			w.fresh(a, b)
		}
	}
	for _, c := range w.conns {
		for _, e := range c.end {
			e.destroy()
		}
	}
	w.silent(0)
	for _, n := range w.nodes {
		if k := n.eng.InFlight(); k != 0 {
			fail("P14", "node %d: %d transmissions never end", n.i, k)
		}
		if s := n.eng.Leaks(); s != "" {
			fail("P14", "node %d leaks %s", n.i, s)
		}
		if s := n.eng.Audit(); s != "" {
			fail("P14", "node %d: %s", n.i, s)
		}
		if q := n.srq; q != nil && q.out != len(q.q) {
			fail("P14", "node %d: %d receives of the SRQ are gone", n.i, q.out-len(q.q))
		}
		n.sharedCount()
	}
}

// fresh makes a new connection and sends something over it both ways.
func (w *World) fresh(a, b *node) {
	c := w.newConn(a, b)
	for _, e := range c.end {
		w.topUp(e)
		for range 3 {
			e.out.postSend()
		}
	}
	for end := w.now.Add(5 * mono.Second); c.end[0].out.done < 3 || c.end[1].out.done < 3; {
		if w.now >= end {
			w.hangs()
		}
		w.runTo(w.now.Add(100 * mono.Microsecond))
		w.topUp(c.end[0])
		w.topUp(c.end[1])
	}
	if c.end[0].out.failed || c.end[1].out.failed {
		fail("P13", "a new connection of nodes %d and %d does not work", a.i, b.i)
	}
}
