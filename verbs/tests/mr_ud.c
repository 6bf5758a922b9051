/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_ud: unreliable datagrams: address handles, the route header in front of a message, Q_Keys, multicast. A sends, b
 * answers; b is on the second device, where there is one.
 *
 *     mr_ud [--dev NAME] [-n ROUNDS]
 */
#include "errors.h"

#include <endian.h>

struct options opt;
int failures, checks;
const char *current = "";

enum ibv_wc_status next(struct end *e, struct ibv_wc *wc) {
    struct ibv_wc mine;
    if (!wc)
        wc = &mine;
    if (!wait_wc(e->cq, wc, 10)) {
        CHECK(false, "no completion for 10 s");
        return (enum ibv_wc_status)99;
    }
    return wc->status;
}

#define QKEY 0x11223344u
#define GRH  40u
#define ROOM 8192u /* of one message in the buffer */

struct side {
    struct end e;
    struct ibv_cq_ex *cqx;
    struct ibv_qp_ex *qpx;
    struct ibv_port_attr port;
};

static void to_state(struct ibv_qp *qp, enum ibv_qp_state s) {
    struct ibv_qp_attr a = {.qp_state = s, .port_num = 1, .qkey = QKEY, .sq_psn = 7};
    int mask = IBV_QP_STATE;
    if (s == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    if (s == IBV_QPS_RTS)
        mask |= IBV_QP_SQ_PSN;
    MUST(!ibv_modify_qp(qp, &a, mask), "to state %d: %m", s);
}

static struct ibv_qp *ud_qp(struct side *s, struct ibv_cq *cq, bool up) {
    struct ibv_qp_init_attr_ex a = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 128},
        .qp_type = IBV_QPT_UD,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = s->e.pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM};
    struct ibv_qp *qp = ibv_create_qp_ex(s->e.ctx, &a);
    MUST(qp, "UD QP: %m");
    for (int st = IBV_QPS_INIT; up && st <= IBV_QPS_RTS; st++)
        to_state(qp, (enum ibv_qp_state)st);
    return qp;
}

static void side_open(struct side *s, const char *dev) {
    struct options o = opt;
    const struct end_want w = {
        .wr = 8, .sge = 1, .cqe = 256, .len = 64 * ROOM, .access = IBV_ACCESS_LOCAL_WRITE, .events = false};
    memset(s, 0, sizeof *s);
    o.dev = dev;
    end_open(&s->e, &o, &w);
    MUST(!ibv_destroy_qp(s->e.qp), "destroy: %m");
    s->e.qp = ud_qp(s, s->e.cq, true);
    s->qpx = ibv_qp_to_qp_ex(s->e.qp);
    MUST(s->qpx && !ibv_query_port(s->e.ctx, 1, &s->port), "port: %m");
}

static struct ibv_ah *ah_to(struct side *s, const union ibv_gid *gid) {
    struct ibv_ah_attr a = {
        .is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = (uint8_t)s->e.gid_index, .hop_limit = 9}};
    struct ibv_ah *ah = ibv_create_ah(s->e.pd, &a);
    MUST(ah, "AH: %m");
    return ah;
}

static void expect_receive(struct side *s, uint32_t at) {
    struct ibv_sge sge[2] = {{(uintptr_t)s->e.buf + at, GRH, s->e.mr->lkey},
                             {(uintptr_t)s->e.buf + at + GRH, ROOM - GRH, s->e.mr->lkey}};
    struct ibv_recv_wr wr = {.wr_id = at, .sg_list = sge, .num_sge = 2}, *bad;
    memset(s->e.buf + at, 0xee, ROOM);
    MUST(!ibv_post_recv(s->e.qp, &wr, &bad), "post receive: %m");
}

struct datagram {
    struct ibv_ah *ah;
    uint32_t qpn, qkey, len;
    bool imm, inline_data, extended;
};

static int send_datagram(struct side *s, const struct datagram *d) {
    struct ibv_sge sge = {(uintptr_t)s->e.buf, d->len, s->e.mr->lkey};
    if (d->extended) {
        ibv_wr_start(s->qpx);
        s->qpx->wr_id = 1;
        s->qpx->wr_flags = IBV_SEND_SIGNALED;
        if (d->imm)
            ibv_wr_send_imm(s->qpx, htobe32(0xabcd));
        else
            ibv_wr_send(s->qpx);
        ibv_wr_set_ud_addr(s->qpx, d->ah, d->qpn, d->qkey);
        if (d->inline_data)
            ibv_wr_set_inline_data(s->qpx, s->e.buf, d->len);
        else
            ibv_wr_set_sge(s->qpx, s->e.mr->lkey, (uintptr_t)s->e.buf, d->len);
        return ibv_wr_complete(s->qpx);
    }
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = d->imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED | (d->inline_data ? IBV_SEND_INLINE : 0),
                             .imm_data = htobe32(0xabcd),
                             .wr.ud = {.ah = d->ah, .remote_qpn = d->qpn, .remote_qkey = d->qkey}},
                       *bad;
    return ibv_post_send(s->e.qp, &wr, &bad);
}

/* The 40 bytes in front of a message: for IPv4 its header in the last 20, with a right checksum. */
static void check_grh(const uint8_t *grh, const struct side *from, const union ibv_gid *to, uint32_t len) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (memcmp(from->e.gid.raw, mapped, 12)) {
        CHECK(grh[0] >> 4 == 6 && !memcmp(grh + 8, from->e.gid.raw, 16) && !memcmp(grh + 24, to->raw, 16), "GRH");
        return;
    }
    const uint8_t *ip = grh + 20;
    uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2)
        sum += (uint32_t)ip[i] << 8 | ip[i + 1];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    uint32_t total = (uint32_t)ip[2] << 8 | ip[3];
    CHECK(ip[0] == 0x45 && sum == 0xffff && ip[9] == 17, "IPv4 header %02x, sum %04x", ip[0], sum);
    CHECK(ip[8] == 9 && total >= 20 + 8 + 12 + 8 + len + 4, "TTL %d, length %u", ip[8], total);
    CHECK(!memcmp(ip + 12, from->e.gid.raw + 12, 4) && !memcmp(ip + 16, to->raw + 12, 4), "addresses");
}

static void check_message(struct side *from, struct side *to, const union ibv_gid *gid, const struct datagram *d,
                          uint32_t at, const struct ibv_wc *wc) {
    CHECK(wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV, "%s", ibv_wc_status_str(wc->status));
    CHECK(wc->byte_len == GRH + d->len && wc->src_qp == from->e.qp->qp_num && wc->qp_num == to->e.qp->qp_num,
          "%u bytes from %x", wc->byte_len, wc->src_qp);
    CHECK(wc->wc_flags == (unsigned)(IBV_WC_GRH | (d->imm ? IBV_WC_WITH_IMM : 0)), "flags %x", wc->wc_flags);
    CHECK(!d->imm || wc->imm_data == htobe32(0xabcd), "immediate %x", wc->imm_data);
    CHECK(!wc->pkey_index && !wc->slid, "pkey index %d, slid %d", wc->pkey_index, wc->slid);
    check_grh(to->e.buf + at, from, gid, d->len);
    CHECK(!memcmp(to->e.buf + at + GRH, from->e.buf, d->len), "%u bytes differ", d->len);
    CHECK(to->e.buf[at + GRH + d->len] == 0xee, "written past %u bytes", d->len);
}

/* Every size and way to send, and an answer to whoever the route header names. */
static void messages(struct side *a, struct side *b, uint64_t rounds) {
    const uint32_t mtu = 128u << a->port.active_mtu, sizes[] = {0, 1, 23, 24, 25, 63, 64, 65, 128, 1000, mtu - 1, mtu};
    struct ibv_ah *ah = ah_to(a, &b->e.gid);
    struct rng r;
    rng_seed(&r, 1, 2);
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t at = (uint32_t)(i % 60) * ROOM, n = sizes[rng_below(&r, sizeof sizes / sizeof *sizes)];
        struct datagram d = {.ah = ah,
                             .qpn = b->e.qp->qp_num,
                             .qkey = QKEY,
                             .len = n,
                             .imm = rng_below(&r, 2),
                             .extended = rng_below(&r, 2),
                             .inline_data = n <= 128 && rng_below(&r, 2)};
        struct ibv_wc wc;
        rng_fill(&r, a->e.buf, n);
        expect_receive(b, at);
        MUST(!send_datagram(a, &d), "send: %m");
        CHECK(next(&a->e, &wc) == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND, "send: %s", ibv_wc_status_str(wc.status));
        next(&b->e, &wc);
        check_message(a, b, &b->e.gid, &d, at, &wc);
        if (i % 8)
            continue;
        struct ibv_ah *back = ibv_create_ah_from_wc(b->e.pd, &wc, (struct ibv_grh *)(b->e.buf + at), 1);
        MUST(back, "AH of a message: %m");
        struct datagram answer = {.ah = back, .qpn = wc.src_qp, .qkey = QKEY, .len = 100};
        expect_receive(a, ROOM);
        MUST(!send_datagram(b, &answer), "answer: %m");
        EXPECT(&b->e, IBV_WC_SUCCESS);
        EXPECT(&a->e, IBV_WC_SUCCESS);
        CHECK(!memcmp(a->e.buf + ROOM + GRH, b->e.buf, 100), "answer");
        MUST(!ibv_destroy_ah(back), "destroy: %m");
    }
    MUST(!ibv_destroy_ah(ah), "destroy: %m");
}

static bool silent(struct end *e) {
    struct ibv_wc wc;
    return !wait_wc(e->cq, &wc, 0.05);
}

/* Who may not get a message does not, and its sender does not hear of it. */
static void keys(struct side *a, struct side *b) {
    struct ibv_ah *ah = ah_to(a, &b->e.gid);
    struct datagram d = {.ah = ah, .qpn = b->e.qp->qp_num, .qkey = QKEY + 1, .len = 10};
    expect_receive(b, 0);
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_SUCCESS);
    CHECK(silent(&b->e), "a wrong Q_Key was taken");
    d.qpn = 0xfffffe;
    d.qkey = QKEY;
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_SUCCESS);
    d.qpn = b->e.qp->qp_num;
    d.qkey = 0x80000000; /* the QP's own */
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_SUCCESS);
    EXPECT(&b->e, IBV_WC_SUCCESS);
    struct ibv_qp_attr at = {.qkey = QKEY + 1};
    MUST(!ibv_modify_qp(b->e.qp, &at, IBV_QP_QKEY), "new Q_Key: %m");
    expect_receive(b, 0);
    d.qkey = QKEY + 1;
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_SUCCESS);
    EXPECT(&b->e, IBV_WC_SUCCESS);
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(b->e.qp, &at, IBV_QP_QKEY | IBV_QP_STATE, &init) && at.qkey == QKEY + 1 &&
              at.qp_state == IBV_QPS_RTS && init.qp_type == IBV_QPT_UD && init.cap.max_send_sge == 2,
          "query: Q_Key %x", at.qkey);
    at.qkey = QKEY;
    MUST(!ibv_modify_qp(b->e.qp, &at, IBV_QP_QKEY), "old Q_Key: %m");
    MUST(!ibv_destroy_ah(ah), "destroy: %m");
}

/* A program polls with the extended interface. */
static void extended_poll(struct side *a, struct side *b) {
    struct ibv_cq_init_attr_ex ca = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(b->e.ctx, &ca);
    MUST(cq, "extended CQ: %m");
    struct ibv_qp *plain = b->e.qp;
    b->e.qp = ud_qp(b, ibv_cq_ex_to_cq(cq), true);
    struct ibv_ah *ah = ah_to(a, &b->e.gid);
    struct datagram d = {.ah = ah, .qpn = b->e.qp->qp_num, .qkey = QKEY, .len = 20, .imm = true};
    expect_receive(b, 0);
    memset(a->e.buf, 0x5a, 20);
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_SUCCESS);
    struct ibv_poll_cq_attr pa = {0};
    double until = now_s() + scaled(10);
    int err;
    while ((err = ibv_start_poll(cq, &pa)) == ENOENT && now_s() < until)
        ;
    MUST(!err, "extended poll: %s", strerror(err));
    CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RECV, "status %d", cq->status);
    CHECK(ibv_wc_read_byte_len(cq) == 60 && ibv_wc_read_src_qp(cq) == a->e.qp->qp_num &&
              ibv_wc_read_wc_flags(cq) == (IBV_WC_GRH | IBV_WC_WITH_IMM) && ibv_wc_read_imm_data(cq) == htobe32(0xabcd),
          "%u bytes from %x, flags %x", ibv_wc_read_byte_len(cq), ibv_wc_read_src_qp(cq), ibv_wc_read_wc_flags(cq));
    ibv_end_poll(cq);
    CHECK(b->e.buf[GRH] == 0x5a && b->e.buf[GRH + 19] == 0x5a, "data");
    MUST(!ibv_destroy_ah(ah) && !ibv_destroy_qp(b->e.qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "destroy: %m");
    b->e.qp = plain;
}

/* What a program may not do. Each error of a work request ends its QP. */
static void mistakes(struct side *a, struct side *b) {
    struct ibv_qp *good_qp = a->e.qp;
    struct ibv_ah *ah = ah_to(a, &b->e.gid);
    struct ibv_sge sge = {(uintptr_t)a->e.buf, 10, a->e.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.ud = {.ah = ah}}, *bad;
    FAILS(ibv_post_send(good_qp, &wr, &bad), EINVAL);
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = NULL;
    FAILS(ibv_post_send(good_qp, &wr, &bad), EINVAL);
    struct ibv_ah_attr at = {.is_global = 1, .port_num = 1, .grh = {.dgid = b->e.gid, .sgid_index = 200}};
    FAILS_NULL(ibv_create_ah(a->e.pd, &at), EINVAL);
    struct datagram d = {.ah = ah, .qpn = b->e.qp->qp_num, .qkey = QKEY, .len = (128u << a->port.active_mtu) + 1};
    a->e.qp = ud_qp(a, a->e.cq, true);
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_LOC_LEN_ERR);
    MUST(!ibv_destroy_qp(a->e.qp), "destroy: %m");
    a->e.qp = ud_qp(a, a->e.cq, false);
    d.len = 1;
    FAILS(send_datagram(a, &d), EINVAL); /* in RESET */
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    to_state(a->e.qp, IBV_QPS_INIT);
    FAILS(ibv_modify_qp(a->e.qp, &rtr, IBV_QP_STATE | IBV_QP_PATH_MTU), EINVAL);
    MUST(!ibv_destroy_qp(a->e.qp), "destroy: %m");
    struct ibv_pd *pd = ibv_alloc_pd(a->e.ctx);
    at.grh.sgid_index = 0;
    struct ibv_ah *foreign = pd ? ibv_create_ah(pd, &at) : NULL;
    MUST(foreign, "PD, AH: %m");
    FAILS(ibv_dealloc_pd(pd), EBUSY);
    a->e.qp = ud_qp(a, a->e.cq, true);
    d.ah = foreign;
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_LOC_QP_OP_ERR);
    MUST(!ibv_destroy_qp(a->e.qp) && !ibv_destroy_ah(foreign) && !ibv_dealloc_pd(pd) && !ibv_destroy_ah(ah), "%m");
    a->e.qp = good_qp;
}

/* A group with members on both sides, the sender's too. */
static void multicast(struct side *a, struct side *b) {
    union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, 239, 1, 2, 3}};
    if (a->e.gid.raw[10] != 0xff || a->e.gid.raw[0])
        group = (union ibv_gid){.raw = {0xff, 0x0e, [15] = 7}};
    struct ibv_ah *ah = ah_to(a, &group);
    struct datagram d = {.ah = ah, .qpn = 0xffffff, .qkey = QKEY, .len = 500};
    MUST(!ibv_attach_mcast(b->e.qp, &group, 0) && !ibv_attach_mcast(a->e.qp, &group, 0), "attach: %m");
    FAILS(ibv_attach_mcast(b->e.qp, &b->e.gid, 0), EINVAL);
    FAILS(ibv_destroy_qp(b->e.qp), EBUSY);
    for (uint32_t i = 0; i < 20; i++) {
        struct ibv_wc wc;
        memset(a->e.buf, (int)i, d.len);
        expect_receive(b, ROOM * (1 + i));
        expect_receive(a, ROOM * (1 + i));
        MUST(!send_datagram(a, &d), "send: %m");
        for (int k = 0; k < 2; k++) { /* what was sent, and what came back */
            CHECK(next(&a->e, &wc) == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
            if (wc.opcode == IBV_WC_RECV)
                CHECK(wc.byte_len == GRH + d.len && a->e.buf[wc.wr_id + GRH + 499] == i, "own message");
        }
        next(&b->e, &wc);
        check_message(a, b, &group, &d, ROOM * (1 + i), &wc);
    }
    MUST(!ibv_detach_mcast(b->e.qp, &group, 0) && !ibv_detach_mcast(a->e.qp, &group, 0), "detach: %m");
    FAILS(ibv_detach_mcast(a->e.qp, &group, 0), EINVAL);
    expect_receive(b, 0);
    MUST(!send_datagram(a, &d), "send: %m");
    EXPECT(&a->e, IBV_WC_SUCCESS);
    CHECK(silent(&b->e), "a message to a group that was left");
    MUST(!ibv_destroy_ah(ah), "destroy: %m");
}

int main(int argc, char **argv) {
    struct side a, b;
    int n = 0;
    opt.count = 500;
    options_parse(&opt, argc, argv, "mr_ud: unreliable datagrams between two devices, or on one.");
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct ibv_device **list = ibv_get_device_list(&n);
    MUST(list && n, "no RDMA device: %m");
    side_open(&a, opt.dev ? opt.dev : ibv_get_device_name(list[0]));
    side_open(&b, opt.dev ? opt.dev : ibv_get_device_name(list[n > 1]));
    ibv_free_device_list(list);
    CHECK(a.e.attr.max_ah >= 1024 && a.e.attr.max_mcast_grp > 0, "max_ah %d", a.e.attr.max_ah);
    struct {
        const char *name;
        void (*run)(struct side *, struct side *);
    } cases[] = {{"keys", keys}, {"extended_poll", extended_poll}, {"mistakes", mistakes}, {"multicast", multicast}};
    current = "messages";
    messages(&a, &b, opt.count);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        current = cases[i].name;
        cases[i].run(&a, &b);
    }
    end_close(&a.e);
    end_close(&b.e);
    printf("mr_ud: %s checks=%d failures=%d\n", failures ? "FAILED" : "ok", checks, failures);
    return failures != 0;
}
