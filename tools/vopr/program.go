package vopr

import (
	"fmt"

	"github.com/metaroce/metaroce/transport"
)

// id is the work request's id: it names the flow, too.
func (x *op) id() uint64 { return uint64(x.flow.id)<<16 | uint64(x.idx) }

// String names a request in messages.
func (x *op) String() string {
	s := fmt.Sprintf("%v #%d of flow %d (%d bytes", x.kind, x.idx, x.flow.id, x.n)
	if x.z != nil {
		s = fmt.Sprintf("%v #%d of flow %d (zone %d [%d, %d)", x.kind, x.idx, x.flow.id, x.z.kind, x.off, x.off+x.n)
	}
	if x.fence {
		s += ", fence"
	}
	return s + ")"
}

// byteAt is byte i of a SEND's message.
func (x *op) byteAt(i int) uint8 { return uint8((uint32(i) + uint32(x.id())*40503) * 2654435761 >> 24) }

// recvFill is in a receive's buffer before anything comes.
const recvFill = 0xA5

// scribble reuses the buffer of a completed request, as a program may at once.
func (x *op) scribble() {
	if x.kind.HasResponse() {
		return
	}
	for i := range x.local.b {
		x.local.b[i] = 0xEE
	}
	for i := range x.inline {
		x.inline[i] = 0xEE
	}
}

// postSend draws a request for the flow and posts it. It reports false when there is no room.
func (f *flow) postSend() bool {
	w, p := f.w, &f.w.plan
	e := f.req
	if e.over || !e.up || len(f.ops) >= opsMax || len(f.ops)-f.done >= p.Depth {
		return false
	}
	wr := e.s.qp.NextWR()
	if wr == nil {
		return false
	}
	x := &op{idx: len(f.ops), flow: f, known: f.done - 1, posted: w.now, kind: f.drawKind()}
	x.fence = p.has(Fence) && w.rnd.IntN(4) == 0
	x.solicited = x.kind.TakesRecv() && w.rnd.IntN(4) == 0
	f.drawTarget(x)
	wr.ID, wr.Op = x.id(), x.kind
	if x.fence {
		wr.Flags |= transport.FlagFence
	}
	if x.solicited {
		wr.Flags |= transport.FlagSolicited
	}
	if x.z != nil {
		k := w.rnd.IntN(2)
		wr.RKey, wr.RemoteAddr = x.z.rkey[k], x.z.reg.base+uint64(x.off)-x.z.shift[k]
	}
	if x.shared {
		c := f.rsp.n.shared
		wr.RKey, wr.RemoteAddr, wr.Compare = c.rkey, c.reg.base+uint64(8*x.cell), 1
	}
	f.spoil(x, wr)
	f.program(x, wr)
	f.buffers(x, wr)
	wr.Length = uint32(x.n)
	f.ops = append(f.ops, x)
	if x.kind.TakesRecv() {
		x.recvNo = len(f.takers)
		f.takers = append(f.takers, x)
	}
	w.posted++
	w.mix(wr.ID, wr.RemoteAddr, uint64(wr.Length))
	w.tr("n%d  post  %v%s", e.n.i, x, [...]string{"", ", bad key", ", invalid", ", no local memory", ", bad list", ", cannot be bound"}[x.bad])
	if e.errored { // it must be flushed
		x.writes, x.unshown = false, 0
	}
	e.s.qp.Post(e.n.clock())
	e.n.dirty = true
	return true
}

func (f *flow) drawKind() transport.Op {
	w := f.w
	kinds := [16]transport.Op{transport.OpWrite, transport.OpWrite, transport.OpWrite}
	n := 3
	add := func(f Feature, ks ...transport.Op) {
		if w.plan.has(f) {
			n += copy(kinds[n:], ks)
		}
	}
	add(Send, transport.OpSend, transport.OpSend)
	add(Imm, transport.OpWriteImm)
	if w.plan.has(Imm) {
		add(Send, transport.OpSendImm)
	}
	add(Read, transport.OpRead, transport.OpRead)
	add(Atomic, transport.OpFetchAdd, transport.OpFetchAdd, transport.OpCmpSwap)
	add(Window, transport.OpBindMW, transport.OpLocalInv)
	if w.plan.has(Inv) && w.rnd.IntN(12) == 0 && f.zones[zoneMortal].killer == never {
		return transport.OpSendInv
	}
	return kinds[w.rnd.IntN(n)]
}

// drawTarget chooses length and place.
func (f *flow) drawTarget(x *op) {
	w, p := f.w, &f.w.plan
	r := w.rnd
	switch v := r.IntN(8); {
	case v < 2:
		x.n = 1 + r.IntN(24)
	case v < 5:
		x.n = 1 + r.IntN(p.MTU)
	case v < 6: // a last packet of few bytes, where the cut matters
		x.n = p.MTU*(1+r.IntN(2)) + 1 + r.IntN(12)
	case p.has(Slow):
		x.n = 1 + r.IntN(12*p.MTU)
	default:
		x.n = 1 + r.IntN(3*p.MTU)
	}
	if p.has(Big) && r.IntN(20) == 0 {
		x.n = r.IntN(16 * p.MTU)
	}
	if p.has(Zero) && r.IntN(10) == 0 {
		x.n = 0
	}
	switch {
	case x.kind.IsLocal():
		x.n = 0
		return
	case x.kind.IsSend():
		x.n = min(x.n, p.RecvSize)
		return
	case x.kind.IsAtomic():
		x.n = 8
		if p.has(Shared) && r.IntN(3) == 0 {
			x.kind, x.shared, x.cell = transport.OpFetchAdd, true, r.IntN(2)
			return
		}
	}
	x.z = f.zones[zoneMain]
	if !x.kind.IsAtomic() && p.has(Relaxed) && r.IntN(3) == 0 {
		x.z = f.zones[zoneRelaxed]
	} else if z := f.zones[zoneMortal]; p.has(Inv|Dereg) && r.IntN(3) == 0 && (z.killer == never && !z.dead || p.has(Bad) && r.IntN(4) == 0) {
		x.z = z
	}
	size := len(x.z.reg.b)
	x.n = min(x.n, size)
	if x.kind.IsAtomic() {
		x.off = 8 * r.IntN(size/8)
		if p.has(Overlap) {
			x.off = 8 * r.IntN(2)
		}
		return
	}
	x.off = r.IntN(size - x.n + 1)
	if r.IntN(3) == 0 {
		x.off &^= 7
	}
}

// spoil makes some requests bad.
func (f *flow) spoil(x *op, wr *transport.SendWR) {
	p, r := &f.w.plan, f.w.rnd
	if z := x.z; z != nil && x.n > 0 && z.dead {
		x.bad = badAccess
	}
	if x.shared || x.bad != fine {
		return
	}
	if p.has(Bad) && r.IntN(25) == 0 {
		switch {
		case x.kind.IsLocal():
			x.bad = badBind
		case x.kind.IsSend():
			x.n, x.bad = p.RecvSize+1+r.IntN(2*p.MTU), badInv
		case x.n == 0:
		case x.kind.IsAtomic() && r.IntN(2) == 0:
			wr.RemoteAddr, x.bad = wr.RemoteAddr^4, badInv
		case r.IntN(2) == 0:
			wr.RKey, x.bad = 0xDEAD, badAccess
		case x.kind.IsWrite() && x.n > 8 && r.IntN(2) == 0: // over the end
			wr.RemoteAddr, x.bad = wr.RemoteAddr+uint64(len(x.z.reg.b)-x.off-1-r.IntN(x.n-1)), badAccess
		default: // behind the end
			wr.RemoteAddr, x.bad = wr.RemoteAddr+uint64(len(x.z.reg.b)-x.off+7)&^7, badAccess
		}
	}
	if p.has(Local) && x.bad == fine && x.n > 0 && r.IntN(40) == 0 {
		x.bad = badLocal
		if r.IntN(2) == 0 {
			x.bad, wr.Fail = badFetch, transport.LocProtErr
		}
	}
}

// program notes what the request does by program order, and gives atomics their operands: the bytes of a cell say who
// wrote them last, after an addition, too.
func (f *flow) program(x *op, wr *transport.SendWR) {
	w, z := f.w, x.z
	if x.bad != fine {
		f.mustFail = min(f.mustFail, x.idx)
		if x.bad != badLocal || !x.kind.HasResponse() { // else it fails when the answer comes: what is behind may have run
			f.poison = min(f.poison, x.idx)
		}
	}
	if x.kind == transport.OpSendInv {
		m := f.zones[zoneMortal]
		x.imm, m.killer = m.rkey[0], x.idx
		wr.Imm = x.imm
	} else if x.kind == transport.OpSendImm || x.kind == transport.OpWriteImm {
		x.imm = w.rnd.Uint32()
		wr.Imm = x.imm
	}
	if z != nil && z.killer < x.idx && x.n > 0 { // it will fail, but its key lives still
		f.mustFail, f.poison = min(f.mustFail, x.idx), min(f.poison, x.idx)
	}
	if z == nil || x.bad != fine && x.bad != badLocal { // with half of its local memory, half of it may show
		return
	}
	switch {
	case x.kind == transport.OpRead:
		x.exp = append([]uint8(nil), z.prog[x.off:x.off+x.n]...)
		return
	case x.kind == transport.OpFetchAdd:
		x.want = z.progWord(x.off)
		wr.Compare = z.word(x.off, uint8(x.idx+1)) - x.want
	case x.kind == transport.OpCmpSwap:
		x.want = z.progWord(x.off)
		wr.Compare, wr.Swap = x.want, z.word(x.off, uint8(x.idx+1))
		if w.rnd.IntN(4) == 0 { // it must not match
			wr.Compare = ^x.want
			return
		}
	}
	x.writes = x.n > 0
	if z.kind != zoneRelaxed {
		x.unshown = x.n
	}
	for i := x.off; i < x.off+x.n; i++ {
		z.prog[i] = uint8(x.idx + 1)
	}
}

// buffers gives the request its local memory, in up to three pieces.
func (f *flow) buffers(x *op, wr *transport.SendWR) {
	w, n := f.w, f.req.n
	r := w.rnd
	x.local = n.alloc(max(x.n, 8))
	b := x.local.b[:x.n]
	switch {
	case x.kind.HasResponse():
		x.local.op = x
		for i := range x.local.b {
			x.local.b[i] = 0xDD
		}
	case x.kind.IsSend():
		for i := range b {
			b[i] = x.byteAt(i)
		}
	case x.z != nil:
		for i := range b {
			if a := x.off + i; a < len(x.z.pat) {
				b[i] = x.z.pat[a] + uint8(x.idx+1)
			}
		}
	}
	if w.plan.has(Inline) && !x.kind.HasResponse() && x.n > 0 && x.n <= 256 && x.bad != badLocal && r.IntN(2) == 0 {
		wr.Flags |= transport.FlagInline
		x.inline = append([]byte(nil), b...)
		wr.Inline = x.inline
		for i := range b {
			b[i] = 0xEE
		}
		return
	}
	for at := 0; at < x.n; {
		k := x.n - at
		if len(wr.SGE) < 2 && r.IntN(3) == 0 {
			k = 1 + r.IntN(k)
		}
		s := transport.SGE{Addr: x.local.base + uint64(at), Length: uint32(k)}
		if x.bad == badLocal && at+k == x.n {
			s.LKey = badLKey
		}
		wr.SGE = append(wr.SGE, s)
		at += k
	}
}

// postRecv posts receives: to the end's own queue or to its SRQ.
func (e *end) postRecv(k int) {
	if e.over {
		return
	}
	w, n := e.n.w, e.n
	for range k {
		if e.srq != nil && e.srq.out >= e.srq.pool {
			return
		}
		r := &recv{posted: w.now, srq: e.srq, reg: n.alloc(w.plan.RecvSize)}
		r.reg.recv = r
		for i := range r.reg.b {
			r.reg.b[i] = recvFill
		}
		r.wr = transport.RecvWR{ID: uint64(len(w.recvs)), Length: uint32(w.plan.RecvSize)}
		half := uint32(w.rnd.IntN(w.plan.RecvSize))
		if half > 0 {
			r.wr.SGE = append(r.wr.SGE, transport.SGE{Addr: r.reg.base, Length: half})
		}
		r.wr.SGE = append(r.wr.SGE, transport.SGE{Addr: r.reg.base + uint64(half), Length: r.wr.Length - half})
		if e.srq == nil && w.plan.has(Local) && w.rnd.IntN(60) == 0 {
			r.wr.Fail = transport.LocProtErr
		}
		w.recvs = append(w.recvs, r)
		w.tr("n%d  post receive  %d  flow %d", n.i, r.wr.ID, e.in.id)
		if e.srq != nil {
			e.srq.q, e.srq.out = append(e.srq.q, r), e.srq.out+1
			continue
		}
		r.end, r.seq = e, len(e.recvs)
		e.recvs, e.rq = append(e.recvs, r), append(e.rq, r)
		e.s.qp.RecvPosted(n.clock(), 1)
	}
	n.dirty = true
}

// takeRecv is the NIC taking the next receive.
func (e *end) takeRecv() *transport.RecvWR {
	q := &e.rq
	if e.srq != nil {
		q = &e.srq.q
	}
	if e.over || len(*q) == 0 {
		return nil
	}
	r := (*q)[0]
	*q = (*q)[1:]
	return &r.wr
}

// returnRecv is the NIC giving a receive back to the SRQ.
func (e *end) returnRecv(wr *transport.RecvWR) {
	r := e.n.w.recvs[wr.ID]
	if r.srq == nil || r.srq != e.srq || r.done {
		fail("P14", "receive %d comes back to an SRQ that it does not belong to", wr.ID)
	}
	r.used = true
	e.srq.q = append([]*recv{r}, e.srq.q...)
}
