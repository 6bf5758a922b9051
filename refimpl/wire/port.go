//go:build dpdk

// Package wire is a plane over a DPDK port.
//
// A sent packet's way (tx.go): its payload was put by the device straight into an mbuf of ours (device.MemoryPort); find
// where its destination is (daemon/ether: ARP and ND), write Ethernet, IP and UDP headers in front of it where it lies, one
// rte_eth_tx_burst a burst. Its Buf gets another mbuf in exchange. A received one's (rx.go): one rte_eth_rx_burst, headers
// taken apart where they lie, the engine copies the payload into the program's memory; the next burst gives the mbufs back.
package wire

import (
	"fmt"
	"net/netip"

	"github.com/yerden/go-dpdk/ethdev"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/daemon/ether/groups"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

const (
	timerNoise = 2 * mono.Millisecond // of shared cores, as the other wires have it
	defaultMTU = 1500
	mtuMin     = 256
	mtuMax     = 9600
	// How long an idle port lets the loop sleep: a part of the time that it has been idle, within bounds.
	napShare = 8
	napMin   = 20 * mono.Microsecond
	napMax   = 500 * mono.Microsecond
)

// The device keeps pkt.Headroom free in front of a packet, and mbufs do, too.
const _ = uint(dpdkx.Headroom - pkt.Headroom)

// And a burst of the device is one of ours.
const _ = uint(dpdkx.Burst - pkt.Burst)

// Options of a port. Zero values are the defaults.
type Options struct {
	MTU       int          // of the plane
	PacketMax int          // largest BTH … ICRC; 0 = what fits the MTU with IPv6
	MAC       [6]byte      // where the port has none of its own
	Memory    *Memory      // of all ports of the daemon
	Busy      bool         // the loop polls without a pause
	RxRing    uint16       // descriptors; 0 = 1024
	TxRing    uint16       // likewise
	Shards    int          // NICs that share the port, this one the first (Share); 0 = 1
	Note      func(string) // what a user should know

	Noise *mono.Duration // the wire's timing noise; nil = that of shared cores
}

type drop uint8

const (
	dropTooLong drop = iota
	dropRxTooLong
	dropUnresolved
	dropFamily
	dropShort
	dropBadHeaders
	dropLinkDown
	dropTxFull
	dropNoBuffers
	dropClosed
	drops
)

var dropNames = [drops]string{
	"too_long", "rx_too_long", "unresolved", "address_family", "short", "bad_headers", "link_down", "tx_full", "no_buffers", "closed",
}

// Port is one plane over a DPDK port. It implements device.Port.
type Port struct {
	id     ethdev.Port
	name   string
	files  []string
	q      *dpdkx.Queue
	mem    *Memory
	caps   device.PortCaps
	mtu    int
	off    dpdkx.Offloads
	near   ether.Neighbours
	groups groups.Set // multicast groups that the NIC is in
	tx     txState
	now    mono.Time
	lastRx mono.Time
	redial *redial     // a memif's client
	turn   *dpdkx.Turn // a memif
	kernel *beneath    // what is an interface of the kernel
	busy   bool
	closed bool

	share  *sharing // with other NICs; nil: the port is this one's
	shard  int
	driver string
	moved  bool // the last RxBurst moved packets, be they others'

	stats device.PortStats
	drops [drops]uint64
}

var (
	_ device.GroupPort   = (*Port)(nil)
	_ device.ResolvePort = (*Port)(nil)
	_ device.MemoryPort  = (*Port)(nil)
	_ device.SleepPort   = (*Port)(nil)
)

// Caps implements device.Port.
func (p *Port) Caps() device.PortCaps { return p.caps }

// MAC is the NIC's address on this plane.
func (p *Port) MAC() [6]byte { return p.near.MAC }

// SetAddrs implements device.Port.
func (p *Port) SetAddrs(addrs []netip.Addr) { p.near.SetAddrs(addrs) }

// SetGroups implements device.GroupPort.
func (p *Port) SetGroups(list []netip.Addr) { p.groups.Replace(list) }

// Resolve implements device.ResolvePort.
func (p *Port) Resolve(now mono.Time, src, dst netip.Addr) { p.near.Lookup(now, src, dst) }

// TxBuffer implements device.MemoryPort.
func (p *Port) TxBuffer(size int) []byte {
	if p.closed || p.mem.pool.Room() < size {
		return nil
	}
	if p.q.Spares() == 0 {
		p.q.Refill()
	}
	return p.q.Take()
}

// LinkUp asks the port. One that was taken away is down for good.
func (p *Port) LinkUp() bool {
	if p.guest() {
		return !p.closed && p.share.up.Load()
	}
	up := p.linkUp()
	if p.share != nil {
		p.share.up.Store(up)
	}
	return up
}

func (p *Port) linkUp() bool {
	if p.closed || dpdkx.Removed(p.id) {
		return false
	}
	if p.redial.stopped() { // the link may be up before its maker is done
		p.redial.again(p.now)
		return false
	}
	up := dpdkx.LinkOf(p.id).Up && p.kernel.up()
	if !up && p.redial != nil {
		p.redial.again(p.now)
	}
	return up
}

// FDs implements device.Port: DPDK ports are polled. Only other NICs of a port wake.
func (p *Port) FDs() []int {
	if p.share == nil || p.busy {
		return nil
	}
	return []int{p.q.WakeFD()}
}

// NextWake is when the loop should look again, at the latest: at once when it polls without a pause, else after a nap that
// is the longer the longer nothing came.
func (p *Port) NextWake() mono.Time {
	if p.busy || p.moved {
		return p.now
	}
	nap := min(max(p.now.Sub(p.lastRx)/napShare, napMin), napMax)
	return mono.Min(p.now.Add(nap), p.near.NextWake())
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
	if p.closed {
		return s
	}
	var c dpdkx.Counts
	if !p.guest() {
		c = dpdkx.CountsOf(p.id)
	}
	for _, d := range []struct {
		name string
		n    uint64
	}{{"port_rx_missed", c.RxMissed}, {"port_rx_errors", c.RxErrors}, {"port_tx_errors", c.TxErrors}, {"port_rx_no_buffer", c.RxNoBuffer}, {"pool_empty", p.q.Exhausted()},
		{"neighbour_full", p.q.HubFull()}} {
		if d.n > 0 {
			s.Drops[d.name] = d.n
		}
	}
	return s
}

// Close stops the port for good. Its device stays, without a port: DPDK 22.11 frees a memif's memory twice where it is removed
// and made again in one process.
func (p *Port) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	if p.guest() {
		return p.closeGuest()
	}
	defer removeSockets(p.files)
	if p.turn == nil {
		p.id.Stop()
	} else if !p.turn.Close(!p.redial.stopped()) {
		return fmt.Errorf("%s: its driver does not let go of it", p.name)
	}
	p.q.Free()
	p.id.Close()
	p.kernel.close()
	return p.closeShare()
}
