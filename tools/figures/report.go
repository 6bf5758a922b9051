package figures

import (
	"context"
	"fmt"
	"sync"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/vopr"
)

// Row is one measured case.
type Row struct {
	Figure    string             `json:"figure"`
	Case      string             `json:"case"`
	Transport string             `json:"transport"`
	X         float64            `json:"x"` // loss, where the case is one of a curve
	Values    map[string]float64 `json:"values"`
	Goal      string             `json:"goal,omitempty"` // of MetaRoCE (protocol design, section 7)
	Line      []Point            `json:"line,omitempty"`
}

// Task is a case to be measured.
type Task struct {
	Row Row
	run func(r *Row)
}

// Names are the figures there are.
var Names = []string{"loss", "bursts", "fabric", "incast", "tails", "planes"}

// Tasks returns the cases of the named figures; all for none. d is the virtual time measured in each.
func Tasks(names []string, seed uint64, d mono.Duration) []Task {
	var ts []Task
	for _, n := range names {
		switch n {
		case "loss":
			ts = append(ts, losses("loss", 0, seed, d)...)
		case "bursts":
			ts = append(ts, losses("bursts", 8, seed, d)...)
		case "fabric":
			ts = append(ts, fabrics(seed, d/2)...)
		case "incast":
			ts = append(ts, incasts(seed, d)...)
		case "tails":
			ts = append(ts, tails(seed)...)
		case "planes":
			ts = append(ts, planes(seed)...)
		}
	}
	return ts
}

func task(r Row, run func(r *Row)) Task { return Task{r, run} }

func (r *Row) sums(s Sums) {
	r.Values = map[string]float64{"goodput": s.Goodput, "dropped": s.Dropped, "jain": s.Jain}
	if s.Err {
		r.Values["errors"] = 1
	}
}

var lossGoals = map[float64]string{0.01: "98.5", 0.05: "94.5", 0.1: "89"}

func losses(name string, burst float64, seed uint64, d mono.Duration) (ts []Task) {
	for _, e := range vopr.Transports {
		for _, loss := range []float64{0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2} {
			planes := 4
			if e.GoBackN { // its QP has one
				planes = 1
			}
			r := Row{Figure: name, Case: fmt.Sprintf("one pair, planes: %d, %g %% lost", planes, loss*100), Transport: e.Name, X: loss}
			if burst > 0 {
				r.Case += fmt.Sprintf(" in bursts of %g", burst)
			}
			if e.Name == vopr.MetaRoCE.Name {
				if r.Goal = lossGoals[loss]; burst > 0 {
					r.Goal = map[float64]string{0.01: "95"}[loss]
				}
			}
			ts = append(ts, task(r, func(r *Row) { r.sums(Pair(e, planes, loss, burst, seed, d)) }))
		}
	}
	return ts
}

func fabrics(seed uint64, d mono.Duration) (ts []Task) {
	goals := map[float64]string{0.01: "97 of loss-free", 0.05: "92 of loss-free", 0.1: "87 of loss-free"}
	for _, e := range vopr.Transports {
		for _, loss := range []float64{0, 0.01, 0.05, 0.1} {
			r := Row{Figure: "fabric", Case: fmt.Sprintf("permutation of 32 hosts, %g %% lost%s", loss*100, marks(e)), Transport: e.Name, X: loss}
			if e.Name == vopr.MetaRoCE.Name {
				r.Goal = goals[loss]
			}
			ts = append(ts, task(r, func(r *Row) { r.sums(Permutation(e, 1, loss, false, seed, d)) }))
			if e.Name == vopr.MetaRoCE.Name {
				r.Transport, r.Goal = "one class", ""
				ts = append(ts, task(r, func(r *Row) { r.sums(Permutation(e, 1, loss, true, seed, d)) }))
			}
		}
	}
	return ts
}

func marks(e vopr.Transport) string {
	if e.GoBackN {
		return ", ECN"
	}
	return ""
}

func incasts(seed uint64, d mono.Duration) (ts []Task) {
	for _, e := range vopr.Transports {
		for _, n := range []int{8, 32} {
			for _, q := range []float64{0.25, 1} {
				for _, unknown := range []bool{false, true} {
					if unknown && e.GoBackN { // it paces by the rate
						continue
					}
					r := Row{Figure: "incast", Case: fmt.Sprintf("%d:1, queue of %g BDP", n, q), Transport: e.Name}
					if r.Case += marks(e); unknown {
						r.Case += ", rate unknown"
					}
					if e.Name == vopr.MetaRoCE.Name && !unknown {
						r.Goal = "99, dropped 3, Jain 0.99"
					}
					ts = append(ts, task(r, func(r *Row) { r.sums(Incast(e, n, q, 0, unknown, seed, d)) }))
				}
			}
		}
	}
	return ts
}

func tails(seed uint64) (ts []Task) {
	for _, e := range vopr.Transports {
		for _, loss := range []float64{0, 0.01, 0.1} {
			for _, size := range []int{64, 16384} {
				r := Row{Figure: "tails", Case: fmt.Sprintf("message of %d B, %g %% lost", size, loss*100), Transport: e.Name, X: loss}
				if loss == 0.1 && size == 64 && e.Name == vopr.MetaRoCE.Name {
					r.Goal = "p99.9 4 RTT"
				}
				ts = append(ts, task(r, func(r *Row) {
					a, b, c, ok := Tail(e, size, loss, 4000, seed)
					r.Values = map[string]float64{"p50_rtt": a, "p99_rtt": b, "p999_rtt": c}
					if !ok {
						r.Values["errors"] = 1
					}
				}))
			}
		}
	}
	return ts
}

func planes(seed uint64) (ts []Task) {
	stories := []struct {
		name, goal string
		change     func(*link.Spec)
	}{
		{"plane 1 of 4 down for 1 ms", "95 of what is left", func(s *link.Spec) { s.Down = true }},
		{"plane 1 of 4 swallows everything for 1 ms", "95 of what is left", func(s *link.Spec) { s.Loss = 1 }},
		{"plane 1 of 4 loses 5 % for 1 ms", "97", func(s *link.Spec) { s.Loss = 0.0253 }}, // on each of two links
	}
	for _, x := range stories {
		r := Row{Figure: "planes", Case: x.name, Transport: vopr.MetaRoCE.Name, Goal: x.goal}
		ts = append(ts, task(r, func(r *Row) {
			const back = mono.Millisecond
			r.Line = PlaneStory(vopr.MetaRoCE, x.change, back, 3*mono.Millisecond, 20*mono.Microsecond, seed)
			r.Values = map[string]float64{"during": mean(r.Line, 100*mono.Microsecond, back), "after": mean(r.Line, 2*back, 3*back)}
			if r.Values["during"] < 0.9 {
				r.Values["back_us"] = r.returned(back)
			}
		}))
	}
	return ts
}

func mean(line []Point, from, to mono.Duration) (m float64) {
	n := 0
	for _, p := range line {
		if p.At >= from && p.At < to {
			m += p.Goodput
			n++
		}
	}
	return m / float64(max(n, 1))
}

// returned is how long after its return, in µs, the whole is used again; -1 when that does not happen.
func (r *Row) returned(back mono.Duration) float64 {
	for _, p := range r.Line {
		if p.At >= back && p.Goodput > 0.95 {
			return p.At.Micros() - back.Micros()
		}
	}
	return -1
}

// Measure runs tasks on several goroutines and calls done, from one at a time, as each ends. The rows are in the tasks'
// order; those that were not measured before the context ended have no values.
func Measure(ctx context.Context, ts []Task, workers int, done func(Row)) []Row {
	rows := make([]Row, len(ts))
	for i := range ts {
		rows[i] = ts[i].Row
	}
	var mu sync.Mutex
	Each(ctx, len(ts), workers, func(i int) {
		r := ts[i].Row
		ts[i].run(&r)
		mu.Lock()
		defer mu.Unlock()
		rows[i] = r
		done(r)
	})
	return rows
}

// Each calls do for 0 to n-1 on several goroutines, until the context ends, and returns when all that began have ended.
func Each(ctx context.Context, n, workers int, do func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(workers, 1) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range next {
				do(i)
			}
		}()
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
}
