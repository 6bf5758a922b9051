// Package ideal is a transport that cannot be built: messages are fluids that take every path at once, at the rates that
// max–min fairness gives them, without losses, queues or congestion control. Its times are what real transports are set beside.
//
// What counts: the bytes of packets' headers, the rates of the links as they are at a time, the propagation and the storing and
// forwarding of a message's last packet, the way of the acknowledgement back. What does not: acknowledgements take no room,
// packets need not be whole numbers, nothing waits behind anything, hosts hear of each other's messages at once.
package ideal

import (
	"math"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/maxmin"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/work"
)

// World is all hosts and links of a simulation.
type World struct {
	p      *plan.Plan
	graph  *work.Graph
	net    *network
	solver *maxmin.Solver

	now    pico
	conns  []conn
	of     []int32 // the connection of a message
	msgs   []message
	next   []work.Edge // next[nextAt[m]:nextAt[m+1]] are the messages that wait for m
	nextAt []int32
	ends   ends
	timed  []event // heap
	ready  []int32
	global []global
	way    []way // by level

	placed []float64 // payload, by host
	sum    float64
	ended  int
	sent   uint64 // packets
	events uint64
	steady bool
	warmAt pico
	took   []mono.Duration
}

// message is what has become of one.
type message struct {
	posted, received, acked mono.Time
	pending                 int32 // what it still waits for
}

// way is what a level's path takes beside the first wire: delays, and what each byte of a packet takes on the wires behind it.
type way struct {
	delay   pico
	perByte float64 // picoseconds
	back    pico    // of an acknowledgement
}

// global is something that happens at a time, given by the caller.
type global struct {
	at pico
	f  func(now mono.Time)
}

// New makes the hosts of a plan, whose time begins at 0.
func New(p *plan.Plan, g *work.Graph) *World {
	t := &p.Topology
	w := &World{p: p, graph: g, net: newNetwork(t), msgs: make([]message, len(g.Messages)), of: make([]int32, len(g.Messages)),
		placed: make([]float64, t.Hosts), steady: p.Run.Steady}
	w.ends.w = w
	w.solver = maxmin.New(nil)
	for i := range w.net.groups {
		w.solver.Link(w.net.groups[i].rate)
	}
	w.next, w.nextAt = g.Followers()
	ack := float64(t.WireBytes() - t.MTU)
	for l := range 3 {
		delay, perByte := t.Behind(l)
		back := ps(delay) + pico(ack*(perByte+8e12/float64(t.RateBps))+0.5)
		w.way = append(w.way, way{delay: ps(delay), perByte: perByte, back: back})
	}
	seen := map[[2]int32]int32{}
	for i := range g.Messages {
		m, s := &g.Messages[i], &w.msgs[i]
		s.posted, s.received, s.acked = mono.Never, mono.Never, mono.Never
		s.pending = m.Edges
		if m.From == m.To {
			continue
		}
		c, is := seen[[2]int32{m.From, m.To}]
		if !is {
			c = int32(len(w.conns))
			seen[[2]int32{m.From, m.To}] = c
			w.conns = append(w.conns, conn{from: m.From, to: m.To, level: t.Level(int(m.From), int(m.To)), private: -1, place: -1})
			w.solver.Flow(1, nil)
		}
		w.of[i] = c
	}
	return w
}

// Zero is when the plan's time begins: Start is called then.
func (w *World) Zero() mono.Time { return w.Now() }

// Now is how far the world is.
func (w *World) Now() mono.Time { return w.now.mono() }

// At has something happen at a time, before all else that does.
func (w *World) At(at mono.Time, f func(now mono.Time)) {
	t := ps(mono.Duration(at))
	i, _ := slices.BinarySearchFunc(w.global, t, func(g global, t pico) int {
		if g.at <= t {
			return -1
		}
		return 1
	})
	w.global = slices.Insert(w.global, i, global{t, f})
}

// Schedule has the events of a plan happen, counted from start.
func (w *World) Schedule(start mono.Time, events []plan.Event) error {
	for i := range events {
		ev := &events[i]
		hit, err := w.net.targets(ev.Target)
		if err != nil {
			return err
		}
		c := &change{c: ev.Change, down: ev.Change.Down || ev.Change.Flap > 0}
		from, to := start.Add(ev.At), mono.Never
		if ev.For > 0 {
			to = from.Add(ev.For)
			w.At(to, func(mono.Time) { w.change(func() { w.net.apply(hit, c, false) }) })
		}
		w.At(from, func(mono.Time) { w.change(func() { w.net.apply(hit, c, true) }) })
		if c.c.Flap > 0 {
			w.flap(from.Add(c.c.Flap/2), to, hit, c)
		}
	}
	return nil
}

// flap turns links that are down up and back, at a time and each half period after it.
func (w *World) flap(at, end mono.Time, hit []int32, c *change) {
	if at >= end {
		return
	}
	w.At(at, func(mono.Time) {
		w.change(func() { c.down = !c.down; w.net.refresh(hit) })
		w.flap(at.Add(max(c.c.Flap/2, 1)), end, hit, c)
	})
}

// change does something to links; all flows take their new ways.
func (w *World) change(do func()) {
	w.settle()
	do()
	for i := range w.net.groups {
		w.solver.SetRate(int32(i), w.net.groups[i].rate)
	}
	for i := range w.conns {
		if c := &w.conns[i]; c.on {
			w.solver.Stop(int32(i))
			w.choose(int32(i))
			w.solver.Start(int32(i))
		}
	}
}

// settle brings all flows to the present, and what has crossed groups to their links.
func (w *World) settle() {
	for _, i := range w.ends.order { // those that are not there have just begun
		w.progress(&w.conns[i])
	}
	w.net.share()
}

// Start posts the messages that wait for nothing: the plan's time 0 is now.
func (w *World) Start() {
	w.warmAt = w.now + ps(w.p.Run.Warm)
	for i := range w.graph.Messages {
		m := &w.graph.Messages[i]
		if m.Edges > 0 {
			continue
		}
		n := 1
		if w.steady {
			n = max(1, w.p.Run.Depth)
		}
		for range n {
			w.at(event{at: w.now.add(ps(mono.Duration(m.Start))), kind: isReady, msg: int32(i)})
		}
	}
}

// near is within what two ends count as one: what rounding makes of ends that are.
const near pico = 100

// Run goes on until a time, or until more says no, which it is asked before each point of time.
func (w *World) Run(until mono.Time, more func() bool) error {
	limit := ps(mono.Duration(until))
	for more() {
		t := w.ends.first()
		if len(w.timed) > 0 {
			t = min(t, w.timed[0].at)
		}
		if len(w.global) > 0 && w.global[0].at <= min(t, limit) {
			g := w.global[0]
			w.global = w.global[1:]
			w.now = g.at
			g.f(w.now.mono())
			w.refill()
			continue
		}
		if t > limit || t == never {
			w.now = max(w.now, limit)
			break
		}
		w.now = t
		for w.ends.first() <= t+near && w.conns[w.ends.order[0]].began < t {
			w.finish(w.ends.order[0])
		}
		for len(w.timed) > 0 && w.timed[0].at <= t {
			w.happen(w.pop())
		}
		w.postAll()
		w.refill()
	}
	w.settle()
	return nil
}

// refill gives flows their rates after something has changed.
func (w *World) refill() {
	for _, i := range w.solver.Fill() {
		c := &w.conns[i]
		rate := w.solver.Rate(i)
		if rate == c.rate && c.place >= 0 {
			continue
		}
		w.progress(c)
		c.rate = rate
		w.ends.set(i, w.endOf(c))
	}
}

// Sample is what came to hosts by each plane so far, on their wires.
func (w *World) Sample(perPlane []uint64) (queue, paused int) {
	w.settle()
	for i, sum := range w.net.toHosts {
		perPlane[i] = uint64(sum + 0.5)
	}
	return 0, 0
}

// Counters of the run; there are no packets, so that there are no hops.
func (w *World) Counters() fabric.Counters { return fabric.Counters{Events: w.events} }

// Placed is the payload that has left for its hosts.
func (w *World) Placed() uint64 { return uint64(w.sum + 0.5) }

// PlacedAt is the same of one host.
func (w *World) PlacedAt(host int) uint64 {
	w.settle()
	return uint64(w.placed[host] + 0.5)
}

// Ended is how many messages have ended; in a steady run, completions.
func (w *World) Ended() int { return w.ended }

// Message returns what became of message i.
func (w *World) Message(i int) work.Outcome {
	s := &w.msgs[i]
	return work.Outcome{Posted: s.posted, Received: s.received, Acked: s.acked}
}

// Took are the times that requests of a steady run took, those that ended since it is measured; shortest first.
func (w *World) Took() []mono.Duration {
	slices.Sort(w.took)
	return w.took
}

// Links is how many directions of links there are, Link describes one: bytes, and those in packets of full length.
func (w *World) Links() int                 { return len(w.net.links) }
func (w *World) Link(i int) fabric.LinkInfo { return w.net.info(i) }

// DataSent is how many packets the messages fill that have been sent.
func (w *World) DataSent() uint64 { return w.sent }

// Threads is 1; nothing is dropped or sent again; there is nothing to count anew, and nothing to close.
func (w *World) Threads() int        { return 1 }
func (w *World) Dropped() uint64     { return 0 }
func (w *World) Retransmits() uint64 { return 0 }
func (w *World) ResetCounters()      {}
func (w *World) Close()              {}

// pico is a time in picoseconds: a byte takes 10 of them at 800 Gbit/s.
type pico int64

const never = pico(math.MaxInt64)

func ps(d mono.Duration) pico {
	if int64(d) >= math.MaxInt64/1000 {
		return never
	}
	return pico(d) * 1000
}

func (a pico) add(b pico) pico {
	if a > never-b {
		return never
	}
	return a + b
}

func (a pico) mono() mono.Time {
	if a == never {
		return mono.Never
	}
	return mono.Time((a + 500) / 1000)
}
