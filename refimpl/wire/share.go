//go:build dpdk

package wire

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/yerden/go-dpdk/ethdev"

	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// MaxShards is how many NICs can share a port.
const MaxShards = dpdkx.MaxShards

// sharing is what the NICs of a port have in common. The first one's Port keeps the device: it starts it, watches its link
// and moves packets of NICs that have no queue of it. The others run on threads of their own.
type sharing struct {
	hub    *dpdkx.Hub
	shards int
	up     atomic.Bool // the link, as the first one saw it last
	taken  [MaxShards]bool
}

// oneQueue lists drivers of whose queues one is used: a memif whose peer has fewer of them lets those that are too many work on
// the rings of the first, from two threads (DPDK 22.11).
var oneQueue = []string{"net_memif"}

// queues decides how many pairs of queues a port gets, and how it spreads what it receives.
func (p *Port) queues(info *ethdev.DevInfo, o Options, rx *ethdev.RxMode) (n int, opts []ethdev.Option) {
	n = 1
	if o.Shards > 1 && !slices.Contains(oneQueue, info.DriverName()) {
		n = max(1, min(o.Shards, dpdkx.Queues(info)))
	}
	if n > 1 {
		if mode, rss, ok := dpdkx.Spread(info); ok {
			rx.MqMode = mode
			opts = append(opts, ethdev.OptRss(rss))
		}
	}
	return n, opts
}

// lead makes the port one that several NICs share, this one the first.
func (p *Port) lead(driver string, shards, queues int) error {
	h, err := dpdkx.NewHub(p.id, shards, queues)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	h.SetMAC(0, p.near.MAC)
	p.share = &sharing{hub: h, shards: shards}
	p.share.taken[0] = true
	p.driver = driver
	p.q = dpdkx.NewSharedQueue(p.id, h, 0, p.mem.pool)
	return nil
}

// Share is another NIC's Port of the port that first has: number shard of those it was opened for. Before any of them runs.
// Ports of the others are closed before the first's.
func Share(first *Port, shard int, o Options) (*Port, error) {
	s := first.share
	if s == nil || shard < 1 || shard >= s.shards || s.taken[shard] {
		return nil, fmt.Errorf("%s: no place for a NIC %d", first.caps.Name, shard)
	}
	if err := hear(first.id, o.MAC, first.driver); err != nil {
		return nil, err
	}
	s.taken[shard] = true
	s.hub.SetMAC(shard, o.MAC)
	p := &Port{id: first.id, name: first.name, mem: first.mem, mtu: first.mtu, off: first.off, busy: o.Busy, caps: first.caps, share: s, shard: shard}
	if o.PacketMax > 0 {
		p.caps.PacketMax = o.PacketMax
	}
	p.near.MAC = o.MAC
	p.near.Init(p.near.MAC, p.mtu, p.control)
	p.q = dpdkx.NewSharedQueue(p.id, s.hub, shard, p.mem.pool)
	return p, nil
}

// guest reports whether another NIC's Port keeps the device.
func (p *Port) guest() bool { return p.shard > 0 }

// stopped reports whether the device does not run.
func (p *Port) stopped() bool {
	if p.guest() {
		return !p.share.up.Load()
	}
	return p.redial.stopped()
}

// BeforeSleep implements device.SleepPort.
func (p *Port) BeforeSleep() bool { return p.share != nil && !p.closed && p.q.BeforeSleep() }

// AfterSleep implements device.SleepPort.
func (p *Port) AfterSleep() {
	if p.share != nil && !p.closed {
		p.q.AfterSleep()
	}
}

// closeGuest ends this NIC's part.
func (p *Port) closeGuest() error {
	p.q.Free()
	p.share.taken[p.shard] = false
	return nil
}

// closeShare frees what the NICs had between them.
func (p *Port) closeShare() error {
	if p.share == nil {
		return nil
	}
	p.share.taken[0] = false
	if slices.Contains(p.share.taken[:], true) {
		return errors.New(p.caps.Name + ": another NIC still has it") // a fault of ours: its rings stay
	}
	p.share.hub.Free()
	return nil
}
