// Package figures is what docs/results shows: which sweeps are run, and which of their points become lines of which plot and columns
// of which table. Sweeps are files that `mroce sim sweep` runs as well.
package figures

import (
	"bytes"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/daemon/impair"
	"github.com/metaroce/metaroce/tools/sim/sweep"
)

//go:embed figures.yaml sweeps/*.yaml
var files embed.FS

// Figure is one plot with its table.
type Figure struct {
	Name    string  `yaml:"name"`    // of the file
	Chapter string  `yaml:"chapter"` // begins a new chapter
	Title   string  `yaml:"title"`
	About   string  `yaml:"about"`
	X       string  `yaml:"x"`       // the key that varies along the axis; none: goodput over time
	Times   float64 `yaml:"times"`   // of values of X: messages of an all-to-all become a host's buffer
	XLabel  string  `yaml:"x_label"` //
	Y       string  `yaml:"y"`       // what is drawn, a number of results (result.Compare)
	YLabel  string  `yaml:"y_label"`
	Scale   float64 `yaml:"scale"` // of Y
	LogX    bool    `yaml:"log_x"`
	Table   string  `yaml:"table"` // what the table shows; default Y
	TLabel  string  `yaml:"table_label"`
	TScale  float64 `yaml:"table_scale"`
	Lines   []Line  `yaml:"lines"`
}

// Line is the points of a sweep that have some values.
type Line struct {
	Label string            `yaml:"label"`
	Sweep string            `yaml:"sweep"`
	Where map[string]string `yaml:"where"`
}

// Set is everything that docs/results is made of.
type Set struct {
	Figures []Figure
	Sweeps  []*sweep.Sweep // in the order in which figures use them
	names   []string
}

// Dir is where the sweeps' files are in the tree.
const Dir = "tools/sim/figures/sweeps"

// Load reads the figures and their sweeps. quick leaves of each line the first two points, and makes them smaller.
func Load(quick bool) (*Set, error) {
	b, err := files.ReadFile("figures.yaml")
	if err != nil {
		return nil, err
	}
	var s Set
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&s.Figures); err != nil {
		return nil, fmt.Errorf("figures.yaml: %w", err)
	}
	for i := range s.Figures {
		f := &s.Figures[i]
		f.defaults()
		for _, l := range f.Lines {
			if slices.Contains(s.names, l.Sweep) {
				continue
			}
			text, err := files.ReadFile("sweeps/" + l.Sweep + ".yaml")
			if err != nil {
				return nil, fmt.Errorf("figures.yaml: %s: no sweep %q", f.Name, l.Sweep)
			}
			w, err := sweep.Parse(Dir+"/"+l.Sweep+".yaml", text)
			if err != nil {
				return nil, err
			}
			s.Sweeps, s.names = append(s.Sweeps, w), append(s.names, l.Sweep)
		}
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if quick {
		s.quicken()
	}
	return &s, nil
}

func (f *Figure) defaults() {
	for _, x := range []*float64{&f.Scale, &f.TScale, &f.Times} {
		if *x == 0 {
			*x = 1
		}
	}
	if f.Table == "" {
		f.Table, f.TLabel, f.TScale = f.Y, f.YLabel, f.Scale
	}
}

// Name of sweep i.
func (s *Set) Name(i int) string { return s.names[i] }

// points are those of a line, with their places in its sweep.
func (s *Set) points(l *Line) (w *sweep.Sweep, at []int) {
	w = s.Sweeps[slices.Index(s.names, l.Sweep)]
	for i := range w.Points {
		if l.takes(&w.Points[i]) {
			at = append(at, i)
		}
	}
	return w, at
}

func (l *Line) takes(p *sweep.Point) bool {
	for k, v := range l.Where {
		if !slices.Contains(p.Set, sweep.Value{Key: k, Text: v}) {
			return false
		}
	}
	return true
}

// check finds lines without points, and points along an axis that cannot be read.
func (s *Set) check() error {
	for i := range s.Figures {
		f := &s.Figures[i]
		for k := range f.Lines {
			l := &f.Lines[k]
			w, at := s.points(l)
			if len(at) == 0 || f.X == "" && len(at) > 1 {
				return fmt.Errorf("figures.yaml: %s: %s has %d points", f.Name, l.Label, len(at))
			}
			for _, p := range at {
				if f.X == "" {
					continue
				}
				if _, err := f.along(&w.Points[p]); err != nil {
					return fmt.Errorf("figures.yaml: %s: %s: %w", f.Name, l.Label, err)
				}
			}
		}
	}
	return nil
}

// quickPoints of each line are run for a smoke test.
const quickPoints = 2

func (s *Set) quicken() {
	keep := map[string]map[string]bool{}
	for i := range s.Figures {
		f := &s.Figures[i]
		for k := range f.Lines {
			l := &f.Lines[k]
			w, at := s.points(l)
			if keep[l.Sweep] == nil {
				keep[l.Sweep] = map[string]bool{}
			}
			for _, p := range at[:min(quickPoints, len(at))] {
				keep[l.Sweep][w.Points[p].Name] = true
			}
		}
	}
	for i, w := range s.Sweeps {
		w.Points = slices.DeleteFunc(w.Points, func(p sweep.Point) bool { return !keep[s.names[i]][p.Name] })
		for _, q := range quickSet {
			if strings.HasPrefix(s.names[i], q.prefix) {
				w.Set = override(w.Set, q.set)
			}
		}
	}
}

// override replaces values: a key is given once.
func override(set, by []sweep.Value) []sweep.Value {
	set = slices.DeleteFunc(slices.Clone(set), func(v sweep.Value) bool {
		return slices.ContainsFunc(by, func(w sweep.Value) bool { return w.Key == v.Key })
	})
	return append(set, by...)
}

// quickSet makes smaller in a smoke test what takes long.
var quickSet = []struct {
	prefix string
	set    []sweep.Value
}{
	{"allreduce", small}, {"alltoall", small}, {"loss-64", small}, {"planes", small}, {"fail", small},
	{"loss-64", []sweep.Value{{Key: "run.warm", Text: "100us"}, {Key: "run.until", Text: "300us"}}},
	{"loss-pair-rocev2", []sweep.Value{{Key: "run.until", Text: "20ms"}}},
	{"planes-a2a", []sweep.Value{{Key: "workload[0].size", Text: "16KiB"}}},
	{"planes-shift8", []sweep.Value{{Key: "workload[0].size", Text: "256KiB"}}},
	{"fail", []sweep.Value{{Key: "run.until", Text: "1200us"}}},
}

var small = []sweep.Value{{Key: "topology.hosts", Text: "16"}, {Key: "topology.leaf", Text: "4"}, {Key: "topology.spines", Text: "4"}}

// along is where a point stands along the axis.
func (f *Figure) along(p *sweep.Point) (float64, error) {
	i := slices.IndexFunc(p.Set, func(v sweep.Value) bool { return v.Key == f.X })
	if i < 0 {
		return 0, fmt.Errorf("%s has no %s", p.Name, f.X)
	}
	text := p.Set[i].Text
	if strings.HasSuffix(text, "%") {
		v, err := impair.ParseShare(text)
		return 100 * v, err
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return v * f.Times, nil
	}
	v, err := impair.ParseSize(text)
	return float64(v) * f.Times, err
}

// plansOf are the plans that sweeps run, each once.
func (s *Set) plansOf() []string {
	names := map[string]bool{}
	for _, w := range s.Sweeps {
		names[w.Plan] = true
	}
	return slices.Sorted(maps.Keys(names))
}
