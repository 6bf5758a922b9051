package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/device"
)

// ports answers "ports": what the files of the NICs in /sys say now. It is asked often, by whoever keeps such files.
func (d *Daemon) ports(nics []*device.NIC, _ json.RawMessage) (any, error) {
	p := api.Ports{Version: d.cfg.Version}
	for _, n := range nics {
		p.NICs = append(p.NICs, portOf(n))
	}
	return p, nil
}

func portOf(n *device.NIC) api.Port {
	counters, hw := n.PortCounters()
	p := api.Port{Name: n.Name(), Dev: n.Dev(), GUID: fmt.Sprintf("%016x", n.GUID()), Up: n.Up(), Rate: device.RateText(n.Rate()),
		Counters: make(map[string]uint64, len(counters)), HWCounters: make(map[string]uint64, len(hw))}
	for _, a := range n.GIDTable() {
		text := ""
		if a.IsValid() {
			text = a.String()
		}
		p.Addrs = append(p.Addrs, text)
	}
	for _, c := range counters {
		p.Counters[c.Name] = c.Value
	}
	for _, c := range hw {
		p.HWCounters[c.Name] = c.Value
	}
	return p
}

// addresses follows the addresses of the host's interface behind a NIC, as who watches it says.
func (d *Daemon) addresses(nics []*device.NIC, args json.RawMessage) (any, error) {
	var a api.AddressesArgs
	if err := strict(args, &a); err != nil {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("addresses: %v", err)}
	}
	if len(args) == 0 || len(nics) != 1 {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: "addresses: of which NIC?"}
	}
	var list []netip.Addr
	for _, text := range a.Addrs {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("addresses: %v", err)}
		}
		list = append(list, addr)
	}
	err := nics[0].SetAddrs(d.clock.now(), list)
	d.cm.SetAddrs(slices.Index(d.nics, nics[0]), nics[0].GIDTable()) // those that were taken count
	if err != nil {
		return nil, &api.Error{Code: api.CodeFailed, Message: err.Error()}
	}
	return d.ports(nics, nil)
}
