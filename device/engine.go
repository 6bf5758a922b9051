package device

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

// Engine is a transport as the NIC drives it: MetaRoCE, RoCEv2, or a test double. All calls come from the goroutine
// of Step; the engine calls back through transport.Host within them.
type Engine interface {
	HandlePackets(now mono.Time, ps []pkt.Packet)
	HandleTimers(now mono.Time)
	NextTimeout() mono.Time
	// Transmit appends packets to b until it is full or nothing may go.
	Transmit(now mono.Time, b *pkt.Batch)
	SetPlane(now mono.Time, plane int, up bool)
	// SetBusy says which planes' queues to the wire are full, a bit each, until the next call: no data is wanted for them.
	SetBusy(planes uint32)
	// CreateQP makes a QP, or returns nil when the engine does not have its service.
	CreateQP(qpn uint32, c EngineQPConfig) EngineQP
}

// EngineQP is a QP as its engine knows it.
type EngineQP interface {
	ToInit()
	// ToRTR reports false when the engine has no room for another peer.
	ToRTR(now mono.Time, a RTRAttr) bool
	ToRTS(now mono.Time, a RTSAttr)
	// ToSQD stops what is posted from here on; the device posts nothing meanwhile. Resume goes on.
	ToSQD()
	Resume(now mono.Time)
	// Change takes over what may change while the QP works: min_rnr_timer, and in SQD timers, retries, READ limits and,
	// once it is drained, the addresses and their class. The rest of both is what the QP was told before. It reports
	// false when the engine has no room for another peer; then nothing has changed.
	Change(now mono.Time, a RTRAttr, s RTSAttr) bool
	// SetQKey sets the key that a UD QP wants to see in what it receives; in every state from INIT on.
	SetQKey(k uint32)
	// ToError flushes: everything posted and not complete completes with WRFlushErr, receives in hand too.
	ToError(now mono.Time)
	// Reset and Destroy forget everything without completions.
	Reset(now mono.Time)
	Destroy(now mono.Time)
	// NextWR returns the next free slot of the send ring, or nil; Post commits it.
	NextWR() *transport.SendWR
	Post(now mono.Time)
	// RecvPosted says that n receives more may be taken.
	RecvPosted(now mono.Time, n uint32)
}

// EngineConfig is what an engine knows of its NIC.
type EngineConfig struct {
	NICID     uint64
	Instance  uint64
	Seed      uint64
	Secret    [32]byte // what nobody may guess comes from it; all 0 = from the seed
	Addrs     []netip.Addr
	Planes    []PortCaps
	PacketMax int
	Policy    Policy
	Tune      Tuning
}

// EngineQPConfig is fixed for a QP's life.
type EngineQPConfig struct {
	Owner      any // handed back in every call of transport.Host
	Type       transport.QPType
	SQEntries  int
	MaxSendSGE int
	SRQ        bool
}

// RTRAttr is what a QP needs to receive.
type RTRAttr struct {
	RemoteAddr, LocalAddr  netip.Addr
	RemoteQPN, RQPSN       uint32
	PathMTU                int // bytes
	MaxDestRdAtomic        uint8
	MinRNRTimer            uint8
	TrafficClass, HopLimit uint8
	FlowLabel              uint32
}

// RTSAttr is what a QP needs to send.
type RTSAttr struct {
	SQPSN                                    uint32
	Timeout, RetryCnt, RNRRetry, MaxRdAtomic uint8
}

// NewEngineFunc makes the engine of a NIC.
type NewEngineFunc func(EngineConfig, transport.Host) Engine
