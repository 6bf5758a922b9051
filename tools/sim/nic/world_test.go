package nic

import (
	"runtime"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/work"
)

const sixteen = `
name: test
topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, rate: 100Gbit, delay: 1us, overhead: 16}
switch: {queue: 1 BDP, ecn_min: 0.2 BDP, ecn_max: 0.8 BDP}
transport: {kind: metaroce}
workload:
  - {pattern: permutation, add: 4, size: 1MiB}
`

// others are the same with other switches and transports.
var others = map[string]map[string]string{
	"metaroce":          {},
	"metaroce, trimmed": {"switch": "{queue: 6 pkt, ecn_min: 2 pkt, ecn_max: 5 pkt, trim: true}", "workload[0].pattern": "incast", "workload[0].add": "", "workload[0].target": "0"},
	"metaroce, 4 ways":  {"topology.planes": "4"},
	"rocev2, lossless":  {"topology.overhead": "48", "switch": "{pfc: {xoff: 62400, xon: 49920}}", "transport": "{kind: rocev2, dcqcn: false, qps: 4}"},
	"rocev2, lossy":     {"topology.overhead": "48", "switch": "{queue: 12 pkt}", "transport": "{kind: rocev2, dcqcn: false, rto: 1ms}"},
}

// world is a network of a plan whose hosts are connected.
func world(t testing.TB, set map[string]string, extra ...string) (*fabric.Net, *World) {
	t.Helper()
	over := map[string]string{}
	for k, v := range set {
		over[k] = v
	}
	for i := 0; i < len(extra); i += 2 {
		over[extra[i]] = extra[i+1]
	}
	p, err := plan.ParseWith("test.yaml", []byte(sixteen), over)
	if err != nil {
		t.Fatal(err)
	}
	g, err := work.Build(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := fabric.New(fabric.Config{Topology: &p.Topology, Switch: &p.Switch, Seed: 1, Threads: 1, Start: mono.Time(mono.Millisecond)})
	t.Cleanup(n.Close)
	w, err := New(p, n, g, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Warm(mono.Second, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	return n, w
}

// TestHopsAllocateNothing: with both engines, once what they keep has grown. It still grows a little where many more acknowledgements
// than before are under way at once: less than once in 10,000 hops, and where most packets are cut, in 200.
func TestHopsAllocateNothing(t *testing.T) {
	for name, set := range others {
		n, w := world(t, set, "workload[0].size", "256MiB")
		w.Start()
		until := n.Now.Add(2 * mono.Millisecond)
		if err := n.Run(until, func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		before := n.Counters().Hops
		got := testing.AllocsPerRun(5, func() {
			until = until.Add(50 * mono.Microsecond)
			if err := n.Run(until, func() bool { return true }); err != nil {
				t.Fatal(err)
			}
		})
		most := 1e-4
		if strings.Contains(name, "trimmed") {
			most = 5e-3
		}
		hops := float64(n.Counters().Hops-before) / 6 // once more than it counts, to warm up
		if got > most*hops || hops < 300 || strings.HasPrefix(name, "rocev2") && got != 0 {
			t.Errorf("%s: %v allocations in %.0f hops", name, got, hops)
		}
	}
}

// TestConservationWithEngines: at every switch, what came in went out or was dropped there, and at hosts what they sent came to a switch
// or was lost on the way: packet by packet, with losses, full queues, cut packets and pauses.
func TestConservationWithEngines(t *testing.T) {
	for name, set := range others {
		n, w := world(t, set)
		n.ResetCounters()
		if err := n.Schedule(n.Now+1, []plan.Event{{Target: "links", Change: plan.Change{Loss: 0.002}}}); err != nil {
			t.Fatal(err)
		}
		w.Start()
		if err := n.Run(n.Now.Add(2*mono.Second), func() bool { return w.Ended() < len(w.msgs) }); err != nil {
			t.Fatal(err)
		}
		if w.Ended() < len(w.msgs) {
			t.Fatalf("%s: %d of %d messages ended", name, w.Ended(), len(w.msgs))
		}
		if err := n.Run(n.Now.Add(50*mono.Millisecond), func() bool { return true }); err != nil { // what is under way arrives
			t.Fatal(err)
		}
		in, out := map[string]uint64{}, map[string]uint64{}
		var dropped, lost, trimmed uint64
		for i := range n.Links() {
			l := n.Link(i)
			from, to, ok := strings.Cut(l.Name, ">")
			if !ok {
				t.Fatal(l.Name)
			}
			plane, _, _ := strings.Cut(from, "/")
			in[plane+"/"+to] += l.Packets - l.Dropped - l.Lost - l.Down
			out[from] += l.Packets
			dropped, lost, trimmed = dropped+l.Dropped, lost+l.Lost, trimmed+l.Trimmed
		}
		for sw, got := range in {
			if !strings.Contains(sw, "host") && got != out[sw] {
				t.Errorf("%s: %d packets came into %s, %d went to its ports", name, got, sw, out[sw])
			}
		}
		if lost == 0 || strings.Contains(name, "lossy") && dropped == 0 || strings.Contains(name, "trimmed") && trimmed == 0 {
			t.Errorf("%s: %d lost, %d dropped, %d trimmed: nothing to conserve", name, lost, dropped, trimmed)
		}
	}
}

// TestQPMemory says what a QP costs in a simulation: with what it has under way, and without an association of its own. docs/performance.md
// has the figures; they may not grow unseen.
func TestQPMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		set  map[string]string
		most float64
	}{{"rocev2", others["rocev2, lossless"], 9000}, {"metaroce", nil, 22000}} {
		var heap [2]float64
		var qps [2]int
		for i, hosts := range []string{"16", "32"} {
			before := heapNow()
			_, w := world(t, c.set, "topology.hosts", hosts, "workload[0].pattern", "all-to-all", "workload[0].add", "")
			for _, h := range w.hosts {
				for _, x := range h.list {
					qps[i] += len(x.qps)
				}
			}
			heap[i] = heapNow() - before
			runtime.KeepAlive(w)
		}
		each := (heap[1] - 2*heap[0]) / float64(qps[1]-2*qps[0])
		t.Logf("%s: %d and %d QPs, %.0f B for one more", c.name, qps[0], qps[1], each)
		if each > c.most || each < 100 {
			t.Errorf("%s: %.0f B a QP, at most %.0f expected", c.name, each, c.most)
		}
	}
}

func heapNow() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
