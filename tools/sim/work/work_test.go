package work

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/tools/sim/plan"
)

func noFile(string) ([]byte, error) { return nil, os.ErrNotExist }

// build makes the graph of hosts with parts of a workload, each the inside of a YAML mapping.
func build(t testing.TB, hosts int, parts ...string) *Graph {
	t.Helper()
	g, err := tryBuild(hosts, noFile, parts...)
	if err != nil {
		t.Fatalf("%d hosts, %v: %v", hosts, parts, err)
	}
	return g
}

func tryBuild(hosts int, read func(string) ([]byte, error), parts ...string) (*Graph, error) {
	text := fmt.Sprintf("topology: {kind: switch, hosts: %d, rate: 100Gbit}\nworkload:\n", hosts)
	for _, s := range parts {
		text += "  - {" + s + "}\n"
	}
	p, err := plan.Parse("p.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	return Build(p, read)
}

// player carries messages out as far as edges allow, in an order drawn by chance: what a message carries is taken when it
// starts, and comes whenever. It finds what a builder forgot to wait for.
type player struct {
	g       *Graph
	rnd     *rng.Source
	wait    []int
	after   [][]int32
	start   func(m *Message) any
	arrived func(m *Message, what any)
}

// play returns the number of messages that were carried out.
func (p *player) play() int {
	g := p.g
	p.wait, p.after = make([]int, len(g.Messages)), make([][]int32, len(g.Messages))
	var ready, flying []int32
	carried := make([]any, len(g.Messages))
	for i, m := range g.Messages {
		p.wait[i] = int(m.Edges)
		for _, e := range g.Edges[m.FirstEdge : m.FirstEdge+m.Edges] {
			p.after[e.Msg] = append(p.after[e.Msg], int32(i))
		}
		if m.Edges == 0 {
			ready = append(ready, int32(i))
		}
	}
	take := func(from *[]int32) int32 {
		s := *from
		k := p.rnd.IntN(len(s))
		x := s[k]
		s[k] = s[len(s)-1]
		*from = s[:len(s)-1]
		return x
	}
	done := 0
	for len(ready)+len(flying) > 0 {
		if len(flying) == 0 || len(ready) > 0 && p.rnd.Chance(0.5) {
			i := take(&ready)
			carried[i] = p.start(&g.Messages[i])
			flying = append(flying, i)
			continue
		}
		i := take(&flying)
		p.arrived(&g.Messages[i], carried[i])
		done++
		for _, f := range p.after[i] {
			if p.wait[f]--; p.wait[f] == 0 {
				ready = append(ready, f)
			}
		}
	}
	return done
}

// buffers are, for each host and chunk, how often each host's contribution is in it.
type buffers [][][]int

func newBuffers(n, chunks int, has func(host, chunk, of int) bool) buffers {
	b := make(buffers, n)
	for h := range b {
		b[h] = make([][]int, chunks)
		for c := range b[h] {
			b[h][c] = make([]int, n)
			for of := range n {
				if has(h, c, of) {
					b[h][c][of] = 1
				}
			}
		}
	}
	return b
}

// run plays a collective: reduces tells which messages are added to what is there; others take its place.
func (b buffers) run(g *Graph, seed uint64, reduces func(*Message) bool) int {
	p := &player{g: g, rnd: rng.New(seed, "order")}
	p.start = func(m *Message) any {
		var got [][]int
		for c := m.Chunk; c < m.Chunk+m.Chunks; c++ {
			got = append(got, append([]int(nil), b[m.From][c]...))
		}
		return got
	}
	p.arrived = func(m *Message, what any) {
		for i, from := range what.([][]int) {
			to := b[m.To][int(m.Chunk)+i]
			for of, times := range from {
				if reduces(m) {
					to[of] += times
				} else {
					to[of] = times
				}
			}
		}
	}
	return p.play()
}

// whole checks that a chunk at a host holds every contribution once.
func (b buffers) whole(host, chunk int) bool {
	for _, times := range b[host][chunk] {
		if times != 1 {
			return false
		}
	}
	return true
}

func numChunks(g *Graph) (n int) {
	for _, m := range g.Messages {
		n = max(n, int(m.Chunk+m.Chunks))
	}
	return n
}

// TestAllReduceReduces: after an all-reduce every host has every contribution to every chunk once, whatever the order in
// which messages come, as far as edges allow it.
func TestAllReduceReduces(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33} {
		for _, kind := range []string{"ring", "tree, slice: 300", "halving"} {
			if kind == "halving" && n&(n-1) != 0 {
				continue
			}
			for _, acked := range []bool{false, true} {
				g := build(t, n, fmt.Sprintf("pattern: %s, size: 2000, acked: %v", kind, acked))
				reduces := func(m *Message) bool {
					switch g.Groups[0].Kind {
					case "ring":
						return int(m.Step) < n-1
					case "halving":
						return int(m.Step) < log2(n)
					}
					pieces, _ := slices2(&plan.Work{Size: 2000, Slice: 300})
					half := pieces[0]
					if int(m.Chunk) >= half {
						half = pieces[1]
					}
					return int(m.Step) < half
				}
				b := newBuffers(n, numChunks(g), func(h, _, of int) bool { return h == of })
				for seed := range uint64(5) {
					b = newBuffers(n, numChunks(g), func(h, _, of int) bool { return h == of })
					if done := b.run(g, seed, reduces); done != len(g.Messages) {
						t.Fatalf("%s of %d: %d of %d messages", kind, n, done, len(g.Messages))
					}
					for h := range b {
						for c := range b[h] {
							if !b.whole(h, c) {
								t.Fatalf("%s of %d, seed %d: host %d has of chunk %d: %v", kind, n, seed, h, c, b[h][c])
							}
						}
					}
				}
				if len(b[0]) < 2 {
					t.Errorf("%s of %d has %d chunks", kind, n, len(b[0]))
				}
			}
		}
	}
}

func TestReduceScatterAndAllGather(t *testing.T) {
	for n := 2; n < 20; n++ {
		g := build(t, n, "pattern: reduce-scatter, size: 1000")
		b := newBuffers(n, n, func(h, _, of int) bool { return h == of })
		b.run(g, 1, func(*Message) bool { return true })
		for h := range n {
			if !b.whole(h, (h+1)%n) {
				t.Errorf("reduce-scatter of %d: host %d has %v", n, h, b[h])
			}
		}
		g = build(t, n, "pattern: all-gather, size: 1000")
		b = newBuffers(n, n, func(h, c, of int) bool { return h == c && of == c })
		b.run(g, 1, func(*Message) bool { return false })
		for h := range n {
			for c := range n {
				if b[h][c][c] != 1 {
					t.Errorf("all-gather of %d: host %d lacks chunk %d", n, h, c)
				}
			}
		}
	}
}

// sent sums what each host sends.
func sent(g *Graph, n int) (by []int64, total int64) {
	by = make([]int64, n)
	for _, m := range g.Messages {
		by[m.From] += m.Size
		total += m.Size
	}
	return by, total
}

// TestBytes: hosts send what the formulas of the collectives say, also where the sizes do not divide.
func TestBytes(t *testing.T) {
	for _, n := range []int{2, 3, 4, 6, 8, 13, 16, 64} {
		for _, size := range []int64{1, 7, 64, 1000, 65536, 1 << 20, 1<<20 + 13} {
			s := fmt.Sprintf("size: %d", size)
			type want struct {
				pattern      string
				messages     int
				total, slack int64 // of all hosts; a host may be off its share by slack
				steps        int
				factor       float64
			}
			m, c := int64(n), size/int64(n)+1
			wants := []want{
				{"ring", 2 * n * (n - 1), 2 * (m - 1) * size, 4 * c, 2 * (n - 1), 2 * float64(n-1) / float64(n)},
				{"all-gather", n * (n - 1), (m - 1) * size, 2 * c, n - 1, float64(n-1) / float64(n)},
				{"reduce-scatter", n * (n - 1), (m - 1) * size, 2 * c, n - 1, float64(n-1) / float64(n)},
				{"all-to-all", n * (n - 1), m * (m - 1) * size, 0, n - 1, float64(n-1) / float64(n)},
				{"pairs", -1, m / 2 * size, size, 1, 1},
				{"permutation, add: 1", n, m * size, 0, 1, 1},
				{"incast", n - 1, (m - 1) * size, size, 1, 1},
				{"tree", -1, 2 * (m - 1) * size, 2 * size, -1, 2 * float64(n-1) / float64(n)},
			}
			if n&(n-1) == 0 {
				wants = append(wants, want{"halving", 2 * n * log2(n), 2 * (m - 1) * size, int64(2 * n), 2 * log2(n), 2 * float64(n-1) / float64(n)})
			}
			for _, w := range wants {
				if w.pattern == "pairs" && n%2 != 0 {
					continue
				}
				g := build(t, n, "pattern: "+w.pattern+", "+s)
				by, total := sent(g, n)
				if total != w.total || w.messages >= 0 && len(g.Messages) != w.messages {
					t.Errorf("%s of %d, %d bytes: %d bytes in %d messages, want %d in %d", w.pattern, n, size, total, len(g.Messages), w.total, w.messages)
				}
				for h, b := range by {
					if share := w.total / m; b < share-w.slack || b > share+w.slack {
						t.Errorf("%s of %d, %d bytes: host %d sends %d, a share is %d", w.pattern, n, size, h, b, share)
					}
				}
				steps := 0
				for _, m := range g.Messages {
					steps = max(steps, int(m.Step)+1)
				}
				if w.steps >= 0 && steps != w.steps || g.Groups[0].BusFactor != w.factor {
					t.Errorf("%s of %d: %d steps, factor %v; want %d, %v", w.pattern, n, steps, g.Groups[0].BusFactor, w.steps, w.factor)
				}
			}
		}
	}
}

// TestTree: no member works in both trees, none has more than two children, both are log2(n) + 1 deep.
func TestTree(t *testing.T) {
	for n := 2; n < 300; n++ {
		up := parents(n)
		kids := make([]int, n)
		inner := make([]int, n)
		for r := range n {
			depth := 0
			for x := r; up[x] >= 0; x = up[x] {
				if depth++; depth > log2(n)+1 {
					t.Fatalf("%d of %d is deeper than %d", r, n, log2(n)+1)
				}
			}
			if up[r] >= 0 {
				kids[up[r]]++
			}
		}
		for r := range n {
			if kids[r] > 2 || r == 0 && kids[r] > 1 {
				t.Errorf("%d of %d has %d children", r, n, kids[r])
			}
			if kids[r] > 0 {
				inner[r]++
				inner[second(n, r)]++
			}
		}
		both := 0
		for _, times := range inner {
			if times > 1 {
				both++
			}
		}
		if both > n%2 { // with odd n one member has work in both
			t.Errorf("%d members of %d work in both trees", both, n)
		}
	}
}

func TestAllToAllOrder(t *testing.T) {
	g := build(t, 4, "pattern: all-to-all, size: 10, outstanding: 2, start: 5us")
	for i, m := range g.Messages {
		k, s := i/4+1, i%4
		if int(m.From) != s || int(m.To) != (s+k)%4 {
			t.Errorf("message %d is %d->%d", i, m.From, m.To)
		}
		switch {
		case k <= 2 && (m.Edges != 0 || m.Start != 5000):
			t.Errorf("message %d waits", i)
		case k == 3 && (m.Edges != 1 || g.Edges[m.FirstEdge] != Edge{int32(i - 8), true}):
			t.Errorf("message %d: %+v", i, m)
		}
	}
}

func TestIncastAndSubsets(t *testing.T) {
	g := build(t, 64, "pattern: incast, hosts: [0, 8-39], target: 0, size: 1MiB", "pattern: ring, hosts: [9, 3, 40], size: 30")
	if len(g.Messages) != 32+12 || g.Groups[0].Hosts != 33 || g.Groups[1].Hosts != 3 || g.Groups[0].Name != "incast 32:1 1 MiB" {
		t.Fatalf("%d messages, %+v", len(g.Messages), g.Groups)
	}
	for i, m := range g.Messages[:32] {
		if int(m.From) != 8+i || m.To != 0 || m.Group != 0 {
			t.Errorf("%+v", m)
		}
	}
	next := map[int32]int32{9: 3, 3: 40, 40: 9}
	for _, m := range g.Messages[32:] {
		if m.Group != 1 || next[m.From] != m.To {
			t.Errorf("%+v", m)
		}
	}
	g = build(t, 8, "pattern: incast, hosts: 4-7, target: 0, size: 1")
	if len(g.Messages) != 4 || g.Messages[3].From != 7 || g.Messages[3].To != 0 {
		t.Errorf("%+v", g.Messages)
	}
}

// TestRepeat: a repetition begins when all of the one before has been acknowledged.
func TestRepeat(t *testing.T) {
	for _, s := range []string{"pattern: ring, size: 64", "pattern: all-to-all, size: 1", "pattern: pairs, size: 1", "pattern: tree, size: 64"} {
		g := build(t, 8, s+", repeat: 3, start: 1us", "pattern: pairs, size: 1")
		if len(g.Groups) != 4 || !strings.HasSuffix(g.Groups[2].Name, "#3") {
			t.Fatalf("%+v", g.Groups)
		}
		left := make([]int, 4) // messages of a group that have not come yet
		for _, m := range g.Messages {
			left[m.Group]++
		}
		p := &player{g: g, rnd: rng.New(1, s)}
		p.start = func(m *Message) any {
			if m.Group > 0 && m.Group < 3 && left[m.Group-1] != 0 {
				t.Errorf("%s: group %d begins while %d messages of the one before are under way", s, m.Group, left[m.Group-1])
			}
			return nil
		}
		p.arrived = func(m *Message, _ any) { left[m.Group]-- }
		if p.play() != len(g.Messages) {
			t.Errorf("%s: stuck", s)
		}
		if len(g.Edges) > 3*len(g.Messages) {
			t.Errorf("%s: %d edges for %d messages", s, len(g.Edges), len(g.Messages))
		}
	}
}

func TestCheck(t *testing.T) {
	g := func(edges ...Edge) *Graph {
		return &Graph{plan: "p.yaml", Groups: []Group{{Line: 7}}, Edges: edges, Messages: []Message{
			{From: 0, To: 1, Size: 1, Edges: 1}, {From: 1, To: 2, Size: 1, FirstEdge: 1, Edges: 1}, {From: 2, To: 0, Size: 1, FirstEdge: 2, Edges: 1}}}
	}
	for _, c := range []struct {
		g    *Graph
		want string
	}{
		{g(Edge{1, true}, Edge{0, true}, Edge{1, true}), "p.yaml:7: these wait for each other and never start: "},
		{g(Edge{1, true}, Edge{3, true}, Edge{1, true}), "message 1 waits for message 3 of 3"},
		{g(Edge{0, true}, Edge{0, true}, Edge{1, true}), "never start: 0->1 (p.yaml:7), and so round"},
		{&Graph{Messages: []Message{{Group: 1}}}, "group 1 of 0"},
		{&Graph{Groups: []Group{{}}, Messages: []Message{{Edges: 1}}}, "edges 0 to 1 of 0"},
		{&Graph{Groups: []Group{{}}, Messages: []Message{{From: -1}}}, "from -1"},
	} {
		if err := c.g.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

func TestTooMany(t *testing.T) {
	_, err := tryBuild(10000, noFile, "pattern: all-to-all, size: 1")
	var e *plan.Error
	if !errors.As(err, &e) || e.Line != 3 || !strings.Contains(e.Msg, "over 67108864 messages") {
		t.Error(err)
	}
	if _, err := tryBuild(4, noFile, "pattern: goal, file: x.goal"); err == nil || !strings.Contains(err.Error(), "p.yaml:3: file: file does not exist") {
		t.Error(err)
	}
}

// BenchmarkRing builds the two million messages of a ring over 1,024 hosts.
func BenchmarkRing(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		g := build(b, 1024, "pattern: ring, size: 1GiB")
		b.ReportMetric(float64(len(g.Messages)), "messages")
	}
}
