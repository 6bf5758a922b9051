package figures

import (
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/vopr"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

func coreOf(e vopr.Engine) core { return vopr.Core(e) }

// lean is MetaRoCE with small pools (a world has up to a hundred engines), and what a row varies.
type lean struct {
	paths int     // a plane; 0 = as many as there are
	twin  float64 // share of second copies of one-packet messages
}

func (l lean) transport() vopr.Transport {
	t := vopr.MetaRoCE
	made := t.New
	t.New = func(u vopr.Tuning, h transport.Host) vopr.Engine {
		u.TxRecords, u.HeldBuffers, u.RespBuffers, u.Twin = 8192, 512, 16, l.twin
		e := made(u, h)
		if l.paths > 0 {
			for i := range u.Planes {
				if err := coreOf(e).SetEntropies(0, netip.Addr{}, i, metaroce.Entropies{Count: l.paths}); err != nil {
					panic(err)
				}
			}
		}
		return e
	}
	return t
}

// pattern says who sends to whom.
type pattern uint8

const (
	pair pattern = iota
	incast
	permutation
	allToAll
)

// steadyRow is a steady load.
type steadyRow struct {
	pattern     pattern
	n           int // senders of an incast
	planes      int
	hosts       int
	queue       float64 // BDP
	loss, burst float64
	gray        float64 // loss on plane 0 alone
	over        float64
	gbps        float64
	marks       bool
	unknown     bool
	message     int // bytes; 0 = 1 MiB
	engine      lean
	warm, d     mono.Duration
}

func (x steadyRow) topology() Topology {
	t := Topology{Hosts: 32, Planes: max(x.planes, 1), Leaf: 8, Spines: 8, RateBps: rate, RTT: rtt, Loss: x.loss, Burst: x.burst,
		Over: x.over, RateUnknown: x.unknown}
	if x.gbps > 0 {
		t.RateBps = uint64(x.gbps * gbit)
	}
	if x.hosts > 0 {
		t.Hosts = x.hosts
	}
	switch x.pattern {
	case pair:
		t.Hosts = 2 * t.Leaf
	case incast:
		t.Hosts = (t.Leaf + x.n + t.Leaf - 1) / t.Leaf * t.Leaf
	case permutation, allToAll:
	}
	t.Queue = int(x.queue * float64(t.BDP()))
	if x.marks {
		t.MarkMin, t.Mark = t.BDP()/5, t.BDP()*4/5
	}
	return t
}

// world makes the row's world with its flows; receivers is how many links they end at.
func (x steadyRow) world(seed uint64) (w *World, flows []*Flow, receivers int) {
	w = NewWorld(x.topology(), x.engine.transport(), seed)
	size, depth := x.message, 4
	if size == 0 {
		size = message
	}
	if size < message { // as many bytes posted
		depth = min(4*message/size, 64)
	}
	leaf, hosts := w.t.Leaf, w.Hosts
	receivers = len(hosts)
	switch x.pattern {
	case pair:
		flows, receivers = append(flows, w.Connect(hosts[0], hosts[leaf], size, 4*depth)), 1
	case incast:
		receivers = 1
		for i := range x.n {
			flows = append(flows, w.Connect(hosts[leaf+i], hosts[0], size, depth))
		}
	case permutation:
		for i := range hosts {
			flows = append(flows, w.Connect(hosts[i], hosts[(i+leaf)%len(hosts)], size, depth))
		}
	case allToAll:
		for i := range hosts {
			for k := 1; k < len(hosts); k++ {
				flows = append(flows, w.Connect(hosts[i], hosts[(i+k)%len(hosts)], size, 2))
			}
		}
	}
	if x.burst > 0 { // acknowledgements by chance, as ccsim has it; and bursts of few packets would last for ever
		s := w.down[0][0].l.Spec()
		s.Burst = 0
		for p := range w.t.Planes {
			w.down[0][p].set(w.Now, s)
		}
	}
	if x.gray > 0 {
		for _, l := range w.links {
			if l.plane == 0 && l.host >= 0 {
				s := l.l.Spec()
				s.Loss = x.gray
				l.set(w.Now, s)
			}
		}
	}
	return w, flows, receivers
}

func (x steadyRow) run(r *Result, seed uint64) {
	w, flows, receivers := x.world(seed)
	settle(w, flows)
	for _, f := range flows {
		f.Start()
	}
	w.Run(x.warm)
	was := w.data
	base := make([]uint64, len(flows))
	for i, f := range flows {
		base[i] = f.Placed
	}
	w.Run(x.d)
	var sum, squares float64
	for i, f := range flows {
		v := float64(f.Placed - base[i])
		sum += v
		squares += v * v
		if f.Err != 0 {
			r.Errors++
		}
	}
	r.Core[vGoodput] = 100 * sum * 8 / x.d.Seconds() / (float64(receivers*w.t.Planes) * float64(w.t.RateBps) * payload)
	r.Core[vDropped] = 100 * float64(w.data.full-was.full) / max(1, float64(w.data.sent-was.sent))
	r.Core[vJain] = sum * sum / max(1, float64(len(flows))*squares)
	r.count(w)
	r.look(w)
}

// settle opens all associations, with a packet each, and lets them come to rest: a HELLO that gets lost comes again after
// milliseconds only, and ccsim has none.
func settle(w *World, flows []*Flow) {
	open := 0
	for _, f := range flows {
		size := f.Size
		f.Size = 4096
		f.OnDone = func(*Flow) { open++ }
		f.Post()
		f.h.step()
		f.Size = size
	}
	for end := w.Now.Add(mono.Second); open < len(flows) && w.Now < end; {
		w.Run(ms)
	}
	w.Run(ms)
	for _, f := range flows {
		f.OnDone, f.stream, f.Placed, f.Ended, f.Read = nil, 0, 0, 0, 0
	}
}

// runTimes has every flow send one message of size bytes, all at once, and takes the times.
func (x steadyRow) runTimes(r *Result, seed uint64) {
	w, flows, _ := x.world(seed)
	settle(w, flows)
	var took []float64
	began := w.Now
	for _, f := range flows {
		f.OnDone = func(*Flow) { took = append(took, w.Now.Sub(began).Micros()) }
		f.Post()
	}
	for _, f := range flows {
		f.h.step()
	}
	for len(took) < len(flows) && w.Now.Sub(began) < x.d {
		w.Run(10 * mono.Microsecond)
	}
	r.Errors = len(flows) - len(took)
	r.count(w)
	if slices.Sort(took); len(took) > 0 {
		r.Core[vMedian], r.Core[vLast] = took[len(took)/2], took[len(took)-1]
	}
}

// runTail takes the times of single messages.
func (x steadyRow) runTail(r *Result, seed uint64, n int) {
	w, flows, _ := x.world(seed)
	f := flows[0]
	settle(w, flows)
	var took []float64
	for len(took) < n && f.Err == 0 {
		began, ended := w.Now, mono.Time(0)
		f.OnDone = func(*Flow) { ended = w.Now }
		f.Post()
		f.h.step()
		for ended == 0 && f.Err == 0 {
			w.Run(rtt)
		}
		took = append(took, ended.Sub(began).Micros()/rtt.Micros())
		w.Run(rtt)
	}
	if f.Err != 0 {
		r.Errors = 1
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[min(int(q*float64(len(took))), len(took)-1)] }
	r.Core["p50_rtt"], r.Core[vP99], r.Core[vP999] = at(0.5), at(0.99), at(0.999)
	r.count(w)
}

// runFailure lets plane 0 die for all, and takes what the others carry, and when everything has arrived that was sent
// before each sender knew.
func (x steadyRow) runFailure(r *Result, seed uint64) {
	const step = mono.Microsecond / 2
	x.message = 32 << 10
	w, flows, _ := x.world(seed)
	settle(w, flows)
	for _, f := range flows {
		f.Start()
	}
	w.Run(x.warm)
	total := func() (n float64) {
		for _, f := range flows {
			n += float64(f.Placed)
		}
		return n
	}
	n := total()
	w.Run(x.warm / 2)
	before := (total() - n) / (x.warm / 2).Seconds()
	w.SetPlane(0, func(s *link.Spec) { s.Down = true })
	failed, n := w.Now, total()
	known, healed := make([]uint64, len(flows)), make([]mono.Duration, len(flows))
	for w.Now.Sub(failed) < x.d {
		w.Run(step)
		for i, f := range flows {
			switch {
			case known[i] == 0 && coreOf(f.h.E).C.PlaneFailures > 0:
				known[i] = f.Read
			case known[i] > 0 && healed[i] == 0 && uint64(f.Ended*f.Size) >= known[i]:
				healed[i] = w.Now.Sub(failed)
			}
		}
	}
	planes := float64(w.t.Planes)
	r.Core[vRest] = 100 * (total() - n) / x.d.Seconds() / (before * (planes - 1) / planes)
	for _, d := range healed {
		if d == 0 {
			r.Errors++
		}
		r.Core[vSlow] = max(r.Core[vSlow], d.Micros()/rtt.Micros())
	}
	r.count(w)
}
