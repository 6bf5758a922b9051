// Package mem is the in-process wire: a fabric that lives in the daemon and carries packets between its own NICs.
//
// A packet's way: TxBurst finds the port that announced the destination address on the same plane (multicast and
// unknown MACs go to every other port), copies the packet into a buffer of that port and queues it; the port's next
// RxBurst hands the buffer out and the RxBurst after that takes it back. A full queue drops and counts, as a switch
// does: nothing here pushes back.
//
// All ports of a fabric belong to one goroutine, the device loop; there are no locks. After Port has returned
// nothing allocates. A port has no descriptor to wait on: NextWake says at once when its queue is not empty, so the
// loop must ask it after it has stepped the other NICs.
package mem

import (
	"fmt"
	"net/netip"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Defaults of Options.
const (
	// DefaultPacketMax holds 4096 bytes of payload with the largest overhead of the protocol (124).
	DefaultPacketMax = 4096 + 124
	// DefaultRing is 4 MiB of full packets: 16 times the first grant of a plane.
	DefaultRing = 1024
)

const (
	// An Ethernet frame that carries PacketMax bytes has these in front: Ethernet, VLAN, IPv6, UDP.
	frameExtra = 14 + 4 + 40 + 8
	// Frames to more MACs than this on one plane are flooded. It bounds what a host port can make us remember.
	macsMax = 4096
	// What a copy on the same machine adds, when others use the cores too (measured; see protocol.md section 4).
	timerNoise = 2 * mono.Millisecond
)

// Options of a port. Zero values are the defaults.
type Options struct {
	PacketMax int // largest BTH … ICRC
	Ring      int // packets that may wait for RxBurst

	Noise *mono.Duration // the wire's timing noise; nil = that of shared cores
}

// Fabric joins ports. Make one a lab.
type Fabric struct{ planes map[int]*plane }

type plane struct {
	ports []*Port
	addrs map[netip.Addr]*Port
	macs  map[[6]byte]*Port
}

// NewFabric returns a fabric without ports.
func NewFabric() *Fabric { return &Fabric{planes: map[int]*plane{}} }

type drop uint8

const (
	dropRingFull drop = iota
	dropNoDestination
	dropTooLong
	dropShortFrame
	dropClosed
	drops
)

var dropNames = [drops]string{"ring_full", "no_destination", "too_long", "short_frame", "closed"}

// Port is one end of a plane. It implements device.Port.
type Port struct {
	name  string
	id    int
	plane *plane
	caps  device.PortCaps
	size  int // of a buffer

	queue []pkt.Packet // ring of waiting packets
	head  int
	count int
	free  [][]byte // last in, first out: a warm buffer is used again first
	out   [][]byte // handed out by the last RxBurst
	addrs []netip.Addr

	stats  device.PortStats
	drops  [drops]uint64
	closed bool
}

var _ device.Port = (*Port)(nil)

// Port attaches a new port to a plane. The name is for messages, as in a/mr0.
func (f *Fabric) Port(planeID int, name string, o Options) *Port {
	if o.PacketMax == 0 {
		o.PacketMax = DefaultPacketMax
	}
	if o.Ring == 0 {
		o.Ring = DefaultRing
	}
	pl := f.planes[planeID]
	if pl == nil {
		pl = &plane{addrs: map[netip.Addr]*Port{}, macs: make(map[[6]byte]*Port, 64)}
		f.planes[planeID] = pl
	}
	size := (o.PacketMax + frameExtra + 63) &^ 63
	p := &Port{
		name: name, id: planeID, plane: pl, size: size,
		queue: make([]pkt.Packet, o.Ring),
		free:  make([][]byte, 0, o.Ring+pkt.Burst),
		out:   make([][]byte, 0, pkt.Burst),
		caps: device.PortCaps{
			Name: fmt.Sprintf("mem:%s?plane=%d", name, planeID), Kind: "mem",
			PacketMax: o.PacketMax, TimerNoise: mono.Or(o.Noise, timerNoise), EthernetOK: true,
		},
	}
	arena := make([]byte, (o.Ring+pkt.Burst)*size)
	for i := range cap(p.free) {
		p.free = append(p.free, arena[i*size:(i+1)*size:(i+1)*size])
	}
	pl.ports = append(pl.ports, p)
	return p
}

// Caps implements device.Port.
func (p *Port) Caps() device.PortCaps { return p.caps }

// SetAddrs makes the fabric deliver packets to addrs here. Of two ports that claim one address the later wins.
func (p *Port) SetAddrs(addrs []netip.Addr) {
	for _, a := range p.addrs {
		if p.plane.addrs[a] == p {
			delete(p.plane.addrs, a)
		}
	}
	p.addrs = p.addrs[:0]
	if p.closed {
		return
	}
	for _, a := range addrs {
		a = a.Unmap()
		p.addrs = append(p.addrs, a)
		p.plane.addrs[a] = p
	}
}

// RxBurst implements device.Port.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	p.free = append(p.free, p.out...)
	p.out = p.out[:0]
	n := min(len(ps), p.count, pkt.Burst)
	for i := range n {
		q := &p.queue[p.head]
		ps[i] = *q
		ps[i].Time = now
		p.out = append(p.out, q.Data[:p.size])
		p.stats.RxPackets++
		p.stats.RxBytes += uint64(len(q.Data))
		if p.head++; p.head == len(p.queue) {
			p.head = 0
		}
	}
	p.count -= n
	return n
}

// TxBurst implements device.Port. It takes everything.
func (p *Port) TxBurst(now mono.Time, ps []pkt.Packet) int {
	for i := range ps {
		q := &ps[i]
		if p.closed {
			p.drops[dropClosed]++
			continue
		}
		p.stats.TxPackets++
		p.stats.TxBytes += uint64(len(q.Data))
		if q.Kind == pkt.Ethernet {
			p.sendFrame(now, q)
		} else {
			p.sendRoCE(now, q)
		}
	}
	return len(ps)
}

func (p *Port) sendRoCE(now mono.Time, q *pkt.Packet) {
	if len(q.Data) > p.caps.PacketMax {
		p.drops[dropTooLong]++
		return
	}
	if to := p.plane.addrs[q.Dst]; to != nil {
		to.deliver(now, q)
		return
	}
	if !q.Dst.IsMulticast() {
		p.drops[dropNoDestination]++
		return
	}
	p.flood(now, q)
}

func (p *Port) sendFrame(now mono.Time, q *pkt.Packet) {
	switch {
	case len(q.Data) < 14:
		p.drops[dropShortFrame]++
		return
	case len(q.Data) > p.size:
		p.drops[dropTooLong]++
		return
	}
	dst, src := [6]byte(q.Data[0:6]), [6]byte(q.Data[6:12])
	if macs := p.plane.macs; src[0]&1 == 0 && (len(macs) < macsMax || macs[src] != nil) {
		macs[src] = p
	}
	to := p.plane.macs[dst]
	switch {
	case to == p: // lives behind the sender
	case to != nil && dst[0]&1 == 0:
		to.deliver(now, q)
	default:
		p.flood(now, q)
	}
}

func (p *Port) flood(now mono.Time, q *pkt.Packet) {
	for _, to := range p.plane.ports {
		if to != p {
			to.deliver(now, q)
		}
	}
}

// deliver copies q into p's queue. The drop is the receiver's: its queue is what was too short.
func (p *Port) deliver(now mono.Time, q *pkt.Packet) {
	switch {
	case len(q.Data) > p.size || q.Kind == pkt.RoCE && len(q.Data) > p.caps.PacketMax:
		p.drops[dropTooLong]++
		return
	case p.count == len(p.queue):
		p.drops[dropRingFull]++
		return
	}
	buf := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	i := p.head + p.count
	if i >= len(p.queue) {
		i -= len(p.queue)
	}
	p.count++
	s := &p.queue[i]
	*s = *q
	s.Data = buf[:copy(buf, q.Data)]
	s.Buf = nil
	if s.TTL == 0 {
		s.TTL = 64
	}
	s.Plane = uint8(p.id)
	s.Time = now // until RxBurst stamps it: since when it waits
}

// LinkUp implements device.Port.
func (p *Port) LinkUp() bool { return !p.closed }

// NextWake returns a time that has come when packets wait, else Never.
func (p *Port) NextWake() mono.Time {
	if p.count == 0 {
		return mono.Never
	}
	return p.queue[p.head].Time
}

// FDs implements device.Port: there is none.
func (p *Port) FDs() []int { return nil }

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

// Close takes the port off the fabric. What waits in its queue is gone.
func (p *Port) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.SetAddrs(nil)
	for mac, to := range p.plane.macs {
		if to == p {
			delete(p.plane.macs, mac)
		}
	}
	for i, o := range p.plane.ports {
		if o == p {
			p.plane.ports = append(p.plane.ports[:i], p.plane.ports[i+1:]...)
			break
		}
	}
	p.count = 0
	return nil
}
