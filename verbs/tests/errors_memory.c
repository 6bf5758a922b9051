/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_memory.c: cases of mr_errors about the kinds of memory regions: on-demand paging, null, behind a descriptor,
 * of the device; what may be done with each and what not.
 */
#include "errors.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE     4096u
#define ODP(acc) ((acc) | IBV_ACCESS_ON_DEMAND)

static uint8_t *pages(size_t n, int prot) {
    uint8_t *p = mmap(NULL, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(p != MAP_FAILED, "mmap: %m");
    return p;
}

static uint8_t *pages_at(void *at, size_t n) {
    uint8_t *p = mmap(at, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(p == at, "mmap: %m");
    return p;
}

/* Sends `len` bytes from a to an address of b that is there or not. */
static enum ibv_wc_status write_to(struct pair *p, uint64_t remote, uint32_t rkey, uint32_t len) {
    struct wr w = good(p, IBV_WR_RDMA_WRITE);
    w.remote = remote;
    w.rkey = rkey;
    w.len = len;
    MUST(!post(p->a.qp, &w, 1), "post: %m");
    return next(&p->a, NULL);
}

/* Where the daemon goes around the rights of pages (DMA mode 2), there is no on-demand paging, and that is said. */
static bool pages_on_demand(struct end *e) {
    struct ibv_device_attr_ex ex;
    MUST(!ibv_query_device_ex(e->ctx, NULL, &ex), "query_device_ex: %m");
    if (ex.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT))
        return true;
    CHECK(!ex.odp_caps.general_caps, "capabilities %llx", (unsigned long long)ex.odp_caps.general_caps);
    FAILS_NULL(ibv_reg_mr(e->pd, NULL, SIZE_MAX, ODP(ALL_ACCESS)), EOPNOTSUPP);
    FAILS_NULL(ibv_reg_mr(e->pd, e->buf, PAGE, ODP(ALL_ACCESS)), EOPNOTSUPP);
    return false;
}

/* The registration is good for what is mapped when it is used. */
void on_demand(void) {
    struct pair p;
    pair_usual(&p);
    if (!pages_on_demand(&p.b)) {
        pair_close(&p);
        return;
    }
    FAILS_NULL(ibv_reg_mr(p.b.pd, NULL, SIZE_MAX, ALL_ACCESS), EFAULT);
    FAILS_NULL(ibv_reg_mr(p.b.pd, p.b.buf, SIZE_MAX, ODP(ALL_ACCESS)), EINVAL);
    FAILS_NULL(ibv_reg_mr(p.b.pd, NULL, SIZE_MAX, ODP(ALL_ACCESS | IBV_ACCESS_HUGETLB)), EINVAL);
    FAILS_NULL(ibv_reg_mr(p.b.pd, (void *)(uintptr_t)-4096, 8192, ODP(ALL_ACCESS)), EINVAL);
    FAILS_NULL(ibv_reg_mr(p.b.pd, p.b.buf, PAGE, ODP(IBV_ACCESS_REMOTE_WRITE)), EINVAL);

    uint8_t *m = pages(4, PROT_NONE);
    struct ibv_mr *part = ibv_reg_mr(p.b.pd, m, 4 * PAGE, ODP(ALL_ACCESS));
    struct ibv_mr *all = ibv_reg_mr(p.b.pd, NULL, SIZE_MAX, ODP(ALL_ACCESS));
    MUST(part && all, "on-demand regions: %m");
    pages_at(m, 4);
    memset(p.a.buf, 0x5a, 4 * PAGE);
    CHECK(write_to(&p, (uintptr_t)m, part->rkey, 4 * PAGE) == IBV_WC_SUCCESS && m[0] == 0x5a && m[4 * PAGE - 1] == 0x5a,
          "explicit");
    memset(p.a.buf, 0xa5, PAGE);
    CHECK(write_to(&p, (uintptr_t)m, all->rkey, PAGE) == IBV_WC_SUCCESS && m[0] == 0xa5, "implicit");
    /* short messages, too, are put in place by the NIC: the library must not touch what may not be there */
    struct ibv_sge sge = {.addr = (uintptr_t)m, .length = 64, .lkey = all->lkey};
    struct ibv_recv_wr rwr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 64;
    memset(p.a.buf, 0x11, 64);
    MUST(!ibv_post_recv(p.b.qp, &rwr, &bad) && !post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(m[0] == 0x11 && m[63] == 0x11 && m[64] == 0xa5, "received");
    MUST(!ibv_post_recv(p.b.qp, &rwr, &bad) && !mprotect(m, PAGE, PROT_READ) && !post(p.a.qp, &w, 2), "post: %m");
    CHECK(next(&p.a, NULL) == IBV_WC_REM_OP_ERR, "into memory that may not be written");
    EXPECT(&p.b, IBV_WC_LOC_PROT_ERR);
    CHECK(!ibv_dereg_mr(part) && !ibv_dereg_mr(all), "deregister: %m");
    munmap(m, 4 * PAGE);
    pair_close(&p);
}

void on_demand_gone(void) {
    struct pair p;
    pair_usual(&p);
    if (!pages_on_demand(&p.b)) {
        pair_close(&p);
        return;
    }
    struct ibv_mr *all = ibv_reg_mr(p.b.pd, NULL, SIZE_MAX, ODP(ALL_ACCESS));
    uint8_t *m = pages(1, PROT_READ | PROT_WRITE);
    MUST(all, "implicit region: %m");
    munmap(m, PAGE);
    CHECK(write_to(&p, (uintptr_t)m, all->rkey, 8) == IBV_WC_REM_ACCESS_ERR, "unmapped");
    CHECK(!ibv_dereg_mr(all), "deregister: %m");
    pair_close(&p);
}

/* ibv_advise_mr(3) */
void advice(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    if (!pages_on_demand(&e)) {
        end_close(&e);
        return;
    }
    struct ibv_pd *other = ibv_alloc_pd(e.ctx);
    uint8_t *m = pages(8, PROT_READ | PROT_WRITE), *ro = pages(1, PROT_READ);
    struct ibv_mr *mr = ibv_reg_mr(e.pd, m, 8 * PAGE, ODP(ALL_ACCESS));
    struct ibv_mr *rmr = ibv_reg_mr(e.pd, ro, PAGE, IBV_ACCESS_ON_DEMAND);
    MUST(mr && rmr && other, "regions: %m");
    struct ibv_sge s = {.addr = (uintptr_t)m, .length = 8 * PAGE, .lkey = mr->lkey}, b = s;
    const enum ibv_advise_mr_advice read = IBV_ADVISE_MR_ADVICE_PREFETCH, write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    const uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
    unsigned char in[8];

    CHECK(!ibv_advise_mr(e.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, flush, &s, 1), "no fault: %m");
    MUST(!mincore(m, 8 * PAGE, in), "mincore: %m");
    CHECK(!(in[0] & 1), "present without a fault");
    CHECK(!ibv_advise_mr(e.pd, write, flush, &s, 1), "prefetch: %m");
    MUST(!mincore(m, 8 * PAGE, in), "mincore: %m");
    CHECK((in[0] & 1) && (in[7] & 1), "not present after a synchronous prefetch");
    CHECK(!ibv_advise_mr(e.pd, read, 0, &s, 1), "asynchronous: %m");
    FAILS(ibv_advise_mr(e.pd, read, 0, &s, 0), EINVAL);
    FAILS(ibv_advise_mr(e.pd, read, 1u << 9, &s, 1), EINVAL);
    FAILS(ibv_advise_mr(e.pd, (enum ibv_advise_mr_advice)77, 0, &s, 1), EOPNOTSUPP);
    FAILS(ibv_advise_mr(other, read, 0, &s, 1), EPERM);
    b.lkey = mr->lkey ^ 0x5a5a;
    FAILS(ibv_advise_mr(e.pd, read, 0, &b, 1), ENOENT);
    b = s;
    b.lkey = e.mr->lkey; /* not on demand */
    FAILS(ibv_advise_mr(e.pd, read, 0, &b, 1), EINVAL);
    b = s;
    b.length++;
    FAILS(ibv_advise_mr(e.pd, read, 0, &b, 1), EFAULT);
    b = (struct ibv_sge){.addr = (uintptr_t)ro, .length = 1, .lkey = rmr->lkey};
    CHECK(!ibv_advise_mr(e.pd, read, flush, &b, 1), "read-only memory: %m");
    FAILS(ibv_advise_mr(e.pd, write, flush, &b, 1), EPERM);
    munmap(m + PAGE, PAGE);
    FAILS(ibv_advise_mr(e.pd, read, flush, &s, 1), EFAULT);
    CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(rmr) && !ibv_dealloc_pd(other), "free: %m");
    munmap(m, 8 * PAGE);
    munmap(ro, PAGE);
    end_close(&e);
}

/* ibv_alloc_null_mr(3): reads give zeros, writes go nowhere, peers do not reach it. */
void null_region(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_mr *na = ibv_alloc_null_mr(p.a.pd), *nb = ibv_alloc_null_mr(p.b.pd);
    MUST(na && nb, "null regions: %m");
    memset(p.a.buf, 0x77, 300);
    memset(p.b.buf, 0x99, 300);
    struct ibv_sge from[3] = {
        {(uintptr_t)p.a.buf, 100, p.a.mr->lkey}, {12345, 100, na->lkey}, {(uintptr_t)p.a.buf, 100, p.a.mr->lkey}};
    struct ibv_sge to[2] = {{0, 50, nb->lkey}, {(uintptr_t)p.b.buf, 250, p.b.mr->lkey}};
    struct ibv_recv_wr rwr = {.sg_list = to, .num_sge = 2}, *rbad;
    struct ibv_send_wr wr = {.sg_list = from, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    MUST(!ibv_post_recv(p.b.qp, &rwr, &rbad) && !ibv_post_send(p.a.qp, &wr, &bad), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(p.b.buf[0] == 0x77 && p.b.buf[49] == 0x77 && p.b.buf[50] == 0 && p.b.buf[149] == 0 && p.b.buf[150] == 0x77 &&
              p.b.buf[249] == 0x77 && p.b.buf[250] == 0x99,
          "data");
    to[0].length = 40; /* one that a completion has room for */
    from[0].length = 30;
    from[1].length = 20;
    wr.num_sge = 2;
    memset(p.b.buf, 0x99, 300);
    MUST(!ibv_post_recv(p.b.qp, &rwr, &rbad) && !ibv_post_send(p.a.qp, &wr, &bad), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(p.b.buf[0] == 0 && p.b.buf[9] == 0 && p.b.buf[10] == 0x99, "short message");
    errno = 0;
    CHECK(ibv_rereg_mr(na, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL,
          "rereg_mr of a null region");
    CHECK(write_to(&p, 0, nb->lkey, 8) == IBV_WC_REM_ACCESS_ERR, "a null region from afar");
    CHECK(!ibv_dereg_mr(na) && !ibv_dereg_mr(nb), "deregister: %m");
    pair_close(&p);
}

/* struct udmabuf_create of linux/udmabuf.h, which Debian's headers have, but not everybody's */
struct udmabuf {
    uint32_t memfd, flags;
    uint64_t offset, size;
};
#define UDMABUF_MAKE _IOW('u', 0x42, struct udmabuf)

/* A dma-buf of the memfd, where the kernel makes them; else the memfd itself. */
static int dmabuf_of(int memfd, size_t size) {
    struct udmabuf want = {.memfd = (uint32_t)memfd, .size = size};
    int dev = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd = -1;
    if (dev >= 0) {
        fd = ioctl(dev, UDMABUF_MAKE, &want);
        close(dev);
    }
    return fd >= 0 ? fd : dup(memfd);
}

void dmabuf_region(void) {
    struct pair p;
    pair_usual(&p);
    const size_t size = 8 * PAGE;
    int mem = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(mem >= 0 && !ftruncate(mem, size) && !fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK), "memfd: %m");
    uint8_t *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, mem, 0);
    int fd = dmabuf_of(mem, size), pipes[2];
    MUST(m != MAP_FAILED && fd >= 0 && !pipe(pipes), "%m");
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, 0, 0, -1, 0), EOPNOTSUPP); /* NCCL's question */
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, PAGE, 0, 9999, ALL_ACCESS), EBADF);
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, 0, 0, fd, ALL_ACCESS), EINVAL);
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, size + 1, 0, fd, ALL_ACCESS), EINVAL);
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, size, PAGE, 0, fd, ALL_ACCESS), EINVAL);
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 8, PAGE, 16, fd, ALL_ACCESS), EINVAL); /* another place in its page */
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, PAGE, 0, fd, ODP(ALL_ACCESS)), EINVAL);
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, PAGE, 0, fd, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    FAILS_NULL(ibv_reg_dmabuf_mr(p.b.pd, 0, PAGE, 0, pipes[0], ALL_ACCESS), EINVAL);
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(p.b.pd, PAGE + 8, 2 * PAGE, 0x70000008, fd, ALL_ACCESS);
    MUST(mr, "reg_dmabuf_mr: %m");
    close(fd);
    memset(p.a.buf, 0x3c, PAGE);
    CHECK(write_to(&p, 0x70000008, mr->rkey, PAGE) == IBV_WC_SUCCESS, "write");
    CHECK(m[PAGE + 7] == 0 && m[PAGE + 8] == 0x3c && m[2 * PAGE + 7] == 0x3c && m[2 * PAGE + 8] == 0, "data");
    struct ibv_sge sge = {.addr = 0x70000008, .length = 16, .lkey = mr->lkey};
    struct ibv_recv_wr rwr = {.sg_list = &sge, .num_sge = 1}, *bad;
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 16;
    memset(p.a.buf, 0x44, 16);
    MUST(!ibv_post_recv(p.b.qp, &rwr, &bad) && !post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(m[PAGE + 8] == 0x44 && m[PAGE + 23] == 0x44 && m[PAGE + 24] == 0x3c, "short message");
    CHECK(write_to(&p, 0x70000008 + 2 * PAGE, mr->rkey, 1) == IBV_WC_REM_ACCESS_ERR, "behind its end");
    CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    close(mem);
    close(pipes[0]);
    close(pipes[1]);
    munmap(m, size);
    pair_close(&p);
}

/* ibv_alloc_dm(3) */
void device_memory(void) {
    struct pair p;
    struct ibv_device_attr_ex ex;
    pair_usual(&p);
    MUST(!ibv_query_device_ex(p.b.ctx, NULL, &ex), "query_device_ex: %m");
    struct ibv_alloc_dm_attr a = {.length = 3 * PAGE + 4, .log_align_req = 16}, bad = a;
    uint8_t data[64], back[64];
    bad.length = ex.max_dm_size + 1;
    FAILS_NULL(ibv_alloc_dm(p.b.ctx, &bad), ENOMEM);
    bad.length = 0;
    FAILS_NULL(ibv_alloc_dm(p.b.ctx, &bad), EINVAL);
    bad = (struct ibv_alloc_dm_attr){.length = 64, .log_align_req = 63};
    FAILS_NULL(ibv_alloc_dm(p.b.ctx, &bad), EINVAL);
    bad = (struct ibv_alloc_dm_attr){.length = 64, .comp_mask = 1};
    FAILS_NULL(ibv_alloc_dm(p.b.ctx, &bad), EOPNOTSUPP);
    struct ibv_dm *dm = ibv_alloc_dm(p.b.ctx, &a);
    MUST(dm, "alloc_dm: %m");
    memset(data, 0x66, sizeof data);
    CHECK(!ibv_memcpy_to_dm(dm, 8, data, 64) && !ibv_memcpy_from_dm(back, dm, 8, 64) && !memcmp(data, back, 64),
          "copies");
    FAILS(ibv_memcpy_to_dm(dm, 2, data, 4), EINVAL);
    FAILS(ibv_memcpy_to_dm(dm, 0, data, 3), EINVAL);
    FAILS(ibv_memcpy_to_dm(dm, a.length, data, 4), EFAULT);
    FAILS(ibv_memcpy_from_dm(data, dm, a.length - 4, 8), EFAULT);
    FAILS_NULL(ibv_reg_dm_mr(p.b.pd, dm, 0, PAGE, ALL_ACCESS), EINVAL); /* is always zero-based */
    FAILS_NULL(ibv_reg_dm_mr(p.b.pd, dm, 4, a.length, ALL_ACCESS | IBV_ACCESS_ZERO_BASED), EINVAL);
    FAILS_NULL(ibv_reg_dm_mr(p.b.pd, dm, 2, 4, ALL_ACCESS | IBV_ACCESS_ZERO_BASED), EINVAL);
    FAILS_NULL(ibv_reg_dm_mr(p.b.pd, dm, 0, 4, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED), EINVAL);
    struct ibv_mr *mr = ibv_reg_dm_mr(p.b.pd, dm, 64, PAGE, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
    MUST(mr, "reg_dm_mr: %m");
    FAILS(ibv_free_dm(dm), EBUSY);
    memset(p.a.buf, 0x21, 64);
    CHECK(write_to(&p, 32, mr->rkey, 64) == IBV_WC_SUCCESS && !ibv_memcpy_from_dm(back, dm, 96, 64) &&
              back[0] == 0x21 && back[63] == 0x21,
          "written from afar");
    struct wr w = good(&p, IBV_WR_ATOMIC_FETCH_AND_ADD);
    w.remote = 8;
    w.rkey = mr->rkey;
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    CHECK(write_to(&p, PAGE - 4, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR, "behind the region");
    CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm), "free: %m");
    pair_close(&p);
}

/* ibv_rereg_mr(3): everything it may change, alone and together; an error leaves the region as it was. */
void reregister(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_pd *pd2 = ibv_alloc_pd(p.b.ctx);
    uint8_t *m = pages(2, PROT_READ | PROT_WRITE), *ro = pages(1, PROT_READ);
    struct ibv_mr *mr = ibv_reg_mr(p.b.pd, p.b.buf, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr && pd2, "%m");
    const int t = IBV_REREG_MR_CHANGE_TRANSLATION, d = IBV_REREG_MR_CHANGE_PD, a = IBV_REREG_MR_CHANGE_ACCESS;
    struct {
        int flags;
        struct ibv_pd *pd;
        void *addr;
        size_t len;
        int access, err;
    } wrong[] = {{0, NULL, NULL, 0, 0, EINVAL},
                 {8, NULL, NULL, 0, 0, EINVAL},
                 {d, NULL, NULL, 0, 0, EINVAL},
                 {t, NULL, NULL, PAGE, 0, EINVAL},
                 {t, NULL, m, 0, 0, EINVAL},
                 {t, NULL, ro, PAGE, 0, EFAULT},
                 {t | d, pd2, (void *)0x1000, PAGE, 0, EFAULT},
                 {a, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL},
                 {a, NULL, NULL, 0, 1 << 15, EINVAL}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        errno = 0;
        int r = ibv_rereg_mr(mr, wrong[i].flags, wrong[i].pd, wrong[i].addr, wrong[i].len, wrong[i].access);
        CHECK(r == IBV_REREG_MR_ERR_INPUT && errno == wrong[i].err, "wrong[%zu]: %d, %s", i, r, strerror(errno));
    }
    CHECK(mr->pd == p.b.pd && mr->addr == p.b.buf && mr->length == PAGE, "changed by what failed");
    CHECK(write_to(&p, (uintptr_t)p.b.buf, mr->rkey, PAGE) == IBV_WC_SUCCESS, "the old region is still good");
    CHECK(!ibv_rereg_mr(mr, t, NULL, m, 2 * PAGE, 0) && mr->addr == m && mr->length == 2 * PAGE, "translation: %m");
    memset(p.a.buf, 0x42, 2 * PAGE);
    CHECK(write_to(&p, (uintptr_t)m, mr->rkey, 2 * PAGE) == IBV_WC_SUCCESS && m[2 * PAGE - 1] == 0x42, "moved");
    CHECK(!ibv_rereg_mr(mr, d, pd2, NULL, 0, 0) && mr->pd == pd2, "domain: %m");
    FAILS(ibv_dealloc_pd(pd2), EBUSY);
    CHECK(!ibv_rereg_mr(mr, t | d | a, p.b.pd, p.b.buf, PAGE, IBV_ACCESS_REMOTE_READ), "all: %m");
    CHECK(!ibv_dealloc_pd(pd2), "the domain is free: %m");
    CHECK(write_to(&p, (uintptr_t)p.b.buf, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR, "a right that was taken");
    CHECK(!ibv_dereg_mr(mr), "deregister: %m");
    munmap(m, 2 * PAGE);
    munmap(ro, PAGE);
    pair_close(&p);
}
