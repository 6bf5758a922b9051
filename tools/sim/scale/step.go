package scale

import (
	"fmt"
	"math"
)

// Limits of what is computed flow by flow.
const (
	fillMax = 4096    // classes of flows up to which rates are filled in and computed anew when the first end
	flowMax = 1 << 28 // flows that are counted at most
)

// Methods by which a step's time was found, as reports say them.
const (
	methodClasses = "classes"  // max–min fairness over classes of hosts, event by event
	methodCounted = "counted"  // the busiest link's load, every flow or connection counted
	methodLaw     = "binomial" // the busiest link's load by the law of large hashing
)

// Model is a fabric and a transport.
type Model struct {
	F    *Fabric
	T    *Transport
	Seed uint64 // of the hash that chooses ways
	// Apart turns symmetry off: every plane and link by itself. For tests.
	Apart bool
	hash  *hashed
	seen  map[string]hashes // steps whose connections were hashed
}

// hashes is what counting the connections of a step came to.
type hashes struct {
	sec   float64
	level int
	far   [3]float64
}

// NewModel returns a model; the seed is that of rocev2's hash.
func NewModel(f *Fabric, t *Transport, seed uint64) *Model {
	return &Model{F: f, T: t, Seed: seed, hash: newHashed(f, seed), seen: map[string]hashes{}}
}

// step is the time of one step, seconds.
type step struct {
	wire   float64 // until the slowest flow's last byte is sent
	last   float64 // until the last flow's last byte has arrived; all flows end at one time where they are counted
	mean   float64 // latency of a message, the mean over flows
	most   float64 // the longest
	spread float64 // what sprayed packets that meet at a full link between switches cost, in units of the constant
	tail   float64 // that the slowest of all messages is held up by losses
	tail1  float64 // one message
	flows  float64
	method string
}

// barrier is a step that the next one waits for as a whole.
func (s step) barrier() float64 { return s.last + s.tail }

// chain is a step of a ring, of which a host waits only for its neighbour's: latencies add up along the ring, not the longest
// of each step.
func (s step) chain() float64 { return s.wire + s.mean + s.tail1 }

// step computes a step in which each flow of the pattern has size bytes of payload.
func (m *Model) step(p pattern, size int64) (step, error) {
	if size < 1 {
		size = 1
	}
	if m.T.spreads() {
		return m.sprayed(p, size)
	}
	return m.hashedStep(p, size)
}

// grain is by how much the last packets of a message lengthen it where planes have unequal numbers of packets.
func (m *Model) grain(p pattern, size int64) float64 {
	k := packets(m.F, size) * float64(max(p.side, 1))
	planes := float64(m.F.planes)
	return math.Ceil(k/planes) * planes / k
}

func (m *Model) sprayed(p pattern, size int64) (step, error) {
	f, t := m.F, m.T
	bytes, ack := t.wireBytes(f, size)*m.grain(p, size), t.ackShare(f, size)
	var s step
	var far [3]float64
	var between float64 // of the links between switches, the busiest one's time
	period := f.period(p)
	n := p.flows(period)
	if period == 1 && p.all > 0 {
		n = 3
	}
	switch {
	case n > flowMax:
		return s, fmt.Errorf("%d flows without symmetry: %d at most", n, flowMax)
	case n <= fillMax:
		var net network
		if m.Apart {
			net = f.apart(p, bytes, ack)
		} else {
			net = f.sprayed(p, period, bytes, ack)
		}
		for i, end := range run(net.caps, net.flows) {
			x := &net.flows[i]
			end = m.slowed(x.bytes, end, x.level)
			s.wire = max(s.wire, end)
			s.last = max(s.last, end+m.latency(x.level, size))
			far[x.level] += x.count
		}
		s.method = methodClasses
		if !m.Apart {
			between = busiestFrom(net.caps, net.flows, net.apart)
		}
	default:
		sec, most, level, count := f.counted(p, ack)
		far, between = count, most*bytes
		s.wire = m.slowed(bytes, sec*bytes, level)
		s.last, s.method = s.wire+m.latency(level, size), methodCounted
	}
	m.latencies(&s, far, size)
	if s.wire > 0 {
		load := min(1, between/t.Fill.Value/s.wire)
		s.spread = math.Sqrt(s.wire*f.RTT(f.Tiers()-1, t)) * load * load * load
	}
	return s, nil
}

func (m *Model) hashedStep(p pattern, size int64) (step, error) {
	f, t := m.F, m.T
	qps := int(max(1, min(int64(t.QPs), size/int64(f.T.MTU)))) // no part is shorter than a packet, as at the packet level
	part := (size + int64(qps) - 1) / int64(qps)
	bytes := t.wireBytes(f, part)
	if p.side < 2 || p.list == nil { // acknowledgements of what comes go beside what is sent
		bytes *= 1 + t.ackShare(f, part)
	}
	var s step
	n := p.flows(p.n)
	count := m.hash.count
	s.method = methodCounted
	if n*qps > countMax {
		if p.all == 0 {
			return s, fmt.Errorf("%d connections: %d at most are hashed one by one", n*qps, countMax)
		}
		count, s.method = m.hash.expect, methodLaw
	}
	key := fmt.Sprint(p.name, " x ", qps)
	seen, ok := m.seen[key]
	if !ok || p.name == "" {
		seen.sec, seen.level = count(p, qps)
		_, _, seen.far = f.levels(p)
		m.seen[key] = seen
	}
	sec, level := seen.sec, seen.level
	s.wire = m.slowed(bytes, sec*bytes, level)
	s.last = s.wire + m.latency(level, part)
	m.latencies(&s, seen.far, part)
	return s, nil
}

// levels counts how far the flows of a pattern go.
func (f *Fabric) levels(p pattern) (flows float64, level int, far [3]float64) {
	first := f.T.Hosts
	if f.period(p) < first {
		first = f.period(p)
	}
	p.each(first, func(a, b int) { far[f.level(a, b)]++ })
	for l := range far {
		if p.list == nil {
			far[l] *= float64(f.T.Hosts / first)
		}
		flows += far[l]
		if far[l] > 0 {
			level = l
		}
	}
	return flows, level, far
}

// slowed is the time of a flow of bytes that takes seconds at its fair rate, at the share that the transport reaches and with
// its losses.
func (m *Model) slowed(bytes, seconds float64, level int) float64 {
	if seconds == 0 {
		return 0
	}
	seconds /= m.T.Fill.Value
	return seconds / m.T.goodput(m.F, bytes/seconds, m.F.RTT(level, m.T))
}

// latency of a message of size bytes beside its own time on the first wire.
func (m *Model) latency(level int, size int64) float64 {
	return m.F.oneWay(level, m.T.packet(m.F, int(min(size, int64(m.F.T.MTU))))) + m.T.Alpha.Value*1e-6
}

// latencies fills in what follows from how many flows climb to each level.
func (m *Model) latencies(s *step, far [3]float64, size int64) {
	for l, n := range far {
		if n == 0 {
			continue
		}
		s.flows += n
		s.mean += n * m.latency(l, size)
		s.most = m.latency(l, size)
		rtt := m.F.RTT(l, m.T)
		k := packets(m.F, size)
		if s.wire > 0 { // the packets of the last round trip
			k = min(k, math.Ceil(k*rtt/s.wire))
		}
		s.tail = m.T.tail(n*k, rtt)
		s.tail1 = m.T.tail(k, rtt)
	}
	s.mean /= max(s.flows, 1)
}
