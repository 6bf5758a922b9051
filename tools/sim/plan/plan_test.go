package plan

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/internal/mono"
)

// base is a right plan; cases change lines of it.
const base = `name: base
topology: {kind: leaf-spine, hosts: 64, leaf: 8, spines: 8, rate: 100Gbit, delay: 1us, overhead: 16}
switch: {queue: 29 pkt, ecn_min: 0.2 BDP, ecn_max: 0.8 BDP}
transport: {kind: metaroce}
workload:
  - {pattern: permutation, size: 8MiB, add: 8}
events:
  - {at: 100us, target: spine 0/3, down: true}
run: {until: 100ms}
`

func TestDefaults(t *testing.T) {
	p, err := Parse("dir/base.yaml", []byte("topology: {kind: switch, hosts: 4, rate: 400Gbit}\nworkload: [{pattern: pairs, size: 1MiB}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := p.Workload[0]
	if p.Name != "base" || p.Seed != 1 || p.Topology.Planes != 1 || p.Topology.Overhead != 66 || p.Topology.MTU != 4096 ||
		p.Topology.UpBps != 400e9 || p.Topology.UpDelay != p.Topology.Delay || p.Topology.Delay != mono.Microsecond {
		t.Errorf("%+v", p)
	}
	if !p.Switch.ControlClass || p.Switch.ECNProb != 1 || p.Switch.Queue < p.Topology.BDP() || p.Transport.RCPlane != -1 || p.Transport.DCQCN {
		t.Errorf("%+v %+v", p.Switch, p.Transport)
	}
	if w.Repeat != 1 || w.Line != 2 || p.Run.Until != 10*mono.Second || !p.Run.Flows || p.Run.All {
		t.Errorf("%+v %+v", w, p.Run)
	}
	if p.Path("x.cm") != filepath.Join("dir", "x.cm") || p.Path("/x.cm") != "/x.cm" {
		t.Error(p.Path("x.cm"))
	}
}

// TestHtsimNumbers: round trips, queues and thresholds of the networks of htsim's comparison (docs/sim.md).
func TestHtsimNumbers(t *testing.T) {
	ls := "kind: leaf-spine, hosts: 64, leaf: 8, spines: 8"
	ft := "kind: fat-tree, hosts: 64, pod: 16, leaf: 4, aggs: 4, cores: 16"
	for _, c := range []struct {
		kind, rate             string
		rtt                    mono.Duration
		queue, ecnMin, ecnMax  int
		leaves, pods, diameter int
	}{
		{ls, "100Gbit", 9352, 29 * 4160, 24960, 99840, 8, 1, 2},
		{ls, "400Gbit", 8338, 101 * 4160, 87360, 336960, 8, 1, 2},
		{ft, "100Gbit", 14028, 43 * 4160, 37440, 145600, 16, 4, 3},
		{ft, "400Gbit", 12507, 151 * 4160, 128960, 503360, 16, 4, 3},
	} {
		p, err := Parse("x.yaml", []byte("topology: {"+c.kind+", overhead: 16, rate: "+c.rate+"}\nworkload: [{pattern: ring, size: 1MiB}]\nswitch: {queue: 1 BDP}"))
		if err != nil {
			t.Fatal(err)
		}
		top := &p.Topology
		if top.RTT() != c.rtt || top.WireBytes() != 4160 || p.Switch.Queue != c.queue {
			t.Errorf("%s %s: RTT %d want %d, packet %d, queue %d want %d", c.kind, c.rate, top.RTT(), c.rtt, top.WireBytes(), p.Switch.Queue, c.queue)
		}
		// htsim takes its thresholds of the queue in whole packets.
		pkts := c.queue / 4160
		if (pkts*2+9)/10*4160 != c.ecnMin || (pkts*8+9)/10*4160 != c.ecnMax {
			t.Errorf("thresholds of %d packets", pkts)
		}
		if top.Leaves() != c.leaves || top.Pods() != c.pods || top.Tiers() != c.diameter {
			t.Errorf("%v: %d leaves, %d pods, %d tiers", top, top.Leaves(), top.Pods(), top.Tiers())
		}
	}
}

func TestGood(t *testing.T) {
	p, err := Parse("x.yaml", []byte(`
seed: 0x13
topology: {kind: rail, hosts: 64, group: 8, leaf: 4, spines: 4, rate: 400Gbit, up_rate: 200Gbit, planes: 2, ports: 16}
switch: {queue: none, ecn_min: 100KiB, ecn_max: 400KiB, ecn_prob: 20%, pfc: {xoff: 15 pkt, xon: 12 pkt}}
transport: {kind: rocev2, qps: 4, rto: 1ms, rc_plane: 1}
workload:
  - {pattern: incast, hosts: [0, 8-39], senders: 32, target: 0, size: 1MiB, start: 5us}
  - {pattern: ring, hosts: 0-62/2, size: 1000000B, acked: true, repeat: 3}
events:
  - {at: 2ms, for: 1ms, target: host 5, loss: 5%, burst: 4, data_only: true}
  - {at: 1ms, target: link 0/host5-leaf10, slow: 4}
  - {at: 1ms, target: links, flap: 100us}
run: {flows: all}
`))
	if err != nil {
		t.Fatal(err)
	}
	w := p.Workload
	if p.Seed != 0x13 || len(w[0].Hosts) != 33 || w[0].Hosts[1] != 8 || len(w[1].Hosts) != 32 || w[1].Hosts[31] != 62 || !p.Run.All {
		t.Errorf("%+v", p)
	}
	if !p.Transport.DCQCN || p.Switch.Queue != 0 || p.Switch.PFC.Headroom == 0 || p.Switch.ECNProb != 0.2 || p.Switch.ControlClass {
		t.Errorf("%+v %+v", p.Transport, p.Switch)
	}
	if p.Events[0].Target != "link 0/host5-leaf10" || p.Events[2].At != 2*mono.Millisecond || p.Events[2].Change.Loss != 0.05 {
		t.Errorf("events are not in order: %+v", p.Events)
	}
}

// TestMistakes: each is told with its line, what is wrong and what is expected.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"topology:", "topolgy:", `x.yaml:2: unknown key "topolgy" in the plan; did you mean "topology"?`},
		{"queue: 29", "quue: 29", `x.yaml:3: unknown key "quue" in switch; did you mean "queue"?`},
		{"kind: leaf-spine", "kind: leafspine", `did you mean "leaf-spine"?`},
		{"rate: 100Gbit", "rate: 100Gbyte", `x.yaml:2: rate: "100Gbyte" is not a rate such as 10Gbit`},
		{"rate: 100Gbit", "rate: 0", `x.yaml:2: rate: "0": a link needs a rate such as 100Gbit`},
		{"delay: 1us", "delay: 1", `delay: "1" is not a time such as 20us`},
		{"hosts: 64", "hosts: 60", `leaf: 8 does not divide the hosts, 60`},
		{"hosts: 64", "hosts: 1", `hosts: "1" is not a number from 2`},
		{"spines: 8, ", "", "a leaf-spine needs `leaf:`, `spines:`"},
		{"spines: 8", "spines: 8, cores: 4", "a leaf-spine has no `cores:`"},
		{"spines: 8", "spines: 8, ports: 12", "ports: a leaf needs 16 ports (8 down, 8 up), but has 12"},
		{"kind: leaf-spine, hosts: 64, leaf: 8, spines: 8", "kind: switch, hosts: 64, ports: 32", "a switch needs 64 ports"},
		{"leaf-spine, hosts: 64, leaf: 8, spines: 8", "fat-tree, hosts: 64, pod: 16, leaf: 4, aggs: 3, cores: 16", "aggs: 3 does not divide the cores, 16"},
		{"leaf-spine, hosts: 64, leaf: 8, spines: 8", "fat-tree, hosts: 64, pod: 16, leaf: 5, aggs: 4, cores: 16", "leaf: 5 does not divide the hosts of a pod"},
		{"leaf-spine, hosts: 64, leaf: 8", "rail, hosts: 64, group: 6, leaf: 8", "group: 6 does not divide the hosts"},
		{"delay: 1us", "delay: 1us, mtu: 1500", "mtu: 1500 is not a path MTU"},
		{"delay: 1us", "delay: 1us, planes: 17", `planes: "17" is not a number from 1 to 16`},
		{"queue: 29 pkt", "queue: 0.9 BDPs", `is not a size such as 256KiB, "29 pkt" or "1 BDP"`},
		{"queue: 29 pkt", "queue: 100", "queue: 100 bytes are less than one full packet"},
		{"ecn_min: 0.2", "ecn_min: 0.9", "is above ecn_max"},
		{"{kind: metaroce}", "{kind: metaroce, qps: 4}", "x.yaml:4: qps: is for rocev2, but the transport is metaroce"},
		{"{kind: metaroce}", "{kind: rocev2, paths: 4}", "paths: is for metaroce"},
		{"ecn_min: 0.2 BDP, ecn_max: 0.8 BDP}\ntransport: {kind: metaroce}", "}\ntransport: {kind: rocev2}", "DCQCN lives on marks"},
		{"ecn_min: 0.2 BDP, ecn_max: 0.8 BDP}\ntransport: {kind: metaroce}", "ecn_max: 9 pkt, trim: true}\ntransport: {kind: rocev2}",
			"RoCEv2 does not know trimmed"},
		{"pattern: permutation", "pattern: permutaton", `unknown pattern "permutaton"; did you mean "permutation"?`},
		{"size: 8MiB, ", "", "x.yaml:6: permutation needs `size:`"},
		{"add: 8", "add: 64", "the host at 0 of 64 sends to itself"},
		{"add: 8", "add: 8, mul: 4", "mul: 4 and the 64 hosts have the divisor 4 in common"},
		{"add: 8", "mul: 37", "permutation needs `add:`"},
		{"add: 8", "add: 8, acked: true", "acked: means nothing to permutation"},
		{"permutation, size: 8MiB, add: 8", "incast, size: 8MiB, senders: 64", `senders: "64" is not a number from 1 to 63`},
		{"permutation, size: 8MiB, add: 8", "incast, size: 8MiB, hosts: 0-7, senders: 8", "senders: 8, but only 7 hosts are not the target"},
		{"permutation, size: 8MiB, add: 8", "halving, size: 8MiB, hosts: 0-11", "halving: 12 hosts are not a power of two"},
		{"permutation, size: 8MiB, add: 8", "pairs, size: 8MiB, hosts: 0-2", "pairs: 3 hosts do not come in pairs"},
		{"permutation, size: 8MiB, add: 8", "cm", "cm needs `file:`"},
		{"add: 8", "add: 8, hosts: [0-7, 3]", "hosts: host 3 is named twice"},
		{"add: 8", "add: 8, hosts: 60-64", `hosts: "60-64" is not a host from 0 to 63`},
		{"spine 0/3", "spine 0/8", `x.yaml:8: target: no spine "8"; there are 0 to 7`},
		{"spine 0/3", "spine 1/3", `target: no plane "1"; there are 0 to 0`},
		{"spine 0/3", "core 0/3", `a leaf-spine has no "core"`},
		{"spine 0/3", "spin 0/3", `did you mean "spine"?`},
		{"spine 0/3", "link 0/host9-leaf0", "host9 and leaf0 are not linked; host9 hangs on leaf1"},
		{"spine 0/3", "link 0/leaf0-leaf1", "are not linked"},
		{"down: true", "loss: 101%", `loss: "101%" is not within 0% and 100%`},
		{"down: true", "loss: 0.5", `"0.5" needs a percent sign`},
		{"down: true", "down: false", "the event changes nothing"},
		{"down: true", "burst: 4, down: true", "burst and data_only say how loss: is"},
		{"down: true", "loss: 95%, burst: 2", "bursts of 2 cannot lose more than"},
		{"until: 100ms", "steady: true", "a steady run needs `until:`"},
		{"until: 100ms", "until: 1ms, warm: 2us", "warm: is for steady: true"},
		{"until: 100ms", "until: 0", "until: a run lasts longer than 0"},
		{"name: base", "title: a: b", "not allowed in this context; text with a colon needs quotes"},
		{"name: base", "name: base\nname: base", `x.yaml:2: "name" is given twice`},
		{"run: {", "run: [", "x.yaml:8: did not find"},
	} {
		text := strings.Replace(base, c.from, c.to, 1)
		if text == base {
			t.Fatalf("%q is not in the plan", c.from)
		}
		_, err := Parse("x.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s → %s:\n got %v\nwant %s", c.from, c.to, err, c.want)
		}
		if fail.Code(err) != fail.Usage {
			t.Errorf("%s → %s: exit code %d", c.from, c.to, fail.Code(err))
		}
	}
	if _, err := Parse("x.yaml", nil); err == nil || !strings.Contains(err.Error(), "x.yaml:1: the file is empty") {
		t.Error(err)
	}
}

func TestManyMistakes(t *testing.T) {
	text := strings.Replace(base, "events:", "events:"+strings.Repeat("\n  - {at: 1us, target: spine 0/9, down: true}", 12), 1)
	_, err := Parse("x.yaml", []byte(text))
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxErrors+1 || !strings.HasPrefix(lines[9], "x.yaml:17:") || lines[10] != "and 2 more" {
		t.Errorf("%d lines: %v", len(lines), err)
	}
	var e *Error
	if !errors.As(err, &e) || e.Line != 8 {
		t.Errorf("%+v", e)
	}
}

func TestOverrides(t *testing.T) {
	p, err := ParseWith("x.yaml", []byte(base), map[string]string{
		"topology.hosts": "32", "topology.planes": "4", "events[0].loss": "5%", "events[0].down": "", "workload[0].size": "64KiB", "transport.kind": "rocev2",
		"transport.dcqcn": "false", "run.bin": "1ms", "switch.pfc": "{xoff: 15 pkt}", "seed": "7",
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.Topology.Hosts != 32 || p.Topology.Planes != 4 || p.Events[0].Change.Loss != 0.05 || p.Events[0].Change.Down || p.Workload[0].Size != 64<<10 ||
		p.Transport.Kind != RoCEv2 || p.Run.Bin != mono.Millisecond || p.Switch.PFC.XOFF != 15*4128 || p.Seed != 7 {
		t.Errorf("%+v", p)
	}
	for _, c := range []struct{ path, value, want string }{
		{"transport.knd", "rocev2", `x.yaml: with transport.knd=rocev2: unknown key "knd" in transport; did you mean "kind"?`},
		{"topolgy.hosts", "4", `unknown key "topolgy" in the plan; did you mean "topology"?`},
		{"topology.hosts", "63", `x.yaml:2: leaf: 8 does not divide the hosts, 63`},
		{"topology.rate", "0", `x.yaml: with topology.rate=0: rate: "0": a link needs`},
		{"events[1].loss", "5%", "events has 1 entries"},
		{"workload.size", "5", "workload holds no keys"},
		{"evnts[0].loss", "5%", "there is no list evnts"},
		{"topology.hosts.x", "5", "topology.hosts holds no keys"},
		{"events[x]", "5", "is not a path"},
		{"run.bin", "", "there is no run.bin to take away"},
		{"seed", "[", "the value is not YAML"},
	} {
		_, err := ParseWith("x.yaml", []byte(base), map[string]string{c.path: c.value})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s:\n got %v\nwant %s", c.path, c.value, err, c.want)
		}
	}
}

func TestNotes(t *testing.T) {
	p, err := Parse("x.yaml", []byte(strings.Replace(base, "queue: 29 pkt", "pfc: {xoff: 15 pkt}", 1)))
	if err != nil || len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], "x.yaml:3: PFC with metaroce") {
		t.Errorf("%v %q", err, p.Notes)
	}
}

func TestDigest(t *testing.T) {
	digest := func(text string, over map[string]string) string {
		p, err := ParseWith("x.yaml", []byte(text), over)
		if err != nil {
			t.Fatal(err)
		}
		return Digest(p)
	}
	one := digest(base, nil)
	if digest("# a comment\n\n"+base, nil) != one || digest(base, map[string]string{"topology.mtu": "4096"}) != one {
		t.Error("a comment or a default written out changes the digest")
	}
	if digest(base, map[string]string{"seed": "2"}) == one || digest(base, map[string]string{"events[0].target": "spine 0/4"}) == one {
		t.Error("another plan has the same digest")
	}
}

func TestLoadLooksForFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.yaml")
	text := "topology: {kind: switch, hosts: 4, rate: 1Gbit}\nworkload:\n  - {pattern: cm, file: m.cm}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), file+":3: file: open "+filepath.Join(dir, "m.cm")) {
		t.Error(err)
	}
	for i, body := range []string{"Nodes 2", "Nodes 3"} {
		if err := os.WriteFile(filepath.Join(dir, "m.cm"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Load(file)
		if err != nil || (p.Workload[0].Sum == "") || i == 1 && p.Workload[0].Sum == text {
			t.Errorf("%v %+v", err, p)
		}
	}
	if _, err := Load(filepath.Join(dir, "no.yaml")); fail.Code(err) != fail.Usage {
		t.Error(err)
	}
}

// TestNeighbours: each host hangs on one leaf, and links between switches are as many as the switches have ports for.
func TestNeighbours(t *testing.T) {
	for _, text := range []string{
		"kind: switch, hosts: 8", "kind: leaf-spine, hosts: 24, leaf: 4, spines: 3", "kind: rail, hosts: 64, group: 8, leaf: 2, spines: 5",
		"kind: fat-tree, hosts: 48, pod: 16, leaf: 4, aggs: 2, cores: 6",
	} {
		p, err := Parse("x.yaml", []byte("topology: {rate: 1Gbit, "+text+"}\nworkload: [{pattern: ring, size: 1}]"))
		if err != nil {
			t.Fatal(err)
		}
		top := &p.Topology
		links := func(a, b NodeKind) (n int) {
			for i := range top.Count(a) {
				for j := range top.Count(b) {
					x, y := Node{a, i}, Node{b, j}
					if top.Linked(x, y) != top.Linked(y, x) {
						t.Errorf("%s: %v and %v", text, x, y)
					}
					if top.Linked(x, y) {
						n++
					}
				}
			}
			return n
		}
		r := top.radix()
		if links(HostNode, LeafNode) != top.Hosts {
			t.Errorf("%s: hosts have %d links", text, links(HostNode, LeafNode))
		}
		up := links(LeafNode, SpineNode) + links(LeafNode, AggNode)
		if up != top.Leaves()*r[0].up || top.Kind == FatTree && links(AggNode, CoreNode) != top.Count(AggNode)*r[1].up {
			t.Errorf("%s: leaves have %d links up, %+v", text, up, r)
		}
		load := map[int]int{}
		for h := range top.Hosts {
			load[top.LeafOf(h)]++
		}
		for leaf := range top.Leaves() {
			if load[leaf] != r[0].down {
				t.Errorf("%s: leaf %d has %d hosts", text, leaf, load[leaf])
			}
		}
	}
}

// TestLong: rates and times whose product has more than 64 bits.
func TestLong(t *testing.T) {
	for _, x := range []struct{ rate, delay, bdp string }{{"400Gbit", "100ms", "20000000000"}, {"100Gbit", "1us", "50000"}, {"100Tbit", "3600s", "180000000000000000"}} {
		p, err := Parse("x.yaml", []byte("topology: {kind: switch, hosts: 2, overhead: 0, rate: "+x.rate+", delay: "+x.delay+"}\nworkload: [{pattern: pairs, size: 1}]\n"+
			"switch: {queue: none, pfc: {xoff: 100kB}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := strconv.ParseFloat(x.bdp, 64)
		if got := float64(p.Topology.BDP()); got < want || got > want*1.2+10000 {
			t.Errorf("%s over %s: %.0f bytes, at least %s", x.rate, x.delay, got, x.bdp)
		}
		if got := float64(p.Switch.PFC.Headroom); got < want/2 || got > want/2*1.01+10000 { // what two delays carry; the BDP is of four
			t.Errorf("%s over %s: a headroom of %.0f bytes, the BDP is %s", x.rate, x.delay, got, x.bdp)
		}
	}
}

// TestHostSteps: a step beyond all hosts takes the first one of a range.
func TestHostSteps(t *testing.T) {
	p, err := Parse("x.yaml", []byte("topology: {kind: switch, hosts: 8, rate: 1Gbit}\nworkload: [{pattern: ring, size: 64KiB, hosts: [\"1-5/9223372036854775807\", \"2-7/5\"]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 2, 7}; !slices.Equal(p.Workload[0].Hosts, want) {
		t.Errorf("hosts %v, want %v", p.Workload[0].Hosts, want)
	}
}

// TestTooManyLinks: a network that no memory holds is a mistake in the plan.
func TestTooManyLinks(t *testing.T) {
	for topology, want := range map[string]string{
		"kind: leaf-spine, hosts: 1048576, leaf: 1, spines: 65536":                   "x.yaml:1: a network of 68720525312 links",
		"kind: fat-tree, hosts: 1048576, pod: 2, leaf: 1, aggs: 65536, cores: 65536": "x.yaml:1: a network of",
		"kind: leaf-spine, hosts: 1048576, leaf: 1024, spines: 1024, planes: 8":      "",
	} {
		_, err := Parse("x.yaml", []byte("topology: {"+topology+", rate: 1Gbit}\nworkload: [{pattern: ring, size: 1}]\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", topology, err, want)
		}
	}
}

// TestNeverEnds: what would stop the clock, or never begin.
func TestNeverEnds(t *testing.T) {
	const head = "topology: {kind: switch, hosts: 4, rate: 1Gbit}\nworkload:\n  - {pattern: pairs, size: 1KiB"
	for text, want := range map[string]string{
		"}\nevents:\n  - {target: host 1, flap: 1ns}\n":               "x.yaml:5: flap: half of a nanosecond",
		"}\nevents:\n  - {target: host 1, flap: 2ns}\n":               "",
		", repeat: 2}\nrun: {steady: true, until: 1ms}\n":             "x.yaml:3: repeat: steady runs go on",
		", repeat: 1, start: 3us}\nrun: {steady: true, until: 1ms}\n": "",
	} {
		if _, err := Parse("x.yaml", []byte(head+text)); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
