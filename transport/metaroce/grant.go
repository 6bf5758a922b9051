package metaroce

import "github.com/metaroce/metaroce/internal/mono"

// portRx is what the receiver knows of one of its own ports; from it come the grants of all associations.
// Rule and figures: protocol.md section 4 (rate known: the offered load; rate unknown: rest where it no longer grows).
type portRx struct {
	at          mono.Time // of the caller's clock: what came while the loop stood still came in that time, too
	bytes, gaps float64   // of this period; gaps in packets
	pkts        float64
	g           float64
	hist        [10]float64 // bytes a second of the last periods
	hn          int
	senders     []*assoc // whose data came here a while ago at most
	plane       int
	rtt         mono.Duration
	rttAt       mono.Time
	inUse       int // associations
	sending     int // senders when the last grant was given
	granted     uint32
}

func (p *portRx) init(plane int) { p.g, p.plane = 1.5, plane }

// frameBytes is what Ethernet, IPv4 and UDP add to a packet on the wire, preamble and gap included.
const (
	frameBytes = 66
	fullPacket = maxPayload + 128
)

func (p *portRx) rate() (m float64) {
	for _, v := range p.hist {
		m = max(m, v)
	}
	return m
}

// frame is what a packet of the association takes on the wire beside its own bytes.
func (a *assoc) frame() int {
	if a.local.Is4() {
		return frameBytes
	}
	return frameBytes + 20
}

// arrived counts a packet; each two round trips the factor g is adapted.
func (p *portRx) arrived(e *Engine, bytes, gaps int) {
	p.bytes += float64(bytes)
	p.gaps += float64(gaps)
	p.pkts++
	period := 2 * p.roundTrip(e)
	//= MR-CC-013
	d := e.lastCall.Sub(p.at)
	if d < period {
		return
	}
	if p.at != 0 && d < 20*period {
		p.adapt(e, d)
	}
	p.at, p.bytes, p.gaps, p.pkts = e.lastCall, 0, 0, 0
}

func (p *portRx) adapt(e *Engine, d mono.Duration) {
	was, v := p.rate(), p.bytes/d.Seconds()
	p.hist[p.hn%len(p.hist)] = v
	p.hn++
	lost := p.gaps / (p.pkts + p.gaps)
	//= MR-CC-014
	if c := e.portRate(p); c > 0 {
		offered := v / (1 - min(lost, 0.5)) / c
		if offered > 0.97 && lost > 0.01 {
			p.g = max(1.05, p.g*0.9)
		} else if offered < 0.97 {
			p.g = min(2.5, p.g*1.1)
		}
		return
	}
	//= MR-CC-015
	switch {
	case lost > 0.01:
		p.g = max(1.2, p.g*0.9)
	case v > 0.9*was && v < 1.03*was:
		p.g = max(1.25, p.g*0.97)
	default:
		p.g = min(2.5, p.g*1.1)
	}
}

// firstGrant is what a peer may send on a plane before the first acknowledgement. A sender that knows both rates begins with a
// bandwidth-delay product, which only the ring bounds; others feel their way.
func (e *Engine) firstGrant(plane int) int {
	if e.cfg.Planes[plane].RateBps == 0 {
		return defaultWindow
	}
	return max(defaultWindow, e.cfg.Planes[plane].RingBytes)
}

// portRate is the port's rate in bytes a second, 0 when nobody knows it.
func (e *Engine) portRate(p *portRx) float64 {
	return float64(e.cfg.Planes[p.plane].RateBps) / 8
}

// roundTrip is the largest base RTT on the port's plane of the associations that are in use, with the wire's noise; the
// smoothed RTT where no probe was answered yet. It is asked for with every packet; the answer of a while ago will do.
func (p *portRx) roundTrip(e *Engine) mono.Duration {
	if p.rttAt != 0 && e.now.Sub(p.rttAt) < p.rtt {
		return p.rtt
	}
	plane := p.plane
	m := mono.Duration(0)
	p.inUse = 0
	for _, a := range e.live {
		if a.state != assocUp || a.users == 0 {
			continue
		}
		p.inUse++
		//= MR-CC-012
		if b := a.planes[plane].base; b > 0 {
			m = max(m, b+a.planes[plane].noise)
		}
	}
	p.rttAt = e.now
	if m == 0 { // the first guess of a round trip is long: it must not be kept as long as it is
		for _, a := range e.live {
			if a.state == assocUp && a.users > 0 {
				m = max(m, a.srtt)
			}
		}
		p.rttAt = 0
	}
	p.rtt = max(m, 5*mono.Microsecond)
	return p.rtt
}

// baseRTT is the plane's base RTT with the wire's noise, or other where it was not measured.
func (pl *planeTx) baseRTT(other mono.Duration) mono.Duration {
	if pl.base == 0 {
		return other
	}
	return pl.base + pl.noise
}

// sent notes that an association sends to the port. Those without a QP of ours do not count: strangers must not make
// others' shares small.
func (p *portRx) sent(a *assoc, plane int) {
	//= MR-SEC-003
	if a.users > 0 && !a.sends[plane] {
		a.sends[plane] = true
		p.senders = append(p.senders, a)
	}
}

// active counts the associations that sent something in the last time, and forgets the others.
func (p *portRx) active(now mono.Time, plane int, recent, done mono.Duration) int {
	keep := p.senders[:0]
	for _, a := range p.senders {
		recent := recent
		if a.rx.done {
			recent = min(recent, done)
		}
		if d := a.rx.planes[plane].lastData; d != 0 && now.Sub(d) <= recent && a.users > 0 {
			keep = append(keep, a)
		} else {
			a.sends[plane] = false
		}
	}
	clear(p.senders[len(keep):])
	p.senders = keep
	return len(keep)
}

// grantFor is what the peer may have in flight on a plane. A lone sender is bounded by the ring only.
func (e *Engine) grantFor(a *assoc, plane int) uint32 {
	p := &e.ports[plane]
	ring := float64(e.cfg.Planes[plane].RingBytes)
	c := e.portRate(p)
	if c == 0 {
		c = p.rate()
	}
	rtt := p.roundTrip(e)
	//= MR-CC-013
	recent := 3 * rtt
	if c > 0 {
		recent += mono.Duration(2 * float64(p.inUse) * maxPayload / c * 1e9)
	}
	active := p.active(e.now, plane, recent, rtt*3/2)
	p.sending, p.granted = active, uint32(ring)
	//= MR-CC-012
	if active <= 1 {
		return p.granted
	}
	share, least := ring/float64(active), float64(minCharge)
	if c > 0 {
		bdp := c * (a.planes[plane].baseRTT(rtt) + a.rx.holdTime()).Seconds()
		if e.portRate(p) == 0 { // a short probe does not say what full packets take on the links; where there is a rate, sending does
			//= MR-CC-012
			bdp += 2 * fullPacket
		}
		share = min(share, p.g*bdp/float64(active))
	}
	if e.portRate(p) == 0 { // what little programs send is no measure of what the port takes
		//= MR-CC-016
		if least = fullPacket; e.cfg.Planes[plane].TimerNoise > 0 {
			least = max(least, defaultWindow/float64(active))
		}
	}
	p.granted = uint32(max(share, least))
	return p.granted
}
