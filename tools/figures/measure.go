package figures

import (
	"slices"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/vopr"
)

const (
	gbit    = 1e9
	rate    = 100 * gbit
	rtt     = 8 * mono.Microsecond
	message = 1 << 20
	// share of a full packet on the wire that is payload: MetaRoCE's headers, that go-back-N has less of
	payload  = 4096.0 / (4096 + 12 + 16 + 16 + 4 + outer)
	payloadG = 4096.0 / (4096 + 12 + 4 + outer)
)

// Sums is what a steady load came to.
type Sums struct {
	Goodput float64 // share of what the receivers' links could carry as payload
	Dropped float64 // packets that found a queue full, per packet of payload
	Jain    float64 // fairness among flows
	Err     bool    // a flow ended with an error
}

// steady runs flows, forgets the first part and sums up the rest.
func steady(w *World, flows []*Flow, receivers int, warm, d mono.Duration) Sums {
	for _, f := range flows {
		f.Start()
	}
	w.Run(warm)
	base := make([]uint64, len(flows))
	for i, f := range flows {
		base[i] = f.Placed
	}
	dropped := w.Dropped()
	w.Run(d)
	var sum, squares float64
	s := Sums{}
	for i, f := range flows {
		x := float64(f.Placed - base[i])
		sum += x
		squares += x * x
		s.Err = s.Err || f.Err != 0
	}
	most := payload
	if w.goBackN {
		most = payloadG
	}
	s.Goodput = sum * 8 / d.Seconds() / (float64(receivers*w.t.Planes) * float64(w.t.RateBps) * most)
	s.Dropped = float64(w.Dropped()-dropped) / max(1, sum/4096)
	s.Jain = sum * sum / max(1, float64(len(flows))*squares)
	return s
}

// Pair is one sender and one receiver.
func Pair(e vopr.Transport, planes int, loss, burst float64, seed uint64, d mono.Duration) Sums {
	w := NewWorld(Topology{Hosts: 2, Planes: planes, RateBps: rate, RTT: rtt, Loss: loss, Burst: burst}, e, seed)
	return steady(w, []*Flow{w.Connect(w.Hosts[0], w.Hosts[1], message, 16)}, 1, d/4, d)
}

// fabric is the one of the design trials: 32 hosts, 8 a leaf, 8 spines, queues in BDP. Its switches mark for transports whose
// control is by marks, as RED does between a tenth and a half of the queue; MetaRoCE gets none.
func fabric(e vopr.Transport, planes int, queue, loss float64, unknown bool) Topology {
	t := Topology{Hosts: 32, Planes: planes, Leaf: 8, Spines: 8, RateBps: rate, RTT: rtt, Loss: loss, RateUnknown: unknown}
	t.Queue = int(queue * float64(t.BDP()))
	if e.GoBackN {
		t.MarkMin, t.Mark = t.Queue/10, t.Queue/2
	}
	return t
}

// Incast is n senders to one receiver behind a queue of so many BDP.
func Incast(e vopr.Transport, n int, queue, loss float64, unknown bool, seed uint64, d mono.Duration) Sums {
	t := fabric(e, 1, queue, loss, unknown)
	t.Hosts = t.Leaf + n // senders are below other leaves
	w := NewWorld(t, e, seed)
	var flows []*Flow
	for i := range n {
		flows = append(flows, w.Connect(w.Hosts[t.Leaf+i], w.Hosts[0], message, 4))
	}
	return steady(w, flows, 1, d/2, d)
}

// Permutation has every host send to a host of the next leaf and receive from one of the last.
// acksWithData has acknowledgements wait behind data, as in a network of one class.
func Permutation(e vopr.Transport, planes int, loss float64, acksWithData bool, seed uint64, d mono.Duration) Sums {
	t := fabric(e, planes, 1, loss, false)
	t.AcksWithData = acksWithData
	w := NewWorld(t, e, seed)
	var flows []*Flow
	for i := range w.Hosts {
		flows = append(flows, w.Connect(w.Hosts[i], w.Hosts[(i+w.t.Leaf)%len(w.Hosts)], message, 4))
	}
	return steady(w, flows, len(w.Hosts), d/2, d)
}

// Tail is the time of single messages in round trips: median, 99th and 99.9th percentile. ok is false when a message did
// not end; then there are none.
func Tail(e vopr.Transport, size int, loss float64, n int, seed uint64) (p50, p99, p999 float64, ok bool) {
	w := NewWorld(Topology{Hosts: 2, Planes: 4, RateBps: rate, RTT: rtt, Loss: loss}, e, seed)
	f := w.Connect(w.Hosts[0], w.Hosts[1], size, 1)
	var took []float64
	var began, ended mono.Time
	f.OnDone = func(*Flow) { ended = w.Now }
	for len(took) < n+1 {
		began, ended = w.Now, 0
		f.Post()
		f.h.step()
		for ended == 0 && f.Err == 0 && w.Now.Sub(began) < mono.Second {
			w.Run(rtt / 8)
		}
		if ended == 0 {
			return 0, 0, 0, false
		}
		took = append(took, ended.Sub(began).Micros()/rtt.Micros())
		w.Run(3 * rtt)
	}
	took = took[1:] // the first one opened the association
	slices.Sort(took)
	at := func(q float64) float64 { return took[int(q*float64(n-1)+0.5)] }
	return at(0.5), at(0.99), at(0.999), true
}

// Point is a stretch of a time line.
type Point struct {
	At      mono.Duration // since the event
	Goodput float64       // share of four planes
}

// PlaneStory runs one pair over four planes and changes plane 1 at time 0, and back after back.
func PlaneStory(e vopr.Transport, change func(*link.Spec), back, end, bin mono.Duration, seed uint64) []Point {
	w := NewWorld(Topology{Hosts: 2, Planes: 4, RateBps: rate, RTT: rtt}, e, seed)
	f := w.Connect(w.Hosts[0], w.Hosts[1], message, 16)
	f.Start()
	w.Run(2 * mono.Millisecond)
	was := w.links[0].l.Spec()
	last := w.down[0][0].l.Spec()
	var line []Point
	before := -10 * bin
	for at := before; at < end; at += bin {
		switch {
		case at == 0:
			w.SetPlane(1, change)
		case at <= back && at+bin > back:
			w.SetPlane(1, func(s *link.Spec) {
				if s.Queue == was.Queue {
					*s = was
				} else {
					*s = last
				}
			})
		}
		n := f.Placed
		w.Run(bin)
		line = append(line, Point{at, float64(f.Placed-n) * 8 / bin.Seconds() / (4 * rate * payload)})
	}
	return line
}
