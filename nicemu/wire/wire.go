// Package wire opens wires by URL, one a plane:
//
//	tap:NAME[?bridge=BR][&mtu=N]  a TAP device, made when it is not there (package tap)
//	udp:ADDR[:PORT]               kernel sockets, for whom may make no interfaces (package udp)
//	mem:                          the fabric inside this daemon (package mem)
package wire

import (
	"fmt"
	"net/url"
	"sort"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/nicemu/wire/mem"
	"github.com/metaroce/metaroce/nicemu/wire/tap"
	"github.com/metaroce/metaroce/nicemu/wire/udp"
)

// Options say what a URL does not.
type Options struct {
	NIC       string      // HOST/mrN, for messages and as the seed of MAC
	Plane     int         // which of the NIC's planes it is
	Fabric    *mem.Fabric // for mem:
	MTU       int         // of the plane; 0 = as the wire has it
	PacketMax int         // largest BTH … ICRC; 0 = what the wire carries
	MAC       [6]byte     // of the NIC; 0 = made of its name. With a host port: the same as its
	TAP       int         // tap: an open descriptor, owned from then on; 0 = open it by name
	Plain     bool        // no super-packets, no datagram trains: for comparison

	Noise *mono.Duration // the wire's timing noise; nil = what its kind is known for on shared cores
}

// Open makes the wire of one plane.
func Open(raw string, o Options) (device.Port, error) {
	kind, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return nil, fmt.Errorf("%q is no wire; the kinds are mem:, tap:NAME and udp:ADDR[:PORT]", raw)
	}
	switch kind {
	case "mem":
		switch {
		case rest != "":
			return nil, fmt.Errorf("%q: mem: takes no name; the fabric is the daemon's own", raw)
		case o.Fabric == nil:
			return nil, fmt.Errorf("mem: is a wire between NICs of one daemon, and here is no fabric")
		}
		return o.Fabric.Port(o.Plane, o.NIC, mem.Options{PacketMax: o.packetMax(), Noise: o.Noise}), nil
	case "udp":
		at, err := udp.ParseURL(raw)
		if err != nil {
			return nil, err
		}
		return typed(udp.Open(at, udp.Options{PacketMax: o.packetMax(), NoTrains: o.Plain, Noise: o.Noise}))
	case "tap":
		return openTAP(raw, rest, o)
	case "dpdk":
		return nil, fmt.Errorf("%s: DPDK ports are for mroce-dpdk, not for nicemu", raw)
	}
	return nil, fmt.Errorf("%q: unknown wire %q: want tap, udp or mem", raw, kind)
}

// packetMax is what an MTU leaves in a wire that has none of its own.
func (o *Options) packetMax() int {
	if o.PacketMax == 0 && o.MTU != 0 {
		return o.MTU - 48 // IPv6, UDP
	}
	return o.PacketMax
}

func openTAP(raw, rest string, o Options) (device.Port, error) {
	name, query, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", raw, err)
	}
	t := tap.Options{MTU: o.MTU, PacketMax: o.PacketMax, MAC: o.MAC, Plain: o.Plain, Noise: o.Noise}
	if t.MAC == ([6]byte{}) && o.NIC != "" {
		t.MAC = ether.MACFor(o.NIC)
	}
	keys := make([]string, 0, len(values))
	for k := range values {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		v := values.Get(k)
		switch k {
		case "bridge":
			t.Bridge = v
		case "mtu":
			if t.MTU, err = strconv.Atoi(v); err != nil || t.MTU <= 0 {
				return nil, fmt.Errorf("%q: mtu=%s is not a number of bytes", raw, v)
			}
		default:
			return nil, fmt.Errorf("%q: unknown key %q: a TAP takes bridge= and mtu=", raw, k)
		}
	}
	if o.TAP != 0 {
		return typed(tap.New(o.TAP, t))
	}
	return typed(tap.Open(name, t))
}

// typed keeps a nil pointer from becoming an interface that is not nil.
func typed[P device.Port](p P, err error) (device.Port, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}
