//go:build dpdk

package wire

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/yerden/go-dpdk/mempool"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

const (
	ringDefault = 1024
	cacheSize   = 256
	// What a port has beside its rings: spares, a received burst, a burst of each NIC, what a driver keeps on the way.
	portExtra = 1024
	// Rings of AF_PACKET have headers of the kernel in frames that may not be longer than a buffer, and a page has a whole
	// number of units.
	ringSlack = 80
	roomUnit  = 512
)

// Memory is the buffers of all ports of a daemon: one pool, so that a packet may go out by any of them.
type Memory struct {
	pool *dpdkx.Pool
	mtu  int
}

// ErrMemory is the cause when the environment has too little memory for the buffers.
var ErrMemory = errors.New("too little memory")

// NewMemory makes buffers for a number of ports with links of an MTU, each shared by as many NICs.
func NewMemory(ports, mtu, shards int) (*Memory, error) {
	if mtu == 0 {
		mtu = defaultMTU
	}
	room := (ether.HeadLen+2*ether.VLANLen+mtu+ringSlack+roomUnit-1)/roomUnit*roomUnit + dpdkx.Headroom
	shards = max(shards, 1)
	between := (shards*shards - 1) * dpdkx.HubRing // rings from each NIC to each other, and to the port from all but the first
	n := uint32(ports*(shards*(2*ringDefault+portExtra)+between) + shards*cacheSize)
	pool, err := dpdkx.NewPool("mroce", n, uint16(room), mempool.OptCacheSize(cacheSize))
	if err != nil {
		if errors.Is(err, syscall.ENOMEM) {
			return nil, fmt.Errorf("%w for %d buffers of %d bytes (%d MiB)", ErrMemory, n, room, int(n)*(room+256)>>20)
		}
		return nil, err
	}
	return &Memory{pool: pool, mtu: mtu}, nil
}

// InUse is how many buffers are not in the pool.
func (m *Memory) InUse() int { return m.pool.InUse() }

// Free gives the memory back, when no port uses it any more.
func (m *Memory) Free() { m.pool.Free() }

const _ = uint(pkt.Headroom - ether.HeadLen - ether.VLANLen - ether.IPv6Len - ether.UDPLen)
