package figures

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/vopr"
)

// TestFloors: floors well below the figures, so that what breaks a rule shows. The figures come from `mroce figures`.
func TestFloors(t *testing.T) {
	// the baseline has bounds both ways: one that breaks would only make the other look better
	within := func(name string, s Sums, lo, hi float64) {
		t.Helper()
		t.Logf("%s: goodput %.1f %%", name, 100*s.Goodput)
		if s.Err || s.Goodput < lo || s.Goodput > hi {
			t.Errorf("%s: %+v, not in %v to %v", name, s, lo, hi)
		}
	}
	b := vopr.RoCEv2
	within("RoCEv2 pair", Pair(b, 1, 0, 0, 1, 2*mono.Millisecond), 0.97, 1.002)
	within("RoCEv2 pair, 1 % lost", Pair(b, 1, 0.01, 0, 1, 8*mono.Millisecond), 0.65, 0.9) // published: about 80 %
	within("RoCEv2 8:1, 1 BDP, marked", Incast(b, 8, 1, 0, false, 1, 4*mono.Millisecond), 0.7, 1.002)
	check := func(name string, s Sums, goodput, dropped, jain float64) {
		t.Helper()
		t.Logf("%s: goodput %.1f %%, dropped %.1f %%, Jain %.3f", name, 100*s.Goodput, 100*s.Dropped, s.Jain)
		if s.Err || s.Goodput < goodput || s.Dropped > dropped || s.Jain < jain {
			t.Errorf("%s: %+v; at least %v, dropped at most %v, Jain at least %v", name, s, goodput, dropped, jain)
		}
	}
	e := vopr.MetaRoCE
	check("pair", Pair(e, 4, 0, 0, 1, mono.Millisecond), 0.97, 0, 1)
	check("pair, 1 % lost", Pair(e, 4, 0.01, 0, 1, mono.Millisecond), 0.95, 0, 1)
	check("pair, 5 % lost", Pair(e, 4, 0.05, 0, 1, 2*mono.Millisecond), 0.943, 0, 1) // one full plane held up the others: 93.7 %
	check("pair, 1 % lost in bursts of 8", Pair(e, 4, 0.01, 8, 1, 4*mono.Millisecond), 0.95, 0, 1)
	check("8:1, 1 BDP", Incast(e, 8, 1, 0, false, 1, mono.Millisecond), 0.97, 0.01, 0.97)
	// from 1 ms on: some HELLOs are lost in the first burst and come again a millisecond later, each with a first window
	check("32:1, 1 BDP", Incast(e, 32, 1, 0, false, 1, 2*mono.Millisecond), 0.97, 0.02, 0.95)
	// from 3 ms on: before, those whose HELLO came first still have more (0.89 to 0.99 by seed at 1 ms, before and after any change)
	check("32:1, 0.25 BDP", Incast(e, 32, 0.25, 0, false, 1, 6*mono.Millisecond), 0.95, 0.05, 0.98)
	// acknowledgements on one way each: 61 %, Jain 0.72
	check("permutation", Permutation(e, 1, 0, false, 1, mono.Millisecond), 0.93, 0.02, 0.98)
	check("permutation, one class", Permutation(e, 1, 0, true, 1, mono.Millisecond), 0.8, 0.02, 0.9)
}

// TestTails: a message of one packet under loss.
func TestTails(t *testing.T) {
	p50, p99, p999, ok := Tail(vopr.MetaRoCE, 64, 0.1, 1000, 1)
	t.Logf("64 B, 10 %% lost: %.1f %.1f %.1f RTT", p50, p99, p999)
	if !ok || p50 < 0.5 || p50 > 1.5 || p99 > 5 || p999 > 9 {
		t.Error("too long")
	}
	if _, _, _, ok := Tail(vopr.MetaRoCE, 64, 1, 1, 1); ok {
		t.Error("a message ended although everything gets lost")
	}
}

// TestPlaneStory: a plane goes and the other three have its load within a few round trips.
func TestPlaneStory(t *testing.T) {
	line := PlaneStory(vopr.MetaRoCE, func(s *link.Spec) { s.Down = true }, mono.Millisecond, 2*mono.Millisecond, 50*mono.Microsecond, 1)
	for _, p := range line {
		if want := 0.70; p.At >= 100*mono.Microsecond && p.At < 900*mono.Microsecond && p.Goodput < want || p.At >= 1500*mono.Microsecond && p.Goodput < 0.9 {
			t.Errorf("%v after the plane went: %.1f %%", p.At, 100*p.Goodput)
		}
	}
}
