package metaroce

import (
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// Responses (READ data, atomic results) count in a number space of their own, beside the PSNs of requests, with the
// same window. The responder keeps each packet until it is acknowledged: a resend carries the bytes first read.

const firstResp = 1 << 32 // 64-bit form of the first response number, 0 on the wire

// rdReq is an accepted READ that is not wholly read yet.
type rdReq struct {
	psn, n uint64
	addr   uint64
	rkey   uint32
	length uint32
	off    uint32
}

// respPkt is one response packet.
type respPkt struct {
	n      uint64 // READ number
	psn    uint64 // of the request
	addr   uint64
	result uint64
	off    uint32
	length uint32
	rkey   uint32
	buf    int32
	path   uint16 // of its newest transmission
	out    uint8
	atomic bool
	last   bool
	sent   bool
	acked  bool
	queued bool
}

// nextResponse names the response packet that may go now.
func (q *QP) nextResponse() (uint64, bool) {
	s := &q.rsp
	//= MR-QP-002
	if q.a.state != assocUp || q.state < StateRTR || q.state == StateErr && s.fatal == 0 {
		return 0, false
	}
	for s.rrtx.len() > 0 {
		n := s.rrtx.peek()
		if n >= s.resps.lo && n < s.resps.hi {
			p := s.resps.at(n)
			if !p.acked && p.out == 0 {
				return n, true
			}
			p.queued = false
		}
		s.rrtx.pop()
	}
	if s.respNext < s.resps.hi {
		return s.respNext, true
	}
	//= MR-REL-050
	if s.nreads == 0 || s.resps.hi-s.resps.lo >= uint64(q.e.cfg.PSNWindow-rdMax) {
		return 0, false
	}
	if q.e.resp.avail() == 0 && s.bufs > 0 { // another QP's buffer that comes free wakes this one
		q.e.respWait.push(q)
		return 0, false
	}
	return s.resps.hi, true
}

// getResp takes a response buffer. A QP that holds none gets one whatever happens: peers that died in the middle of
// their READs may hold all the others for ever.
func (s *responder) getResp(e *Engine) (b int32) {
	if b = e.resp.get(); b == 0 {
		b = e.resp.getSpare()
	}
	s.bufs++
	return b
}

// putResp frees the buffer of a response packet and lets the QPs go on that waited for one.
func (s *responder) putResp(e *Engine, p *respPkt) {
	b := p.buf
	if b == 0 {
		return
	}
	p.buf = 0
	s.bufs--
	if planted.Is(planted.ResponseLeak) {
		return
	}
	e.resp.put(b)
	for q := e.respWait.pop(); q != nil; q = e.respWait.pop() {
		q.wake()
	}
}

// waitList is a set of QPs, each at most once.
type waitList struct{ s []*QP }

func (w *waitList) push(q *QP) {
	if !q.respWaits {
		q.respWaits = true
		w.s = append(w.s, q)
	}
}

func (w *waitList) pop() *QP {
	if len(w.s) == 0 {
		return nil
	}
	q := w.s[len(w.s)-1]
	w.s = w.s[:len(w.s)-1]
	q.respWaits = false
	return q
}

// fillResponse writes one response packet; a READ's bytes are read from memory the first time only.
func (q *QP) fillResponse(j *txJob, h *wire.Header, op *transport.MemOp) {
	s := &q.rsp
	n := j.psn
	if n == s.resps.hi {
		q.makeResponse()
	}
	p := s.resps.at(n)
	if p.sent && s.rrtx.len() > 0 && s.rrtx.peek() == n {
		s.rrtx.pop()
		p.queued = false
		//= MR-REL-048
		h.Flags |= wire.FlagRetransmit
		q.e.C.Retransmits++
	} else {
		s.respNext = n + 1
	}
	p.out++
	//= MR-MSG-070
	h.PSN, h.ReadNo, h.ReadOff = serial.Trunc(n), uint32(p.n), p.off
	if p.last {
		h.Flags |= wire.FlagTail
		if !p.sent && s.respNext == s.resps.hi && s.nreads == 0 {
			h.Flags |= wire.FlagAckReq
		}
	}
	if p.atomic {
		h.Op, h.Result = wire.OpAtomicResp, p.result
		p.sent = true
		return
	}
	h.Op = wire.OpReadResp
	j.n = int(p.length)
	j.resp = p.buf
	//= MR-MSG-071
	if (!p.sent || planted.Is(planted.ReadResendRereads)) && p.length > 0 {
		j.op = opWanted
		op.Kind, op.Addr, op.RKey, op.Buf = transport.MemRead, p.addr, p.rkey, q.e.resp.bytes(p.buf)[:p.length]
	}
	p.sent = true
}

// makeResponse cuts the next packet off the oldest READ.
func (q *QP) makeResponse() {
	s := &q.rsp
	r := s.oldestRead()
	n := s.resps.hi
	s.resps.extend(n)
	//= MR-WIRE-032 MR-MSG-032
	l := min(r.length-r.off, uint32(q.mtu))
	*s.resps.at(n) = respPkt{n: r.n, psn: r.psn, addr: r.addr + uint64(r.off), off: r.off, length: l, rkey: r.rkey,
		last: r.off+l == r.length}
	if l > 0 {
		s.resps.at(n).buf = s.getResp(q.e)
	}
	r.off += l
	if r.off == r.length {
		s.readHead++
		s.nreads--
	}
}

func (q *QP) responseAcked(n uint64, counted bool) {
	s := &q.rsp
	if n < s.resps.lo || n >= s.resps.hi {
		return
	}
	p := s.resps.at(n)
	if counted && p.out > 0 {
		p.out--
	}
	if p.acked {
		return
	}
	p.acked = true
	s.putResp(q.e, p)
	for s.resps.lo < s.resps.hi && s.resps.at(s.resps.lo).acked {
		s.resps.lo++
	}
	q.wake()
}

func (q *QP) responseLost(n uint64) {
	s := &q.rsp
	if n < s.resps.lo || n >= s.resps.hi {
		return
	}
	p := s.resps.at(n)
	if p.out > 0 {
		p.out--
	}
	if p.acked || p.out > 0 || p.queued || planted.Is(planted.ResponseLostForGood) {
		return
	}
	p.queued = true
	s.rrtx.push(n)
	q.wake()
}

// responseMemoryGone: the memory of an accepted READ cannot be read any more: the READ fails at its PSN.
func (q *QP) responseMemoryGone(n uint64, err transport.MemErr) {
	s := &q.rsp
	if n < s.resps.lo || n >= s.resps.hi || q.state == StateErr && s.fatal == 0 {
		return
	}
	p := s.resps.at(n)
	psn := p.psn
	s.nreads = 0
	s.dropResponses(q.e, n) // neither this packet nor a later one will ever go
	//= MR-MSG-085
	q.enterFatal(psn, codeOf(err), transport.RemAccessErr)
	q.a.refuseLater(q)
}

// onResponse handles a READ or atomic response at the requester.
func (e *Engine) onResponse(a *assoc, rp *rxPath, h *wire.Header, payload []byte, p *pkt.Packet) {
	q := e.QP(h.DestQP)
	//= MR-MSG-074 MR-SEC-006
	if q == nil || q.a != a || q.state != StateRTS && q.state != StateSQD {
		e.C.DropResponse++
		if planted.Is(planted.DeadRequesterMute) {
			return
		}
		a.accept(rp, h, p) // nobody wants it any more: the responder need not keep it
		return
	}
	//= MR-MSG-096
	if q.before(h.TS) && !planted.Is(planted.OldResponsesLand) { // both lives count responses from 0; what is of this one comes again
		e.C.DropStaleQP++
		return
	}
	r := &q.req
	n := h.PSN.Expand(r.respExp)
	//= MR-REL-051
	if n >= r.respExp+uint64(e.cfg.PSNWindow) {
		e.C.DropAhead++
		return
	}
	//= MR-REL-052 MR-MSG-073
	if n < r.respExp || n < r.seen.hi && *r.seen.at(n) {
		e.C.DupPSN++
		a.accept(rp, h, p)
		return
	}
	if e.out.inWork(q, n) {
		e.C.DropBusy++
		return
	}
	rd := serial.Expand32(h.ReadNo, r.rdLow)
	w := r.findRead(rd)
	//= MR-REL-017
	if w == nil { // a broken peer; without an answer it would look like a lossy network
		e.C.DropResponse++
		a.accept(rp, h, p)
		return
	}
	j := e.out.job(jobResponse, q, a, rp, h, p)
	j.psn, j.rd = n, rd
	switch {
	//= MR-VRB-008
	case h.Op == wire.OpAtomicResp && w.Op.IsAtomic() && h.ReadOff == 0:
		for i := range 8 {
			j.scratch[i] = byte(h.Result >> (8 * i)) // as the processor stores it
		}
		payload = j.scratch[:]
		j.n = 8
	//= MR-MSG-075
	case h.Op == wire.OpReadResp && w.Op == transport.OpRead && uint64(h.ReadOff)+uint64(len(payload)) <= uint64(w.Length):
		j.n = len(payload)
	default:
		j.code = wire.RefuseInvalid
		return
	}
	if len(payload) > 0 {
		op := e.out.op(&j.nops, transport.MemLand, q)
		//= MR-MSG-073
		op.WR, op.Off, op.Buf = &w.SendWR, h.ReadOff, payload
	}
}

// findRead returns the outstanding READ or atomic of a number.
func (r *requester) findRead(n uint64) *wqe {
	if n < r.rdLow || n >= r.rdLow+r.maxRd {
		return nil
	}
	w := r.wq(*r.rd(n))
	if w.rdno != n || !w.Op.HasResponse() || w.answered || *r.rd(n) >= r.cur || w.first >= r.next {
		return nil
	}
	return w
}

// landed: a response packet's bytes are in memory (or could not be written).
func (q *QP) landed(j *job, ok bool) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		return
	}
	w := r.findRead(j.rd)
	if w == nil { // answered by another packet of this burst
		return
	}
	if j.code != 0 {
		w.failed = transport.BadRespErr
		r.stop = min(r.stop, w.first)
		q.complete()
		return
	}
	if !ok {
		w.failed = transport.LocProtErr
		r.stop = min(r.stop, w.first)
		q.complete()
		return
	}
	r.seen.extend(j.psn)
	*r.seen.at(j.psn) = true
	for r.respExp < r.seen.hi && *r.seen.at(r.respExp) {
		r.respExp++
	}
	r.seen.lo = r.respExp
	r.since = q.e.now
	w.got += uint32(j.n)
	if w.got < w.Length && !w.Op.IsAtomic() {
		return
	}
	w.answered = true
	if w.Op.IsAtomic() {
		r.atomics--
	}
	for r.rdLow < r.nrd {
		n := *r.rd(r.rdLow)
		if x := r.wq(n); x.rdno != r.rdLow || !x.answered || n >= r.cur {
			break
		}
		r.rdLow++
	}
	q.complete()
	q.watch()
	q.wake()
}
