package tap

import (
	"encoding/binary"
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

	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
)

type mac = [6]byte

var broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// headerLen is Ethernet, IP and UDP in front of a packet to dst.
func headerLen(dst netip.Addr) int {
	if dst.Is4() {
		return etherLen + ipv4Len + udpLen
	}
	return etherLen + ipv6Len + udpLen
}

// putHeaders writes the headers of a packet (or super-packet) with n bytes of payload into b, which is headerLen
// long. IPv4: DF, ID 0 (the ICRC of plain RoCEv2 covers it). The UDP checksum is 0, as RoCEv2 sends it; for a
// super-packet it is the sum of the pseudo header, which the kernel completes.
func putHeaders(b []byte, dst, src mac, q *pkt.Packet, n int, partial bool) {
	copy(b[0:], dst[:])
	copy(b[6:], src[:])
	udp := len(b) - udpLen
	sum := uint32(0)
	if q.Dst.Is4() {
		binary.BigEndian.PutUint16(b[12:], typeIPv4)
		ip := b[etherLen:udp]
		ip[0], ip[1] = 0x45, q.TOS
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udpLen+n))
		//= MR-WIRE-004
		ip[4], ip[5], ip[6], ip[7] = 0, 0, 0x40, 0
		ip[8], ip[9], ip[10], ip[11] = hopsOf(q), protoUDP, 0, 0
		s, d := q.Src.As4(), q.Dst.As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		binary.BigEndian.PutUint16(ip[10:], ^fold(add(0, ip)))
		sum = add(0, ip[12:20])
	} else {
		binary.BigEndian.PutUint16(b[12:], typeIPv6)
		ip := b[etherLen:udp]
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(q.TOS)<<20|q.FlowLabel&0xfffff)
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+n))
		ip[6], ip[7] = protoUDP, hopsOf(q)
		s, d := q.Src.As16(), q.Dst.As16()
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
		sum = add(0, ip[8:40])
	}
	u := b[udp:]
	//= MR-WIRE-002
	binary.BigEndian.PutUint16(u, q.SrcPort)
	//= MR-WIRE-001
	binary.BigEndian.PutUint16(u[2:], rocePort)
	binary.BigEndian.PutUint16(u[4:], uint16(udpLen+n))
	u[6], u[7] = 0, 0
	if partial {
		binary.BigEndian.PutUint16(u[6:], fold(sum+protoUDP+uint32(udpLen+n)))
	}
}

// hopsOf is the TTL or hop limit that a packet is sent with.
func hopsOf(q *pkt.Packet) uint8 {
	if q.TTL == 0 {
		return 64
	}
	return q.TTL
}

// multicastMAC is where an IP multicast goes.
func multicastMAC(a netip.Addr) mac {
	x := a.As16()
	if a.Is4() {
		return mac{0x01, 0x00, 0x5e, x[13] & 0x7f, x[14], x[15]}
	}
	return mac{0x33, 0x33, x[12], x[13], x[14], x[15]}
}

// parsed is what the headers of a received frame say.
type parsed struct {
	kind     frameKind
	l3, data int // offsets: IP or ARP, UDP payload or ICMPv6
	end      int // of the UDP payload
	src, dst netip.Addr
	srcPort  uint16
	tos, ttl uint8
	flow     uint32 // IPv6
	id       uint16 // IPv4
	noDF     bool
}

// packet is what the headers say of the packet behind them.
func (p *parsed) packet() pkt.Packet {
	return pkt.Packet{Src: p.src, Dst: p.dst, SrcPort: p.srcPort, TOS: p.tos, TTL: p.ttl, FlowLabel: p.flow, IPID: p.id, NoDF: p.noDF}
}

type frameKind uint8

const (
	frameOther frameKind = iota // for the host port
	frameRoCE
	frameARP
	frameND
	frameBad // says it is RoCE but is not whole
)

// parse looks at a frame. whole is false for a super-packet, whose IP checksum is still to be made by the kernel.
func parse(f []byte, whole bool) parsed {
	p := parsed{l3: etherLen}
	if len(f) < etherLen {
		return p
	}
	t := binary.BigEndian.Uint16(f[12:])
	for range 2 {
		if t != typeVLAN && t != typeQinQ || len(f) < p.l3+vlanLen {
			break
		}
		t = binary.BigEndian.Uint16(f[p.l3+2:])
		p.l3 += vlanLen
	}
	switch b := f[p.l3:]; {
	case t == typeIPv4 && len(b) >= ipv4Len && b[0]>>4 == 4:
		p.ipv4(b, whole)
	case t == typeIPv6 && len(b) >= ipv6Len && b[0]>>4 == 6:
		p.ipv6(b)
	case t == typeARP && len(b) >= arpLen:
		p.kind = frameARP
	}
	return p
}

func (p *parsed) ipv4(b []byte, whole bool) {
	hl, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	fragment := binary.BigEndian.Uint16(b[6:])&0x3fff != 0
	if b[9] != protoUDP || fragment || hl < ipv4Len || total < hl+udpLen || total > len(b) || binary.BigEndian.Uint16(b[hl+2:]) != rocePort {
		return
	}
	p.src, p.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.tos, p.ttl = b[1], b[8]
	p.id, p.noDF = binary.BigEndian.Uint16(b[4:]), b[6]&0x40 == 0
	p.udp(b[hl:total], hl)
	if whole && fold(add(0, b[:hl])) != 0xffff {
		p.kind = frameBad
	}
}

func (p *parsed) ipv6(b []byte) {
	n := int(binary.BigEndian.Uint16(b[4:]))
	if ipv6Len+n > len(b) {
		return
	}
	p.src, p.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	body := b[ipv6Len : ipv6Len+n]
	switch {
	case b[6] == protoICMPv6 && n >= ndLen && (body[0] == ndSolicit || body[0] == ndAdvert) && b[7] == 255:
		p.kind, p.data, p.end = frameND, p.l3+ipv6Len, p.l3+ipv6Len+n
	case b[6] == protoUDP && n >= udpLen && binary.BigEndian.Uint16(body[2:]) == rocePort:
		p.tos, p.ttl = uint8(binary.BigEndian.Uint16(b)>>4), b[7]
		p.flow = binary.BigEndian.Uint32(b) & 0xfffff
		p.udp(body, ipv6Len)
	}
}

// ndSource is the IPv6 source of a neighbour discovery frame.
func (p *parsed) ndSource(f []byte) netip.Addr {
	return netip.AddrFrom16([16]byte(f[p.l3+8 : p.l3+24]))
}

// udp looks at a UDP datagram to the RoCE port, which begins at offset ip behind the IP header's start.
func (p *parsed) udp(u []byte, ip int) {
	n := int(binary.BigEndian.Uint16(u[4:]))
	p.kind = frameBad
	if n <= udpLen || n > len(u) {
		return
	}
	p.kind = frameRoCE
	p.srcPort = binary.BigEndian.Uint16(u)
	p.data, p.end = p.l3+ip+udpLen, p.l3+ip+n
}

// add sums 16-bit words, an odd last byte padded with zero; fold makes 16 bits of it.
func add(s uint32, b []byte) uint32 {
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
