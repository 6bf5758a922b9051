package device

import (
	"net/netip"
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// QP is a queue pair as its program sees it; how its messages travel is the engine's business.
type QP struct {
	ctx    *Context
	handle uint32
	qpn    uint32
	typ    transport.QPType
	pd     *PD
	sendCQ *CQ
	recvCQ *CQ
	srq    *SRQ // nil: receives of its own
	eng    EngineQP
	state  State
	cookie uint64

	sq, rq       queue
	sigAll       bool
	maxInline    uint32
	maxSendSGE   int
	maxRecvSGE   int
	access       uint32
	attr         hostq.ModifyQP // as set so far
	sgeBuf       []hostq.SGE    // scratch of one descriptor
	recvs        recvPool
	pendingError bool // in nic.later
	pendingEvent uint32
	drainNotify  bool // IBV_EVENT_SQ_DRAINED wanted
	sqOut        uint32
	sqFull       bool // the engine had no room: SendDone rings again
	gone         bool
	sqBytes      int          // held by the engine for its send queue
	groups       []netip.Addr // multicast groups that it is attached to
	xrcd         *XRCD        // XRC_RECV: its domain, and what programs have it by
	aliases      []*QP
	real         *QP      // of such a handle: the QP,
	ref          *xrcdRef // and the domain that it was opened in

	asyncEvents uint32
}

// queue is one work queue of a QP and its place in the device's run ring.
type queue struct {
	qp     *QP
	ring   hostq.Ring
	idx    uint32 // next descriptor to fetch
	seen   uint32 // RQ: producer index that the engine knows of
	bell   uint32
	recv   bool
	rung   bool   // in the run ring
	turn   uint64 // its number there
	hasRng bool
}

// maxStride bounds a slot: a descriptor with MaxSGE pieces fits, and grows once more.
const maxStride = 1024

// CreateQP makes a QP in RESET.
func (c *Context) CreateQP(r *hostq.CreateQP) (*QP, error) {
	typ, ok := serviceOf(r.Type)
	switch {
	case !ok:
		return nil, syscall.EOPNOTSUPP
	case typ == transport.XRCRecv:
		return c.createXRCRecv(r)
	}
	pd, scq, rcq := c.pds.get(r.PD), c.cqs.get(r.SendCQ), c.cqs.get(r.RecvCQ)
	if typ == transport.XRCSend && r.RecvCQ == 0 { // it receives nothing
		rcq = scq
	}
	if pd == nil || scq == nil || rcq == nil || r.XRCD != 0 || r.CreateFlags != 0 || typ == transport.XRCSend && (r.RQEntries != 0 || r.SRQ != 0) ||
		r.MaxSendSGE > hostq.MaxSGE || r.MaxRecvSGE > hostq.MaxSGE || r.MaxInline > hostq.MaxInline {
		return nil, syscall.EINVAL
	}
	var srq *SRQ
	if r.SRQ != 0 {
		if srq = c.srqs.get(r.SRQ); srq == nil || srq.ref != nil || r.RQEntries != 0 {
			return nil, syscall.EINVAL
		}
	}
	if c.nic.C.Live.QPs >= maxQP {
		return nil, syscall.ENOMEM
	}
	q := &QP{ctx: c, typ: typ, pd: pd, sendCQ: scq, recvCQ: rcq, srq: srq, cookie: r.Cookie, sigAll: r.SQSigAll != 0,
		maxInline: r.MaxInline, maxSendSGE: int(r.MaxSendSGE), maxRecvSGE: int(r.MaxRecvSGE),
		recvs: recvPool{sges: int(r.MaxRecvSGE)}, sgeBuf: make([]hostq.SGE, hostq.MaxSGE)}
	q.sq, q.rq = queue{qp: q, bell: r.SQDoorbell}, queue{qp: q, bell: r.RQDoorbell, recv: true}
	if err := q.sq.place(c, r.SQRing, r.SQEntries, r.SQStride); err != nil {
		return nil, err
	}
	if err := q.rq.place(c, r.RQRing, r.RQEntries, r.RQStride); err != nil {
		return nil, err
	}
	if q.sq.hasRng && q.rq.hasRng && q.sq.bell == q.rq.bell {
		return nil, syscall.EINVAL
	}
	held := max(1, min(sqHeld, int(r.SQEntries)))
	q.sqBytes = held * (sqEntry + 16*int(r.MaxSendSGE))
	if c.nic.sqBytes+q.sqBytes > sqBytesMost {
		return nil, syscall.ENOMEM
	}
	q.qpn = c.nic.newQPN()
	q.attr = hostq.ModifyQP{MaxSendWR: r.SQEntries, MaxRecvWR: r.RQEntries, MaxSendSGE: r.MaxSendSGE, MaxRecvSGE: r.MaxRecvSGE, MaxInline: r.MaxInline}
	q.eng = c.nic.eng.CreateQP(q.qpn, EngineQPConfig{Owner: q, Type: typ, SQEntries: held, MaxSendSGE: int(r.MaxSendSGE), SRQ: srq != nil})
	if q.eng == nil {
		return nil, syscall.EOPNOTSUPP
	}
	c.nic.sqBytes += q.sqBytes
	q.handle = c.qps.put(q)
	c.nic.qps[q.qpn] = q
	c.bind(&q.sq)
	c.bind(&q.rq)
	pd.refs++
	scq.refs++
	rcq.refs++
	if srq != nil {
		srq.refs++
	}
	c.nic.C.Live.QPs++
	return q, nil
}

// place checks where a work queue is. No entries: no queue.
func (w *queue) place(c *Context, off uint64, entries, stride uint32) error {
	if entries == 0 {
		return nil
	}
	if stride < 64 || stride%64 != 0 || stride > maxStride || w.bell >= hostq.MaxDoorbells || c.bound(w.bell) {
		return syscall.EINVAL
	}
	ring, err := c.mem.Ring(off, entries, stride, maxQPWR)
	if err != nil {
		return syscall.EINVAL
	}
	w.ring, w.hasRng = ring, true
	return nil
}

func (c *Context) bound(bell uint32) bool {
	b := c.bells[bell/64]
	return b != nil && b[bell%64] != nil
}

func (c *Context) bind(w *queue) {
	if !w.hasRng {
		return
	}
	if c.bells[w.bell/64] == nil {
		c.bells[w.bell/64] = new([64]*queue)
	}
	c.bells[w.bell/64][w.bell%64] = w
	c.bellWords = max(c.bellWords, int(w.bell/4096)+1)
}

func (c *Context) unbind(w *queue) {
	if w.hasRng {
		c.bells[w.bell/64][w.bell%64] = nil
	}
}

// Numbers of connected QPs: the lowest and the one behind the highest. What is below is for special QPs.
const firstQPN, lastQPN = 0x11, 0xFFFFFF

// newQPN hands out numbers in order, so that a number comes back as late as possible.
func (n *NIC) newQPN() uint32 {
	for {
		//= MR-QP-006 MR-COEX-003
		n.lastQPN++
		if n.lastQPN >= lastQPN {
			n.lastQPN = firstQPN
		}
		if n.qps[n.lastQPN] == nil {
			return n.lastQPN
		}
	}
}

// Handle and QPN tell the program what it got.
func (q *QP) Handle() uint32 { return q.handle }

// QPN is the QP's number on the wire.
func (q *QP) QPN() uint32 { return q.qpn }

// DestroyQP frees a QP and says how many asynchronous events it sent.
func (c *Context) DestroyQP(h uint32) (async uint32, err error) {
	q := c.qps.get(h)
	if q == nil {
		return 0, syscall.EINVAL
	}
	if len(q.groups) > 0 {
		return 0, syscall.EBUSY
	}
	q.destroy()
	c.nic.settle()
	return q.asyncEvents, nil
}

func (q *QP) destroy() {
	if q.real != nil {
		q.release()
		return
	}
	c := q.ctx
	for len(q.groups) > 0 {
		q.detach(q.groups[0])
	}
	q.gone = true
	q.eng.Destroy(c.nic.now)
	c.unbind(&q.sq)
	c.unbind(&q.rq)
	c.nic.run.drop(&q.sq)
	c.nic.run.drop(&q.rq)
	q.sendCQ.refs--
	q.recvCQ.refs--
	q.pd.refs--
	if q.srq != nil {
		q.srq.refs--
	}
	c.forget(&q.asyncEvents)
	delete(c.nic.qps, q.qpn)
	c.qps.del(q.handle)
	c.nic.C.Live.QPs--
	c.nic.sqBytes -= q.sqBytes
}

// QueryQP fills r with the QP's attributes.
func (c *Context) QueryQP(h uint32, r *hostq.ModifyQP) error {
	q := c.qp(h)
	if q == nil {
		return syscall.EINVAL
	}
	hdr := r.Hdr
	*r = q.attr
	r.Hdr, r.Handle, r.Mask = hdr, h, 0
	r.QPState, r.CurQPState = uint32(q.state), uint32(q.state)
	r.QPAccessFlags = q.access
	if q.state == SQD && !q.idle() {
		r.SQDraining = 1
	}
	return nil
}

// ModifyQP changes attributes and state. Nothing is changed unless everything is right.
func (c *Context) ModifyQP(now mono.Time, r *hostq.ModifyQP) error {
	q := c.qp(r.Handle)
	if q == nil {
		return syscall.EINVAL
	}
	c.nic.now = now
	r.Mask &^= notOf(q.typ)
	to := q.state
	if r.Mask&maskState != 0 {
		if r.QPState >= uint32(numStates) {
			return syscall.EINVAL
		}
		to = State(r.QPState)
	}
	//= MR-QP-007
	if r.Mask&maskCurState != 0 && r.CurQPState != uint32(q.state) || !checkTransition(q.typ, q.state, to, r.Mask) {
		return syscall.EINVAL
	}
	if err := c.nic.checkValues(r); err != nil {
		return err
	}
	//= MR-QP-012
	if r.Mask&maskAV != 0 && q.state == SQD && !q.idle() { // what is under way has a peer
		return syscall.EINVAL
	}
	from, attr, access := q.state, q.attr, q.access
	q.keep(r)
	err := q.move(from, to, r.Mask)
	if err != nil {
		q.attr, q.access = attr, access
	}
	c.nic.settle()
	return err
}

// checkValues checks what the mask says is there.
func (n *NIC) checkValues(r *hostq.ModifyQP) error {
	bad := func(bit uint32, wrong bool) bool { return r.Mask&bit != 0 && wrong }
	if bad(maskPort, r.PortNum != 1) || bad(maskPkey, r.PkeyIndex != 0) ||
		//= MR-MSG-019
		bad(maskPathMTU, r.PathMTU == 0 || int(r.PathMTU) > n.cfg.activeMTU()) ||
		bad(maskTimeout, r.Timeout > 31) || bad(maskRetry, r.RetryCnt > 7) || bad(maskRNRRetry, r.RNRRetry > 7) ||
		bad(maskMinRNR, r.MinRNRTimer > 31) || bad(maskMaxRd, r.MaxRdAtomic > maxRdAtom) ||
		bad(maskMaxDestRd, r.MaxDestRdAtomic > maxRdAtom) || bad(maskDestQPN, r.DestQPNum > 0xFFFFFF) ||
		bad(maskAccess, r.QPAccessFlags&^(accKnown|accOptional) != 0) {
		return syscall.EINVAL
	}
	if r.Mask&maskAV == 0 {
		return nil
	}
	if r.AH.PortNum > 1 {
		return syscall.EINVAL
	}
	remote, err := n.route(&r.AH)
	if err == nil && remote.IsMulticast() {
		return syscall.EINVAL
	}
	return err
}

// keep stores what the mask says is there.
func (q *QP) keep(r *hostq.ModifyQP) {
	a, m := &q.attr, r.Mask
	set := func(bit uint32, f func()) {
		if m&bit != 0 {
			f()
		}
	}
	set(maskAccess, func() { q.access = r.QPAccessFlags })
	set(maskPkey, func() { a.PkeyIndex = r.PkeyIndex })
	set(maskPort, func() { a.PortNum = r.PortNum })
	set(maskQkey, func() { a.Qkey = r.Qkey })
	set(maskAV, func() { a.AH = r.AH })
	set(maskPathMTU, func() { a.PathMTU = r.PathMTU })
	set(maskTimeout, func() { a.Timeout = r.Timeout })
	set(maskRetry, func() { a.RetryCnt = r.RetryCnt })
	set(maskRNRRetry, func() { a.RNRRetry = r.RNRRetry })
	set(maskRQPSN, func() { a.RQPSN = r.RQPSN & 0xFFFFFF })
	set(maskSQPSN, func() { a.SQPSN = r.SQPSN & 0xFFFFFF })
	set(maskMaxRd, func() { a.MaxRdAtomic = r.MaxRdAtomic })
	set(maskMaxDestRd, func() { a.MaxDestRdAtomic = r.MaxDestRdAtomic })
	set(maskMinRNR, func() { a.MinRNRTimer = r.MinRNRTimer })
	set(maskDestQPN, func() { a.DestQPNum = r.DestQPNum })
	set(maskMigState, func() { a.PathMigState = r.PathMigState })
	set(maskAltPath, func() {
		a.AltAH, a.AltPkeyIndex, a.AltPortNum, a.AltTimeout = r.AltAH, r.AltPkeyIndex, r.AltPortNum, r.AltTimeout
	})
	set(maskSQDNotify, func() { a.EnSQDAsyncNotify = r.EnSQDAsyncNotify })
}

// move takes the QP to a state and its engine with it.
func (q *QP) move(from, to State, mask uint32) error {
	n := q.ctx.nic
	switch to {
	case Reset:
		q.reset()
		return nil
	case Init:
		if from == Reset { // the program may have set its indices back
			q.sync()
			q.eng.ToInit()
		}
		q.state = Init
	case RTR:
		if !q.eng.ToRTR(n.now, q.rtr()) {
			return syscall.ENOMEM
		}
		q.state = RTR
		if a := q.rtr(); a.RemoteAddr.IsValid() {
			n.resolve(a.LocalAddr, a.RemoteAddr)
		}
		n.ring(&q.rq)
	case RTS:
		q.toRTS(from)
	case SQD:
		q.drainNotify = mask&maskSQDNotify != 0 && q.attr.EnSQDAsyncNotify != 0
		if from != SQD {
			q.state = SQD
			q.eng.ToSQD()
			q.drained()
		}
	case Err:
		if from != Err {
			q.fail(n.now)
		}
	case SQE, numStates:
	}
	if mask&maskQkey != 0 {
		q.eng.SetQKey(q.attr.Qkey)
	}
	if mask&(maskMinRNR|maskInSQD) != 0 && from >= RTS && to != Err || mask&maskMinRNR != 0 && to == RTS {
		return q.change()
	}
	return nil
}

// maskInSQD is what SQD allows to change and the engine has to know.
const maskInSQD = maskAV | maskTimeout | maskRetry | maskRNRRetry | maskMaxRd | maskMaxDestRd

// change tells the engine what has changed since RTS.
func (q *QP) change() error {
	n, a := q.ctx.nic, q.rtr()
	//= MR-QP-012
	if !q.eng.Change(n.now, a, q.rts()) {
		return syscall.ENOMEM
	}
	if a.RemoteAddr.IsValid() {
		n.resolve(a.LocalAddr, a.RemoteAddr)
	}
	return nil
}

func (q *QP) toRTS(from State) {
	n := q.ctx.nic
	q.state = RTS
	switch from {
	case RTR:
		q.eng.ToRTS(n.now, q.rts())
	case SQD:
		q.eng.Resume(n.now)
	case Reset, Init, RTS, SQE, Err, numStates:
	}
	n.ring(&q.sq)
}

func (q *QP) rts() RTSAttr {
	a := &q.attr
	return RTSAttr{SQPSN: a.SQPSN, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, MaxRdAtomic: a.MaxRdAtomic}
}

func (q *QP) rtr() RTRAttr {
	a := &q.attr
	if q.typ == transport.UD { // has no peer
		return RTRAttr{PathMTU: mtus[q.ctx.nic.cfg.activeMTU()-1]}
	}
	return RTRAttr{
		RemoteAddr: netip.AddrFrom16(a.AH.DGID).Unmap(), LocalAddr: q.ctx.nic.gidAddr(a.AH.SGIDIndex),
		RemoteQPN: a.DestQPNum, RQPSN: a.RQPSN, PathMTU: mtus[a.PathMTU-1], MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRNRTimer, TrafficClass: a.AH.TrafficClass, HopLimit: a.AH.HopLimit, FlowLabel: a.AH.FlowLabel & 0xfffff,
	}
}

// reset forgets everything that was posted, without completions.
func (q *QP) reset() {
	q.state = Reset
	q.eng.Reset(q.ctx.nic.now)
	q.ctx.nic.run.drop(&q.sq)
	q.ctx.nic.run.drop(&q.rq)
	caps := q.attr
	q.attr = hostq.ModifyQP{MaxSendWR: caps.MaxSendWR, MaxRecvWR: caps.MaxRecvWR, MaxSendSGE: caps.MaxSendSGE, MaxRecvSGE: caps.MaxRecvSGE, MaxInline: caps.MaxInline}
	q.access, q.sqOut, q.drainNotify, q.sqFull = 0, 0, false, false
	q.recvs.free = nil // what the engine held is forgotten with it
	q.sync()
	for _, w := range []*queue{&q.sq, &q.rq} {
		if w.hasRng && !w.ring.SetFlags(0) {
			q.ctx.fault()
		}
	}
}

// sync takes the producer indices as the beginning: what was posted before is not there.
func (q *QP) sync() {
	for _, w := range []*queue{&q.sq, &q.rq} {
		if !w.hasRng {
			continue
		}
		p, ok := w.ring.Prod()
		if !ok {
			q.ctx.fault()
			return
		}
		w.idx, w.seen = p, p
	}
}

// fail takes the QP to ERR: the engine flushes what it has, then everything still in the queues is flushed.
func (q *QP) fail(now mono.Time) {
	event := q.pendingEvent
	q.pendingEvent = 0
	if q.state != Err {
		q.state = Err
		q.eng.ToError(now)
	}
	q.entered(event)
}

// entered is what follows on the way into ERR, however it came.
func (q *QP) entered(event uint32) {
	n := q.ctx.nic
	for _, w := range []*queue{&q.sq, &q.rq} {
		if w.hasRng {
			if !w.ring.SetFlags(hostq.RingError) {
				q.ctx.fault()
			}
			n.ring(w)
		}
	}
	if event != 0 {
		q.raise(event)
	}
	if q.srq != nil { // when the engine has flushed what it held
		n.reached = append(n.reached, q)
	}
}

// failLater takes the QP to ERR when the engine call in progress is over. event: 0 or the async event to raise.
func (q *QP) failLater(event uint32) {
	if q.gone || q.state == Err || q.state == Reset {
		return
	}
	if q.pendingEvent == 0 {
		q.pendingEvent = event
	}
	if !q.pendingError {
		q.pendingError = true
		q.ctx.nic.later = append(q.ctx.nic.later, q)
	}
}

// idle reports whether no request that was begun is outstanding. An engine may hold requests that it has not begun.
func (q *QP) idle() bool {
	e, ok := q.eng.(interface{ Drained() bool })
	return q.sqOut == 0 || ok && e.Drained()
}

// drained raises SQ_DRAINED when nothing that was begun is outstanding.
func (q *QP) drained() {
	//= MR-QP-010
	if q.state == SQD && q.drainNotify && q.idle() {
		q.drainNotify = false
		q.raise(evSQDrained)
	}
}
