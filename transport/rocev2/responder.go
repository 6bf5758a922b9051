package rocev2

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// msgKind is the kind of the message that is being received.
type msgKind uint8

const (
	msgNone msgKind = iota
	msgSend
	msgWrite
)

// resource is a READ or atomic that was accepted: still to be answered, or remembered to be answered again.
type resource struct {
	first, last uint64 // PSNs of its responses
	va          uint64
	result      uint64 // of an atomic
	at, to      uint64 // next response to send, and the last one; at > to: all are sent
	start       uint64 // where this answer began
	length      uint32
	rkey        uint32
	srqn        uint32
	msn         uint32
	op          ib.Opcode
	ready       bool // its memory was checked, the atomic has run
	replay      bool
}

// none is a place in the ring that is nobody's: answered, and no PSN is its own.
var none = resource{at: 1}

// responder is the receiving half of a QP.
type responder struct {
	exp     uint64 // next PSN in order
	msn     uint32 // messages completed
	kind    msgKind
	recv    *transport.RecvWR // of the message being received
	off     uint32            // bytes of it so far
	msg     uint8             // UC: its number
	va      uint64
	length  uint32 // of a WRITE
	rkey    uint32
	srqn    uint32 // XRC: the queue that the message is for
	closing bool   // a request found bad at arrival: nothing behind it counts

	res    []resource // ring, by number
	nres   uint64     // READs and atomics accepted so far
	low    uint64     // all below are answered
	minRNR uint8

	ackDue bool
	dupAck uint64      // duplicates up to it are to be acknowledged again; 0 = none
	nak    ib.Syndrome // to be sent; 0 = none
	nakPSN uint64
	gapAt  uint64    // the expected PSN that a NAK was sent for; 0 = none
	nakAt  mono.Time // when; 0: it was an RNR NAK
	ahead  uint64    // the last packet that came beyond the gap

	fatal    ib.Syndrome // NAK that ended the QP
	fatalPSN uint64
}

func (s *responder) start(psn0 uint64, maxRd int, minRNR uint8) {
	s.exp, s.minRNR = psn0, minRNR
	n := min(max(maxRd, 0), rdMax)
	if cap(s.res) < n {
		s.res = make([]resource, n)
	}
	s.res = s.res[:n]
	clear(s.res)
}

// remember changes how many READs and atomics are remembered; those that are not answered yet stay.
func (s *responder) remember(maxRd int) {
	n := max(min(max(maxRd, 0), rdMax), int(s.nres-min(s.low, s.nres)))
	if n == len(s.res) {
		return
	}
	old := s.res
	s.res = make([]resource, n)
	for i := range s.res {
		s.res[i] = none
	}
	for k := s.nres - min(s.nres, uint64(min(n, len(old)))); k < s.nres; k++ {
		*s.at(k) = old[k%uint64(len(old))]
	}
}

func (s *responder) at(n uint64) *resource { return &s.res[n%uint64(len(s.res))] }

// oldest is the number of the oldest remembered READ or atomic.
func (s *responder) oldest() uint64 { return s.nres - min(s.nres, uint64(len(s.res))) }

// forget drops what is still to be answered.
func (s *responder) forget() {
	s.low, s.ackDue, s.dupAck, s.nak = s.nres, false, 0, 0
	clear(s.res)
}

// onRequest handles one request packet.
func (e *Engine) onRequest(q *QP, h *ib.Header, payload []byte) {
	s := &q.rsp
	psn := h.PSN.Expand(s.exp)
	switch {
	case q.state == StateErr:
		if s.fatal == 0 {
			e.C.DropState++
		} else if psn < s.fatalPSN {
			q.duplicate(h, psn)
		} else { // its answer may be lost: say it again
			s.nak, s.nakPSN = s.fatal, s.fatalPSN
			q.answerSoon()
		}
	case s.closing:
		e.C.DropBusy++
	case psn < s.exp:
		q.duplicate(h, psn)
	case psn > s.exp:
		q.beyond(psn)
	default:
		q.take(h, payload, psn)
	}
}

// beyond handles a packet behind a gap: one NAK, then silence, until the requester has gone back and lost it again.
func (q *QP) beyond(psn uint64) {
	e, s := q.e, &q.rsp
	e.C.DropAhead++
	again := !e.cfg.NAKOnce && (psn <= s.ahead || s.nakAt != 0 && e.now.Sub(s.nakAt) >= e.cfg.NAKRepeat)
	s.ahead = psn
	if s.gapAt == s.exp && !again {
		return
	}
	s.gapAt, s.nakAt = s.exp, e.now
	s.nak, s.nakPSN = ib.NakSequence, s.exp
	e.C.SequenceNaks++
	q.answerSoon()
}

// duplicate answers a request that was executed before.
func (q *QP) duplicate(h *ib.Header, psn uint64) {
	e, s := q.e, &q.rsp
	q.follow(e.in.plane)
	if h.Op == ib.ReadRequest || h.Op == ib.CmpSwap || h.Op == ib.FetchAdd {
		for n := s.oldest(); n < s.nres; n++ {
			r := s.at(n)
			if psn < r.first || psn > r.last || h.RKey != r.rkey {
				continue
			}
			if q.replay(r, h, psn) {
				s.low = min(s.low, n)
				return
			}
		}
		e.C.DropDuplicate++
		return
	}
	// Not beyond a READ that was asked for after it: an acknowledgement would tell that its response was sent.
	e.C.Duplicates++
	ack := s.exp - 1
	for n := s.oldest(); n < s.nres; n++ {
		if r := s.at(n); r.first > psn {
			ack = r.first - 1
			break
		}
	}
	s.dupAck = max(s.dupAck, ack)
	q.answerSoon()
}

// replay answers a remembered READ from psn on, or an atomic, again. It reports false when the request does not match.
func (q *QP) replay(r *resource, h *ib.Header, psn uint64) bool {
	to := psn
	if r.op == ib.ReadRequest {
		skipped := (psn - r.first) * uint64(q.mtu)
		if h.Op != ib.ReadRequest || h.VA != r.va+skipped || uint64(h.Len)+skipped > uint64(r.length) {
			return false
		}
		to += q.packets(h.Len) - 1
	} else if h.Op != r.op || h.VA != r.va {
		return false
	}
	if r.at <= psn && r.at <= r.to { // not there yet
		return true
	}
	q.e.C.Duplicates++
	q.e.C.Replays++
	r.at, r.start, r.to, r.replay = psn, psn, to, true
	q.answerSoon()
	return true
}

// packets is how many packets a message of n bytes takes.
func (q *QP) packets(n uint32) uint64 {
	if n == 0 {
		return 1
	}
	return (uint64(n)-1)/uint64(q.mtu) + 1
}

// take handles the packet whose turn it is.
func (q *QP) take(h *ib.Header, payload []byte, psn uint64) {
	e, s := q.e, &q.rsp
	known := true
	if s.recv == nil && (h.Op.IsSend() && h.Op.First() || h.Op == ib.WriteOnlyImm || h.Op == ib.WriteLastImm) && q.inOrder(h) {
		if s.recv, known = e.nextRecv(q, h); s.recv == nil && known {
			s.nak, s.nakPSN = ib.RNRNak|ib.Syndrome(s.minRNR&31), psn
			s.gapAt, s.nakAt, s.ahead = psn, 0, psn // what comes behind it needs no NAK of its own
			q.answerSoon()
			return
		}
	}
	j := e.in.job(jobRequest, q)
	j.psn, j.ackReq, j.se, j.last = psn, h.AckReq, h.SE, h.Op.Last()
	s.exp = psn + 1
	if h.Op.First() {
		s.srqn = h.SRQN
	}
	switch {
	case !known, !q.inOrder(h):
		j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
		j.recv = s.recv
	case h.Op.IsSend():
		q.takeSend(j, h, payload)
	case h.Op.IsWrite():
		if h.Op.Last() {
			e.C.RxWrites++
		}
		q.takeWrite(j, h, payload)
	default:
		if h.Op == ib.ReadRequest {
			e.C.RxReads++
		} else {
			e.C.RxAtomics++
		}
		q.takeRead(j, h, psn)
	}
	if j.syndrome != 0 {
		s.closing = true
		return
	}
	if h.Op.Last() {
		s.recv, s.kind, s.off = nil, msgNone, 0
		s.msn = (s.msn + 1) & (1<<24 - 1)
	}
}

// inOrder checks that the opcode may follow the one before.
func (q *QP) inOrder(h *ib.Header) bool {
	s := &q.rsp
	if h.Op.First() {
		return s.kind == msgNone
	}
	//= MR-COEX-060
	if h.SRQN != s.srqn {
		return false
	}
	return h.Op.IsSend() && s.kind == msgSend || h.Op.IsWrite() && s.kind == msgWrite
}

// sized checks that a packet of a longer message is as long as it must be.
func (q *QP) sized(h *ib.Header, n int) bool {
	if !h.Op.Last() {
		return n == q.mtu
	}
	return n <= q.mtu && (n > 0 || h.Op.First())
}

func (q *QP) takeSend(j *job, h *ib.Header, payload []byte) {
	e, s := q.e, &q.rsp
	s.kind = msgSend
	n, off := uint32(len(payload)), s.off
	s.off += n
	j.recv, j.length, j.wrOp = s.recv, s.off, transport.OpSend
	switch {
	case h.Op.HasImm():
		j.wrOp, j.imm = transport.OpSendImm, h.Imm
	case h.Op.HasInv():
		j.wrOp, j.imm = transport.OpSendInv, h.Inv
	}
	switch {
	case !q.sized(h, len(payload)):
		j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
	case j.recv.Fail != transport.OK:
		j.syndrome, j.status = ib.NakOperation, j.recv.Fail
	case uint64(off)+uint64(n) > uint64(j.recv.Length):
		j.syndrome, j.status = ib.NakInvalid, transport.LocLenErr
	case n == 0:
	case off == 0 && j.last && n <= inlineMax && !j.recv.Place:
		j.inline = payload
	default:
		*e.in.op(j) = transport.MemOp{Kind: transport.MemScatter, QP: q.owner, Recv: j.recv, Off: off, Buf: payload, Chain: q.chain()}
	}
}

// inlineMax is what a receive completion can carry (MR_CQE_INLINE).
const inlineMax = 64

func (q *QP) takeWrite(j *job, h *ib.Header, payload []byte) {
	e, s := q.e, &q.rsp
	if h.Op.First() {
		s.kind, s.off, s.va, s.length, s.rkey = msgWrite, 0, h.VA, h.Len, h.RKey
	}
	n, off := uint32(len(payload)), s.off
	s.off += n
	j.length = s.off
	if h.Op.HasImm() {
		j.wrOp, j.imm = transport.OpWriteImm, h.Imm
		if q.typ != transport.UC {
			j.recv = s.recv
		}
	}
	switch {
	case !q.sized(h, len(payload)) || uint64(off)+uint64(n) > uint64(s.length) || j.last != (s.off == s.length):
		j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
	case n > 0:
		*e.in.op(j) = transport.MemOp{Kind: transport.MemWrite, QP: q.owner, Addr: s.va + uint64(off), RKey: s.rkey, Buf: payload, Swap: uint64(s.length - off), SRQN: s.srqn, Chain: q.chain()}
	}
}

// takeRead notes a READ or an atomic.
func (q *QP) takeRead(j *job, h *ib.Header, psn uint64) {
	e, s := q.e, &q.rsp
	j.read = true
	if len(s.res) == 0 || h.Len > 1<<31 {
		j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
		return
	}
	r := s.at(s.nres)
	if s.nres >= uint64(len(s.res)) && r.at <= r.to && !r.replay { // more than the requester may have out
		j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
		return
	}
	j.res = s.nres
	s.nres++
	s.low = max(s.low, s.oldest())
	*r = resource{first: psn, last: psn, at: psn, start: psn, to: psn, va: h.VA, rkey: h.RKey, srqn: h.SRQN, length: h.Len, op: h.Op, msn: (s.msn + 1) & (1<<24 - 1)}
	op := transport.MemOp{QP: q.owner, Addr: h.VA, RKey: h.RKey, SRQN: h.SRQN, Chain: q.qpn}
	switch h.Op {
	case ib.ReadRequest:
		r.last = psn + q.packets(h.Len) - 1
		r.to = r.last
		s.exp = r.last + 1
		if h.Len == 0 {
			return
		}
		op.Kind, op.Swap = transport.MemCheckRead, uint64(h.Len)
	case ib.FetchAdd:
		op.Kind, op.Swap, op.Compare = transport.MemFetchAdd, h.Swap, h.Swap
	default:
		op.Kind, op.Swap, op.Compare = transport.MemCmpSwap, h.Swap, h.Compare
	}
	*e.in.op(j) = op
}

// settleRequest: the memory of a request is done.
func (q *QP) settleRequest(j *job, err transport.MemErr) {
	e, s := q.e, &q.rsp
	if j.syndrome == 0 && err != transport.MemOK {
		switch {
		case j.recv != nil && j.wrOp != transport.OpWriteImm: // our own list
			j.syndrome, j.status = ib.NakOperation, transport.LocProtErr
		case err == transport.MemInvalid:
			j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
		default:
			j.syndrome, j.status = ib.NakAccess, transport.RemAccessErr
		}
	}
	if j.syndrome == 0 && j.wrOp == transport.OpSendInv && e.invalidate(q, j.imm) != transport.MemOK {
		j.syndrome, j.status = ib.NakAccess, transport.RemAccessErr // the peer may still use the key: nobody is told that it is dead
	}
	if j.syndrome != 0 {
		q.enterFatal(j)
		return
	}
	if j.ackReq && !j.read { // their responses acknowledge them
		s.ackDue = true
		q.answerSoon()
	}
	if j.read {
		r := s.at(j.res)
		r.ready = true
		if r.op != ib.ReadRequest {
			r.result = e.in.ops[j.op].Result
		}
		q.answerSoon()
		return
	}
	if !j.last || j.recv == nil {
		return
	}
	info := transport.RecvInfo{Op: j.wrOp, Length: j.length, Imm: j.imm, SrcQP: q.remoteQPN, Solicited: j.se, Inline: j.inline}
	r := j.recv
	j.recv = nil
	e.host.RecvDone(q.owner, r, info)
}

func (e *Engine) invalidate(q *QP, rkey uint32) transport.MemErr {
	op := &e.out.inv
	op[0] = transport.MemOp{Kind: transport.MemInvalidate, QP: q.owner, RKey: rkey}
	e.host.DMA(op[:])
	return op[0].Err
}

// enterFatal: a request fails and the QP with it. Everything before it is done; READs before it still run.
func (q *QP) enterFatal(j *job) {
	e, s := q.e, &q.rsp
	s.fatal, s.fatalPSN, s.exp = j.syndrome, j.psn, j.psn
	s.nak, s.nakPSN = s.fatal, s.fatalPSN
	s.closing = false
	for s.nres > s.oldest() && s.at(s.nres-1).first >= j.psn { // accepted behind it, or itself
		s.nres--
		s.low = min(s.low, s.nres)
		*s.at(s.nres) = none // its place counts as an older one's now, whose answer is forgotten
	}
	q.state = StateErr
	if r := j.recv; r != nil {
		e.dropRecv(q, r)
		st := j.status
		if st == transport.RemAccessErr { // it is not the receive that is wrong
			st = transport.WRFlushErr
		}
		e.host.RecvDone(q.owner, r, transport.RecvInfo{Status: st, SrcQP: q.remoteQPN})
	}
	e.host.QPError(q.owner, true, j.status)
	q.flush()
	q.answerSoon()
}

// dropRecv takes a receive from the jobs that are not settled and from the message being received.
func (e *Engine) dropRecv(q *QP, r *transport.RecvWR) {
	for i := e.in.settling; i < len(e.in.jobs); i++ {
		if e.in.jobs[i].recv == r {
			e.in.jobs[i].recv = nil
		}
	}
	if q.rsp.recv == r {
		q.rsp.recv, q.rsp.kind = nil, msgNone
	}
}
