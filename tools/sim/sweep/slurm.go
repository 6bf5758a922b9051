package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
)

// Slurm says how points go to Slurm. The directory of the sweep, the plan and this program must have the same paths on all nodes.
type Slurm struct {
	Partition string
	Args      []string      // further arguments of sbatch
	ArrayMax  int           // tasks of one array; 0 = what the cluster allows
	QueueMax  time.Duration // a point that waits longer without any other running has failed; 0 = waits for ever
	Worker    []string      // runs one task: point list and index follow
	Poll      time.Duration // default 2 s
}

// array is one job array, as noted in sweep.json before it is submitted: a process that died left its name there at least.
type array struct {
	Name   string   `json:"name"` // of the job
	Job    string   `json:"job,omitempty"`
	Points []string `json:"points"` // by index
	Ended  bool     `json:"ended"`

	index map[int]int // array index → index of the point, of tasks not yet seen to end
	gone  map[int]int // polls in which neither the queue nor the files knew of a task
}

// Polls between a task's leaving the queue and the word that it left nothing: shared file systems show files late.
const lagPolls = 5

// queueState is what squeue says of a task.
type queueState struct{ state, reason string }

// inherit takes over arrays that a former process submitted and that still run. It returns the points which they have.
func (r *sweeping) inherit(ctx context.Context, old *status) (map[string]bool, error) {
	alive := map[string]bool{}
	index := map[string]int{}
	for i, p := range r.status.Points {
		index[p.Name] = i
	}
	for _, a := range old.Arrays {
		if a.Ended {
			continue
		}
		tasks, err := r.stillQueued(ctx, a)
		switch {
		case err != nil:
			return nil, err
		case len(tasks) == 0:
			continue
		case r.Slurm == nil:
			return nil, fail.Failf("job %s of Slurm still works on this sweep: go on with --engine slurm, or end it with: scancel %s", a.Job, a.Job)
		}
		var list []Task
		if err := readJSON(filepath.Join(r.Dir, "slurm", a.Name+".json"), &list); err != nil {
			return nil, err
		}
		a.index, a.gone = map[int]int{}, map[int]int{}
		for k := range tasks {
			if k < 0 || k >= len(list) {
				continue
			}
			t := list[k]
			i, is := index[t.Name]
			if !is || r.status.Points[i].Digest != t.Digest || alive[t.Name] || r.Rerun == "all" {
				if err := scancel(ctx, fmt.Sprintf("%s_%d", a.Job, k)); err != nil { // nobody wants it any more
					return nil, err
				}
				continue
			}
			a.index[k], alive[t.Name] = i, true
			r.status.Points[i].Job, r.status.Points[i].Attempt = fmt.Sprintf("%s_%d", a.Job, k), t.Attempt
		}
		r.status.Arrays = append(r.status.Arrays, a)
		r.Note(fmt.Sprintf("going on with Slurm's job %s: %d points", a.Job, len(a.index)))
	}
	return alive, nil
}

// stillQueued asks for the tasks of an array of a former process.
func (r *sweeping) stillQueued(ctx context.Context, a *array) (map[int]queueState, error) {
	if a.Job == "" { // it died between submitting and noting the number
		out, err := command(ctx, "squeue", "-h", "--name", a.Name, "-o", "%A")
		if err != nil {
			return nil, err
		}
		if a.Job, _, _ = strings.Cut(strings.TrimSpace(out), "\n"); a.Job == "" {
			return nil, nil
		}
		if out, err = command(ctx, "squeue", "-h", "--name", a.Name, "-o", "%F"); err != nil { // the array's own number
			return nil, err
		}
		a.Job, _, _ = strings.Cut(strings.TrimSpace(out), "\n")
	}
	all, err := squeue(ctx, []string{a.Job})
	return all[a.Job], err
}

// slurm submits points and gathers what comes of them.
func (r *sweeping) slurm(ctx context.Context, todo []int) error {
	limit, err := arrayLimit(ctx)
	if err != nil {
		return err
	}
	if r.Slurm.ArrayMax > 0 {
		limit = min(limit, r.Slurm.ArrayMax)
	}
	if r.Slurm.Poll <= 0 {
		r.Slurm.Poll = 2 * time.Second
	}
	w := &waiting{r: r, since: time.Now(), moved: time.Now()}
	size := limit
	for {
		if todo, size, err = r.submitAll(ctx, todo, size, limit); err != nil {
			return errors.Join(err, r.cancelAll())
		}
		if r.open() == 0 && len(todo) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return r.cancelAll()
		case <-time.After(w.pause()):
		}
		again, err := r.poll(ctx, w)
		todo = append(todo, again...)
		if err != nil && ctx.Err() == nil {
			// Tasks go on by themselves: the next Run finds them.
			return errors.Join(err, r.saveNow())
		}
	}
}

// submitAll submits points in arrays of up to size tasks. Where Slurm takes no more from this user now, arrays become smaller, and
// what is left waits until some have ended: it is returned with the size to try next.
func (r *sweeping) submitAll(ctx context.Context, todo []int, size, limit int) (left []int, next int, err error) {
	for len(todo) > 0 && ctx.Err() == nil {
		n := min(size, len(todo))
		err := r.submit(ctx, todo[:n])
		switch {
		case err == nil:
			todo, size = todo[n:], min(2*size, limit)
			continue
		case !tooMany.MatchString(err.Error()) || n == 1 && r.open() == 0:
			return todo, size, err
		case n > 1:
			size = n / 2
			continue
		}
		if !r.full {
			r.full = true
			r.Note(fmt.Sprintf("Slurm takes no more jobs now (%v): %d points wait for others to end", err, len(todo)))
		}
		return todo, 1, nil
	}
	return todo, size, nil
}

// open counts tasks that have not ended.
func (r *sweeping) open() (n int) {
	for _, a := range r.status.Arrays {
		n += len(a.index)
	}
	return n
}

func (r *sweeping) saveNow() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status.save(r.Dir, r.s.Keys, false)
}

// submit makes one array of points.
func (r *sweeping) submit(ctx context.Context, todo []int) error {
	dir := filepath.Join(r.Dir, "slurm")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	a := &array{Name: fmt.Sprintf("mroce-%s-%d", r.token, r.arrays), index: map[int]int{}, gone: map[int]int{}}
	r.arrays++
	var list []Task
	for k, i := range todo {
		a.index[k] = i
		a.Points = append(a.Points, r.status.Points[i].Name)
		list = append(list, r.task(i, 0))
	}
	points, script := filepath.Join(dir, a.Name+".json"), filepath.Join(dir, a.Name+".sh")
	if err := writeJSON(points, list); err != nil {
		return err
	}
	var words []string
	for _, w := range append(r.Slurm.Worker[:len(r.Slurm.Worker):len(r.Slurm.Worker)], points) {
		words = append(words, quote(w))
	}
	// exec: Slurm's signals reach the program itself.
	text := "#!/bin/sh\n# One task of a sweep; its index names the point.\nexec " + strings.Join(words, " ") + " \"$SLURM_ARRAY_TASK_ID\"\n"
	if err := writeFile(script, []byte(text)); err != nil {
		return err
	}
	r.status.Arrays = append(r.status.Arrays, a)
	if err := r.saveNow(); err != nil {
		return err
	}
	job, err := sbatch(ctx, r.sbatchArgs(a, len(todo), script))
	if err != nil {
		r.status.Arrays = r.status.Arrays[:len(r.status.Arrays)-1]
		clean, cancel := context.WithTimeout(context.Background(), commandLimit) // it may have been submitted all the same
		defer cancel()
		_ = scancel(clean, "--name="+a.Name) // the error is told already
		return err
	}
	a.Job = job
	for k, i := range todo {
		r.change(i, func(p *PointState) { p.Job, p.Attempt = fmt.Sprintf("%s_%d", job, k), list[k].Attempt })
	}
	r.Note(fmt.Sprintf("Slurm's job %s: %d points", job, len(todo)))
	return r.saveNow()
}

func (r *sweeping) sbatchArgs(a *array, n int, script string) []string {
	indices := fmt.Sprintf("0-%d", n-1)
	if r.Workers > 0 {
		indices += "%" + strconv.Itoa(r.Workers)
	}
	// What a run says is in the point's directory; what the worker says, when there is no such directory, is here.
	args := []string{"--parsable", "--array=" + indices, "--job-name=" + a.Name, "--no-requeue", "--ntasks=1",
		"--output=" + strings.ReplaceAll(filepath.Join(r.Dir, "slurm", a.Name), "%", "%%") + "_%a.log", "--open-mode=truncate", "--chdir=" + r.Dir}
	if r.s.Memory > 0 { // and room for the worker
		args = append(args, fmt.Sprintf("--mem=%dM", r.s.Memory>>20+64))
	}
	if r.s.Timeout > 0 { // the worker ends the run; this is for nodes that hang
		args = append(args, fmt.Sprintf("--time=%d", int(r.s.Timeout.Minutes())+2))
	}
	if r.Slurm.Partition != "" {
		args = append(args, "--partition="+r.Slurm.Partition)
	}
	return append(append(args, r.Slurm.Args...), script)
}

// quote makes one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// poll looks once at files and queue. It returns points that are to run again.
func (r *sweeping) poll(ctx context.Context, w *waiting) (again []int, err error) {
	var jobs []string
	for _, a := range r.status.Arrays {
		if !a.Ended {
			jobs = append(jobs, a.Job)
		}
	}
	queue, err := squeue(ctx, jobs)
	if err != nil {
		return nil, w.silent(err)
	}
	w.heard()
	for _, a := range r.status.Arrays {
		for _, k := range slices.Sorted(maps.Keys(a.index)) {
			o, ended := r.look(ctx, a, k, queue[a.Job])
			if !ended {
				continue
			}
			i := a.index[k]
			delete(a.index, k)
			delete(a.gone, k)
			w.since, w.moved = time.Now(), time.Now()
			if r.ended(i, o) {
				again = append(again, i)
			}
		}
		if len(a.index) == 0 && !a.Ended {
			a.Ended = true
		}
	}
	return again, w.look(ctx, queue)
}

// look says whether a task has ended, and how.
func (r *sweeping) look(ctx context.Context, a *array, k int, queue map[int]queueState) (o Outcome, ended bool) {
	i := a.index[k]
	p := r.status.Points[i]
	if q, is := queue[k]; is {
		if s := stateOf(q.state); s != p.State {
			r.change(i, func(p *PointState) { p.State = s })
		}
		return o, false // completing tasks, too: the node may still hold the files
	}
	if o, is := find(r.points, p.Name); is && o.Digest == p.Digest && (o.State != Failed || o.Attempt == p.Attempt) {
		return o, true
	}
	if a.gone[k]++; a.gone[k] < lagPolls && !ranNowhere(ctx, a, k) {
		return o, false
	}
	why := fate(ctx, a.Job, k)
	return Outcome{Name: p.Name, Digest: p.Digest, State: Failed, Exit: -1, Why: "Slurm: " + why, Final: strings.HasPrefix(why, "CANCELLED"),
		Stderr: lastLines(filepath.Join(r.Dir, "slurm", fmt.Sprintf("%s_%d.log", a.Name, k)), 5)}, true
}

func stateOf(slurm string) State {
	if slurm == "PENDING" || slurm == "CONFIGURING" || slurm == "REQUEUED" {
		return Waiting
	}
	return Running
}

// cancelAll ends all arrays, waits until they are gone, and puts their points back.
func (r *sweeping) cancelAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var jobs []string
	for _, a := range r.status.Arrays {
		if !a.Ended && a.Job != "" {
			jobs = append(jobs, a.Job)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	if err := scancel(ctx, jobs...); err != nil {
		return err
	}
	for {
		queue, err := squeue(ctx, jobs)
		if err != nil || len(queue) == 0 {
			break // what the points' files say is true whatever the queue says
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
			continue
		}
		break
	}
	for _, a := range r.status.Arrays {
		for _, i := range a.index {
			o, is := find(r.points, r.status.Points[i].Name)
			if !is || o.Digest != r.status.Points[i].Digest {
				o = Outcome{State: stopped}
			}
			r.change(i, func(p *PointState) { p.take(o) })
		}
		a.index, a.Ended = nil, true
	}
	return nil
}

// waiting watches for a queue that does not move and a controller that does not answer.
type waiting struct {
	r      *sweeping
	since  time.Time // when a task last ran or ended
	moved  time.Time // when one last ended
	said   string
	misses int
}

const missesMax = 30 // controllers restart

func (w *waiting) heard() { w.misses = 0 }

// pause until the next look: the longer nothing ends, the less the controller is asked.
func (w *waiting) pause() time.Duration {
	for _, a := range w.r.status.Arrays {
		if len(a.gone) > 0 && len(a.index) > 0 {
			return w.r.Slurm.Poll // files are late
		}
	}
	return w.r.Slurm.Poll + min(time.Since(w.moved)/10, 10*time.Second)
}

// silent bears with a controller that does not answer for a while.
func (w *waiting) silent(err error) error {
	if w.misses++; w.misses == 3 {
		w.r.Note("Slurm does not answer: " + err.Error())
	}
	if w.misses >= missesMax {
		return err
	}
	return nil
}

// look tells why points wait while none runs, and gives up when the user has set a limit.
func (w *waiting) look(ctx context.Context, queue map[string]map[int]queueState) error {
	reasons := map[string]int{}
	for _, job := range slices.Sorted(maps.Keys(queue)) {
		for _, q := range queue[job] {
			if stateOf(q.state) == Running {
				w.since, w.said = time.Now(), ""
				return nil
			}
			reasons[q.reason]++
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	var words []string
	for _, k := range slices.Sorted(maps.Keys(reasons)) {
		words = append(words, fmt.Sprintf("%d × %s", reasons[k], k))
	}
	text := strings.Join(words, ", ")
	waited := time.Since(w.since)
	limit := w.r.Slurm.QueueMax
	if limit > 0 && waited > limit {
		return fail.Failf("%w", errors.Join(
			fmt.Errorf("no point has run for %s; Slurm's reasons: %s", waited.Round(time.Second), text), w.r.cancelAll()))
	}
	if waited > 10*w.r.Slurm.Poll && text != w.said {
		w.said = text
		w.r.Note(fmt.Sprintf("no point runs; Slurm's reasons: %s (squeue -j %s; Ctrl-C cancels)", text, strings.Join(slices.Sorted(maps.Keys(queue)), ",")))
	}
	return ctx.Err()
}
