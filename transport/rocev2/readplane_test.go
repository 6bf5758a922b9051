package rocev2_test

import (
	"bytes"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// TestReadMoves: a long READ is asked for in the same pieces whatever plane it is on, or what is asked for again after a
// move to a plane of another rate lies across pieces that the responder remembers, and is never answered.
func TestReadMoves(t *testing.T) {
	const size = 6 << 20
	rates := [2]uint64{100e9, 7e9}
	for seed := range uint64(8) {
		w := newWorld(config{seed: seed, link: usual(), planes: 2, memory: 2 * size, engine: func(c *rocev2.Config) {
			for i := range c.Planes {
				c.Planes[i].RateBps = rates[i]
			}
		}})
		for i, r := range rates {
			l := link.Spec{RateBps: r, Delay: 3600 * mono.Nanosecond}
			w.setLink(0, 1, i, l)
			w.setLink(1, 0, i, l)
		}
		a, b := w.nodes[0], w.nodes[1]
		w.connect(a, b, options{}) // numbers that hash elsewhere
		p, _ := w.connect(a, b, options{mtu: 1024, rd: 4})
		for i := range size {
			b.Mem[size+i] = byte(uint64(i*7+i>>10) + seed)
		}
		p.send(wr{id: 1, op: transport.OpRead, local: 0, remote: size, n: size, key: 7})
		for i := range 6 {
			plane := i % 2
			w.run(mono.Duration(30+17*seed) * mono.Microsecond)
			for _, n := range w.nodes {
				n.e.SetPlane(w.now, plane, false)
				n.e.SetPlane(w.now, 1-plane, true)
			}
			l := link.Spec{RateBps: rates[plane], Delay: 3600 * mono.Nanosecond, Down: true}
			w.setLink(1, 0, plane, l)
			w.run(20 * mono.Microsecond)
			l.Down = false
			w.setLink(1, 0, plane, l)
		}
		w.mustRun(t, 10*second, func() bool { return len(p.sends) == 1 })
		if c := p.sends[0]; c.status != transport.OK || !bytes.Equal(a.Mem[:size], b.Mem[size:]) {
			t.Errorf("seed %d: %v, %d dropped duplicates", seed, c.status, b.e.C.DropDuplicate)
		}
		if n := b.e.C.DropDuplicate; n > 0 {
			t.Errorf("seed %d: %d requests fit nothing that is remembered", seed, n)
		}
	}
}
