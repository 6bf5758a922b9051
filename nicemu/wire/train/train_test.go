package train

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
)

func TestOrder(t *testing.T) {
	r := rng.New(1, "train")
	for range 2000 {
		n := r.IntN(pkt.Burst + 1)
		keys := make([]uint64, n)
		flows := 1 + r.IntN(20)
		for i := range keys {
			keys[i] = uint64(r.IntN(flows))
		}
		var order [pkt.Burst]uint8
		Order(keys, &order)
		seen, closed, last := map[uint8]bool{}, map[uint64]bool{}, uint64(1<<40)
		prev := -1
		for _, i := range order[:n] {
			if seen[i] {
				t.Fatal("twice", keys, order)
			}
			seen[i] = true
			if keys[i] != last {
				if closed[keys[i]] {
					t.Fatal("a flow in two places", keys, order)
				}
				closed[last], last, prev = true, keys[i], -1
			}
			if int(i) < prev {
				t.Fatal("order within a flow", keys, order)
			}
			prev = int(i)
		}
		if len(seen) != n {
			t.Fatal("missing", keys, order)
		}
	}
}

func TestHash(t *testing.T) {
	seen := map[uint64]bool{}
	for i := range 256 {
		seen[Hash(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))] = true
		seen[Hash(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i)}))] = true
	}
	if len(seen) < 500 {
		t.Error(len(seen))
	}
}

func BenchmarkOrder(b *testing.B) {
	keys := make([]uint64, pkt.Burst)
	for i := range keys {
		keys[i] = uint64(i % 8)
	}
	var order [pkt.Burst]uint8
	for b.Loop() {
		Order(keys, &order)
	}
}
