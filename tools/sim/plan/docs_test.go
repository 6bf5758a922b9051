package plan

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocs: the example of docs/sim.md is a plan, and its table has every key.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/sim.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Plan files\n")
	if !ok {
		t.Fatal("docs/sim.md has no section Plan files")
	}
	_, example, _ := strings.Cut(section, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	p, err := Parse("docs/sim.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Workload) != 2 || len(p.Events) != 2 || p.Seed != 7 {
		t.Errorf("%+v", p)
	}

	// What the parser knows, in its own words: a key that nobody is like is answered with all of them.
	known := regexp.MustCompile(`unknown key "qqqqqqqq" in [a-z ]+; known: (.*)`)
	for path, in := range map[string]string{
		"topology.qqqqqqqq": "topology", "switch.qqqqqqqq": "switch", "switch.pfc.qqqqqqqq": "switch.pfc", "transport.qqqqqqqq": "transport",
		"workload[0].qqqqqqqq": "workload[]", "events[0].qqqqqqqq": "events[]", "run.qqqqqqqq": "run",
	} {
		_, err := ParseWith("x.yaml", []byte(example), map[string]string{path: "1"})
		m := known.FindStringSubmatch(err.Error())
		if m == nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, key := range strings.Split(m[1], ", ") {
			if key == "pfc" {
				continue // its own keys are listed
			}
			row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(in) + "\\.(" + key + "`|[^|]*`" + key + "`)")
			if !row.MatchString(section) {
				t.Errorf("docs/sim.md does not list %s.%s", in, key)
			}
		}
	}
}
