package view

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Tree returns the files of the view by their path below /sys/class. Traffic counters are left out where a program
// would take a constant for the truth; those that are always 0 here are present.
func Tree(s Spec) map[string]string {
	files := map[string]string{"infiniband_verbs/abi_version": "6\n"}
	for i, n := range s.NICs {
		nicTree(files, s, i, n)
	}
	return files
}

func nicTree(files map[string]string, s Spec, i int, n NIC) {
	dev := "infiniband/" + n.Name + "/"
	uverbs := fmt.Sprintf("infiniband_verbs/uverbs%d/", i)
	set := func(base string, kv ...string) {
		for j := 0; j < len(kv); j += 2 {
			files[base+kv[j]] = kv[j+1] + "\n"
		}
	}
	set(uverbs, "ibdev", n.Name, "abi_version", "1", "dev", fmt.Sprintf("231:%d", 192+i))
	set(dev,
		"node_type", "1: CA", "node_guid", n.GUID, "sys_image_guid", n.GUID, "node_desc", "MetaRoCE emulated NIC",
		"fw_ver", n.Version, "hw_rev", "0", "hca_type", "nicemu", "board_id", "MR_EMULATED",
		// No PCI device stands behind it; programs that resolve the link get a directory that says so.
		"device/vendor", "0x0000", "device/device", "0x0000", "device/numa_node", "-1",
	)
	if n.Netdev != "" {
		set(dev, "device/net/"+n.Netdev+"/dev_id", "0x0", "device/net/"+n.Netdev+"/dev_port", "0")
	}
	port := dev + "ports/1/"
	set(port,
		"state", "4: ACTIVE", "phys_state", "5: LinkUp", "link_layer", "Ethernet",
		"rate", fmt.Sprintf("%d Gb/sec (4X)", n.RateGb),
		"lid", "0x0", "lid_mask_count", "0", "sm_lid", "0x0", "sm_sl", "0", "cap_mask", "0x04010000", "has_smi", "0",
		"pkeys/0", "0xffff",
	)
	for _, c := range []string{
		"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
		"port_rcv_switch_relay_errors", "port_xmit_discards", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
		"local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped", "port_xmit_wait",
	} {
		set(port, "counters/"+c, "0")
	}
	for g, gid := range n.GIDs {
		set(port, fmt.Sprintf("gids/%d", g), gid)
		if s.GIDAttrs {
			set(port, fmt.Sprintf("gid_attrs/types/%d", g), "RoCE v2", fmt.Sprintf("gid_attrs/ndevs/%d", g), n.Netdev)
		}
	}
}

// GID prints an address as sysfs prints its GID.
func GID(a netip.Addr) string {
	b := a.As16()
	var s string
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			s += ":"
		}
		s += fmt.Sprintf("%04x", binary.BigEndian.Uint16(b[i:]))
	}
	return s
}

// GUID prints a GUID as sysfs prints it.
func GUID(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}
