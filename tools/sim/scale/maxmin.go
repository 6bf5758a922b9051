package scale

import (
	"fmt"
	"math"

	"github.com/metaroce/metaroce/tools/sim/maxmin"
)

// flow is a class of count flows that are alike.
type flow struct {
	count float64
	bytes float64 // of each, on the wire
	uses  []use
	level int // of the fabric that it climbs to: 0 leaf, 1 spine or aggregation, 2 core
}

// use is a link of a flow. Links of one class count as one that has the sum of their rates.
type use = maxmin.Use

// fair returns a solver that has all flows under way that have anything to send.
func fair(caps []float64, flows []flow) *maxmin.Solver {
	s := maxmin.New(caps)
	for i := range flows {
		s.Flow(flows[i].count, flows[i].uses)
		if flows[i].bytes > 0 {
			s.Start(int32(i))
		}
	}
	return s
}

// run lets all flows begin at 0 and returns when each ends, in seconds. When the first of those under way end, the others'
// rates are computed anew.
func run(caps []float64, flows []flow) []float64 {
	f := fair(caps, flows)
	end, left, done := make([]float64, len(flows)), make([]float64, len(flows)), make([]bool, len(flows))
	active := 0
	for i := range flows {
		left[i] = flows[i].bytes
		if len(flows[i].uses) == 0 {
			panic(fmt.Sprintf("scale: flow %d uses no link", i))
		}
		if done[i] = left[i] <= 0 || flows[i].count == 0; !done[i] {
			active++
		}
	}
	now := 0.0
	for active > 0 {
		f.Fill()
		step := math.Inf(1)
		for i := range flows {
			if !done[i] {
				step = min(step, left[i]/f.Rate(int32(i)))
			}
		}
		if math.IsInf(step, 1) { // a link without a rate
			for i := range flows {
				if !done[i] {
					end[i] = step
				}
			}
			return end
		}
		now += step
		for i := range flows {
			if done[i] {
				continue
			}
			// What ends within a billionth of the step ends with it: the difference is rounding.
			sent := f.Rate(int32(i)) * step
			if left[i] -= sent; left[i] <= 1e-9*sent {
				f.Stop(int32(i))
				done[i], end[i] = true, now
				active--
			}
		}
	}
	return end
}

// busiest is when the last of flows of one size ends: what the busiest link carries, over its rate. The least rate among the
// flows is that link's share; it never falls while flows end, as each link's share of its rate only grows with fewer flows
// over it; so no flow takes longer, and the flows of that link take as long.
func busiest(caps []float64, flows []flow) float64 { return busiestFrom(caps, flows, 0) }

// busiestFrom is busiest among the links from one on.
func busiestFrom(caps []float64, flows []flow, first int) float64 {
	load := make([]float64, len(caps))
	for i := range flows {
		for _, u := range flows[i].uses {
			load[u.Link] += flows[i].count * u.Weight * flows[i].bytes
		}
	}
	t := 0.0
	for l, b := range load {
		if b > 0 && l >= first {
			t = max(t, b/caps[l])
		}
	}
	return t
}
