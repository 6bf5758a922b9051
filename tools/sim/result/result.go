// Package result is what came of a simulation, as it is written to JSON and CSV, drawn and compared with goals.
package result

// Result is one run. Times are seconds of virtual time, sizes bytes, rates bits a second, shares 0 … 1.
type Result struct {
	Plan    string  `json:"plan"`
	Title   string  `json:"title,omitempty"`
	Seed    uint64  `json:"seed"`
	Commit  string  `json:"commit,omitempty"`
	Partial bool    `json:"partial"`       // interrupted, or Until came before the last message
	Why     string  `json:"why,omitempty"` // of Partial
	Summary Summary `json:"summary"`
	Groups  []Group `json:"groups"`
	Flows   []Flow  `json:"flows,omitempty"`
	Line    []Bin   `json:"line,omitempty"`
	Links   []Link  `json:"links,omitempty"`
	Setup   Setup   `json:"setup"`
	Cost    Cost    `json:"cost"` // of the simulation itself: not part of the hash
	Hash    string  `json:"hash"` // of all but Cost, Commit: the same seed gives the same
}

// Setup repeats what the plan came to: a report must be readable without it.
type Setup struct {
	Topology   string  `json:"topology"`
	Hosts      int     `json:"hosts"`
	Planes     int     `json:"planes"`
	RateBps    uint64  `json:"rate_bps"`
	MTU        int     `json:"mtu"`
	WireBytes  int     `json:"wire_bytes"` // of a full packet
	RTT        float64 `json:"rtt_s"`      // unloaded, longest path, full packet and short answer
	QueueBytes int     `json:"queue_bytes"`
	ECNMin     int     `json:"ecn_min_bytes"`
	ECNMax     int     `json:"ecn_max_bytes"`
	Trim       bool    `json:"trim"`
	PFC        bool    `json:"pfc"`
	Transport  string  `json:"transport"`
	NIC        string  `json:"nic"`

	Workload string   `json:"workload"`          // in a line
	Changes  []string `json:"changes,omitempty"` // what events change on the way, each in a line
}

// Summary of all flows.
type Summary struct {
	Flows         int     `json:"flows"`
	Done          int     `json:"flows_done"`
	Errors        int     `json:"flows_failed"`
	Seconds       float64 `json:"virtual_s"`
	FCTMin        float64 `json:"fct_min_s"` // from posting to the sender's completion
	FCTP50        float64 `json:"fct_p50_s"`
	FCTP99        float64 `json:"fct_p99_s"`
	FCTMax        float64 `json:"fct_max_s"`
	Goodput       float64 `json:"goodput_bps"`   // payload received by all hosts, over the time measured
	GoodputShare  float64 `json:"goodput_share"` // of what the receiving hosts' links could carry
	Jain          float64 `json:"jain"`          // fairness of flows' rates
	MinMax        float64 `json:"min_max"`       // slowest rate over fastest
	DataPackets   uint64  `json:"data_packets"`  // sent by hosts, again ones included
	Retransmits   uint64  `json:"retransmissions"`
	Dropped       uint64  `json:"dropped_queue"`
	Lost          uint64  `json:"lost_on_wire"`
	Trimmed       uint64  `json:"trimmed"`
	Marked        uint64  `json:"marked"`
	PauseFrames   uint64  `json:"pause_frames"`
	PausedSeconds float64 `json:"paused_s"` // sum over ports
	QueueMax      int     `json:"queue_max_bytes"`
	Hops          uint64  `json:"hops"`
	Events        uint64  `json:"events"`
}

// Group is one collective or part of the workload.
type Group struct {
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Size    int64   `json:"size_bytes"`
	Hosts   int     `json:"hosts"`
	Start   float64 `json:"start_s"`
	End     float64 `json:"end_s"`
	Seconds float64 `json:"seconds"`
	AlgBps  float64 `json:"algbw_bps"`
	BusBps  float64 `json:"busbw_bps"`
	Done    bool    `json:"done"`
}

// Flow is one message.
type Flow struct {
	ID       int     `json:"id"`
	From     int     `json:"from"`
	To       int     `json:"to"`
	Group    int     `json:"group"`
	Step     int     `json:"step"`
	Size     int64   `json:"size_bytes"`
	Start    float64 `json:"start_s"`
	Received float64 `json:"received_s"` // at the receiver; -1 = never
	Acked    float64 `json:"acked_s"`    // -1 = never
	Error    string  `json:"error,omitempty"`
}

// Bin is a stretch of the time line.
type Bin struct {
	At       float64   `json:"at_s"`
	Goodput  float64   `json:"goodput_bps"`
	PerPlane []float64 `json:"per_plane_bps"` // bytes of data packets that came to hosts
	QueueMax int       `json:"queue_max_bytes"`
	Dropped  uint64    `json:"dropped"`
	Paused   int       `json:"paused_ports"`
}

// Link is one direction of a link.
type Link struct {
	Name     string  `json:"name"` // "0/leaf2>spine3"
	Plane    int     `json:"plane"`
	Packets  uint64  `json:"packets"`
	Bytes    uint64  `json:"bytes"`
	Use      float64 `json:"use"` // share of the rate over the run
	QueueMax int     `json:"queue_max_bytes"`
	Dropped  uint64  `json:"dropped"`
	Marked   uint64  `json:"marked"`
	Trimmed  uint64  `json:"trimmed"`
	Lost     uint64  `json:"lost"`
	Paused   float64 `json:"paused_s"`
}

// Cost of the simulation.
type Cost struct {
	WallSeconds float64 `json:"wall_s"`
	HopsPerSec  float64 `json:"hops_per_s"`
	RSSBytes    uint64  `json:"rss_bytes"`
	Threads     int     `json:"threads"`
}
