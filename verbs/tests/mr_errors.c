/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_errors: what a program does wrong, and what it must be told. Each case is a function that says what it expects;
 * most use a fresh connected pair of QPs: a on the first device, b on the second (or on the same one).
 *
 *     mr_errors [--dev NAME] [CASE...]
 */
#include "common.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct options opt;
static int failures, checks;
static const char *current;

#define CHECK(cond, ...)                                             \
    do {                                                             \
        checks++;                                                    \
        if (!(cond)) {                                               \
            failures++;                                              \
            printf("  %s, line %d: %s: ", current, __LINE__, #cond); \
            printf(__VA_ARGS__);                                     \
            printf("\n");                                            \
        }                                                            \
    } while (0)
/* A call that must fail with `want`, returned or not, and in errno. */
#define FAILS(call, want)                                                                                     \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        long got_ = (long)(call);                                                                             \
        CHECK((got_ == (want) || got_ == -1) && errno == (want), "returned %ld, errno %s, expected %s", got_, \
              strerror(errno), strerror(want));                                                               \
    } while (0)
#define FAILS_NULL(call, want)                                                                                        \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        const void *got_ = (call);                                                                                    \
        CHECK(!got_ && errno == (want), "returned %p, errno %s, expected %s", got_, strerror(errno), strerror(want)); \
    } while (0)

/* ---------------------------------------------------------------------------------------------------- the pair */

#define LEN (1u << 20)
struct pair {
    struct end a, b;
};
static const struct end_want usual = {
    .wr = 16, .sge = 4, .inline_bytes = 64, .cqe = 64, .len = LEN, .access = ALL_ACCESS};
static const struct connect_attr impatient = {.timeout = 12, .retry_cnt = 2, .rnr_retry = 0, .min_rnr_timer = 1};
static const char *second;

static void pair_open(struct pair *p, int a_access, int b_access, int b_mr_access) {
    struct options ob = opt;
    struct end_want wb = usual;
    struct peer pa, pb;
    if (second)
        ob.dev = second;
    wb.access = b_mr_access;
    end_open(&p->a, &opt, &usual);
    end_open(&p->b, &ob, &wb);
    end_describe(&p->a, &pa, 100);
    end_describe(&p->b, &pb, 200);
    MUST(!qp_to_init(p->a.qp, a_access) && !qp_to_init(p->b.qp, b_access), "to INIT: %m");
    qp_connect(&p->a, p->a.qp, &pb, 100, &impatient);
    qp_connect(&p->b, p->b.qp, &pa, 200, &impatient);
}

static void pair_usual(struct pair *p) {
    pair_open(p, ALL_ACCESS, ALL_ACCESS, ALL_ACCESS);
}

static void pair_close(struct pair *p) {
    end_close(&p->a);
    end_close(&p->b);
}

struct wr {
    enum ibv_wr_opcode op;
    uint64_t remote, local;
    uint32_t rkey, lkey, len;
    unsigned flags;
};

static int post(struct ibv_qp *qp, const struct wr *w, uint64_t id) {
    struct ibv_sge sge = {.addr = w->local, .length = w->len, .lkey = w->lkey};
    struct ibv_send_wr wr = {.wr_id = id,
                             .sg_list = &sge,
                             .num_sge = w->len ? 1 : 0,
                             .opcode = w->op,
                             .send_flags = IBV_SEND_SIGNALED | w->flags},
                       *bad;
    if (w->op == IBV_WR_ATOMIC_CMP_AND_SWP || w->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = w->remote;
        wr.wr.atomic.rkey = w->rkey;
    } else {
        wr.wr.rdma.remote_addr = w->remote;
        wr.wr.rdma.rkey = w->rkey;
    }
    return ibv_post_send(qp, &wr, &bad);
}

static int post_recv(struct end *e, uint32_t len, uint32_t lkey, uint64_t id) {
    struct ibv_sge sge = {.addr = (uintptr_t)e->buf, .length = len, .lkey = lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = len ? 1 : 0}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

/* The usual request from a to b; cases change one thing. */
static struct wr good(const struct pair *p, enum ibv_wr_opcode op) {
    return (struct wr){.op = op,
                       .remote = (uintptr_t)p->b.buf,
                       .local = (uintptr_t)p->a.buf,
                       .rkey = p->b.mr->rkey,
                       .lkey = p->a.mr->lkey,
                       .len = op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 4096};
}

static enum ibv_wc_status next(struct end *e, struct ibv_wc *wc) {
    struct ibv_wc mine;
    if (!wc)
        wc = &mine;
    if (!wait_wc(e->cq, wc, 10)) {
        CHECK(false, "no completion for 10 s");
        return (enum ibv_wc_status)99;
    }
    return wc->status;
}

#define EXPECT(e, want)                                                                             \
    do {                                                                                            \
        enum ibv_wc_status got_ = next(e, NULL);                                                    \
        CHECK(got_ == (want), "%s, expected %s", ibv_wc_status_str(got_), ibv_wc_status_str(want)); \
    } while (0)

static enum ibv_qp_state state(struct ibv_qp *qp) {
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr i;
    return ibv_query_qp(qp, &a, IBV_QP_STATE, &i) ? IBV_QPS_UNKNOWN : a.qp_state;
}

/* One bad request, then a good one that must be flushed; the QP is in the error state. */
static void one_bad(struct pair *p, const struct wr *w, enum ibv_wc_status want) {
    struct wr ok = good(p, IBV_WR_RDMA_WRITE);
    MUST(!post(p->a.qp, w, 1) && !post(p->a.qp, &ok, 2), "post: %m");
    EXPECT(&p->a, want);
    EXPECT(&p->a, IBV_WC_WR_FLUSH_ERR);
    CHECK(state(p->a.qp) == IBV_QPS_ERR, "state %d", state(p->a.qp));
    MUST(!post(p->a.qp, &ok, 3), "posting to a QP in error is allowed: %m");
    EXPECT(&p->a, IBV_WC_WR_FLUSH_ERR);
}

/* -------------------------------------------------------------------------------------- remote keys and rights */

static void wrong_rkey(void) {
    static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                             IBV_WR_ATOMIC_CMP_AND_SWP};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct pair p;
        pair_usual(&p);
        struct wr w = good(&p, ops[i]);
        w.rkey ^= 0x5a5a5a;
        one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
        pair_close(&p);
    }
}

static void out_of_bounds(void) {
    for (int i = 0; i < 4; i++) {
        struct pair p;
        pair_usual(&p);
        struct wr w = good(&p, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
        w.remote += i & 2 ? (uint64_t)LEN - w.len + 1 : (uint64_t)-1;
        one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
        pair_close(&p);
    }
}

static void wrapping_range(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.remote = (uint64_t)-16;
    one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

static void region_without_right(void) {
    static const struct {
        enum ibv_wr_opcode op;
        int lacks;
    } t[] = {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
             {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
             {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct pair p;
        pair_open(&p, ALL_ACCESS, ALL_ACCESS, ALL_ACCESS & ~t[i].lacks);
        struct wr w = good(&p, t[i].op);
        one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
        pair_close(&p);
    }
}

static void qp_without_right(void) {
    static const struct {
        enum ibv_wr_opcode op;
        int lacks;
    } t[] = {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
             {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
             {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct pair p;
        pair_open(&p, ALL_ACCESS, ALL_ACCESS & ~t[i].lacks, ALL_ACCESS);
        struct wr w = good(&p, t[i].op);
        one_bad(&p, &w, IBV_WC_REM_INV_REQ_ERR);
        pair_close(&p);
    }
}

static void deregistered_rkey(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    MUST(!ibv_dereg_mr(p.b.mr), "deregister: %m");
    p.b.mr = NULL;
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

static void rkey_of_other_pd(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_pd *pd = ibv_alloc_pd(p.b.ctx);
    struct ibv_mr *mr = ibv_reg_mr(pd, p.b.buf, LEN, ALL_ACCESS);
    MUST(mr, "register: %m");
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.rkey = mr->rkey;
    one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
    MUST(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "free: %m");
    pair_close(&p);
}

static void unaligned_atomic(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_ATOMIC_FETCH_AND_ADD);
    w.remote += 4;
    one_bad(&p, &w, IBV_WC_REM_INV_REQ_ERR);
    pair_close(&p);
}

static void remote_memory_gone(void) {
    static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct pair p;
        pair_usual(&p);
        struct wr w = good(&p, ops[i]);
        MUST(!munmap(p.b.buf, LEN), "munmap: %m");
        MUST(!post(p.a.qp, &w, 1), "post: %m");
        enum ibv_wc_status got = next(&p.a, NULL);
        CHECK(got == IBV_WC_REM_ACCESS_ERR || got == IBV_WC_REM_OP_ERR, "%s", ibv_wc_status_str(got));
        pair_close(&p);
    }
}

/* ------------------------------------------------------------------------------------------ local keys and memory */

static void wrong_lkey(void) {
    static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct pair p;
        pair_usual(&p);
        MUST(!post_recv(&p.b, 4096, p.b.mr->lkey, 1), "post receive: %m");
        struct wr w = good(&p, ops[i]);
        w.lkey ^= 0x777700;
        one_bad(&p, &w, IBV_WC_LOC_PROT_ERR);
        pair_close(&p);
    }
}

static void local_out_of_bounds(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.local += LEN - 1;
    one_bad(&p, &w, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

static void read_into_read_only_region(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_mr *mr = ibv_reg_mr(p.a.pd, p.a.buf, LEN, 0);
    MUST(mr, "register: %m");
    struct wr w = good(&p, IBV_WR_RDMA_READ);
    w.lkey = mr->lkey;
    one_bad(&p, &w, IBV_WC_LOC_PROT_ERR);
    MUST(!ibv_dereg_mr(mr), "deregister: %m");
    pair_close(&p);
}

static void lkey_of_other_pd(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_pd *pd = ibv_alloc_pd(p.a.ctx);
    struct ibv_mr *mr = ibv_reg_mr(pd, p.a.buf, LEN, ALL_ACCESS);
    MUST(mr, "register: %m");
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.lkey = mr->lkey;
    one_bad(&p, &w, IBV_WC_LOC_PROT_ERR);
    MUST(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "free: %m");
    pair_close(&p);
}

static void local_memory_gone(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    MUST(!munmap(p.a.buf, LEN), "munmap: %m");
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------------- receiving */

static void no_receive(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_SEND);
    one_bad(&p, &w, IBV_WC_RNR_RETRY_EXC_ERR);
    pair_close(&p);
}

static void receive_too_small(void) {
    struct pair p;
    pair_usual(&p);
    MUST(!post_recv(&p.b, 100, p.b.mr->lkey, 7), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    one_bad(&p, &w, IBV_WC_REM_INV_REQ_ERR);
    EXPECT(&p.b, IBV_WC_LOC_LEN_ERR);
    pair_close(&p);
}

static void small_receive_too_small(void) {
    struct pair p;
    pair_usual(&p);
    memset(p.b.buf, 0x11, 64);
    MUST(!post_recv(&p.b, 8, p.b.mr->lkey, 7), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 16; /* travels in the completion when it fits */
    one_bad(&p, &w, IBV_WC_REM_INV_REQ_ERR);
    EXPECT(&p.b, IBV_WC_LOC_LEN_ERR);
    CHECK(p.b.buf[8] == 0x11 && p.b.buf[15] == 0x11, "written past the receive");
    pair_close(&p);
}

static void receive_wrong_lkey(void) {
    struct pair p;
    pair_usual(&p);
    MUST(!post_recv(&p.b, 8192, p.b.mr->lkey ^ 0x777700, 7), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    one_bad(&p, &w, IBV_WC_REM_OP_ERR);
    EXPECT(&p.b, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

static void receive_memory_gone(void) {
    struct pair p;
    pair_usual(&p);
    MUST(!post_recv(&p.b, 8192, p.b.mr->lkey, 7), "post receive: %m");
    MUST(!munmap(p.b.buf, LEN), "munmap: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    enum ibv_wc_status got = next(&p.a, NULL);
    CHECK(got == IBV_WC_REM_OP_ERR, "%s", ibv_wc_status_str(got));
    EXPECT(&p.b, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

static void flush_receives(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
    struct ibv_wc wc;
    for (uint64_t i = 1; i <= 3; i++)
        MUST(!post_recv(&p.b, 64, p.b.mr->lkey, i), "post receive: %m");
    MUST(!ibv_modify_qp(p.b.qp, &a, IBV_QP_STATE), "to ERR: %m");
    MUST(!post_recv(&p.b, 64, p.b.mr->lkey, 4), "post receive in error: %m");
    for (uint64_t i = 1; i <= 4; i++) {
        CHECK(next(&p.b, &wc) == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
        CHECK(wc.wr_id == i && wc.qp_num == p.b.qp->qp_num, "wr_id %llu", (unsigned long long)wc.wr_id);
    }
    pair_close(&p);
}

/* The peer's QP goes away: the sender finds out within timeout x (retry_cnt + 1). */
static void peer_destroyed(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    MUST(!ibv_destroy_qp(p.b.qp), "destroy: %m");
    p.b.qp = NULL;
    double start = now_s();
    one_bad(&p, &w, IBV_WC_RETRY_EXC_ERR);
    /* 4.096 us x 2^12 = 17 ms, three times; be generous to a busy machine */
    CHECK(now_s() - start < scaled(1.0), "took %.2f s", now_s() - start);
    pair_close(&p);
}

/* -------------------------------------------------------------------------------------------------- posting */

static void post_states(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_sge sge = {.addr = (uintptr_t)e.buf, .length = 8, .lkey = e.mr->lkey};
    struct ibv_send_wr s = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *sbad = NULL;
    struct ibv_recv_wr r = {.sg_list = &sge, .num_sge = 1}, *rbad = NULL;
    FAILS(ibv_post_recv(e.qp, &r, &rbad), EINVAL);
    CHECK(rbad == &r, "bad_wr");
    FAILS(ibv_post_send(e.qp, &s, &sbad), EINVAL);
    CHECK(sbad == &s, "bad_wr");
    MUST(!qp_to_init(e.qp, 0), "to INIT: %m");
    CHECK(!ibv_post_recv(e.qp, &r, &rbad), "post_recv in INIT: %m");
    FAILS(ibv_post_send(e.qp, &s, &sbad), EINVAL);
    end_close(&e);
}

static void post_limits(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(p.a.qp, &a, IBV_QP_CAP, &init), "query: %m");
    CHECK(init.cap.max_send_wr >= usual.wr && init.cap.max_send_sge >= usual.sge &&
              init.cap.max_inline_data >= usual.inline_bytes && a.cap.max_recv_wr >= usual.wr &&
              a.cap.max_recv_sge >= usual.sge,
          "granted less than asked for");
    struct ibv_sge sge[64];
    for (int i = 0; i < 64; i++)
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf, .length = 64, .lkey = p.a.mr->lkey};
    struct ibv_send_wr w[3] = {{.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = 2},
                               {.sg_list = sge, .num_sge = (int)init.cap.max_send_sge + 1, .opcode = IBV_WR_RDMA_WRITE},
                               {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}},
                       *bad = NULL;
    for (int i = 0; i < 3; i++) {
        w[i].wr.rdma.remote_addr = (uintptr_t)p.b.buf;
        w[i].wr.rdma.rkey = p.b.mr->rkey;
        w[i].next = i < 2 ? &w[i + 1] : NULL;
    }
    FAILS(ibv_post_send(p.a.qp, w, &bad), EINVAL);
    CHECK(bad == &w[1], "the first bad request is the second");
    EXPECT(&p.a, IBV_WC_SUCCESS); /* the one before it was posted */
    w[2].opcode = (enum ibv_wr_opcode)99;
    FAILS(ibv_post_send(p.a.qp, &w[2], &bad), EINVAL);
    w[2].opcode = IBV_WR_RDMA_WRITE;
    w[2].num_sge = -1;
    FAILS(ibv_post_send(p.a.qp, &w[2], &bad), EINVAL);
    w[2].num_sge = 1;
    w[2].send_flags = IBV_SEND_INLINE;
    sge[0].length = init.cap.max_inline_data + 1;
    FAILS(ibv_post_send(p.a.qp, &w[2], &bad), EINVAL);
    struct ibv_recv_wr r = {.sg_list = sge, .num_sge = (int)a.cap.max_recv_sge + 1}, *rbad = NULL;
    FAILS(ibv_post_recv(p.a.qp, &r, &rbad), EINVAL);
    CHECK(rbad == &r, "bad_wr");
    pair_close(&p);
}

/* A receive queue holds what was granted and not one more; a polled completion makes room. */
static void full_queues(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(p.b.qp, &a, IBV_QP_CAP, &init), "query: %m");
    struct ibv_recv_wr r = {.num_sge = 0}, *rbad = NULL;
    for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
        CHECK(!ibv_post_recv(p.b.qp, &r, &rbad), "receive %u: %m", i);
    FAILS(ibv_post_recv(p.b.qp, &r, &rbad), ENOMEM);
    CHECK(rbad == &r, "bad_wr");
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 0;
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(!ibv_post_recv(p.b.qp, &r, &rbad), "a completion makes room: %m");
    FAILS(ibv_post_recv(p.b.qp, &r, &rbad), ENOMEM);
    /* sends: none is polled, so the queue must fill, however fast they are done */
    w = good(&p, IBV_WR_RDMA_WRITE);
    for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
        CHECK(!post(p.a.qp, &w, i), "send %u: %m", i);
    FAILS(post(p.a.qp, &w, 99), ENOMEM);
    for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
        EXPECT(&p.a, IBV_WC_SUCCESS);
    pair_close(&p);
}

/* An unsignalled request is done when a later one is. */
static void unsignalled(void) {
    struct pair p;
    struct ibv_wc wc;
    pair_usual(&p);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(p.a.qp, &a, IBV_QP_CAP, &init), "query: %m");
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < init.cap.max_send_wr; i++) {
            struct ibv_sge sge = {.addr = (uintptr_t)p.a.buf, .length = 8, .lkey = p.a.mr->lkey};
            struct ibv_send_wr w = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
            w.send_flags = i + 1 == init.cap.max_send_wr ? IBV_SEND_SIGNALED : 0;
            w.wr.rdma.remote_addr = (uintptr_t)p.b.buf;
            w.wr.rdma.rkey = p.b.mr->rkey;
            CHECK(!ibv_post_send(p.a.qp, &w, &bad), "round %d, send %u: %m", round, i);
        }
        CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id + 1 == init.cap.max_send_wr, "wr_id %llu",
              (unsigned long long)wc.wr_id);
        CHECK(ibv_poll_cq(p.a.cq, 1, &wc) == 0, "one completion a round");
    }
    pair_close(&p);
}

static void zero_length(void) {
    static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND};
    struct pair p;
    struct ibv_wc wc;
    pair_usual(&p);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct wr w = good(&p, ops[i]);
        w.len = 0;
        w.rkey = 0;
        w.remote = 0;
        if (ops[i] == IBV_WR_SEND)
            MUST(!post_recv(&p.b, 0, 0, 5), "post receive: %m");
        MUST(!post(p.a.qp, &w, 1), "post: %m");
        EXPECT(&p.a, IBV_WC_SUCCESS);
    }
    CHECK(next(&p.b, &wc) == IBV_WC_SUCCESS && wc.byte_len == 0, "empty SEND");
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------- QP transitions */

static void transitions(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .port_num = 1};
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL);
    a.qp_state = IBV_QPS_RTS;
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL);
    a.qp_state = IBV_QPS_INIT;
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL); /* attributes missing */
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
    const int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    a.port_num = 2;
    FAILS(ibv_modify_qp(e.qp, &a, init_mask), EINVAL);
    a.port_num = 1;
    a.pkey_index = 9;
    FAILS(ibv_modify_qp(e.qp, &a, init_mask), EINVAL);
    a.pkey_index = 0;
    CHECK(state(e.qp) == IBV_QPS_RESET, "a failed call changes nothing");
    CHECK(!ibv_modify_qp(e.qp, &a, init_mask), "to INIT: %m");
    a.qp_state = IBV_QPS_RTS;
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL);
    const int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = e.qp->qp_num,
                            .max_dest_rd_atomic = 1,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = e.gid, .hop_limit = 1}}};
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask & ~IBV_QP_AV), EINVAL);
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask | IBV_QP_SQ_PSN), EINVAL); /* not allowed here */
    r.path_mtu = (enum ibv_mtu)0;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.path_mtu = (enum ibv_mtu)6;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.path_mtu = IBV_MTU_1024;
    r.ah_attr.grh.sgid_index = 200; /* F37: at once, not by a timeout in RTR */
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.ah_attr.grh.sgid_index = 0;
    r.ah_attr.is_global = 0;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.ah_attr.is_global = 1;
    r.max_dest_rd_atomic = 255;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.max_dest_rd_atomic = 1;
    CHECK(!ibv_modify_qp(e.qp, &r, rtr_mask), "to RTR: %m");
    a.qp_state = IBV_QPS_RESET;
    CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE), "to RESET: %m");
    CHECK(!qp_to_init(e.qp, 0), "INIT again: %m");
    a.qp_state = IBV_QPS_ERR;
    CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE), "to ERR: %m");
    CHECK(state(e.qp) == IBV_QPS_ERR, "state");
    end_close(&e);
}

/* RESET forgets requests and completions; the QP works again afterwards. */
static void reset_and_reuse(void) {
    struct pair p;
    struct ibv_wc wc;
    struct peer pa, pb;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 10; i++)
            MUST(!post(p.a.qp, &w, (uint64_t)i) && !post_recv(&p.b, 64, p.b.mr->lkey, 1), "post: %m");
        EXPECT(&p.a, IBV_WC_SUCCESS);
        MUST(!ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE) && !ibv_modify_qp(p.b.qp, &reset, IBV_QP_STATE),
             "to RESET: %m");
        CHECK(ibv_poll_cq(p.a.cq, 1, &wc) == 0 && ibv_poll_cq(p.b.cq, 1, &wc) == 0, "completions of before");
        end_describe(&p.a, &pa, 300);
        end_describe(&p.b, &pb, 400);
        MUST(!qp_to_init(p.a.qp, ALL_ACCESS) && !qp_to_init(p.b.qp, ALL_ACCESS), "to INIT: %m");
        qp_connect(&p.a, p.a.qp, &pb, 300, &impatient);
        qp_connect(&p.b, p.b.qp, &pa, 400, &impatient);
        MUST(!post(p.a.qp, &w, 77), "post: %m");
        CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == 77, "%s, wr_id %llu", ibv_wc_status_str(wc.status),
              (unsigned long long)wc.wr_id);
    }
    pair_close(&p);
}

/* --------------------------------------------------------------------------------------------- registration */

static void registration(void) {
    struct ibv_context *c = open_named(opt.dev);
    struct ibv_pd *pd = ibv_alloc_pd(c);
    const size_t page = 4096, len = 8 * page;
    char *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *ro = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *none = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr;
    const int lw = IBV_ACCESS_LOCAL_WRITE;

    FAILS_NULL(ibv_reg_mr(pd, m, 0, lw), EINVAL);
    FAILS_NULL(ibv_reg_mr(pd, m, len, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    FAILS_NULL(ibv_reg_mr(pd, m, len, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
    FAILS_NULL(ibv_reg_mr(pd, m, len, 1 << 15), EINVAL);
    FAILS_NULL(ibv_reg_mr(pd, (void *)(uintptr_t)-4096, 8192, lw), EINVAL); /* wraps */
    FAILS_NULL(ibv_reg_mr(pd, (void *)0x1000, 4096, lw), EFAULT);
    FAILS_NULL(ibv_reg_mr(pd, none, len, 0), EFAULT);
    FAILS_NULL(ibv_reg_mr(pd, ro, len, lw), EFAULT);
    mr = ibv_reg_mr(pd, ro, len, 0); /* F41: reading is all that is asked */
    CHECK(mr, "read-only memory with access 0: %m");
    if (mr)
        CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    mr = ibv_reg_mr(pd, ro, len, IBV_ACCESS_REMOTE_READ);
    CHECK(mr, "read-only memory with REMOTE_READ: %m");
    if (mr)
        CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    munmap(m + 4 * page, page);
    FAILS_NULL(ibv_reg_mr(pd, m, len, lw), EFAULT);
    mr = ibv_reg_mr(pd, m, 4 * page, lw);
    CHECK(mr, "up to the hole: %m");
    if (mr) {
        FAILS(ibv_dealloc_pd(pd), EBUSY);
        CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    }
    char name[] = "/tmp/mr_errors.XXXXXX"; /* a file shorter than its mapping */
    int fd = mkstemp(name);
    MUST(fd >= 0 && !unlink(name) && !ftruncate(fd, (off_t)page), "file: %m");
    char *f = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FAILS_NULL(ibv_reg_mr(pd, f, len, lw), EFAULT);
    mr = ibv_reg_mr(pd, f, page, lw);
    CHECK(mr, "the part that is there: %m");
    if (mr)
        CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    close(fd);
    FAILS_NULL(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), EOPNOTSUPP);
    struct rlimit lim = {64 << 10, 64 << 10}; /* F18: nothing is pinned */
    setrlimit(RLIMIT_MEMLOCK, &lim);
    const size_t big = 256u << 20;
    char *b = mmap(NULL, big, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mr = ibv_reg_mr(pd, b, big, ALL_ACCESS);
    CHECK(mr, "256 MiB under ulimit -l 64: %m");
    if (mr)
        CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    munmap(b, big);
    munmap(f, len);
    munmap(m, len);
    munmap(ro, len);
    munmap(none, len);
    CHECK(!ibv_dealloc_pd(pd), "free PD: %m");
    CHECK(!ibv_close_device(c), "close: %m");
}

/* ------------------------------------------------------------------------------------------------- CQs */

static void cq_errors(void) {
    struct ibv_context *c = open_named(opt.dev);
    struct ibv_device_attr d;
    MUST(!ibv_query_device(c, &d), "query: %m");
    FAILS_NULL(ibv_create_cq(c, 0, NULL, NULL, 0), EINVAL);
    FAILS_NULL(ibv_create_cq(c, -1, NULL, NULL, 0), EINVAL);
    FAILS_NULL(ibv_create_cq(c, d.max_cqe + 1, NULL, NULL, 0), EINVAL);
    FAILS_NULL(ibv_create_cq(c, 16, NULL, NULL, c->num_comp_vectors), EINVAL);
    FAILS_NULL(ibv_create_cq(c, 16, NULL, NULL, -1), EINVAL);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(c);
    struct ibv_cq *cq = ibv_create_cq(c, 100, (void *)7, ch, 0);
    MUST(cq, "CQ: %m");
    CHECK(cq->cqe >= 100 && cq->cq_context == (void *)7 && cq->channel == ch, "fields");
    FAILS(ibv_destroy_comp_channel(ch), EBUSY);
    CHECK(!ibv_resize_cq(cq, 1000) && cq->cqe >= 1000, "grow: %m");
    CHECK(!ibv_resize_cq(cq, 10) && cq->cqe >= 10, "shrink: %m");
    FAILS(ibv_resize_cq(cq, 0), EINVAL);
    FAILS(ibv_resize_cq(cq, d.max_cqe + 1), EINVAL);
    CHECK(!ibv_destroy_cq(cq), "destroy: %m");
    CHECK(!ibv_destroy_comp_channel(ch), "destroy channel: %m");
    CHECK(!ibv_close_device(c), "close: %m");
    struct end e;
    end_open(&e, &opt, &usual);
    FAILS(ibv_destroy_cq(e.cq), EBUSY);
    FAILS(ibv_dealloc_pd(e.pd), EBUSY);
    end_close(&e);
}

static void cq_resize_keeps(void) {
    struct pair p;
    struct ibv_wc wc;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.len = 8;
    for (uint64_t i = 0; i < 10; i++)
        MUST(!post(p.a.qp, &w, i), "post: %m");
    usleep(100000);
    CHECK(!ibv_resize_cq(p.a.cq, 500), "resize: %m");
    FAILS(ibv_resize_cq(p.a.cq, 2), EINVAL); /* ten are waiting */
    for (uint64_t i = 0; i < 10; i++)
        CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == i, "completion %llu", (unsigned long long)i);
    CHECK(!ibv_resize_cq(p.a.cq, 2), "resize: %m");
    MUST(!post(p.a.qp, &w, 99), "post: %m");
    CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == 99, "after resizing");
    pair_close(&p);
}

/* More completions than the CQ holds: an event, the QPs in error, and poll says so. */
static void cq_overrun(void) {
    struct pair p;
    struct ibv_wc wc;
    struct ibv_async_event ev;
    pair_usual(&p);
    CHECK(!ibv_resize_cq(p.a.cq, 4), "resize: %m");
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.len = 8;
    for (uint64_t i = 0; i < 10; i++)
        MUST(!post(p.a.qp, &w, i), "post: %m");
    struct pollfd f = {.fd = p.a.ctx->async_fd, .events = POLLIN};
    CHECK(poll(&f, 1, (int)(scaled(5) * 1000)) == 1, "no event");
    CHECK(!ibv_get_async_event(p.a.ctx, &ev) && ev.event_type == IBV_EVENT_CQ_ERR && ev.element.cq == p.a.cq,
          "event %s", ibv_event_type_str(ev.event_type));
    ibv_ack_async_event(&ev);
    int n, got = 0;
    while ((n = ibv_poll_cq(p.a.cq, 1, &wc)) > 0)
        got++;
    CHECK(got == 4 && n < 0, "%d completions, then %d", got, n);
    CHECK(state(p.a.qp) == IBV_QPS_ERR, "state %d", state(p.a.qp));
    while (poll(&f, 1, 200) == 1 && !ibv_get_async_event(p.a.ctx, &ev)) /* of the QP */
        ibv_ack_async_event(&ev);
    pair_close(&p);
}

/* What a destroyed QP left in a CQ is gone with it; others' completions stay, in order. */
static void destroy_cleans_cq(void) {
    struct pair p;
    struct ibv_wc wc;
    struct peer pa, pb;
    pair_usual(&p);
    struct ibv_qp *a2 = end_qp(&p.a, &usual), *b2 = end_qp(&p.b, &usual), *keep_b = p.b.qp, *keep_a = p.a.qp;
    MUST(a2 && b2 && !qp_to_init(a2, ALL_ACCESS) && !qp_to_init(b2, ALL_ACCESS), "second pair: %m");
    p.a.qp = a2;
    p.b.qp = b2;
    end_describe(&p.a, &pa, 1);
    end_describe(&p.b, &pb, 2);
    qp_connect(&p.a, a2, &pb, 1, &impatient);
    qp_connect(&p.b, b2, &pa, 2, &impatient);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    for (uint64_t i = 0; i < 8; i++) {
        MUST(!post(i % 3 ? keep_a : a2, &w, i), "post: %m");
        usleep(20000);
    }
    p.a.qp = keep_a;
    p.b.qp = keep_b;
    CHECK(!ibv_destroy_qp(a2), "destroy: %m");
    for (uint64_t i = 0; i < 8; i++)
        if (i % 3)
            CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == i && wc.qp_num == keep_a->qp_num, "completion %llu",
                  (unsigned long long)i);
    CHECK(ibv_poll_cq(p.a.cq, 1, &wc) == 0, "one of a QP that is gone");
    CHECK(!ibv_destroy_qp(b2), "destroy: %m");
    pair_close(&p);
}

/* --------------------------------------------------------------------------------------------------- events */

static void *destroy_cq_thread(void *arg) {
    struct end *e = arg;
    MUST(!ibv_destroy_cq(e->cq), "destroy CQ: %m");
    e->cq = NULL;
    return NULL;
}

/* One event an arming; unsolicited ones do not wake a CQ armed for solicited; destroying waits for the ack. */
static void cq_events(void) {
    struct pair p;
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *context;
    struct end_want we = usual;
    struct options ob = opt;
    struct peer pa, pb;
    we.events = true;
    if (second)
        ob.dev = second;
    end_open(&p.a, &opt, &usual);
    end_open(&p.b, &ob, &we);
    end_describe(&p.a, &pa, 1);
    end_describe(&p.b, &pb, 2);
    MUST(!qp_to_init(p.a.qp, ALL_ACCESS) && !qp_to_init(p.b.qp, ALL_ACCESS), "to INIT: %m");
    qp_connect(&p.a, p.a.qp, &pb, 1, &impatient);
    qp_connect(&p.b, p.b.qp, &pa, 2, &impatient);
    struct pollfd f = {.fd = p.b.channel->fd, .events = POLLIN};
    for (uint64_t i = 0; i < 8; i++)
        MUST(!post_recv(&p.b, 64, p.b.mr->lkey, i), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 16;
    MUST(!ibv_req_notify_cq(p.b.cq, 1), "arm: %m");
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(poll(&f, 1, 100) == 0, "an unsolicited SEND woke a CQ armed for solicited ones");
    w.flags = IBV_SEND_SOLICITED;
    MUST(!post(p.a.qp, &w, 2), "post: %m");
    CHECK(poll(&f, 1, 5000) == 1, "a solicited one did not");
    CHECK(!ibv_get_cq_event(p.b.channel, &cq, &context) && cq == p.b.cq, "event: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    MUST(!post(p.a.qp, &w, 3), "post: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(poll(&f, 1, 100) == 0, "an event without arming");
    MUST(!ibv_req_notify_cq(p.b.cq, 0), "arm: %m");
    w.flags = 0;
    MUST(!post(p.a.qp, &w, 4), "post: %m");
    CHECK(!ibv_get_cq_event(p.b.channel, &cq, &context) && cq == p.b.cq, "event: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    /* an event that nobody fetches must not stop the destruction, the two fetched ones must */
    MUST(!ibv_req_notify_cq(p.b.cq, 0), "arm: %m");
    MUST(!post(p.a.qp, &w, 5), "post: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    MUST(!ibv_destroy_qp(p.b.qp), "destroy: %m");
    p.b.qp = NULL;
    pthread_t t;
    cq = p.b.cq;
    MUST(!pthread_create(&t, NULL, destroy_cq_thread, &p.b), "thread");
    usleep(100000);
    CHECK(p.b.cq, "destroy_cq did not wait for the acknowledgement");
    ibv_ack_cq_events(cq, 2);
    pthread_join(t, NULL);
    CHECK(poll(&f, 1, 0) == 0, "an event of a CQ that is gone");
    for (int i = 0; i < 5; i++)
        while (ibv_poll_cq(p.a.cq, 1, &wc) > 0)
            ;
    pair_close(&p);
}

/* --------------------------------------------------------------------------------------------- API details */

static void api_details(void) {
    struct end e;
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 8, .max_sge = 1}};
    end_open(&e, &opt, &usual);
    CHECK(!ibv_qp_to_qp_ex(e.qp), "qp_to_qp_ex of a plain QP");
    struct ibv_srq *s = ibv_create_srq(e.pd, &srq);
    if (!s) {
        CHECK(errno == EOPNOTSUPP, "%m");
    } else {
        struct ibv_qp_init_attr a = {.send_cq = e.cq,
                                     .recv_cq = e.cq,
                                     .srq = s,
                                     .cap = {.max_send_wr = 1, .max_recv_wr = 1u << 30, .max_send_sge = 1},
                                     .qp_type = IBV_QPT_RC};
        struct ibv_qp *q = ibv_create_qp(e.pd, &a);
        CHECK(q, "max_recv_wr is not looked at with an SRQ: %m");
        if (q)
            ibv_destroy_qp(q);
        ibv_destroy_srq(s);
    }
    struct ibv_qp_init_attr big = {.send_cq = e.cq,
                                   .recv_cq = e.cq,
                                   .cap = {.max_send_wr = (uint32_t)e.attr.max_qp_wr + 1, .max_send_sge = 1},
                                   .qp_type = IBV_QPT_RC};
    FAILS_NULL(ibv_create_qp(e.pd, &big), EINVAL);
    big.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = (uint32_t)e.attr.max_sge + 1};
    FAILS_NULL(ibv_create_qp(e.pd, &big), EINVAL);
    big.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = 1, .max_inline_data = 1 << 20};
    FAILS_NULL(ibv_create_qp(e.pd, &big), EINVAL);
    big.cap.max_inline_data = 0;
    big.send_cq = NULL;
    FAILS_NULL(ibv_create_qp(e.pd, &big), EINVAL);
    union ibv_gid gid;
    FAILS(ibv_query_gid(e.ctx, 1, 5000, &gid), EINVAL);
    FAILS(ibv_query_gid(e.ctx, 2, 0, &gid), EINVAL);
    struct ibv_ah_attr ah = {.port_num = 1};
    FAILS_NULL(ibv_create_ah(e.pd, &ah), EINVAL); /* no GRH on Ethernet */
    __be16 pkey;
    CHECK(!ibv_query_pkey(e.ctx, 1, 0, &pkey) && pkey == 0xffff, "pkey");
    CHECK(ibv_get_pkey_index(e.ctx, 1, 0xffff) == 0, "pkey index");
    FAILS(ibv_query_pkey(e.ctx, 1, 1000, &pkey), EINVAL);
    CHECK(ibv_fork_init() == 0, "fork_init");
    end_close(&e);
}

/* F41: fork with a region in half a page; the child writes the rest, may not use the parent's objects, and may open the
 * device for itself. The parent's traffic goes on. */
static int child(struct pair *p) {
    struct wr w = good(p, IBV_WR_RDMA_WRITE);
    struct ibv_wc wc;
    memset(p->a.buf + 2048, 0xcc, 2048);
    if (post(p->a.qp, &w, 1) != EIO || ibv_poll_cq(p->a.cq, 1, &wc) > 0 || ibv_alloc_pd(p->a.ctx))
        return 1;
    struct ibv_context *c = open_named(opt.dev);
    struct ibv_pd *pd = c ? ibv_alloc_pd(c) : NULL;
    struct ibv_mr *mr = pd ? ibv_reg_mr(pd, p->a.buf, 4096, ALL_ACCESS) : NULL;
    if (!mr || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(c))
        return 2;
    ibv_destroy_qp(p->a.qp); /* cleaning up inherited objects must not hang or hurt the parent */
    ibv_destroy_cq(p->a.cq);
    return 0;
}

static void fork_safety(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.len = 2048;
    for (int i = 0; i < 5; i++) {
        memset(p.a.buf, i + 1, 2048);
        MUST(!post(p.a.qp, &w, 1), "post: %m");
        fflush(NULL);
        pid_t pid = fork();
        MUST(pid >= 0, "fork: %m");
        if (!pid)
            _exit(child(&p));
        EXPECT(&p.a, IBV_WC_SUCCESS);
        int st;
        MUST(waitpid(pid, &st, 0) == pid, "wait: %m");
        CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0, "child: status %x", st);
        MUST(!post(p.a.qp, &w, 2), "post: %m");
        EXPECT(&p.a, IBV_WC_SUCCESS);
        CHECK(p.b.buf[0] == i + 1 && p.b.buf[2047] == i + 1, "data");
    }
    pair_close(&p);
}

/* ----------------------------------------------------------------------------------------------------- table */

#define CASE(f) \
    { #f, f }
static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    CASE(wrong_rkey),
    CASE(out_of_bounds),
    CASE(wrapping_range),
    CASE(region_without_right),
    CASE(qp_without_right),
    CASE(deregistered_rkey),
    CASE(rkey_of_other_pd),
    CASE(unaligned_atomic),
    CASE(remote_memory_gone),
    CASE(wrong_lkey),
    CASE(local_out_of_bounds),
    CASE(read_into_read_only_region),
    CASE(lkey_of_other_pd),
    CASE(local_memory_gone),
    CASE(no_receive),
    CASE(receive_too_small),
    CASE(small_receive_too_small),
    CASE(receive_wrong_lkey),
    CASE(receive_memory_gone),
    CASE(flush_receives),
    CASE(peer_destroyed),
    CASE(post_states),
    CASE(post_limits),
    CASE(full_queues),
    CASE(unsignalled),
    CASE(zero_length),
    CASE(transitions),
    CASE(reset_and_reuse),
    CASE(registration),
    CASE(cq_errors),
    CASE(cq_resize_keeps),
    CASE(cq_overrun),
    CASE(destroy_cleans_cq),
    CASE(cq_events),
    CASE(api_details),
    CASE(fork_safety),
};

int main(int argc, char **argv) {
    int n = 0, ran = 0, first = 1;
    struct ibv_device **list = ibv_get_device_list(&n);
    MUST(list && n, "no RDMA device: %m");
    if (argc > 2 && !strcmp(argv[1], "--dev")) {
        opt.dev = argv[2];
        first = 3;
    } else if (n > 1) {
        second = strdup(ibv_get_device_name(list[1]));
    }
    ibv_free_device_list(list);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool wanted = argc <= first;
        for (int k = first; k < argc; k++)
            wanted |= !strcmp(argv[k], cases[i].name);
        if (!wanted)
            continue;
        int before = failures;
        current = cases[i].name;
        cases[i].run();
        ran++;
        printf("%-32s %s\n", current, failures == before ? "ok" : "FAILED");
    }
    printf("mr_errors: %s cases=%d checks=%d failures=%d\n", failures || !ran ? "FAILED" : "ok", ran, checks, failures);
    return failures || !ran;
}
