package rocev2_test

import (
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// goodput runs one pair with messages of 1 MiB at 100 Gbit/s and a round trip of 8 µs, and returns the share of the line
// rate that arrives as payload.
func goodput(op transport.Op, loss float64, span mono.Duration, engine func(*rocev2.Config)) (float64, *rocev2.Counters) {
	l := usual()
	l.Loss = loss
	w := newWorld(config{seed: 1, link: l, engine: engine})
	p, q := w.connect(w.nodes[0], w.nodes[1], options{sq: 64})
	const size = 1 << 20
	bytes := 0
	post := func() { p.send(wr{op: op, n: size, key: 7}) }
	p.onSend = func(c completion) {
		if c.status == transport.OK {
			bytes += size
		}
		post()
	}
	if op == transport.OpSend {
		q.onRecv = func(c completion) { q.recv(0, 0, size) }
		for range 20 {
			q.recv(0, 0, size)
		}
	}
	for range 16 {
		post()
	}
	w.run(2 * mono.Millisecond)
	bytes = 0
	w.run(span)
	return float64(bytes) * 8 / span.Seconds() / 100e9, &w.nodes[0].e.C
}

// TestGoodput prints what go-back-N keeps under loss, with the timers that hardware has and with shorter ones.
func TestGoodput(t *testing.T) {
	for _, v := range []struct {
		name   string
		op     transport.Op
		engine func(*rocev2.Config)
		least  [4]float64 // of the line rate, at 0, 0.1, 1, 5 % loss
	}{
		{"adaptive timer from 2 ms", transport.OpWrite, nil, [4]float64{0.98, 0.95, 0.74, 0.30}},
		{"adaptive timer from 2 ms", transport.OpSend, nil, [4]float64{0.98, 0.95, 0.74, 0.30}},
		{"adaptive timer from 2 ms", transport.OpRead, nil, [4]float64{0.98, 0.95, 0.74, 0.30}},
		{"adaptive timer from 2 ms, one NAK a gap", transport.OpWrite, func(c *rocev2.Config) { c.NAKOnce = true }, [4]float64{0.98, 0.8, 0.2, 0}},
		{"fixed timer of 67 ms", transport.OpWrite, func(c *rocev2.Config) { c.FixedRTO = true }, [4]float64{0.98, 0.95, 0.7, 0.3}},
		{"fixed timer of 67 ms, one NAK a gap", transport.OpWrite, func(c *rocev2.Config) { c.FixedRTO, c.NAKOnce = true, true }, [4]float64{0.98, 0.1, 0, 0}},
	} {
		line := fmt.Sprintf("%-5v %-40s", v.op, v.name)
		for i, loss := range []float64{0, 0.001, 0.01, 0.05} {
			span := 8 * mono.Millisecond
			if v.least[i] < 0.3 && !testing.Short() {
				span = 150 * mono.Millisecond
			}
			g, c := goodput(v.op, loss, span, v.engine)
			line += fmt.Sprintf("  %.1f %%: %.1f (%d back, %d timeouts)", 100*loss, 100*g, c.GoBacks, c.Timeouts)
			if g < v.least[i] || g > 1 {
				t.Errorf("%v, %s, loss %v: %.3f of the line rate", v.op, v.name, loss, g)
			}
		}
		t.Log(line)
	}
}
