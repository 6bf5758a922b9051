// Package api holds the JSON of the management commands, as the daemon answers them and as scripts read them.
//
// A request is {"cmd": NAME, "nic": "a/mr0", "args": {…}}; nic may be left out where there is only one or where the
// command covers all. The answer is {"ok": RESULT} or {"error": {"message": …, "code": …}}.
//
// Names are stable. Counters are named as in the Prometheus metrics, mroce_…, in base units (bytes, seconds).
package api

import "encoding/json"

// Request is a management request.
type Request struct {
	Cmd  string          `json:"cmd"`
	NIC  string          `json:"nic,omitempty"`
	Args json.RawMessage `json:"args,omitempty"`
}

// Response is the answer: one of the two.
type Response struct {
	OK    json.RawMessage `json:"ok,omitempty"`
	Error *Error          `json:"error,omitempty"`
}

// Error codes.
const (
	CodeUnknownCommand = "unknown-command"
	CodeUnknownNIC     = "unknown-nic"
	CodeBadRequest     = "bad-request"
	CodeNoPeer         = "no-such-peer" // of none of the NICs
	CodeFailed         = "failed"
	CodeStopping       = "stopping"
)

// Error is what went wrong, for people and (Code) for scripts.
type Error struct {
	Message string `json:"message"`
	Code    string `json:"code"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Status answers "status": the daemon, its NICs and who uses them. Args: none. nic: only that one.
type Status struct {
	Daemon DaemonStatus `json:"daemon"`
	NICs   []NICStatus  `json:"nics"`
}

// Connections are what connection management has of a NIC's host or of a NIC.
type Connections struct {
	IDs       int `json:"mroce_cm_ids"`              // bound to the NIC
	Listeners int `json:"mroce_cm_listeners"`        // of them, and those at any address that its program sees
	Waiting   int `json:"mroce_cm_requests_waiting"` // requests that no program has accepted or refused yet
}

// DaemonStatus describes the daemon.
type DaemonStatus struct {
	PID           int      `json:"pid"`
	Version       string   `json:"version"`
	Socket        string   `json:"socket"`
	UptimeSeconds float64  `json:"uptime_seconds"`
	Clients       int      `json:"clients"`
	Commands      []string `json:"commands"`
}

// NICStatus describes a NIC.
type NICStatus struct {
	Name      string        `json:"name"`
	Dev       string        `json:"dev"`
	GUID      string        `json:"guid"`
	Addrs     []string      `json:"addrs"`
	ActiveMTU int           `json:"active_mtu_bytes"`
	State     string        `json:"state"` // active, down
	Planes    []PlaneStatus `json:"planes"`
	HostPort  bool          `json:"host_port"`
	Objects   Objects       `json:"objects"`
	CM        Connections   `json:"cm"`
	Contexts  []Context     `json:"contexts"`
	QPs       []QP          `json:"qps"`
}

// PlaneStatus describes a plane.
type PlaneStatus struct {
	Plane     int    `json:"plane"`
	Wire      string `json:"wire"`
	Kind      string `json:"kind"`
	Admin     string `json:"admin"` // up, down
	Link      string `json:"link"`  // up, down
	RateBps   uint64 `json:"rate_bits_per_second"`
	PacketMax int    `json:"packet_max_bytes"`
	// What the wire's timing adds: floor of the delay target and of loss timers.
	Noise   float64   `json:"mroce_timing_noise_seconds"`
	Receive *Receiver `json:"receive,omitempty"` // left out where connections are RoCEv2 only
}

// Receiver is what MetaRoCE knows of a plane as a receiver; its grants come from it.
type Receiver struct {
	Rate    float64 `json:"mroce_receive_rate_bits_per_second"` // measured; the largest of the last ten periods of two round trips
	Factor  float64 `json:"mroce_grant_factor_ratio"`           // g: bandwidth-delay products granted, all senders together
	Senders int     `json:"mroce_senders"`                      // when the last grant was given; a lone one may fill the ring
	Grant   int     `json:"mroce_given_grant_bytes"`            // the last one; 0 = none yet
}

// Objects counts live objects.
type Objects struct {
	Contexts int `json:"mroce_contexts"`
	PDs      int `json:"mroce_pds"`
	MRs      int `json:"mroce_mrs"`
	MWs      int `json:"mroce_mws"`
	CQs      int `json:"mroce_cqs"`
	QPs      int `json:"mroce_qps"`
	SRQs     int `json:"mroce_srqs"`
	XRCDs    int `json:"mroce_xrcds"`
	Channels int `json:"mroce_completion_channels"`
	AHs      int `json:"mroce_address_handles"`
}

// Context is one program's open of a NIC.
type Context struct {
	ID      uint32  `json:"id"`
	Program string  `json:"program"`
	PID     int     `json:"pid"`
	DMA     string  `json:"dma"`        // process_vm, proc_mem, assist: the way into its memory
	Stalls  uint64  `json:"dma_stalls"` // assist: calls that its copy thread did not answer
	Objects Objects `json:"objects"`
	Fault   string  `json:"fault,omitempty"`
}

// QP is one queue pair.
type QP struct {
	QPN         uint32 `json:"qpn"`
	Type        string `json:"type"`                // rc, ud
	Transport   string `json:"transport,omitempty"` // metaroce, rocev2
	Plane       *int   `json:"plane,omitempty"`     // rocev2: the one it keeps to
	State       string `json:"state"`
	PID         int    `json:"pid"`
	Remote      string `json:"remote,omitempty"`
	RemoteQPN   uint32 `json:"remote_qpn,omitempty"`
	Outstanding uint32 `json:"outstanding"`
}

// Stats answers "stats": all counters. Args: none. nic: only that one.
type Stats struct {
	Daemon map[string]uint64 `json:"daemon"`
	NICs   []NICStats        `json:"nics"`
}

// NICStats are the counters of a NIC.
type NICStats struct {
	Name     string            `json:"nic"`
	Counters map[string]uint64 `json:"counters"`
	Planes   []PlaneStats      `json:"planes"`
	Engine   any               `json:"engine,omitempty"` // the transport's own counters
}

// PlaneStats are the counters of a plane; Drops are by reason.
type PlaneStats struct {
	Plane    int               `json:"plane"`
	Counters map[string]uint64 `json:"counters"`
	Drops    map[string]uint64 `json:"mroce_wire_drops_total,omitempty"`
}

// PlaneArgs are the args of "plane": switch a plane off or on.
type PlaneArgs struct {
	Plane int  `json:"plane"`
	Up    bool `json:"up"`
}

// EventsArgs are the args of "events": those after Since (the Next of the last answer; 0 = all that are kept).
type EventsArgs struct {
	Since uint64 `json:"since"`
}

// Events answers "events". Next is where to go on; Lost is how many were forgotten in between.
type Events struct {
	Events []Event `json:"events"`
	Next   uint64  `json:"next"`
	Lost   uint64  `json:"lost"`
}

// Event is something that happened.
type Event struct {
	Seq   uint64  `json:"seq"`
	Time  float64 `json:"time_seconds"` // Unix time
	NIC   string  `json:"nic"`
	Kind  string  `json:"kind"`
	Peer  string  `json:"peer,omitempty"`
	Plane int     `json:"plane"`
	Path  int     `json:"path,omitempty"`
}

// Paths answers "paths": what each NIC's transport knows of its peers and paths.
type Paths struct {
	NICs []NICPaths `json:"nics"`
}

// NICPaths are the paths of one NIC.
type NICPaths struct {
	Name  string `json:"nic"`
	Peers any    `json:"peers"` // the transport's own description
}
