package device

import (
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// fetchSend copies the descriptor at index i out of the program's memory and turns it into wr. A bad one is posted
// all the same, with Fail set: it completes with that status when its turn comes. False: the memory faulted.
func (q *QP) fetchSend(i uint32, wr *transport.SendWR) bool {
	var e hostq.SQE
	n, ok := q.sq.ring.CopySQE(i, &e, q.sgeBuf)
	if !ok {
		q.ctx.fault()
		return false
	}
	sge := wr.SGE[:0]
	*wr = transport.SendWR{
		ID: e.WRID, RemoteAddr: e.RemoteAddr, Compare: e.CompareAdd(), Swap: e.Swap(), RKey: e.RKey, Imm: e.Imm,
		Slot: i, Flags: e.Flags, Op: transport.Op(e.Opcode), SGE: sge, Dest: wr.Dest, SRQN: e.XRCSRQN & 0xFFFFFF,
	}
	if q.sigAll {
		wr.Flags |= transport.FlagSignaled
	}
	wr.Fail = q.checkSend(&e, n, wr)
	if wr.Op == transport.OpAtomicWrite && wr.Fail == transport.OK {
		wr.Fail = checkAtomicWrite(wr)
	}
	if q.typ == transport.UD && wr.Fail == transport.OK {
		//= MR-COEX-030
		if wr.Fail = q.checkUD(&e, wr); wr.Fail == transport.OK && wr.Length > uint32(mtus[q.ctx.nic.cfg.activeMTU()-1]) {
			wr.Fail = transport.LocLenErr
		}
	}
	if wr.Fail != transport.OK {
		q.ctx.nic.C.FailedWRs++
		wr.SGE, wr.Inline, wr.Length = sge, nil, 0
		if !known(wr.Op) {
			q.ctx.nic.C.BadDescriptors++
		}
	}
	return true
}

const knownFlags = hostq.SendFence | hostq.SendSignaled | hostq.SendSolicited | hostq.SendInline

func known(o transport.Op) bool { return o <= transport.OpSendInv || o == transport.OpAtomicWrite }

// checkSend checks the copy e of a descriptor, with n SGEs copied, and fills wr's list.
func (q *QP) checkSend(e *hostq.SQE, n int, wr *transport.SendWR) transport.Status {
	switch {
	case !known(wr.Op), !q.offers(wr.Op), e.Flags&^knownFlags != 0:
		return transport.LocQPOpErr
	//= MR-VRB-009
	case wr.Op.HasResponse() && (e.Flags&hostq.SendInline != 0 || q.attr.MaxRdAtomic == 0):
		return transport.LocQPOpErr
	}
	if wr.Op.IsLocal() {
		if e.NumSGE != 0 || e.Flags&hostq.SendInline != 0 || q.typ == transport.UD {
			return transport.LocQPOpErr
		}
		return transport.OK
	}
	if e.Flags&hostq.SendInline != 0 {
		if e.NumSGE != 0 {
			return transport.LocQPOpErr
		}
		if e.InlineLen > q.maxInline {
			return transport.LocLenErr
		}
		//= MR-VRB-002
		if wr.Inline = q.sq.ring.SendPayload(wr.Slot, e.InlineLen); wr.Inline == nil {
			return transport.LocLenErr
		}
		wr.Length = e.InlineLen
		return transport.OK
	}
	if int(e.NumSGE) != n || n > q.maxSendSGE {
		return transport.LocQPOpErr
	}
	need := uint32(0)
	if wr.Op.HasResponse() {
		need = accLocalWrite
	}
	var s transport.Status
	wr.SGE, wr.Length, s = q.ctx.checkList(q.pd, q.sgeBuf[:n], need, wr.SGE)
	if s == transport.OK && wr.Op.IsAtomic() && wr.Length != 8 {
		s = transport.LocLenErr
	}
	return s
}

// checkAtomicWrite refuses what would not be 8 bytes that become visible together.
func checkAtomicWrite(wr *transport.SendWR) transport.Status {
	switch {
	case wr.Length != atomicBytes:
		return transport.LocLenErr
	//= MR-VRB-010
	case wr.RemoteAddr%atomicBytes != 0:
		return transport.RemInvReqErr
	}
	return transport.OK
}

// checkList checks a list of local memory and appends what is not empty to out.
func (c *Context) checkList(pd *PD, list []hostq.SGE, need uint32, out []transport.SGE) ([]transport.SGE, uint32, transport.Status) {
	var total uint64
	for _, s := range list {
		//= MR-VRB-001
		if s.Length == 0 {
			continue
		}
		if _, _, ok := c.nic.localAddr(pd, s.LKey, need, s.Addr, s.Length); !ok {
			return out, 0, transport.LocProtErr
		}
		if total += uint64(s.Length); total > maxMsgSize {
			return out, 0, transport.LocLenErr
		}
		out = append(out, transport.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return out, uint32(total), transport.OK
}

// onlyNIC reports whether the bytes of a receive may not travel in its completion.
func (c *Context) onlyNIC(list []transport.SGE) bool {
	if c.special == 0 && c.members == 1 {
		return false
	}
	for i := range list {
		if m := c.nic.keys.get(list[i].LKey); m != nil && (m.special() != 0 || m.ctx != c) {
			return true
		}
	}
	return false
}

// localAddr translates a piece of memory of a domain's program.
func (n *NIC) localAddr(pd *PD, lkey, need uint32, addr uint64, size uint32) (*MR, uint64, bool) {
	m := n.keys.get(lkey)
	//= MR-VRB-021
	if m == nil || m.window != nil || m.pd != pd || m.access&need != need {
		return nil, 0, false
	}
	a, ok := m.at(addr, size)
	return m, a, ok
}

// flushSend completes a descriptor that was posted to a QP in error.
func (q *QP) flushSend(i uint32) bool {
	var e hostq.SQE
	if _, ok := q.sq.ring.CopySQE(i, &e, nil); !ok {
		q.ctx.fault()
		return false
	}
	q.complete(e.WRID, i, transport.Op(e.Opcode), 0, transport.WRFlushErr)
	return true
}

// Completion opcodes (enum ibv_wc_opcode) and flags.
const (
	wcSend      = 0
	wcWrite     = 1
	wcRead      = 2
	wcCmpSwap   = 3
	wcFetchAdd  = 4
	wcBindMW    = 5
	wcLocalInv  = 6
	wcAtomicWr  = 9
	wcRecv      = 128
	wcRecvImm   = 129
	wcGRH       = 1 << 0
	slIPv4      = 2 // Ethernet has no service level; NICs say here which header the route header is, and UCX looks
	wcWithImm   = 1 << 1
	wcWithInv   = 1 << 3
	atomicBytes = 8
)

func wcOpcode(o transport.Op) uint8 {
	switch o {
	case transport.OpWrite, transport.OpWriteImm:
		return wcWrite
	case transport.OpRead:
		return wcRead
	case transport.OpCmpSwap:
		return wcCmpSwap
	case transport.OpFetchAdd:
		return wcFetchAdd
	case transport.OpAtomicWrite:
		return wcAtomicWr
	case transport.OpBindMW:
		return wcBindMW
	case transport.OpLocalInv:
		return wcLocalInv
	case transport.OpSend, transport.OpSendImm, transport.OpSendInv:
		return wcSend
	}
	return wcSend
}

// complete writes a completion of the send queue.
func (q *QP) complete(id uint64, slot uint32, op transport.Op, length uint32, s transport.Status) {
	e := hostq.CQE{WRID: id, QPN: q.qpn, ByteLen: length, Status: uint8(s), Opcode: wcOpcode(op), Flags: hostq.CQESend, Slot: slot}
	q.sendCQ.push(&e, s != transport.OK)
}

// SendDone implements transport.Host.
func (n *NIC) SendDone(owner any, wr *transport.SendWR, s transport.Status) {
	q := owner.(*QP)
	if q.sqOut > 0 {
		q.sqOut--
	}
	if s != transport.OK {
		n.C.SendFailed[s%statuses]++
	}
	//= MR-VRB-003
	if s != transport.OK || wr.Flags&transport.FlagSignaled != 0 {
		q.complete(wr.ID, wr.Slot, wr.Op, wr.Length, s)
	}
	if q.sqFull {
		q.sqFull = false
		n.ring(&q.sq)
	}
	q.drained()
}

// TakeRecv implements transport.Host: the next posted receive. A QP in error gets none: those still in the queue are
// flushed by its turns (serveRecv), which are bounded, or a program that posts while we flush would never let us go.
func (n *NIC) TakeRecv(owner any) *transport.RecvWR {
	q := owner.(*QP)
	if q.state == Err {
		return nil
	}
	if q.srq != nil {
		return q.srq.take()
	}
	return q.takeRecv()
}

// takeRecv copies the next posted receive out and checks it.
func (q *QP) takeRecv() *transport.RecvWR {
	w := &q.rq
	if !w.hasRng || q.ctx.Dead {
		return nil
	}
	prod, ok := w.ring.Prod()
	if !ok {
		q.ctx.fault()
		return nil
	}
	if left := prod - w.idx; left == 0 || left > w.ring.Entries() {
		if left != 0 {
			q.nonsense()
		}
		return nil
	}
	var e hostq.RQE
	k, ok := w.ring.CopyRQE(w.idx, &e, q.sgeBuf)
	if !ok {
		q.ctx.fault()
		return nil
	}
	r := q.recvs.get()
	r.ID, r.Slot = e.WRID, w.idx
	if e.NumSGE != uint32(k) || k > q.maxRecvSGE {
		r.Fail = transport.LocQPOpErr
	} else {
		r.SGE, r.Length, r.Fail = q.ctx.checkList(q.pd, q.sgeBuf[:k], accLocalWrite, r.SGE)
		r.Place = q.ctx.onlyNIC(r.SGE)
	}
	w.idx++
	if !w.ring.SetCons(w.idx) {
		q.ctx.fault()
	}
	return r
}

// recvPool keeps receives that nobody uses. The zero value with sges set is empty.
type recvPool struct {
	free []*transport.RecvWR
	sges int // of a list, at most
}

// get returns an empty receive with room for a list.
func (p *recvPool) get() *transport.RecvWR {
	if len(p.free) == 0 {
		fresh := make([]transport.RecvWR, 16)
		sges := make([]transport.SGE, 16*max(1, p.sges))
		for i := range fresh {
			fresh[i].SGE = sges[i*p.sges : i*p.sges : (i+1)*p.sges]
			p.put(&fresh[i])
		}
	}
	r := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	*r = transport.RecvWR{SGE: r.SGE[:0]}
	return r
}

func (p *recvPool) put(r *transport.RecvWR) { p.free = append(p.free, r) }

// ReturnRecv implements transport.Host. Only shared queues take receives back, to their head; those of a QP end with it.
func (n *NIC) ReturnRecv(owner any, r *transport.RecvWR) {
	q := owner.(*QP)
	s := q.srq
	if x, ok := r.Queue.(*SRQ); ok && !x.gone {
		s = x
	}
	if s != nil {
		s.returned = append(s.returned, r)
		return
	}
	q.recvs.put(r)
}

// RecvDone implements transport.Host.
func (n *NIC) RecvDone(owner any, r *transport.RecvWR, i transport.RecvInfo) {
	q := owner.(*QP)
	e := hostq.CQE{WRID: r.ID, QPN: q.qpn, Status: uint8(i.Status), Opcode: wcRecv, Slot: r.Slot}
	if i.Status == transport.OK {
		//= MR-VRB-004
		e.ByteLen, e.SrcQP = i.Length, i.SrcQP
	}
	switch i.Op {
	case transport.OpWriteImm:
		e.Opcode, e.WCFlags, e.Imm = wcRecvImm, wcWithImm, i.Imm
	case transport.OpSendImm:
		e.WCFlags, e.Imm = wcWithImm, i.Imm
	case transport.OpSendInv:
		e.WCFlags, e.Imm = wcWithInv, i.Imm
	case transport.OpSend, transport.OpWrite, transport.OpRead, transport.OpCmpSwap, transport.OpFetchAdd, transport.OpLocalInv, transport.OpBindMW,
		transport.OpAtomicWrite:
	}
	if i.GRH {
		e.WCFlags |= wcGRH
	}
	if i.IPv4 {
		e.SL = slIPv4
	}
	if i.Status != transport.OK {
		n.C.RecvFailed[i.Status%statuses]++
		e.WCFlags = 0
	} else if len(i.Inline) > 0 && len(i.Inline) <= hostq.CQEInline {
		e.InlineLen = uint16(copy(e.Data[:], i.Inline))
	}
	if s, ok := r.Queue.(*SRQ); ok {
		s.sharedDone(&e, r, i.Solicited || i.Status != transport.OK)
		return
	}
	if s := q.srq; s != nil {
		e.Flags = hostq.CQESRQ
		s.recvs.put(r)
	} else {
		q.recvs.put(r)
	}
	//= MR-VRB-007
	q.recvCQ.push(&e, i.Solicited || i.Status != transport.OK)
}

// RelaxedKey implements transport.Host.
func (n *NIC) RelaxedKey(owner any, rkey uint32) bool {
	m := n.keys.get(rkey)
	return m != nil && m.pd == owner.(*QP).pd && m.access&accRelaxed != 0
}

// KeyOffset implements transport.Host.
func (n *NIC) KeyOffset(owner any, rkey uint32) uint64 {
	if m := n.keys.get(rkey); m != nil && m.pd == owner.(*QP).pd {
		return m.addr - m.iova
	}
	return 0
}

// ShiftedKeys implements transport.Host.
func (n *NIC) ShiftedKeys(owner any) bool { return owner.(*QP).ctx.shifted > 0 }

// QPError implements transport.Host: the engine put the QP into ERR. The flushed completions follow within the same
// call; what is still in the queues is flushed after it, in order.
func (n *NIC) QPError(owner any, responder bool, s transport.Status) {
	q := owner.(*QP)
	n.C.QPErrors++
	if q.state == Err || q.state == Reset {
		return
	}
	q.state = Err
	q.entered(asyncFor(responder, s))
}

// asyncFor is the asynchronous event that verbs prescribes: only faults found serving the peer raise one.
func asyncFor(responder bool, s transport.Status) uint32 {
	//= MR-QP-030 MR-QP-031
	if !responder {
		return 0
	}
	switch s {
	case transport.RemAccessErr, transport.LocAccessErr:
		return evQPAccessErr
	case transport.RemInvReqErr:
		return evQPReqErr
	case transport.OK, transport.LocLenErr, transport.LocQPOpErr, transport.LocProtErr, transport.WRFlushErr, transport.MWBindErr,
		transport.BadRespErr, transport.RemOpErr, transport.RetryExcErr, transport.RnrRetryExcErr, transport.RemAbortErr,
		transport.FatalErr, transport.RespTimeoutErr, transport.GeneralErr:
		return evQPFatal
	}
	return evQPFatal
}

// Event implements transport.Host.
func (n *NIC) Event(e transport.Event) { n.onEvent(e) }
