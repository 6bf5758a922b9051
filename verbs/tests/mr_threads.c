/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_threads: one context, many threads. All share one CQ and all poll it; each makes a pair of QPs, moves and checks
 * data, destroys the pair, and begins again; one thread forks now and then. Completions are counted by the wr_id, which
 * names the thread that waits for it.
 *
 *     mr_threads [--dev NAME] [-n ROUNDS] [--extra THREADS]
 */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST   16
#define WRITES 64u
#define BYTES  512u

static struct options o = {.count = 40, .extra = 4};
static struct end shared;
static _Atomic uint32_t done[MOST];
static _Atomic uint64_t moved, forks;

static void poll_for_all(void) {
    struct ibv_wc wc[8];
    int n = ibv_poll_cq(shared.cq, 8, wc);
    MUST(n >= 0, "poll: %m");
    for (int i = 0; i < n; i++) {
        MUST(wc[i].status == IBV_WC_SUCCESS, "thread %llu: %s", (unsigned long long)wc[i].wr_id,
             ibv_wc_status_str(wc[i].status));
        MUST(wc[i].wr_id < MOST, "wr_id %llu", (unsigned long long)wc[i].wr_id);
        atomic_fetch_add(&done[wc[i].wr_id], 1);
    }
}

static void await(uint64_t me, uint32_t n) {
    double until = now_s() + scaled(60);
    while (atomic_load(&done[me]) < n) {
        poll_for_all();
        MUST(now_s() < until, "thread %llu: %u of %u completions in 60 s", (unsigned long long)me,
             atomic_load(&done[me]), n);
    }
}

static void post_write(struct ibv_qp *qp, uint64_t me, const uint8_t *from, const uint8_t *to, const struct ibv_mr *mr,
                       bool last) {
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = BYTES, .lkey = mr->lkey};
    struct ibv_send_wr w = {.wr_id = me,
                            .sg_list = &sge,
                            .num_sge = 1,
                            .opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    w.wr.rdma.remote_addr = (uintptr_t)to;
    w.wr.rdma.rkey = mr->rkey;
    int err;
    while ((err = ibv_post_send(qp, &w, &bad)) == ENOMEM) /* full until somebody polls for us */
        poll_for_all();
    MUST(!err, "post: %s", strerror(err));
}

static void one_round(uint64_t me, struct rng *r) {
    static const struct end_want w = {.wr = 16, .sge = 1, .cqe = 16};
    uint8_t *buf = malloc(2 * WRITES * BYTES);
    struct ibv_mr *mr = ibv_reg_mr(shared.pd, buf, 2 * WRITES * BYTES, ALL_ACCESS);
    struct ibv_qp *a = end_qp(&shared, &w), *b = end_qp(&shared, &w);
    MUST(mr && a && b, "making a pair: %m");
    struct peer pa = {.qpn = a->qp_num, .psn = 1, .gid = shared.gid},
                pb = {.qpn = b->qp_num, .psn = 2, .gid = shared.gid};
    MUST(!qp_to_init(a, ALL_ACCESS) && !qp_to_init(b, ALL_ACCESS), "to INIT: %m");
    qp_connect(&shared, a, &pb, 1, &patient);
    qp_connect(&shared, b, &pa, 2, &patient);
    struct ibv_recv_wr rw = {.wr_id = me}, *rbad;
    MUST(!ibv_post_recv(b, &rw, &rbad), "post receive: %m");
    rng_fill(r, buf, WRITES * BYTES);
    memset(buf + WRITES * BYTES, 0, WRITES * BYTES);
    atomic_store(&done[me], 0);
    for (uint32_t i = 0; i < WRITES; i++)
        post_write(a, me, buf + i * BYTES, buf + (WRITES + i) * BYTES, mr, i == WRITES - 1);
    await(me, WRITES + 1);
    MUST(!memcmp(buf, buf + WRITES * BYTES, WRITES * BYTES), "thread %llu: wrong data", (unsigned long long)me);
    /* leave some completions behind for the destruction to clean up: nobody may ever see them */
    if (rng_below(r, 2)) {
        struct ibv_qp_attr e = {.qp_state = IBV_QPS_RESET};
        MUST(!ibv_modify_qp(a, &e, IBV_QP_STATE), "to RESET: %m");
    }
    MUST(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_dereg_mr(mr), "destroying a pair: %m");
    free(buf);
    atomic_fetch_add(&moved, WRITES * BYTES);
}

static void *worker(void *arg) {
    uint64_t me = (uint64_t)(uintptr_t)arg;
    struct rng r;
    rng_seed(&r, o.seed, me);
    for (uint64_t i = 0; i < o.count; i++) {
        one_round(me, &r);
        if (me || i % 10 != 5)
            continue;
        pid_t pid = fork();
        MUST(pid >= 0, "fork: %m");
        if (!pid) { /* whatever other threads held at this moment must not hang us */
            struct ibv_wc wc;
            alarm((unsigned)scaled(20));
            _exit(ibv_poll_cq(shared.cq, 1, &wc) > 0 || ibv_alloc_pd(shared.ctx) ? 1 : 0);
        }
        int st;
        MUST(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && !WEXITSTATUS(st), "the child: status %x", st);
        atomic_fetch_add(&forks, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t[MOST];
    options_parse(&o, argc, argv, "mr_threads: many threads on one context; --extra: how many");
    MUST(o.extra >= 1 && o.extra <= MOST, "--extra: 1 to %d threads", MOST);
    struct end_want w = {.wr = 1, .sge = 1, .cqe = MOST * 64};
    end_open(&shared, &o, &w);
    double start = now_s();
    for (int i = 0; i < o.extra; i++)
        MUST(!pthread_create(&t[i], NULL, worker, (void *)(uintptr_t)i), "thread");
    for (int i = 0; i < o.extra; i++)
        pthread_join(t[i], NULL);
    end_close(&shared);
    printf("mr_threads: ok threads=%d rounds=%llu bytes=%llu forks=%llu seconds=%.1f\n", o.extra,
           (unsigned long long)o.count, (unsigned long long)moved, (unsigned long long)forks, now_s() - start);
    return 0;
}
