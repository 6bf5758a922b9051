package sim

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// flowsMost is how many flows a result lists unless the plan wants all.
const flowsMost = 100_000

// since is a time of the run in seconds, or -1 when it never came.
func (r *run) since(t mono.Time) float64 {
	if t == mono.Never {
		return -1
	}
	return max(0, t.Sub(r.t0).Seconds()) // what is posted before the first event is posted at the start
}

func (r *run) result() (*result.Result, error) {
	p := r.p
	c := r.m.Counters()
	out := &result.Result{Plan: p.Name, Title: p.Title, Seed: r.seed, Commit: r.o.Commit, Setup: Setup(r.p)}
	switch {
	case r.ctx.Err() != nil:
		out.Partial, out.Why = true, "interrupted"
	case !p.Run.Steady && r.m.Ended() < len(r.graph.Messages):
		out.Partial = true
		out.Why = fmt.Sprintf("%d of %d messages had ended at %v", r.m.Ended(), len(r.graph.Messages), p.Run.Until)
	}
	out.Line = r.line.finish()
	s := &out.Summary
	s.Seconds = r.m.Now().Sub(r.t0).Seconds()
	s.Hops, s.Events, s.Trimmed, s.PauseFrames = c.Hops, c.Events, c.Trimmed, c.Pauses
	s.Retransmits, s.DataPackets = r.m.Retransmits(), r.m.DataSent()
	r.flows(out)
	r.links(out)
	if p.Run.Steady {
		r.steady(out)
	}
	wall := r.wall()
	out.Cost = result.Cost{WallSeconds: wall, HopsPerSec: float64(c.Hops) / max(wall-r.began, 1e-9), RSSBytes: rss(), Threads: r.m.Threads()}
	return out, out.Seal()
}

// Setup is what a plan comes to, for reports.
func Setup(p *plan.Plan) result.Setup {
	t, sw := &p.Topology, &p.Switch
	var changes []string
	for i := range p.Events {
		changes = append(changes, p.Events[i].String())
	}
	nic := string(p.Transport.NIC)
	if p.Transport.Kind == plan.Ideal {
		nic = ""
	}
	return result.Setup{Workload: p.Describe(), Changes: changes,
		Topology: t.String(), Hosts: t.Hosts, Planes: t.Planes, RateBps: t.RateBps, MTU: t.MTU, WireBytes: t.WireBytes(), RTT: t.RTT().Seconds(),
		QueueBytes: sw.Queue, ECNMin: sw.ECNMin, ECNMax: sw.ECNMax, Trim: sw.Trim, PFC: sw.PFC.XOFF > 0, Transport: string(p.Transport.Kind), NIC: nic}
}

// flows lists what became of the messages, and sums it up by group.
func (r *run) flows(out *result.Result) {
	g := r.graph
	s := &out.Summary
	groups := make([]result.Group, len(g.Groups))
	for i := range g.Groups {
		x := &g.Groups[i]
		groups[i] = result.Group{Name: x.Name, Kind: x.Kind, Size: x.Size, Hosts: x.Hosts, Start: math.Inf(1), Done: true}
	}
	list := r.p.Run.All || r.p.Run.Flows && len(g.Messages) <= flowsMost
	var took, rates []float64
	receivers := make([]bool, r.p.Topology.Hosts)
	var bytes, end float64
	for i := range g.Messages {
		m := &g.Messages[i]
		d := r.m.Message(i)
		x := &groups[m.Group]
		if d.Posted != mono.Never {
			x.Start = min(x.Start, r.since(d.Posted))
		}
		if m.From == m.To {
			continue
		}
		s.Flows++
		f := result.Flow{ID: i, From: int(m.From), To: int(m.To), Group: int(m.Group), Step: int(m.Step), Size: m.Size,
			Start: r.since(d.Posted), Received: r.since(d.Received), Acked: r.since(d.Acked), Error: d.Error}
		switch {
		case d.Error != "":
			s.Errors++
			x.Done = false
		case f.Acked < 0 || f.Received < 0:
			x.Done = false
		default:
			s.Done++
			x.End, end = max(x.End, f.Acked), max(end, f.Acked)
			t := f.Acked - f.Start
			took = append(took, t)
			if m.Size > 0 && t > 0 { // on wires as fast as plans may have them, and no longer, it can be less than a nanosecond
				rates = append(rates, float64(m.Size)*8/t)
			}
			bytes += float64(m.Size)
			receivers[m.To] = true
		}
		if list {
			out.Flows = append(out.Flows, f)
		}
	}
	for i := range groups {
		x := &groups[i]
		if math.IsInf(x.Start, 1) {
			x.Start, x.Done = -1, false
		} else if x.Done && x.End > x.Start { // calculations alone take no time here
			x.Seconds = x.End - x.Start
			x.AlgBps = float64(x.Size) * 8 / x.Seconds
			x.BusBps = x.AlgBps * g.Groups[i].BusFactor
		}
	}
	out.Groups = groups
	slices.Sort(took)
	times(s, took)
	s.Jain, s.MinMax = fairness(rates)
	if end > 0 {
		s.Goodput = bytes * 8 / end
		s.GoodputShare = s.Goodput / r.capacity(receivers)
	}
}

// times fills in the percentiles (nearest rank) of times, shortest first.
func times(s *result.Summary, took []float64) {
	if n := len(took); n > 0 {
		s.FCTMin, s.FCTP50, s.FCTP99, s.FCTMax = took[0], result.Percentile(took, 50), result.Percentile(took, 99), took[n-1]
	}
}

// capacity is the payload that hosts' links can carry to them, bits a second.
func (r *run) capacity(receivers []bool) float64 {
	t := &r.p.Topology
	n := 0
	for _, is := range receivers {
		if is {
			n++
		}
	}
	return max(1, float64(n)) * float64(t.Planes) * float64(t.RateBps) * float64(t.MTU) / float64(t.WireBytes())
}

// steady takes the goodput of a steady run from where its measurement began.
func (r *run) steady(out *result.Result) {
	s := &out.Summary
	receivers := make([]bool, r.p.Topology.Hosts)
	for i := range r.graph.Messages {
		receivers[r.graph.Messages[i].To] = true
	}
	d := r.m.Now().Sub(r.t0.Add(r.p.Run.Warm)).Seconds()
	if len(r.warmed) == 0 || d <= 0 {
		out.Partial, out.Why = true, "ended before the measurement began"
		return
	}
	var sum float64
	var rates []float64
	for h, is := range receivers {
		if is {
			v := float64(r.m.PlacedAt(h)-r.warmed[h]) * 8 / d
			sum += v
			rates = append(rates, v)
		}
	}
	s.Goodput, s.GoodputShare = sum, sum/r.capacity(receivers)
	s.Jain, s.MinMax = fairness(rates)
	out.Groups, out.Flows = nil, nil
	var took []float64
	for _, d := range r.m.Took() {
		took = append(took, d.Seconds())
	}
	times(s, took)
	s.Flows, s.Done = len(r.graph.Messages), len(r.graph.Messages)-s.Errors
}

// fairness is Jain's index of rates, and the least over the greatest.
func fairness(rates []float64) (jain, minMax float64) {
	if len(rates) == 0 {
		return 0, 0
	}
	var sum, squares float64
	for _, x := range rates {
		sum += x
		squares += x * x
	}
	if sum == 0 {
		return 0, 0 // nothing moved: no fairness to speak of
	}
	return sum * sum / (float64(len(rates)) * squares), slices.Min(rates) / slices.Max(rates)
}

func (r *run) links(out *result.Result) {
	s := &out.Summary
	for i := range r.m.Links() {
		l := r.m.Link(i)
		s.Dropped += l.Dropped
		s.Lost += l.Lost + l.Down
		s.Marked += l.Marked
		s.PausedSeconds += l.Paused.Seconds()
		s.QueueMax = max(s.QueueMax, l.QueueMax)
		x := result.Link{Name: l.Name, Plane: l.Plane, Packets: l.Packets, Bytes: l.Bytes, QueueMax: l.QueueMax, Dropped: l.Dropped, Marked: l.Marked,
			Trimmed: l.Trimmed, Lost: l.Lost + l.Down, Paused: l.Paused.Seconds()}
		if s.Seconds > 0 {
			x.Use = float64(l.Bytes) * 8 / s.Seconds / float64(l.RateBps)
		}
		out.Links = append(out.Links, x)
	}
}

// rss is the memory that the process has from the system, or 0 where that is not told.
func rss() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}
