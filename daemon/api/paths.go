package api

// PathArgs are the args of "deny" and "allow": paths, or an entropy (SourcePort, which is denied to all peers).
type PathArgs struct {
	Peer       string `json:"peer,omitempty"`        // empty = all
	Plane      *int   `json:"plane,omitempty"`       // left out = all
	Path       *int   `json:"path,omitempty"`        // left out = all
	SourcePort uint16 `json:"source_port,omitempty"` // not 0: this entropy instead of a path
}

// PathChange answers them: how many paths changed, or why none did at this NIC while others did as they were told.
type PathChange struct {
	NIC     string `json:"nic"`
	Changed int    `json:"mroce_paths_changed"`
	Error   string `json:"error,omitempty"`
}

// Failed returns the NIC and what went wrong there, if anything.
func (c PathChange) Failed() (nic, why string) { return c.NIC, c.Error }

// EntropyArgs are the args of "entropies": where those of the paths come from.
type EntropyArgs struct {
	Peer  string   `json:"peer,omitempty"`  // empty = all, those to come included
	Plane *int     `json:"plane,omitempty"` // left out = all
	Mode  string   `json:"mode"`            // automatic, generated, explicit
	List  []uint16 `json:"list,omitempty"`  // explicit: UDP source ports, one path each
	First uint16   `json:"first,omitempty"` // generated
	Step  uint16   `json:"step,omitempty"`
	Count int      `json:"count,omitempty"` // paths a plane, 0 = all
}

// ProbeArgs are the args of "probe". Without ID a probe is sent, and the answer names its ID; with it, the answer says
// what became of it.
type ProbeArgs struct {
	ID         uint32  `json:"id,omitempty"`
	Peer       string  `json:"peer,omitempty"`
	Plane      int     `json:"plane"`
	Path       int     `json:"path"`
	SourcePort uint16  `json:"source_port,omitempty"` // not 0: this entropy instead of the path's own
	Bytes      int     `json:"bytes,omitempty"`       // BTH to ICRC; 0 = as long as data
	Control    bool    `json:"control,omitempty"`     // in the control class
	Timeout    float64 `json:"timeout_seconds,omitempty"`
}

// Probe is what became of a probe.
type Probe struct {
	NIC        string  `json:"nic"`
	ID         uint32  `json:"id"`
	Peer       string  `json:"peer,omitempty"`
	Plane      int     `json:"plane"`
	Path       int     `json:"path"`
	SourcePort int     `json:"source_port"`
	Bytes      int     `json:"mroce_probe_bytes"`
	Done       bool    `json:"done"`
	Answered   bool    `json:"answered"`
	RTT        float64 `json:"mroce_rtt_seconds"`
}

// ProfileArgs are the args of "profile": without a name nothing changes.
type ProfileArgs struct {
	Peer   string  `json:"peer,omitempty"` // empty = all, those to come included
	Name   string  `json:"name,omitempty"`
	Window int     `json:"window_bytes,omitempty"`   // fixed
	Target float64 `json:"target_seconds,omitempty"` // delay-ecn, polite; 0 = by the wire
}

// Profiles answers "profile".
type Profiles struct {
	NIC    string        `json:"nic"`
	Name   string        `json:"profile"` // of new peers
	Window int           `json:"mroce_fixed_window_bytes"`
	Target float64       `json:"mroce_delay_target_seconds"` // 0 = by the wire
	Known  []ProfileInfo `json:"known"`
	Error  string        `json:"error,omitempty"` // the NIC did not do as it was told
}

// Failed returns the NIC and what went wrong there, if anything.
func (p Profiles) Failed() (nic, why string) { return p.NIC, p.Error }

// ProfileInfo describes a profile that there is.
type ProfileInfo struct {
	Name  string `json:"name"`
	About string `json:"about"`
}
