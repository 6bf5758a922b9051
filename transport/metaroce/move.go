package metaroce

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// A packet with the right tag from another address is dropped, but it raises a question: has the peer's address
// changed (NAT, renumbering)? A probe goes to the new address; the association moves when its answer comes from there.

const moveGap = 10 * mono.Millisecond // between two such probes

// strayed handles a packet that carries the association's tag and comes from another address.
func (a *assoc) strayed(p *pkt.Packet, h *wire.Header, payload []byte) {
	e := a.e
	if a.state != assocUp || a.loopback || a.local != p.Dst || !p.Src.IsValid() || e.ownAddr(p.Src) || p.Src.Is4() != a.local.Is4() {
		return
	}
	if h.Op == wire.OpProbeAck {
		var pr wire.Probe
		//= MR-ASC-081
		if wire.DecodeProbe(payload, &pr) == 0 {
			if x := e.probes.find(pr.ID); x != nil && x.kind == probeMove && x.a == a && p.Src == x.to {
				e.probes.end(e, x, true)
			}
		}
		return
	}
	//= MR-ASC-080
	if e.now < a.moveAt || len(p.Data) < h.Size()+wire.ProbeLen+wire.ICRCLen || int(p.Plane) >= len(a.planes) {
		return
	}
	a.moveAt = e.now.Add(moveGap + a.srtt)
	pl := &a.planes[p.Plane]
	e.probes.start(e, pl.firstPath(), probeMove, 0, moveGap+a.srtt).to = p.Src
}

// moveAnswer moves the association when the peer answered at its new address.
func (a *assoc) moveAnswer(to netip.Addr, answered bool) {
	e := a.e
	if !answered || e.byAddr[addrPair{a.local, to}] != nil {
		return
	}
	delete(e.byAddr, addrPair{a.local, a.remote})
	a.remote, a.name = to, to.String()
	e.byAddr[addrPair{a.local, to}] = a
	e.C.PeerMoves++
}
