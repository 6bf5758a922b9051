package cc

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
)

func TestDCQCN(t *testing.T) {
	const g = 1e9
	c := PaperDCQCN(40 * g)
	var d DCQCN
	d.Start(&c)
	now := mono.Time(1000)
	if d.Limited() || d.Rate(now) != 40*g {
		t.Fatal("does not start at line rate")
	}
	d.OnSend(now, 1<<30)
	d.OnCNP(now)
	if r := d.Rate(now); r != 20*g || d.Alpha() != 1 {
		t.Fatalf("first cut to %v, alpha %v", r, d.Alpha())
	}
	// Fast recovery halves the gap each 55 µs, four times; the next stages are additive.
	want := 20 * g
	for i := range 4 {
		now = now.Add(55 * mono.Microsecond)
		want = (want + 40*g) / 2
		if r := d.Rate(now); r != want {
			t.Fatalf("stage %d: %v, want %v", i, r, want)
		}
	}
	// Asked late, it says the same as asked often.
	e := d
	for range 200 {
		now = now.Add(3 * mono.Microsecond)
		d.Rate(now)
	}
	if e.Rate(now) != d.Rate(now) || e.Alpha() != d.Alpha() {
		t.Fatalf("late %v %v, often %v %v", e.Rate(now), e.Alpha(), d.Rate(now), d.Alpha())
	}
	// Notifications without end lead to the lowest rate, and silence back to the line.
	d.OnCNP(now)
	for range 5000 {
		now = now.Add(50 * mono.Microsecond)
		d.OnCNP(now)
	}
	if r := d.Rate(now); r != c.Min {
		t.Fatalf("rate %v under lasting congestion, want %v", r, c.Min)
	}
	now = now.Add(mono.Second)
	if r := d.Rate(now); r != 40*g || d.Limited() {
		t.Fatalf("rate %v after a quiet second", r)
	}
	// Bytes bring it up, too: with both over F, faster.
	d.OnCNP(now)
	for range 20 {
		d.OnCNP(now.Add(mono.Microsecond))
	}
	low := d.Rate(now)
	for range 12 {
		d.OnSend(now, int(c.ByteCounter))
	}
	if d.bytesN != 12 || d.Rate(now) <= low {
		t.Fatal("bytes do not count")
	}
}

func TestDCQCNConnectX(t *testing.T) {
	c := ConnectXDCQCN(100e9)
	var d DCQCN
	d.Start(&c)
	now := mono.Time(1)
	d.OnCNP(now)
	r := d.Rate(now)
	if d.OnCNP(now.Add(mono.Microsecond)); d.rc < r {
		t.Error("cut twice within the spacing")
	}
	d.OnCNP(now.Add(10 * mono.Microsecond))
	if d.rc >= r {
		t.Error("no second cut")
	}
	d.Rate(now.Add(100 * mono.Second)) // must not take for ever
}
