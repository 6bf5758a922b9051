package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport/wire"
)

// rxPath is what a receiver knows of one path of the peer, on first use.
//
// It fills one line of the processor's cache.
type rxPath struct {
	seen    seqWindow // processed, refused or not: each number is processed once; own: the path's id
	ok      seqWindow // accepted; own: how many acks still have to carry its news
	arrived mono.Time
	echo    uint32 // time stamp of the newest accepted packet
	ce      uint32
	top     uint32 // highest sequence that came, processed or not
	came    bool   // one has
}

// assocRx is the receiving side of an association: what has to be told to the peer.
type assocRx struct {
	a        *assoc
	paths    [maxPlanes][]*rxPath
	dirty    []*rxPath
	refusals []refusal
	trims    []wire.TrimBlock
	limits   []*QP
	planes   [maxPlanes]rxPlane
	count    int    // data packets since the last ack
	got      uint32 // data packets of the association; wraps
	ackNow   bool
	done     bool // the newest data packet was the last that its sender has for now
	twin     bool // the next ack goes out on two planes: it ends a message, or answers a request
	ackDue   mono.Time
	lastRx   int // plane of the newest data
	turn     int // acks sent under loss: they alternate between two planes
	trouble  mono.Time
	lossMean float64 // share of data packets missing, mean of about 256
}

// rxPlane counts what came on one plane.
type rxPlane struct {
	bytes    uint32
	lastData mono.Time
	last     uint32 // which of the association's packets was the last one here
	news     bool   // data came since its last block
}

// refusal is a refusal block with the number of acks that still have to carry it.
type refusal struct {
	b    wire.RefusalBlock
	left uint8
}

const (
	maxRefusals    = maxPlanes * pkt.Burst // what one call can bring; beyond, those told already go first
	refusalRepeats = 2
)

func (r *assocRx) init(a *assoc) {
	for _, q := range r.limits {
		q.limitDirty = 0
	}
	*r = assocRx{a: a, ackDue: never, dirty: r.dirty[:0], refusals: r.refusals[:0], trims: r.trims[:0], limits: r.limits[:0]}
}

func (p *rxPath) id() uint16 { return uint16(p.seen.own) }

// path returns the receiver's record of a path, or nil for an id that cannot be.
func (r *assocRx) path(id uint16) *rxPath {
	plane, i := int(id>>8), int(id&0xff)
	//= MR-PATH-013 MR-GEN-003
	if plane >= len(r.a.planes) || i >= maxPaths {
		return nil
	}
	if r.paths[plane] == nil {
		r.paths[plane] = make([]*rxPath, maxPaths)
	}
	p := r.paths[plane][i]
	if p == nil {
		p = &rxPath{seen: seqWindow{own: uint32(id)}}
		r.paths[plane][i] = p
	}
	return p
}

// arrived counts a data packet for its plane and for the port.
func (r *assocRx) arrived(p *pkt.Packet, rp *rxPath, h *wire.Header, n int) {
	e := r.a.e
	pl := &r.planes[p.Plane]
	//= MR-REL-025
	pl.bytes += uint32(n)
	r.got++
	pl.lastData, pl.last, pl.news = e.now, r.got, true
	r.lastRx = int(p.Plane)
	r.done = h.Flags&(wire.FlagAckReq|wire.FlagTail) == wire.FlagAckReq|wire.FlagTail
	r.count++
	r.a.planes[p.Plane].wantBase()
	if d := int(serial.U32(h.Seq).Sub(serial.U32(rp.top))); !rp.came || d > 0 {
		if rp.came && d > 1 {
			e.C.RxGaps++
		}
		rp.top, rp.came = h.Seq, true
	}
	gaps := 0
	r.lossMean -= r.lossMean / 256
	if rp.seen.any() {
		if d := int(serial.U32(h.Seq).Sub(serial.U32(rp.seen.hi))); d > 1 {
			gaps = d - 1
			r.trouble = e.now
			r.lossMean += (1 - r.lossMean) * min(1, float64(gaps)/256)
		}
	}
	if r.a.users > 0 {
		e.ports[p.Plane].sent(r.a, int(p.Plane))
		e.ports[p.Plane].arrived(e, n+r.a.frame(), min(gaps, ackBits))
	}
	//= MR-REL-020
	if r.count >= ackEvery || h.Flags&(wire.FlagAckReq|wire.FlagTail) != 0 {
		r.wantAck()
		r.twin = r.twin || h.Flags&wire.FlagAckReq != 0
		r.a.setDue(mono.Min(r.a.due.Due(), e.now))
	} else if r.ackDue == never {
		//= MR-REL-021
		r.ackDue = e.now.Add(r.holdTime())
		r.a.setDue(mono.Min(r.a.due.Due(), r.ackDue))
	}
}

// holdTime is how long news wait for company: RTT/8, at most what HELLO announced.
func (r *assocRx) holdTime() mono.Duration {
	//= MR-REL-021 MR-ASC-054
	rtt := r.a.srtt
	if b := r.a.planes[r.lastRx].base; b > 0 && r.a.rttvar == 0 { // who only receives has no round trips of data
		rtt = b
	}
	return min(max(rtt/8, mono.Microsecond), r.a.e.cfg.AckHold)
}

func (r *assocRx) dirtyPath(p *rxPath) {
	if p.ok.own == 0 {
		r.dirty = append(r.dirty, p)
	}
	//= MR-REL-023
	p.ok.own = uint32(r.repeats())
}

// repeats is how many acks carry a piece of news: more than one where packets get lost, three where many are (what
// the data suffers is the best guess at what the acks suffer).
func (r *assocRx) repeats() uint8 {
	switch {
	case r.lossMean > 0.03:
		return 3
	case r.lossy():
		return 2
	}
	return 1
}

func (r *assocRx) lossy() bool {
	e := r.a.e
	return r.trouble != 0 && e.now.Sub(r.trouble) < quietLoss || r.a.lastLoss != 0 && e.now.Sub(r.a.lastLoss) < quietLoss
}

// accept answers a packet at once: nothing has to wait for it.
func (a *assoc) accept(rp *rxPath, h *wire.Header, p *pkt.Packet) {
	a.acceptSeq(rp, h.Seq, h.TS, h.Flags, p.TOS&pkt.ECNMask == pkt.CE)
}

// acceptSeq marks a sequence as arrived and accepted.
func (a *assoc) acceptSeq(rp *rxPath, seq, ts uint32, _ wire.Flags, ce bool) {
	newest := !rp.ok.any() || serial.U32(rp.ok.hi).Less(serial.U32(seq))
	rp.seen.add(seq)
	//= MR-REL-011
	rp.ok.add(seq)
	//= MR-REL-022
	if newest || rp.arrived != a.e.now {
		rp.echo, rp.arrived = ts, a.e.now
	}
	if ce {
		a.e.C.RxMarked++
		//= MR-REL-025 MR-REL-020
		rp.ce++
		a.rx.wantAck()
	}
	a.rx.dirtyPath(rp)
}

// refuse answers a packet that is not accepted.
func (a *assoc) refuse(rp *rxPath, h *wire.Header, p *pkt.Packet, b wire.RefusalBlock) {
	a.refuseSeq(rp, h.Seq, p.TOS&pkt.ECNMask == pkt.CE, b)
}

func (a *assoc) refuseSeq(rp *rxPath, seq uint32, ce bool, b wire.RefusalBlock) {
	rp.seen.add(seq)
	if ce {
		a.e.C.RxMarked++
		rp.ce++
	}
	if planted.Is(planted.RefusedIsReported) {
		rp.ok.add(seq)
		a.rx.dirtyPath(rp)
	}
	//= MR-MSG-091
	b.Path, b.Seq = rp.id(), seq
	a.rx.addRefusal(b)
}

// refuseLater tells the peer of a failure that no packet of its own brought up.
func (a *assoc) refuseLater(q *QP) {
	b := q.fatalBlock()
	//= MR-MSG-090
	b.Path = 0xFFFF
	a.rx.addRefusal(b)
	a.reschedule()
}

func (r *assocRx) addRefusal(b wire.RefusalBlock) {
	//= MR-REL-020
	r.wantAck()
	if len(r.refusals) == maxRefusals {
		i := 0
		for k := range r.refusals {
			if r.refusals[k].left < refusalRepeats {
				i = k
				break
			}
		}
		r.refusals = append(r.refusals[:i], r.refusals[i+1:]...)
	}
	r.refusals = append(r.refusals, refusal{b, refusalRepeats})
}

// noteLimit has the QP's receive limit told to the peer: with the next ack, at once when the peer may be stopped.
func (r *assocRx) noteLimit(q *QP) {
	s := &q.rsp
	credit := int64(s.told) - int64(s.nbind-firstSSN)
	if q.limitDirty == 0 {
		r.limits = append(r.limits, q)
	}
	q.limitDirty = r.repeats()
	//= MR-REL-027
	if credit <= 0 {
		r.wantAck()
	} else if r.ackDue == never && credit < 16 {
		r.ackDue = r.a.e.now.Add(r.holdTime())
	}
	r.a.reschedule()
}

// forgetQP drops what was to be said about a QP's limit.
func (r *assocRx) forgetQP(q *QP) {
	if q.limitDirty == 0 {
		return
	}
	q.limitDirty = 0
	for i, x := range r.limits {
		if x == q {
			r.limits = append(r.limits[:i], r.limits[i+1:]...)
			return
		}
	}
}

// wantAck has an acknowledgement sent by the next Transmit.
func (r *assocRx) wantAck() {
	r.ackNow = true
	r.a.heat()
}

// sendAcks writes the news into ack packets: one, or more when they do not fit, or a second copy on another plane.
func (a *assoc) sendAcks(b *pkt.Batch) {
	r := &a.rx
	if a.state != assocUp || a.txTag == 0 {
		r.ackNow, r.ackDue = false, never
		return
	}
	plane, twin := r.ackPlane(0), false
	if len(a.planes) > 1 && r.lossy() { // a repeat goes another way than what it repeats
		r.turn++
		plane, twin = r.ackPlane(r.turn&1), r.twin
	}
	for !b.Full() {
		//= MR-REL-028
		more := a.buildAck(b, plane)
		if more {
			continue
		}
		if twin {
			twin = false
			r.turn++
			plane = r.ackPlane(r.turn & 1)
			if len(r.dirty)+len(r.refusals) > 0 {
				continue
			}
		}
		r.ackNow, r.twin, r.ackDue, r.count = false, false, never, 0
		if len(r.refusals)+len(r.dirty)+len(r.limits) > 0 { // repeats of what is left travel soon even if nothing else does
			r.ackDue = a.e.now.Add(r.holdTime())
		}
		break
	}
	a.reschedule()
}

// ackPlane is the plane that data came on, or the n-th living one after it. Who only receives hears nothing of its ACKs that get
// lost: a plane that the peer leaves out may be one that does not carry them either.
func (r *assocRx) ackPlane(n int) int {
	a, silent := r.a, -1
	for i := range a.planes {
		p := (r.lastRx + n + i) % len(a.planes)
		if a.planes[p].state != planeActive || !a.planes[p].linkUp() {
			continue
		}
		//= MR-PATH-027
		if r.got-r.planes[p].last < ackHeard {
			return p
		}
		if silent < 0 {
			silent = p
		}
	}
	if silent >= 0 {
		return silent
	}
	for i := range a.planes {
		if p := (r.lastRx + n + i) % len(a.planes); a.planes[p].state != planeAbsent {
			return p
		}
	}
	return r.lastRx % len(a.planes)
}

// buildAck writes one ack packet and reports whether more news are left that did not fit.
func (a *assoc) buildAck(b *pkt.Batch, plane int) bool {
	e, r := a.e, &a.rx
	out := b.Next()
	//= MR-WIRE-011 MR-WIRE-020 MR-WIRE-021 MR-REL-003
	h := wire.Header{Op: wire.OpAck, PKey: 0xFFFF, Tag: a.txTag, Path: uint16(plane << 8), Version: wire.Version, TS: e.stamp()}
	hdrLen := h.Size()
	room := min(a.planes[plane].packetMax, len(out.Buf)-pkt.Headroom) - hdrLen - wire.ICRCLen
	var w wire.AckWriter
	w.Init(out.Buf[pkt.Headroom+hdrLen : pkt.Headroom+hdrLen+room&^3])
	for i := range a.planes {
		//= MR-CC-010 MR-REL-026
		if pl := &r.planes[i]; pl.news || i == r.lastRx {
			pl.news = false
			w.Plane(&wire.PlaneBlock{Plane: uint8(i), Bytes: pl.bytes, Grant: e.grantFor(a, i)})
		}
	}
	more := false
	keep := r.refusals[:0]
	for i := range r.refusals {
		x := r.refusals[i]
		//= MR-REL-028 MR-MSG-091
		if more || !w.Refusal(&x.b) {
			more = true
		} else if x.left--; x.left == 0 {
			continue
		}
		keep = append(keep, x)
	}
	r.refusals = keep
	more = r.addTrims(&w) || more
	more = a.addLimits(&w) || more
	more = a.addPaths(&w) || more
	n := w.Finish()
	e.sealPacket(out, &h, hdrLen, n)
	out.Plane, out.Src, out.Dst, out.TOS = uint8(plane), a.local, a.remote, pkt.ECT0
	//= MR-REL-029
	if !e.cfg.AcksWithData {
		out.TOS |= controlTOS
	}
	//= MR-WIRE-002
	out.SrcPort = a.planes[plane].ackEntropy()
	e.C.TxAcks++
	return more
}

func (a *assoc) addLimits(w *wire.AckWriter) (more bool) {
	r := &a.rx
	keep := r.limits[:0]
	for _, q := range r.limits {
		s := &q.rsp
		//= MR-REL-027 MR-MSG-060
		if more || !w.QP(&wire.QPBlock{QPN: q.remoteQPN, Limit: uint32(s.posted)}) {
			more = true
			keep = append(keep, q)
			continue
		}
		s.told = s.posted
		if q.limitDirty--; q.limitDirty > 0 {
			keep = append(keep, q)
		}
	}
	r.limits = keep
	return more
}

func (a *assoc) addPaths(w *wire.AckWriter) (more bool) {
	e, r := a.e, &a.rx
	keep := 0
	var b wire.PathBlock
	for _, p := range r.dirty {
		if !more && p.ok.any() {
			bm := &p.ok.bm
			//= MR-REL-011 MR-REL-022
			b.Path, b.Highest, b.Echo, b.Hold, b.CE = p.id(), p.ok.hi, p.echo, uint32(e.now.Sub(p.arrived)>>4), p.ce
			b.Bitmap[0], b.Bitmap[1] = bm.lo>>1|bm.hi<<63, bm.hi>>1
			more = !w.Path(&b)
		}
		if !more {
			p.ok.own--
		}
		if p.ok.own > 0 {
			r.dirty[keep] = p
			keep++
		}
	}
	r.dirty = r.dirty[:keep]
	return more
}
