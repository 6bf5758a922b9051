// Package maxmin computes max–min fair rates of flows over links: no flow can have more without another one, that has no more
// than it, having less.
package maxmin

// Use is a link of a flow, which takes Weight of the link's rate for each unit of its own.
type Use struct {
	Link   int32
	Weight float64
}

// Solver fills progressively: all rates grow together until a link is full, the flows over it stay as they are, the others go
// on. What begins or ends changes the rates of those flows alone that it shares links with, or that share links with these,
// and so on: only they are computed anew. The same calls in the same order give the same rates, to the last bit.
type Solver struct {
	caps  []float64
	flows []flow
	over  [][]member // flows under way of each link

	changed []int32 // links that something has changed at since the last Fill
	mark    []bool  // those

	// of a Fill
	links, some []int32
	reached     []int32 // of links: the number of the Fill that reached it last
	turn        int32
	rem, sum    []float64
	growing     []int32
	heap        []share
}

// flow is a class of count flows that are alike.
type flow struct {
	count   float64
	uses    []Use
	at      []int32 // its place among the members of each link
	rate    float64
	on      bool
	reached int32
}

// member is a flow at a link, and which of its uses that is.
type member struct{ flow, use int32 }

type share struct {
	link  int32
	value float64
}

func (a share) before(b share) bool {
	return a.value < b.value || a.value == b.value && a.link < b.link
}

// New returns a solver over links of these rates.
func New(caps []float64) *Solver {
	s := &Solver{}
	for _, c := range caps {
		s.Link(c)
	}
	return s
}

// Link adds a link and returns its number.
func (s *Solver) Link(rate float64) int32 {
	s.caps, s.over, s.mark = append(s.caps, rate), append(s.over, nil), append(s.mark, false)
	s.reached, s.rem, s.sum, s.growing = append(s.reached, 0), append(s.rem, 0), append(s.sum, 0), append(s.growing, 0)
	return int32(len(s.caps) - 1)
}

// SetRate changes a link's rate; 0 stops its flows.
func (s *Solver) SetRate(link int32, rate float64) {
	if s.caps[link] != rate {
		s.caps[link] = rate
		s.touch(link)
	}
}

func (s *Solver) touch(link int32) {
	if !s.mark[link] {
		s.mark[link] = true
		s.changed = append(s.changed, link)
	}
}

// Flow adds a class of count flows that are alike and returns its number; it is not under way. Each link is named once.
func (s *Solver) Flow(count float64, uses []Use) int32 {
	s.flows = append(s.flows, flow{count: count, uses: uses, at: make([]int32, len(uses))})
	return int32(len(s.flows) - 1)
}

// SetUses changes the links of a flow that is not under way.
func (s *Solver) SetUses(i int32, uses []Use) {
	x := &s.flows[i]
	if x.on {
		panic("maxmin: the links of a flow under way do not change")
	}
	x.uses = uses
	for len(x.at) < len(uses) {
		x.at = append(x.at, 0)
	}
}

// Start has a flow take part from the next Fill on.
func (s *Solver) Start(i int32) {
	x := &s.flows[i]
	if x.on || x.count == 0 {
		return
	}
	x.on, x.rate = true, 0
	for k, u := range x.uses {
		x.at[k] = int32(len(s.over[u.Link]))
		s.over[u.Link] = append(s.over[u.Link], member{i, int32(k)})
		s.touch(u.Link)
	}
}

// Stop ends a flow.
func (s *Solver) Stop(i int32) {
	x := &s.flows[i]
	if !x.on {
		return
	}
	x.on, x.rate = false, 0
	for k, u := range x.uses {
		m := s.over[u.Link]
		last := m[len(m)-1]
		m[x.at[k]] = last
		s.flows[last.flow].at[last.use] = x.at[k]
		s.over[u.Link] = m[:len(m)-1]
		s.touch(u.Link)
	}
}

// Rate of each flow of a class since the last Fill.
func (s *Solver) Rate(i int32) float64 { return s.flows[i].rate }

// Fill computes the rates after what has changed and returns the flows under way whose rate may be another one. The slice is
// used again by the next call.
func (s *Solver) Fill() []int32 {
	s.reach()
	for _, l := range s.links {
		s.rem[l], s.sum[l], s.growing[l] = s.caps[l], 0, 0
	}
	for _, i := range s.some {
		x := &s.flows[i]
		x.rate = -1
		for _, u := range x.uses {
			s.sum[u.Link] += x.count * u.Weight
			s.growing[u.Link]++
		}
	}
	s.heap = s.heap[:0]
	for _, l := range s.links {
		if s.growing[l] > 0 {
			s.heap = append(s.heap, share{l, s.rem[l] / s.sum[l]})
		}
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
	for len(s.heap) > 0 {
		l := s.heap[0].link
		if s.growing[l] == 0 {
			s.pop()
			continue
		}
		if now := max(s.rem[l], 0) / s.sum[l]; now > s.heap[0].value { // others over it stopped meanwhile: shares only grow
			s.heap[0].value = now
			s.down(0)
			if s.heap[0].link != l {
				continue
			}
		}
		s.freeze(l, s.heap[0].value)
		s.pop()
	}
	return s.some
}

// reach finds the flows and links that hang together with what has changed.
func (s *Solver) reach() {
	s.turn++
	s.links, s.some = s.links[:0], s.some[:0]
	for _, l := range s.changed {
		s.mark[l] = false
		s.reached[l] = s.turn
		s.links = append(s.links, l)
	}
	s.changed = s.changed[:0]
	for k := 0; k < len(s.links); k++ {
		for _, m := range s.over[s.links[k]] {
			x := &s.flows[m.flow]
			if x.reached == s.turn {
				continue
			}
			x.reached = s.turn
			s.some = append(s.some, m.flow)
			for _, u := range x.uses {
				if s.reached[u.Link] != s.turn {
					s.reached[u.Link] = s.turn
					s.links = append(s.links, u.Link)
				}
			}
		}
	}
}

// freeze ends the growth of the flows over a full link.
func (s *Solver) freeze(l int32, rate float64) {
	for _, m := range s.over[l] {
		x := &s.flows[m.flow]
		if x.rate >= 0 {
			continue
		}
		x.rate = rate
		for _, u := range x.uses {
			w := x.count * u.Weight
			s.rem[u.Link] -= rate * w
			s.sum[u.Link] -= w
			s.growing[u.Link]--
		}
	}
}

// pop takes the least share away.
func (s *Solver) pop() {
	n := len(s.heap) - 1
	s.heap[0] = s.heap[n]
	s.heap = s.heap[:n]
	s.down(0)
}

func (s *Solver) down(i int) {
	h := s.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].before(h[c]) {
			c++
		}
		if !h[c].before(h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
