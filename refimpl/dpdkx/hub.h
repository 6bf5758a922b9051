/* SPDX-License-Identifier: Apache-2.0 */
/* A port that several NICs share, each on a thread of its own: a small Ethernet bridge by MAC addresses, as a port with
 * virtual functions has one in hardware.
 *
 * Each NIC (a shard) has a receive and a transmit queue where the port has as many; those beyond have none, and the
 * first NIC's thread moves their frames. A frame that comes in on one NIC's queue and is another's goes there by a
 * ring; so does one that a NIC sends to another; frames to groups go to all. Each ring has one writer and one reader.
 */
#ifndef MR_DPDKX_HUB_H
#define MR_DPDKX_HUB_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <rte_ether.h>
#include <rte_ring.h>

#include "burst.h"

#define MR_SHARDS   8
#define MR_HUB_RING 512

struct mr_hub {
    uint16_t shards, queues;
    struct rte_ether_addr mac[MR_SHARDS];
    struct rte_ring *in[MR_SHARDS][MR_SHARDS]; /* [to][from] */
    struct rte_ring *out[MR_SHARDS];           /* [from]: for the port, by the first's thread */
    struct {
        uint32_t asleep; /* nobody looks at the rings: who puts something there clears it and writes to fd */
        int fd;
    } sleep[MR_SHARDS];
};

/* Whose a frame is: a shard's number, MR_HUB_ALL for groups, MR_HUB_NONE for the world. */
#define MR_HUB_NONE (-1)
#define MR_HUB_ALL  (-2)

static inline int mr_hub_owner(const struct mr_hub *h, struct rte_mbuf *m) {
    const struct rte_ether_hdr *eth = rte_pktmbuf_mtod(m, const struct rte_ether_hdr *);

    if (m->data_len < sizeof(*eth))
        return MR_HUB_NONE;
    if (rte_is_multicast_ether_addr(&eth->dst_addr))
        return MR_HUB_ALL;
    for (int i = 0; i < h->shards; i++)
        if (rte_is_same_ether_addr(&eth->dst_addr, &h->mac[i]))
            return i;
    return MR_HUB_NONE;
}

/* Wakes those who got something and sleep. */
static inline void mr_hub_wake(struct mr_queue *q) {
    static const uint64_t one = 1;

    if (q->gave == 0)
        return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* what was put there is seen, or asleep is */
    for (int i = 0; i < q->hub->shards; i++) {
        uint32_t *asleep = &q->hub->sleep[i].asleep;

        if ((q->gave & (1U << i)) != 0 && __atomic_load_n(asleep, __ATOMIC_RELAXED) != 0 &&
            __atomic_exchange_n(asleep, 0, __ATOMIC_ACQ_REL) != 0)
            (void)!write(q->hub->sleep[i].fd, &one, sizeof(one));
    }
    q->gave = 0;
}

/* Says that nobody looks at a shard's rings; true: there is something in them already. */
static inline bool mr_hub_before_sleep(struct mr_queue *q) {
    const struct mr_hub *h = q->hub;

    __atomic_store_n(&q->hub->sleep[q->shard].asleep, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < h->shards; i++)
        if ((i != q->shard && !rte_ring_empty(h->in[q->shard][i])) ||
            (q->shard == 0 && i >= h->queues && !rte_ring_empty(h->out[i])))
            return true;
    return false;
}

static inline void mr_hub_after_sleep(struct mr_queue *q) {
    uint64_t n;

    if (__atomic_exchange_n(&q->hub->sleep[q->shard].asleep, 0, __ATOMIC_ACQ_REL) == 0)
        q->woken = true; /* who cleared it writes, now or soon */
    if (q->woken && read(q->hub->sleep[q->shard].fd, &n, sizeof(n)) == (ssize_t)sizeof(n))
        q->woken = false;
}

/* Hands a frame over to another shard; one that has no room loses it, as a switch would. */
static inline void mr_hub_give(struct mr_queue *q, int to, struct rte_mbuf *m) {
    if (rte_ring_sp_enqueue(q->hub->in[to][q->shard], m) != 0) {
        q->hub_full++;
        rte_pktmbuf_free(m);
    } else
        q->gave |= 1U << to;
}

/* Copies of a frame to a group, one for every other shard. */
static inline void mr_hub_copy(struct mr_queue *q, struct rte_mbuf *m, uint64_t flags, struct rte_mbuf **copies) {
    for (int i = 0; i < q->hub->shards; i++) {
        copies[i] = i == q->shard ? NULL : rte_pktmbuf_copy(m, q->pool, 0, UINT32_MAX);
        if (copies[i] != NULL)
            copies[i]->ol_flags = flags;
        else if (i != q->shard)
            q->no_spare++;
    }
}

/* Hands them over, or frees them. */
static inline void mr_hub_spread(struct mr_queue *q, struct rte_mbuf **copies, bool give) {
    for (int i = 0; i < q->hub->shards; i++)
        if (copies[i] != NULL && give)
            mr_hub_give(q, i, copies[i]);
        else
            rte_pktmbuf_free(copies[i]);
}

/* Takes what other shards handed over, each first in turn. */
static inline uint16_t mr_hub_taken(struct mr_queue *q, struct rte_mbuf **to, uint16_t want) {
    const struct mr_hub *h = q->hub;
    uint16_t n = 0;

    q->turn = (uint16_t)((q->turn + 1) % h->shards);
    for (int i = 0; i < h->shards && n < want; i++) {
        int from = (q->turn + i) % h->shards;

        if (from != q->shard)
            n += (uint16_t)rte_ring_sc_dequeue_burst(h->in[q->shard][from], (void **)&to[n], want - n, NULL);
    }
    return n;
}

/* Sends what shards without a queue want sent; what the port refuses waits. The first shard's. */
static inline void mr_hub_forward(struct mr_queue *q) {
    const struct mr_hub *h = q->hub;

    for (int i = h->queues; i < h->shards; i++) {
        uint16_t sent;

        if (q->wait_n == 0) {
            int from = h->queues + (q->turn + i) % (h->shards - h->queues);

            q->wait_n = (uint16_t)rte_ring_sc_dequeue_burst(h->out[from], (void **)q->wait, MR_BURST, NULL);
        }
        if (q->wait_n == 0)
            continue;
        mr_burst_begin(q->guard);
        sent = rte_eth_tx_burst(q->port, q->queue, q->wait, q->wait_n);
        mr_burst_end(q->guard);
        q->moved += sent;
        q->wait_n = (uint16_t)(q->wait_n - sent);
        memmove(q->wait, q->wait + sent, q->wait_n * sizeof(q->wait[0]));
        if (q->wait_n > 0)
            return;
    }
}

/* Receives up to want frames for this shard. */
static inline uint16_t mr_hub_rx(struct mr_queue *q, uint16_t want) {
    bool own = q->shard < q->hub->queues;
    struct rte_mbuf *got[MR_BURST], *copies[MR_SHARDS];
    uint16_t i, k, n;

    q->moved = 0;
    n = mr_hub_taken(q, q->rx_mbufs, own ? (uint16_t)((want + 1) / 2) : want);
    q->moved += n;
    if (!own)
        return n;
    if (q->shard == 0)
        mr_hub_forward(q);
    mr_burst_begin(q->guard);
    k = rte_eth_rx_burst(q->port, q->queue, got, (uint16_t)(want - n));
    mr_burst_end(q->guard);
    q->moved += k;
    for (i = 0; i < k; i++) {
        int owner = mr_hub_owner(q->hub, got[i]);

        if (owner >= 0 && owner != q->shard) {
            mr_hub_give(q, owner, got[i]);
            continue;
        }
        if (owner == MR_HUB_ALL) {
            mr_hub_copy(q, got[i], got[i]->ol_flags, copies);
            mr_hub_spread(q, copies, true);
        }
        q->rx_mbufs[n++] = got[i];
    }
    mr_hub_wake(q);
    return n;
}

/* Gives frames to the port, or to the thread that does it; returns how many were taken, the first ones. */
static inline uint16_t mr_hub_out(struct mr_queue *q, struct rte_mbuf **m, uint16_t n) {
    uint16_t sent;

    if (q->shard >= q->hub->queues) {
        sent = (uint16_t)rte_ring_sp_enqueue_burst(q->hub->out[q->shard], (void **)m, n, NULL);
        q->gave |= sent > 0 ? 1U : 0;
        return sent;
    }
    mr_burst_begin(q->guard);
    sent = rte_eth_tx_burst(q->port, q->queue, m, n);
    mr_burst_end(q->guard);
    return sent;
}

/* Sends n frames: those to other shards straight there, in order with the others. Returns how many are gone. */
static inline uint16_t mr_hub_tx(struct mr_queue *q, struct rte_mbuf **m, uint16_t n) {
    struct rte_mbuf *copies[MR_SHARDS];
    uint16_t begin = 0, i, sent; /* from begin to i: for the world, not sent yet */

    for (i = 0; i < n; i++) {
        int owner = mr_hub_owner(q->hub, m[i]);
        /* A checksum that was left to the port is nobody's on this way, and need not be looked at. */
        uint64_t flags = m[i]->ol_flags & RTE_MBUF_F_TX_IP_CKSUM ? RTE_MBUF_F_RX_IP_CKSUM_GOOD : 0;

        if (owner == MR_HUB_NONE || owner == q->shard)
            continue;
        if (i > begin) {
            sent = mr_hub_out(q, m + begin, (uint16_t)(i - begin));
            if (sent < i - begin)
                return (uint16_t)(begin + sent);
        }
        begin = (uint16_t)(i + 1);
        if (owner == MR_HUB_ALL) {
            mr_hub_copy(q, m[i], flags, copies);
            sent = mr_hub_out(q, m + i, 1);
            mr_hub_spread(q, copies, sent == 1); /* one that is refused is offered again */
            if (sent == 0)
                return i;
            continue;
        }
        m[i]->ol_flags = flags;
        mr_hub_give(q, owner, m[i]);
    }
    return begin < n ? (uint16_t)(begin + mr_hub_out(q, m + begin, (uint16_t)(n - begin))) : n;
}

/* Frees what lies in rings that this shard reads. */
static inline void mr_hub_drop(struct mr_queue *q) {
    const struct mr_hub *h = q->hub;
    struct rte_mbuf *m;

    for (int i = 0; i < h->shards; i++) {
        if (i != q->shard)
            while (rte_ring_sc_dequeue(h->in[q->shard][i], (void **)&m) == 0)
                rte_pktmbuf_free(m);
        if (q->shard == 0 && i >= h->queues)
            while (rte_ring_sc_dequeue(h->out[i], (void **)&m) == 0)
                rte_pktmbuf_free(m);
    }
    if (q->wait_n > 0)
        rte_pktmbuf_free_bulk(q->wait, q->wait_n);
    q->wait_n = 0;
}

#endif
