package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/tools/vopr"
)

func (e *env) voprCommand() *cli.Command {
	return &cli.Command{
		Name: "vopr", Usage: "play random worlds of NICs, programs and networks from seeds, and check what programs see",
		Description: "  mroce vopr --seeds 200\n  mroce vopr --seed 7 --trace\n\n" +
			"The same seed and commit give the same events on every machine. A world that breaks a rule ends, and a line says how to play it again.",
		Flags: []cli.Flag{
			&cli.Uint64Flag{Name: "seed", Usage: "the seed, or the first one of --seeds", Value: 1},
			&cli.IntFlag{Name: "seeds", Usage: "how many seeds to play", Value: 1},
			&cli.BoolFlag{Name: "trace", Usage: "print each event of a single seed"},
			&cli.BoolFlag{Name: "json", Usage: "one object for each failed seed and one for all, instead of text"},
			&cli.StringFlag{Name: "transport", Usage: names(), Value: vopr.MetaRoCE.Name},
			&cli.StringFlag{Name: "with", Usage: "features that each world has, separated by commas"},
			&cli.IntFlag{Name: "workers", Usage: "worlds played at a time", Value: runtime.GOMAXPROCS(0)},
			&cli.IntFlag{Name: "failures", Usage: "stop after so many failed seeds", Value: 10},
			&cli.StringFlag{Name: "plant", Usage: "plant a bug in the core (programs built with the tag planted only); ? lists them", Hidden: !planted.On},
		},
		Action: e.vopr,
	}
}

func names() string {
	var s []string
	for _, t := range vopr.Transports {
		s = append(s, t.Name)
	}
	return strings.Join(s, " or ")
}

// total is the object at the end.
type total struct {
	First     uint64  `json:"first_seed"`
	Seeds     int     `json:"seeds"`
	Failed    int     `json:"failed"`
	Requests  int     `json:"requests"`
	Packets   uint64  `json:"packets"`
	Steps     uint64  `json:"steps"`
	Virtual   float64 `json:"virtual_seconds"`
	Wall      float64 `json:"wall_seconds"`
	Partial   bool    `json:"partial"`
	Transport string  `json:"transport"`
}

// failure is the object of a failed seed.
type failure struct {
	vopr.Result
	Hash  string `json:"trace_hash"`
	Plan  string `json:"plan"`
	Again string `json:"again"`
}

func (e *env) vopr(c *cli.Context) error {
	if c.Args().Present() {
		return fail.Usagef("vopr takes no argument %q; a seed is given as --seed N", c.Args().First())
	}
	first, n := c.Uint64("seed"), c.Int("seeds")
	i := slices.IndexFunc(vopr.Transports, func(t vopr.Transport) bool { return t.Name == c.String("transport") })
	switch {
	case n < 1 || c.Int("workers") < 1 || c.Int("failures") < 1:
		return fail.Usagef("--seeds, --workers and --failures are at least 1")
	case c.Bool("trace") && n != 1:
		return fail.Usagef("--trace prints the events of one seed; leave out --seeds")
	case i < 0:
		return fail.Usagef("no transport %q; there are %s", c.String("transport"), names())
	}
	if err := e.plant(c.String("plant")); err != nil {
		return err
	}
	with, err := vopr.ParseFeatures(c.String("with"))
	if err != nil {
		return fail.Usagef("--with: %w", err)
	}
	o := vopr.Options{Transport: vopr.Transports[i], With: with}
	if c.Bool("trace") {
		o.Trace = func(line string) { fmt.Fprintln(e.out, line) }
	}
	t := total{First: first, Transport: o.Transport.Name}
	step, done := e.progress(n, "seeds")
	began := time.Now()
	var failed []failure
	vopr.Many(c.Context, o, first, n, c.Int("workers"), func(r vopr.Result) bool {
		t.Seeds++
		t.Requests += r.Requests
		t.Packets += r.Packets
		t.Steps += r.Steps
		t.Virtual += r.Virtual.Seconds()
		if r.Violation != nil {
			t.Failed++
			failed = append(failed, failure{r, fmt.Sprintf("%016x", r.Hash), r.Plan.String(), again(c, r.Seed)})
		} else if n == 1 && !c.Bool("json") {
			fmt.Fprintf(e.out, "seed %d: %v\ntrace hash %016x\n", r.Seed, r.Plan, r.Hash)
		}
		step()
		return t.Failed < c.Int("failures")
	})
	done()
	t.Wall = time.Since(began).Seconds()
	t.Partial = t.Seeds < n
	slices.SortFunc(failed, func(a, b failure) int { return int(int64(a.Seed) - int64(b.Seed)) })
	e.report(c.Bool("json"), t, failed)
	switch {
	case c.Context.Err() != nil:
		return exitCode(fail.Stopped)
	case t.Failed > 0:
		return exitCode(fail.Failed)
	}
	return nil
}

// plant plants a bug for this run.
func (e *env) plant(name string) error {
	if name == "" {
		return nil
	}
	if !planted.On {
		return fail.Usagef("no bug can be planted in this build; build it with -tags planted")
	}
	for _, b := range planted.All() {
		if name == "?" {
			fmt.Fprintln(e.out, b)
		} else if b.String() == name {
			planted.Plant(b)
			return nil
		}
	}
	if name == "?" {
		return exitCode(fail.OK)
	}
	return fail.Usagef("no bug %q; --plant ? lists them", name)
}

// again is the line that plays a seed again.
func again(c *cli.Context, seed uint64) string {
	s, args := "go run ./tools/mroce", ""
	if planted.On {
		s = "go run -tags planted ./tools/mroce"
	}
	if t := c.String("transport"); t != vopr.MetaRoCE.Name {
		args += " --transport " + t
	}
	if w := c.String("with"); w != "" {
		args += " --with " + strings.ReplaceAll(w, " ", ",")
	}
	if p := c.String("plant"); p != "" {
		args += " --plant " + p
	}
	return fmt.Sprintf("%s vopr --seed %d --trace%s", s, seed, args)
}

func (e *env) report(asJSON bool, t total, failed []failure) {
	if asJSON {
		j := json.NewEncoder(e.out)
		for _, f := range failed {
			_ = j.Encode(f) // a closed pipe shows at the end
		}
		_ = j.Encode(t)
		return
	}
	for _, f := range failed {
		fmt.Fprintf(e.out, "seed %d: %s %s\n  plan: %s\n  again: %s\n", f.Seed, f.Violation.Property, f.Violation.Msg, f.Plan, f.Again)
	}
	state := "clean"
	if t.Failed > 0 {
		state = fmt.Sprintf("%d FAILED", t.Failed)
	}
	if t.Partial {
		state += ", partial"
	}
	fmt.Fprintf(e.out, "%d seeds from %d: %s. %d requests, %d packets, %.0f s of virtual time in %.1f s\n", t.Seeds, t.First, state, t.Requests, t.Packets,
		t.Virtual, t.Wall)
}

// progress shows a bar on a terminal.
func (e *env) progress(n int, of string) (step, done func()) {
	f, is := e.err.(*os.File)
	if !is || n < 20 || !terminal(f) {
		return func() {}, func() {}
	}
	p := mpb.New(mpb.WithOutput(io.Writer(f)), mpb.WithWidth(50))
	b := p.AddBar(int64(n), mpb.PrependDecorators(decor.Name(of+" "), decor.CountersNoUnit("%d of %d")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_MMSS, decor.WC{W: 6}), decor.Name(" left")))
	return b.Increment, func() {
		b.Abort(false)
		p.Wait()
	}
}

func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
