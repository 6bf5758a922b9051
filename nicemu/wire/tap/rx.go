package tap

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

const (
	// arenaLen holds a burst of long frames and a super-packet; a read happens only when there is place for the longest.
	arenaLen = 512 << 10
	// readsMax bounds a call when nothing that comes is for us.
	readsMax = 4 * pkt.Burst
)

// rxState is where frames are read to. Packets handed out lie there until the next RxBurst.
type rxState struct {
	arena []byte
	off   int // free from here

	// The super-packet in hand: what is left of it.
	train   []byte
	segment int
	head    pkt.Packet
	now     mono.Time
}

func (r *rxState) init() { r.arena = make([]byte, arenaLen) }

func (r *rxState) pending() bool { return len(r.train) > 0 }

// RxBurst implements device.Port.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	r := &p.rx
	r.now = now
	p.drops[dropUnresolved] += uint64(p.near.Tick(now))
	if !r.pending() {
		r.off = 0
	}
	filled := 0
	for reads := 0; filled < len(ps) && reads < readsMax; {
		if r.pending() {
			p.nextSegment(&ps[filled])
			filled++
			continue
		}
		f, v, ok := p.read()
		if !ok {
			break
		}
		reads++
		if p.handle(now, f, v, &ps[filled]) {
			filled++
		}
	}
	return filled
}

// nextSegment hands out the next packet of the super-packet in hand.
func (p *Port) nextSegment(q *pkt.Packet) {
	r := &p.rx
	n := min(r.segment, len(r.train))
	*q = r.head
	q.Data, r.train = r.train[:n:n], r.train[n:]
	q.Time = r.now
	p.count(q)
}

func (p *Port) count(q *pkt.Packet) {
	p.stats.RxPackets++
	p.stats.RxBytes += uint64(len(q.Data))
}

// read takes one frame off the TAP. Its place is free again unless claim is called.
func (p *Port) read() (frame, vnet []byte, ok bool) {
	r := &p.rx
	if p.dev.fd < 0 || len(r.arena)-r.off < readMax {
		return nil, nil, false
	}
	frame, vnet, errno := p.dev.Read(r.arena[r.off : r.off+readMax])
	if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
		p.drops[dropRxError]++
	}
	return frame, vnet, errno == 0
}

// claim keeps the bytes of a frame until the next RxBurst.
func (r *rxState) claim(f []byte) {
	r.off += vnetHdrLen + len(f) + 63
	r.off &^= 63
}

// handle takes a frame, and reports whether it has filled q.
func (p *Port) handle(now mono.Time, f, vnet []byte, q *pkt.Packet) bool {
	if len(f) < ether.HeadLen {
		p.drops[dropShort]++
		return false
	}
	gso := uint8(unix.VIRTIO_NET_HDR_GSO_NONE)
	if vnet != nil {
		gso = vnet[1] &^ unix.VIRTIO_NET_HDR_GSO_ECN
	}
	whole := gso == unix.VIRTIO_NET_HDR_GSO_NONE
	h := ether.Parse(f, whole)
	forNIC := ether.ForUs(ether.MAC(f[0:6]), p.near.MAC)
	var learned *ether.Neigh
	done := false
	switch {
	case h.Kind == ether.Bad:
		p.drops[dropBadHeaders]++
		return false
	case h.Kind == ether.RoCE && forNIC && p.accepts(h.Dst):
		return p.roce(f, &h, vnet, whole, q)
	case !whole:
		p.drops[dropForeignTrain]++
		return false
	case h.Kind == ether.ARP:
		learned, done = p.near.HandleARP(now, f[h.L3:])
	case h.Kind == ether.ND:
		learned, done = p.near.HandleND(now, h.NDSource(f), ether.MAC(f[6:12]), f[h.Data:h.End])
	}
	p.sendKept(learned)
	if done {
		return false
	}
	return p.ethernet(now, f, vnet, q)
}

// roce makes the packet of a frame for the NIC, or takes a super-packet in hand.
func (p *Port) roce(f []byte, h *ether.Parsed, vnet []byte, whole bool, q *pkt.Packet) bool {
	r := &p.rx
	data := f[h.Data:h.End:h.End]
	head := h.Packet()
	segment := len(data)
	if !whole {
		segment = int(binary.NativeEndian.Uint16(vnet[4:]))
		if vnet[1]&^unix.VIRTIO_NET_HDR_GSO_ECN != unix.VIRTIO_NET_HDR_GSO_UDP_L4 || segment == 0 {
			p.drops[dropForeignTrain]++
			return false
		}
	}
	if h.Data-h.L3+min(segment, len(data)) > p.mtu {
		p.drops[dropRxTooLong]++
		return false
	}
	r.claim(f)
	r.train, r.segment, r.head = data, segment, head
	p.nextSegment(q)
	return true
}

// ethernet hands a frame on to the host port. A checksum that the sender left to its hardware is made here.
func (p *Port) ethernet(now mono.Time, f, vnet []byte, q *pkt.Packet) bool {
	if len(f) > ether.FrameMax(f, p.mtu) {
		p.drops[dropRxTooLong]++
		return false
	}
	if vnet != nil && vnet[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
		start := int(binary.NativeEndian.Uint16(vnet[6:]))
		at := start + int(binary.NativeEndian.Uint16(vnet[8:]))
		if at+2 > len(f) || start > len(f) {
			p.drops[dropBadHeaders]++
			return false
		}
		sum := ^ether.Fold(ether.Add(0, f[start:]))
		if sum == 0 {
			sum = 0xffff // 0 says "none" in UDP, and is the same number in TCP
		}
		binary.BigEndian.PutUint16(f[at:], sum)
	}
	p.rx.claim(f)
	*q = pkt.Packet{Kind: pkt.Ethernet, Data: f, Time: now}
	p.count(q)
	return true
}
