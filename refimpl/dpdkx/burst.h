/* SPDX-License-Identifier: Apache-2.0 */
/* One crossing from Go to C for each burst: what it takes and gives lies in a struct that both sides see. */
#ifndef MR_DPDKX_BURST_H
#define MR_DPDKX_BURST_H

#include <stdbool.h>
#include <stdint.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "guard.h"

#define MR_BURST  64
#define MR_SPARES 128

/* What is said of a packet beside its place. */
#define MR_RX_CHAINED 1 /* more than one segment: data is the first only */
#define MR_RX_BAD_IP  2 /* the port found the IP header's checksum wrong */
#define MR_RX_GOOD_IP 4 /* or right: nobody need look again */
#define MR_TX_IPV4    1 /* an IPv4 header begins at l2: its checksum is left to the port */

/* A received packet. */
struct mr_rx {
    uint8_t *data;
    uint32_t len;
    uint32_t flags;
};

/* A packet to be sent: it lies at data in the buffer that begins at buf. */
struct mr_tx {
    uint8_t *buf;
    uint8_t *data;
    uint16_t len;
    uint8_t l2, l3;
    uint32_t flags;
};

struct mr_hub;

/* A queue pair of a port, owned by one thread. */
struct mr_queue {
    uint16_t port, queue;
    uint16_t held;   /* received mbufs that Go still looks at */
    uint16_t spares; /* buffers in hand */
    uint32_t room;   /* from the beginning of a buffer to its mbuf */
    struct rte_mempool *pool;
    struct mr_guard *guard;
    uint64_t no_spare; /* how often the pool could not fill up the spares */
    uint64_t tx_refused;
    struct mr_rx rx[MR_BURST];
    struct mr_tx tx[MR_BURST];
    uint8_t *spare[MR_SPARES];
    struct rte_mbuf *rx_mbufs[MR_BURST];
    struct rte_mbuf *tx_mbufs[MR_BURST];

    /* Of a port that several NICs share (hub.h); without a hub unused. */
    struct mr_hub *hub;
    uint16_t shard;    /* whose queue it is */
    uint16_t turn;     /* who is first now */
    uint16_t wait_n;   /* others' frames that the port refused */
    bool woken;        /* something is or will be written to its descriptor */
    uint32_t gave;     /* shards that got something in this burst, a bit each */
    uint64_t moved;    /* frames of anybody in the last mr_rx_burst */
    uint64_t hub_full; /* frames lost because the shard that they are for did not take them */
    struct rte_mbuf *wait[MR_BURST];
};

static inline uint16_t mr_hub_rx(struct mr_queue *q, uint16_t want);
static inline uint16_t mr_hub_tx(struct mr_queue *q, struct rte_mbuf **m, uint16_t n);
static inline void mr_hub_wake(struct mr_queue *q);

static inline uint16_t mr_port_rx(struct mr_queue *q, uint16_t want) {
    uint16_t n;

    if (q->hub != NULL)
        return mr_hub_rx(q, want);
    mr_burst_begin(q->guard);
    n = rte_eth_rx_burst(q->port, q->queue, q->rx_mbufs, want);
    mr_burst_end(q->guard);
    return n;
}

static inline uint16_t mr_port_tx(struct mr_queue *q, struct rte_mbuf **m, uint16_t n) {
    uint16_t sent;

    if (q->hub != NULL) {
        sent = mr_hub_tx(q, m, n);
        mr_hub_wake(q);
        return sent;
    }
    mr_burst_begin(q->guard);
    sent = rte_eth_tx_burst(q->port, q->queue, m, n);
    mr_burst_end(q->guard);
    return sent;
}

static inline struct rte_mbuf *mr_mbuf_of(const struct mr_queue *q, uint8_t *buf) {
    return (struct rte_mbuf *)(void *)(buf - q->room);
}

/* Fills up the spares to a number, or as far as the pool goes. */
static inline void mr_refill(struct mr_queue *q, unsigned int to) {
    struct rte_mbuf *got[MR_SPARES];
    unsigned int want = to > q->spares ? to - q->spares : 0, i;

    while (want > 0 && rte_pktmbuf_alloc_bulk(q->pool, got, want) != 0) {
        q->no_spare++;
        want /= 2;
    }
    for (i = 0; i < want; i++)
        q->spare[q->spares++] = got[i]->buf_addr;
}

/* Gives back the burst before, and takes the next. */
static inline uint16_t mr_rx_burst(struct mr_queue *q, uint16_t want) {
    uint16_t i, n;

    if (q->held > 0)
        rte_pktmbuf_free_bulk(q->rx_mbufs, q->held);
    n = mr_port_rx(q, RTE_MIN(want, (uint16_t)MR_BURST));
    for (i = 0; i < n; i++)
        rte_prefetch0(rte_pktmbuf_mtod(q->rx_mbufs[i], void *));
    for (i = 0; i < n; i++) {
        struct rte_mbuf *m = q->rx_mbufs[i];
        uint64_t ip = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;

        q->rx[i].data = rte_pktmbuf_mtod(m, uint8_t *);
        q->rx[i].len = m->nb_segs == 1 ? m->data_len : m->pkt_len;
        q->rx[i].flags = m->nb_segs == 1 ? 0 : MR_RX_CHAINED;
        if (ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD)
            q->rx[i].flags |= MR_RX_GOOD_IP;
        else if (ip == RTE_MBUF_F_RX_IP_CKSUM_BAD)
            q->rx[i].flags |= MR_RX_BAD_IP;
    }
    q->held = n;
    return n;
}

/* Sends the first n of tx; those it took belong to the port. Fills up the spares, with places left for those that come
 * back unsent. */
static inline uint16_t mr_tx_burst(struct mr_queue *q, uint16_t n) {
    uint16_t i, sent = 0;

    for (i = 0; i < n; i++) {
        struct mr_tx *t = &q->tx[i];
        struct rte_mbuf *m = mr_mbuf_of(q, t->buf);

        m->data_off = (uint16_t)(t->data - t->buf);
        m->data_len = t->len;
        m->pkt_len = t->len;
        m->ol_flags = 0;
        if (t->flags & MR_TX_IPV4) {
            m->ol_flags = RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM;
            m->l2_len = t->l2;
            m->l3_len = t->l3;
        }
        q->tx_mbufs[i] = m;
    }
    if (n > 0)
        sent = mr_port_tx(q, q->tx_mbufs, n);
    q->tx_refused += (uint64_t)(n - sent);
    if (q->spares < MR_SPARES / 2)
        mr_refill(q, MR_SPARES - (unsigned int)(n - sent));
    return sent;
}

/* Sends one packet by itself, whatever is in tx. */
static inline int mr_tx_one(struct mr_queue *q, uint8_t *buf, uint16_t at, uint16_t len) {
    struct rte_mbuf *m = mr_mbuf_of(q, buf);
    m->data_off = at;
    m->data_len = len;
    m->pkt_len = len;
    m->ol_flags = 0;
    return mr_port_tx(q, &m, 1) == 1;
}

/* Gives back everything that the queue holds. */
static inline void mr_queue_drain(struct mr_queue *q) {
    uint16_t i;

    if (q->held > 0)
        rte_pktmbuf_free_bulk(q->rx_mbufs, q->held);
    for (i = 0; i < q->spares; i++)
        rte_pktmbuf_free(mr_mbuf_of(q, q->spare[i]));
    q->held = 0;
    q->spares = 0;
    mr_guard_give(q->guard);
}

#include "hub.h" /* the rest of it, which needs what is above */

#endif
