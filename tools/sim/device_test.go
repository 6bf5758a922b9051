package sim

import (
	"math"
	"runtime"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
)

// TestDevice: the whole NIC and the engine alone need the same time for the same work, within the share that is beside it.
// What differs: queue pairs have other numbers, so that packets hash onto other links, and a NIC takes bursts of 64 packets
// from its engine where the engine alone is asked for each.
func TestDevice(t *testing.T) {
	for _, c := range []struct {
		name, text string
		set        []string
		within     float64
	}{
		{"alone", ls16, []string{"workload[0].pattern", "incast", "workload[0].senders", "1", "workload[0].target", "5", "workload[0].add", "", "workload[0].size", "8MiB"}, 0.01},
		{"permutation", ls16, []string{"workload[0].size", "8MiB"}, 0.05},
		{"two planes", ls16, []string{"workload[0].size", "8MiB", "topology.planes", "2"}, 0.05},
		{"incast", ls16, []string{"workload[0].pattern", "incast", "workload[0].senders", "12", "workload[0].target", "0", "workload[0].add", ""}, 0.05},
		{"ring", ls16, []string{"workload[0].pattern", "ring", "workload[0].add", "", "workload[0].size", "16MiB"}, 0.05},
		{"halving", ls16, []string{"workload[0].pattern", "halving", "workload[0].add", "", "workload[0].size", "4MiB"}, 0.1},
		{"all-to-all", ls16, []string{"workload[0].pattern", "all-to-all", "workload[0].add", "", "workload[0].size", "512KiB"}, 0.16},
		{"rocev2 alone", lossless, []string{"workload[0].pattern", "incast", "workload[0].senders", "1", "workload[0].target", "5", "workload[0].add", "", "workload[0].size", "8MiB"}, 0.01},
		{"rocev2 incast", lossless, []string{"workload[0].pattern", "incast", "workload[0].senders", "12", "workload[0].target", "0", "workload[0].add", ""}, 0.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := simulate(t, Options{}, c.text, c.set...)
			whole := simulate(t, Options{}, c.text, append(c.set, "transport.nic", "device")...)
			ended(t, engine)
			ended(t, whole)
			if whole.Setup.NIC != "device" || whole.Hash == engine.Hash {
				t.Fatal("the NIC was not simulated")
			}
			a, b := engine.Groups[0].Seconds, whole.Groups[0].Seconds
			t.Logf("%.2f µs, the engine alone %.2f: %+.2f %%", b*1e6, a*1e6, 100*(b/a-1))
			if math.Abs(b/a-1) > c.within {
				t.Errorf("%.2f µs, the engine alone %.2f", b*1e6, a*1e6)
			}
		})
	}
}

// TestDeviceSame: the same seed gives the same result on any number of threads, with failures on the way, too.
func TestDeviceSame(t *testing.T) {
	for _, text := range []string{ls16, lossless} {
		set := []string{"transport.nic", "device", "workload[0].pattern", "all-to-all", "workload[0].add", "", "workload[0].size", "64KiB", "topology.planes", "2",
			"events", `[{at: 20us, for: 50us, target: spine 0/1, down: true}, {target: last, loss: 0.1%}]`}
		one := simulate(t, Options{Threads: 1}, text, set...)
		if two := simulate(t, Options{Threads: 2}, text, set...); two.Cost.Threads != 2 || two.Hash != one.Hash {
			t.Errorf("%s: %d threads give another result", one.Setup.Transport, two.Cost.Threads)
		}
		if again := simulate(t, Options{}, text, set...); again.Hash != one.Hash {
			t.Errorf("%s: another run gives another result", one.Setup.Transport)
		}
		if other := simulate(t, Options{Seed: 99}, text, set...); other.Summary == one.Summary {
			t.Errorf("%s: another seed gives the same result", one.Setup.Transport)
		}
	}
}

// TestDeviceVerify: payload travels, and what is placed through losses, failures and trims is what was sent. It changes no time.
func TestDeviceVerify(t *testing.T) {
	for _, text := range []string{ls16, lossless} {
		set := []string{"transport.nic", "device", "workload[0].pattern", "all-to-all", "workload[0].add", "", "workload[0].size", "100kB",
			"events", `[{at: 20us, for: 50us, target: spine 0/1, down: true}, {target: last, loss: 0.1%}]`}
		if text == ls16 {
			set = append(set, "topology.planes", "2", "switch.trim", "true")
		}
		plain, checked := simulate(t, Options{}, text, set...), simulate(t, Options{Threads: 2}, text, append(set, "transport.verify", "true")...)
		ended(t, checked)
		if plain.Summary != checked.Summary {
			t.Errorf("%s: %+v, without payload %+v", checked.Setup.Transport, checked.Summary, plain.Summary)
		}
	}
}

// TestDeviceFails: a peer that is dead fails messages with the status that the program reads from its completion queue.
func TestDeviceFails(t *testing.T) {
	r := simulate(t, Options{}, ls16, "transport.nic", "device", "events", "[{at: 20us, target: host 3, down: true}]")
	if r.Summary.Errors != 2 || r.Summary.Done != 14 || r.Partial {
		t.Errorf("a dead host: %+v, partial %v %s", r.Summary, r.Partial, r.Why)
	}
	for _, f := range r.Flows {
		if (f.From == 3 || f.To == 3) != (f.Error == "RETRY_EXC_ERR") {
			t.Errorf("%+v", f)
		}
	}
}

// TestDeviceAllocations: once queues have grown, neither NICs nor fabric take anything from the heap; what is allowed is the
// list of a steady run's times.
func TestDeviceAllocations(t *testing.T) {
	for _, text := range []string{ls16, lossless} {
		p := parse(t, text, "transport.nic", "device", "run", "{steady: true, warm: 9ms, until: 10ms, depth: 4}")
		r := &run{ctx: t.Context(), p: p, seed: 1, wall: stopwatch()}
		mallocs := func() uint64 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.Mallocs
		}
		var before, hops uint64
		if err := r.build(); err != nil {
			t.Fatal(err)
		}
		r.m.Start()
		until := r.m.Now().Add(3 * mono.Millisecond)
		if err := r.m.Run(until, func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		before, hops = mallocs(), r.m.Counters().Hops
		if err := r.m.Run(until.Add(2*mono.Millisecond), func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		n, hops := mallocs()-before, r.m.Counters().Hops-hops
		r.m.Close()
		if hops < 50_000 || float64(n) > 1e-3*float64(hops) {
			t.Errorf("%s: %d allocations in %d hops", p.Transport.Kind, n, hops)
		}
	}
}
