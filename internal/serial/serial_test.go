package serial

import "testing"

func TestExpand(t *testing.T) {
	for _, ref := range []uint64{0, 1, 1 << 23, 1<<24 - 1, 1 << 24, 1<<32 - 1, 1 << 40} {
		for _, d := range []int64{-(1 << 22), -1, 0, 1, 4096, 1<<23 - 1} {
			n := ref + uint64(d)
			if got := Trunc(n).Expand(ref); got != n {
				t.Errorf("PSN %#x near %#x: got %#x", n, ref, got)
			}
			if got := Expand32(uint32(n), ref); got != n {
				t.Errorf("u32 %#x near %#x: got %#x", n, ref, got)
			}
		}
	}
}

func TestOrderWraps(t *testing.T) {
	a, b := U32(0xfffffff0), U32(5)
	if !a.Less(b) || b.Less(a) || !a.LessEq(a) || b.Sub(a) != 21 || Max(a, b) != b || Max(b, a) != b {
		t.Fatal("order across the wrap")
	}
}
