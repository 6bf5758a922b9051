package figures

import (
	"fmt"
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

var colours = map[string]color.Color{"metaroce": color.RGBA{0x1b, 0x6e, 0xc2, 0xff}, "rocev2": color.RGBA{0xd0, 0x5a, 0x1a, 0xff}}

// Plot draws the curves among the rows into dir, one SVG a figure, and returns the files' names.
func Plot(rows []Row, dir string) (files []string, err error) {
	for _, name := range Names {
		p := plot.New()
		p.Title.Text, p.Y.Label.Text, p.Y.Min, p.Y.Max = titles[name], "goodput, % of the wire", 0, 105
		p.Legend.Top, p.Legend.Left = false, true
		n := 0
		switch name {
		case "loss", "bursts", "fabric":
			p.X.Label.Text = "packets lost, %"
			n, err = curves(p, rows, name)
		case "planes":
			p.X.Label.Text = "µs since the change"
			n, err = stories(p, rows)
		default:
			continue
		}
		if err != nil {
			return files, err
		}
		if n == 0 {
			continue
		}
		f := filepath.Join(dir, name+".svg")
		if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, f); err != nil {
			return files, fmt.Errorf("cannot write the plot: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

var titles = map[string]string{"loss": "One pair, random loss", "bursts": "One pair, losses in bursts of 8",
	"fabric": "Permutation of 32 hosts, leaf-spine, 100 Gbit/s", "planes": "One pair, 4 planes, something happens to one of them"}

// curves adds a line for each transport, and the limit that nothing can pass.
func curves(p *plot.Plot, rows []Row, name string) (int, error) {
	lines := map[string]plotter.XYs{}
	var limit plotter.XYs
	for _, r := range rows {
		if r.Figure != name || r.Values == nil {
			continue
		}
		lines[r.Transport] = append(lines[r.Transport], plotter.XY{X: 100 * r.X, Y: 100 * r.Values["goodput"]})
		if r.Transport == "metaroce" {
			limit = append(limit, plotter.XY{X: 100 * r.X, Y: 100 * (1 - r.X)})
		}
	}
	for _, t := range []string{"metaroce", "rocev2"} {
		if len(lines[t]) == 0 {
			continue
		}
		l, s, err := plotter.NewLinePoints(lines[t])
		if err != nil {
			return 0, err
		}
		l.Color, s.Color, l.Width = colours[t], colours[t], vg.Points(1.5)
		p.Add(l, s)
		p.Legend.Add(t, l, s)
	}
	if len(limit) > 0 {
		l, err := plotter.NewLine(limit)
		if err != nil {
			return 0, err
		}
		l.Color, l.Dashes = color.Gray{0x80}, []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(l)
		p.Legend.Add("limit", l)
	}
	return len(lines), nil
}

func stories(p *plot.Plot, rows []Row) (n int, err error) {
	for _, r := range rows {
		if r.Figure != "planes" || len(r.Line) == 0 {
			continue
		}
		var xy plotter.XYs
		for _, q := range r.Line {
			xy = append(xy, plotter.XY{X: q.At.Micros(), Y: 100 * q.Goodput})
		}
		l, err := plotter.NewLine(xy)
		if err != nil {
			return n, err
		}
		l.Color = []color.Color{color.RGBA{0x1b, 0x6e, 0xc2, 0xff}, color.RGBA{0xd0, 0x5a, 0x1a, 0xff}, color.RGBA{0x2a, 0x8f, 0x4a, 0xff}}[n%3]
		p.Add(l)
		p.Legend.Add(r.Case, l)
		n++
	}
	return n, nil
}
