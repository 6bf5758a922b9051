package capture

import (
	"encoding/binary"
	"net/netip"

	"github.com/metaroce/metaroce/internal/pkt"
)

// roceUDPPort is the UDP destination port of RoCEv2.
const roceUDPPort = 4791

// headers builds frames in one reused buffer.
type headers struct{ buf []byte }

// frame returns the captured bytes of a record as an Ethernet frame, and the frame's whole length. Ethernet packets are
// frames as they are. RoCE packets get the headers that they have on an Ethernet plane; MAC addresses are made of the
// IP addresses, because not every wire has them. UDP checksum: 0 for IPv4 as RoCEv2 sends it; for IPv6 it is filled
// in, else Wireshark marks each packet (only possible when the packet is whole).
func (h *headers) frame(r record) (data []byte, length int) {
	if r.kind == pkt.Ethernet {
		return r.data, r.length
	}
	b := h.buf[:0]
	b = appendMAC(b, r.dst)
	b = appendMAC(b, r.src)
	udp := 8 + r.length
	ip := 0
	if r.dst.Is4() {
		b = append(b, 0x08, 0x00)
		ip = len(b)
		b = append(b, 0x45, r.tos)
		b = binary.BigEndian.AppendUint16(b, uint16(20+udp))
		b = append(b, byte(r.id>>8), byte(r.id), r.df(), 0, r.hops(), 17, 0, 0)
		s, d := r.src.As4(), r.dst.As4()
		b = append(append(b, s[:]...), d[:]...)
		binary.BigEndian.PutUint16(b[ip+10:], ^fold(sum(b[ip:], 0)))
	} else {
		b = append(b, 0x86, 0xdd)
		ip = len(b)
		b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(r.tos)<<20|r.flow&0xfffff)
		b = binary.BigEndian.AppendUint16(b, uint16(udp))
		b = append(b, 17, r.hops())
		s, d := r.src.As16(), r.dst.As16()
		b = append(append(b, s[:]...), d[:]...)
	}
	l4 := len(b)
	b = binary.BigEndian.AppendUint16(b, r.srcPort)
	b = binary.BigEndian.AppendUint16(b, roceUDPPort)
	b = binary.BigEndian.AppendUint16(b, uint16(udp))
	b = append(b, 0, 0)
	b = append(b, r.data...)
	if !r.dst.Is4() && len(r.data) == r.length {
		s := sum(b[ip+8:ip+40], uint32(udp)+17) // pseudo header
		if c := ^fold(sum(b[l4:], s)); c != 0 {
			binary.BigEndian.PutUint16(b[l4+6:], c)
		} else {
			binary.BigEndian.PutUint16(b[l4+6:], 0xffff)
		}
	}
	h.buf = b
	return b, l4 + udp
}

// hops is the TTL; a packet to be sent may leave it to the wire.
func (r *record) hops() uint8 {
	if r.ttl == 0 {
		return 64
	}
	return r.ttl
}

// df is the IPv4 flags byte.
func (r *record) df() uint8 {
	if r.noDF {
		return 0
	}
	return 0x40
}

func appendMAC(b []byte, a netip.Addr) []byte {
	x := a.As16()
	switch {
	case a.Is4() && a.IsMulticast():
		return append(b, 0x01, 0x00, 0x5e, x[13]&0x7f, x[14], x[15])
	case a.IsMulticast():
		return append(b, 0x33, 0x33, x[12], x[13], x[14], x[15])
	}
	return append(b, 0x02, 0x00, x[12], x[13], x[14], x[15])
}

// sum adds the 16-bit words of b, an odd last byte padded with zero.
func sum(b []byte, s uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
