package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// Loss is declared by the sender only:
//   - gapRule: enough later packets of the same path and entropy were acknowledged;
//   - timeRule: it was sent clearly before a packet that was acknowledged, on whatever path (RACK, RFC 8985);
//   - timeout: nothing was heard of it for a probe time; it goes again, on another plane;
//   - planeFailed: its plane fell silent while another one was heard.

// gapRule looks behind the newest acknowledged sequence of a path.
func (a *assoc) gapRule(p *txPath) {
	e := a.e
	hi := p.known.hi
	for seq := p.una; serial.U32(seq + p.tol).LessEq(serial.U32(hi)); seq++ {
		i, r := e.find(p, seq)
		//= MR-PATH-012 MR-REL-040
		if r == nil || r.state != recOut || serial.U32(seq).Less(serial.U32(p.genStart)) {
			continue
		}
		e.C.LostGap++
		e.lose(i)
	}
	p.advance(e)
}

// spread is how much later than expected a packet may be, by what is known of round trips.
func (a *assoc) spread(p *txPath, floor mono.Duration) mono.Duration {
	v := max(4*max(min(p.rttvar, 2*a.rttvar), a.rttvar), a.srtt/8, floor)
	if a.rttvar == 0 {
		v = max(v, a.srtt)
	}
	return max(p.srtt, a.srtt) + mono.Duration(float64(v)*(1+a.widen))
}

// timeRule calls lost what was sent clearly before something that has arrived.
func (a *assoc) timeRule() {
	e := a.e
	for i := range a.planes {
		pl := &a.planes[i]
		for n := pl.head; n != 0; {
			r := &e.recs[n]
			next := r.next
			if r.sent >= a.rackT {
				break
			}
			//= MR-REL-041
			d := a.spread(r.path, pl.noise/8) + a.hold
			if r.sent.Add(d) > e.now {
				break
			}
			e.C.LostTime++
			p := r.path
			e.lose(n)
			p.advance(e)
			n = next
		}
	}
}

// probeTime is when a packet without any answer goes again: srtt + spread + the peer's longest ack hold.
func (pl *planeTx) probeTime(p *txPath) mono.Duration {
	a := pl.a
	//= MR-REL-042 MR-REL-044
	return (a.spread(p, pl.noise/4) + a.hold) << min(max(pl.timeouts-3, 0), 6)
}

// lossDue is when the oldest packet in flight on the plane may be called lost.
func (pl *planeTx) lossDue() mono.Time {
	a := pl.a
	r := &a.e.recs[pl.head]
	t := r.sent.Add(pl.probeTime(r.path))
	if r.sent < a.rackT {
		t = mono.Min(t, r.sent.Add(a.spread(r.path, pl.noise/8)+a.hold))
	}
	return max(t, a.e.now+1)
}

// onTimer handles timeouts, silence and probes of one plane.
func (pl *planeTx) onTimer() {
	a, e := pl.a, pl.a.e
	now := e.now
	if pl.head != 0 && pl.state == planeActive {
		r := &e.recs[pl.head]
		if d := pl.probeTime(r.path); r.sent.Add(d) <= now {
			pl.timedOut++
			pl.timeouts++
			switch {
			case pl.timeouts <= 6:
				pl.timeout(d)
			case a.users == 0: // nobody here to ask again, or to whom the plane matters
				pl.loseAll()
				pl.timeouts = 0
			default: // no plane speaks: this one is probed, data would only pile up
				a.planeFailed(pl, "no answer")
			}
		}
	}
	if pl.state == planeProbing && pl.probeAt <= now && !pl.probeWant {
		pl.probeTimer()
	}
}

// timeout gives up what is older than the probe time. A peer that stays away is not flooded: the probe time backs
// off, and after a few times the plane is only probed (silent).
func (pl *planeTx) timeout(d mono.Duration) {
	e := pl.a.e
	for n := pl.head; n != 0; {
		r := &e.recs[n]
		next := r.next
		//= MR-REL-042
		if r.sent.Add(d) > e.now {
			return
		}
		e.C.LostTimeout++
		if r.kind == txRequest && r.q.inc == r.inc {
			r.q.timedOut(r.psn)
		}
		p := r.path
		e.lose(n)
		p.advance(e)
		n = next
	}
}

// silence is how long a plane may say nothing after it was sent something.
func (pl *planeTx) silence() mono.Duration {
	a := pl.a
	v := max(4*a.rttvar, a.srtt/8, pl.noise) // the whole noise: on shared cores one plane is served later than the others
	if a.rttvar == 0 {
		v = max(v, a.srtt)
	}
	return a.srtt + mono.Duration(float64(v)*(1+a.widen)) + a.hold
}

// silentAfter is how many packets without any answer make the plane suspect: more on one that loses many anyway, where
// a burst may take a whole small window.
func (pl *planeTx) silentAfter() int {
	//= MR-PATH-030
	if pl.lossMean > silentLossy {
		return 4 * silentPackets
	}
	return silentPackets
}

// silentPlanes finds the planes that say nothing while another one is heard: all that is in flight there moves.
func (a *assoc) silentPlanes() {
	if len(a.planes) == 1 || a.users == 0 { // without a QP nothing goes again that would bring an answer
		return
	}
	now := a.e.now
	for i := range a.planes {
		pl := &a.planes[i]
		//= MR-PATH-030
		if pl.state != planeActive || pl.asked < pl.silentAfter() {
			continue
		}
		d := pl.silence()
		if pl.grant < silentGrant || a.rttvar > a.srtt/4 { // a queue that is full for many senders looks like this, too
			d *= silentPatient
		}
		if now.Sub(pl.askedAt) < d {
			continue
		}
		for k := range a.planes {
			if o := &a.planes[k]; k != i && o.state == planeActive && now.Sub(o.lastHeard) < d/2 {
				a.planeFailed(pl, "silent")
				break
			}
		}
	}
}

// planeFailed moves everything in flight on a plane elsewhere at once and begins to probe it.
func (a *assoc) planeFailed(pl *planeTx, _ string) {
	if pl.state != planeActive {
		return
	}
	e := a.e
	pl.state, pl.failedAt, pl.probeAt = planeProbing, e.now, never
	pl.failures++
	e.C.PlaneFailures++
	//= MR-PATH-031
	pl.loseAll()
	pl.cur, pl.curLeft, pl.askedAt, pl.asked, pl.nextSend = nil, 0, 0, 0, 0
	pl.forgetLoss()
	e.host.Event(transport.Event{Kind: transport.EventPlaneDown, Peer: a.name, Plane: pl.idx})
	a.startProbing(pl)
}

// loseAll calls lost what is in flight on the plane.
func (pl *planeTx) loseAll() {
	e := pl.a.e
	for pl.head != 0 {
		n := pl.head
		p := e.recs[n].path
		e.C.LostPlane++
		e.lose(n)
		p.advance(e)
	}
}

// startProbing sends probes on a failed plane from now on; the first one at once.
func (a *assoc) startProbing(pl *planeTx) {
	if pl.state != planeProbing {
		return
	}
	if pl.probeAt == never { // else it is under way: what was answered counts
		pl.probeOut, pl.probeSeen = 0, 0
	}
	//= MR-PATH-032
	pl.probeAt, pl.probeGap, pl.probeTries = a.e.now, pl.firstGap(), 0
	a.reschedule()
}

// linkUp reports whether there is a wire: that to ourselves is always there.
func (pl *planeTx) linkUp() bool { return pl.a.loopback || pl.a.e.planeUp[pl.idx] }

func (pl *planeTx) probeTimer() {
	e := pl.a.e
	if !pl.linkUp() || pl.a.users == 0 { // nothing gets through, or nobody asks: SetPlane or attach begin anew
		pl.probeAt = never
		return
	}
	if pl.mtu.silent++; pl.mtu.silent >= mtuPlane {
		//= MR-PATH-071
		pl.mtu.silent = 0
		pl.checkMTU()
	}
	pl.probeID++
	pl.probeOut, pl.probeSeen, pl.probeWant = pl.probeOut<<1, pl.probeSeen<<1, true
	pl.a.heat()
	pl.probeAt = e.now.Add(pl.probeGap + pl.noise)
	//= MR-PATH-032
	switch pl.probeTries++; {
	case pl.probeGap < probeFirst && pl.probeTries >= probeHasty:
		pl.probeGap, pl.probeTries = min(2*pl.probeGap, probeFirst), 0
	case pl.probeGap >= probeFirst && pl.probeTries >= probeEager:
		pl.probeGap = min(2*pl.probeGap, probeMax)
	}
}

// firstGap is the time between the first probes: a plane that a burst of losses made silent is back at once.
func (pl *planeTx) firstGap() mono.Duration { return min(2*pl.silence(), probeFirst) }

// onProbeAck counts answered probes; two in a row bring the plane back with a small window. An answer may come when
// later probes are out: the round trip may be longer than the time between them.
func (pl *planeTx) onProbeAck(id uint32) {
	e := pl.a.e
	d := pl.probeID - id
	//= MR-PATH-052
	if d >= 64 || pl.probeOut>>d&1 == 0 { // not asked, or answered already
		return
	}
	e.C.ProbesAnswered++
	pl.probeOut &^= 1 << d
	pl.probeSeen |= 1 << d
	pl.mtu.silent = 0
	pl.heardNow()
	if pl.state != planeProbing || !pl.linkUp() {
		return
	}
	//= MR-PATH-034
	// A plane that answers probes and loses all data must not come and go with every round trip.
	back := pl.failedAt.Add(min(probeFirst<<min(pl.vain, 10), downMax))
	if pl.vain == 0 {
		back = e.now
	}
	if pl.probeSeen&(pl.probeSeen>>1) == 0 || e.now < back {
		pl.probeAt, pl.probeGap, pl.probeTries = max(back, e.now), pl.firstGap(), 0
		pl.a.reschedule()
		return
	}
	pl.state, pl.probeAt, pl.timeouts = planeActive, never, 0
	pl.vain++
	//= MR-PATH-034
	pl.setWindow(8 * maxPayload)
	e.C.PlaneReturns++
	e.host.Event(transport.Event{Kind: transport.EventPlaneUp, Peer: pl.a.name, Plane: pl.idx})
	for _, q := range pl.a.qps {
		q.wake()
	}
	pl.a.reschedule()
}

// delivered notes that the peer received data on the plane, accepted or refused.
func (pl *planeTx) delivered() {
	pl.heardNow()
	pl.timeouts, pl.vain = 0, 0
}

func (pl *planeTx) heardNow() { pl.lastHeard, pl.askedAt, pl.asked = pl.a.e.now, 0, 0 }

// sendProbes writes the probes that are due, padded to the data MTU: a plane that loses only large packets is dead.
func (a *assoc) sendProbes(b *pkt.Batch) {
	e := a.e
	for i := range a.planes {
		pl := &a.planes[i]
		if !pl.probeWant || b.Full() {
			continue
		}
		pl.probeWant = false
		pl.probeOut |= 1
		out := b.Next()
		p := pl.path(pl.randomPath())
		//= MR-PATH-051
		h := wire.Header{Op: wire.OpProbe, PKey: 0xFFFF, Tag: a.txTag, Path: p.id, Version: wire.Version, TS: e.stamp()}
		hdrLen := h.Size()
		//= MR-PATH-033
		n := (min(pl.packetMax, len(out.Buf)-pkt.Headroom) - hdrLen - wire.ICRCLen) &^ 3
		pr := wire.Probe{Kind: wire.ProbePath, Plane: uint8(pl.idx), ID: pl.probeID}
		wire.PutProbe(out.Buf[pkt.Headroom+hdrLen:], &pr, n)
		e.sealPacket(out, &h, hdrLen, n)
		//= MR-WIRE-002
		out.Plane, out.Src, out.Dst, out.SrcPort, out.TOS = uint8(pl.idx), a.local, a.remote, p.srcPort, pkt.ECT0
		e.C.ProbesSent++
		a.reschedule() // for the next one
	}
}
