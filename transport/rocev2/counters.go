package rocev2

import (
	"fmt"
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// Counters of an engine. Every packet that is not used has its reason here.
type Counters struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	TxAcks, RxAcks, TxNaks, RxNaks         uint64
	TxRNR, RxRNR                           uint64
	TxCNP, RxCNP, RxMarked                 uint64 // congestion notifications; data packets that came marked
	Drop                                   [ib.NumDrops]uint64
	DropPKey, DropQPN, DropType            uint64 // another partition; no such QP; of another service than its QP
	DropPeer, DropState                    uint64 // not from the QP's peer; the QP is not able to receive
	DropAhead, DropBusy                    uint64 // beyond a gap; behind a request that fails
	DropDuplicate, DropResponse            uint64 // had before and not remembered; response or acknowledgement to nothing
	DropQKey, DropUDNoRecv, DropUDTooLong  uint64 // UD: wrong key, no receive posted, its receive too short
	DropUCGap, DropUCCut                   uint64 // UC: packets behind one that is missing; messages that broke off
	DropUCNoRecv, DropUCTooLong            uint64 // UC: messages without a receive, or longer than it
	DropUCAccess, DropUCInvalid            uint64 // UC: WRITEs to where they may not; messages of no right form
	TxMad, RxMad, DropMadTx, DropMadRx     uint64 // QP 1: sent, received; queue full or no plane; not a MAD of general services
	DropGroup                              uint64 // UD: multicast to a group without members here
	Duplicates, Replays                    uint64 // requests had before and answered again; READs and atomics of them
	Retransmits, GoBacks, Timeouts         uint64
	SequenceNaks, ResponseGaps             uint64 // gaps seen at the responder and answered; at the requester
	NaksIgnored, PlaneMoves, Stalls        uint64
	RxWrites, RxReads, RxAtomics           uint64 // requests taken
	RxSequenceNaks                         uint64 // of the NAKs
}

// QPInfo is the state of one QP, for status displays.
type QPInfo struct {
	QPN, RemoteQPN        uint32
	Type, State           string
	Local, Remote         string
	Plane, SrcPort        int
	InFlight, Posted      int // packets unacknowledged; work requests in the ring
	RateBps               float64
	SRTT, RTTMin, Timeout mono.Duration
}

// QPs returns the state of all QPs, by number (not for the hot path).
func (e *Engine) QPs() []QPInfo {
	out := make([]QPInfo, 0, len(e.list))
	for _, q := range e.list {
		r := &q.req
		out = append(out, QPInfo{QPN: q.qpn, RemoteQPN: q.remoteQPN, Type: q.typ.String(), State: q.state.String(), Local: addrString(q.local),
			Remote: addrString(q.remote), Plane: q.plane, SrcPort: int(q.srcPort), InFlight: int(r.max - r.una), Posted: int(r.tail - r.head),
			RateBps: q.rateNow(), SRTT: r.srtt, RTTMin: r.rttMin, Timeout: q.rto()})
	}
	return out
}

func addrString(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func (q *QP) rateNow() float64 {
	if q.e.cfg.CC != CCDCQCN || q.plane < 0 || !q.flow.Limited() {
		return 0
	}
	return q.flow.Rate(q.e.now)
}

// Dump describes a QP for test failures.
func (q *QP) Dump() string {
	r, s := &q.req, &q.rsp
	return fmt.Sprintf("qp %#x %v una %d next %d max %d end %d wqe %d/%d/%d rd %d-%d rnr %d retries %d | exp %d nak %02x res %d low %d fatal %02x",
		q.qpn, q.state, r.una, r.next, r.max, r.end, r.head, r.cur, r.tail, r.rdHead, r.rdTail, r.rnrUntil-q.e.now, r.retries, s.exp, s.nak, s.nres, s.low, s.fatal)
}
