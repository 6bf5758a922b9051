package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/wire"
)

// Counters of an engine. Every packet that is not used has its reason here.
type Counters struct {
	RxPackets, RxBytes, TxPackets, TxAcks, RxAcks uint64
	Drop                                          [wire.NumDrops]uint64 // malformed, by reason
	DropTag, DropAddr, DropPlane                  uint64                // no such association, wrong sender, plane beyond ours
	DropOld, DropDup, DropPathID                  uint64                // path sequence too old, seen already, no such path
	DropLeap                                      uint64                // stamped later than the peer's clock can be
	DropAge                                       uint64                // older than the age limit by its timestamp
	DropBusy, DropAhead, DropStaleQP, DropOps     uint64                // copy of a packet in work, beyond the PSN window, of a former life of the QP, no room to work
	DropResponse                                  uint64                // response to nobody
	DupPSN                                        uint64                // accepted again: its first acknowledgement was lost or late
	Retransmits, TailResends, SpuriousLosses      uint64
	LostGap, LostTime, LostTimeout, LostPlane     uint64
	RefusedRNR, RefusedLater, RefusedNoQP         uint64
	RefusedFatal, RefusalsReceived                uint64
	HelloSent, HelloReceived, HelloBad            uint64
	HelloVersion, HelloCookieBad, CtlOverflow     uint64
	AssocUp, AssocRestarts, AssocFull             uint64
	StaleSent, StaleReceived, AckViolations       uint64
	PlaneFailures, PlaneReturns                   uint64
	ProbesSent, ProbesAnswered, ProbesReceived    uint64
	TxRecordsFull, HeldPackets, HeldFull          uint64
	OverlapSkipped, Stalls                        uint64
}

// PlaneInfo is the state of one plane of one association, for status displays.
type PlaneInfo struct {
	Plane                       int
	State                       string
	Window, Grant, InFlight     int
	SRTT, Base                  mono.Duration
	Sent, Acked, Lost, Spurious uint64
	Failures                    uint64
	ActivePaths                 int
	Paths                       []PathInfo
}

// PathInfo is the state of one path.
type PathInfo struct {
	Path, SrcPort, Outstanding int
	Sent, Lost                 uint64
	SRTT                       mono.Duration
}

// AssocInfo is the state of one association.
type AssocInfo struct {
	Local, Remote, State string
	PeerID, PeerInstance uint64
	QPs                  int
	SRTT                 mono.Duration
	Planes               []PlaneInfo
}

// Assocs returns the state of all associations (not for the hot path).
func (e *Engine) Assocs() []AssocInfo {
	var out []AssocInfo
	for _, a := range e.assocs {
		ai := AssocInfo{Local: a.local.String(), Remote: a.remote.String(), State: a.state.String(), PeerID: a.peerID,
			PeerInstance: a.peerInst, QPs: a.users, SRTT: a.srtt}
		for i := range a.planes {
			pl := &a.planes[i]
			pi := PlaneInfo{Plane: i, State: planeStateNames[pl.state], Window: pl.win.Window(), Grant: pl.grant, InFlight: pl.inflight,
				SRTT: a.srtt, Base: pl.base, Sent: pl.sent, Acked: pl.acked, Lost: pl.lost, Spurious: pl.spurious, Failures: pl.failures}
			for _, p := range pl.paths {
				if p == nil {
					continue
				}
				pi.ActivePaths++
				pi.Paths = append(pi.Paths, PathInfo{Path: int(p.id) & 0xff, SrcPort: int(p.srcPort), Outstanding: p.outstanding(),
					Sent: p.sent, Lost: p.lostCnt, SRTT: p.srtt})
			}
			ai.Planes = append(ai.Planes, pi)
		}
		out = append(out, ai)
	}
	return out
}

var planeStateNames = [...]string{"active", "probing", "absent"}

// InFlight returns the transmissions without an end, all associations together; 0 when everything is quiet.
func (e *Engine) InFlight() (n int) {
	for _, a := range e.assocs {
		for i := range a.planes {
			for r := a.planes[i].head; r != 0; r = e.recs[r].next {
				n++
			}
		}
	}
	return n
}

// Leaks describes what is held although no QP exists; "" when nothing is. For tests and status.
func (e *Engine) Leaks() string {
	switch {
	case len(e.qps) > 0:
		return ""
	case e.held.used() > 0:
		return "held buffers"
	case e.resp.used() > 0:
		return "response buffers"
	}
	return ""
}
