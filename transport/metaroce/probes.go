package metaroce

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// Probes beside those that bring a failed plane back (loss.go): of one path's health, of the base round trip, of the
// largest packet, and those that people ask for. Each has an entry here until it is answered or given up.

type probeKind uint8

const (
	probeNone   probeKind = iota
	probeHealth           // may a path in quarantine carry data again? As long as data
	probeBase             // the round trip without queues: short, in the control class
	probeMTU              // does a packet of this length get through?
	probeNamed            // somebody wants to know
	probeMove             // is the peer at another address now?
)

// probe is one probe under way, or the result of a named one.
type probe struct {
	id       uint32
	kind     probeKind
	queued   bool // not sent yet
	done     bool
	answered bool
	a        *assoc
	p        *txPath
	to       netip.Addr // probeMove
	port     uint16
	size     int // BTH … ICRC
	tos      uint8
	sent     mono.Time
	deadline mono.Time
	wait     mono.Duration
	rtt      mono.Duration
}

const (
	probeSlots = 256     // power of two
	probeMark  = 1 << 31 // in the ID: not one of those that loss.go counts
)

// probeTable holds the probes of an engine. The oldest goes when it is full.
type probeTable struct {
	s      [probeSlots]probe
	n      uint32 // probes ever started
	queued int
	due    mono.Time // first deadline; never = none
}

// start queues a probe on a path. size 0: as short as it can be.
func (t *probeTable) start(e *Engine, p *txPath, kind probeKind, size int, wait mono.Duration) *probe {
	x := &t.s[t.n%probeSlots]
	if x.kind != probeNone && !x.done {
		t.evict(e, x)
	}
	*x = probe{id: probeMark | e.secret.Uint32()&^probeMark&^(probeSlots-1) | t.n%probeSlots, kind: kind, queued: true, a: p.pl.a, p: p, port: p.srcPort, size: size, tos: pkt.ECT0, wait: wait,
		deadline: e.now.Add(wait)}
	if kind == probeBase {
		x.tos = controlTOS | pkt.ECT0
	}
	t.n++
	t.queued++
	t.due = mono.Min(t.due, x.deadline)
	return x
}

// full reports whether the next probe would push out one under way.
func (t *probeTable) full() bool {
	x := &t.s[t.n%probeSlots]
	return x.kind != probeNone && !x.done
}

// evict ends a probe whose place is needed. That it was not answered says nothing.
func (t *probeTable) evict(e *Engine, x *probe) {
	switch x.kind {
	case probeNamed, probeMove:
		t.end(e, x, false)
		return
	case probeMTU:
		x.p.pl.mtu.out = max(x.p.pl.mtu.out-1, 0)
		x.a.care(e.now)
	default: // asked again by its own timer
	}
	if x.queued {
		t.queued--
	}
	*x = probe{}
}

// find returns the probe of an ID, or nil.
func (t *probeTable) find(id uint32) *probe {
	if id&probeMark == 0 {
		return nil
	}
	if x := &t.s[id%probeSlots]; x.kind != probeNone && x.id == id {
		return x
	}
	return nil
}

// end notes what became of a probe. Results of named ones stay until their place is needed.
func (t *probeTable) end(e *Engine, x *probe, answered bool) {
	if x.done {
		return
	}
	if x.queued {
		x.queued = false
		t.queued--
	}
	x.done, x.answered = true, answered
	if answered {
		e.C.ProbesAnswered++
		x.rtt = e.now.Sub(x.sent)
	}
	a, p, kind, size := x.a, x.p, x.kind, x.size
	switch kind {
	case probeHealth:
		p.healthAnswer(answered)
	case probeBase:
		if answered {
			p.pl.noteBase(max(x.rtt, 1) + p.pl.sending())
		} else { // round trips of data say too much until the next one: queues are in them
			p.pl.baseDue = e.now // it was waited for: they do not come thick and fast
			a.care(e.now)
		}
	case probeMTU:
		p.pl.mtuAnswer(size, answered)
	case probeMove:
		a.moveAnswer(x.to, answered)
	case probeNamed:
		a.release()
		return
	case probeNone:
	}
	*x = probe{}
}

// expire gives up what is not answered in time.
func (t *probeTable) expire(e *Engine) {
	if e.now < t.due {
		return
	}
	t.due = never
	for i := range t.s {
		x := &t.s[i]
		if x.kind != probeNone && !x.done && x.deadline <= e.now {
			t.end(e, x, false)
		}
	}
	for i := range t.s {
		if x := &t.s[i]; x.kind != probeNone && !x.done {
			t.due = mono.Min(t.due, x.deadline)
		}
	}
}

// drop forgets the probes of an association, or of its paths only.
func (t *probeTable) drop(a *assoc, all bool) {
	for i := range t.s {
		x := &t.s[i]
		if x.a != a || x.done || !all && x.kind == probeNamed {
			continue
		}
		if x.queued {
			t.queued--
		}
		*x = probe{}
	}
}

// send writes the probes that wait.
func (t *probeTable) send(e *Engine, b *pkt.Batch) {
	for i := uint32(0); i < probeSlots && t.queued > 0 && !b.Full(); i++ {
		x := &t.s[(t.n+i)%probeSlots] // oldest first
		if !x.queued || x.a.state != assocUp {
			continue
		}
		x.queued = false
		t.queued--
		x.sent = e.now
		if x.kind != probeNamed { // a named one's time runs from when it was asked for
			x.deadline = e.now.Add(x.wait)
			t.due = mono.Min(t.due, x.deadline)
		}
		e.writeProbe(b.Next(), x)
	}
}

func (e *Engine) writeProbe(out *pkt.Packet, x *probe) {
	a, pl := x.a, x.p.pl
	//= MR-PATH-051
	h := wire.Header{Op: wire.OpProbe, PKey: 0xFFFF, Tag: a.txTag, Path: x.p.id, Version: wire.Version, TS: e.stamp()}
	hdrLen := h.Size()
	//= MR-PATH-033 MR-PATH-070
	n := max((min(x.size, len(out.Buf)-pkt.Headroom)-hdrLen-wire.ICRCLen)&^3, wire.ProbeLen)
	pr := wire.Probe{Kind: wire.ProbePath, Plane: uint8(pl.idx), ID: x.id}
	if x.kind == probeMTU {
		pr.Kind = wire.ProbeMTU
	}
	wire.PutProbe(out.Buf[pkt.Headroom+hdrLen:], &pr, n)
	e.sealPacket(out, &h, hdrLen, n)
	//= MR-WIRE-002 MR-PATH-054
	out.Plane, out.Src, out.Dst, out.SrcPort, out.TOS = uint8(pl.idx), a.local, a.remote, x.port, x.tos
	if x.kind == probeMove {
		out.Dst = x.to
	}
	e.C.ProbesSent++
}
