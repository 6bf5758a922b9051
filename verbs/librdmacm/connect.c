/* SPDX-License-Identifier: Apache-2.0
 *
 * connect.c: connecting, accepting, rejecting, disconnecting; options.
 */
#include "cm.h"

static int check_param(struct cm_id *id, const struct rdma_conn_param *p) {
    if (cm_is_ud(id) || !p)
        return 0;
    if (!id->dev)
        return mr_minus1(EINVAL);
    if ((p->responder_resources != RDMA_MAX_RESP_RES && p->responder_resources > id->dev->max_reads) ||
        (p->initiator_depth != RDMA_MAX_INIT_DEPTH && p->initiator_depth > id->dev->max_reads))
        return mr_minus1(EINVAL);
    return 0;
}

static int put_private(struct mr_cm_conn *req, const void *data, size_t len) {
    if (!data)
        len = 0;
    if (len > sizeof req->private_data)
        return mr_minus1(EINVAL);
    if (len)
        memcpy(req->private_data, data, len);
    req->param.private_len = (uint16_t)len;
    return 0;
}

static int put_param(struct mr_cm_conn *req, struct cm_id *id, const struct rdma_conn_param *p) {
    struct ibv_qp *qp = id->id.qp;
    req->id = id->handle;
    req->param.responder_resources = id->responder_resources;
    req->param.initiator_depth = id->initiator_depth;
    req->param.retry_count = p ? p->retry_count : 7;
    req->param.rnr_retry_count = p ? p->rnr_retry_count : 7;
    req->param.flow_control = p ? p->flow_control : 0;
    req->param.qpn = qp ? qp->qp_num : p ? p->qp_num : 0;
    req->param.srq = qp ? qp->srq != NULL : p ? p->srq : 0;
    return p ? put_private(req, p->private_data, p->private_data_len) : 0;
}

MR_EXPORT int rdma_connect(struct rdma_cm_id *cmid, struct rdma_conn_param *p) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_conn req = {.id = 0};
    struct mr_hdr rep;

    if (check_param(id, p))
        return -1;
    uint8_t most = id->dev ? id->dev->max_reads : 0;
    id->initiator_depth = p && p->initiator_depth != RDMA_MAX_INIT_DEPTH ? p->initiator_depth : most;
    id->responder_resources = p && p->responder_resources != RDMA_MAX_RESP_RES ? p->responder_resources : most;
    if (put_param(&req, id, p) || CM_CALL(id->d, MR_OP_CM_CONNECT, &req, &rep))
        return -1;
    return cm_complete(id);
}

static uint8_t least(uint8_t a, uint8_t b) {
    return a < b ? a : b;
}

/* The QP is ready before the peer hears of it: its data may come before its last word. */
MR_EXPORT int rdma_accept(struct rdma_cm_id *cmid, struct rdma_conn_param *p) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_conn req = {.id = 0};
    struct mr_hdr rep;

    if (check_param(id, p))
        return -1;
    uint8_t most = id->dev ? id->dev->max_reads : 0;
    if (!p || p->initiator_depth == RDMA_MAX_INIT_DEPTH)
        id->initiator_depth = least(id->initiator_depth, most);
    else
        id->initiator_depth = p->initiator_depth;
    if (!p || p->responder_resources == RDMA_MAX_RESP_RES)
        id->responder_resources = least(id->responder_resources, most);
    else
        id->responder_resources = p->responder_resources;
    if (!cm_is_ud(id) && cm_qp_ready(id, id->responder_resources, id->initiator_depth))
        return -1;
    if (put_param(&req, id, p))
        return -1;
    if (CM_CALL(id->d, MR_OP_CM_ACCEPT, &req, &rep)) {
        int err = errno;
        if (!cm_is_ud(id))
            cm_qp_error(id);
        return mr_minus1(err);
    }
    return cm_is_ud(id) ? 0 : cm_complete(id);
}

static int reject(struct rdma_cm_id *cmid, const void *data, uint8_t len, uint32_t reason) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_conn req = {.id = id->handle, .arg = reason};
    struct mr_hdr rep;
    if (put_private(&req, data, len))
        return -1;
    return CM_CALL(id->d, MR_OP_CM_REJECT, &req, &rep);
}

MR_EXPORT int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len) {
    return reject(id, data, len, 0);
}

MR_EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t len) {
    return reject(id, data, len, 35); /* vendor option not supported */
}

MR_EXPORT int rdma_establish(struct rdma_cm_id *id) {
    if (id->qp) /* then the library does it itself */
        return mr_minus1(EINVAL);
    return cm_simple(to_id(id), MR_OP_CM_ESTABLISH);
}

MR_EXPORT int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) {
    if (event == IBV_EVENT_COMM_EST)
        return cm_simple(to_id(id), MR_OP_CM_ESTABLISH);
    return event == IBV_EVENT_PATH_MIG ? 0 : mr_minus1(EINVAL);
}

MR_EXPORT int rdma_disconnect(struct rdma_cm_id *cmid) {
    struct cm_id *id = to_id(cmid);
    if (cm_qp_error(id) || cm_simple(id, MR_OP_CM_DISCONNECT))
        return -1;
    return cm_complete(id);
}

MR_EXPORT int rdma_set_option(struct rdma_cm_id *cmid, int level, int name, void *val, size_t len) {
    struct cm_id *id = to_id(cmid);
    struct mr_cm_option req = {.id = id->handle, .level = (uint32_t)level, .name = (uint32_t)name};
    struct mr_hdr rep;

    if (level != RDMA_OPTION_ID)
        return mr_minus1(EOPNOTSUPP);
    if (!val)
        return mr_minus1(EINVAL);
    if ((name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT) && len == sizeof(uint8_t)) {
        req.value = *(uint8_t *)val;
    } else if ((name == RDMA_OPTION_ID_REUSEADDR || name == RDMA_OPTION_ID_AFONLY) && len == sizeof(int)) {
        int v;
        memcpy(&v, val, sizeof v);
        req.value = v != 0;
    } else {
        return mr_minus1(EINVAL);
    }
    return CM_CALL(id->d, MR_OP_CM_SET_OPTION, &req, &rep);
}

/* Enhanced connections are a matter between NICs of one vendor; ours have nothing to say. */
MR_EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece) {
    if (!id || id->qp || !ece || !ece->vendor_id || ece->comp_mask)
        return mr_minus1(EINVAL);
    to_id(id)->local_ece = *ece;
    return 0;
}

MR_EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece) {
    if (!id || id->qp || !ece)
        return mr_minus1(EINVAL);
    *ece = to_id(id)->remote_ece;
    return 0;
}
