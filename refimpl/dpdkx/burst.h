/* SPDX-License-Identifier: Apache-2.0 */
/* One crossing from Go to C for each burst: what it takes and gives lies in a struct that both sides see. */
#ifndef MR_DPDKX_BURST_H
#define MR_DPDKX_BURST_H

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
};

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
    mr_burst_begin(q->guard);
    n = rte_eth_rx_burst(q->port, q->queue, q->rx_mbufs, RTE_MIN(want, (uint16_t)MR_BURST));
    mr_burst_end(q->guard);
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
    if (n > 0) {
        mr_burst_begin(q->guard);
        sent = rte_eth_tx_burst(q->port, q->queue, q->tx_mbufs, n);
        mr_burst_end(q->guard);
    }
    q->tx_refused += (uint64_t)(n - sent);
    if (q->spares < MR_SPARES / 2)
        mr_refill(q, MR_SPARES - (unsigned int)(n - sent));
    return sent;
}

/* Sends one packet by itself, whatever is in tx. */
static inline int mr_tx_one(struct mr_queue *q, uint8_t *buf, uint16_t at, uint16_t len) {
    struct rte_mbuf *m = mr_mbuf_of(q, buf);
    uint16_t sent;

    m->data_off = at;
    m->data_len = len;
    m->pkt_len = len;
    m->ol_flags = 0;
    mr_burst_begin(q->guard);
    sent = rte_eth_tx_burst(q->port, q->queue, &m, 1);
    mr_burst_end(q->guard);
    return sent == 1;
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

#endif
