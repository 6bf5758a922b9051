package plan

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/nicemu/labfile"
)

// NodeKind is what stands at an end of a link.
type NodeKind string

// Nodes. The names are those of plan files and of result.Link.
const (
	HostNode  NodeKind = "host"
	LeafNode  NodeKind = "leaf"
	SpineNode NodeKind = "spine"
	AggNode   NodeKind = "agg"
	CoreNode  NodeKind = "core"
)

// Node is a host or a switch of a plane.
type Node struct {
	Kind  NodeKind
	Index int // aggregation switches are counted through all pods
}

// String returns the name, such as "leaf2".
func (n Node) String() string { return string(n.Kind) + strconv.Itoa(n.Index) }

// Target is what an Event hits.
type Target struct {
	All   bool // all links of all planes
	Last  bool // all links to hosts: the direction from the switch
	Plane int  // -1: all planes
	// Of: all links of this node; with To: the link between the two. Neither: the whole plane.
	Of, To *Node
}

// Count is the number of nodes of a kind in a plane.
func (t *Topology) Count(k NodeKind) int {
	switch {
	case k == HostNode:
		return t.Hosts
	case k == LeafNode:
		return t.Leaves()
	case k == SpineNode && (t.Kind == LeafSpine || t.Kind == Rail):
		return t.Spines
	case k == AggNode && t.Kind == FatTree:
		return t.Aggs * t.Pods()
	case k == CoreNode && t.Kind == FatTree:
		return t.Cores
	}
	return 0
}

// Linked reports whether two nodes of a plane are neighbours.
func (t *Topology) Linked(a, b Node) bool {
	rank := map[NodeKind]int{HostNode: 0, LeafNode: 1, SpineNode: 2, AggNode: 2, CoreNode: 3}
	if rank[a.Kind] > rank[b.Kind] {
		a, b = b, a
	}
	switch {
	case a.Kind == HostNode && b.Kind == LeafNode:
		return t.LeafOf(a.Index) == b.Index
	case a.Kind == LeafNode && b.Kind == SpineNode:
		return t.Kind == LeafSpine || t.Kind == Rail
	case a.Kind == LeafNode && b.Kind == AggNode:
		return t.PodOf(a.Index) == b.Index/t.Aggs
	case a.Kind == AggNode && b.Kind == CoreNode:
		first, end := t.CoresOf(a.Index)
		return first <= b.Index && b.Index < end
	}
	return false
}

// Target reads the target of an event. The topology must have been checked.
func (t *Topology) Target(s string) (Target, error) {
	word, rest, _ := strings.Cut(s, " ")
	rest = strings.TrimSpace(rest)
	none := func(to Target) (Target, error) {
		if rest != "" {
			return to, fmt.Errorf("%q: nothing follows %q", s, word)
		}
		return to, nil
	}
	switch word {
	case "links":
		return none(Target{All: true, Plane: -1})
	case "last":
		return none(Target{Last: true, Plane: -1})
	case "plane":
		p, err := t.index("plane", rest, t.Planes)
		return Target{Plane: p}, err
	case "host":
		h, err := t.index("host", rest, t.Hosts)
		return Target{Plane: -1, Of: &Node{HostNode, h}}, err
	case "link":
		return t.link(rest)
	case "leaf", "spine", "agg", "core":
		p, i, ok := strings.Cut(rest, "/")
		if !ok {
			return Target{}, fmt.Errorf("%q: a switch is written PLANE/NUMBER, such as %q", s, word+" 0/1")
		}
		plane, err := t.index("plane", p, t.Planes)
		if err != nil {
			return Target{}, err
		}
		n, err := t.node(word + i)
		return Target{Plane: plane, Of: &n}, err
	}
	known := []string{"plane", "host", "leaf", "spine", "agg", "core", "link", "last", "links"}
	if near := labfile.Nearest(word, known); near != "" {
		return Target{}, fmt.Errorf("unknown target %q; did you mean %q?", s, near)
	}
	return Target{}, fmt.Errorf("unknown target %q; such as \"plane 1\", \"spine 0/3\", \"host 5\", \"link 0/leaf2-spine3\", \"last\", \"links\"", s)
}

func (t *Topology) index(what, s string, n int) (int, error) {
	i, err := strconv.Atoi(s)
	if err != nil || i < 0 || i >= n {
		return 0, fmt.Errorf("no %s %q; there are 0 to %d", what, s, n-1)
	}
	return i, nil
}

// node reads a name such as leaf2.
func (t *Topology) node(s string) (Node, error) {
	digits := strings.IndexAny(s, "0123456789")
	if digits < 0 {
		return Node{}, fmt.Errorf("%q is not a node such as leaf2", s)
	}
	k := NodeKind(s[:digits])
	n := t.Count(k)
	if n == 0 {
		return Node{}, fmt.Errorf("a %s has no %s", t.Kind, strconv.Quote(string(k)))
	}
	i, err := t.index(string(k), s[digits:], n)
	return Node{k, i}, err
}

func (t *Topology) link(s string) (Target, error) {
	p, ends, ok := strings.Cut(s, "/")
	one, two, ok2 := strings.Cut(ends, "-")
	if !ok || !ok2 {
		return Target{}, fmt.Errorf("%q is not a link such as 0/leaf2-spine3", s)
	}
	plane, err := t.index("plane", p, t.Planes)
	if err != nil {
		return Target{}, err
	}
	a, err := t.node(one)
	if err != nil {
		return Target{}, err
	}
	b, err := t.node(two)
	if err != nil {
		return Target{}, err
	}
	if !t.Linked(a, b) {
		hint := ""
		if a.Kind == HostNode && b.Kind == LeafNode {
			hint = fmt.Sprintf("; host%d hangs on leaf%d", a.Index, t.LeafOf(a.Index))
		}
		return Target{}, fmt.Errorf("%v and %v are not linked%s", a, b, hint)
	}
	return Target{Plane: plane, Of: &a, To: &b}, nil
}
