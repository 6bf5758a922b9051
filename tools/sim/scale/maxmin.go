package scale

import (
	"container/heap"
	"fmt"
	"math"
)

// flow is a class of count flows that are alike: each takes weight of a link's rate for each unit of its own.
type flow struct {
	count float64
	bytes float64 // of each, on the wire
	uses  []use
	level int // of the fabric that it climbs to: 0 leaf, 1 spine or aggregation, 2 core
}

// use is a link of a flow. Links of one class count as one that has the sum of their rates.
type use struct {
	link   int32
	weight float64
}

// filler computes max–min fair rates by progressive filling: all rates grow together until a link is full, the flows over it
// stay as they are, the others go on.
type filler struct {
	cap   []float64 // bytes a second
	rem   []float64
	sum   []float64 // weights of flows that still grow
	n     []int32   // such flows
	over  [][]int32 // flows of each link
	rates []float64
	heap  shares
}

type share struct {
	link  int32
	value float64
}

type shares []share

func (s shares) Len() int { return len(s) }
func (s shares) Less(i, k int) bool {
	return s[i].value < s[k].value || s[i].value == s[k].value && s[i].link < s[k].link
}
func (s shares) Swap(i, k int) { s[i], s[k] = s[k], s[i] }
func (s *shares) Push(x any)   { *s = append(*s, x.(share)) }
func (s *shares) Pop() any {
	x := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return x
}

func newFiller(caps []float64, flows []flow) *filler {
	f := &filler{cap: caps, rem: make([]float64, len(caps)), sum: make([]float64, len(caps)), n: make([]int32, len(caps)),
		over: make([][]int32, len(caps)), rates: make([]float64, len(flows))}
	for i := range flows {
		for _, u := range flows[i].uses {
			f.over[u.link] = append(f.over[u.link], int32(i))
		}
	}
	return f
}

// fill returns the rate of each flow, bytes a second; 0 for those that are done. The slice is used again by the next call.
func (f *filler) fill(flows []flow, done []bool) []float64 {
	copy(f.rem, f.cap)
	clear(f.sum)
	clear(f.n)
	for i := range flows {
		f.rates[i] = -1
		if done[i] {
			f.rates[i] = 0
			continue
		}
		for _, u := range flows[i].uses {
			f.sum[u.link] += flows[i].count * u.weight
			f.n[u.link]++
		}
	}
	f.heap = f.heap[:0]
	for l, n := range f.n {
		if n > 0 {
			f.heap = append(f.heap, share{int32(l), f.rem[l] / f.sum[l]})
		}
	}
	heap.Init(&f.heap)
	for len(f.heap) > 0 {
		top := f.heap[0]
		l := top.link
		if f.n[l] == 0 {
			heap.Pop(&f.heap)
			continue
		}
		if now := max(f.rem[l], 0) / f.sum[l]; now > top.value { // others over it stopped meanwhile: shares only grow
			f.heap[0].value = now
			heap.Fix(&f.heap, 0)
			if f.heap[0].link != l {
				continue
			}
		}
		f.freeze(flows, l, f.heap[0].value)
		heap.Pop(&f.heap)
	}
	return f.rates
}

// freeze ends the growth of the flows over a full link.
func (f *filler) freeze(flows []flow, l int32, rate float64) {
	for _, i := range f.over[l] {
		if f.rates[i] >= 0 {
			continue
		}
		f.rates[i] = rate
		for _, u := range flows[i].uses {
			w := flows[i].count * u.weight
			f.rem[u.link] -= rate * w
			f.sum[u.link] -= w
			f.n[u.link]--
		}
	}
}

// run lets all flows begin at 0 and returns when each ends, in seconds. When the first of those under way end, the others'
// rates are computed anew.
func run(caps []float64, flows []flow) []float64 {
	f := newFiller(caps, flows)
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
		rates := f.fill(flows, done)
		step := math.Inf(1)
		for i := range flows {
			if !done[i] {
				step = min(step, left[i]/rates[i])
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
			if left[i] -= rates[i] * step; left[i] <= 1e-9*rates[i]*step {
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
			load[u.link] += flows[i].count * u.weight * flows[i].bytes
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
