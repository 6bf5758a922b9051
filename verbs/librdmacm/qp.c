/* SPDX-License-Identifier: Apache-2.0
 *
 * qp.c: QPs, shared receive queues and completion queues of an ID, and taking the QP through its states.
 */
#include "cm.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------------------------ states of the QP */

/* ibv_qp_attr of a state, as the daemon has it. */
MR_EXPORT int rdma_init_qp_attr(struct rdma_cm_id *cmid, struct ibv_qp_attr *attr, int *mask) {
    struct cm_id *id = to_id(cmid);
    if (!attr || !mask)
        return mr_minus1(EINVAL);
    struct mr_cm_arg req = {.id = id->handle, .arg = (uint32_t)attr->qp_state};
    struct mr_modify_qp r;
    if (CM_CALL(id->d, MR_OP_CM_QP_ATTR, &req, &r))
        return -1;
    memset(attr, 0, sizeof *attr);
    attr->qp_state = (enum ibv_qp_state)r.qp_state;
    attr->path_mtu = (enum ibv_mtu)r.path_mtu;
    attr->qkey = r.qkey;
    attr->rq_psn = r.rq_psn;
    attr->sq_psn = r.sq_psn;
    attr->dest_qp_num = r.dest_qp_num;
    attr->qp_access_flags = r.qp_access_flags;
    memcpy(&attr->ah_attr.grh.dgid, r.ah.dgid, 16);
    attr->ah_attr.grh.flow_label = r.ah.flow_label;
    attr->ah_attr.grh.sgid_index = r.ah.sgid_index;
    attr->ah_attr.grh.hop_limit = r.ah.hop_limit;
    attr->ah_attr.grh.traffic_class = r.ah.traffic_class;
    attr->ah_attr.is_global = r.ah.is_global;
    attr->ah_attr.port_num = r.ah.port_num;
    attr->pkey_index = r.pkey_index;
    attr->max_rd_atomic = r.max_rd_atomic;
    attr->max_dest_rd_atomic = r.max_dest_rd_atomic;
    attr->min_rnr_timer = r.min_rnr_timer;
    attr->port_num = r.port_num;
    attr->timeout = r.timeout;
    attr->retry_cnt = r.retry_cnt;
    attr->rnr_retry = r.rnr_retry;
    *mask = (int)r.mask;
    return 0;
}

static int to_state(struct cm_id *id, enum ibv_qp_state state, uint8_t resp_res, uint8_t init_depth) {
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask;
    if (rdma_init_qp_attr(&id->id, &attr, &mask))
        return -1;
    if (state == IBV_QPS_RTR && resp_res != RDMA_MAX_RESP_RES)
        attr.max_dest_rd_atomic = resp_res;
    if (state == IBV_QPS_RTS && init_depth != RDMA_MAX_INIT_DEPTH)
        attr.max_rd_atomic = init_depth;
    int err = ibv_modify_qp(id->id.qp, &attr, mask);
    return err ? mr_minus1(err) : 0;
}

/* INIT once more, as the rights depend on what was agreed, then RTR and RTS. */
int cm_qp_ready(struct cm_id *id, uint8_t resp_res, uint8_t init_depth) {
    if (!id->id.qp)
        return 0;
    if (to_state(id, IBV_QPS_INIT, 0, 0) || to_state(id, IBV_QPS_RTR, resp_res, 0))
        return -1;
    return to_state(id, IBV_QPS_RTS, 0, init_depth);
}

int cm_qp_error(struct cm_id *id) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    if (!id->id.qp)
        return 0;
    int err = ibv_modify_qp(id->id.qp, &attr, IBV_QP_STATE);
    return err ? mr_minus1(err) : 0;
}

/* A datagram QP needs no peer. */
static int first_state(struct cm_id *id) {
    if (to_state(id, IBV_QPS_INIT, 0, 0))
        return -1;
    if (!cm_is_ud(id))
        return 0;
    if (to_state(id, IBV_QPS_RTR, RDMA_MAX_RESP_RES, 0))
        return -1;
    return to_state(id, IBV_QPS_RTS, 0, RDMA_MAX_INIT_DEPTH);
}

/* ------------------------------------------------------------------------------------------------ the queues */

static void destroy_cqs(struct rdma_cm_id *id) {
    if (id->qp_type == IBV_QPT_XRC_RECV && id->srq)
        return;
    if (id->recv_cq) {
        ibv_destroy_cq(id->recv_cq);
        if (id->send_cq && id->send_cq != id->recv_cq)
            ibv_destroy_cq(id->send_cq);
        id->recv_cq = id->send_cq = NULL;
    } else if (id->send_cq) {
        ibv_destroy_cq(id->send_cq);
        id->send_cq = NULL;
    }
    if (id->recv_cq_channel) {
        ibv_destroy_comp_channel(id->recv_cq_channel);
        if (id->send_cq_channel && id->send_cq_channel != id->recv_cq_channel)
            ibv_destroy_comp_channel(id->send_cq_channel);
        id->recv_cq_channel = id->send_cq_channel = NULL;
    } else if (id->send_cq_channel) {
        ibv_destroy_comp_channel(id->send_cq_channel);
        id->send_cq_channel = NULL;
    }
}

static int make_cq(struct rdma_cm_id *id, uint32_t size, struct ibv_comp_channel **ch, struct ibv_cq **cq) {
    *ch = ibv_create_comp_channel(id->verbs);
    if (!*ch)
        return -1;
    *cq = ibv_create_cq(id->verbs, (int)(size ? size : 1), id, *ch, 0);
    return *cq ? 0 : -1;
}

/* The ones a program leaves to us; rdma_verbs.h waits on their channels. */
static int make_cqs(struct rdma_cm_id *id, uint32_t send_size, uint32_t recv_size) {
    if ((recv_size && make_cq(id, recv_size, &id->recv_cq_channel, &id->recv_cq)) ||
        (send_size && make_cq(id, send_size, &id->send_cq_channel, &id->send_cq))) {
        int err = errno;
        destroy_cqs(id);
        return mr_minus1(err);
    }
    return 0;
}

MR_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *cmid, struct ibv_qp_init_attr_ex *attr) {
    struct cm_id *id = to_id(cmid);
    if (cmid->qp || !cmid->verbs)
        return mr_minus1(EINVAL);
    if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD)) {
        attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr->pd = cmid->pd;
    } else if (!attr->pd || attr->pd->context != cmid->verbs) {
        return mr_minus1(EINVAL);
    }
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) && (!attr->xrcd || attr->xrcd->context != cmid->verbs))
        return mr_minus1(EINVAL);
    if (cmid->srq && !attr->srq)
        attr->srq = cmid->srq;
    if (make_cqs(cmid, attr->send_cq ? 0 : attr->cap.max_send_wr, attr->recv_cq ? 0 : attr->cap.max_recv_wr))
        return -1;
    if (!attr->send_cq)
        attr->send_cq = cmid->send_cq ? cmid->send_cq : cmid->recv_cq;
    if (!attr->recv_cq)
        attr->recv_cq = cmid->recv_cq ? cmid->recv_cq : cmid->send_cq;
    struct ibv_qp *qp = ibv_create_qp_ex(cmid->verbs, attr);
    if (qp) {
        cmid->qp = qp;
        if (!first_state(id)) {
            cmid->pd = qp->pd;
            return 0;
        }
    }
    int err = errno;
    cmid->qp = NULL;
    if (qp)
        ibv_destroy_qp(qp);
    destroy_cqs(cmid);
    return mr_minus1(err);
}

MR_EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    struct ibv_qp_init_attr_ex ex = {.qp_context = attr->qp_context,
                                     .send_cq = attr->send_cq,
                                     .recv_cq = attr->recv_cq,
                                     .srq = attr->srq,
                                     .cap = attr->cap,
                                     .qp_type = attr->qp_type,
                                     .sq_sig_all = attr->sq_sig_all,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD,
                                     .pd = pd ? pd : id->pd};
    if (rdma_create_qp_ex(id, &ex))
        return -1;
    attr->qp_context = ex.qp_context; /* and what was granted */
    attr->send_cq = ex.send_cq;
    attr->recv_cq = ex.recv_cq;
    attr->srq = ex.srq;
    attr->cap = ex.cap;
    return 0;
}

MR_EXPORT void rdma_destroy_qp(struct rdma_cm_id *id) {
    if (id->qp)
        ibv_destroy_qp(id->qp);
    id->qp = NULL;
    destroy_cqs(id);
}

MR_EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr) {
    if (id->srq || !id->verbs)
        return mr_minus1(EINVAL);
    if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC) {
        if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
            attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            attr->pd = id->pd;
        }
        struct ibv_srq_init_attr basic = {.srq_context = attr->srq_context, .attr = attr->attr};
        id->srq = ibv_create_srq(attr->pd, &basic);
        attr->attr = basic.attr;
    } else {
        if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
            attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            attr->pd = id->pd;
        }
        if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ)) {
            if (make_cqs(id, 0, attr->attr.max_wr))
                return -1;
            attr->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
            attr->cq = id->recv_cq;
        }
        id->srq = ibv_create_srq_ex(id->verbs, attr);
        if (!id->srq) {
            int err = errno;
            destroy_cqs(id);
            return mr_minus1(err);
        }
    }
    if (!id->srq)
        return -1;
    if (!id->pd)
        id->pd = attr->pd;
    return 0;
}

MR_EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    struct ibv_srq_init_attr_ex ex = {.srq_context = attr->srq_context,
                                      .attr = attr->attr,
                                      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
                                      .srq_type = IBV_SRQT_BASIC,
                                      .pd = pd ? pd : id->pd};
    if (rdma_create_srq_ex(id, &ex))
        return -1;
    attr->attr = ex.attr;
    return 0;
}

MR_EXPORT void rdma_destroy_srq(struct rdma_cm_id *id) {
    if (id->srq)
        ibv_destroy_srq(id->srq);
    id->srq = NULL;
    if (!id->qp)
        destroy_cqs(id);
}
