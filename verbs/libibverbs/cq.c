/* SPDX-License-Identifier: Apache-2.0
 *
 * cq.c: completion queues and channels: making, resizing and destroying them, and their events. Polling is in poll.c.
 *
 * An event names its CQ by a cookie that is never used twice. The library counts the events that the program has been
 * given; destroying waits until as many were acknowledged. What the program never fetched is dropped.
 */
#include "mr.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------- channels */

MR_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
    struct mr_handle req = {0}, rep;
    int fd = -1;
    struct mr_channel *ch = calloc(1, sizeof *ch);
    int err = ch ? mr_call_fds(to_ctx(c), MR_OP_CREATE_CHANNEL, &req, sizeof req, &rep, sizeof rep, &fd, 1) : ENOMEM;
    if (!err && fd < 0)
        err = EIO;
    if (err) {
        free(ch);
        return mr_null(err);
    }
    ch->ibv.context = c;
    ch->ibv.fd = fd;
    ch->handle = rep.handle;
    pthread_mutex_init(&ch->lock, NULL);
    return &ch->ibv;
}

MR_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    struct mr_ctx *ctx = to_ctx(channel->context);
    pthread_mutex_lock(&channel->context->mutex);
    int err = channel->refcnt ? EBUSY : 0;
    pthread_mutex_unlock(&channel->context->mutex);
    if (!err)
        err = mr_free_handle(ctx, MR_OP_DESTROY_CHANNEL, ((struct mr_channel *)channel)->handle);
    if (err)
        return mr_err(err);
    close(channel->fd);
    free(channel);
    return 0;
}

static void channel_ref(struct ibv_comp_channel *ch, int by) {
    if (!ch)
        return;
    pthread_mutex_lock(&ch->context->mutex);
    ch->refcnt += by;
    pthread_mutex_unlock(&ch->context->mutex);
}

/* Takes one record without waiting: 1 = it was for *cq, 0 = it was for a CQ that is gone, -1 and errno = none. */
static int take_record(struct mr_channel *ch, struct mr_cq **cq) {
    struct mr_ctx *ctx = to_ctx(ch->ibv.context);
    struct mr_comp_event ev;
    int got = -1;

    pthread_mutex_lock(&ch->lock);
    ssize_t n = mr_recv_now(ch->ibv.fd, &ev, sizeof ev, 0);
    if (n == 0)
        errno = EIO; /* the daemon has closed its end */
    if (n > 0) {
        got = 0;
        pthread_mutex_lock(&ctx->table_lock);
        struct mr_named *name = n == sizeof ev ? mr_name_find(ctx, ev.cookie) : NULL;
        if (name && name->kind == MR_KIND_CQ) {
            *cq = container_of(name, struct mr_cq, name);
            (*cq)->comp_got++;
            got = 1;
        }
        pthread_mutex_unlock(&ctx->table_lock);
    }
    pthread_mutex_unlock(&ch->lock);
    return got;
}

MR_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    struct mr_channel *ch = (struct mr_channel *)channel;
    struct mr_cq *got;

    if (to_ctx(channel->context)->forked)
        return mr_minus1(EIO); /* the records belong to the parent */
    for (;;) {
        int r = take_record(ch, &got);
        if (r == 1)
            break;
        if (r == 0)
            continue;
        if (errno != EAGAIN)
            return -1;
        /* Wait as a read() would: the program chose O_NONBLOCK or not, and whether signals interrupt. Only look: the
         * record is taken and counted under the lock. */
        struct mr_comp_event ev;
        ssize_t n = recv(channel->fd, &ev, sizeof ev, MSG_PEEK);
        if (n < 0)
            return -1;
        if (n == 0)
            return mr_minus1(EIO);
    }
    *cq = (struct ibv_cq *)&got->ibv;
    *cq_context = got->ibv.cq_context;
    return 0;
}

/* A CQ has gone: records for it that are first in the channel would wake the program for nothing. */
static void drop_stale(struct mr_channel *ch, uint64_t cookie) {
    struct mr_comp_event ev;
    pthread_mutex_lock(&ch->lock);
    while (mr_recv_now(ch->ibv.fd, &ev, sizeof ev, MSG_PEEK) == sizeof ev && ev.cookie == cookie)
        if (mr_recv_now(ch->ibv.fd, &ev, sizeof ev, 0) <= 0)
            break;
    pthread_mutex_unlock(&ch->lock);
}

MR_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += n;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

void mr_wait_acked(pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *completed, uint32_t got) {
    pthread_mutex_lock(m);
    while (*completed != got)
        pthread_cond_wait(cond, m);
    pthread_mutex_unlock(m);
}

/* ---------------------------------------------------------------------------------------------------- rings */

static void use_ring(struct mr_ctx *ctx, struct mr_cq *cq, uint64_t off, uint64_t len, uint32_t entries) {
    cq->ring_off = off;
    cq->ring_len = len;
    cq->ring = (struct mr_ring *)(ctx->arena.base + off);
    cq->entries = ctx->arena.base + off + MR_RING_HDR;
    cq->mask = entries - 1;
}

static int check_size(struct mr_ctx *ctx, int64_t cqe) {
    return cqe < 1 || cqe > ctx->attr.max_cqe ? EINVAL : 0;
}

struct cq_want {
    int64_t cqe;
    void *context;
    struct ibv_comp_channel *channel;
    int64_t vector;
    uint32_t flags;
    bool single_threaded;
    struct ibv_pd *domain; /* a parent domain, or NULL */
};

static struct mr_cq *make_cq(struct ibv_context *c, const struct cq_want *w) {
    struct mr_ctx *ctx = to_ctx(c);
    struct mr_cq *cq = NULL;
    struct mr_pd *from = NULL;
    struct mr_handle rep;
    int err = check_size(ctx, w->cqe);

    if (!err && (w->vector < 0 || w->vector >= c->num_comp_vectors || (w->channel && w->channel->context != c)))
        err = EINVAL;
    if (err)
        return mr_null(err);
    uint32_t entries = mr_ring_size((uint32_t)w->cqe);
    uint64_t len = MR_RING_HDR + (uint64_t)entries * sizeof(struct mr_cqe), off = mr_arena_alloc(&ctx->arena, len);
    if (off)
        cq = mr_pd_alloc(w->domain, sizeof *cq, MR_RESOURCE_CQ, &from);
    if (!cq) {
        mr_arena_free(&ctx->arena, off, len);
        return mr_null(ENOMEM);
    }
    cq->from = from;
    use_ring(ctx, cq, off, len, entries);
    pthread_mutex_lock(&ctx->table_lock);
    uint64_t cookie = mr_name_add(ctx, &cq->name, MR_KIND_CQ);
    pthread_mutex_unlock(&ctx->table_lock);
    struct mr_create_cq req = {.entries = entries,
                               .ring = off,
                               .cookie = cookie,
                               .channel = w->channel ? ((struct mr_channel *)w->channel)->handle : 0,
                               .comp_vector = (uint32_t)w->vector,
                               .flags = w->flags};
    err = MR_CALL(ctx, MR_OP_CREATE_CQ, &req, &rep);
    if (err) {
        pthread_mutex_lock(&ctx->table_lock);
        mr_name_del(ctx, &cq->name);
        pthread_mutex_unlock(&ctx->table_lock);
        mr_arena_free(&ctx->arena, off, len);
        mr_pd_release(from, cq, MR_RESOURCE_CQ);
        return mr_null(err);
    }
    channel_ref(w->channel, 1);
    cq->ibv.context = c;
    cq->ibv.channel = w->channel;
    cq->ibv.cq_context = w->context;
    cq->ibv.handle = rep.handle;
    cq->ibv.cqe = (int)(entries < ctx->attr.max_cqe ? entries : ctx->attr.max_cqe);
    cq->single_threaded = w->single_threaded;
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    pthread_cond_init(&cq->ibv.cond, NULL);
    pthread_mutex_init(&cq->lock, NULL);
    pthread_mutex_init(&cq->arm_lock, NULL);
    mr_cq_ex_fill(cq, 0);
    return cq;
}

MR_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *cq_context,
                                       struct ibv_comp_channel *channel, int comp_vector) {
    struct cq_want w = {.cqe = cqe, .context = cq_context, .channel = channel, .vector = comp_vector};
    struct mr_cq *cq = make_cq(c, &w);
    return cq ? (struct ibv_cq *)&cq->ibv : NULL;
}

/* Not: VLAN, flow tag, tag matching. */
#define WC_FLAGS \
    (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

struct ibv_cq_ex *mr_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a) {
    uint32_t flags = a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? a->flags : 0;
    struct cq_want w = {.cqe = a->cqe,
                        .context = a->cq_context,
                        .channel = a->channel,
                        .vector = a->comp_vector,
                        .flags = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN ? MR_CQ_IGNORE_OVERRUN : 0,
                        .single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED};

    if ((a->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) ||
        (a->wc_flags & ~(uint64_t)WC_FLAGS) ||
        (flags & ~(uint32_t)(IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN | IBV_CREATE_CQ_ATTR_SINGLE_THREADED)))
        return mr_null(EOPNOTSUPP);
    if (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
        w.domain = a->parent_domain;
        if (!w.domain || w.domain->context != c || !((struct mr_pd *)w.domain)->below)
            return mr_null(EINVAL);
    }
    struct mr_cq *cq = make_cq(c, &w);
    if (cq)
        mr_cq_ex_fill(cq, a->wc_flags);
    return cq ? &cq->ibv : NULL;
}

int mr_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a) {
    struct mr_modify_cq req = {.handle = cq->handle};
    struct mr_hdr rep;
    if (a->attr_mask != IBV_CQ_ATTR_MODERATE)
        return mr_err(a->attr_mask ? EOPNOTSUPP : EINVAL);
    req.count = a->moderate.cq_count;
    req.period = a->moderate.cq_period;
    return mr_err(MR_CALL(to_ctx(cq->context), MR_OP_MODIFY_CQ, &req, &rep));
}

/* A new ring takes over. Indices run on: the daemon copies what was not polled and the arming, and continues at the
 * same number in the new ring; nobody polls or arms meanwhile. */
MR_EXPORT int ibv_resize_cq(struct ibv_cq *ibcq, int cqe) {
    struct mr_cq *cq = to_cq(ibcq);
    struct mr_ctx *ctx = to_ctx(ibcq->context);
    struct mr_hdr rep;
    int err = check_size(ctx, cqe);

    if (err)
        return mr_err(err);
    uint32_t entries = mr_ring_size((uint32_t)cqe);
    uint64_t len = MR_RING_HDR + (uint64_t)entries * sizeof(struct mr_cqe), off = mr_arena_alloc(&ctx->arena, len);
    if (!off)
        return mr_err(ENOMEM);
    struct mr_create_cq req = {
        .handle = ibcq->handle, .entries = entries, .ring = off, .cookie = cq->name.cookie, .want = (uint32_t)cqe};
    pthread_mutex_lock(&cq->lock);
    pthread_mutex_lock(&cq->arm_lock);
    err = MR_CALL(ctx, MR_OP_RESIZE_CQ, &req, &rep);
    uint64_t old_off = off, old_len = len;
    if (!err) {
        old_off = cq->ring_off;
        old_len = cq->ring_len;
        use_ring(ctx, cq, off, len, entries);
        ibcq->cqe = (int)(entries < ctx->attr.max_cqe ? entries : ctx->attr.max_cqe);
    }
    pthread_mutex_unlock(&cq->arm_lock);
    pthread_mutex_unlock(&cq->lock);
    mr_arena_free(&ctx->arena, old_off, old_len);
    return mr_err(err);
}

MR_EXPORT int ibv_destroy_cq(struct ibv_cq *ibcq) {
    struct mr_cq *cq = to_cq(ibcq);
    struct mr_ctx *ctx = to_ctx(ibcq->context);
    int err = mr_free_handle(ctx, MR_OP_DESTROY_CQ, ibcq->handle);

    if (err)
        return mr_err(err);
    pthread_mutex_lock(&ctx->table_lock);
    mr_name_del(ctx, &cq->name); /* from here on its events are stale */
    uint32_t comp = cq->comp_got, async = cq->async_got;
    pthread_mutex_unlock(&ctx->table_lock);
    if (ibcq->channel && !ctx->forked) {
        drop_stale((struct mr_channel *)ibcq->channel, cq->name.cookie);
        mr_wait_acked(&ibcq->mutex, &ibcq->cond, &ibcq->comp_events_completed, comp);
    }
    if (!ctx->forked)
        mr_wait_acked(&ibcq->mutex, &ibcq->cond, &ibcq->async_events_completed, async);
    channel_ref(ibcq->channel, -1);
    mr_arena_free(&ctx->arena, cq->ring_off, cq->ring_len);
    mr_pd_release(cq->from, cq, MR_RESOURCE_CQ);
    return 0;
}
