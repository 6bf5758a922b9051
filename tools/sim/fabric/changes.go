package fabric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// change is one event of a plan while it lasts.
type change struct {
	c    plan.Change
	down bool // now: flapping links go up and down
}

// Schedule has the events of a plan happen, counted from start.
func (n *Net) Schedule(start mono.Time, events []plan.Event) error {
	if n.active == nil {
		n.active = map[int32][]*change{}
	}
	for i := range events {
		ev := &events[i]
		ports, err := n.Targets(ev.Target)
		if err != nil {
			return err
		}
		c := &change{c: ev.Change, down: ev.Change.Down || ev.Change.Flap > 0}
		from := start.Add(ev.At)
		to := mono.Never
		if ev.For > 0 {
			to = from.Add(ev.For)
		}
		n.At(from, func(now mono.Time) { n.apply(now, ports, c, true) })
		if to != mono.Never {
			n.At(to, func(now mono.Time) { n.apply(now, ports, c, false) })
		}
		if c.c.Flap > 0 {
			n.flap(from.Add(c.c.Flap/2), to, ports, c)
		}
	}
	return nil
}

// flap turns links that are down up and back, at a time and each half period after it.
func (n *Net) flap(at, end mono.Time, ports []int32, c *change) {
	if at >= end {
		return
	}
	n.At(at, func(now mono.Time) {
		c.down = !c.down
		n.refresh(now, ports)
		n.flap(at.Add(c.c.Flap/2), end, ports, c)
	})
}

func (n *Net) apply(now mono.Time, ports []int32, c *change, on bool) {
	for _, i := range ports {
		if on {
			n.active[i] = append(n.active[i], c)
		} else if k := slices.Index(n.active[i], c); k >= 0 {
			n.active[i] = slices.Delete(n.active[i], k, k+1)
		}
	}
	n.refresh(now, ports)
}

// refresh works out what links do now.
func (n *Net) refresh(now mono.Time, ports []int32) {
	n.Now = now
	for _, i := range ports {
		x := &n.ports[i]
		s := x.base
		x.exempt = false
		for _, c := range n.active[i] {
			s.Down = s.Down || c.down
			if c.c.Loss > 0 {
				s.Loss, s.Burst = 1-(1-s.Loss)*(1-c.c.Loss), max(s.Burst, c.c.Burst)
				x.exempt = c.c.DataOnly
			}
			if c.c.Slow > 1 {
				s.RateBps = max(1, uint64(float64(s.RateBps)/c.c.Slow))
			}
			s.Delay = min(s.Delay+c.c.Delay, link.DelayMax)
		}
		if s.Burst > 1 && s.Loss < 1 { // changes that come together: so much cannot be lost in bursts so short
			s.Burst = max(s.Burst, s.Loss/(1-s.Loss))
		}
		was := x.m.Spec().Down
		n.set(x, s)
		if x.fifo != nil && was && !s.Down {
			n.doms[x.dom].transmit(now, x)
		}
	}
}

// Targets are the ports that a name in a plan's event stands for: both directions, but for "last".
func (n *Net) Targets(name string) ([]int32, error) {
	to, err := n.t.Target(name)
	if err != nil {
		return nil, fmt.Errorf("event at %w", err)
	}
	is := func(*Port) bool { return true }
	switch {
	case to.Last:
		is = func(x *Port) bool { return x.host >= 0 }
	case to.To != nil:
		a, b := to.Of.String(), to.To.String()
		ab, ba := fmt.Sprintf("%d/%s>%s", to.Plane, a, b), fmt.Sprintf("%d/%s>%s", to.Plane, b, a)
		is = func(x *Port) bool { return x.Name == ab || x.Name == ba }
	case to.Of != nil && to.Of.Kind == plan.HostNode:
		is = func(x *Port) bool { return int(x.host) == to.Of.Index || int(x.fromHost) == to.Of.Index }
	case to.Of != nil:
		is = n.touches(to.Of.String())
	}
	var ports []int32
	for i := range n.ports {
		if x := &n.ports[i]; (to.Plane < 0 || int(x.plane) == to.Plane) && is(x) {
			ports = append(ports, int32(i))
		}
	}
	if len(ports) == 0 {
		return nil, fmt.Errorf("event at %q: the topology has no such thing", name)
	}
	return ports, nil
}

// touches selects the ports at a switch.
func (n *Net) touches(sw string) func(*Port) bool {
	return func(x *Port) bool {
		_, ends, _ := strings.Cut(x.Name, "/")
		a, b, _ := strings.Cut(ends, ">")
		return a == sw || b == sw
	}
}

// LinkInfo is what a direction of a link has done.
type LinkInfo struct {
	Name                                 string
	Plane                                int
	RateBps                              uint64
	ToHost                               bool
	Packets, Bytes                       uint64
	Dropped, Marked, Trimmed, Lost, Down uint64
	QueueMax                             int
	Pauses                               uint64
	Paused                               mono.Duration
}

// Link describes direction i of 0 … Links()-1.
func (n *Net) Link(i int) LinkInfo {
	x := &n.ports[i]
	st := x.m.Stats()
	l := LinkInfo{Name: x.Name, Plane: int(x.plane), RateBps: x.base.RateBps, ToHost: x.host >= 0, Packets: st.Sent, Bytes: x.bytes, Dropped: st.QueueFull + x.drops.hold,
		Marked: st.Marked, Trimmed: x.drops.trimmed, Lost: st.Lost, Down: st.Down + x.cutOff, QueueMax: x.qMax}
	if x.trim { // what was cut came twice: it did not fit, and then its headers did
		l.Dropped -= x.drops.trimmed
		l.Packets -= x.drops.trimmed
	}
	if f := x.fifo; f != nil {
		l.Pauses, l.Paused = f.pauses, f.pausedFor
		if f.paused {
			l.Paused += n.Now.Sub(f.pausedAt)
		}
	}
	return l
}

// Links is how many directions of links there are.
func (n *Net) Links() int { return len(n.ports) }

// Sample is the longest queue since the last sample, how many ports are paused, and what came to hosts by each plane so far.
func (n *Net) Sample(perPlane []uint64) (queue, paused int) {
	clear(perPlane)
	for i := range n.ports {
		x := &n.ports[i]
		queue = max(queue, x.qBin)
		x.qBin = 0
		if x.fifo != nil && x.fifo.paused {
			paused++
		}
		if x.host >= 0 {
			perPlane[x.plane] += x.bytes
		}
	}
	return queue, paused
}

// Dropped is how many packets found a queue or a headroom full.
func (n *Net) Dropped() (sum uint64) {
	for i := range n.ports {
		sum += n.ports[i].m.Stats().QueueFull + n.ports[i].drops.hold - n.ports[i].drops.trimmed
	}
	return sum
}

// DataSent is how many packets with payload hosts have sent.
func (n *Net) DataSent() (sum uint64) {
	for _, d := range n.doms {
		sum += d.C.Sent
	}
	return sum
}

// ResetCounters begins to count anew: what came before is not of the run.
func (n *Net) ResetCounters() {
	for _, d := range n.doms {
		d.C = Counters{}
	}
	for i := range n.ports {
		x := &n.ports[i]
		*x.m.Stats() = link.Stats{}
		x.bytes, x.qMax, x.qBin, x.cutOff = 0, 0, 0, 0
		x.drops.trimmed, x.drops.hold = 0, 0
		if x.fifo != nil {
			x.fifo.pauses, x.fifo.pausedFor = 0, 0
		}
	}
}
