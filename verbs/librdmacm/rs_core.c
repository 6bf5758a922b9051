/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_core.c: the table of rsockets, making and closing one, waiting.
 */
#include "rs.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

/* ---------------------------------------------------------------------------------------------------- the table */

#define LEAF   1024u
#define LEAVES 1024u
static struct rsock *_Atomic *_Atomic table[LEAVES];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct rsock *_Atomic *place(int fd) {
    if (fd < 0 || (uint32_t)fd >= LEAF * LEAVES)
        return NULL;
    struct rsock *_Atomic *leaf = atomic_load_explicit(&table[(uint32_t)fd / LEAF], memory_order_acquire);
    return leaf ? &leaf[(uint32_t)fd % LEAF] : NULL;
}

struct rsock *rs_find(int fd) {
    struct rsock *_Atomic *p = place(fd);
    struct rsock *rs = p ? atomic_load_explicit(p, memory_order_acquire) : NULL;
    if (!rs)
        errno = EBADF;
    return rs;
}

int rs_publish(struct rsock *rs, int fd) {
    if (fd < 0 || (uint32_t)fd >= LEAF * LEAVES)
        return EMFILE;
    pthread_mutex_lock(&table_lock);
    if (!place(fd)) {
        struct rsock *_Atomic *leaf = calloc(LEAF, sizeof *leaf);
        if (leaf)
            atomic_store_explicit(&table[(uint32_t)fd / LEAF], leaf, memory_order_release);
    }
    struct rsock *_Atomic *p = place(fd);
    if (p) {
        rs->fd = fd;
        atomic_store_explicit(p, rs, memory_order_release);
    }
    pthread_mutex_unlock(&table_lock);
    return p ? 0 : ENOMEM;
}

static void unpublish(struct rsock *rs) {
    struct rsock *_Atomic *p = place(rs->fd);
    if (p)
        atomic_store_explicit(p, NULL, memory_order_release);
}

/* ------------------------------------------------------------------------------------------------------ defaults */

struct defaults {
    unsigned mem, wmem, sqsize, rqsize, inl, iomap;
};
static struct defaults defaults = {131072, 131072, 384, 384, 64, 0};
static pthread_once_t defaults_once = PTHREAD_ONCE_INIT;

static void from_file(const char *name, unsigned *v, unsigned least, unsigned most) {
    char path[64];
    unsigned n;
    snprintf(path, sizeof path, "/etc/rdma/rsocket/%s", name);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fscanf(f, "%u", &n) == 1)
        *v = n < least ? least : n > most ? most : n;
    fclose(f);
}

static void read_defaults(void) {
    from_file("mem_default", &defaults.mem, 2 * RS_LOWAT, 1u << 28);
    from_file("wmem_default", &defaults.wmem, 2 * RS_LOWAT, 1u << 28);
    from_file("sqsize_default", &defaults.sqsize, RS_QUEUE_LEAST, RS_QUEUE_MOST);
    from_file("rqsize_default", &defaults.rqsize, RS_QUEUE_LEAST, RS_QUEUE_MOST);
    from_file("inline_default", &defaults.inl, 0, RS_QUEUE_MOST);
    from_file("iomap_size", &defaults.iomap, 0, rs_unscaled(255));
}

/* ------------------------------------------------------------------------------------------------- make and close */

int rs_err(int e) {
    errno = e;
    return -1;
}

struct rsock *rs_alloc(const struct rsock *like, int domain, int type) {
    struct rsock *rs = calloc(1, sizeof *rs);
    if (!rs)
        return NULL;
    pthread_once(&defaults_once, read_defaults);
    pthread_mutex_init(&rs->lock, NULL);
    pthread_cond_init(&rs->cond, NULL);
    rs->fd = -1;
    rs->type = type;
    rs->domain = domain;
    rs->sq_size = like ? like->sq_size : defaults.sqsize;
    rs->rq_size = like ? like->rq_size : defaults.rqsize;
    rs->inline_max = like ? like->inline_max : defaults.inl;
    rs->sbuf_size = like ? like->sbuf_size : defaults.wmem;
    rs->rbuf_size = like ? like->rbuf_size : defaults.mem;
    rs->iomap_size = like ? like->iomap_size : rs_unscaled(rs_scaled(defaults.iomap));
    rs->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (rs->epfd < 0) {
        rs_free(rs);
        return NULL;
    }
    return rs;
}

int rs_watch(struct rsock *rs, int fd) {
    struct epoll_event e = {.events = EPOLLIN};
    return epoll_ctl(rs->epfd, EPOLL_CTL_ADD, fd, &e) ? errno : 0;
}

void rs_free(struct rsock *rs) {
    int saved = errno;
    if (rs->fd >= 0)
        unpublish(rs);
    if (rs->dgram)
        rs_dgram_drop(rs);
    rs_drop_maps(rs);
    rs_stream_drop(rs);
    if (rs->id)
        rdma_destroy_id(rs->id);
    if (rs->events)
        rdma_destroy_event_channel(rs->events);
    if (rs->epfd >= 0)
        close(rs->epfd);
    pthread_cond_destroy(&rs->cond);
    pthread_mutex_destroy(&rs->lock);
    free(rs);
    errno = saved;
}

static int make_stream(struct rsock *rs) {
    rs->events = rdma_create_event_channel();
    if (!rs->events)
        return errno;
    fcntl(rs->events->fd, F_SETFL, O_NONBLOCK);
    if (rdma_create_id(rs->events, &rs->id, rs, RDMA_PS_TCP))
        return errno;
    int err = rs_watch(rs, rs->events->fd);
    return err ? err : rs_publish(rs, rs->events->fd);
}

RS_EXPORT int rsocket(int domain, int type, int protocol) {
    int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if ((domain != AF_INET && domain != AF_INET6) || (kind != SOCK_STREAM && kind != SOCK_DGRAM) ||
        (protocol && protocol != (kind == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP)))
        return rs_err(ENOTSUP);
    struct rsock *rs = rs_alloc(NULL, domain, kind);
    if (!rs)
        return -1;
    int err = kind == SOCK_STREAM ? make_stream(rs) : rs_dgram_make(rs);
    if (err) {
        rs_free(rs);
        return rs_err(err);
    }
    if (type & SOCK_NONBLOCK)
        rs->flags = O_NONBLOCK;
    return rs->fd;
}

/* How long a close waits for what was sent: as TCP does with data that are not acknowledged, it does not wait for ever.
 */
#define CLOSE_MS 2000

RS_EXPORT int rclose(int fd) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    pthread_mutex_lock(&rs->lock);
    if (rs->type == SOCK_STREAM && rs->state == RS_OPEN)
        rs_shut(rs, SHUT_RDWR, rs->linger.l_onoff ? rs->linger.l_linger * 1000 : CLOSE_MS);
    else if (rs->type == SOCK_DGRAM)
        rs_wait(rs, rs_all_sent, false, CLOSE_MS);
    if (rs->qp)
        rdma_disconnect(rs->id);
    pthread_mutex_unlock(&rs->lock);
    rs_free(rs);
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- waiting */

uint64_t rs_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

bool rs_nonblocking(const struct rsock *rs, int flags) {
    return (rs->flags & O_NONBLOCK) || (flags & MSG_DONTWAIT);
}

void rs_progress(struct rsock *rs) {
    if (rs->type == SOCK_DGRAM)
        rs_dgram_progress(rs);
    else if (rs->cq)
        rs_stream_progress(rs);
}

void rs_arm(struct rsock *rs) {
    if (rs->type == SOCK_DGRAM) {
        rs_dgram_arm(rs);
    } else if (rs->cq && !rs->armed) {
        rs->armed = true;
        ibv_req_notify_cq(rs->cq, 0);
    }
}

void rs_drain(struct rsock *rs) {
    struct ibv_cq *cq;
    void *context;
    if (rs->type == SOCK_DGRAM) {
        rs_dgram_drain(rs);
        return;
    }
    while (rs->comp && !ibv_get_cq_event(rs->comp, &cq, &context)) {
        ibv_ack_cq_events(cq, 1);
        rs->armed = false;
    }
    rs_cm_progress(rs);
}

/* Sleeps on the descriptors, without the lock. The slice bounds what a wake-up that another thread took could cost. */
static void sleep_on(struct rsock *rs, uint64_t until) {
    struct pollfd p = {.fd = rs->epfd, .events = POLLIN};
    int slice = 100;
    if (until != UINT64_MAX) {
        uint64_t now = rs_now_us();
        uint64_t left = until > now ? (until - now) / 1000 + 1 : 0;
        slice = left < 100 ? (int)left : 100;
    }
    rs->leader = true;
    pthread_mutex_unlock(&rs->lock);
    poll(&p, 1, slice);
    pthread_mutex_lock(&rs->lock);
    rs->leader = false;
    rs_drain(rs);
    pthread_cond_broadcast(&rs->cond);
}

static bool spin(struct rsock *rs, uint64_t start) {
    if (rs_now_us() - start >= RS_SPIN_US)
        return false;
    pthread_mutex_unlock(&rs->lock);
    sched_yield();
    pthread_mutex_lock(&rs->lock);
    return true;
}

int rs_wait(struct rsock *rs, bool (*ready)(struct rsock *), bool nonblock, int limit_ms) {
    uint64_t start = 0, until = UINT64_MAX;
    bool armed = false;

    for (;;) {
        rs_progress(rs);
        if (ready(rs))
            return 0;
        if (nonblock)
            return EAGAIN;
        uint64_t now = rs_now_us();
        if (!start) {
            start = now;
            if (limit_ms >= 0)
                until = start + (uint64_t)limit_ms * 1000;
        }
        if (now >= until)
            return ETIMEDOUT;
        if (spin(rs, start))
            continue;
        if (rs->leader) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 100000000;
            t.tv_sec += t.tv_nsec / 1000000000;
            t.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&rs->cond, &rs->lock, &t);
            continue;
        }
        if (!armed) { /* and look once more */
            rs_arm(rs);
            armed = true;
            continue;
        }
        sleep_on(rs, until);
        armed = false;
    }
}

/* -------------------------------------------------------------------------------------------------------- addresses */

socklen_t rs_addr_len(const struct sockaddr *a) {
    return a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

void rs_addr_out(struct sockaddr *to, socklen_t *len, const struct sockaddr *from) {
    if (!to || !len)
        return;
    socklen_t n = rs_addr_len(from);
    memcpy(to, from, *len < n ? *len : n);
    *len = n;
}
