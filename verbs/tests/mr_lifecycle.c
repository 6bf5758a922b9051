/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_lifecycle: what ends in the middle: a program with many busy QPs is killed; the daemon is.
 *
 *     mr_lifecycle -n QPS          a forked child with QPS connections is killed while all of them send
 *     mr_lifecycle --extra PID     the daemon with that pid is killed under this program: every verb must answer
 */
#include "common.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
#define CHECK(cond, ...)                                \
    do {                                                \
        if (!(cond)) {                                  \
            failures++;                                 \
            printf("  line %d: %s: ", __LINE__, #cond); \
            printf(__VA_ARGS__);                        \
            printf("\n");                               \
        }                                               \
    } while (0)

#define BLOCK 65536u
static const struct connect_attr brisk = {.timeout = 14, .retry_cnt = 3, .rnr_retry = 3, .min_rnr_timer = 12};

/* One side: many QPs over one CQ. */
struct side {
    struct end e;
    struct ibv_qp **qp;
    int n;
};

static void side_open(struct side *s, const struct options *o, int n) {
    const struct end_want w = {.wr = 16, .sge = 1, .cqe = (uint32_t)n * 32, .len = 1 << 20, .access = ALL_ACCESS};
    end_open(&s->e, o, &w);
    s->n = n;
    s->qp = calloc((size_t)n, sizeof *s->qp);
    for (int i = 0; i < n; i++) {
        s->qp[i] = end_qp(&s->e, &w);
        MUST(s->qp[i] && !qp_to_init(s->qp[i], ALL_ACCESS), "QP %d: %m", i);
    }
}

static void describe(const struct side *s, struct peer *out) {
    for (int i = 0; i < s->n; i++) {
        end_describe(&s->e, &out[i], 1);
        out[i].qpn = s->qp[i]->qp_num;
    }
}

static void side_connect(struct side *s, const struct peer *to) {
    for (int i = 0; i < s->n; i++)
        qp_connect(&s->e, s->qp[i], &to[i], 1, &brisk);
}

static int post_write(struct side *s, int i, const struct peer *to) {
    struct ibv_sge g = {.addr = (uintptr_t)s->e.buf, .length = BLOCK, .lkey = s->e.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = (uint64_t)i,
                             .sg_list = &g,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    wr.wr.rdma.remote_addr = to[i].addr;
    wr.wr.rdma.rkey = to[i].rkey;
    return ibv_post_send(s->qp[i], &wr, &bad);
}

static void side_close(struct side *s) {
    for (int i = 0; i < s->n; i++)
        ibv_destroy_qp(s->qp[i]);
    free(s->qp);
    end_close(&s->e);
}

/* ------------------------------------------------------------------------------------------ the program is killed */

/* Both ends post as fast as they complete, for ever. */
static void keep_busy(struct side *s, const struct peer *to, int *done) {
    struct ibv_wc wc[16];
    int n = ibv_poll_cq(s->e.cq, 16, wc);
    MUST(n >= 0, "poll: %m");
    for (int i = 0; i < n; i++) {
        MUST(wc[i].status == IBV_WC_SUCCESS, "%s while both are there", ibv_wc_status_str(wc[i].status));
        ++*done;
        MUST(!post_write(s, (int)wc[i].wr_id, to), "post: %m");
    }
}

static void victim(const struct options *o, int n, int sock) {
    struct side s;
    struct peer *mine = calloc((size_t)n, sizeof *mine), *theirs = calloc((size_t)n, sizeof *theirs);
    int done = 0;
    side_open(&s, o, n);
    describe(&s, mine);
    stream_send(sock, mine, (size_t)n * sizeof *mine);
    MUST(stream_recv(sock, theirs, (size_t)n * sizeof *theirs), "the other end is gone");
    side_connect(&s, theirs);
    stream_send(sock, "c", 1);
    char c;
    MUST(stream_recv(sock, &c, 1), "the other end is gone");
    for (int i = 0; i < n; i++)
        MUST(!post_write(&s, i, theirs), "post: %m");
    for (;;)
        keep_busy(&s, theirs, &done);
}

static void killed_program(const struct options *o, int n) {
    int sp[2], done = 0, ended = 0, other = 0;
    struct options theirs_o = *o;
    char second[64] = "";
    int devices = 0;
    struct ibv_device **list = ibv_get_device_list(&devices);
    if (devices > 1) /* over the wire */
        theirs_o.dev = strncpy(second, ibv_get_device_name(list[1]), sizeof second - 1);
    ibv_free_device_list(list);
    MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp), "socketpair: %m");
    fflush(NULL);
    pid_t pid = fork();
    MUST(pid >= 0, "fork: %m");
    if (!pid) {
        close(sp[0]);
        victim(&theirs_o, n, sp[1]);
        _exit(0);
    }
    close(sp[1]);
    struct side s;
    struct peer *mine = calloc((size_t)n, sizeof *mine), *theirs = calloc((size_t)n, sizeof *theirs);
    char c;
    side_open(&s, o, n);
    describe(&s, mine);
    MUST(stream_recv(sp[0], theirs, (size_t)n * sizeof *theirs), "the child is gone");
    stream_send(sp[0], mine, (size_t)n * sizeof *mine);
    side_connect(&s, theirs);
    MUST(stream_recv(sp[0], &c, 1), "the child is gone");
    stream_send(sp[0], "c", 1);
    for (int i = 0; i < n; i++)
        MUST(!post_write(&s, i, theirs), "post: %m");
    for (double end = now_s() + scaled(60); done < 2 * n && now_s() < end;)
        keep_busy(&s, theirs, &done);
    CHECK(done >= 2 * n, "%d of %d done", done, 2 * n);
    MUST(!kill(pid, SIGKILL), "kill: %m");
    int st;
    MUST(waitpid(pid, &st, 0) == pid && WIFSIGNALED(st), "wait: %m");
    double start = now_s();
    /* Each of ours has one request under way; it ends with an error that says that nobody is there. */
    for (double end = start + scaled(60); ended < n && now_s() < end;) {
        struct ibv_wc wc;
        if (ibv_poll_cq(s.e.cq, 1, &wc) != 1)
            continue;
        if (wc.status == IBV_WC_SUCCESS) { /* was there in time */
            MUST(!post_write(&s, (int)wc.wr_id, theirs), "post: %m");
            continue;
        }
        ended++;
        if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_REM_ACCESS_ERR && wc.status != IBV_WC_REM_OP_ERR)
            other++;
    }
    CHECK(ended == n && !other, "%d of %d ended with an error, %d with a wrong one", ended, n, other);
    printf("mr_lifecycle: killed with %d QPs: all ended after %.2f s\n", n, now_s() - start);
    side_close(&s);
    /* the NIC is free for another one of that size */
    struct side a, b;
    side_open(&a, o, 2);
    side_open(&b, o, 2);
    describe(&a, mine);
    describe(&b, theirs);
    side_connect(&a, theirs);
    side_connect(&b, mine);
    struct ibv_wc wc;
    CHECK(!post_write(&a, 0, theirs) && wait_wc(a.e.cq, &wc, 10) && !wc.status, "the next program");
    side_close(&a);
    side_close(&b);
    free(mine);
    free(theirs);
    close(sp[0]);
}

/* ------------------------------------------------------------------------------------------- the daemon is killed */

static bool pollable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, (int)scaled(5000)) == 1;
}

#define GONE(call)                                                                                                   \
    do {                                                                                                             \
        errno = 0;                                                                                                   \
        long r_ = (long)(call);                                                                                      \
        CHECK((r_ == EIO || r_ == -1 || r_ == -EIO) && errno == EIO, "returned %ld, errno %s", r_, strerror(errno)); \
    } while (0)
#define GONE_NULL(call)                                                           \
    do {                                                                          \
        errno = 0;                                                                \
        const void *r_ = (call);                                                  \
        CHECK(!r_ && errno == EIO, "returned %p, errno %s", r_, strerror(errno)); \
    } while (0)

static void refused_by_all(struct side *s, struct ibv_srq *srq, struct ibv_comp_channel *ch) {
    struct end *e = &s->e;
    struct ibv_device_attr d;
    struct ibv_device_attr_ex dx;
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_qp_attr qa = {.qp_state = IBV_QPS_ERR};
    struct ibv_qp_init_attr qi = {.send_cq = e->cq, .recv_cq = e->cq, .cap = {.max_send_wr = 1}, .qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr si = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq_attr sa;
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = e->gid}};
    struct ibv_alloc_dm_attr da = {.length = 64};
    struct ibv_modify_cq_attr ma = {.attr_mask = IBV_CQ_ATTR_MODERATE};
    struct ibv_recv_wr rwr = {0}, *rbad;
    struct peer to = {.addr = (uintptr_t)e->buf, .rkey = e->mr->rkey};
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *context;

    GONE(ibv_query_device(e->ctx, &d));
    GONE(ibv_query_device_ex(e->ctx, NULL, &dx));
    GONE(ibv_query_port(e->ctx, 1, &port));
    GONE(ibv_query_gid(e->ctx, 1, 0, &gid));
    GONE_NULL(ibv_alloc_pd(e->ctx));
    GONE_NULL(ibv_reg_mr(e->pd, e->buf, 4096, 0));
    GONE_NULL(ibv_alloc_null_mr(e->pd));
    GONE_NULL(ibv_alloc_dm(e->ctx, &da));
    GONE_NULL(ibv_create_comp_channel(e->ctx));
    GONE_NULL(ibv_create_cq(e->ctx, 16, NULL, NULL, 0));
    GONE(ibv_resize_cq(e->cq, 64));
    GONE(ibv_modify_cq(e->cq, &ma));
    GONE(ibv_req_notify_cq(e->cq, 0));
    GONE_NULL(ibv_create_qp(e->pd, &qi));
    GONE(ibv_modify_qp(s->qp[0], &qa, IBV_QP_STATE));
    GONE(ibv_query_qp(s->qp[0], &qa, IBV_QP_STATE, &qi));
    GONE_NULL(ibv_create_srq(e->pd, &si));
    GONE(ibv_query_srq(srq, &sa));
    GONE_NULL(ibv_create_ah(e->pd, &ah));
    GONE_NULL(ibv_alloc_mw(e->pd, IBV_MW_TYPE_1));
    GONE(post_write(s, 0, &to));
    GONE(ibv_post_recv(s->qp[0], &rwr, &rbad));
    GONE(ibv_post_srq_recv(srq, &rwr, &rbad));
    GONE(ibv_get_cq_event(ch, &cq, &context));
    int n = 0;
    for (int i = 0; i < 4096 && n >= 0; i++)
        n = ibv_poll_cq(e->cq, 1, &wc);
    CHECK(n < 0, "a queue that nobody fills");
}

static void killed_daemon(const struct options *o, pid_t daemon) {
    struct side s;
    side_open(&s, o, 4);
    struct ibv_srq_init_attr si = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(s.e.pd, &si);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(s.e.ctx);
    struct ibv_cq *cq = ibv_create_cq(s.e.ctx, 16, NULL, ch, 0);
    struct peer self[4];
    struct ibv_async_event ev;
    struct ibv_context *second = open_named(o->dev);
    describe(&s, self);
    side_connect(&s, self); /* each to itself */
    for (int i = 0; i < 4; i++)
        MUST(!post_write(&s, i, self), "post: %m");
    MUST(srq && cq && !kill(daemon, SIGKILL), "kill the daemon: %m");
    CHECK(pollable(s.e.ctx->async_fd), "no event");
    CHECK(!ibv_get_async_event(s.e.ctx, &ev) && ev.event_type == IBV_EVENT_DEVICE_FATAL, "event %d: %m", ev.event_type);
    ibv_ack_async_event(&ev);
    GONE(ibv_get_async_event(s.e.ctx, &ev)); /* once */
    CHECK(pollable(second->async_fd) && !ibv_get_async_event(second, &ev) && ev.event_type == IBV_EVENT_DEVICE_FATAL,
          "each context has one");
    refused_by_all(&s, srq, ch);
    /* cleaning up works: what was the daemon's is gone with it */
    CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch), "destroy: %m");
    for (int i = 0; i < 4; i++)
        CHECK(!ibv_destroy_qp(s.qp[i]), "destroy: %m");
    s.n = 0;
    side_close(&s);
    CHECK(!ibv_close_device(second), "close: %m");
    int n = 1;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(!list && !n && errno == ENOSYS, "a list without a daemon: %m");
    printf("mr_lifecycle: daemon killed\n");
}

int main(int argc, char **argv) {
    struct options o = {.count = 100};
    options_parse(&o, argc, argv,
                  "mr_lifecycle: a program is killed with many busy QPs (-n), or the daemon (--extra PID)");
    if (o.extra)
        killed_daemon(&o, o.extra);
    else
        killed_program(&o, (int)o.count);
    printf("mr_lifecycle: %s failures=%d\n", failures ? "FAILED" : "ok", failures);
    return failures != 0;
}
