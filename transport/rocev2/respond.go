package rocev2

import (
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// Answers go in the order of PSNs: an acknowledgement behind a READ says that the READ was answered. So acknowledgements
// and NAKs wait until no response is left to send.

// pending returns the oldest READ or atomic that is to be answered, or nil.
func (s *responder) pending() *resource {
	for s.low < s.nres {
		r := s.at(s.low)
		if r.at <= r.to {
			if !r.ready {
				return nil
			}
			return r
		}
		s.low++
	}
	return nil
}

// mayAnswer reports whether the QP's state lets it answer.
func (q *QP) mayAnswer() bool {
	return q.state >= StateRTR && (q.state != StateErr || q.rsp.fatal != 0)
}

// sendAnswers sends what is no data: CNPs, atomic results, acknowledgements and NAKs. It reports false when b is full.
func (q *QP) sendAnswers(b *pkt.Batch) bool {
	e, s := q.e, &q.rsp
	if q.cnpDue {
		j := e.txJob(q, txAnswer, b)
		if j == nil {
			return false
		}
		q.cnpDue = false
		q.charge(j.p, ib.MinPacket+ib.CNPPayload)
		j.hdr = ib.Header{Op: ib.CNP, BECN: true, PKey: ib.PKeyDefault, DestQP: q.remoteQPN}
		j.n = ib.CNPPayload
		j.p.TOS = e.cfg.CNPTOS
		clear(j.p.Buf[pkt.Headroom+ib.BTHLen : pkt.Headroom+ib.BTHLen+ib.CNPPayload])
		e.C.TxCNP++
	}
	if !q.mayAnswer() {
		return true
	}
	for r := s.pending(); r != nil; r = s.pending() {
		if r.op == ib.ReadRequest {
			q.wake()
			return true
		}
		j := e.txJob(q, txAnswer, b)
		if j == nil {
			return false
		}
		r.at, r.replay = r.to+1, false
		q.charge(j.p, ib.MinPacket+ib.AETHLen+ib.AtomicAckLen)
		h := &j.hdr
		h.Op, h.PSN, h.Syndrome, h.MSN, h.Result = ib.AtomicAck, serial.Trunc(r.first), ib.AckNoCredits, r.msn, r.result
	}
	if s.nak == 0 && !s.ackDue && s.dupAck == 0 {
		return true
	}
	j := e.txJob(q, txAnswer, b)
	if j == nil {
		return false
	}
	q.charge(j.p, ib.MinPacket+ib.AETHLen)
	h := &j.hdr
	h.Op, h.Syndrome, h.MSN = ib.Ack, ib.AckNoCredits, s.msn
	psn := s.exp - 1
	switch {
	case s.nak != 0 && s.nakPSN == s.exp:
		psn, h.Syndrome = s.nakPSN, s.nak
		if s.nak.IsRNR() {
			e.C.TxRNR++
		} else {
			e.C.TxNaks++
		}
	case s.nak != 0 || s.ackDue: // what the NAK was for has come meanwhile
		e.C.TxAcks++
	default:
		psn = s.dupAck
		e.C.TxAcks++
	}
	h.PSN = serial.Trunc(psn)
	s.nak, s.ackDue, s.dupAck = 0, false, 0
	return true
}

// nextResponse reports whether a packet of READ data is to be sent.
func (q *QP) nextResponse() bool {
	r := q.rsp.pending()
	return r != nil && r.op == ib.ReadRequest && q.mayAnswer()
}

// fillResponse makes the next packet of READ data.
func (q *QP) fillResponse(j *txJob, op *transport.MemOp) {
	s := &q.rsp
	r := s.pending()
	psn, h := r.at, &j.hdr
	off := uint32(psn-r.first) * uint32(q.mtu)
	j.psn = psn
	j.n = int(min(r.length-off, uint32(q.mtu)))
	h.PSN, h.Syndrome, h.MSN = serial.Trunc(psn), ib.AckNoCredits, r.msn
	switch first, last := psn == r.start, psn == r.to; {
	case first && last:
		h.Op = ib.ReadRespOnly
	case first:
		h.Op = ib.ReadRespFirst
	case last:
		h.Op = ib.ReadRespLast
	default:
		h.Op = ib.ReadRespMid
	}
	if j.n > 0 {
		j.op = opWanted
		op.Kind, op.Addr, op.RKey, op.SRQN = transport.MemRead, r.va+uint64(off), r.rkey, r.srqn
	}
	if r.at++; r.at > r.to {
		r.replay = false
		if s.pending() == nil || s.pending().op != ib.ReadRequest {
			q.answerSoon()
		}
	}
}

// responseGone: the memory of an accepted READ cannot be read any more: the READ fails at this PSN.
func (q *QP) responseGone(psn uint64, err transport.MemErr) {
	if !q.mayAnswer() {
		return
	}
	j := job{psn: psn, syndrome: ib.NakAccess, status: transport.RemAccessErr}
	if err == transport.MemInvalid {
		j.syndrome, j.status = ib.NakInvalid, transport.RemInvReqErr
	}
	s := &q.rsp
	if q.state != StateErr {
		q.enterFatal(&j)
	} else if psn < s.fatalPSN { // failed already, at a later request
		s.fatal, s.fatalPSN, s.exp = j.syndrome, psn, psn
	}
	s.low, s.nak, s.nakPSN = s.nres, s.fatal, s.fatalPSN
	q.answerSoon()
}
