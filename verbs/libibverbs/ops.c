/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c: the two tables through which inline functions of verbs.h enter the library, and the calls that this NIC does
 * not offer. Entries of verbs_context that stay NULL answer EOPNOTSUPP in verbs.h itself; those of ibv_context.ops
 * are called unchecked and must all be there.
 */
#include "mr.h"

void mr_fill_ops(struct verbs_context *v) {
    struct ibv_context_ops *o = &v->context.ops;
    v->sz = sizeof *v;
    v->query_port = mr_query_port_op;
    v->query_device_ex = mr_query_device_ex;
    v->query_rt_values = mr_query_rt_values;
    v->create_cq_ex = mr_create_cq_ex;
    v->create_qp_ex = mr_create_qp_ex;
    v->create_srq_ex = mr_create_srq_ex;
    v->get_srq_num = mr_get_srq_num;
    v->open_xrcd = mr_open_xrcd;
    v->close_xrcd = mr_close_xrcd;
    v->open_qp = mr_open_qp;
    v->modify_cq = mr_modify_cq;
    v->alloc_null_mr = mr_alloc_null_mr;
    v->advise_mr = mr_advise_mr;
    v->alloc_dm = mr_alloc_dm;
    v->free_dm = mr_free_dm;
    v->reg_dm_mr = mr_reg_dm_mr;
    v->alloc_td = mr_alloc_td;
    v->dealloc_td = mr_dealloc_td;
    v->alloc_parent_domain = mr_alloc_parent_domain;

    o->_compat_query_device = ibv_query_device; /* very old binaries come this way */
    o->_compat_query_port = ibv_query_port;
    o->alloc_mw = mr_alloc_mw;
    o->bind_mw = mr_bind_mw;
    o->dealloc_mw = mr_dealloc_mw;
    o->poll_cq = mr_poll_cq;
    o->req_notify_cq = mr_req_notify_cq;
    o->post_srq_recv = mr_post_srq_recv;
    o->post_send = mr_post_send;
    o->post_recv = mr_post_recv;
}

_Static_assert(sizeof(struct verbs_context) == 648, "verbs_context");

/* ------------------------------------------------------------------------------------------- not offered ---- */

/* Vendors' extended connection parameters. */
MR_EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    (void)qp, (void)ece;
    return mr_err(EOPNOTSUPP);
}
MR_EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    (void)qp, (void)ece;
    return mr_err(EOPNOTSUPP);
}

/* Link-layer addresses are the daemon's business. */
MR_EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *attr,
                                          uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid) {
    (void)c, (void)attr, (void)eth_mac, (void)vid;
    return mr_minus1(EOPNOTSUPP);
}

/* For the stock librdmacm, which reads kernel structures; ours does not need them. */
struct ibv_kern_qp_attr;
struct ibv_kern_ah_attr;
struct ibv_kern_path_rec;
struct ibv_sa_path_rec;
MR_EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ibv_kern_qp_attr *from);
MR_EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ibv_kern_ah_attr *from);
MR_EXPORT void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ibv_kern_path_rec *from);
MR_EXPORT void ibv_copy_path_rec_to_kern(struct ibv_kern_path_rec *to, struct ibv_sa_path_rec *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ibv_kern_qp_attr *from) {
    (void)from;
    memset(to, 0, sizeof *to);
}
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ibv_kern_ah_attr *from) {
    (void)from;
    memset(to, 0, sizeof *to);
}
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ibv_kern_path_rec *from) {
    (void)to, (void)from;
}
void ibv_copy_path_rec_to_kern(struct ibv_kern_path_rec *to, struct ibv_sa_path_rec *from) {
    (void)to, (void)from;
}

/* Newer than the headers here (rdma-core 59 to 65): only the names, so that programs built there start. What can be
 * done of them is in buf.c. */
#define ABSENT_POINTER(name)        \
    MR_EXPORT void *name(void);     \
    void *name(void) {              \
        return mr_null(EOPNOTSUPP); \
    }
#define ABSENT_INT(name)           \
    MR_EXPORT int name(void);      \
    int name(void) {               \
        return mr_err(EOPNOTSUPP); \
    }
#define ABSENT_MINUS1(name)           \
    MR_EXPORT int name(void);         \
    int name(void) {                  \
        return mr_minus1(EOPNOTSUPP); \
    }
ABSENT_POINTER(ibv_alloc_dmah)
ABSENT_INT(ibv_dealloc_dmah)
ABSENT_MINUS1(ibv_dm_export_dmabuf_fd)

/* Counters of completions. */
ABSENT_INT(_ibv_query_comp_cntr_caps)
ABSENT_POINTER(ibv_create_comp_cntr)
ABSENT_INT(ibv_destroy_comp_cntr)
ABSENT_INT(ibv_set_comp_cntr)
ABSENT_INT(ibv_set_err_comp_cntr)
ABSENT_INT(ibv_inc_comp_cntr)
ABSENT_INT(ibv_inc_err_comp_cntr)
ABSENT_INT(ibv_read_comp_cntr)
ABSENT_INT(ibv_read_err_comp_cntr)
ABSENT_INT(ibv_qp_attach_comp_cntr)
