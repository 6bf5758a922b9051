package wire

import (
	"encoding/binary"

	"github.com/metaroce/metaroce/internal/crc"
)

// Seal computes the ICRC of a whole MetaRoCE packet and writes it into its last four bytes. It is CRC-32 (IEEE)
// from BTH to the end of the pad, stored least significant byte first. No field of IP or UDP counts, so that
// segmentation offload, address translation and UDP tunnels keep it valid.
//
// = MR-WIRE-051
func Seal(b []byte) {
	n := len(b) - ICRCLen
	binary.LittleEndian.PutUint32(b[n:], crc.Update(0, b[:n]))
}

func sealed(b []byte) bool {
	n := len(b) - ICRCLen
	return binary.LittleEndian.Uint32(b[n:]) == crc.Update(0, b[:n])
}

// onesIPv4 and onesIPv6 say which bits a router or switch may change: they count as ones in IBTA's ICRC.
var (
	lrhOnes  = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // the InfiniBand link header that is not there
	onesIPv4 = [20]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff}          // TOS, TTL, header checksum
	onesIPv6 = [40]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff}   // traffic class, flow label, hop limit
	onesUDP  = [8]byte{6: 0xff, 7: 0xff}                               // checksum
)

// bthVariant is the byte of BTH (FECN, BECN, reserved) that counts as ones.
const bthVariant = 4

// IBTA computes the ICRC of a RoCEv2 packet as IBTA defines it. ip is the IPv4 (20 bytes, no options) or IPv6
// header, udp the UDP header, rest BTH up to and including the pad, without the ICRC. The result goes on the wire
// least significant byte first. It returns 0 where ip or udp have no such length.
func IBTA(ip, udp, rest []byte) uint32 {
	var h [len(lrhOnes) + len(onesIPv6) + len(onesUDP)]byte
	n := copy(h[:], lrhOnes[:])
	switch {
	case len(udp) != len(onesUDP):
		return 0
	case len(ip) == len(onesIPv4):
		n += orInto(h[n:], ip, onesIPv4[:])
	case len(ip) == len(onesIPv6):
		n += orInto(h[n:], ip, onesIPv6[:])
	default:
		return 0
	}
	n += orInto(h[n:], udp, onesUDP[:])
	c := crc.Update(0, h[:n])
	if len(rest) <= bthVariant {
		return crc.Update(c, rest)
	}
	c = crc.Update(c, rest[:bthVariant])
	c = crc.Update(c, lrhOnes[:1])
	return crc.Update(c, rest[bthVariant+1:])
}

func orInto(dst, a, b []byte) int {
	for i := range b {
		dst[i] = a[i] | b[i]
	}
	return len(b)
}
