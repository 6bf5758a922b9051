//go:build dpdk

package dpdkx

/*
#include <rte_mbuf.h>
#include <rte_mempool.h>

#define MR_CHUNKS 64

struct mr_chunks {
	unsigned int n;
	struct {
		uintptr_t from, to;
	} at[MR_CHUNKS];
};

static void
add_chunk(struct rte_mempool *mp, void *opaque, struct rte_mempool_memhdr *h, unsigned int i)
{
	struct mr_chunks *c = opaque;

	(void)mp;
	(void)i;
	if (c->n < MR_CHUNKS) {
		c->at[c->n].from = (uintptr_t)h->addr;
		c->at[c->n].to = (uintptr_t)h->addr + h->len;
		c->n++;
	}
}

static void
mr_pool_chunks(struct rte_mempool *mp, struct mr_chunks *c)
{
	c->n = 0;
	rte_mempool_mem_iter(mp, add_chunk, c);
}

static uint16_t
mr_pool_room(struct rte_mempool *mp)
{
	return rte_pktmbuf_data_room_size(mp);
}

static uint32_t
mr_pool_head(struct rte_mempool *mp)
{
	return (uint32_t)(sizeof(struct rte_mbuf) + rte_pktmbuf_priv_size(mp));
}
*/
import "C"

import (
	"unsafe"

	"github.com/yerden/go-dpdk/mempool"
)

// Headroom is what mbufs keep free in front of a packet.
const Headroom = C.RTE_PKTMBUF_HEADROOM

// Pool is a pool of mbufs that knows its own memory.
type Pool struct {
	mp       *mempool.Mempool
	dataRoom int // of a buffer, headroom included
	room     int // from a buffer's beginning back to its mbuf
	chunks   []chunk
}

type chunk struct{ from, to uintptr }

// NewPool makes a pool of n buffers of dataRoom bytes, headroom included.
func NewPool(name string, n uint32, dataRoom uint16, opts ...mempool.Option) (*Pool, error) {
	mp, err := mempool.CreateMbufPool(name, n, dataRoom, opts...)
	if err != nil {
		return nil, err
	}
	p := &Pool{mp: mp}
	p.dataRoom, p.room = int(C.mr_pool_room(p.c())), int(C.mr_pool_head(p.c()))
	var c C.struct_mr_chunks
	C.mr_pool_chunks(p.c(), &c)
	for i := range int(c.n) {
		p.chunks = append(p.chunks, chunk{uintptr(c.at[i].from), uintptr(c.at[i].to)})
	}
	return p, nil
}

func (p *Pool) c() *C.struct_rte_mempool { return (*C.struct_rte_mempool)(unsafe.Pointer(p.mp)) }

// Mempool is the pool as go-dpdk has it.
func (p *Pool) Mempool() *mempool.Mempool { return p.mp }

// Owns reports whether a buffer is one of the pool's. Only whole buffers, as Queue.Take gives them, lie in its memory.
func (p *Pool) Owns(buf []byte) bool {
	if len(buf) == 0 {
		return false
	}
	a := uintptr(unsafe.Pointer(&buf[0]))
	for i := range p.chunks {
		if a >= p.chunks[i].from && a < p.chunks[i].to {
			return true
		}
	}
	return false
}

// Room is how many bytes of a packet a buffer holds behind its headroom.
func (p *Pool) Room() int { return p.dataRoom - Headroom }

// InUse is how many buffers are not in the pool.
func (p *Pool) InUse() int { return p.mp.InUseCount() }

// Free gives the memory back; nothing may be in use.
func (p *Pool) Free() { p.mp.Free() }
