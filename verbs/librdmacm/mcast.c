/* SPDX-License-Identifier: Apache-2.0
 *
 * mcast.c: memberships of multicast groups. There is no subnet administrator to ask: a group is its IP address.
 */
#include "cm.h"

#include <stdlib.h>

static int join(struct rdma_cm_id *cmid, struct sockaddr *addr, bool send_only, void *context) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_addrs req = {.id = id->handle};
    struct mr_handle rep;
    if (!addr)
        return mr_minus1(EINVAL);
    if (cm_addr_to_abi(&req.dst, addr))
        return -1;
    struct cm_group *g = calloc(1, sizeof *g);
    if (!g)
        return mr_minus1(ENOMEM);
    g->context = context;
    g->send_only = send_only;
    memcpy(&g->addr, addr, cm_addr_len(addr));
    pthread_mutex_lock(&id->lock); /* the event may come before the reply */
    int err = CM_CALL(id->d, MR_OP_CM_JOIN, &req, &rep) ? errno : 0;
    if (!err) {
        g->handle = rep.handle;
        g->next = id->groups;
        id->groups = g;
    }
    pthread_mutex_unlock(&id->lock);
    if (err) {
        free(g);
        return mr_minus1(err);
    }
    return cm_complete(id);
}

MR_EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context) {
    return join(id, addr, false, context);
}

MR_EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context) {
    if (!attr || attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED ||
        !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) || !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS) ||
        attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
        return mr_minus1(EINVAL);
    return join(id, attr->addr, attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context);
}

MR_EXPORT int rdma_leave_multicast(struct rdma_cm_id *cmid, struct sockaddr *addr) {
    struct cm_id *id = to_id(cmid);
    struct cm_group *g, **p;
    if (!addr)
        return mr_minus1(EINVAL);
    pthread_mutex_lock(&id->lock);
    for (p = &id->groups; (g = *p); p = &g->next)
        if (g->addr.ss_family == addr->sa_family && !memcmp(&g->addr, addr, cm_addr_len(addr)))
            break;
    if (g)
        *p = g->next;
    pthread_mutex_unlock(&id->lock);
    if (!g)
        return mr_minus1(EADDRNOTAVAIL);
    int err = g->attached && cmid->qp ? ibv_detach_mcast(cmid->qp, &g->mgid, 0) : 0;
    struct mr_cm_arg req = {.id = id->handle, .arg = g->handle};
    struct mr_destroy_reply rep = {.async_events = 0};
    if (CM_CALL(id->d, MR_OP_CM_LEAVE, &req, &rep) && !err)
        err = errno;
    cm_drain(cmid->channel, rep.async_events);
    if (id->sync && cmid->event && ((struct cm_event *)cmid->event)->group == g) {
        rdma_ack_cm_event(cmid->event);
        cmid->event = NULL;
    }
    pthread_mutex_lock(&id->lock);
    while (!atomic_load(&id->d->gone) && g->completed < g->got)
        pthread_cond_wait(&id->cond, &id->lock);
    pthread_mutex_unlock(&id->lock);
    free(g);
    return err ? mr_minus1(err) : 0;
}
