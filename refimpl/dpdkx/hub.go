//go:build dpdk

package dpdkx

/*
#include <stdlib.h>
#include <sys/eventfd.h>

#include <rte_errno.h>

#include "burst.h"

static struct rte_ring *
mr_hub_ring(unsigned int port, unsigned int kind, unsigned int a, unsigned int b)
{
	char name[RTE_RING_NAMESIZE];

	snprintf(name, sizeof(name), "mr%u.%u.%u.%u", port, kind, a, b);
	return rte_ring_create(name, MR_HUB_RING, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
}

static void
mr_hub_free(struct mr_hub *h)
{
	for (int i = 0; i < h->shards; i++) {
		for (int j = 0; j < h->shards; j++)
			rte_ring_free(h->in[i][j]);
		rte_ring_free(h->out[i]);
		if (h->sleep[i].fd > 0)
			close(h->sleep[i].fd);
	}
	free(h);
}

static bool
go_before_sleep(struct mr_queue *q)
{
	return mr_hub_before_sleep(q);
}

static void
go_after_sleep(struct mr_queue *q)
{
	mr_hub_after_sleep(q);
}

static struct mr_hub *
mr_hub_new(unsigned int port, uint16_t shards, uint16_t queues)
{
	struct mr_hub *h = calloc(1, sizeof(*h));

	if (h == NULL)
		return NULL;
	h->shards = shards;
	h->queues = queues;
	for (unsigned int i = 0; i < shards; i++) {
		if ((h->sleep[i].fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
			goto fail;
		for (unsigned int j = 0; j < shards; j++)
			if (i != j && (h->in[i][j] = mr_hub_ring(port, 0, i, j)) == NULL)
				goto fail;
		if (i >= queues && (h->out[i] = mr_hub_ring(port, 1, i, 0)) == NULL)
			goto fail;
	}
	return h;
fail:
	mr_hub_free(h);
	return NULL;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/yerden/go-dpdk/ethdev"
)

const (
	// MaxShards is how many NICs can share a port.
	MaxShards = C.MR_SHARDS
	// HubRing is how many packets wait between two of them at most.
	HubRing = C.MR_HUB_RING
)

// ErrHub says that there is no memory for what NICs of one port need between them.
var ErrHub = errors.New("no memory for rings between the NICs of a port")

// Hub joins the NICs that share a port (hub.h).
type Hub struct{ c *C.struct_mr_hub }

// NewHub makes the hub of a port with queues pairs of queues for as many or more NICs.
func NewHub(port ethdev.Port, shards, queues int) (*Hub, error) {
	c := C.mr_hub_new(C.uint(port), C.uint16_t(shards), C.uint16_t(queues))
	if c == nil {
		return nil, ErrHub
	}
	return &Hub{c}, nil
}

// SetMAC says where one of the NICs is. Before any of them runs.
func (h *Hub) SetMAC(shard int, mac [6]byte) {
	for i, b := range mac {
		h.c.mac[shard].addr_bytes[i] = C.uint8_t(b)
	}
}

// Free gives the rings back; they are empty, since every queue is freed.
func (h *Hub) Free() { C.mr_hub_free(h.c) }

// AddMAC lets a port receive frames to one more address, in whatever way it can.
func AddMAC(port ethdev.Port, mac [6]byte) error {
	a := (*C.struct_rte_ether_addr)(unsafe.Pointer(&mac))
	if C.rte_eth_dev_mac_addr_add(C.uint16_t(port), a, 0) == 0 {
		return nil
	}
	if err := port.PromiscEnable(); err != nil {
		return fmt.Errorf("port %d receives for one address only: %w", port, err)
	}
	return nil
}

// Queues is how many pairs of queues a port has at most.
func Queues(info *ethdev.DevInfo) int {
	i := (*C.struct_rte_eth_dev_info)(unsafe.Pointer(info))
	return int(min(i.max_rx_queues, i.max_tx_queues))
}

// Spread is how a port spreads what it receives over queues, as far as it can: by IP addresses and UDP ports. The second is
// false where it cannot.
func Spread(info *ethdev.DevInfo) (mode uint, rss ethdev.RssConf, ok bool) {
	i := (*C.struct_rte_eth_dev_info)(unsafe.Pointer(info))
	rss.Hf = uint64(i.flow_type_rss_offloads) & uint64(C.RTE_ETH_RSS_IP|C.RTE_ETH_RSS_UDP)
	return C.RTE_ETH_MQ_RX_RSS, rss, rss.Hf != 0
}

// WakeFD is readable when another NIC of the port has something for this one, whose thread said that it sleeps.
func (q *Queue) WakeFD() int { return int(q.c.hub.sleep[q.c.shard].fd) }

// BeforeSleep says that the thread will not look, and reports whether there is something to look at already.
func (q *Queue) BeforeSleep() bool { return bool(C.go_before_sleep(q.c)) }

// AfterSleep says that it looks again.
func (q *Queue) AfterSleep() { C.go_after_sleep(q.c) }
