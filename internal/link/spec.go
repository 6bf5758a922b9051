package link

import (
	"fmt"

	"github.com/metaroce/metaroce/internal/mono"
)

// Spec says what a link does to packets. The zero Spec passes everything on at once.
type Spec struct {
	RateBps uint64  // bits per second; 0 = no serialisation, so no queue and no marks either
	Queue   int     // bytes that may wait before the next one is dropped; 0 = as many as there are slots
	ECNMin  int     // bytes waiting above which marking begins
	ECNMax  int     // bytes waiting from which every ECN-capable packet is marked; 0 = never mark
	ECNProb float64 // share of packets marked just below ECNMax; 0 = 1

	Delay  mono.Duration
	Jitter mono.Duration // added to Delay, uniform in 0 … Jitter; keeps the order

	Loss  float64 // share of packets lost on the wire, 0 … 1
	Burst float64 // mean number of packets lost in a row (Gilbert–Elliott); up to 1 = independent losses

	Reorder   float64       // share of packets held back
	ReorderBy mono.Duration // by how much at most; 0 = DefaultReorderBy
	Duplicate float64       // share of packets that arrive twice
	Corrupt   float64       // share of packets that arrive with one bit wrong

	Down bool // everything is lost, what is on its way too
}

// DefaultReorderBy holds a packet back for about a dozen full packets of a 4 Gbit/s stream.
const DefaultReorderBy = 100 * mono.Microsecond

// DelayMax bounds Delay, Jitter and ReorderBy, so that adding them to a time cannot overflow.
const DelayMax = 3600 * mono.Second

// Zero reports whether the link would do nothing at all.
func (s Spec) Zero() bool {
	s.Burst, s.Queue, s.ECNMin, s.ECNMax, s.ECNProb, s.ReorderBy = 0, 0, 0, 0, 0, 0 // mean nothing alone
	return s == Spec{}
}

// Check says what is wrong with s.
func (s Spec) Check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", s.Loss}, {"reorder", s.Reorder}, {"duplicate", s.Duplicate}, {"corrupt", s.Corrupt}, {"ECN share", s.ECNProb}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("link: %s is %v, not within 0 and 100 %%", p.name, p.v)
		}
	}
	for _, d := range []struct {
		name string
		v    mono.Duration
	}{{"delay", s.Delay}, {"jitter", s.Jitter}, {"reorder time", s.ReorderBy}} {
		if d.v < 0 || d.v > DelayMax {
			return fmt.Errorf("link: %s %v is not within 0 and %v", d.name, d.v, DelayMax)
		}
	}
	switch {
	case s.RateBps > 1e14: // bits · 1e9 must fit 64 bits, and so must a queue's
		return fmt.Errorf("link: a rate of %d bit/s is over 100 Tbit/s", s.RateBps)
	case s.Queue < 0 || s.ECNMin < 0 || s.ECNMax < 0:
		return fmt.Errorf("link: a size is negative")
	case s.ECNMin > s.ECNMax:
		return fmt.Errorf("link: ECN marking begins at %d bytes but is full at %d", s.ECNMin, s.ECNMax)
	case !(s.Burst >= 0 && s.Burst <= 1e6):
		return fmt.Errorf("link: a burst of %v packets", s.Burst)
	case s.Burst > 1 && s.Loss < 1 && s.Loss > s.Burst/(s.Burst+1):
		// The good state lasts at least one packet.
		return fmt.Errorf("link: bursts of %v cannot lose more than %.3g %%", s.Burst, 100*s.Burst/(s.Burst+1))
	}
	return nil
}
