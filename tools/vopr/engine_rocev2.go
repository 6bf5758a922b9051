package vopr

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// rcEngine fits the RoCEv2 engine to the world.
type rcEngine struct{ *rocev2.Engine }

// RoCEv2 is the transport that other vendors' NICs speak.
var RoCEv2 = Transport{Name: "rocev2", New: newRoCEv2, GoBackN: true}

func newRoCEv2(t Tuning, h transport.Host) Engine {
	c := rocev2.Config{Seed: t.Seed, Addrs: []netip.Addr{t.Addr}}
	for range t.Planes {
		c.Planes = append(c.Planes, rocev2.PlaneConfig{PacketMax: t.PacketMax, RateBps: t.RateBps, TimerNoise: t.Noise})
	}
	return rcEngine{rocev2.New(c, h)}
}

// NewQP implements Engine.
func (e rcEngine) NewQP(qpn uint32, c QPConfig) QP {
	return rcQP{e.CreateQP(qpn, rocev2.QPConfig{Owner: c.Owner, SQEntries: c.SQ, MaxSendSGE: c.SGEs, SRQ: c.SRQ})}
}

// Audit implements Engine: nothing is known that could be added up.
func (rcEngine) Audit() string { return "" }

// Leaks implements Engine.
func (rcEngine) Leaks() string { return "" }

type rcQP struct{ *rocev2.QP }

// Connect implements QP.
func (q rcQP) Connect(now mono.Time, c Connection) bool {
	if !q.ToRTR(now, rocev2.RTRAttr{Local: c.Local, Remote: c.Remote, RemoteQPN: c.RemoteQPN, RQPSN: c.RQPSN, PathMTU: c.MTU,
		MaxDestRdAtomic: c.Rd, MinRNRTimer: c.MinRNR}) {
		return false
	}
	q.ToRTS(now, rocev2.RTSAttr{SQPSN: c.SQPSN, Timeout: c.Timeout, RetryCnt: c.Retry, RNRRetry: c.RNR, MaxRdAtomic: c.Rd})
	return true
}
