package work

import (
	"math"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Bound is what a group, or all of them, cannot be faster than.
type Bound struct {
	Messages int   // between hosts
	Bytes    int64 // payload
	Steps    int   // of the collective
	// Ideal is the longer one of two times, on the network without events. The longest chain of messages that wait for each
	// other, each as if it had the network for itself: all its bytes over the rate of its host's links, its last packet stored
	// and forwarded, and the acknowledgement where that is waited for. And the busiest links, a host's or those of a leaf or a
	// pod to the tier above, in one direction, all planes together: what must happen before their first message can begin, the
	// wire bytes over the rate, what must follow the last one. Of a group: from its first message on.
	Ideal mono.Duration
}

// Bounds returns the bound of each group and, last, that of all messages together, from the start of the run on.
func (g *Graph) Bounds(t *plan.Topology) []Bound {
	all := make([]Bound, len(g.Groups)+1)
	b := newBounder(g, t)
	b.heads(true)
	b.rests(true)
	for i := 0; i < len(g.Messages); {
		at := g.Messages[i].Group // messages of a group stand together
		from := i
		for i < len(g.Messages) && g.Messages[i].Group == at {
			i++
		}
		x := &all[at]
		first := math.Inf(1)
		for k := from; k < i; k++ {
			m := &g.Messages[k]
			first = min(first, b.head[k])
			if m.From != m.To {
				x.Messages++
				x.Bytes += m.Size
				x.Steps = max(x.Steps, int(m.Step)+1)
			}
		}
		x.Ideal = b.least(from, i, first)
		all[len(all)-1].Messages += x.Messages
		all[len(all)-1].Bytes += x.Bytes
	}
	if last := &all[len(all)-1]; len(g.Groups) == 1 && g.Messages[0].Start == 0 {
		last.Ideal = all[0].Ideal
	} else {
		b.heads(false)
		b.rests(false)
		last.Ideal = b.least(0, len(g.Messages), 0)
	}
	return all
}

// bounder computes bounds. Times are picoseconds.
type bounder struct {
	g     *Graph
	t     *plan.Topology
	order []int32 // each after all that it waits for
	next  []Edge
	at    []int32
	head  []float64 // when a message can be posted at the earliest
	rest  []float64 // from its arrival to the end of all that follows it; -Inf: nothing between hosts
	busy  []machine
	used  []int32
	delay [3]float64 // by level: of the path, behind the first wire
	perB  [3]float64
	back  [3]float64
	rate  float64 // bytes a picosecond of a host's links
}

// machine is links that messages share: their sum of bytes, and the least of what comes before and after each of them.
type machine struct {
	bytes, rate             float64
	head, after, rest, tail float64
}

func newBounder(g *Graph, t *plan.Topology) *bounder {
	b := &bounder{g: g, t: t, head: make([]float64, len(g.Messages)), rest: make([]float64, len(g.Messages)), rate: float64(t.Planes) * float64(t.RateBps) / 8e12}
	b.next, b.at = g.Followers()
	for l := range 3 {
		d, p := t.Behind(l)
		b.delay[l], b.perB[l] = float64(d)*1000, p
		b.back[l] = b.delay[l] + float64(t.WireBytes()-t.MTU)*(p+8e12/float64(t.RateBps))
	}
	b.busy = make([]machine, 2*(t.Hosts+t.Leaves()+t.Pods()))
	wait := make([]int32, len(g.Messages))
	for i := range g.Messages {
		if wait[i] = g.Messages[i].Edges; wait[i] == 0 {
			b.order = append(b.order, int32(i))
		}
	}
	for k := 0; k < len(b.order); k++ {
		i := b.order[k]
		for _, f := range b.next[b.at[i]:b.at[i+1]] {
			if wait[f.Msg]--; wait[f.Msg] == 0 {
				b.order = append(b.order, f.Msg)
			}
		}
	}
	return b
}

// parts of a message's time alone: until its last byte has left, from there to its arrival, and back.
func (b *bounder) parts(m *Message) (send, after, back float64, level int) {
	if m.From == m.To {
		return 0, 0, 0, 0
	}
	t := b.t
	n := max(1, (m.Size+int64(t.MTU)-1)/int64(t.MTU))
	header := int64(t.WireBytes() - t.MTU)
	last := float64(m.Size - (n-1)*int64(t.MTU) + header)
	planes := int64(t.Planes) // a packet takes one: the plane that carries most of them needs its time
	least := (float64((n+planes-1)/planes-1)*float64(t.WireBytes()) + last) * 8e12 / float64(t.RateBps)
	level = t.Level(int(m.From), int(m.To))
	return max(float64(wireBytes(t, m.Size))/b.rate, least), b.delay[level] + last*b.perB[level], b.back[level], level
}

// heads fills in when messages can be posted; within: what a group waits for of another one is there.
func (b *bounder) heads(within bool) {
	for _, i := range b.order {
		m := &b.g.Messages[i]
		at := 0.0
		for _, e := range b.g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			d := &b.g.Messages[e.Msg]
			if within && d.Group != m.Group {
				continue
			}
			send, after, back, _ := b.parts(d)
			if !e.Acked {
				back = 0
			}
			at = max(at, b.head[e.Msg]+send+after+back)
		}
		b.head[i] = at + float64(m.Start)*1000
	}
}

// rests fills in what follows messages.
func (b *bounder) rests(within bool) {
	for k := len(b.order) - 1; k >= 0; k-- {
		i := b.order[k]
		m := &b.g.Messages[i]
		_, _, back, _ := b.parts(m)
		most := back
		if m.From == m.To {
			most = math.Inf(-1)
		}
		for _, f := range b.next[b.at[i]:b.at[i+1]] {
			x := &b.g.Messages[f.Msg]
			if within && x.Group != m.Group {
				continue
			}
			send, after, _, _ := b.parts(x)
			d := float64(x.Start)*1000 + send + after + b.rest[f.Msg]
			if f.Acked {
				d += back
			}
			most = max(most, d)
		}
		b.rest[i] = most
	}
}

// least is the bound of messages from … to-1, counted from a time on.
func (b *bounder) least(from, to int, first float64) mono.Duration {
	most := 0.0
	b.used = b.used[:0]
	for i := from; i < to; i++ {
		m := &b.g.Messages[i]
		if m.From == m.To {
			continue
		}
		send, after, back, level := b.parts(m)
		most = max(most, b.head[i]+send+after+back-first)
		b.load(i, after, level)
	}
	for _, k := range b.used {
		x := &b.busy[k]
		tail := x.after + x.rest // who comes first and who comes last need not be the same
		if int(k) < b.t.Hosts {
			tail = x.tail
		}
		most = max(most, x.head+x.bytes/x.rate+tail-first)
		*x = machine{}
	}
	return mono.Duration(min(math.Floor(most/1000), math.MaxInt64/2)) // schedules may calculate for centuries
}

// load counts a message at the links that it shares with others.
func (b *bounder) load(i int, after float64, level int) {
	t, m := b.t, &b.g.Messages[i]
	add := func(k int, rate float64) {
		x := &b.busy[k]
		if x.rate == 0 {
			inf := math.Inf(1)
			*x = machine{rate: rate, head: inf, after: inf, rest: inf, tail: inf}
			b.used = append(b.used, int32(k))
		}
		x.bytes += float64(wireBytes(t, m.Size))
		x.head, x.after, x.rest, x.tail = min(x.head, b.head[i]), min(x.after, after), min(x.rest, b.rest[i]), min(x.tail, after+b.rest[i])
	}
	add(int(m.From), b.rate)
	add(t.Hosts+int(m.To), b.rate)
	if level == 0 {
		return
	}
	l, k := t.LeafOf(int(m.From)), t.LeafOf(int(m.To))
	ups := t.Spines
	if t.Kind == plan.FatTree {
		ups = t.Aggs
	}
	up := float64(t.Planes) * float64(t.UpBps) / 8e12
	add(2*t.Hosts+l, up*float64(ups))
	add(2*t.Hosts+t.Leaves()+k, up*float64(ups))
	if level == 2 {
		add(2*(t.Hosts+t.Leaves())+t.PodOf(l), up*float64(t.Cores))
		add(2*(t.Hosts+t.Leaves())+t.Pods()+t.PodOf(k), up*float64(t.Cores))
	}
}

// wireBytes is what a message takes of a link.
func wireBytes(t *plan.Topology, size int64) int64 {
	packets := max(1, (size+int64(t.MTU)-1)/int64(t.MTU))
	return size + packets*int64(t.WireBytes()-t.MTU)
}
