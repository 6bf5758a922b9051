package sim

import (
	"context"
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
