package link

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

// Model decides about packets, one by one, and keeps none. Its caller keeps what is on its way (Link does, and the simulator
// with its own events). The zero Model needs Init.
type Model struct {
	spec  Spec
	plain bool // nothing but rate, queue, marks and delay

	busy mono.Time // until when the transmitter works on what it has
	rem  uint64    // what busy leaves out, in 1/rate ns: keeps the rate exact
	// The same of the class that goes first; its bytes are in busy, too. last is the size of the newest packet in busy.
	first    mono.Time
	firstRem uint64
	last     int

	jitterNow  mono.Duration
	jitterTill mono.Time

	bad  bool // Gilbert–Elliott: in a burst
	seed uint64
	name string
	// Each impairment draws from its own source. They are made when they are needed first.
	lossRNG, markRNG, jitterRNG, lateRNG, dupRNG, bitRNG *rng.Source

	stats Stats
}

// Treat says how a packet is to be treated.
type Treat uint8

// Treatments, to be added up.
const (
	ECT    Treat = 1 << iota // may be marked
	First                    // of a class that passes the others' queue
	Exempt                   // nothing but rate, queue and delay befalls it
)

// Fate is what becomes of a packet that is on its way.
type Fate struct {
	At      mono.Time     // when it comes to the other end; the caller keeps packets in order
	Held    mono.Duration // not 0: held back so long beyond its turn
	Twice   bool          // arrives twice
	CE      bool          // marked by the queue
	Corrupt bool          // one bit is wrong
	Bit     uint32        // which, to be taken modulo the length
}

// Init gives a Model its randomness: the run's seed and the link's name.
func (m *Model) Init(seed uint64, name string) {
	m.seed, m.name, m.plain = seed, name, true
}

// Spec returns what the link does now.
func (m *Model) Spec() *Spec { return &m.spec }

// Stats returns the counters.
func (m *Model) Stats() *Stats { return &m.stats }

// Set changes the link. The bytes that wait are sent at the new rate from now on, as far as later packets see.
func (m *Model) Set(now mono.Time, s Spec) error {
	if err := s.Check(); err != nil {
		return err
	}
	if s.ReorderBy == 0 {
		s.ReorderBy = DefaultReorderBy
	}
	backlog := m.Backlog(now)
	if s.Down && !m.spec.Down {
		backlog = 0
	}
	if s.Loss != m.spec.Loss || s.Burst != m.spec.Burst {
		m.bad = false
	}
	m.spec = s
	m.plain = !s.Down && s.Loss == 0 && s.Corrupt == 0 && s.Jitter == 0 && s.Duplicate == 0 && s.Reorder == 0
	need := func(r **rng.Source, what string, is bool) {
		if is && *r == nil {
			*r = rng.New(m.seed, m.name+what)
		}
	}
	need(&m.lossRNG, "/loss", s.Loss > 0)
	need(&m.markRNG, "/mark", s.ECNMax > 0)
	need(&m.jitterRNG, "/jitter", s.Jitter > 0)
	need(&m.lateRNG, "/late", s.Reorder > 0)
	need(&m.dupRNG, "/dup", s.Duplicate > 0)
	need(&m.bitRNG, "/bit", s.Corrupt > 0)
	m.jitterTill = now
	m.busy, m.rem = now, 0
	if s.RateBps > 0 {
		m.serialise(backlog)
	}
	return nil
}

// Backlog is the number of bytes that wait for the transmitter or are on it.
func (m *Model) Backlog(now mono.Time) int {
	if m.busy <= now || m.spec.RateBps == 0 {
		return 0
	}
	return int(float64(m.busy-now) * float64(m.spec.RateBps) / 8e9)
}

// Busy is until when the transmitter works on what it has; a time that has passed when it is idle.
func (m *Model) Busy() mono.Time { return m.busy }

// Use takes the transmitter for bytes of another class, which pass this one's queue.
func (m *Model) Use(now mono.Time, bytes int) {
	if m.spec.RateBps == 0 || m.spec.Down {
		return
	}
	if m.busy < now {
		m.busy, m.rem = now, 0
	}
	m.serialise(bytes)
}

// serialise lets the transmitter work on bytes more.
func (m *Model) serialise(bytes int) {
	v := uint64(bytes)*8e9 + m.rem
	m.busy += mono.Time(v / m.spec.RateBps)
	m.rem = v % m.spec.RateBps
}

// Pass decides about a packet: queue and marks, transmitter, losses of the wire, delay. Not Queued: it is gone.
func (m *Model) Pass(now mono.Time, bytes int, t Treat) (f Fate, v Verdict) {
	s := &m.spec
	m.stats.Sent++
	if s.Down {
		m.stats.Down++
		return f, IsDown
	}
	f.At = now
	switch {
	case s.RateBps == 0:
	case t&First != 0:
		f.At = m.passFirst(now, bytes)
	default:
		if m.busy < now {
			m.busy, m.rem = now, 0
		}
		if s.Queue > 0 || s.ECNMax > 0 {
			backlog := m.Backlog(now)
			if s.Queue > 0 && backlog+bytes > s.Queue {
				m.stats.QueueFull++
				return f, QueueFull
			}
			f.CE = t&ECT != 0 && m.Mark(backlog)
		}
		m.serialise(bytes)
		f.At, m.last = m.busy, bytes
	}
	if !m.plain && t&Exempt == 0 && !m.impair(now, &f) {
		return f, Lost
	}
	if f.CE {
		m.stats.Marked++
	}
	f.At = f.At.Add(s.Delay)
	return f, Queued
}

// Occupy takes the transmitter for a packet whose turn has come, and says when its last bit is out. For callers that have
// queues of their own; Release decides what becomes of the packet then.
func (m *Model) Occupy(now mono.Time, bytes int) mono.Time {
	if m.spec.RateBps == 0 {
		return now
	}
	if m.busy < now {
		m.busy, m.rem = now, 0
	}
	m.serialise(bytes)
	return m.busy
}

// Release decides about a packet whose last bit is out: losses of the wire, delay.
func (m *Model) Release(now mono.Time, t Treat) (f Fate, v Verdict) {
	if m.spec.Down {
		m.stats.Down++
		return f, IsDown
	}
	f.At = now
	if !m.plain && t&Exempt == 0 && !m.impair(now, &f) {
		return f, Lost
	}
	f.At = f.At.Add(m.spec.Delay)
	return f, Queued
}

// passFirst lets a packet go before those that wait. It waits for its own kind and, as a packet that is being sent is not
// interrupted, for half of one where others are busy: on the average.
func (m *Model) passFirst(now mono.Time, bytes int) mono.Time {
	r := m.spec.RateBps
	if m.first < now {
		m.first, m.firstRem = now, 0
		if m.busy > now {
			m.first += min(m.busy-now, mono.Time(uint64(m.last)*8e9/r)) / 2
		}
	}
	v := uint64(bytes)*8e9 + m.firstRem
	m.first += mono.Time(v / r)
	m.firstRem = v % r
	m.Use(now, bytes)
	return m.first
}

// impair does what a good wire would not; false: the packet is lost.
func (m *Model) impair(now mono.Time, f *Fate) bool {
	s := &m.spec
	if s.Loss > 0 && m.lose() {
		m.stats.Lost++
		return false
	}
	if s.Corrupt > 0 && m.bitRNG.Chance(s.Corrupt) {
		f.Corrupt, f.Bit = true, m.bitRNG.Uint32()
		m.stats.Corrupted++
	}
	if s.Jitter > 0 {
		f.At = f.At.Add(m.jitter(now))
	}
	if s.Duplicate > 0 && m.dupRNG.Chance(s.Duplicate) {
		f.Twice = true
		m.stats.Duplicated++
	}
	if s.Reorder > 0 && m.lateRNG.Chance(s.Reorder) {
		f.Held = 1 + mono.Duration(float64(s.ReorderBy)*m.lateRNG.Float64())
		m.stats.Reordered++
	}
	return true
}

// jitter is drawn anew once per Jitter of time, not per packet: order is kept, so that in a dense stream the largest
// of many draws would delay them all alike.
func (m *Model) jitter(now mono.Time) mono.Duration {
	if now >= m.jitterTill {
		m.jitterTill = now.Add(m.spec.Jitter)
		m.jitterNow = mono.Duration(float64(m.spec.Jitter) * m.jitterRNG.Float64())
	}
	return m.jitterNow
}

// Mark decides like RED on a queue of backlog bytes: none up to ECNMin, all from ECNMax, between them linear up to ECNProb.
func (m *Model) Mark(backlog int) bool {
	lo, hi := m.spec.ECNMin, m.spec.ECNMax
	switch {
	case hi == 0 || backlog <= lo:
		return false
	case backlog >= hi:
		return true
	}
	p := float64(backlog-lo) / float64(hi-lo)
	if m.spec.ECNProb > 0 {
		p *= m.spec.ECNProb
	}
	return m.markRNG.Chance(p)
}

// lose decides about one packet. In bursts the bad state loses everything, the good state nothing.
func (m *Model) lose() bool {
	loss, burst := m.spec.Loss, m.spec.Burst
	if burst <= 1 || loss >= 1 {
		return m.lossRNG.Chance(loss)
	}
	if m.bad {
		m.bad = !m.lossRNG.Chance(1 / burst)
	} else {
		m.bad = m.lossRNG.Chance(loss / (burst * (1 - loss)))
	}
	return m.bad
}
