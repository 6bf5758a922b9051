package view

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/device"
)

// Lifespan is how old a counter in the view may be, in milliseconds; hw_counters/lifespan says so to whoever asks.
const Lifespan = 100

// Tree returns the files of the view by their path below /sys/class. Counters that nobody has told of yet are 0.
func Tree(s Spec) map[string]string {
	files := map[string]string{"infiniband_verbs/abi_version": "6\n", "infiniband_mad/abi_version": "5\n"}
	for i, n := range s.NICs {
		nicTree(files, s, i, n)
	}
	return files
}

type setFunc func(base string, kv ...string)

func nicTree(files map[string]string, s Spec, i int, n NIC) {
	dev := "infiniband/" + n.Name + "/"
	set := func(base string, kv ...string) {
		for j := 0; j < len(kv); j += 2 {
			files[base+kv[j]] = kv[j+1] + "\n"
		}
	}
	// Char devices as the kernel numbers them: 231:192 and on for uverbs, 231:0 and on for umad.
	set(fmt.Sprintf("infiniband_verbs/uverbs%d/", i), "ibdev", n.Name, "abi_version", "1", "dev", fmt.Sprintf("231:%d", 192+i))
	// Tools of infiniband-diags look for a umad of the port. There is no node in /dev for it: no MADs go to a subnet manager.
	set(fmt.Sprintf("infiniband_mad/umad%d/", i), "ibdev", n.Name, "port", "1", "dev", fmt.Sprintf("231:%d", i))
	set(dev,
		"node_type", "1: CA", "node_guid", n.GUID, "sys_image_guid", n.GUID, "node_desc", "MetaRoCE emulated NIC",
		"fw_ver", n.Version, "hw_rev", "0x1", "hca_type", "nicemu", "board_id", "MR_EMULATED",
		// No PCI device stands behind it; programs that resolve the link get a directory that says so.
		"device/vendor", "0x0000", "device/device", "0x0000", "device/numa_node", "-1",
	)
	if n.Netdev != "" {
		set(dev, "device/net/"+n.Netdev+"/dev_id", "0x0", "device/net/"+n.Netdev+"/dev_port", "0")
	}
	portTree(set, dev+"ports/1/", s, n)
}

func portTree(set setFunc, port string, s Spec, n NIC) {
	state, phys := "4: ACTIVE", "5: LinkUp"
	if n.Down {
		state, phys = "1: DOWN", "3: Disabled"
	}
	rate := n.Rate
	if rate == "" {
		rate = "100 Gb/sec (4X EDR)"
	}
	set(port,
		"state", state, "phys_state", phys, "link_layer", "Ethernet", "rate", rate,
		"lid", "0x0", "lid_mask_count", "0", "sm_lid", "0x0", "sm_sl", "0", "cap_mask", "0x04010000", "has_smi", "0",
		"pkeys/0", "0xffff", "hw_counters/lifespan", strconv.Itoa(Lifespan),
	)
	counters, hw := device.PortCounterNames()
	for _, c := range counters {
		set(port, "counters/"+c, strconv.FormatUint(n.Counters[c], 10))
	}
	for _, c := range hw {
		set(port, "hw_counters/"+c, strconv.FormatUint(n.HWCounters[c], 10))
	}
	for g, gid := range n.GIDs {
		set(port, fmt.Sprintf("gids/%d", g), gid)
		if !s.GIDAttrs || gid == emptyGID {
			continue
		}
		set(port, fmt.Sprintf("gid_attrs/types/%d", g), "RoCE v2")
		if n.Netdev != "" { // the kernel refuses to name none, and a reader would take an empty name for one
			set(port, fmt.Sprintf("gid_attrs/ndevs/%d", g), n.Netdev)
		}
	}
}

// emptyGID is what an entry of the table shows that has no address.
var emptyGID = GID(netip.IPv6Unspecified())

// GID prints an address as sysfs prints its GID.
func GID(a netip.Addr) string {
	b := a.As16()
	var s []string
	for i := 0; i < 16; i += 2 {
		s = append(s, fmt.Sprintf("%04x", binary.BigEndian.Uint16(b[i:])))
	}
	return strings.Join(s, ":")
}

// GUID prints a GUID as sysfs prints it.
func GUID(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}
