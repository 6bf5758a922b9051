package sim

import (
	"context"
	"runtime"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/nic"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/work"
)

// model is hosts and network: of packets, or of fluids.
type model interface {
	Now() mono.Time
	Zero() mono.Time // when the plan's own time begins
	Threads() int
	ResetCounters()
	Close()

	Schedule(start mono.Time, events []plan.Event) error
	At(at mono.Time, f func(now mono.Time))
	Start()
	Run(until mono.Time, more func() bool) error

	Message(i int) work.Outcome
	Ended() int
	Placed() uint64
	PlacedAt(host int) uint64
	Took() []mono.Duration
	Retransmits() uint64
	Sample(perPlane []uint64) (queue, paused int)
	Dropped() uint64
	DataSent() uint64
	Counters() fabric.Counters
	Links() int
	Link(i int) fabric.LinkInfo
}

// packets is a network of packets and the hosts at it.
type packets struct {
	*fabric.Net
	*nic.World
}

// warmLimit is the virtual time that connecting may take.
const warmLimit = 10 * mono.Second

// newPackets builds network and hosts and connects these.
func newPackets(ctx context.Context, p *plan.Plan, g *work.Graph, seed uint64, threads int) (*packets, error) {
	n := fabric.New(fabric.Config{Topology: &p.Topology, Switch: &p.Switch, Seed: seed, Threads: max(1, min(threads, runtime.GOMAXPROCS(0))),
		Adaptive: p.Transport.Adaptive, Start: mono.Time(mono.Millisecond)})
	w, err := nic.New(p, n, g, seed)
	if err != nil {
		n.Close()
		return nil, err
	}
	m := &packets{n, w}
	if err := m.Warm(warmLimit, func() bool { return ctx.Err() == nil }); err != nil {
		n.Close()
		return nil, err
	}
	return m, nil
}

func (m *packets) Now() mono.Time  { return m.Net.Now }
func (m *packets) Zero() mono.Time { return m.Net.Now + 1 }
