package sim

import (
	"context"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plans"
)

// TestPostedAtStart: no time but that of what never came is below 0: flows without a start have no completion time.
func TestPostedAtStart(t *testing.T) {
	for _, set := range []map[string]string{nil, {"topology.planes": "1", "events": ""}, {"workload[0].pattern": "all-to-all", "workload[0].repeat": "1"}} {
		p, err := plans.Parse("smoke", set)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(context.Background(), p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Flows {
			if _, ok := r.Flows[i].FCT(); !ok {
				t.Fatalf("with %v flow %+v has no completion time", set, r.Flows[i])
			}
		}
	}
}
