package fabric

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// TestNamesArePlans: the links of a network are those that its plan's topology says, under the same names.
func TestNamesArePlans(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(topologies)) {
		topo := topologies[name]
		n := New(Config{Topology: topo, Switch: &plan.Switch{}, Seed: 1, Threads: 1, Start: 1000})
		there := map[string]bool{}
		for i := range n.Links() {
			plane, ends, _ := strings.Cut(n.Link(i).Name, "/")
			a, b, _ := strings.Cut(ends, ">")
			target := "link " + plane + "/" + a + "-" + b
			if _, err := topo.Target(target); err != nil {
				t.Errorf("%s: the fabric has %s: %v", name, n.Link(i).Name, err)
			}
			there[n.Link(i).Name] = true
		}
		kinds := []plan.NodeKind{plan.HostNode, plan.LeafNode, plan.SpineNode, plan.AggNode, plan.CoreNode}
		links := 0
		for _, x := range kinds {
			for _, y := range kinds {
				for i := range topo.Count(x) {
					for j := range topo.Count(y) {
						a, b := plan.Node{Kind: x, Index: i}, plan.Node{Kind: y, Index: j}
						if topo.Linked(a, b) {
							links++
							if s := "0/" + a.String() + ">" + b.String(); !there[s] {
								t.Errorf("%s: the fabric has no %s", name, s)
							}
						}
					}
				}
			}
		}
		if links*topo.Planes != n.Links() {
			t.Errorf("%s: %d links, the plan says %d in each of %d planes", name, n.Links(), links, topo.Planes)
		}
	}
}

// TestTargets: what a plan allows as a target, however it is written, the fabric finds.
func TestTargets(t *testing.T) {
	topo := &plan.Topology{Kind: plan.LeafSpine, Hosts: 12, Leaf: 3, Spines: 2, Planes: 2, RateBps: 1e9, UpBps: 1e9, Delay: 1000, UpDelay: 1000, MTU: 4096}
	n := New(Config{Topology: topo, Switch: &plan.Switch{}, Seed: 1, Threads: 1, Start: 1000})
	for _, x := range []struct {
		target string
		ports  int
	}{{"links", 2 * 2 * (12 + 8)}, {"last", 24}, {"plane 1", 40}, {"plane  1", 40}, {"spine 0/1", 8}, {"spine 0/01", 8}, {"leaf 1/02", 10}, {"host 05", 4},
		{"link 0/leaf02-spine1", 2}, {"link 1/host04-leaf01", 2}} {
		ports, err := n.Targets(x.target)
		if _, e := topo.Target(x.target); e != nil || err != nil || len(ports) != x.ports {
			t.Errorf("%q: %d ports, want %d; %v, %v", x.target, len(ports), x.ports, err, e)
		}
	}
}
