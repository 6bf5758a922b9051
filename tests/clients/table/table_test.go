package table

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var kept = []Row{
	{"pingpongs", "ibv_rc_pingpong", "plain", "0.5 % loss", OK},
	{"pingpongs", "ibv_uc_pingpong", "plain", "no loss", NotYet},
	{"pingpongs", "ibv_xsrq_pingpong", "events", "no loss", Fails},
	{"raw", "raw_ethernet_bw", "raw packets", "no loss", None},
}

func TestRoundTrip(t *testing.T) {
	about := map[string]string{"raw": "Some words | with a bar."}
	text := Write("# Title\n\n| not | a | row |\n|---|---|---|\n| x | y | z |\n\n## Words\nMore.\n", about, kept)
	got, err := Parse(text)
	if err != nil || cmp.Diff(kept, got) != "" {
		t.Fatalf("%v\n%s", err, cmp.Diff(kept, got))
	}
	if again := Write(Front(text), about, got); again != text {
		t.Errorf("written again:\n%s", cmp.Diff(text, again))
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{"| `p` | f | n |", "| `p` | f | n | fine |", "| `p` | f | n | ok | more |"} {
		if rows, err := Parse("## s\n" + columns + "\n" + ruler + "\n" + line + "\n"); err == nil {
			t.Errorf("%s: taken as %v", line, rows)
		}
	}
}

func TestCompare(t *testing.T) {
	plan := slices.Clone(kept[:3])
	plan = append(plan, Row{Suite: "pingpongs", Program: "ibv_ud_pingpong", Feature: "plain"})
	now := func(i int, r Result) Row { k := plan[i]; k.Result = r; return k }
	for _, c := range []struct {
		name string
		ran  []Row
		want Difference
	}{
		{"nothing ran", nil, Difference{}},
		{"the same", []Row{now(0, OK), now(1, NotYet), now(2, Fails), now(3, Fails)}, Difference{}},
		{"worse", []Row{now(0, NotYet), now(1, Fails)}, Difference{Worse: []string{
			"pingpongs | ibv_rc_pingpong | plain: ok, now not yet", "pingpongs | ibv_uc_pingpong | plain: not yet, now fails"}}},
		{"better", []Row{now(1, OK), now(2, NotYet)}, Difference{Better: []string{
			"pingpongs | ibv_uc_pingpong | plain: not yet, now ok", "pingpongs | ibv_xsrq_pingpong | events: fails, now not yet"}}},
	} {
		c.want.New = []string{"pingpongs | ibv_ud_pingpong | plain"}
		c.want.Gone = []string{"raw | raw_ethernet_bw | raw packets"}
		if diff := cmp.Diff(c.want, Compare(kept, plan, c.ran)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestMerge(t *testing.T) {
	plan := []Row{{"pingpongs", "ibv_uc_pingpong", "plain", "now with loss", ""}, {"new", "a", "b", "c", ""}, {"new", "d", "e", "f", ""}}
	ran := []Row{{"new", "a", "b", "c", OK}}
	want := []Row{{"pingpongs", "ibv_uc_pingpong", "plain", "now with loss", NotYet}, {"new", "a", "b", "c", OK}}
	if diff := cmp.Diff(want, Merge(kept, plan, ran)); diff != "" {
		t.Error(diff)
	}
	ran[0].Result = Fails
	if got := Merge(want, plan, ran); got[1].Result != Fails {
		t.Errorf("the run does not win: %v", got)
	}
}

func TestCount(t *testing.T) {
	if got := Count(append(kept, kept[0])); got != "2 ok, 1 not yet, 1 no, 1 fails" {
		t.Error(got)
	}
}
