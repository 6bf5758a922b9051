package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/pkt"
)

// Packets inside. A plane of UDP sockets has no groups, and a datagram does not say which address it was for. Two kinds of
// packets need both: those to a multicast group, which go to every peer, and those to another than the first address of a
// family that a peer has: plain RoCEv2, as its ICRC covers addresses, and MetaRoCE, as an association is between two of them.
// They travel inside, as the Ethernet frame that they would be on a switched plane (tunnel.go), one a datagram.

const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	protoUDP = 17
)

// SetGroups implements device.GroupPort: packets to these groups are the NIC's, others the host's.
func (p *Port) SetGroups(list []netip.Addr) { p.groups.Replace(list) }

// sendInside sends a packet as a frame, to one peer or, when that is nil, to all. What a full socket refuses is lost, as on
// Ethernet.
func (p *Port) sendInside(q *pkt.Packet, to *peer) {
	f := p.tx.tun.frame[:]
	head := etherLen + ipv4Len + udpLen
	if q.Dst.Is6() {
		head = etherLen + ipv6Len + udpLen
	}
	switch {
	case len(q.Data) == 0:
		p.drops[dropShort]++
		return
	case len(q.Data) > p.caps.PacketMax || tunnelHead+head+len(q.Data)+tunnelTail > p.insideMax:
		p.drops[dropTooLong]++
		return
	case q.Src.Is4() != q.Dst.Is4() || !q.Src.IsValid():
		p.drops[dropFamily]++
		return
	}
	f = f[:head+len(q.Data)]
	putFrame(f, head, q)
	p.tx.tun.build(f, p.local.Port())
	if to != nil {
		p.sendTunnel(&to.name, len(f), q.TOS)
		return
	}
	p.flood(len(f), q.TOS)
}

// putFrame writes a packet as an Ethernet frame with head bytes of headers.
func putFrame(f []byte, head int, q *pkt.Packet) {
	clear(f[:head])
	ttl := q.TTL
	if ttl == 0 {
		ttl = 64
	}
	d, s := q.Dst.As16(), q.Src.As16()
	copy(f[6:], []byte{2, 0, s[12], s[13], s[14], s[15]})
	ip := f[etherLen:]
	if q.Dst.Is4() {
		if copy(f, []byte{2, 0, d[12], d[13], d[14], d[15]}); q.Dst.IsMulticast() {
			copy(f, []byte{0x01, 0x00, 0x5e, d[13] & 0x7f})
		}
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, q.TOS, 0x40, ttl, protoUDP
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		copy(ip[12:], s[12:])
		copy(ip[16:], d[12:])
		binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:ipv4Len]))
	} else {
		if copy(f, []byte{2, 0, d[12], d[13], d[14], d[15]}); q.Dst.IsMulticast() {
			copy(f, []byte{0x33, 0x33})
		}
		binary.BigEndian.PutUint16(f[12:], 0x86dd)
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(q.TOS)<<20|q.FlowLabel&0xfffff)
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-ipv6Len))
		ip[6], ip[7] = protoUDP, ttl
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
	}
	u := f[head-udpLen:]
	binary.BigEndian.PutUint16(u, q.SrcPort)
	binary.BigEndian.PutUint16(u[2:], DefaultPort)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	copy(u[udpLen:], q.Data)
}

// inside makes a packet of a frame that holds one for the NIC; false: the frame is the host's.
func (p *Port) inside(f []byte, q *pkt.Packet) bool {
	if len(f) < etherLen+ipv4Len+udpLen {
		return false
	}
	ip, head := f[etherLen:], 0
	switch t := binary.BigEndian.Uint16(f[12:]); {
	case t == 0x0800 && ip[0] == 0x45 && ip[9] == protoUDP && binary.BigEndian.Uint16(ip[6:])&0x3fff == 0 && sum16(ip[:ipv4Len]) == 0xffff:
		head = ipv4Len
		q.Src, q.Dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		q.TOS, q.TTL, q.IPID, q.NoDF = ip[1], ip[8], binary.BigEndian.Uint16(ip[4:]), ip[6]&0x40 == 0
	case t == 0x86dd && len(ip) >= ipv6Len+udpLen && ip[0]>>4 == 6 && ip[6] == protoUDP:
		head = ipv6Len
		q.Src, q.Dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		v := binary.BigEndian.Uint32(ip)
		q.TOS, q.TTL, q.FlowLabel = uint8(v>>20), ip[7], v&0xfffff
	default:
		return false
	}
	u := ip[head:]
	n := int(binary.BigEndian.Uint16(u[4:]))
	if binary.BigEndian.Uint16(u[2:]) != DefaultPort || n <= udpLen || n > len(u) || n-udpLen > p.caps.PacketMax || !p.accepts(q.Dst) {
		return false
	}
	q.SrcPort, q.Data = binary.BigEndian.Uint16(u), u[udpLen:n:n]
	if outer := p.rx.head.TOS; outer&pkt.ECNMask == pkt.CE && q.TOS&pkt.ECNMask != 0 { // the network marked what is around it
		q.TOS |= pkt.CE
	}
	return true
}

// accepts says whether a packet to a is for the NIC: to one of its addresses, or to a group that it is in.
func (p *Port) accepts(a netip.Addr) bool {
	if a.IsMulticast() {
		return p.groups.Has(a)
	}
	return slices.Contains(p.addrs, a)
}

// sum16 is the Internet checksum of b, not inverted.
func sum16(b []byte) uint16 {
	s := uint32(0)
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
