package result

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Figure is one plot of results.
type Figure struct {
	Name string // of its file, without a suffix
	Alt  string // says in words what it shows
	plot *plot.Plot
	w, h vg.Length
}

// WriteSVG writes the figure as an SVG document; text stays text.
func (f *Figure) WriteSVG(w io.Writer) error { return f.write(w, "svg") }

// WritePNG writes the figure as a PNG picture.
func (f *Figure) WritePNG(w io.Writer) error { return f.write(w, "png") }

func (f *Figure) write(w io.Writer, format string) error {
	c, err := f.plot.WriterTo(f.w, f.h, format)
	if err == nil {
		_, err = c.WriteTo(w)
	}
	if err != nil {
		return fmt.Errorf("cannot draw %s: %w", f.Name, err)
	}
	return nil
}

// inline is the SVG element alone, to stand in HTML.
func (f *Figure) inline() (string, error) {
	var b bytes.Buffer
	if err := f.WriteSVG(&b); err != nil {
		return "", err
	}
	i := bytes.Index(b.Bytes(), []byte("<svg"))
	if i < 0 {
		return "", fmt.Errorf("cannot draw %s: no svg element", f.Name)
	}
	return b.String()[i:], nil
}

// Figures are the plots of a result; what it has no data for is left out. A partial result says so in each title.
func (r *Result) Figures() ([]Figure, error) {
	var all []Figure
	for _, draw := range []func() (*Figure, error){r.completion, r.goodput, r.queues, r.fairness, r.linkLoad, r.uplinks, r.downlinks} {
		f, err := draw()
		if err != nil {
			return nil, err
		}
		if f != nil {
			all = append(all, *f)
		}
	}
	return all, nil
}

// Colours of lines; beyond them they are dashed.
var colours = []color.Color{
	color.RGBA{0x1b, 0x6e, 0xc2, 0xff}, color.RGBA{0xd0, 0x5a, 0x1a, 0xff}, color.RGBA{0x2a, 0x8f, 0x4a, 0xff}, color.RGBA{0x8a, 0x4f, 0xb5, 0xff},
	color.RGBA{0xb8, 0x2e, 0x4e, 0xff}, color.RGBA{0x12, 0x8c, 0x96, 0xff}, color.RGBA{0x94, 0x6a, 0x0c, 0xff}, color.RGBA{0x4d, 0x57, 0x66, 0xff},
}

func (r *Result) figure(name, title, alt, x, y string) *Figure {
	p := plot.New()
	p.Title.Text = label(title)
	p.Title.Padding = vg.Points(4)
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	if r != nil && r.Partial {
		p.Title.Text = "PARTIAL: " + p.Title.Text
	}
	return &Figure{Name: name, Alt: alt, plot: p, w: 16 * vg.Centimeter, h: 9 * vg.Centimeter}
}

// label is a stranger's text as it may stand in a plot.
func label(s string) string {
	if c := []rune(Clean(s)); len(c) > 80 {
		return string(c[:79]) + "…"
	}
	return Clean(s)
}

// timeUnit is the unit in which times up to most seconds are drawn.
func timeUnit(most float64) (unit string, perSecond float64) {
	switch {
	case most < 20e-3:
		return "µs", 1e6
	case most < 20:
		return "ms", 1e3
	}
	return "s", 1
}

// line adds a line; points that are not finite are left out, and so is a line without points.
func (f *Figure) line(name string, nth int, width float64, step plotter.StepKind, xy plotter.XYs) error {
	xy = slices.DeleteFunc(xy, func(p plotter.XY) bool { return bad(p.X) || bad(p.Y) })
	if len(xy) == 0 {
		return nil
	}
	l, err := plotter.NewLine(xy)
	if err != nil {
		return err
	}
	l.StepStyle, l.Width, l.Color = step, vg.Points(width), colours[nth%len(colours)]
	if nth >= len(colours) {
		l.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
	}
	f.plot.Add(l)
	if name != "" {
		f.plot.Legend.Add(name, l)
	}
	return nil
}

func bad(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }

// level adds a dashed line at y from 0 to x.
func (f *Figure) level(name string, x, y float64) error {
	l, err := plotter.NewLine(plotter.XYs{{X: 0, Y: y}, {X: x, Y: y}})
	if err != nil {
		return err
	}
	l.Color, l.Dashes = color.Gray{0x80}, []vg.Length{vg.Points(3), vg.Points(3)}
	f.plot.Add(l)
	f.plot.Legend.Add(name, l)
	return nil
}

// room makes the axes begin at 0 and leaves place for the legend.
func (f *Figure) room(share float64) {
	f.plot.X.Min, f.plot.Y.Min = 0, 0
	if f.plot.Y.Max = f.plot.Y.Max * (1 + share); f.plot.Y.Max <= 0 || bad(f.plot.Y.Max) {
		f.plot.Y.Max = 1
	}
	if f.plot.X.Max <= 0 || bad(f.plot.X.Max) {
		f.plot.X.Max = 1
	}
}

// pointsMost bounds the points of a line: more cannot be seen and make files large.
const pointsMost = 1000

// thin picks at most pointsMost places of n, the first and the last among them.
func thin(n int) []int {
	k := min(n, pointsMost)
	at := make([]int, k)
	for i := range at {
		at[i] = i
		if k < n {
			at[i] = i * (n - 1) / (k - 1)
		}
	}
	return at
}

// completion is the distribution of flow completion times.
func (r *Result) completion() (*Figure, error) {
	var took []float64
	for i := range r.Flows {
		if t, ok := r.Flows[i].FCT(); ok {
			took = append(took, t)
		}
	}
	if len(took) == 0 {
		return nil, nil
	}
	slices.Sort(took)
	n := len(took)
	unit, k := timeUnit(took[n-1])
	f := r.figure("fct", "Flow completion time",
		fmt.Sprintf("share of flows done within a time: half within %.4g %s, all within %.4g %s", Percentile(took, 50)*k, unit,
			took[n-1]*k, unit), "time from posting to completion, "+unit, "flows done, %")
	xy := plotter.XYs{{X: took[0] * k, Y: 0}}
	for _, i := range thin(n) {
		xy = append(xy, plotter.XY{X: took[i] * k, Y: 100 * float64(i+1) / float64(n)})
	}
	if err := f.line("", 0, 1.5, plotter.PostStep, xy); err != nil {
		return nil, err
	}
	f.room(0)
	f.plot.Y.Max = 100
	return f, nil
}

// over is one value of the time line, drawn as steps.
func (r *Result) over(k, scale float64, value func(b *Bin) float64) plotter.XYs {
	xy := make(plotter.XYs, 0, len(r.Line)+1)
	for i := range r.Line {
		xy = append(xy, plotter.XY{X: r.Line[i].At * k, Y: value(&r.Line[i]) * scale})
	}
	if n := len(xy); n > 0 {
		xy = append(xy, plotter.XY{X: max(r.Summary.Seconds*k, xy[n-1].X), Y: xy[n-1].Y})
	}
	return xy
}

// goodput is what receivers placed over time, and what each plane brought.
func (r *Result) goodput() (*Figure, error) {
	if len(r.Line) == 0 {
		return nil, nil
	}
	unit, k := timeUnit(r.Summary.Seconds)
	f := r.figure("goodput", "Goodput over time",
		"payload that receivers placed over time, and the data that each plane brought", unit+" since the start", "Gbit/s")
	planes := 0
	for i := range r.Line {
		planes = max(planes, len(r.Line[i].PerPlane))
	}
	for p := range planes {
		name := fmt.Sprintf("plane %d", p)
		if planes > len(colours) {
			name = "" // sixteen lines of legend would hide the plot
		}
		err := f.line(name, p+1, 0.8, plotter.PostStep, r.over(k, 1e-9, func(b *Bin) float64 {
			if p >= len(b.PerPlane) {
				return 0
			}
			return b.PerPlane[p]
		}))
		if err != nil {
			return nil, err
		}
	}
	if err := f.line("payload", 0, 1.8, plotter.PostStep, r.over(k, 1e-9, func(b *Bin) float64 { return b.Goodput })); err != nil {
		return nil, err
	}
	f.room(0.05 * float64(2+min(planes, len(colours))))
	return f, nil
}

// queues is the longest queue over time, with the marks' limits.
func (r *Result) queues() (*Figure, error) {
	if len(r.Line) == 0 {
		return nil, nil
	}
	unit, k := timeUnit(r.Summary.Seconds)
	f := r.figure("queue", "Longest queue over time", "the longest queue of any switch port over time", unit+" since the start", "KiB")
	xy := r.over(k, 1.0/1024, func(b *Bin) float64 { return float64(b.QueueMax) })
	if err := f.line("longest", 0, 1.2, plotter.PostStep, xy); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		name string
		at   int
	}{{"ECN min", r.Setup.ECNMin}, {"ECN max", r.Setup.ECNMax}, {"bound", r.Setup.QueueBytes}} {
		if x.at > 0 {
			if err := f.level(x.name, xy[len(xy)-1].X, float64(x.at)/1024); err != nil {
				return nil, err
			}
		}
	}
	f.room(0.2)
	return f, nil
}

// fairness is the rate of each flow, in order.
func (r *Result) fairness() (*Figure, error) {
	var rates []float64
	for i := range r.Flows {
		if t, ok := r.Flows[i].FCT(); ok && t > 0 && r.Flows[i].Size > 0 {
			rates = append(rates, float64(r.Flows[i].Size)*8/t/1e9)
		}
	}
	if len(rates) == 0 {
		return nil, nil
	}
	slices.Sort(rates)
	f := r.figure("fairness", fmt.Sprintf("Fairness: Jain's index %.3f, slowest over fastest %.3f", r.Summary.Jain, r.Summary.MinMax),
		"rates of flows from the slowest to the fastest", "flows, slowest first, %", "Gbit/s")
	var xy plotter.XYs
	for _, i := range thin(len(rates)) {
		xy = append(xy, plotter.XY{X: 100 * float64(i) / float64(len(rates)), Y: rates[i]})
	}
	xy = append(xy, plotter.XY{X: 100, Y: rates[len(rates)-1]})
	if err := f.line("", 0, 1.5, plotter.PostStep, xy); err != nil {
		return nil, err
	}
	f.room(0.05)
	return f, nil
}

// ends splits a link's name "0/leaf2>spine3" into its ends without numbers, and the numbers; ok is false for other names.
func ends(name string) (from, to string, i, j int, ok bool) {
	_, rest, _ := strings.Cut(name, "/")
	a, b, cut := strings.Cut(rest, ">")
	from, i, ok = node(a)
	to, j, cut2 := node(b)
	return from, to, i, j, cut && ok && cut2
}

func node(s string) (kind string, n int, ok bool) {
	kind = strings.TrimRight(s, "0123456789")
	if kind == s || len(s)-len(kind) > 7 { // a network has a million nodes at most
		return s, 0, false
	}
	for _, c := range s[len(kind):] {
		n = n*10 + int(c-'0')
	}
	return kind, n, kind != ""
}
