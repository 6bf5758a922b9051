package scale

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// ErrNotModelled says that a plan has something that the flow level cannot show.
var ErrNotModelled = errors.New("the flow level does not show that")

// Comparison is the flow level beside the packet level, one collective.
type Comparison struct {
	Plan      string  `json:"plan"`
	Name      string  `json:"name"`
	Transport string  `json:"transport"`
	Hosts     int     `json:"hosts"`
	Size      int64   `json:"size_bytes"`
	Packet    float64 `json:"packet_s"`
	Flow      float64 `json:"flow_s"`
	Error     float64 `json:"error"` // Flow/Packet - 1
	Seed      uint64  `json:"seed"`
	Commit    string  `json:"commit,omitempty"`
	time      Time
}

// ForPlan returns the model of a plan. It knows permutation, incast, all-to-all and the ring, tree and halving collectives of
// all hosts, and loss on all links.
func ForPlan(p *plan.Plan, t Table) (*Model, error) {
	loss := 0.0
	for _, e := range p.Events {
		only := plan.Change{Loss: e.Change.Loss, DataOnly: e.Change.DataOnly}
		if e.Target != "links" || e.At != 0 || e.For != 0 || e.Change != only {
			return nil, fmt.Errorf("event %q: %w", e.Target, ErrNotModelled)
		}
		loss = 1 - (1-loss)*(1-e.Change.Loss)
	}
	if p.Run.Steady || p.Transport.Adaptive {
		return nil, fmt.Errorf("a steady run or adaptive switches: %w", ErrNotModelled)
	}
	f, err := NewFabric(p.Topology, Failure{})
	if err != nil {
		return nil, err
	}
	loss = 1 - math.Pow(1-loss, float64(2*f.Tiers()))
	x, err := NewTransport(p.Transport.Kind, t, p.Transport.QPs, p.Transport.RTO.Seconds(), loss)
	if err != nil {
		return nil, err
	}
	return NewModel(f, x, p.Seed), nil
}

// treePieces is the most pieces that the packet level cuts half a buffer into.
const treePieces = 256

// Work computes a part of a plan's workload as the packet level measures it: from the first message until the last one's sender
// has its acknowledgement.
func (m *Model) Work(w plan.Work) (Time, error) {
	n := m.F.T.Hosts
	for i, h := range w.Hosts {
		if i != h || len(w.Hosts) != n {
			return Time{}, fmt.Errorf("%s among some of the hosts, or in another order: %w", w.Pattern, ErrNotModelled)
		}
	}
	c := Collective{Kind: Kind(w.Pattern), Size: w.Size, Mul: w.Mul, Add: w.Add, Senders: w.Senders, Target: w.Target, Slice: w.Slice}
	switch w.Pattern {
	case plan.AllToAll:
		if w.Outstanding > 0 {
			return Time{}, fmt.Errorf("all-to-all with a bound of messages: %w", ErrNotModelled)
		}
		c.Size = w.Size * int64(n)
	case plan.TreeReduce:
		c.Slice = max(c.Slice, ceilDiv(ceilDiv(c.Size, 2), treePieces))
	case plan.Pairs, plan.ConnMatrix, plan.GOAL:
		return Time{}, fmt.Errorf("%s: %w", w.Pattern, ErrNotModelled)
	case plan.Permutation, plan.Incast, plan.RingReduce, plan.Halving, plan.AllGather, plan.ReduceScat:
	}
	t, err := m.Run(c)
	if err != nil {
		return t, err
	}
	back := func(level int) float64 { return m.F.oneWay(level, m.T.ackPacket(m.F)) }
	last := back(m.F.Tiers() - 1)
	t.Seconds += last
	if w.Acked {
		if c.Kind != Ring && c.Kind != AllGather && c.Kind != ReduceScat {
			return t, fmt.Errorf("%s by acknowledgements: %w", w.Pattern, ErrNotModelled)
		}
		flows, _, far := m.F.levels(shift(n, 1))
		for l, x := range far {
			t.Seconds += (t.Steps - 1) * x / flows * back(l)
		}
	}
	r := float64(max(w.Repeat, 1))
	t.Seconds, t.Steps = t.Seconds*r, t.Steps*r
	return t, nil
}

// Compare sets the flow level's time of each collective of a plan beside the packet level's result of it.
func Compare(p *plan.Plan, packet *result.Result, t Table) ([]Comparison, error) {
	if packet.Partial {
		return nil, fmt.Errorf("%s: the result is partial: %s", packet.Plan, packet.Why)
	}
	if len(packet.Groups) != len(p.Workload) || len(p.Workload) != 1 {
		return nil, fmt.Errorf("%s: %d collectives in the plan, %d in the result, one by itself is compared: %w", p.Name, len(p.Workload), len(packet.Groups), ErrNotModelled)
	}
	m, err := ForPlan(p, t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	var all []Comparison
	for i, g := range packet.Groups {
		x, err := m.Work(p.Workload[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if !g.Done || g.Seconds <= 0 {
			return nil, fmt.Errorf("%s: %s did not end", p.Name, g.Name)
		}
		all = append(all, Comparison{Plan: p.Name, Name: g.Name, Transport: string(p.Transport.Kind), Hosts: p.Topology.Hosts, Size: p.Workload[i].Size,
			Packet: g.Seconds, Flow: x.Seconds, Error: x.Seconds/g.Seconds - 1, Seed: packet.Seed, Commit: packet.Commit, time: x})
	}
	return all, nil
}

// Fit returns the table with fill, alpha and, for metaroce, spread of each transport that the comparisons have, made with that
// table, so that the sum of squares of the relative errors is least. Constants come out within what they can mean; transports
// with fewer than four comparisons stay as they are.
func Fit(t Table, all []Comparison) Table {
	for kind, c := range map[string]*Constants{string(plan.MetaRoCE): &t.MetaRoCE, string(plan.RoCEv2): &t.RoCEv2} {
		var rows [][4]float64 // wire time at fill 1, steps, unit of spread; what they have to add up to
		var runs []string
		for _, k := range all {
			if k.Transport != kind {
				continue
			}
			x := &k.time
			steps := x.Steps * 1e-6
			rest := k.Flow - x.Wire - steps*c.Alpha.Value - x.Spread
			rows = append(rows, [4]float64{x.Wire * c.Fill.Value / k.Packet, steps / k.Packet, x.unit / k.Packet, 1 - rest/k.Packet})
			runs = append(runs, k.Plan)
		}
		if len(rows) < 4 {
			continue
		}
		slices.Sort(runs)
		from := fmt.Sprintf("fit of %d runs, seed %d, commit %s: %s", len(rows), all[0].Seed, all[0].Commit, strings.Join(slices.Compact(runs), ", "))
		v := leastSquares(rows)
		round := func(x float64) float64 { return math.Round(x*1e4) / 1e4 }
		before := c.Fill.Value
		c.Fill, c.Alpha = Constant{round(min(1, 1/v[0])), from}, Constant{round(v[1]), "the same fit as fill"}
		if kind == string(plan.MetaRoCE) {
			c.Spread = Constant{round(v[2] * math.Sqrt(c.Fill.Value/before)), "the same fit as fill"} // its unit grew with the square root of time
		}
	}
	return t
}

// leastSquares finds a, b, c ≥ (1, 0, 0) for which a·x + b·y + c·z is nearest to the fourth column, by coordinates in turn: three
// unknowns with bounds need no more.
func leastSquares(rows [][4]float64) (v [3]float64) {
	v = [3]float64{1, 0, 0}
	low := v
	for range 10_000 {
		for i := range v {
			var num, den float64
			for _, r := range rows {
				left := r[3]
				for k := range v {
					if k != i {
						left -= v[k] * r[k]
					}
				}
				num, den = num+left*r[i], den+r[i]*r[i]
			}
			if den > 0 {
				v[i] = max(low[i], num/den)
			}
		}
	}
	return v
}
