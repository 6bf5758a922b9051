package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
)

// Options of Run.
type Options struct {
	Dir     string   // of the sweep; made
	Program []string // what runs a plan: --set K=V … --seed S --json --threads N PLAN follow
	Commit  string   // of the program: another one has other results
	Plan    string   // the argument PLAN
	Text    []byte   // of the plan
	Base    string   // the directory that the plan's files are relative to
	Workers int      // runs at a time; 0 = as many as there are cores, with Slurm no limit
	Rerun   string   // "", "failed" (partial ones, too) or "all"
	Slurm   *Slurm   // nil: on this machine
	Note    func(text string)
	// Change is called when a point begins or ends, with how many points there are in each state; by one goroutine at a time.
	Change func(p PointState, count map[State]int)
}

// Report is what became of a sweep.
type Report struct {
	Results
	Count  map[State]int
	Bad    []PointState // failed, then partial points
	Before int          // points that were done before
}

// sweeping is a sweep under way.
type sweeping struct {
	Options
	s        *Sweep
	points   string
	token    string // of this process: names attempts
	mu       sync.Mutex
	status   *status
	count    map[State]int
	nextSave time.Time
	saveFail error

	arrays int  // submitted, or tried to: names them
	full   bool // Slurm took no more, and that was said
}

// Run runs what is missing or changed. It returns a report together with ctx's error when it was stopped: the state is saved then, and
// the next Run goes on. Errors carry exit codes.
func Run(ctx context.Context, s *Sweep, o Options) (*Report, error) {
	if o.Note == nil {
		o.Note = func(string) {}
	}
	if o.Change == nil {
		o.Change = func(PointState, map[State]int) {}
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	r := &sweeping{Options: o, s: s, points: filepath.Join(o.Dir, "points"), token: strconv.FormatInt(time.Now().UnixNano(), 36)}
	if err := os.MkdirAll(r.points, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the sweep: %w", err)
	}
	unlock, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	todo, err := r.begin(ctx)
	if err != nil {
		return nil, err
	}
	before := r.count[Done]
	if o.Slurm != nil {
		err = r.slurm(ctx, todo)
	} else {
		err = r.local(ctx, todo)
	}
	if e := r.status.save(r.Dir, s.Keys, true); err == nil {
		err = e
	}
	if err == nil {
		err = r.saveFail
	}
	if err == nil {
		err = ctx.Err()
	}
	return r.report(before), err
}

// lock keeps a second process out. The kernel lets go of it when this one ends, however it ends.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fail.Failf("another process runs the sweep in %s", dir)
		}
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// begin finds out what is there and returns the points that are to run.
func (r *sweeping) begin(ctx context.Context) (todo []int, err error) {
	old, err := loadStatus(r.Dir)
	if err != nil {
		return nil, fail.Failf("the state of the sweep cannot be read: %w; move the directory away to begin again", err)
	}
	r.status = &status{Sweep: r.s.File, Plan: r.Plan, Input: inputDigest(r.Text, r.Base, nil), Commit: r.Commit, Engine: "local"}
	if r.Slurm != nil {
		r.status.Engine = "slurm"
	}
	for i := range r.s.Points {
		p := &r.s.Points[i]
		r.status.Points = append(r.status.Points,
			PointState{Name: p.Name, Digest: r.s.digest(*p, r.input(p), r.Commit), Set: p.Set, Seed: p.Seed, State: Waiting})
	}
	known := map[string]State{}
	for _, p := range old.Points {
		known[p.Name] = p.State
	}
	alive, err := r.inherit(ctx, old)
	if err != nil {
		return nil, err
	}
	r.count = map[State]int{}
	for i := range r.status.Points {
		p := &r.status.Points[i]
		if o, is := find(r.points, p.Name); is && o.Digest == p.Digest && !alive[p.Name] && !r.again(o, known[p.Name]) {
			p.take(o)
		}
		if r.count[p.State]++; p.State != Waiting || alive[p.Name] {
			continue
		}
		todo = append(todo, i)
		for _, s := range suffixes { // of other values, an older program, or to be run again
			if err := os.RemoveAll(filepath.Join(r.points, p.Name+s)); err != nil {
				return nil, err
			}
		}
	}
	if len(alive) == 0 {
		r.sweepUp()
	}
	return todo, r.status.save(r.Dir, r.s.Keys, true)
}

// input is the digest of what a point reads.
func (r *sweeping) input(p *Point) string {
	if files := r.s.files(p); len(files) > 0 {
		return inputDigest(r.Text, r.Base, files)
	}
	return r.status.Input
}

// again says whether a point with an outcome is to be run again; known is its state in sweep.json. A failure that no process has
// noted yet has its retries before it.
func (r *sweeping) again(o Outcome, known State) bool {
	return r.Rerun == "all" || r.Rerun == "failed" && o.State != Done ||
		o.State == Failed && known != Failed && !o.Final && r.s.Retries > 0
}

// sweepUp removes what runs left that were killed.
func (r *sweeping) sweepUp() {
	point := map[string]bool{}
	for i := range r.status.Points {
		point[r.status.Points[i].Name] = true
	}
	entries, _ := os.ReadDir(r.points) // what is left there does no harm
	for _, e := range entries {
		if attempt.MatchString(e.Name()) && !point[e.Name()] {
			os.RemoveAll(filepath.Join(r.points, e.Name()))
		}
	}
}

// attempt is how the directory of a run under way is called: values of a point may have .run- in them, too.
var attempt = regexp.MustCompile(`\.run-[0-9a-z]+-[0-9]+$`)

// task makes the next run of a point.
func (r *sweeping) task(i, threads int) Task {
	p := &r.status.Points[i]
	of := &r.s.Points[i]
	t := Task{Name: p.Name, Digest: p.Digest, Attempt: r.token + "-" + strconv.Itoa(p.Tries+1), Points: r.points, Seed: p.Seed,
		Plan: r.Plan, Base: r.Base, Input: r.input(of), Files: r.s.files(of), Timeout: r.s.Timeout.Seconds(), Memory: r.s.Memory, Threads: threads}
	t.Run = append(t.Run, r.Program...)
	for _, v := range r.s.overrides(of) {
		t.Run = append(t.Run, "--set", v.Key+"="+v.Text)
	}
	t.Run = append(t.Run, "--seed", strconv.FormatUint(p.Seed, 10), "--json")
	return t
}

// change notes what became of a point, tells, and saves from time to time: what was not saved, the points' own files know.
func (r *sweeping) change(i int, f func(p *PointState)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.status.Points[i]
	r.count[p.State]--
	f(p)
	r.count[p.State]++
	r.Change(*p, r.count)
	if now := time.Now(); now.After(r.nextSave) {
		if err := r.status.save(r.Dir, r.s.Keys, false); err != nil && r.saveFail == nil {
			r.saveFail = err
		}
		r.nextSave = time.Now().Add(max(time.Second, 30*time.Since(now))) // large sweeps are not slowed down by it
	}
}

// ended takes an outcome and says whether the point is to run once more.
func (r *sweeping) ended(i int, o Outcome) (again bool) {
	r.change(i, func(p *PointState) {
		p.take(o)
		if o.State == stopped {
			return
		}
		p.Tries++
		if again = o.State == Failed && !o.Final && p.Tries <= r.s.Retries; again {
			p.State = Waiting
			r.Note(fmt.Sprintf("%s failed (%s) and runs again", p.Name, p.Why))
		}
	})
	return again
}

// local runs points as children of this process.
func (r *sweeping) local(ctx context.Context, todo []int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers, threads := r.share()
	next := make(chan int)
	var all sync.WaitGroup
	for range min(workers, max(1, len(todo))) {
		all.Go(func() {
			for i := range next {
				for again := true; again && ctx.Err() == nil; {
					t := r.task(i, threads)
					r.change(i, func(p *PointState) { p.State, p.Attempt = Running, t.Attempt })
					o, err := t.Do(ctx)
					if err != nil {
						cancel(err)
						o.State = stopped
					}
					again = r.ended(i, o)
				}
			}
		})
	}
	for _, i := range todo {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	all.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// share returns how many runs go at a time, and threads of each.
func (r *sweeping) share() (workers, threads int) {
	cores := runtime.NumCPU()
	workers = r.Workers
	if workers <= 0 {
		workers = cores
		if has := memoryBytes(); r.s.Memory > 0 && has > 0 {
			workers = max(1, min(workers, int(has/10*9/r.s.Memory)))
		}
	}
	return workers, max(1, cores/workers)
}

// memoryBytes is this machine's memory, 0 where it does not say.
func memoryBytes() int64 {
	data, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64) // the kernel's digits
			return kib << 10
		}
	}
	return 0
}

func (r *sweeping) report(before int) *Report {
	rep := &Report{Results: r.status.results(), Count: r.count, Before: before}
	for _, s := range []State{Failed, Partial} {
		for _, p := range r.status.Points {
			if p.State == s {
				rep.Bad = append(rep.Bad, p)
			}
		}
	}
	return rep
}
