// Package nic is the hosts of a simulation: the engines of package transport with programs that post messages when what these
// wait for has come.
package nic

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire"
)

// packetMax is the largest packet from BTH to ICRC: a payload of 4096 and every header.
const packetMax = 4096 + wire.MaxOverhead

// engine is a transport as a host drives it.
type engine interface {
	HandlePackets(now mono.Time, ps []pkt.Packet)
	HandleTimers(now mono.Time)
	NextTimeout() mono.Time
	Transmit(now mono.Time, b *pkt.Batch)
}

// qp is a queue pair that is connected.
type qp interface {
	NextWR() *transport.SendWR
	Post(now mono.Time)
}

// transmitter makes the engines and QPs of a plan's transport.
type transmitter struct {
	p    *plan.Plan
	seed uint64
}

func (t *transmitter) metaroce() bool { return t.p.Transport.Kind == plan.MetaRoCE }

// addrOf is a host's address: 10.0.0.0/8 has room for 16 million.
func addrOf(h int32) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(h >> 16), byte(h >> 8), byte(h)})
}

// rate is what NICs are told of a wire's.
func (t *transmitter) rate() uint64 {
	if t.p.Topology.RateUnknown {
		return 0
	}
	return t.p.Topology.RateBps
}

// seedOf is that of a host's engine.
func (t *transmitter) seedOf(h int32) uint64 { return t.seed<<24 ^ uint64(h) }

// engine makes a host's.
func (t *transmitter) engine(h int32, host transport.Host) engine {
	addrs := []netip.Addr{addrOf(h)}
	var e engine
	if t.metaroce() {
		c := metaroce.Config{NICID: uint64(h) + 1, Instance: 1, Seed: t.seedOf(h), Addrs: addrs}
		for range t.p.Topology.Planes {
			c.Planes = append(c.Planes, metaroce.PlaneConfig{PacketMax: packetMax, RateBps: t.rate()})
		}
		t.tuneMetaRoCE(&c)
		e = metaroce.New(c, host)
	} else {
		c := rocev2.Config{Seed: t.seedOf(h), Addrs: addrs}
		for range t.p.Topology.Planes {
			c.Planes = append(c.Planes, rocev2.PlaneConfig{PacketMax: packetMax, RateBps: t.rate()})
		}
		t.tuneRoCEv2(&c)
		e = rocev2.New(c, host)
	}
	t.paths(e)
	return e
}

// tuneMetaRoCE puts what the plan says into an engine's configuration.
func (t *transmitter) tuneMetaRoCE(c *metaroce.Config) {
	p := t.p
	c.NoICRC, c.TwinShare, c.Profile = true, p.Transport.Twin, p.Transport.Profile
	c.TxRecords, c.HeldBuffers, c.RespBuffers = t.records(), 512, 16
	if p.Transport.Profile == cc.ProfileFixed { // what the engine calls a fixed window is in bytes of a plane
		c.Profile, c.FixedWindow = "", int(p.Transport.WindowBDP*float64(p.Topology.BDP()))
	}
	if p.Switch.Trim {
		c.TrimDSCP = dscpTrim
	}
}

// tuneRoCEv2 is the same of the other transport.
func (t *transmitter) tuneRoCEv2(c *rocev2.Config) {
	p := t.p
	c.NoICRC, c.FixedRTO, c.NAKOnce = true, true, p.Transport.NAKOnce
	c.Window = int(p.Transport.WindowBDP * float64(p.Topology.BDP()))
	switch rate := t.rate(); {
	case !p.Transport.DCQCN:
		c.CC = rocev2.CCNone
	case p.Transport.Constants == plan.DCQCNHPCC && rate > 0:
		c.DCQCN, c.CNPSpacing = hpccDCQCN(float64(rate)), hpccSpacing
	}
}

// paths puts what the plan says of planes and paths into an engine.
func (t *transmitter) paths(e engine) {
	for i := range t.p.Topology.Planes {
		switch e := e.(type) {
		case *metaroce.Engine:
			if t.p.Transport.Paths > 0 {
				if err := e.SetEntropies(0, netip.Addr{}, i, metaroce.Entropies{Count: t.p.Transport.Paths}); err != nil {
					panic(err) // plans are checked
				}
			}
		case *rocev2.Engine:
			if t.p.Transport.RCPlane >= 0 {
				e.SetPlane(0, i, i == t.p.Transport.RCPlane)
			}
		}
	}
}

// hpccSpacing: there each acknowledgement of a marked packet tells, and the sender looks at them at this pace.
const hpccSpacing = 4 * mono.Microsecond

// hpccDCQCN are the constants of HPCC's ns-3 model in the mode that it names after a vendor's NICs. Bytes raise no rate there.
func hpccDCQCN(line float64) *cc.DCQCNConfig {
	return &cc.DCQCNConfig{Line: line, Min: 100e6, AI: line / 25e9 * 5e6, HAI: line / 25e9 * 50e6, G: 1.0 / 256, AlphaTimer: mono.Microsecond,
		RateTimer: 300 * mono.Microsecond, ByteCounter: 1 << 62, Stages: 1, CutSpacing: hpccSpacing}
}

// records is how many packets a NIC may have under way: several times what its wires and a queue hold.
func (t *transmitter) records() int {
	need := 8 * t.p.Topology.BDP() / t.p.Topology.MTU * t.p.Topology.Planes
	n := 512
	for n < need && n < 1<<15 {
		n *= 2
	}
	return n
}

// timeout is the code of the retransmission timer: 4.096 µs · 2^code is the shortest that is not below the plan's.
func (t *transmitter) timeout() uint8 {
	code := uint8(1)
	for mono.Duration(4096)<<code < t.p.Transport.RTO && code < 31 {
		code++
	}
	return code
}

// timeoutOf is the code that a program gives its QPs.
func (t *transmitter) timeoutOf() uint8 {
	if t.metaroce() {
		return 14
	}
	return t.timeout()
}

// connect makes a QP of a host that is connected to one of another.
func (t *transmitter) connect(e engine, now mono.Time, owner any, sq int, from, to int32, qpn, remote uint32) qp {
	mtu := t.p.Topology.MTU
	switch e := e.(type) {
	case *metaroce.Engine:
		q := e.CreateQP(qpn, metaroce.QPConfig{Owner: owner, SQEntries: sq, MaxSendSGE: 1, SRQ: true})
		q.ToInit()
		q.ToRTR(now, metaroce.RTRAttr{Local: addrOf(from), Remote: addrOf(to), RemoteQPN: remote, PathMTU: mtu, MaxDestRdAtomic: 1})
		q.ToRTS(now, metaroce.RTSAttr{Timeout: t.timeoutOf(), RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1})
		return q
	case *rocev2.Engine:
		q := e.CreateQP(qpn, rocev2.QPConfig{Owner: owner, SQEntries: sq, MaxSendSGE: 1, SRQ: true})
		q.ToInit()
		q.ToRTR(now, rocev2.RTRAttr{Local: addrOf(from), Remote: addrOf(to), RemoteQPN: remote, PathMTU: mtu, MaxDestRdAtomic: 1})
		q.ToRTS(now, rocev2.RTSAttr{Timeout: t.timeoutOf(), RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1})
		return q
	}
	panic("nic: an engine of another kind")
}

// payload reports whether a packet carries data of a program, so that only its headers matter.
func payload(b []byte, mr bool) bool {
	if mr {
		return wire.Opcode(b[0]).IsData()
	}
	op := b[0] // of RC: SEND and WRITE, READ responses
	return op <= 0x0B || op >= 0x0D && op <= 0x10
}

// retransmits is what an engine has sent again.
func retransmits(e engine) uint64 {
	switch e := e.(type) {
	case *metaroce.Engine:
		return e.C.Retransmits
	case *rocev2.Engine:
		return e.C.Retransmits
	}
	return 0
}
