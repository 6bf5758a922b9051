package scale

import "github.com/metaroce/metaroce/tools/sim/plan"

// counted is what sprayed and busiest say of a pattern without building its flows: for patterns without symmetry on many hosts.
// It returns the seconds that the busiest link needs when each flow has one byte (and ack bytes come back), the highest level,
// and how many flows climb to each; between is the busiest link between switches.
func (f *Fabric) counted(p pattern, ack float64) (seconds, between float64, level int, far [3]float64) {
	n := f.T.Hosts
	var host, leaf, pod [2][]float64 // up, down
	for d := range 2 {
		host[d], leaf[d] = make([]float64, n), make([]float64, n/f.leaf)
		if f.T.Kind == plan.FatTree {
			pod[d] = make([]float64, n/f.T.Pod)
		}
	}
	var most [3]float64
	add := func(tier int, s []float64, i int, w float64) {
		s[i] += w
		most[tier] = max(most[tier], s[i])
	}
	way := func(l, a, b int, w float64) {
		add(0, host[0], a, w)
		add(0, host[1], b, w)
		if l > 0 {
			add(1, leaf[0], f.leafOf(a), w)
			add(1, leaf[1], f.leafOf(b), w)
		}
		if l > 1 {
			add(2, pod[0], f.podOf(a), w)
			add(2, pod[1], f.podOf(b), w)
		}
	}
	p.each(n, func(a, b int) {
		l := f.level(a, b)
		far[l]++
		level = max(level, l)
		way(l, a, b, 1)
		if ack > 0 {
			way(l, b, a, ack)
		}
	})
	if most[1] > 0 {
		between = most[1] / f.leafRate()
	}
	if most[2] > 0 {
		between = max(between, most[2]/f.podRate())
	}
	return max(most[0]/f.hostRate(), between), between, level, far
}
