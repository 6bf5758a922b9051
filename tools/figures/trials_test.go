package figures

import (
	"math"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
)

// TestTrialsRecorded: every row has ccsim's figures, from the arguments that it has now, with all that is compared.
func TestTrialsRecorded(t *testing.T) {
	ts, err := Trials(nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, x := range ts {
		if names[x.Name] {
			t.Errorf("%s: twice", x.Name)
		}
		names[x.Name] = true
		args, line, ok := Recorded(x.Name)
		if !ok || args != strings.Join(x.Args, " ") {
			t.Errorf("%s: recorded with %q, has %q: run ccsim again (docs/trials.md)", x.Name, args, strings.Join(x.Args, " "))
		}
		v := parseCcsim(line)
		for _, k := range x.Keys {
			if _, is := v[k]; !is {
				t.Errorf("%s: no %s in %q", x.Name, k, line)
			}
		}
	}
	if n := strings.Count(ccsimTable, "\n"); n != len(ts) {
		t.Errorf("%d rows recorded, %d trials", n, len(ts))
	}
	if _, err := Trials([]string{"9/"}); err == nil {
		t.Error("found a trial that is not there")
	}
}

// TestTrial: one small row of each kind runs, and what is compared comes out.
func TestTrial(t *testing.T) {
	var r Result
	run := func(name string, f func(r *Result), keys ...string) {
		t.Helper()
		r = Result{Core: map[string]float64{}, Counts: map[string]uint64{}, Shares: map[string]float64{}}
		f(&r)
		t.Log(name, r.Core)
		if r.Errors > 0 {
			t.Errorf("%s: %d errors", name, r.Errors)
		}
		for _, k := range keys {
			if v := r.Core[k]; math.IsNaN(v) || v <= 0 && k != vDropped {
				t.Errorf("%s: %s is %v", name, k, v)
			}
		}
	}
	run("incast", func(r *Result) {
		steadyRow{pattern: incast, n: 3, queue: 1, warm: ms / 5, d: ms / 5}.run(r, 1)
	}, steadyKeys...)
	if r.Counts["data"] == 0 || r.Shares["window_bdp"] <= 0 {
		t.Errorf("no counters: %v %v", r.Counts, r.Shares)
	}
	run("permutation, marks", func(r *Result) {
		steadyRow{pattern: permutation, queue: 1, marks: true, warm: ms / 2, d: ms / 4}.run(r, 1)
	}, steadyKeys...)
	if v := r.Core[vGoodput]; v < 91 { // paths that were marked did not come back: 85 to 88 %
		t.Errorf("%.1f %% where switches mark", v)
	}
	run("all to all, few paths, core of half the rate", func(r *Result) {
		steadyRow{pattern: allToAll, hosts: 4, queue: 1, message: 65536, over: 2, engine: lean{paths: 4}, warm: ms / 5, d: ms / 5}.run(r, 1)
	}, steadyKeys...)
	run("times", func(r *Result) {
		steadyRow{pattern: permutation, hosts: 16, queue: 1, message: 1 << 16, d: ms}.runTimes(r, 1)
	}, vMedian, vLast)
	run("tail", func(r *Result) {
		steadyRow{pattern: pair, planes: 2, queue: 1, loss: 0.1, message: 4096, engine: lean{twin: 1}}.runTail(r, 1, 100)
	}, vP99, vP999)
	if r.Counts["twins"] == 0 {
		t.Error("nothing was sent twice")
	}
	run("failure", func(r *Result) {
		steadyRow{pattern: permutation, hosts: 16, planes: 2, queue: 1, warm: ms / 2, d: 200 * mono.Microsecond}.runFailure(r, 1)
	}, vRest, vSlow)
	if r.Counts["plane_failures"] == 0 {
		t.Error("no plane failed")
	}
}

// TestWorse: what counts as clearly worse.
func TestWorse(t *testing.T) {
	keys := []string{vGoodput, vDropped, vJain, vP999}
	model := map[string]float64{vGoodput: 95, vDropped: 1, vJain: 1, vP999: 4}
	if w := worse(keys, map[string]float64{vGoodput: 93.5, vDropped: 2.5, vJain: 0.995, vP999: 5}, model); w != nil {
		t.Errorf("%v is not clearly worse", w)
	}
	if w := worse(keys, map[string]float64{vGoodput: 92, vDropped: 4, vJain: 0.9, vP999: 6}, model); len(w) != 4 {
		t.Errorf("only %v", w)
	}
}
