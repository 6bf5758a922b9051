// Package sim runs plans: real engines, modelled networks, virtual time.
package sim

import (
	"context"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/ideal"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/result"
	"github.com/metaroce/metaroce/tools/sim/work"
)

// Options of a run. The zero value runs the plan as it is on one thread.
type Options struct {
	Seed     uint64 // 0 = the plan's
	Threads  int    // 0 = 1; the result is the same with any number
	Commit   string // of the program, for the report
	Read     func(path string) ([]byte, error)
	Progress func(Progress) // called now and then, from the goroutine of Run
}

// Progress says how far a run is. Now and Until count from the plan's time 0.
type Progress struct {
	Now, Until     mono.Time
	Done, Messages int
	Placed, Bytes  uint64 // payload that has arrived, and that of all messages: 0 in steady runs, which have no end but Until
	Hops           uint64
}

// run is a simulation in work.
type run struct {
	ctx   context.Context
	p     *plan.Plan
	o     Options
	seed  uint64
	m     model
	graph *work.Graph
	t0    mono.Time
	line  *timeline
	ticks int
	// of a steady run, when its measurement began
	warmed []uint64
	wall   func() float64 // seconds since it began
	began  float64        // when the plan's own time began: hops are counted from then on
	told   float64        // when Progress was called last
}

// Run simulates a plan. A run that is interrupted returns what has come of it, marked partial, and no error.
func Run(ctx context.Context, p *plan.Plan, o Options) (*result.Result, error) {
	r := &run{ctx: ctx, p: p, o: o, seed: p.Seed, wall: stopwatch()}
	if o.Seed != 0 {
		r.seed = o.Seed
	}
	if err := r.build(); err != nil {
		return nil, err
	}
	defer r.m.Close()
	if err := r.simulate(); err != nil {
		return nil, err
	}
	return r.result()
}

// build makes the messages, the hosts and their network.
func (r *run) build() error {
	g, err := work.Build(r.p, r.o.Read)
	if err != nil {
		return err
	}
	r.graph = g
	if r.p.Transport.Kind == plan.Ideal {
		r.m = ideal.New(r.p, g)
		return nil
	}
	m, err := newPackets(r.ctx, r.p, g, r.seed, r.o.Threads)
	if err == nil {
		r.m = m
	}
	return err
}

// simulate runs the plan's own time.
func (r *run) simulate() error {
	r.t0 = r.m.Zero()
	r.m.ResetCounters()
	r.began = r.wall()
	if err := r.m.Schedule(r.t0, r.p.Events); err != nil {
		return err
	}
	r.line = newTimeline(r)
	if r.p.Run.Steady {
		r.m.At(r.t0.Add(r.p.Run.Warm), func(mono.Time) {
			for h := range r.p.Topology.Hosts {
				r.warmed = append(r.warmed, r.m.PlacedAt(h))
			}
		})
	}
	r.m.Start()
	return r.m.Run(r.t0.Add(r.p.Run.Until), r.more)
}

// progressEvery is how often Progress is called, in seconds.
const progressEvery = 0.1

func (r *run) progress() Progress {
	p := Progress{Now: mono.Time(r.m.Now().Sub(r.t0)), Until: mono.Time(r.p.Run.Until), Done: r.m.Ended(), Messages: len(r.graph.Messages),
		Placed: r.m.Placed(), Hops: r.m.Counters().Hops}
	if !r.p.Run.Steady {
		for i := range r.graph.Messages {
			if m := &r.graph.Messages[i]; m.From != m.To {
				p.Bytes += uint64(m.Size)
			}
		}
	}
	return p
}

// more is asked between stretches of virtual time.
func (r *run) more() bool {
	if r.ticks++; r.ticks%16 == 0 { // a stretch of a large network takes milliseconds
		if r.ctx.Err() != nil {
			return false
		}
		if f := r.o.Progress; f != nil {
			if now := r.wall(); now >= r.told+progressEvery {
				r.told = now
				f(r.progress())
			}
		}
	}
	return r.p.Run.Steady || r.m.Ended() < len(r.graph.Messages)
}
