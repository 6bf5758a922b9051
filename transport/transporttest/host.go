package transporttest

import (
	"encoding/binary"
	"slices"

	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// host is a node's memory and queues as the engine sees them.
type host struct{ n *Node }

// DMA implements transport.Host over the node's plain memory.
func (h host) DMA(ops []transport.MemOp) {
	var bad []uint32 // chains that failed
	for i := range ops {
		op := &ops[i]
		op.Err = transport.MemOK
		if slices.Contains(bad, op.Chain) {
			op.Err = transport.MemSkipped
			continue
		}
		op.Err = h.one(op)
		if h.n.After != nil {
			h.n.After(op)
		}
		if op.Err != transport.MemOK && op.Chain != 0 {
			bad = append(bad, op.Chain)
		}
	}
}

func (h host) one(op *transport.MemOp) transport.MemErr {
	if h.n.Fault != nil && h.n.Fault(op) {
		return transport.MemFault
	}
	m := h.n.Mem
	switch op.Kind {
	case transport.MemGather:
		if op.WR.Inline != nil {
			copy(op.Buf, op.WR.Inline[op.Off:])
			return transport.MemOK
		}
		return walk(op.WR.SGE, op.Off, op.Buf, func(a uint64, b []byte) { copy(b, m[a:]) })
	case transport.MemLand:
		return walk(op.WR.SGE, op.Off, op.Buf, func(a uint64, b []byte) { copy(m[a:], b) })
	case transport.MemScatter:
		return walk(op.Recv.SGE, op.Off, op.Buf, func(a uint64, b []byte) { copy(m[a:], b) })
	case transport.MemInvalidate:
		delete(h.n.Keys, op.RKey)
		return transport.MemOK
	default: // remote memory, under a key
	}
	k, ok := h.n.Keys[op.RKey]
	n := uint64(len(op.Buf))
	atomic := op.Kind == transport.MemCmpSwap || op.Kind == transport.MemFetchAdd
	if atomic {
		n = 8
	} else if op.Kind == transport.MemCheckRead || op.Kind == transport.MemCheckWrite {
		n = op.Swap
	}
	if !ok || op.Addr < k.Lo || op.Addr+n > k.Hi || op.Addr+n < op.Addr ||
		(op.Kind == transport.MemWrite || op.Kind == transport.MemCheckWrite) && !k.Write || (op.Kind == transport.MemRead || op.Kind == transport.MemCheckRead) && !k.Read || atomic && !k.Atomic {
		return transport.MemAccess
	}
	shift := h.n.Shift[op.RKey]
	switch op.Kind {
	case transport.MemCheckRead, transport.MemCheckWrite:
	case transport.MemWrite:
		copy(m[op.Addr+shift:], op.Buf)
	case transport.MemRead:
		copy(op.Buf, m[op.Addr+shift:])
	default:
		if op.Addr%8 != 0 {
			return transport.MemInvalid
		}
		p := m[op.Addr+shift:][:8]
		op.Result = binary.LittleEndian.Uint64(p)
		if op.Kind == transport.MemFetchAdd {
			binary.LittleEndian.PutUint64(p, op.Result+op.Swap)
		} else if op.Result == op.Compare {
			binary.LittleEndian.PutUint64(p, op.Swap)
		}
	}
	return transport.MemOK
}

// walk applies f to the pieces of list that bytes off … off+len(buf) fall into.
func walk(list []transport.SGE, off uint32, buf []byte, f func(addr uint64, b []byte)) transport.MemErr {
	for _, s := range list {
		if off >= s.Length {
			off -= s.Length
			continue
		}
		n := min(int(s.Length-off), len(buf))
		f(s.Addr+uint64(off), buf[:n])
		buf, off = buf[n:], 0
		if len(buf) == 0 {
			return transport.MemOK
		}
	}
	if len(buf) > 0 {
		return transport.MemAccess
	}
	return transport.MemOK
}

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
		walk(r.SGE, 0, i.Inline, func(a uint64, b []byte) { copy(h.n.Mem[a:], b) })
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
