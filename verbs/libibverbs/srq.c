/* SPDX-License-Identifier: Apache-2.0
 *
 * srq.c: shared receive queues. Receives complete in any order, so a slot is free again when its own completion was
 * polled; the ring in shared memory holds the numbers of the slots in the order of posting.
 */
#include "mr.h"

#include <stdlib.h>

static uint32_t round64(uint32_t n) {
    return (n + 63) & ~63u;
}

static void drop(struct mr_srq *q) {
    mr_arena_free(&q->ctx->arena, q->ring_off, q->ring_len);
    mr_arena_free(&q->ctx->arena, q->slots_off, q->slots_len);
    free(q->free);
    mr_pd_release(q->from, q, MR_RESOURCE_SRQ);
}

static struct mr_srq *make(struct mr_ctx *ctx, struct ibv_pd *pd, const struct ibv_srq_attr *a) {
    struct mr_pd *from = NULL;
    struct mr_srq *q = mr_pd_alloc(pd, sizeof *q, MR_RESOURCE_SRQ, &from);
    if (!q)
        return NULL;
    q->from = from;
    uint32_t entries = mr_ring_size(a->max_wr);
    q->ctx = ctx;
    q->mask = entries - 1;
    q->stride = round64((uint32_t)(sizeof(struct mr_rqe) + a->max_sge * sizeof(struct mr_sge)));
    q->max_sge = a->max_sge;
    q->limit = entries < ctx->attr.max_srq_wr ? entries : ctx->attr.max_srq_wr;
    q->ring_len = MR_RING_HDR + (uint64_t)entries * sizeof(uint32_t);
    q->slots_len = (uint64_t)entries * q->stride;
    q->ring_off = mr_arena_alloc(&ctx->arena, q->ring_len);
    q->slots_off = mr_arena_alloc(&ctx->arena, q->slots_len);
    q->free = malloc(entries * sizeof *q->free);
    if (!q->ring_off || !q->slots_off || !q->free) {
        drop(q);
        return NULL;
    }
    q->ring = (struct mr_ring *)(ctx->arena.base + q->ring_off);
    q->index = (uint32_t *)(ctx->arena.base + q->ring_off + MR_RING_HDR);
    q->slots = ctx->arena.base + q->slots_off;
    for (uint32_t i = 0; i < entries; i++)
        q->free[q->nfree++] = entries - 1 - i;
    pthread_mutex_init(&q->lock, NULL);
    return q;
}

/* Where an SRQ of an XRC domain is found when a completion names it. */
static void join_cq(struct mr_srq *q, struct mr_cq *cq) {
    q->cq = cq;
    pthread_mutex_lock(&cq->lock);
    q->next = cq->xrc;
    cq->xrc = q;
    pthread_mutex_unlock(&cq->lock);
}

static void leave_cq(struct mr_srq *q) {
    pthread_mutex_lock(&q->cq->lock);
    mr_cq_clean_srq(q->cq, q);
    for (struct mr_srq **p = &q->cq->xrc; *p; p = &(*p)->next)
        if (*p == q) {
            *p = q->next;
            break;
        }
    pthread_mutex_unlock(&q->cq->lock);
}

/* xrcd and cq: of an XRC domain, else NULL. */
static struct ibv_srq *create(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *a, struct ibv_xrcd *xrcd,
                              struct ibv_cq *cq) {
    struct mr_ctx *ctx = to_ctx(pd->context);
    struct mr_create_srq_reply rep;

    if (!a->max_wr || a->max_wr > ctx->attr.max_srq_wr || a->max_sge > ctx->attr.max_srq_sge)
        return mr_null(EINVAL);
    struct mr_srq *q = make(ctx, pd, a);
    if (!q)
        return mr_null(ENOMEM);
    pthread_mutex_lock(&ctx->table_lock);
    mr_name_add(ctx, &q->name, MR_KIND_SRQ);
    struct mr_create_srq req = {.pd = pd->handle,
                                .type = xrcd ? IBV_SRQT_XRC : IBV_SRQT_BASIC,
                                .xrcd = xrcd ? to_xrcd(xrcd)->handle : 0,
                                .cq = cq ? cq->handle : 0,
                                .entries = q->mask + 1,
                                .max_sge = q->max_sge,
                                .stride = q->stride,
                                .ring = q->ring_off,
                                .slots = q->slots_off,
                                .cookie = q->name.cookie};
    int err = MR_CALL(ctx, MR_OP_CREATE_SRQ, &req, &rep);
    if (err)
        mr_name_del(ctx, &q->name);
    pthread_mutex_unlock(&ctx->table_lock);
    if (err) {
        drop(q);
        return mr_null(err);
    }
    q->ibv.context = pd->context;
    q->ibv.srq_context = srq_context;
    q->ibv.pd = pd;
    q->ibv.handle = rep.handle;
    q->num = rep.num;
    if (xrcd)
        join_cq(q, to_cq(cq));
    pthread_mutex_init(&q->ibv.mutex, NULL);
    pthread_cond_init(&q->ibv.cond, NULL);
    a->max_wr = q->limit;
    a->max_sge = q->max_sge;
    return &q->ibv;
}

MR_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    return create(pd, attr->srq_context, &attr->attr, NULL, NULL);
}

struct ibv_srq *mr_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a) {
    const uint32_t of_xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    const uint32_t known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | of_xrc;
    enum ibv_srq_type type = a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? a->srq_type : IBV_SRQT_BASIC;
    bool xrc = type == IBV_SRQT_XRC;
    if ((a->comp_mask & ~known) || (type != IBV_SRQT_BASIC && !xrc))
        return mr_null(EOPNOTSUPP);
    if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !a->pd || a->pd->context != c)
        return mr_null(EINVAL);
    if ((a->comp_mask & of_xrc) != (xrc ? of_xrc : 0))
        return mr_null(EINVAL);
    if (xrc && (!a->xrcd || a->xrcd->context != c || !a->cq || a->cq->context != c))
        return mr_null(EINVAL);
    return create(a->pd, a->srq_context, &a->attr, xrc ? a->xrcd : NULL, xrc ? a->cq : NULL);
}

MR_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
    struct mr_srq_attr req = {.handle = srq->handle,
                              .mask = (uint32_t)mask,
                              .max_wr = attr->max_wr,
                              .max_sge = attr->max_sge,
                              .limit = attr->srq_limit};
    struct mr_hdr rep;
    if ((mask & IBV_SRQ_LIMIT) && attr->srq_limit > to_srq(srq)->limit)
        return mr_err(EINVAL);
    return mr_err(MR_CALL(to_srq(srq)->ctx, MR_OP_MODIFY_SRQ, &req, &rep));
}

MR_EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr) {
    struct mr_handle req = {.handle = srq->handle};
    struct mr_srq_attr rep;
    int err = MR_CALL(to_srq(srq)->ctx, MR_OP_QUERY_SRQ, &req, &rep);
    if (!err)
        *attr = (struct ibv_srq_attr){.max_wr = to_srq(srq)->limit, .max_sge = rep.max_sge, .srq_limit = rep.limit};
    return mr_err(err);
}

MR_EXPORT int ibv_destroy_srq(struct ibv_srq *srq) {
    struct mr_srq *q = to_srq(srq);
    struct mr_ctx *ctx = q->ctx;

    pthread_mutex_lock(&ctx->table_lock);
    int err = mr_free_handle(ctx, MR_OP_DESTROY_SRQ, srq->handle);
    uint32_t async = q->async_got;
    if (!err)
        mr_name_del(ctx, &q->name);
    pthread_mutex_unlock(&ctx->table_lock);
    if (err)
        return mr_err(err);
    if (q->cq && !ctx->forked)
        leave_cq(q);
    if (!ctx->forked)
        mr_wait_acked(&srq->mutex, &srq->cond, &srq->events_completed, async);
    drop(q);
    return 0;
}

int mr_get_srq_num(struct ibv_srq *srq, uint32_t *num) {
    if (!to_srq(srq)->cq)
        return mr_err(EOPNOTSUPP); /* only those of an XRC domain have one */
    *num = to_srq(srq)->num;
    return 0;
}

/* A completion was polled: its slot may be used again. One that is free already is the daemon's mistake. */
void mr_srq_retire(struct mr_srq *q, uint32_t slot) {
    pthread_mutex_lock(&q->lock);
    if (q->nfree <= q->mask)
        q->free[q->nfree++] = slot;
    pthread_mutex_unlock(&q->lock);
}

int mr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct mr_srq *q = to_srq(srq);
    int err = 0;

    if (mr_is_gone(q->ctx)) {
        *bad = wr;
        return mr_err(EIO);
    }
    pthread_mutex_lock(&q->lock);
    uint32_t head = q->head;
    for (; wr; wr = wr->next, head++) {
        if (q->mask + 1 - q->nfree >= q->limit) {
            err = ENOMEM;
        } else {
            uint32_t slot = q->free[q->nfree - 1];
            err = mr_put_recv(q->slots + (size_t)slot * q->stride, q->max_sge, wr);
            if (!err) {
                q->nfree--;
                __atomic_store_n(&q->index[head & q->mask], slot, __ATOMIC_RELAXED);
            }
        }
        if (err) {
            *bad = wr;
            break;
        }
    }
    q->head = head;
    __atomic_store_n(&q->ring->prod, head, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&q->lock);
    return mr_err(err);
}
