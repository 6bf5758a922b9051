//go:build dpdk

package wire

import (
	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// txState is a burst on its way to the port.
type txState struct {
	n    int
	from [pkt.Burst]uint8  // which packets they are
	buf  [pkt.Burst][]byte // of the pool; where the packet lies
	swap [pkt.Burst][]byte // what the packet's Buf becomes; nil: it lay elsewhere, and keeps its Buf

	waiting [pkt.Burst]uint8 // packets whose destination is being asked for
	nWait   int
}

// TxBurst implements device.Port.
func (p *Port) TxBurst(now mono.Time, ps []pkt.Packet) int {
	if p.closed {
		p.drops[dropClosed] += uint64(len(ps))
		return len(ps)
	}
	if p.stopped() {
		p.drops[dropLinkDown] += uint64(len(ps))
		return len(ps)
	}
	taken := 0
	for taken < len(ps) {
		part := ps[taken:min(len(ps), taken+pkt.Burst)]
		k := p.send(now, part)
		taken += k
		if k < len(part) {
			break
		}
	}
	return taken
}

// send resolves a burst, puts headers in front of its packets and gives it to the port. It returns how many packets are
// done with: sent, kept for later or dropped.
func (p *Port) send(now mono.Time, ps []pkt.Packet) int {
	t := &p.tx
	t.n, t.nWait = 0, 0
	var last *ether.Neigh
	end := len(ps)
	for i := range ps {
		q := &ps[i]
		//= MR-WIRE-095
		if q.Kind == pkt.Ethernet {
			if len(q.Data) < ether.HeadLen || len(q.Data) > ether.FrameMax(q.Data, p.mtu) {
				p.drops[dropTooLong]++
			} else if !p.add(i, q, ether.MAC{}) {
				end = i
				break
			}
			continue
		}
		if why := p.check(q); why != drops {
			p.drops[why]++
			continue
		}
		var to ether.MAC
		if q.Dst.IsMulticast() {
			to = ether.MulticastMAC(q.Dst)
		} else {
			if last == nil || last.Addr != q.Dst {
				last = p.near.Lookup(now, q.Src, q.Dst)
			}
			if !last.Known {
				t.waiting[t.nWait] = uint8(i)
				t.nWait++
				continue
			}
			to = last.MAC
		}
		if !p.add(i, q, to) {
			end = i
			break
		}
	}
	return p.flush(now, ps, end)
}

// add puts a packet into the burst in hand. False: there is no buffer to give for it.
func (p *Port) add(i int, q *pkt.Packet, to ether.MAC) bool {
	t := &p.tx
	spare := p.spare()
	if spare == nil {
		return false
	}
	head := 0
	if q.Kind == pkt.RoCE {
		head = ether.HeadersLen(q.Dst)
	}
	buf := spare
	t.swap[t.n] = nil
	if len(q.Buf) > pkt.Headroom && len(q.Data) > 0 && &q.Data[0] == &q.Buf[pkt.Headroom] && p.mem.pool.Owns(q.Buf) {
		buf, t.swap[t.n] = q.Buf, spare
	} else { // it lies in somebody's own memory: a copy
		copy(buf[pkt.Headroom:], q.Data)
	}
	at, l2, l3 := pkt.Headroom-head, 0, 0
	if head > 0 {
		h := buf[at:pkt.Headroom]
		ether.PutHeaders(h, to, p.near.MAC, q, len(q.Data), false)
		if p.off.TxIPv4Checksum && q.Dst.Is4() {
			h[ether.HeadLen+10], h[ether.HeadLen+11] = 0, 0
			l2, l3 = ether.HeadLen, ether.IPv4Len
		}
	}
	t.from[t.n], t.buf[t.n] = uint8(i), buf
	p.q.Set(t.n, buf, at, head+len(q.Data), l2, l3)
	t.n++
	return true
}

// spare takes a buffer out, asking the pool where none is in hand.
func (p *Port) spare() []byte {
	if p.q.Spares() == 0 {
		p.q.Refill()
	}
	buf := p.q.Take()
	if buf == nil {
		p.drops[dropNoBuffers]++
	}
	return buf
}

// flush sends the burst in hand. Of ps, the packets up to end were looked at.
func (p *Port) flush(now mono.Time, ps []pkt.Packet, end int) int {
	t := &p.tx
	sent := 0
	if t.n > 0 {
		sent = p.q.Tx(t.n)
	}
	if sent < t.n {
		end = int(t.from[sent])
		if !p.LinkUp() { // it would take nothing for as long as the link is down
			p.drops[dropLinkDown] += uint64(t.n - sent)
			end = len(ps)
		}
	}
	for j := range t.n {
		q := &ps[t.from[j]]
		switch swap := t.swap[j]; {
		case j < sent:
			p.stats.TxPackets++
			p.stats.TxBytes += uint64(len(q.Data))
			if swap != nil {
				q.Buf = swap
			}
		case swap != nil:
			p.q.Put(swap)
		default:
			p.q.Put(t.buf[j])
		}
		t.buf[j], t.swap[j] = nil, nil
	}
	for _, i := range t.waiting[:t.nWait] {
		if int(i) >= end {
			break // offered again
		}
		if q := &ps[i]; !p.near.Keep(now, p.near.Lookup(now, q.Src, q.Dst), q) {
			p.drops[dropUnresolved]++
		}
	}
	return end
}

// check says why a packet cannot be sent at all, or drops.
func (p *Port) check(q *pkt.Packet) drop {
	switch {
	case len(q.Data) == 0:
		return dropShort
	case !q.Dst.IsValid() || q.Src.Is4() != q.Dst.Is4() || !q.Src.IsValid():
		return dropFamily
	case ether.HeadersLen(q.Dst)-ether.HeadLen+len(q.Data) > p.mtu:
		return dropTooLong
	}
	return drops
}

// sendKept sends the packets that waited for an address. They lie in memory of the neighbours, so they are copied. Nobody
// offers them again.
func (p *Port) sendKept(e *ether.Neigh) {
	if e == nil || len(e.Held) == 0 {
		return
	}
	t := &p.tx
	t.n = 0
	for i, q := range e.Held {
		if !p.add(i, q, e.MAC) {
			break
		}
	}
	sent := p.q.Tx(t.n)
	for j := range t.n {
		if j < sent {
			p.stats.TxPackets++
			p.stats.TxBytes += uint64(len(e.Held[j].Data))
		} else {
			p.q.Put(t.buf[j])
		}
		t.buf[j], t.swap[j] = nil, nil
	}
	p.drops[dropTxFull] += uint64(len(e.Held) - sent)
	p.near.Drop(e)
}

// control sends a frame of our own (ARP, ND), which is in nobody's statistics. It comes in the middle of a burst.
func (p *Port) control(f []byte) {
	if p.closed || p.stopped() {
		return
	}
	buf := p.spare()
	if buf == nil {
		return
	}
	if !p.q.TxOne(buf, pkt.Headroom, copy(buf[pkt.Headroom:], f)) {
		p.q.Put(buf)
	}
}
