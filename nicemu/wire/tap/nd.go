package tap

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

// handleND answers solicitations for us and learns; results as of handleARP. b is the ICMPv6 message.
func (n *neighbours) handleND(now mono.Time, src netip.Addr, ether mac, b []byte) (e *neigh, done bool) {
	target := netip.AddrFrom16([16]byte(b[8:24]))
	link, has := ndOption(b[ndLen:])
	if b[0] == ndAdvert {
		if has {
			e = n.learn(now, target, link, false)
		}
		return e, false
	}
	if !n.own(target) {
		return nil, false
	}
	if !has {
		link = ether
	}
	if src.IsUnspecified() { // somebody wants to know whether the address is free
		n.advertise(multicastMAC(allNodes), allNodes, target, false)
		return nil, true
	}
	e = n.learn(now, src, link, true)
	//= MR-PATH-001
	n.advertise(link, src, target, true)
	return e, true
}

// ndOption finds the link address among the options, source or target alike.
func ndOption(b []byte) (m mac, ok bool) {
	for len(b) >= 8 {
		n := int(b[1]) * 8
		if n == 0 || n > len(b) {
			return m, false
		}
		if b[0] == ndSourceLink || b[0] == ndTargetLink {
			return mac(b[2:8]), true
		}
		b = b[n:]
	}
	return m, false
}

// solicit asks who has an address.
func (n *neighbours) solicit(src, target netip.Addr) {
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]})
	n.icmp(multicastMAC(group), src, group, ndSolicit, 0, target, ndSourceLink)
}

// advertise says that an address is ours.
func (n *neighbours) advertise(to mac, dst, target netip.Addr, solicited bool) {
	flags := byte(ndOverride)
	if solicited {
		flags |= ndSolicited
	}
	n.icmp(to, target, dst, ndAdvert, flags, target, ndTargetLink)
}

func (n *neighbours) icmp(to mac, src, dst netip.Addr, kind, flags byte, target netip.Addr, option byte) {
	const length = ndLen + 8
	f := n.frame[:etherLen+ipv6Len+length]
	clear(f)
	copy(f, to[:])
	copy(f[6:], n.mac[:])
	binary.BigEndian.PutUint16(f[12:], typeIPv6)
	ip := f[etherLen:]
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], length)
	ip[6], ip[7] = protoICMPv6, 255
	s, d, t := src.As16(), dst.As16(), target.As16()
	copy(ip[8:], s[:])
	copy(ip[24:], d[:])
	b := ip[ipv6Len:]
	b[0], b[4] = kind, flags
	copy(b[8:], t[:])
	b[ndLen], b[ndLen+1] = option, 1
	copy(b[ndLen+2:], n.mac[:])
	binary.BigEndian.PutUint16(b[2:], ^fold(add(add(protoICMPv6+length, ip[8:40]), b)))
	n.out(f)
}
