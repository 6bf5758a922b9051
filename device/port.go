// Package device is the NIC: contexts, protection domains, memory regions, queues, QPs and their one Step(now).
package device

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Port is one wire of a NIC: one plane. Drivers implement it (TAP, UDP, in-memory, DPDK, the simulator); wrappers
// (impairments, capture) take a Port and are one.
//
// Calls come from the device's goroutine only. None of them blocks.
type Port interface {
	// Caps says what the wire can do. Constant while the port lives.
	Caps() PortCaps
	// SetAddrs tells the wire the NIC's addresses: it answers ARP/ND for them and accepts packets to them.
	SetAddrs(addrs []netip.Addr)
	// RxBurst fills ps with received packets, stamped with now, and returns how many. Their bytes belong to the
	// driver until the next RxBurst of this port.
	RxBurst(now mono.Time, ps []pkt.Packet) int
	// TxBurst sends packets in order and returns how many were taken; the rest was refused because the wire is
	// full, and is offered again. A taken packet may still be lost. Data may be overwritten when it returns, and
	// a driver may write outer headers into the headroom. See MemoryPort for drivers that keep the buffers.
	TxBurst(now mono.Time, ps []pkt.Packet) int
	// LinkUp reports whether the wire can carry anything.
	LinkUp() bool
	// NextWake is when RxBurst or TxBurst should be called next although no descriptor is readable
	// (delayed packets of an impairment), or mono.Never.
	NextWake() mono.Time
	// FDs are descriptors to wait on for received packets.
	FDs() []int
	// Stats returns the wire's own counters.
	Stats() PortStats
	Close() error
}

// GroupPort is a Port that looks at multicast addresses itself: it is told which groups QPs of the NIC are attached to.
// Wires without it hand over all multicast packets, and the engine looks.
type GroupPort interface {
	Port
	SetGroups(groups []netip.Addr)
}

// ResolvePort is a Port that has to find out where an address is before it can send there. It is told in time, so that
// the first packets do not wait.
type ResolvePort interface {
	Port
	Resolve(now mono.Time, src, dst netip.Addr)
}

// MemoryPort is a Port that sends from memory of its own without another copy: the payload goes from the program's memory
// straight to where the wire takes it from.
type MemoryPort interface {
	Port
	// TxBuffer returns a buffer for packets to be sent, pkt.Headroom and at least size bytes, or nil when there is none.
	// TxBurst keeps the buffers of packets that it takes, and puts others into their Buf; Data stays readable until the
	// next call. Whoever hands packets on in copies hands the Buf back. A buffer may go to any MemoryPort of the NIC.
	TxBuffer(size int) []byte
}

// SleepPort is a Port that other threads of the process hand packets to. They must know when nobody looks at it, for then
// they make one of its descriptors readable; otherwise it is asked for packets whatever its descriptors say.
type SleepPort interface {
	Port
	// BeforeSleep says that nobody will look, and reports whether there is something to look at already.
	BeforeSleep() (work bool)
	// AfterSleep says that somebody looks again.
	AfterSleep()
}

// PortCaps describes a wire.
type PortCaps struct {
	Name       string        // URL it was made from
	Kind       string        // tap, udp, mem, dpdk, sim
	PacketMax  int           // largest BTH … ICRC in bytes
	RateBps    uint64        // 0 = unknown (as fast as the machine goes)
	TimerNoise mono.Duration // the wire's own timing noise: floor of the delay target and of loss timers
	EthernetOK bool          // carries Ethernet packets of a host port
	Burst      int           // packets of one flow that go as one (super-packets), worth sending together; 0 = 1
}

// PortStats are a wire's counters. Drops are by name; a driver adds names freely.
type PortStats struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	Drops                                  map[string]uint64
}
