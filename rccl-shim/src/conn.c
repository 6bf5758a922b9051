/* SPDX-License-Identifier: Apache-2.0
 *
 * conn.c: what a connection is made of, how it fails and how it ends.
 */
#include "net.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The first failure is the one that is told; the peer learns of it by our socket. */
int comm_fail(struct comm *c, int code, const char *fmt, ...) {
    char text[256];
    va_list ap;
    int none = 0;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (atomic_compare_exchange_strong(&c->error, &none, code))
        WARN("%s %s: %s", c->sender ? "to" : "from", c->peer_name, text);
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_RDWR);
    return atomic_load(&c->error);
}

/* --------------------------------------------------------------------------------------------------- making */

struct comm *comm_new(struct vdev *dev, bool sender, int traffic_class) {
    struct comm *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->dev = dev;
    c->sender = sender;
    c->ndevs = dev->ndevs;
    c->fd = -1;
    c->traffic_class = traffic_class;
    c->nreqs = sender ? SLOTS * MAX_RECVS : 2 * SLOTS;
    c->reqs = calloc((size_t)c->nreqs, sizeof *c->reqs);
    if (!c->reqs) {
        free(c);
        return NULL;
    }
    pthread_mutex_lock(&net_lock);
    devices_hold(1);
    pthread_mutex_unlock(&net_lock);
    return c;
}

/* The protection domain belongs to the device: registered memory is of use to all connections. */
static int domain(struct phys *p) {
    pthread_mutex_lock(&net_lock);
    if (!p->pd)
        p->pd = vb.alloc_pd(p->ctx);
    pthread_mutex_unlock(&net_lock);
    return p->pd ? NN_OK : NN_SYSTEM_ERROR;
}

static int ring(struct comm *c) {
    c->ring_len = SLOTS * (sizeof(struct cts) + sizeof *c->sizes) + CACHE_LINE;
    c->ring = mmap(NULL, c->ring_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->ring == MAP_FAILED) {
        c->ring = NULL;
        return comm_fail(c, NN_SYSTEM_ERROR, "no memory: %s", strerror(errno));
    }
    madvise(c->ring, c->ring_len, MADV_DONTFORK);
    c->cts = c->ring;
    c->sizes = (void *)(c->cts + SLOTS);
    return NN_OK;
}

static struct ibv_qp *make_qp(struct comm *c, struct cdev *d) {
    struct ibv_qp_init_attr a = {.qp_context = c,
                                 .send_cq = d->cq,
                                 .recv_cq = d->cq,
                                 .qp_type = IBV_QPT_RC,
                                 .cap = {.max_send_wr = c->sender ? SQ_SEND : SQ_RECV,
                                         .max_recv_wr = c->sender ? 1 : SLOTS,
                                         .max_send_sge = 1,
                                         .max_recv_sge = 1,
                                         .max_inline_data = c->inline_bytes}};
    return vb.create_qp(d->phys->pd, &a);
}

static int to_init(struct ibv_qp *qp, int port) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = (uint8_t)port,
                            .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    return vb.modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int make_dev(struct comm *c, int i) {
    struct cdev *d = &c->devs[i];
    int per_dev = (c->nqps + c->ndevs - 1) / c->ndevs;
    d->phys = c->dev->devs[i];
    if (domain(d->phys))
        return comm_fail(c, NN_SYSTEM_ERROR, "%s: protection domain: %s", d->phys->name, strerror(errno));
    d->cq = vb.create_cq(d->phys->ctx, SLOTS * (per_dev + 1) + SQ_RECV, c, NULL, 0);
    if (!d->cq)
        return comm_fail(c, NN_SYSTEM_ERROR, "%s: completion queue: %s", d->phys->name, strerror(errno));
    d->ring_mr = vb.reg_mr(d->phys->pd, c->ring, c->ring_len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!d->ring_mr)
        return comm_fail(c, NN_SYSTEM_ERROR, "%s: register: %s", d->phys->name, strerror(errno));
    c->out.dev[i] = (struct peer_dev){.gid = d->phys->gid,
                                      .rkey = d->ring_mr->rkey,
                                      .lid = d->phys->lid,
                                      .mtu = (uint8_t)d->phys->mtu,
                                      .link_layer = d->phys->link_layer};
    return NN_OK;
}

/* All that both directions of a bootstrap need, with QPs in INIT; c->out says what the peer must know. */
int comm_resources(struct comm *c, int peer_devs, int nqps) {
    int r = ring(c);
    int devs = peer_devs > c->ndevs ? peer_devs : c->ndevs;
    c->nqps = nqps ? nqps : devs * param(PARAM_QPS);
    c->nqps = c->nqps > MAX_QPS ? MAX_QPS : c->nqps;
    c->inline_bytes = param(PARAM_INLINE) ? 128 : 0;
    for (int i = 0; i < c->ndevs && !r; i++)
        r = make_dev(c, i);
    for (int q = 0; q < c->nqps && !r; q++) {
        struct cdev *d = &c->devs[q % c->ndevs];
        c->qp[q] = make_qp(c, d);
        if (!c->qp[q] && c->inline_bytes) {
            c->inline_bytes = 0; /* hardware that cannot */
            c->qp[q] = make_qp(c, d);
        }
        if (!c->qp[q])
            return comm_fail(c, NN_SYSTEM_ERROR, "%s: QP: %s", d->phys->name, strerror(errno));
        errno = to_init(c->qp[q], d->phys->port);
        if (errno)
            return comm_fail(c, NN_SYSTEM_ERROR, "%s: QP to INIT: %s", d->phys->name, strerror(errno));
        c->out.qp[q] = (struct peer_qp){.qpn = c->qp[q]->qp_num, .dev = (uint32_t)(q % c->ndevs)};
    }
    c->out.ring = c->sender ? (uintptr_t)c->cts : (uintptr_t)c->sizes;
    c->out.ndevs = (uint32_t)c->ndevs;
    c->out.nqps = (uint32_t)c->nqps;
    return r;
}

/* -------------------------------------------------------------------------------------------------- connecting */

static int modify(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
    int e = 0;
    for (int i = 0; i < 5; i++) { /* the kernel answers ETIMEDOUT while it looks an address up */
        e = vb.modify_qp(qp, a, mask);
        if (e != ETIMEDOUT)
            break;
        usleep(10000);
    }
    return e;
}

static int connect_qp(const struct comm *c, struct ibv_qp *qp, const struct phys *p, uint32_t qpn,
                      const struct peer_dev *to) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = (enum ibv_mtu)(to->mtu < p->mtu ? to->mtu : p->mtu),
                            .dest_qp_num = qpn,
                            .max_dest_rd_atomic = 1,
                            .min_rnr_timer = 12};
    a.ah_attr.port_num = (uint8_t)p->port;
    a.ah_attr.sl = (uint8_t)param(PARAM_SERVICE_LEVEL);
    if (p->link_layer == IBV_LINK_LAYER_ETHERNET) {
        a.ah_attr.is_global = 1;
        a.ah_attr.grh.dgid = to->gid;
        a.ah_attr.grh.sgid_index = (uint8_t)p->gid_index;
        a.ah_attr.grh.hop_limit = 255;
        a.ah_attr.grh.traffic_class = (uint8_t)c->traffic_class;
    } else {
        a.ah_attr.dlid = to->lid;
    }
    int e = modify(qp, &a,
                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                             .timeout = (uint8_t)param(PARAM_TIMEOUT),
                             .retry_cnt = (uint8_t)param(PARAM_RETRY_COUNT),
                             .rnr_retry = 7,
                             .max_rd_atomic = 1};
    if (!e)
        e = modify(qp, &a,
                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                       IBV_QP_MAX_QP_RD_ATOMIC);
    return e;
}

int comm_connect_qps(struct comm *c) {
    for (int q = 0; q < c->nqps; q++) {
        const struct phys *p = c->devs[q % c->ndevs].phys;
        const struct peer_dev *to = &c->peer.dev[c->peer.qp[q].dev];
        if (to->link_layer != p->link_layer)
            return comm_fail(c, NN_SYSTEM_ERROR, "one end is Ethernet, the other is not");
        int e = connect_qp(c, c->qp[q], p, c->peer.qp[q].qpn, to);
        if (e)
            return comm_fail(c, NN_SYSTEM_ERROR, "%s: QP: %s", p->name, strerror(e));
    }
    c->stripes = c->peer.split || c->out.split ? c->nqps : 1;
    return NN_OK;
}

/* A QP that is connected to itself: a READ over it passes all that was written before. */
int comm_flush_qp(struct comm *c, int dev) {
    struct cdev *d = &c->devs[dev];
    struct ibv_qp_init_attr a = {.qp_context = c,
                                 .send_cq = d->cq,
                                 .recv_cq = d->cq,
                                 .qp_type = IBV_QPT_RC,
                                 .cap = {.max_send_wr = SLOTS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    if (d->flush_qp)
        return NN_OK;
    struct ibv_qp *qp = vb.create_qp(d->phys->pd, &a);
    int e = qp ? to_init(qp, d->phys->port) : errno;
    if (!e)
        e = connect_qp(c, qp, d->phys, qp->qp_num, &c->out.dev[dev]);
    d->flush_qp = qp; /* destroyed with the connection, whatever it is */
    return e ? comm_fail(c, NN_SYSTEM_ERROR, "%s: QP to flush by: %s", d->phys->name, strerror(e)) : NN_OK;
}

/* ---------------------------------------------------------------------------------------------------- the end */

static void destroyed(const struct comm *c, const char *what, int e) {
    if (e)
        INFO("%s: destroy %s: %s", c->peer_name, what, strerror(e));
}

int comm_close(struct comm *c) {
    static const char goodbye = 1;
    if (!c)
        return NN_OK;
    for (int q = 0; q < MAX_QPS; q++)
        if (c->qp[q])
            destroyed(c, "QP", vb.destroy_qp(c->qp[q]));
    for (int i = 0; i < c->ndevs; i++) {
        struct cdev *d = &c->devs[i];
        if (d->flush_qp)
            destroyed(c, "QP", vb.destroy_qp(d->flush_qp));
        if (d->ring_mr)
            destroyed(c, "MR", vb.dereg_mr(d->ring_mr));
        if (d->cq)
            destroyed(c, "CQ", vb.destroy_cq(d->cq));
    }
    if (c->ring)
        munmap(c->ring, c->ring_len);
    if (c->fd >= 0) {
        if (c->stage == ST_READY && !atomic_load(&c->error))
            (void)!send(c->fd, &goodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(c->fd);
    }
    free(c->reqs);
    free(c);
    pthread_mutex_lock(&net_lock);
    devices_hold(-1);
    pthread_mutex_unlock(&net_lock);
    return NN_OK;
}
