/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_xrc: two programs behind one connection. This process has the requesting end and one shared receive queue, a
 * second process another queue in the same XRC domain; the responding end is made here and opened there. Every message
 * must be in the memory of the program whose queue it named, whole, and complete there. Then the process that made the
 * responding end closes it, and messages to the other one go on; then that one is gone.
 */
#include "common.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOT  16384u
#define SLOTS 8u

static struct options opt;
static const char *second;

/* A program of the domain: what the requester has to know of it. */
struct known {
    uint32_t srqn, rkey;
    uint64_t addr;
};
struct program {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_xrcd *xrcd;
    struct ibv_srq *srq;
    uint8_t *buf;
    struct known me;
    uint32_t next; /* receive to come */
};

static void post_one(struct program *p, uint32_t slot) {
    struct ibv_sge sge = {.addr = (uintptr_t)p->buf + slot * SLOT, .length = SLOT, .lkey = p->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
    MUST(!ibv_post_srq_recv(p->srq, &wr, &bad), "post to the shared queue: %m");
}

static void program_open(struct program *p, const char *dev, int file, int oflags) {
    memset(p, 0, sizeof *p);
    p->ctx = open_named(dev);
    p->pd = ibv_alloc_pd(p->ctx);
    p->cq = ibv_create_cq(p->ctx, 64, NULL, NULL, 0);
    p->buf = calloc(SLOTS + 1, SLOT);
    MUST(p->pd && p->cq && p->buf, "PD, CQ, memory: %m");
    p->mr = ibv_reg_mr(p->pd, p->buf, (SLOTS + 1) * SLOT, ALL_ACCESS);
    MUST(p->mr, "register: %m");
    struct ibv_xrcd_init_attr x = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file, .oflags = oflags};
    p->xrcd = ibv_open_xrcd(p->ctx, &x);
    MUST(p->xrcd, "open the domain: %m");
    struct ibv_srq_init_attr_ex a = {.attr = {.max_wr = SLOTS, .max_sge = 1},
                                     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                                  IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
                                     .srq_type = IBV_SRQT_XRC,
                                     .pd = p->pd,
                                     .xrcd = p->xrcd,
                                     .cq = p->cq};
    p->srq = ibv_create_srq_ex(p->ctx, &a);
    MUST(p->srq, "shared queue: %m");
    MUST(!ibv_get_srq_num(p->srq, &p->me.srqn) && p->me.srqn, "its number: %m");
    for (uint32_t i = 0; i < SLOTS; i++)
        post_one(p, i);
    p->me.rkey = p->mr->rkey;
    p->me.addr = (uintptr_t)p->buf + SLOTS * SLOT; /* behind the receives: for WRITEs */
}

static void program_close(struct program *p) {
    MUST(!ibv_destroy_srq(p->srq), "destroy SRQ: %m");
    MUST(!ibv_close_xrcd(p->xrcd), "close the domain: %m");
    MUST(!ibv_dereg_mr(p->mr) && !ibv_destroy_cq(p->cq) && !ibv_dealloc_pd(p->pd) && !ibv_close_device(p->ctx),
         "close: %m");
    free(p->buf);
}

static uint32_t size_of(uint64_t n) {
    return 1 + (uint32_t)(n * 977 % SLOT);
}

/* Takes message n and checks it. */
static void expect(struct program *p, uint64_t n, uint32_t qpn) {
    struct ibv_wc wc;
    struct rng r;
    static uint8_t want[SLOT];
    MUST(wait_wc(p->cq, &wc, scaled(20)), "message %lu did not come", (unsigned long)n);
    MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == p->next && wc.qp_num == qpn &&
             wc.byte_len == size_of(n) && (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == (uint32_t)n,
         "message %lu: %s, receive %lu, QP %u, %u bytes", (unsigned long)n, ibv_wc_status_str(wc.status),
         (unsigned long)wc.wr_id, wc.qp_num, wc.byte_len);
    rng_seed(&r, opt.seed, n);
    rng_fill(&r, want, size_of(n));
    MUST(!memcmp(want, p->buf + p->next * SLOT, size_of(n)), "message %lu: other bytes", (unsigned long)n);
    memset(p->buf + p->next * SLOT, 0, SLOT);
    post_one(p, p->next);
    p->next = (p->next + 1) % SLOTS;
}

/* ------------------------------------------------------------------------------------------ the other program */

/* Told "qpn" first, then message numbers that are its own; 0: end, without closing anything. */
static int other(int sock, const char *dev, int file) {
    struct program p;
    uint64_t n;
    uint32_t qpn;
    MUST(stream_recv(sock, &qpn, sizeof qpn), "no QP number");
    program_open(&p, dev, file, 0); /* it must be there */
    struct ibv_qp_open_attr a = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
                                 .qp_num = qpn,
                                 .xrcd = p.xrcd,
                                 .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_qp *qp = ibv_open_qp(p.ctx, &a);
    MUST(qp && qp->qp_num == qpn, "open the QP: %m");
    stream_send(sock, &p.me, sizeof p.me);
    while (stream_recv(sock, &n, sizeof n) && n) {
        expect(&p, n, qpn);
        stream_send(sock, &n, sizeof n);
    }
    struct ibv_qp_attr q;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(qp, &q, IBV_QP_STATE, &init) && q.qp_state == IBV_QPS_RTR && init.qp_type == IBV_QPT_XRC_RECV,
         "query: %m");
    _exit(0);
}

/* ------------------------------------------------------------------------------------------------ the requester */

static struct ibv_qp *xrc_qp(struct end *e, struct program *p) {
    struct ibv_qp_init_attr_ex a = {.send_cq = e ? e->cq : NULL,
                                    .cap = {.max_send_wr = 16, .max_send_sge = 1},
                                    .qp_type = e ? IBV_QPT_XRC_SEND : IBV_QPT_XRC_RECV,
                                    .comp_mask = e ? IBV_QP_INIT_ATTR_PD : IBV_QP_INIT_ATTR_XRCD,
                                    .pd = e ? e->pd : NULL,
                                    .xrcd = p ? p->xrcd : NULL,
                                    .sq_sig_all = 1};
    struct ibv_qp *qp = ibv_create_qp_ex(e ? e->ctx : p->ctx, &a);
    MUST(qp && qp->qp_num && qp->state == IBV_QPS_RESET, "QP of XRC: %m");
    return qp;
}

static enum ibv_wc_status request(struct end *e, struct ibv_qp *qp, enum ibv_wr_opcode op, const struct known *to,
                                  uint64_t n, uint32_t len) {
    struct ibv_sge sge = {.addr = (uintptr_t)e->buf, .length = len, .lkey = e->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = op, .imm_data = (uint32_t)n}, *bad;
    struct ibv_wc wc;
    if (op != IBV_WR_SEND_WITH_IMM) {
        wr.wr.rdma.remote_addr = to->addr;
        wr.wr.rdma.rkey = to->rkey;
    }
    wr.qp_type.xrc.remote_srqn = to->srqn;
    MUST(!ibv_post_send(qp, &wr, &bad), "post: %m");
    MUST(wait_wc(e->cq, &wc, scaled(30)), "request %lu does not end", (unsigned long)n);
    MUST(wc.wr_id == n && wc.qp_num == qp->qp_num, "another completion");
    return wc.status;
}

static void message(struct end *e, struct ibv_qp *qp, const struct known *to, uint64_t n) {
    struct rng r;
    rng_seed(&r, opt.seed, n);
    rng_fill(&r, e->buf, size_of(n));
    enum ibv_wc_status s = request(e, qp, IBV_WR_SEND_WITH_IMM, to, n, size_of(n));
    MUST(!s, "message %lu: %s", (unsigned long)n, ibv_wc_status_str(s));
}

/* A WRITE to a program's memory, read back. */
static void memory(struct end *e, struct ibv_qp *qp, const struct known *to, uint64_t n) {
    static uint8_t keep[SLOT];
    struct rng r;
    rng_seed(&r, opt.seed, ~n);
    rng_fill(&r, keep, SLOT);
    memcpy(e->buf, keep, SLOT);
    MUST(!request(e, qp, IBV_WR_RDMA_WRITE, to, n, SLOT), "WRITE");
    memset(e->buf, 0, SLOT);
    MUST(!request(e, qp, IBV_WR_RDMA_READ, to, n, SLOT), "READ");
    MUST(!memcmp(e->buf, keep, SLOT), "READ after WRITE %lu: other bytes", (unsigned long)n);
}

static void wire_up(struct end *e, struct ibv_qp *sq, struct program *p, struct ibv_qp *rq) {
    union ibv_gid gid;
    MUST(!ibv_query_gid(p->ctx, 1, opt.gid, &gid), "GID: %m");
    struct peer from = {.qpn = sq->qp_num, .psn = 7, .gid = e->gid}, to = {.qpn = rq->qp_num, .psn = 7, .gid = gid};
    const struct connect_attr soon = {.timeout = 12, .retry_cnt = 3, .rnr_retry = 7, .min_rnr_timer = 1};
    struct end there = {.gid = gid, .gid_index = e->gid_index, .mtu = e->mtu};
    MUST(!qp_to_init(sq, 0) && !qp_to_init(rq, ALL_ACCESS), "to INIT: %m");
    qp_connect(e, sq, &to, 7, &soon);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = (enum ibv_mtu)there.mtu,
                            .dest_qp_num = from.qpn,
                            .rq_psn = from.psn,
                            .max_dest_rd_atomic = 4,
                            .min_rnr_timer = 1,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = from.gid, .hop_limit = 1}}};
    a.ah_attr.grh.sgid_index = (uint8_t)there.gid_index;
    MUST(!ibv_modify_qp(rq, &a,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "responding end to RTR: %m");
}

static void tell(int sock, uint64_t n) {
    uint64_t back;
    stream_send(sock, &n, sizeof n);
    MUST(stream_recv(sock, &back, sizeof back) && back == n, "the other program failed at message %lu",
         (unsigned long)n);
}

static uint64_t run(int sock, int file) {
    struct end e;
    struct program p;
    struct known there;
    const struct end_want want = {.wr = 16, .sge = 1, .cqe = 64, .len = SLOT, .access = ALL_ACCESS};
    end_open(&e, &opt, &want);
    program_open(&p, second, file, O_CREAT);
    struct ibv_qp *sq = xrc_qp(&e, NULL), *rq = xrc_qp(NULL, &p);
    uint32_t qpn = rq->qp_num;
    wire_up(&e, sq, &p, rq);
    stream_send(sock, &qpn, sizeof qpn);
    MUST(stream_recv(sock, &there, sizeof there), "the other program failed");
    uint64_t n = 1;
    for (; n <= opt.count; n++) {
        bool mine = n % 3 == 0;
        message(&e, sq, mine ? &p.me : &there, n);
        if (mine)
            expect(&p, n, qpn);
        else
            tell(sock, n);
        if (n % 16 == 0)
            memory(&e, sq, n % 32 ? &p.me : &there, n);
    }
    MUST(!ibv_destroy_qp(rq), "close the responding end: %m");
    for (int i = 0; i < 20; i++, n++) { /* the other program has it open */
        message(&e, sq, &there, n);
        tell(sock, n);
    }
    uint64_t none = 0;
    stream_send(sock, &none, sizeof none);
    MUST(!stream_recv(sock, &none, sizeof none), "the other program does not end");
    enum ibv_wc_status s = IBV_WC_SUCCESS;
    for (int i = 0; i < 5 && s == IBV_WC_SUCCESS; i++) { /* its socket to us may close before the daemon has heard */
        usleep(300000);
        s = request(&e, sq, IBV_WR_SEND_WITH_IMM, &there, n, 8);
    }
    MUST(s == IBV_WC_RETRY_EXC_ERR || s == IBV_WC_REM_INV_REQ_ERR, "after the last program has gone: %s",
         ibv_wc_status_str(s));
    MUST(!ibv_destroy_qp(sq), "destroy: %m");
    program_close(&p);
    end_close(&e);
    return n;
}

int main(int argc, char **argv) {
    int sock[2], n = 0, status = 0;
    char name[] = "/tmp/mr_xrc.XXXXXX";
    options_parse(&opt, argc, argv, "XRC: two programs behind one connection");
    if (!opt.count)
        opt.count = 300;
    struct ibv_device **list = ibv_get_device_list(&n);
    MUST(list && n, "no RDMA device: %m");
    second = strdup(ibv_get_device_name(list[n > 1]));
    ibv_free_device_list(list);
    int file = mkstemp(name);
    MUST(file >= 0 && !unlink(name) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sock), "file and socket: %m");
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0, "fork: %m");
    if (!child) {
        close(sock[0]);
        return other(sock[1], second, file);
    }
    close(sock[1]);
    uint64_t sent = run(sock[0], file);
    MUST(waitpid(child, &status, 0) == child && !status, "the other program ended with %#x", status);
    printf("mr_xrc: ok messages=%lu seed=%lu\n", (unsigned long)sent, (unsigned long)opt.seed);
    return 0;
}
