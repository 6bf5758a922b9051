// Package rocev2 is the RoCEv2 engine: RC and XRC with go-back-N and DCQCN, UC, and UD, as IBTA describes them. It speaks to NICs
// and to soft-RoCE that know nothing of MetaRoCE, and is what MetaRoCE is compared with; so it does what a good hardware
// NIC does. It does no I/O, reads no clock and starts no goroutine.
//
// Contract. One goroutine owns an Engine and everything made from it.
//   - inputs:  HandlePackets (received), HandleTimers (when NextTimeout has come), SetPlane, and the QP's commands;
//   - outputs: Transmit fills packets to send until nothing may go; NextTimeout says when to call HandleTimers and
//     Transmit again; completions, memory and receives go through transport.Host during the input calls and Transmit.
//
// Order within one step of a device: HandlePackets before HandleTimers (what waited in the ring is no silence of the
// peer), then posts, then Transmit. Time never goes back. Spurious calls are harmless.
//
// A packet's way in is in receive.go (checks, the burst's memory operations), responder.go, ackrx.go and ud.go (what it
// does); its way out is in send.go (turns, pacing, ICRC), requester.go, respond.go and ud.go (content).
package rocev2

import (
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/timerq"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// Engine is the transport of one NIC.
type Engine struct {
	host     transport.Host
	xrc      transport.XRCHost
	cfg      Config
	now      mono.Time // the engine's clock: the caller's less the time in which the caller's loop stood still
	offset   mono.Duration
	lastCall mono.Time
	lastNext mono.Time

	qps    map[uint32]*QP
	list   []*QP // by number: for what concerns all, in an order that does not change from run to run
	groups map[netip.Addr][]*QP
	planes []plane
	timers timerq.Queue[QP]
	ctl    qpRing // QPs with an answer or a CNP to send
	rr     int    // plane whose turn is first
	busy   uint32 // planes whose queue to the wire is full

	in  rx
	out tx
	gsi gsi
	sum ib.Summer
	C   Counters
}

// plane is one port as the sender sees it.
type plane struct {
	up    bool
	ring  qpRing    // QPs that have something to send here
	free  mono.Time // when its transmitter is done with what it was given
	rem   uint64    // what free leaves out, in 1/rate ns
	ahead mono.Duration
	mtu   int // largest message of UD
	dcqcn cc.DCQCNConfig
}

// New makes an engine. It allocates all that the hot path needs.
func New(cfg Config, host transport.Host) *Engine {
	cfg.Planes = slices.Clone(cfg.Planes)
	cfg.setDefaults()
	e := &Engine{host: host, cfg: cfg, qps: map[uint32]*QP{}, groups: map[netip.Addr][]*QP{}, planes: make([]plane, len(cfg.Planes))}
	e.xrc, _ = host.(transport.XRCHost)
	for i := range e.planes {
		p, c := &e.planes[i], &cfg.Planes[i]
		p.up = true
		p.mtu = ibMTU(c.PacketMax - ib.UDOverhead)
		line := float64(c.RateBps)
		if line == 0 {
			line = defaultLine
		}
		if p.dcqcn = cc.PaperDCQCN(line); cfg.DCQCN != nil {
			p.dcqcn = *cfg.DCQCN
			p.dcqcn.Line = min(p.dcqcn.Line, line)
		}
		if c.RateBps > 0 {
			p.ahead = c.TimerNoise + wireTime((c.Burst-1)*c.PacketMax, c.RateBps)
		}
	}
	e.in.init()
	return e
}

// ibMTU is the largest path MTU of IBTA that fits n bytes, or 0.
func ibMTU(n int) int {
	for m := maxPayload; m >= 256; m /= 2 {
		if m <= n {
			return m
		}
	}
	return 0
}

func wireTime(bytes int, bps uint64) mono.Duration {
	return mono.Duration(uint64(bytes) * 8e9 / bps)
}

// tick moves the engine's clock. When the caller comes later than the engine asked for, the excess is time in which
// the loop did not run: it says nothing about the peer, so the clock stands still for it.
func (e *Engine) tick(now mono.Time) {
	if e.lastCall != 0 {
		expected := max(e.lastCall, mono.Min(e.lastNext, now))
		if late := now.Sub(expected); late > stallThreshold {
			e.offset += late
			e.C.Stalls++
		}
	}
	e.lastCall = now
	e.now = max(e.now, now.Add(-e.offset))
}

// HandleTimers runs everything that is due.
func (e *Engine) HandleTimers(now mono.Time) {
	e.tick(now)
	for e.timers.Next() <= e.now {
		q := e.timers.First()
		e.timers.Set(&q.due, never)
		q.onTimer()
	}
}

// NextTimeout is when HandleTimers and Transmit should be called next, or mono.Never.
func (e *Engine) NextTimeout() mono.Time {
	t := e.timers.Next()
	if e.ctl.n > 0 {
		t = e.now
	}
	if e.gsi.n > 0 {
		if _, at, ok := e.gsiPlane(); ok {
			t = mono.Min(t, max(at, e.now))
		} else {
			t = e.now
		}
	}
	for i := range e.planes {
		if p := &e.planes[i]; p.ring.n > 0 {
			t = mono.Min(t, max(p.free.Add(-p.ahead), e.now))
		}
	}
	if t != never {
		t = t.Add(e.offset)
	}
	e.lastNext = t
	return t
}

// SetBusy says which planes' queues to the wire are full, a bit each: requests and datagrams of QPs there wait for the next call.
func (e *Engine) SetBusy(planes uint32) { e.busy = planes }

// SetPlane reports a change of a plane's link. QPs move away from a plane that is down, and back.
func (e *Engine) SetPlane(now mono.Time, plane int, up bool) {
	e.tick(now)
	if plane < 0 || plane >= len(e.planes) || e.planes[plane].up == up {
		return
	}
	e.planes[plane].up = up
	for _, q := range e.list {
		q.settlePlane()
	}
}

// CreateQP makes a QP in RESET. qpn is the device's choice: 24 bits, unused, not 0 or 0xFFFFFF; 1 is for UD only.
func (e *Engine) CreateQP(qpn uint32, c QPConfig) *QP {
	if _, used := e.qps[qpn]; used || qpn == 0 || qpn >= ib.MulticastQPN || qpn == 1 && c.Type != transport.UD {
		panic("rocev2: QP number in use or reserved")
	}
	q := newQP(e, qpn, c)
	e.qps[qpn] = q
	i, _ := e.place(qpn)
	e.list = slices.Insert(e.list, i, q)
	return q
}

// place finds where a number is in the list, or belongs.
func (e *Engine) place(qpn uint32) (int, bool) {
	return slices.BinarySearchFunc(e.list, qpn, func(q *QP, n uint32) int { return int(q.qpn) - int(n) })
}

// QP returns the QP of a number, or nil.
func (e *Engine) QP(qpn uint32) *QP { return e.qps[qpn] }

// Attach lets a UD QP receive what is sent to a multicast group. It reports false when it did already.
func (e *Engine) Attach(q *QP, group netip.Addr) bool {
	if slices.Contains(e.groups[group], q) {
		return false
	}
	e.groups[group] = append(e.groups[group], q)
	q.groups++
	return true
}

// Detach ends Attach. It reports false when the QP was no member.
func (e *Engine) Detach(q *QP, group netip.Addr) bool {
	g := e.groups[group]
	i := slices.Index(g, q)
	if i < 0 {
		return false
	}
	q.groups--
	if g = slices.Delete(g, i, i+1); len(g) == 0 {
		delete(e.groups, group)
	} else {
		e.groups[group] = g
	}
	return true
}

// InFlight returns the request packets without an end, all QPs together; 0 when everything is quiet.
func (e *Engine) InFlight() (n int) {
	for _, q := range e.list {
		if q.typ != transport.UD && q.state >= StateRTS && q.state != StateErr {
			n += int(q.req.max - q.req.una)
		}
	}
	return n
}
