package device

import (
	"os"
	"regexp"
	"testing"
)

// TestSpecCounters: every counter that the transport exports is explained in spec/13-counters.md.
func TestSpecCounters(t *testing.T) {
	text, err := os.ReadFile("../spec/13-counters.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("`(mroce_[a-z0-9_]+)`").FindAllSubmatch(text, -1) {
		known[string(m[1])] = true
	}
	e := defaultEngine(EngineConfig{Planes: []PortCaps{{PacketMax: 4220}}, PacketMax: 4220}, nil)
	n := 0
	for name := range e.(interface{ CountersJSON() any }).CountersJSON().(map[string]any) {
		n++
		//= MR-GEN-004
		if !known[name] {
			t.Errorf("spec/13-counters.md does not explain %s", name)
		}
	}
	if n < 80 {
		t.Errorf("%d counters", n)
	}
}
