package device

import (
	"net/netip"
	"reflect"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// ibEngine and ibQP fit the RoCEv2 engine to the device's seam.
type ibEngine struct{ *rocev2.Engine }

type ibQP struct {
	*rocev2.QP
	e *rocev2.Engine
}

// defaultEngine is MetaRoCE and RoCEv2 behind one NIC, as its policy has it.
func defaultEngine(c EngineConfig, h transport.Host) Engine {
	rc := rocev2.Config{Seed: c.Seed, Addrs: c.Addrs}
	for _, p := range c.Planes[:min(len(c.Planes), ibPlanes)] {
		rc.Planes = append(rc.Planes, rocev2.PlaneConfig{PacketMax: p.PacketMax, RateBps: p.RateBps, TimerNoise: p.TimerNoise, Burst: p.Burst})
	}
	if f := c.Tune.RoCEv2; f != nil {
		f(&rc)
	}
	var mr Engine
	if c.Policy != OnlyRoCEv2 {
		mr = newMetaRoCE(c, h)
	}
	return newMux(c.Policy, mr, ibEngine{rocev2.New(rc, h)}, c.Addrs)
}

// ibPlanes is how many planes the RoCEv2 engine spreads its QPs over, at most.
const ibPlanes = 16

// CreateQP implements Engine.
func (e ibEngine) CreateQP(qpn uint32, c EngineQPConfig) EngineQP {
	return ibQP{e.Engine.CreateQP(qpn, rocev2.QPConfig{Owner: c.Owner, Type: c.Type, SQEntries: c.SQEntries, MaxSendSGE: c.MaxSendSGE, SRQ: c.SRQ}), e.Engine}
}

func ibRTR(a *RTRAttr) rocev2.RTRAttr {
	return rocev2.RTRAttr{Local: a.LocalAddr, Remote: a.RemoteAddr, RemoteQPN: a.RemoteQPN, RQPSN: a.RQPSN,
		PathMTU: a.PathMTU, MaxDestRdAtomic: int(a.MaxDestRdAtomic), MinRNRTimer: a.MinRNRTimer, TrafficClass: a.TrafficClass,
		HopLimit: a.HopLimit, FlowLabel: a.FlowLabel}
}

func ibRTS(a *RTSAttr) rocev2.RTSAttr {
	return rocev2.RTSAttr{SQPSN: a.SQPSN, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, MaxRdAtomic: int(a.MaxRdAtomic)}
}

// ToRTR implements EngineQP.
func (q ibQP) ToRTR(now mono.Time, a RTRAttr) bool { return q.QP.ToRTR(now, ibRTR(&a)) }

// ToRTS implements EngineQP.
func (q ibQP) ToRTS(now mono.Time, a RTSAttr) { q.QP.ToRTS(now, ibRTS(&a)) }

// Change implements EngineQP.
func (q ibQP) Change(now mono.Time, a RTRAttr, s RTSAttr) bool {
	return q.QP.Change(now, ibRTR(&a), ibRTS(&s))
}

// planeOf is the plane that a RoCEv2 QP keeps to, or -1.
func planeOf(e EngineQP) int {
	if q, ok := e.(*muxQP); ok {
		e = q.eng
	}
	if q, ok := e.(ibQP); ok {
		return q.QP.Plane()
	}
	return -1
}

// MetaRoCE is the NIC's MetaRoCE engine, for what is only its own (paths, profiles), or nil when it has none.
func (n *NIC) MetaRoCE() *metaroce.Engine {
	if m, ok := n.eng.(*mux); ok {
		if e, ok := m.mr.(mrEngine); ok {
			return e.Engine
		}
	}
	return nil
}

// RoCEv2 is the NIC's RoCEv2 engine, or nil.
func (n *NIC) RoCEv2() *rocev2.Engine {
	if m, ok := n.eng.(*mux); ok {
		if e, ok := m.ib.(ibEngine); ok {
			return e.Engine
		}
	}
	return nil
}

// Attach implements GroupQP.
func (q ibQP) Attach(g netip.Addr) { q.e.Attach(q.QP, g) }

// Detach implements GroupQP.
func (q ibQP) Detach(g netip.Addr) { q.e.Detach(q.QP, g) }

// CountersJSON are the engine's counters under their metric names.
func (e ibEngine) CountersJSON() any {
	m := map[string]any{}
	v := reflect.ValueOf(&e.C).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Uint64 {
			m["mroce_rocev2_"+snake(v.Type().Field(i).Name)+"_total"] = v.Field(i).Interface()
		}
	}
	for i, n := range e.C.Drop[1:] {
		m["mroce_rocev2_drop_"+strings.ReplaceAll(ib.Drop(i+1).String(), "-", "_")+"_total"] = n
	}
	return m
}
