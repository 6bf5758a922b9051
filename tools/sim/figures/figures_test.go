package figures

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/tools/sim"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/sweep"
)

// ready is what sweeps ask for plans.
func ready(name string) ([]byte, []string) {
	b, err := plans.Read(name)
	if err != nil {
		return nil, plans.Names()
	}
	return b, plans.Names()
}

// TestLoad: every line has points that its plan takes, whole and as a smoke test; no two figures have one file.
func TestLoad(t *testing.T) {
	for _, quick := range []bool{false, true} {
		s, err := Load(quick)
		if err != nil {
			t.Fatal(err)
		}
		points := 0
		for i, w := range s.Sweeps {
			arg, text, _, err := w.FindPlan(ready)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.CheckPoints(arg, text, func(name string, text []byte, set map[string]string) error {
				_, err := plan.ParseWith(name, text, set)
				return err
			}); err != nil {
				t.Errorf("quick %v: %v", quick, err)
			}
			var keys []string
			for _, v := range w.Set {
				keys = append(keys, v.Key)
			}
			if slices.Sort(keys); len(slices.Compact(slices.Clone(keys))) != len(keys) {
				t.Errorf("quick %v: %s sets a key twice: %v", quick, s.Name(i), keys)
			}
			points += len(w.Points)
		}
		if quick && points > 120 || !quick && points < 200 {
			t.Errorf("quick %v: %d points", quick, points)
		}
		names := map[string]bool{}
		for _, f := range s.Figures {
			if names[f.Name] {
				t.Errorf("two figures are called %s", f.Name)
			}
			names[f.Name] = true
		}
	}
	entries, err := files.ReadDir("sweeps")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := Load(false)
	for _, e := range entries {
		if !slices.Contains(s.names, strings.TrimSuffix(e.Name(), ".yaml")) {
			t.Errorf("no figure shows the sweep %s", e.Name())
		}
	}
}

// TestWrite: what is there is drawn and listed, what is missing is named, and the same results give the same bytes.
func TestWrite(t *testing.T) {
	p, err := plans.Parse("smoke", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(context.Background(), p, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	s := &Set{names: []string{"one"}, Sweeps: []*sweep.Sweep{{Plan: "smoke"}},
		Figures: []Figure{
			{Name: "by-size", Title: "By size", X: "workload[0].size", XLabel: "size", Y: "busbw_bps", YLabel: "GB/s", Scale: 1.25e-10, LogX: true, Lines: []Line{{Label: "L", Sweep: "one"}}},
			{Name: "in-time", Title: "In time", Lines: []Line{{Label: "T", Sweep: "one", Where: map[string]string{"workload[0].size": "1MiB"}}}},
		}}
	for i := range s.Figures {
		s.Figures[i].defaults()
	}
	for _, size := range []string{"64KiB", "1MiB", "2MiB"} {
		pt := sweep.Point{Name: "size=" + size, Seed: 1, Set: []sweep.Value{{Key: "workload[0].size", Text: size}}}
		s.Sweeps[0].Points = append(s.Sweeps[0].Points, pt)
		if size == "2MiB" { // it did not come about
			continue
		}
		dir := filepath.Join(work, "one.sweep", "points", pt.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(dir, "result.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.WriteJSON(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	var all [2][]byte
	for i := range all {
		out := filepath.Join(t.TempDir(), "out")
		if err := s.Write(Options{Out: out, Work: work, Commit: "abc", Command: "make figures", Scale: []byte("SCALE\n")}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"README.md", "runs.csv", "by-size.svg", "in-time.svg"} {
			b, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			all[i] = append(all[i], b...)
		}
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("the same results give other files")
	}
	for _, want := range []string{"from commit abc", "| 64 KiB | ", "| 1 MiB | ", "left out: one/size=2MiB", "![In time](in-time.svg)", "SCALE", "| `smoke` | " + planDigest("smoke"), r.Hash,
		"one,size=1MiB,smoke," + planDigest("smoke") + ",1,metaroce,"} {
		if !bytes.Contains(all[0], []byte(want)) {
			t.Errorf("nothing says %q", want)
		}
	}
	if v, err := r.Value("busbw_bps"); err != nil || !bytes.Contains(all[0], []byte("| "+number(v*1.25e-10)+" |")) {
		t.Errorf("the table lacks %s, %v", number(v*1.25e-10), err)
	}
	damaged := filepath.Join(work, "one.sweep", "points", "size=1MiB", "result.json")
	if err := os.WriteFile(damaged, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(Options{Out: t.TempDir(), Work: work}); err == nil {
		t.Error("a damaged result was taken")
	}
}
