// Package hostport is the NIC's network interface in the host: a TAP whose kernel end is mr0. What the host sends
// there (TCP of programs, ping, ssh) are Ethernet packets for the planes, and back.
package hostport

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/nicemu/wire/tap"
)

// Options of a host port.
type Options struct {
	// MAC of mr0, which is the NIC's on its planes too; 0 = as it is.
	MAC [6]byte
	// MTU of mr0: Open sets it; 0 = as it is.
	MTU int
	// Persist leaves mr0 there when the port is closed (Open only).
	Persist bool
}

// arenaLen holds a burst of jumbo frames and the place that one read wants.
const arenaLen = pkt.Burst*9344 + tap.ReadMax

// Port is mr0. It implements device.Port.
type Port struct {
	dev   *tap.Device
	mac   [6]byte
	fds   []int
	arena []byte

	stats                                    device.PortStats
	short, linkDown, full, txError, rxErrors uint64
}

var _ device.Port = (*Port)(nil)

// Open makes the interface, or takes an existing TAP, in the calling thread's network namespace.
func Open(name string, o Options) (*Port, error) {
	d, err := tap.OpenDevice(name, tap.DeviceOptions{Plain: true, MTU: o.MTU, Persist: o.Persist})
	if err != nil {
		return nil, fmt.Errorf("host port: %w", err)
	}
	return newPort(d, o)
}

// New takes an open TAP descriptor, such as a namespace helper passed out, and owns it from then on.
func New(fd int, o Options) (*Port, error) {
	d, err := tap.NewDevice(fd)
	if err != nil {
		return nil, fmt.Errorf("host port: %w", err)
	}
	return newPort(d, o)
}

func newPort(d *tap.Device, o Options) (*Port, error) {
	p := &Port{dev: d, fds: []int{d.FD()}, arena: make([]byte, arenaLen)}
	var err error
	if o.MAC != ([6]byte{}) {
		err = d.SetMAC(o.MAC)
	}
	if err == nil {
		p.mac, err = d.MAC()
	}
	if err != nil {
		_ = d.Close() // the error that led here says more
		return nil, fmt.Errorf("host port: %w", err)
	}
	return p, nil
}

// MAC is the address of mr0.
func (p *Port) MAC() [6]byte { return p.mac }

// Caps implements device.Port. RoCE packets do not come here.
func (p *Port) Caps() device.PortCaps {
	return device.PortCaps{Name: "tap:" + p.dev.Name(), Kind: "tap", EthernetOK: true}
}

// SetAddrs does nothing: the host's kernel has the addresses.
func (p *Port) SetAddrs([]netip.Addr) {}

// RxBurst implements device.Port: frames that the host sends.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	off, n := 0, 0
	for n < len(ps) && len(p.arena)-off >= tap.ReadMax && p.dev.FD() >= 0 {
		f, _, errno := p.dev.Read(p.arena[off : off+tap.ReadMax])
		switch {
		case errno == unix.EAGAIN:
			return n
		case errno != 0:
			p.rxErrors++
			return n
		case len(f) < 14: // the kernel sends none
			p.short++
			return n
		}
		ps[n] = pkt.Packet{Kind: pkt.Ethernet, Data: f, Time: now}
		n++
		off = (off + len(f) + 10 + 63) &^ 63
		p.stats.RxPackets++
		p.stats.RxBytes += uint64(len(f))
	}
	return n
}

// TxBurst implements device.Port: frames for the host. It takes everything.
func (p *Port) TxBurst(_ mono.Time, ps []pkt.Packet) int {
	for i := range ps {
		f := ps[i].Data
		if len(f) < 14 || ps[i].Kind != pkt.Ethernet {
			p.short++
			continue
		}
		switch p.dev.Write(f) {
		case 0:
			p.stats.TxPackets++
			p.stats.TxBytes += uint64(len(f))
		case unix.EIO, unix.EBADF, unix.EBADFD:
			p.linkDown++
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			p.full++
		default:
			p.txError++
		}
	}
	return len(ps)
}

// LinkUp is whether the interface exists and is up.
func (p *Port) LinkUp() bool { return p.dev.Up() }

// NextWake implements device.Port.
func (p *Port) NextWake() mono.Time { return mono.Never }

// FDs implements device.Port.
func (p *Port) FDs() []int { return p.fds }

// Stats implements device.Port.
func (p *Port) Stats() device.PortStats {
	s := p.stats
	s.Drops = map[string]uint64{}
	for _, d := range []struct {
		name string
		n    uint64
	}{{"short", p.short}, {"link_down", p.linkDown}, {"tx_full", p.full}, {"tx_error", p.txError}, {"rx_error", p.rxErrors}} {
		if d.n > 0 {
			s.Drops[d.name] = d.n
		}
	}
	return s
}

// Close implements device.Port.
func (p *Port) Close() error { return p.dev.Close() }
