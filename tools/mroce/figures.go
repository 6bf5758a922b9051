package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/figures"
)

func (e *env) figuresCommand() *cli.Command {
	return &cli.Command{
		Name: "figures", Usage: "measure the engines in virtual time: loss, incast, loaded fabric, tails, planes that fail",
		ArgsUsage: "[" + strings.Join(figures.Names, "|") + "]...",
		Description: "  mroce figures\n  mroce figures --plot . loss planes\n  mroce figures --trials [FIRST-LETTERS]...\n\n" +
			"100 Gbit/s planes, a round trip of 8 µs, messages of 1 MiB. Goodput is a share of what the wire carries; loss hits data and acknowledgements alike.",
		Flags: []cli.Flag{
			&cli.Uint64Flag{Name: "seed", Usage: "another one gives other losses", Value: 1},
			&cli.Float64Flag{Name: "ms", Usage: "virtual milliseconds measured in each case", Value: 4},
			&cli.StringFlag{Name: "plot", Usage: "write SVG plots into this directory"},
			&cli.BoolFlag{Name: "json", Usage: "one object for each case, a line each, instead of text"},
			&cli.IntFlag{Name: "workers", Usage: "cases measured at a time", Value: runtime.GOMAXPROCS(0)},
			&cli.BoolFlag{Name: "trials", Usage: "the rows of the design's trials, beside the simulator that it was tried with; arguments: how their names begin"},
			&cli.BoolFlag{Name: "ccsim-args", Usage: "the trials' names and that simulator's arguments, without running anything"},
		},
		Action: e.figures, BashComplete: completeWords(figures.Names),
	}
}

func (e *env) figures(c *cli.Context) error {
	if c.Bool("trials") || c.Bool("ccsim-args") {
		return e.trials(c)
	}
	names := c.Args().Slice()
	for _, n := range names {
		if !slices.Contains(figures.Names, n) {
			return fail.Usagef("no figure %q; there are %s", n, strings.Join(figures.Names, ", "))
		}
	}
	if len(names) == 0 {
		names = figures.Names
	}
	ms := c.Float64("ms")
	if ms < 0.1 || ms > 1000 {
		return fail.Usagef("--ms %v is not in 0.1 to 1000", ms)
	}
	if dir := c.String("plot"); dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make the directory for plots: %w", err)
		}
	}
	ts := figures.Tasks(names, c.Uint64("seed"), mono.Duration(ms*float64(mono.Millisecond)))
	step, done := e.progress(len(ts), "cases")
	rows := figures.Measure(c.Context, ts, c.Int("workers"), func(figures.Row) { step() })
	done()
	if c.Context.Err() != nil {
		rows = slices.DeleteFunc(rows, func(r figures.Row) bool { return r.Values == nil })
	}
	if !c.Bool("json") {
		e.figureTables(rows)
	} else if err := lines(e.out, rows); err != nil {
		return err
	}
	if dir := c.String("plot"); dir != "" {
		files, err := figures.Plot(rows, dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.err, "wrote %s\n", strings.Join(files, ", "))
	}
	if c.Context.Err() != nil {
		return exitCode(fail.Stopped)
	}
	return nil
}

// lines writes values as JSON, a line each.
func lines[T any](w io.Writer, all []T) error {
	j := json.NewEncoder(w)
	for _, x := range all {
		if err := j.Encode(x); err != nil {
			return err
		}
	}
	return nil
}

// columns of the figures that do not show goodput, drops and fairness; percent says which are shares.
var columns = map[string][]string{"tails": {"p50_rtt", "p99_rtt", "p999_rtt"}, "planes": {"during", "after", "back_us"}}

func (e *env) figureTables(rows []figures.Row) {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	last := ""
	for _, r := range rows {
		cols := columns[r.Figure]
		if cols == nil {
			cols = []string{"goodput", "dropped", "jain"}
		}
		if r.Figure != last {
			if last != "" {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%s\ttransport", r.Figure)
			for _, k := range cols {
				fmt.Fprintf(w, "\t%s", strings.Replace(strings.Replace(k, "_rtt", ", RTT", 1), "_us", ", µs", 1))
			}
			fmt.Fprintln(w, "\tgoal")
			last = r.Figure
		}
		fmt.Fprintf(w, "%s\t%s", r.Case, r.Transport)
		for _, k := range cols {
			v, is := r.Values[k]
			if !is {
				fmt.Fprint(w, "\t-")
				continue
			}
			switch k {
			case "goodput", "dropped", "during", "after":
				fmt.Fprintf(w, "\t%.1f %%", 100*v)
			case "jain":
				fmt.Fprintf(w, "\t%.3f", v)
			default:
				fmt.Fprintf(w, "\t%.1f", v)
			}
		}
		if r.Values["errors"] > 0 {
			fmt.Fprint(w, "\ta QP ended with an error")
		} else {
			fmt.Fprintf(w, "\t%s", r.Goal)
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}
