package result

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// CompareOptions of Compare. The zero value draws the goodput of each transport.
type CompareOptions struct {
	Name, Title string   // of the figure; default "compare", and one of the axes' names
	Y           string   // a value as x; default "goodput_share"
	Series      []string // the line that each result belongs to; default its transport
	X           []float64
	LogX        bool    // powers of two and ten, such as sizes
	XLabel      string  // default x
	YLabel      string  // default Y
	Scale       float64 // of values of Y; default 1
}

// Compare draws results against each other: a line for each series, a point for each result. x and Options.Y name what stands at
// the axes: a number of setup or summary ("planes", "fct_max_s"), or "size_bytes", "seconds", "algbw_bps", "busbw_bps" of the first
// group, or "loss": the share of packets lost on wires among hops. Options.X gives the values instead, one a result, where only the
// plans know them. Partial results are drawn hollow and the title says that there are some. What has no finite value is left out.
func Compare(results []*Result, x string, o CompareOptions) (*Figure, error) {
	if o.Y == "" {
		o.Y = "goodput_share"
	}
	if o.Name == "" {
		o.Name = "compare"
	}
	if o.Title == "" {
		o.Title = o.Y + " by " + x
	}
	if o.Series != nil && len(o.Series) != len(results) || o.X != nil && len(o.X) != len(results) {
		return nil, fmt.Errorf("%d results, %d series and %d values of x: one of each for each result", len(results), len(o.Series), len(o.X))
	}
	if o.Scale == 0 {
		o.Scale = 1
	}
	if o.XLabel == "" {
		o.XLabel = x
	}
	if o.YLabel == "" {
		o.YLabel = o.Y
	}
	lines, hollow, err := gather(results, x, &o)
	if err != nil {
		return nil, err
	}
	f := (*Result)(nil).figure(o.Name, o.Title, fmt.Sprintf("%s by %s of %d results", o.Y, x, len(results)), label(o.XLabel), label(o.YLabel))
	if len(hollow) > 0 {
		f.plot.Title.Text += fmt.Sprintf(" (%d PARTIAL, hollow)", len(hollow))
	}
	var names []string
	for name := range lines {
		names = append(names, name)
	}
	slices.Sort(names)
	var all plotter.XYs
	for nth, name := range names {
		xy := lines[name]
		slices.SortStableFunc(xy, func(a, b plotter.XY) int { return sign(a.X - b.X) })
		all = append(all, xy...)
		if err := f.line(label(name), nth, 1.5, plotter.NoStep, xy); err != nil {
			return nil, err
		}
		if err := f.dots(xy, hollow, nth); err != nil {
			return nil, err
		}
	}
	f.room(0.1 * float64(min(len(names), 5)))
	if least, most := extent(all); o.LogX && least > 0 {
		f.plot.X.Scale, f.plot.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		f.plot.X.Min, f.plot.X.Max = least/1.2, most*1.2 // a scale of powers has no 0
	}
	return f, nil
}

// gather sorts the results into lines; hollow are the points of partial ones.
func gather(results []*Result, x string, o *CompareOptions) (lines map[string]plotter.XYs, hollow map[plotter.XY]bool, err error) {
	lines, hollow = map[string]plotter.XYs{}, map[plotter.XY]bool{}
	for i, r := range results {
		var p plotter.XY
		if p.Y, err = r.value(o.Y); err != nil {
			return nil, nil, err
		}
		p.Y *= o.Scale
		if o.X != nil {
			p.X = o.X[i]
		} else if p.X, err = r.value(x); err != nil {
			return nil, nil, err
		}
		if bad(p.X) || bad(p.Y) {
			continue
		}
		series := r.Setup.Transport
		if o.Series != nil {
			series = o.Series[i]
		}
		lines[series] = append(lines[series], p)
		if r.Partial {
			hollow[p] = true
		}
	}
	return lines, hollow, nil
}

// TimeLines draws the goodput of results over time, a line for each, named.
func TimeLines(results []*Result, names []string, name, title string) (*Figure, error) {
	if len(results) == 0 || len(names) != len(results) {
		return nil, fmt.Errorf("%d results and %d names: each needs one", len(results), len(names))
	}
	most, partial := 0.0, 0
	for _, r := range results {
		most = max(most, r.Summary.Seconds)
		if r.Partial {
			partial++
		}
	}
	unit, k := timeUnit(most)
	f := (*Result)(nil).figure(name, title, fmt.Sprintf("payload placed over time, of %d results", len(results)), unit+" since the start", "Gbit/s")
	if partial > 0 {
		f.plot.Title.Text += fmt.Sprintf(" (%d PARTIAL)", partial)
	}
	for i, r := range results {
		if err := f.line(label(names[i]), i, 1.5, plotter.PostStep, r.over(k, 1e-9, func(b *Bin) float64 { return b.Goodput })); err != nil {
			return nil, err
		}
	}
	f.plot.Y.Min = 0
	f.room(0.1 * float64(min(len(names), 5)))
	return f, nil
}

// Value is the number of a result under a name as in Compare; not finite where it has none.
func (r *Result) Value(name string) (float64, error) { return r.value(name) }

// value is what stands under a JSON name in setup, summary or the first group; NaN where there is no group.
func (r *Result) value(name string) (float64, error) {
	if name == "loss" {
		return float64(r.Summary.Lost) / math.Max(1, float64(r.Summary.Hops)), nil
	}
	var group Group
	if len(r.Groups) > 0 {
		group = r.Groups[0]
	}
	for i, v := range []any{r.Setup, r.Summary, group} {
		s := reflect.ValueOf(v)
		for f := range fields(s.Type()) {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			x := s.FieldByIndex(f.Index)
			if tag != name || !x.CanInt() && !x.CanUint() && !x.CanFloat() {
				continue
			}
			if i == 2 && len(r.Groups) == 0 {
				return math.NaN(), nil
			}
			return x.Convert(reflect.TypeFor[float64]()).Float(), nil
		}
	}
	return 0, fmt.Errorf("results have no number %q", name)
}

// dots puts a mark at each point: filled, or a ring for a partial result.
func (f *Figure) dots(xy plotter.XYs, hollow map[plotter.XY]bool, nth int) error {
	for _, ring := range []bool{false, true} {
		some := slices.DeleteFunc(slices.Clone(xy), func(p plotter.XY) bool { return hollow[p] != ring })
		if len(some) == 0 {
			continue
		}
		s, err := plotter.NewScatter(some)
		if err != nil {
			return err
		}
		s.Color, s.Radius, s.Shape = colours[nth%len(colours)], vg.Points(3), draw.CircleGlyph{}
		if ring {
			s.Shape = draw.RingGlyph{}
		}
		f.plot.Add(s)
	}
	return nil
}

func extent(xy plotter.XYs) (least, most float64) {
	if len(xy) == 0 {
		return 0, 0
	}
	least, most = xy[0].X, xy[0].X
	for _, p := range xy {
		least, most = min(least, p.X), max(most, p.X)
	}
	return least, most
}

func sign(x float64) int {
	switch {
	case x < 0:
		return -1
	case x > 0:
		return 1
	}
	return 0
}
