package main

import (
	"fmt"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// scalePlot draws time by hosts, a line for each collective, size and transport.
func scalePlot(rows []scaleRow, file string) error {
	if ext := filepath.Ext(file); ext != ".svg" && ext != ".png" {
		return fail.Usagef("--plot: %q ends neither in .svg nor in .png", file)
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "Time of a collective", "endpoints", "seconds"
	p.X.Scale, p.Y.Scale, p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogScale{}, plot.LogScale{}, plot.LogTicks{}, plot.LogTicks{}
	p.Legend.Top, p.Legend.Left = true, true
	lines := map[string]plotter.XYs{}
	var names []string
	for _, r := range rows {
		name := fmt.Sprintf("%s %s %s", r.Collective, plan.Bytes(r.Size), r.Transport)
		if lines[name] == nil {
			names = append(names, name)
		}
		lines[name] = append(lines[name], plotter.XY{X: float64(r.Hosts), Y: r.Time.Seconds})
	}
	for i, name := range names {
		l, s, err := plotter.NewLinePoints(lines[name])
		if err != nil {
			return err
		}
		l.Color, s.Color, l.Dashes, s.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Dashes(i/7), plotutil.Shape(i)
		p.Add(l, s)
		p.Legend.Add(name, l, s)
	}
	if err := p.Save(20*vg.Centimeter, 14*vg.Centimeter, file); err != nil {
		return fmt.Errorf("cannot write the plot: %w", err)
	}
	return nil
}
