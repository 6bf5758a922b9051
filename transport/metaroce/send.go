package metaroce

// The way out:
//  1. Transmit: control packets, acknowledgements, probes, then data, association by association;
//  2. transmitData: QPs in turn, a quantum each (deficit round robin in packets);
//  3. choosePlane, choosePath: window room, then recycled or random path, kept for a burst;
//  4. the QP names a packet (requester.go, response.go) and its payload as a memory operation;
//  5. finishTx: one DMA call for the batch, then packets are sealed. Their headers were written before.

import (
	"math/bits"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// txJob is a data packet whose payload is still to be fetched.
type txJob struct {
	p      *pkt.Packet
	q      *QP
	psn    uint64
	hdrLen int   // its headers are in place
	n      int   // bytes of its payload
	rec    int32 // its transmission
	op     int32 // index of its memory operation, or -1
	resp   int32 // response buffer that the data is read into, or 0
	pad    uint8
	kind   txKind
	dead   bool
}

// tx is the scratch of Transmit.
type tx struct {
	jobs [pkt.Burst]txJob
	ops  [pkt.Burst]transport.MemOp
	n    int
	nops int
}

// Transmit fills b with packets to send. It returns when b is full or nothing may go now.
func (e *Engine) Transmit(now mono.Time, b *pkt.Batch) {
	e.tick(now)
	e.sendControl(b)
	t := &e.out.tx
	t.n, t.nops = 0, 0
	e.calm()
	n := len(e.hot)
	for i := 0; i < n && !b.Full(); i++ {
		a := e.hot[(e.rr+i)%n]
		if a.rx.ackNow {
			a.sendAcks(b)
		}
	}
	e.probes.send(e, b) // before data: behind a sender that fills every batch they would wait for ever
	for i := 0; i < n && !b.Full() && t.n < len(t.jobs); i++ {
		a := e.hot[(e.rr+i)%n]
		if a.state != assocUp {
			continue
		}
		a.sendProbes(b)
		if a.active.n > 0 {
			a.transmitData(b)
			if a.careAt <= e.now {
				a.tend()
			}
			a.reschedule()
		}
	}
	e.cool()
	e.probes.send(e, b) // that were started meanwhile
	e.finishTx(b)
}

// heat puts an association among those that may have something to send: acknowledgements, probes of planes, data.
func (a *assoc) heat() {
	if !a.isHot && !a.gone {
		a.isHot = true
		a.e.hot = append(a.e.hot, a)
	}
}

// cool takes out those that have nothing, and turns the others round.
func (e *Engine) cool() {
	keep := e.hot[:0]
	for _, a := range e.hot {
		if a.isHot = a.rx.ackNow || a.active.n > 0 || a.wantsProbe(); a.isHot {
			keep = append(keep, a)
		}
	}
	clear(e.hot[len(keep):])
	e.hot = keep
	if n := len(keep); n > 0 {
		e.rr = (e.rr + 1) % n
	}
}

func (a *assoc) wantsProbe() bool {
	for i := range a.planes {
		if a.planes[i].probeWant {
			return true
		}
	}
	return false
}

// transmitData lets the association's QPs send in turn.
func (a *assoc) transmitData(b *pkt.Batch) {
	e := a.e
	t := &e.out.tx
	for q := a.active.pop(); q != nil; q = a.active.pop() { // each turn sends something or takes the QP off the ring
		left := q.left // of a turn that a full window broke off, or a new one
		if left == 0 {
			left = quantum
		}
		for q.left = 0; ; left-- {
			kind, psn, ok := q.nextToSend()
			if !ok {
				//= MR-MSG-018
				break // blocked or done: an event or its timer brings it back
			}
			//= MR-CC-020
			if left == 0 || b.Full() || t.n == len(t.jobs) {
				a.active.push(q)
				break
			}
			//= MR-CC-001 MR-CC-003
			p := a.choosePath(q, q.lostOn(kind, psn))
			if p == nil && !a.carries(q) {
				q.failRequester(transport.RetryExcErr)
				break
			}
			if p == nil { // the association's windows are full: acknowledgements bring it back
				q.left = left
				a.active.pushFront(q)
				return
			}
			q.send(kind, psn, p, b)
		}
		if b.Full() || t.n == len(t.jobs) {
			return
		}
	}
}

func (r *qpRing) pushFront(q *QP) {
	if q.inRing {
		return
	}
	q.inRing, q.ringNext = true, r.head
	r.head = q
	if r.tail == nil {
		r.tail = q
	}
	r.n++
}

// lostOn is where a packet that is to be sent again was lost: the path id, or noPath.
func (q *QP) lostOn(kind txKind, n uint64) int {
	if kind == txResponse {
		if n < q.rsp.resps.hi {
			if p := q.rsp.resps.at(n); p.sent {
				return int(p.path)
			}
		}
	} else if n < q.req.next {
		return int(q.req.ps.at(n).path)
	}
	return noPath
}

const noPath = -1

// choosePath returns the path for the next packet of a QP, or nil when no plane has room. A packet that was lost on
// a path takes another one, on another plane where one has room.
func (a *assoc) choosePath(q *QP, lost int) *txPath {
	if a.e.recFree == 0 && a.e.lostHead == 0 {
		a.e.C.TxRecordsFull++
		return nil
	}
	n := len(a.planes)
	first := 2 * n // looks that may pass gray planes over; n more pass the lost one's over; n more take any
	if a.grays > 0 {
		first = 0
	} else if lost >= 0 {
		first = n
	}
	at := a.rrPlane
	for i := first; i < 3*n; i++ {
		pl := &a.planes[at]
		if at++; at == n {
			at = 0
		}
		//= MR-PATH-024 MR-PATH-016
		if !pl.room() || !pl.carries(q) || i < n && pl.passedOver() || i < 2*n && lost >= 0 && pl.idx == lost>>8 {
			continue
		}
		p := pl.pick(lost)
		if p == nil {
			continue
		}
		//= MR-PATH-002 MR-PATH-020
		if a.rrPlane = pl.idx; pl.curLeft <= 0 {
			a.rrPlane = at
		}
		return p
	}
	return nil
}

// carries reports whether the longest packet of the QP fits the plane.
func (pl *planeTx) carries(q *QP) bool {
	//= MR-ASC-050
	return pl.state != planeAbsent && q.mtu+wire.MaxOverhead <= pl.packetMax
}

// carries reports whether any plane takes the QP's packets: the QP's MTU is the programs' choice.
func (a *assoc) carries(q *QP) bool {
	for i := range a.planes {
		if a.planes[i].carries(q) {
			return true
		}
	}
	return false
}

// limit is the window in bytes: the controller's and the receiver's grant; one packet always goes.
//
// = MR-CC-001 MR-CC-002 MR-CC-011
func (pl *planeTx) limit() int {
	n := min(pl.cwnd, pl.grant)
	if pl.drain > pl.a.e.now {
		n = min(n, drainPackets*fullPacket)
	}
	return max(n, 1)
}

// room reports whether the window takes another transmission.
//
// = MR-CC-001 MR-PATH-031
//
// Of a window that is no whole number of packets the rest counts by chance: half a packet more for each of 8 senders is
// more than a shallow buffer holds. A window below one packet is paced.
func (pl *planeTx) room() bool {
	if pl.state != planeActive || pl.a.e.busy>>pl.idx&1 != 0 && !pl.a.loopback {
		return false
	}
	if pl.inflight == 0 {
		//= MR-CC-021
		return pl.nextSend <= pl.a.e.now || pl.limit() >= maxPayload
	}
	return pl.inflight+pl.dither <= pl.limit()
}

// pace says when a plane with a window below the packet just sent may send again: the window an RTT, with jitter, as
// many senders may be in step.
func (pl *planeTx) pace(size int) {
	e := pl.a.e
	pl.dither = int(e.rnd.Uint32() % uint32(size))
	if l := pl.limit(); l < size {
		//= MR-CC-021
		pl.nextSend = e.now.Add(mono.Duration(float64(pl.a.srtt) * float64(size) / float64(l) * (0.75 + e.rnd.Float64()/2)))
	}
}

// pick chooses a path: the one of the running burst, else the head of the recycle queue, else a random one. The path
// that a packet was lost on is the last choice.
func (pl *planeTx) pick(lost int) *txPath {
	if pl.cur != nil && pl.curLeft > 0 && pl.takes(pl.cur, lost) {
		pl.curLeft--
		return pl.cur
	}
	e := pl.a.e
	var p *txPath
	for n := pl.recycle.len(); n > 0 && p == nil; n-- {
		q := pl.paths[pl.recycle.peek()]
		pl.recycle.pop()
		switch {
		case int(q.id) == lost:
			pl.recycle.push(uint64(q.id & 0xff))
		//= MR-PATH-020 MR-PATH-022
		case pl.takes(q, lost) && q.restUntil <= e.now && !e.rnd.Chance(recycleRenew):
			p = q
		}
	}
	for try := 0; p == nil && try < 4; try++ {
		//= MR-ASC-051
		if q := pl.path(pl.randomPath()); pl.takes(q, lost) && (try == 3 || !q.shuns()) {
			p = q
		}
	}
	if p == nil { // luck was against it, or there are few: any that will do, the lost one's last
		p = pl.anyPath(lost)
	}
	if p == nil {
		return nil
	}
	pl.cur, pl.curLeft = p, e.cfg.Planes[pl.idx].Burst-1
	return p
}

// takes reports whether the path takes a packet that was not lost there.
func (pl *planeTx) takes(p *txPath, lost int) bool {
	//= MR-PATH-024 MR-PATH-025
	return p.outstanding() < outstandingMax && int(p.id) != lost && pl.usableNow(p)
}

// anyPath returns the first path that will do; the one that a packet was lost on when no other is usable; or nil.
func (pl *planeTx) anyPath(lost int) *txPath {
	for m := pl.usable; m != 0; m &= m - 1 {
		if p := pl.path(bits.TrailingZeros64(m)); pl.takes(p, lost) {
			return p
		}
	}
	if i := lost & 0xff; lost >= 0 && lost>>8 == pl.idx && pl.usable>>i&1 != 0 && pl.path(i).outstanding() < outstandingMax {
		return pl.path(i)
	}
	return nil
}

// path returns a path of the plane, made on first use.
func (pl *planeTx) path(i int) *txPath {
	if p := pl.paths[i]; p != nil {
		return p
	}
	e := pl.a.e
	first := e.cfg.FirstSeq
	if first == 0 {
		//= MR-REL-002
		first = e.secret.Uint32()
	}
	//= MR-WIRE-020
	p := &txPath{pl: pl, id: uint16(pl.idx<<8 | i), srcPort: pl.entropy(i, 0), next: first, una: first,
		genStart: first, tol: gapTolerance}
	//= MR-PATH-010
	pl.paths[i] = p
	if e.portDenied(pl.idx, p.srcPort) {
		pl.refresh()
	}
	return p
}

// send puts one packet of q into the batch; the payload follows in finishTx.
func (q *QP) send(kind txKind, psn uint64, p *txPath, b *pkt.Batch) {
	e, a := q.e, q.a
	t := &e.out.tx
	//= MR-ASC-071
	if e.skipIn--; e.skipIn <= 0 {
		e.drawSkip()
		p.skipped, p.hasSkip = p.next, true
		p.next++ // a number that never was: who acknowledges it is making it up
		if i := p.ring[(p.next-1)%pathRing]; i != 0 {
			e.freeRec(i)
		}
	}
	out := b.Next()
	j := &t.jobs[t.n]
	t.n++
	*j = txJob{} // and not a literal: that is made elsewhere and copied, here and below
	j.p, j.q, j.psn, j.kind, j.op = out, q, psn, kind, -1
	//= MR-ASC-022 MR-ASC-031 MR-WIRE-022 MR-REL-001
	h := wire.Header{PKey: 0xFFFF, DestQP: q.remoteQPN, Tag: a.txTag, Path: p.id, Version: wire.Version, TS: e.stamp(), Seq: p.next}
	op := &t.ops[t.nops]
	*op = transport.MemOp{}
	op.QP = q.owner
	q.respTurn = kind == txRequest
	if kind == txRequest {
		q.fillRequest(j, &h, op)
		q.req.ps.at(psn).path = p.id
	} else {
		q.fillResponse(j, &h, op)
		q.rsp.resps.at(psn).path = p.id
	}
	j.pad = uint8(h.PadFor(j.n))
	j.hdrLen = h.Put(out.Buf[pkt.Headroom:])
	if j.n > 0 && j.op == opWanted {
		if op.Buf == nil {
			op.Buf = out.Buf[pkt.Headroom+j.hdrLen : pkt.Headroom+j.hdrLen+j.n]
		}
		j.op = int32(t.nops)
		t.nops++
	}
	//= MR-WIRE-002 MR-WIRE-005 MR-COEX-040
	out.Plane, out.Src, out.Dst, out.SrcPort, out.TOS = uint8(p.pl.idx), a.local, a.remote, p.srcPort, q.tos|pkt.ECT0
	size := max(j.hdrLen+j.n+wire.ICRCLen, minCharge)
	e.newRec(p, q, kind, psn, size)
	p.pl.pace(size)
	j.rec = p.pl.tail
	e.C.TxPackets++
}

// opWanted marks a job whose payload comes by a memory operation; its index is set when it is queued.
const opWanted = -2

// finishTx fetches the payloads and seals the packets; those whose memory is gone are taken out again.
func (e *Engine) finishTx(b *pkt.Batch) {
	t := &e.out.tx
	if t.nops > 0 {
		e.host.DMA(t.ops[:t.nops])
	}
	failed := false
	for i := range t.n {
		j := &t.jobs[i]
		if j.op >= 0 && t.ops[j.op].Err != transport.MemOK {
			failed = true
			j.dead = true
			continue
		}
		if j.resp != 0 {
			//= MR-MSG-071 MR-REL-047
			copy(j.p.Buf[pkt.Headroom+j.hdrLen:], e.resp.bytes(j.resp)[:j.n])
		}
		e.sealTail(j.p, j.hdrLen+j.n, int(j.pad))
	}
	if failed {
		e.dropFailedTx(b)
	}
	t.n, t.nops = 0, 0
}

// dropFailedTx takes packets without payload out of the batch, then lets their QPs fail.
func (e *Engine) dropFailedTx(b *pkt.Batch) {
	t := &e.out.tx
	for i := range t.n {
		j := &t.jobs[i]
		if j.dead {
			j.p.Data = j.p.Data[:0]
			path := e.recs[j.rec].path
			e.dropRec(j.rec)
			path.advance(e)
		}
	}
	n := 0
	for i := range b.N {
		if len(b.Pkts[i].Data) == 0 {
			continue
		}
		b.Pkts[n], b.Pkts[i] = b.Pkts[i], b.Pkts[n]
		n++
	}
	b.N = n
	for i := range t.n {
		if j := &t.jobs[i]; j.dead {
			j.q.payloadFailed(j.kind, j.psn, t.ops[j.op].Err)
		}
	}
}
