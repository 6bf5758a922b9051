package device

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// lookGap is how often the mux looks whether those who were asked stay silent.
const lookGap = 2 * mono.Millisecond

// addrPair names a peer and the address that it is spoken to from.
type addrPair struct{ local, remote netip.Addr }

// waiting are the QPs that wait for a peer to speak.
type waiting struct {
	addrPair
	qps   []*muxQP
	inMR  int  // of them undecided; the rest fell back
	asked bool // in mux.asked
}

// hear looks at MetaRoCE packets that the engine has taken. A peer shows that it speaks by HELLOs alone.
func (m *mux) hear(now mono.Time, ps []pkt.Packet) {
	if len(m.open) == 0 {
		return
	}
	for i := range ps {
		if p := &ps[i]; p.Data[0] == byte(wire.OpHello) {
			if w := m.open[addrPair{p.Dst, p.Src}]; w != nil {
				if answered, _ := m.ask.Heard(w.local, w.remote); answered {
					m.speaks(now, w)
				}
			}
		}
	}
}

// look takes those who stay silent to RoCEv2. Only peers with undecided QPs are looked at, and not on every step: who fell
// back costs nothing more.
func (m *mux) look(now mono.Time) {
	if now < m.lookAt {
		return
	}
	m.lookAt = now.Add(lookGap)
	for i := 0; i < len(m.asked); {
		w := m.asked[i]
		if w.inMR > 0 {
			m.judge(now, w)
		}
		if w.inMR > 0 && !m.spoke[w.remote] { // who spoke once will be heard
			i++
			continue
		}
		w.asked = false
		n := len(m.asked) - 1
		m.asked[i], m.asked[n] = m.asked[n], nil
		m.asked = m.asked[:n]
	}
}

// judge settles what can be settled of a peer with undecided QPs.
func (m *mux) judge(now mono.Time, w *waiting) {
	answered, tries := m.ask.Heard(w.local, w.remote)
	switch {
	case answered:
		m.speaks(now, w)
	//= MR-COEX-022 MR-COEX-023
	case tries > silentTries && !m.spoke[w.remote] && len(m.spoke) < peersMost:
		m.fallBack(now, w)
	}
}

// nextLook is when look has something to do.
func (m *mux) nextLook() mono.Time {
	if len(m.asked) == 0 {
		return mono.Never
	}
	return m.lookAt
}

// fallBack moves the QPs that wait for a silent peer to RoCEv2.
func (m *mux) fallBack(now mono.Time, w *waiting) {
	if len(m.silent) >= peersMost {
		clear(m.silent)
	}
	m.silent[w.remote] = now
	w.inMR = 0
	for _, q := range w.qps {
		if q.side == sideMR {
			m.C.Fallbacks++
			q.move(now, sideIB)
		}
	}
}

// speaks settles the QPs that wait for a peer: it speaks MetaRoCE.
func (m *mux) speaks(now mono.Time, w *waiting) {
	delete(m.open, w.addrPair)
	m.noteSpoke(w.remote)
	qps := w.qps
	w.qps, w.inMR = nil, 0
	for _, q := range qps {
		q.open = nil
		switch {
		case q.side == sideMR:
			q.owner.more()
		//= MR-COEX-025 MR-COEX-026
		case q.untouched():
			m.C.Returns++
			q.move(now, sideMR)
		}
	}
}

// wait adds a QP to those that wait for their peer.
func (m *mux) wait(q *muxQP) {
	pair := addrPair{q.rtr.LocalAddr, q.rtr.RemoteAddr}
	w := m.open[pair]
	if w == nil {
		w = &waiting{addrPair: pair}
		m.open[pair] = w
	}
	q.open, q.openAt = w, len(w.qps)
	w.qps = append(w.qps, q)
	if q.side == sideIB {
		return
	}
	if w.inMR++; !w.asked {
		w.asked = true
		m.asked = append(m.asked, w)
	}
}

// close says that a QP waits no more.
func (m *mux) close(q *muxQP) {
	w := q.open
	if w == nil {
		return
	}
	q.open = nil
	if q.side == sideMR {
		w.inMR--
	}
	n := len(w.qps) - 1
	last := w.qps[n]
	w.qps[q.openAt], last.openAt = last, q.openAt
	w.qps[n] = nil
	if w.qps = w.qps[:n]; n == 0 {
		delete(m.open, w.addrPair)
	}
}
