/* SPDX-License-Identifier: Apache-2.0
 *
 * errors_limits.c: cases of mr_errors about the bounds of a NIC, about what it does not offer, and about how programs
 * that we do not have here go about it.
 */
#include "errors.h"

#include <dlfcn.h>
#include <fcntl.h>

/* ------------------------------------------------------------------------------------------------------ bounds */

/* One kind of object, of the few there are: up to what the device says, then ENOMEM, and again after they were freed.
 * device/limits_test.go does it with all kinds. */
void exhaustion(void) {
    struct end e;
    struct ibv_device_attr d;
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 1, .max_sge = 1}};
    end_open(&e, &opt, &usual);
    MUST(!ibv_query_device(e.ctx, &d), "query: %m");
    struct ibv_srq **all = calloc((size_t)d.max_srq + 1, sizeof(struct ibv_srq *));
    int n = 0;
    while (n <= d.max_srq && (all[n] = ibv_create_srq(e.pd, &a)))
        n++;
    CHECK(n == d.max_srq && errno == ENOMEM, "%d of %d, %m", n, d.max_srq);
    CHECK(!ibv_destroy_srq(all[0]), "destroy: %m");
    all[0] = ibv_create_srq(e.pd, &a);
    CHECK(all[0], "one was free: %m");
    for (int i = 0; i < n; i++)
        if (ibv_destroy_srq(all[i]))
            CHECK(false, "destroy %d: %m", i);
    free(all);
    end_close(&e);
}

/* ------------------------------------------------------------------------------------------------- not offered */

void not_offered(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_ece ece = {0};
    struct ibv_qp_init_attr raw = {
        .send_cq = e.cq, .recv_cq = e.cq, .cap = {.max_send_wr = 1, .max_send_sge = 1}, .qp_type = IBV_QPT_RAW_PACKET};
    struct ibv_wq_init_attr wq = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = e.pd, .cq = e.cq};
    struct ibv_rwq_ind_table_init_attr ind = {0};
    struct ibv_counters_init_attr cnt = {0};
    struct ibv_flow_attr flow = {.port = 1, .size = sizeof flow};
    struct ibv_flow_action_esp_attr esp = {0};
    struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1};
    struct ibv_qp_init_attr_ex tso = {.send_cq = e.cq,
                                      .recv_cq = e.cq,
                                      .pd = e.pd,
                                      .qp_type = IBV_QPT_UD,
                                      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER};
    struct ibv_srq_init_attr_ex tm = {.srq_type = IBV_SRQT_TM,
                                      .pd = e.pd,
                                      .cq = e.cq,
                                      .attr = {.max_wr = 1, .max_sge = 1},
                                      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                                   IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM};
    FAILS(ibv_query_ece(e.qp, &ece), EOPNOTSUPP);
    FAILS(ibv_set_ece(e.qp, &ece), EOPNOTSUPP);
    FAILS_NULL(ibv_create_qp(e.pd, &raw), EOPNOTSUPP);
    FAILS_NULL(ibv_create_qp_ex(e.ctx, &tso), EOPNOTSUPP);
    FAILS_NULL(ibv_create_srq_ex(e.ctx, &tm), EOPNOTSUPP);
    FAILS_NULL(ibv_create_wq(e.ctx, &wq), EOPNOTSUPP);
    FAILS_NULL(ibv_create_rwq_ind_table(e.ctx, &ind), EOPNOTSUPP);
    FAILS_NULL(ibv_create_counters(e.ctx, &cnt), EOPNOTSUPP);
    FAILS_NULL(ibv_create_flow(e.qp, &flow), EOPNOTSUPP);
    FAILS_NULL(ibv_create_flow_action_esp(e.ctx, &esp), EOPNOTSUPP);
    CHECK(ibv_modify_qp_rate_limit(e.qp, &rate) == EOPNOTSUPP, "rate limit");
    CHECK(ibv_query_qp_data_in_order(e.qp, IBV_WR_RDMA_WRITE, 0) == 0, "data in order");
    CHECK(ibv_get_device_index(e.ctx->device) >= 1, "index of the device");
    /* rdma-core 59 and later: programs look these up */
    static const char *const pointers[] = {"ibv_alloc_dmah", "ibv_create_comp_cntr"};
    static const char *const numbers[] = {"ibv_dealloc_dmah",  "ibv_dm_export_dmabuf_fd", "_ibv_query_comp_cntr_caps",
                                          "ibv_set_comp_cntr", "ibv_read_comp_cntr",      "ibv_qp_attach_comp_cntr"};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        void *(*f)(void *, void *) = (void *(*)(void *, void *))dlsym(RTLD_DEFAULT, pointers[i]);
        MUST(f, "%s", pointers[i]);
        FAILS_NULL(f(e.ctx, NULL), EOPNOTSUPP);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int (*f)(void *, void *) = (int (*)(void *, void *))dlsym(RTLD_DEFAULT, numbers[i]);
        MUST(f, "%s", numbers[i]);
        FAILS(f(e.ctx, NULL), EOPNOTSUPP);
    }
    uint64_t speed = 0;
    int (*port_speed)(struct ibv_context *, uint32_t, uint64_t *) =
        (int (*)(struct ibv_context *, uint32_t, uint64_t *))dlvsym(RTLD_DEFAULT, "ibv_query_port_speed",
                                                                    "IBVERBS_1.16");
    CHECK(port_speed && !port_speed(e.ctx, 1, &speed) && speed, "speed of the port");
    FAILS(port_speed(e.ctx, 2, &speed), EINVAL);
    end_close(&e);
}

/* rdma-core 64: buffers of the library, and registration by attributes. */
void buffers(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct attr {
        size_t length;
        int access;
        uint64_t comp_mask, iova;
        void *addr;
        int fd;
        uint64_t fd_offset;
        void *dmah, *buf;
    } a = {.length = 4096, .access = ALL_ACCESS, .comp_mask = 2, .addr = e.buf};
    void *(*alloc)(struct ibv_pd *, size_t, void **) =
        (void *(*)(struct ibv_pd *, size_t, void **))dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
    void (*release)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "ibv_free_buf");
    struct ibv_mr *(*reg)(struct ibv_pd *, void *, void *, size_t, int) =
        (struct ibv_mr * (*)(struct ibv_pd *, void *, void *, size_t, int)) dlsym(RTLD_DEFAULT, "ibv_reg_buf_mr");
    struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct attr *) =
        (struct ibv_mr * (*)(struct ibv_pd *, struct attr *)) dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    int (*export)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "ibv_export_buf_dmabuf_fd");
    MUST(alloc && release && reg && reg_ex && export, "symbols");
    void *buf = NULL;
    FAILS_NULL(alloc(e.pd, 0, &buf), EINVAL);
    char *p = alloc(e.pd, 10000, &buf);
    MUST(p && buf && (uintptr_t)p % 4096 == 0, "buffer: %m");
    FAILS(export(buf), ENODATA);
    FAILS_NULL(reg(e.pd, buf, p + 5000, 5001, ALL_ACCESS), EINVAL);
    FAILS_NULL(reg(e.pd, buf, p - 1, 10, ALL_ACCESS), EINVAL);
    struct ibv_mr *mr = reg(e.pd, buf, p + 5000, 5000, ALL_ACCESS);
    CHECK(mr && mr->addr == p + 5000 && mr->length == 5000, "region: %m");
    CHECK(mr && !ibv_dereg_mr(mr), "deregister: %m");
    release(buf);
    mr = reg_ex(e.pd, &a);
    CHECK(mr && mr->addr == e.buf && !ibv_dereg_mr(mr), "by attributes: %m");
    a.comp_mask = 2 | 1 << 4;
    FAILS_NULL(reg_ex(e.pd, &a), EOPNOTSUPP); /* a DMA handle */
    a.comp_mask = 0;
    FAILS_NULL(reg_ex(e.pd, &a), EINVAL);
    a.comp_mask = 2 | 4;
    FAILS_NULL(reg_ex(e.pd, &a), EINVAL);
    end_close(&e);
}

/* --------------------------------------------------------------------------------------------------- programs */

/* F13: what NCCL's net_ib asks for, in its order and with its values: one CQ for both directions, a QP that is
 * connected to itself, a chain of writes of which the last one carries immediate data and no bytes, receives without a
 * list. */
static void nccl_connect(struct ibv_qp *qp, const union ibv_gid *gid, enum ibv_mtu mtu) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = 1,
                            .qp_access_flags =
                                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT: %m");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 255, .traffic_class = 106}}};
    CHECK(!ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "RTR: %m");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC),
          "RTS: %m");
}

static void nccl_traffic(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, char *buf) {
    struct ibv_recv_wr rwr = {.wr_id = 3}, *rbad;
    struct ibv_sge s = {.addr = (uintptr_t)buf, .length = 1024, .lkey = mr->lkey};
    struct ibv_send_wr last = {.wr_id = 5,
                               .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                               .send_flags = IBV_SEND_SIGNALED,
                               .imm_data = htobe32(77)},
                       first = {.wr_id = 4, .next = &last, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE},
                       flush = {.wr_id = 6,
                                .sg_list = &s,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_READ,
                                .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    struct ibv_wc wc;
    int sent = 0, received = 0;
    first.wr.rdma.remote_addr = (uintptr_t)buf + 2048;
    first.wr.rdma.rkey = flush.wr.rdma.rkey = mr->rkey;
    flush.wr.rdma.remote_addr = (uintptr_t)buf;
    memset(buf, 0x31, 1024);
    MUST(!ibv_post_recv(qp, &rwr, &rbad) && !ibv_post_send(qp, &first, &bad), "post: %m");
    for (int i = 0; i < 2; i++) {
        MUST(wait_wc(cq, &wc, 10) && wc.status == IBV_WC_SUCCESS && wc.qp_num == qp->qp_num, "completion");
        if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
            received += wc.wr_id == 3 && wc.imm_data == htobe32(77) && wc.byte_len == 0;
        else
            sent += wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id == 5;
    }
    CHECK(sent == 1 && received == 1 && buf[3071] == 0x31 && buf[3072] == 0, "sent %d, received %d", sent, received);
    s.length = 1;
    MUST(!ibv_post_send(qp, &flush, &bad), "post: %m");
    CHECK(wait_wc(cq, &wc, 10) && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ, "flush");
}

void nccl_sequence(void) {
    struct ibv_context *c = open_named(opt.dev);
    struct ibv_port_attr port;
    union ibv_gid gid;
    static char buf[4096];
    MUST(!ibv_query_port(c, 1, &port) && port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET &&
             !ibv_query_gid(c, 1, 0, &gid),
         "port: %m");
    struct ibv_pd *pd = ibv_alloc_pd(c);
    struct ibv_cq *cq = ibv_create_cq(c, 2048, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr_iova2(pd, buf, sizeof buf, (uintptr_t)buf, ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING);
    MUST(pd && cq && mr, "%m");
    FAILS_NULL(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), EOPNOTSUPP);
    struct ibv_qp_init_attr qi = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 512, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &qi);
    MUST(qp, "QP: %m");
    memset(buf, 0, sizeof buf);
    nccl_connect(qp, &gid, port.active_mtu);
    nccl_traffic(qp, cq, mr, buf);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "free: %m");
    CHECK(!ibv_close_device(c), "close: %m");
}

/* UCX and libfabric make our descriptors non-blocking: then the two waiting calls must not wait. */
void nonblocking(void) {
    struct end e;
    end_open(&e, &opt, &usual);
    struct ibv_comp_channel *ch = ibv_create_comp_channel(e.ctx);
    struct ibv_async_event ev;
    struct ibv_cq *cq;
    void *context;
    MUST(ch && !fcntl(ch->fd, F_SETFL, O_NONBLOCK) && !fcntl(e.ctx->async_fd, F_SETFL, O_NONBLOCK), "%m");
    FAILS(ibv_get_cq_event(ch, &cq, &context), EAGAIN);
    FAILS(ibv_get_async_event(e.ctx, &ev), EAGAIN);
    CHECK(!ibv_destroy_comp_channel(ch), "destroy: %m");
    end_close(&e);
}

/* NCCL and UCX close the library; it stays, as threads of theirs may still be in it. */
void closed_library(void) {
    for (int i = 0; i < 50; i++) {
        void *h = dlopen(i & 1 ? "libibverbs.so.1" : "libibverbs.so", RTLD_NOW);
        MUST(h, "%s", dlerror());
        int n = 0;
        struct ibv_device **(*list)(int *) =
            (struct ibv_device * *(*)(int *)) dlvsym(h, "ibv_get_device_list", "IBVERBS_1.1");
        void (*release)(struct ibv_device **) =
            (void (*)(struct ibv_device **))dlvsym(h, "ibv_free_device_list", "IBVERBS_1.1");
        MUST(list == ibv_get_device_list && release, "another copy of the library");
        struct ibv_device **l = list(&n);
        CHECK(l && n > 0, "list: %m");
        release(l);
        CHECK(!dlclose(h), "%s", dlerror());
    }
}
