package rng

import (
	"encoding/binary"
	"math/bits"
)

// Secret is a generator whose output says nothing about what comes next or came before: ChaCha with 20 rounds
// (Bernstein 2008; RFC 8439) over a counter, under a key that nothing else is made from. It allocates nothing.
type Secret struct {
	key  [8]uint32
	n    uint64
	out  [16]uint32
	used int
}

// NewSecret returns the generator of a key. With a key of zeroes it is made from the seed and name, as New's source is:
// the same numbers on every machine, and no secret from who knows the seed.
func NewSecret(key [32]byte, seed uint64, name string) *Secret {
	s := &Secret{used: 16}
	if key == [32]byte{} {
		r := New(seed, "secret "+name)
		for i := range 4 {
			binary.LittleEndian.PutUint64(key[8*i:], r.Uint64())
		}
	}
	for i := range s.key {
		s.key[i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	return s
}

func (s *Secret) fill() {
	in := [16]uint32{0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, 12: uint32(s.n), 13: uint32(s.n >> 32)}
	copy(in[4:], s.key[:])
	x := in
	for range 10 {
		quarter(&x, 0, 4, 8, 12)
		quarter(&x, 1, 5, 9, 13)
		quarter(&x, 2, 6, 10, 14)
		quarter(&x, 3, 7, 11, 15)
		quarter(&x, 0, 5, 10, 15)
		quarter(&x, 1, 6, 11, 12)
		quarter(&x, 2, 7, 8, 13)
		quarter(&x, 3, 4, 9, 14)
	}
	for i := range x {
		s.out[i] = x[i] + in[i]
	}
	s.n++
	s.used = 0
}

func quarter(x *[16]uint32, a, b, c, d int) {
	x[a] += x[b]
	x[d] = bits.RotateLeft32(x[d]^x[a], 16)
	x[c] += x[d]
	x[b] = bits.RotateLeft32(x[b]^x[c], 12)
	x[a] += x[b]
	x[d] = bits.RotateLeft32(x[d]^x[a], 8)
	x[c] += x[d]
	x[b] = bits.RotateLeft32(x[b]^x[c], 7)
}

// Uint32 returns 32 random bits.
func (s *Secret) Uint32() uint32 {
	if s.used == 16 {
		s.fill()
	}
	v := s.out[s.used]
	s.out[s.used] = 0
	s.used++
	return v
}

// Uint64 returns 64 random bits.
func (s *Secret) Uint64() uint64 { return uint64(s.Uint32()) | uint64(s.Uint32())<<32 }

// IntN returns a number in [0, n). n must be positive.
func (s *Secret) IntN(n int) int {
	if n <= 0 {
		panic("rng: IntN of a number that is not positive")
	}
	hi, _ := bits.Mul64(s.Uint64(), uint64(n))
	return int(hi)
}
