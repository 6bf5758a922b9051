package timerq

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

type thing struct {
	Node[thing]
	id int
}

// TestOrder: against a list that is searched each time, whatever was changed before.
func TestOrder(t *testing.T) {
	r := rng.New(3, "timerq")
	var q Queue[thing]
	all := make([]thing, 50)
	due := make([]mono.Time, len(all))
	for i := range all {
		all[i].Init(&all[i], uint32(i))
		all[i].id, due[i] = i, mono.Never
	}
	for n := range 100_000 {
		i := r.IntN(len(all))
		due[i] = mono.Time(r.IntN(40))
		if r.Chance(0.3) {
			due[i] = mono.Never
		}
		q.Set(&all[i].Node, due[i])
		first := -1
		for k, d := range due {
			if d != mono.Never && (first < 0 || d < due[first]) {
				first = k
			}
		}
		switch got := q.First(); {
		case first < 0:
			if got != nil || q.Next() != mono.Never {
				t.Fatalf("step %d: %d at %v in an empty queue", n, got.id, q.Next())
			}
		case got == nil || got.id != first || q.Next() != due[first] || got.Due() != due[first]:
			t.Fatalf("step %d: %v at %v, want %d at %v", n, got, q.Next(), first, due[first])
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := range all {
			q.Set(&all[i].Node, mono.Time(i%7))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
