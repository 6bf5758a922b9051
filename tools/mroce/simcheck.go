package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/gate"
)

func (e *env) simCheckCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "run the plans that have goals and print each figure beside its goal", ArgsUsage: "[TOPIC]...",
		Description: "  mroce sim check --smoke\n  mroce sim check loss planes\n\n" +
			"Topics: loss, planes, failures, htsim, collectives, rocev2. A goal that is missed is told and is no failure; a figure that is worse than what the project has " +
			"reached before is one, and the exit code is 1.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "smoke", Usage: "only what takes seconds"},
			&cli.BoolFlag{Name: "json", Usage: "one object for each figure, a line each"},
			&cli.IntFlag{Name: "workers", Usage: "plans run at a time", Value: runtime.GOMAXPROCS(0)},
		},
		Action: e.simCheck,
	}
}

func (e *env) simCheck(c *cli.Context) error {
	all, err := gate.All()
	if err != nil {
		return err
	}
	topics := c.Args().Slice()
	var known []string
	for _, g := range all {
		if !slices.Contains(known, g.Topic) {
			known = append(known, g.Topic)
		}
	}
	for _, t := range topics {
		if !slices.Contains(known, t) {
			return fail.Usagef("no topic %q; there are %s", t, strings.Join(known, ", "))
		}
	}
	all = slices.DeleteFunc(all, func(g gate.Gate) bool {
		return c.Bool("smoke") && !g.Smoke || len(topics) > 0 && !slices.Contains(topics, g.Topic)
	})
	step, done := e.progress(len(all), "figures")
	rows := gate.Run(c.Context, all, c.Int("workers"), func(gate.Row) { step() })
	done()
	if c.Bool("json") {
		err = lines(e.out, rows)
	} else {
		e.gateTable(rows)
	}
	failed := 0
	for _, r := range rows {
		if r.Failed {
			failed++
		}
	}
	switch {
	case err != nil:
		return err
	case c.Context.Err() != nil:
		return exitCode(fail.Stopped)
	case failed > 0:
		return fmt.Errorf("%d of %d figures are worse than what was reached before, or did not come about", failed, len(rows))
	}
	return nil
}

func (e *env) gateTable(rows []gate.Row) {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	last, met := "", 0
	for _, r := range rows {
		if r.Topic != last {
			fmt.Fprintf(w, "%s\tfigure\tis\tgoal\t\tfloor\tothers\n", r.Topic)
			last = r.Topic
		}
		state := "missed"
		switch {
		case r.Error != "":
			state = "FAILED: " + r.Error
		case r.Failed:
			state = "WORSE than before"
		case r.Met:
			state = "met"
			met++
		}
		fmt.Fprintf(w, "  %s\t%s\t%.4g\t%s\t%s\t%s\t%s\n", r.Name, r.Figure, r.Value, r.Goal, state, r.Floor, r.Beside)
	}
	w.Flush()
	fmt.Fprintf(e.out, "%d of %d goals met\n", met, len(rows))
}
