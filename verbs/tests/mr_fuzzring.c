/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_fuzzring: a hostile program. It speaks mr_abi.h itself, without the library, and does what the library never
 * would: corrupt work requests written straight into the rings, absurd ring indices, bad control messages, a memfd that
 * can be truncated. After every attack the daemon must be alive and serve others; the attacker must get an error that
 * it can see: an errno, an error completion, a QP in error, or its own context declared dead.
 *
 *     mr_fuzzring [--seed N] [--count N]      MR_SOCKET names the daemon
 */
#include "common.h"
#include "../include/mr_abi.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int attacks, failures, quiet_ok;
static const char *current;

#define FAIL(...)                  \
    do {                           \
        failures++;                \
        printf("  %s: ", current); \
        printf(__VA_ARGS__);       \
        printf("\n");              \
    } while (0)

/* ------------------------------------------------------------------------------------------ a connection by hand */

struct raw {
    int fd, bell, async, memfd;
    uint32_t seq;
    uint8_t *shm;
    size_t bytes;
    struct mr_ctx_page *page;
    uint64_t *guard;
    char nic[MR_NAME_BYTES];
};

static int dial(void) {
    const char *path = getenv("MR_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval tv = {.tv_sec = (long)scaled(10)};
    MUST(path && strlen(path) < sizeof a.sun_path, "MR_SOCKET is not set");
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(fd >= 0, "socket: %m");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    MUST(!connect(fd, (struct sockaddr *)&a, sizeof a), "%s: the daemon is gone: %m (after %s)", path, current);
    return fd;
}

static int push(int fd, const void *msg, size_t n, const int *fds, int nfds) {
    struct iovec iov = {(void *)(uintptr_t)msg, n};
    union {
        char buf[CMSG_SPACE(sizeof(int) * 64)];
        struct cmsghdr align;
    } ctl = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        m.msg_control = ctl.buf;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfds);
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* Returns the length, 0 when the daemon hung up, -1 when it says nothing. */
static ssize_t pull(int fd, void *buf, size_t n, int *fds) {
    struct iovec iov = {buf, n};
    union {
        char buf[CMSG_SPACE(sizeof(int) * MR_MAX_FDS)];
        struct cmsghdr align;
    } ctl;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf};
    ssize_t r = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (r < 0)
        return errno == ECONNRESET || errno == EPIPE ? 0 : -1;
    int k = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_type == SCM_RIGHTS)
            for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
                int one;
                memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof one);
                if (fds && k < (int)MR_MAX_FDS)
                    fds[k++] = one;
                else
                    close(one);
            }
    return r;
}

/* One well-formed exchange; returns the status, or -1 when the connection ended. */
static int ask(struct raw *r, uint16_t op, void *req, size_t n, int pass, void *rep, size_t rep_len, int *fds) {
    union {
        struct mr_hdr h;
        uint8_t buf[4096];
    } in;
    *(struct mr_hdr *)req = (struct mr_hdr){.op = op, .len = (uint32_t)n, .seq = ++r->seq};
    if (push(r->fd, req, n, &pass, pass >= 0))
        return -1;
    ssize_t got = pull(r->fd, in.buf, sizeof in.buf, fds);
    MUST(got >= 0, "%s: no answer to operation %u for 10 s: the daemon hangs", current, op);
    if (got < (ssize_t)sizeof in.h)
        return -1;
    if (rep && !in.h.status)
        memcpy(rep, in.buf, rep_len < (size_t)got ? rep_len : (size_t)got);
    return in.h.status;
}

static int hello(struct raw *r) {
    struct mr_hello h = {.magic = MR_ABI_MAGIC, .abi_major = MR_ABI_MAJOR, .pid = getpid(), .program = "mr_fuzzring"};
    r->guard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *r->guard = 0x1234567890abcdef;
    h.guard_addr = (uintptr_t)r->guard;
    h.guard_nonce = *r->guard;
    return ask(r, MR_OP_HELLO, &h, sizeof h, -1, NULL, 0, NULL);
}

static int sealed(size_t bytes, int seals) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(fd >= 0 && !ftruncate(fd, (off_t)bytes), "memfd: %m");
    if (seals)
        MUST(!fcntl(fd, F_ADD_SEALS, seals), "seal: %m");
    return fd;
}
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SHM_BYTES (8u << 20)

static void raw_open(struct raw *r) {
    struct mr_open_reply rep;
    struct mr_open o = {.shm_bytes = SHM_BYTES};
    int fds[MR_MAX_FDS] = {-1, -1, -1, -1};
    memset(r, 0, sizeof *r);
    r->fd = dial();
    MUST(!hello(r), "HELLO: refused");
    struct mr_list l = {0};
    struct {
        struct mr_list_reply r;
        struct mr_nic n[4];
    } list = {0};
    MUST(!ask(r, MR_OP_LIST, &l, sizeof l, -1, &list, sizeof list, NULL) && list.r.count, "LIST: refused");
    memcpy(o.name, list.n[0].name, sizeof o.name);
    memcpy(r->nic, o.name, sizeof r->nic);
    r->memfd = sealed(SHM_BYTES, ALL_SEALS);
    r->bytes = SHM_BYTES;
    r->shm = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->memfd, 0);
    MUST(r->shm != MAP_FAILED, "mmap: %m");
    r->page = (struct mr_ctx_page *)(void *)r->shm;
    r->page->magic = MR_ABI_MAGIC;
    r->page->abi_major = MR_ABI_MAJOR;
    int err = ask(r, MR_OP_OPEN, &o, sizeof o, r->memfd, &rep, sizeof rep, fds);
    MUST(!err, "OPEN: %s", strerror(err));
    r->bell = fds[0];
    r->async = fds[1];
}

static void raw_close(struct raw *r) {
    close(r->fd);
    if (r->shm)
        munmap(r->shm, r->bytes);
    if (r->guard)
        munmap(r->guard, 4096);
    if (r->shm) {
        close(r->memfd);
        close(r->bell);
        close(r->async);
    }
}

/* ----------------------------------------------------------------------------- a working QP, connected to itself */

#define ENTRIES 16u
#define STRIDE  576u /* 32 pieces */
#define CQ_AT   65536u
#define SQ_AT   131072u
#define RQ_AT   196608u
#define SQ_BELL 5u
#define RQ_BELL 6u

struct victim {
    struct raw r;
    uint32_t pd, cq, qp, qpn, lkey, rkey;
    struct mr_ring *cqr, *sqr, *rqr;
    uint8_t *mem;
};

static void must(int err, const char *what) {
    MUST(!err, "%s: setting up: %s: %s", current, what, err < 0 ? "connection lost" : strerror(err));
}

static void victim_open(struct victim *v) {
    memset(v, 0, sizeof *v);
    raw_open(&v->r);
    struct mr_handle h = {0}, hr;
    must(ask(&v->r, MR_OP_ALLOC_PD, &h, sizeof h, -1, &hr, sizeof hr, NULL), "PD");
    v->pd = hr.handle;
    v->mem = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct mr_reg_mr m = {
        .pd = v->pd, .addr = (uintptr_t)v->mem, .iova = (uintptr_t)v->mem, .length = 65536, .access = 15};
    struct mr_reg_mr_reply mr;
    must(ask(&v->r, MR_OP_REG_MR, &m, sizeof m, -1, &mr, sizeof mr, NULL), "MR");
    v->lkey = mr.lkey;
    v->rkey = mr.rkey;
    struct mr_create_cq c = {.entries = 64, .ring = CQ_AT, .cookie = 1};
    must(ask(&v->r, MR_OP_CREATE_CQ, &c, sizeof c, -1, &hr, sizeof hr, NULL), "CQ");
    v->cq = hr.handle;
    struct mr_create_qp q = {.pd = v->pd,
                             .type = IBV_QPT_RC,
                             .send_cq = v->cq,
                             .recv_cq = v->cq,
                             .sq_entries = ENTRIES,
                             .sq_stride = STRIDE,
                             .rq_entries = ENTRIES,
                             .rq_stride = STRIDE,
                             .max_send_sge = 32,
                             .max_recv_sge = 32,
                             .max_inline = 256,
                             .sq_ring = SQ_AT,
                             .rq_ring = RQ_AT,
                             .cookie = 2,
                             .sq_doorbell = SQ_BELL,
                             .rq_doorbell = RQ_BELL};
    struct mr_create_qp_reply qr;
    must(ask(&v->r, MR_OP_CREATE_QP, &q, sizeof q, -1, &qr, sizeof qr, NULL), "QP");
    v->qp = qr.handle;
    v->qpn = qr.qpn;
    v->cqr = (struct mr_ring *)(void *)(v->r.shm + CQ_AT);
    v->sqr = (struct mr_ring *)(void *)(v->r.shm + SQ_AT);
    v->rqr = (struct mr_ring *)(void *)(v->r.shm + RQ_AT);
    struct mr_query_gid g = {.port = 1};
    struct mr_gid_entry ge;
    must(ask(&v->r, MR_OP_QUERY_GID, &g, sizeof g, -1, &ge, sizeof ge, NULL), "GID");
    struct mr_modify_qp init = {.handle = v->qp,
                                .mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                                .qp_state = IBV_QPS_INIT,
                                .port_num = 1,
                                .qp_access_flags = 15};
    must(ask(&v->r, MR_OP_MODIFY_QP, &init, sizeof init, -1, NULL, 0, NULL), "INIT");
    struct mr_modify_qp rtr = {.handle = v->qp,
                               .mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                               .qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = v->qpn,
                               .max_dest_rd_atomic = 1,
                               .min_rnr_timer = 1};
    rtr.ah.is_global = rtr.ah.port_num = 1;
    rtr.ah.hop_limit = 64;
    memcpy(rtr.ah.dgid, ge.gid, 16);
    must(ask(&v->r, MR_OP_MODIFY_QP, &rtr, sizeof rtr, -1, NULL, 0, NULL), "RTR");
    struct mr_modify_qp rts = {.handle = v->qp,
                               .mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                               .qp_state = IBV_QPS_RTS,
                               .timeout = 14,
                               .retry_cnt = 7,
                               .rnr_retry = 0,
                               .max_rd_atomic = 1};
    must(ask(&v->r, MR_OP_MODIFY_QP, &rts, sizeof rts, -1, NULL, 0, NULL), "RTS");
}

static void victim_close(struct victim *v) {
    raw_close(&v->r);
    munmap(v->mem, 65536);
}

static void ring(struct victim *v, uint32_t bell) {
    struct mr_ctx_page *p = v->r.page;
    static const uint64_t one = 1;
    __atomic_fetch_or(&p->bell[bell / 64], 1ull << (bell % 64), __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&p->summary[bell / 4096], 1ull << (bell / 64 % 64), __ATOMIC_SEQ_CST);
    if (write(v->r.bell, &one, sizeof one) < 0)
        return; /* it is full: the daemon is awake */
}

static struct mr_sqe *good_sqe(struct victim *v, uint32_t slot) {
    uint8_t *at = v->r.shm + SQ_AT + MR_RING_HDR + (slot % ENTRIES) * STRIDE;
    struct mr_sqe *s = (struct mr_sqe *)(void *)at;
    struct mr_sge *g = (struct mr_sge *)(void *)(s + 1);
    *s = (struct mr_sqe){.wr_id = slot,
                         .opcode = MR_WR_WRITE,
                         .num_sge = 1,
                         .flags = MR_SEND_SIGNALED,
                         .remote_addr = (uintptr_t)v->mem + 32768,
                         .rkey = v->rkey};
    *g = (struct mr_sge){.addr = (uintptr_t)v->mem, .length = 64, .lkey = v->lkey};
    return s;
}

/* What became of the attack: a completion's status (0 is a success), 100 = ring or context marked, -1 = silence. */
static int outcome(struct victim *v, double seconds) {
    double until = now_s() + scaled(seconds);
    do {
        uint32_t cons = v->cqr->cons;
        if (__atomic_load_n(&v->cqr->prod, __ATOMIC_ACQUIRE) != cons && cons < 1u << 16) {
            int st = ((struct mr_cqe *)(void *)(v->r.shm + CQ_AT + MR_RING_HDR))[cons % 64].status;
            v->cqr->cons = cons + 1;
            return st;
        }
        if (__atomic_load_n(&v->r.page->dead, __ATOMIC_ACQUIRE) ||
            (__atomic_load_n(&v->sqr->flags, __ATOMIC_ACQUIRE) | __atomic_load_n(&v->rqr->flags, __ATOMIC_ACQUIRE)) &
                MR_RING_ERROR ||
            __atomic_load_n(&v->cqr->flags, __ATOMIC_ACQUIRE))
            return 100;
        struct pollfd f[2] = {{.fd = v->r.async, .events = POLLIN}, {.fd = v->r.fd, .events = POLLIN}};
        if (poll(f, 2, 1) > 0)
            return 100; /* an event, or it hung up on us */
    } while (now_s() < until);
    return -1;
}

/* ------------------------------------------------------------------------------------------- is it still alive? */

static struct victim bystander;
static uint64_t moves;

/* Somebody else's QP still works. */
static void alive(void) {
    struct victim *v = &bystander;
    uint32_t slot = v->sqr->prod;
    uint64_t value = ++moves * 0x9e3779b97f4a7c15ull;
    good_sqe(v, slot);
    memcpy(v->mem, &value, 8);
    __atomic_store_n(&v->sqr->prod, slot + 1, __ATOMIC_SEQ_CST);
    ring(v, SQ_BELL);
    int got = outcome(v, 10);
    MUST(got == 0, "after %s: a bystander's WRITE ended with %d", current, got);
    MUST(!memcmp(v->mem + 32768, &value, 8), "after %s: a bystander's data is wrong", current);
}

static void judge(struct victim *v, bool may_succeed, double seconds) {
    int got = outcome(v, seconds);
    attacks++;
    if (got == 0 && !may_succeed)
        FAIL("succeeded");
    else if (got < 0)
        FAIL("nothing happened: no completion, no event, no mark");
    else if (got == 0)
        quiet_ok++;
    victim_close(v);
    alive();
}

/* ---------------------------------------------------------------------------------------------- corrupt WQEs */

typedef void sqe_attack(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x);

static void at_opcode(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->opcode = (uint8_t)x;
}
static void at_num_sge(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->num_sge = (uint8_t)x;
}
static void at_inline_len(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->flags |= MR_SEND_INLINE;
    s->num_sge = 0;
    s->inline_len = (uint32_t)x;
}
static void at_inline_and_list(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->flags |= MR_SEND_INLINE;
    s->inline_len = (uint32_t)x;
}
static void at_inline_read(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->opcode = (uint8_t)x;
    s->flags |= MR_SEND_INLINE;
    s->num_sge = 0;
    s->inline_len = 8;
}
static void at_sge_addr(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)s;
    g->addr = x;
}
static void at_sge_length(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)s;
    g->length = (uint32_t)x;
}
static void at_sge_key(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)s;
    g->lkey = x ? (uint32_t)(v->lkey ^ x) : 0;
}
static void at_sum(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    s->num_sge = 32; /* lengths whose sum wraps */
    for (int i = 0; i < 32; i++)
        g[i] = (struct mr_sge){.addr = (uintptr_t)v->mem, .length = (uint32_t)x, .lkey = v->lkey};
}
static void at_remote(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->remote_addr = x;
}
static void at_rkey(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)g;
    s->rkey = x ? (uint32_t)(v->rkey ^ x) : 0;
}
static void at_atomic(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v;
    s->opcode = MR_WR_FETCH_ADD;
    g->length = (uint32_t)x;
}
static void at_invalidate(struct victim *v, struct mr_sqe *s, struct mr_sge *g, uint64_t x) {
    (void)v, (void)g;
    s->opcode = MR_WR_LOCAL_INV;
    s->num_sge = 0;
    s->imm = (uint32_t)x;
}

static const struct {
    const char *name;
    sqe_attack *f;
    uint64_t x[16]; /* ends with the first 0 after the first */
} sqe_attacks[] = {
    {"opcode", at_opcode, {10, 11, 12, 13, 14, 16, 17, 31, 64, 127, 128, 200, 254, 255}},
    {"num_sge", at_num_sge, {33, 34, 48, 64, 100, 127, 128, 200, 254, 255}},
    {"inline_len", at_inline_len, {257, 258, 512, 513, 577, 4096, 65536, 1u << 20, 0x7fffffff, 0x80000000, 0xffffffff}},
    {"inline and a list", at_inline_and_list, {257, 0xffffffff, 1u << 31}},
    {"inline of a READ or atomic", at_inline_read, {MR_WR_READ, MR_WR_CMP_SWAP, MR_WR_FETCH_ADD}},
    {"sge.addr", at_sge_addr, {0, 1, 4095, ~0ull, ~0ull - 63, ~0ull - 31, 1ull << 63, 1ull << 47, 0xdead0000}},
    {"sge.length", at_sge_length, {65537, 1u << 20, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff, 0xfffffff0}},
    {"sge.lkey", at_sge_key, {0, 1, 0x100, 0xff00, 0xffffff00, 0x80000000, 0xffffffff}},
    {"lengths that wrap", at_sum, {0x08000000, 0x10000000, 0x7fffffff, 0x80000000, 0xffffffff, 0x20000001}},
    {"remote_addr", at_remote, {0, 1, 8, ~0ull, ~0ull - 63, ~0ull - 31, 1ull << 63, 1ull << 47, 0xdead0000}},
    {"rkey", at_rkey, {0, 1, 0x100, 0xff00, 0xffffff00, 0x80000000, 0xffffffff}},
    {"atomic of a wrong length", at_atomic, {1, 4, 7, 9, 16, 64, 0xffffffff}},
    {"LOCAL_INV of nothing", at_invalidate, {1, 0x100, 0xffffffff}},
};

static void attack_sqes(void) {
    char name[80];
    for (size_t i = 0; i < sizeof sqe_attacks / sizeof *sqe_attacks; i++)
        for (size_t k = 0; k < 16 && (k == 0 || sqe_attacks[i].x[k]); k++) {
            struct victim v;
            uint64_t x = sqe_attacks[i].x[k];
            snprintf(name, sizeof name, "%s = 0x%llx", sqe_attacks[i].name, (unsigned long long)x);
            current = name;
            victim_open(&v);
            struct mr_sqe *s = good_sqe(&v, 0);
            sqe_attacks[i].f(&v, s, (struct mr_sge *)(void *)(s + 1), x);
            __atomic_store_n(&v.sqr->prod, 1, __ATOMIC_SEQ_CST);
            ring(&v, SQ_BELL);
            judge(&v, false, 3);
        }
}

/* A receive that is bad is found when a SEND needs it. */
static void attack_rqes(void) {
    static const struct {
        const char *name;
        uint32_t num_sge, length;
        uint64_t addr, key;
    } t[] = {{"rqe.num_sge = 33", 33, 64, 0, 0},
             {"rqe.num_sge = 255", 255, 64, 0, 0},
             {"rqe.num_sge = 2^31", 1u << 31, 64, 0, 0},
             {"rqe.num_sge = 2^32-1", ~0u, 64, 0, 0},
             {"rqe length 2^32-1", 1, ~0u, 0, 0},
             {"rqe lengths that wrap", 32, 0x08000000, 0, 0},
             {"rqe address at the end", 1, 128, ~0ull - 63, 0},
             {"rqe address 0", 1, 128, 1, 0},
             {"rqe lkey", 1, 128, 0, 0x4200}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct victim v;
        current = t[i].name;
        victim_open(&v);
        struct mr_rqe *q = (struct mr_rqe *)(void *)(v.r.shm + RQ_AT + MR_RING_HDR);
        struct mr_sge *g = (struct mr_sge *)(void *)(q + 1);
        *q = (struct mr_rqe){.wr_id = 1, .num_sge = t[i].num_sge};
        for (uint32_t k = 0; k < 32 && k < t[i].num_sge; k++)
            g[k] = (struct mr_sge){.addr = t[i].addr ? t[i].addr : (uintptr_t)v.mem,
                                   .length = t[i].length,
                                   .lkey = v.lkey ^ (uint32_t)t[i].key};
        __atomic_store_n(&v.rqr->prod, 1, __ATOMIC_SEQ_CST);
        ring(&v, RQ_BELL);
        struct mr_sqe *s = good_sqe(&v, 0);
        s->opcode = MR_WR_SEND;
        ((struct mr_sge *)(void *)(s + 1))->length = 128;
        __atomic_store_n(&v.sqr->prod, 1, __ATOMIC_SEQ_CST);
        ring(&v, SQ_BELL);
        judge(&v, false, 3);
    }
}

/* ---------------------------------------------------------------------------------------------- ring indices */

static void attack_indices(void) {
    static const uint32_t jumps[] = {ENTRIES + 1, ENTRIES + 2, 64, 1000, 1u << 16, 1u << 31, 0x80000001, ~0u, ~0u - 15};
    char name[80];
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < sizeof jumps / sizeof *jumps; i++) {
            struct victim v;
            snprintf(name, sizeof name, "%s producer = 0x%x", which ? "RQ" : "SQ", jumps[i]);
            current = name;
            victim_open(&v);
            good_sqe(&v, 0);
            __atomic_store_n(which ? &v.rqr->prod : &v.sqr->prod, jumps[i], __ATOMIC_SEQ_CST);
            ring(&v, which ? RQ_BELL : SQ_BELL);
            if (which) { /* found at the latest when a receive is needed */
                struct mr_sqe *s = good_sqe(&v, 0);
                s->opcode = MR_WR_SEND;
                __atomic_store_n(&v.sqr->prod, 1, __ATOMIC_SEQ_CST);
                ring(&v, SQ_BELL);
            }
            judge(&v, false, 3);
        }
    static const uint32_t cons[] = {1, 5, 65, 1000, 1u << 31, ~0u, ~0u - 70};
    for (size_t i = 0; i < sizeof cons / sizeof *cons; i++) {
        struct victim v;
        snprintf(name, sizeof name, "CQ consumer = 0x%x", cons[i]);
        current = name;
        victim_open(&v);
        v.cqr->cons = cons[i]; /* says it has read what was never written */
        good_sqe(&v, 0);
        __atomic_store_n(&v.sqr->prod, 1, __ATOMIC_SEQ_CST);
        ring(&v, SQ_BELL);
        attacks++;
        usleep(20000); /* whatever it does to its own completions, nobody else may notice */
        victim_close(&v);
        alive();
    }
}

/* Doorbells of nothing, all at once, and marks that are not ours to set. */
static void attack_page(void) {
    for (int i = 0; i < 4; i++) {
        struct victim v;
        static const char *const names[] = {"every doorbell bit", "asleep = garbage", "dead = 1, by the client",
                                            "magic changed"};
        current = names[i];
        victim_open(&v);
        if (i == 0) {
            memset(v.r.page->bell, 0xff, sizeof v.r.page->bell);
            memset(v.r.page->summary, 0xff, sizeof v.r.page->summary);
        } else if (i == 1)
            v.r.page->asleep = 0xdeadbeef;
        else if (i == 2)
            v.r.page->dead = 1;
        else
            v.r.page->magic = 0;
        v.cqr->arm = 0xffffffff;
        good_sqe(&v, 0);
        __atomic_store_n(&v.sqr->prod, 1, __ATOMIC_SEQ_CST);
        ring(&v, SQ_BELL);
        judge(&v, true, 3);
    }
    struct victim v;
    current = "holes punched into the rings";
    victim_open(&v);
    good_sqe(&v, 0);
    fallocate(v.r.memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SHM_BYTES);
    v.sqr->prod = 1;
    ring(&v, SQ_BELL);
    attacks++;
    usleep(20000);
    victim_close(&v);
    alive();
    current = "the file of a sealed context truncated";
    victim_open(&v);
    attacks++;
    if (!ftruncate(v.r.memfd, 4096))
        FAIL("the seal does not hold");
    victim_close(&v);
    alive();
}

/* ------------------------------------------------------------------------------------------- control messages */

/* The attack must be answered by an error or by hanging up, never by silence. */
static void expect_refused(struct raw *r, int err, const char *what) {
    attacks++;
    current = what;
    if (err == 0)
        FAIL("accepted");
    raw_close(r);
    alive();
}

static void expect_reply(struct raw *r, const char *what) {
    union {
        struct mr_hdr h;
        uint8_t buf[65536];
    } in;
    current = what;
    ssize_t n = pull(r->fd, in.buf, sizeof in.buf, NULL);
    MUST(n >= 0, "%s: silence: the daemon hangs", what);
    expect_refused(r, n < (ssize_t)sizeof in.h ? -1 : in.h.status, what);
}

static void fresh(struct raw *r, bool greet) {
    memset(r, 0, sizeof *r);
    r->fd = dial();
    if (greet)
        MUST(!hello(r), "HELLO refused");
}

static void attack_messages(void) {
    struct raw r;
    static uint8_t big[80000];
    struct mr_list l = {.hdr = {.op = MR_OP_LIST, .len = sizeof l, .seq = 1}};
    struct mr_hello h = {.magic = MR_ABI_MAGIC, .abi_major = MR_ABI_MAJOR, .pid = getpid()};

    fresh(&r, false);
    expect_refused(&r, ask(&r, MR_OP_LIST, &l, sizeof l, -1, NULL, 0, NULL), "LIST before HELLO");
    fresh(&r, false);
    h.magic = 7;
    expect_refused(&r, ask(&r, MR_OP_HELLO, &h, sizeof h, -1, NULL, 0, NULL), "HELLO with a wrong magic");
    h.magic = MR_ABI_MAGIC;
    fresh(&r, false);
    h.abi_major = 99;
    expect_refused(&r, ask(&r, MR_OP_HELLO, &h, sizeof h, -1, NULL, 0, NULL), "HELLO of ABI 99");
    h.abi_major = MR_ABI_MAJOR;
    fresh(&r, false);
    expect_refused(&r, ask(&r, MR_OP_HELLO, &h, 40, -1, NULL, 0, NULL), "half a HELLO");
    for (size_t n = 1; n < sizeof(struct mr_hdr); n += 5) {
        fresh(&r, true);
        push(r.fd, &l, n, NULL, 0);
        expect_reply(&r, "a piece of a header");
    }
    static const uint32_t lens[] = {0, 15, 23, 25, 1000, 65537, 0x7fffffff, ~0u};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        fresh(&r, true);
        l.hdr.len = lens[i];
        push(r.fd, &l, sizeof l, NULL, 0);
        expect_reply(&r, "a length that is not the message's");
    }
    fresh(&r, true);
    memcpy(big, &(struct mr_hdr){.op = MR_OP_LIST, .len = sizeof big, .seq = 1}, sizeof(struct mr_hdr));
    if (!push(r.fd, big, sizeof big, NULL, 0))
        expect_reply(&r, "a message larger than allowed");
    else
        raw_close(&r);
    static const uint16_t ops[] = {0, 7, 15, 23, 33, 50, 255, 0x7fff, 0x8000, 0xffff};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        raw_open(&r);
        struct mr_handle m = {.handle = 1};
        expect_refused(&r, ask(&r, ops[i], &m, sizeof m, -1, NULL, 0, NULL), "an operation that does not exist");
    }
    /* every operation with a body too short, with handles of nothing, and before OPEN */
    for (uint16_t op = 16; op < 50; op++) {
        static uint8_t junk[256];
        if (op == MR_OP_ALLOC_PD || op == MR_OP_CREATE_CHANNEL)
            continue;
        raw_open(&r);
        expect_refused(&r, ask(&r, op, memset(junk, 0, sizeof junk), 16, -1, NULL, 0, NULL), "no body");
        static const size_t sizes[] = {24, 32, 56, 64, 72, 112, 168};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            raw_open(&r);
            expect_refused(&r, ask(&r, op, memset(junk, 0xff, sizeof junk), sizes[i], -1, NULL, 0, NULL),
                           "a body of ones");
        }
        fresh(&r, true);
        expect_refused(&r, ask(&r, op, memset(junk, 0, sizeof junk), 24, -1, NULL, 0, NULL), "before OPEN");
    }
    fresh(&r, true); /* as many descriptors as it takes */
    int fds[60];
    for (int i = 0; i < 60; i++)
        fds[i] = 2;
    l.hdr.len = sizeof l;
    push(r.fd, &l, sizeof l, fds, 60);
    attacks++;
    current = "60 descriptors nobody asked for";
    pull(r.fd, big, sizeof big, NULL);
    raw_close(&r);
    alive();
}

static void attack_open(void) {
    static const struct {
        const char *name;
        size_t size;
        uint64_t said;
        int seals;
    } t[] = {{"unsealed memfd", SHM_BYTES, SHM_BYTES, 0},
             {"memfd sealed against growing only", SHM_BYTES, SHM_BYTES, F_SEAL_GROW | F_SEAL_SEAL},
             {"memfd sealed against shrinking only", SHM_BYTES, SHM_BYTES, F_SEAL_SHRINK},
             {"memfd smaller than said", 1 << 20, SHM_BYTES, ALL_SEALS},
             {"memfd larger than said", SHM_BYTES, 1 << 20, ALL_SEALS},
             {"empty memfd", 0, 0, ALL_SEALS},
             {"memfd of one page", 4096, 4096, ALL_SEALS},
             {"memfd below the minimum", 1 << 19, 1 << 19, ALL_SEALS},
             {"size 2^63", SHM_BYTES, 1ull << 63, ALL_SEALS},
             {"size not of pages", SHM_BYTES, SHM_BYTES + 1, ALL_SEALS},
             {"memfd of 2 TiB", 1ull << 41, 1ull << 41, ALL_SEALS}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct raw r;
        struct mr_open o = {.shm_bytes = t[i].said};
        memcpy(o.name, bystander.r.nic, sizeof o.name);
        fresh(&r, true);
        int fd = sealed(t[i].size, t[i].seals);
        expect_refused(&r, ask(&r, MR_OP_OPEN, &o, sizeof o, fd, NULL, 0, NULL), t[i].name);
        close(fd);
    }
    static const char *const kinds[] = {
        "a pipe instead of a memfd", "a directory", "a regular file", "/dev/zero", "a socket", "no descriptor"};
    for (int i = 0; i < 6; i++) {
        struct raw r;
        struct mr_open o = {.shm_bytes = SHM_BYTES};
        int p[2] = {-1, -1}, fd = -1;
        memcpy(o.name, bystander.r.nic, sizeof o.name);
        fresh(&r, true);
        if (i == 0 && !pipe2(p, O_CLOEXEC))
            fd = p[0];
        else if (i == 1)
            fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        else if (i == 2) {
            char path[] = "/tmp/mr_fuzz.XXXXXX";
            fd = mkstemp(path);
            unlink(path);
            MUST(!ftruncate(fd, SHM_BYTES), "ftruncate: %m");
        } else if (i == 3)
            fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
        else if (i == 4)
            fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        expect_refused(&r, ask(&r, MR_OP_OPEN, &o, sizeof o, fd, NULL, 0, NULL), kinds[i]);
        for (int k = 0; k < 2; k++)
            if (p[k] >= 0)
                close(p[k]);
        if (fd >= 0 && i)
            close(fd);
    }
    struct raw r;
    struct mr_open o = {.shm_bytes = SHM_BYTES};
    memset(o.name, 'x', sizeof o.name);
    fresh(&r, true);
    int fd = sealed(SHM_BYTES, ALL_SEALS);
    expect_refused(&r, ask(&r, MR_OP_OPEN, &o, sizeof o, fd, NULL, 0, NULL), "a NIC that does not exist");
    raw_open(&r);
    memcpy(o.name, r.nic, sizeof o.name);
    expect_refused(&r, ask(&r, MR_OP_OPEN, &o, sizeof o, fd, NULL, 0, NULL), "OPEN twice");
    close(fd);
}

/* Queues that lie where they must not. */
static void attack_queues(void) {
    static const struct {
        const char *name;
        uint32_t entries, stride;
        uint64_t ring;
        uint32_t bell, sge;
    } t[] = {{"no entries but a stride", 3, 128, SQ_AT, 1, 1},
             {"entries not a power of two", 17, 128, SQ_AT, 1, 1},
             {"entries 2^31", 1u << 31, 128, SQ_AT, 1, 1},
             {"entries 2^32-1", ~0u, 128, SQ_AT, 1, 1},
             {"stride 0", 16, 0, SQ_AT, 1, 1},
             {"stride 100", 16, 100, SQ_AT, 1, 1},
             {"stride 2^31", 16, 1u << 31, SQ_AT, 1, 1},
             {"ring over the context page", 16, 128, 0, 1, 1},
             {"ring inside the context page", 16, 128, 4096, 1, 1},
             {"ring not aligned", 16, 128, SQ_AT + 64, 1, 1},
             {"ring past the end", 16, 128, SHM_BYTES, 1, 1},
             {"ring across the end", 65536, 128, SHM_BYTES - 4096, 1, 1},
             {"ring at 2^63", 16, 128, 1ull << 63, 1, 1},
             {"ring at -4096", 16, 128, ~4095ull, 1, 1},
             {"doorbell out of range", 16, 128, SQ_AT, MR_MAX_DOORBELLS, 1},
             {"doorbell 2^32-1", 16, 128, SQ_AT, ~0u, 1},
             {"33 pieces", 16, 1024, SQ_AT, 1, 33},
             {"2^32-1 pieces", 16, 1024, SQ_AT, 1, ~0u}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct victim v;
        char name[80];
        snprintf(name, sizeof name, "QP: %s", t[i].name);
        current = name;
        victim_open(&v);
        struct mr_create_qp q = {.pd = v.pd,
                                 .type = IBV_QPT_RC,
                                 .send_cq = v.cq,
                                 .recv_cq = v.cq,
                                 .sq_entries = t[i].entries,
                                 .sq_stride = t[i].stride,
                                 .max_send_sge = t[i].sge,
                                 .sq_ring = t[i].ring,
                                 .cookie = 9,
                                 .sq_doorbell = t[i].bell,
                                 .rq_doorbell = 9};
        expect_refused(&v.r, ask(&v.r, MR_OP_CREATE_QP, &q, sizeof q, -1, NULL, 0, NULL), name);
        munmap(v.mem, 65536);
    }
    static const struct {
        const char *name;
        uint32_t entries;
        uint64_t ring;
    } c[] = {{"no entries", 0, CQ_AT},
             {"17 entries", 17, CQ_AT},
             {"2^31 entries", 1u << 31, CQ_AT},
             {"2^32-1 entries", ~0u, CQ_AT},
             {"ring at 0", 64, 0},
             {"ring not aligned", 64, CQ_AT + 8},
             {"ring past the end", 64, SHM_BYTES},
             {"ring at -4096", 64, ~4095ull},
             {"ring at 2^63", 64, 1ull << 63},
             {"ring across the end", 64, SHM_BYTES - 4096}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct raw r;
        char name[80];
        snprintf(name, sizeof name, "CQ: %s", c[i].name);
        current = name;
        raw_open(&r);
        struct mr_create_cq q = {.entries = c[i].entries, .ring = c[i].ring, .cookie = 9};
        expect_refused(&r, ask(&r, MR_OP_CREATE_CQ, &q, sizeof q, -1, NULL, 0, NULL), name);
    }
}

/* --------------------------------------------------------------------------------------------------- at random */

/* Random bytes over the headers of the rings and the requests, with the doorbells rung: nothing is expected but that
 * others do not notice. */
static void attack_random(uint64_t seed, uint64_t count) {
    struct rng r;
    rng_seed(&r, seed, 1);
    for (uint64_t i = 0; i < count; i++) {
        struct victim v;
        char name[80];
        snprintf(name, sizeof name, "random %llu of --seed %llu", (unsigned long long)i, (unsigned long long)seed);
        current = name;
        victim_open(&v);
        for (uint32_t k = 0; k < ENTRIES; k++)
            good_sqe(&v, k);
        static const size_t where[] = {SQ_AT, RQ_AT, CQ_AT};
        uint64_t hits = 1 + rng_below(&r, 20);
        for (uint64_t k = 0; k < hits; k++) {
            size_t at = where[rng_below(&r, 3)] + rng_below(&r, MR_RING_HDR + 4 * STRIDE);
            v.r.shm[at] = (uint8_t)rng_next(&r);
        }
        if (rng_below(&r, 2))
            v.rqr->prod = (uint32_t)rng_below(&r, 20);
        v.sqr->prod = (uint32_t)(rng_below(&r, 8) ? 1 + rng_below(&r, ENTRIES) : rng_next(&r));
        ring(&v, SQ_BELL);
        ring(&v, RQ_BELL);
        for (uint64_t k = 0; k < hits; k++) /* while the daemon reads them */
            v.r.shm[SQ_AT + MR_RING_HDR + rng_below(&r, ENTRIES * STRIDE)] = (uint8_t)rng_next(&r);
        attacks++;
        outcome(&v, 0.005);
        victim_close(&v);
        alive();
    }
}

int main(int argc, char **argv) {
    struct options o = {.seed = 1, .count = 300, .client = "none"};
    options_parse(&o, argc, argv, "mr_fuzzring: a hostile program; MR_SOCKET names the daemon");
    setvbuf(stdout, NULL, _IOLBF, 0);
    current = "the start";
    victim_open(&bystander);
    alive();
    attack_sqes();
    attack_rqes();
    attack_indices();
    attack_page();
    attack_messages();
    attack_open();
    attack_queues();
    attack_random(o.seed, o.count);
    current = "the end";
    victim_close(&bystander);
    printf("mr_fuzzring: %s attacks=%d failures=%d harmless=%d seed=%llu\n", failures ? "FAILED" : "ok", attacks,
           failures, quiet_ok, (unsigned long long)o.seed);
    return failures != 0;
}
