package scale

import "math/bits"

// Double binary tree (Sanders, Speck, Träff 2009): each half of the buffer is reduced to the root of a tree and sent back down
// it, in slices; who is inside one tree is a leaf of the other.

const defaultSlice = 128 << 10

// above returns the parent of host i of the tree in which the hosts' order is the order of its nodes; the root is 0.
func above(i, n int) int {
	low := i & -i
	if up := i&^low | low<<1; up < n {
		return up
	}
	return i &^ low
}

// edges calls fn for every edge of both trees, child and parent.
func edges(n int, fn func(child, parent int)) {
	for i := 1; i < n; i++ {
		p := above(i, n)
		fn(i, p)
		if n%2 == 0 {
			fn(n-1-i, n-1-p)
		} else {
			fn((i+1)%n, (p+1)%n)
		}
	}
}

// tree: the pipeline fills over the depth of the tree, up and down, and then takes as long for each slice as the busiest link
// needs for all that every edge carries for it, in both directions.
func (m *Model) tree(t *Time, c Collective) error {
	n := m.F.T.Hosts
	p := pattern{n: n, name: "tree", many: 4 * (n - 1), side: 4, list: func(fn func(from, to int)) {
		edges(n, func(child, parent int) {
			fn(child, parent)
			fn(parent, child)
		})
	}}
	slice := c.Slice
	if slice == 0 {
		slice = defaultSlice
	}
	half := ceilDiv(c.Size, 2)
	slice = min(slice, half)
	s, err := m.step(p, slice)
	if err != nil {
		return err
	}
	slices := float64(ceilDiv(half, slice))
	depth := float64(bits.Len(uint(n - 1)))
	// A parent needs a slice of two children, and sends to two: on its own wire they come one after the other.
	two := 2 * m.T.wireBytes(m.F, slice) * m.grain(pattern{}, slice) / m.F.hostRate()
	t.Steps = 2*depth + slices - 1
	t.Latency = 2 * depth * (s.mean + s.tail1)
	t.Seconds = t.Latency + 2*depth*m.slowed(two, two, 0) + (slices-1)*s.wire
	t.Wire, t.Method = t.Seconds-t.Latency, s.method
	return nil
}
