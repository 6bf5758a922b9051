package vopr

import (
	"fmt"
	"hash/crc32"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// hop is one direction of one plane between two nodes, with the bytes of what is on it.
type hop struct {
	l    *link.Link
	base link.Spec
	down bool // this direction only
	bufs [][]byte
	meta []pkt.Packet
	free []link.Handle
}

const hopSlots = 1024

// hop returns a link, made on first use.
func (w *World) hop(src, dst, plane int) *hop {
	i := (src*len(w.nodes)+dst)*w.plan.Planes + plane
	if h := w.hops[i]; h != nil {
		return h
	}
	h := &hop{l: link.New(w.plan.Seed, fmt.Sprintf("link %d-%d/%d", src, dst, plane), hopSlots), base: w.plan.Link}
	if src == dst {
		h.base = link.Spec{Delay: mono.Microsecond}
	} else if w.plan.has(Asymmetric) {
		r := w.asym
		h.base.Delay = mono.Duration(float64(h.base.Delay) * (0.3 + 3*r.Float64()))
		h.base.Loss = min(0.5, h.base.Loss*1.5*r.Float64())
		h.base.RateBps = uint64(float64(h.base.RateBps) * (0.3 + r.Float64()))
		if r.IntN(6) == 0 {
			h.base.Loss = 0
		}
	}
	w.hops[i] = h
	w.apply(src, dst, plane)
	return h
}

// apply gives a link what holds for it now.
func (w *World) apply(src, dst, plane int) {
	h := w.hops[(src*len(w.nodes)+dst)*w.plan.Planes+plane]
	if h == nil {
		return
	}
	s := h.base
	if src != dst {
		if w.healed {
			s = link.Spec{Delay: h.base.Delay, RateBps: h.base.RateBps, Queue: max(h.base.Queue, 1<<20)}
		} else {
			s.Down = h.down || w.nodes[src].portDown[plane] || w.nodes[dst].portDown[plane]
		}
	}
	if err := h.l.Set(w.now, s); err != nil {
		panic(err)
	}
}

func (w *World) applyAll() {
	for s := range w.nodes {
		for d := range w.nodes {
			for p := range w.plan.Planes {
				w.apply(s, d, p)
			}
		}
	}
}

// joined reports whether some plane carries packets both ways between two nodes.
func (w *World) joined(a, b int) bool {
	for p := range w.plan.Planes {
		x, y := w.hop(a, b, p), w.hop(b, a, p)
		if !x.l.Spec().Down && !y.l.Spec().Down {
			return true
		}
	}
	return a == b
}

// send puts a packet of node n on its link.
func (w *World) send(n *node, p *pkt.Packet) {
	for d, m := range w.nodes {
		if m.addr != p.Dst {
			continue
		}
		h := w.hop(n.i, d, int(p.Plane))
		if len(h.free) == 0 && len(h.bufs) < hopSlots {
			h.bufs, h.meta = append(h.bufs, nil), append(h.meta, pkt.Packet{})
			h.free = append(h.free, link.Handle(len(h.bufs)-1))
		}
		if len(h.free) == 0 {
			return
		}
		w.packets++
		i := h.free[len(h.free)-1]
		v := h.l.Send(w.now, i, len(p.Data)+42, p.TOS&pkt.ECNMask != 0)
		if w.trace != nil {
			w.tr("%s  %s  %s", pair(n.i, d, int(p.Plane)), describe(p.Data), v)
		}
		if v == link.QueueFull && w.plan.Tune.TrimDSCP != 0 && len(p.Data) > trimTo {
			v = w.trim(h, i, p)
		}
		if v != link.Queued {
			return
		}
		h.free = h.free[:len(h.free)-1]
		h.bufs[i] = append(h.bufs[i][:0], p.Data...)
		h.meta[i] = pkt.Packet{Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TOS: p.TOS}
		m.arrival = mono.Min(m.arrival, h.l.NextWake())
	}
}

// digest is what a packet adds to the trace's hash. It is no CRC-32 (IEEE): over a packet that ends in its own ICRC, that is
// one number for all.
func digest(b []byte) uint64 { return uint64(crc32.Checksum(b, castagnoli)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trimTo is what a switch leaves of a packet, from BTH on.
const trimTo = 64

// trim cuts a packet that found the queue full: what is left waits for nobody.
func (w *World) trim(h *hop, i link.Handle, p *pkt.Packet) link.Verdict {
	s := h.l.Spec()
	whole := s
	s.Queue = 0
	_ = h.l.Set(w.now, s) // both are good: one held before
	p.Data, p.TOS = p.Data[:trimTo], w.plan.Tune.TrimDSCP<<2
	if w.asym.IntN(2) == 0 {
		p.TOS = w.plan.Tune.TrimLastDSCP << 2
	}
	v := h.l.Send(w.now, i, trimTo+42, false)
	_ = h.l.Set(w.now, whole)
	w.tr("  trimmed: %v", v)
	return v
}

// receive hands the node what has arrived on a link, in bursts.
func (n *node) receive(src, plane int) {
	w := n.w
	h := w.hops[(src*len(w.nodes)+n.i)*w.plan.Planes+plane]
	if h == nil {
		return
	}
	n.rx = n.rx[:0]
	for {
		o, ok := h.l.Next(w.now)
		if ok && !o.Lost {
			p := h.meta[o.Handle]
			p.Data = n.copyIn(h.bufs[o.Handle])
			p.Time, p.Plane = n.clock(), uint8(plane)
			if o.CE {
				p.TOS |= pkt.CE
			}
			if o.Corrupt {
				b := int(o.Bit) % (8 * len(p.Data))
				p.Data[b/8] ^= 1 << (b % 8)
			}
			w.mix(uint64(src<<16|n.i<<8|plane), digest(p.Data))
			if w.trace != nil {
				w.tr("%s  %s  arrives", pair(src, n.i, plane), describe(p.Data))
			}
			n.rx = append(n.rx, p)
		}
		if ok && o.Last {
			h.free = append(h.free, o.Handle)
		}
		if !ok || len(n.rx) == cap(n.rx) {
			if len(n.rx) > 0 {
				n.eng.HandlePackets(n.clock(), n.rx)
			}
			n.rx, n.rxUsed = n.rx[:0], 0
			if !ok {
				return
			}
		}
	}
}

// copyIn copies a packet into the node's ring: a duplicate or the next user of the handle must not change it.
func (n *node) copyIn(b []byte) []byte {
	if n.rxUsed+len(b) > len(n.rxMem) {
		n.rxMem, n.rxUsed = make([]byte, max(64<<10, 2*len(b))), 0
	}
	c := n.rxMem[n.rxUsed : n.rxUsed+len(b) : n.rxUsed+len(b)]
	n.rxUsed += len(b)
	copy(c, b)
	return c
}
