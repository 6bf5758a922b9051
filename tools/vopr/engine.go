package vopr

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// Engine is a transport as the world drives it; device.Engine without what only a device needs, and with what a test
// may ask. Everything but Audit and Leaks is what a device uses, too.
type Engine interface {
	HandlePackets(now mono.Time, ps []pkt.Packet)
	HandleTimers(now mono.Time)
	NextTimeout() mono.Time
	Transmit(now mono.Time, b *pkt.Batch)
	SetPlane(now mono.Time, plane int, up bool)
	NewQP(qpn uint32, c QPConfig) QP
	// InFlight is the number of transmissions without an end.
	InFlight() int
	// Audit says which sum or bound of the engine's state is wrong, at any time; "" when none is.
	Audit() string
	// Leaks says what is held although no QP exists; "" when nothing is.
	Leaks() string
}

// QP is a queue pair as its engine knows it.
type QP interface {
	ToInit()
	Connect(now mono.Time, c Connection) bool
	ToSQD()
	Resume(now mono.Time)
	ToError(now mono.Time)
	Reset(now mono.Time)
	Destroy(now mono.Time)
	NextWR() *transport.SendWR
	Post(now mono.Time)
	RecvPosted(now mono.Time, n uint32)
	Dump() string
}

// QPConfig is fixed for a QP's life.
type QPConfig struct {
	Owner any // handed back in every call of transport.Host
	SQ    int
	SGEs  int
	SRQ   bool
}

// Connection is what a QP needs to go to RTS.
type Connection struct {
	Local, Remote               netip.Addr
	RemoteQPN                   uint32
	SQPSN, RQPSN                uint32
	MTU, Rd                     int
	MinRNR, Timeout, Retry, RNR uint8
}

// Tuning is what a plan varies of an engine; zeroes are the engine's defaults.
type Tuning struct {
	FirstSeq                                    uint32
	TxRecords, HeldBuffers, RespBuffers, Window int
	SeqSkip                                     float64
	PacketMax                                   int
	Planes                                      int
	RateBps                                     uint64
	Noise                                       mono.Duration
	TrimDSCP, TrimLastDSCP                      uint8
	AcksWithData                                bool
	Instance, NICID, Seed                       uint64
	Addr                                        netip.Addr
	Twin                                        float64 // share of second copies of one-packet messages
}

// Transport is an engine to be tested.
type Transport struct {
	Name string
	New  func(t Tuning, h transport.Host) Engine
	// GoBackN: each loss and each packet out of order costs a try, so that a bad network is a cause of RETRY_EXC.
	GoBackN bool
}

// MetaRoCE is the transport of this project.
var MetaRoCE = Transport{Name: "metaroce", New: newMetaRoCE}

// Transports lists what can be tested.
var Transports = []Transport{MetaRoCE, RoCEv2}

// mrEngine fits the MetaRoCE engine to the world.
type mrEngine struct{ *metaroce.Engine }

func newMetaRoCE(t Tuning, h transport.Host) Engine {
	c := metaroce.Config{NICID: t.NICID, Instance: t.Instance, Seed: t.Seed, Addrs: []netip.Addr{t.Addr}, FirstSeq: t.FirstSeq,
		TxRecords: t.TxRecords, HeldBuffers: t.HeldBuffers, RespBuffers: t.RespBuffers, PSNWindow: t.Window, SeqSkip: t.SeqSkip, TrimDSCP: t.TrimDSCP, TrimLastDSCP: t.TrimLastDSCP, AcksWithData: t.AcksWithData,
		TwinShare: t.Twin}
	for range t.Planes {
		c.Planes = append(c.Planes, metaroce.PlaneConfig{PacketMax: t.PacketMax, RateBps: t.RateBps, TimerNoise: t.Noise})
	}
	return mrEngine{metaroce.New(c, h)}
}

// Core returns the MetaRoCE engine behind e, for its counters and settings; nil for another transport's.
func Core(e Engine) *metaroce.Engine {
	m, _ := e.(mrEngine)
	return m.Engine
}

// NewQP implements Engine.
func (e mrEngine) NewQP(qpn uint32, c QPConfig) QP {
	return mrQP{e.CreateQP(qpn, metaroce.QPConfig{Owner: c.Owner, SQEntries: c.SQ, MaxSendSGE: c.SGEs, SRQ: c.SRQ})}
}

type mrQP struct{ *metaroce.QP }

// Connect implements QP.
func (q mrQP) Connect(now mono.Time, c Connection) bool {
	if !q.ToRTR(now, metaroce.RTRAttr{Local: c.Local, Remote: c.Remote, RemoteQPN: c.RemoteQPN, RQPSN: c.RQPSN, PathMTU: c.MTU,
		MaxDestRdAtomic: c.Rd, MinRNRTimer: c.MinRNR}) {
		return false
	}
	q.ToRTS(now, metaroce.RTSAttr{SQPSN: c.SQPSN, Timeout: c.Timeout, RetryCnt: c.Retry, RNRRetry: c.RNR, MaxRdAtomic: c.Rd})
	return true
}
