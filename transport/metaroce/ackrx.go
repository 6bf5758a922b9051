package metaroce

import (
	"math/bits"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/wire"
)

// onAck takes in an acknowledgement. Refusals first: the numbers they name are received, not accepted.
func (a *assoc) onAck(p *pkt.Packet, h *wire.Header, payload []byte) {
	e := a.e
	var r wire.AckReader
	if d := r.Init(payload); d != 0 {
		e.C.Drop[d]++
		return
	}
	if r.Has(wire.BlockRefusal) {
		for t, ok := r.Next(); ok; t, ok = r.Next() {
			if t == wire.BlockRefusal {
				var f wire.RefusalBlock
				r.Refusal(&f)
				a.onRefusal(&f, h.TS)
			}
		}
		r.Rewind()
	}
	for t, ok := r.Next(); ok; t, ok = r.Next() {
		switch t {
		case wire.BlockPath:
			var b wire.PathBlock
			r.Path(&b)
			a.onPathBlock(&b)
		case wire.BlockPlane:
			var b wire.PlaneBlock
			r.Plane(&b)
			if int(b.Plane) < len(a.planes) {
				pl := &a.planes[b.Plane]
				pl.takeGrant(b.Grant, h.TS)
			}
		case wire.BlockQP:
			var b wire.QPBlock
			r.QP(&b)
			//= MR-REL-033 MR-MSG-096 MR-SEC-006
			if q := e.qps[b.QPN]; q != nil && q.a == a && !q.before(h.TS) && (q.state == StateRTS || q.state == StateSQD) {
				q.onLimit(b.Limit)
			}
		case wire.BlockTrim:
			var b wire.TrimBlock
			r.Trim(&b)
			a.onTrim(&b)
		default: // refusals were taken above
		}
	}
	if int(p.Plane) < len(a.planes) {
		a.planes[p.Plane].heardNow()
	}
	a.silentPlanes()
	a.timeRule()
	a.reschedule()
}

// takeGrant obeys the newest grant: an ACK that was overtaken by a later one says nothing more.
func (pl *planeTx) takeGrant(grant, ts uint32) {
	now := pl.a.e.lastCall
	//= MR-CC-011
	if pl.grantAt != 0 && now.Sub(pl.grantAt) <= clockTrust && serial.U32(ts).Less(serial.U32(pl.grantTS)) {
		return
	}
	pl.grant, pl.grantTS, pl.grantAt = int(min(max(grant, minCharge), 1<<30)), ts, now
}

// txPathOf returns our path of an id that the peer names, or nil.
func (a *assoc) txPathOf(id uint16) *txPath {
	plane, i := int(id>>8), int(id&0xff)
	if plane >= len(a.planes) || i >= maxPaths {
		return nil
	}
	return a.planes[plane].paths[i]
}

// onRefusal parks or fails what the peer did not accept.
func (a *assoc) onRefusal(f *wire.RefusalBlock, ts uint32) {
	e := a.e
	e.C.RefusalsReceived++
	if f.Code.Reaction() == wire.Ignore { // advice of a later version: its packet is acknowledged, or goes again
		return
	}
	var q *QP
	var psn uint64
	var sent mono.Time
	fresh, known := false, false
	if p := a.txPathOf(f.Path); p != nil {
		if i, r := e.find(p, f.Seq); r != nil {
			//= MR-REL-033 MR-MSG-096
			fresh, known = r.q.inc == r.inc && r.kind == txRequest, true
			q, psn, sent = r.q, r.psn, r.sent
			late := r.state == recLost
			p.noteAcked(late)
			p.pl.noteSize(int(r.size), false)
			//= MR-MSG-063 MR-MSG-089 MR-REL-005
			e.dropRec(i)
			p.pl.acked++
			p.pl.delivered()
			p.advance(e)
			if fresh && late && psn >= q.req.una && psn < q.req.next {
				q.req.ps.at(psn).out++ // it was taken off when it was called lost
			}
		}
	}
	//= MR-WIRE-075 MR-MSG-090
	if f.Code.Reaction() == wire.Fail && (fresh || !known) {
		//= MR-SEC-006
		if fq := e.qps[f.QPN]; fq != nil && fq.a == a && !fq.before(ts) {
			fq.onFailed(f)
		}
	}
	if fresh && f.QPN != q.qpn && f.QPN != 0 { // the number that we speak to belongs to the peer of another QP now
		f.Code = wire.RefuseNoQP
	}
	if fresh && planted.Is(planted.RefusalAsDelivered) {
		q.onAcked(txRequest, psn, true)
		return
	}
	if fresh && f.Code == wire.RefuseRNR {
		e.C.RNRReceived++
	}
	if fresh { // a fatal one that did not settle it, too: the packet goes again
		q.onRefused(psn, f, sent)
	}
}

// names reports whether a block says that a sequence arrived.
func names(b *wire.PathBlock, seq uint32) bool {
	d := b.Highest - seq
	return d == 0 || (bits128{b.Bitmap[0], b.Bitmap[1]}).has(d-1)
}

// onPathBlock ends the transmissions that a block names as arrived.
func (a *assoc) onPathBlock(b *wire.PathBlock) {
	e := a.e
	p := a.txPathOf(b.Path)
	//= MR-REL-031 MR-ASC-070
	if p == nil || serial.U32(p.next).LessEq(serial.U32(b.Highest)) || p.hasSkip && names(b, p.skipped) {
		// a number that was never sent: the peer is making it up, or this is not our peer any more
		e.C.AckViolations++
		if !a.loopback {
			a.reopen()
		}
		return
	}
	if serial.U32(p.next).Sub(serial.U32(b.Highest)) > pathRing-ackBits {
		return // ancient
	}
	//= MR-REL-030
	news := p.known.merge(b.Highest, bits128{b.Bitmap[0]<<1 | 1, b.Bitmap[1]<<1 | b.Bitmap[0]>>63})
	bytes, tooLate := 0, false
	var newest mono.Time
	for w := range 2 {
		word := news.lo
		if w == 1 {
			word = news.hi
		}
		for ; word != 0; word &= word - 1 {
			seq := b.Highest - uint32(w*64+bits.TrailingZeros64(word))
			i, r := e.find(p, seq)
			//= MR-REL-031
			if r == nil {
				continue
			}
			size, sent, late := e.ack(i, r)
			p.noteAcked(late)
			p.pl.noteSize(size, false)
			if late {
				a.wasSpurious(p, sent)
				tooLate = true
				continue
			}
			bytes += size
			newest = max(newest, sent)
			p.pl.acked++
		}
	}
	p.advance(e)
	if bytes == 0 && !tooLate {
		return
	}
	a.rackT = max(a.rackT, newest)
	a.sample(p, b, bytes)
	a.gapRule(p)
}

// wasSpurious widens the loss rules: a packet that was called lost had arrived.
// When the news come much later than the rules would have waited, it was the acknowledgement that got lost.
func (a *assoc) wasSpurious(p *txPath, sent mono.Time) {
	a.e.C.SpuriousLosses++
	p.pl.spurious++
	if a.e.now.Sub(sent) > 2*a.spread(p, p.pl.noise/8) {
		return
	}
	//= MR-REL-043
	p.tol, p.tolAt = min(2*p.tol, maxTolerance), a.e.now
	if a.e.now.Sub(a.widenAt) > a.srtt {
		a.widen = min(a.widen+0.5, timeWidenMax)
		a.widenAt = a.e.now
	}
}

// sample takes a round trip from a block that newly acknowledges, and steers by it.
func (a *assoc) sample(p *txPath, b *wire.PathBlock, bytes int) {
	e, pl := a.e, p.pl
	now := e.now
	pl.delivered()
	ce := b.CE != p.ce
	p.ce = b.CE
	if ce {
		e.C.AcksMarked++
	}
	span := stampSpan(b.Echo, e.stamp())
	rtt := span - mono.Duration(b.Hold)<<4
	//= MR-REL-032
	if rtt <= 0 || rtt >= rttMax {
		pl.win.OnAck(cc.Sample{Now: now, Bytes: bytes, CE: ce})
		pl.cwnd = pl.win.Window()
		return
	}
	a.noteAnswer(span, rtt)
	update := func(s, v *mono.Duration, shift uint) {
		if *v == 0 { // first sample
			*s, *v = rtt, max(rtt/2, 1)
			return
		}
		d := rtt - *s
		*s += d >> shift
		*v = max(*v+(max(d, -d)-*v)>>(shift-1), 1) // 0 says that there is no sample
	}
	update(&p.srtt, &p.rttvar, 3)
	update(&a.srtt, &a.rttvar, 4)
	pl.noteBase(rtt)
	if now.Sub(a.widenAt) > 30*a.srtt && a.widen > 0 { // the widening decays
		a.widen = max(0, a.widen-0.5)
		a.widenAt = now
	}
	if p.tol > gapTolerance && now.Sub(p.tolAt) > 30*a.srtt { // and so does the tolerance
		p.tol, p.tolAt = max(p.tol/2, gapTolerance), now
	}
	q := float64(rtt - pl.base)
	pl.avgq += (q - pl.avgq) / 16
	p.marked(ce, q)
	full := 10*(pl.inflight+bytes) >= 7*pl.cwnd
	pl.win.OnAck(cc.Sample{Now: now, Bytes: bytes, RTT: rtt, Base: pl.base, CE: ce, Full: full})
	pl.cwnd = pl.win.Window()
	// a mark does not matter: where all ways are marked none would be left but random ones (a path that is to rest is
	// passed over when its turn comes)
	//= MR-PATH-021
	if pl.recycle.len() < recycleMax && q <= max(recycleDelay*pl.avgq, float64(a.srtt)/recycleShort) {
		pl.recycle.push(uint64(p.id & 0xff))
	}
}

// sending is how much longer than a probe a full packet takes over four links of the port's rate. Full probes would
// measure it, and many at once each other's queue.
func (pl *planeTx) sending() mono.Duration {
	rate := pl.a.e.cfg.Planes[pl.idx].RateBps
	if rate == 0 {
		return 0
	}
	return mono.Duration(4 * float64(pl.packetMax) * 8e9 / float64(rate))
}

// noteBase keeps the smallest round trip of the last two periods. One of our own queue is no base: before a period ends with
// a larger one, the plane's window is small for two round trips, and what these bring counts.
func (pl *planeTx) noteBase(rtt mono.Duration) {
	now := pl.a.e.now
	switch {
	case pl.drain != 0 && now >= pl.drain:
		pl.base, pl.baseNext, pl.baseAt, pl.drain = min(pl.baseNext, rtt), rtt, now, 0
	case pl.drain == 0 && now.Sub(pl.baseAt) > basePeriod:
		//= MR-CC-009
		if slack := max(pl.base/8, pl.delayFloor()/2); pl.base > 0 && pl.baseNext > pl.base+slack {
			pl.drain = now.Add(min(2*pl.a.srtt+pl.a.hold, drainMost))
		} else {
			pl.base, pl.baseNext, pl.baseAt = pl.baseNext, rtt, now
		}
	}
	if pl.base == 0 || rtt < pl.base {
		pl.base = rtt
	}
	if pl.baseNext == 0 || rtt < pl.baseNext {
		pl.baseNext = rtt
	}
}
