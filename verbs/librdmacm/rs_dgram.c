/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_dgram.c: datagrams. The socket is a UDP socket of the kernel; its port is the rsocket's. The first datagrams to a
 * destination travel over it, behind a header that tells our UD queue pair; the answer tells the peer's, and from then
 * on datagrams go from queue pair to queue pair, behind a header with our address. There is one queue pair for each
 * local address. Nothing here needs a thread: what came over UDP is read when the program receives, sends or polls.
 */
#include "rs.h"

#include <stdlib.h>

struct udp_header {
    uint32_t tag;
    uint8_t version, op, length, rsv; /* op: RS_OP_DATA or RS_OP_CTRL */
    uint32_t qpn;
    uint8_t addr[16]; /* the sender's; 4 bytes of it in version 4 */
};
#define UDP_TAG      0x55555555u
#define UDP_HEADER_4 16u
#define UDP_HEADER_6 28u
#define UDP_LARGEST  (RS_LOWAT + UDP_HEADER_6)
#define GRH_BYTES    40u
#define UD_HEADER_4  8u
#define UD_HEADER_6  24u
#define PENDING_MOST 256u /* datagrams over UDP that nobody has read */
#define AH_HOPS      64

struct ud_header {
    uint8_t version, length;
    uint16_t port;
    uint8_t addr[20]; /* version 4: 4 bytes; 6: flow information and the address */
};

/* A queue pair for one local address. */
struct dqp {
    struct dqp *next;
    struct sockaddr_storage local;
    struct ud_header hdr;
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *comp;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *smr, *rmr;
    uint8_t *sbuf, *rbuf; /* slots of RS_LOWAT, and of RS_LOWAT behind a GRH */
    uint32_t s_next, s_free, payload;
    bool armed;
};

struct dest {
    struct dest *next;
    struct sockaddr_storage addr;
    struct dqp *q;
    struct ibv_ah *ah;
    uint32_t qpn;
};

/* A datagram to be read: in a receive slot of a queue pair, or a copy of what came over UDP. */
struct pending {
    struct pending *next;
    struct dqp *q;
    uint32_t slot;
    uint8_t *data; /* what the program gets */
    uint32_t len;
    struct sockaddr_storage from;
    uint8_t copy[];
};

struct rs_dgram {
    struct dqp *qps;
    struct dest *dests, *connected;
    struct pending *first, **last;
    uint32_t copies;
    bool gone; /* a queue pair of ours failed */
};

#define RECV_SLOT (GRH_BYTES + RS_LOWAT)

/* ------------------------------------------------------------------------------------------------------ addresses */

static bool same_addr(const struct sockaddr_storage *a, const struct sockaddr_storage *b, bool ports) {
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_addr.s_addr == y->sin_addr.s_addr && (!ports || x->sin_port == y->sin_port);
    }
    const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
    return !memcmp(&x->sin6_addr, &y->sin6_addr, 16) && (!ports || x->sin6_port == y->sin6_port);
}

static bool is_any(const struct sockaddr_storage *a) {
    static const struct in6_addr any6 = IN6ADDR_ANY_INIT;
    return a->ss_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_addr.s_addr == INADDR_ANY
                                   : !memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &any6, 16);
}

static void gid_of(const struct sockaddr_storage *a, union ibv_gid *gid) {
    memset(gid, 0, sizeof *gid);
    if (a->ss_family == AF_INET) {
        gid->raw[10] = gid->raw[11] = 0xff;
        memcpy(gid->raw + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
    } else {
        memcpy(gid->raw, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
    }
}

/* The local address that datagrams to `to` come from: the socket's own, or the one that the kernel would take. */
static int local_for(struct rsock *rs, const struct sockaddr *to, socklen_t len, struct sockaddr_storage *out) {
    socklen_t n = sizeof *out;
    if (getsockname(rs->fd, (struct sockaddr *)out, &n))
        return errno;
    if (out->ss_family == to->sa_family && !is_any(out))
        return 0;
    in_port_t port = ((struct sockaddr_in *)out)->sin_port; /* at the same place in both families */
    int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), err = 0;
    n = sizeof *out;
    if (fd < 0)
        return errno;
    if (connect(fd, to, len) || getsockname(fd, (struct sockaddr *)out, &n))
        err = errno;
    close(fd);
    ((struct sockaddr_in *)out)->sin_port = port;
    return err;
}

static void header_of(const struct sockaddr_storage *a, struct ud_header *h) {
    memset(h, 0, sizeof *h);
    h->port = ((const struct sockaddr_in *)a)->sin_port;
    if (a->ss_family == AF_INET) {
        h->version = 4;
        h->length = UD_HEADER_4;
        memcpy(h->addr, &((const struct sockaddr_in *)a)->sin_addr, 4);
    } else {
        h->version = 6;
        h->length = UD_HEADER_6;
        memcpy(h->addr, &((const struct sockaddr_in6 *)a)->sin6_flowinfo, 4);
        memcpy(h->addr + 4, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
    }
}

/* 0 when it is no header of ours. */
static uint32_t parse_header(const uint8_t *p, uint32_t len, struct sockaddr_storage *from) {
    struct ud_header h = {0};
    memset(from, 0, sizeof *from);
    if (len < UD_HEADER_4)
        return 0;
    memcpy(&h, p, len < sizeof h ? len : sizeof h);
    ((struct sockaddr_in *)from)->sin_port = h.port;
    if (h.version == 4 && h.length == UD_HEADER_4) {
        from->ss_family = AF_INET;
        memcpy(&((struct sockaddr_in *)from)->sin_addr, h.addr, 4);
        return UD_HEADER_4;
    }
    if (h.version != 6 || h.length != UD_HEADER_6 || len < UD_HEADER_6)
        return 0;
    from->ss_family = AF_INET6;
    memcpy(&((struct sockaddr_in6 *)from)->sin6_flowinfo, h.addr, 4);
    memcpy(&((struct sockaddr_in6 *)from)->sin6_addr, h.addr + 4, 16);
    return UD_HEADER_6;
}

/* ----------------------------------------------------------------------------------------------------- queue pairs */

static int post_slot(struct dqp *q, uint32_t slot) {
    struct ibv_sge sge = {
        .addr = (uintptr_t)q->rbuf + (size_t)slot * RECV_SLOT, .length = RECV_SLOT, .lkey = q->rmr->lkey};
    struct ibv_recv_wr w = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(q->qp, &w, &bad);
}

static void drop_qp(struct dqp *q) {
    struct ibv_cq *cq;
    void *context;
    if (q->qp)
        ibv_destroy_qp(q->qp);
    while (q->comp && q->cq && !ibv_get_cq_event(q->comp, &cq, &context))
        ibv_ack_cq_events(cq, 1);
    if (q->cq)
        ibv_destroy_cq(q->cq);
    if (q->smr)
        ibv_dereg_mr(q->smr);
    if (q->rmr)
        ibv_dereg_mr(q->rmr);
    if (q->pd)
        ibv_dealloc_pd(q->pd);
    if (q->comp)
        ibv_destroy_comp_channel(q->comp);
    if (q->id)
        rdma_destroy_id(q->id);
    if (q->events)
        rdma_destroy_event_channel(q->events);
    free(q->sbuf);
    free(q->rbuf);
    free(q);
}

static int to_rts(struct ibv_qp *qp, uint8_t port) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = port, .qkey = RDMA_UDP_QKEY};
    int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    a.qp_state = IBV_QPS_RTR;
    if (!err)
        err = ibv_modify_qp(qp, &a, IBV_QP_STATE);
    a.qp_state = IBV_QPS_RTS;
    if (!err)
        err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return err;
}

/* The device of a local address is what rdma_bind_addr says. */
static int bind_device(struct dqp *q) {
    struct sockaddr_storage a = q->local;
    ((struct sockaddr_in *)&a)->sin_port = 0;
    q->events = rdma_create_event_channel();
    if (!q->events || rdma_create_id(q->events, &q->id, q, RDMA_PS_UDP) || rdma_bind_addr(q->id, (struct sockaddr *)&a))
        return errno;
    return q->id->verbs ? 0 : ENODEV;
}

static int fill_qp(struct rsock *rs, struct dqp *q) {
    struct ibv_port_attr port;
    int err = bind_device(q);
    if (err)
        return err;
    uint8_t n = q->id->port_num ? q->id->port_num : 1;
    if (ibv_query_port(q->id->verbs, n, &port))
        return errno;
    q->payload = 128u << port.active_mtu;
    if (q->payload > RS_LOWAT)
        q->payload = RS_LOWAT;
    q->pd = ibv_alloc_pd(q->id->verbs);
    q->comp = ibv_create_comp_channel(q->id->verbs);
    if (!q->pd || !q->comp)
        return errno;
    fcntl(q->comp->fd, F_SETFL, O_NONBLOCK);
    q->cq = ibv_create_cq(q->id->verbs, (int)(rs->sq_size + rs->rq_size), q, q->comp, 0);
    if (!q->cq)
        return errno;
    struct ibv_qp_init_attr init = {.send_cq = q->cq,
                                    .recv_cq = q->cq,
                                    .qp_type = IBV_QPT_UD,
                                    .sq_sig_all = 1,
                                    .cap = {rs->sq_size, rs->rq_size, 1, 1, rs->inline_max}};
    q->qp = ibv_create_qp(q->pd, &init);
    if (!q->qp)
        return errno;
    q->sbuf = calloc(rs->sq_size, RS_LOWAT);
    q->rbuf = calloc(rs->rq_size, RECV_SLOT);
    if (!q->sbuf || !q->rbuf)
        return ENOMEM;
    q->smr = ibv_reg_mr(q->pd, q->sbuf, (size_t)rs->sq_size * RS_LOWAT, IBV_ACCESS_LOCAL_WRITE);
    q->rmr = ibv_reg_mr(q->pd, q->rbuf, (size_t)rs->rq_size * RECV_SLOT, IBV_ACCESS_LOCAL_WRITE);
    if (!q->smr || !q->rmr)
        return errno;
    q->s_free = rs->sq_size;
    err = to_rts(q->qp, n);
    for (uint32_t i = 0; !err && i < rs->rq_size; i++)
        err = post_slot(q, i);
    return err ? err : rs_watch(rs, q->comp->fd);
}

static int qp_for(struct rsock *rs, const struct sockaddr_storage *local, struct dqp **out) {
    for (struct dqp *q = rs->dgram->qps; q; q = q->next)
        if (same_addr(&q->local, local, false)) {
            *out = q;
            return 0;
        }
    struct dqp *q = calloc(1, sizeof *q);
    if (!q)
        return ENOMEM;
    q->local = *local;
    header_of(local, &q->hdr);
    int err = fill_qp(rs, q);
    if (err) {
        drop_qp(q);
        return err;
    }
    q->next = rs->dgram->qps;
    rs->dgram->qps = q;
    *out = q;
    return 0;
}

static int dest_for(struct rsock *rs, const struct sockaddr *to, socklen_t len, struct dest **out) {
    struct sockaddr_storage addr = {0}, local;
    memcpy(&addr, to, len < sizeof addr ? len : sizeof addr);
    for (struct dest *d = rs->dgram->dests; d; d = d->next)
        if (same_addr(&d->addr, &addr, true)) {
            *out = d;
            return 0;
        }
    struct dqp *q;
    int err = local_for(rs, to, len, &local);
    if (!err)
        err = qp_for(rs, &local, &q);
    if (err)
        return err;
    struct dest *d = calloc(1, sizeof *d);
    if (!d)
        return ENOMEM;
    d->addr = addr;
    d->q = q;
    d->next = rs->dgram->dests;
    rs->dgram->dests = d;
    *out = d;
    return 0;
}

/* The peer told its queue pair. */
static void learn(struct dest *d, uint32_t qpn) {
    struct dqp *q = d->q;
    struct ibv_ah_attr a = {.is_global = 1, .port_num = q->id->port_num ? q->id->port_num : 1};
    union ibv_gid ours, g;
    if (d->ah && d->qpn == qpn)
        return;
    a.grh.hop_limit = AH_HOPS;
    gid_of(&d->addr, &a.grh.dgid);
    gid_of(&q->local, &ours);
    for (int i = 0; i < 256 && !ibv_query_gid(q->id->verbs, a.port_num, i, &g); i++)
        if (!memcmp(&g, &ours, sizeof g)) {
            a.grh.sgid_index = (uint8_t)i;
            break;
        }
    if (d->ah)
        ibv_destroy_ah(d->ah);
    d->ah = ibv_create_ah(q->pd, &a);
    d->qpn = qpn;
}

/* ---------------------------------------------------------------------------------------------------- make and end */

int rs_dgram_make(struct rsock *rs) {
    rs->dgram = calloc(1, sizeof *rs->dgram);
    if (!rs->dgram)
        return ENOMEM;
    rs->dgram->last = &rs->dgram->first;
    int fd = socket(rs->domain, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int err = rs_watch(rs, fd);
    if (!err)
        err = rs_publish(rs, fd);
    if (err)
        close(fd);
    else
        rs->state = RS_OPEN;
    return err;
}

void rs_dgram_drop(struct rsock *rs) {
    struct rs_dgram *g = rs->dgram;
    while (g->first) {
        struct pending *p = g->first;
        g->first = p->next;
        free(p);
    }
    while (g->dests) {
        struct dest *d = g->dests;
        g->dests = d->next;
        if (d->ah)
            ibv_destroy_ah(d->ah);
        free(d);
    }
    while (g->qps) {
        struct dqp *q = g->qps;
        g->qps = q->next;
        drop_qp(q);
    }
    if (rs->fd >= 0)
        close(rs->fd);
    free(g);
    rs->dgram = NULL;
}

/* --------------------------------------------------------------------------------------------------- over UDP */

static ssize_t udp_send(struct rsock *rs, struct dest *d, const struct iovec *iov, int n, int flags, enum rs_op op) {
    struct udp_header h = {.tag = htonl(UDP_TAG), .version = d->q->hdr.version, .op = (uint8_t)op};
    struct iovec v[16] = {{&h, 0}};
    if (n > 15)
        return rs_err(EMSGSIZE);
    h.qpn = htonl(d->q->qp->qp_num);
    h.length = h.version == 4 ? UDP_HEADER_4 : UDP_HEADER_6;
    memcpy(h.addr, d->q->hdr.addr + (h.version == 4 ? 0 : 4), h.version == 4 ? 4 : 16);
    v[0].iov_len = h.length;
    if (n)
        memcpy(v + 1, iov, (size_t)n * sizeof *iov);
    struct msghdr m = {.msg_name = &d->addr,
                       .msg_namelen = rs_addr_len((struct sockaddr *)&d->addr),
                       .msg_iov = v,
                       .msg_iovlen = (size_t)n + 1};
    ssize_t k = sendmsg(rs->fd, &m, flags | MSG_NOSIGNAL);
    return k < 0 ? k : k - h.length;
}

static void enqueue(struct rs_dgram *g, struct pending *p) {
    p->next = NULL;
    *g->last = p;
    g->last = &p->next;
}

static void udp_one(struct rsock *rs, const uint8_t *b, size_t len, const struct sockaddr_storage *from,
                    socklen_t from_len) {
    struct udp_header h = {0};
    struct rs_dgram *g = rs->dgram;
    struct dest *d;
    memcpy(&h, b, len < sizeof h ? len : sizeof h);
    uint32_t length = from->ss_family == AF_INET ? UDP_HEADER_4 : UDP_HEADER_6;
    if (len < length || ntohl(h.tag) != UDP_TAG || h.length != length ||
        h.version != (from->ss_family == AF_INET ? 4 : 6) || (h.op != RS_OP_DATA && h.op != RS_OP_CTRL) ||
        dest_for(rs, (const struct sockaddr *)from, from_len, &d))
        return;
    learn(d, ntohl(h.qpn) & 0xffffff);
    if (h.op == RS_OP_CTRL)
        return;
    udp_send(rs, d, NULL, 0, MSG_DONTWAIT, RS_OP_CTRL);
    struct pending *p = g->copies < PENDING_MOST ? calloc(1, sizeof *p + len - length) : NULL;
    if (!p)
        return; /* as any datagram that nobody reads */
    memcpy(p->copy, b + length, len - length);
    p->data = p->copy;
    p->len = (uint32_t)(len - length);
    p->from = *from;
    g->copies++;
    enqueue(g, p);
}

static void udp_progress(struct rsock *rs) {
    uint8_t b[UDP_LARGEST];
    struct sockaddr_storage from;
    for (int i = 0; i < 64; i++) {
        socklen_t n = sizeof from;
        ssize_t k = recvfrom(rs->fd, b, sizeof b, MSG_DONTWAIT, (struct sockaddr *)&from, &n);
        if (k < 0)
            return;
        udp_one(rs, b, (size_t)k, &from, n);
    }
}

/* ------------------------------------------------------------------------------------------------- completions */

static void arrived(struct rs_dgram *g, struct dqp *q, const struct ibv_wc *wc) {
    struct pending *p = NULL;
    uint32_t slot = (uint32_t)wc->wr_id, head = 0;
    uint8_t *b = q->rbuf + (size_t)slot * RECV_SLOT + GRH_BYTES;
    struct sockaddr_storage from;
    if (wc->byte_len >= GRH_BYTES)
        head = parse_header(b, wc->byte_len - GRH_BYTES, &from);
    if (head)
        p = calloc(1, sizeof *p);
    if (!p) {
        post_slot(q, slot);
        return;
    }
    *p = (struct pending){.q = q, .slot = slot, .data = b + head, .len = wc->byte_len - GRH_BYTES - head};
    p->from = from;
    enqueue(g, p);
}

void rs_dgram_progress(struct rsock *rs) {
    struct rs_dgram *g = rs->dgram;
    struct ibv_wc wc[16];
    int n;
    udp_progress(rs);
    for (struct dqp *q = g->qps; q; q = q->next) {
        while ((n = ibv_poll_cq(q->cq, 16, wc)) > 0)
            for (int i = 0; i < n; i++) {
                if (wc[i].wr_id >> 63)
                    q->s_free++;
                else if (wc[i].status == IBV_WC_SUCCESS)
                    arrived(g, q, &wc[i]);
                g->gone |= wc[i].status != IBV_WC_SUCCESS;
            }
        g->gone |= n < 0; /* the daemon is */
    }
}

void rs_dgram_arm(struct rsock *rs) {
    for (struct dqp *q = rs->dgram->qps; q; q = q->next)
        if (!q->armed) {
            q->armed = true;
            ibv_req_notify_cq(q->cq, 0);
        }
}

void rs_dgram_drain(struct rsock *rs) {
    struct ibv_cq *cq;
    void *context;
    for (struct dqp *q = rs->dgram->qps; q; q = q->next)
        while (!ibv_get_cq_event(q->comp, &cq, &context)) {
            ibv_ack_cq_events(cq, 1);
            q->armed = false;
        }
}

/* ------------------------------------------------------------------------------------------------- send and receive */

bool rs_dgram_readable(struct rsock *rs) {
    return rs->dgram->first || rs->dgram->gone;
}

bool rs_dgram_writable(struct rsock *rs) {
    for (struct dqp *q = rs->dgram->qps; q; q = q->next)
        if (!q->s_free)
            return rs->dgram->gone;
    return true;
}

bool rs_dgram_all_sent(struct rsock *rs) {
    for (struct dqp *q = rs->dgram->qps; q; q = q->next)
        if (q->s_free != q->smr->length / RS_LOWAT)
            return rs->dgram->gone;
    return true;
}

int rs_dgram_connect(struct rsock *rs, const struct sockaddr *to, socklen_t len) {
    if (connect(rs->fd, to, len))
        return errno;
    return dest_for(rs, to, len, &rs->dgram->connected);
}

static int ud_send(struct dest *d, const struct iovec *iov, int n) {
    struct dqp *q = d->q;
    uint8_t *slot = q->sbuf + (size_t)q->s_next * RS_LOWAT;
    uint32_t len = q->hdr.length;
    memcpy(slot, &q->hdr, len);
    for (int i = 0; i < n; i++) {
        memcpy(slot + len, iov[i].iov_base, iov[i].iov_len);
        len += (uint32_t)iov[i].iov_len;
    }
    struct ibv_sge sge = {.addr = (uintptr_t)slot, .length = len, .lkey = q->smr->lkey};
    struct ibv_send_wr w = {.wr_id = 1ull << 63, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    w.wr.ud.ah = d->ah;
    w.wr.ud.remote_qpn = d->qpn;
    w.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    int err = ibv_post_send(q->qp, &w, &bad);
    if (!err) {
        q->s_next = (q->s_next + 1) % (uint32_t)(q->smr->length / RS_LOWAT);
        q->s_free--;
    }
    return err;
}

ssize_t rs_dgram_send(struct rsock *rs, const struct iovec *iov, int n, int flags, const struct sockaddr *to,
                      socklen_t len) {
    struct dest *d = rs->dgram->connected;
    size_t bytes = 0;
    int err = 0;

    for (int i = 0; i < n; i++)
        bytes += iov[i].iov_len;
    if (to)
        err = len < rs_addr_len(to) ? EINVAL : dest_for(rs, to, len, &d);
    if (!err && !d)
        err = EDESTADDRREQ;
    if (!err && bytes + d->q->hdr.length > d->q->payload)
        err = EMSGSIZE;
    if (err)
        return rs_err(err);
    if (!d->ah)
        udp_progress(rs); /* the answer may be there */
    if (!d->ah)
        return udp_send(rs, d, iov, n, flags, RS_OP_DATA);
    if (!d->q->s_free)
        err = rs_wait(rs, rs_dgram_writable, rs_nonblocking(rs, flags), -1);
    if (!err)
        err = ud_send(d, iov, n);
    return err ? rs_err(err) : (ssize_t)bytes;
}

ssize_t rs_dgram_recv(struct rsock *rs, const struct iovec *iov, int n, int flags, struct sockaddr *from,
                      socklen_t *len, int *msg_flags) {
    struct rs_dgram *g = rs->dgram;
    int err = g->first ? 0 : rs_wait(rs, rs_dgram_readable, rs_nonblocking(rs, flags), -1);
    if (!err && !g->first)
        err = ENODEV;
    if (err)
        return rs_err(err);
    struct pending *p = g->first;
    uint32_t done = 0;
    for (int i = 0; i < n && done < p->len; i++) {
        uint32_t k = p->len - done < iov[i].iov_len ? p->len - done : (uint32_t)iov[i].iov_len;
        memcpy(iov[i].iov_base, p->data + done, k);
        done += k;
    }
    rs_addr_out(from, len, (struct sockaddr *)&p->from);
    if (msg_flags && done < p->len)
        *msg_flags |= MSG_TRUNC;
    ssize_t got = flags & MSG_TRUNC ? (ssize_t)p->len : (ssize_t)done;
    if (flags & MSG_PEEK)
        return got;
    g->first = p->next;
    if (!g->first)
        g->last = &g->first;
    if (p->q)
        post_slot(p->q, p->slot);
    else
        g->copies--;
    free(p);
    return got;
}
