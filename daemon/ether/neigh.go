package ether

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
	HeldEach   = 32 // of one; an answer takes microseconds, a packet lost here costs a round trip
	heldFor    = 1 * mono.Second
	notWaiting = mono.Never
)

// Neigh is what is known about an address on this plane.
type Neigh struct {
	Addr      netip.Addr
	MAC       MAC
	Known     bool
	confirmed mono.Time
	asked     mono.Time
	asks      int           // since it was confirmed
	Held      []*pkt.Packet // the first packets for it, kept until it is known
	heldAt    mono.Time
}

// Neighbours answers and asks ARP and ND for the NIC's addresses.
type Neighbours struct {
	MAC   MAC
	addrs []netip.Addr
	table map[netip.Addr]*Neigh
	wait  mono.Time // when to ask again for somebody, or Never
	hold  *pkt.Batch
	spare []*pkt.Packet
	frame [128]byte // a request or answer
	out   func(frame []byte)
}

// Init makes them: those of a NIC with an address, whose own frames go by out.
func (n *Neighbours) Init(m MAC, packetMax int, out func([]byte)) {
	n.MAC, n.out, n.wait = m, out, notWaiting
	n.table = map[netip.Addr]*Neigh{}
	n.hold = pkt.NewBatch(heldMax, packetMax)
	for p := n.hold.Next(); p != nil; p = n.hold.Next() {
		n.spare = append(n.spare, p)
	}
}

// SetAddrs also tells the plane, so that what others remember of an address is right at once.
func (n *Neighbours) SetAddrs(addrs []netip.Addr) {
	n.addrs = n.addrs[:0]
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		n.addrs = append(n.addrs, a)
		if a.Is4() {
			n.arp(arpRequest, broadcast, MAC{}, a, a)
		} else {
			n.advertise(MulticastMAC(allNodes), allNodes, a, false)
		}
	}
}

// Own reports whether an address is the NIC's.
func (n *Neighbours) Own(a netip.Addr) bool {
	for _, x := range n.addrs {
		if x == a {
			return true
		}
	}
	return false
}

// Lookup returns where dst is, asking for it when that is not known or was not confirmed for long.
func (n *Neighbours) Lookup(now mono.Time, src, dst netip.Addr) *Neigh {
	e := n.table[dst]
	if e == nil {
		e = n.create(dst)
		e.asked = now.Add(-askAgain)
	}
	due := !e.Known || now.Sub(e.confirmed) > reachable
	if due && now.Sub(e.asked) >= askAgain {
		n.ask(now, e, src)
	}
	return e
}

const evictLooks = 32

func (n *Neighbours) create(a netip.Addr) *Neigh {
	if len(n.table) >= neighMax {
		n.evict()
	}
	e := &Neigh{Addr: a}
	n.table[a] = e
	return e
}

// evict makes place: of some addresses the one that was confirmed longest ago goes. Looking at all of them for each packet of
// a stranger who names ever new ones would be dear.
func (n *Neighbours) evict() {
	var old *Neigh
	looks := 0
	for _, e := range n.table {
		if looks++; looks > evictLooks {
			break
		}
		if old == nil || e.confirmed < old.confirmed {
			old = e
		}
	}
	n.Drop(old)
	delete(n.table, old.Addr)
}

func (n *Neighbours) ask(now mono.Time, e *Neigh, src netip.Addr) {
	e.asked = now
	if e.asks++; e.asks > asksMax {
		e.Known = false
	}
	if e.Addr.Is4() {
		n.arp(arpRequest, broadcast, MAC{}, n.from(src, false), e.Addr)
	} else {
		n.solicit(n.from(src, true), e.Addr)
	}
	if len(e.Held) > 0 {
		n.wait = mono.Min(n.wait, now.Add(askAgain))
	}
}

// from is the address we ask in the name of: src, when it is ours.
func (n *Neighbours) from(src netip.Addr, v6 bool) netip.Addr {
	if n.Own(src) {
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

// Keep copies a packet for an address that is being asked for. False: there is no place, it is lost.
func (n *Neighbours) Keep(now mono.Time, e *Neigh, q *pkt.Packet) bool {
	if len(e.Held) == HeldEach || len(n.spare) == 0 || len(q.Data) > cap(n.spare[0].Buf)-pkt.Headroom {
		return false
	}
	h := n.spare[len(n.spare)-1]
	n.spare = n.spare[:len(n.spare)-1]
	buf := h.Buf
	*h = *q
	h.Buf, h.Data = buf, append(buf[pkt.Headroom:pkt.Headroom], q.Data...)
	if e.Held = append(e.Held, h); len(e.Held) == 1 {
		e.heldAt = now
	}
	n.wait = mono.Min(n.wait, now.Add(askAgain))
	return true
}

// Drop forgets the packets kept for an address, sent or given up, and returns how many there were.
func (n *Neighbours) Drop(e *Neigh) int {
	k := len(e.Held)
	n.spare = append(n.spare, e.Held...)
	e.Held = e.Held[:0]
	return k
}

// Tick asks again for addresses with a packet kept, and returns how many packets were kept too long.
func (n *Neighbours) Tick(now mono.Time) (dropped int) {
	if now < n.wait {
		return 0
	}
	n.wait = notWaiting
	for _, e := range n.table {
		switch {
		case len(e.Held) == 0:
		case now.Sub(e.heldAt) >= heldFor:
			dropped += n.Drop(e)
		case now.Sub(e.asked) >= askAgain:
			n.ask(now, e, e.Held[0].Src)
		default:
			n.wait = mono.Min(n.wait, e.asked.Add(askAgain))
		}
	}
	return dropped
}

// Learn notes where an address is. Strangers are only noted when they ask for us (create). The caller sends what
// waited for it, and drops it then.
func (n *Neighbours) Learn(now mono.Time, a netip.Addr, m MAC, create bool) *Neigh {
	if m[0]&1 != 0 || a.IsUnspecified() || a.IsMulticast() || n.Own(a) {
		return nil
	}
	e := n.table[a]
	if e == nil {
		if !create {
			return nil
		}
		e = n.create(a)
	}
	e.MAC, e.Known, e.confirmed, e.asks = m, true, now, 0
	return e
}

// HandleARP answers requests for us and learns. It returns whom it learned, and whether the frame is of no interest to
// the host (a request that was answered).
func (n *Neighbours) HandleARP(now mono.Time, b []byte) (e *Neigh, done bool) {
	if binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint16(b[2:]) != typeIPv4 || b[4] != 6 || b[5] != 4 {
		return nil, false
	}
	from, to := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	sender := MAC(b[8:14])
	forUs := n.Own(to)
	e = n.Learn(now, from, sender, forUs)
	if forUs && binary.BigEndian.Uint16(b[6:]) == arpRequest && !n.Own(from) {
		//= MR-PATH-001
		n.arp(arpReply, sender, sender, to, from)
		return e, true
	}
	return e, false
}

func (n *Neighbours) arp(op uint16, dst, target MAC, from, to netip.Addr) {
	f := n.frame[:HeadLen+arpLen]
	copy(f, dst[:])
	copy(f[6:], n.MAC[:])
	binary.BigEndian.PutUint16(f[12:], typeARP)
	b := f[HeadLen:]
	binary.BigEndian.PutUint16(b, 1)
	binary.BigEndian.PutUint16(b[2:], typeIPv4)
	b[4], b[5] = 6, 4
	binary.BigEndian.PutUint16(b[6:], op)
	copy(b[8:], n.MAC[:])
	s, t := from.As4(), to.As4()
	copy(b[14:], s[:])
	copy(b[18:], target[:])
	copy(b[24:], t[:])
	n.out(f)
}

// NextWake is when somebody must be asked again, or Never.
func (n *Neighbours) NextWake() mono.Time { return n.wait }
