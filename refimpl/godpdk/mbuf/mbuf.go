//go:build dpdk

// Package mbuf is DPDK's packet buffer.
package mbuf

/*
#cgo pkg-config: libdpdk
#include <rte_mbuf.h>

static int
mr_alloc_bulk(struct rte_mempool *mp, struct rte_mbuf **ms, unsigned int n)
{
	return rte_pktmbuf_alloc_bulk(mp, ms, n);
}

static char *
mr_append(struct rte_mbuf *m, uint16_t n)
{
	return rte_pktmbuf_append(m, n);
}

static void *
mr_data(struct rte_mbuf *m)
{
	return rte_pktmbuf_mtod(m, void *);
}

static uint16_t
mr_data_len(struct rte_mbuf *m)
{
	return rte_pktmbuf_data_len(m);
}

static uint32_t
mr_pkt_len(struct rte_mbuf *m)
{
	return rte_pktmbuf_pkt_len(m);
}

static struct rte_mbuf *
mr_next(struct rte_mbuf *m)
{
	return m->next;
}
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/yerden/go-dpdk/mempool"
)

// Mbuf is a packet buffer, or one segment of a packet.
type Mbuf C.struct_rte_mbuf

func (m *Mbuf) c() *C.struct_rte_mbuf { return (*C.struct_rte_mbuf)(unsafe.Pointer(m)) }

func list(ms []*Mbuf) **C.struct_rte_mbuf { return (**C.struct_rte_mbuf)(unsafe.Pointer(&ms[0])) }

// PktMbufAllocBulk fills ms with buffers of a pool: all, or none and an error.
func PktMbufAllocBulk(p *mempool.Mempool, ms []*Mbuf) error {
	if len(ms) == 0 {
		return nil
	}
	if rc := C.mr_alloc_bulk((*C.struct_rte_mempool)(unsafe.Pointer(p)), list(ms), C.uint(len(ms))); rc != 0 {
		return fmt.Errorf("mbuf: %w", syscall.Errno(-rc))
	}
	return nil
}

// PktMbufFreeBulk gives buffers back to their pools, with the segments behind them.
func PktMbufFreeBulk(ms []*Mbuf) {
	if len(ms) > 0 {
		C.rte_pktmbuf_free_bulk(list(ms), C.uint(len(ms)))
	}
}

// PktMbufAppend copies data behind what the buffer holds.
func (m *Mbuf) PktMbufAppend(data []byte) error {
	if len(data) > 1<<16-1 {
		return fmt.Errorf("mbuf: %w", syscall.ENOBUFS)
	}
	at := C.mr_append(m.c(), C.uint16_t(len(data)))
	if at == nil {
		return fmt.Errorf("mbuf: %w", syscall.ENOBUFS)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(at)), len(data)), data)
	return nil
}

// Data is what the first segment holds. It lies in the buffer.
func (m *Mbuf) Data() []byte {
	return unsafe.Slice((*byte)(C.mr_data(m.c())), int(C.mr_data_len(m.c())))
}

// PktLen is how long the packet is, all segments together.
func (m *Mbuf) PktLen() uint32 { return uint32(C.mr_pkt_len(m.c())) }

// Next is the next segment of the packet, or nil.
func (m *Mbuf) Next() *Mbuf { return (*Mbuf)(unsafe.Pointer(C.mr_next(m.c()))) }
