package ether

import (
	"encoding/binary"
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
)

// Neighbour discovery (RFC 4861), as much of it as a NIC needs: answer for its addresses, ask for others.

var allNodes = netip.MustParseAddr("ff02::1")

const (
	ndSourceLink = 1
	ndTargetLink = 2

	ndSolicited = 0x40
	ndOverride  = 0x20
)

// HandleND answers solicitations for us and learns; results as of HandleARP. b is the ICMPv6 message.
func (n *Neighbours) HandleND(now mono.Time, src netip.Addr, ether MAC, b []byte) (e *Neigh, done bool) {
	target := netip.AddrFrom16([16]byte(b[8:24]))
	link, has := ndOption(b[ndLen:])
	if b[0] == ndAdvert {
		if has {
			e = n.Learn(now, target, link, false)
		}
		return e, false
	}
	if !n.Own(target) {
		return nil, false
	}
	if !has {
		link = ether
	}
	if src.IsUnspecified() { // somebody wants to know whether the address is free
		n.advertise(MulticastMAC(allNodes), allNodes, target, false)
		return nil, true
	}
	e = n.Learn(now, src, link, true)
	//= MR-PATH-001
	n.advertise(link, src, target, true)
	return e, true
}

// ndOption finds the link address among the options, source or target alike.
func ndOption(b []byte) (m MAC, ok bool) {
	for len(b) >= 8 {
		n := int(b[1]) * 8
		if n == 0 || n > len(b) {
			return m, false
		}
		if b[0] == ndSourceLink || b[0] == ndTargetLink {
			return MAC(b[2:8]), true
		}
		b = b[n:]
	}
	return m, false
}

// solicit asks who has an address.
func (n *Neighbours) solicit(src, target netip.Addr) {
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]})
	n.icmp(MulticastMAC(group), src, group, ndSolicit, 0, target, ndSourceLink)
}

// advertise says that an address is ours.
func (n *Neighbours) advertise(to MAC, dst, target netip.Addr, solicited bool) {
	flags := byte(ndOverride)
	if solicited {
		flags |= ndSolicited
	}
	n.icmp(to, target, dst, ndAdvert, flags, target, ndTargetLink)
}

func (n *Neighbours) icmp(to MAC, src, dst netip.Addr, kind, flags byte, target netip.Addr, option byte) {
	const length = ndLen + 8
	f := n.frame[:HeadLen+IPv6Len+length]
	clear(f)
	copy(f, to[:])
	copy(f[6:], n.MAC[:])
	binary.BigEndian.PutUint16(f[12:], typeIPv6)
	ip := f[HeadLen:]
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], length)
	ip[6], ip[7] = protoICMPv6, 255
	s, d, t := src.As16(), dst.As16(), target.As16()
	copy(ip[8:], s[:])
	copy(ip[24:], d[:])
	b := ip[IPv6Len:]
	b[0], b[4] = kind, flags
	copy(b[8:], t[:])
	b[ndLen], b[ndLen+1] = option, 1
	copy(b[ndLen+2:], n.MAC[:])
	binary.BigEndian.PutUint16(b[2:], ^Fold(Add(Add(protoICMPv6+length, ip[8:40]), b)))
	n.out(f)
}
