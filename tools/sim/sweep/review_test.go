package sweep

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReplaced: what the sweep sets for all points and a point for itself is given once, the point's: `--set` twice is refused.
func TestReplaced(t *testing.T) {
	s, err := Parse("s.yaml", []byte("plan: p\nset: {a: 1, b: 2, transport: \"{kind: ideal}\"}\ngrid: {a: [3, 4], transport.qps: [5]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := &sweeping{s: s, status: &status{Points: make([]PointState, 2)}}
	got := strings.Join(r.task(1, 1).Run, " ")
	if want := "--set b=2 --set transport={kind: ideal} --set a=4 --set transport.qps=5 --seed 0 --json"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestRunInName: a value that looks like a run under way does not cost its point the result.
func TestRunInName(t *testing.T) {
	b := newBench(t)
	sweep := "grid: {mode: [a.run-1, \"b.run-zz-1\"]}\n"
	b.expect(sweep, 2, map[State]int{Done: 2})
	left := filepath.Join(b.dir, "out/points/mode=a.run-1_seed=1.run-abc9-1")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	b.expect(sweep, 0, map[State]int{Done: 2})
	b.expect(sweep, 0, map[State]int{Done: 2})
	if _, err := os.Stat(left); err == nil {
		t.Error("what a run left that was killed is still there")
	}
}

// TestFileOfPoint: a file that a point's values name is part of what its result depends on, too.
func TestFileOfPoint(t *testing.T) {
	b := newBench(t)
	write := func(text string) {
		for _, name := range []string{"a.cm", "b.cm"} {
			if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("one")
	sweep := "grid: {mode: [ok]}\nset: {\"workload[0].file\": a.cm}\n"
	inline := "grid: {mode: [ok]}\nset: {workload: \"[{pattern: cm, file: b.cm}]\"}\n"
	for _, s := range []string{sweep, inline} {
		b.expect(s, 1, map[State]int{Done: 1})
		b.expect(s, 0, map[State]int{Done: 1})
		write("two")
		b.expect(s, 1, map[State]int{Done: 1})
		write("one")
	}
}

// TestResultGone: a point whose result was removed or cut is not done, whatever its outcome says.
func TestResultGone(t *testing.T) {
	b := newBench(t)
	sweep := "grid: {mode: [ok, fine, partial]}\n"
	b.expect(sweep, 3, map[State]int{Done: 2, Partial: 1})
	points := filepath.Join(b.dir, "out/points")
	for _, err := range []error{os.Remove(filepath.Join(points, "mode=ok_seed=1/result.json")), os.Truncate(filepath.Join(points, "mode=fine_seed=1/result.json"), 20),
		os.Remove(filepath.Join(points, "mode=partial_seed=1.partial/result.json"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.expect(sweep, 3, map[State]int{Done: 2, Partial: 1})
}

// TestThreadsOfRun: a run is told its threads, as many as there are for it.
func TestThreadsOfRun(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "run.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho \"$@\" GOMAXPROCS=$GOMAXPROCS >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o, err := Task{Name: "p", Attempt: "a-1", Points: dir, Run: []string{script, "--json"}, Plan: "plan", Threads: 3}.Do(t.Context())
	if err != nil || !slices.Equal(o.Stderr, []string{"--json --threads 3 plan GOMAXPROCS=3"}) {
		t.Errorf("%v %q", err, o.Stderr)
	}
}

// TestStoppedFirst: a run that is stopped before its worker hears of it has not failed.
func TestStoppedFirst(t *testing.T) {
	for name, end := range map[string]string{"caught": "exit 130", "killed": "kill -TERM $$"} {
		dir := t.TempDir()
		script := filepath.Join(dir, "run.sh")
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+end+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer stop()
		o, err := Task{Name: "p", Attempt: "a-1", Points: dir, Run: []string{script}, Plan: "plan"}.Do(ctx)
		if left, _ := filepath.Glob(filepath.Join(dir, "p*")); err != nil || o.State != stopped || len(left) > 0 {
			t.Errorf("%s: %+v, %v, left %v", name, o, err, left)
		}
	}
}

// TestManyNames: as many points as a sweep may have, with values too long for a name, have names of their own.
func TestManyNames(t *testing.T) {
	s := &Sweep{Keys: []string{"a"}}
	long := strings.Repeat("x", 200)
	for i := range uint64(pointsMax) {
		s.Points = append(s.Points, Point{Set: []Value{{"a", long}}, Seed: i + 1})
	}
	s.nameAll()
	seen := map[string]uint64{}
	for _, p := range s.Points {
		if was := seen[p.Name]; was > 0 {
			t.Fatalf("seeds %d and %d are both %s", was, p.Seed, p.Name)
		}
		seen[p.Name] = p.Seed
	}
}

// pretendSlurm puts commands in front of the machine's: jobs wait as files until squeue is asked, which runs them. One job at a time may be submitted,
// with three tasks at most.
func pretendSlurm(t *testing.T) (said func() string) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"scontrol": "echo 'MaxArraySize = 1001'",
		"scancel":  "exit 0",
		"sbatch": `for a; do script=$a; case $a in --array=*) n=${a#--array=0-};; --output=*) echo "$a" >>DIR/log;; esac; done
echo "$n" >>DIR/asked
if [ -e DIR/job ] || [ "$n" -gt 2 ]; then
	echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
	echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, the size or time limits of the user)' >&2
	exit 1
fi
echo "$n $script" >DIR/job; echo 7`,
		"squeue": `[ -e DIR/job ] || exit 0
read n script <DIR/job
rm DIR/job
for i in $(seq 0 "$n"); do SLURM_ARRAY_TASK_ID=$i sh "$script"; done
exit 0`,
	} {
		text = "#!/bin/sh\n" + strings.ReplaceAll(text, "DIR", dir) + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() string {
		b, _ := os.ReadFile(filepath.Join(dir, "log"))
		return string(b)
	}
}

// TestSlurmFull: where a user may have few jobs, arrays become smaller, and points wait for others to end instead of failing the sweep.
func TestSlurmFull(t *testing.T) {
	log := pretendSlurm(t)
	b := newBench(t)
	b.opts.Dir = filepath.Join(b.dir, "50%a out")
	var notes []string
	b.opts.Note = func(s string) { notes = append(notes, s) }
	b.opts.Workers = 0
	b.opts.Slurm = &Slurm{Worker: []string{os.Args[0], "task"}, Poll: 10 * time.Millisecond}
	b.expect("grid: {mode: [ok, fine]}\nseeds: 1..5\n", 10, map[State]int{Done: 10})
	if text := fmt.Sprint(notes); !strings.Contains(text, "Slurm takes no more jobs now") || strings.Count(text, "no more jobs") != 1 {
		t.Errorf("notes %q", notes)
	}
	if !strings.Contains(log(), "/50%%a out/slurm/mroce-") { // % begins a pattern of Slurm's
		t.Errorf("logs go to %s", log())
	}
}
