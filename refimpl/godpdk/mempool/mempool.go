//go:build dpdk

// Package mempool makes pools of packet buffers.
package mempool

/*
#cgo pkg-config: libdpdk
#include <stdlib.h>

#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

static int
mr_rte_errno(void)
{
	return rte_errno;
}
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

// Mempool is a pool.
type Mempool C.struct_rte_mempool

type conf struct {
	socket   C.int
	cache    C.uint
	privSize C.uint16_t
}

// Option changes how a pool is made.
type Option struct{ set func(*conf) }

// OptCacheSize is how many elements each lcore keeps for itself.
func OptCacheSize(size uint32) Option { return Option{func(c *conf) { c.cache = C.uint(size) }} }

// OptPrivateDataSize is how many bytes behind each mbuf are the application's.
func OptPrivateDataSize(size uint32) Option {
	return Option{func(c *conf) { c.privSize = C.uint16_t(size) }}
}

// OptSocket is the NUMA node of the memory.
func OptSocket(socket int) Option { return Option{func(c *conf) { c.socket = C.int(socket) }} }

// CreateMbufPool makes a pool of n mbufs, each with room for dataRoom bytes, headroom included.
func CreateMbufPool(name string, n uint32, dataRoom uint16, opts ...Option) (*Mempool, error) {
	c := conf{socket: C.SOCKET_ID_ANY}
	for _, o := range opts {
		o.set(&c)
	}
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	mp := C.rte_pktmbuf_pool_create(cname, C.uint(n), c.cache, c.privSize, C.uint16_t(dataRoom), c.socket)
	if mp == nil {
		return nil, fmt.Errorf("mempool %s: %w", name, syscall.Errno(C.mr_rte_errno()))
	}
	return (*Mempool)(mp), nil
}

func (mp *Mempool) c() *C.struct_rte_mempool { return (*C.struct_rte_mempool)(mp) }

// Free gives the memory back. Nothing of the pool may be in use.
func (mp *Mempool) Free() { C.rte_mempool_free(mp.c()) }

// AvailCount is how many elements are free.
func (mp *Mempool) AvailCount() int { return int(C.rte_mempool_avail_count(mp.c())) }

// InUseCount is how many are not.
func (mp *Mempool) InUseCount() int { return int(C.rte_mempool_in_use_count(mp.c())) }
