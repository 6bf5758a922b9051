/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_queues.c: cases of mr_errors about queues: posting, states of a QP, CQs and their events.
 */
#include "errors.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------------------------- posting */

void post_states(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_sge sge = {.addr = (uintptr_t)e.buf, .length = 8, .lkey = e.mr->lkey};
    struct ibv_send_wr s = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *sbad = NULL;
    struct ibv_recv_wr r = {.sg_list = &sge, .num_sge = 1}, *rbad = NULL;
    FAILS(ibv_post_recv(e.qp, &r, &rbad), EINVAL);
    CHECK(rbad == &r, "bad_wr");
    FAILS(ibv_post_send(e.qp, &s, &sbad), EINVAL);
    CHECK(sbad == &s, "bad_wr");
    MUST(!qp_to_init(e.qp, 0), "to INIT: %m");
    CHECK(!ibv_post_recv(e.qp, &r, &rbad), "post_recv in INIT: %m");
    FAILS(ibv_post_send(e.qp, &s, &sbad), EINVAL);
    end_close(&e);
}

void post_limits(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(p.a.qp, &a, IBV_QP_CAP, &init), "query: %m");
    CHECK(init.cap.max_send_wr >= usual.wr && init.cap.max_send_sge >= usual.sge &&
              init.cap.max_inline_data >= usual.inline_bytes && a.cap.max_recv_wr >= usual.wr &&
              a.cap.max_recv_sge >= usual.sge,
          "granted less than asked for");
    struct ibv_sge sge[64];
    for (int i = 0; i < 64; i++)
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf, .length = 64, .lkey = p.a.mr->lkey};
    struct ibv_send_wr w[3] = {{.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = 2},
                               {.sg_list = sge, .num_sge = (int)init.cap.max_send_sge + 1, .opcode = IBV_WR_RDMA_WRITE},
                               {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}},
                       *bad = NULL;
    for (int i = 0; i < 3; i++) {
        w[i].wr.rdma.remote_addr = (uintptr_t)p.b.buf;
        w[i].wr.rdma.rkey = p.b.mr->rkey;
        w[i].next = i < 2 ? &w[i + 1] : NULL;
    }
    FAILS(ibv_post_send(p.a.qp, w, &bad), EINVAL);
    CHECK(bad == &w[1], "the first bad request is the second");
    EXPECT(&p.a, IBV_WC_SUCCESS); /* the one before it was posted */
    w[2].opcode = (enum ibv_wr_opcode)99;
    FAILS(ibv_post_send(p.a.qp, &w[2], &bad), EINVAL);
    w[2].opcode = IBV_WR_RDMA_WRITE;
    w[2].num_sge = -1;
    FAILS(ibv_post_send(p.a.qp, &w[2], &bad), EINVAL);
    w[2].num_sge = 1;
    w[2].send_flags = IBV_SEND_INLINE;
    sge[0].length = init.cap.max_inline_data + 1;
    FAILS(ibv_post_send(p.a.qp, &w[2], &bad), EINVAL);
    struct ibv_recv_wr r = {.sg_list = sge, .num_sge = (int)a.cap.max_recv_sge + 1}, *rbad = NULL;
    FAILS(ibv_post_recv(p.a.qp, &r, &rbad), EINVAL);
    CHECK(rbad == &r, "bad_wr");
    pair_close(&p);
}

/* A receive queue holds what was granted and not one more; a polled completion makes room. */
void full_queues(void) {
    struct pair p;
    pair_usual(&p);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(p.b.qp, &a, IBV_QP_CAP, &init), "query: %m");
    struct ibv_recv_wr r = {.num_sge = 0}, *rbad = NULL;
    for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
        CHECK(!ibv_post_recv(p.b.qp, &r, &rbad), "receive %u: %m", i);
    FAILS(ibv_post_recv(p.b.qp, &r, &rbad), ENOMEM);
    CHECK(rbad == &r, "bad_wr");
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 0;
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.a, IBV_WC_SUCCESS);
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(!ibv_post_recv(p.b.qp, &r, &rbad), "a completion makes room: %m");
    FAILS(ibv_post_recv(p.b.qp, &r, &rbad), ENOMEM);
    /* sends: none is polled, so the queue must fill, however fast they are done */
    w = good(&p, IBV_WR_RDMA_WRITE);
    for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
        CHECK(!post(p.a.qp, &w, i), "send %u: %m", i);
    FAILS(post(p.a.qp, &w, 99), ENOMEM);
    for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
        EXPECT(&p.a, IBV_WC_SUCCESS);
    pair_close(&p);
}

/* An unsignalled request is done when a later one is. */
void unsignalled(void) {
    struct pair p;
    struct ibv_wc wc;
    pair_usual(&p);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    MUST(!ibv_query_qp(p.a.qp, &a, IBV_QP_CAP, &init), "query: %m");
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < init.cap.max_send_wr; i++) {
            struct ibv_sge sge = {.addr = (uintptr_t)p.a.buf, .length = 8, .lkey = p.a.mr->lkey};
            struct ibv_send_wr w = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
            w.send_flags = i + 1 == init.cap.max_send_wr ? IBV_SEND_SIGNALED : 0;
            w.wr.rdma.remote_addr = (uintptr_t)p.b.buf;
            w.wr.rdma.rkey = p.b.mr->rkey;
            CHECK(!ibv_post_send(p.a.qp, &w, &bad), "round %d, send %u: %m", round, i);
        }
        CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id + 1 == init.cap.max_send_wr, "wr_id %llu",
              (unsigned long long)wc.wr_id);
        CHECK(ibv_poll_cq(p.a.cq, 1, &wc) == 0, "one completion a round");
    }
    pair_close(&p);
}

void zero_length(void) {
    static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND};
    struct pair p;
    struct ibv_wc wc;
    pair_usual(&p);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        struct wr w = good(&p, ops[i]);
        w.len = 0;
        w.rkey = 0;
        w.remote = 0;
        if (ops[i] == IBV_WR_SEND)
            MUST(!post_recv(&p.b, 0, 0, 5), "post receive: %m");
        MUST(!post(p.a.qp, &w, 1), "post: %m");
        EXPECT(&p.a, IBV_WC_SUCCESS);
    }
    CHECK(next(&p.b, &wc) == IBV_WC_SUCCESS && wc.byte_len == 0, "empty SEND");
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------- QP transitions */

void transitions(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .port_num = 1};
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL);
    a.qp_state = IBV_QPS_RTS;
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL);
    a.qp_state = IBV_QPS_INIT;
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL); /* attributes missing */
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
    const int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    a.port_num = 2;
    FAILS(ibv_modify_qp(e.qp, &a, init_mask), EINVAL);
    a.port_num = 1;
    a.pkey_index = 9;
    FAILS(ibv_modify_qp(e.qp, &a, init_mask), EINVAL);
    a.pkey_index = 0;
    CHECK(state(e.qp) == IBV_QPS_RESET, "a failed call changes nothing");
    CHECK(!ibv_modify_qp(e.qp, &a, init_mask), "to INIT: %m");
    a.qp_state = IBV_QPS_RTS;
    FAILS(ibv_modify_qp(e.qp, &a, IBV_QP_STATE), EINVAL);
    const int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = e.qp->qp_num,
                            .max_dest_rd_atomic = 1,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = e.gid, .hop_limit = 1}}};
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask & ~IBV_QP_AV), EINVAL);
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask | IBV_QP_SQ_PSN), EINVAL); /* not allowed here */
    r.path_mtu = (enum ibv_mtu)0;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.path_mtu = (enum ibv_mtu)6;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.path_mtu = IBV_MTU_1024;
    r.ah_attr.grh.sgid_index = 200; /* F37: at once, not by a timeout in RTR */
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.ah_attr.grh.sgid_index = 0;
    r.ah_attr.is_global = 0;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.ah_attr.is_global = 1;
    r.max_dest_rd_atomic = 255;
    FAILS(ibv_modify_qp(e.qp, &r, rtr_mask), EINVAL);
    r.max_dest_rd_atomic = 1;
    CHECK(!ibv_modify_qp(e.qp, &r, rtr_mask), "to RTR: %m");
    a.qp_state = IBV_QPS_RESET;
    CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE), "to RESET: %m");
    CHECK(!qp_to_init(e.qp, 0), "INIT again: %m");
    a.qp_state = IBV_QPS_ERR;
    CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE), "to ERR: %m");
    CHECK(state(e.qp) == IBV_QPS_ERR, "state");
    end_close(&e);
}

/* RESET forgets requests and completions; the QP works again afterwards. */
void reset_and_reuse(void) {
    struct pair p;
    struct ibv_wc wc;
    struct peer pa, pb;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 10; i++)
            MUST(!post(p.a.qp, &w, (uint64_t)i) && !post_recv(&p.b, 64, p.b.mr->lkey, 1), "post: %m");
        EXPECT(&p.a, IBV_WC_SUCCESS);
        MUST(!ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE) && !ibv_modify_qp(p.b.qp, &reset, IBV_QP_STATE),
             "to RESET: %m");
        CHECK(ibv_poll_cq(p.a.cq, 1, &wc) == 0 && ibv_poll_cq(p.b.cq, 1, &wc) == 0, "completions of before");
        end_describe(&p.a, &pa, 300);
        end_describe(&p.b, &pb, 400);
        MUST(!qp_to_init(p.a.qp, ALL_ACCESS) && !qp_to_init(p.b.qp, ALL_ACCESS), "to INIT: %m");
        qp_connect(&p.a, p.a.qp, &pb, 300, &impatient);
        qp_connect(&p.b, p.b.qp, &pa, 400, &impatient);
        MUST(!post(p.a.qp, &w, 77), "post: %m");
        CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == 77, "%s, wr_id %llu", ibv_wc_status_str(wc.status),
              (unsigned long long)wc.wr_id);
    }
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------------- CQs */

void cq_errors(void) {
    struct ibv_context *c = open_named(opt.dev);
    struct ibv_device_attr d;
    MUST(!ibv_query_device(c, &d), "query: %m");
    FAILS_NULL(ibv_create_cq(c, 0, NULL, NULL, 0), EINVAL);
    FAILS_NULL(ibv_create_cq(c, -1, NULL, NULL, 0), EINVAL);
    FAILS_NULL(ibv_create_cq(c, d.max_cqe + 1, NULL, NULL, 0), EINVAL);
    FAILS_NULL(ibv_create_cq(c, 16, NULL, NULL, c->num_comp_vectors), EINVAL);
    FAILS_NULL(ibv_create_cq(c, 16, NULL, NULL, -1), EINVAL);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(c);
    struct ibv_cq *cq = ibv_create_cq(c, 100, (void *)7, ch, 0);
    MUST(cq, "CQ: %m");
    CHECK(cq->cqe >= 100 && cq->cq_context == (void *)7 && cq->channel == ch, "fields");
    FAILS(ibv_destroy_comp_channel(ch), EBUSY);
    CHECK(!ibv_resize_cq(cq, 1000) && cq->cqe >= 1000, "grow: %m");
    CHECK(!ibv_resize_cq(cq, 10) && cq->cqe >= 10, "shrink: %m");
    FAILS(ibv_resize_cq(cq, 0), EINVAL);
    FAILS(ibv_resize_cq(cq, d.max_cqe + 1), EINVAL);
    CHECK(!ibv_destroy_cq(cq), "destroy: %m");
    CHECK(!ibv_destroy_comp_channel(ch), "destroy channel: %m");
    CHECK(!ibv_close_device(c), "close: %m");
    struct end e;
    end_open(&e, &opt, &usual);
    FAILS(ibv_destroy_cq(e.cq), EBUSY);
    FAILS(ibv_dealloc_pd(e.pd), EBUSY);
    end_close(&e);
}

void cq_resize_keeps(void) {
    struct pair p;
    struct ibv_wc wc;
    pair_usual(&p);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.len = 8;
    for (uint64_t i = 0; i < 40; i++)
        MUST(!post(p.a.qp, &w, i), "post: %m");
    usleep(100000);
    CHECK(!ibv_resize_cq(p.a.cq, 500), "resize: %m");
    FAILS(ibv_resize_cq(p.a.cq, 2), EINVAL); /* forty are waiting */
    for (uint64_t i = 0; i < 40; i++)
        CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == i, "completion %llu", (unsigned long long)i);
    CHECK(!ibv_resize_cq(p.a.cq, 2), "resize: %m");
    MUST(!post(p.a.qp, &w, 99), "post: %m");
    CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == 99, "after resizing");
    pair_close(&p);
}

/* More completions than the CQ holds: an event, the QPs in error, and poll says so. */
void cq_overrun(void) {
    struct pair p;
    struct ibv_wc wc;
    struct ibv_async_event ev;
    pair_usual(&p);
    CHECK(!ibv_resize_cq(p.a.cq, 4), "resize: %m");
    int room = p.a.cq->cqe;
    MUST(room >= 4 && room < 40, "cqe %d", room);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    w.len = 8;
    for (uint64_t i = 0; i < 40; i++)
        MUST(!post(p.a.qp, &w, i), "post: %m");
    struct pollfd f = {.fd = p.a.ctx->async_fd, .events = POLLIN};
    CHECK(poll(&f, 1, (int)(scaled(5) * 1000)) == 1, "no event");
    CHECK(!ibv_get_async_event(p.a.ctx, &ev) && ev.event_type == IBV_EVENT_CQ_ERR && ev.element.cq == p.a.cq,
          "event %s", ibv_event_type_str(ev.event_type));
    ibv_ack_async_event(&ev);
    int n, got = 0;
    while ((n = ibv_poll_cq(p.a.cq, 1, &wc)) > 0)
        got++;
    CHECK(got == room && n < 0, "%d completions of %d, then %d", got, room, n);
    CHECK(state(p.a.qp) == IBV_QPS_ERR, "state %d", state(p.a.qp));
    while (poll(&f, 1, 200) == 1 && !ibv_get_async_event(p.a.ctx, &ev)) /* of the QP */
        ibv_ack_async_event(&ev);
    pair_close(&p);
}

/* What a destroyed QP left in a CQ is gone with it; others' completions stay, in order. */
void destroy_cleans_cq(void) {
    struct pair p;
    struct ibv_wc wc;
    struct peer pa, pb;
    pair_usual(&p);
    struct ibv_qp *a2 = end_qp(&p.a, &usual), *b2 = end_qp(&p.b, &usual), *keep_b = p.b.qp, *keep_a = p.a.qp;
    MUST(a2 && b2 && !qp_to_init(a2, ALL_ACCESS) && !qp_to_init(b2, ALL_ACCESS), "second pair: %m");
    p.a.qp = a2;
    p.b.qp = b2;
    end_describe(&p.a, &pa, 1);
    end_describe(&p.b, &pb, 2);
    qp_connect(&p.a, a2, &pb, 1, &impatient);
    qp_connect(&p.b, b2, &pa, 2, &impatient);
    struct wr w = good(&p, IBV_WR_RDMA_WRITE);
    for (uint64_t i = 0; i < 8; i++) {
        MUST(!post(i % 3 ? keep_a : a2, &w, i), "post: %m");
        usleep(20000);
    }
    p.a.qp = keep_a;
    p.b.qp = keep_b;
    CHECK(!ibv_destroy_qp(a2), "destroy: %m");
    for (uint64_t i = 0; i < 8; i++)
        if (i % 3)
            CHECK(next(&p.a, &wc) == IBV_WC_SUCCESS && wc.wr_id == i && wc.qp_num == keep_a->qp_num, "completion %llu",
                  (unsigned long long)i);
    CHECK(ibv_poll_cq(p.a.cq, 1, &wc) == 0, "one of a QP that is gone");
    CHECK(!ibv_destroy_qp(b2), "destroy: %m");
    pair_close(&p);
}

/* --------------------------------------------------------------------------------------------------- events */

static void *destroy_cq_thread(void *arg) {
    struct end *e = arg;
    MUST(!ibv_destroy_cq(e->cq), "destroy CQ: %m");
    e->cq = NULL;
    return NULL;
}

/* One event an arming; unsolicited ones do not wake a CQ armed for solicited; destroying waits for the ack. */
void cq_events(void) {
    struct pair p;
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *context;
    struct end_want we = usual;
    struct options ob = opt;
    struct peer pa, pb;
    we.events = true;
    if (second)
        ob.dev = second;
    end_open(&p.a, &opt, &usual);
    end_open(&p.b, &ob, &we);
    end_describe(&p.a, &pa, 1);
    end_describe(&p.b, &pb, 2);
    MUST(!qp_to_init(p.a.qp, ALL_ACCESS) && !qp_to_init(p.b.qp, ALL_ACCESS), "to INIT: %m");
    qp_connect(&p.a, p.a.qp, &pb, 1, &impatient);
    qp_connect(&p.b, p.b.qp, &pa, 2, &impatient);
    struct pollfd f = {.fd = p.b.channel->fd, .events = POLLIN};
    for (uint64_t i = 0; i < 8; i++)
        MUST(!post_recv(&p.b, 64, p.b.mr->lkey, i), "post receive: %m");
    struct wr w = good(&p, IBV_WR_SEND);
    w.len = 16;
    MUST(!ibv_req_notify_cq(p.b.cq, 1), "arm: %m");
    MUST(!post(p.a.qp, &w, 1), "post: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(poll(&f, 1, 100) == 0, "an unsolicited SEND woke a CQ armed for solicited ones");
    w.flags = IBV_SEND_SOLICITED;
    MUST(!post(p.a.qp, &w, 2), "post: %m");
    CHECK(poll(&f, 1, 5000) == 1, "a solicited one did not");
    CHECK(!ibv_get_cq_event(p.b.channel, &cq, &context) && cq == p.b.cq, "event: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    MUST(!post(p.a.qp, &w, 3), "post: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    CHECK(poll(&f, 1, 100) == 0, "an event without arming");
    MUST(!ibv_req_notify_cq(p.b.cq, 0), "arm: %m");
    w.flags = 0;
    MUST(!post(p.a.qp, &w, 4), "post: %m");
    CHECK(!ibv_get_cq_event(p.b.channel, &cq, &context) && cq == p.b.cq, "event: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    /* an event that nobody fetches must not stop the destruction, the two fetched ones must */
    MUST(!ibv_req_notify_cq(p.b.cq, 0), "arm: %m");
    MUST(!post(p.a.qp, &w, 5), "post: %m");
    EXPECT(&p.b, IBV_WC_SUCCESS);
    MUST(!ibv_destroy_qp(p.b.qp), "destroy: %m");
    p.b.qp = NULL;
    pthread_t t;
    cq = p.b.cq;
    MUST(!pthread_create(&t, NULL, destroy_cq_thread, &p.b), "thread");
    usleep(100000);
    CHECK(p.b.cq, "destroy_cq did not wait for the acknowledgement");
    ibv_ack_cq_events(cq, 2);
    pthread_join(t, NULL);
    CHECK(poll(&f, 1, 0) == 0, "an event of a CQ that is gone");
    for (int i = 0; i < 5; i++)
        while (ibv_poll_cq(p.a.cq, 1, &wc) > 0)
            ;
    pair_close(&p);
}
