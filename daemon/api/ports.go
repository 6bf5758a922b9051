package api

// Ports answers "ports": the NICs as the files in /sys/class/infiniband show them. Args: none. nic: only that one.
type Ports struct {
	Version string `json:"version"`
	NICs    []Port `json:"nics"`
}

// Port is the port of a NIC. The counters have the names of sysfs, of ports/1/counters and ports/1/hw_counters.
type Port struct {
	Name       string            `json:"nic"`
	Dev        string            `json:"dev"`
	GUID       string            `json:"guid"`  // 16 hex digits
	Addrs      []string          `json:"addrs"` // by GID index; "" = the entry is empty
	Up         bool              `json:"up"`    // at least one plane
	Rate       string            `json:"rate"`  // as sysfs prints it
	Counters   map[string]uint64 `json:"counters"`
	HWCounters map[string]uint64 `json:"hw_counters"`
}

// AddressesArgs are the args of "addresses", which tells the NIC of the addresses that its host's interface has now. It answers as
// "ports". Those that the NIC cannot take are an error, and the others are taken.
type AddressesArgs struct {
	Addrs []string `json:"addrs"`
}
