package rocev2

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/cc"
)

// Limits of this code, and times that are no part of the standard.
const (
	maxPlanes   = 16
	maxPayload  = 4096    // largest path MTU
	rdMax       = 128     // READs and atomics outstanding, largest max_rd_atomic
	maxWindow   = 1 << 20 // packets of a window, far below the 2^23 in which PSNs compare
	quantum     = 16      // packets of one QP before the next one's turn
	opsPerJob   = 2       // memory operations that a packet needs
	jobsMax     = pkt.Burst
	outerBytes4 = 42 // Ethernet, IPv4 and UDP around a packet, as it counts on a wire with a rate
	outerBytes6 = 62
	never       = mono.Never

	defaultWindow    = 256 << 10 // bytes in flight of a QP on wires whose rate is not known
	windowTime       = 200 * mono.Microsecond
	defaultRTOMin    = 2 * mono.Millisecond // what ConnectX was seen to begin with
	rtoStart         = 8 * mono.Millisecond // before the first round trip was measured
	rtoMax           = mono.Second          // of the adaptive timer where the QP sets no limit
	rttGuess         = 20 * mono.Microsecond
	defaultNAKRepeat = 50 * mono.Microsecond
	defaultCNP       = 50 * mono.Microsecond
	defaultCNPTOS    = 48 << 2
	defaultLine      = 10e9 // bit/s that DCQCN takes for the line's rate where it is not known
	timeoutsToMove   = 2    // timeouts in a row after which a QP tries another plane
	stallThreshold   = 200 * mono.Microsecond
)

// CC names a congestion control.
type CC uint8

// Congestion controls of RC.
const (
	CCDCQCN CC = iota
	CCNone     // the window alone
)

// PlaneConfig describes one plane of the NIC.
type PlaneConfig struct {
	PacketMax  int           // largest BTH … ICRC
	RateBps    uint64        // 0 = unknown, and nothing is paced to it
	TimerNoise mono.Duration // the wire's own timing noise
	Burst      int           // packets sent back to back on a wire with a rate; 0 = 1
}

// Config makes an Engine. Zero values mean the defaults.
type Config struct {
	Seed   uint64
	Addrs  []netip.Addr // the NIC's own addresses (GIDs)
	Planes []PlaneConfig

	Window   int           // bytes of a QP in flight. 0 = the rate for 200 µs, at least 256 KiB
	AckEvery int           // an acknowledgement is asked for each so many packets, and at the end of each message; 16
	FixedRTO bool          // only the QP's own timeout, as IBTA has it; else an adaptive timer below it
	RTOMin   mono.Duration // the adaptive timer's least; 2 ms

	// NAKOnce: one NAK a gap, whatever happens, as IBTA has it. Else there is another one when the requester went back
	// and the packet was lost again (packets beyond the gap then come with lower numbers than before), or when they go on
	// coming for so long that the NAK must be lost.
	NAKOnce   bool
	NAKRepeat mono.Duration // 50 µs

	CC         CC
	DCQCN      *cc.DCQCNConfig // nil = the paper's, for the plane's rate
	CNPSpacing mono.Duration   // between two CNPs of a QP; 50 µs
	CNPTOS     uint8           // DSCP of CNPs; 48

	NoICRC bool // no checksums, neither written nor looked at: wires that get no bit wrong (simulations)
}

func (c *Config) setDefaults() {
	if len(c.Planes) == 0 || len(c.Planes) > maxPlanes {
		panic("rocev2: 1 to 16 planes")
	}
	if c.AckEvery == 0 {
		c.AckEvery = 16
	}
	if c.RTOMin == 0 {
		c.RTOMin = defaultRTOMin
	}
	if c.CNPSpacing == 0 {
		c.CNPSpacing = defaultCNP
	}
	if c.NAKRepeat == 0 {
		c.NAKRepeat = defaultNAKRepeat
	}
	if c.CNPTOS == 0 {
		c.CNPTOS = defaultCNPTOS
	}
	for i := range c.Planes {
		c.Planes[i].Burst = max(c.Planes[i].Burst, 1)
	}
}
