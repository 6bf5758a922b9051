// Package rng is seeded randomness: the same seed and name give the same numbers on every machine.
package rng

import "math/bits"

// Source is xoshiro256** (Blackman, Vigna 2018), seeded through splitmix64. Not for secrets.
type Source struct{ s [4]uint64 }

// New returns the source of one component: seed is the run's, name is the component's, so that adding draws in
// one place does not change another.
func New(seed uint64, name string) *Source {
	h := seed ^ 0xcbf29ce484222325
	for i := 0; i < len(name); i++ {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	var r Source
	for i := range r.s {
		h += 0x9e3779b97f4a7c15
		z := h
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		r.s[i] = z ^ z>>31
	}
	return &r
}

// Uint64 returns 64 random bits.
func (r *Source) Uint64() uint64 {
	s := &r.s
	v := bits.RotateLeft64(s[1]*5, 7) * 9
	t := s[1] << 17
	s[2] ^= s[0]
	s[3] ^= s[1]
	s[1] ^= s[2]
	s[0] ^= s[3]
	s[2] ^= t
	s[3] = bits.RotateLeft64(s[3], 45)
	return v
}

// Uint32 returns 32 random bits.
func (r *Source) Uint32() uint32 { return uint32(r.Uint64() >> 32) }

// IntN returns a number in [0, n). n must be positive.
func (r *Source) IntN(n int) int {
	if n <= 0 {
		panic("rng: IntN of a number that is not positive")
	}
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(hi)
}

// Float64 returns a number in [0, 1).
func (r *Source) Float64() float64 { return float64(r.Uint64()>>11) / (1 << 53) }

// Chance reports true with probability p.
func (r *Source) Chance(p float64) bool { return p > 0 && r.Float64() < p }
