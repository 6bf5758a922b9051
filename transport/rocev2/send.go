package rocev2

// The way out:
//  1. Transmit: answers first (acknowledgements, NAKs, atomic results, CNPs), they are short and somebody waits;
//  2. plane by plane, QPs in turn, a quantum each, as the plane's rate and the QP's own (DCQCN) let them;
//  3. the QP names a packet (requester.go, respond.go, ud.go) and its payload as a memory operation;
//  4. finishTx: one DMA call for the batch, then headers and ICRC.

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

type txKind uint8

const (
	txRequest txKind = iota
	txResponse
	txAnswer
	txDatagram
)

// txJob is a packet whose payload is still to be fetched.
type txJob struct {
	p    *pkt.Packet
	q    *QP
	psn  uint64
	hdr  ib.Header
	n    int
	op   int32 // index of its memory operation, or -1
	kind txKind
	dead bool
}

// opWanted marks a job whose payload comes by a memory operation; its index is set when it is queued.
const opWanted = -2

// tx is the scratch of Transmit.
type tx struct {
	jobs [pkt.Burst]txJob
	ops  [pkt.Burst]transport.MemOp
	inv  [1]transport.MemOp
	n    int
	nops int
}

// Transmit fills b with packets to send. It returns when b is full or nothing may go now.
func (e *Engine) Transmit(now mono.Time, b *pkt.Batch) {
	e.tick(now)
	t := &e.out
	t.n, t.nops = 0, 0
	for n := e.ctl.n; n > 0; n-- {
		q := e.ctl.popCtl()
		if !q.sendAnswers(b) {
			e.ctl.pushCtl(q)
			break
		}
	}
	e.transmitMADs(b)
	for i := range e.planes {
		if plane := (e.rr + i) % len(e.planes); e.busy>>plane&1 == 0 {
			e.transmitPlane(plane, b)
		}
	}
	e.rr = (e.rr + 1) % len(e.planes)
	e.finishTx(b)
}

// full reports whether no further packet can be made.
func (t *tx) full(b *pkt.Batch) bool { return t.n == len(t.jobs) || b.Full() }

func (e *Engine) transmitPlane(plane int, b *pkt.Batch) {
	p := &e.planes[plane]
	for q := p.ring.pop(); q != nil; q = p.ring.pop() { // each turn sends something or takes the QP off the ring
		if q.plane != plane { // it has moved
			q.wake()
			continue
		}
		left := q.left // of a turn that was broken off, or a new one
		if left == 0 {
			left = quantum
		}
		for q.left = 0; ; left-- {
			kind, ok := q.nextToSend()
			if !ok {
				q.waited = false
				break // blocked or done: an event or its timer brings it back
			}
			if kind != txDatagram && q.paceAt > e.now {
				q.waited = true
				q.retime()
				break
			}
			if left == 0 {
				p.ring.push(q)
				break
			}
			if p.free > e.now.Add(p.ahead) || e.out.full(b) {
				q.left = left
				p.ring.pushFront(q)
				return
			}
			q.send(kind, b)
		}
	}
}

// nextToSend names what the QP may send now: READ data and requests in turn, neither may starve the other.
func (q *QP) nextToSend() (txKind, bool) {
	if q.typ == transport.UD {
		return txDatagram, q.nextDatagram()
	}
	resp := q.nextResponse()
	if resp && q.respTurn {
		return txResponse, true
	}
	if q.mayNext() {
		return txRequest, true
	}
	return txResponse, resp
}

// txJob begins a packet of q, or returns nil when there is no room.
func (e *Engine) txJob(q *QP, kind txKind, b *pkt.Batch) *txJob {
	t := &e.out
	if t.full(b) {
		return nil
	}
	j := &t.jobs[t.n]
	t.n++
	p := b.Next()
	*j = txJob{p: p, q: q, kind: kind, op: -1}
	j.hdr.PKey, j.hdr.DestQP, j.hdr.Service = ib.PKeyDefault, q.remoteQPN, serviceOf(q.typ)
	p.Plane, p.Src, p.Dst, p.SrcPort, p.TOS, p.TTL, p.FlowLabel = uint8(q.plane), q.local, q.remote, q.srcPort, q.tos, q.ttl, q.flowLabel
	return j
}

// send puts one data packet of q into the batch; the payload follows in finishTx.
func (q *QP) send(kind txKind, b *pkt.Batch) {
	e := q.e
	t := &e.out
	j := e.txJob(q, kind, b)
	op := &t.ops[t.nops]
	*op = transport.MemOp{QP: q.owner}
	q.respTurn = kind == txRequest
	switch kind {
	case txRequest:
		q.fillRequest(j, op)
	case txResponse:
		q.fillResponse(j, op)
	default:
		q.fillDatagram(j, op)
	}
	size := j.hdr.Size()
	if j.op == opWanted {
		op.Buf = j.p.Buf[pkt.Headroom+size : pkt.Headroom+size+j.n]
		j.op = int32(t.nops)
		t.nops++
	}
	if kind != txDatagram && e.cfg.CC == CCDCQCN && j.n > 0 {
		j.p.TOS |= pkt.ECT0
	}
	n := q.charge(j.p, size+j.n+j.hdr.PadFor(j.n)+ib.ICRCLen)
	if kind == txDatagram || n == 0 || !q.flow.Limited() {
		return
	}
	q.flow.OnSend(e.now, n)
	if rate := q.flow.Rate(e.now); q.flow.Limited() {
		q.paceAt = q.paceFrom().Add(mono.Duration(float64(n) * 8e9 / rate))
	}
}

// paceFrom is when the packet in hand might have gone. A loop that comes late by the wire's timing noise is made up for, as
// otherwise each wait would cost as much again; time in which there was nothing to send is not.
func (q *QP) paceFrom() mono.Time {
	now := q.e.now
	if !q.waited {
		return max(q.paceAt, now)
	}
	return max(q.paceAt, now.Add(-q.e.cfg.Planes[q.plane].TimerNoise))
}

// charge lets the time pass that a packet of n bytes takes at its plane's rate. It returns its bytes on the wire: none
// if it stays inside.
func (q *QP) charge(p *pkt.Packet, n int) int { return q.e.charge(q.plane, p, n) }

func (e *Engine) charge(plane int, p *pkt.Packet, n int) int {
	if e.ownAddr(p.Dst) {
		return 0
	}
	if p.Dst.Is4() {
		n += outerBytes4
	} else {
		n += outerBytes6
	}
	pl := &e.planes[plane]
	if bps := e.cfg.Planes[plane].RateBps; bps > 0 {
		if pl.free < e.now {
			pl.free, pl.rem = e.now, 0
		}
		// The remainder counts: a nanosecond too short each time makes a queue in the course of time.
		v := uint64(n)*8e9 + pl.rem
		pl.free += mono.Time(v / bps)
		pl.rem = v % bps
	}
	return n
}

// SetAddrs changes the NIC's own addresses. QPs stay as they are.
func (e *Engine) SetAddrs(addrs []netip.Addr) { e.cfg.Addrs = addrs }

func (e *Engine) ownAddr(a netip.Addr) bool {
	for i := range e.cfg.Addrs {
		if e.cfg.Addrs[i] == a {
			return true
		}
	}
	return false
}

// finishTx fetches the payloads and seals the packets; those whose memory is gone are taken out again.
func (e *Engine) finishTx(b *pkt.Batch) {
	t := &e.out
	if t.nops > 0 {
		e.host.DMA(t.ops[:t.nops])
	}
	failed := false
	for i := range t.n {
		j := &t.jobs[i]
		if j.op >= 0 && t.ops[j.op].Err != transport.MemOK {
			failed = true
		}
	}
	if failed {
		e.buryDead()
	}
	for i := range t.n {
		j := &t.jobs[i]
		if j.dead {
			continue
		}
		e.seal(j)
		switch {
		case j.kind == txDatagram:
			j.q.datagramSent()
		case j.kind == txRequest && j.q.typ == transport.UC:
			j.q.sentUC(j.psn)
		}
	}
	if failed {
		compact(b)
		e.failDead()
	}
	for i := range t.n {
		t.jobs[i].p, t.jobs[i].q = nil, nil
	}
	clear(t.ops[:t.nops])
	t.n, t.nops = 0, 0
}

// seal finishes a packet whose payload is in place.
func (e *Engine) seal(j *txJob) {
	p, h := j.p, &j.hdr
	pad := h.PadFor(j.n)
	b := p.Buf[pkt.Headroom:]
	end := h.Put(b) + j.n
	for i := range pad {
		b[end+i] = 0
	}
	p.Data = b[:end+pad+ib.ICRCLen]
	e.sealICRC(p)
	e.C.TxPackets++
	e.C.TxBytes += uint64(len(p.Data))
}

// buryDead marks the packets without payload, and what follows them in their QP's order.
func (e *Engine) buryDead() {
	t := &e.out
	for i := range t.n {
		j := &t.jobs[i]
		req := j.kind == txRequest || j.kind == txDatagram
		if j.op >= 0 && t.ops[j.op].Err != transport.MemOK {
			j.q.deadReq = j.q.deadReq || req
			j.q.deadRsp = j.q.deadRsp || !req
		}
		j.dead = req && j.q.deadReq || !req && j.q.deadRsp
	}
}

// compact takes out the packets that were never finished.
func compact(b *pkt.Batch) {
	n := 0
	for i := range b.N {
		if len(b.Pkts[i].Data) == 0 {
			continue
		}
		b.Pkts[n], b.Pkts[i] = b.Pkts[i], b.Pkts[n]
		n++
	}
	b.N = n
}

// failDead fails the QPs whose packets were taken out, each at the first of them.
func (e *Engine) failDead() {
	t := &e.out
	for i := range t.n {
		j := &t.jobs[i]
		q := j.q
		if !j.dead || j.op < 0 || t.ops[j.op].Err == transport.MemOK {
			continue
		}
		switch {
		case j.kind == txResponse && q.deadRsp:
			q.deadRsp = false
			q.responseGone(j.psn, t.ops[j.op].Err)
		case j.kind == txRequest && q.deadReq:
			q.deadReq = false
			q.payloadGone(j.psn)
		case j.kind == txDatagram && q.deadReq:
			q.deadReq = false
			q.failRequester(transport.LocProtErr)
		}
	}
}

// payloadGone: the memory of a packet to be sent is gone. Its request fails when those before it are done.
func (q *QP) payloadGone(psn uint64) {
	r := &q.req
	if q.state == StateErr || psn < r.una || psn >= r.max {
		return
	}
	q.kill(psn, transport.LocProtErr)
}

func (e *Engine) sealICRC(p *pkt.Packet) {
	if !e.cfg.NoICRC {
		e.sum.Seal(p)
	}
}
