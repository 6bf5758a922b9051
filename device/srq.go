package device

import (
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// SRQ is a shared receive queue: the receives of many QPs. Its program chooses which slot a posted receive is in, as slots
// come free in any order.
type SRQ struct {
	ctx      *Context
	handle   uint32
	pd       *PD
	ring     hostq.SharedRing
	idx      uint32 // next one to fetch
	maxSGE   int
	limit    uint32 // an event when fewer are left; 0: none
	cookie   uint64
	refs     int                 // QPs that use it
	returned []*transport.RecvWR // taken by QPs that ended; the next one is the last
	recvs    recvPool
	sgeBuf   []hostq.SGE
	dead     bool // the program wrote nonsense
	gone     bool
	num      uint32   // of an XRC domain: its number,
	ref      *xrcdRef // the domain,
	cq       *CQ      // and where its receives complete

	asyncEvents uint32
}

// Kinds of queues (enum ibv_srq_type), and bits of enum ibv_srq_attr_mask.
const (
	srqBasic = 0
	srqXRC   = 1

	srqMaxWR = 1 << 0
	srqLimit = 1 << 1
)

// CreateSRQ makes a shared receive queue in the program's memory.
func (c *Context) CreateSRQ(r *hostq.CreateSRQ) (uint32, error) {
	pd, ref, cq := c.pds.get(r.PD), c.xrcds.get(r.XRCD), c.cqs.get(r.CQ)
	switch {
	case r.Type == srqBasic && r.CQ == 0 && r.XRCD == 0:
	case r.Type != srqXRC:
		return 0, syscall.EOPNOTSUPP
	case ref == nil || cq == nil:
		return 0, syscall.EINVAL
	}
	if pd == nil || r.MaxSGE > hostq.MaxSGE || r.Stride > maxStride || r.Limit > r.Entries {
		return 0, syscall.EINVAL
	}
	if c.nic.C.Live.SRQs >= maxSRQ {
		return 0, syscall.ENOMEM
	}
	ring, err := c.mem.SharedRing(r.Ring, r.Slots, r.Entries, r.Stride, maxSRQWR)
	if err != nil {
		return 0, syscall.EINVAL
	}
	s := &SRQ{ctx: c, pd: pd, ring: ring, maxSGE: int(r.MaxSGE), limit: r.Limit, cookie: r.Cookie, recvs: recvPool{sges: int(r.MaxSGE)}, sgeBuf: make([]hostq.SGE, hostq.MaxSGE)}
	s.handle = c.srqs.put(s)
	pd.refs++
	if r.Type == srqXRC {
		s.joinXRC(ref, cq)
	}
	c.nic.C.Live.SRQs++
	return s.handle, nil
}

// ModifySRQ sets the limit. The size cannot be changed (no IBV_DEVICE_SRQ_RESIZE).
func (c *Context) ModifySRQ(r *hostq.SRQAttr) error {
	s := c.srqs.get(r.Handle)
	switch {
	case s == nil || r.Mask&^(srqMaxWR|srqLimit) != 0 || r.Mask&srqLimit != 0 && r.Limit > s.ring.Entries():
		return syscall.EINVAL
	case r.Mask&srqMaxWR != 0:
		return syscall.EOPNOTSUPP
	case r.Mask&srqLimit != 0:
		s.limit = r.Limit
		s.checkLimit()
	}
	return nil
}

// QuerySRQ fills r with the queue's attributes.
func (c *Context) QuerySRQ(h uint32, r *hostq.SRQAttr) error {
	s := c.srqs.get(h)
	if s == nil {
		return syscall.EINVAL
	}
	r.Handle, r.MaxWR, r.MaxSGE, r.Limit = h, s.ring.Entries(), uint32(s.maxSGE), s.limit
	return nil
}

// DestroySRQ frees a queue that no QP uses and says how many asynchronous events it sent.
func (c *Context) DestroySRQ(h uint32) (async uint32, err error) {
	s := c.srqs.get(h)
	if s == nil {
		return 0, syscall.EINVAL
	}
	if s.refs > 0 {
		return 0, syscall.EBUSY
	}
	s.destroy()
	return s.asyncEvents, nil
}

func (s *SRQ) destroy() {
	s.ctx.forget(&s.asyncEvents)
	s.gone = true
	s.leaveXRC()
	s.ctx.srqs.del(s.handle)
	s.pd.refs--
	s.ctx.nic.C.Live.SRQs--
}

// take is the next receive: one that came back, or one that is copied out of the program's memory and checked.
func (s *SRQ) take() *transport.RecvWR {
	if n := len(s.returned); n > 0 {
		r := s.returned[n-1]
		s.returned = s.returned[:n-1]
		s.checkLimit()
		return r
	}
	left, ok := s.left()
	if !ok || left == 0 {
		return nil
	}
	slot, ok := s.ring.Slot(s.idx)
	if !ok {
		s.ctx.fault()
		return nil
	}
	if slot >= s.ring.Entries() {
		s.nonsense()
		return nil
	}
	var e hostq.RQE
	k, ok := s.ring.CopyRQE(slot, &e, s.sgeBuf)
	if !ok {
		s.ctx.fault()
		return nil
	}
	r := s.recvs.get()
	r.ID, r.Slot = e.WRID, slot
	if e.NumSGE != uint32(k) || k > s.maxSGE {
		r.Fail = transport.LocQPOpErr
	} else {
		r.SGE, r.Length, r.Fail = s.ctx.checkList(s.pd, s.sgeBuf[:k], accLocalWrite, r.SGE)
		r.Place = s.ctx.onlyNIC(r.SGE)
	}
	s.idx++
	s.ctx.nic.C.RecvWRs++
	if !s.ring.SetCons(s.idx) {
		s.ctx.fault()
	}
	s.checkLimit()
	return r
}

// left is how many receives the program has posted that nobody took.
func (s *SRQ) left() (n uint32, ok bool) {
	if s.dead || s.ctx.Dead {
		return 0, false
	}
	prod, ok := s.ring.Prod()
	if !ok {
		s.ctx.fault()
		return 0, false
	}
	if n = prod - s.idx; n > s.ring.Entries() {
		s.nonsense()
		return 0, false
	}
	return n, true
}

// checkLimit raises the event once that the program asked for.
func (s *SRQ) checkLimit() {
	if s.limit == 0 {
		return
	}
	if n, ok := s.left(); ok && n+uint32(len(s.returned)) < s.limit {
		s.limit = 0
		s.ctx.raise(hostq.AsyncEvent{Cookie: s.cookie, Type: evSRQLimit}, &s.asyncEvents)
	}
}

// nonsense: the program wrote what no library writes. Nothing is taken any more.
func (s *SRQ) nonsense() {
	s.dead = true
	s.ctx.nic.C.BadDescriptors++
	s.ctx.raise(hostq.AsyncEvent{Cookie: s.cookie, Type: evSRQErr}, &s.asyncEvents)
}
