package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/result"
	"github.com/metaroce/metaroce/tools/sim/work"
)

func (e *env) simShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "say what a plan comes to, and run nothing", ArgsUsage: "PLAN.yaml|NAME",
		Description: "  mroce sim show smoke\n\n" +
			"The ideal time is the longer one of the busiest links' bytes, headers included, with what comes before and after them, and of the longest\n" +
			"chain of messages that wait for each other, each as if it were alone.",
		BashComplete: completeWords(plans.Names()),
		Flags:        append(planFlags(), &cli.BoolFlag{Name: "json", Usage: "one object instead of text"}),
		Action:       e.simShow,
	}
}

// shown is what `sim show` tells.
type shown struct {
	Plan     string       `json:"plan"`
	Title    string       `json:"title"`
	Seed     uint64       `json:"seed"`
	Digest   string       `json:"digest"`
	Setup    result.Setup `json:"setup"`
	BDP      int          `json:"bdp_bytes"`
	Until    float64      `json:"until_s"`
	Groups   []shownGroup `json:"groups"`
	Messages int          `json:"messages"`
	Bytes    int64        `json:"bytes"`
	Ideal    float64      `json:"ideal_s"`
}

type shownGroup struct {
	Name     string  `json:"name"`
	Hosts    int     `json:"hosts"`
	Messages int     `json:"messages"`
	Bytes    int64   `json:"bytes"`
	Steps    int     `json:"steps"`
	Ideal    float64 `json:"ideal_s"`
}

func (e *env) simShow(c *cli.Context) error {
	p, err := loadPlan(c)
	if err != nil {
		return err
	}
	g, err := work.Build(p, readBeside(p))
	if err != nil {
		return planError(err)
	}
	for _, n := range append(p.Notes, g.Notes...) {
		fmt.Fprintln(e.err, n)
	}
	s := shown{Plan: p.Name, Title: p.Title, Seed: p.Seed, Digest: plan.Digest(p), Setup: sim.Setup(p), BDP: p.Topology.BDP(), Until: p.Run.Until.Seconds()}
	if seed := c.Uint64("seed"); seed != 0 {
		s.Seed = seed
	}
	bounds := g.Bounds(&p.Topology)
	for i, b := range bounds[:len(g.Groups)] {
		s.Groups = append(s.Groups, shownGroup{g.Groups[i].Name, g.Groups[i].Hosts, b.Messages, b.Bytes, b.Steps, b.Ideal.Seconds()})
	}
	all := bounds[len(g.Groups)]
	s.Messages, s.Bytes, s.Ideal = all.Messages, all.Bytes, all.Ideal.Seconds()
	if c.Bool("json") {
		return json.NewEncoder(e.out).Encode(s)
	}
	return e.showText(&s)
}

func (e *env) showText(s *shown) error {
	fmt.Fprint(e.out, result.Clean(s.Plan))
	if s.Title != "" {
		fmt.Fprintf(e.out, ": %s", result.Clean(s.Title))
	}
	fmt.Fprintf(e.out, "\nseed %d, until %v\n", s.Seed, mono.Duration(s.Until*1e9))
	for _, l := range s.Setup.Lines() {
		fmt.Fprintf(e.out, "%-10s %s\n", l.Name, result.Clean(l.Text))
	}
	fmt.Fprintf(e.out, "%-10s %d B\n\n", "BDP", s.BDP)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "hosts\tsteps\tmessages\tpayload(B)\tideal(us)\t  group")
	const most = 40
	for _, g := range s.Groups[:min(len(s.Groups), most)] {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%.2f\t  %s\n", g.Hosts, g.Steps, g.Messages, g.Bytes, g.Ideal*1e6, result.Clean(g.Name))
	}
	fmt.Fprintf(w, "\t\t%d\t%d\t%.2f\t  all\n", s.Messages, s.Bytes, s.Ideal*1e6)
	if n := len(s.Groups) - most; n > 0 {
		fmt.Fprintf(w, "and %d more groups\n", n)
	}
	return w.Flush()
}

// readBeside reads the files that a plan names.
func readBeside(p *plan.Plan) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) { return os.ReadFile(p.Path(path)) }
}

// planError gives a mistake in a plan its exit code.
func planError(err error) error {
	var wrong *plan.Error
	if errors.As(err, &wrong) {
		return fail.Usagef("%w", err)
	}
	return err
}
