package rocev2

import (
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// UC: the packets of RC, and no answers. A request is done when its last packet was sent. A message of which a packet is
// missing is dropped, and so is one that cannot be carried out; nobody is told, and the next one begins anew.

// serviceOf is the service of a QP's packets.
func serviceOf(t transport.QPType) ib.Service {
	switch t {
	case transport.UC:
		return ib.UC
	case transport.XRCSend, transport.XRCRecv:
		return ib.XRC
	case transport.RC, transport.UD:
	}
	return ib.RC
}

// offers reports whether the QP has an operation. Of UC's none needs an answer, or a key at the other end to end.
func (q *QP) offers(o transport.Op) bool {
	switch {
	case q.typ == transport.UC:
		return o == transport.OpWrite || o == transport.OpWriteImm || o == transport.OpSend || o == transport.OpSendImm
	case o.HasResponse():
		return q.req.maxRd > 0
	}
	return o.IsSend() || o.IsWrite()
}

// sentUC says that the packet of a PSN is on its way, and with it all before it.
func (q *QP) sentUC(psn uint64) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		return
	}
	r.una = psn + 1
	if q.complete(); r.next < r.end {
		q.wake()
	}
}

// onUC takes a packet in, or drops its message. The first packet of a message is taken whatever its number: there is no
// telling loss from repetition without answers.
func (e *Engine) onUC(q *QP, h *ib.Header, payload []byte) {
	s := &q.rsp
	switch {
	case q.state == StateErr:
		e.C.DropState++
		return
	//= MR-COEX-050
	case h.Op.First():
		if s.kind != msgNone {
			e.C.DropUCCut++
		}
		s.kind, s.off = msgNone, 0
		s.msg++
	case s.kind == msgNone || h.PSN != serial.Trunc(s.exp) || !q.inOrder(h):
		if e.C.DropUCGap++; s.kind != msgNone {
			e.C.DropUCCut++
		}
		s.kind, s.off = msgNone, 0
		return
	}
	s.exp = firstPSN(uint32(h.PSN) + 1)
	//= MR-COEX-051
	if h.Op.IsSend() && s.recv == nil {
		if s.recv = e.host.TakeRecv(q.owner); s.recv == nil {
			e.C.DropUCNoRecv++
			return
		}
	}
	j := e.in.job(jobUC, q)
	j.msg, j.se, j.last = s.msg, h.SE, h.Op.Last()
	if h.Op.IsSend() {
		q.takeSend(j, h, payload)
	} else {
		q.takeWrite(j, h, payload)
	}
	if j.syndrome != 0 && !(j.syndrome == ib.NakOperation) { // the receive waits for the next message
		if e.in.jobs = e.in.jobs[:len(e.in.jobs)-1]; j.status == transport.LocLenErr {
			e.C.DropUCTooLong++
		} else {
			e.C.DropUCInvalid++
		}
		s.kind, s.off = msgNone, 0
		return
	}
	if j.last {
		if s.kind, s.off = msgNone, 0; h.Op.IsSend() {
			s.recv = nil
		}
	}
}

// chain is what fails together within a burst: all requests of RC, a message of UC.
func (q *QP) chain() uint32 {
	if q.typ == transport.UC {
		return q.qpn | uint32(q.rsp.msg)<<24
	}
	return q.qpn
}

// settleUC: the memory of a packet is done. A peer's mistake drops its message; a list of our own that is bad ends the QP.
func (q *QP) settleUC(j *job, err transport.MemErr) {
	e, s := q.e, &q.rsp
	write := j.recv == nil
	switch {
	case j.status != transport.OK:
		q.failUC(j, j.status)
		return
	case err == transport.MemOK:
	case write:
		//= MR-COEX-052
		if err != transport.MemSkipped {
			e.C.DropUCAccess++
		}
		if s.msg == j.msg {
			s.kind, s.off = msgNone, 0
		}
		return
	default:
		q.failUC(j, transport.LocProtErr)
		return
	}
	if !j.last || write && j.wrOp != transport.OpWriteImm {
		return
	}
	r := j.recv
	j.recv = nil
	if write { // its receive is taken now that it is known to be needed
		if r, s.recv = s.recv, nil; r == nil {
			r = e.host.TakeRecv(q.owner)
		}
		if r == nil {
			e.C.DropUCNoRecv++
			return
		}
	}
	e.host.RecvDone(q.owner, r, transport.RecvInfo{Op: j.wrOp, Length: j.length, Imm: j.imm, SrcQP: q.remoteQPN, Solicited: j.se, Inline: j.inline})
}

// failUC ends the QP: its program posted a receive that cannot be used.
func (q *QP) failUC(j *job, s transport.Status) {
	e, r := q.e, j.recv
	e.dropRecv(q, r)
	q.state = StateErr
	e.host.RecvDone(q.owner, r, transport.RecvInfo{Status: s, SrcQP: q.remoteQPN})
	e.host.QPError(q.owner, true, s)
	q.flush()
}
