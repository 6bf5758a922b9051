// Package ether is what drivers of Ethernet wires share: headers in front of RoCE packets, frames taken apart, and the
// neighbours (ARP and ND) that a NIC asks and answers.
package ether

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"

	"github.com/metaroce/metaroce/internal/pkt"
)

// rocePort is the UDP destination port of RoCEv2.
const rocePort = 4791

const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	typeIPv6 = 0x86dd

	protoUDP    = 17
	protoICMPv6 = 58
)

// Lengths of headers.
const (
	HeadLen = 14 // Ethernet
	VLANLen = 4
	IPv4Len = 20
	IPv6Len = 40
	UDPLen  = 8
)

// MAC is an Ethernet address.
type MAC = [6]byte

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// HeadersLen is Ethernet, IP and UDP in front of a packet to dst.
func HeadersLen(dst netip.Addr) int {
	if dst.Is4() {
		return HeadLen + IPv4Len + UDPLen
	}
	return HeadLen + IPv6Len + UDPLen
}

// PutHeaders writes the headers of a packet (or super-packet) with n bytes of payload into b, which is HeadersLen
// long. IPv4: DF, ID 0 (the ICRC of plain RoCEv2 covers it). The UDP checksum is 0, as RoCEv2 sends it; for a
// super-packet it is the sum of the pseudo header, which the kernel completes.
func PutHeaders(b []byte, dst, src MAC, q *pkt.Packet, n int, partial bool) {
	copy(b[0:], dst[:])
	copy(b[6:], src[:])
	udp := len(b) - UDPLen
	sum := uint32(0)
	if q.Dst.Is4() {
		binary.BigEndian.PutUint16(b[12:], typeIPv4)
		ip := b[HeadLen:udp]
		ip[0], ip[1] = 0x45, q.TOS
		binary.BigEndian.PutUint16(ip[2:], uint16(IPv4Len+UDPLen+n))
		//= MR-WIRE-004
		ip[4], ip[5], ip[6], ip[7] = 0, 0, 0x40, 0
		ip[8], ip[9], ip[10], ip[11] = hopsOf(q), protoUDP, 0, 0
		s, d := q.Src.As4(), q.Dst.As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		binary.BigEndian.PutUint16(ip[10:], ^Fold(Add(0, ip)))
		sum = Add(0, ip[12:20])
	} else {
		binary.BigEndian.PutUint16(b[12:], typeIPv6)
		ip := b[HeadLen:udp]
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(q.TOS)<<20|q.FlowLabel&0xfffff)
		binary.BigEndian.PutUint16(ip[4:], uint16(UDPLen+n))
		ip[6], ip[7] = protoUDP, hopsOf(q)
		s, d := q.Src.As16(), q.Dst.As16()
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
		sum = Add(0, ip[8:40])
	}
	u := b[udp:]
	//= MR-WIRE-002
	binary.BigEndian.PutUint16(u, q.SrcPort)
	//= MR-WIRE-001
	binary.BigEndian.PutUint16(u[2:], rocePort)
	binary.BigEndian.PutUint16(u[4:], uint16(UDPLen+n))
	u[6], u[7] = 0, 0
	if partial {
		binary.BigEndian.PutUint16(u[6:], Fold(sum+protoUDP+uint32(UDPLen+n)))
	}
}

// hopsOf is the TTL or hop limit that a packet is sent with.
func hopsOf(q *pkt.Packet) uint8 {
	if q.TTL == 0 {
		return 64
	}
	return q.TTL
}

// MulticastMAC is where an IP multicast goes.
func MulticastMAC(a netip.Addr) MAC {
	x := a.As16()
	if a.Is4() {
		return MAC{0x01, 0x00, 0x5e, x[13] & 0x7f, x[14], x[15]}
	}
	return MAC{0x33, 0x33, x[12], x[13], x[14], x[15]}
}

// Parsed is what the headers of a received frame say.
type Parsed struct {
	Kind     Kind
	L3, Data int // offsets: IP or ARP, UDP payload or ICMPv6
	End      int // of the UDP payload
	Src, Dst netip.Addr
	SrcPort  uint16
	TOS, TTL uint8
	flow     uint32 // IPv6
	id       uint16 // IPv4
	noDF     bool
}

// Packet is what the headers say of the packet behind them.
func (p *Parsed) Packet() pkt.Packet {
	return pkt.Packet{Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TOS: p.TOS, TTL: p.TTL, FlowLabel: p.flow, IPID: p.id, NoDF: p.noDF}
}

// Kind is what a frame is.
type Kind uint8

// Kinds of frames.
const (
	Other Kind = iota // for the host port
	RoCE
	ARP
	ND
	Bad // says it is RoCE but is not whole
)

// Parse looks at a frame. whole is false for a super-packet, whose IP checksum is still to be made by the kernel.
func Parse(f []byte, whole bool) Parsed {
	p := Parsed{L3: HeadLen}
	if len(f) < HeadLen {
		return p
	}
	t := binary.BigEndian.Uint16(f[12:])
	for range 2 {
		if t != typeVLAN && t != typeQinQ || len(f) < p.L3+VLANLen {
			break
		}
		t = binary.BigEndian.Uint16(f[p.L3+2:])
		p.L3 += VLANLen
	}
	switch b := f[p.L3:]; {
	case t == typeIPv4 && len(b) >= IPv4Len && b[0]>>4 == 4:
		p.ipv4(b, whole)
	case t == typeIPv6 && len(b) >= IPv6Len && b[0]>>4 == 6:
		p.ipv6(b)
	case t == typeARP && len(b) >= arpLen:
		p.Kind = ARP
	}
	return p
}

func (p *Parsed) ipv4(b []byte, whole bool) {
	hl, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	fragment := binary.BigEndian.Uint16(b[6:])&0x3fff != 0
	if b[9] != protoUDP || fragment || hl < IPv4Len || total < hl+UDPLen || total > len(b) || binary.BigEndian.Uint16(b[hl+2:]) != rocePort {
		return
	}
	p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.TOS, p.TTL = b[1], b[8]
	p.id, p.noDF = binary.BigEndian.Uint16(b[4:]), b[6]&0x40 == 0
	p.udp(b[hl:total], hl)
	if whole && Fold(Add(0, b[:hl])) != 0xffff {
		p.Kind = Bad
	}
}

func (p *Parsed) ipv6(b []byte) {
	n := int(binary.BigEndian.Uint16(b[4:]))
	if IPv6Len+n > len(b) {
		return
	}
	p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	body := b[IPv6Len : IPv6Len+n]
	switch {
	case b[6] == protoICMPv6 && n >= ndLen && (body[0] == ndSolicit || body[0] == ndAdvert) && b[7] == 255:
		p.Kind, p.Data, p.End = ND, p.L3+IPv6Len, p.L3+IPv6Len+n
	case b[6] == protoUDP && n >= UDPLen && binary.BigEndian.Uint16(body[2:]) == rocePort:
		p.TOS, p.TTL = uint8(binary.BigEndian.Uint16(b)>>4), b[7]
		p.flow = binary.BigEndian.Uint32(b) & 0xfffff
		p.udp(body, IPv6Len)
	}
}

// NDSource is the IPv6 source of a neighbour discovery frame.
func (p *Parsed) NDSource(f []byte) netip.Addr {
	return netip.AddrFrom16([16]byte(f[p.L3+8 : p.L3+24]))
}

// udp looks at a UDP datagram to the RoCE port, which begins at offset ip behind the IP header's start.
func (p *Parsed) udp(u []byte, ip int) {
	n := int(binary.BigEndian.Uint16(u[4:]))
	p.Kind = Bad
	if n <= UDPLen || n > len(u) {
		return
	}
	p.Kind = RoCE
	p.SrcPort = binary.BigEndian.Uint16(u)
	p.Data, p.End = p.L3+ip+UDPLen, p.L3+ip+n
}

// Add sums 16-bit words, an odd last byte padded with zero; Fold makes 16 bits of it.
func Add(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

// Fold makes the 16 bits of a checksum.
func Fold(s uint32) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// ForUs says whether a frame to dst is for the NIC with the address ours.
func ForUs(dst, ours MAC) bool { return dst == ours || dst[0]&1 != 0 }

// FrameMax is how long a frame may be on a link of an MTU: a VLAN tag comes on top of it.
func FrameMax(f []byte, mtu int) int {
	if t := binary.BigEndian.Uint16(f[12:]); t == typeVLAN || t == typeQinQ {
		return HeadLen + VLANLen + mtu
	}
	return HeadLen + mtu
}

// MACFor makes a locally administered address out of a name.
func MACFor(name string) [6]byte {
	h := fnv.New64a()
	h.Write([]byte(name))
	s := h.Sum64()
	s ^= s >> 29 // FNV's high bytes move little for short names
	s *= 0xbf58476d1ce4e5b9
	return [6]byte{0x02, byte(s >> 56), byte(s >> 48), byte(s >> 40), byte(s >> 32), byte(s >> 24)}
}
