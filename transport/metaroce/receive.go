package metaroce

// The way in:
//  1. receive: decode, find the association by tag, check the sender, the path sequence and the age;
//  2. acknowledgements, probes and handshakes are handled at once; data becomes a job with memory operations;
//  3. commit (commit.go), after the burst: one DMA call, then in order what that unblocked, then the answers.

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

type jobKind uint8

const (
	jobRequest  jobKind = iota // a request packet at the responder
	jobResponse                // a response packet at the requester
)

// job is one data packet between its arrival and its answer.
type job struct {
	q         *QP
	a         *assoc
	rp        *rxPath
	psn       uint64
	rd        uint64 // a response's READ number
	op, nops  int32
	n         int
	path      uint16
	seq, ts   uint32
	flags     wire.Flags
	kind      jobKind
	ce        bool
	abandoned bool
	code      wire.RefusalCode
	scratch   [8]byte
	inc       uint32
}

// rx is the scratch of one call.
type rx struct {
	jobs    []job
	ops     []transport.MemOp
	touched []*QP
	chain   []chainStep
	tx      tx

	committing bool
	inv        [1]transport.MemOp
}

const (
	opsPerPacket = 8 // room that a packet needs to be worked on
	opsMax       = 8 * chainMax
)

func (o *rx) init() {
	o.jobs = make([]job, 0, chainMax)
	o.ops = make([]transport.MemOp, 0, opsMax)
	o.touched = make([]*QP, 0, chainMax)
	o.chain = make([]chainStep, 0, chainMax)
}

func (o *rx) full() bool   { return len(o.jobs) == cap(o.jobs) || o.opsLeft() < opsPerPacket }
func (o *rx) opsLeft() int { return cap(o.ops) - len(o.ops) }

// job begins the work on a packet.
func (o *rx) job(kind jobKind, q *QP, a *assoc, rp *rxPath, h *wire.Header, p *pkt.Packet) *job {
	o.jobs = o.jobs[:len(o.jobs)+1] // room is there, and commit left it empty
	j := &o.jobs[len(o.jobs)-1]
	j.kind, j.q, j.a, j.rp, j.op, j.inc = kind, q, a, rp, int32(len(o.ops)), q.inc
	j.path, j.seq, j.ts, j.flags, j.ce = h.Path, h.Seq, h.TS, h.Flags, p.TOS&pkt.ECNMask == pkt.CE
	if !q.touched {
		q.touched = true
		o.touched = append(o.touched, q)
	}
	return j
}

// op adds a memory operation of a QP and counts it. Who adds one has looked for room.
func (o *rx) op(n *int32, k transport.MemKind, q *QP) *transport.MemOp {
	o.ops = o.ops[:len(o.ops)+1]
	*n++
	op := &o.ops[len(o.ops)-1]
	*op = transport.MemOp{} // and not a literal: that is made elsewhere and copied
	op.Kind, op.QP = k, q.owner
	return op
}

// inWork reports whether a copy of the response is in this call already.
func (o *rx) inWork(q *QP, n uint64) bool {
	for i := range o.jobs {
		if j := &o.jobs[i]; j.kind == jobResponse && j.q == q && j.psn == n {
			return true
		}
	}
	return false
}

// decode looks at the checksum where there is one. Without it what is left of a trimmed packet must be known by its class.
func (e *Engine) decode(p *pkt.Packet, h *wire.Header) ([]byte, wire.Drop) {
	if !e.cfg.NoICRC {
		return wire.Decode(p.Data, h)
	}
	if dscp := p.TOS >> 2; dscp != 0 && (dscp == e.cfg.TrimDSCP || dscp == e.cfg.TrimLastDSCP) {
		return nil, wire.DropICRC
	}
	return wire.DecodeTrusted(p.Data, h)
}

// receive handles one packet.
func (e *Engine) receive(p *pkt.Packet) {
	var h wire.Header
	//= MR-WIRE-062 MR-GEN-002
	payload, d := e.decode(p, &h)
	if d != 0 {
		if !e.trimmed(p) {
			e.C.Drop[d]++
		}
		return
	}
	e.C.RxPackets++
	e.C.RxBytes += uint64(len(p.Data))
	if int(p.Plane) >= len(e.planeUp) {
		e.C.DropPlane++
		return
	}
	switch h.Op {
	case wire.OpHello:
		e.commit() // what arrived before a restart is answered before it
		e.onHello(p, &h, payload)
		return
	case wire.OpStale:
		e.onStale(p, payload)
		return
	default: // needs an association
	}
	//= MR-ASC-032 MR-WIRE-003
	a := e.tagged(h.Tag)
	if a == nil {
		//= MR-ASC-072 MR-ASC-040
		e.C.DropTag++
		e.sendStale(p, &h)
		return
	}
	//= MR-ASC-032
	if a.remote != p.Src || a.local != p.Dst {
		e.C.DropAddr++
		a.strayed(p, &h, payload)
		return
	}
	if a.state == assocIdle || a.txTag == 0 {
		e.C.DropTag++
		return
	}
	//= MR-ASC-048
	if a.newAt != 0 && a.beforeHello(h.TS) {
		e.C.DropFormer++
		return
	}
	e.enliven(a)
	if !a.notePeerClock(h.TS) {
		e.C.DropLeap++
		return
	}
	a.heard()
	switch {
	case h.Op == wire.OpAck:
		e.C.RxAcks++
		a.onAck(p, &h, payload)
	case h.Op == wire.OpProbe:
		e.onProbe(a, p, &h, payload)
	case h.Op == wire.OpProbeAck:
		e.onProbeAck(a, p, &h, payload)
	case h.Op.IsData():
		e.onData(a, p, &h, payload)
	default:
		e.C.Drop[wire.DropOpcode]++
	}
}

// onData checks the path sequence of a data packet and hands it to its QP.
func (e *Engine) onData(a *assoc, p *pkt.Packet, h *wire.Header, payload []byte) {
	rp := a.rx.path(h.Path)
	if rp == nil {
		e.C.DropPathID++
		return
	}
	a.rx.arrived(p, rp, h, len(p.Data))
	//= MR-REL-010
	dup, old := rp.seen.place(h.Seq)
	//= MR-REL-014 MR-REL-015
	if age := stampSpan(h.TS, a.peerTS); old || age > ageLimit {
		if old {
			e.C.DropOld++
		} else {
			e.C.DropAge++
		}
		return
	}
	//= MR-REL-010 MR-REL-013
	if dup { // the network made a copy, or the acknowledgement was lost: say again what we know
		e.C.DropDup++
		a.rx.dirtyPath(rp)
		a.rx.wantAck()
		return
	}
	if h.Op.IsRequest() {
		e.onRequest(a, rp, h, payload, p)
	} else {
		e.onResponse(a, rp, h, payload, p)
	}
}

// notePeerClock remembers the newest time stamp of the peer. Stamps wrap: after a silence, what comes next is the
// newest, whatever it looks like. The silence is measured by the caller's clock, as ours may have stood still. It
// reports false for a stamp that no clock can have reached since the last one: believed, it would make everything
// that really comes from the peer look too old. A clock that was moved is believed when it goes on for a while.
func (a *assoc) notePeerClock(ts uint32) bool {
	now := a.e.lastCall
	past := now.Sub(a.peerAt)
	if a.havePeTS && past <= clockTrust {
		ahead := stampSpan(a.peerTS, ts)
		//= MR-REL-018
		if ahead > past+ageLimit && !a.leapt(ts) {
			return false
		}
		//= MR-REL-015
		if a.leapAt = 0; ahead <= 0 {
			return true
		}
	}
	knew := a.havePeTS && past <= clockTrust
	a.peerTS, a.havePeTS, a.peerAt, a.leapAt = ts, true, now, 0
	if !knew {
		a.boundLives()
	}
	return true
}

// leapt reports whether the peer's clock has shown the new time for long enough.
func (a *assoc) leapt(ts uint32) bool {
	now := a.e.lastCall
	d := stampSpan(a.leapTS, ts)
	if a.leapAt == 0 || max(d, -d) > now.Sub(a.leapAt)+ageLimit {
		a.leapTS, a.leapAt = ts, now
	}
	return now.Sub(a.leapAt) >= leapTime
}

// onProbe answers a probe: a plane probe with its number, a question about a READ or atomic with what became of it.
func (e *Engine) onProbe(a *assoc, p *pkt.Packet, h *wire.Header, payload []byte) {
	var pr wire.Probe
	if d := wire.DecodeProbe(payload, &pr); d != 0 {
		e.C.Drop[d]++
		return
	}
	e.C.ProbesReceived++
	if pr.Kind == wire.ProbeQP {
		//= MR-MSG-096
		if q := e.qps[pr.QPN]; q != nil && q.a == a && q.before(h.TS) {
			e.C.DropStaleQP++
			return
		}
		e.answerQP(a, &pr)
	}
	c := e.ctl.answer()
	if c == nil {
		e.C.CtlOverflow++
		return
	}
	//= MR-PATH-050 MR-WIRE-091
	c.fill(a, int(p.Plane), wire.OpProbeAck, wire.PutProbe(c.buf[:], &pr, wire.ProbeLen))
	//= MR-PATH-054
	if p.TOS&^pkt.ECNMask == controlTOS && len(p.Data) <= shortProbe { // an answer that waited behind data would tell nothing of the way
		c.class = controlTOS
	}
}

// answerQP fills in what became of a READ or atomic.
func (e *Engine) answerQP(a *assoc, pr *wire.Probe) {
	q := e.qps[pr.QPN]
	//= MR-MSG-077
	pr.Answer = wire.AnswerUnknown
	if q == nil || q.a != a || q.state < StateRTR {
		return
	}
	s := &q.rsp
	psn := serial.PSN(pr.PSN & serial.PSNMask).Expand(s.exp)
	n := serial.Expand32(pr.ReadNo, s.nrd)
	switch {
	//= MR-MSG-077 MR-MSG-083
	case s.fatal != 0 && psn >= s.fatalPSN:
		pr.Answer, pr.Code, pr.PSN = wire.AnswerFailed, s.fatal, uint32(serial.Trunc(s.fatalPSN))
	case q.state == StateErr && s.fatal == 0:
	case psn >= s.slots.hi || psn >= s.exp && s.slots.at(psn).st == slotEmpty: // not here, whoever said so
	case psn >= s.exp || s.nreads > 0 && n >= s.oldestRead().n:
		pr.Answer = wire.AnswerPending
	default:
		for i := s.resps.lo; i < s.resps.hi; i++ {
			if s.resps.at(i).n == n {
				pr.Answer = wire.AnswerExecuted
				return
			}
		}
	}
}

// onProbeAck takes in the answer of a probe.
func (e *Engine) onProbeAck(a *assoc, p *pkt.Packet, h *wire.Header, payload []byte) {
	var pr wire.Probe
	if d := wire.DecodeProbe(payload, &pr); d != 0 {
		e.C.Drop[d]++
		return
	}
	if pr.Kind == wire.ProbeQP {
		//= MR-SEC-006
		if q := e.qps[pr.PeerQPN]; q != nil && q.a == a && q.remoteQPN == pr.QPN && !q.before(h.TS) {
			q.onProbeAnswer(&pr)
		}
		return
	}
	//= MR-PATH-052
	if x := e.probes.find(pr.ID); x != nil {
		if x.a == a && !x.queued && x.kind != probeMove && x.p.pl.idx == int(pr.Plane) && pr.Plane == p.Plane {
			if !x.done {
				a.noteAnswer(e.now.Sub(x.sent), e.now.Sub(x.sent))
			}
			a.planes[pr.Plane].heardNow()
			e.probes.end(e, x, true)
		}
		return
	}
	//= MR-PATH-052
	if int(pr.Plane) < len(a.planes) && pr.Plane == p.Plane {
		a.planes[pr.Plane].onProbeAck(pr.ID)
	}
}

// sendStale tells a sender that we do not know its tag; rate-limited, never longer than what it answers.
func (e *Engine) sendStale(p *pkt.Packet, h *wire.Header) {
	//= MR-ASC-040 MR-ASC-041 MR-SEC-005
	if e.now < e.ctl.staleAt || len(p.Data) < wire.MinPacket+8 {
		return
	}
	c := e.ctl.next()
	if c == nil {
		return
	}
	e.ctl.staleAt = e.now.Add(mono.Millisecond)
	e.C.StaleSent++
	*c = ctlPacket{src: p.Dst, dst: p.Src, plane: int(p.Plane), op: wire.OpStale, buf: c.buf}
	c.n = wire.PutStale(c.buf[:], h.Tag)
}
