package device

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// Policy says how reliable connections travel. Unreliable datagrams always travel as RoCEv2.
type Policy uint8

// Policies.
const (
	// Auto is MetaRoCE, and RoCEv2 with peers that do not speak it.
	Auto Policy = iota
	OnlyMetaRoCE
	OnlyRoCEv2
)

var policyNames = [...]string{"auto", "metaroce", "rocev2"}

// String is the policy's name in configurations.
func (p Policy) String() string { return policyNames[p] }

// ParsePolicy reads a policy's name; "" is auto.
func ParsePolicy(s string) (Policy, error) {
	for i, n := range policyNames {
		if s == n {
			return Policy(i), nil
		}
	}
	if s == "" {
		return Auto, nil
	}
	return 0, fmt.Errorf("transport %q: want auto, metaroce or rocev2", s)
}

const (
	// silentTries is how many HELLOs a peer leaves unanswered before its connections fall back to RoCEv2.
	silentTries = 5
	// silentFor is how long it is then taken for a RoCEv2 NIC without being asked again.
	silentFor = 10 * mono.Second
	// peersMost bounds what is remembered of peers. Beyond it nobody falls back any more.
	peersMost = 1 << 16
	// followWindow is how far from the first PSN of a connection a packet may be that shows where its peer is.
	followWindow = 4096
	// metaroceOps are the opcodes of BTH that are MetaRoCE's.
	metaroceOps = 0xc0
)

// asker is a MetaRoCE engine that says whether a peer speaks MetaRoCE, and how many HELLOs it has left unanswered.
type asker interface {
	Heard(local, remote netip.Addr) (answered bool, tries int)
}

// mux is one Engine over two: MetaRoCE and RoCEv2. Every QP lives in one of them.
//
// With Auto an RC QP begins in MetaRoCE. As long as its peer has not answered it is undecided, and what the program
// posts stays in the program's queue. Then, as long as nothing of the connection has been carried out here:
//
//   - it falls back to RoCEv2 when the peer leaves HELLOs unanswered and was never heard to speak MetaRoCE;
//   - it follows its peer to RoCEv2 when RoCEv2 packets of this connection come from there;
//   - after falling back it returns when the peer speaks MetaRoCE after all, unless such packets have come.
//
// Where loss made the two ends choose differently, the first packet that gets through brings them together.
type mux struct {
	policy Policy
	mr     Engine // nil with OnlyRoCEv2
	ib     Engine
	ask    asker
	own    []netip.Addr
	qps    map[uint32]*muxQP
	open   map[addrPair]*waiting // QPs that are undecided, or fell back and have received nothing
	asked  []*waiting            // those of them with undecided QPs
	lookAt mono.Time             // when asked is looked at next
	spoke  map[netip.Addr]bool   // peers that speak MetaRoCE
	silent map[netip.Addr]mono.Time
	on     [2]int // QPs in MetaRoCE and RoCEv2
	ibTurn bool   // RoCEv2 sends first
	part   pkt.Batch
	sum    ib.Summer
	C      MuxCounters
}

// MuxCounters count what the choice between the engines did.
type MuxCounters struct {
	Fallbacks     uint64 // QPs that moved to RoCEv2 because the peer was silent
	FallbacksPeer uint64 // because the peer sent RoCEv2 packets
	Returns       uint64 // QPs that moved back
	DropMetaRoCE  uint64 // MetaRoCE packets to a NIC that is RoCEv2 only
}

func newMux(policy Policy, mr, ib Engine, own []netip.Addr) *mux {
	m := &mux{policy: policy, mr: mr, ib: ib, own: own, qps: map[uint32]*muxQP{}, open: map[addrPair]*waiting{},
		spoke: map[netip.Addr]bool{}, silent: map[netip.Addr]mono.Time{}}
	m.ask, _ = mr.(asker)
	return m
}

// HandlePackets implements Engine.
func (m *mux) HandlePackets(now mono.Time, ps []pkt.Packet) {
	for len(ps) > 0 {
		ib, n := isRoCEv2(&ps[0]), 1
		for n < len(ps) && isRoCEv2(&ps[n]) == ib {
			n++
		}
		switch {
		case ib:
			if m.policy == Auto {
				m.listen(now, ps[:n])
			}
			m.ib.HandlePackets(now, ps[:n])
		case m.mr != nil:
			m.mr.HandlePackets(now, ps[:n])
			m.hear(now, ps[:n])
		default:
			//= MR-COEX-002
			m.C.DropMetaRoCE += uint64(n)
		}
		ps = ps[n:]
	}
}

// = MR-COEX-001
func isRoCEv2(p *pkt.Packet) bool { return len(p.Data) == 0 || p.Data[0] < metaroceOps }

// listen looks at RoCEv2 packets for connections that may have to follow their peer.
func (m *mux) listen(now mono.Time, ps []pkt.Packet) {
	for i := range ps {
		const connected = 0x20 // opcodes of RC are below
		b := ps[i].Data
		if len(b) < ib.MinPacket || b[0] >= connected {
			continue
		}
		q := m.qps[uint32(b[5])<<16|uint32(b[6])<<8|uint32(b[7])]
		if q == nil || q.open == nil && q.side == sideIB || !m.concerns(q, &ps[i]) {
			continue
		}
		m.close(q)
		//= MR-COEX-024
		if q.side == sideMR && q.untouched() {
			m.C.FallbacksPeer++
			q.move(now, sideIB)
		}
	}
}

// concerns reports whether a packet is one of a connection's first: from its peer, whole, and near the PSNs that the two
// ends agreed on, which a stranger does not know.
func (m *mux) concerns(q *muxQP, p *pkt.Packet) bool {
	if q.cfg.Type != transport.RC || q.owner.state < RTR || q.owner.state > SQD || q.rtr.RemoteAddr != p.Src || q.rtr.LocalAddr != p.Dst {
		return false
	}
	var h ib.Header
	if _, d := ib.Decode(p.Data, &h); d != 0 {
		return false
	}
	first := q.rtr.RQPSN
	if !h.Op.IsRequest() {
		if first = q.rts.SQPSN; q.owner.state < RTS {
			return false
		}
	}
	ahead := serial.Trunc(uint64(h.PSN) - uint64(first))
	return ahead < followWindow && m.sum.Good(p)
}

// HandleTimers implements Engine.
func (m *mux) HandleTimers(now mono.Time) {
	if m.mr != nil {
		m.mr.HandleTimers(now)
		m.look(now)
	}
	m.ib.HandleTimers(now)
}

// noteSpoke remembers that a peer speaks MetaRoCE: its silence will never take a connection to RoCEv2.
func (m *mux) noteSpoke(peer netip.Addr) {
	delete(m.silent, peer)
	if len(m.spoke) < peersMost {
		m.spoke[peer] = true
	}
}

// NextTimeout implements Engine.
func (m *mux) NextTimeout() mono.Time {
	t := m.ib.NextTimeout()
	if m.mr != nil {
		t = mono.Min(t, mono.Min(m.mr.NextTimeout(), m.nextLook()))
	}
	return t
}

// Transmit implements Engine: each engine may fill half of the burst, and the rest when the other has nothing.
func (m *mux) Transmit(now mono.Time, b *pkt.Batch) {
	if m.mr == nil {
		m.ib.Transmit(now, b)
		return
	}
	first, second := m.mr, m.ib
	if m.ibTurn {
		first, second = second, first
	}
	m.ibTurn = !m.ibTurn
	m.part = pkt.Batch{Pkts: b.Pkts[:b.N+(len(b.Pkts)-b.N+1)/2], N: b.N}
	first.Transmit(now, &m.part)
	b.N = m.part.N
	if second.Transmit(now, b); m.part.Full() && !b.Full() {
		first.Transmit(now, b)
	}
}

// SetPlane implements Engine.
func (m *mux) SetPlane(now mono.Time, plane int, up bool) {
	if m.mr != nil {
		m.mr.SetPlane(now, plane, up)
	}
	m.ib.SetPlane(now, plane, up)
}

// SetBusy implements Engine.
func (m *mux) SetBusy(planes uint32) {
	if m.mr != nil {
		m.mr.SetBusy(planes)
	}
	m.ib.SetBusy(planes)
}

// CountersJSON are the counters of both engines and of the choice between them.
func (m *mux) CountersJSON() any {
	all := map[string]any{
		"mroce_fallbacks_total": m.C.Fallbacks, "mroce_fallbacks_peer_total": m.C.FallbacksPeer,
		"mroce_fallback_returns_total": m.C.Returns, "mroce_drop_not_rocev2_total": m.C.DropMetaRoCE,
		"mroce_qps_metaroce": m.on[sideMR], "mroce_qps_rocev2": m.on[sideIB],
	}
	for _, e := range []Engine{m.mr, m.ib} {
		if c, ok := e.(interface{ CountersJSON() any }); ok {
			for k, v := range c.CountersJSON().(map[string]any) {
				all[k] = v
			}
		}
	}
	return all
}

// SetAddrs implements AddrEngine.
func (m *mux) SetAddrs(addrs []netip.Addr) {
	m.own = addrs
	for _, e := range []Engine{m.mr, m.ib} {
		if e, ok := e.(AddrEngine); ok {
			e.SetAddrs(addrs)
		}
	}
}

// PathsJSON describes the peers and paths of MetaRoCE; RoCEv2 has none of its own.
func (m *mux) PathsJSON() any {
	if p, ok := m.mr.(interface{ PathsJSON() any }); ok {
		return p.PathsJSON()
	}
	return []any{}
}

// choose says where an RC connection begins, and whether that may still change.
func (m *mux) choose(now mono.Time, a *RTRAttr) (s side, open bool) {
	switch {
	//= MR-COEX-020
	case m.policy == OnlyRoCEv2:
		return sideIB, false
	case m.policy == OnlyMetaRoCE, m.ask == nil, m.spoke[a.RemoteAddr], slices.Contains(m.own, a.RemoteAddr):
		return sideMR, false
	}
	if answered, _ := m.ask.Heard(a.LocalAddr, a.RemoteAddr); answered {
		m.noteSpoke(a.RemoteAddr)
		return sideMR, false
	}
	if at, ok := m.silent[a.RemoteAddr]; ok {
		//= MR-COEX-027
		if now.Sub(at) < silentFor {
			return sideIB, true
		}
		delete(m.silent, a.RemoteAddr)
	}
	return sideMR, true
}
