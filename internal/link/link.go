// Package link is the model of one direction of a link: rate, queue, ECN marks, delay, jitter, loss, reordering,
// duplication, corruption, down. The impairment wrapper, the two-endpoint tests and the simulator use the same one: a
// Model decides what becomes of each packet, and a Link is a Model with what is on its way.
//
// It is sans-IO and moves handles, not bytes: the caller keeps the packet under a number of its own, calls Send with
// it, and gets the number back from Next when the packet arrives. Who asks first decides nothing:
//
//	Send(now, h, bytes, ect)  Queued: h is the link's until Next returns it with Last. Otherwise h stays the caller's
//	                          and the verdict says why the packet is gone.
//	Next(now)                 the next arrival that is due, until none is; Out says what happened to it on the way.
//	NextWake()                when Next has something, or Never.
//	Set(now, spec)            changes the link. Packets on their way keep their times, but for Down, which loses them.
//
// Times must not go back. With the same seed, name and calls the same packets are hit; each impairment draws from
// its own source, so that switching one on does not move another. After New nothing allocates.
package link

import (
	"github.com/metaroce/metaroce/internal/mono"
)

// Handle is the caller's number of a packet.
type Handle uint32

// Verdict is the outcome of Send.
type Verdict uint8

// Verdicts.
const (
	Queued    Verdict = iota // on its way
	Lost                     // lost on the wire
	QueueFull                // dropped at the tail of the queue
	IsDown                   // the link is down
	NoSlot                   // more packets on their way than the link has slots
	verdicts
)

var verdictNames = [verdicts]string{"queued", "lost", "queue_full", "link_down", "no_slot"}

// String returns the name as counters have it.
func (v Verdict) String() string {
	if v < verdicts {
		return verdictNames[v]
	}
	return "unknown"
}

// Out is an arrival.
type Out struct {
	Handle  Handle
	Last    bool   // no further copy of it will come: the caller may reuse the handle
	Lost    bool   // the link went down while it was on its way: it did not arrive
	CE      bool   // marked by the queue
	Corrupt bool   // one bit is wrong
	Bit     uint32 // which, to be taken modulo the length
}

// Stats count packets.
type Stats struct {
	Sent, Delivered                          uint64
	Lost, QueueFull, Down, NoSlot            uint64
	Marked, Reordered, Duplicated, Corrupted uint64
}

type slot struct {
	at    mono.Time
	seq   uint64
	out   Out
	epoch uint32
}

// Link is one direction: a Model, and what is on its way.
type Link struct {
	m Model

	// fifo holds what arrives in order, late what was held back; together at most len(fifo) packets.
	fifo       []slot
	head, size int
	late       []slot // heap by (at, seq)
	seq        uint64
	last       mono.Time // arrival of the newest in fifo: order is kept whatever delay does
	epoch      uint32    // counts the times the link went down
}

// New returns a link with the zero Spec that holds up to slots packets.
func New(seed uint64, name string, slots int) *Link {
	l := &Link{fifo: make([]slot, slots), late: make([]slot, 0, slots)}
	l.m.Init(seed, name)
	return l
}

// Spec returns what the link does now.
func (l *Link) Spec() Spec { return l.m.spec }

// Stats returns the counters.
func (l *Link) Stats() Stats { return l.m.stats }

// InFlight is the number of copies on their way.
func (l *Link) InFlight() int { return l.size + len(l.late) }

// Room is how many packets Send can surely queue (a duplicate takes two slots).
func (l *Link) Room() int {
	n := len(l.fifo) - l.InFlight()
	if l.m.spec.Duplicate > 0 {
		return n / 2
	}
	return n
}

// Set changes the link. The bytes that wait are sent at the new rate from now on, as far as later packets see.
func (l *Link) Set(now mono.Time, s Spec) error {
	was := l.m.spec.Down
	if err := l.m.Set(now, s); err != nil {
		return err
	}
	if s.Down && !was {
		l.epoch++
	}
	return nil
}

// Backlog is the number of bytes that wait for the transmitter or are on it.
func (l *Link) Backlog(now mono.Time) int { return l.m.Backlog(now) }

// Use takes the transmitter for bytes of another class, which pass this one's queue.
func (l *Link) Use(now mono.Time, bytes int) { l.m.Use(now, bytes) }

// Send puts a packet on the link: queue and marks, transmitter, losses of the wire, delay.
func (l *Link) Send(now mono.Time, h Handle, bytes int, ect bool) Verdict {
	if !l.m.spec.Down && l.Room() <= 0 {
		l.m.stats.Sent++
		l.m.stats.NoSlot++
		return NoSlot
	}
	t := Treat(0)
	if ect {
		t = ECT
	}
	f, v := l.m.Pass(now, bytes, t)
	if v != Queued {
		return v
	}
	out := Out{Handle: h, Last: !f.Twice, CE: f.CE, Corrupt: f.Corrupt, Bit: f.Bit}
	// Order holds for all but those held back, also when delay or rate was changed meanwhile.
	at := max(f.At, l.last)
	if f.Held > 0 {
		at = at.Add(f.Held)
	} else {
		l.last = at
	}
	for {
		if f.Held > 0 {
			l.pushLate(at, out)
		} else {
			l.pushFIFO(at, out)
		}
		if out.Last {
			return Queued
		}
		out.Last = true
	}
}

func (l *Link) pushFIFO(at mono.Time, o Out) {
	i := l.head + l.size
	if i >= len(l.fifo) {
		i -= len(l.fifo)
	}
	l.fifo[i] = slot{at: at, seq: l.seq, out: o, epoch: l.epoch}
	l.seq++
	l.size++
}

func (l *Link) pushLate(at mono.Time, o Out) {
	l.late = append(l.late, slot{at: at, seq: l.seq, out: o, epoch: l.epoch})
	l.seq++
	h := l.late
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !before(&h[i], &h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func before(a, b *slot) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// front returns the slot that arrives next, and whether it is in late.
func (l *Link) front() (s *slot, late bool) {
	switch {
	case l.size == 0 && len(l.late) == 0:
		return nil, false
	case l.size == 0:
		return &l.late[0], true
	case len(l.late) == 0 || before(&l.fifo[l.head], &l.late[0]):
		return &l.fifo[l.head], false
	}
	return &l.late[0], true
}

// Next returns the next packet that has arrived by now.
func (l *Link) Next(now mono.Time) (o Out, ok bool) {
	s, late := l.front()
	if s == nil || s.at > now {
		return Out{}, false
	}
	o = s.out
	if s.epoch != l.epoch {
		o.Lost = true
		l.m.stats.Down++
	} else {
		l.m.stats.Delivered++
	}
	if late {
		l.popLate()
		return o, true
	}
	l.size--
	if l.head++; l.head == len(l.fifo) {
		l.head = 0
	}
	return o, true
}

func (l *Link) popLate() {
	h := l.late
	n := len(h) - 1
	h[0] = h[n]
	l.late = h[:n]
	h = l.late
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return
		}
		if c+1 < n && before(&h[c+1], &h[c]) {
			c++
		}
		if !before(&h[c], &h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// NextWake is when the next packet arrives, or Never.
func (l *Link) NextWake() mono.Time {
	s, _ := l.front()
	if s == nil {
		return mono.Never
	}
	return s.at
}
