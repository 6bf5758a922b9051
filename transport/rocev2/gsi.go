package rocev2

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// QP 1 is the general services interface: datagrams of 256 bytes (MADs) by which connection managers talk. It belongs to
// the NIC, not to a program, and has no queues in anybody's memory: what is to be sent waits in a ring here, what comes is
// handed over at once.

// MADLen is the length of every MAD.
const MADLen = 256

const (
	gsiQPN  = 1
	gsiQKey = 0x8001_0000
	gsiRing = 512 // MADs that wait to be sent; their sender repeats what is lost
)

// MADHandler is given each MAD that arrives. The bytes are not kept.
type MADHandler func(now mono.Time, src, dst netip.Addr, mad []byte)

type madOut struct {
	local, remote netip.Addr
	data          [MADLen]byte
}

// gsi is the state of QP 1.
type gsi struct {
	handler MADHandler
	ring    []madOut // nil until the first is sent
	head, n int
	psn     uint32
	plane   int // used last: a repetition takes another one
}

// OnMAD sets who is given the MADs to QP 1. Without a handler they are dropped.
func (e *Engine) OnMAD(h MADHandler) { e.gsi.handler = h }

// SendMAD queues a MAD for QP 1 of a NIC. False: the queue is full, it is dropped.
func (e *Engine) SendMAD(local, remote netip.Addr, mad *[MADLen]byte) bool {
	g := &e.gsi
	if g.ring == nil {
		g.ring = make([]madOut, gsiRing)
	}
	if g.n == len(g.ring) || local.Is4() != remote.Is4() {
		e.C.DropMadTx++
		return false
	}
	m := &g.ring[(g.head+g.n)%len(g.ring)]
	m.local, m.remote, m.data = local, remote, *mad
	g.n++
	return true
}

// onMAD hands a datagram to QP 1 over.
func (e *Engine) onMAD(p *pkt.Packet, h *ib.Header, payload []byte) {
	//= MR-COEX-036
	if h.Op != ib.UDSend || h.QKey != gsiQKey || len(payload) != MADLen || p.Dst.IsMulticast() || e.gsi.handler == nil {
		e.C.DropMadRx++
		return
	}
	e.C.RxMad++
	e.gsi.handler(e.lastCall, p.Src, p.Dst, payload)
}

// gsiPlane is a plane that can take a MAD now, the one after the last used first, and when else one can; ok is false when
// none has a link.
func (e *Engine) gsiPlane() (plane int, at mono.Time, ok bool) {
	at = never
	for i := range e.planes {
		n := (e.gsi.plane + 1 + i) % len(e.planes)
		p := &e.planes[n]
		if !p.up || p.mtu < MADLen {
			continue
		}
		if free := p.free.Add(-p.ahead); free < at {
			plane, at, ok = n, free, true
			if free <= e.now {
				break
			}
		}
	}
	return plane, at, ok
}

// transmitMADs sends what waits, as the planes' rates let it. Each MAD takes the next plane: one that loses everything
// then loses every n-th try.
func (e *Engine) transmitMADs(b *pkt.Batch) {
	g := &e.gsi
	for g.n > 0 && !b.Full() {
		plane, at, ok := e.gsiPlane()
		if ok && at > e.now {
			return
		}
		m := &g.ring[g.head]
		g.head = (g.head + 1) % len(g.ring)
		g.n--
		if !ok {
			e.C.DropMadTx++
			continue
		}
		g.plane = plane
		e.sendMAD(b.Next(), m, plane)
	}
}

func (e *Engine) sendMAD(p *pkt.Packet, m *madOut, plane int) {
	p.Plane, p.Src, p.Dst, p.TOS, p.TTL, p.FlowLabel = uint8(plane), m.local, m.remote, 0, gsiHops, 0
	//= MR-COEX-037
	p.SrcPort = sourcePort(0, gsiQPN, gsiQPN)
	h := ib.Header{Op: ib.UDSend, PKey: ib.PKeyDefault, DestQP: gsiQPN, PSN: serial.Trunc(uint64(e.gsi.psn)), QKey: gsiQKey, SrcQP: gsiQPN}
	e.gsi.psn++
	buf := p.Buf[pkt.Headroom:]
	n := h.Put(buf)
	n += copy(buf[n:], m.data[:])
	p.Data = buf[:n+ib.ICRCLen]
	e.sealICRC(p)
	e.C.TxPackets++
	e.C.TxBytes += uint64(len(p.Data))
	e.C.TxMad++
	e.charge(plane, p, len(p.Data))
}

const gsiHops = 64
