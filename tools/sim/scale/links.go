package scale

// linkIDs numbers single links as flows come to use them.
type linkIDs struct {
	f    *Fabric
	at   map[[5]int]int32
	caps []float64
}

// Kinds of links: the first of a key, followed by plane and switches.
const (
	hostUp = iota
	hostDown
	leafUp
	leafDown
	podUp
	podDown
)

func (d *linkIDs) id(rate uint64, key [5]int) int32 {
	i, ok := d.at[key]
	if !ok {
		i = int32(len(d.caps))
		d.at[key] = i
		c := float64(rate) / 8
		if key[0] >= leafUp {
			c *= 1 - d.f.Fail.Links
		}
		d.caps = append(d.caps, c)
	}
	return i
}

// path adds the links from one host to another in a plane over an uplink of the leaf and one of the tier above.
func (d *linkIDs) path(x *flow, from, to, plane, up, core int, weight float64) {
	f := d.f
	add := func(rate uint64, kind, a, b, c int) {
		x.uses = append(x.uses, use{Link: d.id(rate, [5]int{kind, plane, a, b, c}), Weight: weight})
	}
	add(f.T.RateBps, hostUp, from, 0, 0)
	add(f.T.RateBps, hostDown, to, 0, 0)
	if x.level > 0 {
		add(f.T.UpBps, leafUp, f.leafOf(from), up, 0)
		add(f.T.UpBps, leafDown, f.leafOf(to), up, 0)
	}
	if x.level > 1 {
		add(f.T.UpBps, podUp, f.podOf(from), up, core)
		add(f.T.UpBps, podDown, f.podOf(to), up, core)
	}
}

// spray adds all paths between two hosts, in equal parts.
func (d *linkIDs) spray(x *flow, from, to int, weight float64) {
	f := d.f
	ups, cores := 1, 1
	if x.level > 0 {
		ups = f.ups
	}
	if x.level > 1 {
		cores = f.T.Cores / f.T.Aggs
	}
	part := weight / float64(f.planes*ups*cores)
	sum := map[int32]float64{}
	var y flow
	y.level = x.level
	for p := range f.planes {
		for u := range ups {
			for c := range cores {
				d.path(&y, from, to, p, u, c, part)
			}
		}
	}
	for _, u := range y.uses {
		if sum[u.Link] == 0 {
			x.uses = append(x.uses, use{Link: u.Link, Weight: 0})
		}
		sum[u.Link] += u.Weight
	}
	for i := range x.uses {
		if s := sum[x.uses[i].Link]; s > 0 && x.uses[i].Weight == 0 {
			x.uses[i].Weight = s
		}
	}
}
