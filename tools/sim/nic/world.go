package nic

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/work"
)

// World is all hosts of a simulation.
type World struct {
	net   *fabric.Net
	graph *work.Graph
	tx    transmitter
	hosts []*host
	addrs []netip.Addr
	msgs  []message
	// next[nextAt[m]:nextAt[m+1]] are the messages that wait for m.
	next   []work.Edge
	nextAt []int32
	doms   []*scratch

	wireBytes int // of a full packet
	overhead  int
	nsPerByte float64
	control   bool // acknowledgements pass data
	warming   bool
	steady    bool
	warmAt    mono.Time // of a steady run: when its measurement begins
}

// New gives every host of a network its NIC and its connections. RC QPs carry both ways, so there is one connection for each
// pair of hosts that exchange messages.
func New(p *plan.Plan, n *fabric.Net, g *work.Graph, seed uint64) (*World, error) {
	t := &p.Topology
	w := &World{net: n, graph: g, tx: transmitter{p, seed}, msgs: make([]message, len(g.Messages)), wireBytes: t.WireBytes(), overhead: t.Overhead,
		nsPerByte: 8e9 / float64(t.RateBps), control: p.Switch.ControlClass, steady: p.Run.Steady}
	for range n.Threads() {
		w.doms = append(w.doms, newScratch())
	}
	for h := range int32(t.Hosts) {
		w.addrs = append(w.addrs, addrOf(h))
		x := &host{w: w, id: h, s: w.doms[n.Domain(h)], conns: map[int32]*conn{}}
		for pl := range t.Planes {
			x.ports = append(x.ports, n.Up(int(h), pl))
		}
		w.hosts = append(w.hosts, x)
		n.SetHost(int(h), x)
	}
	w.link()
	if p.Transport.NIC == plan.NICDevice {
		return w, w.connectWhole()
	}
	for _, x := range w.hosts {
		x.e = w.tx.engine(x.id, x)
		x.busy, _ = x.e.(interface{ SetBusy(planes uint32) })
	}
	w.connectAll()
	return w, nil
}

// link turns what messages wait for round: who waits for a message.
func (w *World) link() {
	g := w.graph
	w.next, w.nextAt = g.Followers()
	for i := range w.msgs {
		m, s := &g.Messages[i], &w.msgs[i]
		s.posted, s.acked, s.received = mono.Never, mono.Never, mono.Never
		s.pending = m.Edges
		if m.From != m.To {
			s.toCome = int32(w.parts(m.Size))
		}
	}
}

// connectAll makes the connections, in the order of the messages.
func (w *World) connectAll() {
	next := make([]uint32, len(w.hosts))
	qpns := rng.New(w.tx.seed, "queue pair numbers")
	for i := range next {
		next[i] = 0x100 + uint32(qpns.IntN(1<<22))
	}
	for _, p := range w.pairs() {
		a, b := w.hosts[p[0]], w.hosts[p[1]]
		ca, cb := w.join(a, b)
		for range max(1, w.tx.p.Transport.QPs) {
			qa, qb := next[a.id], next[b.id]
			next[a.id]++
			next[b.id]++
			w.lane(a, ca, qa, qb)
			w.lane(b, cb, qb, qa)
		}
	}
}

// pairs are the hosts that exchange messages, in the order of these.
func (w *World) pairs() (pairs [][2]int32) {
	seen := map[[2]int32]bool{}
	for i := range w.graph.Messages {
		m := &w.graph.Messages[i]
		k := [2]int32{min(m.From, m.To), max(m.From, m.To)}
		if m.From != m.To && !seen[k] {
			seen[k] = true
			pairs = append(pairs, [2]int32{m.From, m.To})
		}
	}
	return pairs
}

// join gives two hosts a connection.
func (w *World) join(a, b *host) (ca, cb *conn) {
	ca, cb = &conn{h: a, peer: b.id}, &conn{h: b, peer: a.id}
	a.conns[b.id], b.conns[a.id] = ca, cb
	a.list, b.list = append(a.list, ca), append(b.list, cb)
	return ca, cb
}

func (w *World) lane(h *host, c *conn, qpn, remote uint32) {
	l := &lane{c: c, slots: sqEntries}
	l.qp = w.tx.connect(h.e, w.net.Now, l, sqEntries, h.id, c.peer, qpn, remote)
	c.qps = append(c.qps, l)
}

// hostOf is the host with an address.
func (w *World) hostOf(a netip.Addr) (int32, bool) {
	b := a.As4()
	h := int32(b[1])<<16 | int32(b[2])<<8 | int32(b[3])
	return h, int(h) < len(w.hosts)
}

// warmBytes is what each connection carries before the clock of the plan begins.
const warmBytes = 4096

// Warm opens all associations with a message each way and lets the network come to rest: programs connect before they work.
// It goes on while more says so.
func (w *World) Warm(limit mono.Duration, more func() bool) error {
	w.warming = true
	defer func() { w.warming = false }()
	want := 0
	for _, h := range w.hosts {
		for _, c := range h.list {
			for _, l := range c.qps {
				want++
				l.wait = append(l.wait, part{0, warmBytes})
				h.freed = append(h.freed, l)
			}
		}
		if len(h.list) > 0 {
			w.net.Wake(h.id, w.net.Now)
		}
	}
	if err := w.net.Run(w.net.Now.Add(limit), func() bool { return more() && w.Ended() < want }); err != nil || !more() {
		return err
	}
	if n := w.Ended(); n < want {
		return fmt.Errorf("only %d of %d connections carried something within %v of virtual time", n, want, limit)
	}
	rest := w.net.Now.Add(20 * w.tx.p.Topology.RTT())
	err := w.net.Run(rest, more)
	for _, d := range w.doms {
		d.ended = 0
	}
	for _, h := range w.hosts {
		h.placed = 0
		for _, c := range h.list {
			for _, l := range c.qps {
				l.slots = sqEntries
			}
		}
	}
	return err
}

// Start puts the first messages on their way: the plan's time 0 is now.
func (w *World) Start() {
	now := w.net.Now
	w.warmAt = now.Add(w.tx.p.Run.Warm)
	for i := range w.graph.Messages {
		m := &w.graph.Messages[i]
		if m.Edges > 0 {
			continue
		}
		n := 1
		if w.steady {
			n = max(1, w.tx.p.Run.Depth)
		}
		for range n {
			w.hosts[m.From].pushTimed(timed{now.Add(mono.Duration(m.Start)), int32(i)})
		}
	}
	for _, h := range w.hosts {
		if len(h.timed) > 0 {
			w.net.Wake(h.id, max(now, h.timed[0].at))
		}
	}
}

// Ended is how many messages have ended, well or not; in a steady run, completions.
func (w *World) Ended() (n int) {
	for _, d := range w.doms {
		n += d.ended
	}
	return n
}

// Placed is how many bytes are in the hosts' memories.
func (w *World) Placed() (n uint64) {
	for _, h := range w.hosts {
		n += h.placed
	}
	return n
}

// PlacedAt is the same of one host.
func (w *World) PlacedAt(host int) uint64 { return w.hosts[host].placed }

// Retransmits is how many packets have been sent again.
func (w *World) Retransmits() (n uint64) {
	for _, h := range w.hosts {
		n += retransmits(h.e)
	}
	return n
}

// Took are the times that requests of a steady run took, those that ended since it is measured; shortest first.
func (w *World) Took() []mono.Duration {
	var all []mono.Duration
	for _, h := range w.hosts {
		all = append(all, h.took...)
	}
	slices.Sort(all)
	return all
}

// Message returns what became of message i.
func (w *World) Message(i int) work.Outcome {
	s := &w.msgs[i]
	m := work.Outcome{Posted: s.posted, Received: s.received, Acked: s.acked}
	if s.failed {
		m.Error = "failed"
		g := &w.graph.Messages[i]
		if c := w.hosts[g.From].conns[g.To]; c != nil && c.err != 0 {
			m.Error = c.err.String()
		}
	}
	return m
}
