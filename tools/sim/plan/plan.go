// Package plan is what a simulation is told: topology, switches, transport, workload, events. Parse reads a plan file and
// says of each mistake where it is (file:line), what is wrong and what is expected.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"

	"github.com/metaroce/metaroce/internal/mono"
)

// Plan is one simulation.
type Plan struct {
	Name      string
	Title     string // what it shows, a line
	Seed      uint64
	Topology  Topology
	Switch    Switch
	Transport Transport
	Workload  []Work  // parts that begin at their Start and run side by side
	Events    []Event // in order of At
	Run       Run

	File  string   `json:"-"` // its name, for messages; the files that it names are beside it
	Notes []string `json:"-"` // what is allowed but seldom meant, each with file:line
}

// Path returns where a file that the plan names is: beside the plan.
func (p *Plan) Path(file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(filepath.Dir(p.File), file)
}

// Digest is the SHA-256 of all that a plan says, defaults included and comments not: the same digest and the same program
// give the same result. Files that a workload names count with the content that Load saw.
func Digest(p *Plan) string {
	b, err := json.Marshal(p)
	if err != nil {
		panic("plan: " + err.Error()) // a Plan holds nothing that JSON cannot
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Kind of a topology.
type Kind string

// Topologies. Planes are separate networks of the same kind; only hosts belong to all of them.
const (
	Single    Kind = "switch"     // all hosts at one switch
	LeafSpine Kind = "leaf-spine" // Leaf hosts at each leaf switch, each leaf linked to each of Spines
	FatTree   Kind = "fat-tree"   // three tiers: pods of Pod hosts with Pod/Leaf leaves and Aggs aggregation switches, Cores core switches
	Rail      Kind = "rail"       // host h of a group of Group hosts (GPUs of a server) hangs on the leaf of rail h mod Group; leaves as in leaf-spine
)

// Topology of every plane.
type Topology struct {
	Kind   Kind
	Hosts  int
	Planes int // default 1
	Leaf   int // hosts at a leaf; rail: servers at a leaf
	Spines int
	Pod    int // fat-tree: hosts in a pod
	Aggs   int // fat-tree: aggregation switches in a pod
	Cores  int // fat-tree: core switches; each aggregation switch a is linked to cores a*Cores/Aggs … (a+1)*Cores/Aggs-1
	Group  int // rail: GPUs, each a host here, in a server
	Ports  int // that a switch has at most; 0 = as many as it takes

	RateBps  uint64 // of links to hosts
	UpBps    uint64 // of links between switches; default RateBps
	Delay    mono.Duration
	UpDelay  mono.Duration // default Delay
	MTU      int           // payload bytes of a packet: 256 … 4096
	Header   int           // bytes from BTH to ICRC beside the payload, in a full packet: by the transport; 0 = HeaderBytes
	Overhead int           // bytes on the wire beside BTH … ICRC; default 66: Ethernet with preamble and gap, IP, UDP
	// RateUnknown: NICs are not told their wires' rate.
	RateUnknown bool
}

// Switch is what stands in front of each switch port. Sizes are bytes.
type Switch struct {
	Queue        int // tail drop above; 0 = no bound. Written as bytes or as a multiple of the bandwidth-delay product ("1 BDP")
	ECNMin       int // RED-like marks between, of every packet above; 0 = none
	ECNMax       int
	ECNProb      float64 // probability at ECNMax just below it; default 1
	Trim         bool    // what does not fit is cut to its headers and goes on in the control class
	ControlClass bool    // DSCP 48 passes data's queues; default true for metaroce
	PFC          PFC
}

// PFC is priority flow control of the data class, per ingress port. Off when XOFF is 0.
type PFC struct {
	XOFF, XON int // bytes of an ingress port that wait in the switch
	Headroom  int // bytes that are still taken after XOFF before something is dropped
}

// TransportKind names a transport.
type TransportKind string

// Transports.
const (
	MetaRoCE TransportKind = "metaroce"
	RoCEv2   TransportKind = "rocev2"
	Ideal    TransportKind = "ideal" // fluid: sends at what max–min fairness gives it, loses nothing
)

// NICKind says how much of the NIC is simulated.
type NICKind string

// NICs. Both run the engines of package transport.
const (
	NICDevice NICKind = "device" // device.Step whole: queues in shared memory, doorbells, completions
	NICEngine NICKind = "engine" // the engine alone, for thousands of hosts
)

// DCQCNKind says whose constants DCQCN has.
type DCQCNKind string

// Constants of DCQCN.
const (
	DCQCNPaper DCQCNKind = "paper" // Zhu et al., SIGCOMM 2015; the increases go with the line rate
	DCQCNHPCC  DCQCNKind = "hpcc"  // of HPCC's ns-3 model in the mode that it names after a vendor's NICs
)

// Transport of all hosts.
type Transport struct {
	Kind   TransportKind
	NIC    NICKind
	Verify bool // NIC device: packets carry their payload, and what is placed is compared with what was to be sent there
	// MetaRoCE
	Paths   int     // a plane and peer; 0 = the profile's
	Profile string  // of congestion control
	Twin    float64 // share of second copies of one-packet messages
	// RoCEv2
	QPs       int           // connections that each pair's messages are striped over; default 1
	DCQCN     bool          // default true
	Constants DCQCNKind     // of DCQCN; default paper
	NAKOnce   bool          // one NAK a gap, as IBTA has it: what is lost again waits for the timer
	RTO       mono.Duration // retransmission timer; default 67 ms (perftest's timeout 14)
	RCPlane   int           // plane used; -1 = each connection on the plane of its hash
	Adaptive  bool          // switches choose the least loaded uplink for each packet instead of hashing flows
	WindowBDP float64       // 0 = the engine's
}

// Pattern of a workload part.
type Pattern string

// Patterns.
const (
	Permutation Pattern = "permutation"    // host i to (Mul*i + Add) mod n
	Incast      Pattern = "incast"         // Senders hosts to Target
	AllToAll    Pattern = "all-to-all"     // every pair
	RingReduce  Pattern = "ring"           // all-reduce: 2(n-1) steps to the next host
	TreeReduce  Pattern = "tree"           // all-reduce: double binary tree
	Halving     Pattern = "halving"        // all-reduce: recursive halving and doubling; n a power of two
	AllGather   Pattern = "all-gather"     // ring
	ReduceScat  Pattern = "reduce-scatter" // ring
	Pairs       Pattern = "pairs"          // host i to host i + n/2
	ConnMatrix  Pattern = "cm"             // an htsim connection matrix
	GOAL        Pattern = "goal"           // a GOAL schedule (text)
)

// Work is one part of the workload.
type Work struct {
	Pattern Pattern
	Hosts   []int // which take part, in the order in which patterns count them; empty = all
	Size    int64 // bytes: of each message; all-reduce, all-gather and reduce-scatter: of the whole buffer of a host
	Start   mono.Duration
	Repeat  int   // times in a row, each when all of the one before is acknowledged; default 1
	Slice   int64 // tree: bytes of a piece of its pipeline; default 128 KiB
	Mul     int   // permutation
	Add     int
	Senders int // incast: the first ones of Hosts that are not the Target
	Target  int // a host
	// Outstanding bounds the messages that a host has under way in all-to-all (0 = all at once).
	Outstanding int
	// Acked: a step begins when the message that it needs has been acknowledged to its sender, as htsim's send_done_trigger
	// has it, and not when it has been received.
	Acked bool
	File  string // cm, goal
	Sum   string // SHA-256 of File as Load saw it
	Line  int    `json:"-"` // in the plan
}

// Event changes something at a time.
type Event struct {
	At  mono.Duration
	For mono.Duration // 0 = for good
	// What: one of these, as text: "plane 1", "spine 0/3" (plane/index), "leaf 0/2", "agg 0/3", "core 0/1", "host 5",
	// "link 0/leaf2-spine3" (both directions), "link 0/host5-leaf0", "last" (all links to hosts), "links" (all).
	Target string
	Change Change
	Line   int `json:"-"`
}

// Change is what an event does to links. Zero fields change nothing; what was before comes back after For.
type Change struct {
	Down     bool
	Loss     float64       // share of packets
	Burst    float64       // mean length of bursts
	DataOnly bool          // Loss hits packets with payload only
	Slow     float64       // rate is divided by it
	Delay    mono.Duration // added
	Flap     mono.Duration // goes down and up with this period, half of it each
}

// Run says when it ends and what is measured.
type Run struct {
	Until mono.Duration // virtual time; the run ends earlier when all messages have ended. Default 10 s
	// Steady: messages are posted again and again (Depth at a time each pair), and goodput from Warm to Until is measured.
	Steady bool
	Warm   mono.Duration
	Depth  int
	Bin    mono.Duration // of the time line; 0 = a hundredth of the run
	Flows  bool          // list every flow in the result, where they are 100,000 at most; default true
	All    bool          // list them however many they are
}
