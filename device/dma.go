package device

import (
	"encoding/binary"
	"errors"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// Why DMA failed.
var (
	ErrFault = errors.New("device: the program's memory is not there, or not with the rights needed")
	ErrGone  = errors.New("device: the program is gone")
	// ErrStalled fails operations without an end of the context: the program may answer again.
	ErrStalled = errors.New("device: the program's copy thread does not answer")
)

// dmaSegs bounds the segments of one call to a Space.
const dmaSegs = 256

// dmaState is the scratch of DMA: the batch that grows while operations go the same way in the same program.
type dmaState struct {
	segs   []Seg
	op     []int // index of the operation each segment belongs to
	space  *Context
	write  bool
	failed []uint32 // chains that failed in this call
	word   [8]byte
}

func (d *dmaState) init() {
	d.segs = make([]Seg, 0, dmaSegs)
	d.op = make([]int, 0, dmaSegs)
	d.failed = make([]uint32, 0, 64)
}

// DMA implements transport.Host. Neighbours that go the same way in the same program's memory become one call.
func (n *NIC) DMA(ops []transport.MemOp) {
	d := &n.dma
	d.failed = d.failed[:0]
	n.C.DMAOps += uint64(len(ops))
	for i := range ops {
		op := &ops[i]
		op.Err = transport.MemOK
		if d.chainFailed(op.Chain) {
			op.Err = transport.MemSkipped
			continue
		}
		q := op.QP.(*QP)
		switch op.Kind {
		case transport.MemCmpSwap, transport.MemFetchAdd:
			n.flushDMA(ops)
			if d.chainFailed(op.Chain) {
				op.Err = transport.MemSkipped
				continue
			}
			op.Err = n.atomic(q, op)
		case transport.MemCheckRead:
			if _, _, ok := q.remoteAddr(op, accRemoteRead, uint32(op.Swap)); !ok {
				op.Err = q.remoteErr(accRemoteRead)
			}
		case transport.MemCheckWrite:
			if _, _, ok := q.remoteAddr(op, accRemoteWrite, uint32(op.Swap)); !ok {
				op.Err = q.remoteErr(accRemoteWrite)
			}
		case transport.MemInvalidate:
			n.flushDMA(ops) // what came before under this key
			if d.chainFailed(op.Chain) {
				op.Err = transport.MemSkipped
				continue
			}
			//= MR-MSG-054
			if !q.invalidate(op.RKey) { // a region's key, too: only windows can be ended from afar
				op.Err = transport.MemAccess
			}
		case transport.MemGather, transport.MemLand, transport.MemScatter, transport.MemWrite, transport.MemRead:
			n.queueDMA(q, ops, i)
		}
		if op.Err != transport.MemOK {
			d.fail(op.Chain)
		}
	}
	n.flushDMA(ops)
}

func (d *dmaState) chainFailed(c uint32) bool {
	if c == 0 {
		return false
	}
	for _, f := range d.failed {
		if f == c {
			return true
		}
	}
	return false
}

func (d *dmaState) fail(chain uint32) {
	if chain != 0 {
		d.failed = append(d.failed, chain)
	}
}

// queueDMA adds the segments of operation i to the batch, or sets its Err.
func (n *NIC) queueDMA(q *QP, ops []transport.MemOp, i int) {
	d, op := &n.dma, &ops[i]
	//= MR-VRB-005
	if len(op.Buf) == 0 { // InfiniBand: nothing to move, nothing to check
		return
	}
	if q.ctx.Dead {
		op.Err = transport.MemFault
		return
	}
	write := op.Kind != transport.MemGather && op.Kind != transport.MemRead
	if len(d.segs) > 0 && d.write != write || len(d.segs)+hostq.MaxSGE+1 > dmaSegs {
		n.flushDMA(ops)
		if d.chainFailed(op.Chain) {
			op.Err = transport.MemSkipped
			return
		}
	}
	d.write = write
	switch op.Kind {
	case transport.MemGather:
		if op.WR.Flags&transport.FlagInline != 0 {
			n.gatherInline(q, op)
			return
		}
		n.queueList(q, ops, i, op.WR.SGE, 0)
	case transport.MemLand:
		n.queueList(q, ops, i, op.WR.SGE, accLocalWrite)
	case transport.MemScatter:
		n.queueList(q, ops, i, op.Recv.SGE, accLocalWrite)
	case transport.MemWrite:
		n.queueRemote(q, ops, i, accRemoteWrite)
	case transport.MemRead:
		n.queueRemote(q, ops, i, accRemoteRead)
	case transport.MemCmpSwap, transport.MemFetchAdd, transport.MemInvalidate, transport.MemCheckRead, transport.MemCheckWrite:
	}
}

// gatherInline copies from the queue slot; it is shared memory and needs no call.
func (n *NIC) gatherInline(q *QP, op *transport.MemOp) {
	src := op.WR.Inline
	if uint64(op.Off)+uint64(len(op.Buf)) > uint64(len(src)) {
		op.Err = transport.MemAccess
		return
	}
	if !hostq.CopyIn(op.Buf, src[op.Off:]) {
		q.ctx.fault()
		op.Err = transport.MemFault
	}
}

// queueList splits an operation over a local list. Keys are looked up again each time: they may have gone since the
// work request was checked.
func (n *NIC) queueList(q *QP, ops []transport.MemOp, i int, list []transport.SGE, need uint32) {
	op := &ops[i]
	mark, off, buf := len(n.dma.segs), uint64(op.Off), op.Buf
	pd := q.domain(op)
	for _, s := range list {
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			continue
		}
		k := min(uint64(s.Length)-off, uint64(len(buf)))
		//= MR-VRB-022
		m, addr, ok := n.localAddr(pd, s.LKey, need, s.Addr+off, uint32(k))
		if !ok {
			break
		}
		switch {
		case !m.null:
			if mark = n.at(ops, m.ctx, mark); op.Err != transport.MemOK {
				return // of what was in another program's memory
			}
			if n.dma.chainFailed(op.Chain) {
				op.Err = transport.MemSkipped
				n.dropFrom(mark)
				return
			}
			n.seg(i, addr, buf[:k], uint64(len(buf)) == k)
		case !n.dma.write:
			clear(buf[:k])
		}
		buf, off = buf[k:], 0
		if len(buf) == 0 {
			return
		}
	}
	n.dropFrom(mark) // a bad key, or the list is too short
	op.Err = transport.MemAccess
}

// at makes c's memory the one that the next segments are in. It returns from where on segments can still be dropped:
// those before are done.
func (n *NIC) at(ops []transport.MemOp, c *Context, mark int) int {
	if n.dma.space != c && len(n.dma.segs) > 0 {
		n.flushDMA(ops)
		mark = 0
	}
	n.dma.space = c
	return mark
}

// remoteAddr checks a key that a peer named.
func (q *QP) remoteAddr(op *transport.MemOp, need, n uint32) (*MR, uint64, bool) {
	m := q.ctx.nic.keys.get(op.RKey)
	//= MR-MSG-020 MR-VRB-020 MR-VRB-022 MR-VRB-044
	if q.access&need != need || m == nil || m.pd != q.domain(op) || m.access&need != need || !m.opens(q) {
		return nil, 0, false
	}
	a, ok := m.at(op.Addr, n)
	return m, a, ok
}

// remoteErr is why remoteAddr would refuse: a QP that does not take such requests at all is asked for something
// invalid, whatever the key (as RDMA NICs have it).
func (q *QP) remoteErr(need uint32) transport.MemErr {
	if q.access&need != need {
		return transport.MemInvalid
	}
	return transport.MemAccess
}

func (n *NIC) queueRemote(q *QP, ops []transport.MemOp, i int, need uint32) {
	op := &ops[i]
	size := len(op.Buf)
	//= MR-MSG-036
	if op.Kind == transport.MemWrite {
		size = max(size, int(op.Swap))
	}
	m, addr, ok := q.remoteAddr(op, need, uint32(size))
	if !ok {
		n.C.RemoteAccessErrors++
		op.Err = q.remoteErr(need)
		return
	}
	n.at(ops, m.ctx, 0)
	if n.dma.chainFailed(op.Chain) { // of what was in another program's memory
		op.Err = transport.MemSkipped
		return
	}
	n.seg(i, addr, op.Buf, true)
}

// seg adds a segment. The last 8 bytes of a write are a segment of their own, so that whoever polls the last word
// sees it only after the rest.
func (n *NIC) seg(i int, addr uint64, b []byte, last bool) {
	d := &n.dma
	//= MR-MSG-023
	if k := len(b) - 8; d.write && last && k > 0 {
		d.segs = append(d.segs, Seg{addr, b[:k]}, Seg{addr + uint64(k), b[k:]})
		d.op = append(d.op, i, i)
		return
	}
	d.segs = append(d.segs, Seg{addr, b})
	d.op = append(d.op, i)
}

func (n *NIC) dropFrom(mark int) {
	n.dma.segs, n.dma.op = n.dma.segs[:mark], n.dma.op[:mark]
}

// flushDMA executes the batch. A failed segment fails its operation and its chain; the rest goes on.
func (n *NIC) flushDMA(ops []transport.MemOp) {
	d := &n.dma
	segs, idx := d.segs, d.op
	for len(segs) > 0 {
		done, err := d.call(segs)
		n.C.DMACalls++
		if err == nil {
			break
		}
		if d.space.lost(err) {
			for _, k := range idx[done:] {
				ops[k].Err = transport.MemFault
				d.fail(ops[k].Chain)
			}
			break
		}
		bad := idx[done]
		n.C.DMAFaults++
		ops[bad].Err = transport.MemFault
		d.fail(ops[bad].Chain)
		segs, idx = d.skip(ops, segs[done:], idx[done:])
	}
	d.segs, d.op, d.space = d.segs[:0], d.op[:0], nil
}

func (d *dmaState) call(segs []Seg) (int, error) {
	if d.write {
		return d.space.space.Write(segs)
	}
	return d.space.space.Read(segs)
}

// skip drops the segments of failed operations and of later ones in a failed chain.
func (d *dmaState) skip(ops []transport.MemOp, segs []Seg, idx []int) ([]Seg, []int) {
	k := 0
	for j := range segs {
		op := &ops[idx[j]]
		if op.Err == transport.MemOK && d.chainFailed(op.Chain) {
			op.Err = transport.MemSkipped
		}
		if op.Err == transport.MemOK {
			segs[k], idx[k] = segs[j], idx[j]
			k++
		}
	}
	return segs[:k], idx[:k]
}

// atomic executes CMP_SWAP or FETCH_ADD: atomic among this NIC's own, which is what IBV_ATOMIC_HCA says.
func (n *NIC) atomic(q *QP, op *transport.MemOp) transport.MemErr {
	if op.Addr%8 != 0 {
		return transport.MemInvalid
	}
	m, addr, ok := q.remoteAddr(op, accRemoteAtomic, 8)
	if !ok {
		n.C.RemoteAccessErrors++
		return q.remoteErr(accRemoteAtomic)
	}
	if q.ctx.Dead || m.ctx.Dead {
		return transport.MemFault
	}
	d := &n.dma
	seg := append(d.segs[:0], Seg{addr, d.word[:]})
	n.C.DMACalls++
	if k, err := m.ctx.space.Read(seg); k != 1 {
		return m.ctx.dmaErr(err)
	}
	old := binary.LittleEndian.Uint64(d.word[:])
	op.Result = old
	value := old + op.Compare
	if op.Kind == transport.MemCmpSwap {
		if value = op.Swap; old != op.Compare {
			return transport.MemOK
		}
	}
	binary.LittleEndian.PutUint64(d.word[:], value)
	n.C.DMACalls++
	if k, err := m.ctx.space.Write(seg); k != 1 {
		return m.ctx.dmaErr(err)
	}
	return transport.MemOK
}

func (c *Context) dmaErr(err error) transport.MemErr {
	c.lost(err)
	c.nic.C.DMAFaults++
	return transport.MemFault
}

// lost reports whether err says that no more of the program's memory can be had, now or ever, and notes it.
func (c *Context) lost(err error) bool {
	switch {
	case errors.Is(err, ErrGone):
		c.programGone()
	case errors.Is(err, ErrStalled):
		c.stalls++
		c.nic.C.DMAStalls++
	default:
		return false
	}
	return true
}
