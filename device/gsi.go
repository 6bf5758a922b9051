package device

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// MADLen is the length of a management datagram.
const MADLen = rocev2.MADLen

// OnMAD sets who is given the management datagrams to QP 1 of the NIC, during Step. The bytes are not kept. It reports
// false when the NIC's engine has no QP 1.
func (n *NIC) OnMAD(h func(now mono.Time, src, dst netip.Addr, mad []byte)) bool {
	e := n.RoCEv2()
	if e != nil {
		e.OnMAD(h)
	}
	return e != nil
}

// SendMAD sends a management datagram from an address of the NIC to QP 1 of another. It may be lost; false: it is, as there
// was no room.
func (n *NIC) SendMAD(now mono.Time, local, remote netip.Addr, mad *[MADLen]byte) bool {
	e := n.RoCEv2()
	if e == nil || !n.own(local) {
		return false
	}
	n.now = max(n.now, now)
	n.resolve(local, remote)
	return e.SendMAD(local, remote, mad)
}

// Resolve tells the wires that packets will go to an address.
func (n *NIC) Resolve(now mono.Time, local, remote netip.Addr) {
	n.now = max(n.now, now)
	n.resolve(local, remote)
}

// ActiveMTU is the enum ibv_mtu of the largest path MTU.
func (n *NIC) ActiveMTU() uint8 { return uint8(n.cfg.activeMTU()) }

// MaxReads is how many READs and atomics a QP may have outstanding, in each direction.
func (n *NIC) MaxReads() int { return maxRdAtom }
