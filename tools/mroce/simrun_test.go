package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/result"
)

func TestSimRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	good := write("good.yaml", sweepPlan)
	slip := write("slip.yaml", strings.Replace(sweepPlan, "hosts", "hostes", 1))
	noFile := write("nofile.yaml", strings.Replace(sweepPlan, "permutation, add: 1, size: 64KiB", "cm, file: none.cm", 1))
	badCM := write("badcm.yaml", strings.Replace(sweepPlan, "permutation, add: 1, size: 64KiB", "cm, file: bad.cm", 1))
	write("bad.cm", "Nodes 4\nConnections 1\n0->9 start 0 size 5\n")
	for _, x := range []struct {
		args string
		code int
		say  string // on stdout or stderr
	}{
		{"run smoke", fail.OK, "busbw(GB/s)"},
		{"run " + good, fail.OK, "hops/s; "},
		{"run " + good + " --seed 5", fail.OK, "seed 5,"}, // flags may follow
		{"run --seed 5 --threads 2 " + good, fail.OK, "seed 5,"},
		{"run " + good + " --set topology.planes=2 --set topology.rate=200Gbit", fail.OK, "2 planes, 200 Gbit/s"},
		{"run --set transport={kind:_rocev2,_qps:_2,_dcqcn:_false} " + good, fail.OK, "transport  rocev2"},
		{"run --set run.until=3us " + good, fail.Partial, "PARTIAL: 0 of 4 messages"},
		{"run", fail.Usage, "which plan?"},
		{"run a b", fail.Usage, "which plan?"},
		{"run smok", fail.Usage, `did you mean "smoke"?`},
		{"run smoke.yaml", fail.Usage, `there is a ready plan "smoke"`},
		{"run " + slip, fail.Usage, `slip.yaml:1: `},
		{"run " + slip, fail.Usage, `did you mean "hosts"?`},
		{"run " + noFile, fail.Usage, "nofile.yaml:4: "},
		{"run " + badCM, fail.Usage, "bad.cm:3: "},
		{"run --set hosts " + good, fail.Usage, "KEY=VALUE"},
		{"run --set topology.plains=2 " + good, fail.Usage, `did you mean "planes"?`},
		{"run --set a=1 --set a=2 " + good, fail.Usage, "twice"},
		{"run --threads 0 " + good, fail.Usage, "at least 1"},
		{"run --plot " + good, fail.Usage, "--out"},
		{"run --sed 1 " + good, fail.Usage, "-sed"},
		{"run --out " + dir + " " + good, fail.Usage, "take another name"},
		{"report " + good + " --out " + dir + "/r", fail.Usage, "not a result"},
		{"report none.json --out r", fail.Usage, "cannot read the result"},
		{"report " + good, fail.Usage, "--out DIR"},
		{"plans", fail.OK, "smoke  "},
		{"plans x", fail.Usage, "no argument"},
		{"show smoke", fail.OK, "ring 1 MiB #2"},
		{"show " + good + " --set topology.planes=4", fail.OK, "4 planes"},
		{"show " + slip, fail.Usage, "slip.yaml:1: "},
		{"show " + badCM, fail.Usage, "bad.cm:3: "},
		{"show", fail.Usage, "mroce sim show PLAN.yaml|NAME"},
	} {
		args := strings.Fields(x.args)
		for i := range args {
			if strings.HasPrefix(args[i], "transport=") {
				args[i] = strings.ReplaceAll(args[i], "_", " ")
			}
		}
		code, out, errs := mroce(append([]string{"sim"}, args...)...)
		if code != x.code || !strings.Contains(out+errs, x.say) {
			t.Errorf("mroce sim %s: code %d, want %d and %q\n%.800s\n%s", x.args, code, x.code, x.say, out, errs)
		}
	}
}

// TestSimExamples: what --help of each command shows works as it stands.
func TestSimExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"run", "plans", "show", "report"} {
		_, help, _ := mroce("sim", name, "--help")
		n := 0
		for line := range strings.Lines(help) {
			words := strings.Fields(line)
			if len(words) < 3 || words[0] != "mroce" || words[1] != "sim" || words[2] != name || strings.Contains(line, " - ") || strings.ContainsAny(line, "[|") {
				continue
			}
			n++
			if code, out, errs := mroce(words[1:]...); code != fail.OK {
				t.Errorf("%s: code %d\n%s%s", line, code, out, errs)
			}
		}
		if n == 0 {
			t.Errorf("sim %s --help has no example:\n%s", name, help)
		}
	}
	if _, err := os.Stat("smoke4/report.html"); err != nil {
		t.Error(err)
	}
}

// keys lists the paths of an object's fields; of lists, those of the first element.
func keys(at string, v any, all *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			*all = append(*all, at+k)
			keys(at+k+".", x, all)
		}
	case []any:
		if len(v) > 0 {
			keys(at, v[0], all)
		}
	}
}

// TestSimJSON: the fields of --json are those of testdata/sim-json.txt; the same seed gives the same hash, with threads, too.
func TestSimJSON(t *testing.T) {
	for _, x := range []struct{ golden, args string }{{"sim-run.txt", "sim run --json smoke"}, {"sim-show.txt", "sim show --json smoke"}} {
		code, out, errs := mroce(strings.Fields(x.args)...)
		var got any
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != fail.OK {
			t.Fatal(code, err, errs)
		}
		var all []string
		keys("", got, &all)
		slices.Sort(all)
		file := filepath.Join("testdata", x.golden)
		text := strings.Join(all, "\n") + "\n"
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || string(want) != text {
			t.Errorf("fields of %s (%v; UPDATE_GOLDEN=1 writes %s):\n%s", x.args, err, file, text)
		}
	}
	hash := func(args ...string) string {
		_, out, _ := mroce(append([]string{"sim", "run", "--json"}, append(args, "smoke")...)...)
		r, err := result.ReadJSON(strings.NewReader(out))
		if err != nil {
			t.Fatal(err)
		}
		return r.Hash
	}
	one := hash()
	if hash() != one || hash("--threads", "2") != one || hash("--seed", "9") == one {
		t.Error("the hash does not follow the seed alone")
	}
}

// TestSimOut: files are written at once, twice only by force, and a failed flow makes the command fail with its files written.
func TestSimOut(t *testing.T) {
	out := filepath.Join(t.TempDir(), "o")
	if code, _, errs := mroce("sim", "run", "--out", out, "smoke"); code != fail.OK || !strings.Contains(errs, "report.html") {
		t.Fatal(code, errs)
	}
	before, _ := os.ReadFile(filepath.Join(out, "flows.csv"))
	if code, _, errs := mroce("sim", "run", "--out", out, "--seed", "3", "smoke"); code != fail.Usage || !strings.Contains(errs, "--force") {
		t.Errorf("again: %d %s", code, errs)
	}
	if after, _ := os.ReadFile(filepath.Join(out, "flows.csv")); !bytes.Equal(before, after) {
		t.Error("a refused run changed the files")
	}
	if code, _, errs := mroce("sim", "run", "--out", out, "--seed", "3", "--force", "--plot", "smoke"); code != fail.OK {
		t.Errorf("by force: %d %s", code, errs)
	}
	if after, _ := os.ReadFile(filepath.Join(out, "flows.csv")); bytes.Equal(before, after) {
		t.Error("--force left the files")
	}
	if _, err := os.Stat(filepath.Join(out, "plots", "fct.png")); err != nil {
		t.Error(err)
	}
}

// pretend replaces the simulator.
func pretend(t *testing.T, f func(context.Context, *plan.Plan, sim.Options) (*result.Result, error)) {
	was := simRun
	simRun = f
	t.Cleanup(func() { simRun = was })
}

// TestSimEnds: exit codes of the ways in which a run ends.
func TestSimEnds(t *testing.T) {
	for _, x := range []struct {
		name string
		r    result.Result
		err  error
		code int
		say  string
	}{
		{"failed flows", result.Result{Summary: result.Summary{Flows: 9, Errors: 2}}, nil, fail.Failed, "2 of 9 flows failed"},
		{"failed flows and partial", result.Result{Partial: true, Why: "y", Summary: result.Summary{Flows: 9, Errors: 2}}, nil, fail.Failed, "PARTIAL: y"},
		{"partial", result.Result{Partial: true, Why: "until"}, nil, fail.Partial, "PARTIAL: until"},
		{"failed to connect", result.Result{}, errors.New("only 3 of 4 connections carried something"), fail.Failed, "only 3 of 4 connections carried something"},
		{"a wrong plan", result.Result{}, &plan.Error{File: "x", Line: 3, Msg: "wrong"}, fail.Usage, "x:3: wrong"},
	} {
		pretend(t, func(context.Context, *plan.Plan, sim.Options) (*result.Result, error) {
			r := x.r
			return &r, errors.Join(x.err, r.Seal())
		})
		if code, out, errs := mroce("sim", "run", "smoke"); code != x.code || !strings.Contains(out+errs, x.say) {
			t.Errorf("%s: code %d, want %d and %q\n%s%s", x.name, code, x.code, x.say, out, errs)
		}
	}
}

// TestSimInterrupted: Ctrl-C in the middle of a run leaves files that all say so, and exit code 130.
func TestSimInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pretend(t, func(ctx context.Context, p *plan.Plan, o sim.Options) (*result.Result, error) {
		stop()
		return sim.Run(ctx, p, o)
	})
	dir := filepath.Join(t.TempDir(), "o")
	var o, e bytes.Buffer
	if code := run(ctx, []string{"mroce", "sim", "run", "ls64-a2a", "--json", "--out", dir}, &o, &e); code != fail.Stopped {
		t.Fatalf("code %d: %s", code, e.String())
	}
	r, err := result.ReadJSON(&o)
	if err != nil || !r.Partial || r.Why != "interrupted" {
		t.Fatalf("printed %+v (%v)", r, err)
	}
	f, err := os.Open(filepath.Join(dir, result.ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if saved, err := result.ReadJSON(f); err != nil || saved.Hash != r.Hash || !saved.Partial {
		t.Errorf("saved something else (%v)", err)
	}
	if page, _ := os.ReadFile(filepath.Join(dir, result.ReportFile)); !bytes.Contains(page, []byte("<strong>PARTIAL</strong>")) {
		t.Error("the report does not say that it is partial")
	}
}

func TestBarText(t *testing.T) {
	for _, x := range []struct {
		steady bool
		p      sim.Progress
		steps  int64
		say    string
	}{
		{false, sim.Progress{Now: mono.Time(mono.Millisecond), Until: mono.Time(mono.Second), Done: 1, Messages: 4, Placed: 25, Bytes: 100, Hops: 4e6},
			250, "1 of 4 messages, 2.00 million hops/s"},
		{false, sim.Progress{Done: 4, Messages: 4, Placed: 9, Bytes: 9}, 999, "4 of 4"},
		{true, sim.Progress{Now: mono.Time(mono.Second / 2), Until: mono.Time(mono.Second), Done: 9, Messages: 4}, 500, " of 1"},
		{true, sim.Progress{}, 0, "0"},
	} {
		if steps, text := barText(x.steady, x.p, 2); steps != x.steps || !strings.Contains(text, x.say) {
			t.Errorf("%+v: %d %q, want %d %q", x.p, steps, text, x.steps, x.say)
		}
	}
}

func TestFlagsFirst(t *testing.T) {
	cmd := &cli.Command{Flags: []cli.Flag{&cli.BoolFlag{Name: "json"}, &cli.StringFlag{Name: "out", Aliases: []string{"o"}}}}
	for _, x := range [][2]string{
		{"plan --out d --json", "--out d --json plan"}, {"plan -o d", "-o d plan"}, {"a --json b", "--json a b"}, {"plan --out=d x", "--out=d plan x"},
		{"plan --out", "--out plan"}, {"--json -- -plan", "--json -- -plan"}, {"-- plan --json", "-- plan --json"}, {"plan -", "plan -"}, {"", ""},
	} {
		got := strings.Join(flagsFirst(cmd, strings.Fields(x[0])), " ")
		if x[0] == "-- plan --json" { // what follows "--" is an argument
			x[1] = "plan --json"
		}
		if got != x[1] {
			t.Errorf("%q became %q, want %q", x[0], got, x[1])
		}
	}
}

// TestMan: the manual page has the commands of the simulator and their flags.
func TestMan(t *testing.T) {
	code, page, errs := mroce("man")
	if code != fail.OK {
		t.Fatal(errs)
	}
	for _, want := range []string{`.SH NAME`, "run a plan", "list the ready plans", "say what a plan comes to", `\-\-force`, `\-\-threads`} {
		if !strings.Contains(page, want) && !strings.Contains(page, strings.ReplaceAll(want, `\-`, "-")) {
			t.Errorf("the manual page has no %q", want)
		}
	}
}

// TestSimReadyPlanBesideItsResult: a directory with the name of a ready plan, such as --out makes, is not the plan.
func TestSimReadyPlanBesideItsResult(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("smoke", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("ready.yaml", []byte("plan: smoke\nseeds: 5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"show", "smoke"}, {"sweep", "--list", "ready.yaml"}} {
		if code, out, errs := mroce(append([]string{"sim"}, args...)...); code != fail.OK {
			t.Errorf("%v: code %d\n%s%s", args, code, out, errs)
		}
	}
}
