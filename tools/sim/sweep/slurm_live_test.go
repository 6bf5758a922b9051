//go:build slurm

package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
)

// These tests want a Slurm: ci/slurm.sh -m 4 go test -tags slurm ./tools/sim/sweep -run Slurm

func newSlurm(t *testing.T) *bench {
	b := newBench(t)
	b.opts.Workers = 0
	b.opts.Slurm = &Slurm{Worker: []string{os.Args[0], "task"}, Poll: 300 * time.Millisecond}
	b.opts.Note = func(s string) { t.Log(s) }
	return b
}

// queued asks Slurm itself which jobs of this user are there.
func queued(t *testing.T) []string {
	out, err := command(context.Background(), "squeue", "-h", "-r", "-o", "%F_%K %T")
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
}

// TestSlurmSweep: four points in arrays of three, one of which fails the first time. The results are those of this machine's own cores.
func TestSlurmSweep(t *testing.T) {
	const four = "points: [{mode: ok}, {mode: once}, {mode: fine}, {mode: slow}]\nretries: 1\nmemory: 64MiB\ntimeout: 60s\n"
	b := newSlurm(t)
	b.opts.Slurm.ArrayMax = 3
	rep := b.expect(four, 5, map[State]int{Done: 4})
	here := newBench(t)
	own := here.expect(four, 5, map[State]int{Done: 4})
	for i := range rep.Points {
		a, b := rep.Points[i], own.Points[i]
		if a.Hash == "" || a.Hash != b.Hash || a.Point != b.Point {
			t.Errorf("%s: %s by Slurm, %s here", a.Point, a.Hash, b.Hash)
		}
	}
	var s status
	if err := readJSON(filepath.Join(b.opts.Dir, "sweep.json"), &s); err != nil || len(s.Arrays) != 3 || !s.Complete {
		t.Errorf("%v: %d arrays, want 3 (of 3, of 1, and the failed point again)", err, len(s.Arrays))
	}
	b.expect(four, 0, map[State]int{Done: 4})
}

// TestSlurmLimit: the cluster's own bound of an array is kept, and used.
func TestSlurmLimit(t *testing.T) {
	b := newSlurm(t)
	limit, err := arrayLimit(context.Background())
	if err != nil || limit > 100 {
		t.Fatalf("MaxArraySize %d, %v: start the cluster with ci/slurm.sh -m 4", limit, err)
	}
	b.expect(fmt.Sprintf("seeds: 1..%d\n", limit+1), limit+1, map[State]int{Done: limit + 1})
	var s status
	if err := readJSON(filepath.Join(b.opts.Dir, "sweep.json"), &s); err != nil || len(s.Arrays) != 2 || len(s.Arrays[0].Points) != limit {
		t.Errorf("%v %+v", err, s.Arrays)
	}
}

// TestSlurmFailure: what Slurm or the run says of a failed point reaches the user.
func TestSlurmFailure(t *testing.T) {
	b := newSlurm(t)
	rep := b.expect("points: [{mode: fail}, {mode: partial}, {mode: killed}, {mode: usage}]\nretries: 1\n", 6, map[State]int{Failed: 3, Partial: 1})
	if p := rep.Bad[0]; p.Why != "exit code 1" || strings.Join(p.Stderr, "|") != "first line|the reason" || p.Tries != 2 {
		t.Errorf("%+v", p)
	}
	b = newSlurm(t)
	b.opts.Slurm.Worker = []string{"/nonexistent"} // as where a node does not see the program
	rep = b.expect("seeds: 1\n", 0, map[State]int{Failed: 1})
	if p := rep.Bad[0]; !strings.Contains(p.Why, "127:0") || !strings.Contains(strings.Join(p.Stderr, " "), "not found") {
		t.Errorf("%+v", p)
	}
}

// TestSlurmCancel: when the sweep is stopped its jobs are, and the next run goes on.
func TestSlurmCancel(t *testing.T) {
	b := newSlurm(t)
	ctx, stop := context.WithCancel(context.Background())
	b.opts.Change = func(_ PointState, n map[State]int) {
		if n[Done] == 1 && n[Running] == 2 {
			stop()
		}
	}
	_, _, err := b.run(ctx, "points: [{mode: ok}, {mode: hang}, {mode: hang, x: 1}]\n")
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if q := queued(t); len(q) > 0 {
		t.Error("still there:", q)
	}
	if left, _ := filepath.Glob(filepath.Join(b.opts.Dir, "points/*hang*")); len(left) > 0 {
		t.Error("left behind:", left)
	}
	b.opts.Change = nil
	b.expect("points: [{mode: ok}, {mode: fine}]\n", 1, map[State]int{Done: 2})
}

// TestSlurmOrphan: the process that submitted dies; the next one finds the array, with and without its number noted.
func TestSlurmOrphan(t *testing.T) {
	for _, noted := range []bool{true, false} {
		b := newSlurm(t)
		two := "points: [{mode: slow}, {mode: slow, x: 1}]\n"
		s, err := Parse(filepath.Join(b.dir, "s.yaml"), []byte("plan: plan.yaml\n"+two))
		if err != nil {
			t.Fatal(err)
		}
		o := b.opts
		o.Change = func(PointState, map[State]int) {}
		if o.Plan, o.Text, o.Base, err = s.FindPlan(nil); err != nil {
			t.Fatal(err)
		}
		r := &sweeping{Options: o, s: s, points: filepath.Join(o.Dir, "points"), token: "t" + filepath.Base(b.dir)}
		if err := os.MkdirAll(r.points, 0o755); err != nil {
			t.Fatal(err)
		}
		todo, err := r.begin(context.Background())
		if err == nil {
			r.Slurm.Args = []string{"--begin=now+3"} // not before the next process looks
			err = r.submit(context.Background(), todo)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !noted {
			r.status.Arrays[0].Job = ""
			if err := r.saveNow(); err != nil {
				t.Fatal(err)
			}
		}
		b.opts.Slurm = nil
		if _, _, err := b.run(context.Background(), two); err == nil || !strings.Contains(err.Error(), "scancel") {
			t.Error("a local run beside an array:", err)
		}
		b.opts.Slurm = o.Slurm
		b.opts.Slurm.Args = nil
		b.expect(two, 2, map[State]int{Done: 2})
		var after status
		if err := readJSON(filepath.Join(o.Dir, "sweep.json"), &after); err != nil || len(after.Arrays) != 1 {
			t.Errorf("noted %v: %v, %d arrays, want the one of before", noted, err, len(after.Arrays))
		}
	}
}

// TestSlurmErrors: what is wrong with the cluster or the command line is told with its exit code.
func TestSlurmErrors(t *testing.T) {
	b := newSlurm(t)
	b.opts.Slurm.Partition = "mian"
	if _, _, err := b.run(context.Background(), "seeds: 1"); fail.Code(err) != fail.Usage || !strings.Contains(err.Error(), "there are: main") {
		t.Error("partition:", err)
	}
	b.opts.Slurm.Partition, b.opts.Slurm.Args, b.opts.Slurm.QueueMax = "", []string{"--hold"}, time.Second
	if _, _, err := b.run(context.Background(), "seeds: 1"); fail.Code(err) != fail.Failed || !strings.Contains(err.Error(), "JobHeldUser") {
		t.Error("held:", err)
	}
	if q := queued(t); len(q) > 0 {
		t.Error("still there:", q)
	}
	conf, err := os.ReadFile(os.Getenv("SLURM_CONF"))
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(t.TempDir(), "slurm.conf")
	text := strings.ReplaceAll(string(conf), "SlurmctldPort=", "MessageTimeout=2\nSlurmctldPort=1 #")
	if err := os.WriteFile(dead, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", dead)
	if _, _, err := newSlurm(t).run(context.Background(), "seeds: 1"); fail.Code(err) != fail.Lacking || !strings.Contains(err.Error(), "does not answer") {
		t.Error("controller:", err)
	}
}
