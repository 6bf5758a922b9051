package daemon

import (
	"encoding/json"
	"fmt"

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
	for _, a := range n.Addrs() {
		p.Addrs = append(p.Addrs, a.String())
	}
	for _, c := range counters {
		p.Counters[c.Name] = c.Value
	}
	for _, c := range hw {
		p.HWCounters[c.Name] = c.Value
	}
	return p
}
