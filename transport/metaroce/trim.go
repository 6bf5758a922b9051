package metaroce

import (
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// Trimmed packets are hints: what is left of them has no checksum. They are told to the sender, which sends the packet
// again a round trip earlier than it would have found out, and nothing else comes of them.

const maxTrims = 64 // told in one ACK; more are dropped: their senders find out as ever

// trimmed takes in a packet that cannot be decoded, if it is one that a switch trimmed.
func (e *Engine) trimmed(p *pkt.Packet) bool {
	dscp := p.TOS >> 2
	//= MR-REL-060
	if dscp == 0 || dscp != e.cfg.TrimDSCP && dscp != e.cfg.TrimLastDSCP || int(p.Plane) >= len(e.planeUp) {
		return false
	}
	var h wire.Header
	if !wire.DecodeTrimmed(p.Data, &h) {
		return false
	}
	a := e.byTag[h.Tag]
	if a == nil || a.remote != p.Src || a.local != p.Dst || a.state != assocUp || int(h.Path>>8) != int(p.Plane) {
		return false
	}
	rp := a.rx.path(h.Path)
	if rp == nil {
		return false
	}
	e.C.Trimmed++
	//= MR-REL-061
	if dup, old := rp.seen.place(h.Seq); dup || old || len(a.rx.trims) == maxTrims {
		return true
	}
	e.enliven(a)
	a.rx.trims = append(a.rx.trims, wire.TrimBlock{Path: h.Path, Seq: h.Seq, LastHop: dscp == e.cfg.TrimLastDSCP})
	a.rx.wantAck()
	a.reschedule()
	return true
}

// addTrims tells of trimmed packets, each once.
func (r *assocRx) addTrims(w *wire.AckWriter) (more bool) {
	n := 0
	for n < len(r.trims) && w.Trim(&r.trims[n]) {
		n++
	}
	r.trims = append(r.trims[:0], r.trims[n:]...)
	return len(r.trims) > 0
}

// onTrim sends a packet again of which the peer got no more than the headers.
func (a *assoc) onTrim(b *wire.TrimBlock) {
	e := a.e
	p := a.txPathOf(b.Path)
	if p == nil {
		return
	}
	i, r := e.find(p, b.Seq)
	//= MR-REL-062
	if r == nil || r.state != recOut {
		return
	}
	//= MR-REL-063
	if !b.LastHop {
		p.restUntil = e.now.Add(a.srtt)
	}
	e.C.LostTrim++
	e.trimming = true
	e.lose(i)
	e.trimming = false
	p.advance(e)
}
