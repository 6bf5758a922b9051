package device

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// gidSlot is an entry of the GID table. An address that goes away leaves its entry empty and gets it again when it comes
// back, so that an index means one address for as long as the NIC lives.
type gidSlot struct {
	addr netip.Addr
	live bool
}

// gidsMax bounds the table: what the index of an address vector may name.
const gidsMax = 256

// SlotPort is a Port whose peers know the NIC's addresses by their position: it is told the whole table, empty entries by the
// address that they had.
type SlotPort interface {
	Port
	SetSlots(addrs []netip.Addr)
}

// AddrEngine is an engine that can be told other addresses.
type AddrEngine interface {
	SetAddrs(addrs []netip.Addr)
}

func (n *NIC) initGIDs() {
	for _, a := range n.cfg.Addrs {
		n.gids = append(n.gids, gidSlot{a, true})
	}
}

// GID returns entry i of the GID table; ENODATA says that it is empty.
func (n *NIC) GID(port, i uint32) (gid [16]byte, err error) {
	switch {
	case port != 1 || int(i) >= len(n.gids):
		return gid, syscall.EINVAL
	case !n.gids[i].live:
		return gid, syscall.ENODATA
	}
	return n.gids[i].addr.As16(), nil
}

// GIDTable returns the addresses by index; an empty entry has none.
func (n *NIC) GIDTable() []netip.Addr {
	list := make([]netip.Addr, len(n.gids))
	for i, g := range n.gids {
		if g.live {
			list[i] = g.addr
		}
	}
	return list
}

// gidIndex reports whether an address vector may name the entry.
func (n *NIC) gidIndex(i uint8) bool { return int(i) < len(n.gids) && n.gids[i].live }

// gidAddr is the address of an entry that an address vector named when it had one.
func (n *NIC) gidAddr(i uint8) netip.Addr { return n.gids[i].addr }

// SetAddrs follows the addresses of the host's interface: programs get an event for each that came or went. Those that
// the NIC cannot take are left out and returned in the error; the others count. Connections of an address that went stay
// as they are and hear no more of their peers.
func (n *NIC) SetAddrs(now mono.Time, addrs []netip.Addr) error {
	n.now = now
	var want []netip.Addr
	var refused error
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		switch {
		case slices.Contains(want, a):
		case !a.IsValid() || a.IsUnspecified() || a.IsMulticast():
			refused = fmt.Errorf("device %s: %v is no address of a NIC", n.cfg.Name, a)
		case !slices.ContainsFunc(n.gids, func(g gidSlot) bool { return g.addr.Is4() == a.Is4() }): // the packets would have another size
			refused = fmt.Errorf("device %s: %v is of a family that the NIC began without", n.cfg.Name, a)
		default:
			want = append(want, a)
		}
	}
	changed := 0
	for i := range n.gids {
		g := &n.gids[i]
		if live := slices.Contains(want, g.addr); live != g.live {
			g.live = live
			changed++
		}
	}
	for _, a := range want {
		switch {
		case slices.ContainsFunc(n.gids, func(g gidSlot) bool { return g.addr == a }):
		case len(n.gids) == gidsMax:
			refused = fmt.Errorf("device %s: the GID table is full, %v is left out", n.cfg.Name, a)
		default:
			n.gids = append(n.gids, gidSlot{a, true})
			changed++
		}
	}
	if changed > 0 {
		n.tellAddrs()
	}
	for range changed {
		for _, c := range n.contexts {
			c.raise(hostq.AsyncEvent{Type: evGIDChange, Port: portEventNumber}, nil)
		}
	}
	return refused
}

// tellAddrs tells wires and engine.
func (n *NIC) tellAddrs() {
	live, slots := []netip.Addr{}, []netip.Addr{}
	for _, g := range n.gids {
		slots = append(slots, g.addr)
		if g.live {
			live = append(live, g.addr)
		}
	}
	n.cfg.Addrs = live
	for _, p := range n.planes {
		if w, ok := below[SlotPort](p.port); ok {
			w.SetSlots(slots)
		} else {
			p.port.SetAddrs(live)
		}
	}
	if e, ok := n.eng.(AddrEngine); ok {
		e.SetAddrs(live)
	}
}
