package device

import (
	"math/bits"
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

const _ = uint(heldRoom - 2*pkt.Burst) // and no less

// plane is one wire of the NIC and what the device keeps for it.
type plane struct {
	index   uint8
	port    Port
	caps    PortCaps
	admin   bool // not switched off by command
	up      bool // admin and link
	gate    rxGate
	sleeper SleepPort  // the port, if it is one
	held    *pkt.Batch // packets that the wire refused; offered again before anything else goes
	heldAt  mono.Time  // when the wire last took something
	C       PlaneCounters
	txRoom  [pkt.Burst]pkt.Packet
	txFrom  [pkt.Burst]uint8 // places in the NIC's batch of what is in txRoom
	txCount int
}

// PlaneCounters count what the device did with a plane.
type PlaneCounters struct {
	RxPackets, RxBytes, TxPackets, TxBytes   uint64
	TxRefused, TxDropped, RxDroppedAdminDown uint64
	EthRx, EthTx, EthDropped                 uint64
}

// hostPort is the host's own network interface behind the NIC.
type hostPort struct {
	port  Port
	gate  rxGate
	rx    []pkt.Packet
	batch *pkt.Batch // frames on their way to a plane, with headroom
	C     HostPortCounters
}

// HostPortCounters count frames between the host port and the planes.
type HostPortCounters struct {
	RxPackets, RxBytes, TxPackets, TxBytes, Dropped uint64
}

// frameMax is the largest frame that crosses the host port (jumbo, plus headers).
const frameMax = 9216 + 64

func newHostPort(p Port) *hostPort {
	return &hostPort{port: p, gate: rxGate{waits: len(p.FDs()) > 0}, rx: make([]pkt.Packet, pkt.Burst), batch: pkt.NewBatch(pkt.Burst, frameMax)}
}

// rxGate saves system calls: where somebody watches the wires' descriptors (UseReadiness), a wire is asked only when
// it has something.
type rxGate struct {
	waits bool // the wire has descriptors
	ready bool
	last  mono.Time
}

// rxAnyway is how often a wire is asked all the same: drivers keep house in RxBurst.
const rxAnyway = mono.Millisecond

// UseReadiness says that the caller watches the descriptors of Port(i).FDs() and calls Ready when one is readable.
func (n *NIC) UseReadiness() { n.readiness = true }

// Ready reports that a descriptor of port i is readable; i = len(planes) is the host port.
func (n *NIC) Ready(i int) {
	if i < len(n.planes) {
		n.planes[i].gate.ready = true
	} else if n.host != nil {
		n.host.gate.ready = true
	}
}

// Readiness reports whether a wire is asked for packets only after its descriptor said that there are some.
func (n *NIC) Readiness() bool {
	for _, p := range n.planes {
		if p.gate.waits {
			return true
		}
	}
	return n.host != nil && n.host.gate.waits
}

// Wires are all ports: the planes in order, then the host port if there is one.
func (n *NIC) Wires() []Port {
	ps := append([]Port(nil), n.cfg.Ports...)
	if n.host != nil {
		ps = append(ps, n.host.port)
	}
	return ps
}

// rxBurst asks a wire for packets, if that makes sense.
func (n *NIC) rxBurst(g *rxGate, p Port, ps []pkt.Packet) int {
	if n.readiness && g.waits && !g.ready && n.now.Sub(g.last) < rxAnyway && p.NextWake() > n.now {
		return 0
	}
	g.last = n.now
	k := p.RxBurst(n.now, ps)
	if k == 0 {
		g.ready = false // a descriptor that is readable still says so again
	}
	return k
}

// receive takes one burst of every plane and of the host port. The engine gets all RoCE packets in one call, so that
// what they bring to one program's memory goes there together.
func (n *NIC) receive() bool {
	worked, roce := false, 0
	for _, p := range n.planes {
		room := n.rx[roce : roce+pkt.Burst]
		k := n.rxBurst(&p.gate, p.port, room)
		if k == 0 {
			continue
		}
		worked = true
		if !p.admin {
			p.C.RxDroppedAdminDown += uint64(k)
			continue
		}
		roce += n.sort(p, room[:k])
	}
	if roce > 0 {
		n.eng.HandlePackets(n.now, n.rx[:roce])
		n.settle()
	}
	if n.host != nil {
		if k := n.rxBurst(&n.host.gate, n.host.port, n.host.rx); k > 0 {
			worked = true
			n.fromHost(n.host.rx[:k])
		}
	}
	return worked
}

// sort moves the RoCE packets of a burst to its beginning, in order, and returns how many they are; runs of Ethernet
// frames go to the host.
func (n *NIC) sort(p *plane, ps []pkt.Packet) (roce int) {
	for i := 0; i < len(ps); {
		run := i
		for run < len(ps) && ps[run].Kind == ps[i].Kind {
			ps[run].Plane = p.index
			if ps[run].Kind == pkt.RoCE {
				p.C.RxBytes += uint64(len(ps[run].Data))
				if ps[run].Dst.IsMulticast() {
					n.C.RxMulticast++
				}
			}
			run++
		}
		if ps[i].Kind == pkt.RoCE {
			p.C.RxPackets += uint64(run - i)
			roce += copy(ps[roce:], ps[i:run])
		} else {
			p.C.EthRx += uint64(run - i)
			n.toHost(p, ps[i:run])
		}
		i = run
	}
	return roce
}

func (n *NIC) toHost(p *plane, ps []pkt.Packet) {
	if n.host == nil {
		p.C.EthDropped += uint64(len(ps))
		return
	}
	sent := n.host.port.TxBurst(n.now, ps)
	for i := range ps[:sent] {
		n.host.C.TxBytes += uint64(len(ps[i].Data))
	}
	n.host.C.TxPackets += uint64(sent)
	n.host.C.Dropped += uint64(len(ps) - sent)
}

// fromHost sends the host's frames, each over the plane that a hash of its addresses names, so that the order within
// a flow holds while nothing fails. What the wire refuses is lost, as on any Ethernet.
func (n *NIC) fromHost(ps []pkt.Packet) {
	h := n.host
	var to *plane // where the frames in the batch go
	for i := range ps {
		h.C.RxPackets++
		h.C.RxBytes += uint64(len(ps[i].Data))
		p := n.planeFor(ps[i].Data)
		if p == nil || len(ps[i].Data) > frameMax {
			h.C.Dropped++
			continue
		}
		if p != to || h.batch.Full() {
			n.sendFrames(to)
			to = p
		}
		out := h.batch.Next()
		out.Kind, out.Plane, out.Time = pkt.Ethernet, p.index, n.now
		out.Data = append(out.Data, ps[i].Data...)
	}
	n.sendFrames(to)
}

// sendFrames sends the host port's batch over a plane.
func (n *NIC) sendFrames(p *plane) {
	b := n.host.batch
	if b.N > 0 {
		k := p.port.TxBurst(n.now, b.Pkts[:b.N])
		p.C.EthTx += uint64(k)
		p.C.EthDropped += uint64(b.N - k)
		b.Reset()
	}
}

// planeFor picks the plane of a frame: broadcast and multicast the lowest living one, others by hash.
func (n *NIC) planeFor(frame []byte) *plane {
	alive := 0
	var first *plane
	for _, p := range n.planes {
		if p.up && p.caps.EthernetOK {
			if alive++; first == nil {
				first = p
			}
		}
	}
	if alive == 0 || len(frame) < 14 || frame[0]&1 != 0 {
		return first
	}
	pick := int(flowHash(frame) % uint32(alive))
	for _, p := range n.planes {
		if p.up && p.caps.EthernetOK {
			if pick--; pick < 0 {
				return p
			}
		}
	}
	return first
}

// flowHash covers the addresses of a frame: IP where there is one, else MAC. Both directions give the same plane.
func flowHash(f []byte) uint32 {
	var a, b []byte
	switch et := uint16(f[12])<<8 | uint16(f[13]); {
	case et == 0x0800 && len(f) >= 34:
		a, b = f[26:30], f[30:34]
	case et == 0x86dd && len(f) >= 54:
		a, b = f[22:38], f[38:54]
	default:
		a, b = f[0:6], f[6:12]
	}
	h := uint32(2166136261)
	for i := range a {
		h = (h ^ uint32(a[i]^b[i])) * 16777619
	}
	return h ^ h>>15
}

// transmit offers held packets again, then lets the engine fill bursts, with data for the planes only that take it.
func (n *NIC) transmit() bool {
	worked := false
	for range txPerStep {
		busy, full := uint32(0), false
		for _, p := range n.planes {
			if p.held.N > 0 && !n.offerHeld(p) {
				busy |= 1 << p.index
				full = full || p.held.N > heldRoom-pkt.Burst // a burst more might not find room
			}
		}
		if full || bits.OnesCount32(busy) == len(n.planes) { // the engine would only fill what cannot go
			return worked
		}
		n.eng.SetBusy(busy)
		n.batch.Reset()
		n.eng.Transmit(n.now, n.batch)
		if n.batch.N == 0 {
			return worked
		}
		worked = true
		n.spread()
		if n.batch.N < pkt.Burst && len(n.loop) == 0 {
			return worked
		}
	}
	return worked
}

// spread sends the batch: each packet to its plane, those to the NIC's own addresses back to the engine.
func (n *NIC) spread() {
	n.loop = n.loop[:0]
	for i := range n.batch.Pkts[:n.batch.N] {
		p := &n.batch.Pkts[i]
		own := n.own(p.Dst)
		group := !own && p.Dst.IsMulticast()
		if group {
			n.C.TxMulticast++
		}
		if own || group && n.groups[p.Dst] > 0 {
			p.Time = n.now
			n.loop = append(n.loop, *p)
			n.C.LoopbackBytes += uint64(len(p.Data))
			if group {
				n.C.EchoPackets++
				n.C.EchoBytes += uint64(len(p.Data))
			}
		}
		if own {
			continue
		}
		pl := n.planes[int(p.Plane)%len(n.planes)]
		pl.txRoom[pl.txCount], pl.txFrom[pl.txCount] = *p, uint8(i)
		pl.txCount++
	}
	for _, pl := range n.planes {
		if pl.txCount > 0 {
			n.send(pl, pl.txRoom[:pl.txCount])
			if n.lent {
				for i, from := range pl.txFrom[:pl.txCount] {
					n.batch.Pkts[from].Buf = pl.txRoom[i].Buf
				}
			}
			pl.txCount = 0
		}
	}
	if len(n.loop) > 0 {
		n.C.LoopbackPackets += uint64(len(n.loop))
		n.eng.HandlePackets(n.now, n.loop)
		n.settle()
	}
}

// send gives packets to a wire and copies what it refuses.
func (n *NIC) send(pl *plane, ps []pkt.Packet) {
	if !pl.admin {
		pl.C.TxDropped += uint64(len(ps))
		return
	}
	k := 0
	if pl.held.N == 0 { // else it goes behind what is held
		k = pl.port.TxBurst(n.now, ps)
		n.sent(pl, ps[:k])
		pl.heldAt = n.now
	}
	for i := range ps[k:] {
		p := &ps[k+i]
		pl.C.TxRefused++
		h := pl.held.Next()
		if h == nil {
			pl.C.TxDropped++
			continue
		}
		buf, room := h.Buf, h.Data
		*h = *p
		h.Buf, h.Data = buf, append(room, p.Data...)
	}
}

func (n *NIC) sent(pl *plane, ps []pkt.Packet) {
	for i := range ps {
		pl.C.TxBytes += uint64(len(ps[i].Data))
	}
	pl.C.TxPackets += uint64(len(ps))
}

// offerHeld tries again with what a wire refused; a wire that takes nothing for long loses it. Reports whether
// nothing is held any more.
func (n *NIC) offerHeld(pl *plane) bool {
	h, k := pl.held, 0
	if pl.admin {
		k = pl.port.TxBurst(n.now, h.Pkts[:min(h.N, pkt.Burst)])
	}
	n.sent(pl, h.Pkts[:k])
	switch {
	case k == h.N:
	case k > 0:
		for i := range h.Pkts[k:h.N] { // buffers change places, none is lost
			h.Pkts[i], h.Pkts[k+i] = h.Pkts[k+i], h.Pkts[i]
		}
		h.N -= k
		pl.heldAt = n.now
		return false
	case pl.admin && n.now.Sub(pl.heldAt) < stuckWire:
		return false
	default:
		pl.C.TxDropped += uint64(h.N)
	}
	h.Reset()
	pl.heldAt = n.now
	return true
}

func (n *NIC) own(a netip.Addr) bool {
	for _, x := range n.cfg.Addrs {
		if x == a {
			return true
		}
	}
	return false
}

// checkLinks looks at every wire's link and tells the engine of changes.
func (n *NIC) checkLinks() {
	n.linkCheck = n.now.Add(linkCheck)
	for _, p := range n.planes {
		up := p.admin && p.port.LinkUp()
		if up == p.up {
			continue
		}
		before := n.planesUp()
		p.up = up
		n.eng.SetPlane(n.now, int(p.index), up)
		kind := transport.EventPlaneDown
		if up {
			kind = transport.EventPlaneUp
		}
		n.onEvent(transport.Event{Kind: kind, Plane: int(p.index)})
		if after := n.planesUp(); (before == 0) != (after == 0) {
			if after == 0 {
				n.C.LinkDowns++
			}
			n.portEvent(after > 0)
		}
	}
}

func (n *NIC) planesUp() int {
	up := 0
	for _, p := range n.planes {
		if p.up {
			up++
		}
	}
	return up
}

// SetPlane switches a plane off and on by command.
func (n *NIC) SetPlane(now mono.Time, i int, up bool) bool {
	if i < 0 || i >= len(n.planes) {
		return false
	}
	n.now = now
	n.planes[i].admin = up
	n.checkLinks()
	n.settle()
	return true
}

// borrow makes the batch of buffers that a wire sends from, if all wires have such.
func (n *NIC) borrow() {
	var ports []MemoryPort
	for _, p := range n.planes {
		w, ok := below[MemoryPort](p.port)
		if !ok {
			return
		}
		ports = append(ports, w)
	}
	size := n.cfg.packetMax()
	for i := range n.batch.Pkts {
		if buf := ports[i%len(ports)].TxBuffer(size); len(buf) >= pkt.Headroom+size {
			n.batch.Pkts[i].Buf = buf
			n.lent = true
		}
	}
}

// Borrows reports whether packets to be sent are made in memory of the wires.
func (n *NIC) Borrows() bool { return n.lent }
