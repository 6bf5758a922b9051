/* SPDX-License-Identifier: Apache-2.0
 *
 * common.c: see common.h.
 */
#include "common.h"

#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

/* -------------------------------------------------------------------------------------------------- numbers */

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void rng_seed(struct rng *r, uint64_t seed, uint64_t stream) {
    uint64_t x = seed ^ (stream * 0xd1342543de82ef95ull);
    for (int i = 0; i < 4; i++)
        r->s[i] = splitmix(&x);
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

uint64_t rng_next(struct rng *r) { /* xoshiro256** */
    uint64_t out = rotl(r->s[1] * 5, 7) * 9, t = r->s[1] << 17;
    r->s[2] ^= r->s[0];
    r->s[3] ^= r->s[1];
    r->s[1] ^= r->s[2];
    r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = rotl(r->s[3], 45);
    return out;
}

uint64_t rng_below(struct rng *r, uint64_t n) {
    return (uint64_t)(((unsigned __int128)rng_next(r) * n) >> 64);
}

void rng_fill(struct rng *r, void *to, size_t n) {
    uint8_t *p = to;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v = rng_next(r);
        memcpy(p, &v, 8);
    }
    uint64_t v = rng_next(r);
    memcpy(p, &v, n);
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double scaled(double seconds) {
    const char *s = getenv("MR_TEST_SLOW");
    double by = s ? atof(s) : 1;
    return seconds * (by >= 1 ? by : 1);
}

/* FIPS 180-4. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int k) {
    return (x >> k) | (x << (32 - k));
}

static void sha_block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ (a >> 3)) + w[i - 7] + (rotr(b, 17) ^ rotr(b, 19) ^ (b >> 10));
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t1 = v[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + K[i] + w[i];
        uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void sha256_of(const void *data, size_t n, uint8_t out[32]) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *p = data;
    uint8_t last[128] = {0};
    uint64_t bits = (uint64_t)n * 8;
    for (; n >= 64; n -= 64, p += 64)
        sha_block(h, p);
    size_t tail = n < 56 ? 64 : 128;
    if (n)
        memcpy(last, p, n);
    last[n] = 0x80;
    for (int i = 0; i < 8; i++)
        last[tail - 1 - (size_t)i] = (uint8_t)(bits >> (8 * i));
    for (size_t i = 0; i < tail; i += 64)
        sha_block(h, last + i);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

/* --------------------------------------------------------------------------------------------------- stream */

int stream_listen(int port) {
    int one = 1, s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), zero = 0;
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr *sa = (struct sockaddr *)&a;
    socklen_t len = sizeof a;
    if (s < 0) { /* no IPv6 here */
        s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sa = (struct sockaddr *)&a4;
        len = sizeof a4;
    } else {
        setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    }
    MUST(s >= 0, "socket: %m");
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    MUST(!bind(s, sa, len), "bind port %d: %m", port);
    MUST(!listen(s, 1), "listen: %m");
    int fd = accept4(s, NULL, NULL, SOCK_CLOEXEC);
    MUST(fd >= 0, "accept: %m");
    close(s);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

int stream_connect(const char *host, int port, int patience_s) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    char service[16];
    double until = now_s() + patience_s;
    snprintf(service, sizeof service, "%d", port);
    int err = getaddrinfo(host, service, &hints, &list);
    MUST(!err, "%s: %s", host, gai_strerror(err));
    for (;;) {
        for (struct addrinfo *a = list; a; a = a->ai_next) {
            int one = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
            if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                freeaddrinfo(list);
                return fd;
            }
            if (fd >= 0)
                close(fd);
        }
        MUST(now_s() < until, "connect %s port %d: %m", host, port);
        usleep(50000);
    }
}

void stream_send(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR)
            continue;
        MUST(w > 0, "the other end is gone: %m");
        p += w;
        n -= (size_t)w;
    }
}

bool stream_recv(int fd, void *data, size_t n) {
    char *p = data;
    while (n) {
        ssize_t r = recv(fd, p, n, 0);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------- options */

static uint64_t number(const char *s) {
    char *end;
    uint64_t v = strtoull(s, &end, 0);
    if (*end == 'K' || *end == 'k')
        v <<= 10;
    else if (*end == 'M')
        v <<= 20;
    else if (*end == 'G')
        v <<= 30;
    return v;
}

static int mtu_enum(uint64_t bytes) {
    for (int m = IBV_MTU_256; m <= IBV_MTU_4096; m++)
        if (bytes == 128ull << m)
            return m;
    die("--mtu: 256, 512, 1024, 2048 or 4096");
}

static void usage(const char *about) {
    printf("%s\n\n"
           "  server:  %s -p 18600            client:  %s -p 18600 SERVER            one process:  %s --loop\n\n"
           "  -d, --dev NAME    device (default: the first)      -g, --gid N       GID index (0)\n"
           "  -p, --port N      TCP port to agree over           -m, --mtu BYTES   path MTU (default: the port's)\n"
           "  -s, --size N      largest message                  -n, --count N     operations\n"
           "  -D, --seconds T   run that long instead            --seed N          repeat a run\n"
           "      --server, --client HOST, --loop                --extra N         see the source\n",
           about, program_invocation_short_name, program_invocation_short_name, program_invocation_short_name);
    exit(0);
}

void options_parse(struct options *o, int argc, char **argv, const char *about) {
    static const struct option longs[] = {
        {"dev", 1, 0, 'd'},    {"gid", 1, 0, 'g'},     {"port", 1, 0, 'p'}, {"mtu", 1, 0, 'm'},  {"size", 1, 0, 's'},
        {"count", 1, 0, 'n'},  {"seconds", 1, 0, 'D'}, {"seed", 1, 0, 'S'}, {"loop", 0, 0, 'l'}, {"server", 0, 0, 'e'},
        {"client", 1, 0, 'c'}, {"extra", 1, 0, 'x'},   {"help", 0, 0, 'h'}, {0, 0, 0, 0}};
    int c;
    if (!o->port)
        o->port = 18600;
    while ((c = getopt_long(argc, argv, "d:g:p:m:s:n:D:h", longs, NULL)) != -1)
        switch (c) {
        case 'd':
            o->dev = optarg;
            break;
        case 'g':
            o->gid = atoi(optarg);
            break;
        case 'p':
            o->port = atoi(optarg);
            break;
        case 'm':
            o->mtu = mtu_enum(number(optarg));
            break;
        case 's':
            o->size = number(optarg);
            break;
        case 'n':
            o->count = number(optarg);
            break;
        case 'D':
            o->seconds = atof(optarg);
            break;
        case 'S':
            o->seed = number(optarg);
            break;
        case 'l':
            o->loop = true;
            break;
        case 'e':
            o->server = true;
            break;
        case 'c':
            o->client = optarg;
            break;
        case 'x':
            o->extra = atoi(optarg);
            break;
        case 'h':
            usage(about);
            break;
        default:
            exit(2);
        }
    if (optind < argc)
        o->client = argv[optind];
    o->server = !o->client && !o->loop;
}

/* ------------------------------------------------------------------------------------------------- one end */

struct ibv_context *open_named(const char *name) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    struct ibv_context *ctx = NULL;
    MUST(list && n, "no RDMA device: %m");
    for (int i = 0; i < n && !ctx; i++)
        if (!name || !strcmp(name, ibv_get_device_name(list[i]))) {
            ctx = ibv_open_device(list[i]);
            MUST(ctx, "open %s: %m", ibv_get_device_name(list[i]));
        }
    MUST(ctx, "no RDMA device named %s", name);
    ibv_free_device_list(list);
    return ctx;
}

void end_open(struct end *e, const struct options *o, const struct end_want *w) {
    struct ibv_port_attr port;
    memset(e, 0, sizeof *e);
    e->ctx = open_named(o->dev);
    MUST(!ibv_query_device(e->ctx, &e->attr), "query device: %m");
    MUST(!ibv_query_port(e->ctx, 1, &port), "query port: %m");
    e->mtu = o->mtu ? o->mtu : (int)port.active_mtu;
    e->gid_index = o->gid;
    MUST(!ibv_query_gid(e->ctx, 1, o->gid, &e->gid), "query GID %d: %m", o->gid);
    e->pd = ibv_alloc_pd(e->ctx);
    MUST(e->pd, "PD: %m");
    if (w->len) {
        e->len = w->len;
        e->buf = mmap(NULL, w->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(e->buf != MAP_FAILED, "mmap %zu bytes: %m", w->len);
        e->mr = ibv_reg_mr(e->pd, e->buf, w->len, w->access);
        MUST(e->mr, "register %zu bytes: %m", w->len);
    }
    if (w->events) {
        e->channel = ibv_create_comp_channel(e->ctx);
        MUST(e->channel, "channel: %m");
    }
    e->cq = ibv_create_cq(e->ctx, (int)w->cqe, NULL, e->channel, 0);
    MUST(e->cq, "CQ of %u: %m", w->cqe);
    e->qp = end_qp(e, w);
    MUST(e->qp, "QP of %u: %m", w->wr);
}

struct ibv_qp *end_qp(struct end *e, const struct end_want *w) {
    struct ibv_qp_init_attr a = {.send_cq = e->cq,
                                 .recv_cq = e->cq,
                                 .cap = {.max_send_wr = w->wr,
                                         .max_recv_wr = w->wr,
                                         .max_send_sge = w->sge,
                                         .max_recv_sge = w->sge,
                                         .max_inline_data = w->inline_bytes},
                                 .qp_type = IBV_QPT_RC};
    return ibv_create_qp(e->pd, &a);
}

void end_close(struct end *e) {
    if (e->qp)
        MUST(!ibv_destroy_qp(e->qp), "destroy QP: %m");
    if (e->cq)
        MUST(!ibv_destroy_cq(e->cq), "destroy CQ: %m");
    if (e->channel)
        MUST(!ibv_destroy_comp_channel(e->channel), "destroy channel: %m");
    if (e->mr)
        MUST(!ibv_dereg_mr(e->mr), "deregister: %m");
    if (e->buf)
        munmap(e->buf, e->len);
    MUST(!ibv_dealloc_pd(e->pd), "free PD: %m");
    MUST(!ibv_close_device(e->ctx), "close: %m");
}

void end_describe(const struct end *e, struct peer *p, uint32_t psn) {
    memset(p, 0, sizeof *p);
    p->qpn = e->qp ? e->qp->qp_num : 0;
    p->psn = psn & 0xffffff;
    p->gid = e->gid;
    if (e->mr) {
        p->rkey = e->mr->rkey;
        p->addr = (uintptr_t)e->buf;
        p->len = e->len;
    }
}

/* 2.1 s without a word from the peer: a machine that others use too may hold a daemon's core back for half a second. */
const struct connect_attr patient = {.timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12};

int qp_to_init(struct ibv_qp *qp, int access) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access};
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* From INIT to RTS. */
void qp_connect(const struct end *e, struct ibv_qp *qp, const struct peer *p, uint32_t psn,
                const struct connect_attr *c) {
    uint8_t rd = (uint8_t)(e->attr.max_qp_rd_atom < 16 ? e->attr.max_qp_rd_atom : 16);
    struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = (enum ibv_mtu)e->mtu,
                            .dest_qp_num = p->qpn,
                            .rq_psn = p->psn,
                            .max_dest_rd_atomic = rd,
                            .min_rnr_timer = c->min_rnr_timer,
                            .ah_attr = {.is_global = 1,
                                        .port_num = 1,
                                        .grh = {.dgid = p->gid, .sgid_index = (uint8_t)e->gid_index, .hop_limit = 64}}};
    struct ibv_qp_attr s = {.qp_state = IBV_QPS_RTS,
                            .sq_psn = psn & 0xffffff,
                            .timeout = c->timeout,
                            .retry_cnt = c->retry_cnt,
                            .rnr_retry = c->rnr_retry,
                            .max_rd_atomic = rd};
    MUST(!ibv_modify_qp(qp, &r,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "to RTR: %m");
    MUST(!ibv_modify_qp(qp, &s,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
         "to RTS: %m");
}

bool wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, double seconds) {
    double until = now_s() + scaled(seconds);
    for (uint32_t i = 1;; i++) {
        int n = ibv_poll_cq(cq, 1, wc);
        MUST(n >= 0, "poll: %m");
        if (n)
            return true;
        if (i % 256 == 0 && now_s() > until)
            return false;
    }
}
