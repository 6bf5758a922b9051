// Package serve is a daemon of ours from its configuration: it puts wrappers over wires, builds NICs of them and runs them.
// Which wires there are is the business of who calls it (Host).
package serve

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/metaroce/metaroce/daemon/impair"
)

// Config is what a daemon is started with; `lab up` and `up` write it to a file.
type Config struct {
	Name      string        `json:"name"` // of the lab or NIC, for people
	Socket    string        `json:"socket"`
	Group     string        `json:"group,omitempty"` // group that may use the socket besides the user
	Transport string        `json:"transport"`
	DMA       string        `json:"dma,omitempty"` // assist: by copy threads in the programs; "" = the best way that works
	Version   string        `json:"version"`
	Seed      uint64        `json:"seed"`
	Private   bool          `json:"private,omitempty"` // strangers may reach it: what nobody may guess comes from the system, not from the seed
	Spool     string        `json:"spool"`             // directory for captures on their way to the user
	NICs      []NIC         `json:"nics"`
	Capture   string        `json:"capture,omitempty"` // file for what all planes send and receive, from the first packet to the last
	Impair    []impair.Rule `json:"impair,omitempty"`
}

// NIC is one NIC.
type NIC struct {
	Name  string       `json:"name"` // a/mr0
	Dev   string       `json:"dev"`  // mr0
	GUID  uint64       `json:"guid"`
	Addrs []netip.Addr `json:"addrs"`
	// Transport is how its connections travel: auto, metaroce or rocev2; "" = the daemon's.
	Transport string `json:"transport,omitempty"`
	Planes    []Wire `json:"planes"`
	HostPort  *Wire  `json:"host_port,omitempty"`
	// Prefixes are the addresses for a host port that the daemon makes itself.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
}

// Wire is one plane's port, or the host port.
type Wire struct {
	URL   string   `json:"url"`
	FD    int      `json:"fd,omitempty"` // a descriptor we were started with; 0 = none
	MTU   int      `json:"mtu"`
	Peers []Peer   `json:"peers,omitempty"` // udp: who lives where
	Words []string `json:"words,omitempty"` // the plane's own rate, delay, queue, ecn
	// Noise is the wire's timing noise, where it is not what its kind is known for.
	Noise *time.Duration `json:"noise_nanoseconds,omitempty"`
}

// Peer says where a GID is found on a udp plane.
type Peer struct {
	GID netip.Addr     `json:"gid"`
	At  netip.AddrPort `json:"at"`
}

// Write stores the configuration for the daemon to read.
func (c *Config) Write(path string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

// Read loads a configuration.
func Read(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &Config{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
