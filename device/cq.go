package device

import (
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// CQ is a completion queue: a ring that the device fills and the program empties.
type CQ struct {
	ctx     *Context
	handle  uint32
	ring    hostq.Ring
	prod    uint32
	cookie  uint64
	channel uint32
	ignore  bool // overwrite instead of overrun
	dead    bool // overrun: nothing is written any more
	waiting bool // in ctx.waiting
	refs    int  // queues of QPs that use it

	// Moderation: an event for so many completions, or so long after the first that the program armed for.
	count    uint32
	period   mono.Duration
	come     uint32 // completions that an event is due for
	due      mono.Time
	holdsOff bool // in nic.moderated, at place
	place    int

	compEvents  uint32
	asyncEvents uint32
}

// CreateCQ makes a CQ in the program's memory.
func (c *Context) CreateCQ(r *hostq.CreateCQ) (uint32, error) {
	if r.CompVector >= compVectors || r.Flags&^hostq.CQIgnoreOverrun != 0 {
		return 0, syscall.EINVAL
	}
	if c.nic.C.Live.CQs >= maxCQ {
		return 0, syscall.ENOMEM
	}
	ring, err := c.mem.Ring(r.Ring, r.Entries, cqeSize, maxCQE+1)
	if err != nil {
		return 0, syscall.EINVAL
	}
	if r.Channel != 0 {
		ch := c.channels.get(r.Channel)
		if ch == nil {
			return 0, syscall.EINVAL
		}
		ch.refs++
	}
	q := &CQ{ctx: c, ring: ring, cookie: r.Cookie, channel: r.Channel, ignore: r.Flags&hostq.CQIgnoreOverrun != 0}
	q.handle = c.cqs.put(q)
	c.nic.C.Live.CQs++
	return q.handle, nil
}

const cqeSize = 128

// resizeMost is how many completions may wait when a CQ is resized: copying them keeps every other program waiting.
const resizeMost = 1 << 16

// catchUp takes in hand what was posted to the QPs of a CQ: a program that resizes it counts on the completions of what it
// has posted, as far as they need no peer. Each queue has a turn, all of them together what one step allows.
func (q *CQ) catchUp() {
	c, n := q.ctx, q.ctx.nic
	c.takeBells()
	budget := wrPerStep
	turn := func(w *queue) {
		if !w.rung || budget <= 0 || c.Dead {
			return
		}
		n.run.drop(w)
		done, more := w.serve(min(wrPerQueue, budget))
		if budget -= done; more {
			n.ring(w)
		}
	}
	c.qps.all(func(_ uint32, p *QP) {
		if p.sendCQ == q {
			turn(&p.sq)
		}
		if p.recvCQ == q {
			turn(&p.rq)
		}
	})
	n.settle()
	if budget < wrPerStep { // datagrams are complete when they are sent
		n.transmit()
		n.settle()
	}
}

// ResizeCQ moves a CQ to another ring. What was not polled is copied; the indices run on, so that the program goes
// on polling at the same number.
func (c *Context) ResizeCQ(now mono.Time, r *hostq.CreateCQ) error {
	q := c.cqs.get(r.Handle)
	if q == nil || c.Dead {
		return syscall.EINVAL
	}
	c.nic.now = now
	q.catchUp()
	ring, err := c.mem.Ring(r.Ring, r.Entries, cqeSize, maxCQE+1)
	if err != nil {
		return syscall.EINVAL
	}
	cons, ok := q.ring.Cons()
	left := q.prod - cons
	room := ring.Entries()
	if r.Want != 0 {
		room = min(room, r.Want)
	}
	if !ok || left > q.ring.Entries() || left > room {
		return syscall.EINVAL
	}
	if left > resizeMost {
		return syscall.EBUSY
	}
	var e hostq.CQE
	for i := cons; i != q.prod; i++ {
		if !q.ring.CopyCQE(i, &e) {
			c.fault()
			return syscall.EIO
		}
		e.InlineLen = min(e.InlineLen, hostq.CQEInline)
		if !ring.PutCQE(i, &e) {
			c.fault()
			return syscall.EIO
		}
	}
	arm, _ := q.ring.TakeArm()
	if !ring.SetCons(cons) || !ring.SetProd(q.prod) || !ring.SetArm(arm) {
		c.fault()
		return syscall.EIO
	}
	q.ring = ring
	if q.dead && !ring.SetFlags(hostq.RingOverrun) { // it stays lost
		c.fault()
	}
	return nil
}

// DestroyCQ frees a CQ that no QP uses and says how many events it sent.
func (c *Context) DestroyCQ(h uint32) (comp, async uint32, err error) {
	q := c.cqs.get(h)
	if q == nil {
		return 0, 0, syscall.EINVAL
	}
	if q.refs > 0 {
		return 0, 0, syscall.EBUSY
	}
	q.free()
	return q.compEvents, q.asyncEvents, nil
}

func (q *CQ) free() {
	c := q.ctx
	q.holdOffNoMore()
	if q.waiting {
		for i, w := range c.waiting {
			if w == q {
				c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
				break
			}
		}
	}
	c.forget(&q.asyncEvents)
	if ch := c.channels.get(q.channel); ch != nil {
		ch.refs--
	}
	c.cqs.del(q.handle)
	c.nic.C.Live.CQs--
}

// push writes a completion. solicited also covers errors.
func (q *CQ) push(e *hostq.CQE, solicited bool) {
	c := q.ctx
	if c.Dead || q.dead {
		c.nic.C.CQEsDropped++
		return
	}
	e.Timestamp = uint64(c.nic.now)
	if !q.ignore {
		// the program writes cons: read it once; a wild value looks like a full ring and ends this CQ only
		cons, ok := q.ring.Cons()
		if !ok {
			c.fault()
			return
		}
		if q.prod-cons >= q.ring.Entries() {
			q.overrun()
			return
		}
	}
	if !q.ring.PutCQE(q.prod, e) || !q.ring.SetProd(q.prod+1) {
		c.fault()
		return
	}
	q.prod++
	c.nic.C.CQEs++
	if q.channel == 0 {
		return
	}
	armed, ok := q.ring.Armed()
	if !ok {
		c.fault()
		return
	}
	if armed&hostq.ArmNext != 0 || armed&hostq.ArmSolicited != 0 && solicited {
		q.moderate()
	}
}

// ModifyCQ sets the moderation.
func (c *Context) ModifyCQ(h uint32, count uint32, period mono.Duration) error {
	q := c.cqs.get(h)
	if q == nil {
		return syscall.EINVAL
	}
	q.count, q.period = count, period
	if q.holdsOff { // by the rule that was
		q.event()
	}
	return nil
}

// moderate sends the event that a completion is worth, or puts it off. With only one of the two bounds a program could
// wait for ever, or never be spared an event: then there is no moderation.
func (q *CQ) moderate() {
	n := q.ctx.nic
	q.come++
	if q.count <= 1 || q.period == 0 || q.come >= q.count {
		q.event()
		return
	}
	if !q.holdsOff {
		q.holdsOff, q.due, q.place = true, n.now.Add(q.period), len(n.moderated)
		n.moderated = append(n.moderated, q)
		n.moderateAt = mono.Min(n.moderateAt, q.due)
	}
}

// holdOffNoMore takes the CQ off the list of those whose event waits.
func (q *CQ) holdOffNoMore() {
	q.come = 0
	if !q.holdsOff {
		return
	}
	q.holdsOff = false
	list := q.ctx.nic.moderated
	last := list[len(list)-1]
	list[q.place], last.place = last, q.place
	q.ctx.nic.moderated = list[:len(list)-1]
}

// moderatedEvents sends the events whose time has come.
func (n *NIC) moderatedEvents() {
	if n.now < n.moderateAt {
		return
	}
	n.moderateAt = mono.Never
	for i := len(n.moderated) - 1; i >= 0; i-- { // an event takes its CQ off the list, and the last one comes in its place
		if q := n.moderated[i]; q.due <= n.now {
			q.event()
		} else {
			n.moderateAt = mono.Min(n.moderateAt, q.due)
		}
	}
}

// event takes the arming and sends one event, now or when the socket has room.
func (q *CQ) event() {
	q.holdOffNoMore()
	if _, ok := q.ring.TakeArm(); !ok {
		q.ctx.fault()
		return
	}
	if q.waiting || q.sendEvent() { // waiting: one event for both, as a program that did not read the first would see
		return
	}
	q.waiting = true
	q.ctx.waiting = append(q.ctx.waiting, q)
	q.ctx.note()
}

func (q *CQ) sendEvent() bool {
	if !q.ctx.out.CompEvent(q.channel, hostq.CompEvent{Cookie: q.cookie}) {
		return false
	}
	q.compEvents++
	q.ctx.nic.C.CompEvents++
	return true
}

// overrun ends the CQ: a completion was lost, so nothing that follows can be trusted. Its QPs go to ERR.
func (q *CQ) overrun() {
	c := q.ctx
	q.dead = true
	c.nic.C.CQOverruns++
	if !q.ring.SetFlags(hostq.RingOverrun) {
		c.fault()
		return
	}
	c.raise(hostq.AsyncEvent{Cookie: q.cookie, Type: evCQErr}, &q.asyncEvents)
	c.qps.all(func(_ uint32, p *QP) {
		if p.sendCQ == q || p.recvCQ == q {
			p.failLater(evQPFatal)
		}
	})
}
