package vopr

import (
	"encoding/binary"
	"slices"
	"sort"

	"github.com/metaroce/metaroce/transport"
)

// region is a piece of a program's memory with one use for its whole life; addresses are never used again, so that a
// byte that comes late shows where it should not be.
type region struct {
	base uint64
	b    []byte
	zone *zone // remote memory of a flow
	op   *op   // local memory of a request
	recv *recv // buffer of a receive
}

// key is registered memory.
type key struct {
	reg                 *region
	shift               uint64 // what an address under the key lacks to the place in memory
	write, read, atomic bool
	relaxed             bool
}

// alloc makes a region of n bytes, with a gap before the next one.
func (n *node) alloc(size int) *region {
	r := &region{base: n.top, b: make([]byte, size)}
	n.top += uint64(size+511) &^ 255
	n.mem = append(n.mem, r)
	return r
}

// at finds the region that holds n bytes at an address, or nil.
func (n *node) at(addr uint64, size int) (*region, int) {
	i := sort.Search(len(n.mem), func(i int) bool { return n.mem[i].base > addr }) - 1
	if i < 0 {
		return nil, 0
	}
	r := n.mem[i]
	off := addr - r.base
	if off+uint64(size) > uint64(len(r.b)) {
		return nil, 0
	}
	return r, int(off)
}

// host is the NIC's DMA and queues as its engine sees them.
type host struct{ n *node }

// DMA implements transport.Host.
func (h host) DMA(ops []transport.MemOp) {
	var bad []uint32 // chains that failed
	for i := range ops {
		op := &ops[i]
		if slices.Contains(bad, op.Chain) {
			op.Err = transport.MemSkipped
			continue
		}
		if op.Err = h.one(op); op.Err != transport.MemOK && op.Chain != 0 {
			bad = append(bad, op.Chain)
		}
	}
}

func (h host) one(m *transport.MemOp) transport.MemErr {
	switch m.Kind {
	case transport.MemGather:
		if f := m.QP.(*slot).end.out; m.WR.ID>>16 == uint64(f.id) {
			f.begins(f.ops[m.WR.ID&0xffff])
		}
		if m.WR.Inline != nil {
			copy(m.Buf, m.WR.Inline[m.Off:])
			return transport.MemOK
		}
		return h.walk(m.WR.SGE, m.Off, m.Buf, false)
	case transport.MemLand:
		return h.walk(m.WR.SGE, m.Off, m.Buf, true)
	case transport.MemScatter:
		return h.walk(m.Recv.SGE, m.Off, m.Buf, true)
	case transport.MemInvalidate:
		h.n.invalidated(m.RKey)
		return transport.MemOK
	default:
		return h.remote(m)
	}
}

// remote works on memory under a key.
func (h host) remote(m *transport.MemOp) transport.MemErr {
	k, size := h.n.keys[m.RKey], len(m.Buf)
	atomic := m.Kind == transport.MemCmpSwap || m.Kind == transport.MemFetchAdd
	switch {
	case atomic:
		size = 8
	case m.Kind == transport.MemCheckRead || m.Kind == transport.MemCheckWrite:
		size = int(m.Swap)
	case m.Kind == transport.MemWrite:
		size = max(size, int(m.Swap))
	}
	if k == nil || (m.Kind == transport.MemWrite || m.Kind == transport.MemCheckWrite) && !k.write || !k.read && (m.Kind == transport.MemRead || m.Kind == transport.MemCheckRead) || atomic && !k.atomic {
		return transport.MemAccess
	}
	r, off := h.n.at(m.Addr+k.shift, size)
	if r != k.reg {
		return transport.MemAccess
	}
	if m.Kind == transport.MemWrite {
		size = len(m.Buf)
	}
	b := r.b[off : off+size]
	switch m.Kind {
	case transport.MemCheckRead, transport.MemCheckWrite:
		return transport.MemOK
	case transport.MemRead:
		copy(m.Buf, b)
		return transport.MemOK
	case transport.MemWrite:
		copy(b, m.Buf)
	default:
		if m.Addr%8 != 0 {
			return transport.MemInvalid
		}
		m.Result = binary.LittleEndian.Uint64(b)
		switch {
		case m.Kind == transport.MemFetchAdd:
			binary.LittleEndian.PutUint64(b, m.Result+m.Swap)
		case m.Result == m.Compare:
			binary.LittleEndian.PutUint64(b, m.Swap)
		}
	}
	h.n.changed(r, off, size)
	return transport.MemOK
}

// walk copies between buf and the pieces of a list from byte off on.
func (h host) walk(list []transport.SGE, off uint32, buf []byte, write bool) transport.MemErr {
	for _, s := range list {
		if off >= s.Length {
			off -= s.Length
			continue
		}
		size := min(int(s.Length-off), len(buf))
		if s.LKey == badLKey {
			return transport.MemFault
		}
		r, at := h.n.at(s.Addr+uint64(off), size)
		switch {
		case r == nil:
			return transport.MemAccess
		case write:
			copy(r.b[at:], buf[:size])
			h.n.changed(r, at, size)
		default:
			copy(buf[:size], r.b[at:])
		}
		if buf, off = buf[size:], 0; len(buf) == 0 {
			return transport.MemOK
		}
	}
	if len(buf) > 0 {
		return transport.MemAccess
	}
	return transport.MemOK
}

// badLKey is a key that is good when posted and whose memory is not there.
const badLKey = 0xBAD

// RelaxedKey implements transport.Host.
func (h host) RelaxedKey(_ any, rkey uint32) bool {
	k := h.n.keys[rkey]
	return k != nil && k.relaxed
}

// KeyOffset implements transport.Host.
func (h host) KeyOffset(_ any, rkey uint32) uint64 {
	if k := h.n.keys[rkey]; k != nil {
		return k.shift
	}
	return 0
}

// ShiftedKeys implements transport.Host.
func (h host) ShiftedKeys(any) bool { return h.n.w.plan.has(Alias) }

// RunLocal implements transport.Host.
func (h host) RunLocal(o any, wr *transport.SendWR) transport.Status {
	return o.(*slot).end.runLocal(wr)
}

// TakeRecv implements transport.Host.
func (h host) TakeRecv(o any) *transport.RecvWR { return o.(*slot).end.takeRecv() }

// ReturnRecv implements transport.Host.
func (h host) ReturnRecv(o any, r *transport.RecvWR) { o.(*slot).end.returnRecv(r) }

// SendDone implements transport.Host.
func (h host) SendDone(o any, wr *transport.SendWR, s transport.Status) {
	o.(*slot).end.sendDone(wr, s)
}

// RecvDone implements transport.Host.
func (h host) RecvDone(o any, r *transport.RecvWR, i transport.RecvInfo) {
	if i.Inline != nil { // the device copies it when the program polls
		if e := h.walk(r.SGE, 0, i.Inline, true); e != transport.MemOK {
			fail("P06", "inline data does not fit its receive")
		}
	}
	o.(*slot).end.recvDone(r, i)
}

// QPError implements transport.Host.
func (h host) QPError(o any, responder bool, s transport.Status) { o.(*slot).end.qpError(responder, s) }

// Event implements transport.Host.
func (h host) Event(e transport.Event) {
	h.n.w.tr("n%d  event %v %s plane %d path %d", h.n.i, e.Kind, e.Peer, e.Plane, e.Path)
}
