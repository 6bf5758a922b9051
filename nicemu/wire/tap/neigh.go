package tap

import (
	"encoding/binary"
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2

	ndSolicit = 135
	ndAdvert  = 136
	ndLen     = 24 // ICMPv6 header, flags, target

	neighMax   = 4096 // what a plane of a lab can have; bounds what strangers make us remember
	reachable  = 30 * mono.Second
	askAgain   = 250 * mono.Millisecond
	asksMax    = 3  // unanswered, then a known address is given up
	heldMax    = 64 // packets kept while their addresses are asked for: of all, and
	heldEach   = 32 // of one; an answer takes microseconds, a packet lost here costs a round trip
	heldFor    = 1 * mono.Second
	notWaiting = mono.Never
)

// neigh is what is known about an address on this plane.
type neigh struct {
	addr      netip.Addr
	mac       mac
	known     bool
	confirmed mono.Time
	asked     mono.Time
	asks      int           // since it was confirmed
	held      []*pkt.Packet // the first packets for it, kept until it is known
	heldAt    mono.Time
}

// neighbours answers and asks ARP and ND for the NIC's addresses.
type neighbours struct {
	mac   mac
	addrs []netip.Addr
	table map[netip.Addr]*neigh
	wait  mono.Time // when to ask again for somebody, or Never
	hold  *pkt.Batch
	spare []*pkt.Packet
	frame [128]byte // a request or answer
	out   func(frame []byte)
}

func (n *neighbours) init(m mac, packetMax int, out func([]byte)) {
	n.mac, n.out, n.wait = m, out, notWaiting
	n.table = map[netip.Addr]*neigh{}
	n.hold = pkt.NewBatch(heldMax, packetMax)
	for p := n.hold.Next(); p != nil; p = n.hold.Next() {
		n.spare = append(n.spare, p)
	}
}

// setAddrs also tells the plane, so that what others remember of an address is right at once.
func (n *neighbours) setAddrs(addrs []netip.Addr) {
	n.addrs = n.addrs[:0]
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		n.addrs = append(n.addrs, a)
		if a.Is4() {
			n.arp(arpRequest, broadcast, mac{}, a, a)
		} else {
			n.advertise(multicastMAC(allNodes), allNodes, a, false)
		}
	}
}

func (n *neighbours) own(a netip.Addr) bool {
	for _, x := range n.addrs {
		if x == a {
			return true
		}
	}
	return false
}

// lookup returns where dst is, asking for it when that is not known or was not confirmed for long.
func (n *neighbours) lookup(now mono.Time, src, dst netip.Addr) *neigh {
	e := n.table[dst]
	if e == nil {
		e = n.create(dst)
		e.asked = now.Add(-askAgain)
	}
	due := !e.known || now.Sub(e.confirmed) > reachable
	if due && now.Sub(e.asked) >= askAgain {
		n.ask(now, e, src)
	}
	return e
}

const evictLooks = 32

func (n *neighbours) create(a netip.Addr) *neigh {
	if len(n.table) >= neighMax {
		n.evict()
	}
	e := &neigh{addr: a}
	n.table[a] = e
	return e
}

// evict makes place: of some addresses the one that was confirmed longest ago goes. Looking at all of them for each packet of
// a stranger who names ever new ones would be dear.
func (n *neighbours) evict() {
	var old *neigh
	looks := 0
	for _, e := range n.table {
		if looks++; looks > evictLooks {
			break
		}
		if old == nil || e.confirmed < old.confirmed {
			old = e
		}
	}
	n.drop(old)
	delete(n.table, old.addr)
}

func (n *neighbours) ask(now mono.Time, e *neigh, src netip.Addr) {
	e.asked = now
	if e.asks++; e.asks > asksMax {
		e.known = false
	}
	if e.addr.Is4() {
		n.arp(arpRequest, broadcast, mac{}, n.from(src, false), e.addr)
	} else {
		n.solicit(n.from(src, true), e.addr)
	}
	if len(e.held) > 0 {
		n.wait = mono.Min(n.wait, now.Add(askAgain))
	}
}

// from is the address we ask in the name of: src, when it is ours.
func (n *neighbours) from(src netip.Addr, v6 bool) netip.Addr {
	if n.own(src) {
		return src
	}
	for _, a := range n.addrs {
		if a.Is6() == v6 {
			return a
		}
	}
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// keep copies a packet for an address that is being asked for. False: there is no place, it is lost.
func (n *neighbours) keep(now mono.Time, e *neigh, q *pkt.Packet) bool {
	if len(e.held) == heldEach || len(n.spare) == 0 || len(q.Data) > cap(n.spare[0].Buf)-pkt.Headroom {
		return false
	}
	h := n.spare[len(n.spare)-1]
	n.spare = n.spare[:len(n.spare)-1]
	buf := h.Buf
	*h = *q
	h.Buf, h.Data = buf, append(buf[pkt.Headroom:pkt.Headroom], q.Data...)
	if e.held = append(e.held, h); len(e.held) == 1 {
		e.heldAt = now
	}
	n.wait = mono.Min(n.wait, now.Add(askAgain))
	return true
}

// drop forgets the packets kept for an address, sent or given up, and returns how many there were.
func (n *neighbours) drop(e *neigh) int {
	k := len(e.held)
	n.spare = append(n.spare, e.held...)
	e.held = e.held[:0]
	return k
}

// tick asks again for addresses with a packet kept, and returns how many packets were kept too long.
func (n *neighbours) tick(now mono.Time) (dropped int) {
	if now < n.wait {
		return 0
	}
	n.wait = notWaiting
	for _, e := range n.table {
		switch {
		case len(e.held) == 0:
		case now.Sub(e.heldAt) >= heldFor:
			dropped += n.drop(e)
		case now.Sub(e.asked) >= askAgain:
			n.ask(now, e, e.held[0].Src)
		default:
			n.wait = mono.Min(n.wait, e.asked.Add(askAgain))
		}
	}
	return dropped
}

// learn notes where an address is. Strangers are only noted when they ask for us (create). The caller sends what
// waited for it, and drops it then.
func (n *neighbours) learn(now mono.Time, a netip.Addr, m mac, create bool) *neigh {
	if m[0]&1 != 0 || a.IsUnspecified() || a.IsMulticast() || n.own(a) {
		return nil
	}
	e := n.table[a]
	if e == nil {
		if !create {
			return nil
		}
		e = n.create(a)
	}
	e.mac, e.known, e.confirmed, e.asks = m, true, now, 0
	return e
}

// handleARP answers requests for us and learns. It returns whom it learned, and whether the frame is of no interest to
// the host (a request that was answered).
func (n *neighbours) handleARP(now mono.Time, b []byte) (e *neigh, done bool) {
	if binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint16(b[2:]) != typeIPv4 || b[4] != 6 || b[5] != 4 {
		return nil, false
	}
	from, to := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	sender := mac(b[8:14])
	forUs := n.own(to)
	e = n.learn(now, from, sender, forUs)
	if forUs && binary.BigEndian.Uint16(b[6:]) == arpRequest && !n.own(from) {
		//= MR-PATH-001
		n.arp(arpReply, sender, sender, to, from)
		return e, true
	}
	return e, false
}

func (n *neighbours) arp(op uint16, dst, target mac, from, to netip.Addr) {
	f := n.frame[:etherLen+arpLen]
	copy(f, dst[:])
	copy(f[6:], n.mac[:])
	binary.BigEndian.PutUint16(f[12:], typeARP)
	b := f[etherLen:]
	binary.BigEndian.PutUint16(b, 1)
	binary.BigEndian.PutUint16(b[2:], typeIPv4)
	b[4], b[5] = 6, 4
	binary.BigEndian.PutUint16(b[6:], op)
	copy(b[8:], n.mac[:])
	s, t := from.As4(), to.As4()
	copy(b[14:], s[:])
	copy(b[18:], target[:])
	copy(b[24:], t[:])
	n.out(f)
}
