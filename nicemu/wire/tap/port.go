// Package tap is the wire over a TAP device: a plane is a bridge, or whatever else the TAP is attached to.
//
// A sent packet's way (tx.go): resolve its destination (neigh.go, nd.go: ARP and ND), put packets of one flow
// together, write Ethernet, IP and UDP headers (frame.go), one frame a writev; neighbours of one flow and length go as
// one super-packet of up to 64 KiB (IFF_VNET_HDR, GSO_UDP_L4), which crosses bridges unsegmented. A received one's
// (rx.go): read, take the super-packet apart where it lies, keep what is addressed to the NIC's UDP port 4791, answer
// ARP and ND; all else is a frame of the host port.
//
// Kernels without UDP segmentation on TAPs (before 6.2), TAPs made without the virtio header and plain RoCEv2 packets
// (their ICRC covers fields that segmentation rewrites) use a frame each.
package tap

import (
	"fmt"
	"net/netip"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/daemon/ether/groups"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/nicemu/wire/train"
)

const (
	timerNoise = 2 * mono.Millisecond // of shared cores (protocol.md section 4)
	defaultMTU = 1500
	mtuMin     = 256
	mtuMax     = 65535 - ether.HeadLen - ether.VLANLen
)

// Options of a port. Zero values are the defaults.
type Options struct {
	MTU       int     // of the plane: Open sets it, New is told it (0 = 1500)
	PacketMax int     // largest BTH … ICRC; 0 = what fits the MTU with IPv6
	MAC       [6]byte // of the NIC on this plane; 0 = made of the interface's name. With a host port: the same as its
	Plain     bool    // no super-packets

	Noise *mono.Duration // the wire's timing noise; nil = that of shared cores

	// For Open only.
	Bridge  string
	Persist bool
}

type drop uint8

const (
	dropTooLong drop = iota
	dropRxTooLong
	dropUnresolved
	dropFamily
	dropShort
	dropBadHeaders
	dropForeignTrain
	dropLinkDown
	dropTxFull
	dropTxError
	dropRxError
	dropClosed
	drops
)

var dropNames = [drops]string{
	"too_long", "rx_too_long", "unresolved", "address_family", "short", "bad_headers", "foreign_train", "link_down",
	"tx_full", "tx_error", "rx_error", "closed",
}

// Port is one plane over a TAP. It implements device.Port.
type Port struct {
	dev  *Device
	caps device.PortCaps
	mtu  int
	fds  []int
	near ether.Neighbours
	rx   rxState
	tx   txState

	groups groups.Set // multicast groups that the NIC is in

	stats device.PortStats
	drops [drops]uint64
}

var (
	_ device.GroupPort   = (*Port)(nil)
	_ device.ResolvePort = (*Port)(nil)
)

// Open makes the TAP, or takes an existing one, in the calling thread's network namespace.
func Open(name string, o Options) (*Port, error) {
	d, err := OpenDevice(name, DeviceOptions{Plain: o.Plain, MTU: o.MTU, Bridge: o.Bridge, Persist: o.Persist})
	if err != nil {
		return nil, fmt.Errorf("tap: %w", err)
	}
	if o.MTU == 0 {
		if o.MTU, err = d.MTU(); err != nil {
			_ = d.Close() // the error that led here says more
			return nil, fmt.Errorf("tap:%s: %w", name, err)
		}
	}
	return newPort(d, o)
}

// New takes an open TAP descriptor, such as a namespace helper passed out, and owns it from then on.
func New(fd int, o Options) (*Port, error) {
	d, err := NewDevice(fd)
	if err != nil {
		return nil, fmt.Errorf("tap: %w", err)
	}
	return newPort(d, o)
}

func newPort(d *Device, o Options) (*Port, error) {
	if o.MTU == 0 {
		o.MTU = defaultMTU
	}
	if o.PacketMax == 0 {
		o.PacketMax = o.MTU - ether.IPv6Len - ether.UDPLen
	}
	if o.MTU < mtuMin || o.MTU > mtuMax || o.PacketMax < 1 || o.PacketMax > o.MTU-ether.IPv4Len-ether.UDPLen {
		_ = d.Close() // the error that led here says more
		return nil, fmt.Errorf("tap:%s: MTU %d with packets of %d bytes", d.Name(), o.MTU, o.PacketMax)
	}
	if o.MAC == (ether.MAC{}) {
		o.MAC = ether.MACFor(d.Name())
	}
	if !o.Plain {
		d.UseTrains()
	}
	p := &Port{dev: d, mtu: o.MTU, fds: []int{d.FD()}}
	p.caps = device.PortCaps{Name: "tap:" + d.Name(), Kind: "tap", PacketMax: o.PacketMax, TimerNoise: mono.Or(o.Noise, timerNoise), EthernetOK: true}
	if d.trains {
		p.caps.Burst = train.Burst
	}
	p.near.Init(o.MAC, o.MTU, p.control)
	p.rx.init()
	return p, nil
}

// Trains reports whether super-packets are in use.
func (p *Port) Trains() bool { return p.dev.trains }

// MAC is the NIC's address on this plane.
func (p *Port) MAC() [6]byte { return p.near.MAC }

// Caps implements device.Port.
func (p *Port) Caps() device.PortCaps { return p.caps }

// SetAddrs implements device.Port.
func (p *Port) SetAddrs(addrs []netip.Addr) { p.near.SetAddrs(addrs) }

// SetGroups implements device.GroupPort: frames to these groups are the NIC's, others the host's.
func (p *Port) SetGroups(list []netip.Addr) { p.groups.Replace(list) }

// Resolve implements device.ResolvePort.
func (p *Port) Resolve(now mono.Time, src, dst netip.Addr) { p.near.Lookup(now, src, dst) }

// LinkUp is whether the interface exists and is up.
func (p *Port) LinkUp() bool { return p.dev.Up() }

// FDs implements device.Port.
func (p *Port) FDs() []int { return p.fds }

// NextWake is now while a super-packet is only half handed out, and when somebody must be asked for again.
func (p *Port) NextWake() mono.Time {
	if p.rx.pending() {
		return p.rx.now
	}
	return p.near.NextWake()
}

// Stats implements device.Port.
func (p *Port) Stats() device.PortStats {
	s := p.stats
	s.Drops = map[string]uint64{}
	for i, n := range p.drops {
		if n > 0 {
			s.Drops[dropNames[i]] = n
		}
	}
	return s
}

// Close implements device.Port.
func (p *Port) Close() error { return p.dev.Close() }
