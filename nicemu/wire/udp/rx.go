package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

const (
	rxMessages = 64      // datagrams a recvmmsg
	rxTrains   = 8       // the same when they are trains: they fill the caches otherwise
	rxBuffer   = 1 << 16 // a whole train
	rxReads    = 4       // in one call, when nothing that comes is of use
	ctrlSpace  = 64
)

// rxState is what recvmmsg writes, and how far RxBurst has come with it.
type rxState struct {
	msgs  []mmsghdr
	iovs  []unix.Iovec
	names []rawAddr
	ctrl  [][ctrlSpace]byte
	ask   int // how many datagrams to ask for

	n, next int // messages in hand, the one to look at
	off     int // in it
	segment int
	head    pkt.Packet // what all segments of it share
	skip    bool       // its source is unknown
	now     mono.Time
}

func (r *rxState) init() {
	r.msgs, r.iovs = make([]mmsghdr, rxMessages), make([]unix.Iovec, rxMessages)
	r.names, r.ctrl = make([]rawAddr, rxMessages), make([][ctrlSpace]byte, rxMessages)
	arena := make([]byte, rxMessages*rxBuffer)
	for i := range r.msgs {
		r.iovs[i].Base, r.iovs[i].Len = &arena[i*rxBuffer], rxBuffer
		h := &r.msgs[i].hdr
		h.Iov, h.Iovlen = &r.iovs[i], 1
		h.Name, h.Control = &r.names[i].b[0], &r.ctrl[i][0]
		h.Namelen, h.Controllen = uint32(len(r.names[i].b)), ctrlSpace
	}
	r.ask = rxMessages
}

func (r *rxState) pending() bool { return r.next < r.n }

// RxBurst implements device.Port. Packets of a train are handed out where they lie; nothing new is read before all are.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	r := &p.rx
	r.now = now
	p.sendHeld()
	filled := 0
	for reads := 0; filled < len(ps); {
		if !r.pending() {
			// What was handed out lies in the buffers that a new read would fill.
			if filled > 0 || p.closed || reads == rxReads || !p.receive() {
				break
			}
			reads++
		}
		if r.off == 0 {
			p.begin(r.next)
		}
		i, length := r.next, int(r.msgs[r.next].len)
		data := r.data(i)[r.off:min(r.off+r.segment, length)]
		if r.off += len(data); r.off >= length || r.skip {
			r.next++
			r.off = 0
		}
		if !r.skip && p.accept(&ps[filled], data, i) {
			ps[filled].Time = now
			filled++
		}
	}
	return filled
}

// receive asks the kernel for datagrams.
func (p *Port) receive() bool {
	r := &p.rx
	for i := range r.n {
		r.msgs[i].hdr.Namelen, r.msgs[i].hdr.Controllen = uint32(len(r.names[i].b)), ctrlSpace
	}
	r.n, r.next, r.off = 0, 0, 0
	n, errno := recvmmsg(p.rxFD, r.msgs[:r.ask])
	if n <= 0 {
		if errno != unix.EAGAIN && errno != unix.EINTR {
			p.drops[dropSendError]++ // an error that the socket remembered; reading took it away
		}
		return false
	}
	r.n = n
	bytes := 0
	for i := range n {
		bytes += int(r.msgs[i].len)
	}
	if r.ask = rxMessages; bytes > n*4*p.caps.PacketMax {
		r.ask = rxTrains
	}
	return true
}

func (r *rxState) data(i int) []byte { return bytesOf(r.iovs[i].Base, rxBuffer) }

// begin looks at message i: from whom, TOS, length of its segments.
func (p *Port) begin(i int) {
	r := &p.rx
	h := &r.msgs[i].hdr
	r.segment = int(r.msgs[i].len)
	r.head = pkt.Packet{TTL: 64} // as the kernel sends; it also hides ID and flow label, which are 0 from our peers
	at := r.names[i].addrPort()
	r.head.Src, r.head.SrcPort = p.peers.source(at), at.Port()
	r.head.Dst = p.ownAddr(r.head.Src)
	r.skip = true
	switch {
	case h.Flags&unix.MSG_TRUNC != 0:
		p.drops[dropTruncated]++
	case r.segment == 0:
		p.drops[dropShort]++
	case !r.head.Src.IsValid():
		p.drops[dropAmbiguous]++
	default:
		r.skip = false
	}
	for c := r.ctrl[i][:h.Controllen]; len(c) >= 16; {
		n := int(binary.NativeEndian.Uint64(c))
		if n < 16 || n > len(c) {
			break
		}
		level, name := int(binary.NativeEndian.Uint32(c[8:])), int(binary.NativeEndian.Uint32(c[12:]))
		switch d := c[16:n]; {
		case level == unix.IPPROTO_IP && name == unix.IP_TOS && len(d) >= 1:
			r.head.TOS = d[0]
		case level == unix.IPPROTO_IPV6 && name == unix.IPV6_TCLASS && len(d) >= 4:
			r.head.TOS = uint8(binary.NativeEndian.Uint32(d))
		case level == unix.SOL_UDP && name == unix.UDP_GRO && len(d) >= 4:
			if s := int(binary.NativeEndian.Uint32(d)); s > 0 {
				r.segment = s
			}
		}
		c = c[min((n+7)&^7, len(c)):]
	}
}

// ownAddr guesses which of our addresses a packet was for: UDP does not carry it. The peer's family decides; what is
// for another address travels inside (mcast.go).
func (p *Port) ownAddr(src netip.Addr) netip.Addr {
	for _, a := range p.addrs {
		if a.Is6() == src.Is6() {
			return a
		}
	}
	if len(p.addrs) > 0 {
		return p.addrs[0]
	}
	return p.local.Addr()
}

// accept makes a packet of one segment of message i.
func (p *Port) accept(q *pkt.Packet, data []byte, i int) bool {
	*q = p.rx.head
	tunnel := len(data) >= wire.BTHLen && data[0] == byte(wire.OpEthernet)
	switch {
	case len(data) > p.caps.PacketMax && !(tunnel && len(data) <= p.insideMax):
		p.drops[dropTooLong]++
		return false
	case tunnel:
		if q.Data = p.untunnel(data, i); q.Data == nil {
			p.drops[dropTunnel]++
			return false
		}
		frame := q.Data
		if !p.inside(frame, q) {
			if len(frame) > p.FrameMax() {
				p.drops[dropTooLong]++
				return false
			}
			*q = p.rx.head
			q.Kind, q.Data = pkt.Ethernet, frame
		}
	default:
		q.Data = data
	}
	p.stats.RxPackets++
	p.stats.RxBytes += uint64(len(data))
	return true
}
