package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// TestProgramsComeAndGo: slow planes that lose 10 %, a loop that is late now and then, and programs that end in the
// middle of their work, either side first. A peer that only refuses speaks nevertheless: no plane may be called dead.
//
// = MR-PATH-030
func TestProgramsComeAndGo(t *testing.T) {
	for seed := range uint64(8) {
		w := New(Config{Seed: seed, Planes: 4, Link: link.Spec{RateBps: 500e6, Delay: 20 * mono.Microsecond, Loss: 0.1}, Engine: func(c *metaroce.Config) {
			for i := range c.Planes {
				c.Planes[i].RateBps, c.Planes[i].TimerNoise, c.Planes[i].Burst = 0, 2*mono.Millisecond, 16
			}
		}})
		r := rng.New(seed, "come and go")
		w.Nodes[1].Keys[7] = Key{0, 4 << 20, true, true, true, false}
		for run := range 4 {
			if mbps := slowProgram(t, w, r, run%2 == 0); mbps < 1650 {
				t.Errorf("seed %d, program %d: %d Mbit/s of 2000", seed, run, mbps)
			}
		}
		if c := &w.Nodes[0].E.C; c.PlaneFailures > 0 {
			t.Errorf("seed %d: %d planes were called dead", seed, c.PlaneFailures)
		}
	}
}

// slowProgram writes for 200 ms with much posted, then both ends go, and returns the Mbit/s of the time in
// which the loop ran: how often it is late is chance.
func slowProgram(t *testing.T, w *World, r *rng.Source, serverFirst bool) int {
	p, q := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{SQ: 128})
	post := func() { p.Send(WR{Op: transport.OpWrite, N: 1 << 20, Key: 7}) }
	good := 0
	p.OnSend = func(c Completion) {
		if c.Status != transport.OK {
			t.Errorf("%+v", c)
			return
		}
		good++
		post()
	}
	for range 100 {
		post()
	}
	const length = 200 * mono.Millisecond
	ran := length
	for end := w.Now.Add(length); w.Now < end; w.Advance() {
		w.Step()
		if r.Chance(0.002) { // the loop did not run
			d := mono.Duration(r.IntN(6000)) * mono.Microsecond
			w.Now, ran = w.Now.Add(d), ran-d
		}
	}
	p.OnSend = nil
	first, last := p, q
	if serverFirst {
		first, last = q, p
	}
	for _, x := range []*QP{first, last} {
		x.Destroy(w.Now)
		w.Run(mono.Duration(r.IntN(200)) * mono.Millisecond)
	}
	return int(float64(good) * 8 * (1 << 20) / ran.Seconds() / 1e6)
}
