package plans

import (
	"os"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/work"
)

func noFile(string) ([]byte, error) { return nil, os.ErrNotExist }

// TestAll: every ready plan is right, says what it shows and what its goal is, and has a workload that can end.
func TestAll(t *testing.T) {
	for _, name := range Names() {
		p, err := Parse(name, nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.Name != name || p.Title == "" {
			t.Errorf("%s: name %q, title %q", name, p.Name, p.Title)
		}
		text, _ := Read(name)
		if !strings.HasPrefix(string(text), "# Goal: ") && !strings.HasPrefix(string(text), "# Beside ") {
			t.Errorf("%s does not begin with its goal, or beside what it stands", name)
		}
		if len(p.Notes) > 0 {
			t.Errorf("%s: %v", name, p.Notes)
		}
		g, err := work.Build(p, noFile)
		if err != nil || len(g.Messages) == 0 {
			t.Errorf("%s: %d messages, %v", name, len(g.Messages), err)
		}
	}
}

// TestHtsimRows: the networks and workloads of the comparison with htsim are the ones that were measured there.
func TestHtsimRows(t *testing.T) {
	for _, c := range []struct {
		name            string
		messages, bytes int64
		queue, min, max int
		first           [2]int32 // of the first message
	}{
		{"ls64-affine", 64, 64 << 23, 120640, 24960, 99840, [2]int32{0, 11}},
		{"ls64-affine-400g", 64, 64 << 23, 420160, 87360, 336960, [2]int32{0, 11}},
		{"ls64-shift8", 64, 64 << 23, 120640, 24960, 99840, [2]int32{0, 8}},
		{"ls64-a2a", 4032, 4032 << 20, 120640, 24960, 99840, [2]int32{0, 1}},
		{"ls64-incast", 32, 32 << 20, 120640, 24960, 99840, [2]int32{8, 0}},
		{"ls64-ring", 126 * 64, 126 * 64 << 20, 120640, 24960, 99840, [2]int32{0, 1}},
		{"ft64-affine", 64, 64 << 23, 43 * 4160, 37440, 145600, [2]int32{0, 11}},
		{"ft64-shift8-400g", 64, 64 << 23, 151 * 4160, 128960, 503360, [2]int32{0, 8}},
		{"planes-a2a-8", 4032, 4032 << 20, 120640, 24960, 99840, [2]int32{0, 1}},
	} {
		p, err := Parse(c.name, nil)
		if err != nil {
			t.Fatal(err)
		}
		g, err := work.Build(p, noFile)
		if err != nil {
			t.Fatal(err)
		}
		var bytes int64
		for _, m := range g.Messages {
			bytes += m.Size
		}
		s := p.Switch
		if int64(len(g.Messages)) != c.messages || bytes != c.bytes || s.Queue != c.queue || s.ECNMin != c.min || s.ECNMax != c.max {
			t.Errorf("%s: %d messages of %d bytes, queue %d, marks %d to %d", c.name, len(g.Messages), bytes, s.Queue, s.ECNMin, s.ECNMax)
		}
		if m := g.Messages[0]; m.From != c.first[0] || m.To != c.first[1] {
			t.Errorf("%s begins with %d->%d", c.name, m.From, m.To)
		}
		if p.Topology.WireBytes() != 4160 {
			t.Errorf("%s: full packets of %d bytes", c.name, p.Topology.WireBytes())
		}
	}
}

// TestOverridesInComments: what comments offer to change can be changed.
func TestOverridesInComments(t *testing.T) {
	for _, c := range []struct{ name, path, value string }{
		{"loss-pair", "transport", "{kind: rocev2, dcqcn: false, rto: 67ms}"},
		{"loss-pair", "events[0].burst", "8"},
		{"loss-64", "events[0].loss", "0%"},
		{"allreduce64", "workload[0].pattern", "halving"},
		{"allreduce64", "workload[0].pattern", "tree"},
		{"allreduce64-rocev2-pfc", "transport.qps", "16"},
		{"alltoall64-rocev2-lossy", "transport.rto", "67ms"},
		{"ls64-shift8-rocev2", "transport.adaptive", "true"},
		{"ls64-incast", "workload[0].size", "8MiB"},
	} {
		if _, err := Parse(c.name, map[string]string{c.path: c.value}); err != nil {
			t.Error(err)
		}
	}
}

func TestNearNames(t *testing.T) {
	if _, err := Read("ls64-shft8"); err == nil || !strings.Contains(err.Error(), `did you mean "ls64-shift8"?`) {
		t.Error(err)
	}
	if _, err := Parse("smoke", map[string]string{"topology.hots": "4"}); err == nil || !strings.Contains(err.Error(), `did you mean "hosts"?`) {
		t.Error(err)
	}
}
