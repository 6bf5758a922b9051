// Package work turns the workload of a plan into messages and what each of them waits for.
package work

import "github.com/metaroce/metaroce/internal/mono"

// Message is one RDMA WRITE with immediate.
type Message struct {
	From, To int32
	Size     int64     // bytes. From == To: a calculation that takes Start and moves nothing
	Start    mono.Time // not before, from the start of the run; with edges: so long after the last of them
	Group    int32     // index in Graph.Groups
	Step     int32     // of its collective, for reports
	// Edges[FirstEdge : FirstEdge+Edges] of the Graph is what it waits for.
	FirstEdge, Edges int32
}

// Edge is something that a message waits for.
type Edge struct {
	Msg   int32
	Acked bool // the sender's completion counts, not the receiver's
}

// Group is a part of the workload: what is reported as one collective.
type Group struct {
	Name  string // pattern and size, such as "ring 64 MiB"
	Kind  string // plan.Pattern
	Size  int64
	Hosts int
	// BusFactor: bus bandwidth = Size / time * BusFactor, as nccl-tests defines it; 0 = none.
	BusFactor float64
}

// Graph is the whole workload.
type Graph struct {
	Messages []Message
	Edges    []Edge
	Groups   []Group
}
