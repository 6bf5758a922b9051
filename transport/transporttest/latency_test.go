package transporttest

import (
	"sort"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// TestShortMessages sends one-packet messages one by one over four planes that lose data and acks alike, and looks at
// the slow ones. Goals and trials: protocol.md section 7.
func TestShortMessages(t *testing.T) {
	for _, x := range []struct {
		loss      float64
		p99, p999 float64 // most, in round trips of 8 µs
	}{{0, 1.6, 1.6}, {0.01, 3, 4}, {0.1, 4.5, 4.5}} {
		l := usual()
		l.Loss = x.loss
		w := New(Config{Seed: 3, Planes: 4, Link: l})
		p, q := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{})
		const n = 4000
		for i := range n {
			q.Recv(uint64(i), 0, 100)
		}
		w.Run(10 * mono.Microsecond)
		var lat []float64
		for i := range n {
			t0 := w.Now
			p.Send(WR{ID: uint64(i), Op: transport.OpSend, N: 64})
			if !w.RunUntil(second, func() bool { return len(p.Sends) > i }) {
				t.Fatalf("message %d never ends: %s", i, p.Dump())
			}
			if i > 0 { // the first one carries the handshake
				lat = append(lat, w.Now.Sub(t0).Micros()/8)
			}
			w.RunUntil(20*mono.Microsecond, func() bool { return false })
		}
		sort.Float64s(lat)
		c := &w.Nodes[0].E.C
		p50, p99, p999 := lat[len(lat)/2], lat[len(lat)*99/100], lat[len(lat)*999/1000]
		t.Logf("loss %v: completion after p50 %.1f p99 %.1f p99.9 %.1f max %.1f RTT; %d timeouts, %d plane failures", x.loss, p50, p99, p999, lat[len(lat)-1],
			c.LostTimeout, c.PlaneFailures)
		if p99 > x.p99 || p999 > x.p999 {
			t.Errorf("loss %v: p99 %.1f (most %.1f), p99.9 %.1f (most %.1f) RTT", x.loss, p99, x.p99, p999, x.p999)
		}
	}
}
