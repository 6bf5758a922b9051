package work

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

func imported(kind plan.Pattern, hosts int, text string) (*Graph, error) {
	return tryBuild(hosts, func(string) ([]byte, error) { return []byte(text), nil }, "pattern: "+string(kind)+", file: in.txt, start: 1us")
}

func waits(g *Graph, i int) []Edge {
	m := g.Messages[i]
	return g.Edges[m.FirstEdge : m.FirstEdge+m.Edges]
}

func TestMatrix(t *testing.T) {
	g, err := imported(plan.ConnMatrix, 8, `Nodes 4
Connections 5
Triggers 2
0->1 id 1 start 0 size 1000 send_done_trigger 1
1->2 id 2 trigger 1 size 2000 recv_done_trigger 2
2->3 id 3 start 2.5e6 size 3000 recv_done_trigger 2

3->0 id 4 trigger 2 size 4000
0->2 id 5 trigger 2 size 5000
trigger id 1 oneshot
trigger id 2 barrier count 2
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Messages) != 6 || g.Groups[0].Size != 15000 || g.Groups[0].Hosts != 4 {
		t.Fatalf("%+v", g)
	}
	// 1 µs is the part's start; the file counts picoseconds.
	if g.Messages[0].Start != 1000 || g.Messages[2].Start != 3500 || g.Messages[1].Start != 0 {
		t.Errorf("%+v", g.Messages)
	}
	if w := waits(g, 1); len(w) != 1 || w[0] != (Edge{0, true}) {
		t.Errorf("%v", w)
	}
	for _, i := range []int{3, 4} {
		if w := waits(g, i); len(w) != 1 || w[0] != (Edge{5, false}) {
			t.Errorf("%d: %v", i, w)
		}
	}
	if w := waits(g, 5); len(w) != 2 || w[0] != (Edge{1, false}) || w[1] != (Edge{2, false}) {
		t.Errorf("%v", w)
	}
	if f, l := g.Line(3); f != "in.txt" || l != 8 {
		t.Errorf("%s:%d", f, l)
	}
}

func TestMatrixMistakes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "in.txt:1: Nodes is missing"},
		{"Nodes 4\n", "in.txt:1: there are no connections"},
		{"Nodes 9\n0->1 start 0 size 1", "in.txt:1: 9 nodes, but only 8 hosts"},
		{"Nodes 4\nConnections 2\n0->1 start 0 size 1", "in.txt:2: Connections is 2, but there are 1"},
		{"Nodes 4\n0->4 start 0 size 1", "in.txt:2: 0->4: there are 4 nodes"},
		{"Nodes 4\n0->0 start 0 size 1", "in.txt:2: host 0 sends to itself"},
		{"Nodes 4\n0->1 start 0", "in.txt:2: the flow has no size"},
		{"Nodes 4\n0->1 size 5", "in.txt:2: the flow never starts"},
		{"Nodes 4\n0->1 start 0 trigger 1 size 5", "in.txt:2: both start and trigger"},
		{"Nodes 4\n0->1 start 0 size x", `in.txt:2: size: "x" is not a number`},
		{"Nodes 4\n0->1 start 0 sise 5", `in.txt:2: unknown word "sise"`},
		{"Nodes 4\n0->1 start 0 size", `in.txt:2: "size": a number is missing`},
		{"Nodes 4\n0->1 id 1 start 0 size 5\n0->2 id 1 start 0 size 5", "in.txt:3: flow 1 is there already, on line 2"},
		{"Nodes 4\n0->1 trigger 3 size 5", "in.txt:2: trigger 3 is not defined"},
		{"Nodes 4\n0->1 trigger 3 size 5\ntrigger id 3 oneshot", "in.txt:3: trigger 3 is never fired"},
		{"Nodes 4\n0->1 start 0 size 5 send_done_trigger 1\n0->2 start 0 size 5 send_done_trigger 1\ntrigger id 1 oneshot", "is oneshot, but 2 flows fire it"},
		{"Nodes 4\n0->1 start 0 size 5 send_done_trigger 1\ntrigger id 1 barrier count 3", "waits for 3 flows, but 1 fire it"},
		{"Nodes 4\n0->1 start 0 size 5\ntrigger id 1 multishot", "in.txt:3: trigger 1: multishot triggers are not read"},
		{"Nodes 4\n0->1 start 0 size 5\nfailure switch_type AGG switch_id 1 link_id 4", "in.txt:3: failures of a connection matrix are not read"},
		{"Nodes 4\nFailures 1\n0->1 start 0 size 5", "in.txt:2: failures of a connection matrix"},
		{"Nodes 4\nsrc 1", `in.txt:2: unknown word "src"`},
		{"Nodes 4\n0->1 id 1 trigger 1 size 5 send_done_trigger 2\n1->0 id 2 trigger 2 size 5 send_done_trigger 1\ntrigger id 1 oneshot\ntrigger id 2 oneshot",
			"in.txt:2: these wait for each other and never start: 0->1 (in.txt:2) waits for 1->0 (in.txt:3), and so round"},
	} {
		if _, err := imported(plan.ConnMatrix, 8, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestGOAL(t *testing.T) {
	g, err := imported(plan.GOAL, 8, `num_ranks 3
// a comment
rank 0 {
l1: calc 100 /* over
two lines */
l2: send 8b to 1 tag 7
l2 requires l1
send 16b to 1 tag 7
}
rank 1 { l1: recv 8b from 0 tag 7; l2: send 5 b to 2; l2 requires l1
  l3: recv 16b from 0 tag 7
  l3 requires l2
  l4: calc 9 cpu 1
  l4 requires l3
  l5: calc 1
  l5 irequires l4 }
rank 2 { recv 8b from 1 tag 0 cpu 0 nic 0 }
`)
	if err != nil {
		t.Fatal(err)
	}
	type msg struct {
		from, to int32
		size     int64
		start    int64
		wait     []Edge
	}
	want := []msg{
		{0, 0, 0, 1100, nil},                        // 0: calc 100, from the part's start
		{0, 1, 8, 0, []Edge{{0, false}}},            // 1: l2 after l1
		{0, 1, 16, 1000, nil},                       // 2
		{1, 2, 5, 0, []Edge{{1, false}}},            // 3: after the first receive
		{1, 1, 0, 0, []Edge{{3, true}, {2, false}}}, // 4: the second receive, which requires a send
		{1, 1, 0, 0, []Edge{{4, false}}},            // 5: when l4 begins
		{1, 1, 0, 9, []Edge{{5, false}}},            // 6: l4
		{1, 1, 0, 1, []Edge{{5, false}}},            // 7: l5 begins when l4 does
	}
	if len(g.Messages) != len(want) {
		t.Fatalf("%+v", g.Messages)
	}
	for i, w := range want {
		m := g.Messages[i]
		got := waits(g, i)
		same := len(got) == len(w.wait)
		for j := 0; same && j < len(got); j++ {
			same = got[j] == w.wait[j]
		}
		if m.From != w.from || m.To != w.to || m.Size != w.size || int64(m.Start) != w.start || !same {
			t.Errorf("message %d: %+v waits for %v, want %+v", i, m, got, w)
		}
	}
	if g.Groups[0].Size != 29 || len(g.Notes) != 1 || !strings.Contains(g.Notes[0], "cpu and nic") {
		t.Errorf("%+v %v", g.Groups, g.Notes)
	}
}

func TestGOALMistakes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "in.txt:1: num_ranks is missing"},
		{"num_ranks 9", "in.txt:1: 9 ranks, but only 8 hosts"},
		{"num_ranks x", "in.txt:1: num_ranks needs a number"},
		{"rank 0 {}", "in.txt:1: num_ranks comes before the first rank"},
		{"num_ranks 2\nrank 0 {", "in.txt:2: rank 0 does not end"},
		{"num_ranks 2\nrank 2 {}", `in.txt:2: rank "2": ranks are 0 to 1`},
		{"num_ranks 2\nrank 0 {}\nrank 0 {}", "in.txt:3: rank 0 is there already"},
		{"num_ranks 2\ncalc 5", `in.txt:2: "calc" outside of a rank`},
		{"num_ranks 2\nrank 0 {\nl1: clac 5\n}", `in.txt:3: "clac 5" is not an operation`},
		{"num_ranks 2\nrank 0 {\nl1: send 5 to 1\n}", "is not an operation such as `send 8b to 1 tag 0`"},
		{"num_ranks 2\nrank 0 {\nl1: send 5b to 1\n}", "in.txt:3: rank 0 sends to 1 with tag 0, but that has no receive"},
		{"num_ranks 2\nrank 0 {\nl1: recv 5b from 1 tag 3\n}", "in.txt:3: rank 0 receives from 1 with tag 3, but that does not send it"},
		{"num_ranks 2\nrank 0 {send 5b to 1}\nrank 1 {\nrecv 4b from 0}", "in.txt:4: 4 bytes are received, but rank 0 sends 5 (line 2)"},
		{"num_ranks 2\nrank 0 {send 5b to 0}", "sends to itself"},
		{"num_ranks 2\nrank 0 {recv 5b from -1}", "receives from any rank are not read"},
		{"num_ranks 2\nrank 0 {\nl1: calc 1\nl1: calc 2}", `in.txt:4: "l1" is there already, on line 3`},
		{"num_ranks 2\nrank 0 {\nl1: calc 1\nl1 requires l2\n}", `in.txt:4: rank 0 has no operation "l2"`},
		{"num_ranks 2\nrank 0 {\nl1: calc 1\nl2: calc 1\nl1 requires l2\nl2 requires l1\n}",
			"in.txt:3: these wait for each other and never start: the calculation at 0 (in.txt:3) waits for the calculation at 0 (in.txt:4), and so round"},
		{"num_ranks 2\n/* x", "in.txt:2: the comment does not end"},
		{"num_ranks 2\n}", "in.txt:2: a } without a rank"},
	} {
		if _, err := imported(plan.GOAL, 8, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

// TestGOALBroadcast: a binomial broadcast, as schedgen writes it, comes to all.
func TestGOALBroadcast(t *testing.T) {
	text, err := os.ReadFile("testdata/broadcast8.goal")
	if err != nil {
		t.Fatal(err)
	}
	g, err := imported(plan.GOAL, 8, string(text))
	if err != nil {
		t.Fatal(err)
	}
	b := newBuffers(8, 1, func(h, _, of int) bool { return h == 0 && of == 0 })
	for i := range g.Messages {
		g.Messages[i].Chunks = 1
	}
	b.run(g, 3, func(*Message) bool { return false })
	for h := range b {
		if b[h][0][0] != 1 {
			t.Errorf("host %d has nothing", h)
		}
	}
}

// TestRepeatedFile: a file's messages are counted before it is taken again and again.
func TestRepeatedFile(t *testing.T) {
	var b strings.Builder
	b.WriteString("Nodes 4\n")
	for range 2000 {
		b.WriteString("0->1 start 0 size 1\n")
	}
	p, err := plan.Parse("x.yaml", []byte("topology: {kind: switch, hosts: 8, rate: 1Gbit}\nworkload:\n  - {pattern: cm, file: in.txt, repeat: 65536}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Build(p, func(string) ([]byte, error) { return []byte(b.String()), nil })
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "x.yaml:3: the workload has over") {
		t.Errorf("%v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
		t.Errorf("%d MiB were taken before that was said", n>>20)
	}
}
