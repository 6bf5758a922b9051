/* SPDX-License-Identifier: Apache-2.0
 *
 * id.c: making and ending IDs, addresses, routes, listening.
 */
#include "cm.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <infiniband/sa.h>

/* ------------------------------------------------------------------------------------------------- addresses */

socklen_t cm_addr_len(const struct sockaddr *a) {
    return a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int cm_addr_to_abi(struct mr_cm_addr *to, const struct sockaddr *from) {
    memset(to, 0, sizeof *to);
    if (!from)
        return 0;
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *s = (const struct sockaddr_in *)from;
        to->port = ntohs(s->sin_port);
        memcpy(to->addr + 12, &s->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *s = (const struct sockaddr_in6 *)from;
        to->port = ntohs(s->sin6_port);
        memcpy(to->addr, &s->sin6_addr, 16);
    } else {
        return mr_minus1(EAFNOSUPPORT);
    }
    to->family = from->sa_family;
    return 0;
}

static void addr_from_abi(struct sockaddr_storage *to, const struct mr_cm_addr *from) {
    memset(to, 0, sizeof *to);
    to->ss_family = from->family;
    if (from->family == AF_INET) {
        struct sockaddr_in *s = (struct sockaddr_in *)to;
        s->sin_port = htons(from->port);
        memcpy(&s->sin_addr, from->addr + 12, 4);
    } else if (from->family == AF_INET6) {
        struct sockaddr_in6 *s = (struct sockaddr_in6 *)to;
        s->sin6_port = htons(from->port);
        memcpy(&s->sin6_addr, from->addr, 16);
    }
}

/* What a program may read of the route: one path, that of the two addresses. */
static void fill_path(struct cm_id *id, const struct mr_cm_info *i) {
    struct rdma_route *r = &id->id.route;
    if (!r->path_rec)
        r->path_rec = calloc(1, sizeof *r->path_rec);
    if (!r->path_rec)
        return;
    struct ibv_sa_path_rec *p = r->path_rec;
    memcpy(&p->dgid, i->dgid, 16);
    memcpy(&p->sgid, i->sgid, 16);
    p->pkey = htons(0xffff);
    p->hop_limit = i->hop_limit;
    p->traffic_class = i->traffic_class;
    p->mtu = i->mtu;
    p->mtu_selector = p->rate_selector = p->packet_life_time_selector = 2; /* exactly */
    p->rate = IBV_RATE_100_GBPS;
    p->packet_life_time = 13;
    p->reversible = 1;
    p->numb_path = 1;
    r->num_paths = 1;
}

int cm_query(struct cm_id *id) {
    struct mr_handle req = {.handle = id->handle};
    struct mr_cm_info i;
    if (CM_CALL(id->d, MR_OP_CM_QUERY, &req, &i))
        return -1;
    struct rdma_addr *a = &id->id.route.addr;
    addr_from_abi(&a->src_storage, &i.src);
    addr_from_abi(&a->dst_storage, &i.dst);
    if (!i.guid)
        return 0;
    memcpy(&a->addr.ibaddr.sgid, i.sgid, 16);
    memcpy(&a->addr.ibaddr.dgid, i.dgid, 16);
    a->addr.ibaddr.pkey = htons(0xffff);
    if (i.dst.family)
        fill_path(id, &i);
    return cm_use_device(id, i.guid);
}

static in_port_t port_of(const struct sockaddr *a) {
    return a->sa_family == AF_INET6  ? ((const struct sockaddr_in6 *)a)->sin6_port
           : a->sa_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port
                                     : 0;
}

MR_EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id) {
    return port_of(&id->route.addr.src_addr);
}

MR_EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id) {
    return port_of(&id->route.addr.dst_addr);
}

/* ----------------------------------------------------------------------------------------- making and ending */

void cm_id_insert(struct cm_id *id, uint32_t handle) {
    id->handle = handle;
    pthread_mutex_lock(&id->d->lock);
    id->next = id->d->ids[handle % CM_BUCKETS];
    id->d->ids[handle % CM_BUCKETS] = id;
    pthread_mutex_unlock(&id->d->lock);
}

struct cm_id *cm_id_find(struct cm_daemon *d, uint32_t handle) {
    pthread_mutex_lock(&d->lock);
    struct cm_id *id = d->ids[handle % CM_BUCKETS];
    while (id && id->handle != handle)
        id = id->next;
    pthread_mutex_unlock(&d->lock);
    return id;
}

static void id_remove(struct cm_id *id) {
    pthread_mutex_lock(&id->d->lock);
    for (struct cm_id **p = &id->d->ids[id->handle % CM_BUCKETS]; *p; p = &(*p)->next)
        if (*p == id) {
            *p = id->next;
            break;
        }
    pthread_mutex_unlock(&id->d->lock);
}

/* Without a channel the ID gets one of its own and becomes synchronous. */
struct cm_id *cm_id_alloc(struct rdma_event_channel *ch, void *context, enum rdma_port_space ps,
                          enum ibv_qp_type type) {
    struct cm_id *id = calloc(1, sizeof *id);
    if (!id)
        return mr_null(ENOMEM);
    if (!ch) {
        ch = rdma_create_event_channel();
        if (!ch) {
            free(id);
            return NULL;
        }
        id->sync = true;
    }
    id->id.context = context;
    id->id.ps = ps;
    id->id.qp_type = type;
    id->id.channel = ch;
    id->d = to_chan(ch)->d;
    pthread_mutex_init(&id->lock, NULL);
    pthread_cond_init(&id->cond, NULL);
    return id;
}

void cm_id_free(struct cm_id *id) {
    cm_leave_device(id);
    while (id->groups) {
        struct cm_group *g = id->groups;
        id->groups = g->next;
        free(g);
    }
    pthread_cond_destroy(&id->cond);
    pthread_mutex_destroy(&id->lock);
    free(id->id.route.path_rec);
    free(id->ep_attr);
    if (id->sync)
        rdma_destroy_event_channel(id->id.channel);
    free(id);
}

int cm_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **out, void *context, enum rdma_port_space ps,
                 enum ibv_qp_type type) {
    struct cm_id *id = cm_id_alloc(ch, context, ps, type);
    if (!id)
        return -1;
    struct mr_cm_create req = {.channel = to_chan(id->id.channel)->handle, .ps = ps, .qp_type = type};
    struct mr_handle rep;
    if (CM_CALL(id->d, MR_OP_CM_CREATE_ID, &req, &rep)) {
        int err = errno;
        cm_id_free(id);
        return mr_minus1(err);
    }
    cm_id_insert(id, rep.handle);
    *out = &id->id;
    return 0;
}

MR_EXPORT int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *context,
                             enum rdma_port_space ps) {
    enum ibv_qp_type type = ps == RDMA_PS_IPOIB || ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
    return cm_create_id(ch, id, context, ps, type);
}

/* Its events are waited for until the program has acknowledged them, as everywhere. */
MR_EXPORT int rdma_destroy_id(struct rdma_cm_id *cmid) {
    struct cm_id *id = to_id(cmid);
    struct mr_handle req = {.handle = id->handle};
    struct mr_destroy_reply rep = {.comp_events = 0};

    if (CM_CALL(id->d, MR_OP_CM_DESTROY_ID, &req, &rep) && errno != EIO)
        return -1;
    cm_drain(cmid->channel, rep.async_events);
    if (cmid->event) {
        rdma_ack_cm_event(cmid->event);
        cmid->event = NULL;
    }
    pthread_mutex_lock(&id->lock);
    while (!atomic_load(&id->d->gone) && id->completed < rep.comp_events)
        pthread_cond_wait(&id->cond, &id->lock);
    pthread_mutex_unlock(&id->lock);
    id_remove(id);
    cm_id_free(id);
    return 0;
}

MR_EXPORT int rdma_migrate_id(struct rdma_cm_id *cmid, struct rdma_event_channel *ch) {
    struct cm_id *id = to_id(cmid);
    struct rdma_event_channel *old = cmid->channel;
    bool sync = !ch, was_sync = id->sync;

    if (sync && was_sync)
        return 0;
    if (sync && !(ch = rdma_create_event_channel()))
        return -1;
    struct mr_cm_arg req = {.id = id->handle, .arg = to_chan(ch)->handle};
    struct mr_destroy_reply rep;
    if (to_chan(ch)->d != id->d)
        errno = EINVAL;
    if (to_chan(ch)->d != id->d || CM_CALL(id->d, MR_OP_CM_MIGRATE, &req, &rep)) {
        int err = errno;
        if (sync)
            rdma_destroy_event_channel(ch);
        return mr_minus1(err);
    }
    cm_drain(old, rep.async_events);
    id->sync = sync;
    cmid->channel = ch;
    if (was_sync && cmid->event) {
        rdma_ack_cm_event(cmid->event);
        cmid->event = NULL;
    }
    if (was_sync)
        rdma_destroy_event_channel(old);
    /* Nobody may still look at an event of it from the old channel; of a new request, the one in hand is the
     * listener's. */
    pthread_mutex_lock(&id->lock);
    while (!atomic_load(&id->d->gone) && id->completed < rep.comp_events)
        pthread_cond_wait(&id->cond, &id->lock);
    pthread_mutex_unlock(&id->lock);
    return 0;
}

/* --------------------------------------------------------------------------------- binding, routes, listening */

MR_EXPORT int rdma_bind_addr(struct rdma_cm_id *cmid, struct sockaddr *addr) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_addrs req = {.id = id->handle};
    struct mr_hdr rep;
    if (!addr)
        return mr_minus1(EINVAL);
    if (cm_addr_to_abi(&req.src, addr) || CM_CALL(id->d, MR_OP_CM_BIND, &req, &rep))
        return -1;
    return cm_query(id);
}

MR_EXPORT int rdma_resolve_addr(struct rdma_cm_id *cmid, struct sockaddr *src, struct sockaddr *dst, int timeout_ms) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_addrs req = {.id = id->handle, .timeout_ms = (uint32_t)timeout_ms};
    struct mr_hdr rep;
    if (!dst)
        return mr_minus1(EINVAL);
    if (cm_addr_to_abi(&req.src, src) || cm_addr_to_abi(&req.dst, dst) ||
        CM_CALL(id->d, MR_OP_CM_RESOLVE_ADDR, &req, &rep))
        return -1;
    memcpy(&cmid->route.addr.dst_storage, dst, cm_addr_len(dst));
    return cm_complete(id);
}

MR_EXPORT int rdma_resolve_route(struct rdma_cm_id *cmid, int timeout_ms) {
    (void)timeout_ms; /* there is nothing to wait for */
    if (cm_simple(to_id(cmid), MR_OP_CM_RESOLVE_ROUTE))
        return -1;
    return cm_complete(to_id(cmid));
}

MR_EXPORT int rdma_listen(struct rdma_cm_id *cmid, int backlog) {
    struct cm_id *id = to_id(cmid);
    if (cm_arg(id, MR_OP_CM_LISTEN, (uint32_t)backlog))
        return -1;
    return cm_query(id);
}
