package plan

import (
	"errors"
	"testing"

	"github.com/metaroce/metaroce/daemon/fail"
)

// FuzzParse: whatever a file holds, there is a plan that can be digested or an error with a line.
func FuzzParse(f *testing.F) {
	f.Add(base, "seed", "1")
	f.Add("# nothing", "topology.hosts", "")
	f.Add("a: &a [*a]\ntopology: *a\nworkload: *a", "a[0].b", "{")
	f.Add("topology: {kind: rail, hosts: 8, group: 2, leaf: 2, spines: 1, rate: 1Gbit}\nworkload: [{pattern: ring, size: 1}]", "workload[0]", "{}")
	f.Fuzz(func(t *testing.T, text, path, value string) {
		for _, over := range []map[string]string{nil, {path: value}} {
			p, err := ParseWith("x.yaml", []byte(text), over)
			if err == nil {
				if len(Digest(p)) != 64 || p.Topology.RTT() <= 0 || p.Topology.BDP() < 0 {
					t.Errorf("%+v", p)
				}
				continue
			}
			var e *Error
			if fail.Code(err) != fail.Usage || !errors.As(err, &e) || e.Line < 1 && e.Over == "" {
				t.Errorf("%v", err)
			}
		}
	})
}
