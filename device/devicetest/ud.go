package devicetest

import (
	"net/netip"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/transport"
)

// Attach implements device.GroupQP.
func (q *QP) Attach(g netip.Addr) { q.groups = append(q.groups, g) }

// Detach implements device.GroupQP.
func (q *QP) Detach(g netip.Addr) {
	for i, x := range q.groups {
		if x == g {
			q.groups = append(q.groups[:i], q.groups[i+1:]...)
			return
		}
	}
}

// datagram carries out a UD request: whoever is there and wants it gets it, and the request is done.
func (q *QP) datagram(wr *transport.SendWR) transport.Status {
	b := q.e.buf[transport.GRHLen : transport.GRHLen+wr.Length]
	op := []transport.MemOp{{QP: q.owner, WR: wr, Buf: b, Kind: transport.MemGather}}
	q.e.host.DMA(op)
	if op[0].Err != transport.MemOK {
		return transport.LocProtErr
	}
	for _, e := range q.e.net.engines {
		for _, p := range e.qps {
			if p.wants(e, wr.Dest) {
				p.receive(q, wr)
			}
		}
	}
	return transport.OK
}

// wants reports whether a datagram is for p.
func (q *QP) wants(e *Engine, d *transport.UDDest) bool {
	if q.typ != transport.UD || q.qkey != d.QKey || q.state != device.RTR && q.state != device.RTS {
		return false
	}
	if !d.Remote.IsMulticast() {
		return q.qpn == d.QPN && e.net.engines[d.Remote] == e
	}
	for _, g := range q.groups {
		if g == d.Remote {
			return true
		}
	}
	return false
}

// receive takes a datagram that lies in the sender's buffer behind room for the route header.
func (q *QP) receive(from *QP, wr *transport.SendWR) {
	r := q.e.host.TakeRecv(q.owner)
	if r == nil {
		return
	}
	b := from.e.buf[:transport.GRHLen+wr.Length]
	clear(b[:transport.GRHLen])
	b[20] = 0x45
	src, dst := wr.Dest.Local.As4(), wr.Dest.Remote.As4()
	copy(b[32:], src[:])
	copy(b[36:], dst[:])
	info := transport.RecvInfo{Op: wr.Op, Length: uint32(len(b)), Imm: wr.Imm, SrcQP: from.qpn, GRH: true, IPv4: true, Solicited: wr.Flags&transport.FlagSolicited != 0}
	switch {
	case r.Fail != transport.OK || r.Length < info.Length:
		info.Status = transport.LocLenErr
	case len(b) <= 64:
		info.Inline = b
	default:
		op := []transport.MemOp{{QP: q.owner, Recv: r, Buf: b, Kind: transport.MemScatter}}
		q.e.host.DMA(op)
		if op[0].Err != transport.MemOK {
			info.Status = transport.LocProtErr
		}
	}
	q.e.host.RecvDone(q.owner, r, info)
}
