/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_services.c: cases of mr_errors about what the services other than RC and UD do not have.
 */
#include "errors.h"

static struct ibv_qp *qp_of(struct end *e, enum ibv_qp_type type) {
    struct ibv_qp_init_attr a = {.send_cq = e->cq,
                                 .recv_cq = e->cq,
                                 .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
                                 .qp_type = type};
    return ibv_create_qp(e->pd, &a);
}

/* UC has no requests that are answered, and no attributes that are about answers. What its peer may not do is dropped.
 */
void uc_rules(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_qp *qp = qp_of(&e, IBV_QPT_UC);
    MUST(qp, "a QP of UC: %m");
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = qp->qp_num,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = e.gid, .hop_limit = 1}}};
    const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    a.ah_attr.grh.sgid_index = (uint8_t)e.gid_index;
    MUST(!qp_to_init(qp, ALL_ACCESS), "to INIT: %m");
    FAILS(ibv_modify_qp(qp, &a, rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), EINVAL);
    FAILS(ibv_modify_qp(qp, &a, rtr & ~IBV_QP_RQ_PSN), EINVAL);
    CHECK(!ibv_modify_qp(qp, &a, rtr), "to RTR: %m");
    a.qp_state = IBV_QPS_RTS;
    FAILS(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT), EINVAL);
    CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN), "to RTS: %m");

    struct wr w = {.op = IBV_WR_RDMA_READ,
                   .remote = (uintptr_t)e.buf + 4096,
                   .local = (uintptr_t)e.buf,
                   .rkey = e.mr->rkey,
                   .lkey = e.mr->lkey,
                   .len = 8};
    const enum ibv_wr_opcode none[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                       IBV_WR_SEND_WITH_INV};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        w.op = none[i];
        FAILS(post(qp, &w, i), EINVAL);
    }
    w.op = IBV_WR_SEND; /* no receive: dropped */
    CHECK(!post(qp, &w, 1), "SEND: %m");
    EXPECT(&e, IBV_WC_SUCCESS);
    w.op = IBV_WR_RDMA_WRITE;
    w.rkey++; /* dropped, too */
    CHECK(!post(qp, &w, 2), "WRITE: %m");
    EXPECT(&e, IBV_WC_SUCCESS);
    w.rkey--;
    memset(e.buf, 0x5a, 8);
    CHECK(!post(qp, &w, 3), "WRITE: %m");
    EXPECT(&e, IBV_WC_SUCCESS);
    for (double end = now_s() + 10; e.buf[4103] != 0x5a && now_s() < end;)
        __asm__ volatile("" ::: "memory");
    CHECK(e.buf[4103] == 0x5a && state(qp) == IBV_QPS_RTS, "the WRITE after those that were dropped");
    w.lkey++;
    CHECK(!post(qp, &w, 4), "WRITE: %m");
    EXPECT(&e, IBV_WC_LOC_PROT_ERR);
    CHECK(state(qp) == IBV_QPS_ERR, "state %d", state(qp));
    CHECK(!ibv_destroy_qp(qp), "destroy: %m");

    struct ibv_qp_init_attr_ex x = {.send_cq = e.cq,
                                    .recv_cq = e.cq,
                                    .cap = {.max_send_wr = 8},
                                    .qp_type = IBV_QPT_UC,
                                    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                    .pd = e.pd,
                                    .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ};
    FAILS_NULL(ibv_create_qp_ex(e.ctx, &x), EOPNOTSUPP);
    x.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    qp = ibv_create_qp_ex(e.ctx, &x);
    CHECK(qp && !ibv_destroy_qp(qp), "extended QP of UC: %m");
    end_close(&e);
}
