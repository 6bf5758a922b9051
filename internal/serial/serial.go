// Package serial holds sequence numbers that wrap. They are compared only through the methods here, never with <.
// The comparison is that of RFC 1982: a is before b when the way forward from a to b is shorter than half the space.
package serial

// U32 is a 32-bit serial number: path sequences, send numbers, receive limits, timestamps.
type U32 uint32

// Less reports whether a comes before b.
func (a U32) Less(b U32) bool { return int32(a-b) < 0 }

// LessEq reports whether a is b or comes before it.
func (a U32) LessEq(b U32) bool { return int32(a-b) <= 0 }

// Sub returns the signed distance from b to a.
func (a U32) Sub(b U32) int32 { return int32(a - b) }

// Max returns the later of two serial numbers.
func Max(a, b U32) U32 {
	if a.Less(b) {
		return b
	}
	return a
}

// PSNBits is the width of a packet sequence number on the wire (BTH).
const PSNBits = 24

// PSNMask keeps a PSN within its 24 bits.
const PSNMask = 1<<PSNBits - 1

// PSN is a 24-bit packet sequence number as it is on the wire.
type PSN uint32

// Expand returns the 64-bit number nearest to ref whose low 24 bits are p. The engine counts in 64 bits and
// truncates only for the wire, so that no comparison inside it can wrap.
func (p PSN) Expand(ref uint64) uint64 {
	d := int32(uint32(p)-uint32(ref)) << 8 >> 8 // signed distance modulo 2^24
	return ref + uint64(int64(d))
}

// Trunc returns the wire form of a 64-bit packet number.
func Trunc(n uint64) PSN { return PSN(n & PSNMask) }

// Expand32 returns the 64-bit number nearest to ref whose low 32 bits are v.
func Expand32(v uint32, ref uint64) uint64 { return ref + uint64(int64(int32(v-uint32(ref)))) }
