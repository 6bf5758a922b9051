//go:build dpdk

package wire

import (
	"net/netip"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// RxBurst implements device.Port.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	p.now = now
	if p.closed {
		return 0
	}
	p.drops[dropUnresolved] += uint64(p.near.Tick(now))
	p.moved = false
	if p.stopped() {
		if p.share != nil {
			p.q.Discard()
		}
		return 0
	}
	n := p.q.Rx(min(len(ps), dpdkx.Burst))
	if p.share != nil {
		p.moved = p.q.Moved() > 0
	}
	if n > 0 || p.moved {
		p.lastRx = now
	}
	filled := 0
	for i := range n {
		f, flags := p.q.Packet(i)
		if p.handle(now, f, flags, &ps[filled]) {
			filled++
		}
	}
	return filled
}

// handle takes a frame, and reports whether it has filled q.
func (p *Port) handle(now mono.Time, f []byte, flags uint32, q *pkt.Packet) bool {
	switch {
	case flags&dpdkx.Chained != 0 || len(f) >= ether.HeadLen && len(f) > ether.FrameMax(f, p.mtu):
		p.drops[dropRxTooLong]++
		return false
	case len(f) < ether.HeadLen:
		p.drops[dropShort]++
		return false
	case flags&dpdkx.BadIP != 0:
		p.drops[dropBadHeaders]++
		return false
	}
	h := ether.Parse(f, flags&dpdkx.GoodIP == 0)
	var learned *ether.Neigh
	done := false
	switch {
	case h.Kind == ether.Bad:
		p.drops[dropBadHeaders]++
		return false
	case h.Kind == ether.RoCE && ether.ForUs(ether.MAC(f[0:6]), p.near.MAC) && p.accepts(h.Dst):
		*q = h.Packet()
		q.Data, q.Time = f[h.Data:h.End:h.End], now
		p.count(q)
		return true
	case h.Kind == ether.ARP:
		learned, done = p.near.HandleARP(now, f[h.L3:])
	case h.Kind == ether.ND:
		learned, done = p.near.HandleND(now, h.NDSource(f), ether.MAC(f[6:12]), f[h.Data:h.End])
	}
	p.sendKept(learned)
	if done {
		return false
	}
	*q = pkt.Packet{Kind: pkt.Ethernet, Data: f, Time: now}
	p.count(q)
	return true
}

func (p *Port) count(q *pkt.Packet) {
	p.stats.RxPackets++
	p.stats.RxBytes += uint64(len(q.Data))
}

// accepts says whether a packet to a is for the NIC: to one of its addresses, or to a group that it is in.
func (p *Port) accepts(a netip.Addr) bool {
	if !a.IsMulticast() {
		return p.near.Own(a)
	}
	return p.groups.Has(a)
}
