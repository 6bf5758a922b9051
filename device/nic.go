package device

import (
	"net/netip"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
)

// NIC is one emulated RDMA NIC. One goroutine owns it: that of Step also makes every other call.
type NIC struct {
	cfg   Config
	eng   Engine
	rnd   *rng.Source
	now   mono.Time
	batch *pkt.Batch // what the engine wants to send
	lent  bool       // in buffers of the wires (MemoryPort)
	loop  []pkt.Packet

	planes    []*plane
	rx        []pkt.Packet // a burst of every plane
	host      *hostPort
	readiness bool
	linkCheck mono.Time

	contexts []*Context
	qps      map[uint32]*QP
	gids     []gidSlot
	groups   map[netip.Addr]int // multicast groups, and how many QPs are attached to each
	lastQPN  uint32
	xrcds    map[Inode]*XRCD // those that programs can share
	srqns    map[uint32]*SRQ // shared receive queues of domains, by number
	lastSRQN uint32
	keys     keyTable
	dma      dmaState
	run      queueRing // queues whose doorbell was rung and that may have more
	later    []*QP     // QPs that went to the error state within an engine call
	reached  []*QP     // those with a shared receive queue that will take none any more
	dmBytes  uint64    // allocated as device memory
	sqBytes  int       // held by the engine for send queues
	notify   []*Context
	retryAt  mono.Time // when events that did not fit are offered again

	moderated  []*CQ     // whose event waits for more completions
	moderateAt mono.Time // when the first of them is due

	C       Counters
	onEvent func(transport.Event)
}

// New makes a NIC. The ports are told its addresses; the caller closes them.
func New(cfg Config) (*NIC, error) {
	cfg.Addrs = append([]netip.Addr(nil), cfg.Addrs...)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &NIC{
		cfg:     cfg,
		rnd:     rng.New(cfg.Seed, "device "+cfg.Name),
		qps:     map[uint32]*QP{},
		groups:  map[netip.Addr]int{},
		xrcds:   map[Inode]*XRCD{},
		srqns:   map[uint32]*SRQ{},
		batch:   pkt.NewBatch(pkt.Burst, cfg.packetMax()),
		loop:    make([]pkt.Packet, 0, pkt.Burst),
		rx:      make([]pkt.Packet, pkt.Burst*len(cfg.Ports)),
		onEvent: func(transport.Event) {},

		moderateAt: mono.Never,
	}
	n.initGIDs()
	ids := rng.New(cfg.Seed^cfg.Instance, "numbers "+cfg.Name)
	//= MR-QP-013
	n.lastQPN = firstQPN + ids.Uint32()%(lastQPN-firstQPN)
	n.keys.init(ids)
	n.lastSRQN = ids.Uint32() & 0xFFFFFF
	n.dma.init()
	ec := EngineConfig{NICID: cfg.GUID, Instance: cfg.Instance, Seed: n.rnd.Uint64(), Secret: cfg.Secret, Addrs: cfg.Addrs,
		PacketMax: cfg.packetMax(), Policy: cfg.Transport, Tune: cfg.Tune}
	for i, p := range cfg.Ports {
		//= MR-PATH-001
		p.SetAddrs(cfg.Addrs)
		pl := &plane{index: uint8(i), port: p, caps: p.Caps(), admin: true, up: true,
			held: pkt.NewBatch(heldRoom, cfg.packetMax())}
		pl.sleeper, _ = below[SleepPort](p)
		pl.gate.waits = len(p.FDs()) > 0 && pl.sleeper == nil
		n.planes = append(n.planes, pl)
		ec.Planes = append(ec.Planes, pl.caps)
	}
	n.borrow()
	if cfg.HostPort != nil {
		n.host = newHostPort(cfg.HostPort)
	}
	newEngine := cfg.NewEngine
	if newEngine == nil {
		newEngine = defaultEngine
	}
	n.eng = newEngine(ec, n)
	return n, nil
}

// OnEvent sets who hears of the engine's and the planes' events.
func (n *NIC) OnEvent(f func(transport.Event)) { n.onEvent = f }

// Step is the whole device, once:
//
//  1. received bursts of every plane and of the host port: engine, or the other side;
//  2. timers that are due (after the packets: what waited in a ring is no silence of the peer);
//  3. doorbells: work requests copied out, checked, handed to the engine, a bounded number in turn;
//  4. transmit until nothing may go, a wire is full or the bound is reached;
//  5. events that did not fit their sockets.
//
// It returns when it should run next although nothing comes in, and whether it did anything.
func (n *NIC) Step(now mono.Time) (next mono.Time, worked bool) {
	n.now = now
	if now >= n.linkCheck {
		n.checkLinks()
	}
	worked = n.receive()
	if n.eng.NextTimeout() <= now {
		n.eng.HandleTimers(now)
	}
	n.settle()
	if n.doorbells() {
		worked = true
	}
	if n.transmit() {
		worked = true
	}
	n.settle()
	n.moderatedEvents()
	n.retryEvents()
	return n.nextWake(), worked
}

// settle does what could not be done within an engine call.
func (n *NIC) settle() {
	for len(n.later) > 0 {
		q := n.later[len(n.later)-1]
		n.later = n.later[:len(n.later)-1]
		q.pendingError = false
		if !q.gone {
			q.fail(n.now)
		}
	}
	for _, q := range n.reached {
		if !q.gone {
			q.ctx.raise(hostq.AsyncEvent{Cookie: q.cookie, Type: evQPLastWQE}, &q.asyncEvents)
		}
	}
	n.reached = n.reached[:0]
}

func (n *NIC) nextWake() mono.Time {
	next := n.eng.NextTimeout()
	for _, p := range n.planes {
		next = mono.Min(next, p.port.NextWake())
		if p.held.N > 0 {
			next = mono.Min(next, n.now.Add(50*mono.Microsecond))
		}
	}
	if n.host != nil {
		next = mono.Min(next, n.host.port.NextWake())
	}
	if n.run.len() > 0 {
		next = n.now
	}
	if len(n.notify) > 0 {
		next = mono.Min(next, max(n.now, n.retryAt))
	}
	return mono.Min(mono.Min(next, n.moderateAt), n.linkCheck)
}

// BeforeSleep tells every client, and who hands packets to a wire, that a wake-up is needed, then looks at the doorbells once
// more. True means that there is work: do not sleep.
func (n *NIC) BeforeSleep() bool {
	work := false
	for _, p := range n.planes {
		if p.sleeper != nil && p.sleeper.BeforeSleep() {
			work = true
		}
	}
	for _, c := range n.contexts {
		if c.Dead {
			continue
		}
		if !c.mem.SetAsleep(1) {
			c.fault()
		} else if any, ok := c.mem.PeekSummary(c.bellWords); any || !ok {
			work = true
		}
	}
	return work
}

// AfterSleep takes it back.
func (n *NIC) AfterSleep() {
	for _, p := range n.planes {
		if p.sleeper != nil {
			p.sleeper.AfterSleep()
		}
	}
	for _, c := range n.contexts {
		if !c.Dead && !c.mem.SetAsleep(0) {
			c.fault()
		}
	}
}
