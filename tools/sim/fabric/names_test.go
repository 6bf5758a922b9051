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
