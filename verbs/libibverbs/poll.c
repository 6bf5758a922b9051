/* SPDX-License-Identifier: Apache-2.0
 *
 * poll.c: taking completions. The hot path, in order:
 *   1. peek at the producer index, without a lock; nothing there: idle (below)
 *   2. under the CQ's lock: copy each entry out, place data that travelled in it, free the work request's slot
 *   3. one store of the consumer index
 *
 * Idling: a program that spins on an empty CQ takes the core from the daemon that should fill it. So after 256 empty
 * polls in a row every further one yields; any completion starts the count again. Nothing ever sleeps here unless
 * MR_POLL_SLEEP_US asks for it, because a sleep would also delay the program's other queues.
 */
#include "mr.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_POLLS    256u
#define YIELD_POLLS   16u   /* before the first sleep, where sleeping is allowed */
#define SLEEP_US_MOST 50    /* a program with two queues must not lose more than this */
#define GONE_EVERY    1024u /* empty polls between two looks at the socket */

static long poll_sleep_us = -1;

static long sleep_us(void) {
    long us = __atomic_load_n(&poll_sleep_us, __ATOMIC_RELAXED);
    if (us < 0) {
        const char *s = getenv("MR_POLL_SLEEP_US");
        us = s ? strtol(s, NULL, 10) : 0;
        us = us < 0 ? 0 : us > SLEEP_US_MOST ? SLEEP_US_MOST : us;
        __atomic_store_n(&poll_sleep_us, us, __ATOMIC_RELAXED);
    }
    return us;
}

/* Nothing is there. Returns 0, or -1 when nothing will ever be there. */
static int idle(struct mr_cq *cq) {
    struct mr_ctx *ctx = to_ctx(cq->ibv.context);
    uint32_t n = atomic_load_explicit(&cq->empty_polls, memory_order_relaxed) + 1;

    atomic_store_explicit(&cq->empty_polls, n, memory_order_relaxed);
    if (__builtin_expect(__atomic_load_n(&cq->ring->flags, __ATOMIC_RELAXED) & MR_RING_OVERRUN, 0))
        return mr_minus1(EOVERFLOW);
    if (n % GONE_EVERY == 0 ? mr_probe_gone(ctx) : mr_is_gone(ctx))
        return mr_minus1(EIO);
    if (n <= SPIN_POLLS)
        return 0;
    int saved = errno;
    if (sleep_us() && n > SPIN_POLLS + YIELD_POLLS) {
        struct timespec t = {.tv_nsec = sleep_us() * 1000};
        uint32_t seen = atomic_load_explicit(&cq->cons, memory_order_relaxed); /* empty: producer = consumer */
        syscall(SYS_futex, &cq->ring->prod, FUTEX_WAIT, seen, &t, NULL, 0);
    } else {
        sched_yield();
    }
    errno = saved;
    return 0;
}

static inline bool is_empty(struct mr_cq *cq) {
    return __atomic_load_n(&cq->ring->prod, __ATOMIC_ACQUIRE) == atomic_load_explicit(&cq->cons, memory_order_relaxed);
}

/* Data of a small SEND came with the completion: put it where the receive request wanted it. */
static void place_inline(struct mr_ctx *ctx, const uint8_t *slot, uint32_t max_sge, const struct mr_cqe *e) {
    const struct mr_rqe *r = (const struct mr_rqe *)slot;
    const struct mr_sge *s = (const struct mr_sge *)(r + 1);
    uint32_t left = e->inline_len < MR_CQE_INLINE ? e->inline_len : MR_CQE_INLINE;
    const uint8_t *from = e->data;
    for (uint32_t i = 0; left && i < r->num_sge && i < max_sge; i++) {
        uint32_t n = s[i].length < left ? s[i].length : left;
        if (n)
            memcpy(mr_sge_pointer(ctx, s[i].lkey, s[i].addr), from, n);
        from += n;
        left -= n;
    }
}

static void retire_shared(struct mr_ctx *ctx, struct mr_srq *srq, const struct mr_cqe *e, bool place) {
    if (!srq || e->slot > srq->mask)
        return;
    if (place && e->inline_len)
        place_inline(ctx, srq->slots + (size_t)e->slot * srq->stride, srq->max_sge, e);
    mr_srq_retire(srq, e->slot);
}

/* The QP may be another program's, so these completions name their queue. */
static struct mr_srq *xrc_queue(struct mr_cq *cq, uint32_t handle) {
    struct mr_srq *q = cq->xrc;
    while (q && q->ibv.handle != handle)
        q = q->next;
    return q;
}

/* What a completion means for the queue it came from. */
static void retire(struct mr_cq *cq, const struct mr_cqe *e) {
    struct mr_ctx *ctx = to_ctx(cq->ibv.context);
    if (e->flags & MR_CQE_XRC) {
        retire_shared(ctx, xrc_queue(cq, e->srq), e, true);
        return;
    }
    struct mr_qp *qp = mr_qp_find(ctx, e->qpn);
    if (!qp)
        return;
    if (e->flags & MR_CQE_SRQ) {
        retire_shared(ctx, to_srq(qp->ibv.qp_base.srq), e, true);
        return;
    }
    struct mr_wq *q = e->flags & MR_CQE_SEND ? &qp->sq : &qp->rq;
    if (!q->ring)
        return;
    if (e->inline_len && !(e->flags & MR_CQE_SEND))
        place_inline(ctx, qp->rq.slots + (size_t)(e->slot & qp->rq.mask) * qp->rq.stride, qp->rq.max_sge, e);
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed), done = e->slot + 1 - tail;
    if (done <= q->mask + 1) /* else not one of those outstanding */
        atomic_store_explicit(&q->tail, e->slot + 1, memory_order_release);
}

static void to_wc(struct ibv_wc *wc, const struct mr_cqe *e) {
    wc->wr_id = e->wr_id;
    wc->status = (enum ibv_wc_status)e->status;
    wc->opcode = (enum ibv_wc_opcode)e->opcode;
    wc->vendor_err = e->vendor_err;
    wc->byte_len = e->byte_len;
    wc->imm_data = e->imm;
    wc->qp_num = e->qpn;
    wc->src_qp = e->src_qp;
    wc->wc_flags = e->wc_flags;
    wc->pkey_index = e->pkey_index;
    wc->slid = e->slid;
    wc->sl = e->sl;
    wc->dlid_path_bits = e->path_bits;
}

static inline struct mr_cqe *entry(struct mr_cq *cq, uint32_t i) {
    return (struct mr_cqe *)cq->entries + (i & cq->mask);
}

/* How many entries there are to take. More than fit cannot be: the daemon never writes over an entry it was not told
 * is free; treat it as none. */
static inline uint32_t filled(struct mr_cq *cq, uint32_t cons) {
    uint32_t n = __atomic_load_n(&cq->ring->prod, __ATOMIC_ACQUIRE) - cons;
    return n <= cq->mask + 1 ? n : 0;
}

static inline void set_cons(struct mr_cq *cq, uint32_t cons) {
    atomic_store_explicit(&cq->cons, cons, memory_order_relaxed);
    __atomic_store_n(&cq->ring->cons, cons, __ATOMIC_RELEASE);
}

int mr_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc) {
    struct mr_cq *cq = to_cq(ibcq);
    struct mr_ctx *ctx = to_ctx(ibcq->context);
    int got = 0;

    if (is_empty(cq))
        return idle(cq);
    if (__builtin_expect(ctx->forked, 0)) /* the ring is the parent's; the lock, too, and perhaps held */
        return mr_minus1(EIO);
    pthread_mutex_lock(&cq->lock);
    uint32_t cons = atomic_load_explicit(&cq->cons, memory_order_relaxed), have = filled(cq, cons);
    for (; got < n && (uint32_t)got < have; got++, cons++) {
        const struct mr_cqe *e = entry(cq, cons);
        to_wc(&wc[got], e);
        retire(cq, e);
    }
    if (got) {
        set_cons(cq, cons);
        atomic_store_explicit(&cq->empty_polls, 0, memory_order_relaxed);
    }
    pthread_mutex_unlock(&cq->lock);
    return got;
}

/* The daemon looks at `arm` after it has stored the producer index; the program polls once more after arming. With
 * both sides seq_cst one of them sees the other. */
int mr_req_notify_cq(struct ibv_cq *ibcq, int solicited_only) {
    struct mr_cq *cq = to_cq(ibcq);
    if (mr_is_gone(to_ctx(ibcq->context)))
        return mr_err(EIO);
    pthread_mutex_lock(&cq->arm_lock); /* or the arming is left behind in a ring that is given up */
    if (solicited_only) {              /* never weaken an arm that is set */
        uint32_t none = 0;
        __atomic_compare_exchange_n(&cq->ring->arm, &none, MR_ARM_SOLICITED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    } else {
        __atomic_store_n(&cq->ring->arm, MR_ARM_NEXT, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&cq->arm_lock);
    return 0;
}

/* A QP is gone, or was reset: its entries leave the queue. What stays moves towards the producer's end, the order
 * kept, so that the daemon's index is not touched. Receives of a shared queue are spent, their slots free. */
void mr_cq_clean(struct mr_cq *cq, struct mr_qp *qp) {
    uint32_t cons = atomic_load_explicit(&cq->cons, memory_order_relaxed), n = filled(cq, cons), to = cons + n;
    for (uint32_t i = cons + n; i != cons; i--) {
        struct mr_cqe *e = entry(cq, i - 1);
        if (e->qpn == qp->ibv.qp_base.qp_num && !(e->flags & MR_CQE_XRC)) {
            if (e->flags & MR_CQE_SRQ)
                retire_shared(qp->ctx, to_srq(qp->ibv.qp_base.srq), e, false);
            continue;
        }
        if (--to != i - 1)
            *entry(cq, to) = *e;
    }
    set_cons(cq, to);
}

void mr_cq_clean_srq(struct mr_cq *cq, struct mr_srq *srq) {
    uint32_t cons = atomic_load_explicit(&cq->cons, memory_order_relaxed), n = filled(cq, cons), to = cons + n;
    for (uint32_t i = cons + n; i != cons; i--) {
        struct mr_cqe *e = entry(cq, i - 1);
        if ((e->flags & MR_CQE_XRC) && e->srq == srq->ibv.handle)
            continue;
        if (--to != i - 1)
            *entry(cq, to) = *e;
    }
    set_cons(cq, to);
}

/* ---------------------------------------------------------------------------------------- extended polling */

/* Makes the next entry current; its fields are read in place until next_poll or end_poll. */
static int look(struct mr_cq *cq) {
    uint32_t cons = atomic_load_explicit(&cq->cons, memory_order_relaxed);
    if (!filled(cq, cons))
        return ENOENT;
    cq->cur = entry(cq, cons);
    cq->ibv.status = (enum ibv_wc_status)cq->cur->status;
    cq->ibv.wr_id = cq->cur->wr_id;
    retire(cq, cq->cur);
    return 0;
}

static void pass(struct mr_cq *cq) {
    if (!cq->cur)
        return;
    cq->cur = NULL;
    set_cons(cq, atomic_load_explicit(&cq->cons, memory_order_relaxed) + 1);
}

static void unlock_ex(struct mr_cq *cq) {
    if (!cq->single_threaded)
        pthread_mutex_unlock(&cq->lock);
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr) {
    struct mr_cq *cq = container_of(ex, struct mr_cq, ibv);
    if (attr && attr->comp_mask)
        return mr_err(EINVAL);
    if (is_empty(cq))
        return idle(cq) ? errno : ENOENT;
    if (__builtin_expect(to_ctx(cq->ibv.context)->forked, 0))
        return mr_err(EIO);
    if (!cq->single_threaded)
        pthread_mutex_lock(&cq->lock);
    int err = look(cq);
    if (err)
        unlock_ex(cq);
    else
        atomic_store_explicit(&cq->empty_polls, 0, memory_order_relaxed);
    return err;
}

static int next_poll(struct ibv_cq_ex *ex) {
    struct mr_cq *cq = container_of(ex, struct mr_cq, ibv);
    pass(cq);
    return look(cq);
}

static void end_poll(struct ibv_cq_ex *ex) {
    struct mr_cq *cq = container_of(ex, struct mr_cq, ibv);
    pass(cq);
    unlock_ex(cq);
}

#define CUR(ex) (container_of(ex, struct mr_cq, ibv)->cur)

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex) {
    return (enum ibv_wc_opcode)CUR(ex)->opcode;
}
static uint32_t read_vendor_err(struct ibv_cq_ex *ex) {
    return CUR(ex)->vendor_err;
}
static uint32_t read_byte_len(struct ibv_cq_ex *ex) {
    return CUR(ex)->byte_len;
}
static __be32 read_imm_data(struct ibv_cq_ex *ex) {
    return CUR(ex)->imm;
}
static uint32_t read_qp_num(struct ibv_cq_ex *ex) {
    return CUR(ex)->qpn;
}
static uint32_t read_src_qp(struct ibv_cq_ex *ex) {
    return CUR(ex)->src_qp;
}
static unsigned read_wc_flags(struct ibv_cq_ex *ex) {
    return CUR(ex)->wc_flags;
}
static uint32_t read_slid(struct ibv_cq_ex *ex) {
    return CUR(ex)->slid;
}
static uint8_t read_sl(struct ibv_cq_ex *ex) {
    return CUR(ex)->sl;
}
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex) {
    return CUR(ex)->path_bits;
}
static uint64_t read_completion_ts(struct ibv_cq_ex *ex) {
    return CUR(ex)->timestamp;
}
/* Not asked for at creation, or not known to this device. */
static uint16_t read_cvlan(struct ibv_cq_ex *ex) {
    (void)ex;
    return 0;
}
static uint32_t read_flow_tag(struct ibv_cq_ex *ex) {
    (void)ex;
    return 0;
}
static void read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info) {
    (void)ex;
    memset(info, 0, sizeof *info);
}
static uint64_t read_wallclock(struct ibv_cq_ex *ex) {
    struct timespec mono, real;
    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME, &real);
    return CUR(ex)->timestamp + (uint64_t)((real.tv_sec - mono.tv_sec) * 1000000000ll + real.tv_nsec - mono.tv_nsec);
}

/* Every pointer is set, asked for or not: programs call them unchecked. */
void mr_cq_ex_fill(struct mr_cq *cq, uint64_t wc_flags) {
    struct ibv_cq_ex *ex = &cq->ibv;
    (void)wc_flags;
    ex->start_poll = start_poll;
    ex->next_poll = next_poll;
    ex->end_poll = end_poll;
    ex->read_opcode = read_opcode;
    ex->read_vendor_err = read_vendor_err;
    ex->read_byte_len = read_byte_len;
    ex->read_imm_data = read_imm_data;
    ex->read_qp_num = read_qp_num;
    ex->read_src_qp = read_src_qp;
    ex->read_wc_flags = read_wc_flags;
    ex->read_slid = read_slid;
    ex->read_sl = read_sl;
    ex->read_dlid_path_bits = read_dlid_path_bits;
    ex->read_completion_ts = read_completion_ts;
    ex->read_cvlan = read_cvlan;
    ex->read_flow_tag = read_flow_tag;
    ex->read_tm_info = read_tm_info;
    ex->read_completion_wallclock_ns = read_wallclock;
}
