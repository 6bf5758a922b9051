// Package transporttest is a small world in virtual time: nodes with real engines and plain memory, joined by one
// modelled link for each plane and direction. Everything is driven by one seed; the same seed gives the same trace.
package transporttest

import (
	"fmt"
	"hash/crc32"
	"net/netip"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// PacketMax is the largest packet of the world's links: MTU 4096 and every header.
const PacketMax = 4096 + 124

// Config makes a World.
type Config struct {
	Seed   uint64
	Nodes  int // 2 if 0
	Planes int // 1 if 0
	Link   link.Spec
	Engine func(*metaroce.Config) // last word on an engine's configuration
	Memory int                    // bytes of a node; 4 MiB if 0
	Step   mono.Duration          // most time between two looks at the nodes; a millisecond if 0. Long: what misses its wake-up shows
}

// World is nodes, links and a clock.
type World struct {
	Now   mono.Time
	Nodes []*Node
	cfg   Config
	rnd   *rng.Source
	links [][][]*hop // [src][dst][plane]
	Hash  uint64     // of everything delivered, for determinism tests
	Wire  uint64     // packets delivered
	Tap   func(src, dst, plane int, data []byte)
}

// hop is one direction of one plane between two nodes, with the bytes of what is on it.
type hop struct {
	l    *link.Link
	bufs [][]byte
	meta []pkt.Packet
	free []link.Handle
}

// Node is one NIC and its program.
type Node struct {
	W    *World
	I    int
	Addr netip.Addr
	E    *metaroce.Engine
	Memory
	QPs   []*QP
	batch *pkt.Batch
	rx    []pkt.Packet
	Log   []transport.Event
}

// QP is a queue pair of a node with its receive queue and what completed.
type QP struct {
	*metaroce.QP
	N        *Node
	Peer     *QP
	Recvs    []*transport.RecvWR
	Sends    []Completion
	Received []Completion
	Err      transport.Status
	Failed   bool
	Errors   int
	OnRecv   func(c Completion)
	OnSend   func(c Completion)
}

// Completion is one completion, of either queue.
type Completion struct {
	ID     uint64
	Status transport.Status
	Op     transport.Op
	Len    uint32
	Imm    uint32
	At     mono.Time
	SE     bool
}

// New makes a world.
func New(c Config) *World {
	if c.Nodes == 0 {
		c.Nodes = 2
	}
	if c.Planes == 0 {
		c.Planes = 1
	}
	if c.Memory == 0 {
		c.Memory = 4 << 20
	}
	w := &World{Now: 1_000_000, cfg: c, rnd: rng.New(c.Seed, "world")}
	for i := range c.Nodes {
		w.Nodes = append(w.Nodes, w.newNode(i, uint64(i)+1))
	}
	w.links = make([][][]*hop, c.Nodes)
	for s := range w.links {
		w.links[s] = make([][]*hop, c.Nodes)
		for d := range w.links[s] {
			for p := range c.Planes {
				h := &hop{l: link.New(c.Seed, fmt.Sprintf("link %d-%d/%d", s, d, p), 8192), bufs: make([][]byte, 8192), meta: make([]pkt.Packet, 8192)}
				for i := range h.bufs {
					h.free = append(h.free, link.Handle(len(h.bufs)-1-i))
				}
				w.links[s][d] = append(w.links[s][d], h)
			}
		}
	}
	w.SetLinks(c.Link)
	return w
}

func (w *World) newNode(i int, instance uint64) *Node {
	n := &Node{W: w, I: i, Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Memory: Memory{Mem: make([]byte, w.cfg.Memory), Keys: map[uint32]Key{}},
		batch: pkt.NewBatch(pkt.Burst, PacketMax), rx: make([]pkt.Packet, 0, pkt.Burst)}
	n.Start(instance)
	return n
}

// Start gives the node a new engine, as a daemon that was started (again) has: nothing of the old one is known.
func (n *Node) Start(instance uint64) {
	ec := metaroce.Config{NICID: uint64(n.I) + 100, Instance: instance, Seed: n.W.cfg.Seed ^ instance<<32 ^ uint64(n.I), Addrs: []netip.Addr{n.Addr}}
	for range n.W.cfg.Planes {
		ec.Planes = append(ec.Planes, metaroce.PlaneConfig{PacketMax: PacketMax, RateBps: n.W.cfg.Link.RateBps})
	}
	if n.W.cfg.Engine != nil {
		n.W.cfg.Engine(&ec)
	}
	n.E = metaroce.New(ec, host{n})
	n.QPs = nil
}

// SetLinks changes all links.
func (w *World) SetLinks(s link.Spec) {
	for i := range w.links {
		for j := range w.links[i] {
			for p := range w.links[i][j] {
				w.SetLink(i, j, p, s)
			}
		}
	}
}

// SetPlane changes one plane between all nodes, both directions.
func (w *World) SetPlane(plane int, s link.Spec) {
	for i := range w.links {
		for j := range w.links[i] {
			w.SetLink(i, j, plane, s)
		}
	}
}

// SetLink changes one direction of one plane.
func (w *World) SetLink(src, dst, plane int, s link.Spec) {
	if err := w.links[src][dst][plane].l.Set(w.Now, s); err != nil {
		panic(err)
	}
}

// Spec returns the links' first setting.
func (w *World) Spec() link.Spec { return w.cfg.Link }

// Step runs every node once at the present time: packets in, timers, packets out.
func (w *World) Step() {
	for _, n := range w.Nodes {
		n.step()
	}
}

// Advance moves the clock to the next thing that happens, by Config.Step at most: in between, the test may post
// something.
func (w *World) Advance() {
	step := w.cfg.Step
	if step == 0 {
		step = mono.Millisecond
	}
	next := w.Now.Add(step)
	for i, n := range w.Nodes {
		next = mono.Min(next, n.E.NextTimeout())
		for d := range w.Nodes {
			for _, h := range w.links[i][d] {
				next = mono.Min(next, h.l.NextWake())
			}
		}
	}
	w.Now = max(w.Now, next)
}

// RunUntil goes on until done reports true, or the time limit. It reports whether done was reached.
func (w *World) RunUntil(limit mono.Duration, done func() bool) bool {
	for end := w.Now.Add(limit); ; w.Advance() {
		w.Step()
		if done() {
			return true
		}
		if w.Now >= end {
			return false
		}
	}
}

// Run steps for a span of virtual time.
func (w *World) Run(d mono.Duration) { w.RunUntil(d, func() bool { return false }) }

// step is the node's device: packets in, timers, packets out.
func (n *Node) step() {
	w := n.W
	for s := range w.Nodes {
		for p, h := range w.links[s][n.I] {
			n.receive(s, p, h)
		}
	}
	n.E.HandleTimers(w.Now)
	for range 64 {
		n.batch.Reset()
		n.E.Transmit(w.Now, n.batch)
		if n.batch.N == 0 {
			return
		}
		for i := range n.batch.N {
			w.send(n, &n.batch.Pkts[i])
		}
	}
}

func (n *Node) receive(src, plane int, h *hop) {
	w := n.W
	n.rx = n.rx[:0]
	var done []link.Handle
	for {
		o, ok := h.l.Next(w.Now)
		if ok && !o.Lost {
			p := h.meta[o.Handle]
			p.Data = append([]byte(nil), h.bufs[o.Handle]...)
			p.Time, p.Plane = w.Now, uint8(plane)
			if o.CE {
				p.TOS |= pkt.CE
			}
			if o.Corrupt {
				b := int(o.Bit) % (8 * len(p.Data))
				p.Data[b/8] ^= 1 << (b % 8)
			}
			w.note(src, n.I, plane, p.Data)
			n.rx = append(n.rx, p)
		}
		if ok && o.Last {
			done = append(done, o.Handle)
		}
		if !ok || len(n.rx) == cap(n.rx) {
			n.E.HandlePackets(w.Now, n.rx)
			n.rx = n.rx[:0]
			if !ok {
				break
			}
		}
	}
	h.free = append(h.free, done...)
}

// note mixes a delivery into the trace's hash.
func (w *World) note(src, dst, plane int, data []byte) {
	w.Wire++
	x := w.Hash ^ uint64(w.Now) ^ uint64(src<<16|dst<<8|plane)<<40
	w.Hash = (x ^ digest(data)) * 0x100000001b3
	if w.Tap != nil {
		w.Tap(src, dst, plane, data)
	}
}

// digest is no CRC-32 (IEEE): over a packet that ends in its own ICRC, that is one number for all.
func digest(b []byte) uint64 { return uint64(crc32.Checksum(b, castagnoli)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (w *World) send(n *Node, p *pkt.Packet) {
	for d, m := range w.Nodes {
		if m.Addr != p.Dst {
			continue
		}
		h := w.links[n.I][d][p.Plane]
		if len(h.free) == 0 {
			return
		}
		i := h.free[len(h.free)-1]
		if h.l.Send(w.Now, i, len(p.Data)+42, p.TOS&pkt.ECNMask != 0) != link.Queued {
			return
		}
		h.free = h.free[:len(h.free)-1]
		h.bufs[i] = append(h.bufs[i][:0], p.Data...)
		h.meta[i] = pkt.Packet{Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TOS: p.TOS}
	}
}
