package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/nicemu/wire"
	"github.com/metaroce/metaroce/nicemu/wire/hostport"
	"github.com/metaroce/metaroce/nicemu/wire/mem"
	"github.com/metaroce/metaroce/nicemu/wire/udp"
)

// PlaneVnetHdr and HostVnetHdr say how the drivers want TAPs that others make for them: with the virtio header, which
// super-packets need, or without.
const (
	PlaneVnetHdr = true
	HostVnetHdr  = false
)

// HostMTU is the MTU of a host port over planes of an MTU: over udp a frame travels inside a packet.
func HostMTU(kind string, mtu int) int {
	if kind == "udp" {
		return mtu - 128
	}
	return mtu
}

func openWire(fabric *mem.Fabric, n *serve.NIC, index int, w serve.Wire) (device.Port, error) {
	p, err := wire.Open(w.URL, wire.Options{
		NIC: n.Name, Plane: index, Fabric: fabric, MTU: w.MTU, PacketMax: serve.PacketMax(w.MTU, n.Addrs), MAC: serve.MAC(n.GUID), TAP: w.FD,
		Noise: (*mono.Duration)(w.Noise),
	})
	if err != nil {
		return nil, refusal(err)
	}
	if u, ok := p.(*udp.Port); ok {
		err = setPeers(u, n, w)
	}
	return p, err
}

// refusal tells what this machine refuses from what is asked for wrongly.
func refusal(err error) error {
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		return fail.Lackf("%w", err)
	}
	return fail.Failf("%w", err)
}

// openHostPort takes the TAP that a namespace holder made for us, or makes the one of that name.
func openHostPort(n *serve.NIC, w serve.Wire) (device.Port, error) {
	o := hostport.Options{MAC: serve.MAC(n.GUID), MTU: w.MTU}
	if w.FD != 0 {
		return hostport.New(w.FD, o)
	}
	p, err := hostport.Open(w.URL, o)
	if err != nil {
		return nil, refusal(err)
	}
	return p, address(w.URL, n.Prefixes)
}

// address gives a netdev its addresses.
func address(name string, prefixes []netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range prefixes {
		addr, err := netlink.ParseAddr(a.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrReplace(l, addr); err != nil {
			return fail.Lackf("cannot give %s the address %v: %w", name, a, err)
		}
	}
	return nil
}

// setPeers fills the wire's table: all addresses of one place together.
func setPeers(p *udp.Port, n *serve.NIC, w serve.Wire) error {
	at := map[netip.AddrPort][]netip.Addr{}
	var order []netip.AddrPort
	for _, peer := range w.Peers {
		if peer.At == p.LocalAddr() {
			continue // ourselves
		}
		if at[peer.At] == nil {
			order = append(order, peer.At)
		}
		at[peer.At] = append(at[peer.At], peer.GID)
	}
	for _, where := range order {
		if err := p.SetPeer(where, at[where]...); err != nil {
			return fmt.Errorf("peer %v of %s: %w", where, n.Name, err)
		}
	}
	return nil
}
