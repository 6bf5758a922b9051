package work

import (
	"fmt"
	"strings"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Line returns where a message comes from: the imported file or the plan, and the line there.
func (g *Graph) Line(msg int32) (file string, line int) {
	group := g.Messages[msg].Group
	if int(group) >= len(g.Groups) {
		return g.plan, 1
	}
	if int(group) < len(g.files) && g.files[group] != "" && int(msg) < len(g.lines) && g.lines[msg] > 0 {
		return g.files[group], int(g.lines[msg])
	}
	return g.plan, max(1, g.Groups[group].Line)
}

func (g *Graph) errf(msg int32, format string, args ...any) error {
	file, line := g.Line(msg)
	return &plan.Error{File: file, Line: line, Msg: fmt.Sprintf(format, args...)}
}

// describe names a message for people.
func (g *Graph) describe(i int32) string {
	m := &g.Messages[i]
	file, line := g.Line(i)
	what := fmt.Sprintf("%d->%d", m.From, m.To)
	if m.From == m.To {
		what = fmt.Sprintf("the calculation at %d", m.From)
	}
	return fmt.Sprintf("%s (%s:%d)", what, file, line)
}

// Check finds what would never end: edges to messages that are not there, and messages that wait for each other.
func (g *Graph) Check() error {
	for i := range g.Messages {
		m := &g.Messages[i]
		switch {
		case m.From < 0 || m.To < 0 || m.Size < 0 || m.Start < 0:
			return g.errf(int32(i), "message %d: from %d to %d, size %d, start %d: none may be below 0", i, m.From, m.To, m.Size, m.Start)
		case m.Group < 0 || int(m.Group) >= len(g.Groups):
			return g.errf(int32(i), "message %d is of group %d of %d", i, m.Group, len(g.Groups))
		case m.FirstEdge < 0 || m.Edges < 0 || int(m.FirstEdge)+int(m.Edges) > len(g.Edges):
			return g.errf(int32(i), "message %d has edges %d to %d of %d", i, m.FirstEdge, m.FirstEdge+m.Edges, len(g.Edges))
		}
		for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			if e.Msg < 0 || int(e.Msg) >= len(g.Messages) {
				return g.errf(int32(i), "message %d waits for message %d of %d", i, e.Msg, len(g.Messages))
			}
		}
	}
	if stuck := g.stuck(); stuck >= 0 {
		return g.cycle(stuck)
	}
	return nil
}

// stuck returns a message that can never start, or -1: messages are taken away when all that they wait for are (Kahn 1962).
func (g *Graph) stuck() int32 {
	wait := make([]int32, len(g.Messages))
	after, first := g.Followers()
	var ready []int32
	for i := range g.Messages {
		if wait[i] = g.Messages[i].Edges; wait[i] == 0 {
			ready = append(ready, int32(i))
		}
	}
	for len(ready) > 0 {
		i := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for _, f := range after[first[i]:first[i+1]] {
			if wait[f.Msg]--; wait[f.Msg] == 0 {
				ready = append(ready, f.Msg)
			}
		}
	}
	for i, w := range wait {
		if w > 0 {
			// Walk back along what it waits for: that ends in a circle.
			return g.inCycle(int32(i), wait)
		}
	}
	return -1
}

// inCycle returns a message of the circle that i waits for.
func (g *Graph) inCycle(i int32, wait []int32) int32 {
	seen := make([]bool, len(g.Messages))
	for !seen[i] {
		seen[i] = true
		i = g.waits(i, wait)
	}
	return i
}

// waits returns one of those that i waits for and that never start.
func (g *Graph) waits(i int32, wait []int32) int32 {
	m := &g.Messages[i]
	for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
		if wait[e.Msg] > 0 {
			return e.Msg
		}
	}
	return i
}

// cycle says who waits for whom in the shortest circle through i.
func (g *Graph) cycle(i int32) error {
	from := map[int32]int32{}
	queue := []int32{i}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		m := &g.Messages[at]
		for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			if e.Msg == i {
				return g.circle(i, at, from)
			}
			if _, ok := from[e.Msg]; !ok {
				from[e.Msg] = at
				queue = append(queue, e.Msg)
			}
		}
	}
	return g.errf(i, "%s can never start", g.describe(i))
}

func (g *Graph) circle(first, last int32, from map[int32]int32) error {
	var names []string
	for at := last; at != first; at = from[at] {
		names = append(names, g.describe(at))
	}
	names = append(names, g.describe(first))
	for l, r := 0, len(names)-1; l < r; l, r = l+1, r-1 {
		names[l], names[r] = names[r], names[l]
	}
	if len(names) > 6 {
		names = append(names[:5:5], fmt.Sprintf("… (%d messages)", len(names)))
	}
	return g.errf(first, "these wait for each other and never start: %s, and so round", strings.Join(names, " waits for "))
}
