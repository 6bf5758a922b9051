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
