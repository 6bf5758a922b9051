/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_wire.c: cases of mr_errors that end in a completion: keys, rights, memory, receives, a peer that is gone.
 */
#include "errors.h"

#include <sys/mman.h>

/* -------------------------------------------------------------------------------------- remote keys and rights */

void wrong_rkey(void) {
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

void out_of_bounds(void) {
    for (int i = 0; i < 4; i++) {
        struct pair p;
        pair_usual(&p);
        struct wr w = good(&p, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
        w.remote += i & 2 ? (uint64_t)LEN - w.len + 1 : (uint64_t)-1;
        one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
        pair_close(&p);
    }
}

void wrapping_range(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.remote = (uint64_t)-16;
    one_bad(&p, &w, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

void region_without_right(void) {
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

void qp_without_right(void) {
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

void deregistered_rkey(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    MUST(!ibv_dereg_mr(p.b.mr), "deregister: %m");
    p.b.mr = NULL;
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

void rkey_of_other_pd(void) {
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

void unaligned_atomic(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_ATOMIC_FETCH_AND_ADD);
    w.remote += 4;
    one_bad(&p, &w, IBV_WC_REM_INV_REQ_ERR);
    pair_close(&p);
}

void remote_memory_gone(void) {
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

void wrong_lkey(void) {
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

void local_out_of_bounds(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.local += LEN - 1;
    one_bad(&p, &w, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

void read_into_read_only_region(void) {
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

void lkey_of_other_pd(void) {
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

void local_memory_gone(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    MUST(!munmap(p.a.buf, LEN), "munmap: %m");
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------------- receiving */

void no_receive(void) {
    struct pair p;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_SEND);
    one_bad(&p, &w, IBV_WC_RNR_RETRY_EXC_ERR);
    pair_close(&p);
}

void receive_too_small(void) {
    struct pair p;
    pair_usual(&p);
    MUST(!post_recv(&p.b, 100, p.b.mr->lkey, 7), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    one_bad(&p, &w, IBV_WC_REM_INV_REQ_ERR);
    EXPECT(&p.b, IBV_WC_LOC_LEN_ERR);
    pair_close(&p);
}

void small_receive_too_small(void) {
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

void receive_wrong_lkey(void) {
    struct pair p;
    pair_usual(&p);
    MUST(!post_recv(&p.b, 8192, p.b.mr->lkey ^ 0x777700, 7), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    one_bad(&p, &w, IBV_WC_REM_OP_ERR);
    EXPECT(&p.b, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

void receive_memory_gone(void) {
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

void flush_receives(void) {
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
void peer_destroyed(void) {
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
