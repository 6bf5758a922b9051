package fabric

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// source sends packets at random times to random hosts and counts what comes.
type source struct {
	n       *Net
	id      int32
	r       *rng.Source
	gap     float64 // ns between two, mean
	left    int
	to      func() int32
	at      mono.Time
	sent    uint64
	got     uint64
	log     hash.Hash
	delay   []mono.Duration
	payload int
	entropy int
}

func (s *source) Deliver(now mono.Time, p *Packet) {
	s.got++
	if s.log != nil {
		var b [24]byte
		binary.LittleEndian.PutUint64(b[:], uint64(now))
		binary.LittleEndian.PutUint32(b[8:], uint32(p.From))
		binary.LittleEndian.PutUint16(b[12:], p.SrcPort)
		b[14] = p.TOS
		copy(b[16:], p.Hdr[:8])
		s.log.Write(b[:])
	}
	if s.delay != nil {
		s.delay = append(s.delay, now.Sub(mono.Time(binary.LittleEndian.Uint64(p.Hdr[:8]))))
	}
}

func (s *source) Step(now mono.Time) mono.Time {
	for s.left > 0 && s.at <= now {
		p := s.n.NewPacket(s.id, false)
		p.To, p.Plane = s.to(), uint8(s.r.IntN(s.n.t.Planes))
		p.Len, p.Wire, p.TOS, p.Payload, p.Trimmed, p.Hop = uint16(s.payload), int32(s.payload+66), pkt.ECT0, true, false, 0
		p.SrcPort = uint16(s.r.IntN(s.entropy))
		binary.LittleEndian.PutUint64(p.Hdr[:8], uint64(now))
		s.n.Send(now, s.id, p)
		s.sent++
		s.left--
		s.at = now.Add(mono.Duration(-s.gap*math.Log(1-s.r.Float64())) + 1)
	}
	if s.left == 0 {
		return mono.Never
	}
	return s.at
}

func (s *source) Trigger(mono.Time, int32) {}

func leafSpine(hosts, leaf, spines, planes int) *plan.Topology {
	return &plan.Topology{Kind: plan.LeafSpine, Hosts: hosts, Leaf: leaf, Spines: spines, Planes: planes, RateBps: 100e9, UpBps: 100e9,
		Delay: 1000, UpDelay: 1000, MTU: 4096, Overhead: 66}
}

// world is a net of sources that send so many packets each at a load.
func world(t *plan.Topology, sw *plan.Switch, threads, packets int, load float64, seed uint64) (*Net, []*source) {
	n := New(Config{Topology: t, Switch: sw, Seed: seed, Threads: threads, Start: 1000})
	var all []*source
	for h := range t.Hosts {
		r := rng.New(seed, fmt.Sprint("host", h))
		s := &source{n: n, id: int32(h), r: r, left: packets, payload: 1000 + 500*(h%5), entropy: 64, log: sha256.New()}
		s.gap = float64(s.payload+66) * 8e9 / float64(t.RateBps) / load / float64(t.Planes)
		s.to = func() int32 { return (s.id + 1 + int32(r.IntN(t.Hosts-1))) % int32(t.Hosts) }
		all = append(all, s)
		n.SetHost(h, s)
		n.Wake(int32(h), mono.Time(1000+h))
	}
	return n, all
}

func always() bool { return true }

var topologies = map[string]*plan.Topology{
	"leaf-spine": leafSpine(64, 8, 8, 1),
	"planes":     leafSpine(32, 8, 4, 4),
	"switch":     {Kind: plan.Single, Hosts: 16, Planes: 2, RateBps: 100e9, UpBps: 100e9, Delay: 500, UpDelay: 500, MTU: 4096, Overhead: 66},
	"fat tree":   {Kind: plan.FatTree, Hosts: 64, Planes: 1, Leaf: 4, Pod: 16, Aggs: 4, Cores: 16, RateBps: 100e9, UpBps: 100e9, Delay: 1000, UpDelay: 1000, MTU: 4096, Overhead: 66},
	"rail":       {Kind: plan.Rail, Hosts: 64, Planes: 1, Group: 4, Leaf: 8, Spines: 8, RateBps: 100e9, UpBps: 200e9, Delay: 1000, UpDelay: 1000, MTU: 4096, Overhead: 66},
}

// TestConservation: what is sent comes, or a counter says where it went; on every link, and with every kind of trouble.
func TestConservation(t *testing.T) {
	for name, topo := range topologies {
		for _, sw := range []plan.Switch{{}, {Queue: 20000, ControlClass: true}, {Queue: 20000, Trim: true, ControlClass: true},
			{Queue: 1 << 20, PFC: plan.PFC{XOFF: 20000, XON: 15000, Headroom: 60000}}} {
			n, all := world(topo, &sw, 1, 2000, 0.9, 7)
			if err := n.Schedule(1000, []plan.Event{{Target: "links", Change: plan.Change{Loss: 0.01}}, {At: 20000, For: 30000, Target: "host 3", Change: plan.Change{Down: true}},
				{At: 40000, For: 50000, Target: "leaf 0/0", Change: plan.Change{Flap: 4000}}}); err != nil {
				t.Fatal(err)
			}
			if err := n.Run(mono.Time(mono.Second), always); err != nil {
				t.Fatal(err)
			}
			n.Close()
			var sent, got, gone uint64
			for _, s := range all {
				sent, got = sent+s.sent, got+s.got
			}
			for i := range n.Links() {
				l := n.Link(i)
				gone += l.Dropped + l.Lost + l.Down
			}
			if sent != uint64(2000*topo.Hosts) || got+gone != sent {
				t.Errorf("%s, %+v: %d sent, %d came, %d dropped or lost", name, sw, sent, got, gone)
			}
			if sw.PFC.XOFF > 0 {
				for i := range n.ports {
					if q := n.ports[i].fifo; q.ingress != 0 || q.bytes != 0 || q.ctlBytes != 0 || q.paused {
						t.Errorf("%s: %s holds %+v at the end", name, n.ports[i].Name, *q)
					}
				}
			}
			free := 0
			for _, d := range n.doms {
				free += d.free.n
			}
			if free%256 != 0 {
				t.Errorf("%s: %d packets are free, not whole stretches of 256: some are lost or free twice", name, free)
			}
		}
	}
}

// TestThreads: any number of threads gives the same run.
func TestThreads(t *testing.T) {
	for name, topo := range topologies {
		for _, sw := range []plan.Switch{{Queue: 30000, ECNMin: 5000, ECNMax: 20000, Trim: true, ControlClass: true},
			{Queue: 1 << 20, PFC: plan.PFC{XOFF: 20000, XON: 15000}}} {
			var first string
			for _, threads := range []int{1, 2, 3, 8} {
				n, all := world(topo, &sw, threads, 1000, 0.8, 3)
				n.Schedule(1000, []plan.Event{{Target: "last", Change: plan.Change{Loss: 0.02, Burst: 3}}, {At: 15000, For: 9000, Target: "plane 0", Change: plan.Change{Slow: 3, Delay: 500}}})
				if err := n.Run(mono.Time(mono.Second), always); err != nil {
					t.Fatal(err)
				}
				n.Close()
				h := sha256.New()
				for _, s := range all {
					h.Write(s.log.Sum(nil))
				}
				got := fmt.Sprintf("%x %+v", h.Sum(nil), n.Counters())
				if first == "" {
					first = got
				} else if got != first {
					t.Errorf("%s: %d threads: %s, one: %s", name, threads, got, first)
				}
			}
		}
	}
}

// TestDelay: a packet alone takes what its links take, store and forward.
func TestDelay(t *testing.T) {
	topo := leafSpine(16, 8, 4, 1)
	for _, c := range []struct {
		to   int32
		hops int
	}{{1, 2}, {9, 4}} {
		n, all := world(topo, &plan.Switch{}, 1, 0, 1, 1)
		all[0].left, all[0].payload, all[0].to = 1, 4094, func() int32 { return c.to }
		all[c.to].delay = make([]mono.Duration, 0, 1)
		n.Run(mono.Time(mono.Second), always)
		// 4160 bytes take 332.8 ns at each link
		if want := mono.Duration(c.hops) * 1333; len(all[c.to].delay) != 1 || want.Micros()-all[c.to].delay[0].Micros() > 0.004 || all[c.to].delay[0] > want {
			t.Errorf("to %d: %v, want %v", c.to, all[c.to].delay, want)
		}
	}
}

// direct feeds one port with Poisson traffic, as an M/D/1 queue has it.
type direct struct {
	source
	x *Port
}

func (s *direct) Step(now mono.Time) mono.Time {
	for s.left > 0 && s.at <= now {
		p := s.n.NewPacket(s.id, false)
		p.To, p.In, p.Len, p.Wire, p.Payload, p.TOS = 1, -1, 4000, 4166, true, 0
		binary.LittleEndian.PutUint64(p.Hdr[:8], uint64(now))
		s.n.doms[0].send(now, s.x, p)
		s.left--
		s.at = s.at.Add(mono.Duration(-s.gap * math.Log(1-s.r.Float64())))
	}
	if s.left == 0 {
		return mono.Never
	}
	return s.at
}

// TestMD1: the mean wait of an M/D/1 queue is ρ/(2(1-ρ)) service times (Pollaczek and Khinchine), with and without a FIFO; a
// steady stream below the rate does not wait at all.
func TestMD1(t *testing.T) {
	const service = 4166 * 8e9 / 1e9 // ns at 1 Gbit/s
	for _, pfc := range []plan.PFC{{}, {XOFF: 1 << 40, XON: 1}} {
		for _, rho := range []float64{0.5, 0.7, 0.8, 0.9} {
			topo := &plan.Topology{Kind: plan.Single, Hosts: 2, Planes: 1, RateBps: 1e9, UpBps: 1e9, Delay: 1000, UpDelay: 1000, MTU: 4096}
			n := New(Config{Topology: topo, Switch: &plan.Switch{PFC: pfc}, Seed: 5, Threads: 1, Start: 1000})
			const packets = 1_000_000
			s := &direct{source: source{n: n, id: 0, r: rng.New(11, fmt.Sprint(rho)), gap: service / rho, left: packets, at: 1000}, x: &n.ports[n.nodes[0].down[1]]}
			sink := &source{n: n, id: 1, delay: make([]mono.Duration, 0, packets)}
			n.SetHost(0, s)
			n.SetHost(1, sink)
			n.Wake(0, 1000)
			n.Run(mono.Never-1, always)
			sum := 0.0
			for _, d := range sink.delay {
				sum += float64(d) - service - 1000
			}
			wait, want := sum/packets/service, rho/(2*(1-rho))
			if math.Abs(wait/want-1) > 0.02 || len(sink.delay) != packets {
				t.Errorf("ρ %.1f, FIFO %v: waits %.4f service times, want %.4f", rho, pfc.XOFF > 0, wait, want)
			}
		}
	}
}

// TestLossless: with flow control nothing is dropped, however many send to one; and all of it comes, at the rate of the link.
func TestLossless(t *testing.T) {
	topo := leafSpine(32, 8, 8, 1)
	n, all := world(topo, &plan.Switch{PFC: plan.PFC{XOFF: 30000, XON: 25000, Headroom: 100000}}, 2, 500, 1, 1)
	for _, s := range all {
		s.to = func() int32 { return 0 }
	}
	all[0].left = 0
	if err := n.Run(mono.Time(mono.Second), always); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if c := n.Counters(); all[0].got != 31*500 || c.Pauses == 0 || c.HeadroomFull != 0 {
		t.Errorf("%d packets came, %d pauses, %d over the headroom", all[0].got, c.Pauses, c.HeadroomFull)
	}
	queue := 0
	for i := range n.Links() {
		if l := n.Link(i); l.ToHost {
			queue = max(queue, l.QueueMax)
		}
	}
	if queue > 16*(30000+100000) {
		t.Errorf("a queue of %d bytes: pauses did not bound it", queue)
	}
}

// TestQueue: events come in order, whatever was put in when.
func TestQueue(t *testing.T) {
	for _, bits := range []uint{0, 3, bucketBits} {
		orderly(t, newQueue(bits))
	}
}

func orderly(t *testing.T, q *queue) {
	r := rng.New(9, "queue")
	var all []event
	now := mono.Time(0)
	for i := range 200_000 {
		if q.n != len(all) {
			t.Fatalf("%d events, want %d", q.n, len(all))
		}
		if len(all) > 0 && (r.Chance(0.5) || len(all) > 3000) {
			if q.next() != all[0].at {
				t.Fatalf("%d: next at %d, want %d", i, q.next(), all[0].at)
			}
			e := q.pop()
			if e.at != all[0].at || e.key != all[0].key {
				t.Fatalf("%d: event at %d key %d, want %d, %d", i, e.at, e.key, all[0].at, all[0].key)
			}
			now, all = e.at, all[1:]
			continue
		}
		far := []mono.Time{1, 10, 1000, 100_000, 1_000_000, 1_000_000_000}[r.IntN(6)]
		e := event{at: now + mono.Time(r.IntN(int(far))), key: uint64(i) ^ r.Uint64()&^0xFFFFF}
		q.push(e)
		k, _ := slices.BinarySearchFunc(all, e, func(a, b event) int {
			if a.before(&b) {
				return -1
			}
			return 1
		})
		all = slices.Insert(all, k, e)
	}
}

// TestAllocations: a hop allocates nothing once the queues have grown.
func TestAllocations(t *testing.T) {
	for _, pfc := range []plan.PFC{{}, {XOFF: 20000, XON: 15000}} {
		n, all := world(leafSpine(64, 8, 8, 1), &plan.Switch{Queue: 1 << 20, ECNMin: 1000, ECNMax: 100000, PFC: pfc}, 1, 1<<30, 0.7, 1)
		for _, s := range all {
			s.log = nil
		}
		until := mono.Time(2 * mono.Millisecond)
		n.Run(until, always)
		before := n.Counters().Hops
		got := testing.AllocsPerRun(5, func() {
			until += mono.Time(50 * mono.Microsecond)
			n.Run(until, always)
		})
		if hops := n.Counters().Hops - before; got != 0 || hops < 10_000 {
			t.Errorf("%v allocations in %d hops", got, hops)
		}
	}
}

// BenchmarkHops is the network alone: random traffic of 64 hosts at 70 % load.
func BenchmarkHops(b *testing.B) {
	for _, pfc := range []plan.PFC{{}, {XOFF: 1 << 20, XON: 1 << 19}} {
		b.Run(fmt.Sprintf("pfc=%v", pfc.XOFF > 0), func(b *testing.B) {
			n, all := world(leafSpine(64, 8, 8, 1), &plan.Switch{Queue: 1 << 20, ECNMin: 1000, ECNMax: 100000, PFC: pfc}, 1, 1<<30, 0.7, 1)
			for _, s := range all {
				s.log = nil
			}
			until := mono.Time(mono.Millisecond)
			n.Run(until, always)
			start := n.Counters().Hops
			b.ResetTimer()
			for n.Counters().Hops-start < uint64(b.N) {
				until += mono.Time(20 * mono.Microsecond)
				n.Run(until, always)
			}
			b.ReportMetric(float64(n.Counters().Hops-start)/b.Elapsed().Seconds(), "hops/s")
		})
	}
}
