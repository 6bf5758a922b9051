/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_srq: many QPs, one shared receive queue, messages of all sizes, checked byte for byte. Slots of the queue come
 * free in any order, and QPs end with completions that nobody has polled: no receive may be lost by it.
 *
 *     mr_srq --loop [-n MESSAGES] [-s LARGEST] [--seed N]
 */
#include "common.h"

#define QPS    4u
#define DEPTH  16u /* receives of the shared queue, exactly */
#define WINDOW 8u  /* messages a QP may have outstanding */

struct pair {
    struct ibv_qp *tx, *rx;
    uint32_t sent, seen, done; /* of this life */
};

struct world {
    struct options o;
    struct end e;
    struct ibv_srq *srq;
    struct ibv_cq *rcq;
    struct pair p[QPS];
    struct rng r;
    uint64_t received, ended;
};

static uint8_t *recv_buf(struct world *w, uint64_t i) {
    return w->e.buf + i * w->o.size;
}
static uint8_t *send_buf(struct world *w, uint32_t pair, uint32_t n) {
    return w->e.buf + (DEPTH + pair * WINDOW + n % WINDOW) * w->o.size;
}

static int post_recv(struct world *w, uint64_t i) {
    uint64_t half = w->o.size / 2;
    struct ibv_sge sge[2] = {
        {.addr = (uintptr_t)recv_buf(w, i), .length = (uint32_t)half, .lkey = w->e.mr->lkey},
        {.addr = (uintptr_t)recv_buf(w, i) + half, .length = (uint32_t)(w->o.size - half), .lkey = w->e.mr->lkey}};
    struct ibv_recv_wr wr = {.wr_id = i, .sg_list = sge, .num_sge = 2}, *bad;
    memset(recv_buf(w, i), 0xEE, w->o.size);
    return ibv_post_srq_recv(w->srq, &wr, &bad);
}

/* The bytes of a message are drawn from who sent it and which it is; its length comes first. */
static uint32_t content(struct world *w, uint32_t qpn, uint32_t n, uint8_t *to) {
    struct rng r;
    rng_seed(&r, w->o.seed + qpn, n);
    uint32_t len = rng_below(&r, 2) ? (uint32_t)rng_below(&r, 80) : (uint32_t)rng_below(&r, w->o.size);
    rng_fill(&r, to, len);
    return len;
}

static void join(struct world *w, struct pair *p) {
    struct ibv_qp_init_attr t = {.send_cq = w->e.cq,
                                 .recv_cq = w->e.cq,
                                 .cap = {.max_send_wr = WINDOW, .max_send_sge = 1, .max_recv_wr = 1, .max_recv_sge = 1},
                                 .qp_type = IBV_QPT_RC};
    struct ibv_qp_init_attr s = {.send_cq = w->rcq,
                                 .recv_cq = w->rcq,
                                 .srq = w->srq,
                                 .cap = {.max_send_wr = 1, .max_send_sge = 1},
                                 .qp_type = IBV_QPT_RC};
    memset(p, 0, sizeof *p);
    p->tx = ibv_create_qp(w->e.pd, &t);
    p->rx = ibv_create_qp(w->e.pd, &s);
    MUST(p->tx && p->rx, "QP: %m");
    struct peer a, b;
    end_describe(&w->e, &a, 7);
    end_describe(&w->e, &b, 7);
    a.qpn = p->tx->qp_num;
    b.qpn = p->rx->qp_num;
    MUST(!qp_to_init(p->tx, 0) && !qp_to_init(p->rx, 0), "to INIT: %m");
    qp_connect(&w->e, p->rx, &a, 7, &patient);
    qp_connect(&w->e, p->tx, &b, 7, &patient);
}

static void leave(struct world *w, struct pair *p) {
    MUST(!ibv_destroy_qp(p->rx) && !ibv_destroy_qp(p->tx), "destroy: %m");
    w->ended++;
}

static void send_some(struct world *w, uint32_t i) {
    struct pair *p = &w->p[i];
    for (uint64_t k = rng_below(&w->r, WINDOW); k && p->sent - p->done < WINDOW; k--) {
        uint8_t *b = send_buf(w, i, p->sent);
        struct ibv_sge sge = {
            .addr = (uintptr_t)b, .length = content(w, p->rx->qp_num, p->sent, b), .lkey = w->e.mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        MUST(!ibv_post_send(p->tx, &wr, &bad), "post: %m");
        p->sent++;
    }
}

static void check(struct world *w, const struct ibv_wc *wc) {
    static uint8_t want[1 << 20];
    struct pair *p = NULL;
    for (uint32_t i = 0; i < QPS; i++)
        if (w->p[i].rx->qp_num == wc->qp_num)
            p = &w->p[i];
    MUST(p, "a completion of QP %#x, which is gone", wc->qp_num);
    MUST(wc->status == IBV_WC_SUCCESS, "receive: %s", ibv_wc_status_str(wc->status));
    uint32_t len = content(w, wc->qp_num, p->seen, want);
    MUST(wc->byte_len == len, "message %u of QP %#x has %u bytes, not %u", p->seen, wc->qp_num, wc->byte_len, len);
    MUST(!memcmp(want, recv_buf(w, wc->wr_id), len), "message %u of QP %#x: wrong bytes", p->seen, wc->qp_num);
    for (uint64_t k = len; k < w->o.size; k++)
        MUST(recv_buf(w, wc->wr_id)[k] == 0xEE, "message %u of QP %#x: byte %llu behind its end", p->seen, wc->qp_num,
             (unsigned long long)k);
    p->seen++;
    w->received++;
}

static void refill(struct world *w, bool *held) {
    for (uint64_t i = 0; i < DEPTH; i++)
        if (!held[i]) {
            int err = post_recv(w, i);
            MUST(!err, "receive %llu: %s", (unsigned long long)i, strerror(err));
            held[i] = true;
        }
}

static bool quiet(const struct world *w) {
    for (uint32_t i = 0; i < QPS; i++)
        if (w->p[i].seen < w->p[i].sent || w->p[i].done < w->p[i].sent)
            return false;
    return true;
}

static void run(struct world *w) {
    bool held[DEPTH] = {false};
    double until = now_s() + scaled(120);
    for (uint32_t i = 0; i < QPS; i++)
        join(w, &w->p[i]);
    while (w->received < w->o.count || !quiet(w)) {
        MUST(now_s() < until, "%llu messages in 120 s", (unsigned long long)w->received);
        refill(w, held);
        if (w->received < w->o.count)
            send_some(w, (uint32_t)rng_below(&w->r, QPS));
        struct ibv_wc wc[8];
        int n = ibv_poll_cq(w->rcq, (int)rng_below(&w->r, 8) + 1, wc);
        MUST(n >= 0, "poll: %m");
        for (int k = 0; k < n; k++) {
            check(w, &wc[k]);
            held[wc[k].wr_id] = false;
        }
        n = ibv_poll_cq(w->e.cq, 8, wc);
        for (int k = 0; k < n; k++) {
            MUST(wc[k].status == IBV_WC_SUCCESS, "send: %s", ibv_wc_status_str(wc[k].status));
            w->p[wc[k].wr_id].done++;
        }
    }
}

/* Ends a QP while completions of its receives are in the CQ: as many receives may be posted again. */
static void spent(struct world *w) {
    struct ibv_wc wc;
    while (!post_recv(w, 0)) /* whichever: full is full */
        ;
    leave(w, &w->p[0]);
    join(w, &w->p[0]);
    for (int round = 0; round < 50; round++) {
        struct pair *p = &w->p[0];
        while (p->sent < 3)
            send_some(w, 0);
        uint32_t took = p->sent, room = 0;
        for (; p->done < took; p->done++)
            MUST(wait_wc(w->e.cq, &wc, 60), "no completion");
        MUST(post_recv(w, 0) == ENOMEM, "room before the QP ends");
        leave(w, p);
        join(w, p);
        while (!post_recv(w, 0))
            room++;
        MUST(room == took, "the QP took %u receives along, %u may be posted now", took, room);
    }
}

static void events(struct world *w) {
    struct ibv_srq_attr a = {.srq_limit = DEPTH};
    struct ibv_async_event ev;
    struct ibv_wc wc;
    MUST(!ibv_modify_srq(w->srq, &a, IBV_SRQ_LIMIT), "limit: %m");
    uint32_t sent = w->p[1].sent;
    while (w->p[1].sent == sent)
        send_some(w, 1);
    MUST(!ibv_get_async_event(w->e.ctx, &ev), "event: %m");
    MUST(ev.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && ev.element.srq == w->srq, "event %s",
         ibv_event_type_str(ev.event_type));
    ibv_ack_async_event(&ev);
    while (w->p[1].done < w->p[1].sent)
        if (wait_wc(w->e.cq, &wc, 60))
            w->p[wc.wr_id].done++;
    MUST(!ibv_query_srq(w->srq, &a) && a.srq_limit == 0 && a.max_wr >= DEPTH && a.max_sge == 2, "limit %u, %u, %u",
         a.srq_limit, a.max_wr, a.max_sge);
}

static void wrong(struct world *w) {
    const struct ibv_srq_attr bad[] = {{.max_wr = 0, .max_sge = 1},
                                       {.max_wr = (uint32_t)w->e.attr.max_srq_wr + 1, .max_sge = 1},
                                       {.max_wr = 1, .max_sge = (uint32_t)w->e.attr.max_srq_sge + 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct ibv_srq_init_attr a = {.attr = bad[i]};
        errno = 0;
        MUST(!ibv_create_srq(w->e.pd, &a) && errno == EINVAL, "SRQ of %u, %u: %m", bad[i].max_wr, bad[i].max_sge);
    }
    struct ibv_srq_attr a = {.max_wr = 2 * DEPTH, .srq_limit = 1 << 20};
    MUST(ibv_modify_srq(w->srq, &a, IBV_SRQ_MAX_WR) == EOPNOTSUPP, "resized");
    MUST(ibv_modify_srq(w->srq, &a, IBV_SRQ_LIMIT) == EINVAL, "a limit beyond the queue");
    uint32_t num;
    MUST(ibv_get_srq_num(w->srq, &num) == EOPNOTSUPP, "the number of an SRQ that is no XRC one");
    struct ibv_srq_init_attr_ex x = {.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
                                     .srq_type = IBV_SRQT_TM,
                                     .pd = w->e.pd,
                                     .attr = {.max_wr = 1, .max_sge = 2}};
    errno = 0;
    MUST(!ibv_create_srq_ex(w->e.ctx, &x) && errno == EOPNOTSUPP, "tag matching: %m");
    x.srq_type = IBV_SRQT_BASIC;
    struct ibv_srq *q = ibv_create_srq_ex(w->e.ctx, &x);
    MUST(q && q->pd == w->e.pd, "extended: %m");
    struct ibv_sge sge[3] = {{0}};
    struct ibv_recv_wr wr[2] = {{.next = &wr[1], .sg_list = sge}, {.sg_list = sge, .num_sge = 3}}, *at = NULL;
    MUST(ibv_post_srq_recv(q, wr, &at) == EINVAL && at == &wr[1], "a list that is too long");
    MUST(!ibv_destroy_srq(q), "destroy: %m");
}

int main(int argc, char **argv) {
    struct world w = {.o = {.size = 9000, .count = 20000, .seed = 1}};
    options_parse(&w.o, argc, argv, "mr_srq: many QPs and one shared receive queue");
    MUST(w.o.loop, "one process only: --loop");
    struct end_want want = {
        .wr = 1, .sge = 1, .cqe = 256, .len = (DEPTH + QPS * WINDOW) * w.o.size, .access = IBV_ACCESS_LOCAL_WRITE};
    end_open(&w.e, &w.o, &want);
    rng_seed(&w.r, w.o.seed, 0);
    struct ibv_srq_init_attr a = {.attr = {.max_wr = DEPTH, .max_sge = 2}};
    w.srq = ibv_create_srq(w.e.pd, &a);
    w.rcq = ibv_create_cq(w.e.ctx, 256, NULL, NULL, 0);
    MUST(w.srq && w.rcq, "SRQ, CQ: %m");
    MUST(a.attr.max_wr == DEPTH, "an SRQ of %u holds %u", DEPTH, a.attr.max_wr);
    run(&w);
    spent(&w);
    events(&w);
    wrong(&w);
    MUST(ibv_destroy_srq(w.srq) == EBUSY, "destroyed while QPs use it");
    for (uint32_t i = 0; i < QPS; i++)
        leave(&w, &w.p[i]);
    MUST(!ibv_destroy_srq(w.srq) && !ibv_destroy_cq(w.rcq), "destroy: %m");
    end_close(&w.e);
    printf("%llu messages, %llu QPs ended: ok\n", (unsigned long long)w.received, (unsigned long long)w.ended);
    return 0;
}
