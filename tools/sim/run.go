// Package sim runs plans: real engines, modelled networks, virtual time.
package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/nic"
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

// ErrNotBuilt says that a plan wants what the simulator does not do yet.
var ErrNotBuilt = errors.New("the simulator does not do that yet")

// warmLimit is the virtual time that connecting may take.
const warmLimit = 10 * mono.Second

// run is a simulation in work.
type run struct {
	ctx   context.Context
	p     *plan.Plan
	o     Options
	seed  uint64
	net   *fabric.Net
	world *nic.World
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
	if p.Transport.Kind == plan.Ideal {
		return nil, fmt.Errorf("transport ideal: %w", ErrNotBuilt)
	}
	if p.Transport.NIC == plan.NICDevice {
		return nil, fmt.Errorf("nic device: %w", ErrNotBuilt)
	}
	g, err := work.Build(p, o.Read)
	if err != nil {
		return nil, err
	}
	r.graph = g
	threads := max(1, min(o.Threads, runtime.GOMAXPROCS(0)))
	r.net = fabric.New(fabric.Config{Topology: &p.Topology, Switch: &p.Switch, Seed: r.seed, Threads: threads, Adaptive: p.Transport.Adaptive,
		Start: mono.Time(mono.Millisecond)})
	defer r.net.Close()
	r.world = nic.New(p, r.net, g, r.seed)
	if err := r.world.Warm(warmLimit, func() bool { return ctx.Err() == nil }); err != nil {
		return nil, err
	}
	if err := r.simulate(); err != nil {
		return nil, err
	}
	return r.result()
}

// simulate runs the plan's own time.
func (r *run) simulate() error {
	r.t0 = r.net.Now + 1
	r.net.ResetCounters()
	r.began = r.wall()
	if err := r.net.Schedule(r.t0, r.p.Events); err != nil {
		return err
	}
	r.line = newTimeline(r)
	if r.p.Run.Steady {
		r.net.At(r.t0.Add(r.p.Run.Warm), func(mono.Time) {
			for h := range r.p.Topology.Hosts {
				r.warmed = append(r.warmed, r.world.PlacedAt(h))
			}
		})
	}
	r.world.Start()
	return r.net.Run(r.t0.Add(r.p.Run.Until), r.more)
}

// progressEvery is how often Progress is called, in seconds.
const progressEvery = 0.1

func (r *run) progress() Progress {
	p := Progress{Now: mono.Time(r.net.Now.Sub(r.t0)), Until: mono.Time(r.p.Run.Until), Done: r.world.Ended(), Messages: len(r.graph.Messages),
		Placed: r.world.Placed(), Hops: r.net.Counters().Hops}
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
	return r.p.Run.Steady || r.world.Ended() < len(r.graph.Messages)
}
