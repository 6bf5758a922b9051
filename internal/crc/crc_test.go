package crc

import (
	"hash/crc32"
	"testing"

	"github.com/metaroce/metaroce/internal/rng"
)

// TestUpdate: the same as hash/crc32, in one piece and in two, at each length and alignment.
func TestUpdate(t *testing.T) {
	r := rng.New(1, "crc")
	b := make([]byte, 300)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for from := range 8 {
		for to := from; to <= len(b); to++ {
			want := crc32.ChecksumIEEE(b[from:to])
			mid := from + r.IntN(to-from+1)
			if one, two := Update(0, b[from:to]), Update(Update(0, b[from:mid]), b[mid:to]); one != want || two != want {
				t.Fatalf("%d to %d: %x and %x, want %x", from, to, one, two, want)
			}
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	p := make([]byte, 300) // 256 bytes and headers
	b.Run("here", func(b *testing.B) {
		for range b.N {
			Update(0, p)
		}
	})
	b.Run("hash/crc32", func(b *testing.B) {
		for range b.N {
			crc32.ChecksumIEEE(p)
		}
	})
}
