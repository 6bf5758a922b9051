package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
)

// TestGrayPlane: one of four planes loses 5 % and says nothing about it; the connection keeps nearly everything.
// Bursts: 1 % lost in bursts of 8 on every plane.
func TestGrayPlane(t *testing.T) {
	base := goodput(t, Config{Seed: 9, Planes: 4, Link: usual()}, 4*mono.Millisecond, nil)
	gray := goodput(t, Config{Seed: 9, Planes: 4, Link: usual()}, 4*mono.Millisecond, func(w *World) {
		l := usual()
		l.Loss = 0.05
		w.SetPlane(1, l)
	})
	l := usual()
	l.Loss, l.Burst = 0.01, 8
	bursts := goodput(t, Config{Seed: 9, Planes: 4, Link: l}, 4*mono.Millisecond, nil)
	t.Logf("gray plane %.1f %%, bursts %.1f %% of loss-free", 100*gray/base, 100*bursts/base)
	if gray < 0.97*base {
		t.Errorf("a gray plane leaves %.1f %%", 100*gray/base)
	}
	if bursts < 0.95*base {
		t.Errorf("bursts leave %.1f %%", 100*bursts/base)
	}
}

// TestPlanesScale: twice the planes, twice the goodput.
func TestPlanesScale(t *testing.T) {
	one := goodput(t, Config{Seed: 3, Planes: 1, Link: usual()}, 2*mono.Millisecond, nil)
	for _, n := range []int{4, 8} {
		got := goodput(t, Config{Seed: 3, Planes: n, Link: usual()}, 2*mono.Millisecond, nil)
		if got < 0.97*float64(n)*one {
			t.Errorf("%d planes carry %.2f times one", n, got/one)
		}
	}
}
