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
	Addrs      []string          `json:"addrs"` // in the order of the GID table
	Up         bool              `json:"up"`    // at least one plane
	Rate       string            `json:"rate"`  // as sysfs prints it
	Counters   map[string]uint64 `json:"counters"`
	HWCounters map[string]uint64 `json:"hw_counters"`
}
