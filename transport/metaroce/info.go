package metaroce

import (
	"encoding/json"
	"fmt"

	"github.com/metaroce/metaroce/internal/mono"
)

// PlaneInfo is the state of one plane of one association, for status displays. In JSON times are in seconds.
type PlaneInfo struct {
	Plane       int           `json:"plane"`
	State       string        `json:"state"`
	Profile     string        `json:"profile"`
	Entropies   string        `json:"entropies"`
	Window      int           `json:"mroce_window_bytes"`
	Grant       int           `json:"mroce_grant_bytes"`
	InFlight    int           `json:"mroce_in_flight_bytes"`
	PacketMax   int           `json:"mroce_packet_max_bytes"`
	SRTT        mono.Duration `json:"-"`
	Base        mono.Duration `json:"-"`
	Queue       mono.Duration `json:"-"` // mean of what round trips take above the base
	Target      mono.Duration `json:"-"` // the queue delay that the profile stays under; 0 = it looks at none
	Loss        float64       `json:"mroce_loss_ratio"`
	Sent        uint64        `json:"mroce_sent_packets_total"`
	Acked       uint64        `json:"mroce_acked_packets_total"`
	Lost        uint64        `json:"mroce_lost_packets_total"`
	Spurious    uint64        `json:"mroce_spurious_losses_total"`
	Failures    uint64        `json:"mroce_plane_failures_total"`
	ActivePaths int           `json:"mroce_paths"`
	Paths       []PathInfo    `json:"paths"`
}

// PathInfo is the state of one path.
type PathInfo struct {
	Path        int           `json:"path"`
	SrcPort     int           `json:"source_port"`
	State       string        `json:"state"`
	Denied      bool          `json:"denied"`
	Outstanding int           `json:"mroce_outstanding_packets"`
	Sent        uint64        `json:"mroce_sent_packets_total"`
	Lost        uint64        `json:"mroce_lost_packets_total"`
	Marked      uint64        `json:"mroce_ce_marks_total"`
	Rerolls     uint64        `json:"mroce_entropy_changes_total"`
	Loss        float64       `json:"mroce_loss_ratio"`
	Tolerance   int           `json:"mroce_gap_tolerance_packets"` // later packets acknowledged that make one lost
	SRTT        mono.Duration `json:"-"`
}

// AssocInfo is the state of one association.
type AssocInfo struct {
	Local        string        `json:"local"`
	Remote       string        `json:"remote"`
	State        string        `json:"state"`
	PeerID       uint64        `json:"-"`
	PeerInstance uint64        `json:"-"`
	QPs          int           `json:"mroce_qps"`
	SRTT         mono.Duration `json:"-"`
	Planes       []PlaneInfo   `json:"planes"`
}

// MarshalJSON adds what JSON has no number for: 64-bit numbers as hex digits, times in seconds.
func (i AssocInfo) MarshalJSON() ([]byte, error) {
	type plain AssocInfo
	return json.Marshal(struct {
		plain
		ID       string  `json:"peer_id"`
		Instance string  `json:"peer_instance"`
		SRTT     float64 `json:"mroce_srtt_seconds"`
	}{plain(i), fmt.Sprintf("%016x", i.PeerID), fmt.Sprintf("%016x", i.PeerInstance), i.SRTT.Seconds()})
}

// MarshalJSON adds the times, in seconds.
func (i PlaneInfo) MarshalJSON() ([]byte, error) {
	type plain PlaneInfo
	return json.Marshal(struct {
		plain
		SRTT   float64 `json:"mroce_srtt_seconds"`
		Base   float64 `json:"mroce_base_rtt_seconds"`
		Queue  float64 `json:"mroce_queue_delay_seconds"`
		Target float64 `json:"mroce_delay_target_seconds"`
	}{plain(i), i.SRTT.Seconds(), i.Base.Seconds(), i.Queue.Seconds(), i.Target.Seconds()})
}

// PortInfo is what the receiver knows of one of its ports, from which the grants of all peers come.
type PortInfo struct {
	RateBps float64 // measured: the largest of the last ten periods, bits a second. It counts where the port has none of its own
	Factor  float64 // g: how many bandwidth-delay products are granted, all senders together
	Senders int     // when the last grant was given; a lone one is bounded by the ring only
	Grant   int     // the last one given, bytes; 0 = none yet
}

// Ports describes the receiving side of the NIC's planes, in order (not for the hot path).
func (e *Engine) Ports() []PortInfo {
	out := make([]PortInfo, len(e.ports))
	for i := range e.ports {
		p := &e.ports[i]
		out[i] = PortInfo{RateBps: 8 * p.rate(), Factor: p.g, Senders: p.sending, Grant: int(p.granted)}
	}
	return out
}

// MarshalJSON adds the times, in seconds.
func (i PathInfo) MarshalJSON() ([]byte, error) {
	type plain PathInfo
	return json.Marshal(struct {
		plain
		SRTT float64 `json:"mroce_srtt_seconds"`
	}{plain(i), i.SRTT.Seconds()})
}

// Assocs returns the state of all associations (not for the hot path).
func (e *Engine) Assocs() []AssocInfo {
	out := []AssocInfo{}
	for _, a := range e.assocs {
		ai := AssocInfo{Local: a.local.String(), Remote: a.remote.String(), State: a.state.String(), PeerID: a.peerID,
			PeerInstance: a.peerInst, QPs: a.users, SRTT: a.srtt}
		for i := range a.planes {
			ai.Planes = append(ai.Planes, a.planes[i].info())
		}
		out = append(out, ai)
	}
	return out
}

func (pl *planeTx) info() PlaneInfo {
	pi := PlaneInfo{Plane: pl.idx, State: planeStateNames[pl.state], Profile: pl.profile.Name, Entropies: pl.ent.Mode.String(),
		Window: pl.cwnd, Grant: pl.grant, InFlight: pl.inflight, PacketMax: pl.packetMax, SRTT: pl.a.srtt, Base: pl.base, Queue: mono.Duration(pl.avgq), Target: pl.delayTarget(),
		Loss: pl.lossMean, Sent: pl.sent, Acked: pl.acked, Lost: pl.lost, Spurious: pl.spurious, Failures: pl.failures, Paths: []PathInfo{}}
	for i, p := range pl.paths {
		if p == nil {
			continue
		}
		pi.ActivePaths++
		pi.Paths = append(pi.Paths, PathInfo{Path: i, SrcPort: int(p.srcPort), State: p.state.String(), Outstanding: p.outstanding(),
			Denied: pl.deny>>i&1 != 0 || pl.a.e.portDenied(pl.idx, p.srcPort), Sent: p.sent, Lost: p.lostCnt, Marked: uint64(p.ce),
			Rerolls: uint64(p.gen), Loss: p.lossMean, Tolerance: int(p.tol), SRTT: p.srtt})
	}
	return pi
}

var planeStateNames = [...]string{"active", "probing", "absent"}
