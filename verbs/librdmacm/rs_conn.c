/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_conn.c: streams begin and end: bind, listen, accept, connect, shutdown.
 */
#include "rs.h"

#include <poll.h>

#define RESOLVE_MS 2000

/* A number of 16 bits in 8: small ones as they are, larger ones in units of 256. */
uint8_t rs_scaled(uint32_t v) {
    return (uint8_t)(v <= 128 ? v : 128 | (v >> 8 > 127 ? 127 : v >> 8));
}

uint32_t rs_unscaled(uint8_t v) {
    return v <= 128 ? v : (uint32_t)(v & 127) << 8;
}

RS_EXPORT int rbind(int fd, const struct sockaddr *addr, socklen_t len) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (rs->type == SOCK_DGRAM)
        return bind(fd, addr, len);
    if (len < rs_addr_len(addr))
        return rs_err(EINVAL);
    return rdma_bind_addr(rs->id, (struct sockaddr *)addr);
}

RS_EXPORT int rlisten(int fd, int backlog) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (rs->type != SOCK_STREAM)
        return rs_err(EOPNOTSUPP);
    if (rs->state == RS_LISTENING)
        return 0;
    if (rs->state != RS_NEW)
        return rs_err(EINVAL);
    if (rdma_listen(rs->id, backlog))
        return -1;
    rs->state = RS_LISTENING;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- accept */

/* Makes a socket of a request. 0 or errno; the id is the caller's until then. */
static int take(struct rsock *rs, struct rdma_cm_id *id, const struct rs_conn_data *theirs,
                struct rdma_conn_param *param) {
    struct rs_conn_data ours;

    rs->events = rdma_create_event_channel();
    if (!rs->events)
        return errno;
    fcntl(rs->events->fd, F_SETFL, O_NONBLOCK);
    if (rdma_migrate_id(id, rs->events))
        return errno;
    rs->id = id;
    id->context = rs;
    int err = rs_watch(rs, rs->events->fd);
    if (!err)
        err = rs_stream_setup(rs);
    if (!err)
        err = rs_conn_data_theirs(rs, theirs, sizeof *theirs);
    if (err)
        return err;
    memcpy(&rs->peer, rdma_get_peer_addr(id), rs_addr_len(rdma_get_peer_addr(id)));
    rs_conn_data_ours(rs, &ours);
    param->private_data = &ours;
    param->private_data_len = sizeof ours;
    param->rnr_retry_count = 7;
    param->retry_count = 7;
    param->flow_control = 1;
    rs_stream_open(rs); /* its first bytes may be here before the event that says so */
    if (rdma_accept(id, param))
        return errno;
    return rs_publish(rs, rs->events->fd);
}

static int accept_one(struct rsock *listener, struct rdma_cm_event *ev) {
    struct rs_conn_data theirs;
    struct rdma_conn_param param = ev->param.conn;
    struct rdma_cm_id *id = ev->id;
    bool ours = ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, whole = false;

    if (ours && param.private_data && param.private_data_len >= sizeof theirs) {
        memcpy(&theirs, param.private_data, sizeof theirs);
        whole = theirs.version == RS_VERSION;
    }
    rdma_ack_cm_event(ev);
    if (!ours)
        return -EAGAIN;
    struct rsock *rs = whole ? rs_alloc(listener, listener->domain, SOCK_STREAM) : NULL;
    int err = rs ? take(rs, id, &theirs, &param) : whole ? ENOMEM : EAGAIN;
    if (!err)
        return rs->fd;
    rdma_reject(id, NULL, 0);
    if (!rs || !rs->id)
        rdma_destroy_id(id);
    if (rs)
        rs_free(rs);
    return err == EPROTO ? -EAGAIN : -err; /* the peer's fault is no error of the listener's */
}

RS_EXPORT int raccept(int fd, struct sockaddr *addr, socklen_t *len) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (rs->state != RS_LISTENING)
        return rs_err(EINVAL);
    for (;;) {
        struct rdma_cm_event *ev;
        struct pollfd p = {.fd = rs->events->fd, .events = POLLIN};
        if (!rdma_get_cm_event(rs->events, &ev)) {
            int got = accept_one(rs, ev);
            if (got >= 0) {
                rs_addr_out(addr, len, (struct sockaddr *)&rs_find(got)->peer);
                return got;
            }
            if (got != -EAGAIN)
                return rs_err(-got);
            continue; /* whoever this was, it was no rsocket */
        }
        if (errno != EAGAIN && errno != EINTR)
            return -1;
        if (rs->flags & O_NONBLOCK)
            return rs_err(EAGAIN);
        poll(&p, 1, -1);
    }
}

/* --------------------------------------------------------------------------------------------------------- connect */

static int route_resolved(struct rsock *rs) {
    struct rs_conn_data ours;
    int err = rs_stream_setup(rs);
    if (err)
        return err;
    rs_conn_data_ours(rs, &ours);
    struct rdma_conn_param param = {.private_data = &ours,
                                    .private_data_len = sizeof ours,
                                    .flow_control = 1,
                                    .retry_count = 7,
                                    .rnr_retry_count = 7};
    rs->state = RS_CONNECTING;
    return rdma_connect(rs->id, &param) ? errno : 0;
}

static int rejected(const struct rdma_cm_event *ev) {
    switch (ev->status) {
    case 8:  /* no listener: the service is not there */
    case 28: /* the listener's program refused */
        return ECONNREFUSED;
    default:
        return ev->status < 0 ? -ev->status : ECONNREFUSED;
    }
}

static int connecting(struct rsock *rs, struct rdma_cm_event *ev) {
    switch (ev->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        rs->state = RS_ROUTING;
        return rdma_resolve_route(rs->id, RESOLVE_MS) ? errno : 0;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return route_resolved(rs);
    case RDMA_CM_EVENT_ESTABLISHED: {
        int err = rs_conn_data_theirs(rs, ev->param.conn.private_data, ev->param.conn.private_data_len);
        if (!err)
            rs_stream_open(rs);
        return err;
    }
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
        return ev->status < 0 ? -ev->status : ENETUNREACH;
    case RDMA_CM_EVENT_UNREACHABLE:
        return ETIMEDOUT;
    case RDMA_CM_EVENT_REJECTED:
        return rejected(ev);
    case RDMA_CM_EVENT_CONNECT_ERROR:
        return ECONNREFUSED;
    default:
        return ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL ? ENODEV : 0;
    }
}

/* The peer is gone, with a word or without. What came before is in the receive buffer and can be read. */
static void disconnected(struct rsock *rs) {
    if (rs->state != RS_OPEN)
        return;
    rs_stream_progress(rs);
    if (rs->state == RS_OPEN) {
        rs->broken = rs->read_open;
        rs->read_open = rs->write_open = false;
        rs->state = RS_CLOSED;
    }
}

void rs_cm_progress(struct rsock *rs) {
    struct rdma_cm_event *ev;
    while (rs->type == SOCK_STREAM && rs->state != RS_LISTENING && !rdma_get_cm_event(rs->events, &ev)) {
        int err = 0;
        if (rs->state == RS_OPEN || rs->state == RS_CLOSED || rs->state == RS_FAILED) {
            if (ev->event == RDMA_CM_EVENT_DISCONNECTED || ev->event == RDMA_CM_EVENT_TIMEWAIT_EXIT ||
                ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL || ev->event == RDMA_CM_EVENT_CONNECT_ERROR ||
                ev->event == RDMA_CM_EVENT_UNREACHABLE || ev->event == RDMA_CM_EVENT_REJECTED)
                disconnected(rs);
        } else {
            err = connecting(rs, ev);
        }
        rdma_ack_cm_event(ev);
        if (err)
            rs_fail(rs, err);
    }
}

bool rs_settled(struct rsock *rs) {
    rs_cm_progress(rs);
    return rs->state >= RS_OPEN;
}

/* With the lock: goes on with a connection that was begun. 0 or errno (EAGAIN: not yet). */
int rs_finish_connect(struct rsock *rs, bool nonblock) {
    int err = 0;
    if (rs->state == RS_NEW || rs->state == RS_LISTENING)
        return ENOTCONN;
    if (rs->state < RS_OPEN)
        err = rs_wait(rs, rs_settled, nonblock, -1);
    if (!err && rs->state == RS_FAILED && !rs->opened) { /* one that broke says so itself */
        err = rs->err ? rs->err : ECONNREFUSED;
        rs->err = 0;
    }
    return err;
}

RS_EXPORT int rconnect(int fd, const struct sockaddr *addr, socklen_t len) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (!addr || len < rs_addr_len(addr))
        return rs_err(EINVAL);
    pthread_mutex_lock(&rs->lock);
    int err = 0;
    if (rs->type == SOCK_DGRAM) {
        err = rs_dgram_connect(rs, addr, len);
    } else if (rs->state == RS_LISTENING) {
        err = EINVAL;
    } else if (rs->state == RS_OPEN || rs->state == RS_CLOSED) {
        err = EISCONN;
    } else if (rs->state == RS_FAILED) {
        err = rs->err ? rs->err : ECONNREFUSED;
    } else {
        if (rs->state == RS_NEW) {
            memcpy(&rs->peer, addr, rs_addr_len(addr));
            rs->state = RS_RESOLVING;
            if (rdma_resolve_addr(rs->id, NULL, (struct sockaddr *)&rs->peer, RESOLVE_MS)) {
                rs->state = RS_NEW; /* another address may do */
                err = errno;
            }
        } else if (rs->flags & O_NONBLOCK) {
            rs_cm_progress(rs);
            err = rs->state < RS_OPEN ? EALREADY : 0;
        }
        if (!err)
            err = rs_finish_connect(rs, rs->flags & O_NONBLOCK);
        if (err == EAGAIN)
            err = EINPROGRESS;
    }
    pthread_mutex_unlock(&rs->lock);
    return err ? rs_err(err) : 0;
}

/* -------------------------------------------------------------------------------------------------------- shutdown */

static bool ctrl_ready(struct rsock *rs) {
    return rs->ctrl_avail || rs->state != RS_OPEN;
}

/* With the lock. Tells the peer, and waits until all that was sent is there. */
int rs_shut(struct rsock *rs, int how, int limit_ms) {
    if (rs->state != RS_OPEN)
        return rs->state == RS_CLOSED ? 0 : ENOTCONN;
    if (how == SHUT_RD || how == SHUT_RDWR)
        rs->read_open = false;
    if (how == SHUT_WR || how == SHUT_RDWR) {
        rs->write_open = false;
        rs->we_shut = true;
    }
    if (how == SHUT_RD && rs->write_open)
        return 0;
    int err = rs_wait(rs, ctrl_ready, false, limit_ms);
    if (!err && rs->state == RS_OPEN)
        err = rs_send_ctrl(rs, rs->read_open ? RS_CTRL_SHUTDOWN : RS_CTRL_DISCONNECT);
    rs->told |= !err;
    if (!err && rs->state == RS_OPEN)
        err = rs_wait(rs, rs_all_sent, false, limit_ms);
    if (!rs->read_open && !rs->write_open && rs->state == RS_OPEN)
        rs->state = RS_CLOSED;
    return err;
}

RS_EXPORT int rshutdown(int fd, int how) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
        return rs_err(EINVAL);
    if (rs->type == SOCK_DGRAM)
        return shutdown(fd, how);
    pthread_mutex_lock(&rs->lock);
    int err = rs_shut(rs, how, -1);
    pthread_cond_broadcast(&rs->cond);
    pthread_mutex_unlock(&rs->lock);
    return err ? rs_err(err) : 0;
}
