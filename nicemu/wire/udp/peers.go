package udp

import (
	"net/netip"
	"slices"
)

// peers says where to send for an address of a NIC, and whose address a datagram came from.
type peers struct {
	list []*peer // in the order they came, for flooding
	to   map[netip.Addr]*peer
	from map[netip.AddrPort]netip.Addr
	// byIP serves peers whose ports are not where they should be (taken, or behind a NAT). The zero Addr says that
	// several NICs are there.
	byIP map[netip.Addr]netip.Addr
	// second has the addresses that a peer does not take a datagram to be for; see ownAddr.
	second map[netip.Addr]*peer
	macs   map[[6]byte]rawAddr // learned from frames of host ports
}

type peer struct {
	at    netip.AddrPort
	name  rawAddr
	id    uint64 // a number of its own
	addrs []netip.Addr
}

// macsMax bounds what the frames of peers can make us remember; beyond it frames are flooded.
const macsMax = 4096

func (t *peers) init() {
	t.macs = make(map[[6]byte]rawAddr, 64)
	t.rebuild()
}

// set replaces the peer at an address and builds the tables anew.
func (t *peers) set(at netip.AddrPort, name rawAddr, addrs []netip.Addr) {
	keep := t.list[:0:0]
	found := false
	n := &peer{at: at, name: name}
	for _, a := range addrs {
		n.addrs = append(n.addrs, a.Unmap())
	}
	for _, p := range t.list {
		switch {
		case p.at != at:
			keep = append(keep, p)
		case len(addrs) > 0:
			keep, found = append(keep, n), true
		}
	}
	if !found && len(addrs) > 0 {
		keep = append(keep, n)
	}
	t.list = keep
	clear(t.macs) // they may live elsewhere now; one flood finds them again
	t.rebuild()
}

func (t *peers) rebuild() {
	t.to, t.from, t.byIP = map[netip.Addr]*peer{}, map[netip.AddrPort]netip.Addr{}, map[netip.Addr]netip.Addr{}
	t.second = map[netip.Addr]*peer{}
	for k, p := range t.list {
		p.id = uint64(k)
		for i, a := range p.addrs {
			t.to[a] = p
			if slices.ContainsFunc(p.addrs[:i], func(b netip.Addr) bool { return a.Is6() == b.Is6() }) {
				t.second[a] = p
			}
			if i >= AddrsMax {
				continue
			}
			for s := range Sockets {
				if port := sourcePort(p.at.Port(), i, s); port != 0 {
					t.from[netip.AddrPortFrom(p.at.Addr(), port)] = a
				}
			}
		}
		if _, there := t.byIP[p.at.Addr()]; there {
			t.byIP[p.at.Addr()] = netip.Addr{}
		} else {
			t.byIP[p.at.Addr()] = p.addrs[0]
		}
	}
}

// source returns whose address a datagram from at carries; the zero Addr when that cannot be told.
func (t *peers) source(at netip.AddrPort) netip.Addr {
	if a, ok := t.from[at]; ok {
		return a
	}
	if a, ok := t.byIP[at.Addr()]; ok {
		return a
	}
	return at.Addr() // nobody's: plain RoCEv2, where the UDP address is the NIC's
}
