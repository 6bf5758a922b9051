/* SPDX-License-Identifier: Apache-2.0
 *
 * qp.c: making, changing, asking and destroying queue pairs.
 */
#include "mr.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------- qpn -> QP */

/* Read under a CQ's lock by whoever polls; changed under table_lock and, for removal, the locks of both CQs. */
struct mr_qp *mr_qp_find(struct mr_ctx *ctx, uint32_t qpn) {
    if (qpn >> MR_QPN_BITS)
        return NULL;
    _Atomic(struct mr_qp *) *leaf = atomic_load_explicit(&ctx->qpn[qpn >> MR_LEAF_BITS], memory_order_acquire);
    return leaf ? atomic_load_explicit(&leaf[qpn & ((1u << MR_LEAF_BITS) - 1)], memory_order_acquire) : NULL;
}

static int table_set(struct mr_ctx *ctx, uint32_t qpn, struct mr_qp *qp) {
    if (qpn >> MR_QPN_BITS)
        return EIO;
    _Atomic(struct mr_qp *) *leaf = atomic_load_explicit(&ctx->qpn[qpn >> MR_LEAF_BITS], memory_order_relaxed);
    if (!leaf) {
        leaf = calloc(1u << MR_LEAF_BITS, sizeof *leaf);
        if (!leaf)
            return ENOMEM;
        atomic_store_explicit(&ctx->qpn[qpn >> MR_LEAF_BITS], leaf, memory_order_release);
    }
    atomic_store_explicit(&leaf[qpn & ((1u << MR_LEAF_BITS) - 1)], qp, memory_order_release);
    return 0;
}

/* --------------------------------------------------------------------------------------------------- queues */

static void wq_free(struct mr_ctx *ctx, struct mr_wq *q) {
    if (!q->ring)
        return;
    mr_arena_free(&ctx->arena, q->ring_off, q->ring_len);
    mr_bell_free(&ctx->arena, q->bell);
    q->ring = NULL;
}

/* A queue of at least `wr` requests of `stride` bytes; wr = 0: none. */
static int wq_make(struct mr_ctx *ctx, struct mr_wq *q, uint32_t wr, uint32_t sge, uint32_t stride) {
    pthread_mutex_init(&q->lock, NULL);
    q->max_sge = sge;
    if (!wr)
        return 0;
    uint32_t entries = mr_ring_size(wr);
    q->ring_len = MR_RING_HDR + (uint64_t)entries * stride;
    q->ring_off = mr_arena_alloc(&ctx->arena, q->ring_len);
    if (!q->ring_off)
        return ENOMEM;
    if (mr_bell_alloc(&ctx->arena, &q->bell)) {
        mr_arena_free(&ctx->arena, q->ring_off, q->ring_len);
        return ENOMEM;
    }
    q->ring = (struct mr_ring *)(ctx->arena.base + q->ring_off);
    q->slots = ctx->arena.base + q->ring_off + MR_RING_HDR;
    q->mask = entries - 1;
    q->stride = stride;
    q->limit = entries < ctx->attr.max_qp_wr ? entries : ctx->attr.max_qp_wr;
    return 0;
}

static uint32_t round64(uint32_t n) {
    return (n + 63) & ~63u;
}

/* --------------------------------------------------------------------------------------------------- create */

/* Send operations of ibv_qp_ex, by type of QP. */
static uint64_t send_ops_of(enum ibv_qp_type t) {
    const uint64_t ud = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const uint64_t uc = ud | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_BIND_MW |
                        IBV_QP_EX_WITH_LOCAL_INV;
    const uint64_t rc = uc | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_READ |
                        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                        IBV_QP_EX_WITH_ATOMIC_WRITE;
    return t == IBV_QPT_RC || t == IBV_QPT_XRC_SEND ? rc : t == IBV_QPT_UC ? uc : t == IBV_QPT_UD ? ud : 0;
}

/* XRC has the two directions in two QPs: one sends and has no receives, the other has no queues at all. */
static bool sends(enum ibv_qp_type t) {
    return t != IBV_QPT_XRC_RECV;
}

static bool receives(enum ibv_qp_type t) {
    return t != IBV_QPT_XRC_RECV && t != IBV_QPT_XRC_SEND;
}

/* What a QP of this type has no use for is not looked at. */
static void drop_unused(struct ibv_qp_init_attr_ex *a) {
    if (!receives(a->qp_type)) {
        a->recv_cq = NULL;
        a->srq = NULL;
        a->cap.max_recv_wr = a->cap.max_recv_sge = 0;
    }
    if (!sends(a->qp_type)) {
        a->send_cq = NULL;
        a->pd = NULL;
        a->cap = (struct ibv_qp_cap){0};
    } else {
        a->xrcd = NULL;
    }
}

static int check_caps(struct mr_ctx *ctx, const struct ibv_qp_init_attr_ex *a) {
    const struct ibv_qp_cap *c = &a->cap;
    if (sends(a->qp_type) && (!a->send_cq || a->send_cq->context != &ctx->v.context))
        return EINVAL;
    if (receives(a->qp_type) && (!a->recv_cq || a->recv_cq->context != &ctx->v.context))
        return EINVAL;
    if (c->max_send_wr > ctx->attr.max_qp_wr || c->max_send_sge > ctx->attr.max_sge ||
        c->max_inline_data > ctx->attr.max_inline || c->max_send_sge > MR_MAX_SGE || c->max_inline_data > MR_MAX_INLINE)
        return EINVAL;
    if (a->srq && a->srq->context != &ctx->v.context)
        return EINVAL;
    if (!a->srq &&
        (c->max_recv_wr > ctx->attr.max_qp_wr || c->max_recv_sge > ctx->attr.max_sge || c->max_recv_sge > MR_MAX_SGE))
        return EINVAL;
    return 0;
}

static int make_queues(struct mr_ctx *ctx, struct mr_qp *qp, const struct ibv_qp_init_attr_ex *a) {
    const struct ibv_qp_cap *c = &a->cap;
    if (!sends(a->qp_type))
        return 0;
    uint32_t list = c->max_send_sge * (uint32_t)sizeof(struct mr_sge);
    uint32_t stride =
        round64((uint32_t)sizeof(struct mr_sqe) + (list > c->max_inline_data ? list : c->max_inline_data));
    int err = wq_make(ctx, &qp->sq, c->max_send_wr, c->max_send_sge, stride);
    /* a program that asked for little inline data may use what the slots have room for */
    qp->max_inline = stride - (uint32_t)sizeof(struct mr_sqe);
    if (qp->max_inline > ctx->attr.max_inline)
        qp->max_inline = ctx->attr.max_inline;
    if (err || a->srq || !receives(a->qp_type)) /* with a shared receive queue the receive sizes are not looked at */
        return err;
    stride = round64((uint32_t)(sizeof(struct mr_rqe) + c->max_recv_sge * sizeof(struct mr_sge)));
    return wq_make(ctx, &qp->rq, c->max_recv_wr, c->max_recv_sge, stride);
}

/* Tells the daemon. table_lock is held, so that a number is not used again while its predecessor is cleaned up. */
static int send_create(struct mr_ctx *ctx, struct mr_qp *qp, const struct ibv_qp_init_attr_ex *a,
                       struct mr_create_qp_reply *rep) {
    struct mr_create_qp req = {.pd = a->pd ? a->pd->handle : 0,
                               .type = a->qp_type,
                               .send_cq = a->send_cq ? a->send_cq->handle : 0,
                               .recv_cq = a->recv_cq ? a->recv_cq->handle : 0,
                               .xrcd = a->xrcd ? to_xrcd(a->xrcd)->handle : 0,
                               .srq = a->srq ? a->srq->handle : 0,
                               .sq_entries = qp->sq.ring ? qp->sq.mask + 1 : 0,
                               .sq_stride = qp->sq.ring ? qp->sq.stride : 0,
                               .rq_entries = qp->rq.ring ? qp->rq.mask + 1 : 0,
                               .rq_stride = qp->rq.ring ? qp->rq.stride : 0,
                               .max_send_sge = qp->sq.max_sge,
                               .max_recv_sge = qp->rq.max_sge,
                               .max_inline = qp->max_inline,
                               .sq_sig_all = a->sq_sig_all != 0,
                               .sq_ring = qp->sq.ring ? qp->sq.ring_off : 0,
                               .rq_ring = qp->rq.ring ? qp->rq.ring_off : 0,
                               .cookie = qp->name.cookie,
                               .sq_doorbell = qp->sq.bell,
                               .rq_doorbell = qp->rq.bell};
    return MR_CALL(ctx, MR_OP_CREATE_QP, &req, rep);
}

static void describe(struct mr_qp *qp, struct ibv_qp_init_attr_ex *a, const struct mr_create_qp_reply *rep) {
    struct ibv_qp *b = &qp->ibv.qp_base;
    b->context = &qp->ctx->v.context;
    b->qp_context = a->qp_context;
    b->pd = a->pd;
    b->send_cq = a->send_cq;
    b->recv_cq = a->recv_cq;
    b->srq = a->srq;
    b->handle = rep->handle;
    b->qp_num = rep->qpn;
    b->state = IBV_QPS_RESET;
    b->qp_type = a->qp_type;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->cond, NULL);
    qp->sig_all = a->sq_sig_all;
    qp->cap = (struct ibv_qp_cap){.max_send_wr = qp->sq.limit,
                                  .max_recv_wr = qp->rq.limit,
                                  .max_send_sge = qp->sq.max_sge,
                                  .max_recv_sge = qp->rq.max_sge,
                                  .max_inline_data = qp->max_inline};
    mr_qp_ex_fill(qp);
    a->cap = qp->cap;
}

/* Finds the QP of a completion: not one whose receives complete elsewhere, and of which a program may have several. */
static int make_known(struct mr_ctx *ctx, uint32_t qpn, struct mr_qp *qp) {
    return sends(qp->ibv.qp_base.qp_type) ? table_set(ctx, qpn, qp) : 0;
}

static struct mr_qp *make_qp(struct mr_ctx *ctx, struct ibv_qp_init_attr_ex *a) {
    struct mr_create_qp_reply rep;
    int err = check_caps(ctx, a);
    struct mr_pd *from = NULL;
    struct mr_qp *qp = err ? NULL : mr_pd_alloc(a->pd, sizeof *qp, MR_RESOURCE_QP, &from);

    if (!qp)
        return mr_null(err ? err : ENOMEM);
    qp->ctx = ctx;
    qp->ibv.qp_base.qp_type = a->qp_type;
    qp->from = from;
    err = make_queues(ctx, qp, a);
    if (!err) {
        pthread_mutex_lock(&ctx->table_lock);
        mr_name_add(ctx, &qp->name, MR_KIND_QP);
        err = send_create(ctx, qp, a, &rep);
        if (!err) {
            err = make_known(ctx, rep.qpn, qp);
            if (err)
                mr_free_handle(ctx, MR_OP_DESTROY_QP, rep.handle);
        }
        if (err)
            mr_name_del(ctx, &qp->name);
        pthread_mutex_unlock(&ctx->table_lock);
    }
    if (err) {
        wq_free(ctx, &qp->sq);
        wq_free(ctx, &qp->rq);
        mr_pd_release(from, qp, MR_RESOURCE_QP);
        return mr_null(err);
    }
    describe(qp, a, &rep);
    return qp;
}

MR_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    /* the plain attributes are the beginning of the extended ones */
    struct ibv_qp_init_attr_ex a = {0};
    memcpy(&a, attr, sizeof *attr);
    a.comp_mask = IBV_QP_INIT_ATTR_PD;
    a.pd = pd;
    if (!sends(a.qp_type)) /* needs a domain */
        return mr_null(EINVAL);
    drop_unused(&a);
    struct mr_qp *qp = make_qp(to_ctx(pd->context), &a);
    if (!qp)
        return NULL;
    attr->cap = a.cap;
    return &qp->ibv.qp_base;
}

struct ibv_qp *mr_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a) {
    const uint32_t known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const uint32_t belongs = sends(a->qp_type) ? IBV_QP_INIT_ATTR_PD : IBV_QP_INIT_ATTR_XRCD;
    if ((a->comp_mask & ~known) || ((a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && a->create_flags))
        return mr_null(EOPNOTSUPP);
    if (!(a->comp_mask & belongs)) /* what is there beside it counts for nothing */
        return mr_null(EINVAL);
    if (sends(a->qp_type) ? !a->pd || a->pd->context != c : !a->xrcd || a->xrcd->context != c)
        return mr_null(EINVAL);
    bool ex = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if (ex && (a->send_ops_flags & ~send_ops_of(a->qp_type)))
        return mr_null(EOPNOTSUPP);
    struct ibv_qp_init_attr_ex want = {0};
    size_t upto = offsetof(struct ibv_qp_init_attr_ex, create_flags); /* older programs have no more */
    memcpy(&want, a, upto);
    drop_unused(&want);
    struct mr_qp *qp = make_qp(to_ctx(c), &want);
    if (!qp)
        return NULL;
    a->cap = want.cap;
    qp->is_ex = ex;
    qp->send_ops = ex ? a->send_ops_flags : 0;
    return &qp->ibv.qp_base;
}

/* Only for QPs that were made for it: others do not promise the wr_* calls. */
MR_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *ibqp) {
    struct mr_qp *qp = to_qp(ibqp);
    return qp->is_ex ? &qp->ibv : NULL;
}

/* --------------------------------------------------------------------------------------------------- modify */

static void attr_to_abi(struct mr_modify_qp *m, const struct ibv_qp_attr *a) {
    m->qp_state = a->qp_state;
    m->cur_qp_state = a->cur_qp_state;
    m->path_mtu = a->path_mtu;
    m->path_mig_state = a->path_mig_state;
    m->qkey = a->qkey;
    m->rq_psn = a->rq_psn;
    m->sq_psn = a->sq_psn;
    m->dest_qp_num = a->dest_qp_num;
    m->qp_access_flags = a->qp_access_flags;
    m->max_send_wr = a->cap.max_send_wr;
    m->max_recv_wr = a->cap.max_recv_wr;
    m->max_send_sge = a->cap.max_send_sge;
    m->max_recv_sge = a->cap.max_recv_sge;
    m->max_inline = a->cap.max_inline_data;
    mr_ah_to_abi(&m->ah, &a->ah_attr);
    mr_ah_to_abi(&m->alt_ah, &a->alt_ah_attr);
    m->pkey_index = a->pkey_index;
    m->alt_pkey_index = a->alt_pkey_index;
    m->en_sqd_async_notify = a->en_sqd_async_notify;
    m->sq_draining = a->sq_draining;
    m->max_rd_atomic = a->max_rd_atomic;
    m->max_dest_rd_atomic = a->max_dest_rd_atomic;
    m->min_rnr_timer = a->min_rnr_timer;
    m->port_num = a->port_num;
    m->timeout = a->timeout;
    m->retry_cnt = a->retry_cnt;
    m->rnr_retry = a->rnr_retry;
    m->alt_port_num = a->alt_port_num;
    m->alt_timeout = a->alt_timeout;
    m->rate_limit = a->rate_limit;
}

static void attr_from_abi(struct ibv_qp_attr *a, const struct mr_modify_qp *m) {
    memset(a, 0, sizeof *a);
    a->qp_state = (enum ibv_qp_state)m->qp_state;
    a->cur_qp_state = (enum ibv_qp_state)m->cur_qp_state;
    a->path_mtu = (enum ibv_mtu)m->path_mtu;
    a->path_mig_state = (enum ibv_mig_state)m->path_mig_state;
    a->qkey = m->qkey;
    a->rq_psn = m->rq_psn;
    a->sq_psn = m->sq_psn;
    a->dest_qp_num = m->dest_qp_num;
    a->qp_access_flags = m->qp_access_flags;
    mr_ah_from_abi(&a->ah_attr, &m->ah);
    mr_ah_from_abi(&a->alt_ah_attr, &m->alt_ah);
    a->pkey_index = m->pkey_index;
    a->alt_pkey_index = m->alt_pkey_index;
    a->en_sqd_async_notify = m->en_sqd_async_notify;
    a->sq_draining = m->sq_draining;
    a->max_rd_atomic = m->max_rd_atomic;
    a->max_dest_rd_atomic = m->max_dest_rd_atomic;
    a->min_rnr_timer = m->min_rnr_timer;
    a->port_num = m->port_num;
    a->timeout = m->timeout;
    a->retry_cnt = m->retry_cnt;
    a->rnr_retry = m->rnr_retry;
    a->alt_port_num = m->alt_port_num;
    a->alt_timeout = m->alt_timeout;
    a->rate_limit = m->rate_limit;
}

/* Takes what a QP left out of its CQs, and the QP out of the table if it ends: nobody polls meanwhile. */
static void clean_cqs(struct mr_qp *qp, bool ends) {
    struct ibv_qp *b = &qp->ibv.qp_base;
    if (!b->send_cq) { /* it had nothing in any, and is not in the table */
        return;
    }
    struct mr_cq *s = to_cq(b->send_cq), *r = b->recv_cq ? to_cq(b->recv_cq) : s;
    struct mr_cq *first = s < r ? s : r, *second = s < r ? r : s;
    pthread_mutex_lock(&first->lock);
    if (second != first)
        pthread_mutex_lock(&second->lock);
    mr_cq_clean(first, qp);
    if (second != first)
        mr_cq_clean(second, qp);
    if (ends)
        table_set(qp->ctx, b->qp_num, NULL);
    if (second != first)
        pthread_mutex_unlock(&second->lock);
    pthread_mutex_unlock(&first->lock);
}

/* RESET: the daemon has dropped everything that was posted (its consumer index is at our producer index), and nothing
 * of it may be polled any more. Indices run on. */
static void after_reset(struct mr_qp *qp) {
    clean_cqs(qp, false);
    atomic_store(&qp->sq.tail, qp->sq.head);
    atomic_store(&qp->rq.tail, qp->rq.head);
}

MR_EXPORT int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask) {
    struct mr_qp *qp = to_qp(ibqp);
    struct mr_modify_qp req = {.handle = ibqp->handle, .mask = (uint32_t)mask};
    struct mr_hdr rep;

    attr_to_abi(&req, attr);
    int err = MR_CALL(qp->ctx, MR_OP_MODIFY_QP, &req, &rep);
    if (err)
        return err;
    if (mask & IBV_QP_STATE) {
        ibqp->state = attr->qp_state;
        if (attr->qp_state == IBV_QPS_RESET)
            after_reset(qp);
    }
    return 0;
}

MR_EXPORT int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    struct mr_qp *qp = to_qp(ibqp);
    struct mr_handle req = {.handle = ibqp->handle};
    struct mr_modify_qp rep;

    int err = MR_CALL(qp->ctx, MR_OP_QUERY_QP, &req, &rep);
    if (err)
        return err;
    attr_from_abi(attr, &rep);
    attr->cap = qp->cap;
    if (mask & IBV_QP_STATE)
        ibqp->state = attr->qp_state;
    *init = (struct ibv_qp_init_attr){.qp_context = ibqp->qp_context,
                                      .send_cq = ibqp->send_cq,
                                      .recv_cq = ibqp->recv_cq,
                                      .srq = ibqp->srq,
                                      .cap = qp->cap,
                                      .qp_type = ibqp->qp_type,
                                      .sq_sig_all = qp->sig_all};
    return 0;
}

MR_EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) {
    (void)qp, (void)op, (void)flags;
    return 0; /* bulk data is placed as it arrives; only the end of a message is in order */
}

/* -------------------------------------------------------------------------------------------------- destroy */

MR_EXPORT int ibv_destroy_qp(struct ibv_qp *ibqp) {
    struct mr_qp *qp = to_qp(ibqp);
    struct mr_ctx *ctx = qp->ctx;

    pthread_mutex_lock(&ctx->table_lock);
    int err = mr_free_handle(ctx, MR_OP_DESTROY_QP, ibqp->handle);
    if (err) {
        pthread_mutex_unlock(&ctx->table_lock);
        return mr_err(err);
    }
    mr_assist_settle(ctx);
    mr_name_del(ctx, &qp->name);
    uint32_t async = qp->async_got;
    if (!ctx->forked)
        clean_cqs(qp, true);
    pthread_mutex_unlock(&ctx->table_lock);
    if (!ctx->forked)
        mr_wait_acked(&ibqp->mutex, &ibqp->cond, &ibqp->events_completed, async);
    wq_free(ctx, &qp->sq);
    wq_free(ctx, &qp->rq);
    mr_pd_release(qp->from, qp, MR_RESOURCE_QP);
    return 0;
}
