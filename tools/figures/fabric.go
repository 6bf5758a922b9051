// Package figures measures engines in virtual time: hosts on leaf-spine planes, plain links, one seed. It answers what
// share of the wire is left under loss, in incast, in a loaded fabric, and when a plane dies. The engines are the real
// ones; only memory is left out (nothing is copied).
package figures

import (
	"fmt"
	"net/netip"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/tools/vopr"
)

// packetMax is the largest packet: a payload of 4096 and every header. outer is what Ethernet, IP and UDP add on the wire,
// preamble and gap included.
const (
	packetMax = 4096 + 124
	outer     = 66
)

// Topology is a set of like planes. Without spines all hosts hang on one switch a plane.
type Topology struct {
	Hosts, Planes int
	Leaf          int    // hosts a leaf switch; 0 = all
	Spines        int    // spine switches a plane, where there is more than one leaf
	RateBps       uint64 // of every link
	RTT           mono.Duration
	Queue         int     // bytes in front of every switch port; 0 = no bound
	MarkMin, Mark int     // bytes waiting from which packets are marked, and from which all are; 0 = never
	Loss, Burst   float64 // random loss on the last link, data and acknowledgements alike; mean length of a burst
	RateUnknown   bool    // engines are not told the rate
	AcksWithData  bool    // acknowledgements wait in data's queues
	Over          float64 // links between switches are slower by this factor; 0 = 1
}

// BDP is the bandwidth-delay product of a plane in bytes.
func (t Topology) BDP() int { return int(float64(t.RateBps) / 8 * t.RTT.Seconds()) }

// World is hosts, switches and a clock.
type World struct {
	Now     mono.Time
	Hosts   []*Host
	t       Topology
	links   []*wire
	up      [][]*wire   // [host][plane]
	down    [][]*wire   // [host][plane]
	lift    [][][]*wire // [plane][leaf][spine]: leaf to spine
	drop    [][][]*wire // [plane][spine][leaf]: spine to leaf
	pkts    []packet
	free    []int32
	heap    []event
	hosts   map[netip.Addr]int
	goBackN bool
	data    struct{ sent, full uint64 } // packets with payload: put on the first link; dropped for a full queue
}

// wire is a link and what follows it.
type wire struct {
	l     *link.Link
	first *link.Link // the control class, which passes the others' queue
	i     int
	due   mono.Time // when it is on the heap for, or Never
	plane int
	host  int // at its end, or -1
	leaf  int // at its end, or -1
	spine int
}

// packet is one on its way.
type packet struct {
	p    pkt.Packet
	buf  []byte
	from int
	to   int
}

// event wakes a wire (id ≥ 0) or a host (-1 - id).
type event struct {
	at mono.Time
	id int
}

// NewWorld makes a world whose engines are those of e.
func NewWorld(t Topology, e vopr.Transport, seed uint64) *World {
	if t.Leaf == 0 || t.Leaf >= t.Hosts {
		t.Leaf, t.Spines = t.Hosts, 0
	}
	w := &World{Now: mono.Time(mono.Millisecond), t: t, hosts: map[netip.Addr]int{}, goBackN: e.GoBackN}
	leaves := (t.Hosts + t.Leaf - 1) / t.Leaf
	hops := 4 // links both ways between hosts of one leaf
	if leaves > 1 {
		hops = 8
	}
	// the round trip of a full packet and a short answer, with what each link takes to send them
	sending := mono.Duration(float64(hops/2) * float64(packetMax+outer+200) * 8e9 / float64(t.RateBps))
	base := link.Spec{RateBps: t.RateBps, Delay: (t.RTT - sending) / mono.Duration(hops), Queue: t.Queue, ECNMin: t.MarkMin, ECNMax: t.Mark}
	nic := base
	nic.Queue, nic.ECNMin, nic.ECNMax = 0, 0, 0 // the host's own queue: it has no reason to lose what it sends
	last := base
	last.Loss, last.Burst = t.Loss, t.Burst
	core := base
	if t.Over > 0 {
		core.RateBps = uint64(float64(t.RateBps) / t.Over)
		core.Queue = int(float64(t.Queue) / t.Over) // a queue is as long in time
	}
	for h := range t.Hosts {
		w.up, w.down = append(w.up, nil), append(w.down, nil)
		for p := range t.Planes {
			w.up[h] = append(w.up[h], w.wire(seed, fmt.Sprintf("up %d/%d", h, p), nic, wire{plane: p, host: -1, leaf: h / t.Leaf}))
			w.down[h] = append(w.down[h], w.wire(seed, fmt.Sprintf("down %d/%d", h, p), last, wire{plane: p, host: h, leaf: -1}))
		}
	}
	for p := range t.Planes {
		w.lift, w.drop = append(w.lift, make([][]*wire, leaves)), append(w.drop, make([][]*wire, t.Spines))
		for l := range leaves {
			for s := range t.Spines {
				w.lift[p][l] = append(w.lift[p][l], w.wire(seed, fmt.Sprintf("lift %d/%d/%d", p, l, s), core, wire{plane: p, host: -1, leaf: -1, spine: s}))
				w.drop[p][s] = append(w.drop[p][s], w.wire(seed, fmt.Sprintf("drop %d/%d/%d", p, s, l), core, wire{plane: p, host: -1, leaf: l}))
			}
		}
	}
	for h := range t.Hosts {
		w.Hosts = append(w.Hosts, w.newHost(h, e, seed))
	}
	return w
}

// slots is how many packets a link has room for, on the way and waiting: engines keep less in flight.
const slots = 1 << 13

func (w *World) wire(seed uint64, name string, s link.Spec, x wire) *wire {
	x.l, x.first, x.i, x.due = link.New(seed, name, slots), link.New(seed, name+" control", slots/8), len(w.links), mono.Never
	x.set(w.Now, s)
	w.links = append(w.links, &x)
	return &x
}

// SetPlane changes every host's links of a plane.
func (w *World) SetPlane(plane int, change func(*link.Spec)) {
	for _, x := range w.links {
		if x.plane == plane && (x.host >= 0 || x.leaf >= 0) {
			s := x.l.Spec()
			change(&s)
			x.set(w.Now, s)
		}
	}
}

func (x *wire) set(now mono.Time, s link.Spec) {
	if err := x.l.Set(now, s); err != nil {
		panic(err)
	}
	s.Queue, s.ECNMin, s.ECNMax = 0, 0, 0
	if err := x.first.Set(now, s); err != nil {
		panic(err)
	}
}

// shortMax is what a packet without much payload is not longer than: acknowledgements, probes.
const shortMax = 1500

// controlClass is the DSCP of what passes the queues of data.
const controlClass = 48

// Dropped is how many packets found a queue full.
func (w *World) Dropped() (n uint64) {
	for _, x := range w.links {
		n += x.l.Stats().QueueFull
	}
	return n
}

// Run goes on for a while.
func (w *World) Run(d mono.Duration) {
	for end := w.Now.Add(d); ; {
		if len(w.heap) == 0 || w.heap[0].at > end {
			w.Now = end
			return
		}
		ev := w.pop()
		w.Now = max(w.Now, ev.at)
		if ev.id >= 0 {
			if x := w.links[ev.id]; x.due == ev.at {
				x.due = mono.Never
				w.arrive(x)
			}
		} else if h := w.Hosts[-1-ev.id]; h.due == ev.at {
			h.due = mono.Never
			h.step()
		}
	}
}

// arrive moves what has come to the end of a link.
func (w *World) arrive(x *wire) {
	next := func() (link.Out, bool) {
		if o, ok := x.first.Next(w.Now); ok {
			return o, ok
		}
		return x.l.Next(w.Now)
	}
	for o, ok := next(); ok; o, ok = next() {
		q := &w.pkts[o.Handle]
		if o.Lost {
			w.free = append(w.free, int32(o.Handle))
			continue
		}
		if o.CE {
			q.p.TOS |= pkt.CE
		}
		if x.host >= 0 {
			w.Hosts[x.host].take(&q.p)
			w.free = append(w.free, int32(o.Handle))
			continue
		}
		w.launch(w.next(x, q), int32(o.Handle))
	}
	w.arm(x)
	if x.host >= 0 {
		w.Hosts[x.host].step()
	}
}

// next is the link that a packet takes from the switch at the end of x. The spine is chosen by the entropy.
func (w *World) next(x *wire, q *packet) *wire {
	leaf := q.to / w.t.Leaf
	switch {
	case x.leaf == leaf:
		return w.down[q.to][x.plane]
	case x.leaf >= 0:
		return w.lift[x.plane][x.leaf][ecmp(q, w.t.Spines)]
	default:
		return w.drop[x.plane][x.spine][leaf]
	}
}

// ecmp hashes what a switch sees of a flow.
func ecmp(q *packet, n int) int {
	x := uint64(q.from)<<40 | uint64(q.to)<<20 | uint64(q.p.SrcPort)
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return int((x >> 33) % uint64(n))
}

// send puts a packet of host h on its way.
func (w *World) send(h int, p *pkt.Packet) {
	to, ok := w.hosts[p.Dst]
	if !ok {
		return
	}
	if len(w.free) == 0 {
		w.pkts = append(w.pkts, packet{})
		w.free = append(w.free, int32(len(w.pkts)-1))
	}
	i := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	q := &w.pkts[i]
	q.buf = append(q.buf[:0], p.Data...)
	q.from, q.to = h, to
	q.p = *p
	q.p.Buf, q.p.Data = nil, q.buf
	if len(q.buf) > shortMax {
		w.data.sent++
	}
	w.launch(w.up[h][p.Plane], i)
}

func (w *World) launch(x *wire, i int32) {
	q := &w.pkts[i]
	l := x.l
	if q.p.TOS>>2 == controlClass {
		l = x.first
		x.l.Use(w.Now, len(q.buf)+outer) // it goes before, and the others wait for it
	}
	if v := l.Send(w.Now, link.Handle(i), len(q.buf)+outer, q.p.TOS&pkt.ECNMask != 0); v != link.Queued {
		if len(q.buf) > shortMax && (v == link.QueueFull || v == link.NoSlot) {
			w.data.full++
		}
		w.free = append(w.free, i)
		return
	}
	w.arm(x)
}

func (w *World) arm(x *wire) {
	if at := mono.Min(x.l.NextWake(), x.first.NextWake()); at < x.due {
		x.due = at
		w.push(event{at, x.i})
	}
}

func (w *World) push(e event) {
	w.heap = append(w.heap, e)
	for i := len(w.heap) - 1; i > 0; {
		p := (i - 1) / 2
		if !w.heap[i].before(w.heap[p]) {
			return
		}
		w.heap[i], w.heap[p] = w.heap[p], w.heap[i]
		i = p
	}
}

func (w *World) pop() event {
	top, last := w.heap[0], len(w.heap)-1
	w.heap[0] = w.heap[last]
	w.heap = w.heap[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < last && w.heap[c+1].before(w.heap[c]) {
			c++
		}
		if c >= last || !w.heap[c].before(w.heap[i]) {
			return top
		}
		w.heap[i], w.heap[c] = w.heap[c], w.heap[i]
		i = c
	}
}

func (e event) before(f event) bool { return e.at < f.at || e.at == f.at && e.id < f.id }
