/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_victim.c: the honest half of mr_fuzzring: connections and QPs made by hand, and the bystander.
 */
#include "fuzz.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

/* ------------------------------------------------------------------------------------------ a connection by hand */

int dial(void) {
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

int push(int fd, const void *msg, size_t n, const int *fds, int nfds) {
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
ssize_t pull(int fd, void *buf, size_t n, int *fds) {
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
int ask(struct raw *r, uint16_t op, void *req, size_t n, int pass, void *rep, size_t rep_len, int *fds) {
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

int hello(struct raw *r) {
    struct mr_hello h = {.magic = MR_ABI_MAGIC, .abi_major = MR_ABI_MAJOR, .pid = getpid(), .program = "mr_fuzzring"};
    r->guard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *r->guard = 0x1234567890abcdef;
    h.guard_addr = (uintptr_t)r->guard;
    h.guard_nonce = *r->guard;
    return ask(r, MR_OP_HELLO, &h, sizeof h, -1, NULL, 0, NULL);
}

int sealed(size_t bytes, int seals) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(fd >= 0 && !ftruncate(fd, (off_t)bytes), "memfd: %m");
    if (seals)
        MUST(!fcntl(fd, F_ADD_SEALS, seals), "seal: %m");
    return fd;
}

void raw_open(struct raw *r) {
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

void raw_close(struct raw *r) {
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

static void must(int err, const char *what) {
    MUST(!err, "%s: setting up: %s: %s", current, what, err < 0 ? "connection lost" : strerror(err));
}

void victim_open(struct victim *v) {
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

void victim_close(struct victim *v) {
    raw_close(&v->r);
    munmap(v->mem, 65536);
}

void ring(struct victim *v, uint32_t bell) {
    struct mr_ctx_page *p = v->r.page;
    static const uint64_t one = 1;
    __atomic_fetch_or(&p->bell[bell / 64], 1ull << (bell % 64), __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&p->summary[bell / 4096], 1ull << (bell / 64 % 64), __ATOMIC_SEQ_CST);
    if (write(v->r.bell, &one, sizeof one) < 0)
        return; /* it is full: the daemon is awake */
}

struct mr_sqe *good_sqe(struct victim *v, uint32_t slot) {
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
int outcome(struct victim *v, double seconds) {
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

struct victim bystander;
static uint64_t moves;

/* Somebody else's QP still works. */
void alive(void) {
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

void judge(struct victim *v, bool may_succeed, double seconds) {
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
