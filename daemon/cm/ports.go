package cm

import (
	"math/bits"
	"net/netip"
	"slices"
	"syscall"
)

// The RDMA IP connection manager's part: IP addresses and ports, and how they appear in service IDs and private data.

// PortSpace is the space of port numbers of an ID.
type PortSpace uint16

// Port spaces (enum rdma_port_space).
const (
	PSIPoIB PortSpace = 0x0002
	PSTCP   PortSpace = 0x0106
	PSUDP   PortSpace = 0x0111
	PSIB    PortSpace = 0x013f
)

const (
	ephemeralLo, ephemeralHi = 32768, 60999
	ipHeaderLen              = 36
)

type portKey struct {
	ps   PortSpace
	port uint16
}

// host is a set of NICs with port numbers of its own.
type host struct {
	name  string
	ports map[portKey][]*ID
}

// service is the service ID of a port.
func service(ps PortSpace, port uint16) uint64 { return uint64(ps)<<16 | uint64(port) }

// putIPHeader writes the header that begins the private data of a request.
func putIPHeader(b []byte, src, dst netip.AddrPort) {
	clear(b[:ipHeaderLen])
	be.PutUint16(b[2:], src.Port())
	if src.Addr().Is4() {
		b[1] = 4 << 4
		s, d := src.Addr().As4(), dst.Addr().As4()
		copy(b[16:20], s[:])
		copy(b[32:36], d[:])
		return
	}
	b[1] = 6 << 4
	s, d := src.Addr().As16(), dst.Addr().As16()
	copy(b[4:20], s[:])
	copy(b[20:36], d[:])
}

// parseIPHeader reads whom it is from. Whom it is for is seen from where it came, and the port is in the service ID.
func parseIPHeader(b []byte) (src netip.AddrPort, ok bool) {
	port := be.Uint16(b[2:])
	switch {
	case b[0] != 0:
		return src, false
	case b[1]>>4 == 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), port), true
	case b[1]>>4 == 6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:20])).Unmap(), port), true
	}
	return src, false
}

// listenerFor finds who listens at an address of a NIC: the very address before any address.
func (m *Manager) listenerFor(nic int, svc uint64, dst netip.Addr) *ID {
	if svc>>32 != 0 || !dst.IsValid() {
		return nil
	}
	var any *ID
	for _, id := range m.hosts[m.nicHost[nic]].ports[portKey{PortSpace(svc >> 16), uint16(svc)}] {
		switch {
		case id.state != idListening || !id.prog.sees[nic]:
		case id.src.Addr() == dst:
			return id
		case id.src.Addr().IsUnspecified() && (id.src.Addr().Is4() == dst.Is4() || !id.src.Addr().Is4() && !id.afOnly):
			any = id
		}
	}
	return any
}

// hostsOf are the hosts whose port numbers an ID uses: that of its NIC, else all that its program sees.
func (id *ID) hostsOf() []*host {
	m := id.prog.m
	if id.nic >= 0 {
		return []*host{m.hosts[m.nicHost[id.nic]]}
	}
	return id.prog.hosts
}

// overlap reports whether a request could be meant for both.
func overlap(a, b *ID) bool {
	x, y := a.src.Addr(), b.src.Addr()
	switch {
	case x == y:
		return true
	case x.IsUnspecified() && !x.Is4() && !a.afOnly, y.IsUnspecified() && !y.Is4() && !b.afOnly:
		return true
	}
	return x.Is4() == y.Is4() && (x.IsUnspecified() || y.IsUnspecified())
}

// free reports whether an ID may use a port.
func (id *ID) free(port uint16) bool {
	for _, h := range id.hostsOf() {
		for _, o := range h.ports[portKey{id.ps, port}] {
			if o != id && overlap(id, o) && !(id.reuse && o.reuse && o.state != idListening) {
				return false
			}
		}
	}
	return true
}

// takePort gives an ID its port; 0: any that is free.
func (id *ID) takePort(port uint16) error {
	if port == 0 {
		n := ephemeralHi - ephemeralLo + 1
		first := id.prog.m.rnd.IntN(n)
		for i := range n {
			if p := uint16(ephemeralLo + (first+i)%n); id.free(p) {
				port = p
				break
			}
		}
		if port == 0 {
			return syscall.EADDRNOTAVAIL
		}
	} else if !id.free(port) {
		return syscall.EADDRINUSE
	}
	id.src = netip.AddrPortFrom(id.src.Addr(), port)
	id.held = id.hostsOf()
	for _, h := range id.held {
		k := portKey{id.ps, port}
		h.ports[k] = append(h.ports[k], id)
	}
	return nil
}

func (id *ID) dropPort() {
	k := portKey{id.ps, id.src.Port()}
	for _, h := range id.held {
		l := h.ports[k]
		for i, o := range l {
			if o == id {
				l = slices.Delete(l, i, i+1)
				break
			}
		}
		if h.ports[k] = l; len(l) == 0 {
			delete(h.ports, k)
		}
	}
	id.held = nil
}

// ownNIC finds the NIC that has an address, among those that a program sees.
func (p *Program) ownNIC(a netip.Addr) int {
	for i := range p.m.cfg.NICs {
		if !p.sees[i] {
			continue
		}
		for _, x := range p.m.cfg.NICs[i].Addrs {
			if x == a {
				return i
			}
		}
	}
	return -1
}

// route finds the NIC and the address from which to reach another one: its own, else that whose address has most of its
// leading bits. A group or this very host is reached from the first NIC with an address of the family.
func (p *Program) route(dst netip.Addr, only int) (nic int, src netip.Addr) {
	nic = -1
	best := -1
	if only < 0 {
		if n := p.ownNIC(dst); n >= 0 {
			return n, dst
		}
	}
	for i := range p.m.cfg.NICs {
		if !p.sees[i] || only >= 0 && i != only {
			continue
		}
		for _, a := range p.m.cfg.NICs[i].Addrs {
			if !a.IsValid() || a.Is4() != dst.Is4() { // or a place of the GID table that is empty now
				continue
			}
			k := commonBits(a, dst)
			if dst.IsMulticast() || dst.IsLoopback() {
				k = 0
			}
			if k > best {
				best, nic, src = k, i, a
			}
		}
	}
	return nic, src
}

func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return 128
}
