package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport/wire"
)

// A QP number may get a new life while packets of its former one are still in the network. Numbers of packets and of
// messages begin anew and programs often choose the same, so nothing in an old packet says that it is old, but its time
// stamp: what the peer sent before the new life began is none of it. When that was by the peer's clock cannot be known
// exactly. It is taken to be the latest that the clock can have shown: too late does no harm, as what is refused is
// sent again with a new stamp.

const (
	formerMin  = 256 // lives remembered before old ones are looked for
	guessMin   = 10 * mono.Millisecond
	stampUnit  = 16 * mono.Nanosecond
	driftShift = 11 // the peer's clock may go faster by one in 2,048
)

// endLife remembers when the life of a QP number ended, or, of one that was not able to receive yet, when a peer spoke to
// it: that may begin anew before it is.
func (e *Engine) endLife(qpn uint32) {
	if len(e.former) >= e.formerMax {
		for n, at := range e.former {
			if e.now.Sub(at) > lateWord {
				delete(e.former, n)
			}
		}
		e.formerMax = max(formerMin, 2*len(e.former))
	}
	e.former[qpn] = e.now
}

// beginLife notes which packets of the peer belong to a former life of the QP number, if it had one of late.
func (q *QP) beginLife() {
	at, ok := q.e.former[q.qpn]
	//= MR-MSG-095
	q.lived = ok && q.e.now.Sub(at) <= lateWord
	q.boundLife()
}

// boundLife takes the bound, where anything is known of the peer's clock.
func (q *QP) boundLife() {
	if q.lived && !q.haveMinTS {
		q.minTS, q.haveMinTS = q.a.latest()
	}
}

// boundLives does so for the QPs that began before anything was known.
func (a *assoc) boundLives() {
	for _, q := range a.qps {
		//= MR-MSG-095
		q.boundLife()
	}
}

// before reports whether the peer sent something before this life of the QP number began. What is older than packets can
// be in the network is not asked about: stamps wrap.
func (q *QP) before(ts uint32) bool {
	if q.lived && q.e.now.Sub(q.boundAt) > lateWord {
		q.lived, q.haveMinTS = false, false
	}
	return q.haveMinTS && serial.U32(ts).Less(serial.U32(q.minTS))
}

// beforeHello reports whether the peer sent something before the HELLO that told of its present instance or tag: then the
// former one did, under the tag of ours that both know. What is older than packets can be in the network is not asked about.
func (a *assoc) beforeHello(ts uint32) bool {
	if a.e.lastCall.Sub(a.newAt) > lateWord {
		a.newAt = 0
		return false
	}
	d := stampSpan(ts, a.newTS)
	return d > 0 && d <= lateWord
}

// noteAnswer takes a bound of the peer's clock from an answer that came span after its question, of which rtt was on the way.
func (a *assoc) noteAnswer(span, rtt mono.Duration) {
	if a.e.now.Sub(a.e.stalledAt) > span+2*stampUnit { // else more time has passed than our clock says
		a.noteCeiling(a.peerTS, rtt)
	}
}

// noteCeiling bounds the peer's clock from above: the answer that has just come with stamp ts, or an older one, took rtt in
// all, so the clock cannot have gone on for longer than that since it was sent. A clock that stands still, as ours does with its loop, only falls
// behind the bound.
func (a *assoc) noteCeiling(ts uint32, rtt mono.Duration) {
	now := a.e.lastCall
	c := ts + units(rtt+4*stampUnit) // stamps are cut off
	if a.ceilAt == 0 || now.Sub(a.ceilAt) > clockTrust || serial.U32(c).Less(serial.U32(a.ceiling(now))) {
		a.ceilTS, a.ceilAt = c, now
	}
}

// ceiling is the bound at a time.
func (a *assoc) ceiling(now mono.Time) uint32 {
	d := now.Sub(a.ceilAt)
	return a.ceilTS + units(d+d>>driftShift)
}

// latest is the latest that the peer's clock can show now. Without a round trip that bounds it, the last one seen must
// do, and much more than an answer usually takes; it may have waited for our loop, too.
func (a *assoc) latest() (ts uint32, ok bool) {
	now := a.e.lastCall
	if a.loopback {
		return a.e.stamp() + 1, true
	}
	past := now.Sub(a.peerAt)
	if !a.havePeTS || past > clockTrust {
		return 0, false
	}
	if a.ceilAt != 0 && now.Sub(a.ceilAt) <= clockTrust {
		return a.ceiling(now) + 1, true
	}
	past += max(4*(a.srtt+4*a.rttvar), guessMin)
	if a.peerAt == a.e.lateAt {
		past += a.e.lateBy
	}
	return a.peerTS + units(past) + 1, true
}

// units is a time in units of the wire, rounded up.
func units(d mono.Duration) uint32 { return uint32((d + 15) >> 4) }

// forgetFailures takes back what was still to be said of a QP's failure: after its end another one may have its number,
// at both ends. What arrived has arrived.
func (r *assocRx) forgetFailures(q *QP) {
	//= MR-MSG-097
	keep := r.refusals[:0]
	for _, f := range r.refusals {
		if f.b.QPN == q.remoteQPN && f.b.Code.Reaction() == wire.Fail {
			if f.b.Path == 0xFFFF {
				continue
			}
			f.b.Code, f.b.PSN = wire.RefuseNoQP, 0
		}
		keep = append(keep, f)
	}
	r.refusals = keep
}
