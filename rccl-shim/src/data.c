/* SPDX-License-Identifier: Apache-2.0
 *
 * data.c: how bytes move.
 *
 *   1. irecv     posts a receive on the QP (all QPs, with SPLIT) that this message will use, and writes a clear-to-send
 *                of n entries into the sender's slot id % SLOTS, by one RDMA WRITE.
 *   2. isend     finds its slot filled, takes the entry with its tag; when the last of the n was taken, it posts
 *                n == 1 and short:  one WRITE_WITH_IMM, whose length is the size
 *                otherwise:         WRITEs of the data, 1 GiB each at most, then a WRITE_WITH_IMM of the n sizes
 *                The immediate data is the message's id, and a bit that says which of both.
 *   3. test      polls the queue; a completion of the sender is its slot's, one of the receiver's the id's in it.
 *   4. iflush    reads one byte of what came last through a QP that is connected to itself.
 *
 * With SPLIT every QP carries its share, and the WRITE_WITH_IMM goes over all of them; the receiver waits for all.
 * What fails ends the connection, and all calls on it return the first error.
 */
#include "net.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define IMM_DIRECT 0x80000000u
#define STRIPE     128ull /* shares of a message are multiples of it */

enum wr_kind { WR_SEND = 1, WR_CTS, WR_HEARTBEAT, WR_FLUSH };
#define WR_ID(kind, q, index) ((uint64_t)(kind) << 32 | (uint64_t)(q) << 16 | (uint64_t)(index))

static struct req *request(struct comm *c, enum req_kind kind) {
    for (int i = 0; i < c->nreqs; i++) {
        struct req *r = &c->reqs[(c->next_req + i) % c->nreqs];
        if (r->kind == REQ_FREE) {
            c->next_req = (int)(r - c->reqs + 1);
            memset(r, 0, sizeof *r);
            r->comm = c;
            r->kind = kind;
            return r;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ completions */

static void send_done(struct comm *c, int q, int slot) {
    struct send_slot *s = &c->slot[slot];
    c->outstanding[q] -= s->wrs[q];
    if (--s->pending)
        return;
    for (int i = 0; i < s->n; i++)
        s->req[i]->done = true;
    s->n = s->matched = 0;
}

static int recv_done(struct comm *c, const struct ibv_wc *wc) {
    uint32_t imm = be32toh(wc->imm_data), id = imm & ~IMM_DIRECT;
    struct req *r = c->recv[id % SLOTS];
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || !r || (r->id & ~(uint64_t)IMM_DIRECT & UINT32_MAX) != id)
        return comm_fail(c, NN_REMOTE_ERROR, "the peer sent message %u, which nobody waits for", id);
    if (--r->pending)
        return NN_OK;
    for (int i = 0; i < r->n; i++) { /* until now, size was the room there is */
        uint64_t size = imm & IMM_DIRECT ? wc->byte_len : c->sizes[id % SLOTS][i];
        if (size > r->size[i])
            return comm_fail(c, NN_REMOTE_ERROR, "the peer says that it sent %llu bytes into a receive of %llu",
                             (unsigned long long)size, (unsigned long long)r->size[i]);
        r->size[i] = size;
    }
    r->done = true;
    c->recv[id % SLOTS] = NULL;
    return NN_OK;
}

static int completion(struct comm *c, int dev, const struct ibv_wc *wc) {
    int q = (int)(wc->wr_id >> 16 & 0xffff), index = (int)(wc->wr_id & 0xffff);
    if (wc->status != IBV_WC_SUCCESS) {
        bool ours = wc->status <= IBV_WC_LOC_PROT_ERR || wc->status == IBV_WC_GENERAL_ERR;
        return comm_fail(c, ours ? NN_SYSTEM_ERROR : NN_REMOTE_ERROR, "%s: %s (status %d, vendor %u)",
                         c->devs[dev].phys->name, vb.wc_status_str(wc->status), wc->status, wc->vendor_err);
    }
    switch ((enum wr_kind)(wc->wr_id >> 32)) {
    case WR_SEND:
        send_done(c, q, index);
        break;
    case WR_CTS:
        c->outstanding[q] -= CTS_SIGNAL;
        break;
    case WR_HEARTBEAT:
        c->outstanding[q]--;
        c->heartbeat = false;
        c->last_good = now_ns();
        return NN_OK;
    case WR_FLUSH:
        if (--c->reqs[index].pending == 0)
            c->reqs[index].done = true;
        break;
    default:
        return recv_done(c, wc);
    }
    return NN_OK;
}

/* Handles all completions there are. */
static int progress(struct comm *c) {
    struct ibv_wc wc[4];
    bool any = false;
    for (int d = 0; d < c->ndevs; d++) {
        int n;
        do {
            n = ibv_poll_cq(c->devs[d].cq, 4, wc);
            if (n < 0)
                return comm_fail(c, NN_SYSTEM_ERROR, "%s: the completion queue failed", c->devs[d].phys->name);
            for (int i = 0; i < n; i++)
                if (completion(c, d, &wc[i]))
                    return atomic_load(&c->error);
            any |= n > 0;
        } while (n == 4);
    }
    if (!any)
        return comm_check(c);
    c->polls = 0;
    c->last_good = 0;
    return atomic_load(&c->error);
}

/* ------------------------------------------------------------------------------------------------- is he there */

static int post(struct comm *c, int q, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    int e = ibv_post_send(c->qp[q], wr, &bad);
    return e ? comm_fail(c, NN_SYSTEM_ERROR, "%s: post: %s", c->devs[q % c->ndevs].phys->name, strerror(e)) : NN_OK;
}

/* An empty WRITE to the peer's NIC: where that is unreachable, the QP's timeout tells. */
static int heartbeat(struct comm *c) {
    const struct peer_qp *to = &c->peer.qp[0];
    struct ibv_send_wr wr = {.wr_id = WR_ID(WR_HEARTBEAT, 0, 0),
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = c->peer.ring, .rkey = c->peer.dev[to->dev].rkey}};
    if (c->outstanding[0] >= (c->sender ? SQ_SEND : SQ_RECV))
        return NN_OK; /* what is under way asks the same */
    c->outstanding[0]++;
    c->heartbeat = true;
    return post(c, 0, &wr);
}

static int socket_check(struct comm *c, int64_t now) {
    char byte;
    ssize_t n = c->bye ? -1 : recv(c->fd, &byte, 1, MSG_DONTWAIT);
    if (n == 1) {
        c->bye = true;
        c->bye_at = now;
    } else if (!c->bye && (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))) {
        return comm_fail(c, NN_REMOTE_ERROR, "the peer's process is gone%s%s", n ? ": " : "", n ? strerror(errno) : "");
    }
    if (c->bye && now - c->bye_at > GOODBYE_NS)
        return comm_fail(c, NN_REMOTE_ERROR, "the peer closed the connection with requests under way");
    return NN_OK;
}

/* Nothing came. Now and then: did the device fail, is the peer's process there, is its NIC? */
int comm_check(struct comm *c) {
    int r = atomic_load(&c->error);
    if (r || ++c->polls % CHECK_EVERY)
        return r;
    int64_t now = now_ns();
    if (!c->last_good)
        c->last_good = now;
    if (now - c->checked < CHECK_NS)
        return NN_OK;
    c->checked = now;
    for (int d = 0; d < c->ndevs; d++)
        if (device_events(c->devs[d].phys))
            return comm_fail(c, NN_SYSTEM_ERROR, "%s is gone", c->devs[d].phys->name);
    r = atomic_load(&c->error);
    if (r)
        return comm_fail(c, r, "the device reported an error");
    if (!c->bye && !c->heartbeat && now - c->last_good > HEARTBEAT_NS)
        r = heartbeat(c);
    return r ? r : socket_check(c, now);
}

/* ------------------------------------------------------------------------------------------------------- send */

static uint64_t parts_of(uint64_t size, uint64_t chunk) {
    return size ? (size + chunk - 1) / chunk : 0;
}

/* What QP number `which` of the stripes carries of `size` bytes, from where. */
static uint64_t share(const struct comm *c, uint64_t size, int which, uint64_t *from) {
    uint64_t each = (size + (uint64_t)c->stripes - 1) / (uint64_t)c->stripes;
    each = (each + STRIPE - 1) / STRIPE * STRIPE;
    *from = each * (uint64_t)which < size ? each * (uint64_t)which : size;
    return size - *from < each ? size - *from : each;
}

static int send_short(struct comm *c, int slot, int q) {
    struct send_slot *s = &c->slot[slot];
    const struct cts_entry *e = &c->cts[slot].entry[MAX_RECVS - 1];
    struct ibv_sge sge = {.addr = (uintptr_t)s->part[0].data,
                          .length = (uint32_t)s->part[0].size,
                          .lkey = s->part[0].mr->mr[q % c->ndevs]->lkey};
    struct ibv_send_wr wr = {
        .wr_id = WR_ID(WR_SEND, q, slot),
        .sg_list = &sge,
        .num_sge = s->part[0].size > 0,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htobe32((uint32_t)c->head | IMM_DIRECT),
        .wr.rdma = {.remote_addr = e->addr, .rkey = e->rkey[c->peer.qp[q].dev]},
    };
    s->pending = 1;
    s->wrs[q] = 1;
    c->outstanding[q]++;
    return post(c, q, &wr);
}

/* WRITEs of one QP's share, then the sizes. */
static int send_long(struct comm *c, int slot, int q, int which) {
    struct send_slot *s = &c->slot[slot];
    struct ibv_send_wr wr[SQ_SEND], *at = wr;
    struct ibv_sge sge[SQ_SEND];
    uint64_t chunk = c->devs[q % c->ndevs].phys->max_msg;
    uint32_t dev = c->peer.qp[q].dev;
    for (int i = 0; i < s->n; i++) {
        const struct cts_entry *e = &c->cts[slot].entry[MAX_RECVS - s->n + i];
        uint64_t from, left = share(c, s->part[i].size, which, &from);
        for (; left; at++) {
            uint64_t n = left < chunk ? left : chunk;
            sge[at - wr] = (struct ibv_sge){.addr = (uintptr_t)s->part[i].data + from,
                                            .length = (uint32_t)n,
                                            .lkey = s->part[i].mr->mr[q % c->ndevs]->lkey};
            *at = (struct ibv_send_wr){.next = at + 1, .sg_list = &sge[at - wr], .num_sge = 1};
            at->opcode = IBV_WR_RDMA_WRITE;
            at->wr.rdma.remote_addr = e->addr + from;
            at->wr.rdma.rkey = e->rkey[dev];
            from += n;
            left -= n;
        }
        c->sizes[slot][i] = s->part[i].size;
    }
    sge[at - wr] = (struct ibv_sge){.addr = (uintptr_t)c->sizes[slot],
                                    .length = (uint32_t)(s->n * (int)sizeof(uint64_t)),
                                    .lkey = c->devs[q % c->ndevs].ring_mr->lkey};
    *at = (struct ibv_send_wr){.wr_id = WR_ID(WR_SEND, q, slot), .sg_list = &sge[at - wr], .num_sge = 1};
    at->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    at->imm_data = htobe32((uint32_t)c->head & ~IMM_DIRECT);
    at->send_flags = IBV_SEND_SIGNALED | (c->inline_bytes >= sge[at - wr].length ? IBV_SEND_INLINE : 0);
    at->wr.rdma.remote_addr = c->peer.ring + (uint64_t)slot * sizeof *c->sizes;
    at->wr.rdma.rkey = c->peer.dev[dev].rkey;
    s->wrs[q] = (uint16_t)(at - wr + 1);
    c->outstanding[q] += s->wrs[q];
    return post(c, q, wr);
}

/* The QP of message `head`, number `which` of its stripes. */
static int qp_of(const struct comm *c, int which) {
    return c->stripes > 1 ? which : (int)(c->head % (uint64_t)c->nqps);
}

static bool room(const struct comm *c, const struct send_slot *s, uint64_t last_size) {
    for (int w = 0; w < c->stripes; w++) {
        int q = qp_of(c, w);
        uint64_t from, chunk = c->devs[q % c->ndevs].phys->max_msg, need = 1;
        for (int i = 0; i < s->n; i++)
            need += s->req[i] ? parts_of(share(c, s->part[i].size, w, &from), chunk) : 0;
        need += parts_of(share(c, last_size, w, &from), chunk);
        if ((uint64_t)c->outstanding[q] + need > SQ_SEND)
            return false;
    }
    return true;
}

static int send_group(struct comm *c, int slot) {
    struct send_slot *s = &c->slot[slot];
    int r = NN_OK;
    memset(s->wrs, 0, sizeof s->wrs);
    if (s->n == 1 && c->stripes == 1 && s->part[0].size <= (uint64_t)param(PARAM_IMM_BYTES)) {
        r = send_short(c, slot, qp_of(c, 0));
    } else {
        s->pending = c->stripes;
        for (int w = 0; w < c->stripes && !r; w++)
            r = send_long(c, slot, qp_of(c, w), w);
    }
    c->head++;
    return r;
}

/* The clear-to-send for the next message, or NULL. */
static struct cts *cleared(struct comm *c) {
    struct cts *t = &c->cts[c->head % SLOTS];
    if (__atomic_load_n(&t->idx, __ATOMIC_ACQUIRE) != c->head + 1)
        return NULL;
    return t;
}

static int match(const struct send_slot *s, const struct cts *t, int tag) {
    for (int i = 0; i < s->n; i++)
        if (!s->req[i] && t->entry[MAX_RECVS - s->n + i].tag == (uint32_t)tag)
            return i;
    return -1;
}

int net_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request_out) {
    struct comm *c = comm;
    *request_out = NULL;
    int r = atomic_load(&c->error);
    if (r)
        return r;
    struct send_slot *s = &c->slot[c->head % SLOTS];
    struct cts *t = s->pending ? NULL : cleared(c);
    if (!t)
        return progress(c);
    if (t->n < 1 || t->n > MAX_RECVS)
        return comm_fail(c, NN_REMOTE_ERROR, "the peer asks for a group of %u", t->n);
    if (!s->matched) {
        s->n = (int)t->n;
        memset(s->req, 0, sizeof s->req);
    }
    int i = match(s, t, tag);
    if (i < 0)
        return progress(c); /* this one's turn comes with another group */
    if (size > t->entry[MAX_RECVS - s->n + i].size || (size && !mhandle))
        return comm_fail(c, NN_BAD_USAGE, "%zu bytes are sent into a receive of %llu%s", size,
                         (unsigned long long)t->entry[MAX_RECVS - s->n + i].size,
                         mhandle ? "" : ", from memory that is not registered");
    if (size > MAX_P2P_BYTES)
        return comm_fail(c, NN_BAD_USAGE, "%zu bytes in one message, %llu are the most", size, MAX_P2P_BYTES);
    struct req *q = s->matched + 1 < s->n || room(c, s, size) ? request(c, REQ_SEND) : NULL;
    if (!q)
        return progress(c);
    s->req[i] = q;
    s->part[i].data = data;
    s->part[i].size = q->size[0] = size;
    s->part[i].mr = mhandle;
    q->n = 1;
    if (++s->matched == s->n)
        r = send_group(c, (int)(c->head % SLOTS));
    *request_out = r ? NULL : q;
    return r;
}

/* ---------------------------------------------------------------------------------------------------- receive */

static int post_receives(struct comm *c) {
    struct ibv_recv_wr wr = {.wr_id = 0}, *bad;
    for (int w = 0; w < c->stripes; w++) {
        int e = ibv_post_recv(c->qp[qp_of(c, w)], &wr, &bad);
        if (e)
            return comm_fail(c, NN_SYSTEM_ERROR, "post a receive: %s", strerror(e));
    }
    return NN_OK;
}

static int post_cts(struct comm *c, const struct cts *t) {
    int q = qp_of(c, 0), slot = (int)(c->head % SLOTS);
    uint32_t dev = c->peer.qp[q].dev, skip = (uint32_t)offsetof(struct cts, entry[MAX_RECVS - t->n]);
    struct ibv_sge sge = {
        .addr = (uintptr_t)t + skip, .length = (uint32_t)sizeof *t - skip, .lkey = c->devs[q % c->ndevs].ring_mr->lkey};
    bool signal = ++c->cts_unsignalled[q] == CTS_SIGNAL;
    struct ibv_send_wr wr = {.wr_id = WR_ID(WR_CTS, q, slot), .sg_list = &sge, .num_sge = 1};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = (signal ? IBV_SEND_SIGNALED : 0) | (c->inline_bytes >= sge.length ? IBV_SEND_INLINE : 0);
    wr.wr.rdma.remote_addr = c->peer.ring + (uint64_t)slot * sizeof *t + skip;
    wr.wr.rdma.rkey = c->peer.dev[dev].rkey;
    if (signal)
        c->cts_unsignalled[q] = 0;
    c->outstanding[q]++;
    return post(c, q, &wr);
}

/* Keys of the peer's devices are ours: entry i of rkey is for our device i. */
static void cts_fill(const struct comm *c, struct cts *t, int n, void **data, const size_t *sizes, const int *tags,
                     void **mhandles) {
    for (int i = 0; i < n; i++) {
        struct cts_entry *e = &t->entry[MAX_RECVS - n + i];
        const struct net_mr *m = mhandles[i];
        memset(e, 0, sizeof *e);
        e->addr = (uintptr_t)data[i];
        e->size = sizes[i];
        e->tag = (uint32_t)tags[i];
        for (int d = 0; d < c->ndevs && m; d++)
            e->rkey[d] = m->mr[d]->rkey;
    }
    t->n = (uint32_t)n;
    t->unused = 0;
    t->idx = c->head + 1;
}

int net_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
              void **request_out) {
    struct comm *c = comm;
    *request_out = NULL;
    int r = atomic_load(&c->error);
    if (r)
        return r;
    if (n < 1 || n > MAX_RECVS) {
        WARN("a receive of %d groups, 1 to %d are possible", n, MAX_RECVS);
        return NN_INTERNAL;
    }
    for (int i = 0; i < n; i++)
        if (sizes[i] && !mhandles[i]) {
            WARN("a receive into memory that is not registered");
            return NN_INTERNAL;
        }
    int slot = (int)(c->head % SLOTS);
    struct req *q = NULL;
    if (!c->recv[slot] && c->outstanding[qp_of(c, 0)] < SQ_RECV - 2)
        q = request(c, REQ_RECV);
    if (!q)
        return progress(c);
    q->n = n;
    q->id = c->head;
    q->pending = c->stripes;
    for (int i = 0; i < n; i++)
        q->size[i] = sizes[i];
    c->recv[slot] = q;
    cts_fill(c, &c->cts[slot], n, data, sizes, tags, mhandles);
    r = post_receives(c);
    if (!r)
        r = post_cts(c, &c->cts[slot]);
    c->head++;
    *request_out = r ? NULL : q;
    return r;
}

/* ------------------------------------------------------------------------------------------------------ flush */

static int read_back(struct comm *c, struct req *r, int dev, void *from, const struct net_mr *m) {
    struct cdev *d = &c->devs[dev];
    struct ibv_sge sge = {.addr = (uintptr_t)(c->sizes + SLOTS), .length = 1, .lkey = d->ring_mr->lkey};
    struct ibv_send_wr wr = {.wr_id = WR_ID(WR_FLUSH, 0, r - c->reqs), .sg_list = &sge, .num_sge = 1}, *bad;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = (uintptr_t)from;
    wr.wr.rdma.rkey = m->mr[dev]->rkey;
    int e = ibv_post_send(d->flush_qp, &wr, &bad);
    if (e)
        return comm_fail(c, NN_SYSTEM_ERROR, "%s: post a flush: %s", d->phys->name, strerror(e));
    r->pending++;
    return NN_OK;
}

int net_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request_out) {
    struct comm *c = comm;
    int last = -1, r = atomic_load(&c->error);
    *request_out = NULL;
    if (r)
        return r;
    for (int i = 0; i < n; i++)
        if (sizes[i] && mhandles[i] && (param(PARAM_FLUSH) || ((struct net_mr *)mhandles[i])->type != NN_PTR_HOST))
            last = i;
    if (last < 0)
        return NN_OK; /* what is in host memory is there */
    struct req *q = request(c, REQ_FLUSH);
    if (!q)
        return comm_fail(c, NN_INTERNAL, "more than %d requests", c->nreqs);
    for (int d = 0; d < c->ndevs && !r; d++) {
        r = comm_flush_qp(c, d);
        if (!r)
            r = read_back(c, q, d, data[last], mhandles[last]);
    }
    *request_out = r ? NULL : q;
    return r;
}

/* ------------------------------------------------------------------------------------------------------- test */

int net_test(void *request_in, int *done, int *sizes) {
    struct req *q = request_in;
    *done = 0;
    if (!q || q->kind == REQ_FREE) {
        WARN("a test of a request that is none");
        return NN_INTERNAL;
    }
    if (!q->done) {
        int r = progress(q->comm);
        if (!q->done)
            return r;
    }
    for (int i = 0; i < q->n && sizes; i++)
        sizes[i] = (int)q->size[i]; /* the library's own type; longer messages wrap there */
    q->kind = REQ_FREE;
    *done = 1;
    return NN_OK;
}

int net_close_send(void *comm) {
    return comm_close(comm);
}

int net_close_recv(void *comm) {
    return comm_close(comm);
}
