/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_errors: what a program does wrong, and what it must be told. Each case is a function that says what it expects;
 * most use a fresh connected pair of QPs: a on the first device, b on the second (or on the same one).
 *
 *     mr_errors [--dev NAME] [CASE...]
 */
#include "errors.h"

struct options opt;
int failures, checks;
const char *current;

/* ---------------------------------------------------------------------------------------------------- the pair */

const struct end_want usual = {.wr = 64, .sge = 4, .inline_bytes = 64, .cqe = 64, .len = LEN, .access = ALL_ACCESS};
const struct connect_attr impatient = {.timeout = 12, .retry_cnt = 2, .rnr_retry = 0, .min_rnr_timer = 1};
const char *second;

void pair_open(struct pair *p, int a_access, int b_access, int b_mr_access) {
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

void pair_usual(struct pair *p) {
    pair_open(p, ALL_ACCESS, ALL_ACCESS, ALL_ACCESS);
}

void pair_close(struct pair *p) {
    end_close(&p->a);
    end_close(&p->b);
}

int post(struct ibv_qp *qp, const struct wr *w, uint64_t id) {
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

int post_recv(struct end *e, uint32_t len, uint32_t lkey, uint64_t id) {
    struct ibv_sge sge = {.addr = (uintptr_t)e->buf, .length = len, .lkey = lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = len ? 1 : 0}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

/* The usual request from a to b; cases change one thing. */
struct wr good(const struct pair *p, enum ibv_wr_opcode op) {
    return (struct wr){.op = op,
                       .remote = (uintptr_t)p->b.buf,
                       .local = (uintptr_t)p->a.buf,
                       .rkey = p->b.mr->rkey,
                       .lkey = p->a.mr->lkey,
                       .len = op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 4096};
}

enum ibv_wc_status next(struct end *e, struct ibv_wc *wc) {
    struct ibv_wc mine;
    if (!wc)
        wc = &mine;
    if (!wait_wc(e->cq, wc, 10)) {
        CHECK(false, "no completion for 10 s");
        return (enum ibv_wc_status)99;
    }
    return wc->status;
}

enum ibv_qp_state state(struct ibv_qp *qp) {
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr i;
    return ibv_query_qp(qp, &a, IBV_QP_STATE, &i) ? IBV_QPS_UNKNOWN : a.qp_state;
}

/* One bad request, then a good one that must be flushed; the QP is in the error state. */
void one_bad(struct pair *p, const struct wr *w, enum ibv_wc_status want) {
    struct wr ok = good(p, IBV_WR_RDMA_WRITE);
    MUST(!post(p->a.qp, w, 1) && !post(p->a.qp, &ok, 2), "post: %m");
    EXPECT(&p->a, want);
    EXPECT(&p->a, IBV_WC_WR_FLUSH_ERR);
    CHECK(state(p->a.qp) == IBV_QPS_ERR, "state %d", state(p->a.qp));
    MUST(!post(p->a.qp, &ok, 3), "posting to a QP in error is allowed: %m");
    EXPECT(&p->a, IBV_WC_WR_FLUSH_ERR);
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
    CASE(cancelled_threads),
    CASE(closed_under_waiter),
    CASE(resize_while_armed),
    CASE(on_demand),
    CASE(on_demand_gone),
    CASE(advice),
    CASE(null_region),
    CASE(dmabuf_region),
    CASE(device_memory),
    CASE(reregister),
    CASE(parent_domains),
    CASE(imported),
    CASE(moderation),
    CASE(extended_cq),
    CASE(exhaustion),
    CASE(not_offered),
    CASE(small_calls),
    CASE(buffers),
    CASE(nccl_sequence),
    CASE(nonblocking),
    CASE(closed_library),
    CASE(uc_rules),
    CASE(xrc_rules),
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
