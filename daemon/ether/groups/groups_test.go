package groups_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/ether/groups"
)

func group(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0xff, 0x0e, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
}

func TestSet(t *testing.T) {
	var s groups.Set
	a, b := netip.MustParseAddr("239.1.1.1"), group(1)
	if s.Has(a) || !s.Empty() {
		t.Error("a new set has members")
	}
	s.Replace([]netip.Addr{a, a})
	s.Replace([]netip.Addr{b})
	if s.Has(a) || !s.Has(b) || s.Empty() {
		t.Error("not replaced")
	}
	s.Replace(nil)
	if s.Has(b) || !s.Empty() {
		t.Error("not emptied")
	}
	s.Replace([]netip.Addr{a, b})
	if n := testing.AllocsPerRun(100, func() { s.Has(a); s.Has(group(7)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestMany: a packet costs the same however many groups there are.
func TestMany(t *testing.T) {
	cost := func(n int) time.Duration {
		var s groups.Set
		var list []netip.Addr
		for i := range n {
			list = append(list, group(i))
		}
		s.Replace(list)
		best := time.Hour
		for range 5 {
			begin := time.Now()
			for i := range 2000 {
				s.Has(group(n - 1 - i%3))
			}
			best = min(best, time.Since(begin))
		}
		return best
	}
	if one, many := max(cost(3), 20*time.Microsecond), cost(20_000); many > 50*one {
		t.Errorf("%v among 20,000 groups, %v among 3", many, one)
	}
}
