/* SPDX-License-Identifier: Apache-2.0
 *
 * dm.c: device memory. The NIC has none: it is a sealed file in memory, mapped here, that the daemon counts and keeps
 * for programs that import it.
 */
#include "mr.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define DM_ALIGN 4u /* of offsets and lengths, as on cards */

static bool is_inside(const struct mr_dm *dm, uint64_t offset, uint64_t length) {
    return offset <= dm->length && length <= dm->length - offset;
}

static int copy_check(const struct mr_dm *dm, uint64_t offset, size_t length) {
    if (offset % DM_ALIGN || length % DM_ALIGN)
        return EINVAL;
    return is_inside(dm, offset, length) ? 0 : EFAULT;
}

static int copy_to(struct ibv_dm *ibdm, uint64_t offset, const void *host, size_t length) {
    struct mr_dm *dm = (struct mr_dm *)ibdm;
    int err = copy_check(dm, offset, length);
    if (!err)
        memcpy(dm->base + offset, host, length);
    return mr_err(err);
}

static int copy_from(void *host, struct ibv_dm *ibdm, uint64_t offset, size_t length) {
    struct mr_dm *dm = (struct mr_dm *)ibdm;
    int err = copy_check(dm, offset, length);
    if (!err)
        memcpy(host, dm->base + offset, length);
    return mr_err(err);
}

/* Maps the file at an address that is a multiple of `align`. */
static int map(struct mr_dm *dm, int fd, uint64_t align) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    dm->mapped = (dm->length + page - 1) & ~(page - 1);
    uint64_t spare = align > page ? align : 0;
    uint8_t *p = mmap(NULL, dm->mapped + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return ENOMEM;
    uint8_t *at = spare ? (uint8_t *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1)) : p;
    if (at != p)
        munmap(p, (size_t)(at - p));
    if (at + dm->mapped != p + dm->mapped + spare)
        munmap(at + dm->mapped, (size_t)(p + spare - at));
    if (mmap(at, dm->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int err = errno;
        munmap(at, dm->mapped);
        return err;
    }
    dm->base = at;
    return 0;
}

/* A new file for dm->length bytes: its descriptor or a negative errno. */
static int make_file(struct mr_dm *dm, uint64_t align) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = (dm->length + page - 1) & ~(page - 1);
    void *p;
    int fd = mr_memfd(bytes, &p);
    if (fd < 0)
        return fd;
    munmap(p, bytes);
    int err = map(dm, fd, align);
    if (err) {
        close(fd);
        return -err;
    }
    return fd;
}

static void drop(struct mr_dm *dm) {
    munmap(dm->base, dm->mapped);
    free(dm);
}

static struct ibv_dm *finish(struct mr_dm *dm, struct ibv_context *c, uint32_t handle) {
    dm->ibv = (struct ibv_dm){.context = c,
                              .memcpy_to_dm = copy_to,
                              .memcpy_from_dm = copy_from,
                              .comp_mask = IBV_DM_MASK_HANDLE,
                              .handle = handle};
    return &dm->ibv;
}

/* A forked child has no part in its parent's context. Device memory is all that it needs no object of the parent for:
 * it gets some of its own, by a context that lives as long. */
static struct ibv_dm *alloc_in_child(struct ibv_context *c, struct ibv_alloc_dm_attr *attr) {
    struct ibv_context *own = ibv_open_device(c->device);
    struct ibv_dm *dm = own ? mr_alloc_dm(own, attr) : NULL;
    if (dm) {
        ((struct mr_dm *)dm)->own = own;
        dm->context = c;
    } else if (own) {
        int saved = errno;
        ibv_close_device(own);
        errno = saved;
    }
    return dm;
}

struct ibv_dm *mr_alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr) {
    struct mr_ctx *ctx = to_ctx(c);
    struct mr_handle rep;
    if (ctx->forked)
        return alloc_in_child(c, attr);
    if (attr->comp_mask)
        return mr_null(EOPNOTSUPP);
    if (!attr->length || attr->log_align_req > 30)
        return mr_null(EINVAL);
    if (attr->length > (uint64_t)ctx->attr.max_dm_kib << 10)
        return mr_null(ENOMEM);
    struct mr_dm *dm = calloc(1, sizeof *dm);
    if (!dm)
        return mr_null(ENOMEM);
    dm->length = attr->length;
    int fd = make_file(dm, 1ull << attr->log_align_req);
    if (fd < 0) {
        free(dm);
        return mr_null(-fd);
    }
    struct mr_dm_msg req = {.length = attr->length};
    int err = mr_call_pass(ctx, MR_OP_ALLOC_DM, &req, sizeof req, fd, &rep, sizeof rep);
    close(fd);
    if (err) {
        drop(dm);
        return mr_null(err);
    }
    return finish(dm, c, rep.handle);
}

int mr_free_dm(struct ibv_dm *ibdm) {
    struct mr_dm *dm = (struct mr_dm *)ibdm;
    if (atomic_load(&dm->refs))
        return mr_err(EBUSY);
    int err = mr_free_handle(to_ctx(dm->own ? dm->own : ibdm->context), MR_OP_FREE_DM, ibdm->handle);
    if (err)
        return mr_err(err);
    if (dm->own)
        ibv_close_device(dm->own);
    drop(dm);
    return 0;
}

struct ibv_mr *mr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *ibdm, uint64_t offset, size_t length, unsigned access) {
    const unsigned allowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_OPTIONAL_RANGE;
    struct mr_dm *dm = (struct mr_dm *)ibdm;
    if (!(access & IBV_ACCESS_ZERO_BASED) || (access & ~allowed) || pd->context != ibdm->context || offset % DM_ALIGN ||
        length % DM_ALIGN || !is_inside(dm, offset, length))
        return mr_null(EINVAL);
    struct mr_mr want = {.ibv = {.length = length}, .mem = dm->base + offset, .kind = MR_MR_DM, .dm = dm};
    struct ibv_mr *mr = mr_reg(pd, &want, access);
    if (mr)
        atomic_fetch_add(&dm->refs, 1);
    return mr;
}

MR_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *c, uint32_t handle) {
    struct mr_handle req = {.handle = handle};
    struct mr_dm_msg rep;
    int fd = -1;
    struct mr_dm *dm = calloc(1, sizeof *dm);
    int err = dm ? mr_call_fds(to_ctx(c), MR_OP_IMPORT_DM, &req, sizeof req, &rep, sizeof rep, &fd, 1) : ENOMEM;
    if (!err && fd < 0)
        err = EIO;
    if (!err) {
        dm->length = rep.length;
        err = map(dm, fd, 1);
    }
    if (fd >= 0)
        close(fd);
    if (err) {
        free(dm);
        return mr_null(err);
    }
    dm->imported = true;
    atomic_store(&dm->refs, 1); /* a region over it outlives its handle */
    return finish(dm, c, handle);
}

/* A region over it is gone, or the handle of one that was imported. */
void mr_dm_put(struct mr_dm *dm) {
    if (atomic_fetch_sub(&dm->refs, 1) == 1 && dm->imported)
        drop(dm);
}

MR_EXPORT void ibv_unimport_dm(struct ibv_dm *dm) {
    mr_dm_put((struct mr_dm *)dm);
}
