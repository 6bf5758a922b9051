package main

import (
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/scale"
)

func simScale(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e strings.Builder
	code = run(t.Context(), append([]string{"mroce", "sim", "scale"}, args...), &o, &e)
	return code, o.String(), e.String()
}

func TestSimScale(t *testing.T) {
	dir := t.TempDir()
	table, plot := filepath.Join(dir, "x.csv"), filepath.Join(dir, "x.svg")
	args := []string{"--hosts", "64,1k", "--collective", "ring,all-to-all", "--size", "64KiB..1MiB", "--transport", "metaroce,rocev2"}
	code, out, errs := simScale(t, append(args, "--json", "--csv", table, "--plot", plot)...)
	if code != fail.OK {
		t.Fatalf("code %d: %s", code, errs)
	}
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if len(rows) != 2*2*2*3 {
		t.Fatalf("%d rows:\n%s", len(rows), out)
	}
	for _, r := range rows {
		var x scaleRow
		if err := json.Unmarshal([]byte(r), &x); err != nil || !(x.Share > 0 && x.Share <= 1 && x.Time.Seconds >= x.Time.Bound && x.BusBps <= 800e9) {
			t.Errorf("%v: %s", err, r)
		}
	}
	f, err := os.Open(table)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if all, err := csv.NewReader(f).ReadAll(); err != nil || len(all) != 1+len(rows) {
		t.Errorf("%d lines of CSV, %v", len(all), err)
	}
	if svg, err := os.ReadFile(plot); err != nil || !strings.Contains(string(svg), "<svg") {
		t.Errorf("no plot: %v", err)
	}
	_, again, _ := simScale(t, append(args, "--json")...)
	if again != out {
		t.Error("the same command printed something else")
	}
	if code, out, _ := simScale(t, args...); code != fail.OK || !strings.Contains(out, "% of bound") || !strings.Contains(out, "probes/s") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

func TestSimScaleMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"--hosts 3G":                   "is not a number from 2 to 1M",
		"--hosts 1":                    "is not a number from 2 to 1M",
		"--hosts 1048575":              "do not fill",
		"--collective al-to-all":       `did you mean "all-to-all"?`,
		"--size 1MiB..1KiB":            "goes down",
		"--size 0":                     "at least one byte",
		"--transport tcp":              "unknown \"tcp\"",
		"--fail plain":                 "unknown \"plain\"",
		"--fail plane=8":               "nothing is left",
		"--fail links=100%":            "nothing is left",
		"--loss 1":                     "needs a percent sign",
		"--planes 0":                   "--planes 0",
		"--constants /nonexistent":     "cannot read the constants",
		"--validate 5":                 "there are cases of",
		"--plot x.pdf --hosts 64":      "ends neither in .svg",
		"extra":                        "takes flags only",
		"--hosts 64 --group 7":         "servers of 7 GPUs",
		"--hosts 64 --rate 0":          "a rate",
		"--hosts 64 --oversubscribe 3": "do not fill",
		"--hosts 64 --group 1":         "--group 1",
		"--hosts 64 --qps 1000":        "256 connections",
	} {
		code, _, errs := simScale(t, strings.Fields(args)...)
		if code != fail.Usage || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: code %d, %q; want %q", args, code, errs, want)
		}
	}
}

// TestSimScalePackets: the flow level is near the packet level where nothing is left to fit: a ring and a short permutation.
func TestSimScalePackets(t *testing.T) {
	for _, c := range []validationCase{{"ring", 64, 1, "1MiB", plan.MetaRoCE}, {"permutation, mul: 1, add: 8", 64, 1, "4KiB", plan.MetaRoCE}, {"ring", 64, 1, "1MiB", plan.RoCEv2}} {
		got, err := validateCase(t.Context(), &c, scale.Builtin(), "")
		if err != nil || len(got) != 1 || math.Abs(got[0].Error) > 0.05 {
			t.Errorf("%s: %+v, %v", c.name(), got, err)
		}
	}
	if code, _, errs := simScale(t, "--fit", t.TempDir()); code != fail.Failed || !strings.Contains(errs, "at least 4") {
		t.Errorf("code %d: %s", code, errs)
	}
}
