package device

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// Counters count what the NIC did. Only the goroutine of Step touches them.
type Counters struct {
	ContextsOpened     uint64
	SendWRs, RecvWRs   uint64 // fetched; receives as they are posted
	FailedWRs          uint64 // found bad when fetched
	BadDescriptors     uint64 // nothing a library would write
	StrayBells         uint64 // doorbells that belong to no queue
	CQEs               uint64
	CQEsDropped        uint64 // to CQs that overran or whose program is gone
	CQOverruns         uint64
	CompEvents         uint64
	AsyncEvents        uint64
	EventsLost         uint64
	QPErrors           uint64
	RemoteAccessErrors uint64
	BindErrors         uint64 // memory windows that could not be bound or invalidated
	DMAOps, DMACalls   uint64
	DMAFaults          uint64
	DMAStalls          uint64 // calls that failed because a program's copy thread did not answer
	MemFaults          uint64 // contexts whose shared memory faulted
	LoopbackPackets    uint64
	LoopbackBytes      uint64
	EchoPackets        uint64 // of them, copies of what went to a group on the wire as well
	EchoBytes          uint64
	TxMulticast        uint64 // packets to groups
	RxMulticast        uint64
	LinkDowns          uint64 // times that the last plane went down
	// Completions that are no success, by status: of requests sent and of receives. The first is not used.
	SendFailed, RecvFailed [statuses]uint64
	Live                   Live
}

// statuses bounds transport.Status.
const statuses = 32

// Live counts objects that exist. All are 0 when no program has the NIC open.
type Live struct {
	PDs, MRs, MWs, DMs, CQs, QPs, SRQs, XRCDs, Channels, AHs int
}

// Contexts is how many programs have the NIC open.
func (n *NIC) Contexts() int { return len(n.contexts) }

// PlaneInfo is a plane as it is shown to people.
type PlaneInfo struct {
	Caps      PortCaps
	Admin, Up bool
	Device    PlaneCounters
	Wire      PortStats
}

// Planes describes every plane.
func (n *NIC) Planes() []PlaneInfo {
	out := make([]PlaneInfo, len(n.planes))
	for i, p := range n.planes {
		out[i] = PlaneInfo{Caps: p.caps, Admin: p.admin, Up: p.up, Device: p.C, Wire: p.port.Stats()}
	}
	return out
}

// HostPort returns the host port's counters, or nil when there is none.
func (n *NIC) HostPort() *HostPortCounters {
	if n.host == nil {
		return nil
	}
	return &n.host.C
}

// Engine gives access to the transport, for its counters and paths.
func (n *NIC) Engine() Engine { return n.eng }

// Now is the time of the last Step.
func (n *NIC) Now() mono.Time { return n.now }

// ContextInfo is a context as it is shown to people.
type ContextInfo struct {
	ID                                           uint32
	Program, DMA                                 string
	PID                                          int
	PDs, MRs, MWs, DMs, CQs, QPs, SRQs, Channels int
	AHs, XRCDs                                   int
	DMAStalls                                    uint64 // calls that failed because the program's copy thread did not answer
	DeadCause                                    string
}

// Info describes the context.
func (c *Context) Info() ContextInfo {
	return ContextInfo{ID: c.id, Program: c.Program, DMA: c.dma, PID: c.PID, PDs: c.pds.live, MRs: c.mrs.live, MWs: c.mws.live, CQs: c.cqs.live,
		QPs: c.qps.live, SRQs: c.srqs.live, Channels: c.channels.live, AHs: c.ahs.live, XRCDs: c.xrcds.live, DMAStalls: c.stalls, DeadCause: c.DeadCause}
}

// ContextInfos describes every context.
func (n *NIC) ContextInfos() []ContextInfo {
	out := make([]ContextInfo, 0, len(n.contexts))
	for _, c := range n.contexts {
		out = append(out, c.Info())
	}
	return out
}

// QPInfo is a QP as it is shown to people.
type QPInfo struct {
	QPN, RemoteQPN uint32
	Type           string // RC, UC, UD, XRC_SEND or XRC_RECV
	Transport      string // metaroce or rocev2; "" where there is no choice
	Plane          int    // RoCEv2: the one it keeps to; else -1
	State          State
	Remote         string
	PID            int
	Outstanding    uint32
}

// QPInfos describes every QP.
func (n *NIC) QPInfos() []QPInfo {
	out := make([]QPInfo, 0, len(n.qps))
	for _, c := range n.contexts {
		c.qps.all(func(h uint32, _ *QP) {
			q := c.qp(h)
			i := QPInfo{QPN: q.qpn, Type: q.typ.String(), Transport: transportOf(q.eng), Plane: planeOf(q.eng), State: q.state, PID: c.PID, Outstanding: q.sqOut}
			if q.typ != transport.UD && q.state >= RTR && q.state <= SQE {
				i.RemoteQPN, i.Remote = q.attr.DestQPNum, q.rtr().RemoteAddr.String()
			}
			out = append(out, i)
		})
	}
	return out
}
