package transporttest

import (
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// host is a node's memory and queues as the engine sees them.
type host struct{ n *Node }

// DMA implements transport.Host.
func (h host) DMA(ops []transport.MemOp) { h.n.DMA(ops) }

// TakeRecv implements transport.Host.
func (h host) TakeRecv(o any) *transport.RecvWR {
	q := o.(*QP)
	if len(q.Recvs) == 0 {
		return nil
	}
	r := q.Recvs[0]
	q.Recvs = q.Recvs[1:]
	return r
}

// ReturnRecv implements transport.Host.
func (h host) ReturnRecv(o any, r *transport.RecvWR) {
	q := o.(*QP)
	q.Recvs = append([]*transport.RecvWR{r}, q.Recvs...)
}

// RelaxedKey implements transport.Host.
func (h host) RelaxedKey(_ any, rkey uint32) bool { return h.n.Keys[rkey].Relaxed }

// KeyOffset implements transport.Host.
func (h host) KeyOffset(_ any, rkey uint32) uint64 { return h.n.Shift[rkey] }

// ShiftedKeys implements transport.Host.
func (h host) ShiftedKeys(any) bool { return len(h.n.Shift) > 0 }

// RunLocal implements transport.Host.
func (h host) RunLocal(o any, wr *transport.SendWR) transport.Status { return h.n.RunLocal(o, wr) }

// SendDone implements transport.Host.
func (h host) SendDone(o any, wr *transport.SendWR, s transport.Status) {
	q := o.(*QP)
	c := Completion{ID: wr.ID, Status: s, Op: wr.Op, Len: wr.Length, At: h.n.W.Now}
	q.Sends = append(q.Sends, c)
	if q.OnSend != nil {
		q.OnSend(c)
	}
}

// RecvDone implements transport.Host.
func (h host) RecvDone(o any, r *transport.RecvWR, i transport.RecvInfo) {
	q := o.(*QP)
	if i.Inline != nil {
		h.n.Scatter(r.SGE, 0, i.Inline)
	}
	c := Completion{ID: r.ID, Status: i.Status, Op: i.Op, Len: i.Length, Imm: i.Imm, At: h.n.W.Now, SE: i.Solicited}
	q.Received = append(q.Received, c)
	if q.OnRecv != nil {
		q.OnRecv(c)
	}
}

// QPError implements transport.Host.
func (h host) QPError(o any, _ bool, s transport.Status) {
	q := o.(*QP)
	q.Err, q.Failed = s, true
	q.Errors++
}

// Event implements transport.Host.
func (h host) Event(e transport.Event) { h.n.Log = append(h.n.Log, e) }

// QPOptions are what tests vary; zero values are usual ones.
type QPOptions struct {
	SQ, MTU, Rd int
	SQPSN       uint32
	Timeout     uint8 // 14 if 0
	Retry       uint8 // 7 if 0; 255 = none
	RNRRetry    uint8 // 7 if 0; 255 = none
	MinRNR      uint8 // 12 if 0
	done        bool
}

func (o *QPOptions) defaults() {
	if o.done {
		return
	}
	o.done = true
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.SQ, 256)
	set(&o.MTU, 4096)
	set(&o.Rd, 16)
	set8 := func(p *uint8, v uint8) {
		switch *p {
		case 0:
			*p = v
		case 255:
			*p = 0
		}
	}
	set8(&o.Timeout, 14)
	set8(&o.Retry, 7)
	set8(&o.RNRRetry, 7)
	set8(&o.MinRNR, 12)
}

// Connect makes a connected pair of QPs.
func (w *World) Connect(a, b *Node, o QPOptions) (*QP, *QP) {
	o.defaults()
	p, q := a.NewQP(o), b.NewQP(o)
	p.Join(q, o)
	q.Join(p, o)
	return p, q
}

// NewQP makes a QP in INIT.
func (n *Node) NewQP(o QPOptions) *QP {
	o.defaults()
	q := &QP{N: n}
	q.QP = n.E.CreateQP(uint32(0x100+len(n.QPs))|uint32(n.I)<<16, metaroce.QPConfig{Owner: q, SQEntries: o.SQ, MaxSendSGE: 4})
	q.ToInit()
	n.QPs = append(n.QPs, q)
	return q
}

// Join takes the QP to RTS with its peer.
func (q *QP) Join(p *QP, o QPOptions) {
	o.defaults()
	q.Peer = p
	q.ToRTR(q.N.W.Now, metaroce.RTRAttr{Local: q.N.Addr, Remote: p.N.Addr, RemoteQPN: p.Number(), RQPSN: o.SQPSN, PathMTU: o.MTU,
		MaxDestRdAtomic: o.Rd, MinRNRTimer: o.MinRNR})
	q.ToRTS(q.N.W.Now, metaroce.RTSAttr{SQPSN: o.SQPSN, Timeout: o.Timeout, RetryCnt: o.Retry, RNRRetry: o.RNRRetry, MaxRdAtomic: o.Rd})
}

// WR is a send work request as tests write it.
type WR struct {
	ID            uint64
	Op            transport.Op
	Local, Remote uint64
	N             uint32
	Key           uint32
	Imm           uint32
	Flags         uint16
	Compare, Swap uint64
}

// Send posts a work request; false when the ring is full.
func (q *QP) Send(x WR) bool {
	wr := q.NextWR()
	if wr == nil {
		return false
	}
	wr.ID, wr.Op, wr.RemoteAddr, wr.RKey, wr.Imm, wr.Flags, wr.Compare, wr.Swap, wr.Length = x.ID, x.Op, x.Remote, x.Key, x.Imm, x.Flags, x.Compare, x.Swap, x.N
	if x.N > 0 {
		wr.SGE = append(wr.SGE, transport.SGE{Addr: x.Local, Length: x.N})
	}
	q.Post(q.N.W.Now)
	return true
}

// Recv posts a receive.
func (q *QP) Recv(id, addr uint64, n uint32) {
	q.Recvs = append(q.Recvs, &transport.RecvWR{ID: id, SGE: []transport.SGE{{Addr: addr, Length: n}}, Length: n})
	q.RecvPosted(q.N.W.Now, 1)
}
