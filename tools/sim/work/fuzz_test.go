package work

import (
	"errors"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// FuzzImport: whatever a file holds, there is a graph that ends or an error with a line.
func FuzzImport(f *testing.F) {
	f.Add("Nodes 4\nConnections 1\n0->1 id 1 start 0 size 5 send_done_trigger 1\n1->2 trigger 1 size 3\ntrigger id 1 oneshot\n")
	f.Add("num_ranks 2\nrank 0 {\nl1: calc 1\nl2: send 5b to 1 tag 2\nl2 requires l1\nl3: calc 1\nl3 irequires l2 }\nrank 1 { recv 5b from 0 tag 2 }\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []plan.Pattern{plan.ConnMatrix, plan.GOAL} {
			g, err := imported(kind, 8, text)
			if err == nil {
				if err := g.Check(); err != nil {
					t.Error(err)
				}
				continue
			}
			var e *plan.Error
			if !errors.As(err, &e) || e.Line < 1 {
				t.Errorf("%v", err)
			}
		}
	})
}
