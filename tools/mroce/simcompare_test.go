package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// TestSimCompare: results stand beside the first, with the ratio of what is compared and what else differs between them.
func TestSimCompare(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	plan := at("p.yaml")
	if err := os.WriteFile(plan, []byte(sweepPlan), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--out", at("one")}, {"--out", at("four"), "--set", "topology.planes=4", "--seed", "9"}, {"--out", at("cut"), "--set", "run.until=3us"},
		{"--out", at("sw.sweep/points/a=1")}, {"--out", at("sw.sweep/points/a=2")}, {"--out", at("sw.sweep/points/a=3.partial"), "--set", "run.until=3us"},
	} {
		code, _, errs := mroce(append([]string{"sim", "run", plan}, args...)...)
		if code != fail.OK && code != fail.Partial {
			t.Fatalf("%v: %d %s", args, code, errs)
		}
	}
	code, out, errs := mroce("sim", "compare", "base="+at("one"), at("four/result.json"), "--json", "--plot", at("c.svg"), "--x", "planes")
	if code != fail.OK {
		t.Fatalf("%d %s", code, errs)
	}
	var rows []result.Beside
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var b result.Beside
		if err := d.Decode(&b); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, b)
	}
	if len(rows) != 2 || rows[0].Name != "base" || rows[0].Ratio != 1 || rows[1].Name != "four" || rows[1].Seed != 9 ||
		rows[1].Ratio <= 0 || rows[1].Ratio >= 1 || rows[1].Ratio != rows[1].Summary.FCTMax/rows[0].Summary.FCTMax {
		t.Errorf("%+v", rows)
	}
	if got := strings.Join(rows[1].Differs, " "); got != "planes" {
		t.Errorf("differs in %q, want planes", got)
	}
	if svg, err := os.ReadFile(at("c.svg")); err != nil || !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte("planes")) {
		t.Errorf("plot: %v, %d bytes", err, len(svg))
	}
	for _, x := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{at("one"), at("four")}, fail.OK, "four differs from one in planes"},
		{[]string{at("one"), at("cut")}, fail.Partial, "PARTIAL: cut: 0 of 4 messages"},
		{[]string{at("sw.sweep")}, fail.OK, "a=2"}, // two points that are done, and not the partial one
		{[]string{"s=" + at("sw.sweep"), at("one"), "--y", "busbw_bps"}, fail.OK, "s/a=1"},
		{[]string{at("one"), at("four"), "--y", "nonsense"}, fail.Usage, `no number "nonsense"`},
		{[]string{at("one"), at("four"), "--plot", at("x.pdf")}, fail.Usage, "neither in .svg nor"},
		{[]string{at("one"), at("four"), "--x", "planes"}, fail.Usage, "for --plot"},
		{[]string{at("one")}, fail.Usage, "compare what?"},
		{[]string{at("one"), plan}, fail.Usage, "not a result"},
		{[]string{at("one"), at("none")}, fail.Usage, "cannot read the result"},
		{[]string{at("one"), dir}, fail.Usage, "neither a result.json nor points"},
	} {
		code, out, errs := mroce(append([]string{"sim", "compare"}, x.args...)...)
		if code != x.code || !strings.Contains(out+errs, x.say) || strings.Contains(out, "a=3") {
			t.Errorf("%v: %d, want %d with %q:\n%s%s", x.args, code, x.code, x.say, out, errs)
		}
	}
}
