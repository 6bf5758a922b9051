// Package fabric is the simulated network: links, switches and a clock that jumps from event to event, on one thread or
// several. Hosts are given by the caller.
//
// The links are those of internal/link, the model that the emulator's impairments use, too. A packet with payload travels as its
// headers and a length. The same seed gives the same run, event by event, on any number of threads: events are ordered by their
// time, and at one time by whom they are for and by what link they came (never by who was first to ask), and threads go on in
// step, by no more than what the shortest link between them takes.
package fabric

import (
	"errors"
	"fmt"
	"slices"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Host is a NIC with its programs. All calls for one host come from one goroutine at a time.
type Host interface {
	// Deliver hands over a packet that has come; it is the fabric's again when Deliver returns.
	Deliver(now mono.Time, p *Packet)
	// Step runs what is due and sends what may go (Net.Send). It returns when it wants to run again, or Never. It is called
	// after packets were delivered, when that time has come, and when a port with flow control has become free.
	Step(now mono.Time) mono.Time
	// Trigger tells what another host has sent by Net.Trigger.
	Trigger(now mono.Time, arg int32)
}

// Counters of a run.
type Counters struct {
	Events, Hops         uint64
	Trimmed, Corrupt     uint64
	Pauses, HeadroomFull uint64
	Delivered, Data      uint64 // packets at hosts; those with payload
	Sent                 uint64 // packets with payload that hosts have sent
}

// Net is the network.
type Net struct {
	Now     mono.Time
	t       *plan.Topology
	sw      *plan.Switch
	pfc     plan.PFC
	seed    uint64
	threads int

	adaptive bool
	shape    *shape
	nodes    []node
	ports    []Port
	hostUp   [][]int32 // [host][plane]
	hosts    []Host
	hostDom  []int32
	due      []mono.Time // when a host's wake-up is in the queue for
	trigSeq  []uint32
	doms     []*domain
	ahead    mono.Duration // what a domain may go on without the others
	global   []global      // in order of time
	run      *runner
	active   map[int32][]*change // by port
}

// global is something that happens while all threads wait.
type global struct {
	at mono.Time
	f  func(now mono.Time)
}

// domain is what one thread works on.
type domain struct {
	n     *Net
	id    int32
	queue *queue
	free  pool
	out   [][]event // to other domains
	C     Counters
}

// Config of a Net.
type Config struct {
	Topology *plan.Topology
	Switch   *plan.Switch
	Seed     uint64
	Threads  int
	Adaptive bool // switches choose uplinks by their queues
	Start    mono.Time
}

// New builds a network. The plan has been checked. SetHost comes before Run.
func New(c Config) *Net {
	n := &Net{t: c.Topology, sw: c.Switch, pfc: c.Switch.PFC, seed: c.Seed, adaptive: c.Adaptive, Now: c.Start}
	n.shape = newShape(c.Topology)
	parts := n.shape.leaves
	if c.Topology.Kind == plan.FatTree {
		parts = c.Topology.Hosts / c.Topology.Pod
	}
	n.threads = max(1, min(c.Threads, parts))
	n.build()
	n.hosts, n.hostDom = make([]Host, c.Topology.Hosts), make([]int32, c.Topology.Hosts)
	n.due, n.trigSeq = make([]mono.Time, c.Topology.Hosts), make([]uint32, c.Topology.Hosts)
	for h := range n.due {
		n.due[h] = mono.Never
		n.hostDom[h] = n.endDom(end{host: int32(h), sw: -1})
	}
	for i := range n.threads {
		d := &domain{n: n, id: int32(i), queue: newQueue(bitsFor(len(n.ports))), out: make([][]event, n.threads)}
		d.queue.at = int64(c.Start) >> d.queue.bits
		n.doms = append(n.doms, d)
	}
	n.ahead = max(min(c.Topology.Delay, c.Topology.UpDelay), 1)
	for i := range n.ports {
		x := &n.ports[i]
		n.set(x, x.base)
		if x.dom != x.toDom {
			n.ahead = min(n.ahead, max(x.base.Delay, 1))
		}
	}
	return n
}

// Threads is how many threads there are, at most as many as asked for.
func (n *Net) Threads() int { return n.threads }

// SetHost gives a host its behaviour.
func (n *Net) SetHost(i int, h Host) { n.hosts[i] = h }

// Domain is the thread, from 0 on, that a host belongs to.
func (n *Net) Domain(host int32) int { return int(n.hostDom[host]) }

// Up is a host's port on a plane.
func (n *Net) Up(host, plane int) *Port { return &n.ports[n.hostUp[host][plane]] }

// NewPacket is a packet that a host is about to send; long: it will travel whole (IsLong).
func (n *Net) NewPacket(host int32, long bool) *Packet { return n.doms[n.hostDom[host]].free.get(long) }

// Send puts a packet of a host on one of its wires.
func (n *Net) Send(now mono.Time, host int32, p *Packet) {
	p.From, p.In = host, -1
	if p.Payload {
		n.doms[n.hostDom[host]].C.Sent++
	}
	n.doms[n.hostDom[host]].send(now, &n.ports[n.hostUp[host][p.Plane]], p)
}

// Drop gives back a packet that was not sent.
func (n *Net) Drop(host int32, p *Packet) { n.doms[n.hostDom[host]].free.put(p) }

// Trigger tells a host something from another one, as long after as a link takes.
func (n *Net) Trigger(now mono.Time, from, to int32, arg int32) {
	n.trigSeq[from]++
	d := n.doms[n.hostDom[from]]
	// the sender's number orders what comes to one host at one time
	key := keyTrigger | uint64(to)<<40 | uint64(from)<<16 | uint64(n.trigSeq[from]&0xFFFF)
	d.post(n.hostDom[to], event{at: now.Add(n.ahead), key: key, arg: arg})
}

// Wake has a host run at a time.
func (n *Net) Wake(host int32, at mono.Time) { n.doms[n.hostDom[host]].wake(host, at) }

// At has something happen while everything waits. Before Run only.
func (n *Net) At(at mono.Time, f func(now mono.Time)) {
	i, _ := slices.BinarySearchFunc(n.global, at, func(g global, at mono.Time) int {
		if g.at <= at {
			return -1
		}
		return 1
	})
	n.global = slices.Insert(n.global, i, global{at, f})
}

// Counters of all threads.
func (n *Net) Counters() (c Counters) {
	for _, d := range n.doms {
		c.Events += d.C.Events
		c.Hops += d.C.Hops
		c.Trimmed += d.C.Trimmed
		c.Corrupt += d.C.Corrupt
		c.Pauses += d.C.Pauses
		c.HeadroomFull += d.C.HeadroomFull
		c.Delivered += d.C.Delivered
		c.Data += d.C.Data
	}
	return c
}

// set changes a port's link.
func (n *Net) set(x *Port, s link.Spec) {
	if x.fifo != nil { // it has the queue itself
		s.Queue = max(s.Queue, 0)
	}
	if err := x.m.Set(n.Now, s); err != nil {
		panic(err) // plans are checked
	}
}

// ErrHost says that a host was not given.
var ErrHost = errors.New("fabric: a host has no behaviour")

func (n *Net) ready() error {
	for i, h := range n.hosts {
		if h == nil {
			return fmt.Errorf("%w: %d", ErrHost, i)
		}
	}
	return nil
}

func (x *Port) load(now int64) int { return x.Backlog(mono.Time(now)) }
