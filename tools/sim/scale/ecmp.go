package scale

import (
	"math"

	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// countMax is the number of connections up to which each is hashed; above it, the busiest link's load is that of the binomial
// law. 32 million take a few seconds.
const countMax = 32 << 20

// hashed finds the busiest link when every connection takes one plane and one way by a hash: its load in units of one
// connection's bytes, in bytes-per-rate seconds for a connection of one byte. Counters stay for the next step.
type hashed struct {
	f    *Fabric
	key  uint64
	host [2][]int32 // up, down: host, plane
	leaf [2][]int32 // leaf, plane, uplink
	pod  [2][]int32 // pod, plane, aggregation switch, core
}

func newHashed(f *Fabric, seed uint64) *hashed {
	return &hashed{f: f, key: rng.New(seed, "ecmp").Uint64()}
}

// mix is the finalizer of splitmix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// way returns where connection number q from a to b goes.
func (x *hashed) way(a, b, q int) (plane, up, core int) {
	h := mix(x.key ^ mix(uint64(a)<<32|uint64(b)) + uint64(q)*0x9e3779b97f4a7c15)
	plane, h = int(h%uint64(x.f.planes)), mix(h+1)
	if x.f.ups > 0 {
		up, h = int(h%uint64(x.f.ups)), mix(h+1)
	}
	if x.f.T.Kind == plan.FatTree {
		core = int(h % uint64(x.f.T.Cores/x.f.T.Aggs))
	}
	return plane, up, core
}

func (x *hashed) reset() {
	f := x.f
	if x.host[0] == nil {
		leaves := f.T.Hosts / f.leaf
		for d := range 2 {
			x.host[d] = make([]int32, f.T.Hosts*f.planes)
			x.leaf[d] = make([]int32, leaves*f.planes*max(f.ups, 1))
			if f.T.Kind == plan.FatTree {
				x.pod[d] = make([]int32, f.T.Hosts/f.T.Pod*f.planes*f.ups*(f.T.Cores/f.T.Aggs))
			}
		}
		return
	}
	for d := range 2 {
		clear(x.host[d])
		clear(x.leaf[d])
		clear(x.pod[d])
	}
}

// count hashes all connections of a step and returns the seconds that the busiest link needs when each carries one byte, and
// the highest level.
func (x *hashed) count(p pattern, qps int) (seconds float64, level int) {
	f := x.f
	x.reset()
	var most [3]int32
	cores := 1
	if f.T.Kind == plan.FatTree {
		cores = f.T.Cores / f.T.Aggs
	}
	add := func(tier int, s []int32, i int) {
		s[i]++
		most[tier] = max(most[tier], s[i])
	}
	p.each(p.n, func(a, b int) {
		l := f.level(a, b)
		level = max(level, l)
		for q := range qps {
			plane, up, core := x.way(a, b, q)
			add(0, x.host[0], a*f.planes+plane)
			add(0, x.host[1], b*f.planes+plane)
			if l > 0 {
				add(1, x.leaf[0], (f.leafOf(a)*f.planes+plane)*f.ups+up)
				add(1, x.leaf[1], (f.leafOf(b)*f.planes+plane)*f.ups+up)
			}
			if l > 1 {
				add(2, x.pod[0], ((f.podOf(a)*f.planes+plane)*f.ups+up)*cores+core)
				add(2, x.pod[1], ((f.podOf(b)*f.planes+plane)*f.ups+up)*cores+core)
			}
		}
	})
	return f.slowest(float64(most[0]), float64(most[1]), float64(most[2])), level
}

// slowest turns the most connections over a link of each tier into seconds for one byte each.
func (f *Fabric) slowest(host, leaf, pod float64) float64 {
	up := float64(f.T.UpBps) / 8 * (1 - f.Fail.Links)
	return max(host*8/float64(f.T.RateBps), leaf/up, pod/up)
}

// expect is count for everyone-to-everyone with more connections than are counted one by one: the most over links that each
// carry a binomial number, taken as independent: the median of the largest.
func (x *hashed) expect(p pattern, qps int) (seconds float64, level int) {
	f := x.f
	hosts := float64(f.T.Hosts)
	var far [3]float64
	for k := p.all; k < p.n; k += p.all {
		far[f.level(0, k)]++
	}
	q, planes, ups := float64(qps), float64(f.planes), float64(max(f.ups, 1))
	host := largest((far[0]+far[1]+far[2])*q, 1/planes, 2*hosts*planes)
	leaves := hosts / float64(f.leaf)
	leaf := largest((far[1]+far[2])*q*float64(f.leaf), 1/(planes*ups), 2*leaves*planes*ups)
	pod := 0.0
	if far[1]+far[2] > 0 {
		level = 1
	}
	if far[2] > 0 {
		level = 2
		n := planes * ups * float64(f.T.Cores/f.T.Aggs)
		pod = largest(far[2]*q*float64(f.T.Pod), 1/n, 2*hosts/float64(f.T.Pod)*n)
	}
	return f.slowest(host, leaf, pod), level
}

// largest is the median of the largest of links binomial numbers of n tries with chance p: the least k with
// P(X ≤ k)^links ≥ 1/2.
func largest(n, p, links float64) float64 {
	if n <= 0 {
		return 0
	}
	if p >= 1 {
		return n
	}
	tail := math.Ln2 / links // P(X > k) for which (1 - tail)^links is a half
	lo, hi := math.Floor(n*p), n
	for lo < hi {
		k := math.Floor((lo + hi) / 2)
		if binomialTail(n, p, k) <= tail {
			hi = k
		} else {
			lo = k + 1
		}
	}
	return lo
}

// binomialTail is P(X > k) for k at or above the mean: the terms fall at least as fast as a geometric row.
func binomialTail(n, p, k float64) float64 {
	if k >= n {
		return 0
	}
	i := k + 1
	a, _ := math.Lgamma(n + 1)
	b, _ := math.Lgamma(i + 1)
	c, _ := math.Lgamma(n - i + 1)
	term := math.Exp(a - b - c + i*math.Log(p) + (n-i)*math.Log1p(-p))
	sum := 0.0
	for ; i <= n && term > sum*1e-12; i++ {
		sum += term
		term *= (n - i) / (i + 1) * p / (1 - p)
	}
	return sum
}

// connections builds the step with every connection as a flow of its own, for tests and for the times of all flows.
func (x *hashed) connections(p pattern, qps int, bytes float64) network {
	ids := linkIDs{f: x.f, at: map[[5]int]int32{}}
	var n network
	p.each(p.n, func(a, b int) {
		for q := range qps {
			y := flow{count: 1, bytes: bytes, level: x.f.level(a, b)}
			plane, up, core := x.way(a, b, q)
			ids.path(&y, a, b, plane, up, core, 1)
			n.flows = append(n.flows, y)
		}
	})
	n.caps = ids.caps
	return n
}
