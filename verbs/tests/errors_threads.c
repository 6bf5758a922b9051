/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_threads.c: cases of mr_errors about threads that end, or wait, at a bad moment.
 */
#include "errors.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* A thread to be cancelled: it goes on when the request for that is pending. */
struct victim {
    struct pair *p;
    _Atomic bool asked, passed;
    void (*what)(struct victim *v);
};

static void *run_victim(void *arg) {
    struct victim *v = arg;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    while (!v->asked)
        usleep(1000);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    v->what(v);
    return NULL;
}

static bool join_within(pthread_t t, int seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return !pthread_timedjoin_np(t, NULL, &until);
}

static void cancel(struct pair *p, void (*what)(struct victim *v), bool *passed) {
    struct victim v = {.p = p, .what = what};
    pthread_t t;
    MUST(!pthread_create(&t, NULL, run_victim, &v), "thread");
    pthread_cancel(t);
    v.asked = true;
    MUST(join_within(t, 5), "%s: a cancelled thread does not end", current);
    *passed = v.passed;
}

static void work(struct victim *v) {
    struct wr w = good(v->p, IBV_WR_RDMA_WRITE);
    struct ibv_wc wc;
    bool ok = !ibv_req_notify_cq(v->p->b.cq, 0);
    for (int i = 0, n = 0; i < 8; i++, n = 0) {
        ok = ok && !post(v->p->a.qp, &w, 1);
        while (ok && !n)
            n = ibv_poll_cq(v->p->a.cq, 1, &wc);
        ok = ok && n == 1 && wc.status == IBV_WC_SUCCESS;
    }
    for (int i = 0; i < 5000; i++)
        ibv_poll_cq(v->p->a.cq, 1, &wc);
    v->passed = ok && state(v->p->a.qp) == IBV_QPS_RTS;
}

static void wait_cq(struct victim *v) {
    struct ibv_cq *cq;
    void *context;
    ibv_get_cq_event(v->p->b.channel, &cq, &context);
    v->passed = true;
}

static void wait_async(struct victim *v) {
    struct ibv_async_event e;
    ibv_get_async_event(v->p->b.ctx, &e);
    v->passed = true;
}

static void *close_b(void *arg) {
    struct pair *p = arg;
    end_close(&p->b);
    return NULL;
}

/* The usual pair, and events for b's CQ. */
static void pair_events(struct pair *p) {
    struct end_want we = usual;
    struct peer pa, pb;
    we.events = true;
    end_open(&p->a, &opt, &usual);
    end_open(&p->b, &opt, &we);
    end_describe(&p->a, &pa, 1);
    end_describe(&p->b, &pb, 2);
    MUST(!qp_to_init(p->a.qp, ALL_ACCESS) && !qp_to_init(p->b.qp, ALL_ACCESS), "to INIT: %m");
    qp_connect(&p->a, p->a.qp, &pb, 1, &impatient);
    qp_connect(&p->b, p->b.qp, &pa, 2, &impatient);
}

/* Only the waits are cancellation points, and a thread that is cancelled there leaves nothing locked (rping does it).
 */
void cancelled_threads(void) {
#ifdef __SANITIZE_ADDRESS__ /* takes the stack of a thread that was cancelled for overrun */
    return;
#endif
    struct pair p;
    bool passed;
    pair_events(&p);
    cancel(&p, work, &passed);
    CHECK(passed, "posting, polling and asking are no cancellation points");
    cancel(&p, wait_cq, &passed);
    CHECK(!passed, "the wait for a CQ's event is one");
    cancel(&p, wait_async, &passed);
    CHECK(!passed, "the wait for an asynchronous event is one");
    pthread_t t;
    MUST(!pthread_create(&t, NULL, close_b, &p), "thread");
    MUST(join_within(t, 10), "%s: a cancelled thread left a lock behind", current);
    end_close(&p.a);
}

static void *wait_for_event(void *arg) {
    struct ibv_async_event e;
    return (void *)(intptr_t)ibv_get_async_event(arg, &e);
}

/* NCCL leaves a thread in ibv_get_async_event: closing the device wakes it, and it touches nothing that was freed. */
void closed_under_waiter(void) {
    for (int i = 0; i < 20; i++) {
        struct ibv_context *c = open_named(opt.dev);
        pthread_t t[2];
        for (int k = 0; k < 2; k++)
            MUST(!pthread_create(&t[k], NULL, wait_for_event, c), "thread");
        usleep((useconds_t)(scaled(0.02) * 1e6)); /* until they wait */
        CHECK(!ibv_close_device(c), "close: %m");
        for (int k = 0; k < 2; k++)
            MUST(join_within(t[k], 5), "%s: it waits for ever", current);
    }
}

struct resizer {
    struct ibv_cq *cq;
    _Atomic bool stop;
};

static void *run_resizer(void *arg) {
    struct resizer *r = arg;
    for (int i = 0; !r->stop; i++)
        MUST(!ibv_resize_cq(r->cq, i % 2 ? 64 : 128), "resize: %m");
    return NULL;
}

/* A CQ that is armed while another thread resizes it gives its event all the same. */
void resize_while_armed(void) {
    struct pair p;
    struct ibv_cq *cq;
    void *context;
    pthread_t t;
    pair_events(&p);
    struct pollfd f = {.fd = p.b.channel->fd, .events = POLLIN};
    struct resizer r = {.cq = p.b.cq};
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 16;
    MUST(!pthread_create(&t, NULL, run_resizer, &r), "thread");
    for (int i = 0; i < 300 && !failures; i++) {
        MUST(!post_recv(&p.b, 64, p.b.mr->lkey, 1) && !ibv_req_notify_cq(p.b.cq, 0), "%m");
        MUST(!post(p.a.qp, &w, 1), "post: %m");
        CHECK(poll(&f, 1, 2000) == 1, "no event, round %d", i);
        EXPECT(&p.b, IBV_WC_SUCCESS);
        EXPECT(&p.a, IBV_WC_SUCCESS);
        if (poll(&f, 1, 0) == 1 && !ibv_get_cq_event(p.b.channel, &cq, &context))
            ibv_ack_cq_events(cq, 1);
    }
    r.stop = true;
    pthread_join(t, NULL);
    pair_close(&p);
}
