/* SPDX-License-Identifier: Apache-2.0
 *
 * mr.c: protection domains, memory regions and windows.
 */
#include "mr.h"

#include <stdlib.h>

MR_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
    struct mr_handle req = {0}, rep;
    struct mr_pd *pd = calloc(1, sizeof *pd);
    int err = pd ? MR_CALL(to_ctx(c), MR_OP_ALLOC_PD, &req, &rep) : ENOMEM;
    if (err) {
        free(pd);
        return mr_null(err);
    }
    pd->ibv.context = c;
    pd->ibv.handle = rep.handle;
    return &pd->ibv;
}

MR_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd) {
    int err = mr_free_handle(to_ctx(pd->context), MR_OP_FREE_PD, pd->handle);
    if (!err)
        free(pd);
    return mr_err(err);
}

/* -------------------------------------------------------------------------------------------------- regions */

#define WRITE_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)
#define KNOWN_ACCESS \
    (WRITE_RIGHTS | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB)

/* Checks access flags and memory. Optional flags that we do not know are dropped, that is what optional means. */
static int check_region(const void *addr, size_t len, unsigned *access) {
    if (*access & IBV_ACCESS_ON_DEMAND)
        return EOPNOTSUPP;
    *access &= KNOWN_ACCESS | IBV_ACCESS_RELAXED_ORDERING | ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
    if (*access & ~(unsigned)(KNOWN_ACCESS | IBV_ACCESS_RELAXED_ORDERING))
        return EINVAL;
    if ((*access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(*access & IBV_ACCESS_LOCAL_WRITE))
        return EINVAL;
    if (!len)
        return EINVAL;
    return mr_check_range(addr, len, *access & WRITE_RIGHTS);
}

/* Regions whose work-request addresses are not pointers: the few places that follow an address need to know. */
static void moved_add(struct mr_ctx *ctx, struct mr_mr *m) {
    if (m->iova == (uintptr_t)m->ibv.addr)
        return;
    pthread_mutex_lock(&ctx->mr_lock);
    m->next = ctx->moved;
    __atomic_store_n(&ctx->moved, m, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&ctx->mr_lock);
}

static void moved_del(struct mr_ctx *ctx, struct mr_mr *m) {
    pthread_mutex_lock(&ctx->mr_lock);
    for (struct mr_mr **p = &ctx->moved; *p; p = &(*p)->next)
        if (*p == m) {
            __atomic_store_n(p, m->next, __ATOMIC_RELEASE);
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
            p = addr - m->iova + (uintptr_t)m->ibv.addr;
            break;
        }
    pthread_mutex_unlock(&ctx->mr_lock);
    return (void *)(uintptr_t)p;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
    struct mr_ctx *ctx = to_ctx(pd->context);
    struct mr_reg_mr_reply rep;
    int err = check_region(addr, length, &access);
    if (err)
        return mr_null(err);
    struct mr_reg_mr req = {.pd = pd->handle,
                            .addr = (uintptr_t)addr,
                            .iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova,
                            .length = length,
                            .access = access};
    struct mr_mr *m = calloc(1, sizeof *m);
    err = m ? MR_CALL(ctx, MR_OP_REG_MR, &req, &rep) : ENOMEM;
    if (err) {
        free(m);
        return mr_null(err);
    }
    m->ibv = (struct ibv_mr){.context = pd->context,
                             .pd = pd,
                             .addr = addr,
                             .length = length,
                             .handle = rep.handle,
                             .lkey = rep.lkey,
                             .rkey = rep.rkey};
    m->iova = req.iova;
    m->access = access;
    moved_add(ctx, m);
    return &m->ibv;
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

/* NCCL asks with fd -1 whether this could work, and looks at errno alone. */
MR_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                           int access) {
    (void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
    return mr_null(EOPNOTSUPP);
}

MR_EXPORT int ibv_dereg_mr(struct ibv_mr *mr) {
    struct mr_mr *m = (struct mr_mr *)mr;
    struct mr_ctx *ctx = to_ctx(mr->context);
    int err = mr_free_handle(ctx, MR_OP_DEREG_MR, mr->handle);
    if (err)
        return mr_err(err);
    mr_assist_settle(ctx);
    moved_del(ctx, m);
    free(m);
    return 0;
}

MR_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) {
    struct mr_mr *m = (struct mr_mr *)mr;
    struct mr_ctx *ctx = to_ctx(mr->context);
    bool move = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
    unsigned acc = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : m->access;
    struct mr_reg_mr_reply rep;

    if (!flags || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || ((flags & IBV_REREG_MR_CHANGE_PD) && !pd) ||
        (move && (!addr || !length))) {
        errno = EINVAL;
        return IBV_REREG_MR_ERR_INPUT;
    }
    void *to = move ? addr : mr->addr;
    size_t len = move ? length : mr->length;
    int err = check_region(to, len, &acc);
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
    moved_del(ctx, m);
    if (flags & IBV_REREG_MR_CHANGE_PD)
        mr->pd = pd;
    mr->addr = to;
    mr->length = len;
    mr->lkey = rep.lkey;
    mr->rkey = rep.rkey;
    m->iova = req.iova;
    m->access = acc;
    moved_add(ctx, m);
    return 0;
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
