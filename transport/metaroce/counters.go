package metaroce

import (
	"github.com/metaroce/metaroce/transport/wire"
)

// Counters of an engine. Every packet that is not used has its reason here.
type Counters struct {
	RxPackets, RxBytes, TxPackets, TxAcks, RxAcks uint64
	Drop                                          [wire.NumDrops]uint64 // malformed, by reason
	DropTag, DropAddr, DropPlane                  uint64                // no such association, wrong sender, plane beyond ours
	DropOld, DropDup, DropPathID                  uint64                // path sequence too old, seen already, no such path
	DropLeap                                      uint64                // stamped later than the peer's clock can be
	DropFormer                                    uint64                // of the peer's instance, or tag, before this one
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
	PathRests, PathRerolls                        uint64 // for marks; another entropy
	PathSuspects, PathQuarantines                 uint64
	Trimmed, LostTrim, Twins                      uint64 // trimmed packets that came; ours that others told of; messages sent twice
	MTUChanges, PeerMoves                         uint64
	ProbesSent, ProbesAnswered, ProbesReceived    uint64
	TxRecordsFull, HeldPackets, HeldFull          uint64
	OverlapSkipped, Stalls                        uint64
	RxWrites, RxReads, RxAtomics                  uint64 // requests taken
	RxGaps, RxMarked                              uint64 // data packets behind a gap of their path; CE-marked ones
	RNRReceived, AcksMarked                       uint64 // packets refused for want of a receive; acknowledgements that told of new marks
}

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
