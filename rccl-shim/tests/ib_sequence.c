/* SPDX-License-Identifier: Apache-2.0
 *
 * ib_sequence: what the IB transport that is built into RCCL and NCCL does with libibverbs, in its order and with its
 * values: loading by dlopen and dlvsym, choosing devices and GIDs, connecting (ECE, INIT, RTR, RTS), clear-to-sends of
 * 64 bytes inline, WRITE chains that end in a WRITE_WITH_IMM without a list, grouped receives, flushes by READ over a
 * QP that is connected to itself, queues polled by four, a thread in ibv_get_async_event for the life of the process.
 * Linked with nothing. Both ends are in this process, on the first and the last device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MUST(cond, ...)                                \
    do {                                               \
        if (!(cond)) {                                 \
            printf("line %d: %s: ", __LINE__, #cond);  \
            printf(__VA_ARGS__);                       \
            printf(" (errno: %s)\n", strerror(errno)); \
            exit(1);                                   \
        }                                              \
    } while (0)

/* ------------------------------------------------------------------------------------------------------ loading */

#define REQUIRED(X)                                                                                    \
    X(struct ibv_device **, get_device_list, (int *))                                                  \
    X(void, free_device_list, (struct ibv_device **))                                                  \
    X(const char *, get_device_name, (struct ibv_device *))                                            \
    X(struct ibv_context *, open_device, (struct ibv_device *))                                        \
    X(int, close_device, (struct ibv_context *))                                                       \
    X(int, get_async_event, (struct ibv_context *, struct ibv_async_event *))                          \
    X(void, ack_async_event, (struct ibv_async_event *))                                               \
    X(int, query_device, (struct ibv_context *, struct ibv_device_attr *))                             \
    X(int, query_port, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))                \
    X(int, query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *))                           \
    X(int, query_qp, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *))          \
    X(struct ibv_pd *, alloc_pd, (struct ibv_context *))                                               \
    X(int, dealloc_pd, (struct ibv_pd *))                                                              \
    X(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int))                                 \
    X(int, dereg_mr, (struct ibv_mr *))                                                                \
    X(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
    X(int, destroy_cq, (struct ibv_cq *))                                                              \
    X(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))                        \
    X(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                                    \
    X(int, destroy_qp, (struct ibv_qp *))                                                              \
    X(int, fork_init, (void))                                                                          \
    X(const char *, event_type_str, (enum ibv_event_type))
#define OPTIONAL(X)                                                                                            \
    X(struct ibv_mr *, reg_mr_iova2, (struct ibv_pd *, void *, size_t, uint64_t, unsigned), "IBVERBS_1.8")     \
    X(struct ibv_mr *, reg_dmabuf_mr, (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int), "IBVERBS_1.12") \
    X(int, query_ece, (struct ibv_qp *, struct ibv_ece *), "IBVERBS_1.10")                                     \
    X(int, set_ece, (struct ibv_qp *, struct ibv_ece *), "IBVERBS_1.10")                                       \
    X(int, query_port_speed, (struct ibv_context *, uint32_t, uint64_t *), "IBVERBS_1.16")

#define REQUIRED_POINTER(type, name, args)       type(*name) args;
#define OPTIONAL_POINTER(type, name, args, node) type(*name) args;
static struct {
    REQUIRED(REQUIRED_POINTER)
    OPTIONAL(OPTIONAL_POINTER)
} vb;

static void load(void) {
    void *lib = dlopen("libibverbs.so", RTLD_NOW); /* this name first, then the other */
    void *other = dlopen("libibverbs.so.1", RTLD_NOW);
    int n = 0;
    MUST(other, "%s", dlerror());
    MUST(!lib || lib == other, "two libraries by two names");
#define LOAD_REQUIRED(type, name, args)                              \
    *(void **)&vb.name = dlvsym(other, "ibv_" #name, "IBVERBS_1.1"); \
    MUST(vb.name, "ibv_%s@IBVERBS_1.1: %s", #name, dlerror());       \
    n++;
#define LOAD_OPTIONAL(type, name, args, node)               \
    *(void **)&vb.name = dlvsym(other, "ibv_" #name, node); \
    MUST(vb.name, "ibv_%s@%s: %s", #name, node, dlerror());
    REQUIRED(LOAD_REQUIRED)
    OPTIONAL(LOAD_OPTIONAL)
    MUST(n == 22, "%d required names", n);
    MUST(!dlvsym(other, "ibv_post_send", "IBVERBS_1.1"), "posting goes through the context");
}

/* ------------------------------------------------------------------------------------------------------ devices */

struct dev {
    struct ibv_context *ctx;
    uint64_t guid;
    union ibv_gid gid;
    int gid_index;
    enum ibv_mtu mtu;
};

static void *events(void *ctx) {
    struct ibv_async_event e;
    while (!vb.get_async_event(ctx, &e)) {
        printf("unexpected event: %s\n", vb.event_type_str(e.event_type));
        vb.ack_async_event(&e);
        exit(1); /* it fails communicators, so there may be none */
    }
    return NULL;
}

/* Newer releases ask by the context's extension first, with 56 bytes; older ones by the export, with 48. */
static void port(struct dev *d) {
    struct {
        struct ibv_port_attr a;
        uint32_t speed_ex, guard;
    } wide = {.guard = 0x5a5a5a5a};
    struct {
        char a[48];
        uint32_t guard;
    } narrow = {.guard = 0x5a5a5a5a};
    struct verbs_context *v = verbs_get_ctx_op(d->ctx, query_port);
    _Static_assert(sizeof wide - 4 == 56, "56 bytes");
    MUST(v && !v->query_port(d->ctx, 1, &wide.a, 56) && wide.guard == 0x5a5a5a5a, "query_port by extension");
    MUST(!vb.query_port(d->ctx, 1, (void *)&narrow) && narrow.guard == 0x5a5a5a5a,
         "the export writes more than 48 bytes");
    MUST(!memcmp(&wide, narrow.a, 44), "the two differ");
    MUST(wide.a.state == IBV_PORT_ACTIVE && wide.a.link_layer == IBV_LINK_LAYER_ETHERNET, "port");
    MUST(wide.a.active_speed && wide.a.active_width && wide.a.gid_tbl_len >= 1, "speed, width, GIDs");
    d->mtu = wide.a.active_mtu;
    /* GID: index 0, unless one of the others is better; sysfs is asked when two IPv4 GIDs compete, and need not be here
     */
    int v4 = 0;
    for (int i = 0; i < wide.a.gid_tbl_len; i++) {
        union ibv_gid g;
        static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
        if (vb.query_gid(d->ctx, 1, i, &g) || memcmp(g.raw, prefix, sizeof prefix))
            continue;
        if (!v4++) {
            d->gid = g;
            d->gid_index = i;
        }
    }
    MUST(v4 == 1, "%d IPv4 GIDs", v4);
}

static void open_dev(struct dev *d, struct ibv_device *device) {
    struct ibv_device_attr attr;
    pthread_t thread;
    d->ctx = vb.open_device(device);
    MUST(d->ctx && !vb.query_device(d->ctx, &attr), "open");
    MUST(!strcmp(device->name, vb.get_device_name(device)) && attr.phys_port_cnt == 1, "%s", device->name);
    d->guid = attr.sys_image_guid;
    port(d);
    uint64_t speed = 0;
    MUST(!vb.query_port_speed(d->ctx, 1, &speed) && speed, "speed");
    struct ibv_pd *pd = vb.alloc_pd(d->ctx);
    errno = 0;
    MUST(!vb.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) && errno == EOPNOTSUPP, "this NIC has no dma-buf of a GPU");
    MUST(!vb.dealloc_pd(pd), "PD");
    MUST(!pthread_create(&thread, NULL, events, d->ctx) && !pthread_detach(thread), "thread");
}

/* -------------------------------------------------------------------------------------------------- connections */

enum { QPS = 2, RECVS = 8, REQUESTS = 32, BYTES = 1 << 20 };

struct fifo { /* a clear-to-send: 64 bytes */
    uint64_t addr, size;
    uint32_t rkeys[4];
    uint32_t nreqs, tag;
    uint64_t idx;
    char pad[16];
};
_Static_assert(sizeof(struct fifo) == 64, "inline size");

struct end {
    struct dev *dev;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp[QPS], *flush;
    struct ibv_mr *fifo_mr, *data_mr;
    struct fifo fifo[REQUESTS][RECVS]; /* sender: written by the peer; receiver: what it writes */
    int sizes[REQUESTS][RECVS];        /* receiver: written by the peer */
    char *data, flushed;
    uint64_t head;
};

static struct ibv_qp *make_qp(struct end *e) {
    struct ibv_qp_init_attr a = {
        .qp_context = e,
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 512, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
    struct ibv_qp *qp = vb.create_qp(e->pd, &a);
    struct ibv_qp_attr i = {.qp_state = IBV_QPS_INIT,
                            .port_num = 1,
                            .qp_access_flags =
                                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ};
    MUST(qp && qp->pd == e->pd && qp->pd->context == e->dev->ctx && qp->qp_context == e, "QP");
    MUST(!vb.modify_qp(qp, &i, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    struct ibv_ece ece = {.vendor_id = 0};
    int r = vb.query_ece(qp, &ece); /* EOPNOTSUPP is a NIC without; anything else fails the connection */
    MUST(!r || r == EOPNOTSUPP, "ECE: %d", r);
    return qp;
}

static void connect_qp(struct end *e, struct ibv_qp *qp, uint32_t qpn, const struct dev *to) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = e->dev->mtu < to->mtu ? e->dev->mtu : to->mtu,
                            .dest_qp_num = qpn,
                            .max_dest_rd_atomic = 1,
                            .min_rnr_timer = 12};
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = to->gid;
    a.ah_attr.grh.sgid_index = (uint8_t)e->dev->gid_index;
    a.ah_attr.grh.hop_limit = 255;
    MUST(!vb.modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "RTR");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    MUST(!vb.modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC),
         "RTS");
    struct ibv_qp_init_attr init;
    MUST(!vb.query_qp(qp, &a, IBV_QP_STATE | IBV_QP_CAP, &init) && a.qp_state == IBV_QPS_RTS &&
             a.cap.max_inline_data >= 64,
         "query_qp: state %d, inline %u", a.qp_state, a.cap.max_inline_data);
}

static void open_end(struct end *e, struct dev *d) {
    enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
    memset(e, 0, sizeof *e);
    e->dev = d;
    e->pd = vb.alloc_pd(d->ctx);
    e->cq = vb.create_cq(d->ctx, 3 * REQUESTS * QPS, e, NULL, 0);
    MUST(e->pd && e->cq && e->cq->cq_context == e, "PD, CQ");
    for (int q = 0; q < QPS; q++)
        e->qp[q] = make_qp(e);
    e->fifo_mr = vb.reg_mr(e->pd, e, sizeof *e, ACCESS);
    e->data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    e->data_mr = vb.reg_mr_iova2(e->pd, e->data, BYTES, (uintptr_t)e->data,
                                 ACCESS | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING);
    MUST(e->fifo_mr && e->data != MAP_FAILED && e->data_mr, "memory");
    e->flush = make_qp(e);
    connect_qp(e, e->flush, e->flush->qp_num, d);
}

static void close_end(struct end *e) {
    for (int q = 0; q < QPS; q++)
        MUST(!vb.destroy_qp(e->qp[q]), "destroy");
    MUST(!vb.destroy_qp(e->flush) && !vb.dereg_mr(e->fifo_mr) && !vb.dereg_mr(e->data_mr), "destroy");
    MUST(!vb.destroy_cq(e->cq) && !vb.dealloc_pd(e->pd), "destroy");
    munmap(e->data, BYTES);
}

/* ------------------------------------------------------------------------------------------------------ the data */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Polls by four until n completions of a kind came; others are counted by whoever waits for them. */
static int counts[256];

static void poll_for(struct end *e, enum ibv_wc_opcode op, int n, uint32_t imm) {
    double until = now_s() + 20;
    for (counts[op & 0xff] = 0; counts[op & 0xff] < n;) {
        struct ibv_wc wc[4];
        int got = ibv_poll_cq(e->cq, 4, wc);
        MUST(got >= 0 && now_s() < until, "poll: %d", got);
        for (int i = 0; i < got; i++) {
            bool known = wc[i].qp_num == e->flush->qp_num;
            for (int q = 0; q < QPS; q++)
                known |= wc[i].qp_num == e->qp[q]->qp_num;
            MUST(wc[i].status == IBV_WC_SUCCESS && known, "status %d, QP %u", wc[i].status, wc[i].qp_num);
            if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
                MUST(wc[i].wr_id == 77 && (wc[i].wc_flags & IBV_WC_WITH_IMM) && be32toh(wc[i].imm_data) == imm,
                     "receive");
            counts[wc[i].opcode & 0xff]++;
        }
    }
}

static void post_cts(struct end *r, const struct end *s, int n, const int *tags, size_t each) {
    int slot = (int)(r->head % REQUESTS);
    struct ibv_recv_wr rwr = {.wr_id = 77}, *rbad;
    struct ibv_sge sge = {.addr = (uintptr_t)r->fifo[slot], .length = (uint32_t)(n * 64), .lkey = r->fifo_mr->lkey};
    struct ibv_send_wr wr = {.wr_id = (uint64_t)slot, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    for (int q = 0; q < QPS; q++)
        MUST(!ibv_post_recv(r->qp[q], &rwr, &rbad), "a receive without a list");
    for (int i = 0; i < n; i++)
        r->fifo[slot][i] = (struct fifo){.addr = (uintptr_t)r->data + (size_t)i * each,
                                         .size = each,
                                         .rkeys = {r->data_mr->rkey},
                                         .nreqs = (uint32_t)n,
                                         .tag = (uint32_t)tags[i],
                                         .idx = r->head + 1};
    wr.wr.rdma.remote_addr = (uintptr_t)s->fifo[slot];
    wr.wr.rdma.rkey = s->fifo_mr->rkey;
    wr.send_flags = (n == 1 ? IBV_SEND_INLINE : 0) | (slot == 0 ? IBV_SEND_SIGNALED : 0);
    MUST(!ibv_post_send(r->qp[0], &wr, &bad), "clear to send");
    if (slot == 0) /* so that the send queue empties now and then */
        poll_for(r, IBV_WC_RDMA_WRITE, 1, 0);
    r->head++;
}

/* Sizes of a group travel in the last WRITE_WITH_IMM; of a single message in the immediate data, and the list is empty.
 */
static void send_group(struct end *s, const struct end *r, int n, const size_t *size, size_t each) {
    int slot = (int)(s->head % REQUESTS);
    volatile struct fifo *f = s->fifo[slot];
    struct ibv_send_wr wr[RECVS + 1] = {{.wr_id = 0}}, *last = &wr[n], *bad;
    struct ibv_sge sge[RECVS + 1];
    double until = now_s() + 10;
    for (int i = 0; i < n; i++)
        while (f[i].idx != s->head + 1)
            MUST(now_s() < until, "no clear-to-send");
    MUST(f[0].nreqs == (uint32_t)n, "%u receives", f[0].nreqs);
    for (int q = 0; q < QPS; q++) {
        for (int i = 0; i < n; i++) {
            size_t share = (size[i] + QPS - 1) / QPS, from = share * (size_t)q < size[i] ? share * (size_t)q : size[i];
            size_t len = size[i] - from < share ? size[i] - from : share;
            sge[i] = (struct ibv_sge){(uintptr_t)s->data + (size_t)i * each + from, (uint32_t)len, s->data_mr->lkey};
            wr[i] = (struct ibv_send_wr){.next = &wr[i + 1], .sg_list = &sge[i], .num_sge = len > 0};
            wr[i].opcode = IBV_WR_RDMA_WRITE;
            wr[i].wr.rdma.remote_addr = f[i].addr + from;
            wr[i].wr.rdma.rkey = f[i].rkeys[0];
            s->sizes[slot][i] = (int)size[i];
        }
        *last = (struct ibv_send_wr){.wr_id = (uint64_t)slot, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM};
        last->imm_data = htobe32((uint32_t)size[0]);
        last->send_flags = IBV_SEND_SIGNALED;
        if (n > 1) {
            sge[n] = (struct ibv_sge){(uintptr_t)s->sizes[slot], (uint32_t)(n * 4), s->fifo_mr->lkey};
            last->sg_list = &sge[n];
            last->num_sge = 1;
            last->wr.rdma.remote_addr = (uintptr_t)r->sizes[slot];
            last->wr.rdma.rkey = r->fifo_mr->rkey;
        }
        MUST(!ibv_post_send(s->qp[q], wr, &bad), "WRITE chain");
    }
    s->head++;
}

static void flush(struct end *r) {
    struct ibv_sge sge = {.addr = (uintptr_t)&r->flushed, .length = 1, .lkey = r->fifo_mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)r->data;
    wr.wr.rdma.rkey = r->data_mr->rkey;
    wr.send_flags = IBV_SEND_SIGNALED;
    MUST(!ibv_post_send(r->flush, &wr, &bad), "flush");
    poll_for(r, IBV_WC_RDMA_READ, 1, 0);
    MUST(r->flushed == r->data[0], "the flush read %d, not %d", r->flushed, r->data[0]);
}

static void messages(struct end *s, struct end *r) {
    for (int turn = 0; turn < 400; turn++) {
        int n = turn % 3 ? 1 : 1 + turn % RECVS, tags[RECVS], slot = (int)(r->head % REQUESTS);
        size_t each = BYTES / RECVS, size[RECVS];
        for (int i = 0; i < n; i++) {
            tags[i] = i;
            size[i] = (size_t)(turn * 977 + i * 131) % (each + 1) * (size_t)(turn % 5 != 0); /* some have no bytes */
            memset(s->data + (size_t)i * each, turn + i, size[i]);
        }
        memset(r->sizes[slot], 0xff, sizeof r->sizes[slot]);
        post_cts(r, s, n, tags, each);
        send_group(s, r, n, size, each);
        poll_for(r, IBV_WC_RECV_RDMA_WITH_IMM, QPS, (uint32_t)size[0]);
        poll_for(s, IBV_WC_RDMA_WRITE, QPS, 0);
        flush(r);
        for (int i = 0; i < n; i++) {
            MUST(n == 1 || r->sizes[slot][i] == (int)size[i], "size %d of %d: %d", i, n, r->sizes[slot][i]);
            MUST(!memcmp(s->data + (size_t)i * each, r->data + (size_t)i * each, size[i]), "turn %d, part %d", turn, i);
        }
    }
}

int main(void) {
    static struct end s, r;
    struct dev a, b;
    int n = 0;
    load();
    MUST(vb.fork_init() != -1, "fork_init");
    struct ibv_device **list = vb.get_device_list(&n);
    MUST(list && n >= 1, "no device");
    open_dev(&a, list[0]);
    open_dev(&b, list[n - 1]);
    MUST(n == 1 || a.guid != b.guid, "two NICs with one GUID");
    vb.free_device_list(list);
    for (int turn = 0; turn < 3; turn++) {
        open_end(&s, &a);
        open_end(&r, &b);
        for (int q = 0; q < QPS; q++) {
            connect_qp(&s, s.qp[q], r.qp[q]->qp_num, &b);
            connect_qp(&r, r.qp[q], s.qp[q]->qp_num, &a);
        }
        messages(&s, &r);
        close_end(&s);
        close_end(&r);
    }
    printf("ib_sequence: ok\n"); /* devices stay open: a thread of each waits for its events */
    return 0;
}
