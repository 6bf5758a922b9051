package rocev2_test

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// paced is a QP that DCQCN holds at half of 10 Gbit/s, in a world whose loops always come late by so much.
func paced(t *testing.T, late, noise mono.Duration) (w *world, p *qp, run func(mono.Duration)) {
	fixed := cc.DCQCNConfig{Line: 10e9, Min: 1e9, G: 1.0 / 256, AlphaTimer: second, RateTimer: second, ByteCounter: 1 << 40, Stages: 5, CutSpacing: 10 * second}
	w = newWorld(config{link: usual(), engine: func(c *rocev2.Config) {
		c.DCQCN, c.Planes[0].TimerNoise = &fixed, noise
	}})
	run = func(d mono.Duration) {
		for end := w.now.Add(d); w.now < end; w.now = w.now.Add(late) {
			w.step()
			w.advance()
		}
	}
	p, _ = w.connect(w.nodes[0], w.nodes[1], options{sq: 8})
	w.tap = func(_, dst, _ int, x *pkt.Packet) bool {
		if dst == 1 { // one mark: one cut
			x.TOS |= pkt.CE
			w.tap = nil
		}
		return true
	}
	p.onSend = func(c completion) {
		if c.status != transport.OK {
			t.Fatal(c.status)
		}
	}
	p.send(wr{op: transport.OpWrite, n: 8, key: 7})
	run(mono.Millisecond)
	if w.nodes[0].e.C.RxCNP != 1 {
		t.Fatal("not limited")
	}
	return w, p, run
}

// TestPaceLate: a loop that comes late by less than the wire's timing noise makes up for it, and sends no more than the rate.
func TestPaceLate(t *testing.T) {
	for _, late := range []mono.Duration{1, 50 * mono.Microsecond, 150 * mono.Microsecond} {
		w, p, run := paced(t, late, 200*mono.Microsecond)
		post := func() { p.send(wr{op: transport.OpWrite, n: 400_000, key: 7}) }
		p.onSend = func(completion) { post() }
		for range 4 {
			post()
		}
		run(mono.Millisecond)
		bytes := w.nodes[0].e.C.TxBytes
		const span = 10 * mono.Millisecond
		begin := w.now
		run(span)
		rate := float64(w.nodes[0].e.C.TxBytes-bytes) * 8 / w.now.Sub(begin).Seconds()
		if rate < 4.5e9 || rate > 5.1e9 {
			t.Errorf("%v late: %.2f Gbit/s, want 5", late, rate/1e9)
		}
	}
}

// TestPaceIdle: time in which a QP had nothing to send is no credit.
func TestPaceIdle(t *testing.T) {
	w, p, run := paced(t, 1, 200*mono.Microsecond)
	for range 5 {
		run(mono.Millisecond)
		bytes := w.nodes[0].e.C.TxBytes
		p.send(wr{op: transport.OpWrite, n: 200_000, key: 7})
		run(50 * mono.Microsecond)
		if sent := w.nodes[0].e.C.TxBytes - bytes; sent > 50_000 {
			t.Errorf("%d bytes in 50 µs after idling", sent)
		}
	}
}
