package sweep

import (
	"context"
	"encoding/csv"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
)

// bench is a directory with a plan and a sweep of it.
type bench struct {
	t    *testing.T
	dir  string
	opts Options
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir()}
	b.plan("name: p\n")
	b.opts = Options{Dir: filepath.Join(b.dir, "out"), Program: []string{os.Args[0], "run"}, Commit: "c1", Workers: 2}
	return b
}

func (b *bench) plan(text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "plan.yaml"), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// run sweeps, and returns the report and how many runs there were.
func (b *bench) run(ctx context.Context, sweep string) (*Report, int, error) {
	b.t.Helper()
	s, err := Parse(filepath.Join(b.dir, "s.yaml"), []byte("plan: plan.yaml\n"+sweep))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.opts.Plan, b.opts.Text, b.opts.Base, err = s.FindPlan(nil); err != nil {
		b.t.Fatal(err)
	}
	os.Remove(filepath.Join(b.dir, "runs"))
	rep, err := Run(ctx, s, b.opts)
	runs, _ := os.ReadFile(filepath.Join(b.dir, "runs"))
	return rep, strings.Count(string(runs), "\n"), err
}

func (b *bench) expect(sweep string, runs int, count map[State]int) *Report {
	b.t.Helper()
	rep, n, err := b.run(context.Background(), sweep)
	if err != nil {
		b.t.Fatal(err)
	}
	if n != runs {
		b.t.Errorf("%d runs, want %d", n, runs)
	}
	for _, s := range []State{Waiting, Running, Done, Partial, Failed} {
		if rep.Count[s] != count[s] {
			b.t.Errorf("%d points %s, want %d: %+v", rep.Count[s], s, count[s], rep.Bad)
		}
	}
	return rep
}

func (b *bench) exists(path string) bool {
	_, err := os.Stat(filepath.Join(b.dir, "out", path))
	return err == nil
}

// TestResume: only what is missing or changed is run.
func TestResume(t *testing.T) {
	b := newBench(t)
	four := "grid: {mode: [ok, fine]}\nseeds: [1, 2]\n"
	rep := b.expect(four, 4, map[State]int{Done: 4})
	if !rep.Complete || rep.Points[0].Hash == "" || rep.Points[0].Summary.FCTMax != 0.125 {
		t.Errorf("%+v", rep.Points[0])
	}
	rep = b.expect(four, 0, map[State]int{Done: 4})
	if rep.Before != 4 || rep.Points[3].Summary == nil {
		t.Errorf("results of before are gone: %+v", rep)
	}
	b.expect("grid: {mode: [ok, fine]}\nseeds: [1, 2, 3]\n", 2, map[State]int{Done: 6})
	b.plan("name: p2\n")
	b.expect(four, 4, map[State]int{Done: 4})
	b.opts.Commit = "c2"
	b.expect(four, 4, map[State]int{Done: 4})
	b.expect("set: {x: 1}\n"+four, 4, map[State]int{Done: 4})
	if err := os.RemoveAll(filepath.Join(b.dir, "out/points/mode=ok_seed=1")); err != nil {
		t.Fatal(err)
	}
	b.expect("set: {x: 1}\n"+four, 1, map[State]int{Done: 4})
	b.opts.Rerun = "failed"
	b.expect("set: {x: 1}\n"+four, 0, map[State]int{Done: 4})
	b.opts.Rerun = "all"
	b.expect("set: {x: 1}\n"+four, 4, map[State]int{Done: 4})
}

// TestFiles: a file that the plan reads is part of what a result depends on.
func TestFiles(t *testing.T) {
	b := newBench(t)
	b.plan("workload: [{pattern: cm, file: a.cm}]\n")
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(b.dir, "a.cm"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	b.expect("seeds: 1", 1, map[State]int{Done: 1})
	b.expect("seeds: 1", 0, map[State]int{Done: 1})
	write("two")
	b.expect("seeds: 1", 1, map[State]int{Done: 1})
}

// TestBadRuns: each way to fail is told, and leaves nothing that looks like a result.
func TestBadRuns(t *testing.T) {
	for _, x := range []struct {
		mode, more string
		state      State
		runs       int
		why        string
	}{
		{"fail", "", Failed, 1, "exit code 1"},
		{"fail", "retries: 2", Failed, 3, "exit code 1"},
		{"once", "retries: 1", Done, 2, ""},
		{"usage", "retries: 2", Failed, 1, "exit code 2"},
		{"killed", "", Failed, 1, "signal: killed"},
		{"garbage", "", Failed, 1, "it printed no result"},
		{"unsealed", "", Failed, 1, "it has no hash"},
		{"seed", "", Failed, 1, "the result is of seed 8"},
		{"edit", "", Failed, 1, "changed while the sweep ran"},
		{"partial", "retries: 2", Partial, 1, "until came first"},
		{"quietly-partial", "", Partial, 1, ""},
		{"hang", "timeout: 1s", Failed, 1, "longer than the timeout of 1s"},
		{"memory", "memory: 128MiB", Failed, 1, "of memory, and may have 128"},
	} {
		t.Run(x.mode+x.more, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			rep := b.expect("grid: {mode: "+x.mode+"}\nseeds: 7\n"+x.more, x.runs, map[State]int{x.state: 1})
			p := rep.Points[0]
			if !strings.Contains(p.Why, x.why) || p.Partial != (x.state != Done) || rep.Complete != (x.state == Done) || (p.Summary != nil) != (x.state != Failed) {
				t.Errorf("%+v", p)
			}
			name := "points/mode=" + x.mode + "_seed=7"
			for s, suffix := range suffixes {
				if b.exists(name+suffix) != (s == x.state) {
					t.Errorf("%s%s is there: %v", name, suffix, b.exists(name+suffix))
				}
			}
			if x.state == Failed && b.exists(name+".failed/result.json") {
				t.Error("a failed run left a result")
			}
			if x.state != Done {
				return
			}
			for _, f := range []string{"result.json", "stderr.txt", "outcome.json"} {
				if !b.exists(name + "/" + f) {
					t.Error("no", f)
				}
			}
		})
	}
}

// TestRerun: failed points stay failed until they are asked for.
func TestRerun(t *testing.T) {
	b := newBench(t)
	three := "points: [{mode: ok}, {mode: partial}, {mode: once}]\n"
	rep := b.expect(three, 3, map[State]int{Done: 1, Partial: 1, Failed: 1})
	if len(rep.Bad) != 2 || rep.Bad[0].State != Failed || strings.Join(rep.Bad[0].Stderr, "") != "not this time" {
		t.Errorf("%+v", rep.Bad)
	}
	b.expect(three, 0, map[State]int{Done: 1, Partial: 1, Failed: 1})
	b.opts.Rerun = "failed"
	b.expect(three, 2, map[State]int{Done: 2, Partial: 1})
}

// TestInterrupt: children end, nothing half done stays, and the next run goes on.
func TestInterrupt(t *testing.T) {
	b := newBench(t)
	ctx, stop := context.WithCancel(context.Background())
	b.opts.Change = func(p PointState, n map[State]int) {
		if n[Done] == 2 && n[Running] == 2 {
			time.AfterFunc(200*time.Millisecond, stop)
		}
	}
	points := "points: [{mode: ok}, {mode: fine}, {mode: hang}, {mode: hang, x: 1}, {mode: slow}]\n"
	began := time.Now()
	rep, _, err := b.run(ctx, points)
	if !errors.Is(err, context.Canceled) || time.Since(began) > 15*time.Second {
		t.Fatal(err, time.Since(began))
	}
	if rep.Count[Done] != 2 || rep.Count[Waiting] != 3 || rep.Complete {
		t.Errorf("%+v", rep.Count)
	}
	left, _ := filepath.Glob(filepath.Join(b.dir, "out/points/*hang*"))
	if len(left) > 0 {
		t.Error("left behind:", left)
	}
	var s status
	if err := readJSON(filepath.Join(b.dir, "out/sweep.json"), &s); err != nil || s.Complete || s.Points[2].State != Waiting {
		t.Errorf("%v %+v", err, s)
	}
	b.opts.Change = nil
	b.expect("points: [{mode: ok}, {mode: fine}, {mode: slow}]\n", 1, map[State]int{Done: 3})
}

// TestInterruptAtTheEnd: a run that ends well just when it is told to stop has not failed.
func TestInterruptAtTheEnd(t *testing.T) {
	b := newBench(t)
	ctx, stop := context.WithCancel(context.Background())
	b.opts.Change = func(PointState, map[State]int) { time.AfterFunc(300*time.Millisecond, stop) }
	rep, _, err := b.run(ctx, "grid: {mode: finish}\n")
	if !errors.Is(err, context.Canceled) || rep.Count[Waiting] != 1 {
		t.Errorf("%v %+v %+v", err, rep.Count, rep.Bad)
	}
}

// TestTable: a row for each point, whatever became of it; no figures but of results.
func TestTable(t *testing.T) {
	b := newBench(t)
	b.expect("points: [{mode: ok, b: 3}, {mode: fail}, {mode: partial}]\nseeds: 4\n", 3, map[State]int{Done: 1, Failed: 1, Partial: 1})
	f, err := os.Open(filepath.Join(b.dir, "out/results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatal(err, len(rows))
	}
	cell := func(row int, col string) string {
		for i, h := range rows[0] {
			if h == col {
				return rows[row][i]
			}
		}
		t.Fatalf("no column %s in %v", col, rows[0])
		return ""
	}
	for _, x := range []struct {
		row       int
		col, want string
	}{
		{1, "point", "mode=ok_b=3_seed=4"}, {1, "state", "done"}, {1, "partial", "false"}, {1, "mode", "ok"}, {1, "b", "3"}, {1, "seed", "4"},
		{1, "flows", "3"},
		{1, "fct_max_s", "0.5"}, {1, "group_s_max", "3"}, {1, "busbw_bps_min", "4"}, {1, "exit", "0"},
		{2, "state", "failed"}, {2, "partial", "true"}, {2, "b", ""}, {2, "flows", ""},
		{2, "fct_max_s", ""}, {2, "hash", ""}, {2, "exit", "1"}, {2, "why", "exit code 1"},
		{3, "state", "partial"}, {3, "partial", "true"}, {3, "flows", "3"}, {3, "exit", "4"},
	} {
		if got := cell(x.row, x.col); got != x.want {
			t.Errorf("row %d, %s: %q, want %q", x.row, x.col, got, x.want)
		}
	}
}

// TestOneAtATime: a second process is kept out of the directory.
func TestOneAtATime(t *testing.T) {
	b := newBench(t)
	if err := os.MkdirAll(b.opts.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(b.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.run(context.Background(), "seeds: 1"); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Error(err)
	}
	unlock()
	b.expect("seeds: 1", 1, map[State]int{Done: 1})
}

func TestFindPlan(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ring.yaml"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	ready := func(name string) ([]byte, []string) {
		if name == "allreduce" {
			return []byte("ready"), nil
		}
		return nil, []string{"allreduce", "planes"}
	}
	for _, x := range []struct{ plan, arg, text, err string }{
		{"ring.yaml", filepath.Join(dir, "ring.yaml"), "x", ""},
		{"allreduce", "allreduce", "ready", ""},
		{"rign.yaml", "", "", `s.yaml:1: no plan "rign.yaml"; did you mean "ring.yaml"?`},
		{"plane", "", "", `did you mean "planes"?`},
		{"nothing-like-it", "", "", "these are ready: allreduce, planes"},
	} {
		s, err := Parse(filepath.Join(dir, "s.yaml"), []byte("plan: "+x.plan+"\nseeds: 1\n"))
		if err != nil {
			t.Fatal(err)
		}
		arg, text, _, err := s.FindPlan(ready)
		if arg != x.arg || string(text) != x.text || (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %q %q %v", x.plan, arg, text, err)
		}
		if err != nil && fail.Code(err) != fail.Usage {
			t.Errorf("%s: code %d", x.plan, fail.Code(err))
		}
	}
}

// TestTask: what a point is run with.
func TestTask(t *testing.T) {
	s, err := Parse("s.yaml", []byte("plan: p\nset: {a: 1}\ngrid: {b: [2]}\nseeds: 9\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := &sweeping{Options: Options{Program: []string{"mroce", "sim", "run"}, Plan: "p"}, s: s,
		status: &status{Points: []PointState{{Set: s.Points[0].Set, Seed: 9}}}}
	for range 2 { // the second is not made of the first
		if got := strings.Join(r.task(0, 1).Run, " "); got != "mroce sim run --set a=1 --set b=2 --seed 9 --json" {
			t.Error(got)
		}
	}
	if got := strconv.Quote(quote("it's")); got != `"'it'\\''s'"` {
		t.Error(got)
	}
}

// TestNoSlurm: a machine without Slurm is told so, and what to install.
func TestNoSlurm(t *testing.T) {
	b := newBench(t)
	b.opts.Slurm = &Slurm{}
	t.Setenv("PATH", t.TempDir())
	if _, _, err := b.run(context.Background(), "seeds: 1"); fail.Code(err) != fail.Lacking || !strings.Contains(err.Error(), "slurm-client") {
		t.Error(err)
	}
}
