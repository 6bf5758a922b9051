/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_api.c: cases of mr_errors about registration, details of the API, and fork.
 */
#include "errors.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------------------- registration */

void registration(void) {
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

/* --------------------------------------------------------------------------------------------- API details */

void api_details(void) {
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

/* Calls that say what is so, and what they say of what is not. */
void small_calls(void) {
    struct end e;
    struct ibv_device_attr d;
    struct ibv_gid_entry g, table[8];
    struct ibv_wc wc = {.byte_len = 40, .wc_flags = IBV_WC_GRH};
    struct ibv_grh grh = {0};
    struct ibv_ah_attr ah;
    end_open(&e, &opt, &usual);
    MUST(!ibv_query_device(e.ctx, &d), "query: %m");
    CHECK(ibv_get_device_guid(e.ctx->device) == d.node_guid, "GUID of the device");
    CHECK(ibv_get_device_index(e.ctx->device) >= 0, "index of the device");
    CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED, "nothing is pinned");
    CHECK(!ibv_query_gid_ex(e.ctx, 1, 0, &g, 0) && g.gid_type == IBV_GID_TYPE_ROCE_V2 && g.port_num == 1, "GID 0");
    FAILS(ibv_query_gid_ex(e.ctx, 1, 5000, &g, 0), EINVAL);
    FAILS(ibv_query_gid_ex(e.ctx, 1, 0, &g, 1), EOPNOTSUPP); /* flags that nobody knows */
    CHECK(ibv_query_gid_table(e.ctx, table, 8, 0) >= 1 && !memcmp(&table[0].gid, &g.gid, 16), "table of GIDs");
    CHECK(ibv_query_gid_table(e.ctx, table, 8, 1) == -EOPNOTSUPP, "table with flags");
    FAILS(ibv_init_ah_from_wc(e.ctx, 1, &wc, &grh, &ah), EINVAL); /* a header that is of no GID of ours */
    struct ibv_mr *mr = ibv_reg_mr_iova(e.pd, e.buf, 4096, 0x1000, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr && mr->addr == e.buf && mr->length == 4096, "reg_mr_iova: %m");
    CHECK(mr && !ibv_dereg_mr(mr), "dereg: %m");
    end_close(&e);
}

/* F41: fork with a region in half a page; the child writes the rest, may not use the parent's objects, and may open the
 * device for itself. The parent's traffic goes on. */
static int child(struct pair *p) {
    struct wr w = good(p, IBV_WR_RDMA_WRITE);
    struct ibv_wc wc;
    memset(p->a.buf + 2048, 0xcc, 2048);
    if (post(p->a.qp, &w, 1) != EIO || ibv_poll_cq(p->a.cq, 1, &wc) >= 0 || ibv_alloc_pd(p->a.ctx))
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

void fork_safety(void) {
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
