package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// TestMain lets this binary be the program that a sweep starts for each point.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "sim" {
		os.Exit(run(context.Background(), append([]string{"mroce"}, os.Args[1:]...), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

const sweepPlan = `topology: {kind: switch, hosts: 4, rate: 100Gbit, delay: 1us}
transport: {kind: metaroce}
workload:
  - {pattern: permutation, add: 1, size: 64KiB}
`

func TestSimSweepUsage(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	write("ring.yaml", sweepPlan)
	good := write("good.yaml", "plan: ring.yaml\ngrid: {topology.planes: [1, 2]}\nseeds: 1..2\n")
	noPlan := write("noplan.yaml", "plan: rign.yaml\nseeds: 1\n")
	noKey := write("nokey.yaml", "plan: ring.yaml\ngrid:\n  topology.plains: [1, 2]\n")
	ready := write("ready.yaml", "plan: smoke\nseeds: 5\n")
	noReady := write("noready.yaml", "plan: smokee\nseeds: 5\n")
	slip := write("slip.yaml", "plan: ring.yaml\nsees: 1\n")
	for _, x := range []struct {
		args string
		code int
		say  string // on stdout or stderr
	}{
		{"--list " + good, fail.OK, "planes=1_seed=1\nplanes=1_seed=2\nplanes=2_seed=1\nplanes=2_seed=2\n"},
		{"--list " + ready, fail.OK, "seed=5\n"},
		{noReady, fail.Usage, `noready.yaml:1: no plan "smokee"; did you mean "smoke"?`},
		{"", fail.Usage, "which sweep file?"},
		{"nothing.yaml", fail.Usage, "cannot read the sweep file"},
		{noPlan, fail.Usage, `noplan.yaml:1: no plan "rign.yaml"; did you mean "ring.yaml"?`},
		{noKey, fail.Usage, `did you mean "planes"?`},
		{noKey, fail.Usage, "nokey.yaml:3: point plains=1_seed=1"},
		{slip, fail.Usage, `slip.yaml:2: unknown key "sees"; did you mean "seeds"?`},
		{"--engine slrum " + good, fail.Usage, "local and slurm"},
		{"--rerun some " + good, fail.Usage, "failed and all"},
		{"--workers -1 " + good, fail.Usage, "--workers"},
		{"--partition x " + good, fail.Usage, "--partition is for --engine slurm"},
		{"--sed 1 " + good, fail.Usage, "-sed"},
	} {
		code, out, errs := mroce(append([]string{"sim", "sweep"}, strings.Fields(x.args)...)...)
		if code != x.code || !strings.Contains(out+errs, x.say) {
			t.Errorf("mroce sim sweep %s: code %d, want %d and %q\n%.500s\n%s", x.args, code, x.code, x.say, out, errs)
		}
	}
}

// TestSimSweepFails: a run that fails is named, with what it said, and the exit code is 1. This one names a file that is not there, which
// only the run looks for.
func TestSimSweepFails(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"p.yaml": "topology: {kind: switch, hosts: 4, rate: 100Gbit, delay: 1us}\ntransport: {kind: metaroce}\nworkload: [{pattern: cm, file: none.cm}]\n",
		"s.yaml": "plan: p.yaml\nseeds: 3\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errs := mroce("sim", "sweep", "--out", filepath.Join(dir, "out"), filepath.Join(dir, "s.yaml"))
	if code != fail.Failed || !strings.Contains(out, "seed=3: failed, exit code 2\n    mroce: ") ||
		!strings.Contains(out, "0 of 1 points done (0 before), 0 partial, 1 failed") {
		t.Errorf("code %d\n%s\n%s", code, out, errs)
	}
}

// TestSimSweepRuns: the points of a sweep are runs of mroce sim run, with its results.
func TestSimSweepRuns(t *testing.T) {
	hashes := sweepHashes(t)
	for seed := 1; seed <= 2; seed++ {
		code, out, errs := mroce("sim", "run", "--json", "--seed", strconv.Itoa(seed), "smoke")
		r, err := result.ReadJSON(strings.NewReader(out))
		if code != fail.OK || err != nil {
			t.Fatalf("code %d, %v\n%s", code, err, errs)
		}
		if !slices.Contains(hashes, r.Hash) {
			t.Errorf("seed %d: hash %s, and the sweep has %v", seed, r.Hash, hashes)
		}
	}
}

// sweepHashes runs a sweep of two seeds with the engine that the arguments choose and returns the hashes of its results.
func sweepHashes(t *testing.T, args ...string) (hashes []string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "s.yaml")
	if err := os.WriteFile(file, []byte("plan: smoke\nseeds: 1..2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs := mroce(append(append([]string{"sim", "sweep"}, args...), "--out", filepath.Join(dir, "out"), file)...)
	if code != fail.OK || !strings.Contains(out, "2 of 2 points done") {
		t.Fatalf("code %d\n%s\n%s", code, out, errs)
	}
	files, err := filepath.Glob(filepath.Join(dir, "out", "points", "*", "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := result.ReadJSON(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, r.Hash)
	}
	return hashes
}

// TestSimTask: what job arrays run says what is wrong with its list.
func TestSimTask(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list.json")
	if err := os.WriteFile(list, []byte("[]"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args string
		code int
		say  string
	}{
		{"sweep-task", fail.Usage, "LIST INDEX"},
		{"sweep-task " + list + " x", fail.Usage, "LIST INDEX"},
		{"sweep-task " + list + " 0", fail.Usage, "has no point 0"},
		{"sweep-task " + list + ".none 0", fail.Failed, "do all nodes see"},
		{"swep", fail.Usage, `no command "swep"`},
	} {
		code, out, errs := mroce(append([]string{"sim"}, strings.Fields(x.args)...)...)
		if code != x.code || !strings.Contains(out+errs, x.say) {
			t.Errorf("mroce sim %s: code %d, want %d and %q\n%.300s\n%s", x.args, code, x.code, x.say, out, errs)
		}
	}
}

// TestProgramIdentity: it is a commit, or the program's bytes.
func TestProgramIdentity(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, err := programIdentity(self)
	if err != nil || len(a) < 20 {
		t.Errorf("%q %v", a, err)
	}
}
