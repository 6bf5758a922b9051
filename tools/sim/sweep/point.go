package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// Task is one run of one point, as it is handed to a worker or, as a line of a point list, to a task of Slurm.
type Task struct {
	Name    string   `json:"name"`
	Digest  string   `json:"digest"`
	Attempt string   `json:"attempt"` // names this run
	Points  string   `json:"points"`  // the directory points/ of the sweep
	Run     []string `json:"run"`     // program and arguments; PLAN follows
	Plan    string   `json:"plan"`
	Base    string   `json:"base"`
	Input   string   `json:"input"`           // digest of the plan and of the files that it reads
	Files   []string `json:"files,omitempty"` // those that overrides name
	Seed    uint64   `json:"seed"`
	Timeout float64  `json:"timeout_s"`
	Memory  int64    `json:"memory_bytes"`
	Threads int      `json:"threads"`
}

// State of a point.
type State string

// States. Waiting and running ones have no result.
const (
	Waiting State = "waiting"
	Running State = "running"
	Done    State = "done"
	Partial State = "partial" // it ended and says of itself that it is not the whole
	Failed  State = "failed"
	stopped State = "stopped" // from outside: goes back to waiting
)

// Outcome of a task, written before its directory takes its place.
type Outcome struct {
	Name    string   `json:"name"`
	Digest  string   `json:"digest"`
	Attempt string   `json:"attempt"`
	State   State    `json:"state"`
	Exit    int      `json:"exit"` // -1: ended by a signal
	Why     string   `json:"why,omitempty"`
	Stderr  []string `json:"stderr,omitempty"` // the last lines
	Seconds float64  `json:"wall_s"`
	Final   bool     `json:"final,omitempty"` // another run would fail the same way

	// Of a result, so that gathering need not read all flows.
	Summary *result.Summary `json:"summary,omitempty"`
	Groups  []result.Group  `json:"groups,omitempty"`
	Hash    string          `json:"hash,omitempty"`
	Bytes   int64           `json:"result_bytes,omitempty"` // of result.json
}

// Names in a point's directory.
const (
	outcomeFile = "outcome.json"
	resultFile  = "result.json"
	stderrFile  = "stderr.txt"
	stdoutFile  = "stdout.txt"
)

// Grace is the time that a run has between SIGTERM and SIGKILL.
const grace = 10 * time.Second

// hearsay is how long it may take until a task that is ended knows of it, when its run does already.
const hearsay = 2 * time.Second

var suffixes = map[State]string{Done: "", Partial: ".partial", Failed: ".failed"}

// Do runs a task and puts its outcome in place. When ctx ends, the run ends, too, and leaves nothing. It is an error only when the
// outcome cannot be written.
func (t Task) Do(ctx context.Context) (Outcome, error) {
	o := Outcome{Name: t.Name, Digest: t.Digest, Attempt: t.Attempt, State: Failed}
	dir := filepath.Join(t.Points, t.Name+".run-"+t.Attempt)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return o, err
	}
	began := time.Now()
	t.child(ctx, dir, &o)
	o.Seconds = time.Since(began).Seconds()
	if o.State == stopped {
		return o, os.RemoveAll(dir)
	}
	return o, t.settle(dir, o)
}

// settle gives the directory of an ended run its name. What was there before goes.
func (t Task) settle(dir string, o Outcome) error {
	if err := writeJSON(filepath.Join(dir, outcomeFile), o); err != nil {
		return err
	}
	for _, s := range suffixes {
		if err := os.RemoveAll(filepath.Join(t.Points, t.Name+s)); err != nil {
			return err
		}
	}
	return os.Rename(dir, filepath.Join(t.Points, t.Name+suffixes[o.State]))
}

// find returns the outcome that lies in place for a point.
func find(points, name string) (Outcome, bool) {
	for _, s := range []State{Done, Partial, Failed} {
		var o Outcome
		dir := filepath.Join(points, name+suffixes[s])
		if readJSON(filepath.Join(dir, outcomeFile), &o) != nil || o.Name != name || o.State != s {
			continue
		}
		if s == Failed {
			return o, true
		}
		if f, err := os.Stat(filepath.Join(dir, resultFile)); err == nil && f.Size() == o.Bytes { // somebody may have removed or cut it
			return o, true
		}
	}
	return Outcome{}, false
}

// child runs the program and fills the outcome.
func (t Task) child(ctx context.Context, dir string, o *Outcome) {
	// The kernel ends the child when the thread that started it ends: with this program, however it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stdout, err1 := os.Create(filepath.Join(dir, stdoutFile))
	stderr, err2 := os.Create(filepath.Join(dir, stderrFile))
	if err := errors.Join(err1, err2); err != nil {
		o.Why = err.Error()
		return
	}
	defer stdout.Close()
	defer stderr.Close()
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if t.Timeout > 0 {
		limit := time.Duration(t.Timeout * float64(time.Second))
		end := time.AfterFunc(limit, func() { cancel(fmt.Errorf("it ran longer than the timeout of %s", limit)) })
		defer end.Stop()
	}
	threads := strconv.Itoa(max(1, t.Threads))
	c := exec.CommandContext(run, t.Run[0], append(t.Run[1:len(t.Run):len(t.Run)], "--threads", threads, t.Plan)...)
	c.Stdout, c.Stderr = stdout, stderr
	c.Env = append(os.Environ(), "GOMAXPROCS="+threads)
	if t.Memory > 0 { // the collector works harder before the limit is reached
		c.Env = append(c.Env, fmt.Sprintf("GOMEMLIMIT=%d", t.Memory/10*9))
	}
	// A group of its own: Ctrl-C on the terminal reaches this program alone, which ends its children.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = grace
	err := c.Start()
	if err != nil {
		o.Exit, o.Why, o.Final = -1, fmt.Sprintf("it cannot be started: %v", err), true
		if ctx.Err() != nil {
			o.State = stopped
		}
		return
	}
	watched := make(chan struct{})
	go func() { defer close(watched); t.watch(run, c.Process, cancel) }()
	err = c.Wait()
	cancel(nil)
	<-watched
	o.Exit = c.ProcessState.ExitCode()
	o.Stderr = lastLines(filepath.Join(dir, stderrFile), 5)
	if cause := context.Cause(run); ctx.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		o.Why = cause.Error()
		return
	}
	t.judge(ctx, dir, o, err)
}

// watch ends a run that takes more memory than it may.
func (t Task) watch(ctx context.Context, p *os.Process, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for t.Memory > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if rss := residentBytes(p.Pid); rss > t.Memory {
				cancel(fmt.Errorf("it took %d MiB of memory, and may have %d", rss>>20, t.Memory>>20))
				_ = p.Kill() // at once: it would take more; it may have ended by itself
			}
		}
	}
}

func residentBytes(pid int) int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)) // gone: nothing
	f := strings.Fields(string(data))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// judge says what an ended run is worth.
func (t Task) judge(ctx context.Context, dir string, o *Outcome, err error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) && (o.Exit == fail.Stopped || exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM) {
		// Slurm ends all processes of a task at once, and the run may be faster than the word that reaches this one.
		select {
		case <-ctx.Done():
		case <-time.After(hearsay):
		}
	}
	switch {
	case ctx.Err() != nil && err != nil: // Wait says so also of a run that came to its end just then
		o.State = stopped
		return
	case err != nil && !errors.As(err, &exit):
		o.Why = err.Error()
		return
	case o.Exit != fail.OK && o.Exit != fail.Partial:
		if o.Why = fmt.Sprintf("exit code %d", o.Exit); o.Exit < 0 {
			o.Why = fmt.Sprint(err) // names the signal
		}
		o.Final = o.Exit == fail.Usage
		return
	}
	res, err := takeResult(dir)
	switch {
	case err != nil:
		o.Why = err.Error()
	case t.changed():
		o.Why, o.Final = "the plan or a file that it reads has changed while the sweep ran", true
	case res.Seed != t.Seed:
		o.Why = fmt.Sprintf("the result is of seed %d, and %d was asked for", res.Seed, t.Seed)
	case ctx.Err() != nil && res.Partial:
		o.State = stopped
	case o.Exit == fail.Partial || res.Partial:
		o.State, o.Why = Partial, res.Why
	default:
		o.State = Done
	}
	if o.State == Done || o.State == Partial {
		o.Summary, o.Groups, o.Hash = &res.Summary, res.Groups, res.Hash
		if o.Bytes, err = keep(dir); err != nil {
			o.State, o.Why = Failed, err.Error()
		}
	}
}

// keep makes of what the run printed the point's result, on the disk before the outcome is, and returns its size.
func keep(dir string) (int64, error) {
	f, err := os.Open(filepath.Join(dir, stdoutFile))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(f.Name(), filepath.Join(dir, resultFile))
}

// changed says whether the plan, where it is a file, is no longer what the digest is of.
func (t Task) changed() bool {
	text, err := os.ReadFile(t.Plan)
	return err == nil && inputDigest(text, t.Base, t.Files) != t.Input
}

// takeResult reads the result that the run printed.
func takeResult(dir string) (*result.Result, error) {
	f, err := os.Open(filepath.Join(dir, stdoutFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := result.ReadJSON(f)
	if err != nil {
		return nil, fmt.Errorf("it printed no result: %w", err)
	}
	return r, nil
}

// lastLines returns up to n last lines with text.
func lastLines(path string, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if at, err := f.Seek(-8192, io.SeekEnd); err != nil || at < 0 {
		_, _ = f.Seek(0, io.SeekStart) // shorter than that
	}
	data, _ := io.ReadAll(io.LimitReader(f, 8192)) // what can be read
	var lines []string
	for _, l := range bytes.FieldsFunc(data, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if s := strings.TrimSpace(strings.ToValidUTF8(string(l), "?")); s != "" {
			lines = append(lines, s[:min(len(s), 500)])
		}
	}
	return lines[max(0, len(lines)-n):]
}
