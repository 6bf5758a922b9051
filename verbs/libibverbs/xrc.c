/* SPDX-License-Identifier: Apache-2.0
 *
 * xrc.c: XRC domains, and opening another program's QPs in them. A domain is that of a file: whoever has the file open
 * may open the domain, so the descriptor goes to the daemon.
 */
#include "mr.h"

#include <fcntl.h>
#include <stdlib.h>

struct ibv_xrcd *mr_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a) {
    struct mr_ctx *ctx = to_ctx(c);
    struct mr_open_xrcd req = {.flags = (uint32_t)a->oflags & (O_CREAT | O_EXCL)};
    struct mr_handle rep;

    if (a->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED)
        return mr_null(EOPNOTSUPP);
    if (!(a->comp_mask & IBV_XRCD_INIT_ATTR_FD) || !(a->comp_mask & IBV_XRCD_INIT_ATTR_OFLAGS))
        return mr_null(EINVAL);
    if (a->fd != -1 && fcntl(a->fd, F_GETFD) < 0)
        return mr_null(EBADF);
    struct mr_xrcd *x = calloc(1, sizeof *x);
    if (!x)
        return mr_null(ENOMEM);
    int err = mr_call_pass(ctx, MR_OP_OPEN_XRCD, &req, sizeof req, a->fd, &rep, sizeof rep);
    if (err) {
        free(x);
        return mr_null(err);
    }
    x->ibv.context = c;
    x->handle = rep.handle;
    return &x->ibv;
}

int mr_close_xrcd(struct ibv_xrcd *xrcd) {
    struct mr_xrcd *x = to_xrcd(xrcd);
    int err = mr_free_handle(to_ctx(xrcd->context), MR_OP_CLOSE_XRCD, x->handle);
    if (!err)
        free(x);
    return mr_err(err);
}

struct ibv_qp *mr_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a) {
    const uint32_t need = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    struct mr_ctx *ctx = to_ctx(c);
    struct mr_create_qp_reply rep;

    if (a->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED)
        return mr_null(EOPNOTSUPP);
    if ((a->comp_mask & need) != need || !a->xrcd || a->xrcd->context != c || a->qp_type != IBV_QPT_XRC_RECV)
        return mr_null(EINVAL);
    struct mr_qp *qp = calloc(1, sizeof *qp);
    if (!qp)
        return mr_null(ENOMEM);
    qp->ctx = ctx;
    pthread_mutex_lock(&ctx->table_lock);
    struct mr_open_qp req = {
        .xrcd = to_xrcd(a->xrcd)->handle, .qpn = a->qp_num, .cookie = mr_name_add(ctx, &qp->name, MR_KIND_QP)};
    int err = MR_CALL(ctx, MR_OP_OPEN_QP, &req, &rep);
    if (err)
        mr_name_del(ctx, &qp->name);
    pthread_mutex_unlock(&ctx->table_lock);
    if (err) {
        free(qp);
        return mr_null(err);
    }
    struct ibv_qp *b = &qp->ibv.qp_base;
    *b = (struct ibv_qp){.context = c,
                         .qp_context = a->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? a->qp_context : NULL,
                         .handle = rep.handle,
                         .qp_num = rep.qpn,
                         .state = IBV_QPS_UNKNOWN,
                         .qp_type = a->qp_type};
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->cond, NULL);
    return b;
}
