package rocev2

import (
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// postUD takes a datagram. What it lacks shows when its turn comes.
func (q *QP) postUD(w *wqe) {
	switch {
	case !w.Op.IsSend() || w.Op == transport.OpSendInv:
		q.refuse(w, transport.LocQPOpErr)
	case q.plane < 0 || int(w.Length) > q.e.planes[q.plane].mtu:
		q.refuse(w, transport.LocLenErr)
	case !w.Dest.Local.IsValid() || w.Dest.Local.Is4() != w.Dest.Remote.Is4() || !w.Dest.Remote.IsValid():
		q.refuse(w, transport.LocQPOpErr)
	}
	q.wake()
}

// nextDatagram reports whether a datagram may go. One that cannot be sent fails the QP, once those before it are done.
func (q *QP) nextDatagram() bool {
	r := &q.req
	if q.state != StateRTS || r.cur == r.tail {
		return false
	}
	if w := r.wq(r.cur); w.Fail != transport.OK {
		if r.cur == r.head {
			q.failRequester(w.Fail)
		}
		return false
	}
	return true
}

func (q *QP) fillDatagram(j *txJob, op *transport.MemOp) {
	r := &q.req
	w := r.wq(r.cur)
	d, h, p := w.Dest, &j.hdr, j.p
	h.Op = ib.UDSend
	if w.Op == transport.OpSendImm {
		h.Op, h.Imm = ib.UDSendImm, w.Imm
	}
	// A key with the top bit set is no key: it asks for the QP's own.
	if h.QKey = d.QKey; d.QKey>>31 != 0 {
		h.QKey = q.qkey
	}
	h.SE = w.Flags&transport.FlagSolicited != 0
	h.SrcQP, h.DestQP, h.PSN = q.qpn, d.QPN, serial.Trunc(r.next)
	if d.Remote.IsMulticast() {
		h.DestQP = ib.MulticastQPN
	}
	r.next++
	p.Src, p.Dst, p.TOS, p.TTL, p.FlowLabel = d.Local, d.Remote, d.TOS&^pkt.ECNMask, d.HopLimit, d.FlowLabel&0xfffff
	//= MR-COEX-034
	p.SrcPort = q.srcPort
	if d.FlowLabel != 0 {
		p.SrcPort = sourcePort(p.FlowLabel, 0, 0)
	}
	if j.n = int(w.Length); j.n > 0 {
		j.op = opWanted
		op.Kind, op.WR = transport.MemGather, &w.SendWR
	}
	r.cur++
}

// datagramSent completes the oldest datagram.
func (q *QP) datagramSent() {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD || r.head == r.cur {
		return
	}
	w := r.wq(r.head)
	r.head++
	q.e.host.SendDone(q.owner, &w.SendWR, transport.OK)
	if r.head == r.cur && r.cur != r.tail {
		q.wake()
	}
}

// onMulticast gives a datagram to every member of its group.
func (e *Engine) onMulticast(p *pkt.Packet, h *ib.Header, payload []byte) {
	if h.Op != ib.UDSend && h.Op != ib.UDSendImm || !p.Dst.IsMulticast() {
		e.C.DropQPN++
		return
	}
	//= MR-COEX-035
	g := e.groups[p.Dst]
	if len(g) == 0 {
		e.C.DropGroup++
	}
	for _, q := range g {
		if len(e.in.jobs) == cap(e.in.jobs) {
			e.commit()
		}
		e.onDatagram(q, p, h, payload)
	}
}

// onDatagram places a datagram behind its route header.
func (e *Engine) onDatagram(q *QP, p *pkt.Packet, h *ib.Header, payload []byte) {
	switch {
	case q.state < StateRTR || q.state == StateErr:
		e.C.DropState++
		return
	//= MR-COEX-031
	case h.QKey != q.qkey:
		e.C.DropQKey++
		return
	}
	recv := e.host.TakeRecv(q.owner)
	if recv == nil {
		e.C.DropUDNoRecv++
		return
	}
	j := e.in.job(jobDatagram, q)
	j.recv, j.last, j.se, j.srcQP, j.length = recv, true, h.SE, h.SrcQP, uint32(ib.GRHLen+len(payload))
	if h.Op == ib.UDSendImm {
		j.wrOp, j.imm = transport.OpSendImm, h.Imm
	}
	switch {
	case recv.Fail != transport.OK:
		j.status = recv.Fail
		return
	case j.length > recv.Length:
		e.C.DropUDTooLong++
		j.status = transport.LocLenErr
		return
	}
	//= MR-COEX-033
	ib.PutGRH(j.grh[:], p)
	*e.in.op(j) = transport.MemOp{Kind: transport.MemScatter, QP: q.owner, Recv: recv, Buf: j.grh[:]}
	if len(payload) > 0 {
		*e.in.op(j) = transport.MemOp{Kind: transport.MemScatter, QP: q.owner, Recv: recv, Off: ib.GRHLen, Buf: payload}
	}
}

// settleDatagram completes the receive. One that is too short ends with an error, as NICs have it, but does not end the
// QP: anybody may send to it. A list whose memory is gone does.
func (q *QP) settleDatagram(j *job, err transport.MemErr) {
	r := j.recv
	j.recv = nil
	info := transport.RecvInfo{Op: j.wrOp, Length: j.length, Imm: j.imm, SrcQP: j.srcQP, Solicited: j.se, GRH: true, IPv4: j.grh[0]>>4 != 6}
	if err != transport.MemOK {
		j.status = transport.LocProtErr
	}
	if j.status == transport.OK {
		q.e.host.RecvDone(q.owner, r, info)
		return
	}
	q.e.host.RecvDone(q.owner, r, transport.RecvInfo{Status: j.status, SrcQP: j.srcQP})
	if j.status != transport.LocLenErr {
		q.state = StateErr
		q.e.host.QPError(q.owner, true, j.status)
		q.flush()
	}
}
