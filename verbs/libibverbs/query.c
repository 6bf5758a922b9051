/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what a device, port, GID or P_Key is like. Sizes differ by caller: old binaries pass 48 bytes for a port,
 * rdma-core 44 has 52, newer ones 56; never write more than asked for.
 */
#include "mr.h"

#include <stdlib.h>
#include <time.h>

static void fill_device(struct ibv_device_attr *a, const struct mr_device_attr *m) {
    memset(a, 0, sizeof *a);
    memcpy(a->fw_ver, m->fw_ver, sizeof a->fw_ver);
    a->node_guid = m->node_guid;
    a->sys_image_guid = m->sys_image_guid;
    a->max_mr_size = m->max_mr_size;
    a->page_size_cap = m->page_size_cap;
    a->vendor_id = m->vendor_id;
    a->vendor_part_id = m->vendor_part_id;
    a->hw_ver = m->hw_ver;
    a->max_qp = (int)m->max_qp;
    a->max_qp_wr = (int)m->max_qp_wr;
    a->device_cap_flags = (unsigned)m->device_cap_flags;
    a->max_sge = (int)m->max_sge;
    a->max_sge_rd = (int)m->max_sge_rd;
    a->max_cq = (int)m->max_cq;
    a->max_cqe = (int)m->max_cqe;
    a->max_mr = (int)m->max_mr;
    a->max_pd = (int)m->max_pd;
    a->max_qp_rd_atom = (int)m->max_qp_rd_atom;
    a->max_res_rd_atom = (int)m->max_res_rd_atom;
    a->max_qp_init_rd_atom = (int)m->max_qp_init_rd_atom;
    a->atomic_cap = (enum ibv_atomic_cap)m->atomic_cap;
    a->max_mw = (int)m->max_mw;
    a->max_mcast_grp = (int)m->max_mcast_grp;
    a->max_mcast_qp_attach = (int)m->max_mcast_qp_attach;
    a->max_total_mcast_qp_attach = (int)m->max_mcast_qp_attach;
    a->max_ah = (int)m->max_ah;
    a->max_srq = (int)m->max_srq;
    a->max_srq_wr = (int)m->max_srq_wr;
    a->max_srq_sge = (int)m->max_srq_sge;
    a->max_pkeys = (uint16_t)m->max_pkeys;
    a->local_ca_ack_delay = (uint8_t)m->local_ca_ack_delay;
    a->phys_port_cnt = (uint8_t)m->num_ports;
}

MR_EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
    struct mr_ctx *ctx = to_ctx(c);
    if (mr_is_gone(ctx) && !ctx->forked) /* a child may know what its parent was told */
        return mr_err(EIO);
    fill_device(a, &ctx->attr);
    return 0;
}

/* On-demand paging: see check_on_demand in mr.c. */
static void fill_odp(struct ibv_device_attr_ex *a) {
    const uint32_t message = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const uint32_t all = message | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    a->odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    a->odp_caps.per_transport_caps.rc_odp_caps = all;
    a->odp_caps.per_transport_caps.uc_odp_caps = message | IBV_ODP_SUPPORT_WRITE;
    a->odp_caps.per_transport_caps.ud_odp_caps = message;
    a->xrc_odp_caps = a->orig_attr.device_cap_flags & IBV_DEVICE_XRC ? all : 0;
}

int mr_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a,
                       size_t len) {
    struct ibv_device_attr_ex full = {0};
    struct mr_ctx *ctx = to_ctx(c);

    if ((in && in->comp_mask) || len < sizeof full.orig_attr)
        return mr_err(EINVAL);
    if (mr_is_gone(ctx) && !ctx->forked) /* a child may know what its parent was told */
        return mr_err(EIO);
    fill_device(&full.orig_attr, &ctx->attr);
    full.completion_timestamp_mask = UINT64_MAX;
    full.hca_core_clock = 1000000; /* kHz: completion timestamps are nanoseconds */
    full.device_cap_flags_ex = ctx->attr.device_cap_flags;
    full.phys_port_cnt_ex = ctx->attr.num_ports;
    full.max_dm_size = (uint64_t)ctx->attr.max_dm_kib << 10;
    full.cq_mod_caps = (struct ibv_cq_moderation_caps){.max_cq_count = UINT16_MAX, .max_cq_period = UINT16_MAX};
    if (ctx->conn.hello.dma_mode != MR_DMA_PROC_MEM)
        fill_odp(&full);
    memset(a, 0, len);
    memcpy(a, &full, len < sizeof full ? len : sizeof full);
    return 0;
}

int mr_query_rt_values(struct ibv_context *c, struct ibv_values_ex *v) {
    (void)c;
    if (v->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
        return mr_err(EINVAL);
    if (v->comp_mask & IBV_VALUES_MASK_RAW_CLOCK)
        clock_gettime(CLOCK_MONOTONIC, &v->raw_clock);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- ports */

/* ibv_port_attr as of rdma-core 49: the 52 bytes of the header here, and active_speed_ex. */
struct port_attr_56 {
    struct ibv_port_attr a;
    uint32_t active_speed_ex;
};
_Static_assert(sizeof(struct ibv_port_attr) == 52, "ibv_port_attr");
_Static_assert(sizeof(struct port_attr_56) == 56, "ibv_port_attr of rdma-core 49");

static int ask_port(struct ibv_context *c, uint32_t port, struct mr_port_attr *m) {
    struct mr_query_port req = {.port = port};
    return MR_CALL(to_ctx(c), MR_OP_QUERY_PORT, &req, m);
}

int mr_query_port_len(struct ibv_context *c, uint8_t port, void *attr, size_t len) {
    struct port_attr_56 full = {0};
    struct mr_port_attr m;
    int err = ask_port(c, port, &m);

    if (err)
        return err;
    full.a.state = (enum ibv_port_state)m.state;
    full.a.max_mtu = (enum ibv_mtu)m.max_mtu;
    full.a.active_mtu = (enum ibv_mtu)m.active_mtu;
    full.a.gid_tbl_len = (int)m.gid_tbl_len;
    full.a.port_cap_flags = m.port_cap_flags;
    full.a.max_msg_sz = m.max_msg_sz;
    full.a.pkey_tbl_len = (uint16_t)m.pkey_tbl_len;
    full.a.max_vl_num = 1;
    full.a.active_width = (uint8_t)m.active_width;
    full.a.active_speed = m.active_speed > UINT8_MAX ? 128 : (uint8_t)m.active_speed; /* NDR is the last 8-bit one */
    full.a.phys_state = (uint8_t)m.phys_state;
    full.a.link_layer = (uint8_t)m.link_layer;
    full.a.flags = (uint8_t)m.flags;
    full.active_speed_ex = m.active_speed > UINT8_MAX ? m.active_speed : 0;
    memset(attr, 0, len);
    memcpy(attr, &full, len < sizeof full ? len : sizeof full);
    return 0;
}

int mr_query_port_op(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t len) {
    return mr_query_port_len(c, port, attr, len);
}

/* The exported one serves binaries that know 48 bytes: everything up to `flags`. */
_Static_assert(offsetof(struct ibv_port_attr, port_cap_flags2) == 48, "_compat_ibv_port_attr");
MR_EXPORT int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *attr) {
    return mr_query_port_len(c, port, attr, 48);
}

MR_EXPORT int ibv_query_port_speed(struct ibv_context *c, uint32_t port, uint64_t *speed);
int ibv_query_port_speed(struct ibv_context *c, uint32_t port, uint64_t *speed) {
    struct mr_port_attr m;
    int err = ask_port(c, port, &m);
    if (!err)
        *speed = m.speed_mbps / 100;
    return err;
}

/* ----------------------------------------------------------------------------------------------------- GIDs */

int mr_gid(struct ibv_context *c, uint32_t port, uint32_t index, struct mr_gid_entry *out) {
    struct mr_query_gid req = {.port = port, .index = index};
    return MR_CALL(to_ctx(c), MR_OP_QUERY_GID, &req, out);
}

MR_EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid) {
    struct mr_gid_entry e;
    int err = index < 0 ? EINVAL : mr_gid(c, port, (uint32_t)index, &e);
    if (err == ENODATA) { /* an empty entry of the table reads as zeros */
        memset(gid, 0, sizeof *gid);
        return 0;
    }
    if (err)
        return mr_minus1(err);
    memcpy(gid->raw, e.gid, sizeof e.gid);
    return 0;
}

static void fill_gid(struct ibv_gid_entry *to, const struct mr_gid_entry *from) {
    memcpy(to->gid.raw, from->gid, sizeof from->gid);
    to->gid_index = from->index;
    to->port_num = from->port;
    to->gid_type = from->type;
    to->ndev_ifindex = from->ndev_ifindex;
}

MR_EXPORT int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                                uint32_t flags, size_t size) {
    struct ibv_gid_entry full;
    struct mr_gid_entry e;
    if (flags)
        return mr_err(EOPNOTSUPP);
    if (size < sizeof full)
        return mr_err(EINVAL);
    int err = mr_gid(c, port, index, &e);
    if (err)
        return mr_err(err);
    fill_gid(&full, &e);
    memset(entry, 0, size);
    memcpy(entry, &full, sizeof full);
    return 0;
}

MR_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                                       size_t size) {
    struct mr_ctx *ctx = to_ctx(c);
    struct mr_port_attr port;
    size_t n = 0;

    if (flags) {
        errno = EOPNOTSUPP;
        return -EOPNOTSUPP;
    }
    if (size < sizeof(struct ibv_gid_entry)) {
        errno = EINVAL;
        return -EINVAL;
    }
    for (uint32_t p = 1; p <= ctx->attr.num_ports; p++) {
        int err = ask_port(c, p, &port);
        if (err)
            return -err;
        for (uint32_t i = 0; i < port.gid_tbl_len; i++) {
            struct mr_gid_entry e;
            err = mr_gid(c, p, i, &e);
            if (err == ENODATA)
                continue;
            if (err)
                return -err;
            if (n == max) {
                errno = EINVAL;
                return -EINVAL;
            }
            struct ibv_gid_entry *to = (void *)((char *)entries + n++ * size);
            memset(to, 0, size);
            fill_gid(to, &e);
        }
    }
    return (ssize_t)n;
}

/* Private in rdma-core, but ibv_devinfo and pyverbs call it. The values are sysfs's: 0 = IB/RoCE v1, 1 = RoCE v2. */
int mr_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type) {
    struct mr_gid_entry e;
    int err = mr_gid(c, port, index, &e);
    if (err == ENODATA) {
        *type = 0;
        return 0;
    }
    if (err)
        return mr_minus1(err);
    *type = e.type == IBV_GID_TYPE_ROCE_V2;
    return 0;
}

/* --------------------------------------------------------------------------------------------------- P_Keys */

MR_EXPORT int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey) {
    struct mr_ctx *ctx = to_ctx(c);
    uint32_t len = ctx->attr.max_pkeys ? ctx->attr.max_pkeys : 1;
    if (port < 1 || port > ctx->attr.num_ports || index < 0 || (uint32_t)index >= len)
        return mr_minus1(EINVAL);
    *pkey = index ? 0 : 0xffff; /* Ethernet has the default partition only */
    return 0;
}

MR_EXPORT int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey) {
    __be16 have;
    for (int i = 0; !ibv_query_pkey(c, port, i, &have); i++)
        if (have == pkey)
            return i;
    return mr_minus1(EINVAL);
}
