package sim

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// binsMost is how many stretches a time line without a given length has at most: then two become one.
const binsMost = 200

// fixedMost is how many it has at most with a given length.
const fixedMost = 100_000

// timeline samples the network in regular stretches of virtual time.
type timeline struct {
	r       *run
	bin     mono.Duration
	fixed   bool
	skip    int // samples that were left out since the last one
	every   int // samples for one stretch
	bins    []result.Bin
	planes  []uint64
	was     []uint64
	placed  uint64
	dropped uint64
	queue   int
	paused  int
	at      mono.Time // begin of the stretch
}

func newTimeline(r *run) *timeline {
	n := r.p.Topology.Planes
	l := &timeline{r: r, bin: r.p.Run.Bin, fixed: r.p.Run.Bin > 0, every: 1, planes: make([]uint64, n), was: make([]uint64, n), at: r.t0}
	if !l.fixed {
		l.bin = r.p.Topology.RTT()
	}
	r.m.Sample(l.was)
	r.m.At(r.t0.Add(l.bin), l.sample)
	return l
}

func (l *timeline) sample(now mono.Time) {
	l.take(now)
	if l.skip++; l.skip >= l.every {
		l.skip = 0
		l.end(now)
		if len(l.bins) >= fixedMost || !l.fixed && len(l.bins) >= binsMost {
			l.halve()
		}
	}
	l.r.m.At(now.Add(l.bin), l.sample)
}

func (l *timeline) take(mono.Time) {
	q, p := l.r.m.Sample(l.planes)
	l.queue, l.paused = max(l.queue, q), max(l.paused, p)
}

// end closes a stretch.
func (l *timeline) end(now mono.Time) {
	s := now.Sub(l.at).Seconds()
	if s <= 0 {
		return
	}
	b := result.Bin{At: l.at.Sub(l.r.t0).Seconds(), QueueMax: l.queue, Paused: l.paused}
	placed, dropped := l.r.m.Placed(), l.r.m.Dropped()
	b.Goodput = float64(placed-l.placed) * 8 / s
	b.Dropped = dropped - l.dropped
	for i := range l.planes {
		b.PerPlane = append(b.PerPlane, float64(l.planes[i]-l.was[i])*8/s)
	}
	l.placed, l.dropped, l.queue, l.paused, l.at = placed, dropped, 0, 0, now
	copy(l.was, l.planes)
	l.bins = append(l.bins, b)
}

// halve makes one stretch of two.
func (l *timeline) halve() {
	for i := 0; i+1 < len(l.bins); i += 2 {
		a, b := l.bins[i], l.bins[i+1]
		a.Goodput = (a.Goodput + b.Goodput) / 2
		for k := range a.PerPlane {
			a.PerPlane[k] = (a.PerPlane[k] + b.PerPlane[k]) / 2
		}
		a.QueueMax, a.Paused, a.Dropped = max(a.QueueMax, b.QueueMax), max(a.Paused, b.Paused), a.Dropped+b.Dropped
		l.bins[i/2] = a
	}
	l.bins = l.bins[:len(l.bins)/2]
	l.every *= 2
}

// finish closes the last stretch.
func (l *timeline) finish() []result.Bin {
	l.take(l.r.m.Now())
	l.end(l.r.m.Now())
	return l.bins
}
