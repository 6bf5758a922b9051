// Package pkt is the packet as drivers and engines exchange it: caller-owned buffers in fixed batches.
//
// Ownership is by call, so nothing is counted. Received packets belong to the driver and are valid until its next
// RxBurst; who wants to keep bytes copies them. Packets to send belong to the device; the driver has written or
// copied them when TxBurst returns.
package pkt

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
)

// Burst is the largest number of packets in one call of a driver.
const Burst = 64

// Headroom is kept free in front of Data in every buffer to be sent, so that a driver writes the outer headers in
// place: Ethernet 14 + VLAN 4 + IPv6 40 + UDP 8 + vnet 12, rounded up.
const Headroom = 128

// Kind tells what Data holds.
type Kind uint8

const (
	// RoCE: BTH up to and including the ICRC; addresses and ports are in the Packet's fields.
	RoCE Kind = iota
	// Ethernet: a whole frame without FCS, traffic of the host port (ARP, TCP of the programs, ping).
	Ethernet
)

// Packet is one packet and what the outer headers say about it.
type Packet struct {
	Data []byte // RoCE: BTH … ICRC. Ethernet: the frame.
	// Src and Dst are the outer IP addresses. IPv4 addresses are plain (not mapped) here.
	Src, Dst netip.Addr
	SrcPort  uint16 // UDP source port: the entropy
	Kind     Kind
	TOS      uint8 // DSCP and ECN of the IP header
	TTL      uint8 // IPv4 TTL or IPv6 hop limit; 0 in a packet to be sent = 64
	// What else of the IP header IBTA's ICRC covers, or a UD receive shows. A packet to be sent has ID 0 and DF; a wire
	// that cannot see a received packet's says the same.
	FlowLabel uint32    // IPv6
	IPID      uint16    // IPv4
	NoDF      bool      // IPv4: the don't-fragment bit is clear
	Plane     uint8     // the plane it came from or goes to
	Time      mono.Time // ingress time, stamped by the driver
	Buf       []byte    // transmit: the whole buffer; Data = Buf[Headroom : Headroom+n]
}

// ECN code points in TOS.
const (
	ECNMask = 3
	ECT0    = 2
	CE      = 3
)

// Batch is a fixed set of transmit buffers.
type Batch struct {
	Pkts []Packet // in use: Pkts[:N]
	N    int
}

// NewBatch makes n buffers for packets of up to size bytes (BTH … ICRC).
func NewBatch(n, size int) *Batch {
	b := &Batch{Pkts: make([]Packet, n)}
	arena := make([]byte, n*(Headroom+size))
	for i := range b.Pkts {
		b.Pkts[i].Buf = arena[i*(Headroom+size) : (i+1)*(Headroom+size) : (i+1)*(Headroom+size)]
	}
	return b
}

// Next returns the next free packet, its Data empty at Headroom, or nil when the batch is full.
func (b *Batch) Next() *Packet {
	if b.N == len(b.Pkts) {
		return nil
	}
	p := &b.Pkts[b.N]
	b.N++
	p.reset()
	return p
}

// reset empties a packet to be sent. Field by field: a whole Packet would be made elsewhere and copied.
func (p *Packet) reset() {
	p.Data = p.Buf[Headroom:Headroom]
	p.Src, p.Dst, p.SrcPort = netip.Addr{}, netip.Addr{}, 0
	p.Kind, p.TOS, p.TTL = RoCE, 0, 0
	p.FlowLabel, p.IPID, p.NoDF = 0, 0, false
	p.Plane, p.Time = 0, 0
}

// Full reports whether Next would return nil.
func (b *Batch) Full() bool { return b.N == len(b.Pkts) }

// Reset empties the batch.
func (b *Batch) Reset() { b.N = 0 }
