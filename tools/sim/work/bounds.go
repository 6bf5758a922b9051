package work

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Bound is what a group, or all of them, cannot be faster than.
type Bound struct {
	Messages int   // between hosts
	Bytes    int64 // payload
	Steps    int   // of the collective
	// Ideal: the wire bytes of the host that sends or receives most, over the rate of all its links, and the round trip of a
	// step over the longest path: as if every step but the last overlapped with the bytes of others. A round trip within a leaf
	// is shorter; so is half of one where a step begins when data arrives.
	Ideal mono.Duration
}

// Bounds returns the bound of each group and, last, that of all messages together.
func (g *Graph) Bounds(t *plan.Topology) []Bound {
	all := make([]Bound, len(g.Groups)+1)
	last := len(all) - 1
	busy := make([]int64, 2*t.Hosts) // wire bytes of the group in work: sent, received
	whole := make([]int64, 2*t.Hosts)
	rate := float64(t.Planes) * float64(t.RateBps) / 8
	ideal := func(b *Bound, busy []int64) {
		var most int64
		for _, n := range busy {
			most = max(most, n)
		}
		if b.Messages > 0 {
			b.Ideal = mono.Duration(float64(most)/rate*1e9+0.5) + t.RTT()
		}
	}
	for i := 0; i < len(g.Messages); {
		at := g.Messages[i].Group // messages of a group stand together
		clear(busy)
		b := &all[at]
		for ; i < len(g.Messages) && g.Messages[i].Group == at; i++ {
			m := &g.Messages[i]
			if m.From == m.To {
				continue
			}
			n := wireBytes(t, m.Size)
			busy[m.From] += n
			busy[t.Hosts+int(m.To)] += n
			whole[m.From] += n
			whole[t.Hosts+int(m.To)] += n
			b.Messages++
			b.Bytes += m.Size
			b.Steps = max(b.Steps, int(m.Step)+1)
		}
		ideal(b, busy)
		all[last].Messages += b.Messages
		all[last].Bytes += b.Bytes
	}
	ideal(&all[last], whole)
	return all
}

// wireBytes is what a message takes of a link.
func wireBytes(t *plan.Topology, size int64) int64 {
	packets := max(1, (size+int64(t.MTU)-1)/int64(t.MTU))
	return size + packets*int64(t.WireBytes()-t.MTU)
}
