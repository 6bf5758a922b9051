/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_domains.c: cases of mr_errors about domains: parent and thread domains, and what processes hand to each other.
 * And completion queues as ibv_create_cq_ex and ibv_modify_cq have them.
 */
#include "errors.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------ parent, thread domains */

static int allocs, frees;
static void *own_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type) {
    (void)type;
    CHECK(pd && context == &allocs, "what the allocator is told");
    allocs++;
    void *p = NULL;
    return posix_memalign(&p, alignment, (size + alignment - 1) & ~(alignment - 1)) ? NULL : p;
}
static void own_free(struct ibv_pd *pd, void *context, void *p, uint64_t type) {
    (void)type;
    CHECK(pd && context == &allocs && p, "what the allocator is told");
    frees++;
    free(p);
}
static void *no_memory(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type) {
    (void)pd, (void)context, (void)size, (void)alignment, (void)type;
    return NULL;
}
static void *usual_memory(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type) {
    (void)pd, (void)context, (void)size, (void)alignment, (void)type;
    return IBV_ALLOCATOR_USE_DEFAULT;
}

static struct ibv_qp *qp_of(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq) {
    struct ibv_qp_init_attr a = {.send_cq = cq,
                                 .recv_cq = cq,
                                 .srq = srq,
                                 .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
                                 .qp_type = IBV_QPT_RC};
    return ibv_create_qp(pd, &a);
}

void parent_domains(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_context *c2 = open_named(opt.dev);
    struct ibv_pd *foreign = ibv_alloc_pd(c2);
    struct ibv_td_init_attr ta = {0};
    struct ibv_td *td = ibv_alloc_td(e.ctx, &ta);
    const uint32_t both = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    struct ibv_parent_domain_init_attr a = {
        .pd = e.pd, .td = td, .comp_mask = both, .alloc = own_alloc, .free = own_free, .pd_context = &allocs};
    struct ibv_parent_domain_init_attr b = a;

    MUST(td && foreign, "%m");
    ta.comp_mask = 1;
    FAILS_NULL(ibv_alloc_td(e.ctx, &ta), EOPNOTSUPP);
    b.comp_mask = 1u << 7;
    FAILS_NULL(ibv_alloc_parent_domain(e.ctx, &b), EOPNOTSUPP);
    b = a;
    b.pd = NULL;
    FAILS_NULL(ibv_alloc_parent_domain(e.ctx, &b), EINVAL);
    b.pd = foreign;
    FAILS_NULL(ibv_alloc_parent_domain(e.ctx, &b), EINVAL);
    b = a;
    b.alloc = NULL;
    FAILS_NULL(ibv_alloc_parent_domain(e.ctx, &b), EINVAL);

    allocs = frees = 0;
    struct ibv_pd *pd = ibv_alloc_parent_domain(e.ctx, &a);
    MUST(pd, "parent domain: %m");
    struct ibv_mr *mr = ibv_reg_mr(pd, e.buf, 4096, ALL_ACCESS);
    struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &sa);
    struct ibv_cq_init_attr_ex ca = {
        .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(e.ctx, &ca);
    struct ibv_qp *qp = qp_of(pd, e.cq, srq);
    MUST(mr && srq && cq && qp, "objects of a parent domain: %m");
    CHECK(allocs == 3, "the allocator was asked %d times", allocs);
    CHECK(mr->pd == pd && qp->pd == pd && srq->pd == pd, "the program sees the domain that it gave");
    FAILS(ibv_dealloc_pd(pd), EBUSY);
    FAILS(ibv_dealloc_pd(e.pd), EBUSY);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq((struct ibv_cq *)cq) && !ibv_destroy_srq(srq) && !ibv_dereg_mr(mr),
          "destroy: %m");
    CHECK(frees == 3, "freed %d times", frees);
    CHECK(!ibv_dealloc_pd(pd), "dealloc: %m");
    ca.parent_domain = e.pd; /* is none */
    FAILS_NULL(ibv_create_cq_ex(e.ctx, &ca), EINVAL);
    b = a;
    b.alloc = no_memory;
    pd = ibv_alloc_parent_domain(e.ctx, &b);
    FAILS_NULL(qp_of(pd, e.cq, NULL), ENOMEM);
    CHECK(!ibv_dealloc_pd(pd), "dealloc: %m");
    b.alloc = usual_memory;
    pd = ibv_alloc_parent_domain(e.ctx, &b);
    qp = qp_of(pd, e.cq, NULL);
    frees = 0;
    CHECK(qp && !ibv_destroy_qp(qp) && !frees && !ibv_dealloc_pd(pd), "the default allocator: %m");
    CHECK(!ibv_dealloc_td(td) && !ibv_dealloc_pd(foreign) && !ibv_close_device(c2), "free: %m");
    end_close(&e);
}

/* --------------------------------------------------------------------------------------------- other processes */

static void send_fd(int to, int fd, const void *data, size_t n) {
    char ctl[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec iov = {(void *)data, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    MUST(sendmsg(to, &m, 0) == (ssize_t)n, "sendmsg: %m");
}

static int recv_fd(int from, void *data, size_t n) {
    char ctl[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {data, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
    int fd = -1;
    if (recvmsg(from, &m, 0) == (ssize_t)n && CMSG_FIRSTHDR(&m))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

struct handed {
    uint32_t pd, mr, dm, size, mtu, pad;
    uint64_t addr;
    struct peer peer; /* whom the importer is to connect to */
};

/* The other process: it sends from the region of the first, by a QP of its own in the first one's domain. */
static int importer(int sock) {
    struct handed h;
    int fd = recv_fd(sock, &h, sizeof h);
    struct ibv_context *c = ibv_import_device(fd);
    if (!c || c->cmd_fd != fd)
        return 1;
    struct ibv_pd *pd = ibv_import_pd(c, h.pd);
    struct ibv_mr *mr = pd ? ibv_import_mr(pd, h.mr) : NULL;
    struct ibv_dm *dm = ibv_import_dm(c, h.dm);
    uint32_t word = 0;
    if (!mr || mr->addr || mr->length != h.size || !dm || ibv_memcpy_from_dm(&word, dm, 16, 4) || word != 0xfeedface)
        return 2;
    if (ibv_import_pd(c, h.pd + 1000) || errno != EINVAL || ibv_import_mr(pd, 999999) || errno != EINVAL ||
        ibv_import_dm(c, 999999) || errno != EINVAL)
        return 3;
    struct end e = {.ctx = c, .pd = pd, .mtu = (int)h.mtu};
    struct ibv_cq *cq = ibv_create_cq(c, 16, NULL, NULL, 0);
    struct ibv_qp *qp = qp_of(pd, cq, NULL);
    MUST(cq && qp && !ibv_query_gid(c, 1, 0, &e.gid), "objects: %m");
    struct peer mine = {.qpn = qp->qp_num, .psn = 5, .gid = e.gid};
    MUST(!qp_to_init(qp, ALL_ACCESS) && write(sock, &mine, sizeof mine) == sizeof mine, "%m");
    qp_connect(&e, qp, &h.peer, 5, &impatient);
    char go;
    struct ibv_sge s = {.addr = h.addr, .length = h.size, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    wr.wr.rdma.remote_addr = h.peer.addr;
    wr.wr.rdma.rkey = h.peer.rkey;
    struct ibv_wc wc;
    if (read(sock, &go, 1) != 1 || ibv_post_send(qp, &wr, &bad) || !wait_wc(cq, &wc, 10))
        return 4;
    if (wc.status)
        return 10 + (int)wc.status;
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
    ibv_unimport_mr(mr);
    ibv_unimport_pd(pd);
    ibv_unimport_dm(dm);
    return ibv_close_device(c) ? 5 : 0;
}

/* ibv_import_device(3) and its companions, across processes: each is reached in its own memory. */
void imported(void) {
    int sp[2], st;
    FAILS_NULL(ibv_import_device(-1), EBADF);
    FAILS_NULL(ibv_import_device(0), EBADF);
    MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sp), "socketpair: %m");
    FAILS_NULL(ibv_import_device(sp[0]), EBADF); /* a socket, but not of a daemon */
    struct ibv_context *closed = open_named(opt.dev);
    int old = dup(closed->cmd_fd);
    ibv_close_device(closed);
    struct ibv_context *late = ibv_import_device(old); /* whose descriptor is open is open */
    CHECK(late && late->cmd_fd == old && !ibv_close_device(late), "import after close: %m");
    fflush(NULL);
    pid_t pid = fork();
    MUST(pid >= 0, "fork: %m");
    if (!pid) {
        close(sp[0]);
        _exit(importer(sp[1]));
    }
    close(sp[1]);
    struct pair p; /* b's QP is the importer's peer */
    pair_usual(&p);
    struct ibv_alloc_dm_attr da = {.length = 64};
    struct ibv_dm *dm = ibv_alloc_dm(p.a.ctx, &da);
    const uint32_t word = 0xfeedface;
    MUST(dm && !ibv_memcpy_to_dm(dm, 16, &word, 4), "device memory: %m");
    for (size_t i = 0; i < LEN; i++)
        p.a.buf[i] = (uint8_t)(i * 7);
    struct handed h = {.pd = p.a.pd->handle,
                       .mr = p.a.mr->handle,
                       .dm = dm->handle,
                       .size = LEN,
                       .mtu = (uint32_t)p.b.mtu,
                       .addr = (uintptr_t)p.a.buf};
    struct ibv_qp *qp = qp_of(p.b.pd, p.b.cq, NULL);
    struct peer theirs;
    MUST(qp && !qp_to_init(qp, ALL_ACCESS), "QP: %m");
    end_describe(&p.b, &h.peer, 5);
    h.peer.qpn = qp->qp_num;
    int dup_fd = dup(p.a.ctx->cmd_fd);
    send_fd(sp[0], dup_fd, &h, sizeof h);
    close(dup_fd);
    bool ok = read(sp[0], &theirs, sizeof theirs) == sizeof theirs;
    if (ok) {
        qp_connect(&p.b, qp, &theirs, 5, &impatient);
        ok = write(sp[0], "g", 1) == 1;
    }
    MUST(waitpid(pid, &st, 0) == pid, "wait: %m");
    CHECK(ok && WIFEXITED(st) && WEXITSTATUS(st) == 0, "importer: status %x", st);
    CHECK(!memcmp(p.a.buf, p.b.buf, LEN), "data");
    /* what the importer had is gone, what was shared is not */
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    CHECK(!ibv_free_dm(dm) && !ibv_destroy_qp(qp), "free: %m");
    close(sp[0]);
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------- completion queues */

static bool event_within(struct ibv_comp_channel *ch, int ms) {
    struct pollfd f = {.fd = ch->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;
    if (poll(&f, 1, ms) != 1 || ibv_get_cq_event(ch, &cq, &context))
        return false;
    ibv_ack_cq_events(cq, 1);
    return true;
}

static void drain(struct ibv_cq *cq, int n) {
    struct ibv_wc wc;
    for (int i = 0; i < n; i++)
        MUST(wait_wc(cq, &wc, 10) && !wc.status, "completion");
}

/* ibv_modify_cq(3): an event for so many completions, or so long after the first. */
void moderation(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(p.a.ctx);
    struct ibv_cq *cq = ibv_create_cq(p.a.ctx, 64, NULL, ch, 0);
    MUST(ch && cq, "%m");
    struct ibv_qp *qp = qp_of(p.a.pd, cq, NULL), *to = qp_of(p.b.pd, p.b.cq, NULL);
    struct peer pa, pb;
    MUST(qp && to && !qp_to_init(qp, ALL_ACCESS) && !qp_to_init(to, ALL_ACCESS), "%m");
    end_describe(&p.a, &pa, 9);
    end_describe(&p.b, &pb, 9);
    pa.qpn = qp->qp_num;
    pb.qpn = to->qp_num;
    qp_connect(&p.a, qp, &pb, 9, &impatient);
    qp_connect(&p.b, to, &pa, 9, &impatient);
    struct ibv_modify_cq_attr m = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 4, .cq_period = 65535}},
                              bad = m;
    bad.attr_mask = 0;
    FAILS(ibv_modify_cq(cq, &bad), EINVAL);
    bad.attr_mask = 1u << 5;
    FAILS(ibv_modify_cq(cq, &bad), EOPNOTSUPP);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.len = 8;
    m.moderate.cq_count = 3;
    CHECK(!ibv_modify_cq(cq, &m) && !ibv_req_notify_cq(cq, 0), "modify: %m");
    for (int i = 0; i < 3; i++)
        MUST(!post(qp, &w, 1), "post: %m");
    CHECK(event_within(ch, (int)scaled(5000)), "no event after three");
    drain(cq, 3);
    m.moderate = (struct ibv_moderate_cq){.cq_count = 1000, .cq_period = 60000};
    CHECK(!ibv_modify_cq(cq, &m) && !ibv_req_notify_cq(cq, 0), "modify: %m");
    double start = now_s();
    MUST(!post(qp, &w, 2), "post: %m");
    drain(cq, 1);
    CHECK(event_within(ch, (int)scaled(5000)), "no event after the time");
    CHECK(now_s() - start >= 0.055, "after %.3f s already", now_s() - start);
    m.moderate = (struct ibv_moderate_cq){0, 0};
    CHECK(!ibv_modify_cq(cq, &m) && !ibv_req_notify_cq(cq, 0), "modify: %m");
    MUST(!post(qp, &w, 3), "post: %m");
    CHECK(event_within(ch, (int)scaled(5000)), "no event without moderation");
    drain(cq, 1);
    ibv_destroy_qp(qp);
    ibv_destroy_qp(to);
    CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(ch), "destroy: %m");
    pair_close(&p);
}

/* ibv_create_cq_ex(3) */
void extended_cq(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_device_attr_ex ex;
    const uint64_t stamps = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    struct ibv_cq_init_attr_ex good_cq = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS | stamps}, a;
    const struct {
        uint64_t wc_flags;
        uint32_t comp_mask, flags;
        int cqe, vector, err;
    } wrong[] = {{IBV_WC_EX_WITH_CVLAN, 0, 0, 16, 0, EOPNOTSUPP},
                 {IBV_WC_EX_WITH_FLOW_TAG, 0, 0, 16, 0, EOPNOTSUPP},
                 {IBV_WC_EX_WITH_TM_INFO, 0, 0, 16, 0, EOPNOTSUPP},
                 {1ull << 40, 0, 0, 16, 0, EOPNOTSUPP},
                 {0, 1u << 9, 0, 16, 0, EOPNOTSUPP},
                 {0, IBV_CQ_INIT_ATTR_MASK_FLAGS, 1u << 9, 16, 0, EOPNOTSUPP},
                 {0, IBV_CQ_INIT_ATTR_MASK_PD, 0, 16, 0, EINVAL}, /* no domain */
                 {0, 0, 0, 0, 0, EINVAL},
                 {0, 0, 0, 16, 1000, EINVAL}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        a = (struct ibv_cq_init_attr_ex){.cqe = (uint32_t)wrong[i].cqe,
                                         .comp_vector = (uint32_t)wrong[i].vector,
                                         .wc_flags = wrong[i].wc_flags,
                                         .comp_mask = wrong[i].comp_mask,
                                         .flags = wrong[i].flags};
        errno = 0;
        CHECK(!ibv_create_cq_ex(e.ctx, &a) && errno == wrong[i].err, "wrong[%zu]: %s", i, strerror(errno));
    }
    MUST(!ibv_query_device_ex(e.ctx, NULL, &ex), "query_device_ex: %m");
    CHECK(ex.completion_timestamp_mask == UINT64_MAX && ex.hca_core_clock == 1000000, "clock");
    struct ibv_cq_ex *cq = ibv_create_cq_ex(e.ctx, &good_cq);
    struct ibv_qp *qp = cq ? qp_of(e.pd, (struct ibv_cq *)cq, NULL) : NULL;
    MUST(qp && !qp_to_init(qp, 0), "%m");
    struct ibv_recv_wr wr = {.wr_id = 44}, *bad;
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    struct ibv_poll_cq_attr pa = {0}, pbad = {.comp_mask = 1};
    struct ibv_values_ex v = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, v2 = {.comp_mask = 1u << 20};
    struct timespec real;
    MUST(!ibv_post_recv(qp, &wr, &bad) && !ibv_modify_qp(qp, &err, IBV_QP_STATE), "flush: %m");
    FAILS(ibv_start_poll(cq, &pbad), EINVAL);
    int r;
    for (double end = now_s() + 10; (r = ibv_start_poll(cq, &pa)) == ENOENT && now_s() < end;)
        ;
    MUST(!r, "start_poll: %d", r);
    CHECK(cq->wr_id == 44 && cq->status == IBV_WC_WR_FLUSH_ERR, "completion");
    CHECK(!ibv_query_rt_values_ex(e.ctx, &v) && !clock_gettime(CLOCK_REALTIME, &real), "clock: %m");
    uint64_t ts = ibv_wc_read_completion_ts(cq),
             raw = (uint64_t)v.raw_clock.tv_sec * 1000000000 + (uint64_t)v.raw_clock.tv_nsec;
    uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq),
             now = (uint64_t)real.tv_sec * 1000000000 + (uint64_t)real.tv_nsec;
    CHECK(raw - ts < 20000000000ull, "stamp %llu, clock %llu", (unsigned long long)ts, (unsigned long long)raw);
    CHECK(now - wall < 20000000000ull, "stamp %llu, wall clock %llu", (unsigned long long)wall,
          (unsigned long long)now);
    CHECK(ibv_next_poll(cq) == ENOENT, "one only");
    ibv_end_poll(cq);
    FAILS(ibv_query_rt_values_ex(e.ctx, &v2), EINVAL);
    ibv_destroy_qp(qp);
    CHECK(!ibv_destroy_cq((struct ibv_cq *)cq), "destroy: %m");
    end_close(&e);
}
