// Package link is the model of one direction of a link: rate, queue, ECN marks, delay, jitter, loss, reordering,
// duplication, corruption, down. The impairment wrapper, the two-endpoint tests and the simulator use the same one.
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
	"github.com/metaroce/metaroce/internal/rng"
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

// Link is one direction.
type Link struct {
	spec Spec

	// fifo holds what arrives in order, late what was held back; together at most len(fifo) packets.
	fifo       []slot
	head, size int
	late       []slot // heap by (at, seq)
	seq        uint64
	last       mono.Time // arrival of the newest in fifo: order is kept whatever delay does
	epoch      uint32    // counts the times the link went down

	busy mono.Time // until when the transmitter works on what it has
	rem  uint64    // what busy leaves out, in 1/rate ns: keeps the rate exact

	jitterNow  mono.Duration
	jitterTill mono.Time

	bad                                                  bool // Gilbert–Elliott: in a burst
	lossRNG, markRNG, jitterRNG, lateRNG, dupRNG, bitRNG *rng.Source

	stats Stats
}

// New returns a link with the zero Spec that holds up to slots packets.
func New(seed uint64, name string, slots int) *Link {
	return &Link{
		fifo: make([]slot, slots), late: make([]slot, 0, slots),
		lossRNG: rng.New(seed, name+"/loss"), markRNG: rng.New(seed, name+"/mark"),
		jitterRNG: rng.New(seed, name+"/jitter"), lateRNG: rng.New(seed, name+"/late"),
		dupRNG: rng.New(seed, name+"/dup"), bitRNG: rng.New(seed, name+"/bit"),
	}
}

// Spec returns what the link does now.
func (l *Link) Spec() Spec { return l.spec }

// Stats returns the counters.
func (l *Link) Stats() Stats { return l.stats }

// InFlight is the number of copies on their way.
func (l *Link) InFlight() int { return l.size + len(l.late) }

// Room is how many packets Send can surely queue (a duplicate takes two slots).
func (l *Link) Room() int {
	n := len(l.fifo) - l.InFlight()
	if l.spec.Duplicate > 0 {
		return n / 2
	}
	return n
}

// Set changes the link. The bytes that wait are sent at the new rate from now on, as far as later packets see.
func (l *Link) Set(now mono.Time, s Spec) error {
	if err := s.Check(); err != nil {
		return err
	}
	if s.ReorderBy == 0 {
		s.ReorderBy = DefaultReorderBy
	}
	backlog := l.Backlog(now)
	if s.Down && !l.spec.Down {
		l.epoch++
		backlog = 0
	}
	if s.Loss != l.spec.Loss || s.Burst != l.spec.Burst {
		l.bad = false
	}
	l.spec = s
	l.jitterTill = now
	l.busy, l.rem = now, 0
	if s.RateBps > 0 {
		l.serialise(backlog)
	}
	return nil
}

// Backlog is the number of bytes that wait for the transmitter or are on it.
func (l *Link) Backlog(now mono.Time) int {
	if l.busy <= now || l.spec.RateBps == 0 {
		return 0
	}
	return int(float64(l.busy-now) * float64(l.spec.RateBps) / 8e9)
}

// Use takes the transmitter for bytes of another class, which pass this one's queue.
func (l *Link) Use(now mono.Time, bytes int) {
	if l.spec.RateBps == 0 || l.spec.Down {
		return
	}
	if l.busy < now {
		l.busy, l.rem = now, 0
	}
	l.serialise(bytes)
}

// serialise lets the transmitter work on bytes more.
func (l *Link) serialise(bytes int) {
	v := uint64(bytes)*8e9 + l.rem
	l.busy += mono.Time(v / l.spec.RateBps)
	l.rem = v % l.spec.RateBps
}

// Send puts a packet on the link: queue and marks, transmitter, losses of the wire, delay.
func (l *Link) Send(now mono.Time, h Handle, bytes int, ect bool) Verdict {
	s := &l.spec
	l.stats.Sent++
	if s.Down {
		l.stats.Down++
		return IsDown
	}
	if l.Room() <= 0 {
		l.stats.NoSlot++
		return NoSlot
	}
	out := Out{Handle: h, Last: true}
	at := now
	if s.RateBps > 0 {
		if l.busy < now {
			l.busy, l.rem = now, 0
		}
		backlog := l.Backlog(now)
		if s.Queue > 0 && backlog+bytes > s.Queue {
			l.stats.QueueFull++
			return QueueFull
		}
		out.CE = ect && l.mark(backlog)
		l.serialise(bytes)
		at = l.busy
	}
	if s.Loss > 0 && l.lose() {
		l.stats.Lost++
		return Lost
	}
	if out.CE {
		l.stats.Marked++
	}
	if s.Corrupt > 0 && l.bitRNG.Chance(s.Corrupt) {
		out.Corrupt, out.Bit = true, l.bitRNG.Uint32()
		l.stats.Corrupted++
	}
	at = at.Add(s.Delay)
	if s.Jitter > 0 {
		at = at.Add(l.jitter(now))
	}
	dup := s.Duplicate > 0 && l.dupRNG.Chance(s.Duplicate)
	if dup {
		out.Last = false
		l.stats.Duplicated++
	}
	// Order holds for all but those held back, also when delay or rate was changed meanwhile.
	at = max(at, l.last)
	if s.Reorder > 0 && l.lateRNG.Chance(s.Reorder) {
		l.stats.Reordered++
		at = at.Add(1 + mono.Duration(float64(s.ReorderBy)*l.lateRNG.Float64()))
		l.pushLate(at, out)
		if dup {
			out.Last = true
			l.pushLate(at, out)
		}
		return Queued
	}
	l.last = at
	l.pushFIFO(at, out)
	if dup {
		out.Last = true
		l.pushFIFO(at, out)
	}
	return Queued
}

// jitter is drawn anew once per Jitter of time, not per packet: order is kept, so that in a dense stream the largest
// of many draws would delay them all alike.
func (l *Link) jitter(now mono.Time) mono.Duration {
	if now >= l.jitterTill {
		l.jitterTill = now.Add(l.spec.Jitter)
		l.jitterNow = mono.Duration(float64(l.spec.Jitter) * l.jitterRNG.Float64())
	}
	return l.jitterNow
}

// mark decides like RED on the queue as it is: none below ECNMin, all from ECNMax, linear between.
func (l *Link) mark(backlog int) bool {
	lo, hi := l.spec.ECNMin, l.spec.ECNMax
	switch {
	case hi == 0 || backlog <= lo:
		return false
	case backlog >= hi:
		return true
	}
	return l.markRNG.Chance(float64(backlog-lo) / float64(hi-lo))
}

// lose decides about one packet. In bursts the bad state loses everything, the good state nothing.
func (l *Link) lose() bool {
	loss, burst := l.spec.Loss, l.spec.Burst
	if burst <= 1 || loss >= 1 {
		return l.lossRNG.Chance(loss)
	}
	if l.bad {
		l.bad = !l.lossRNG.Chance(1 / burst)
	} else {
		l.bad = l.lossRNG.Chance(loss / (burst * (1 - loss)))
	}
	return l.bad
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
		l.stats.Down++
	} else {
		l.stats.Delivered++
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
