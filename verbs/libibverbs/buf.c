/* SPDX-License-Identifier: Apache-2.0
 *
 * buf.c: calls that rdma-core got after the headers here (59 to 64): registration by a list of attributes, and buffers
 * that the library allocates. Buffers are anonymous memory.
 */
#include "mr.h"

#include <stdlib.h>
#include <sys/mman.h>

struct ibv_buf {
    struct ibv_pd *pd;
    void *addr;
    size_t size;
};
struct ibv_dmah;

enum { /* enum ibv_mr_init_attr_mask */
       MASK_IOVA = 1 << 0,
       MASK_ADDR = 1 << 1,
       MASK_FD = 1 << 2,
       MASK_FD_OFFSET = 1 << 3,
       MASK_DMAH = 1 << 4,
       MASK_BUF = 1 << 5,
};
struct ibv_mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    struct ibv_dmah *dmah; /* @48 */
    struct ibv_buf *buf;   /* rdma-core 64: not there before, and looked at only with its bit */
};

MR_EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *a);
MR_EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
MR_EXPORT void ibv_free_buf(struct ibv_buf *buf);
MR_EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
MR_EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);

static bool is_in_buf(const struct ibv_buf *b, const void *addr, size_t length) {
    size_t off = (size_t)((uintptr_t)addr - (uintptr_t)b->addr);
    return (uintptr_t)addr >= (uintptr_t)b->addr && off <= b->size && length <= b->size - off;
}

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *a) {
    const uint64_t m = a->comp_mask;
    if (m & ~(uint64_t)(MASK_IOVA | MASK_ADDR | MASK_FD | MASK_FD_OFFSET | MASK_BUF))
        return mr_null(EOPNOTSUPP); /* DMA handles among them: there are none */
    if (m & MASK_FD) {
        if ((m & (MASK_ADDR | MASK_BUF)) || !(m & MASK_FD_OFFSET) || !(m & MASK_IOVA))
            return mr_null(EINVAL);
        return ibv_reg_dmabuf_mr(pd, a->fd_offset, a->length, a->iova, a->fd, a->access);
    }
    if (!(m & MASK_ADDR) || (m & MASK_FD_OFFSET))
        return mr_null(EINVAL);
    if ((m & MASK_BUF) && (a->buf->pd != pd || !is_in_buf(a->buf, a->addr, a->length)))
        return mr_null(EINVAL);
    uint64_t iova = m & MASK_IOVA ? a->iova : (uintptr_t)a->addr;
    return ibv_reg_mr_iova2(pd, a->addr, a->length, iova, (unsigned)a->access);
}

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf) {
    if (!size)
        return mr_null(EINVAL);
    struct ibv_buf *b = malloc(sizeof *b);
    if (!b)
        return mr_null(ENOMEM);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        free(b);
        return mr_null(ENOMEM);
    }
    *b = (struct ibv_buf){.pd = pd, .addr = p, .size = size};
    *buf = b;
    return p;
}

void ibv_free_buf(struct ibv_buf *b) {
    munmap(b->addr, b->size);
    free(b);
}

struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access) {
    struct ibv_mr_init_attr a = {
        .length = length, .access = access, .comp_mask = MASK_BUF | MASK_ADDR, .addr = addr, .buf = buf};
    return ibv_reg_mr_ex(pd, &a);
}

int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) {
    (void)buf;
    return mr_minus1(ENODATA); /* not of a dma-buf */
}
