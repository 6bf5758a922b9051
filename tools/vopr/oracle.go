package vopr

// The checkers see what a user of verbs sees: what was posted, each change of memory, completions. They know nothing of
// packets or of the engine. Properties (shared with the model that the protocol was designed with):
//
//	P01 WAW      a byte never goes back to an older request of its QP, nor shows what nobody wrote; nothing after the QP's end
//	P02 LAST     when a WRITE's last word shows, or an atomic took effect, everything before and in it shows
//	P03 DONE     a request that completed is in memory, or its receive has completed
//	P04 READ     a READ returns every earlier WRITE and atomic of its QP; nothing later across a fence; READ after READ in order
//	P05 ATOMIC   an atomic returns what program order demands; shared counters count each exactly once
//	P06 RECV     receive completions are the SENDs in order: kind, length, immediate, bytes; receives in posting order
//	P07 RECV1    each receive completes at most once; nothing is written to it outside its use
//	P08 RECVMEM  at a receive completion all earlier WRITEs and atomics of the QP show
//	P09 CQ       send completions in order, each exactly once, none after RESET
//	P10 STATUS   each error has a cause, and the first error is the culprit's
//	P11 NOEFFECT after a failed request no later last byte, atomic or receive; a refused request writes nothing
//	P13 LIVE     after healing everything ends, new QPs work, the network falls silent
//	P14 LEAK     nothing is left; sums and bounds of the engine's state hold at any time
//	P15 RELAXED  a completed WRITE shows, or one that was not known to be complete; its end never before an earlier atomic
//	P16 FLUSH    a QP that went to error completes every receive of its own
//	P17 LOCAL    nothing is placed into the buffer of a READ or atomic after its completion
//	P18 RNR      what failed for want of a receive is not delivered (where the network does not resend by mistake)
//	P19 TURN     a local request runs once, at its turn: nothing behind it goes before, with a fence no earlier READ is open
//
// P12 (nothing through a dead key) is the DMA's duty, not the engine's: what the engine owes is P10 and P11.

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// changed is called after every single change of memory.
func (n *node) changed(r *region, off, size int) {
	n.w.mix(r.base+uint64(off), uint64(size), uint64(crc32.ChecksumIEEE(r.b[off:off+size])))
	switch {
	case r.zone != nil:
		r.zone.changed(off, off+size)
	case r.recv != nil && r.recv.done:
		fail("P07", "receive %d is written to after its completion", r.recv.wr.ID)
	case r.op != nil && r.op.done:
		fail("P17", "buffer of %v is written to after its completion", r.op)
	case r.op != nil:
		r.op.landed += size
	}
}

// firstLocal is the oldest local request that has not run, or one past the last request.
func (f *flow) firstLocal() int {
	for f.ranTo < len(f.ops) && (!f.ops[f.ranTo].kind.IsLocal() || f.ops[f.ranTo].ran) {
		f.ranTo++
	}
	return f.ranTo
}

// begins: bytes of a request are read in order to be sent.
func (f *flow) begins(x *op) {
	if i := f.firstLocal(); i < x.idx {
		fail("P19", "%v goes before %v has run", x, f.ops[i])
	}
}

// runLocal: the NIC carries out a local request.
func (e *end) runLocal(wr *transport.SendWR) transport.Status {
	f := e.out
	x := f.ops[wr.ID&0xffff]
	if e.over || wr.ID != x.id() || x.done || f.firstLocal() != x.idx {
		fail("P19", "%v runs, it is the turn of #%d", x, f.firstLocal())
	}
	for _, y := range f.ops[f.done:x.idx] {
		if x.fence && y.kind == transport.OpRead && y.landed < y.n {
			fail("P19", "%v runs before %v is answered", x, y)
		}
	}
	x.ran = true
	f.w.tr("n%d  runs  %v", e.n.i, x)
	switch {
	case x.bad != badBind:
		return transport.OK
	case x.kind == transport.OpBindMW:
		return transport.MWBindErr
	default:
		return transport.LocQPOpErr
	}
}

// changed looks at bytes lo … hi of a zone, in runs of the same old and new content.
func (z *zone) changed(lo, hi int) {
	f, b := z.flow, z.reg.b
	if f.w.trace != nil {
		f.w.tr("n%d  memory  flow %d zone %d [%d, %d) shows #%d", f.rsp.n.i, f.id, z.kind, lo, hi, int(b[lo]-z.pat[lo])-1)
	}
	for lo < hi {
		was, is := z.val[lo], b[lo]-z.pat[lo]
		e := lo + 1
		for e < hi && z.val[e] == was && b[e]-z.pat[e] == is {
			e++
		}
		if was != is {
			z.run(lo, e, was, is)
		}
		lo = e
	}
}

func (z *zone) run(lo, hi int, was, is uint8) {
	f := z.flow
	if z.shut {
		fail("P01", "bytes [%d, %d) of flow %d change after the end of its QP", lo, hi, f.id)
	}
	if is == 0 {
		fail("P01", "bytes [%d, %d) of flow %d go back from #%d to their old content", lo, hi, f.id, int(was)-1)
	}
	idx := int(is) - 1
	if idx >= len(f.ops) || !f.ops[idx].writes || f.ops[idx].z != z || lo < f.ops[idx].off || hi > f.ops[idx].off+f.ops[idx].n {
		fail("P01", "bytes [%d, %d) of flow %d, zone %d, show what nobody of its QP wrote (as of #%d)", lo, hi, f.id, z.kind, idx)
	}
	x := f.ops[idx]
	for i := lo; i < hi; i++ {
		z.val[i] = is
	}
	if z.kind == zoneRelaxed {
		if hi == x.off+x.n {
			f.afterAtomics(x)
		}
		return
	}
	if is < was {
		fail("P01", "bytes [%d, %d) of flow %d go back from #%d to #%d", lo, hi, f.id, int(was)-1, idx)
	}
	for i := int(was); i < int(is); i++ {
		if y := f.ops[i]; y.writes && y.z == z {
			y.unshown -= max(0, min(hi, y.off+y.n)-max(lo, y.off))
		}
	}
	// a poller looks at the last word as a flag: when a byte of it shows, everything before the word shows
	word := x.off + max(0, x.n-8)
	if hi > word {
		f.tailShows(x, word, hi == x.off+x.n)
	}
}

// tailShows: some bytes of a request's last word show; last: the very last one does.
func (f *flow) tailShows(x *op, word int, last bool) {
	if i := f.hidden(x.idx); i < x.idx {
		fail("P02", "the last word of %v shows, %v does not", x, f.ops[i])
	}
	for i := x.off; i < word; i++ {
		if int(x.z.val[i]) <= x.idx {
			fail("P02", "the last word of %v shows, its byte %d does not", x, i-x.off)
		}
	}
	if !last {
		return
	}
	if m := min(f.poison, f.fell); x.idx >= m {
		fail("P11", "the last byte of %v shows although #%d failed", x, m)
	}
	f.maxTail = max(f.maxTail, x.idx)
}

// hidden returns the first request up to idx that does not show, or idx + 1.
func (f *flow) hidden(idx int) int {
	for f.shownTo < len(f.ops) && f.ops[f.shownTo].unshown == 0 {
		f.shownTo++
	}
	return min(f.shownTo, idx+1)
}

// afterAtomics: relaxed WRITEs may pass each other, not an atomic.
func (f *flow) afterAtomics(x *op) {
	for _, y := range f.ops[:x.idx] {
		if y.kind.IsAtomic() && y.unshown > 0 {
			fail("P15", "the last byte of %v, relaxed, shows before %v", x, y)
		}
	}
}

// relaxedShows: a completed WRITE shows, or another one that was not known to be complete when it was posted.
func (f *flow) relaxedShows(x *op) {
	if !x.writes || x.z.kind != zoneRelaxed {
		return
	}
	for i := x.off; i < x.off+x.n; i++ {
		if v := int(x.z.val[i]) - 1; v < x.idx && v <= x.known {
			fail("P15", "%v is complete, byte %d shows #%d", x, i-x.off, v)
		}
	}
}

// sendDone: the program sees a send completion.
func (e *end) sendDone(wr *transport.SendWR, s transport.Status) {
	f, w := e.out, e.n.w
	if e.over || f.done == len(f.ops) {
		fail("P09", "a completion of request %d, flow %d: nothing is posted", wr.ID, f.id)
	}
	x := f.ops[f.done]
	if wr.ID != x.id() {
		fail("P09", "completion of request %d, flow %d, where %v is next", wr.ID, f.id, x)
	}
	f.done++
	w.completed++
	w.mix(wr.ID, uint64(s))
	w.tr("n%d  done  %v  %v", e.n.i, x, s)
	switch {
	case s == transport.OK && f.failed:
		fail("P09", "%v succeeds after an error", x)
	case s == transport.OK:
		f.success(x)
	case s == transport.WRFlushErr:
		if !e.errored {
			fail("P10", "%v is flushed, the QP is not in error", x)
		}
	case f.failed:
		fail("P10", "%v: a second error, %v", x, s)
	default:
		f.culprit(x, s)
	}
	if s != transport.OK {
		f.failed = true
		if x.shared {
			e.peer.n.shared.maybe[x.cell]++
		}
	}
	x.done = true
	x.scribble()
}

// success: what a good completion promises.
func (f *flow) success(x *op) {
	if x.idx >= f.mustFail {
		fail("P10", "%v succeeds, #%d must fail", x, f.mustFail)
	}
	if x.kind.TakesRecv() && !x.delivered {
		fail("P03", "%v is complete, its receive is not", x)
	}
	if i := f.hidden(x.idx); i <= x.idx {
		fail("P03", "%v is complete, %v does not show", x, f.ops[i])
	}
	f.relaxedShows(x)
	if x.kind.IsLocal() && !x.ran {
		fail("P19", "%v is complete and has not run", x)
	}
	switch {
	case x.kind == transport.OpRead:
		f.read(x)
	case x.kind.IsAtomic():
		got := binary.LittleEndian.Uint64(x.local.b)
		if x.shared {
			c := f.rsp.n.shared
			c.olds[x.cell] = append(c.olds[x.cell], got)
		} else if got != x.want {
			fail("P05", "%v returned %#x, program order demands %#x", x, got, x.want)
		}
	}
}

// read checks the bytes that a READ brought.
func (f *flow) read(x *op) {
	z := x.z
	if z == nil || z.kind == zoneRelaxed {
		return
	}
	top := len(f.ops) // nothing from behind a fence
	for _, y := range f.ops[x.idx+1:] {
		if y.fence {
			top = y.idx
			break
		}
	}
	for i := range x.n {
		a := x.off + i
		v := x.local.b[i] - z.pat[a]
		switch {
		case int(v) > len(f.ops):
			fail("P04", "%v: byte %d is nobody's", x, i)
		case v < x.exp[i]:
			fail("P04", "%v: byte %d shows #%d, #%d came before the READ", x, i, int(v)-1, int(x.exp[i])-1)
		case int(v) > top:
			fail("P04", "%v: byte %d shows #%d from behind a fence", x, i, int(v)-1)
		case v < z.lastRead[a] && !f.w.transport.GoBackN: // there a READ is done again when its response was lost
			fail("P04", "%v: byte %d shows #%d, an earlier READ saw #%d", x, i, int(v)-1, int(z.lastRead[a])-1)
		}
		z.lastRead[a] = v
	}
}

// culprit: the first error of a QP needs a cause of its kind.
func (f *flow) culprit(x *op, s transport.Status) {
	ok := false
	switch s {
	case transport.RemAccessErr:
		ok = x.bad == badAccess || x.bad == badInv && x.kind.IsAtomic() || x.z != nil && (x.z.dereg || x.z.dead && (x.z.killer < x.idx || f.mayPass(x, x.z.killer)))
	case transport.RemInvReqErr:
		ok = x.bad == badInv
	case transport.RemOpErr:
		ok = f.rsp.srq == nil && x.kind.IsSend() && x.recvNo < len(f.rsp.recvs) && f.rsp.recvs[x.recvNo].wr.Fail != transport.OK
	case transport.LocProtErr:
		ok = x.bad == badLocal || x.bad == badFetch
	case transport.RnrRetryExcErr:
		ok = f.noReceive(x)
		x.rnrFailed = true
		if x.delivered && f.w.faultless() {
			fail("P18", "%v fails with %v, its receive has completed", x, s)
		}
	case transport.MWBindErr, transport.LocQPOpErr:
		ok = x.bad == badBind
	case transport.RetryExcErr:
		ok = f.excuse != "" || f.w.transport.GoBackN && !f.w.faultless()
	default: // nobody here may say such a thing
	}
	if !ok || x.idx > f.mustFail {
		fail("P10", "%v fails with %v without cause (#%d must fail; excuse %q)", x, s, f.mustFail, f.excuse)
	}
	if s == transport.RetryExcErr || s == transport.LocProtErr || s == transport.RnrRetryExcErr {
		return
	}
	if x.delivered {
		fail("P11", "%v fails with %v, its receive has completed", x, s)
	}
	if x.kind.HasResponse() { // accepted, and its key died later: what came behind has run already
		return
	}
	f.fell = min(f.fell, x.idx)
	if f.maxTail > x.idx {
		fail("P11", "%v fails with %v, #%d behind it has run", x, s, f.maxTail)
	}
}

// mayPass: a READ may run after what comes behind it, unless a fence is between them.
func (f *flow) mayPass(x *op, later int) bool {
	if x.kind != transport.OpRead {
		return false
	}
	for _, y := range f.ops[x.idx+1 : later+1] {
		if y.fence {
			return false
		}
	}
	return true
}

// rnrTimes are the waits of min_rnr_timer codes 1 to 8.
var rnrTimes = [...]mono.Duration{0, 10, 20, 30, 40, 60, 80, 120, 160}

// noReceive reports whether a request had no receive for as long as all its tries take.
func (f *flow) noReceive(x *op) bool {
	p := &f.w.plan
	if p.RNR >= 7 || !x.kind.TakesRecv() {
		return false
	}
	if f.rsp.srq != nil {
		return true
	}
	if x.recvNo >= len(f.rsp.recvs) {
		return true
	}
	since := x.posted
	if x.recvNo > 0 { // its turn comes after that of the one before
		since = max(since, f.takers[x.recvNo-1].arrived)
	}
	return f.rsp.recvs[x.recvNo].posted >= since.Add(mono.Duration(p.RNR)*rnrTimes[p.MinRNR]*mono.Microsecond)
}

// recvDone: the program sees a receive completion.
func (e *end) recvDone(wr *transport.RecvWR, i transport.RecvInfo) {
	w, f := e.n.w, e.in
	if e.over {
		fail("P09", "a receive completes after the end of its QP, flow %d", f.id)
	}
	r := w.recvs[wr.ID]
	if r.done {
		fail("P07", "receive %d completes twice", wr.ID)
	}
	r.done = true
	w.mix(wr.ID, uint64(i.Status), uint64(i.Length))
	w.tr("n%d  received  %d  flow %d  %v %v, %d bytes", e.n.i, wr.ID, f.id, i.Status, i.Op, i.Length)
	switch {
	case r.srq != e.srq || r.end != nil && r.end != e:
		fail("P06", "receive %d completes at a QP that it was not posted to", wr.ID)
	case r.srq != nil:
		r.srq.out--
	case r.seq != e.nextRcv:
		fail("P06", "receive %d of flow %d completes where %d is next", r.seq, f.id, e.nextRcv)
	}
	e.nextRcv++
	switch {
	case i.Status == transport.OK:
		f.delivered(r, i)
		return
	case i.Status == transport.WRFlushErr:
		if !e.errored { // the receive in hand may go before the event
			w.owing = append(w.owing, e)
		}
	case e.rcvBad:
		fail("P10", "a receive of flow %d: a second error, %v", f.id, i.Status)
	case i.Status == transport.LocLenErr && f.ndeliv < len(f.takers) && f.takers[f.ndeliv].bad == badInv:
	case i.Status == transport.LocProtErr && wr.Fail != transport.OK:
	default:
		fail("P10", "a receive of flow %d completes with %v without cause", f.id, i.Status)
	}
	e.rcvBad = true
}

// delivered: a receive completed with success; it must be the next SEND or WRITE with immediate.
func (f *flow) delivered(r *recv, i transport.RecvInfo) {
	if f.rsp.rcvBad {
		fail("P11", "flow %d: a receive succeeds after a failed one", f.id)
	}
	if f.ndeliv >= len(f.takers) {
		fail("P06", "flow %d: a receive succeeds, nothing was sent", f.id)
	}
	x := f.takers[f.ndeliv]
	f.ndeliv++
	x.delivered, x.arrived = true, f.w.now
	switch m := min(f.poison, f.fell); {
	case x.idx >= m:
		fail("P11", "the receive of %v succeeds although #%d failed", x, m)
	case x.rnrFailed && f.w.faultless():
		fail("P18", "the receive of %v succeeds after RNR_RETRY_EXC", x)
	case i.Op != x.kind || int(i.Length) != x.n || i.Solicited != x.solicited:
		fail("P06", "%v arrives as %v of %d bytes", x, i.Op, i.Length)
	case x.kind != transport.OpSend && i.Imm != x.imm:
		fail("P06", "%v arrives with immediate %#x, not %#x", x, i.Imm, x.imm)
	}
	f.maxTail = max(f.maxTail, x.idx)
	n := 0
	if x.kind.IsSend() {
		n = x.n
		for k := range n {
			if r.reg.b[k] != x.byteAt(k) {
				fail("P06", "%v: byte %d of its receive is wrong", x, k)
			}
		}
	}
	for k := n; k < len(r.reg.b) && !r.used; k++ {
		if r.reg.b[k] != recvFill {
			fail("P07", "%v: byte %d of its receive, behind the end, has changed", x, k)
		}
	}
	if h := f.hidden(x.idx); h <= x.idx {
		fail("P08", "the receive of %v completes, %v does not show", x, f.ops[h])
	}
	if f.w.plan.has(Relaxed) {
		for _, y := range f.ops[:x.idx+1] {
			f.relaxedShows(y)
		}
	}
}

// qpError: the program hears that its QP went to the error state by itself.
func (e *end) qpError(responder bool, s transport.Status) {
	if e.over || e.errored {
		fail("P10", "flow %d: the QP goes to error again", e.out.id)
	}
	e.n.w.tr("n%d  QP %#x in error, flow %d, responder %v: %v", e.n.i, e.s.num, e.out.id, responder, s)
	e.n.w.mix(uint64(e.s.num), uint64(s))
	ok := e.out.failed || e.out.excuse != ""
	if responder {
		ok = e.in.poison < never || e.in.fell < never
		for _, z := range e.in.zones {
			ok = ok || z.dead
		}
		for _, r := range e.recvs {
			ok = ok || r.wr.Fail != transport.OK
		}
	}
	if !ok {
		fail("P10", "flow %d: the QP goes to error (responder %v, %v) without cause", e.out.id, responder, s)
	}
	e.errored = true
	if !responder { // else the peer must hear what it did
		e.in.excuse = "the peer's QP is in error"
	}
}

// settleUp: whoever flushed something is in error when the engine's call is over.
func (w *World) settleUp() {
	for _, e := range w.owing {
		if !e.errored && !e.over {
			fail("P10", "a receive of flow %d was flushed, the QP is not in error", e.in.id)
		}
	}
	w.owing = w.owing[:0]
}

// invalidated: a SEND with invalidate ended a key.
func (n *node) invalidated(rkey uint32) {
	n.w.tr("n%d  key %#x invalidated", n.i, rkey)
	if k := n.keys[rkey]; k != nil {
		k.reg.zone.dead = true
		delete(n.keys, rkey)
	}
}

// sharedCount checks the shared counters in the end.
func (n *node) sharedCount() {
	c := n.shared
	if c == nil {
		return
	}
	for i := range c.olds {
		v, seen := binary.LittleEndian.Uint64(c.reg.b[8*i:]), map[uint64]bool{}
		for _, o := range c.olds[i] {
			if seen[o] || o >= v {
				fail("P05", "shared counter %d of node %d: %d was returned twice or never stored", i, n.i, o)
			}
			seen[o] = true
		}
		if n := uint64(len(c.olds[i])); v < n || v > n+uint64(c.maybe[i]) {
			fail("P05", "a shared counter is %d after %d successes and %d unknown", v, n, c.maybe[i])
		}
	}
}
