package ib

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"github.com/metaroce/metaroce/internal/pkt"
)

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
	udpPort = 4791
	udpNext = 17
	lrhLen  = 8 // of ones: the InfiniBand link header that is not there
)

// Summer computes ICRCs. It holds the scratch, as the checksum's argument would otherwise be allocated each time. wire.IBTA
// is the same over headers as bytes.
type Summer struct{ h [chunk6]byte }

// The outer headers and the first bytes of Data are summed together: crc32 is fast from 64 bytes on, in steps of 16.
const (
	chunk4 = 64
	chunk6 = 80
)

// sum is the ICRC of the packet p: over the outer headers as its fields describe them, what routers may change being ones,
// and Data without the ICRC. ok is false where the addresses are of no use.
func (s *Summer) sum(p *pkt.Packet) (c uint32, ok bool) {
	h := s.h[:]
	for i := range lrhLen {
		h[i] = 0xff
	}
	n, chunk := lrhLen, chunk4
	length := udpLen + len(p.Data)
	switch {
	case p.Src.Is4() && p.Dst.Is4():
		ip := h[n : n+ipv4Len]
		ip[0], ip[1] = 0x45, 0xff
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+length))
		binary.BigEndian.PutUint16(ip[4:], p.IPID)
		ip[6], ip[7], ip[8], ip[9], ip[10], ip[11] = dontFragment(p), 0, 0xff, udpNext, 0xff, 0xff
		putAddr4(ip[12:], p.Src)
		putAddr4(ip[16:], p.Dst)
		n += ipv4Len
	case p.Src.Is6() && p.Dst.Is6():
		ip := h[n : n+ipv6Len]
		chunk = chunk6
		ip[0], ip[1], ip[2], ip[3] = 0x6f, 0xff, 0xff, 0xff
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
		ip[6], ip[7] = udpNext, 0xff
		putAddr6(ip[8:], p.Src)
		putAddr6(ip[24:], p.Dst)
		n += ipv6Len
	default:
		return 0, false
	}
	udp := h[n : n+udpLen]
	binary.BigEndian.PutUint16(udp, p.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], udpPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	udp[6], udp[7] = 0xff, 0xff
	n += udpLen
	b := p.Data[:len(p.Data)-ICRCLen]
	//= MR-COEX-010
	k := copy(h[n:chunk], b)
	h[n+offECN] = 0xff
	c = crc32.Update(0, crc32.IEEETable, h[:n+k])
	return crc32.Update(c, crc32.IEEETable, b[k:]), true
}

// Seal writes the ICRC into the last four bytes of p.Data. The addresses, source port and IP fields must be final.
func (s *Summer) Seal(p *pkt.Packet) {
	c, _ := s.sum(p)
	binary.LittleEndian.PutUint32(p.Data[len(p.Data)-ICRCLen:], c)
}

// Good reports whether the ICRC of a received packet is right. Decode has accepted its form.
func (s *Summer) Good(p *pkt.Packet) bool {
	c, ok := s.sum(p)
	return ok && binary.LittleEndian.Uint32(p.Data[len(p.Data)-ICRCLen:]) == c
}

// GRHLen is the length of the route header in front of a received UD message.
const GRHLen = 40

// PutGRH writes the route header of a received packet: the IPv6 header, or 20 bytes of zero and the IPv4 header.
func PutGRH(b []byte, p *pkt.Packet) {
	b = b[:GRHLen]
	length := udpLen + len(p.Data)
	ttl := p.TTL
	if ttl == 0 {
		ttl = 64
	}
	if p.Src.Is4() {
		clear(b[:GRHLen-ipv4Len])
		ip := b[GRHLen-ipv4Len:]
		ip[0], ip[1] = 0x45, p.TOS
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+length))
		binary.BigEndian.PutUint16(ip[4:], p.IPID)
		ip[6], ip[7], ip[8], ip[9], ip[10], ip[11] = dontFragment(p), 0, ttl, udpNext, 0, 0
		putAddr4(ip[12:], p.Src)
		putAddr4(ip[16:], p.Dst)
		binary.BigEndian.PutUint16(ip[10:], headerSum(ip))
		return
	}
	binary.BigEndian.PutUint32(b, 6<<28|uint32(p.TOS)<<20|p.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	b[6], b[7] = udpNext, ttl
	putAddr6(b[8:], p.Src)
	putAddr6(b[24:], p.Dst)
}

func dontFragment(p *pkt.Packet) byte {
	if p.NoDF {
		return 0
	}
	return 0x40
}

func putAddr4(b []byte, a netip.Addr) {
	x := a.As4()
	copy(b, x[:])
}

func putAddr6(b []byte, a netip.Addr) {
	x := a.As16()
	copy(b, x[:])
}

// headerSum is the checksum of an IPv4 header whose checksum field is zero.
func headerSum(ip []byte) uint16 {
	var s uint32
	for i := 0; i < len(ip); i += 2 {
		s += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
