package nic

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/work"
)

// spy looks at the packets that come to a host.
type spy struct {
	*host
	see func(p *fabric.Packet)
}

func (s spy) Deliver(now mono.Time, p *fabric.Packet) {
	s.see(p)
	s.host.Deliver(now, p)
}

// flow is a pair of hosts that exchange messages, and port the number that a connection sends from.
type flow struct{ from, to int32 }

// slowdowns are what the flows of a plan lose to collisions: the load of the busiest link that any connection of a flow crosses,
// in flows; the mean over flows, and the most.
func slowdowns(flows []flow, qps int, ways func(f flow, nth int) []string) (mean, most float64) {
	load := map[string]float64{}
	for _, f := range flows {
		for i := range qps {
			for _, l := range ways(f, i) {
				load[l] += 1 / float64(qps)
			}
		}
	}
	for _, f := range flows {
		slow := 0.0
		for i := range qps {
			for _, l := range ways(f, i) {
				slow = max(slow, load[l])
			}
		}
		mean += slow / float64(len(flows))
		most = max(most, slow)
	}
	return mean, most
}

// hashed are the slowdowns with the ports that the engines choose and the hash of the fabric's switches.
func hashed(t *testing.T, name string, qps int, seed uint64) (mean, most float64) {
	t.Helper()
	p, err := plans.Parse(name, map[string]string{"transport.qps": strconv.Itoa(qps), "workload[0].size": "4KiB"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := work.Build(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	net := fabric.New(fabric.Config{Topology: &p.Topology, Switch: &p.Switch, Seed: seed, Threads: 1, Start: mono.Time(mono.Millisecond)})
	defer net.Close()
	w, err := New(p, net, g, seed)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[flow]map[uint32]uint16{} // of each connection
	for i, h := range w.hosts {
		net.SetHost(i, spy{h, func(p *fabric.Packet) {
			if f := (flow{p.From, p.To}); p.Payload {
				if ports[f] == nil {
					ports[f] = map[uint32]uint16{}
				}
				ports[f][binary.BigEndian.Uint32(p.Hdr[4:])&0xFFFFFF] = p.SrcPort // the QP that it is for
			}
		}})
	}
	if err := w.Warm(warmLimit, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	var flows []flow
	ways := map[flow][][]string{}
	for i := range g.Messages {
		f := flow{g.Messages[i].From, g.Messages[i].To}
		flows = append(flows, f)
		for _, port := range ports[f] { // in any order: loads are sums
			ways[f] = append(ways[f], net.Way(&fabric.Packet{From: f.from, To: f.to, SrcPort: port}))
		}
		if len(ways[f]) != qps {
			t.Fatalf("%v has %d connections, not %d", f, len(ways[f]), qps)
		}
	}
	return slowdowns(flows, qps, func(f flow, i int) []string { return ways[f][i] })
}

const warmLimit = mono.Second

// TestECMP: collisions of hashed connections are those of chance. The model: each connection takes any spine with the same
// probability. Over 100 seeds the means of what flows lose, mean and worst, keep to the model's 95 % band (of all twelve figures
// together). The model itself gives what others computed for it.
func TestECMP(t *testing.T) {
	if testing.Short() {
		t.Skip("100 seeds of six networks")
	}
	const seeds, trials, band = 100, 2000, 2.87
	for _, c := range []struct {
		plan       string
		mul, add   int32
		qps        int
		mean, most float64 // published, 0 = not
	}{
		{"ls64-shift8-rocev2", 1, 8, 1, 1.88, 3.60}, {"ls64-shift8-rocev2", 1, 8, 4, 1.63, 2.23}, {"ls64-shift8-rocev2", 1, 8, 16, 1.36, 1.58},
		{"ls64-affine-rocev2", 37, 11, 1, 2.18, 3.81}, {"ls64-affine-rocev2", 37, 11, 4, 1.71, 2.29}, {"ls64-affine-rocev2", 37, 11, 16, 1.36, 1.60},
	} {
		model := chance(c.mul, c.add, c.qps, trials)
		var mean, most float64
		for seed := range uint64(seeds) {
			a, b := hashed(t, c.plan, c.qps, seed+1)
			mean, most = mean+a/seeds, most+b/seeds
		}
		t.Logf("%s, %d QPs: mean %.3f, worst %.3f; model %.3f ± %.3f, %.3f ± %.3f", c.plan, c.qps, mean, most,
			model[0].mean, 2*model[0].dev/math.Sqrt(seeds), model[1].mean, 2*model[1].dev/math.Sqrt(seeds))
		for i, got := range []float64{mean, most} {
			if d := math.Abs(got-model[i].mean) / (model[i].dev / math.Sqrt(seeds)); d > band {
				t.Errorf("%s, %d QPs, figure %d: %.3f, the model %.3f: %.1f standard errors", c.plan, c.qps, i, got, model[i].mean, d)
			}
			if want := []float64{c.mean, c.most}[i]; math.Abs(model[i].mean/want-1) > 0.03 {
				t.Errorf("%s, %d QPs: the model gives %.3f, published %.2f", c.plan, c.qps, model[i].mean, want)
			}
		}
	}
}

type figure struct{ mean, dev float64 }

// chance is the model: 64 hosts, eight at a leaf, eight spines, host s sends to mul·s + add.
func chance(mul, add int32, qps, trials int) (out [2]figure) {
	r := rng.New(1, "spines")
	var flows []flow
	for s := range int32(64) {
		flows = append(flows, flow{s, (mul*s + add) % 64})
	}
	var sum, squares [2]float64
	for range trials {
		ways := map[flow][][]string{}
		for _, f := range flows {
			for range qps {
				way := []string{fmt.Sprint("h", f.from)}
				if f.from/8 != f.to/8 {
					s := r.IntN(8)
					way = append(way, fmt.Sprint("u", f.from/8, s), fmt.Sprint("d", s, f.to/8))
				}
				ways[f] = append(ways[f], way)
			}
		}
		a, b := slowdowns(flows, qps, func(f flow, i int) []string { return ways[f][i] })
		for i, v := range []float64{a, b} {
			sum[i] += v
			squares[i] += v * v
		}
	}
	n := float64(trials)
	for i := range out {
		out[i] = figure{sum[i] / n, math.Sqrt(squares[i]/n - sum[i]/n*sum[i]/n)}
	}
	return out
}
