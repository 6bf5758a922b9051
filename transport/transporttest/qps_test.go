package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// activeQPs is the goodput of as many QPs of one association that always have something to send, bytes a second.
func activeQPs(t *testing.T, n int) float64 {
	t.Helper()
	w := New(Config{Seed: 4, Planes: 4, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	const size, depth = 16 << 10, 4
	done := 0
	for range n {
		p, _ := w.Connect(a, b, QPOptions{SQ: depth * max(1, 64/n), Rd: 1})
		post := func() bool { return p.Send(WR{Op: transport.OpWrite, N: size, Key: 7}) }
		p.OnSend = func(c Completion) {
			if c.Status != transport.OK {
				t.Fatalf("completion %+v", c)
			}
			p.Sends = p.Sends[:0]
			done++
			post()
		}
		for post() {
		}
	}
	w.Run(4 * mono.Millisecond)
	done = 0
	const d = 4 * mono.Millisecond
	w.Run(d)
	if len(a.E.Assocs()) != 1 {
		t.Errorf("%d associations", len(a.E.Assocs()))
	}
	return float64(done*size) / d.Seconds()
}

// TestQPsScale: 4,000 QPs carry together what one does.
func TestQPsScale(t *testing.T) {
	one, many := activeQPs(t, 1), activeQPs(t, 4000)
	t.Logf("one QP %.1f Gbit/s, 4,000 QPs %.1f Gbit/s", one*8/1e9, many*8/1e9)
	if many < 0.97*one {
		t.Errorf("4,000 QPs carry %.3f of what one does", many/one)
	}
}
