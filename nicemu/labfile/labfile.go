// Package labfile reads the description of a lab: hosts, planes and what is wrong with them.
//
// It is strict: every key must be known, and an error names file, line and the nearest known key.
package labfile

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/metaroce/metaroce/daemon/impair"
)

// Lab is a checked lab.
type Lab struct {
	Name      string
	Hosts     []Host // in the order of the file
	Planes    int
	Plane     Plane
	Wire      string // auto, tap, udp, mem
	Transport string // metaroce, rocev2, auto
	Seed      uint64
	Impair    []Impair
}

// Host is one emulated machine.
type Host struct {
	Name      string
	NICs      []NIC
	Transport string // metaroce, rocev2, auto; "" = the lab's
}

// NIC is one emulated NIC. Its GIDs are its addresses, in order.
type NIC struct {
	Name  string // mr0
	Addrs []netip.Prefix
}

// Plane describes every plane of the lab. A zero value means "no limit" (rate), "none" (delay) or the default.
type Plane struct {
	RateBps    uint64
	Delay      time.Duration
	MTU        int // of the Ethernet link; 0 = 4300, enough for a 4096-byte path MTU
	QueueBytes int
	ECNMin     int
	ECNMax     int
	// Noise is the timing noise that the transport allows the wire: floor of its delay target and of its loss timers.
	// nil = what the kind of wire is known for on shared cores.
	Noise *time.Duration `json:",omitempty"`
}

// Impair is what a lab makes some of its planes suffer, perhaps for a time.
type Impair = impair.Rule

// Limits of a lab.
const (
	MaxPlanes  = 16
	MaxHosts   = 1024
	DefaultMTU = 4300
	MinMTU     = 576
	MaxMTU     = 65000
	MaxNoise   = 100 * time.Millisecond
)

// LinkMTU returns the MTU of the planes' Ethernet links.
func (p Plane) LinkMTU() int {
	if p.MTU == 0 {
		return DefaultMTU
	}
	return p.MTU
}

// Words returns the plane's own properties as impairment words, so that one mechanism applies them all.
func (p Plane) Words() []string {
	var w []string
	add := func(k string, v any) { w = append(w, fmt.Sprintf("%s=%v", k, v)) }
	if p.RateBps != 0 {
		add("rate", fmt.Sprintf("%dbit", p.RateBps))
	}
	if p.Delay != 0 {
		add("delay", fmt.Sprintf("%dns", p.Delay.Nanoseconds()))
	}
	if p.QueueBytes != 0 {
		add("queue", p.QueueBytes)
	}
	if p.ECNMax != 0 {
		add("ecn", fmt.Sprintf("%d:%d", p.ECNMin, p.ECNMax))
	}
	return w
}

// NICNames returns HOST/mrN of every NIC in order.
func (l *Lab) NICNames() []string {
	var names []string
	for _, h := range l.Hosts {
		for _, n := range h.NICs {
			names = append(names, h.Name+"/"+n.Name)
		}
	}
	return names
}

// Host returns the host of that name, or nil.
func (l *Lab) Host(name string) *Host {
	for i := range l.Hosts {
		if l.Hosts[i].Name == name {
			return &l.Hosts[i]
		}
	}
	return nil
}

// HostNames returns the names of the hosts in order.
func (l *Lab) HostNames() []string {
	var names []string
	for _, h := range l.Hosts {
		names = append(names, h.Name)
	}
	return names
}

// Error is a mistake in a lab file.
type Error struct {
	File string
	Line int
	Msg  string
}

// Error prints file:line and the mistake.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg) }
