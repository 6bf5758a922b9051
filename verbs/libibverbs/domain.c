/* SPDX-License-Identifier: Apache-2.0
 *
 * domain.c: protection, parent and thread domains.
 *
 * A parent domain stands for the domain it was made of: the daemon knows only that one. A program's allocator gives the
 * memory of QPs, CQs and shared receive queues as far as it is the program's own; rings are read by the NIC and lie in
 * the context's shared memory. A thread domain says that its user takes care of locking; our locks are free then, and
 * stay.
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

MR_EXPORT int ibv_dealloc_pd(struct ibv_pd *ibpd) {
    struct mr_pd *pd = (struct mr_pd *)ibpd;
    if (atomic_load(&pd->refs))
        return mr_err(EBUSY);
    int err = pd->below ? 0 : mr_free_handle(to_ctx(ibpd->context), MR_OP_FREE_PD, ibpd->handle);
    if (err)
        return mr_err(err);
    if (pd->below)
        atomic_fetch_sub(&pd->below->refs, 1);
    free(pd);
    return 0;
}

/* Another program's domain of a shared context. */
MR_EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t handle) {
    struct mr_handle req = {.handle = handle};
    struct mr_hdr rep;
    struct mr_pd *pd = calloc(1, sizeof *pd);
    int err = pd ? MR_CALL(to_ctx(c), MR_OP_IMPORT_PD, &req, &rep) : ENOMEM;
    if (err) {
        free(pd);
        return mr_null(err);
    }
    pd->ibv.context = c;
    pd->ibv.handle = handle;
    return &pd->ibv;
}

MR_EXPORT void ibv_unimport_pd(struct ibv_pd *pd) {
    free(pd);
}

/* ---------------------------------------------------------------------------------------------------- parents */

struct ibv_pd *mr_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a) {
    const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if (a->comp_mask & ~known)
        return mr_null(EOPNOTSUPP);
    bool allocates = a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    if (!a->pd || a->pd->context != c || (a->td && a->td->context != c) || (allocates && (!a->alloc || !a->free)))
        return mr_null(EINVAL);
    struct mr_pd *pd = calloc(1, sizeof *pd), *below = (struct mr_pd *)a->pd;
    if (!pd)
        return mr_null(ENOMEM);
    pd->ibv = (struct ibv_pd){.context = c, .handle = a->pd->handle};
    pd->below = below;
    pd->single_threaded = a->td != NULL;
    if (allocates) {
        pd->allocates = true;
        pd->alloc = a->alloc;
        pd->free = a->free;
    }
    if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
        pd->context = a->pd_context;
    atomic_fetch_add(&below->refs, 1);
    return &pd->ibv;
}

void *mr_pd_alloc(struct ibv_pd *ibpd, size_t size, enum mr_resource type, struct mr_pd **from) {
    struct mr_pd *pd = (struct mr_pd *)ibpd;
    *from = NULL;
    if (!pd || !pd->allocates)
        return calloc(1, size);
    void *p = pd->alloc(ibpd, pd->context, size, 64, type);
    if (p == IBV_ALLOCATOR_USE_DEFAULT)
        return calloc(1, size);
    if (!p)
        return NULL;
    memset(p, 0, size);
    *from = pd;
    atomic_fetch_add(&pd->refs, 1);
    return p;
}

void mr_pd_release(struct mr_pd *from, void *p, enum mr_resource type) {
    if (!from) {
        free(p);
        return;
    }
    from->free(&from->ibv, from->context, p, type);
    atomic_fetch_sub(&from->refs, 1);
}

/* ---------------------------------------------------------------------------------------------------- threads */

struct ibv_td *mr_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr) {
    if (attr->comp_mask)
        return mr_null(EOPNOTSUPP);
    struct ibv_td *td = calloc(1, sizeof *td);
    if (!td)
        return mr_null(ENOMEM);
    td->context = c;
    return td;
}

int mr_dealloc_td(struct ibv_td *td) {
    free(td);
    return 0;
}
