package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/nicemu/labfile"
	"github.com/metaroce/metaroce/tools/sim"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// simRun is sim.Run; tests put another one here.
var simRun = sim.Run

func (e *env) simRunCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run a plan", ArgsUsage: "PLAN.yaml|NAME",
		Description: "  mroce sim run smoke\n  mroce sim run --set topology.planes=4 --out smoke4 smoke\n\n" +
			"NAME is one of mroce sim plans. Ends with 0 when all flows are done, 1 when some failed, 4 when `run.until` came first, 130 when it was\n" +
			"interrupted; what there is has been printed and written then, and says everywhere that it is partial.",
		BashComplete: completeWords(plans.Names()),
		Flags: append(planFlags(),
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "directory for result.json, CSV files, plots and report.html; made"},
			&cli.BoolFlag{Name: "force", Usage: "replace a result that is there; anything else is never replaced"},
			&cli.BoolFlag{Name: "plot", Usage: "with --out: the plots as PNG, too"},
			&cli.BoolFlag{Name: "json", Usage: "print the result as JSON instead of text"},
			&cli.IntFlag{Name: "threads", Usage: "cores to use; the result is the same with any number", Value: 1},
		),
		Action: e.simRun,
	}
}

// planFlags are those that change a plan.
func planFlags() []cli.Flag {
	return []cli.Flag{
		&cli.Uint64Flag{Name: "seed", Usage: "of all that is random", DefaultText: "the plan's"},
		&cli.StringSliceFlag{Name: "set", Usage: "replace a value of the plan: topology.hosts=128, events[0].loss=5%; may be given again"},
	}
}

func (e *env) simPlansCommand() *cli.Command {
	return &cli.Command{
		Name: "plans", Usage: "list the ready plans", Description: "  mroce sim plans",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "one object a plan"}},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fail.Usagef("sim plans takes no argument %q; mroce sim show PLAN tells of one", c.Args().First())
			}
			type row struct {
				Name  string `json:"name"`
				Title string `json:"title"`
			}
			var rows []row
			width := 0
			for _, name := range plans.Names() {
				p, err := plans.Parse(name, nil)
				if err != nil {
					return err
				}
				rows, width = append(rows, row{name, p.Title}), max(width, len(name))
			}
			if c.Bool("json") {
				return lines(e.out, rows)
			}
			for _, r := range rows {
				fmt.Fprintf(e.out, "%-*s  %s\n", width, r.Name, r.Title)
			}
			return nil
		},
	}
}

// loadPlan reads the plan that the arguments name, a file or a ready one, with what --set replaces.
func loadPlan(c *cli.Context) (*plan.Plan, error) {
	if c.NArg() != 1 {
		return nil, fail.Usagef("which plan? mroce sim %s PLAN.yaml|NAME; mroce sim plans lists the ready ones", c.Command.Name)
	}
	set := map[string]string{}
	for _, s := range c.StringSlice("set") {
		k, v, ok := strings.Cut(s, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return nil, fail.Usagef("--set %q: it is KEY=VALUE, such as topology.hosts=128", s)
		}
		if _, twice := set[k]; twice {
			return nil, fail.Usagef("--set %s is given twice", k)
		}
		set[k] = v
	}
	name := c.Args().First()
	info, err := os.Stat(name)
	there := err == nil && !info.IsDir() // `--out smoke` makes a directory of that name
	if there || strings.ContainsRune(name, filepath.Separator) || filepath.Ext(name) != "" {
		if err != nil {
			if near := labfile.Nearest(strings.TrimSuffix(name, ".yaml"), plans.Names()); near != "" && os.IsNotExist(err) {
				return nil, fail.Usagef("cannot read the plan: %w; there is a ready plan %q", err, near)
			}
		}
		return plan.LoadWith(name, set)
	}
	return plans.Parse(name, set)
}

func (e *env) simRun(c *cli.Context) error {
	dir := c.String("out")
	switch {
	case c.Int("threads") < 1:
		return fail.Usagef("--threads is at least 1")
	case dir == "" && (c.Bool("plot") || c.Bool("force")):
		return fail.Usagef("--plot and --force are for --out DIR")
	}
	p, err := loadPlan(c)
	if err != nil {
		return err
	}
	for _, n := range p.Notes {
		fmt.Fprintln(e.err, n)
	}
	if dir != "" { // said before hours of simulation, not after
		if err := result.CheckDir(dir, c.Bool("force")); err != nil {
			return fail.Usagef("--out: %w", err)
		}
	}
	bar := e.simBar(p)
	r, err := simRun(c.Context, p, sim.Options{Seed: c.Uint64("seed"), Threads: c.Int("threads"), Commit: commit(), Progress: bar.show,
		Read: readBeside(p)})
	bar.done()
	switch {
	case c.Context.Err() != nil && (err != nil || r == nil):
		fmt.Fprintln(e.err, "interrupted before there was a result")
		return exitCode(fail.Stopped)
	case err != nil:
		return planError(err)
	}
	if err := e.simEnd(c, r, dir); err != nil {
		return err
	}
	switch s := &r.Summary; {
	case c.Context.Err() != nil && r.Partial:
		return exitCode(fail.Stopped)
	case s.Errors > 0:
		fmt.Fprintf(e.err, "mroce: %d of %d flows failed\n", s.Errors, s.Flows)
		return exitCode(fail.Failed)
	case r.Partial:
		return exitCode(fail.Partial)
	}
	return nil
}

func (e *env) simReportCommand() *cli.Command {
	return &cli.Command{
		Name: "report", Usage: "write the files of a result again: CSV, plots, report.html", ArgsUsage: "RESULT.json",
		Description: "  mroce sim report smoke4/result.json --out smoke4-again\n\nA sweep keeps of each point its result.json alone.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "directory to write; made"},
			&cli.BoolFlag{Name: "force", Usage: "replace a result that is there; anything else is never replaced"},
			&cli.BoolFlag{Name: "plot", Usage: "the plots as PNG, too"},
		},
		Action: func(c *cli.Context) error {
			dir := c.String("out")
			if c.NArg() != 1 || dir == "" {
				return fail.Usagef("mroce sim report RESULT.json --out DIR")
			}
			f, err := os.Open(c.Args().First())
			if err != nil {
				return fail.Usagef("cannot read the result: %w", err)
			}
			defer f.Close()
			r, err := result.ReadJSON(f)
			if err != nil {
				return fail.Usagef("%s: %w", c.Args().First(), err)
			}
			if err := result.CheckDir(dir, c.Bool("force")); err != nil {
				return fail.Usagef("--out: %w", err)
			}
			return e.simSave(c, r, dir)
		},
	}
}

// simEnd prints and writes a result.
func (e *env) simEnd(c *cli.Context, r *result.Result, dir string) error {
	var err error
	if c.Bool("json") {
		err = r.WriteJSON(e.out)
	} else {
		err = r.Text(e.out)
	}
	if dir == "" {
		return err
	}
	return errors.Join(err, e.simSave(c, r, dir))
}

func (e *env) simSave(c *cli.Context, r *result.Result, dir string) error {
	if err := result.Save(dir, r, result.SaveOptions{Force: c.Bool("force"), PNG: c.Bool("plot")}); err != nil {
		return fmt.Errorf("cannot write the result: %w", err)
	}
	fmt.Fprintf(e.err, "%s\n", filepath.Join(dir, result.ReportFile))
	return nil
}

// commit names the program in reports.
func commit() string {
	self, err := os.Executable()
	if err == nil {
		self, err = programIdentity(self)
	}
	if err != nil {
		return version
	}
	return self
}

// simBar shows how far a run is: virtual time, percent, speed.
type simBar struct {
	p     *mpb.Progress
	bar   *mpb.Bar
	plan  *plan.Plan
	began time.Time
	text  atomic.Pointer[string] // the bar draws from a goroutine of its own
}

// barSteps is the bar's length in steps.
const barSteps = 1000

func (e *env) simBar(p *plan.Plan) *simBar {
	b := &simBar{plan: p, began: time.Now()}
	b.text.Store(new(string))
	f, is := e.err.(*os.File)
	if !is || !terminal(f) {
		return b
	}
	b.p = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	b.bar = b.p.AddBar(barSteps, mpb.PrependDecorators(decor.Name(result.Clean(p.Name)+" ")),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.Any(func(decor.Statistics) string { return *b.text.Load() })))
	return b
}

func (b *simBar) show(p sim.Progress) {
	if b.bar == nil {
		return
	}
	steps, text := barText(b.plan.Run.Steady, p, time.Since(b.began).Seconds())
	b.text.Store(&text)
	b.bar.SetCurrent(steps)
}

// barText is how far a run is, in steps of the bar and in words. Bytes that arrived say how much is done; where messages are posted again and
// again, time does.
func barText(steady bool, p sim.Progress, wall float64) (steps int64, text string) {
	text = fmt.Sprintf("  %v", mono.Duration(p.Now))
	switch {
	case !steady && p.Messages > 0:
		if p.Bytes > 0 {
			steps = int64(barSteps * (float64(p.Placed) / float64(p.Bytes)))
		}
		text += fmt.Sprintf(", %d of %d messages", p.Done, p.Messages)
	case p.Until > 0:
		steps = int64(barSteps * (float64(p.Now) / float64(p.Until)))
		text += fmt.Sprintf(" of %v", mono.Duration(p.Until))
	}
	if wall > 0 {
		text += ", " + result.HopRate(float64(p.Hops)/wall)
	}
	return min(steps, barSteps-1), text // the end is told by the result
}

func (b *simBar) done() {
	if b.bar != nil {
		b.bar.Abort(true)
		b.p.Wait()
	}
}
