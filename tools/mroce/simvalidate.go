package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/result"
	"github.com/metaroce/metaroce/tools/sim/scale"
)

// validation is a leaf-spine fabric of square form, as the packet level runs it beside the flow level. Queues, marks and the
// rest are those of the ready plans. Larger fabrics get smaller messages: the packets of all hosts are what takes time.
const validation = `
name: %s
topology: {kind: leaf-spine, hosts: %d, leaf: %d, spines: %d, planes: %d, rate: 400Gbit, delay: 1us, mtu: 4096}
switch: %s
transport: {kind: %s}
workload: [{pattern: %s, size: %s}]
run: {flows: false}
`

// lossless are the switches of rocev2: PFC, and marks for DCQCN as in the ready plans.
const lossless = "{ecn_min: 1600kB, ecn_max: 6400kB, ecn_prob: 20%, pfc: {xoff: 16MB}}"

type validationCase struct {
	pattern       string
	hosts, planes int
	size          string
	transport     plan.TransportKind
}

// validationCases leave a ring of 1,024 hosts out: it has two million messages.
var validationCases = []validationCase{
	{"ring", 64, 1, "1MiB", plan.MetaRoCE}, {"ring", 64, 1, "64MiB", plan.MetaRoCE}, {"ring", 64, 4, "64MiB", plan.MetaRoCE}, {"ring", 256, 1, "16MiB", plan.MetaRoCE},
	{"all-gather", 64, 1, "64MiB", plan.MetaRoCE}, {"reduce-scatter", 64, 4, "64MiB", plan.MetaRoCE},
	{"halving", 64, 1, "256KiB", plan.MetaRoCE}, {"halving", 64, 1, "4MiB", plan.MetaRoCE}, {"halving", 64, 1, "16MiB", plan.MetaRoCE},
	{"halving", 256, 1, "4MiB", plan.MetaRoCE}, {"halving", 1024, 1, "256KiB", plan.MetaRoCE},
	{"tree", 64, 1, "64MiB", plan.MetaRoCE}, {"tree", 256, 1, "16MiB", plan.MetaRoCE},
	{"all-to-all", 64, 1, "64KiB", plan.MetaRoCE}, {"all-to-all", 64, 1, "256KiB", plan.MetaRoCE}, {"all-to-all", 64, 4, "256KiB", plan.MetaRoCE},
	{"all-to-all", 256, 1, "16KiB", plan.MetaRoCE},
	{"permutation, mul: 1, add: 8", 64, 1, "8MiB", plan.MetaRoCE}, {"permutation, mul: 1, add: 32", 64, 4, "8MiB", plan.MetaRoCE},
	{"permutation, mul: 1, add: 8", 64, 1, "32MiB", plan.MetaRoCE}, {"permutation, mul: 1, add: 1", 64, 1, "8MiB", plan.MetaRoCE},
	{"permutation, mul: 1, add: 8", 64, 1, "4KiB", plan.MetaRoCE}, {"permutation, mul: 1, add: 16", 256, 1, "4MiB", plan.MetaRoCE},
	{"permutation, mul: 1, add: 32", 1024, 1, "1MiB", plan.MetaRoCE},
	{"incast, senders: 32, target: 0", 64, 1, "1MiB", plan.MetaRoCE}, {"incast, senders: 32, target: 0", 256, 1, "1MiB", plan.MetaRoCE},
	{"incast, senders: 32, target: 0", 1024, 1, "1MiB", plan.MetaRoCE},
	{"ring", 64, 1, "64MiB", plan.RoCEv2}, {"all-to-all", 64, 1, "64KiB", plan.RoCEv2}, {"permutation, mul: 1, add: 8", 64, 1, "8MiB", plan.RoCEv2},
	{"incast, senders: 32, target: 0", 64, 1, "1MiB", plan.RoCEv2}, {"ring", 256, 1, "16MiB", plan.RoCEv2},
}

// name is pattern, transport, hosts, planes and size.
func (c *validationCase) name() string {
	what := strings.NewReplacer(", mul: 1, add: ", "+", ", senders: 32, target: 0", "").Replace(c.pattern)
	return fmt.Sprintf("%s-%s-%d-%d-%s", c.transport, what, c.hosts, c.planes, c.size)
}

func (c *validationCase) plan() (*plan.Plan, error) {
	leaf := map[int]int{64: 8, 256: 16, 1024: 32}[c.hosts]
	queues := "{queue: 1 BDP, ecn_min: 0.2 BDP, ecn_max: 0.8 BDP}"
	if c.transport == plan.RoCEv2 {
		queues = lossless
	}
	return plan.Parse(c.name(), fmt.Appendf(nil, validation, c.name(), c.hosts, leaf, leaf, c.planes, queues, c.transport, c.pattern, c.size))
}

// validate runs the cases with at most so many hosts at the packet level and sets the flow level beside them.
func validate(ctx context.Context, most int, t scale.Table, commit string, each func(scale.Comparison)) ([]scale.Comparison, error) {
	var all []scale.Comparison
	for i := range validationCases {
		c := &validationCases[i]
		if c.hosts > most {
			continue
		}
		got, err := validateCase(ctx, c, t, commit)
		if err != nil {
			return all, err
		}
		for _, x := range got {
			each(x)
		}
		all = append(all, got...)
	}
	return all, nil
}

func validateCase(ctx context.Context, c *validationCase, t scale.Table, commit string) ([]scale.Comparison, error) {
	p, err := c.plan()
	if err != nil {
		return nil, err
	}
	r, err := sim.Run(ctx, p, sim.Options{Commit: commit})
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return scale.Compare(p, r, t)
}

// scaleValidate prints packet level and flow level side by side, or the table fitted to the packet level.
func (e *env) scaleValidate(c *cli.Context, t scale.Table) error {
	var all []scale.Comparison
	var err error
	self, err := os.Executable()
	if err != nil {
		return err
	}
	commit, err := programIdentity(self)
	if err != nil {
		return err
	}
	show := func(x scale.Comparison) {
		switch {
		case c.Bool("json"):
			_ = lines(e.out, []scale.Comparison{x}) // where stdout is closed nobody reads
		case !c.IsSet("fit"):
			fmt.Fprintf(e.out, "%-40s packets %12s   flows %12s  %+6.1f %%\n", x.Plan, seconds(x.Packet), seconds(x.Flow), 100*x.Error)
		}
	}
	switch dir := c.String("fit"); {
	case c.IsSet("validate"):
		if n := c.Int("validate"); n < 64 || n > 1024 {
			return fail.Usagef("--validate %d: there are cases of 64, 256 and 1024 hosts", n)
		}
		all, err = validate(c.Context, c.Int("validate"), t, commit, show)
	default:
		all, err = compareDir(dir, t, show)
	}
	if err != nil {
		if errors.Is(err, c.Context.Err()) {
			return exitCode(fail.Stopped)
		}
		return err
	}
	if !c.IsSet("fit") {
		worst := 0.0
		for _, x := range all {
			worst = max(worst, math.Abs(x.Error))
		}
		if !c.Bool("json") {
			fmt.Fprintf(e.out, "%d runs, largest error %.1f %%, goal 5 %%\n", len(all), 100*worst)
		}
		return nil
	}
	if len(all) < 4 {
		return fail.Failf("%d results to fit to: at least 4 are needed", len(all))
	}
	out, err := yaml.Marshal(scale.Fit(t, all))
	if err != nil {
		return err
	}
	_, err = e.out.Write(out)
	return err
}

// compareDir compares every NAME.json below a directory whose plan is NAME.yaml beside it, or a plan.yaml. Results that the
// flow level does not show are passed over.
func compareDir(dir string, t scale.Table, each func(scale.Comparison)) ([]scale.Comparison, error) {
	var all []scale.Comparison
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".json" {
			return err
		}
		yml := strings.TrimSuffix(path, ".json") + ".yaml"
		if _, err := os.Stat(yml); err != nil {
			if yml = filepath.Join(filepath.Dir(path), "plan.yaml"); path != filepath.Join(filepath.Dir(path), "result.json") {
				return nil
			}
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var r result.Result
		if err := json.Unmarshal(b, &r); err != nil {
			return fail.Usagef("%s: not a result: %w", path, err)
		}
		p, err := plan.Load(yml)
		if err != nil {
			return err
		}
		c, err := scale.Compare(p, &r, t)
		if errors.Is(err, scale.ErrNotModelled) {
			return nil
		}
		if err != nil {
			return fail.Usagef("%s: %w", path, err)
		}
		for _, x := range c {
			each(x)
		}
		all = append(all, c...)
		return nil
	})
	return all, err
}
