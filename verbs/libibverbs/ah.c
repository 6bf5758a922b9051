/* SPDX-License-Identifier: Apache-2.0
 *
 * ah.c: address handles, and the multicast groups of a QP.
 */
#include "mr.h"

#include <stdlib.h>

void mr_ah_to_abi(struct mr_ah_attr *to, const struct ibv_ah_attr *from) {
    memset(to, 0, sizeof *to);
    memcpy(to->dgid, from->grh.dgid.raw, sizeof to->dgid);
    to->flow_label = from->grh.flow_label;
    to->sgid_index = from->grh.sgid_index;
    to->hop_limit = from->grh.hop_limit;
    to->traffic_class = from->grh.traffic_class;
    to->is_global = from->is_global;
    to->dlid = from->dlid;
    to->sl = from->sl;
    to->src_path_bits = from->src_path_bits;
    to->static_rate = from->static_rate;
    to->port_num = from->port_num;
}

void mr_ah_from_abi(struct ibv_ah_attr *to, const struct mr_ah_attr *from) {
    memset(to, 0, sizeof *to);
    memcpy(to->grh.dgid.raw, from->dgid, sizeof from->dgid);
    to->grh.flow_label = from->flow_label;
    to->grh.sgid_index = from->sgid_index;
    to->grh.hop_limit = from->hop_limit;
    to->grh.traffic_class = from->traffic_class;
    to->is_global = from->is_global;
    to->dlid = from->dlid;
    to->sl = from->sl;
    to->src_path_bits = from->src_path_bits;
    to->static_rate = from->static_rate;
    to->port_num = from->port_num;
}

MR_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    struct mr_create_ah req = {.pd = pd->handle};
    struct mr_handle rep;
    if (!attr->is_global) /* an Ethernet port is reached by GID only */
        return mr_null(EINVAL);
    mr_ah_to_abi(&req.attr, attr);
    struct mr_ah *ah = calloc(1, sizeof *ah);
    int err = ah ? MR_CALL(to_ctx(pd->context), MR_OP_CREATE_AH, &req, &rep) : ENOMEM;
    if (err) {
        free(ah);
        return mr_null(err);
    }
    ah->ibv = (struct ibv_ah){.context = pd->context, .pd = pd, .handle = rep.handle};
    return &ah->ibv;
}

MR_EXPORT int ibv_destroy_ah(struct ibv_ah *ah) {
    int err = mr_free_handle(to_ctx(ah->context), MR_OP_DESTROY_AH, ah->handle);
    if (!err)
        free(ah);
    return mr_err(err);
}

/* ------------------------------------------------------------------------------ from a received message's GRH */

static int gid_index(struct ibv_context *c, uint8_t port, const uint8_t gid[16]) {
    struct mr_gid_entry e;
    for (uint32_t i = 0;; i++) {
        int err = mr_gid(c, port, i, &e);
        if (err && err != ENODATA)
            return -1; /* past the table */
        if (!err && !memcmp(e.gid, gid, sizeof e.gid))
            return (int)i;
    }
}

static void v4_gid(uint8_t gid[16], const uint8_t addr[4]) {
    memset(gid, 0, 10);
    gid[10] = gid[11] = 0xff;
    memcpy(gid + 12, addr, 4);
}

/* The 40 bytes in front of a UD message are an IPv6-like GRH, or 20 unused bytes and the IPv4 header. */
MR_EXPORT int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
                                  struct ibv_ah_attr *attr) {
    const uint8_t *raw = (const uint8_t *)grh;
    uint8_t from[16], to[16];

    memset(attr, 0, sizeof *attr);
    attr->dlid = wc->slid;
    attr->sl = wc->sl;
    attr->src_path_bits = wc->dlid_path_bits;
    attr->port_num = port;
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0;
    if (raw[0] >> 4 != 6 && raw[20] == 0x45) {
        v4_gid(from, raw + 32);
        v4_gid(to, raw + 36);
        attr->grh.traffic_class = raw[21];
    } else {
        memcpy(from, grh->sgid.raw, 16);
        memcpy(to, grh->dgid.raw, 16);
        uint32_t vtf = be32toh(grh->version_tclass_flow);
        attr->grh.traffic_class = (uint8_t)(vtf >> 20);
        attr->grh.flow_label = vtf & 0xfffff;
    }
    int index = gid_index(c, port, to);
    if (index < 0)
        return mr_minus1(EINVAL);
    attr->is_global = 1;
    memcpy(attr->grh.dgid.raw, from, 16);
    attr->grh.sgid_index = (uint8_t)index;
    attr->grh.hop_limit = 0xff;
    return 0;
}

MR_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                               uint8_t port) {
    struct ibv_ah_attr attr;
    if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
        return NULL;
    return ibv_create_ah(pd, &attr);
}

/* --------------------------------------------------------------------------------------------------- multicast */

static int mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t op) {
    struct mr_mcast req = {.qp = qp->handle};
    struct mr_hdr rep;
    memcpy(req.gid, gid->raw, sizeof req.gid);
    return MR_CALL(to_ctx(qp->context), op, &req, &rep);
}

/* Ethernet has no LIDs. */
MR_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    (void)lid;
    return mcast(qp, gid, MR_OP_ATTACH_MCAST);
}

MR_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    (void)lid;
    return mcast(qp, gid, MR_OP_DETACH_MCAST);
}
