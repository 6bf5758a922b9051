/* SPDX-License-Identifier: Apache-2.0
 *
 * ep.c: endpoints: an ID, its addresses and its QP in one call, synchronous.
 */
#include "cm.h"

#include <stdlib.h>

static int passive(struct cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    if (rdma_bind_addr(&id->id, res->ai_src_addr))
        return -1;
    if (!attr)
        return 0;
    id->ep_attr = malloc(sizeof *attr);
    if (!id->ep_attr)
        return mr_minus1(ENOMEM);
    *id->ep_attr = *attr;
    id->ep_attr->qp_type = res->ai_qp_type;
    if (pd)
        id->id.pd = pd;
    return 0;
}

static int active(struct cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    if (rdma_resolve_addr(&id->id, res->ai_src_addr, res->ai_dst_addr, 2000) || rdma_resolve_route(&id->id, 2000))
        return -1;
    if (!attr)
        return 0;
    attr->qp_type = res->ai_qp_type;
    return rdma_create_qp(&id->id, pd, attr);
}

MR_EXPORT int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd,
                             struct ibv_qp_init_attr *attr) {
    struct rdma_cm_id *id;
    if (!out || !res)
        return mr_minus1(EINVAL);
    if (cm_create_id(NULL, &id, NULL, res->ai_port_space, res->ai_qp_type))
        return -1;
    int err = res->ai_flags & RAI_PASSIVE ? passive(to_id(id), res, pd, attr) : active(to_id(id), res, pd, attr);
    if (err) {
        err = errno;
        rdma_destroy_ep(id);
        return mr_minus1(err);
    }
    *out = id;
    return 0;
}

MR_EXPORT void rdma_destroy_ep(struct rdma_cm_id *id) {
    if (id->qp)
        rdma_destroy_qp(id);
    if (id->srq)
        rdma_destroy_srq(id);
    rdma_destroy_id(id);
}

MR_EXPORT int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **out) {
    struct cm_id *l = to_id(listen);
    struct rdma_cm_event *event;

    if (!l->sync)
        return mr_minus1(EINVAL);
    if (listen->event) {
        rdma_ack_cm_event(listen->event);
        listen->event = NULL;
    }
    if (rdma_get_cm_event(listen->channel, &event))
        return -1;
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST || event->status) {
        int err = event->status < 0 ? -event->status : event->status ? event->status : EINVAL;
        listen->event = event;
        return mr_minus1(err);
    }
    if (l->ep_attr) {
        struct ibv_qp_init_attr attr = *l->ep_attr;
        if (rdma_create_qp(event->id, listen->pd, &attr)) {
            int err = errno;
            struct rdma_cm_id *id = event->id;
            listen->event = event;
            rdma_reject(id, NULL, 0);
            rdma_destroy_id(id);
            return mr_minus1(err);
        }
    }
    *out = event->id;
    (*out)->event = event;
    return 0;
}
