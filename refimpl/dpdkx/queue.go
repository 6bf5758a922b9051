//go:build dpdk

// Package dpdkx is what the reference implementation needs of DPDK and go-dpdk does not have: bursts with one crossing from
// Go to C each, packets sent from where they lie, buffers given back in bulk, offloads, links, and the loop's thread.
package dpdkx

/*
#cgo pkg-config: libdpdk
#cgo CFLAGS: -O3 -Wall -Wextra -Wno-unused-parameter
#include <stdlib.h>

#include "burst.h"

static uint16_t
go_rx_burst(struct mr_queue *q, uint16_t want)
{
	return mr_rx_burst(q, want);
}

static uint16_t
go_tx_burst(struct mr_queue *q, uint16_t n)
{
	return mr_tx_burst(q, n);
}

static int
go_tx_one(struct mr_queue *q, uint8_t *buf, uint16_t at, uint16_t len)
{
	return mr_tx_one(q, buf, at, len);
}

static void
go_free(struct mr_queue *q, uint8_t *buf)
{
	rte_pktmbuf_free(mr_mbuf_of(q, buf));
}

static void
go_drain(struct mr_queue *q)
{
	if (q->hub != NULL)
		mr_hub_drop(q);
	mr_queue_drain(q);
}

static void
go_discard(struct mr_queue *q)
{
	mr_hub_drop(q);
}
*/
import "C"

import (
	"unsafe"

	"github.com/yerden/go-dpdk/ethdev"
)

// Burst is the largest number of packets in one call.
const Burst = C.MR_BURST

// What Rx says of a packet beside its bytes.
const (
	Chained = C.MR_RX_CHAINED // longer than a buffer: only its first bytes are there
	BadIP   = C.MR_RX_BAD_IP  // the port found its IP checksum wrong
	GoodIP  = C.MR_RX_GOOD_IP // the port found it right
)

// Queue is one receive and one transmit queue of a port. One thread owns it; nothing in it allocates or locks.
type Queue struct {
	c     *C.struct_mr_queue
	pool  *Pool
	size  int
	freed bool
}

// NewQueue takes queue number q of a started port, whose packets lie in pool.
func NewQueue(port ethdev.Port, q uint16, pool *Pool) *Queue {
	c := (*C.struct_mr_queue)(C.calloc(1, C.sizeof_struct_mr_queue))
	c.port, c.queue, c.pool = C.uint16_t(port), C.uint16_t(q), pool.c()
	c.room = C.uint32_t(pool.room)
	c.guard = C.mr_guard_take()
	return &Queue{c: c, pool: pool, size: pool.dataRoom}
}

// NewSharedQueue takes the queues of one of the NICs that share a port, if it has some (Hub).
func NewSharedQueue(port ethdev.Port, h *Hub, shard int, pool *Pool) *Queue {
	q := NewQueue(port, uint16(shard), pool)
	q.c.hub, q.c.shard = h.c, C.uint16_t(shard)
	return q
}

// Moved is how many packets the last Rx took from anywhere to anywhere, those of others that share the port included.
func (q *Queue) Moved() int { return int(q.c.moved) }

// HubFull counts packets to another NIC of the port that did not take them.
func (q *Queue) HubFull() uint64 { return uint64(q.c.hub_full) }

// Discard frees what others of the port want of this NIC: its port does not run.
func (q *Queue) Discard() { C.go_discard(q.c) }

// Rx receives up to max packets, and returns how many. Packet looks at them until the next Rx, which gives their buffers back.
func (q *Queue) Rx(max int) int {
	return int(C.go_rx_burst(q.c, C.uint16_t(max)))
}

// Packet is the i-th received packet: its bytes (those of the first segment where it is Chained) and what is said of it.
func (q *Queue) Packet(i int) (b []byte, flags uint32) {
	r := &q.c.rx[i]
	return unsafe.Slice((*byte)(unsafe.Pointer(r.data)), int(r.len)), uint32(r.flags)
}

// Spares is how many buffers are in hand.
func (q *Queue) Spares() int { return int(q.c.spares) }

// Refill asks the pool for as many spares as there is place for.
func (q *Queue) Refill() { C.go_tx_burst(q.c, 0) }

// Take takes a spare buffer out: its whole length, headroom and all. nil: there is none.
func (q *Queue) Take() []byte {
	if q.c.spares == 0 {
		return nil
	}
	q.c.spares--
	return unsafe.Slice((*byte)(unsafe.Pointer(q.c.spare[q.c.spares])), q.size)
}

// Put puts a buffer back among the spares, or into the pool.
func (q *Queue) Put(buf []byte) {
	q.c.spare[q.c.spares] = (*C.uint8_t)(unsafe.Pointer(&buf[0]))
	q.c.spares++ // never more than were taken out
}

// Return gives a buffer back to its pool.
func (q *Queue) Return(buf []byte) { C.go_free(q.c, (*C.uint8_t)(unsafe.Pointer(&buf[0]))) }

// Set makes packet i of the next Tx: the bytes of buf, a buffer of the pool, from at to at+n. l3 > 0: an IPv4 header of that
// length begins l2 bytes into them, and its checksum is left to the port.
func (q *Queue) Set(i int, buf []byte, at, n, l2, l3 int) {
	t := &q.c.tx[i]
	t.buf = (*C.uint8_t)(unsafe.Pointer(&buf[0]))
	t.data = (*C.uint8_t)(unsafe.Pointer(&buf[at]))
	t.len, t.l2, t.l3, t.flags = C.uint16_t(n), C.uint8_t(l2), C.uint8_t(l3), 0
	if l3 > 0 {
		t.flags = C.MR_TX_IPV4
	}
}

// Tx sends the first n packets that were Set, and returns how many the port took: their buffers are its own now.
func (q *Queue) Tx(n int) int { return int(C.go_tx_burst(q.c, C.uint16_t(n))) }

// TxOne sends n bytes at an offset of a buffer by themselves, and leaves what was Set as it is. False: the port is full.
func (q *Queue) TxOne(buf []byte, at, n int) bool {
	return C.go_tx_one(q.c, (*C.uint8_t)(unsafe.Pointer(&buf[0])), C.uint16_t(at), C.uint16_t(n)) != 0
}

// Exhausted counts how often the pool could not fill up the spares.
func (q *Queue) Exhausted() uint64 { return uint64(q.c.no_spare) }

// Free gives everything back. The port is stopped or about to be.
func (q *Queue) Free() {
	if !q.freed {
		q.freed = true
		C.go_drain(q.c)
		C.free(unsafe.Pointer(q.c))
		q.c = nil
	}
}
