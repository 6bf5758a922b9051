package device

import (
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// Space is the memory of one program, as DMA reaches it.
type Space interface {
	// Read and Write move segments in order, ascending within each, and return how many are wholly done. Fewer than
	// all means that segment n failed (ErrFault), and that later ones were not tried, or that the program cannot be
	// reached any more (ErrGone) or does not answer (ErrStalled).
	Read(segs []Seg) (n int, err error)
	Write(segs []Seg) (n int, err error)
}

// Seg is one piece of a program's memory, and ours beside it.
type Seg struct {
	Addr uint64
	Buf  []byte
}

// Notifier carries events to one program. Calls do not block; false means that the socket is full: the device
// offers the event again later.
type Notifier interface {
	CompEvent(channel uint32, e hostq.CompEvent) bool
	AsyncEvent(e hostq.AsyncEvent) bool
}

// ContextConfig is what a program's connection brings.
type ContextConfig struct {
	Mem      *hostq.Mem
	Space    Space
	Notifier Notifier
	Program  string
	PID      int
	DMA      string // how Space reaches the program, for people
}

// Context is one open of the NIC by a program. It owns everything the program made.
type Context struct {
	nic   *NIC
	id    uint32
	mem   *hostq.Mem
	space Space
	*shared
	out       Notifier
	Program   string
	PID       int
	dma       string
	stalls    uint64 // DMA calls that its copy thread did not answer
	Dead      bool   // memory faulted or program gone: touched no more
	DeadCause string // for people

	mws      table[MW]
	cqs      table[CQ]
	qps      table[QP]
	srqs     table[SRQ]
	xrcds    table[xrcdRef]
	ahs      table[AH]
	channels table[channel]
	async    []pendingAsync
	waiting  []*CQ // completion events that did not fit
	noted    bool  // in nic.notify

	bells     [hostq.MaxDoorbells / 64]*[64]*queue
	sum       [64]uint64 // summary bits taken and not yet served
	bellWords int        // summary words in use
}

// shared is what programs have in common that hand their domains and regions to each other (ibv_import_device): the
// handles of one are those of all. Most contexts are alone in theirs.
type shared struct {
	pds     table[PD]
	mrs     table[MR]
	dms     table[DM]
	shifted int // regions whose bytes have other addresses for peers than for the program
	special int // regions that only the NIC may put bytes into
	members int
}

type pendingAsync struct {
	e     hostq.AsyncEvent
	count *uint32 // events delivered for the object
}

// asyncMax bounds the events kept for a program that does not read them.
const asyncMax = 1024

// PD is a protection domain.
type PD struct {
	handle uint32
	refs   int
}

type channel struct {
	handle uint32
	refs   int
	fullAt mono.Time // when its socket was last found full
}

// table holds objects by handle: handle = index + 1, never 0. Freed handles are used again last.
type table[T any] struct {
	slots []*T
	free  []uint32
	live  int
}

func (t *table[T]) put(v *T) uint32 {
	t.live++
	if len(t.free) > 64 {
		h := t.free[0]
		t.free = t.free[1:]
		t.slots[h-1] = v
		return h
	}
	t.slots = append(t.slots, v)
	return uint32(len(t.slots))
}

func (t *table[T]) get(h uint32) *T {
	if h == 0 || h > uint32(len(t.slots)) {
		return nil
	}
	return t.slots[h-1]
}

func (t *table[T]) del(h uint32) {
	if t.get(h) == nil {
		panic("device: object freed twice")
	}
	t.slots[h-1] = nil
	t.free = append(t.free, h)
	t.live--
}

func (t *table[T]) all(f func(h uint32, v *T)) {
	for i, v := range t.slots {
		if v != nil {
			f(uint32(i+1), v)
		}
	}
}

// OpenContext opens the NIC for a program.
func (n *NIC) OpenContext(c ContextConfig) *Context {
	return n.join(c, &shared{})
}

// ImportContext opens the NIC for a program that has the domains and regions of from's in common with it; nil is nobody.
func (n *NIC) ImportContext(c ContextConfig, from *Context) *Context {
	if from == nil {
		return n.OpenContext(c)
	}
	return n.join(c, from.shared)
}

func (n *NIC) join(c ContextConfig, s *shared) *Context {
	n.C.ContextsOpened++
	s.members++
	ctx := &Context{nic: n, shared: s, id: uint32(n.C.ContextsOpened), mem: c.Mem, space: c.Space, out: c.Notifier, Program: c.Program, PID: c.PID, dma: c.DMA}
	n.contexts = append(n.contexts, ctx)
	return ctx
}

// leave frees what others may share: regions and device memory go with the memory behind them, domains with their last
// user.
func (c *Context) leave() {
	n := c.nic
	for _, x := range n.contexts {
		if x != c && x.shared == c.shared {
			x.mws.all(func(_ uint32, w *MW) {
				if w.of != nil && w.of.ctx == c {
					w.unbind()
				}
			})
		}
	}
	c.mrs.all(func(_ uint32, m *MR) {
		if m.ctx == c {
			m.free()
		}
	})
	c.dms.all(func(_ uint32, d *DM) {
		if d.ctx == c {
			d.free()
		}
	})
	if c.members--; c.members > 0 {
		return
	}
	c.pds.all(func(h uint32, _ *PD) {
		c.pds.del(h)
		n.C.Live.PDs--
	})
}

// ID numbers contexts for people.
func (c *Context) ID() uint32 { return c.id }

// Close frees everything the context owns. Packets for its QPs find nobody afterwards.
func (c *Context) Close(now mono.Time) {
	n := c.nic
	n.now = now
	c.async, c.waiting = nil, nil // nobody will read them
	c.qps.all(func(_ uint32, q *QP) { q.destroy() })
	c.srqs.all(func(_ uint32, s *SRQ) { s.destroy() })
	c.xrcds.all(func(_ uint32, r *xrcdRef) { c.closeXRCD(r) })
	c.cqs.all(func(_ uint32, q *CQ) { q.free() })
	c.mws.all(func(_ uint32, w *MW) { w.free() })
	c.ahs.all(c.freeAH)
	c.leave()
	c.channels.all(func(h uint32, _ *channel) {
		c.channels.del(h)
		n.C.Live.Channels--
	})
	for i, x := range n.contexts {
		if x == c {
			n.contexts = append(n.contexts[:i], n.contexts[i+1:]...)
			break
		}
	}
	for i, x := range n.notify {
		if x == c {
			n.notify = append(n.notify[:i], n.notify[i+1:]...)
			break
		}
	}
	n.settle()
	if !c.Dead {
		c.mem.SetDead()
	}
	c.Dead = true
}

// fault gives a context up: its shared memory cannot be read.
func (c *Context) fault() {
	if !c.Dead {
		c.Dead, c.DeadCause = true, "shared memory faulted"
		c.nic.C.MemFaults++
	}
}

// gone gives a context up: DMA says that its program is no more.
func (c *Context) programGone() {
	if !c.Dead {
		c.Dead, c.DeadCause = true, "program gone"
	}
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (uint32, error) {
	if c.nic.C.Live.PDs >= maxPD {
		return 0, syscall.ENOMEM
	}
	p := &PD{}
	p.handle = c.pds.put(p)
	c.nic.C.Live.PDs++
	return p.handle, nil
}

// HasPD reports whether a handle is that of a domain.
func (c *Context) HasPD(h uint32) bool { return c.pds.get(h) != nil }

// FreePD frees a protection domain that nothing uses.
func (c *Context) FreePD(h uint32) error {
	p := c.pds.get(h)
	if p == nil {
		return syscall.EINVAL
	}
	if p.refs > 0 {
		return syscall.EBUSY
	}
	c.pds.del(h)
	c.nic.C.Live.PDs--
	return nil
}

// CreateChannel makes a completion channel; the caller knows its socket by the handle.
func (c *Context) CreateChannel() (uint32, error) {
	if c.channels.live >= maxChannel {
		return 0, syscall.ENOMEM
	}
	ch := &channel{}
	ch.handle = c.channels.put(ch)
	c.nic.C.Live.Channels++
	return ch.handle, nil
}

// DestroyChannel frees a channel that no CQ uses.
func (c *Context) DestroyChannel(h uint32) error {
	ch := c.channels.get(h)
	if ch == nil {
		return syscall.EINVAL
	}
	if ch.refs > 0 {
		return syscall.EBUSY
	}
	c.channels.del(h)
	c.nic.C.Live.Channels--
	return nil
}

// raise sends an asynchronous event, or keeps it until the socket has room.
func (c *Context) raise(e hostq.AsyncEvent, count *uint32) {
	if c.Dead {
		return
	}
	c.nic.C.AsyncEvents++
	if len(c.async) == 0 && c.out.AsyncEvent(e) {
		if count != nil {
			*count++
		}
		return
	}
	if len(c.async) >= asyncMax {
		c.nic.C.EventsLost++
		return
	}
	c.async = append(c.async, pendingAsync{e, count})
	c.note()
}

// forget drops events of an object that goes away.
func (c *Context) forget(count *uint32) {
	keep := c.async[:0]
	for _, p := range c.async {
		if p.count != count {
			keep = append(keep, p)
		}
	}
	c.async = keep
}

func (c *Context) note() {
	if !c.noted {
		c.noted = true
		c.nic.notify = append(c.nic.notify, c)
	}
}

// How often events that did not fit are offered again, and to how many programs at a time: every offer is a system
// call, and who does not read must not slow the others down.
const (
	retryEvery = mono.Millisecond
	retryMany  = 64
)

// retryEvents offers again what did not fit.
func (n *NIC) retryEvents() {
	if len(n.notify) == 0 || n.now < n.retryAt {
		return
	}
	n.retryAt = n.now.Add(retryEvery)
	k := min(retryMany, len(n.notify))
	for _, c := range n.notify[:k] {
		if c.retry() {
			n.notify = append(n.notify, c)
		} else {
			c.noted = false
		}
	}
	n.notify = append(n.notify[:0], n.notify[k:]...)
}

// retry reports whether something is left.
func (c *Context) retry() bool {
	if c.Dead {
		return false
	}
	k := 0
	for ; k < len(c.async) && c.out.AsyncEvent(c.async[k].e); k++ {
		if c.async[k].count != nil {
			*c.async[k].count++
		}
	}
	c.async = append(c.async[:0], c.async[k:]...)
	keep := c.waiting[:0]
	for _, q := range c.waiting { // a channel that is full does not hold up the others
		ch := c.channels.get(q.channel)
		if ch.fullAt != c.nic.now && q.sendEvent() {
			q.waiting = false
			continue
		}
		ch.fullAt = c.nic.now
		keep = append(keep, q)
	}
	c.waiting = keep
	return len(c.async)+len(c.waiting) > 0
}

// Events of enum ibv_event_type.
const (
	evCQErr         = 0
	evQPFatal       = 1
	evQPReqErr      = 2
	evQPAccessErr   = 3
	evSQDrained     = 5
	evPortActive    = 9
	evPortErr       = 10
	evSRQErr        = 14
	evSRQLimit      = 15
	evQPLastWQE     = 16
	evGIDChange     = 18
	portEventNumber = 1
)

func (n *NIC) portEvent(up bool) {
	e := hostq.AsyncEvent{Type: evPortErr, Port: portEventNumber}
	if up {
		e.Type = evPortActive
	}
	for _, c := range n.contexts {
		c.raise(e, nil)
	}
}
