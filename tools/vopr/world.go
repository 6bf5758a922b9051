package vopr

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
)

// Violation is a property that did not hold.
type Violation struct {
	Property string `json:"property"` // P01 …, PANIC
	Msg      string `json:"message"`
}

func (v *Violation) Error() string { return v.Property + " " + v.Msg }

// fail ends the run. The world is thrown away, so unwinding through the engine does no harm.
func fail(property, format string, args ...any) {
	panic(&Violation{property, fmt.Sprintf(format, args...)})
}

// World is NICs with their programs, links and one clock.
type World struct {
	plan  Plan
	now   mono.Time
	nodes []*node
	hops  []*hop
	conns []*conn
	flows []*flow
	recvs []*recv // by id
	owing []*end  // flushed something although they are not in error yet
	later []later // what happens by itself, in order of time

	rnd, asym *rng.Source
	hash      uint64
	trace     func(line string)
	transport Transport
	healed    bool
	busy      bool // somebody still waits for a QP that is gone
	nextQPN   uint32
	nextKey   uint32

	steps, packets, acts uint64
	posted, completed    int
	moved                int    // completed, when it last changed
	movedAt              uint64 // at this step
}

// node is one NIC and the memory of its programs.
type node struct {
	w        *World
	i        int
	addr     netip.Addr
	eng      Engine
	instance uint64
	started  mono.Time     // again; 0 = never
	stuck    mono.Time     // its loop stands still until then
	skew     mono.Duration // its clock against the world's
	batch    *pkt.Batch
	rx       []pkt.Packet
	rxMem    []byte
	rxUsed   int
	portDown []bool
	darkTill mono.Time // a blackout and its consequences

	arrival mono.Time // of the next packet, at the earliest
	timer   mono.Time
	free    mono.Time // its loop is busy, or stands still, until then
	dirty   bool      // something was posted

	mem    []*region
	top    uint64
	keys   map[uint32]*key
	ends   []*end
	srq    *srq
	shared *sharedCells
}

const startTime mono.Time = 1_000_000

func newWorld(p0 Plan, t Transport, trace func(string)) *World {
	w := &World{plan: p0, now: startTime, rnd: rng.New(p0.Seed, "program"), asym: rng.New(p0.Seed, "asymmetry"), trace: trace,
		transport: t, nextQPN: 0x100, nextKey: 0x1000}
	p := &w.plan
	if t.GoBackN { // no time stamps: nothing tells old packets from new ones
		p.Features &^= Reuse
	}
	w.hops = make([]*hop, p.Nodes*p.Nodes*p.Planes)
	for i := range p.Nodes {
		n := &node{w: w, i: i, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), batch: pkt.NewBatch(pkt.Burst, p.Tune.PacketMax),
			rx: make([]pkt.Packet, 0, pkt.Burst), portDown: make([]bool, p.Planes), arrival: mono.Never, timer: mono.Never, top: 0x10000}
		if p.has(Wrap) { // just before the time stamps of the wire wrap: 32 bits of 16 ns
			n.skew = mono.Duration(1<<36 - w.rnd.IntN(20_000_000))
		} else {
			n.skew = mono.Duration(w.rnd.Uint64() >> 24)
		}
		w.nodes = append(w.nodes, n)
		n.start(uint64(i) + 1)
	}
	return w
}

// start gives the node a new engine, as a machine that was started (again) has. Memory stays, keys and QPs are gone.
func (n *node) start(instance uint64) {
	t := n.w.plan.Tune
	t.Instance, t.NICID, t.Addr = instance, uint64(n.i)+100, n.addr
	t.Seed = n.w.plan.Seed ^ instance<<32 ^ uint64(n.i)
	n.instance = instance
	n.eng = n.w.transport.New(t, host{n})
	n.keys = map[uint32]*key{}
	n.ends, n.srq = nil, nil
	n.dirty = true
}

func (n *node) clock() mono.Time { return n.w.now.Add(n.skew) }

// due is when the node's loop has something to do.
func (n *node) due() mono.Time {
	t := mono.Min(n.arrival, n.timer)
	if n.dirty {
		t = n.w.now
	}
	return max(t, n.free)
}

// step is one round of the NIC's loop: packets in, timers, packets out.
func (n *node) step() {
	w := n.w
	w.steps++
	n.dirty = false
	nodes, planes := len(w.nodes), w.plan.Planes
	off := int(w.steps) % planes
	for s := range nodes {
		for p := range planes {
			n.receive(s, (p+off)%planes)
		}
	}
	n.eng.HandleTimers(n.clock())
	for rounds := 0; ; rounds++ {
		n.batch.Reset()
		n.eng.Transmit(n.clock(), n.batch)
		if n.batch.N == 0 {
			break
		}
		if rounds == 1000 {
			fail("P13", "node %d sends without end", n.i)
		}
		for i := range n.batch.N {
			w.send(n, &n.batch.Pkts[i])
		}
	}
	w.settleUp()
	n.timer = n.eng.NextTimeout()
	if n.timer != mono.Never {
		n.timer = n.timer.Add(-n.skew)
	}
	n.arrival = mono.Never
	for s := range nodes {
		for p := range planes {
			if h := w.hops[(s*nodes+n.i)*planes+p]; h != nil {
				n.arrival = mono.Min(n.arrival, h.l.NextWake())
			}
		}
	}
	n.free = w.now.Add(mono.Duration(w.rnd.IntN(2000)))
	if w.plan.has(LateLoop) && !w.healed && w.rnd.IntN(300) == 0 { // the machine runs something else
		d := mono.Duration(w.rnd.IntN(300)) * mono.Microsecond
		if w.rnd.IntN(5) == 0 {
			d = mono.Duration(w.rnd.IntN(20)) * mono.Millisecond
		}
		w.tr("n%d  loop stands still for %v", n.i, d)
		n.free = n.free.Add(d)
		n.stuck = n.free
	}
	if w.steps%64 == 0 {
		if s := n.eng.Audit(); s != "" {
			fail("P14", "node %d: %s", n.i, s)
		}
	}
}

// later is something that happens at a time.
type later struct {
	at mono.Time
	do func()
}

// after has something done in a while.
func (w *World) after(d mono.Duration, do func()) {
	at, i := w.now.Add(d), len(w.later)
	for i > 0 && w.later[i-1].at > at {
		i--
	}
	w.later = slices.Insert(w.later, i, later{at, do})
}

// runTo steps nodes up to a time.
func (w *World) runTo(t mono.Time) {
	for {
		if len(w.later) > 0 && w.later[0].at <= w.now {
			l := w.later[0]
			w.later = w.later[1:]
			l.do()
			continue
		}
		var next *node
		at := mono.Never
		for i := range w.nodes {
			n := w.nodes[(i+int(w.steps))%len(w.nodes)]
			if d := n.due(); d < at {
				next, at = n, d
			}
		}
		if len(w.later) > 0 && w.later[0].at < at && w.later[0].at <= t {
			w.now = w.later[0].at
			continue
		}
		if next == nil || at > t {
			w.now = max(w.now, t)
			return
		}
		w.now = max(w.now, at)
		next.step()
		if w.completed != w.moved {
			w.moved, w.movedAt = w.completed, w.steps
		}
		if w.steps-w.movedAt > stepsMax || w.steps > 10*stepsMax {
			fail("P13", "%d steps and no end", w.steps)
		}
	}
}

// stepsMax ends a world that goes round in circles: so many rounds without a completion. Receives that a dead peer's
// message holds may leave many others asking for them every few microseconds until its end is noticed.
const stepsMax = 3_000_000

// mix adds something visible to the trace's hash.
func (w *World) mix(v ...uint64) {
	h := w.hash ^ uint64(w.now)
	for _, x := range v {
		h = (h ^ x) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	w.hash = h
}

// tr adds a line to the event list.
func (w *World) tr(format string, args ...any) {
	if w.trace != nil {
		w.trace(fmt.Sprintf("%12.3f  ", float64(w.now-startTime)/1e3) + fmt.Sprintf(format, args...))
	}
}

var _ transport.Host = host{}
