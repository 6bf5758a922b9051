/* SPDX-License-Identifier: Apache-2.0
 *
 * post.c: handing work requests to the NIC. In order: lock, check and write each request into its slot, stop at the
 * first bad one, one store of the producer index for all, unlock, doorbell.
 *
 * Only what the program could not learn later is checked here (queue full, list too long, wrong state); keys, ranges
 * and rights are the NIC's to judge and come back as completions.
 */
#include "mr.h"

#include <unistd.h>

/* See mr_ctx_page: set the queue's bit, then the bit of its word, then wake a sleeping daemon. A bit that is still
 * set was not taken yet, and whoever set it does the rest; the daemon reads the producer index after taking it. */
void mr_ring_bell(struct mr_ctx *ctx, uint32_t bell) {
    struct mr_ctx_page *p = ctx->page;
    uint64_t *word = &p->bell[bell / 64], bit = 1ull << (bell % 64);

    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) & bit)
        return;
    __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&p->summary[bell / 4096], 1ull << (bell / 64 % 64), __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&p->asleep, __ATOMIC_SEQ_CST)) {
        static const uint64_t one = 1;
        int saved = errno;
        if (syscall(SYS_write, ctx->bell_fd, &one, sizeof one) < 0)
            errno = saved; /* EAGAIN: it is awake already */
        errno = saved;
    }
}

static inline bool is_full(struct mr_wq *q, uint32_t head) {
    return head - atomic_load_explicit(&q->tail, memory_order_acquire) >= q->limit;
}

static inline uint8_t *slot(struct mr_wq *q, uint32_t i) {
    return q->slots + (size_t)(i & q->mask) * q->stride;
}

static inline void publish(struct mr_ctx *ctx, struct mr_wq *q, uint32_t head) {
    (void)ctx;
    q->head = head;
    __atomic_store_n(&q->ring->prod, head, __ATOMIC_SEQ_CST);
}

/* --------------------------------------------------------------------------------------------------- sending */

#define SEND_FLAGS (MR_SEND_FENCE | MR_SEND_SIGNALED | MR_SEND_SOLICITED | MR_SEND_INLINE | MR_SEND_IP_CSUM)

static int put_inline(struct mr_qp *qp, struct mr_sqe *h, uint8_t *to, const struct ibv_send_wr *wr) {
    uint64_t sum = 0;
    for (int i = 0; i < wr->num_sge; i++)
        sum += wr->sg_list[i].length;
    if (sum > qp->max_inline)
        return EINVAL;
    h->inline_len = (uint32_t)sum;
    h->num_sge = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        uint32_t n = wr->sg_list[i].length;
        if (n)
            memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, n);
        to += n;
    }
    return 0;
}

static void put_list(uint8_t *to, const struct ibv_sge *list, int n) {
    struct mr_sge *s = (struct mr_sge *)to;
    for (int i = 0; i < n; i++)
        s[i] = (struct mr_sge){.addr = list[i].addr, .length = list[i].length, .lkey = list[i].lkey};
}

/* What UC has: nothing that the other end would have to answer. */
static bool uc_has(enum ibv_wr_opcode op) {
    return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE ||
           op == IBV_WR_RDMA_WRITE_WITH_IMM || op == IBV_WR_LOCAL_INV || op == IBV_WR_BIND_MW;
}

/* The part of a request that depends on its opcode. */
static int put_opcode(struct mr_qp *qp, struct mr_sqe *h, const struct ibv_send_wr *wr) {
    switch (wr->opcode) {
    case IBV_WR_SEND_WITH_IMM:
        h->imm = wr->imm_data;
        break;
    case IBV_WR_SEND:
        break;
    case IBV_WR_SEND_WITH_INV:
        h->imm = wr->invalidate_rkey;
        break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        h->imm = wr->imm_data;
        /* fall through */
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_WRITE:
        h->remote_addr = wr->wr.rdma.remote_addr;
        h->rkey = wr->wr.rdma.rkey;
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        h->remote_addr = wr->wr.atomic.remote_addr;
        h->rkey = wr->wr.atomic.rkey;
        h->u.atomic.compare_add = wr->wr.atomic.compare_add;
        h->u.atomic.swap = wr->wr.atomic.swap;
        break;
    case IBV_WR_LOCAL_INV:
        h->imm = wr->invalidate_rkey;
        break;
    case IBV_WR_BIND_MW:
        h->remote_addr = wr->bind_mw.bind_info.addr;
        h->rkey = wr->bind_mw.rkey;
        h->u.bind.length = wr->bind_mw.bind_info.length;
        h->u.bind.mr_lkey = wr->bind_mw.bind_info.mr ? wr->bind_mw.bind_info.mr->lkey : 0;
        h->u.bind.access = wr->bind_mw.bind_info.mw_access_flags;
        break;
    default:
        return EINVAL;
    }
    if (qp->ibv.qp_base.qp_type == IBV_QPT_UD) {
        if (!wr->wr.ud.ah || (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM))
            return EINVAL;
        h->u.ud.ah = wr->wr.ud.ah->handle;
        h->u.ud.qpn = wr->wr.ud.remote_qpn;
        h->u.ud.qkey = wr->wr.ud.remote_qkey;
    } else if (qp->ibv.qp_base.qp_type == IBV_QPT_UC) {
        if (!uc_has(wr->opcode))
            return EINVAL;
    } else if (qp->ibv.qp_base.qp_type == IBV_QPT_XRC_SEND) {
        h->xrc_srqn = wr->qp_type.xrc.remote_srqn;
    }
    return 0;
}

static int put_send(struct mr_qp *qp, uint32_t at, const struct ibv_send_wr *wr) {
    uint8_t *to = slot(&qp->sq, at);
    bool inline_data = wr->send_flags & IBV_SEND_INLINE;
    bool has_list = wr->opcode != IBV_WR_LOCAL_INV && wr->opcode != IBV_WR_BIND_MW;
    struct mr_sqe h = {
        .wr_id = wr->wr_id, .opcode = (uint8_t)wr->opcode, .flags = (uint16_t)(wr->send_flags & SEND_FLAGS)};

    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->sq.max_sge)
        return EINVAL;
    int err = put_opcode(qp, &h, wr);
    if (err)
        return err;
    if (qp->sig_all)
        h.flags |= MR_SEND_SIGNALED;
    if (!has_list) {
        h.flags &= (uint16_t)~MR_SEND_INLINE;
    } else if (inline_data) {
        if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
            wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            return EINVAL; /* there is nothing to send */
        err = put_inline(qp, &h, to + sizeof h, wr);
        if (err)
            return err;
    } else {
        h.num_sge = (uint8_t)wr->num_sge;
        put_list(to + sizeof h, wr->sg_list, wr->num_sge);
    }
    memcpy(to, &h, sizeof h);
    return 0;
}

int mr_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct mr_qp *qp = to_qp(ibqp);
    struct mr_ctx *ctx = qp->ctx;
    int err = 0;

    if (mr_is_gone(ctx))
        err = EIO;
    else if (!qp->sq.ring || ibqp->state == IBV_QPS_RESET || ibqp->state == IBV_QPS_INIT || ibqp->state == IBV_QPS_RTR)
        err = EINVAL;
    if (err) {
        *bad = wr;
        return mr_err(err);
    }
    pthread_mutex_lock(&qp->sq.lock);
    uint32_t head = qp->sq.head;
    for (; wr; wr = wr->next, head++) {
        err = is_full(&qp->sq, head) ? ENOMEM : put_send(qp, head, wr);
        if (err) {
            *bad = wr;
            break;
        }
    }
    bool any = head != qp->sq.head;
    if (any)
        publish(ctx, &qp->sq, head);
    pthread_mutex_unlock(&qp->sq.lock);
    if (any)
        mr_ring_bell(ctx, qp->sq.bell);
    return mr_err(err);
}

/* ------------------------------------------------------------------------------------------------- receiving */

/* Writes a receive into its slot. */
int mr_put_recv(uint8_t *to, uint32_t max_sge, const struct ibv_recv_wr *wr) {
    struct mr_rqe h = {.wr_id = wr->wr_id, .num_sge = (uint32_t)wr->num_sge};
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > max_sge)
        return EINVAL;
    put_list(to + sizeof h, wr->sg_list, wr->num_sge);
    memcpy(to, &h, sizeof h);
    return 0;
}

int mr_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct mr_qp *qp = to_qp(ibqp);
    struct mr_ctx *ctx = qp->ctx;
    int err = 0;

    if (mr_is_gone(ctx))
        err = EIO;
    else if (!qp->rq.ring || ibqp->state == IBV_QPS_RESET)
        err = EINVAL;
    if (err) {
        *bad = wr;
        return mr_err(err);
    }
    pthread_mutex_lock(&qp->rq.lock);
    uint32_t head = qp->rq.head;
    for (; wr; wr = wr->next, head++) {
        err = is_full(&qp->rq, head) ? ENOMEM : mr_put_recv(slot(&qp->rq, head), qp->rq.max_sge, wr);
        if (err) {
            *bad = wr;
            break;
        }
    }
    bool any = head != qp->rq.head;
    if (any)
        publish(ctx, &qp->rq, head);
    pthread_mutex_unlock(&qp->rq.lock);
    if (any)
        mr_ring_bell(ctx, qp->rq.bell);
    return mr_err(err);
}

/* --------------------------------------------------------------------------- ibv_wr_*: one call a field (qp_ex) */

/* wr_start takes the queue, wr_complete publishes what was written in between, wr_abort forgets it. An error is kept
 * until wr_complete. */
static void wr_start(struct ibv_qp_ex *ex) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    pthread_mutex_lock(&qp->sq.lock);
    qp->ex_first = qp->sq.head;
    qp->ex_wqe = NULL;
    qp->ex_err = 0;
    enum ibv_qp_state s = ex->qp_base.state;
    if (mr_is_gone(qp->ctx))
        qp->ex_err = EIO;
    else if (!qp->sq.ring || s == IBV_QPS_RESET || s == IBV_QPS_INIT || s == IBV_QPS_RTR)
        qp->ex_err = EINVAL;
}

static void wr_abort(struct ibv_qp_ex *ex) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    qp->sq.head = qp->ex_first;
    pthread_mutex_unlock(&qp->sq.lock);
}

static int wr_complete(struct ibv_qp_ex *ex) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    int err = qp->ex_err;
    if (err) {
        wr_abort(ex);
        return mr_err(err);
    }
    bool any = qp->sq.head != qp->ex_first;
    if (any)
        publish(qp->ctx, &qp->sq, qp->sq.head);
    pthread_mutex_unlock(&qp->sq.lock);
    if (any)
        mr_ring_bell(qp->ctx, qp->sq.bell);
    return 0;
}

/* Begins a request; NULL after an error. `op` must be one that the QP was made for. */
static struct mr_sqe *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode op) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    qp->ex_wqe = NULL;
    if (!qp->ex_err && is_full(&qp->sq, qp->sq.head))
        qp->ex_err = ENOMEM;
    if (qp->ex_err)
        return NULL;
    struct mr_sqe *h = (struct mr_sqe *)slot(&qp->sq, qp->sq.head++);
    *h = (struct mr_sqe){
        .wr_id = ex->wr_id, .opcode = (uint8_t)op, .flags = (uint16_t)(ex->wr_flags & SEND_FLAGS & ~MR_SEND_INLINE)};
    if (qp->sig_all)
        h->flags |= MR_SEND_SIGNALED;
    qp->ex_wqe = h;
    return h;
}

static void rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, __be32 imm) {
    struct mr_sqe *h = begin(ex, op);
    if (!h)
        return;
    h->rkey = rkey;
    h->remote_addr = addr;
    h->imm = imm;
}

static void atomic_op(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, uint64_t a,
                      uint64_t swap) {
    struct mr_sqe *h = begin(ex, op);
    if (!h)
        return;
    h->rkey = rkey;
    h->remote_addr = addr;
    h->u.atomic.compare_add = a;
    h->u.atomic.swap = swap;
}

static void message(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t imm) {
    struct mr_sqe *h = begin(ex, op);
    if (h)
        h->imm = imm;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap) {
    atomic_op(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}
static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add) {
    atomic_op(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}
static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) {
    rdma(ex, IBV_WR_RDMA_READ, rkey, addr, 0);
}
static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) {
    rdma(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}
static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm) {
    rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}
static void wr_send(struct ibv_qp_ex *ex) {
    message(ex, IBV_WR_SEND, 0);
}
static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm) {
    message(ex, IBV_WR_SEND_WITH_IMM, imm);
}
static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey) {
    message(ex, IBV_WR_SEND_WITH_INV, rkey);
}
static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey) {
    message(ex, IBV_WR_LOCAL_INV, rkey);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *b) {
    struct mr_sqe *h = begin(ex, IBV_WR_BIND_MW);
    (void)mw;
    if (!h)
        return;
    h->remote_addr = b->addr;
    h->rkey = rkey;
    h->u.bind.length = b->length;
    h->u.bind.mr_lkey = b->mr ? b->mr->lkey : 0;
    h->u.bind.access = b->mw_access_flags;
}

static void set_err(struct mr_qp *qp, int err) {
    if (!qp->ex_err)
        qp->ex_err = err;
}

static void wr_send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss) {
    (void)hdr, (void)hdr_sz, (void)mss;
    set_err(container_of(ex, struct mr_qp, ibv), EOPNOTSUPP);
}

/* The value travels in the request. */
static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *value) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    rdma(ex, IBV_WR_ATOMIC_WRITE, rkey, addr, 0);
    if (!qp->ex_wqe)
        return;
    if (qp->max_inline < 8) {
        set_err(qp, EINVAL);
        return;
    }
    memcpy(qp->ex_wqe + 1, value, 8);
    qp->ex_wqe->flags |= MR_SEND_INLINE;
    qp->ex_wqe->inline_len = 8;
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    if (!qp->ex_wqe)
        return;
    qp->ex_wqe->u.ud.ah = ah->handle;
    qp->ex_wqe->u.ud.qpn = qpn;
    qp->ex_wqe->u.ud.qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    if (qp->ex_wqe)
        qp->ex_wqe->xrc_srqn = srqn;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    if (!qp->ex_wqe)
        return;
    if (n > qp->sq.max_sge) {
        set_err(qp, EINVAL);
        return;
    }
    qp->ex_wqe->num_sge = (uint8_t)n;
    put_list((uint8_t *)(qp->ex_wqe + 1), list, (int)n);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length) {
    struct ibv_sge one = {.addr = addr, .length = length, .lkey = lkey};
    wr_set_sge_list(ex, 1, &one);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list) {
    struct mr_qp *qp = container_of(ex, struct mr_qp, ibv);
    struct mr_sqe *h = qp->ex_wqe;
    size_t sum = 0;
    if (!h)
        return;
    uint8_t *to = (uint8_t *)(h + 1);
    for (size_t i = 0; i < n; i++) {
        if (list[i].length > qp->max_inline - sum) {
            set_err(qp, EINVAL);
            return;
        }
        if (list[i].length)
            memcpy(to + sum, list[i].addr, list[i].length);
        sum += list[i].length;
    }
    h->flags |= MR_SEND_INLINE;
    h->inline_len = (uint32_t)sum;
    h->num_sge = 0;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length) {
    struct ibv_data_buf one = {.addr = addr, .length = length};
    wr_set_inline_data_list(ex, 1, &one);
}

/* Entries that newer headers have behind ours. */
static void trap(void) {
    errno = EOPNOTSUPP;
}

void mr_qp_ex_fill(struct mr_qp *qp) {
    struct ibv_qp_ex *ex = &qp->ibv;
    ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
    ex->wr_bind_mw = wr_bind_mw;
    ex->wr_local_inv = wr_local_inv;
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_send_inv = wr_send_inv;
    ex->wr_send_tso = wr_send_tso;
    ex->wr_set_ud_addr = wr_set_ud_addr;
    ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
    ex->wr_set_inline_data = wr_set_inline_data;
    ex->wr_set_inline_data_list = wr_set_inline_data_list;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_atomic_write = wr_atomic_write;
    for (size_t i = 0; i < sizeof qp->trap / sizeof *qp->trap; i++)
        qp->trap[i] = trap;
}
