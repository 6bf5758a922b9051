package sim

import (
	"fmt"
	"math"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/ideal"
	"github.com/metaroce/metaroce/tools/sim/result"
	"github.com/metaroce/metaroce/tools/sim/work"
)

const ideal16 = `
name: test
topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, rate: 100Gbit, delay: 1us, overhead: 16}
transport: {kind: ideal}
workload:
  - {pattern: permutation, add: 4, size: 1MiB}
`

// Of ideal16: picoseconds of a byte on a wire; full packets there, and what follows the last byte of a message whose last
// packet is full, within a leaf and over a spine: two and four links, stored and forwarded, and an acknowledgement back.
const (
	psByte = 80.0
	full   = 4160.0
)

func tail(hops, last float64) float64 {
	return 2*hops*1e6 + (hops-1)*last*psByte + hops*64*psByte
}

// near fails the test unless a time in seconds is so many picoseconds, within the nanosecond to which times are rounded.
func near(t *testing.T, what string, s, ps float64) {
	t.Helper()
	if math.Abs(s*1e12-ps) > 1500 {
		t.Errorf("%s: %.4f µs, by theory %.4f", what, s*1e6, ps/1e6)
	}
}

// TestIdealTimes sets simple patterns beside their closed forms.
func TestIdealTimes(t *testing.T) {
	const mib = 256 * full * psByte
	perm := func(set ...string) []string { return set }
	other := func(pattern string, set ...string) []string {
		return append([]string{"workload[0].pattern", pattern, "workload[0].add", ""}, set...)
	}
	for _, c := range []struct {
		name      string
		set       []string
		min, most float64 // completion times
	}{
		{"alone", other("incast", "workload[0].senders", "1", "workload[0].target", "15"), mib + tail(4, full), mib + tail(4, full)},
		{"alone in a leaf", other("incast", "workload[0].senders", "1", "workload[0].target", "1"), mib + tail(2, full), mib + tail(2, full)},
		{"a packet", other("incast", "workload[0].senders", "1", "workload[0].target", "15", "workload[0].size", "100B"), 164*psByte + tail(4, 164), 164*psByte + tail(4, 164)},
		{"a packet and a bit", other("incast", "workload[0].senders", "1", "workload[0].target", "15", "workload[0].size", "4100B"), (full+68)*psByte + tail(4, 68), (full+68)*psByte + tail(4, 68)},
		{"permutation", perm(), mib + tail(4, full), mib + tail(4, full)},
		{"permutation in leaves", perm("workload[0].add", "1", "workload[0].hosts", "0-3"), mib + tail(2, full), mib + tail(2, full)},
		{"incast", other("incast", "workload[0].senders", "12", "workload[0].target", "0"), 12*mib + tail(2, full), 12*mib + tail(4, full)},
		{"all-to-all", other("all-to-all"), 15*mib + tail(2, full), 15*mib + tail(4, full)},
		{"four planes", perm("topology.planes", "4"), mib/4 + tail(4, full), mib/4 + tail(4, full)},
		{"two packets on four planes", perm("topology.planes", "4", "workload[0].size", "8KiB"), full*psByte + tail(4, full), full*psByte + tail(4, full)},
		{"a spine of four", perm("topology.spines", "1"), 4*mib + tail(4, full), 4*mib + tail(4, full)},
		{"a spine stops", perm("events", "[{at: 0us, target: spine 0/2, down: true}]"), 4*mib/3 + tail(4, full), 4*mib/3 + tail(4, full)},
		{"hosts stop for a while", perm("events", "[{at: 20us, for: 100us, target: last, down: true}]"), mib + 100e6 + tail(4, full), mib + 100e6 + tail(4, full)},
		{"slow", perm("events", "[{at: 0us, target: host 3, slow: 2}]"), mib + tail(4, full), 2*mib + tail(4, full)},
		{"later", perm("events", "[{at: 0us, target: links, delay: 3us}]"), mib + 24e6 + tail(4, full), mib + 24e6 + tail(4, full)},
		{"later by one spine", perm("events", "[{at: 0us, target: spine 0/0, delay: 3us}]"), mib + tail(4, full), mib + tail(4, full)},
		{"flapping", perm("events", "[{at: 0us, target: plane 0, flap: 40us}]"), mib + 100e6 + tail(4, full), mib + 100e6 + tail(4, full)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := simulate(t, Options{}, ideal16, c.set...)
			ended(t, r)
			near(t, "fastest", r.Summary.FCTMin, c.min)
			near(t, "slowest", r.Summary.FCTMax, c.most)
		})
	}
}

// idealFile runs a connection matrix.
func idealFile(t *testing.T, text string, set ...string) *result.Result {
	t.Helper()
	o := Options{Read: func(string) ([]byte, error) { return []byte(text), nil }}
	set = append([]string{"workload[0].pattern", "cm", "workload[0].add", "", "workload[0].size", "", "workload[0].file", "x.cm"}, set...)
	return simulate(t, o, ideal16, set...)
}

// TestIdealShares: flows that share a link get max–min fair shares of it, and what one leaves the others take.
func TestIdealShares(t *testing.T) {
	const mib = 256 * full * psByte
	r := idealFile(t, "Nodes 16\nConnections 2\n4->0 id 1 start 0 size 1048576\n8->0 id 2 start 0 size 3145728\n")
	near(t, "the short one of two", r.Flows[0].Acked, 2*mib+tail(4, full))
	near(t, "the long one of two", r.Flows[1].Acked, 4*mib+tail(4, full))

	// 4 and 8 share the link to 0; 8 also sends to 1, which it does alone but for its own link; 12 has what is left at 1.
	r = idealFile(t, "Nodes 16\nConnections 4\n4->0 id 1 start 0 size 1048576\n8->0 id 2 start 0 size 1048576\n8->1 id 3 start 0 size 1048576\n12->1 id 4 start 0 size 1048576\n")
	for i := range r.Flows {
		near(t, fmt.Sprintf("flow %d of four that share links in a row", i), r.Flows[i].Acked, 2*mib+tail(4, full))
	}

	// Two flows share an uplink of half a host's rate; a third one stays within the leaf.
	r = idealFile(t, "Nodes 16\nConnections 3\n0->4 id 1 start 0 size 1048576\n1->4 id 2 start 0 size 1048576\n2->3 id 3 start 0 size 1048576\n", "topology.spines", "1", "topology.up_rate", "50Gbit")
	slow := func(hops float64) float64 { return tail(hops, full) + 2*full*psByte + 2*2*64/2*psByte }
	near(t, "over a slow uplink", r.Flows[0].Acked, 4*mib+slow(4))
	near(t, "beside it", r.Flows[2].Acked, mib+tail(2, full))

	// Messages of one pair go one after the other.
	r = idealFile(t, "Nodes 16\nConnections 2\n4->0 id 1 start 0 size 1048576\n4->0 id 2 start 0 size 1048576\n")
	near(t, "the first of a pair", r.Flows[0].Acked, mib+tail(4, full))
	near(t, "the second", r.Flows[1].Acked, 2*mib+tail(4, full))
}

// TestIdealRing follows the steps of an all-reduce over leaves: each begins when the chunk of the one before has come and its
// host's wire is free.
func TestIdealRing(t *testing.T) {
	const n, chunk = 16, 16 * full * psByte
	for _, acked := range []string{"false", "true"} {
		var start, gone [n]float64
		end := 0.0
		for range 2 * (n - 1) {
			var next [n]float64
			for i := range n {
				hops := 2.0
				if i%4 == 3 {
					hops = 4
				}
				gone[i] = max(start[i], gone[i]) + chunk
				came := gone[i] + hops*1e6 + (hops-1)*full*psByte
				back := came + hops*1e6 + hops*64*psByte
				end = max(end, back)
				next[(i+1)%n] = came
				if acked == "true" {
					next[(i+1)%n] = back
				}
			}
			start = next
		}
		r := simulate(t, Options{}, ideal16, "workload[0].pattern", "ring", "workload[0].add", "", "workload[0].acked", acked)
		ended(t, r)
		if got := r.Groups[0].Seconds; math.Abs(got*1e12-end) > 30*1500 {
			t.Errorf("acked %s: %.3f µs, step by step %.3f", acked, got*1e6, end/1e6)
		}
	}
}

// TestIdealCutOff: where no way is left, a message does not end, and the others do.
func TestIdealCutOff(t *testing.T) {
	r := simulate(t, Options{}, ideal16, "topology.planes", "2", "run", "{until: 10ms}", "events",
		"[{at: 0us, target: link 0/host0-leaf0, down: true}, {at: 0us, target: link 1/host4-leaf1, down: true}]")
	if !r.Partial || r.Summary.Done != 15 || r.Summary.Seconds != 10e-3 {
		t.Errorf("partial %v %s, %d done in %v s", r.Partial, r.Why, r.Summary.Done, r.Summary.Seconds)
	}
	for _, f := range r.Flows {
		if (f.Acked < 0) != (f.From == 0 && f.To == 4) {
			t.Errorf("%+v", f)
		}
	}
}

// TestIdealSteady: a permutation that goes on fills the wires, and keeps what is left of them.
func TestIdealSteady(t *testing.T) {
	set := []string{"run", "{steady: true, warm: 1ms, until: 3ms, bin: 100us}", "topology.planes", "4"}
	r := simulate(t, Options{}, ideal16, set...)
	if s := r.Summary; r.Partial || math.Abs(s.GoodputShare-1) > 1e-4 || s.Jain < 0.9999 || s.FCTP50 == 0 {
		t.Errorf("alone: partial %v (%s), %+v", r.Partial, r.Why, s)
	}
	r = simulate(t, Options{}, ideal16, append(set, "events", "[{at: 1ms, target: plane 2, down: true}]")...)
	if s := r.Summary; math.Abs(s.GoodputShare-0.75) > 1e-4 {
		t.Errorf("three of four planes: %+v", s)
	}
	for _, b := range r.Line {
		if want := 100e9; b.At >= 0.1e-3 && b.At < 0.9e-3 && math.Abs(b.PerPlane[2]/16-want) > 1e-3*want || b.At > 1.05e-3 && b.PerPlane[2] != 0 {
			t.Fatalf("%+v", b)
		}
	}
}

// TestIdealBytes: what hosts send goes up and comes down, and what leaves a leaf crosses the spines.
func TestIdealBytes(t *testing.T) {
	for _, set := range [][]string{{}, {"topology.planes", "3", "events", "[{at: 10us, for: 30us, target: plane 1, down: true}, {at: 20us, target: link 0/leaf0-spine1, slow: 4}]"},
		{"topology", "{kind: fat-tree, hosts: 16, pod: 8, leaf: 4, aggs: 2, cores: 4, rate: 100Gbit, overhead: 16}", "workload[0].add", "7"}} {
		r := simulate(t, Options{}, ideal16, set...)
		ended(t, r)
		sum := map[string]float64{}
		for _, l := range r.Links {
			var a, b string
			var n, p, q int
			if _, err := fmt.Sscanf(l.Name, "%d/host%d>leaf%d", &n, &p, &q); err == nil {
				a, b = "host", "leaf"
			} else if _, err := fmt.Sscanf(l.Name, "%d/leaf%d>host%d", &n, &p, &q); err == nil {
				a, b = "leaf", "host"
			}
			sum[a+b] += float64(l.Bytes)
			if l.Use > 1.0001 {
				t.Errorf("%v: %s is used by %.3f", set, l.Name, l.Use)
			}
		}
		want := 16 * 256 * full
		if math.Abs(sum["hostleaf"]-want) > 64 || math.Abs(sum["leafhost"]-want) > 64 {
			t.Errorf("%v: hosts sent %.0f and were sent %.0f of %.0f bytes", set, sum["hostleaf"], sum["leafhost"], want)
		}
		if between := sum[""]; len(set) == 0 && math.Abs(between-2*want) > 64 {
			t.Errorf("%.0f bytes between leaves and spines, not %.0f", between, 2*want)
		}
		if r.Summary.DataPackets != 16*256 {
			t.Errorf("%d packets", r.Summary.DataPackets)
		}
	}
}

// TestIdealSame: the same plan gives the same result; and the seed, with which nothing is drawn, changes none of it.
func TestIdealSame(t *testing.T) {
	set := []string{"workload[0].pattern", "halving", "workload[0].add", "", "topology.planes", "2", "events", "[{at: 10us, for: 30us, target: spine 1/1, down: true}]"}
	a, b := simulate(t, Options{}, ideal16, set...), simulate(t, Options{Threads: 2}, ideal16, set...)
	if a.Hash != b.Hash {
		t.Error("another run gives another result")
	}
	if c := simulate(t, Options{Seed: 9}, ideal16, set...); c.Summary != a.Summary {
		t.Errorf("another seed: %+v, not %+v", c.Summary, a.Summary)
	}
}

// TestIdealBelow: the engine needs longer than the ideal for each of these patterns.
func TestIdealBelow(t *testing.T) {
	for _, pattern := range []string{"permutation", "incast", "all-to-all", "ring", "tree", "halving"} {
		set := []string{"workload[0].pattern", pattern, "workload[0].size", "256KiB"}
		if pattern != "permutation" {
			set = append(set, "workload[0].add", "")
		}
		least := simulate(t, Options{}, ideal16, set...)
		ended(t, least)
		r := simulate(t, Options{}, ls16, set...)
		ended(t, r)
		if r.Groups[0].Seconds < least.Groups[0].Seconds {
			t.Errorf("%s: %.2f µs, the ideal %.2f", pattern, r.Groups[0].Seconds*1e6, least.Groups[0].Seconds*1e6)
		}
	}
}

// TestIdealAbove: no pattern ends sooner than its bound, and those that share no links in their steps end then.
func TestIdealAbove(t *testing.T) {
	const goal = "num_ranks 3\nrank 0 { a: calc 7000\nb: send 100000b to 1 tag 0\nb requires a\nc: recv 5000b from 2 tag 1\nc requires b\n }\n" +
		"rank 1 { a: recv 100000b from 0 tag 0\nb: send 300000b to 2 tag 0\nb requires a\nc: calc 900000\nc requires b\n }\nrank 2 { a: recv 300000b from 1 tag 0\nb: send 5000b to 0 tag 1\nb requires a\n }\n"
	for _, x := range []struct {
		work  string
		exact bool
	}{
		{"[{pattern: permutation, add: 4, size: 1MiB}]", true},
		{"[{pattern: permutation, add: 4, size: 1MiB, repeat: 3}]", true},
		{"[{pattern: permutation, mul: 3, add: 5, size: 100kB}]", false},
		{"[{pattern: incast, hosts: [0, 4-9], size: 100kB}]", true},
		{"[{pattern: all-to-all, size: 30kB}]", false},
		{"[{pattern: all-to-all, size: 30kB, outstanding: 2}]", false},
		{"[{pattern: ring, size: 1MiB}]", true},
		{"[{pattern: ring, size: 1MiB, acked: true}]", true},
		{"[{pattern: all-gather, size: 100}]", true},
		{"[{pattern: halving, size: 1MiB}]", true},
		{"[{pattern: tree, size: 4MiB}]", false},
		{"[{pattern: tree, size: 4MiB, start: 30us}, {pattern: ring, size: 1MiB, hosts: 3-9}]", false},
		{"[{pattern: goal, file: x.goal}]", true},
	} {
		for _, topology := range [][]string{{}, {"topology.planes", "3"}, {"topology.spines", "1"}} {
			set := append([]string{"workload", x.work}, topology...)
			p := parse(t, ideal16, set...)
			read := func(string) ([]byte, error) { return []byte(goal), nil }
			g, err := work.Build(p, read)
			if err != nil {
				t.Fatal(err)
			}
			r := simulate(t, Options{Read: read}, ideal16, set...)
			ended(t, r)
			bounds := g.Bounds(&p.Topology)
			for i, grp := range r.Groups {
				least := bounds[i].Ideal.Seconds()
				if grp.Seconds < least-2e-9 || x.exact && len(topology) == 0 && grp.Seconds > least+30e-9 {
					t.Errorf("%v: %s takes %.3f µs, its bound is %.3f", set, grp.Name, grp.Seconds*1e6, least*1e6)
				}
			}
			if all := bounds[len(r.Groups)].Ideal.Seconds(); r.Summary.Seconds < all-2e-9 {
				t.Errorf("%v: all take %.3f µs, the bound is %.3f", set, r.Summary.Seconds*1e6, all*1e6)
			}
		}
	}
}

// TestIdealNoTime: messages that take less than a nanosecond have no rate, and a time line in nanoseconds has an end.
func TestIdealNoTime(t *testing.T) {
	r := simulate(t, Options{}, ideal16, "topology", "{kind: switch, hosts: 16, rate: 100Tbit, delay: 0us, overhead: 0}", "workload[0].size", "64B")
	ended(t, r)
	if r.Summary.FCTMax != 0 || r.Summary.Jain != 0 {
		t.Errorf("%+v", r.Summary)
	}
	r = simulate(t, Options{}, ideal16, "run", "{steady: true, until: 150us, bin: 1ns}")
	if n := len(r.Line); n < fixedMost/2 || n > fixedMost {
		t.Errorf("%d stretches", n)
	}
	sum := 0.0
	for i, b := range r.Line[:len(r.Line)-1] {
		sum += b.Goodput * (r.Line[i+1].At - b.At)
	}
	if want := r.Summary.Goodput * 150e-6; math.Abs(sum-want) > 1e-3*want {
		t.Errorf("the time line comes to %.0f bits, the run to %.0f", sum, want)
	}
}

// TestIdealLinks: links have the names and the order that they have at the packet level.
func TestIdealLinks(t *testing.T) {
	for _, topology := range []string{"{kind: switch, hosts: 3, rate: 1Gbit}", "{kind: leaf-spine, hosts: 12, leaf: 3, spines: 2, planes: 2, rate: 1Gbit, up_rate: 2Gbit}",
		"{kind: fat-tree, hosts: 24, pod: 12, leaf: 4, aggs: 2, cores: 6, rate: 1Gbit}", "{kind: rail, hosts: 24, group: 4, leaf: 3, spines: 2, rate: 1Gbit}"} {
		p := parse(t, ideal16, "topology", topology, "workload[0].add", "1")
		g, err := work.Build(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		n, w := fabric.New(fabric.Config{Topology: &p.Topology, Switch: &p.Switch}), ideal.New(p, g)
		if n.Links() != w.Links() {
			t.Fatalf("%s: %d links, not %d", topology, w.Links(), n.Links())
		}
		for i := range n.Links() {
			if a, b := n.Link(i), w.Link(i); a.Name != b.Name || a.Plane != b.Plane || a.RateBps != b.RateBps || a.ToHost != b.ToHost {
				t.Fatalf("%s: link %d is %+v, not %+v", topology, i, b, a)
			}
		}
	}
}

// BenchmarkIdeal is a permutation of 8,192 hosts.
func BenchmarkIdeal(b *testing.B) {
	p := parse(b, ideal16, "topology.hosts", "8192", "topology.leaf", "64", "topology.spines", "64", "workload[0].add", "64")
	for b.Loop() {
		if _, err := Run(b.Context(), p, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
