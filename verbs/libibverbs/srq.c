/* SPDX-License-Identifier: Apache-2.0
 *
 * srq.c: shared receive queues. Every entry is in place; the NIC does not offer them yet.
 */
#include "mr.h"

MR_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    (void)pd, (void)attr;
    return mr_null(EOPNOTSUPP);
}

struct ibv_srq *mr_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr) {
    (void)c, (void)attr;
    return mr_null(EOPNOTSUPP);
}

MR_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
    (void)srq, (void)attr, (void)mask;
    return mr_err(EOPNOTSUPP);
}

MR_EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr) {
    (void)srq, (void)attr;
    return mr_err(EOPNOTSUPP);
}

MR_EXPORT int ibv_destroy_srq(struct ibv_srq *srq) {
    (void)srq;
    return mr_err(EOPNOTSUPP);
}

int mr_get_srq_num(struct ibv_srq *srq, uint32_t *num) {
    (void)srq, (void)num;
    return mr_err(EOPNOTSUPP);
}

int mr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)srq;
    *bad = wr;
    return mr_err(EOPNOTSUPP);
}
