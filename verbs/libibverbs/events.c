/* SPDX-License-Identifier: Apache-2.0
 *
 * events.c: asynchronous events, and the table that turns the cookie in an event into an object that still exists.
 */
#include "mr.h"

uint64_t mr_name_add(struct mr_ctx *ctx, struct mr_named *n, enum mr_kind kind) {
    n->kind = kind;
    n->cookie = ctx->next_cookie++;
    struct mr_named **b = &ctx->named[n->cookie % MR_NAMED_BUCKETS];
    n->next = *b;
    *b = n;
    return n->cookie;
}

void mr_name_del(struct mr_ctx *ctx, struct mr_named *n) {
    for (struct mr_named **p = &ctx->named[n->cookie % MR_NAMED_BUCKETS]; *p; p = &(*p)->next)
        if (*p == n) {
            *p = n->next;
            return;
        }
}

struct mr_named *mr_name_find(struct mr_ctx *ctx, uint64_t cookie) {
    for (struct mr_named *n = ctx->named[cookie % MR_NAMED_BUCKETS]; n; n = n->next)
        if (n->cookie == cookie)
            return n;
    return NULL;
}

static enum mr_kind kind_of(enum ibv_event_type t) {
    switch (t) {
    case IBV_EVENT_CQ_ERR:
        return MR_KIND_CQ;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return MR_KIND_QP;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return MR_KIND_SRQ;
    default:
        return 0; /* of a port or the device */
    }
}

/* Fills `out` from a record and counts it; false when its object is gone. Needs table_lock. */
static bool name_object(struct mr_ctx *ctx, const struct mr_async_event *ev, struct ibv_async_event *out) {
    enum mr_kind kind = kind_of((enum ibv_event_type)ev->type);
    memset(out, 0, sizeof *out);
    out->event_type = (enum ibv_event_type)ev->type;
    if (!kind) {
        out->element.port_num = (int)ev->port;
        return true;
    }
    struct mr_named *n = mr_name_find(ctx, ev->cookie);
    if (!n || n->kind != kind)
        return false;
    if (kind == MR_KIND_CQ) {
        struct mr_cq *cq = container_of(n, struct mr_cq, name);
        cq->async_got++;
        out->element.cq = (struct ibv_cq *)&cq->ibv;
    } else if (kind == MR_KIND_QP) {
        struct mr_qp *qp = container_of(n, struct mr_qp, name);
        qp->async_got++;
        out->element.qp = &qp->ibv.qp_base;
    } else {
        struct mr_srq *srq = container_of(n, struct mr_srq, name);
        srq->async_got++;
        out->element.srq = &srq->ibv;
    }
    return true;
}

/* The daemon is gone: what a removed device looks like. One IBV_EVENT_DEVICE_FATAL, then EIO. */
static int device_fatal(struct mr_ctx *ctx, struct ibv_async_event *out) {
    atomic_store(&ctx->gone, 1);
    pthread_mutex_lock(&ctx->table_lock);
    bool first = !ctx->fatal_delivered;
    ctx->fatal_delivered = true;
    pthread_mutex_unlock(&ctx->table_lock);
    if (!first)
        return mr_minus1(EIO);
    memset(out, 0, sizeof *out);
    out->event_type = IBV_EVENT_DEVICE_FATAL;
    return 0;
}

static void leave_cancelled(void *ctx) {
    mr_ctx_leave(ctx);
}

/* Waits until there is something to take, as a read() would: the program chose O_NONBLOCK or not. */
static ssize_t wait_async(struct mr_ctx *ctx, bool *closed) {
    char b;
    ssize_t n;
    pthread_cleanup_push(leave_cancelled, ctx);
    n = recv(ctx->v.context.async_fd, &b, sizeof b, MSG_PEEK);
    pthread_cleanup_pop(0);
    int saved = errno;
    *closed = mr_ctx_leave(ctx);
    errno = *closed ? EBADF : saved;
    return n;
}

MR_EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event) {
    struct mr_ctx *ctx = to_ctx(c);
    struct mr_async_event ev;

    if (ctx->forked)
        return mr_minus1(EIO);
    for (;;) {
        pthread_mutex_lock(&ctx->table_lock); /* taking and counting is one step, see take_record in cq.c */
        ssize_t n = mr_recv_now(c->async_fd, &ev, sizeof ev, 0);
        bool ok = n == sizeof ev && name_object(ctx, &ev, event), none = n < 0 && errno == EAGAIN, closed;
        ctx->users += none;
        pthread_mutex_unlock(&ctx->table_lock);
        if (ok)
            return 0;
        if (none) {
            n = wait_async(ctx, &closed);
            if (closed || (n < 0 && (errno == EAGAIN || errno == EINTR || errno == EBADF)))
                return -1;
        }
        if (n <= 0)
            return device_fatal(ctx, event);
    }
}

static void ack(pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *completed) {
    pthread_mutex_lock(m);
    ++*completed;
    pthread_cond_signal(cond);
    pthread_mutex_unlock(m);
}

MR_EXPORT void ibv_ack_async_event(struct ibv_async_event *event) {
    switch (kind_of(event->event_type)) {
    case MR_KIND_CQ: {
        struct ibv_cq *cq = event->element.cq;
        ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
        break;
    }
    case MR_KIND_QP: {
        struct ibv_qp *qp = event->element.qp;
        ack(&qp->mutex, &qp->cond, &qp->events_completed);
        break;
    }
    case MR_KIND_SRQ: {
        struct ibv_srq *srq = event->element.srq;
        ack(&srq->mutex, &srq->cond, &srq->events_completed);
        break;
    }
    }
}
