package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/figures"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/sweep"
)

func (e *env) simFiguresCommand() *cli.Command {
	return &cli.Command{
		Name: "figures", Usage: "run the sweeps behind docs/results and draw them again",
		Description: "  mroce sim figures --out docs/results\n  mroce sim figures --quick --out /tmp/results\n\n" +
			"make figures calls it. Runs that are done are kept in --work, so that it goes on where it was stopped; another build of the program runs all of them again. " +
			"Ends with 1 when a point failed and 4 when one is partial; both are named in README.md.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "directory of README.md, plots and runs.csv; made", Value: "docs/results"},
			&cli.StringFlag{Name: "work", Usage: "directory of the sweeps; made", Value: "build/figures"},
			&cli.BoolFlag{Name: "quick", Usage: "a smoke test: two points of each line, of smaller networks"},
			&cli.BoolFlag{Name: "draw", Usage: "run nothing: draw what is in --work"},
			&cli.IntFlag{Name: "workers", Usage: "runs at a time; default: as many as there are cores"},
			&cli.StringFlag{Name: "command", Usage: "what README.md says made it", Value: "mroce sim figures", Hidden: true},
		},
		Action: e.simFigures,
	}
}

func (e *env) simFigures(c *cli.Context) error {
	switch {
	case c.NArg() > 0:
		return fail.Usagef("%q: mroce sim figures takes flags only", c.Args().First())
	case c.Int("workers") < 0:
		return fail.Usagef("--workers %d is not at least 1", c.Int("workers"))
	}
	set, err := figures.Load(c.Bool("quick"))
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	code, commit, err := e.figureRuns(c, set, self)
	if err != nil {
		return err
	}
	table, err := scaleMarkdown(c.Context, self, c.Bool("quick"))
	if err != nil {
		return err
	}
	if err := set.Write(figures.Options{Out: c.String("out"), Work: c.String("work"), Commit: commit, Quick: c.Bool("quick"), Command: c.String("command"), Scale: table}); err != nil {
		return fmt.Errorf("cannot write the figures: %w", err)
	}
	fmt.Fprintln(e.err, filepath.Join(c.String("out"), "README.md"))
	if code != fail.OK {
		return exitCode(code)
	}
	return nil
}

// figureRuns runs the sweeps; it returns the worst that became of one, and the commit of the program that ran them.
func (e *env) figureRuns(c *cli.Context, set *figures.Set, self string) (code int, commit string, err error) {
	work := c.String("work")
	note := filepath.Join(work, "commit")
	if c.Bool("draw") {
		b, err := os.ReadFile(note)
		if err != nil {
			return 0, "", fail.Usagef("--draw: there are no runs in %s: %w", work, err)
		}
		return fail.OK, strings.TrimSpace(string(b)), nil
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return 0, "", err
	}
	if err := os.WriteFile(note, []byte(version+"\n"), 0o644); err != nil {
		return 0, "", err
	}
	began := time.Now()
	for i, s := range set.Sweeps {
		rep, err := e.figureSweep(c, s, self, filepath.Join(work, set.Name(i)+".sweep"))
		switch {
		case c.Context.Err() != nil:
			fmt.Fprintln(e.err, "stopped; the same command goes on")
			return 0, "", exitCode(fail.Stopped)
		case err != nil:
			return 0, "", fmt.Errorf("%s: %w", set.Name(i), err)
		case rep.Count[sweep.Failed] > 0:
			code = fail.Failed
		case rep.Count[sweep.Partial] > 0 && code == fail.OK:
			code = fail.Partial
		}
		fmt.Fprintf(e.err, "%d of %d sweeps, %s: %d of %d points done, %d of them before; %s\n", i+1, len(set.Sweeps), set.Name(i), rep.Count[sweep.Done], len(s.Points), rep.Before,
			time.Since(began).Round(time.Second))
		for _, p := range rep.Bad {
			fmt.Fprintf(e.err, "  %s: %s, %s\n", p.Name, p.State, p.Why)
		}
	}
	return code, version, nil
}

func (e *env) figureSweep(c *cli.Context, s *sweep.Sweep, self, dir string) (*sweep.Report, error) {
	o := sweep.Options{Dir: dir, Program: []string{self, "sim", "run"}, Workers: c.Int("workers")}
	var err error
	if o.Plan, o.Text, o.Base, err = s.FindPlan(simPlanText); err != nil {
		return nil, err
	}
	if err := s.CheckPoints(o.Plan, o.Text, simPlanCheck); err != nil {
		return nil, err
	}
	if o.Commit, err = programIdentity(self); err != nil {
		return nil, err
	}
	bar := e.sweepBar(len(s.Points))
	o.Note, o.Change = bar.note, bar.change
	rep, err := sweep.Run(c.Context, s, o)
	bar.done()
	return rep, err
}

// scaleMarkdown is the flow level's table of up to a million endpoints.
func scaleMarkdown(ctx context.Context, self string, quick bool) ([]byte, error) {
	args := []string{"sim", "scale", "--json"}
	if quick {
		args = append(args, "--hosts", "1k,10k")
	}
	out, err := exec.CommandContext(ctx, self, args...).Output() //nolint:gosec // this program
	if err != nil {
		return nil, fmt.Errorf("mroce %s: %w", strings.Join(args, " "), err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n## Up to a million endpoints\n\nFlow level, MetaRoCE, 8 planes, 800 Gbit/s a NIC: `mroce %s`. [sim-scale.md](../sim-scale.md) has the model, how far it agrees\n"+
		"with packets, and what of this is extrapolation.\n\n| hosts | collective | size | time, µs | bus bandwidth, GB/s | of the bound | state of a NIC, KiB | probes a second | a plane is left after, µs | a spine, µs |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", strings.Join(args, " "))
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var r scaleRow
		if err := d.Decode(&r); err != nil {
			if errors.Is(err, io.EOF) {
				return b.Bytes(), nil
			}
			return nil, err
		}
		s := &r.State
		fmt.Fprintf(&b, "| %d | %s | %s | %.1f | %.2f | %.3f | %.0f | %.0f | %.1f | %.1f |\n", r.Hosts, r.Collective, plan.Bytes(r.Size), r.Time.Seconds*1e6, r.BusBps/8e9, r.Share,
			float64(s.Bytes)/1024, s.Probes, s.PlaneRecovery*1e6, s.SpineRecovery*1e6)
	}
}
