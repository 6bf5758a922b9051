/* SPDX-License-Identifier: Apache-2.0
 *
 * event.c: channels and events. A channel's descriptor gets one datagram for each event; the event itself is asked for.
 * So events can move with their ID to another channel, and what belongs to none any more is taken back.
 */
#include "cm.h"

#include <stdlib.h>

MR_EXPORT struct rdma_event_channel *rdma_create_event_channel(void) {
    struct cm_chan *c = calloc(1, sizeof *c);
    struct mr_handle req = {.handle = 0}, rep;

    if (!c)
        return mr_null(ENOMEM);
    c->d = cm_daemon_get();
    if (!c->d) {
        free(c);
        return NULL;
    }
    int err = mr_conn_call(&c->d->conn, MR_OP_CM_CREATE_CHANNEL, &req, sizeof req, -1, &rep, sizeof rep, &c->ev.fd, 1);
    if (!err && c->ev.fd < 0)
        err = EIO;
    if (err) {
        cm_daemon_put(c->d);
        free(c);
        return mr_null(err);
    }
    c->handle = rep.handle;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->order, NULL);
    return &c->ev;
}

static void leave(void *arg) {
    struct cm_chan *c = arg;
    pthread_mutex_lock(&c->lock);
    bool last = --c->readers == 0 && c->closed;
    pthread_mutex_unlock(&c->lock);
    if (last)
        free(c);
}

MR_EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *ch) {
    struct cm_chan *c = to_chan(ch);
    struct mr_handle req = {.handle = c->handle};
    struct mr_hdr rep;
    pthread_mutex_lock(&c->lock);
    c->closed = true;
    c->readers++; /* this one, for as long as it looks at it */
    pthread_mutex_unlock(&c->lock);
    CM_CALL(c->d, MR_OP_CM_DESTROY_CHANNEL, &req, &rep);
    close(ch->fd);
    cm_daemon_put(c->d);
    leave(c);
}

/* Takes back datagrams whose events are gone. */
void cm_drain(struct rdma_event_channel *ch, uint32_t signals) {
    struct cm_chan *c = to_chan(ch);
    uint64_t b;
    pthread_mutex_lock(&c->lock);
    c->over += (int32_t)signals;
    while (c->over > 0 && mr_recv_now(ch->fd, &b, sizeof b, 0) > 0)
        c->over--;
    pthread_mutex_unlock(&c->lock);
}

static void completed(struct cm_id *id) {
    pthread_mutex_lock(&id->lock);
    id->completed++;
    pthread_cond_broadcast(&id->cond);
    pthread_mutex_unlock(&id->lock);
}

MR_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event) {
    if (!event)
        return mr_minus1(EINVAL);
    struct cm_event *e = (struct cm_event *)event;
    if (e->group) {
        pthread_mutex_lock(&e->owner->lock);
        e->group->completed++;
        pthread_mutex_unlock(&e->owner->lock);
    }
    if (e->owner)
        completed(e->owner);
    free(e);
    return 0;
}

/* ------------------------------------------------------------------------------------------ what an event says */

static void copy_conn(struct cm_event *e, const struct mr_cm_event *m) {
    struct rdma_conn_param *p = &e->ev.param.conn;
    if (m->param.private_len) {
        p->private_data = memcpy(e->private_data, m->private_data, sizeof e->private_data);
        p->private_data_len = (uint8_t)(m->param.private_len > 255 ? 255 : m->param.private_len);
    }
    p->responder_resources = m->param.responder_resources;
    p->initiator_depth = m->param.initiator_depth;
    p->flow_control = m->param.flow_control;
    p->retry_count = m->param.retry_count;
    p->rnr_retry_count = m->param.rnr_retry_count;
    p->srq = m->param.srq;
    p->qp_num = m->param.qpn;
}

static void copy_ud(struct cm_event *e, const struct mr_cm_event *m) {
    struct rdma_ud_param *p = &e->ev.param.ud;
    if (m->param.private_len) {
        p->private_data = memcpy(e->private_data, m->private_data, sizeof e->private_data);
        p->private_data_len = (uint8_t)(m->param.private_len > 255 ? 255 : m->param.private_len);
    }
    memcpy(&p->ah_attr.grh.dgid, m->ah.dgid, 16);
    p->ah_attr.grh.sgid_index = m->ah.sgid_index;
    p->ah_attr.grh.hop_limit = m->ah.hop_limit;
    p->ah_attr.grh.traffic_class = m->ah.traffic_class;
    p->ah_attr.is_global = m->ah.is_global;
    p->ah_attr.port_num = m->ah.port_num;
    p->qp_num = m->param.qpn;
    p->qkey = m->param.qkey;
}

static void copy_param(struct cm_event *e, const struct mr_cm_event *m, const struct cm_id *id) {
    if (cm_is_ud(id))
        copy_ud(e, m);
    else
        copy_conn(e, m);
}

/* A request: an ID for it, of the listener's kind. False: it could not be made; the peer is told. */
static bool on_request(struct cm_event *e, const struct mr_cm_event *m, struct cm_id *listener) {
    struct rdma_cm_id *l = &listener->id;
    struct cm_id *id = cm_id_alloc(l->channel, l->context, l->ps, l->qp_type);
    if (!id) {
        struct mr_handle req = {.handle = m->id};
        struct mr_destroy_reply rep;
        CM_CALL(listener->d, MR_OP_CM_DESTROY_ID, &req, &rep);
        return false;
    }
    cm_id_insert(id, m->id);
    id->initiator_depth = m->param.initiator_depth;
    id->responder_resources = m->param.responder_resources;
    e->ev.listen_id = l;
    e->ev.id = &id->id;
    copy_param(e, m, id);
    if (cm_query(id) || (listener->sync && rdma_migrate_id(&id->id, NULL))) {
        rdma_destroy_id(&id->id);
        return false;
    }
    return true;
}

/* The peer's reply: our QP is made ready and the peer told. A program without a QP here does both itself. */
static void on_response(struct cm_event *e, struct cm_id *id) {
    if (!id->id.qp)
        return;
    if (cm_query(id) || cm_qp_ready(id, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH) || cm_simple(id, MR_OP_CM_ESTABLISH)) {
        e->ev.status = -(errno ? errno : EIO);
        e->ev.event = RDMA_CM_EVENT_CONNECT_ERROR;
        id->connect_error = true;
        cm_qp_error(id);
        struct mr_cm_conn req = {.id = id->handle};
        struct mr_hdr rep;
        CM_CALL(id->d, MR_OP_CM_REJECT, &req, &rep);
        return;
    }
    e->ev.event = RDMA_CM_EVENT_ESTABLISHED;
}

/* The group that a membership's event is about; its QP joins here. */
static void on_join(struct cm_event *e, const struct mr_cm_event *m, struct cm_id *id) {
    copy_ud(e, m);
    pthread_mutex_lock(&id->lock);
    struct cm_group *g = id->groups;
    while (g && g->handle != m->group)
        g = g->next;
    if (g) {
        g->got++;
        e->group = g;
        memcpy(&g->mgid, m->ah.dgid, 16);
        e->ev.param.ud.private_data = g->context;
        if (!e->ev.status && id->id.qp && !g->send_only) {
            int err = ibv_attach_mcast(id->id.qp, &g->mgid, 0);
            g->attached = !err;
            e->ev.status = -err;
        }
    }
    pthread_mutex_unlock(&id->lock);
    if (e->ev.status)
        e->ev.event = RDMA_CM_EVENT_MULTICAST_ERROR;
}

/* Fills an event. False: the program is not to see it. */
static bool take(struct cm_event *e, const struct mr_cm_event *m, struct cm_id *id) {
    e->ev.event = (enum rdma_cm_event_type)m->event;
    e->ev.status = m->status;
    e->ev.id = &id->id;
    e->owner = id;
    switch (e->ev.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        if (cm_query(id)) {
            e->ev.status = -errno;
            e->ev.event =
                e->ev.event == RDMA_CM_EVENT_ADDR_RESOLVED ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ROUTE_ERROR;
        }
        return true;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        return on_request(e, m, id);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        copy_conn(e, m);
        on_response(e, id);
        return true;
    case RDMA_CM_EVENT_REJECTED:
        if (id->connect_error)
            return false;
        copy_conn(e, m);
        cm_qp_error(id);
        return true;
    case RDMA_CM_EVENT_DISCONNECTED:
        if (id->connect_error)
            return false;
        copy_conn(e, m);
        return true;
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
        on_join(e, m, id);
        return true;
    default:
        copy_param(e, m, id);
        return true;
    }
}

/* The daemon is gone, and the NICs with it: each ID of the channel is told once. */
static int removal(struct cm_chan *c, struct rdma_cm_event **out) {
    struct cm_id *id = NULL;
    atomic_store(&c->d->gone, 1);
    pthread_mutex_lock(&c->d->lock);
    for (uint32_t b = 0; !id && b < CM_BUCKETS; b++)
        for (id = c->d->ids[b]; id && (id->removed || id->id.channel != &c->ev); id = id->next)
            ;
    if (id)
        id->removed = true;
    pthread_mutex_unlock(&c->d->lock);
    struct cm_event *e = id ? calloc(1, sizeof *e) : NULL;
    if (!e)
        return mr_minus1(EIO);
    e->ev.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
    e->ev.id = &id->id;
    e->owner = id;
    *out = &e->ev;
    return 0;
}

/* Takes a datagram, or waits for one as the program has set the descriptor. A thread that waits in a channel which
 * another one destroys stays there: programs (rping) destroy it on their way out and take a return for an error. */
static ssize_t wait_signal(struct cm_chan *c) {
    uint64_t b;
    ssize_t n = mr_recv_now(c->ev.fd, &b, sizeof b, 0);
    if (n >= 0 || errno != EAGAIN)
        return n;
    int saved;
    pthread_mutex_lock(&c->lock);
    c->readers++;
    pthread_mutex_unlock(&c->lock);
    pthread_cleanup_push(leave, c);
    n = recv(c->ev.fd, &b, sizeof b, 0);
    saved = errno;
    pthread_mutex_lock(&c->lock);
    bool closed = c->closed;
    pthread_mutex_unlock(&c->lock);
    while (closed)
        pause();
    pthread_cleanup_pop(1);
    errno = saved;
    return n;
}

/* Takes the event that a datagram was for. 0, -1 and errno, or 1: there is none, or it is not for the program. */
static int next_event(struct cm_chan *c, struct rdma_cm_event **out) {
    struct mr_handle req = {.handle = c->handle};
    struct mr_cm_event m;
    if (CM_CALL(c->d, MR_OP_CM_GET_EVENT, &req, &m)) {
        if (errno != ENODATA)
            return errno == EIO ? removal(c, out) : -1;
        pthread_mutex_lock(&c->lock); /* its ID was destroyed meanwhile: one less to be taken back for that */
        c->over--;
        pthread_mutex_unlock(&c->lock);
        return 1;
    }
    struct cm_id *id = cm_id_find(c->d, m.listen_id ? m.listen_id : m.id);
    if (!id)
        return 1;
    struct cm_event *e = calloc(1, sizeof *e);
    if (e && take(e, &m, id)) {
        *out = &e->ev;
        return 0;
    }
    free(e);
    completed(id);
    return e ? 1 : mr_minus1(ENOMEM);
}

MR_EXPORT int rdma_get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **out) {
    if (!ch || !out)
        return mr_minus1(EINVAL);
    struct cm_chan *c = to_chan(ch);

    if (atomic_load(&c->d->gone)) /* or a forked child, which must not take what is its parent's */
        return removal(c, out);
    for (;;) {
        ssize_t n = wait_signal(c);
        if (n < 0 && errno != ECONNRESET)
            return -1;
        if (n <= 0)
            return removal(c, out);
        pthread_mutex_lock(&c->order);
        int got = next_event(c, out);
        pthread_mutex_unlock(&c->order);
        if (got <= 0)
            return got;
    }
}

int cm_complete(struct cm_id *id) {
    struct rdma_cm_id *i = &id->id;
    if (!id->sync)
        return 0;
    if (i->event) {
        rdma_ack_cm_event(i->event);
        i->event = NULL;
    }
    if (rdma_get_cm_event(i->channel, &i->event))
        return -1;
    if (i->event->status) {
        if (i->event->event == RDMA_CM_EVENT_REJECTED)
            return mr_minus1(ECONNREFUSED);
        return mr_minus1(i->event->status < 0 ? -i->event->status : i->event->status);
    }
    return 0;
}

MR_EXPORT const char *rdma_event_str(enum rdma_cm_event_type event) {
    static const char *const names[] = {
        "RDMA_CM_EVENT_ADDR_RESOLVED",  "RDMA_CM_EVENT_ADDR_ERROR",      "RDMA_CM_EVENT_ROUTE_RESOLVED",
        "RDMA_CM_EVENT_ROUTE_ERROR",    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
        "RDMA_CM_EVENT_CONNECT_ERROR",  "RDMA_CM_EVENT_UNREACHABLE",     "RDMA_CM_EVENT_REJECTED",
        "RDMA_CM_EVENT_ESTABLISHED",    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
        "RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
        "RDMA_CM_EVENT_TIMEWAIT_EXIT",
    };
    return (unsigned)event < sizeof names / sizeof *names ? names[event] : "UNKNOWN EVENT";
}
