/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_services.c: cases of mr_errors about what the services other than RC and UD do not have.
 */
#include "errors.h"

#include <fcntl.h>
#include <unistd.h>

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

static struct ibv_srq_init_attr_ex xrc_queue(struct end *e, struct ibv_xrcd *x) {
    return (struct ibv_srq_init_attr_ex){.attr = {.max_wr = 4, .max_sge = 1},
                                         .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                                      IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
                                         .srq_type = IBV_SRQT_XRC,
                                         .pd = e->pd,
                                         .xrcd = x,
                                         .cq = e->cq};
}

static void xrcd_rules(struct end *e, int file) {
    const uint32_t both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    const struct {
        struct ibv_xrcd_init_attr a;
        int err;
    } bad[] = {{{.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = file, .oflags = O_CREAT}, EINVAL},
               {{.comp_mask = IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file, .oflags = O_CREAT}, EINVAL},
               {{.comp_mask = both | 1u << 7, .fd = file, .oflags = O_CREAT}, EOPNOTSUPP},
               {{.comp_mask = both, .fd = 1000, .oflags = O_CREAT}, EBADF},
               {{.comp_mask = both, .fd = file, .oflags = 0}, EAGAIN}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ibv_xrcd_init_attr a = bad[i].a;
        FAILS_NULL(ibv_open_xrcd(e->ctx, &a), bad[i].err);
    }
    struct ibv_xrcd_init_attr a = {.comp_mask = both, .fd = file, .oflags = O_CREAT | O_EXCL};
    struct ibv_xrcd *x = ibv_open_xrcd(e->ctx, &a), *y;
    CHECK(x, "open: %m");
    FAILS_NULL(ibv_open_xrcd(e->ctx, &a), EINVAL);
    a.oflags = 0;
    CHECK((y = ibv_open_xrcd(e->ctx, &a)), "open again: %m");
    CHECK(!ibv_close_xrcd(x) && !ibv_close_xrcd(y), "close: %m");
    FAILS_NULL(ibv_open_xrcd(e->ctx, &a), EAGAIN);
}

/* What the ends, the queue and the domain of XRC are not, or not without one another. */
void xrc_rules(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    char name[] = "/tmp/mr_errors.XXXXXX";
    int file = mkstemp(name);
    MUST(file >= 0 && !unlink(name), "file: %m");
    xrcd_rules(&e, file);
    struct ibv_xrcd_init_attr xa = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *x = ibv_open_xrcd(e.ctx, &xa);
    MUST(x, "a domain of one's own: %m");

    struct ibv_srq_init_attr_ex s = xrc_queue(&e, x);
    s.cq = NULL;
    FAILS_NULL(ibv_create_srq_ex(e.ctx, &s), EINVAL);
    s = xrc_queue(&e, NULL);
    FAILS_NULL(ibv_create_srq_ex(e.ctx, &s), EINVAL);
    s = xrc_queue(&e, x);
    s.comp_mask &= ~(uint32_t)IBV_SRQ_INIT_ATTR_XRCD;
    FAILS_NULL(ibv_create_srq_ex(e.ctx, &s), EINVAL);
    s = xrc_queue(&e, x);
    struct ibv_srq *srq = ibv_create_srq_ex(e.ctx, &s);
    uint32_t num = 0;
    CHECK(srq && !ibv_get_srq_num(srq, &num) && num && num < 1u << 24, "queue %u: %m", num);
    struct ibv_srq_init_attr plain = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *basic = ibv_create_srq(e.pd, &plain);
    FAILS(ibv_get_srq_num(basic, &num), EOPNOTSUPP);
    CHECK(!ibv_destroy_srq(basic), "destroy: %m");

    struct ibv_qp_init_attr_ex q = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = e.pd, .xrcd = x};
    FAILS_NULL(ibv_create_qp_ex(e.ctx, &q), EINVAL);
    FAILS_NULL(qp_of(&e, IBV_QPT_XRC_RECV), EINVAL);
    q.comp_mask |= IBV_QP_INIT_ATTR_XRCD; /* a domain that is not looked at does no harm */
    struct ibv_qp *rq = ibv_create_qp_ex(e.ctx, &q), *sq = qp_of(&e, IBV_QPT_XRC_SEND);
    MUST(rq && sq, "ends: %m");
    struct wr w = {.op = IBV_WR_SEND, .local = (uintptr_t)e.buf, .lkey = e.mr->lkey, .len = 8};
    MUST(!qp_to_init(rq, ALL_ACCESS) && !qp_to_init(sq, 0), "to INIT: %m");
    FAILS(post(rq, &w, 1), EINVAL);
    struct ibv_recv_wr r = {.num_sge = 0}, *bad = NULL;
    FAILS(ibv_post_recv(rq, &r, &bad), EINVAL);
    FAILS(ibv_post_recv(sq, &r, &bad), EINVAL);

    struct ibv_qp_open_attr o = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
                                 .qp_num = rq->qp_num,
                                 .xrcd = x,
                                 .qp_type = IBV_QPT_RC};
    FAILS_NULL(ibv_open_qp(e.ctx, &o), EINVAL);
    o.qp_type = IBV_QPT_XRC_RECV;
    o.qp_num = sq->qp_num;
    FAILS_NULL(ibv_open_qp(e.ctx, &o), EINVAL);
    o.qp_num = rq->qp_num;
    o.comp_mask &= ~(uint32_t)IBV_QP_OPEN_ATTR_TYPE;
    FAILS_NULL(ibv_open_qp(e.ctx, &o), EINVAL);
    o.comp_mask |= IBV_QP_OPEN_ATTR_TYPE;
    struct ibv_qp *again = ibv_open_qp(e.ctx, &o);
    CHECK(again && again->qp_num == rq->qp_num && state(again) == IBV_QPS_INIT, "open: %m");
    CHECK(!ibv_destroy_qp(rq) && state(again) == IBV_QPS_INIT, "it lives on: %m");

    FAILS(ibv_close_xrcd(x), EBUSY);
    FAILS(ibv_destroy_cq(e.cq), EBUSY);
    FAILS(ibv_dealloc_pd(e.pd), EBUSY);
    CHECK(!ibv_destroy_qp(again) && !ibv_destroy_qp(sq) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(x), "ends: %m");
    close(file);
    end_close(&e);
}
