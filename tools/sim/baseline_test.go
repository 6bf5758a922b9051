package sim

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// ready runs a ready plan with what is changed in it.
func ready(t testing.TB, seed uint64, name string, set ...string) *result.Result {
	t.Helper()
	over := map[string]string{}
	for i := 0; i < len(set); i += 2 {
		over[set[i]] = set[i+1]
	}
	p, err := plans.Parse(name, over)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(context.Background(), p, Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLosslessIs: with PFC and the headroom of the default nothing is dropped, so that no timer of RoCEv2 ever runs out.
func TestLosslessIs(t *testing.T) {
	for _, set := range [][]string{{}, {"transport.qps", "16"}, {"topology.delay", "3us"}, {"topology.up_rate", "400Gbit", "topology.spines", "2"}} {
		r := ready(t, 1, "ls64-affine-rocev2", append(set, "workload[0].size", "2MiB")...)
		ended(t, r)
		if s := r.Summary; s.Dropped != 0 || s.Retransmits != 0 || s.PauseFrames == 0 {
			t.Errorf("%v: %d dropped, %d sent again, %d pauses", set, s.Dropped, s.Retransmits, s.PauseFrames)
		}
	}
}

// TestGoBackN: go-back-N keeps what its closed form says, (1-p)/(1-p + pW + p²R): a loss costs the W packets of a round trip and
// the one that shows the gap; what is lost again, R packets of a timeout. Without a timer in the way R is 0.
func TestGoBackN(t *testing.T) {
	for _, c := range []struct {
		plan, rate, until string
		p                 float64
		once              bool
		code              int // of the timer: 4.096 µs · 2^code
	}{
		{"baseline-gbn-1ms", "400Gbit", "30ms", 0.001, false, 8},
		{"baseline-gbn-1ms", "400Gbit", "50ms", 0.01, false, 8},
		{"baseline-gbn-1ms", "100Gbit", "200ms", 0.01, false, 8},
		{"baseline-gbn-1ms", "100Gbit", "2s", 0.1, true, 8},
		{"baseline-gbn-67ms", "100Gbit", "120s", 0.05, true, 14},
	} {
		r := ready(t, 1, c.plan, "topology.rate", c.rate, "events[0].loss", fmt.Sprintf("%g%%", 100*c.p), "transport.nak_once", fmt.Sprint(c.once), "run.until", c.until)
		packet := float64(r.Setup.WireBytes) * 8 / float64(r.Setup.RateBps)
		w, timeout := r.Setup.RTT/packet+1, 0.0
		if c.once {
			timeout = 4.096e-6 * float64(int(1)<<c.code) / packet
		}
		want := (1 - c.p) / (1 - c.p + c.p*w + c.p*c.p*timeout)
		if got := r.Summary.GoodputShare; math.Abs(got/want-1) > 0.05 || r.Summary.Errors > 0 {
			t.Errorf("%s, %s, %g lost: %.5f, the form %.5f; %d failed", c.plan, c.rate, c.p, got, want, r.Summary.Errors)
		}
	}
}

// TestDCQCN: with the constants, the thresholds and the speed of its paper, DCQCN shares a link evenly, all of it, and pauses nobody.
func TestDCQCN(t *testing.T) {
	for _, senders := range []string{"2", "8"} {
		r := ready(t, 1, "baseline-dcqcn", "topology.rate", "40Gbit", "switch.ecn_min", "5kB", "switch.ecn_max", "200kB",
			"workload", "[{pattern: incast, senders: "+senders+", target: 0, size: 1MiB}]", "run", "{steady: true, warm: 20ms, until: 40ms}")
		if s := r.Summary; s.GoodputShare < 0.95 || s.PauseFrames > 0 || s.Dropped > 0 || s.Marked == 0 || s.FCTMax > 1.5*s.FCTMin {
			t.Errorf("%s senders: %.3f of the link, %d pauses, %d marked, messages take %.0f to %.0f µs", senders, s.GoodputShare, s.PauseFrames, s.Marked, s.FCTMin*1e6, s.FCTMax*1e6)
		}
	}
}

// TestTheory: a message alone, and incast, take what arithmetic says: within 0.1 and 1.5 %.
func TestTheory(t *testing.T) {
	const packet = 4160 * 8 / 100e9 // seconds on the wire, of 4096 bytes
	for _, plan := range []string{"ls64-incast-rocev2", "ls64-incast"} {
		one := ready(t, 1, plan, "workload[0].senders", "1", "workload[0].size", "64MiB")
		ended(t, one)
		if want := 16384*packet + one.Setup.RTT; math.Abs(one.Summary.FCTMax/want-1) > 0.001 {
			t.Errorf("%s: 64 MiB alone take %.2f µs, want %.2f", plan, one.Summary.FCTMax*1e6, want*1e6)
		}
	}
	for _, size := range []int{1, 4} {
		r := ready(t, 1, "ls64-incast-rocev2", "workload[0].size", fmt.Sprintf("%dMiB", size))
		ended(t, r)
		if want := 32 * 256 * packet * float64(size); r.Summary.FCTMax < want || r.Summary.FCTMax > 1.015*want {
			t.Errorf("incast 32:1 of %d MiB: %.1f µs, at least %.1f", size, r.Summary.FCTMax*1e6, want*1e6)
		}
	}
}

// TestFairness: Jain's index is 1 where all have the same, 1/n where one has everything, and what its definition says between.
func TestFairness(t *testing.T) {
	for _, c := range []struct {
		rates        []float64
		jain, minMax float64
	}{
		{[]float64{5, 5, 5, 5}, 1, 1}, {[]float64{0, 0, 7, 0}, 0.25, 0}, {[]float64{1, 2, 3}, 36.0 / 42, 1.0 / 3}, {[]float64{3}, 1, 1}, {nil, 0, 0}, {[]float64{0, 0}, 0, 0},
	} {
		if jain, minMax := fairness(c.rates); math.Abs(jain-c.jain) > 1e-12 || math.Abs(minMax-c.minMax) > 1e-12 {
			t.Errorf("%v: %v and %v, want %v and %v", c.rates, jain, minMax, c.jain, c.minMax)
		}
	}
	r := ready(t, 1, "ls64-incast", "workload[0].senders", "8")
	ended(t, r)
	var sum, squares float64 // from the list of flows, by the definition
	for i := range r.Flows {
		d, _ := r.Flows[i].FCT()
		x := float64(r.Flows[i].Size) * 8 / d
		sum, squares = sum+x, squares+x*x
	}
	if want := sum * sum / (8 * squares); math.Abs(r.Summary.Jain-want) > 1e-9 || r.Summary.Jain < 0.99 {
		t.Errorf("eight senders to one: Jain's index %.4f, by the flows %.4f, at least 0.99", r.Summary.Jain, want)
	}
}
