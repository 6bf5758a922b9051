package sweep

import (
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
)

func names(s *Sweep) (out []string) {
	for _, p := range s.Points {
		out = append(out, p.Name)
	}
	return out
}

func TestParse(t *testing.T) {
	s, err := Parse("a.yaml", []byte(`
plan: ring.yaml
set: {run.until: 1s}
seeds: 1..3
grid:
  transport.kind: [metaroce, rocev2]
  "events[0].loss": ["0.1%", "1%"]
points:
  - {transport.kind: ideal}
exclude:
  - {transport.kind: rocev2, "events[0].loss": "1%"}
  - {transport.kind: ideal, seed: [2, 3]}
timeout: 90s
retries: 2
memory: 2GiB
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `kind=metaroce_loss=0.1pct_seed=1 kind=metaroce_loss=0.1pct_seed=2 kind=metaroce_loss=0.1pct_seed=3 ` +
		`kind=metaroce_loss=1pct_seed=1 kind=metaroce_loss=1pct_seed=2 kind=metaroce_loss=1pct_seed=3 ` +
		`kind=rocev2_loss=0.1pct_seed=1 kind=rocev2_loss=0.1pct_seed=2 kind=rocev2_loss=0.1pct_seed=3 kind=ideal_seed=1`
	if got := strings.Join(names(s), " "); got != want {
		t.Errorf("points\n%s\nwant\n%s", got, want)
	}
	if s.Timeout != 90*time.Second || s.Retries != 2 || s.Memory != 2<<30 || len(s.Set) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNames: they are file names, and no two are the same.
func TestNames(t *testing.T) {
	s, err := Parse("a.yaml", []byte(`
plan: p
grid:
  a.size: ["1 MiB", "1/MiB", "1 mib", "`+strings.Repeat("9", 300)+`"]
  b.size: ["../..", "x"]
`))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, n := range names(s) {
		if seen[strings.ToLower(n)] || len(n) > nameMax || strings.ContainsAny(n, "/ %'\"") || !strings.HasPrefix(n, "a.size=") {
			t.Errorf("%q", n)
		}
		seen[strings.ToLower(n)] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d names", len(seen))
	}
}

// TestDigest: whatever a result depends on changes it, and nothing else does.
func TestDigest(t *testing.T) {
	parse := func(text string) *Sweep {
		s, err := Parse("a.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := parse("plan: p\ngrid: {a: [1, 2], b: [3]}\n")
	d := s.digest(s.Points[0], "in", "c")
	other := parse("plan: q\ntimeout: 5s\nretries: 3\nseeds: [1, 9]\ngrid: {b: [3, 4], a: [2, 1]}\n")
	same := 0
	for _, p := range other.Points {
		if other.digest(p, "in", "c") == d {
			same++
		}
	}
	if same != 1 {
		t.Errorf("%d points of the larger sweep are the same as the one, want 1", same)
	}
	set := parse("plan: p\nset: {c: 1}\ngrid: {a: [1, 2], b: [3]}\n")
	for what, got := range map[string]string{"plan": s.digest(s.Points[0], "other", "c"), "commit": s.digest(s.Points[0], "in", "d"),
		"value": s.digest(s.Points[1], "in", "c"), "set": set.digest(set.Points[0], "in", "c"), "seed": s.digest(Point{Set: s.Points[0].Set, Seed: 2}, "in", "c")} {
		if got == d {
			t.Errorf("another %s, and the digest is the same", what)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"", "a.yaml:1: the file is empty"},
		{"[1]", "a.yaml:1: a sweep is a list of"},
		{"seeds: 1..3", "a.yaml:1: no plan:"},
		{"plan: p", "nothing varies"},
		{"plan: p\ngird: {a: 1}", `a.yaml:2: unknown key "gird"; did you mean "grid"?`},
		{"plan: p\nworkers: 3", `a.yaml:2: unknown key "workers"`},
		{"plan: p\nplan: q", `a.yaml:2: "plan" is given twice`},
		{"plan: p\ngrid: {a: }", "a has no value"},
		{"plan: p\ngrid: {a: []}", "a has no values"},
		{"plan: p\ngrid: {a: [1, 1]}", "a has 1 twice"},
		{"plan: p\ngrid: {a: {b: 1}}", "write keys with dots: a.KEY"},
		{"plan: p\ngrid: {A b: 1}", "is no key of a plan"},
		{"plan: p\ngrid: {seed: [1]}", "seeds stand in seeds:"},
		{"plan: p\ngrid: [1]", "grid must be a list of `key: value`"},
		{"plan: p\nseeds: 3..1", "ends before it begins"},
		{"plan: p\nseeds: [1, x]", `seed "x" is no whole number`},
		{"plan: p\nseeds: 0..3", "seeds begin with 1"},
		{"plan: p\nseeds: [-1]", `seed "-1" is no whole number`},
		{"plan: p\nseeds: [2, 1..3]", "seed 2 is given twice"},
		{"plan: p\nseeds: 1..99999999999", "more than 100000"},
		{"plan: p\nseeds: 1..1000\ngrid: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], b: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}", "more than 100000 points"},
		{"plan: p\nseeds: 1\ntimeout: 5", `a.yaml:3: timeout "5" is no time`},
		{"plan: p\nseeds: 1\nretries: -1", "not in 0 to 10"},
		{"plan: p\nseeds: 1\nmemory: 4G", `memory "4G" is no size`},
		{"plan: p\nseeds: 1\nmemory: 1MiB", "less than 64MiB"},
		{"plan: p\npoints: {a: 1}", "points must be a list"},
		{"plan: p\npoints: [{}]", "a point without values"},
		{"plan: p\ngrid: {a: [1, 2]}\npoints:\n  - {a: 2}", "a.yaml:4: this point is there already, from line 2"},
		{"plan: p\ngrid: {a.kind: [1, 2]}\nexclude:\n  - {a.kin: 1}", `a.yaml:4: "a.kin" does not vary; did you mean "a.kind"?`},
		{"plan: p\ngrid: {a: [metaroce, ideal]}\nexclude:\n  - {a: metarocee}", `a.yaml:4: no point has a: metarocee; did you mean "metaroce"?`},
		{"plan: p\ngrid: {a: [1, 2], b: [1, 2]}\npoints: [{a: 3}]\nexclude:\n  - {a: 3, b: 1}", "a.yaml:5: this excludes nothing"},
		{"plan: p\ngrid: {a: [1, 2]}\nexclude: [{a: [1, 2]}]", "everything is excluded"},
		{"plan: p\nseeds: 1\nexclude: [{}]", "exclude everything"},
		{"plan: p\ngrid: {a: [1\n", "a.yaml:"},
	} {
		_, err := Parse("a.yaml", []byte(x.text))
		if err == nil || fail.Code(err) != fail.Usage || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, want %q", x.text, err, x.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("plan: p\nseeds: 1..3\ngrid: {a: [1, 2]}\npoints: [{a: 3}]\nexclude: [{a: 1, seed: 2}]\n"))
	f.Add([]byte("plan: &x p\ngrid: {a: *x}\nmemory: 1GiB\ntimeout: 3s\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse("a.yaml", text)
		if err != nil {
			if fail.Code(err) != fail.Usage || !strings.HasPrefix(err.Error(), "a.yaml:") {
				t.Errorf("%v", err)
			}
			return
		}
		seen := map[string]bool{}
		for _, n := range names(s) {
			if seen[n] || strings.ContainsAny(n, "/\x00") || n == "" {
				t.Errorf("name %q", n)
			}
			seen[n] = true
		}
	})
}
