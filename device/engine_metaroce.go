package device

import (
	"net/netip"
	"reflect"
	"strings"
	"unicode"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// mrEngine and mrQP fit the MetaRoCE engine to the device's seam.
type mrEngine struct{ *metaroce.Engine }

type mrQP struct{ *metaroce.QP }

func newMetaRoCE(c EngineConfig, h transport.Host) Engine {
	mc := metaroce.Config{NICID: c.NICID, Instance: c.Instance, Seed: c.Seed, Secret: c.Secret, Addrs: c.Addrs}
	for _, p := range c.Planes {
		mc.Planes = append(mc.Planes, metaroce.PlaneConfig{PacketMax: p.PacketMax, RateBps: p.RateBps, TimerNoise: p.TimerNoise, Burst: p.Burst})
	}
	if f := c.Tune.MetaRoCE; f != nil {
		f(&mc)
	}
	return mrEngine{metaroce.New(mc, h)}
}

// CreateQP implements Engine.
func (e mrEngine) CreateQP(qpn uint32, c EngineQPConfig) EngineQP {
	if c.Type != transport.RC {
		return nil
	}
	return mrQP{e.Engine.CreateQP(qpn, metaroce.QPConfig{Owner: c.Owner, SQEntries: c.SQEntries, MaxSendSGE: c.MaxSendSGE, SRQ: c.SRQ})}
}

func mrRTR(a *RTRAttr) metaroce.RTRAttr {
	return metaroce.RTRAttr{Local: a.LocalAddr, Remote: a.RemoteAddr, RemoteQPN: a.RemoteQPN, RQPSN: a.RQPSN,
		PathMTU: a.PathMTU, MaxDestRdAtomic: int(a.MaxDestRdAtomic), MinRNRTimer: a.MinRNRTimer, TrafficClass: a.TrafficClass}
}

func mrRTS(a *RTSAttr) metaroce.RTSAttr {
	return metaroce.RTSAttr{SQPSN: a.SQPSN, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, MaxRdAtomic: int(a.MaxRdAtomic)}
}

// ToRTR implements EngineQP.
func (q mrQP) ToRTR(now mono.Time, a RTRAttr) bool { return q.QP.ToRTR(now, mrRTR(&a)) }

// ToRTS implements EngineQP.
func (q mrQP) ToRTS(now mono.Time, a RTSAttr) { q.QP.ToRTS(now, mrRTS(&a)) }

// Change implements EngineQP.
func (q mrQP) Change(now mono.Time, a RTRAttr, s RTSAttr) bool {
	return q.QP.Change(now, mrRTR(&a), mrRTS(&s))
}

// SetQKey implements EngineQP: only UD QPs have one.
func (mrQP) SetQKey(uint32) {}

// CountersJSON are the engine's counters under their metric names.
func (e mrEngine) CountersJSON() any {
	m := map[string]any{}
	v := reflect.ValueOf(&e.C).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Uint64 {
			m["mroce_engine_"+snake(v.Type().Field(i).Name)+"_total"] = v.Field(i).Interface()
		}
	}
	//= MR-CNT-003 MR-GEN-004
	for i, n := range e.C.Drop[1:] {
		m["mroce_engine_drop_"+strings.ReplaceAll(wire.Drop(i+1).String(), "-", "_")+"_total"] = n
	}
	return m
}

// PathsJSON describes every peer and path.
func (e mrEngine) PathsJSON() any { return e.Assocs() }

// PathManager is what people may ask of the paths of a NIC, and say.
type PathManager interface {
	DenyPaths(now mono.Time, s metaroce.PathSel) (int, error)
	AllowPaths(now mono.Time, s metaroce.PathSel) (int, error)
	DenyPort(now mono.Time, plane int, port uint16, deny bool) (int, error)
	SetEntropies(now mono.Time, peer netip.Addr, plane int, s metaroce.Entropies) error
	StartProbe(now mono.Time, s metaroce.ProbeSpec) (uint32, error)
	ProbeResult(now mono.Time, id uint32) (metaroce.ProbeInfo, bool)
	Profile() cc.Profile
	SetProfile(now mono.Time, peer netip.Addr, p cc.Profile) error
	Ports() []metaroce.PortInfo
}

var _ PathManager = mrEngine{}

// Paths returns the NIC's path manager, or nil: RoCEv2 has no paths.
func (n *NIC) Paths() PathManager {
	e := n.eng
	if m, ok := e.(*mux); ok {
		e = m.mr
	}
	p, _ := e.(PathManager)
	return p
}

// snake turns RxPackets into rx_packets and RefusedRNR into refused_rnr.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(rune(s[i-1])) || i+1 < len(s) && unicode.IsLower(rune(s[i+1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
