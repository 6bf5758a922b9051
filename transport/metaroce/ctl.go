package metaroce

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// ctlPacket is a small control packet that waits to be sent.
type ctlPacket struct {
	class    uint8 // DSCP, in its place in TOS
	src, dst netip.Addr
	plane    int
	n        int
	tag      uint32
	op       wire.Opcode
	buf      []byte
}

func (c *ctlPacket) fill(a *assoc, plane int, op wire.Opcode, n int) {
	*c = ctlPacket{src: a.local, dst: a.remote, plane: plane, op: op, tag: a.txTag, n: n, buf: c.buf}
}

// ctlQueue is a bounded ring: what does not fit is counted and comes again by its own timer.
type ctlQueue struct {
	q          [128]ctlPacket
	head, tail uint
	staleAt    mono.Time // not before this another STALE
}

const shortProbe = 128 // longest probe that is answered in the control class

const ctlBytes = 640 // longest control payload

// next returns a free entry, or nil.
func (c *ctlQueue) next() *ctlPacket {
	if c.tail-c.head == uint(len(c.q)) {
		return nil
	}
	p := &c.q[c.tail%uint(len(c.q))]
	if p.buf == nil {
		p.buf = make([]byte, ctlBytes)
	}
	p.n = 0
	c.tail++
	return p
}

// answer returns a free entry for the answer to a probe, or nil: the last quarter is kept for handshakes, which a flood
// of probes must not stop.
func (c *ctlQueue) answer() *ctlPacket {
	if c.tail-c.head >= uint(3*len(c.q)/4) {
		return nil
	}
	return c.next()
}

// sendControl moves what waits into the batch.
func (e *Engine) sendControl(b *pkt.Batch) {
	q := &e.ctl
	for ; q.head != q.tail && !b.Full(); q.head++ {
		c := &q.q[q.head%uint(len(q.q))]
		if c.n == 0 {
			continue // taken and not filled
		}
		out := b.Next()
		//= MR-WIRE-011 MR-WIRE-021 MR-REL-003 MR-ASC-001 MR-PATH-051
		h := wire.Header{Op: c.op, PKey: 0xFFFF, Tag: c.tag, Path: uint16(c.plane << 8), Version: wire.Version, TS: e.stamp()}
		hdrLen := h.Size()
		copy(out.Buf[pkt.Headroom+hdrLen:], c.buf[:c.n])
		e.sealPacket(out, &h, hdrLen, c.n)
		out.Plane, out.Src, out.Dst, out.SrcPort, out.TOS = uint8(c.plane), c.src, c.dst, 0xC000|uint16(c.plane), c.class|pkt.ECT0
	}
}
