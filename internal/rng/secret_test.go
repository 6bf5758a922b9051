package rng

import "testing"

// TestSecret: the block function is ChaCha20's (RFC 8439, appendix A.1, vectors 1 and 2: a key of zeroes, counters 0 and 1), and draws
// allocate nothing.
func TestSecret(t *testing.T) {
	s := &Secret{used: 16}
	for i, want := range []uint32{0xade0b876, 0x903df1a0, 0xe56a5d40, 0x28bd8653} {
		if got := s.Uint32(); got != want {
			t.Errorf("word %d is %#x, want %#x", i, got, want)
		}
	}
	for range 12 {
		s.Uint32()
	}
	if got := s.Uint32(); got != 0xbee7079f {
		t.Errorf("the second block begins with %#x", got)
	}
	if n := testing.AllocsPerRun(100, func() { s.Uint64() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	a, b, c := NewSecret([32]byte{}, 1, "x"), NewSecret([32]byte{}, 1, "x"), NewSecret([32]byte{1}, 1, "x")
	//= MR-SEC-001
	if x := a.Uint64(); x != b.Uint64() || x == c.Uint64() {
		t.Error("a seed is not repeated, or a key changes nothing")
	}
	for range 1000 {
		if n := a.IntN(7); n < 0 || n > 6 {
			t.Fatal(n)
		}
	}
}
