/* SPDX-License-Identifier: Apache-2.0
 *
 * mr.c: memory regions and windows.
 */
#include "mr.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* -------------------------------------------------------------------------------------------------- regions */

#define WRITE_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)
#define KNOWN_ACCESS                                                                                             \
    (WRITE_RIGHTS | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | \
     IBV_ACCESS_HUGETLB)

/* Optional flags that we do not know are dropped, that is what optional means. */
static int check_access(unsigned *access) {
    *access &= KNOWN_ACCESS | IBV_ACCESS_RELAXED_ORDERING | ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
    if (*access & ~(unsigned)(KNOWN_ACCESS | IBV_ACCESS_RELAXED_ORDERING))
        return EINVAL;
    if ((*access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(*access & IBV_ACCESS_LOCAL_WRITE))
        return EINVAL;
    return 0;
}

/* Nothing is ever pinned, so on-demand paging is what all regions have. What the flag adds: memory need not be there,
 * or not with these rights, before it is used. Where DMA goes around the rights of pages (/proc/PID/mem) they must have
 * been checked before. */
static int check_on_demand(struct mr_ctx *ctx, const void *addr, size_t len, unsigned access) {
    if (ctx->conn.hello.dma_mode == MR_DMA_PROC_MEM)
        return EOPNOTSUPP;
    if (len == SIZE_MAX) /* the whole address space */
        return addr || (access & IBV_ACCESS_HUGETLB) ? EINVAL : 0;
    if ((uintptr_t)addr + len < (uintptr_t)addr)
        return EINVAL;
    return access & IBV_ACCESS_HUGETLB ? mr_check_huge(addr, len) : 0;
}

static int check_region(struct mr_ctx *ctx, const void *addr, size_t len, unsigned *access) {
    int err = check_access(access);
    if (err || !len)
        return EINVAL;
    if (*access & IBV_ACCESS_ON_DEMAND)
        return check_on_demand(ctx, addr, len, *access);
    return mr_check_range(addr, len, *access & WRITE_RIGHTS);
}

/* Regions whose work-request addresses are not pointers: the few places that follow an address need to know. */
static bool is_moved(const struct mr_mr *m) {
    return m->kind != MR_MR_NULL && m->kind != MR_MR_IMPORTED && m->iova != (uintptr_t)m->mem;
}

static void list_add(struct mr_ctx *ctx, struct mr_mr *m) {
    struct mr_mr **b = &ctx->keys[m->ibv.lkey % MR_KEY_BUCKETS];
    pthread_mutex_lock(&ctx->mr_lock);
    m->by_key = *b;
    *b = m;
    if (is_moved(m)) {
        m->next = ctx->moved;
        __atomic_store_n(&ctx->moved, m, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&ctx->mr_lock);
}

static void list_del(struct mr_ctx *ctx, struct mr_mr *m) {
    pthread_mutex_lock(&ctx->mr_lock);
    for (struct mr_mr **p = &ctx->moved; *p; p = &(*p)->next)
        if (*p == m) {
            __atomic_store_n(p, m->next, __ATOMIC_RELEASE);
            break;
        }
    for (struct mr_mr **p = &ctx->keys[m->ibv.lkey % MR_KEY_BUCKETS]; *p; p = &(*p)->by_key)
        if (*p == m) {
            *p = m->by_key;
            break;
        }
    pthread_mutex_unlock(&ctx->mr_lock);
}

void *mr_sge_pointer(struct mr_ctx *ctx, uint32_t lkey, uint64_t addr) {
    if (!__atomic_load_n(&ctx->moved, __ATOMIC_ACQUIRE))
        return (void *)(uintptr_t)addr;
    pthread_mutex_lock(&ctx->mr_lock);
    uint64_t p = addr;
    for (struct mr_mr *m = ctx->moved; m; m = m->next)
        if (m->ibv.lkey == lkey) {
            p = addr - m->iova + (uintptr_t)m->mem;
            break;
        }
    pthread_mutex_unlock(&ctx->mr_lock);
    return (void *)(uintptr_t)p;
}

static struct ibv_mr *finish(struct mr_ctx *ctx, struct ibv_pd *pd, struct mr_mr *m, const struct mr_reg_mr_reply *r) {
    m->ibv.context = pd->context;
    m->ibv.pd = pd;
    m->ibv.handle = r->handle;
    m->ibv.lkey = r->lkey;
    m->ibv.rkey = r->rkey;
    list_add(ctx, m);
    return &m->ibv;
}

/* Registers what `want` says: address, length, iova, kind and what belongs to it. */
struct ibv_mr *mr_reg(struct ibv_pd *pd, const struct mr_mr *want, unsigned access) {
    struct mr_ctx *ctx = to_ctx(pd->context);
    struct mr_reg_mr_reply rep;
    /* nothing at all may be registered of device memory only, as the kernel has it */
    int err = want->kind == MR_MR_DM && !want->ibv.length ? check_access(&access)
                                                          : check_region(ctx, want->mem, want->ibv.length, &access);
    struct mr_mr *m = err ? NULL : calloc(1, sizeof *m);

    if (!m)
        return mr_null(err ? err : ENOMEM);
    *m = *want;
    m->access = access;
    if (access & IBV_ACCESS_ZERO_BASED)
        m->iova = 0;
    struct mr_reg_mr req = {
        .pd = pd->handle, .addr = (uintptr_t)m->mem, .iova = m->iova, .length = m->ibv.length, .access = access};
    err = MR_CALL(ctx, MR_OP_REG_MR, &req, &rep);
    if (err) {
        free(m);
        return mr_null(err);
    }
    return finish(ctx, pd, m, &rep);
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
    struct mr_mr want = {.ibv = {.addr = addr, .length = length}, .mem = addr, .iova = iova};
    return mr_reg(pd, &want, access);
}

MR_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return reg(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

MR_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    return reg(pd, addr, length, iova, (unsigned)access);
}

MR_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                          unsigned access) {
    return reg(pd, addr, length, iova, access);
}

/* Reads give zeros, writes go nowhere. For lists of work requests only. */
struct ibv_mr *mr_alloc_null_mr(struct ibv_pd *pd) {
    struct mr_ctx *ctx = to_ctx(pd->context);
    struct mr_handle req = {.handle = pd->handle};
    struct mr_reg_mr_reply rep;
    struct mr_mr *m = calloc(1, sizeof *m);
    int err = m ? MR_CALL(ctx, MR_OP_ALLOC_NULL_MR, &req, &rep) : ENOMEM;
    if (err) {
        free(m);
        return mr_null(err);
    }
    m->kind = MR_MR_NULL;
    m->ibv.length = SIZE_MAX;
    m->access = IBV_ACCESS_LOCAL_WRITE;
    rep.rkey = 0;
    return finish(ctx, pd, m, &rep);
}

/* A file that ends before its mapping is a trap for whoever touches the rest. */
static bool is_long_enough(int fd, uint64_t end) {
    struct stat st;
    if (fstat(fd, &st))
        return false;
    off_t size = S_ISREG(st.st_mode) ? st.st_size : lseek(fd, 0, SEEK_END); /* of a dma-buf; it has no position */
    return size >= 0 && (uint64_t)size >= end;
}

/* Memory behind a descriptor: what can be mapped (udmabuf, memfd) is mapped here and registered like any other. NCCL
 * asks with fd -1 whether this could work for memory of a GPU, and looks at errno alone. */
MR_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                           int access) {
    const unsigned allowed = WRITE_RIGHTS | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skip = offset % page;
    const bool writes = access & WRITE_RIGHTS;
    struct stat st;

    if (fd < 0)
        return mr_null(EOPNOTSUPP);
    if (fstat(fd, &st))
        return mr_null(EBADF);
    if (((unsigned)access & ~allowed) || !length || offset + length < offset || iova % page != skip ||
        !is_long_enough(fd, offset + length))
        return mr_null(EINVAL);
    void *p = mmap(NULL, length + skip, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, (off_t)(offset - skip));
    if (p == MAP_FAILED)
        return mr_null(EOPNOTSUPP);
    struct mr_mr want = {.ibv = {.addr = (void *)(uintptr_t)offset, .length = length},
                         .mem = (char *)p + skip,
                         .iova = iova,
                         .kind = MR_MR_MAPPED,
                         .map = p,
                         .map_len = length + skip};
    struct ibv_mr *mr = mr_reg(pd, &want, (unsigned)access);
    if (!mr) {
        int saved = errno;
        munmap(p, length + skip);
        errno = saved;
    }
    return mr;
}

static void drop(struct mr_ctx *ctx, struct mr_mr *m) {
    list_del(ctx, m);
    if (m->kind == MR_MR_MAPPED)
        munmap(m->map, m->map_len);
    if (m->kind == MR_MR_DM)
        mr_dm_put(m->dm);
    free(m);
}

MR_EXPORT int ibv_dereg_mr(struct ibv_mr *mr) {
    struct mr_ctx *ctx = to_ctx(mr->context);
    int err = mr_free_handle(ctx, MR_OP_DEREG_MR, mr->handle);
    if (err)
        return mr_err(err);
    mr_assist_settle(ctx);
    drop(ctx, (struct mr_mr *)mr);
    return 0;
}

/* Another program's region of a shared context: its keys work here, its address does not. */
MR_EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle) {
    struct mr_ctx *ctx = to_ctx(pd->context);
    struct mr_handle req = {.handle = handle};
    struct mr_import_mr_reply rep;
    struct mr_mr *m = calloc(1, sizeof *m);
    int err = m ? MR_CALL(ctx, MR_OP_IMPORT_MR, &req, &rep) : ENOMEM;
    if (err) {
        free(m);
        return mr_null(err);
    }
    m->kind = MR_MR_IMPORTED;
    m->ibv.length = rep.length;
    m->iova = rep.iova;
    m->access = rep.access;
    struct mr_reg_mr_reply keys = {.handle = handle, .lkey = rep.lkey, .rkey = rep.rkey};
    return finish(ctx, pd, m, &keys);
}

MR_EXPORT void ibv_unimport_mr(struct ibv_mr *mr) {
    drop(to_ctx(mr->context), (struct mr_mr *)mr);
}

MR_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) {
    struct mr_mr *m = (struct mr_mr *)mr;
    struct mr_ctx *ctx = to_ctx(mr->context);
    bool move = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
    unsigned acc = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : m->access;
    struct mr_reg_mr_reply rep;

    if (!flags || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || ((flags & IBV_REREG_MR_CHANGE_PD) && !pd) ||
        (move && (!addr || !length)) || m->kind != MR_MR_PLAIN) {
        errno = EINVAL;
        return IBV_REREG_MR_ERR_INPUT;
    }
    void *to = move ? addr : m->mem;
    size_t len = move ? length : mr->length;
    int err = check_region(ctx, to, len, &acc);
    if (err) {
        errno = err;
        return IBV_REREG_MR_ERR_INPUT;
    }
    struct mr_reg_mr req = {.handle = mr->handle,
                            .pd = flags & IBV_REREG_MR_CHANGE_PD ? pd->handle : mr->pd->handle,
                            .addr = (uintptr_t)to,
                            .iova = acc & IBV_ACCESS_ZERO_BASED ? 0
                                    : move                      ? (uintptr_t)to
                                                                : m->iova,
                            .length = len,
                            .access = acc,
                            .rereg = (uint32_t)flags};
    err = MR_CALL(ctx, MR_OP_REREG_MR, &req, &rep);
    if (err) /* the daemon changes all or nothing: the old region is still good */
        return err == EOPNOTSUPP || err == EINVAL ? IBV_REREG_MR_ERR_INPUT : IBV_REREG_MR_ERR_CMD;
    mr_assist_settle(ctx);
    list_del(ctx, m);
    if (flags & IBV_REREG_MR_CHANGE_PD)
        mr->pd = pd;
    mr->addr = m->mem = to;
    mr->length = len;
    mr->lkey = rep.lkey;
    mr->rkey = rep.rkey;
    m->iova = req.iova;
    m->access = acc;
    list_add(ctx, m);
    return 0;
}

/* ------------------------------------------------------------------------------------------------- prefetch */

/* Finds a region for advice: 0 or errno. */
static int find_advised(struct mr_ctx *ctx, struct ibv_pd *pd, const struct ibv_sge *s, bool write, void **at) {
    int err = ENOENT;
    pthread_mutex_lock(&ctx->mr_lock);
    for (struct mr_mr *m = ctx->keys[s->lkey % MR_KEY_BUCKETS]; m; m = m->by_key) {
        if (m->ibv.lkey != s->lkey)
            continue;
        uint64_t off = s->addr - m->iova;
        if (m->kind == MR_MR_IMPORTED || !(m->access & IBV_ACCESS_ON_DEMAND))
            err = EINVAL;
        else if (m->ibv.pd->handle != pd->handle || (write && !(m->access & IBV_ACCESS_LOCAL_WRITE)))
            err = EPERM;
        else if (s->addr < m->iova || off > m->ibv.length || s->length > m->ibv.length - off)
            err = EFAULT;
        else
            err = 0;
        *at = (char *)m->mem + off;
        break;
    }
    pthread_mutex_unlock(&ctx->mr_lock);
    return err;
}

/* Makes pages present. Without `wait` it is a hint. */
static int prefetch(void *at, size_t len, bool write, bool wait) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);
    size_t n = ((uintptr_t)at + len - from + page - 1) & ~(page - 1);
    int saved = errno, err = 0;

    if (!len)
        return 0;
    if (!wait)
        madvise((void *)from, n, MADV_WILLNEED);
    else if (madvise((void *)from, n, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) && errno != EINVAL)
        err = EFAULT; /* EINVAL: kernels before 5.14; it is no more than advice */
    errno = saved;
    return err;
}

int mr_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
                 uint32_t n) {
    struct mr_ctx *ctx = to_ctx(pd->context);
    bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    void *at;
    int err = 0;

    if (mr_is_gone(ctx))
        return mr_err(EIO);
    if ((flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH) || !n)
        return mr_err(EINVAL);
    if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
        return mr_err(EOPNOTSUPP);
    for (uint32_t i = 0; !err && i < n; i++)
        err = find_advised(ctx, pd, &list[i], write, &at);
    if (advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
        return mr_err(err); /* what is present needs nothing */
    for (uint32_t i = 0; !err && i < n; i++) {
        err = find_advised(ctx, pd, &list[i], write, &at);
        if (!err)
            err = prefetch(at, list[i].length, write, flags & IBV_ADVISE_MR_FLAG_FLUSH);
    }
    return mr_err(err);
}

/* -------------------------------------------------------------------------------------------------- windows */

struct ibv_mw *mr_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    struct mr_alloc_mw req = {.pd = pd->handle, .type = type};
    struct mr_reg_mr_reply rep;
    struct ibv_mw *mw = calloc(1, sizeof *mw);
    int err = mw ? MR_CALL(to_ctx(pd->context), MR_OP_ALLOC_MW, &req, &rep) : ENOMEM;
    if (err) {
        free(mw);
        return mr_null(err);
    }
    *mw = (struct ibv_mw){.context = pd->context, .pd = pd, .rkey = rep.rkey, .handle = rep.handle, .type = type};
    return mw;
}

int mr_dealloc_mw(struct ibv_mw *mw) {
    int err = mr_free_handle(to_ctx(mw->context), MR_OP_FREE_MW, mw->handle);
    if (!err)
        free(mw);
    return mr_err(err);
}

/* Type 1: a work request like any other, with the next key of the window. */
int mr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind) {
    struct ibv_send_wr wr = {.wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags}, *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = bind->bind_info;
    int err = mr_post_send(qp, &wr, &bad);
    if (!err)
        mw->rkey = wr.bind_mw.rkey;
    return err;
}
