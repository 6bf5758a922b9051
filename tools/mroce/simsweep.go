package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/sweep"
)

func (e *env) simSweepCommand() *cli.Command {
	return &cli.Command{
		Name: "sweep", Usage: "run a plan at many points, on this machine's cores or with Slurm", ArgsUsage: "SWEEP.yaml",
		Description: "  mroce sim sweep loss.yaml\n  mroce sim sweep --engine slurm --partition long loss.yaml\n  mroce sim sweep --rerun failed loss.yaml\n\n" +
			"Ends with 1 when points failed and 4 when some are partial. Run again, it goes on: only what is missing or changed is run.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "directory of the sweep; default: the file's name with .sweep"},
			&cli.StringFlag{Name: "engine", Usage: "local or slurm", Value: "local"},
			&cli.IntFlag{Name: "workers", Usage: "runs at a time; default: as many as there are cores, with Slurm no limit"},
			&cli.StringFlag{Name: "rerun", Usage: "run again what failed or is partial (failed), or everything (all)"},
			&cli.BoolFlag{Name: "list", Usage: "print the points and run nothing"},
			&cli.BoolFlag{Name: "json", Usage: "print results.json at the end"},
			&cli.StringFlag{Name: "partition", Aliases: []string{"p"}, Usage: "Slurm: of the jobs"},
			&cli.StringFlag{Name: "sbatch-args", Usage: "Slurm: further arguments of sbatch, in one word: \"--account=net --qos=low\""},
			&cli.IntFlag{Name: "array-max", Usage: "Slurm: tasks of one array; default: what the cluster allows"},
			&cli.DurationFlag{Name: "queue-max", Usage: "Slurm: give up when no point has run for this long; default: never"},
		},
		Action: e.simSweep,
	}
}

// simTaskCommand is what a task of a job array runs.
func (e *env) simTaskCommand() *cli.Command {
	return &cli.Command{
		Name: "sweep-task", Hidden: true, Usage: "run one point of a point list", ArgsUsage: "LIST INDEX",
		Action: func(c *cli.Context) error {
			k, err := strconv.Atoi(c.Args().Get(1))
			if err != nil || c.NArg() != 2 {
				return fail.Usagef("sweep-task LIST INDEX is for the job arrays of mroce sim sweep")
			}
			return sweep.Worker(c.Context, c.Args().First(), k)
		},
	}
}

func (e *env) simSweep(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail.Usagef("which sweep file? mroce sim sweep SWEEP.yaml (flags stand before it)")
	}
	file := c.Args().First()
	text, err := os.ReadFile(file)
	if err != nil {
		return fail.Usagef("cannot read the sweep file: %w", err)
	}
	s, err := sweep.Parse(file, text)
	if err != nil {
		return err
	}
	o, err := e.sweepOptions(c, s)
	if err != nil {
		return err
	}
	if c.Bool("list") {
		for _, p := range s.Points {
			fmt.Fprintln(e.out, p.Name)
		}
		return nil
	}
	bar := e.sweepBar(len(s.Points))
	o.Note, o.Change = bar.note, bar.change
	began := time.Now()
	rep, err := sweep.Run(c.Context, s, o)
	bar.done()
	if rep == nil {
		return err
	}
	e.sweepEnd(c, o.Dir, rep, time.Since(began))
	switch {
	case err != nil && errors.Is(err, c.Context.Err()):
		fmt.Fprintln(e.err, "stopped; the same command goes on")
		return exitCode(fail.Stopped)
	case err != nil:
		return err
	case rep.Count[sweep.Failed] > 0:
		return exitCode(fail.Failed)
	case rep.Count[sweep.Partial] > 0:
		return exitCode(fail.Partial)
	}
	return nil
}

func (e *env) sweepOptions(c *cli.Context, s *sweep.Sweep) (o sweep.Options, err error) {
	self, err := os.Executable()
	if err != nil {
		return o, err
	}
	if o.Plan, o.Text, o.Base, err = s.FindPlan(simPlanText); err != nil {
		return o, err
	}
	if err := s.CheckPoints(o.Plan, o.Text, simPlanCheck); err != nil {
		return o, err
	}
	if o.Dir = c.String("out"); o.Dir == "" {
		o.Dir = strings.TrimSuffix(filepath.Base(s.File), filepath.Ext(s.File)) + ".sweep"
	}
	o.Program, o.Workers, o.Rerun = []string{self, "sim", "run"}, c.Int("workers"), c.String("rerun")
	if o.Commit, err = programIdentity(self); err != nil {
		return o, err
	}
	engine := c.String("engine")
	switch {
	case o.Workers < 0 || o.Workers > 10_000:
		return o, fail.Usagef("--workers %d is not in 1 to 10000", o.Workers)
	case o.Rerun != "" && o.Rerun != "failed" && o.Rerun != "all":
		return o, fail.Usagef("--rerun %q: there are failed and all", o.Rerun)
	case engine != "local" && engine != "slurm":
		return o, fail.Usagef("--engine %q: there are local and slurm", engine)
	case c.Int("array-max") < 0:
		return o, fail.Usagef("--array-max %d is not at least 1", c.Int("array-max"))
	}
	if engine == "slurm" {
		o.Slurm = &sweep.Slurm{Partition: c.String("partition"), Args: strings.Fields(c.String("sbatch-args")), ArrayMax: c.Int("array-max"),
			QueueMax: c.Duration("queue-max"), Worker: []string{self, "sim", "sweep-task"}}
		return o, nil
	}
	for _, f := range []string{"partition", "sbatch-args", "array-max", "queue-max"} {
		if c.IsSet(f) {
			return o, fail.Usagef("--%s is for --engine slurm", f)
		}
	}
	return o, nil
}

// programIdentity names the code of this program: its commit, or its bytes where that does not say it all.
func programIdentity(path string) (string, error) {
	if info, ok := debug.ReadBuildInfo(); ok {
		set := map[string]string{}
		for _, s := range info.Settings {
			set[s.Key] = s.Value
		}
		if set["vcs.revision"] != "" && set["vcs.modified"] == "false" {
			return set["vcs.revision"], nil
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "program " + hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// sweepEnd says what came of it, naming each point that has no whole result.
func (e *env) sweepEnd(c *cli.Context, dir string, rep *sweep.Report, took time.Duration) {
	w := e.err
	if !c.Bool("json") {
		w = e.out
	}
	for i, p := range rep.Bad {
		if i == 20 {
			fmt.Fprintf(w, "and %d more: %s has them all\n", len(rep.Bad)-i, filepath.Join(dir, "results.csv"))
			break
		}
		fmt.Fprintf(w, "%s: %s", p.Name, p.State)
		if p.Why != "" {
			fmt.Fprintf(w, ", %s", p.Why)
		}
		fmt.Fprintln(w)
		for _, l := range p.Stderr {
			fmt.Fprintf(w, "    %s\n", l)
		}
	}
	n := rep.Count
	fmt.Fprintf(w, "%d of %d points done (%d before), %d partial, %d failed, %d waiting; %s; %s\n", n[sweep.Done], len(rep.Points), rep.Before,
		n[sweep.Partial], n[sweep.Failed], n[sweep.Waiting]+n[sweep.Running], took.Round(time.Second/10), filepath.Join(dir, "results.csv"))
	if c.Bool("json") {
		_ = lines(e.out, []sweep.Results{rep.Results}) // where stdout is closed nobody reads
	}
}

// sweepBar shows points and what remains; without a terminal it prints notes only.
type sweepBar struct {
	err    io.Writer
	p      *mpb.Progress
	bar    *mpb.Bar
	points int
	before int // those that had ended before: what remains is judged by what this process did
}

func (e *env) sweepBar(n int) *sweepBar {
	b := &sweepBar{err: e.err, points: n, before: -1}
	f, is := e.err.(*os.File)
	if !is || !terminal(f) {
		return b
	}
	b.p = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	b.bar = b.p.AddBar(int64(n), mpb.PrependDecorators(decor.Name("points "), decor.CountersNoUnit("%d of %d")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_HHMMSS, decor.WC{W: 8}), decor.Name(" left")))
	return b
}

func (b *sweepBar) note(text string) {
	if b.p != nil {
		fmt.Fprintln(b.p, text)
		return
	}
	fmt.Fprintln(b.err, text)
}

func (b *sweepBar) change(_ sweep.PointState, n map[sweep.State]int) {
	if b.bar == nil {
		return
	}
	ended := n[sweep.Done] + n[sweep.Partial] + n[sweep.Failed]
	if b.before < 0 { // the first change is a beginning
		b.before = ended
		b.bar.SetTotal(int64(b.points-ended), false)
	}
	b.bar.SetCurrent(int64(ended - b.before))
}

func (b *sweepBar) done() {
	if b.bar != nil {
		b.bar.Abort(false)
		b.p.Wait()
	}
}

// simPlanText returns the text of a ready plan, nil when there is none, and the names of all.
func simPlanText(name string) (text []byte, names []string) {
	text, err := plans.Read(name)
	if err != nil {
		return nil, plans.Names()
	}
	return text, plans.Names()
}

// simPlanCheck checks a plan with overrides.
func simPlanCheck(name string, text []byte, set map[string]string) error {
	_, err := plan.ParseWith(name, text, set)
	return err
}
