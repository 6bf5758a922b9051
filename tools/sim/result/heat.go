package result

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// loadBins is how many bins of load the histogram has.
const loadBins = 20

// linkLoad is a histogram of the links' use, a line a kind of link.
func (r *Result) linkLoad() (*Figure, error) {
	kinds := map[string][]int{}
	count := map[string]int{}
	for i := range r.Links {
		l := &r.Links[i]
		from, to, _, _, ok := ends(l.Name)
		kind := from + " to " + to
		if !ok {
			kind = "other links"
		}
		if kinds[kind] == nil {
			kinds[kind] = make([]int, loadBins)
		}
		if bad(l.Use) {
			continue
		}
		kinds[kind][min(max(int(l.Use*loadBins), 0), loadBins-1)]++
		count[kind]++
	}
	if len(kinds) == 0 {
		return nil, nil
	}
	f := r.figure("links", "Load of links over the run", "histogram of the share of their rate that links carried, by kind of link",
		"share of the rate, %", "links of the kind, %")
	var names []string
	for k := range kinds {
		names = append(names, k)
	}
	slices.Sort(names)
	for nth, k := range names[:min(len(names), 2*len(colours))] {
		var xy plotter.XYs
		for i, n := range kinds[k] {
			xy = append(xy, plotter.XY{X: 100 * float64(i) / loadBins, Y: 100 * float64(n) / float64(max(count[k], 1))})
		}
		xy = append(xy, plotter.XY{X: 100, Y: xy[len(xy)-1].Y})
		if err := f.line(label(k), nth, 1.2, plotter.PostStep, xy); err != nil {
			return nil, err
		}
	}
	f.room(0.1)
	f.plot.X.Max = 100
	return f, nil
}

// heatMost bounds the cells of a heat map: each is an element of the SVG.
const heatMost = 4096

// grid is the use of links from each of rows switches to each of cols.
type grid struct {
	cols, rows int
	z          []float64 // of row 0, of row 1 …; -1 = no such link
}

func (g *grid) Dims() (c, r int)   { return g.cols, g.rows }
func (g *grid) Z(c, r int) float64 { return g.z[r*g.cols+c] }
func (g *grid) X(c int) float64    { return float64(c) }
func (g *grid) Y(r int) float64    { return float64(r) }

func (r *Result) uplinks() (*Figure, error) {
	return r.heat("uplinks", "Load from leaves", true)
}

func (r *Result) downlinks() (*Figure, error) {
	return r.heat("downlinks", "Load to leaves", false)
}

// heat is a map of the load between leaves and the tier above; a column is a switch of that tier, plane by plane where all of
// them fit, and otherwise the mean of the planes.
func (r *Result) heat(name, title string, up bool) (*Figure, error) {
	type cell struct {
		plane, leaf, above int
		use                float64
	}
	var cells []cell
	var tier string
	leaves, above, planes := 0, 0, 0
	for i := range r.Links {
		l := &r.Links[i]
		from, to, a, b, ok := ends(l.Name)
		if !up {
			from, to, a, b = to, from, b, a
		}
		if !ok || from != "leaf" || to == "host" || l.Plane < 0 || l.Plane >= planesMost || bad(l.Use) {
			continue
		}
		tier = to
		cells = append(cells, cell{l.Plane, a, b, l.Use})
		leaves, above, planes = max(leaves, a+1), max(above, b+1), max(planes, l.Plane+1)
	}
	if len(cells) == 0 || leaves*above > heatMost {
		return nil, nil
	}
	wide := planes <= 16 && planes*leaves*above <= heatMost
	g := &grid{cols: above, rows: leaves}
	x := tier
	switch {
	case wide && planes > 1:
		g.cols *= planes
		x = fmt.Sprintf("%s: %d of plane 0, then those of plane 1 …", tier, above)
	case planes > 1:
		x = fmt.Sprintf("%s, mean of %d planes", tier, planes)
	}
	g.z = make([]float64, g.cols*g.rows)
	seen := make([]int, len(g.z))
	for _, c := range cells {
		at := c.leaf*g.cols + c.above
		if wide {
			at += c.plane * above
		}
		g.z[at] += min(max(c.use, 0), 1)
		seen[at]++
	}
	for i, n := range seen {
		if g.z[i] /= float64(max(n, 1)); n == 0 {
			g.z[i] = -1
		}
	}
	return r.drawHeat(name, title, x, g), nil
}

func (r *Result) drawHeat(name, title, x string, g *grid) *Figure {
	f := r.figure(name, title, "share of the rate that each link between leaves and the switches above carried", x, "leaf")
	h := plotter.NewHeatMap(g, shades(33))
	h.Min, h.Max, h.Underflow = 0, 1, color.Transparent
	f.plot.Add(h)
	f.plot.Legend.Padding = vg.Points(2)
	for i, t := range plotter.PaletteThumbnailers(shades(5)) {
		f.plot.Legend.Add(fmt.Sprintf("%d %%", 25*i), t)
	}
	f.plot.X.Min, f.plot.X.Max = -0.5, (float64(g.cols)-0.5)+0.18*float64(g.cols) // the legend stands at the right
	f.plot.Y.Min, f.plot.Y.Max = -0.5, float64(g.rows)-0.5
	f.plot.X.Tick.Marker, f.plot.Y.Tick.Marker = whole(g.cols), whole(g.rows)
	return f
}

// whole puts ticks at whole numbers below n, twenty at most.
func whole(n int) plot.Ticker {
	var ticks []plot.Tick
	for i := 0; i < n; i += (n + 19) / 20 {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: fmt.Sprint(i)})
	}
	return plot.ConstantTicks(ticks)
}

// shades is a palette from almost white to dark blue.
type shades int

// Colors returns so many colours.
func (n shades) Colors() []color.Color {
	all := make([]color.Color, n)
	for i := range all {
		mix := func(from, to int) uint8 { return uint8(from + (to-from)*i/(int(n)-1)) }
		all[i] = color.RGBA{mix(0xee, 0x08), mix(0xf3, 0x30), mix(0xfa, 0x6b), 0xff}
	}
	return all
}
