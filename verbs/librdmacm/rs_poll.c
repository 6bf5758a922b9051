/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_poll.c: rpoll and rselect, for rsockets and ordinary descriptors at once.
 */
#include "rs.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>

/* With the lock: what of `events` is so. */
short rs_revents(struct rsock *rs, short events) {
    short r = 0;
    if (rs->type == SOCK_DGRAM) {
        r |= rs_dgram_readable(rs) ? POLLIN : 0;
        r |= rs_dgram_writable(rs) ? POLLOUT : 0;
        return r & events;
    }
    switch (rs->state) {
    case RS_NEW:
        return (POLLOUT | POLLHUP) & (events | POLLHUP); /* as the kernel's */
    case RS_LISTENING: {
        struct pollfd p = {.fd = rs->events->fd, .events = POLLIN};
        return poll(&p, 1, 0) > 0 ? POLLIN & events : 0;
    }
    case RS_RESOLVING:
    case RS_ROUTING:
    case RS_CONNECTING:
        return 0;
    case RS_OPEN:
        r |= rs_have_data(rs) ? POLLIN | (rs->read_open ? 0 : POLLRDHUP) : 0;
        r |= rs_can_send(rs) ? POLLOUT : 0;
        return r & events;
    case RS_CLOSED:
        /* what came before the end is read first: programs take a hang-up for the end */
        r = (POLLIN | POLLOUT | POLLRDHUP) & events;
        return rs->len_head != rs->len_tail ? r : r | POLLHUP;
    case RS_FAILED:
        return ((POLLIN | POLLOUT | POLLRDHUP) & events) | POLLERR | POLLHUP;
    }
    return r;
}

static short look(struct rsock *rs, short events, bool arm) {
    pthread_mutex_lock(&rs->lock);
    rs_cm_progress(rs);
    rs_progress(rs);
    short r = rs_revents(rs, events);
    if (!r && arm) { /* then once more: what came before it was armed gives no event */
        rs_arm(rs);
        rs_progress(rs);
        r = rs_revents(rs, events);
    }
    pthread_mutex_unlock(&rs->lock);
    return r;
}

/* Looks at all; *rest is where the ordinary ones and the descriptors to sleep on are collected. */
static int look_at_all(struct pollfd *fds, nfds_t n, struct pollfd *rest, bool arm) {
    int ready = 0;
    for (nfds_t i = 0; i < n; i++) {
        struct rsock *rs = fds[i].fd >= 0 ? rs_find(fds[i].fd) : NULL;
        rest[i] = rs ? (struct pollfd){rs->epfd, POLLIN, 0} : (struct pollfd){fds[i].fd, fds[i].events, 0};
        fds[i].revents = rs ? look(rs, fds[i].events, arm) : 0;
        ready += !!fds[i].revents;
    }
    return ready;
}

/* After poll on rest: takes over what ordinary descriptors say, and empties the rsockets' event queues. */
static int merge(struct pollfd *fds, nfds_t n, struct pollfd *rest) {
    int ready = 0;
    for (nfds_t i = 0; i < n; i++) {
        struct rsock *rs = fds[i].fd >= 0 ? rs_find(fds[i].fd) : NULL;
        if (!rs) {
            fds[i].revents = rest[i].revents;
        } else if (rest[i].revents) {
            pthread_mutex_lock(&rs->lock);
            if (!rs->leader)
                rs_drain(rs);
            pthread_mutex_unlock(&rs->lock);
            fds[i].revents = look(rs, fds[i].events, false);
        }
        ready += !!fds[i].revents;
    }
    return ready;
}

#define SLICE_MS 50 /* bounds what a wake-up that another thread took could cost */

static int poll_loop(struct pollfd *fds, nfds_t n, struct pollfd *rest, int timeout) {
    uint64_t start = rs_now_us();
    for (;;) {
        uint64_t gone = (rs_now_us() - start) / 1000;
        bool last = timeout >= 0 && gone >= (uint64_t)timeout, spins = rs_now_us() - start < RS_SPIN_US;
        int ready = look_at_all(fds, n, rest, !last && !spins), slice = SLICE_MS;
        if (ready || last || spins)
            slice = 0;
        else if (timeout >= 0 && timeout - (int)gone < slice)
            slice = timeout - (int)gone;
        int k = poll(rest, n, slice);
        if (k < 0)
            return -1;
        ready = merge(fds, n, rest);
        if (ready || last)
            return ready;
        if (spins)
            sched_yield();
    }
}

RS_EXPORT int rpoll(struct pollfd *fds, nfds_t n, int timeout) {
    struct pollfd few[32], *rest = n <= 32 ? few : calloc(n, sizeof *rest);
    if (!rest)
        return rs_err(ENOMEM);
    int r = poll_loop(fds, n, rest, timeout);
    if (rest != few)
        free(rest);
    return r;
}

static bool has(const fd_set *s, int fd) {
    return s && FD_ISSET(fd, s);
}

RS_EXPORT int rselect(int nfds, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout) {
    struct pollfd fds[FD_SETSIZE];
    nfds_t n = 0;
    if (nfds < 0 || nfds > FD_SETSIZE)
        return rs_err(EINVAL);
    for (int fd = 0; fd < nfds; fd++) {
        short events =
            (short)((has(in, fd) ? POLLIN : 0) | (has(out, fd) ? POLLOUT : 0) | (has(except, fd) ? POLLPRI : 0));
        if (events)
            fds[n++] = (struct pollfd){fd, events, 0};
    }
    int ms = timeout ? (int)(timeout->tv_sec * 1000 + (timeout->tv_usec + 999) / 1000) : -1;
    int r = rpoll(fds, n, ms), count = 0;
    if (r < 0)
        return r;
    for (nfds_t i = 0; i < n; i++) {
        short e = fds[i].events, got = fds[i].revents;
        if (got & POLLNVAL)
            return rs_err(EBADF);
        struct {
            fd_set *set;
            bool ready;
        } sets[] = {{in, (e & POLLIN) && (got & (POLLIN | POLLHUP | POLLERR))},
                    {out, (e & POLLOUT) && (got & (POLLOUT | POLLERR))},
                    {except, (e & POLLPRI) && (got & POLLPRI)}};
        for (int k = 0; k < 3; k++) {
            if (sets[k].ready)
                count++;
            else if (sets[k].set)
                FD_CLR(fds[i].fd, sets[k].set);
        }
    }
    return count;
}
