package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// TestBaseIsNoQueue: a sender that always keeps the queue of a slow plane at its target does not take that queue for the
// plane's base RTT after a while. It did after ten seconds; then the window grew by another target, and after twenty the queue
// was full and 15 % of the packets went again.
//
// = MR-CC-009
func TestBaseIsNoQueue(t *testing.T) {
	const rate = 200e6
	w := New(Config{Seed: 1, Planes: 1, Link: link.Spec{RateBps: rate, Delay: 10 * mono.Microsecond, Queue: 96 << 10}, Step: 60 * second,
		Engine: func(c *metaroce.Config) { c.Planes[0].RateBps, c.Planes[0].TimerNoise = 0, 2*mono.Millisecond }})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p, _ := w.Connect(a, b, QPOptions{SQ: 64})
	post := func() { p.Send(WR{Op: transport.OpWrite, N: 256 << 10, Key: 7}) }
	p.OnSend = func(Completion) { post() }
	for range 8 {
		post()
	}
	w.Run(second)
	first := a.E.Assocs()[0].Planes[0].Base
	n, again, sent := len(p.Sends), a.E.C.Retransmits, a.E.C.TxPackets
	w.Run(15 * second)
	pl := a.E.Assocs()[0].Planes[0]
	if pl.Base > first+mono.Millisecond/4 || pl.Queue > 3*mono.Millisecond {
		t.Errorf("base %v, at first %v; queue %v", pl.Base, first, pl.Queue)
	}
	if share := float64(a.E.C.Retransmits-again) / float64(a.E.C.TxPackets-sent); share > 0.005 {
		t.Errorf("%.2f %% of the packets went again", 100*share)
	}
	if got := float64(len(p.Sends)-n) * 8 * (256 << 10) / 15; got < 0.95*rate {
		t.Errorf("%.0f Mbit/s", got/1e6)
	}
}

// TestLongerWay: a way that really became longer is believed, after two periods.
func TestLongerWay(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 1, Link: link.Spec{RateBps: 100e6, Delay: 10 * mono.Microsecond, Queue: 96 << 10}, Step: 60 * second})
	a, b := w.Nodes[0], w.Nodes[1]
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	p, _ := w.Connect(a, b, QPOptions{SQ: 64})
	p.OnSend = func(Completion) { p.Send(WR{Op: transport.OpWrite, N: 64 << 10, Key: 7}) }
	p.Send(WR{Op: transport.OpWrite, N: 64 << 10, Key: 7})
	w.Run(second)
	w.SetLinks(link.Spec{RateBps: 100e6, Delay: 4 * mono.Millisecond, Queue: 96 << 10})
	w.Run(14 * second)
	if pl := a.E.Assocs()[0].Planes[0]; pl.Base < 8*mono.Millisecond || pl.Base > 10*mono.Millisecond {
		t.Errorf("base %v over links of 4 ms", pl.Base)
	}
}
