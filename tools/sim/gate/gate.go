// Package gate compares simulations with goals: those of the announcement, of theory and of what other simulators publish for
// the same work. A goal that is missed is told; what fails is a floor, what the project has reached before.
package gate

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/tools/sim"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/result"
)

//go:embed gates.yaml
var file []byte

// Gate is one figure of one plan, or a ratio of two.
type Gate struct {
	Name   string            `yaml:"name"`
	Topic  string            `yaml:"topic"`
	Plan   string            `yaml:"plan"`
	Set    map[string]string `yaml:"set"`     // keys of the plan that are changed
	Over   map[string]string `yaml:"over"`    // the figure is divided by that of the plan with these changes
	OverOf string            `yaml:"over_of"` // of another plan
	Figure string            `yaml:"figure"`
	Factor float64           `yaml:"factor"` // of the figure; default 1
	Seeds  uint64            `yaml:"seeds"`  // the mean over seeds 1 to this; default: the plan's seed alone
	Goal   Bound             `yaml:"goal"`
	Floor  Bound             `yaml:"floor"`  // worse than that is a fault of the project
	Beside string            `yaml:"beside"` // what others reach, and where that is from
	Smoke  bool              `yaml:"smoke"`  // takes seconds
}

// Bound is what a figure has to be: at least a number, at most one, or between two.
type Bound struct {
	Lo, Hi float64
	Set    bool
}

// UnmarshalYAML reads ">= 0.97", "<= 754" or "0.95 .. 1.05".
func (b *Bound) UnmarshalYAML(n *yaml.Node) error {
	var op string
	var v float64
	b.Lo, b.Hi, b.Set = math.Inf(-1), math.Inf(1), true
	if _, err := fmt.Sscanf(n.Value, "%g .. %g", &b.Lo, &b.Hi); err == nil && b.Lo <= b.Hi {
		return nil
	}
	if _, err := fmt.Sscanf(n.Value, "%2s %g", &op, &v); err != nil || op != "<=" && op != ">=" {
		return fmt.Errorf("gates.yaml:%d: %q is not a bound such as >= 0.97, nor a range such as 0.95 .. 1.05", n.Line, n.Value)
	}
	b.Lo, b.Hi = math.Inf(-1), math.Inf(1)
	if op == ">=" {
		b.Lo = v
	} else {
		b.Hi = v
	}
	return nil
}

// Holds reports whether a figure keeps to the bound.
func (b Bound) Holds(v float64) bool { return b.Lo <= v && v <= b.Hi }

func (b Bound) String() string {
	switch {
	case !b.Set:
		return ""
	case math.IsInf(b.Hi, 1):
		return fmt.Sprintf(">= %.4g", b.Lo)
	case math.IsInf(b.Lo, -1):
		return fmt.Sprintf("<= %.4g", b.Hi)
	}
	return fmt.Sprintf("%.4g .. %.4g", b.Lo, b.Hi)
}

// figures are what gates look at.
var figures = map[string]func(r *result.Result) float64{
	"fct_max_us":    func(r *result.Result) float64 { return r.Summary.FCTMax * 1e6 },
	"fct_p50_us":    func(r *result.Result) float64 { return r.Summary.FCTP50 * 1e6 },
	"min_max":       func(r *result.Result) float64 { return r.Summary.MinMax },
	"goodput_share": func(r *result.Result) float64 { return r.Summary.GoodputShare },
	"goodput_bps":   func(r *result.Result) float64 { return r.Summary.Goodput },
	"seconds":       func(r *result.Result) float64 { return lastEnd(r) },
	"fct_mean_us":   func(r *result.Result) float64 { return meanFCT(r) * 1e6 },
	"jain":          func(r *result.Result) float64 { return r.Summary.Jain },
	"pauses":        func(r *result.Result) float64 { return float64(r.Summary.PauseFrames) },
	"dropped":       func(r *result.Result) float64 { return float64(r.Summary.Dropped) },
	"failed":        func(r *result.Result) float64 { return float64(r.Summary.Errors) },
	"slow_rtt":      func(r *result.Result) float64 { return r.Summary.FCTMax / r.Setup.RTT },
}

func meanFCT(r *result.Result) (s float64) {
	for i := range r.Flows {
		if d, ok := r.Flows[i].FCT(); ok {
			s += d / float64(len(r.Flows))
		}
	}
	return s
}

func lastEnd(r *result.Result) (s float64) {
	for _, g := range r.Groups {
		s = max(s, g.End)
	}
	return s
}

// All returns the gates, in the order of the file.
func All() ([]Gate, error) {
	var g []Gate
	d := yaml.NewDecoder(strings.NewReader(string(file)))
	d.KnownFields(true)
	if err := d.Decode(&g); err != nil {
		return nil, fmt.Errorf("gates.yaml: %w", err)
	}
	for i := range g {
		x := &g[i]
		if figures[x.Figure] == nil || !x.Goal.Set {
			return nil, fmt.Errorf("gates.yaml: %s: no figure %q, or no goal", x.Name, x.Figure)
		}
		if x.Factor == 0 {
			x.Factor = 1
		}
	}
	return g, nil
}

// Row is what came of a gate.
type Row struct {
	Name   string  `json:"name"`
	Topic  string  `json:"topic"`
	Plan   string  `json:"plan"`
	Figure string  `json:"figure"`
	Value  float64 `json:"value"`
	Goal   string  `json:"goal"`
	Floor  string  `json:"floor,omitempty"`
	Beside string  `json:"beside,omitempty"`
	Met    bool    `json:"met"`
	Failed bool    `json:"failed"` // below the floor, or it did not run
	Error  string  `json:"error,omitempty"`
}

// Run runs gates, so many at a time, and tells of each that is done. Equal runs are made once.
func Run(ctx context.Context, gates []Gate, workers int, done func(Row)) []Row {
	rows := make([]Row, len(gates))
	c := &cache{runs: map[string]*once{}}
	next := make(chan int)
	var wg sync.WaitGroup
	var tell sync.Mutex
	for range max(1, workers) {
		wg.Go(func() {
			for i := range next {
				r := gates[i].row(ctx, c)
				tell.Lock()
				rows[i] = r
				done(r)
				tell.Unlock()
			}
		})
	}
	for i := range gates {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return slices.DeleteFunc(rows, func(r Row) bool { return r.Name == "" })
}

func (g *Gate) row(ctx context.Context, c *cache) Row {
	r := Row{Name: g.Name, Topic: g.Topic, Plan: g.Plan, Figure: g.Figure, Goal: g.Goal.String(), Floor: g.Floor.String(), Beside: g.Beside}
	v, err := c.mean(ctx, g.Plan, g.Set, g.Figure, g.Seeds)
	if err == nil && (g.Over != nil || g.OverOf != "") {
		of := g.OverOf
		if of == "" {
			of = g.Plan
		}
		var w float64
		if w, err = c.mean(ctx, of, g.Over, g.Figure, g.Seeds); err == nil {
			v /= w
		}
	}
	if err != nil {
		r.Error, r.Failed = err.Error(), true
		return r
	}
	r.Value = v * g.Factor
	r.Met = g.Goal.Holds(r.Value)
	r.Failed = math.IsNaN(r.Value) || g.Floor.Set && !g.Floor.Holds(r.Value)
	return r
}

// cache keeps the results of runs.
type cache struct {
	mu   sync.Mutex
	runs map[string]*once
}

type once struct {
	sync.Once
	r   *result.Result
	err error
}

// mean is a figure's over seeds 1 to seeds, or of the plan's own seed.
func (c *cache) mean(ctx context.Context, name string, set map[string]string, figure string, seeds uint64) (float64, error) {
	if seeds == 0 {
		return c.figure(ctx, name, set, figure, 0)
	}
	sum := 0.0
	for seed := uint64(1); seed <= seeds; seed++ {
		v, err := c.figure(ctx, name, set, figure, seed)
		if err != nil {
			return 0, fmt.Errorf("seed %d: %w", seed, err)
		}
		sum += v
	}
	return sum / float64(seeds), nil
}

func (c *cache) figure(ctx context.Context, name string, set map[string]string, figure string, seed uint64) (float64, error) {
	key := fmt.Sprint(name, seed, set) // maps are printed in the order of their keys
	c.mu.Lock()
	o := c.runs[key]
	if o == nil {
		o = &once{}
		c.runs[key] = o
	}
	c.mu.Unlock()
	o.Do(func() {
		var p *plan.Plan
		if p, o.err = plans.Parse(name, set); o.err == nil {
			o.r, o.err = sim.Run(ctx, p, sim.Options{Seed: seed})
		}
	})
	switch {
	case o.err != nil:
		return 0, o.err
	case o.r.Partial:
		return 0, fmt.Errorf("%s is partial: %s", name, o.r.Why)
	}
	return figures[figure](o.r), nil
}
