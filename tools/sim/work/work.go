// Package work turns the workload of a plan into messages and what each of them waits for.
package work

import (
	"fmt"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Message is one RDMA WRITE with immediate. Its size may be 0: a buffer that is smaller than its hosts are many has empty
// parts, and their steps count.
type Message struct {
	From, To int32
	Size     int64     // bytes. From == To: a calculation that takes Start and moves nothing
	Start    mono.Time // not before, from the start of the run; with edges: so long after the last of them
	Group    int32     // index in Graph.Groups
	Step     int32     // of its collective, for reports
	// Edges[FirstEdge : FirstEdge+Edges] of the Graph is what it waits for.
	FirstEdge, Edges int32
	// Chunk … Chunk+Chunks-1 are the parts of the buffer that it carries in a collective.
	Chunk, Chunks int32
}

// Edge is something that a message waits for.
type Edge struct {
	Msg   int32
	Acked bool // the sender's completion counts, not the receiver's
}

// Group is a part of the workload: what is reported as one collective. Each repetition is one of its own.
type Group struct {
	Name string // pattern and size, such as "ring 64 MiB"
	Kind string // plan.Pattern
	// Size is that of nccl-tests: a host's whole buffer, for all-to-all all that a host sends and its own part; permutation and
	// pairs: of a message; incast, cm and goal: of all messages.
	Size  int64
	Hosts int
	// BusFactor: bus bandwidth = Size / time * BusFactor, as nccl-tests defines it; 0 = none.
	BusFactor float64
	Line      int // in the plan
}

// Graph is the whole workload.
type Graph struct {
	Messages []Message
	Edges    []Edge
	Groups   []Group
	Notes    []string // what an imported file says that is not followed, with file:line

	plan  string
	files []string // of groups: what was imported, or ""
	lines []int32  // of messages: in the imported file; short or 0 where there is none
}

// Outcome is what became of a message: times, or Never; why it failed, or "".
type Outcome struct {
	Posted, Received, Acked mono.Time
	Error                   string
}

// Followers turns what messages wait for round: next[at[m]:at[m+1]] are those that wait for m, each with whether for its
// acknowledgement. The graph has been checked.
func (g *Graph) Followers() (next []Edge, at []int32) {
	at = make([]int32, len(g.Messages)+1)
	edges := 0
	for i := range g.Messages {
		m := &g.Messages[i]
		edges += int(m.Edges)
		for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			at[e.Msg+1]++
		}
	}
	for i := range g.Messages {
		at[i+1] += at[i]
	}
	next = make([]Edge, edges)
	fill := append([]int32(nil), at[:len(g.Messages)]...)
	for i := range g.Messages {
		m := &g.Messages[i]
		for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			next[fill[e.Msg]] = Edge{Msg: int32(i), Acked: e.Acked}
			fill[e.Msg]++
		}
	}
	return next, at
}

// MaxMessages bounds a graph: beyond it a packet simulation would not end, and 32-bit numbers do not count further.
const MaxMessages = 1 << 26

// Build makes the messages of a plan. read returns a file that the plan names (cm, goal), as written there.
func Build(p *plan.Plan, read func(path string) ([]byte, error)) (*Graph, error) {
	b := &builder{g: &Graph{plan: p.File}, p: p}
	var most int64
	for i := range p.Workload {
		w := &p.Workload[i]
		most += int64(w.Repeat) * expected(w, b.members(w))
		if most > MaxMessages {
			return nil, b.errf(w, "the workload has over %d messages; take fewer hosts, a larger slice or fewer repetitions", MaxMessages)
		}
	}
	b.g.Messages = make([]Message, 0, most)
	for i := range p.Workload {
		if err := b.part(&p.Workload[i], read); err != nil {
			return nil, err
		}
	}
	if len(b.g.Messages) > MaxMessages {
		return nil, &plan.Error{File: p.File, Line: 1, Msg: fmt.Sprintf("the workload has over %d messages", MaxMessages)}
	}
	return b.g, b.g.Check()
}

// builder adds the parts of a workload to a graph.
type builder struct {
	g *Graph
	p *plan.Plan

	// of the part in work
	w     *plan.Work
	hosts []int // who takes part: members are counted by their place here
	n     int
	first int32 // its first message
	group int32
}

func (b *builder) errf(w *plan.Work, format string, args ...any) error {
	return &plan.Error{File: b.p.File, Line: max(1, w.Line), Msg: fmt.Sprintf(format, args...)}
}

func (b *builder) members(w *plan.Work) int {
	if len(w.Hosts) > 0 {
		return len(w.Hosts)
	}
	return b.p.Topology.Hosts
}

// expected is the number of messages of one repetition; that of a file is not known before it is read.
func expected(w *plan.Work, members int) int64 {
	n := int64(members)
	switch w.Pattern {
	case plan.Permutation:
		return n
	case plan.Incast:
		return int64(w.Senders)
	case plan.AllToAll:
		return n * (n - 1)
	case plan.RingReduce:
		return 2 * n * (n - 1)
	case plan.AllGather, plan.ReduceScat:
		return n * (n - 1)
	case plan.TreeReduce:
		pieces, _ := slices2(w)
		return 2 * (n - 1) * int64(pieces[0]+pieces[1])
	case plan.Halving:
		return 2 * n * int64(log2(members))
	case plan.Pairs:
		return n / 2
	case plan.ConnMatrix, plan.GOAL:
	}
	return 0
}

// part adds one part with its repetitions.
func (b *builder) part(w *plan.Work, read func(string) ([]byte, error)) error {
	b.w, b.n, b.hosts = w, b.members(w), w.Hosts
	if len(b.hosts) == 0 {
		b.hosts = make([]int, b.n)
		for i := range b.hosts {
			b.hosts[i] = i
		}
	}
	var text []byte
	if w.File != "" {
		if read == nil {
			return b.errf(w, "file: nothing here reads %s", w.File)
		}
		var err error
		if text, err = read(w.File); err != nil {
			return b.errf(w, "file: %v", err)
		}
	}
	for rep := range max(1, w.Repeat) {
		b.first, b.group = int32(len(b.g.Messages)), int32(len(b.g.Groups))
		b.g.Groups = append(b.g.Groups, Group{Kind: string(w.Pattern), Hosts: b.n, Line: w.Line})
		b.g.files = append(b.g.files, w.File)
		if err := b.pattern(text); err != nil {
			return err
		}
		// How many a file has is not known before it is read once.
		if n := int64(len(b.g.Messages)) - int64(b.first); rep == 0 && int64(b.first)+n*int64(max(1, w.Repeat)) > MaxMessages {
			return b.errf(w, "the workload has over %d messages; take fewer repetitions", MaxMessages)
		}
		g := &b.g.Groups[b.group]
		if g.Name == "" {
			g.Name = fmt.Sprintf("%s %s", w.Pattern, plan.Bytes(w.Size))
		}
		if w.Repeat > 1 {
			g.Name += fmt.Sprintf(" #%d", rep+1)
		}
		b.begin(rep)
	}
	return nil
}

func (b *builder) pattern(text []byte) error {
	switch b.w.Pattern {
	case plan.Permutation:
		b.permutation()
	case plan.Incast:
		b.incast()
	case plan.AllToAll:
		b.allToAll()
	case plan.RingReduce:
		b.ring(2*(b.n-1), 2)
	case plan.AllGather, plan.ReduceScat:
		b.ring(b.n-1, 1)
	case plan.TreeReduce:
		b.tree()
	case plan.Halving:
		b.halving()
	case plan.Pairs:
		b.pairs()
	case plan.ConnMatrix:
		return b.matrix(text)
	case plan.GOAL:
		return b.goal(text)
	default:
		return b.errf(b.w, "no pattern %q", b.w.Pattern)
	}
	return nil
}

// begin lets the messages that wait for nothing start with the part or, from the second repetition on, when all of the one
// before has been acknowledged: a calculation that takes no time gathers that, so that edges stay few.
func (b *builder) begin(rep int) {
	g := b.g
	if rep == 0 {
		for i := int(b.first); i < len(g.Messages); i++ {
			if m := &g.Messages[i]; m.Edges == 0 {
				m.Start += mono.Time(b.w.Start)
			}
		}
		return
	}
	prev := b.first // of the repetition before
	for prev > 0 && g.Messages[prev-1].Group == b.group-1 {
		prev--
	}
	followed := make([]bool, b.first-prev)
	for _, m := range g.Messages[prev:b.first] {
		for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			if e.Msg >= prev {
				followed[e.Msg-prev] = true
			}
		}
	}
	gate, end := int32(len(g.Messages)), len(g.Messages)
	from := int32(len(g.Edges))
	for i, f := range followed {
		if !f {
			g.Edges = append(g.Edges, Edge{prev + int32(i), true})
		}
	}
	at := int32(b.hosts[0])
	g.Messages = append(g.Messages, Message{From: at, To: at, Group: b.group, FirstEdge: from, Edges: int32(len(g.Edges)) - from})
	for i := int(b.first); i < end; i++ {
		if m := &g.Messages[i]; m.Edges == 0 {
			m.FirstEdge, m.Edges = int32(len(g.Edges)), 1
			g.Edges = append(g.Edges, Edge{gate, false})
		}
	}
}

// add appends a message between members from and to that waits for edges.
func (b *builder) add(from, to int, size int64, step int, edges ...Edge) *Message {
	g := b.g
	g.Messages = append(g.Messages, Message{
		From: int32(b.hosts[from]), To: int32(b.hosts[to]), Size: size, Group: b.group, Step: int32(step),
		FirstEdge: int32(len(g.Edges)), Edges: int32(len(edges)),
	})
	g.Edges = append(g.Edges, edges...)
	return &g.Messages[len(g.Messages)-1]
}

// part of a buffer of size bytes that is cut into n parts: the first ones have a byte more where n does not divide size.
func chunk(size int64, n, i int) int64 {
	c := size / int64(n)
	if int64(i) < size%int64(n) {
		c++
	}
	return c
}

// chunks is the size of count parts from the first on.
func chunks(size int64, n, first, count int) (s int64) {
	off := func(i int) int64 { return int64(i)*(size/int64(n)) + min(int64(i), size%int64(n)) }
	return off(first+count) - off(first)
}
