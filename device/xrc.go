package device

import (
	"slices"
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// XRC: a QP that only receives serves the shared receive queues of many programs, those of its domain. Domain and QP live
// as long as any program has them open; the queues, their memory and their CQs stay each program's own.

// XRCD is an XRC domain.
type XRCD struct {
	key   Inode
	opens int      // handles of all programs
	home  *Context // what the domain's QPs belong to: no program
}

// Inode names the file by which programs share a domain; the zero value is nobody's.
type Inode struct{ Dev, Ino uint64 }

// xrcdRef is a domain as one program has it open.
type xrcdRef struct {
	d      *XRCD
	handle uint32
	refs   int // queues and QPs that the program made or opened in it
}

// silent is the Notifier of nobody.
type silent struct{}

func (silent) CompEvent(uint32, hostq.CompEvent) bool { return true }
func (silent) AsyncEvent(hostq.AsyncEvent) bool       { return true }

// Flags of OpenXRCD, as open(2) has them.
const (
	openCreate = 0o100
	openExcl   = 0o200
)

// OpenXRCD opens the domain of a file, or makes one; without a file it makes one that nobody else can open.
func (c *Context) OpenXRCD(r *hostq.OpenXRCD, key Inode) (uint32, error) {
	n := c.nic
	d := n.xrcds[key]
	switch {
	case r.Flags&^(openCreate|openExcl) != 0:
		return 0, syscall.EINVAL
	case key == Inode{}:
		d = nil
	case d == nil && r.Flags&openCreate == 0:
		return 0, syscall.EAGAIN // what Linux says
	case d != nil && r.Flags&openExcl != 0:
		return 0, syscall.EINVAL
	}
	if d == nil && n.C.Live.XRCDs >= maxXRCD || c.xrcds.live >= maxXRCD {
		return 0, syscall.ENOMEM
	}
	if d == nil {
		d = &XRCD{key: key, home: &Context{nic: n, out: silent{}, Program: "XRC domain"}}
		if n.C.Live.XRCDs++; key != (Inode{}) {
			n.xrcds[key] = d
		}
	}
	d.opens++
	ref := &xrcdRef{d: d}
	ref.handle = c.xrcds.put(ref)
	return ref.handle, nil
}

// CloseXRCD closes a domain in which the program has nothing left.
func (c *Context) CloseXRCD(h uint32) error {
	ref := c.xrcds.get(h)
	if ref == nil {
		return syscall.EINVAL
	}
	if ref.refs > 0 {
		return syscall.EBUSY
	}
	c.closeXRCD(ref)
	return nil
}

func (c *Context) closeXRCD(ref *xrcdRef) {
	c.xrcds.del(ref.handle)
	if ref.d.opens--; ref.d.opens > 0 {
		return
	}
	c.nic.C.Live.XRCDs--
	delete(c.nic.xrcds, ref.d.key) // of a domain without a file: nothing
}

// createXRCRecv makes the responding end of a connection: state and a number, no queues.
func (c *Context) createXRCRecv(r *hostq.CreateQP) (*QP, error) {
	ref := c.xrcds.get(r.XRCD)
	if ref == nil || r.CreateFlags != 0 {
		return nil, syscall.EINVAL
	}
	n := c.nic
	if n.C.Live.QPs >= maxQP {
		return nil, syscall.ENOMEM
	}
	q := &QP{ctx: ref.d.home, typ: transport.XRCRecv, xrcd: ref.d, qpn: n.newQPN()}
	q.eng = n.eng.CreateQP(q.qpn, EngineQPConfig{Owner: q, Type: q.typ, SQEntries: 1, SRQ: true})
	if q.eng == nil {
		return nil, syscall.EOPNOTSUPP
	}
	n.qps[q.qpn] = q
	return c.alias(ref, q, r.Cookie), nil
}

// alias is a handle of this program to a QP of a domain. Each counts as a QP.
func (c *Context) alias(ref *xrcdRef, q *QP, cookie uint64) *QP {
	a := &QP{ctx: c, typ: q.typ, qpn: q.qpn, real: q, ref: ref, cookie: cookie}
	a.handle = c.qps.put(a)
	q.aliases = append(q.aliases, a)
	ref.refs++
	c.nic.C.Live.QPs++
	return a
}

// OpenQP opens a QP that another program of the domain has made.
func (c *Context) OpenQP(r *hostq.OpenQP) (*QP, error) {
	ref := c.xrcds.get(r.XRCD)
	if ref == nil {
		return nil, syscall.EINVAL
	}
	q := c.nic.qps[r.QPN]
	if q == nil || q.typ != transport.XRCRecv || q.xrcd != ref.d {
		return nil, syscall.EINVAL
	}
	if len(q.aliases) >= maxAliases || c.nic.C.Live.QPs >= maxQP {
		return nil, syscall.ENOMEM
	}
	return c.alias(ref, q, r.Cookie), nil
}

// release gives a handle up, and ends its QP with the last one.
func (q *QP) release() {
	c, real := q.ctx, q.real
	q.gone = true
	q.ref.refs--
	c.forget(&q.asyncEvents)
	c.qps.del(q.handle)
	c.nic.C.Live.QPs--
	real.aliases = slices.DeleteFunc(real.aliases, func(a *QP) bool { return a == q })
	//= MR-COEX-064
	if len(real.aliases) > 0 {
		return
	}
	n := c.nic
	real.gone = true
	real.eng.Destroy(n.now)
	delete(n.qps, real.qpn)
}

// qp is the QP of a handle.
func (c *Context) qp(h uint32) *QP {
	q := c.qps.get(h)
	if q != nil && q.real != nil {
		return q.real
	}
	return q
}

// raise sends an event of the QP to its program, or to all that have it open.
func (q *QP) raise(event uint32) {
	if q.typ != transport.XRCRecv {
		q.ctx.raise(hostq.AsyncEvent{Cookie: q.cookie, Type: event}, &q.asyncEvents)
		return
	}
	for _, a := range q.aliases {
		a.ctx.raise(hostq.AsyncEvent{Cookie: a.cookie, Type: event}, &a.asyncEvents)
	}
}

// joinXRC makes a shared receive queue one of a domain: it has a number, and a CQ for what it receives.
func (s *SRQ) joinXRC(ref *xrcdRef, cq *CQ) {
	n := s.ctx.nic
	for s.num == 0 || n.srqns[s.num] != nil {
		n.lastSRQN = (n.lastSRQN + 1) & 0xFFFFFF
		s.num = n.lastSRQN
	}
	n.srqns[s.num] = s
	s.ref, s.cq = ref, cq
	ref.refs++
	cq.refs++
}

func (s *SRQ) leaveXRC() {
	if s.ref == nil {
		return
	}
	delete(s.ctx.nic.srqns, s.num)
	s.ref.refs--
	s.cq.refs--
}

// SRQNumber is a queue's number as peers name it; 0 without a domain.
func (c *Context) SRQNumber(h uint32) uint32 {
	if s := c.srqs.get(h); s != nil {
		return s.num
	}
	return 0
}

// queueOf is the shared receive queue that a request names, or nil.
func (q *QP) queueOf(srqn uint32) *SRQ {
	s := q.ctx.nic.srqns[srqn]
	if s == nil || s.ref.d != q.xrcd {
		return nil
	}
	return s
}

// TakeXRC implements transport.XRCHost.
func (n *NIC) TakeXRC(owner any, srqn uint32) (*transport.RecvWR, bool) {
	s := owner.(*QP).queueOf(srqn)
	if s == nil {
		return nil, false
	}
	if s.cq.dead {
		return nil, true
	}
	r := s.take()
	if r != nil {
		r.Queue = s
	}
	return r, true
}

// domain is whose memory an operation is about: that of the QP, or of the shared receive queue that the request names.
func (q *QP) domain(op *transport.MemOp) *PD {
	if q.typ != transport.XRCRecv {
		if op.Kind == transport.MemScatter && q.srq != nil {
			return q.srq.pd
		}
		return q.pd
	}
	//= MR-COEX-062
	s := q.queueOf(op.SRQN)
	if op.Kind == transport.MemScatter {
		if s = op.Recv.Queue.(*SRQ); s.gone {
			s = nil
		}
	}
	if s == nil {
		return nil
	}
	return s.pd
}

// sharedDone is RecvDone of a receive of a domain's queue: it completes in that queue's CQ.
func (s *SRQ) sharedDone(e *hostq.CQE, r *transport.RecvWR, solicited bool) {
	if s.gone { // and its receives with it
		return
	}
	//= MR-COEX-063
	e.Flags, e.SRQ = hostq.CQESRQ|hostq.CQEXRC, s.handle
	s.recvs.put(r)
	s.cq.push(e, solicited)
}
