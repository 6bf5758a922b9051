package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/result"
)

const ls16 = `
name: test
topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, rate: 100Gbit, delay: 1us, overhead: 16}
switch: {queue: 1 BDP, ecn_min: 0.2 BDP, ecn_max: 0.8 BDP}
transport: {kind: metaroce}
workload:
  - {pattern: permutation, add: 4, size: 1MiB}
`

const lossless = `
name: test
topology: {kind: leaf-spine, hosts: 16, leaf: 4, spines: 4, rate: 100Gbit, delay: 1us, overhead: 48}
switch: {ecn_min: 400kB, ecn_max: 1600kB, ecn_prob: 20%, pfc: {xoff: 62400, xon: 49920}}
transport: {kind: rocev2}
workload:
  - {pattern: permutation, add: 4, size: 1MiB}
`

func parse(t testing.TB, text string, set ...string) *plan.Plan {
	t.Helper()
	over := map[string]string{}
	for i := 0; i < len(set); i += 2 {
		over[set[i]] = set[i+1]
	}
	p, err := plan.ParseWith("test.yaml", []byte(text), over)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func simulate(t testing.TB, o Options, text string, set ...string) *result.Result {
	t.Helper()
	r, err := Run(context.Background(), parse(t, text, set...), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ended fails the test unless every message has ended well.
func ended(t *testing.T, r *result.Result) {
	t.Helper()
	if s := r.Summary; r.Partial || s.Errors > 0 || s.Done != s.Flows || s.Flows == 0 {
		t.Fatalf("partial %v (%s): %d flows, %d done, %d failed", r.Partial, r.Why, s.Flows, s.Done, s.Errors)
	}
}

// TestSameSeed: the same seed gives the same result, byte by byte, on any number of threads; another one does not.
func TestSameSeed(t *testing.T) {
	text := func(r *result.Result) []byte {
		r.Cost, r.Commit = result.Cost{}, ""
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, p := range []string{ls16, lossless} {
		for _, set := range [][]string{{}, {"events", `[{at: 20us, for: 50us, target: spine 0/1, down: true}, {target: last, loss: 1%}]`},
			{"workload[0].pattern", "ring", "workload[0].add", "", "topology.planes", "2"}} {
			one := text(simulate(t, Options{Threads: 1}, p, set...))
			if again := text(simulate(t, Options{Threads: 1}, p, set...)); !bytes.Equal(one, again) {
				t.Errorf("%v: another run gives another result", set)
			}
			if four := text(simulate(t, Options{Threads: 4}, p, set...)); !bytes.Equal(one, four) {
				t.Errorf("%v: four threads give another result", set)
			}
			if other := text(simulate(t, Options{Seed: 99}, p, set...)); bytes.Equal(one, other) {
				t.Errorf("%v: another seed gives the same result", set)
			}
		}
	}
}

// TestAlone: a message that has the network for itself takes what its bytes take on the wire, and a round trip.
func TestAlone(t *testing.T) {
	for _, c := range []struct {
		text string
		most float64
	}{{ls16, 1.02}, {lossless, 1.01}} {
		r := simulate(t, Options{}, c.text, "workload[0].pattern", "incast", "workload[0].senders", "1", "workload[0].target", "5", "workload[0].add", "", "workload[0].size", "8MiB")
		ended(t, r)
		ideal := 2048*4160*8/100e9 + r.Setup.RTT
		if r.Summary.FCTMax < ideal*0.999 || r.Summary.FCTMax > ideal*c.most {
			t.Errorf("%s: %.2f µs, ideal %.2f", r.Setup.Transport, r.Summary.FCTMax*1e6, ideal*1e6)
		}
		if r.Setup.WireBytes != 4160 || r.Summary.DataPackets != 2048 || r.Summary.Retransmits != 0 {
			t.Errorf("%s: %+v", r.Setup.Transport, r.Summary)
		}
	}
}

// TestBounds: collectives take no less than theory allows, and not much more.
func TestBounds(t *testing.T) {
	const wire = 4160.0 / 4096 * 8 / 100e9 // seconds a byte of payload
	for _, c := range []struct {
		name string
		set  []string
		ideal,
		most float64
	}{
		{"ring", []string{"workload[0].pattern", "ring", "workload[0].add", "", "workload[0].size", "16MiB"}, 2 * 15 / 16.0 * 16 * (1 << 20) * wire, 1.15},
		{"all-gather", []string{"workload[0].pattern", "all-gather", "workload[0].add", "", "workload[0].size", "16MiB"}, 15 / 16.0 * 16 * (1 << 20) * wire, 1.15},
		{"all-to-all", []string{"workload[0].pattern", "all-to-all", "workload[0].add", "", "workload[0].size", "512KiB"}, 15 * (1 << 19) * wire, 1.10},
		{"incast", []string{"workload[0].pattern", "incast", "workload[0].senders", "12", "workload[0].target", "0", "workload[0].add", ""}, 12 * (1 << 20) * wire, 1.04},
	} {
		r := simulate(t, Options{}, ls16, c.set...)
		ended(t, r)
		if got := r.Groups[0].Seconds; got < c.ideal || got > c.ideal*c.most {
			t.Errorf("%s: %.1f µs, at least %.1f and at most %.2f of it", c.name, got*1e6, c.ideal*1e6, c.most)
		}
		if c.name == "incast" && r.Summary.MinMax < 0.9 {
			t.Errorf("incast: the slowest has %.2f of the fastest", r.Summary.MinMax)
		}
	}
}

// TestLoss: selective repeat keeps what the wire delivers; go-back-N with a long timer keeps next to nothing.
func TestLoss(t *testing.T) {
	set := []string{"workload[0].pattern", "incast", "workload[0].senders", "1", "workload[0].target", "5", "workload[0].add", "", "run", "{steady: true, warm: 1ms, until: 4ms, depth: 8}",
		"events", "[{target: last, loss: 5%}]"}
	if r := simulate(t, Options{}, ls16, set...); r.Summary.GoodputShare < 0.93 || r.Summary.GoodputShare > 0.951 || r.Summary.Lost == 0 {
		t.Errorf("metaroce keeps %.3f at 5 %% loss", r.Summary.GoodputShare)
	}
	if r := simulate(t, Options{}, lossless, set...); r.Summary.GoodputShare > 0.6 || r.Summary.Retransmits == 0 {
		t.Errorf("rocev2 keeps %.3f at 5 %% loss", r.Summary.GoodputShare)
	}
}

// TestPlaneStops: the others carry on at once, and nothing fails.
func TestPlaneStops(t *testing.T) {
	r := simulate(t, Options{}, ls16, "topology.planes", "4", "run", "{steady: true, warm: 1ms, until: 3ms, depth: 8, bin: 50us}",
		"events", "[{at: 1ms, for: 1ms, target: plane 1, down: true}]")
	if r.Summary.Errors > 0 {
		t.Fatalf("%d flows failed", r.Summary.Errors)
	}
	mean := func(from, to float64) (g float64) {
		n := 0
		for _, b := range r.Line {
			if b.At >= from-1e-9 && b.At < to-1e-9 {
				g += b.Goodput
				n++
			}
		}
		return g / float64(n)
	}
	before, during, after := mean(0.5e-3, 1e-3), mean(1e-3, 2e-3), mean(2.5e-3, 3e-3)
	if during < 0.93*0.75*before || during > 0.77*before || after < 0.95*before {
		t.Errorf("%.0f, while it is down %.0f, after %.0f Gbit/s", before/1e9, during/1e9, after/1e9)
	}
	for _, b := range r.Line {
		if b.At > 1.05e-3 && b.At < 1.9e-3 && b.PerPlane[1] > 0 {
			t.Fatalf("something came by the plane that is down: %+v", b)
		}
	}
}

// TestPartial: what was interrupted, or ran out of time, says so; what failed is told.
func TestPartial(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	r, err := Run(ctx, parse(t, ls16), Options{})
	if err != nil || !r.Partial || r.Why != "interrupted" {
		t.Errorf("interrupted: %v, %+v", err, r)
	}
	if r := simulate(t, Options{}, ls16, "run", "{until: 50us}"); !r.Partial || r.Summary.Done != 0 || math.Abs(r.Summary.Seconds-50e-6) > 1e-6 {
		t.Errorf("out of time: partial %v, %d done after %v s", r.Partial, r.Summary.Done, r.Summary.Seconds)
	}
	r = simulate(t, Options{}, ls16, "events", "[{at: 20us, target: host 3, down: true}]")
	if r.Summary.Errors != 2 || r.Summary.Done != 14 || r.Partial { // it sends one, and is sent one
		t.Errorf("a dead host: %+v, partial %v %s", r.Summary, r.Partial, r.Why)
	}
	for _, f := range r.Flows {
		if (f.From == 3 || f.To == 3) != (f.Error == "RETRY_EXC_ERR") {
			t.Errorf("%+v", f)
		}
	}
}

// TestOptions: what a plan says of a transport is what its engines do.
func TestOptions(t *testing.T) {
	one := []string{"workload[0].pattern", "incast", "workload[0].senders", "1", "workload[0].target", "5", "workload[0].add", "", "workload[0].size", "8MiB"}
	r := simulate(t, Options{}, ls16, append(one, "transport.profile", "fixed", "transport.window_bdp", "0.25")...)
	ended(t, r)
	if r.Summary.GoodputShare < 0.2 || r.Summary.GoodputShare > 0.35 {
		t.Errorf("a window of a quarter of the BDP fills %.3f of the wire", r.Summary.GoodputShare)
	}
	r = simulate(t, Options{}, lossless, "topology.planes", "3", "transport.rc_plane", "2")
	ended(t, r)
	for _, l := range r.Links {
		if l.Plane != 2 && l.Packets > 0 {
			t.Fatalf("rc_plane 2, but %s carried %d packets", l.Name, l.Packets)
		}
	}
	// losses that come together, in bursts shorter than so much loss can have
	if r = simulate(t, Options{}, ls16, "events", "[{at: 0us, target: last, loss: 60%, burst: 2}, {at: 0us, target: last, loss: 60%, burst: 2}]", "run", "{until: 200us}"); r.Summary.Lost == 0 {
		t.Error("nothing was lost")
	}
}

// BenchmarkRun is a permutation of 64 hosts with the real engines: packet-hops a second.
func BenchmarkRun(b *testing.B) {
	p := parse(b, ls16, "topology.hosts", "64", "topology.leaf", "8", "topology.spines", "8", "workload[0].size", "8MiB", "workload[0].add", "8")
	for b.Loop() {
		r, err := Run(context.Background(), p, Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.Cost.HopsPerSec, "hops/s")
	}
}
