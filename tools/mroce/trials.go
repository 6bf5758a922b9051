package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/figures"
)

// trials runs the rows of the design's trials with the real core, beside what ccsim gave for them.
func (e *env) trials(c *cli.Context) error {
	ts, err := figures.Trials(c.Args().Slice())
	if err != nil {
		return fail.Usagef("%w; mroce figures --ccsim-args lists them", err)
	}
	if c.Bool("ccsim-args") {
		for _, t := range ts {
			fmt.Fprintf(e.out, "%s\t%s\n", t.Name, strings.Join(t.Args, " "))
		}
		return nil
	}
	rows := make([]figures.Result, len(ts))
	step, done := e.progress(len(ts), "trials")
	figures.Each(c.Context, len(ts), c.Int("workers"), func(i int) {
		rows[i] = ts[i].Run(c.Uint64("seed"))
		step()
	})
	done()
	rows = slices.DeleteFunc(rows, func(r figures.Result) bool { return r.Name == "" })
	if !c.Bool("json") {
		e.trialTable(rows)
	} else if err := lines(e.out, rows); err != nil {
		return err
	}
	if c.Context.Err() != nil {
		return exitCode(fail.Stopped)
	}
	return nil
}

func (e *env) trialTable(rows []figures.Result) {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "trial\tworld\tvalue\tcore\tccsim\tdifference\t")
	for _, r := range rows {
		name, world := r.Name, r.World
		for _, k := range r.Keys {
			form := "%.1f"
			if k == "jain" {
				form = "%.3f"
			}
			a, b, diff, mark := fmt.Sprintf(form, r.Core[k]), "-", "-", ""
			if v, ok := r.Ccsim[k]; ok {
				b, diff = fmt.Sprintf(form, v), difference(k, form, r.Core[k], v)
			}
			if slices.Contains(r.Worse, k) {
				mark = "worse"
			}
			if r.Errors > 0 {
				mark = fmt.Sprintf("%d without an end", r.Errors)
			}
			unit := figures.Unit(k)
			if unit != "" {
				unit = ", " + unit
			}
			label, _, _ := strings.Cut(k, "_")
			fmt.Fprintf(w, "%s\t%s\t%s%s\t%s\t%s\t%s\t%s\n", name, world, label, unit, a, b, diff, mark)
			name, world = "", ""
		}
	}
	w.Flush()
}

// difference is in points for shares, as a factor for times.
func difference(k, form string, a, b float64) string {
	switch figures.Unit(k) {
	case "RTT", "µs":
		if b == 0 {
			return "-"
		}
		return fmt.Sprintf("x%.2f", a/b)
	}
	return fmt.Sprintf("%+"+form[1:], a-b)
}
