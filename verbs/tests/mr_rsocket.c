/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_rsocket: sockets over RDMA, both ends in this process on one NIC: what the calls of a stream promise, against the
 * man pages of the calls that they imitate, and what a peer that keeps to nothing can do.
 *
 *     mr_rsocket [--dev NAME] [--seed N] [-n PIECES]
 */
#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

static struct options o = {.count = 3000, .seed = 1};
static struct sockaddr_in nic;
static int port = 20000;
static int checks;

#define CHECK(cond, ...)         \
    do {                         \
        checks++;                \
        MUST(cond, __VA_ARGS__); \
    } while (0)

static void find_nic(void) {
    struct ibv_context *c = open_named(o.dev);
    union ibv_gid g;
    MUST(!ibv_query_gid(c, 1, 0, &g), "query_gid: %m");
    nic.sin_family = AF_INET;
    memcpy(&nic.sin_addr, g.raw + 12, 4);
    ibv_close_device(c);
}

static struct sockaddr_in next_addr(void) {
    struct sockaddr_in a = nic;
    a.sin_port = htons((uint16_t)port++);
    return a;
}

static int listen_at(const struct sockaddr_in *a) {
    int one = 1, s = rsocket(AF_INET, SOCK_STREAM, 0);
    MUST(s >= 0, "rsocket: %m");
    CHECK(!rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), "SO_REUSEADDR: %m");
    CHECK(!rbind(s, (const struct sockaddr *)a, sizeof *a), "rbind: %m");
    CHECK(!rlisten(s, 8), "rlisten: %m");
    return s;
}

struct options_of { /* set before a connection is made */
    int rcvbuf, sndbuf, iomap, inl;
};

static void set(int s, int level, int name, int v) {
    if (v)
        CHECK(!rsetsockopt(s, level, name, &v, sizeof v), "option %d of %d: %m", name, level);
}

static void prepare(int s, const struct options_of *w) {
    if (!w)
        return;
    set(s, SOL_SOCKET, SO_RCVBUF, w->rcvbuf);
    set(s, SOL_SOCKET, SO_SNDBUF, w->sndbuf);
    set(s, SOL_RDMA, RDMA_IOMAPSIZE, w->iomap);
    set(s, SOL_RDMA, RDMA_INLINE, w->inl);
}

struct pair {
    int a, b; /* who connected, who accepted */
};

static void *accept_one(void *arg) {
    int *p = arg;
    *p = raccept(*p, NULL, NULL);
    return NULL;
}

static struct pair connected(const struct options_of *w) {
    struct sockaddr_in at = next_addr(), name;
    socklen_t n = sizeof name;
    struct pair p = {rsocket(AF_INET, SOCK_STREAM, 0), 0};
    int lis = listen_at(&at), got = lis;
    pthread_t t;
    prepare(lis, w);
    prepare(p.a, w);
    MUST(!pthread_create(&t, NULL, accept_one, &got), "thread");
    CHECK(!rconnect(p.a, (struct sockaddr *)&at, sizeof at), "rconnect: %m");
    pthread_join(t, NULL);
    CHECK(got >= 0, "raccept: %m");
    p.b = got;
    CHECK(!rgetpeername(p.a, (struct sockaddr *)&name, &n) && name.sin_port == at.sin_port &&
              name.sin_addr.s_addr == at.sin_addr.s_addr,
          "peer's name");
    n = sizeof name;
    CHECK(!rgetsockname(p.b, (struct sockaddr *)&name, &n) && name.sin_port == at.sin_port, "own name");
    CHECK(!rclose(lis), "close of the listener: %m");
    return p;
}

static void hang_up(struct pair p) {
    CHECK(!rclose(p.a) && !rclose(p.b), "rclose: %m");
}

/* --------------------------------------------------------------------------------- bytes, both ways, four threads */

struct way {
    int from, to;
    uint64_t stream;
    bool nonblocking;
};

static uint8_t byte_at(uint64_t stream, uint64_t i) {
    return (uint8_t)((i * 0x9e3779b97f4a7c15ull + stream * 77) >> 53);
}

static void wait_for(int fd, short events) {
    struct pollfd p = {.fd = fd, .events = events};
    MUST(rpoll(&p, 1, (int)(scaled(20) * 1000)) == 1, "rpoll: nothing in 20 s");
}

static uint64_t total(void) {
    struct rng r;
    uint64_t sum = 0;
    rng_seed(&r, o.seed, 9);
    for (uint64_t i = 0; i < o.count; i++)
        sum += 1 + rng_below(&r, i % 7 ? 900 : 60000);
    return sum;
}

static void *writer(void *arg) {
    struct way *w = arg;
    struct rng r;
    uint8_t *b = malloc(60000);
    uint64_t at = 0;
    rng_seed(&r, o.seed, 9);
    for (uint64_t i = 0; i < o.count; i++) {
        size_t n = 1 + rng_below(&r, i % 7 ? 900 : 60000), done = 0;
        for (size_t k = 0; k < n; k++)
            b[k] = byte_at(w->stream, at + k);
        while (done < n) {
            struct iovec v[2] = {{b + done, (n - done) / 3}, {b + done + (n - done) / 3, n - done - (n - done) / 3}};
            ssize_t k =
                i % 3 ? rsend(w->from, b + done, n - done, w->nonblocking ? MSG_DONTWAIT : 0) : rwritev(w->from, v, 2);
            if (k < 0 && errno == EAGAIN) {
                wait_for(w->from, POLLOUT);
                continue;
            }
            MUST(k > 0, "send: %m");
            done += (size_t)k;
        }
        at += n;
    }
    free(b);
    MUST(!rshutdown(w->from, SHUT_WR), "shutdown: %m");
    MUST(rsend(w->from, "x", 1, 0) < 0 && errno == EPIPE, "send after shutdown: %m");
    return NULL;
}

static void *reader(void *arg) {
    struct way *w = arg;
    struct rng r;
    uint8_t *b = malloc(70000);
    uint64_t at = 0;
    rng_seed(&r, o.seed, 10 + w->stream);
    for (;;) {
        size_t n = 1 + rng_below(&r, 70000);
        struct iovec v[3] = {{b, n / 4}, {b + n / 4, 0}, {b + n / 4, n - n / 4}};
        uint8_t look = 0;
        if (at % 5 == 1 && !w->nonblocking)
            MUST(rrecv(w->to, &look, 1, MSG_PEEK) <= 1, "peek: %m");
        ssize_t k = at % 2 ? rreadv(w->to, v, 3) : rrecv(w->to, b, n, w->nonblocking ? MSG_DONTWAIT : 0);
        if (k < 0 && errno == EAGAIN) {
            wait_for(w->to, POLLIN);
            continue;
        }
        MUST(k >= 0, "receive: %m");
        if (!k)
            break;
        if (look)
            MUST(look == b[0], "what peek showed was %d, not %d", look, b[0]);
        for (ssize_t i = 0; i < k; i++)
            MUST(b[i] == byte_at(w->stream, at + (uint64_t)i), "byte %llu is wrong", (unsigned long long)at + i);
        at += (uint64_t)k;
    }
    MUST(at == total(), "%llu bytes of %llu came", (unsigned long long)at, (unsigned long long)total());
    free(b);
    return NULL;
}

static void check_bytes(void) {
    static const struct options_of sizes[] = {
        {0, 0, 0, 0}, {2048, 2048, 0, 0}, {1 << 20, 4096, 0, 1}, {4096, 1 << 20, 0, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int nb = 0; nb < 2; nb++) {
            struct pair p = connected(&sizes[i]);
            struct way ab = {p.a, p.b, 1, nb}, ba = {p.b, p.a, 2, nb};
            pthread_t t[4];
            if (nb)
                CHECK(!rfcntl(p.a, F_SETFL, O_NONBLOCK) && (rfcntl(p.a, F_GETFL) & O_NONBLOCK), "O_NONBLOCK: %m");
            pthread_create(&t[0], NULL, writer, &ab);
            pthread_create(&t[1], NULL, reader, &ab);
            pthread_create(&t[2], NULL, writer, &ba);
            pthread_create(&t[3], NULL, reader, &ba);
            for (int k = 0; k < 4; k++)
                pthread_join(t[k], NULL);
            checks += 4;
            hang_up(p);
        }
}

/* ------------------------------------------------------------------------------------------- calls, one by one */

static void check_ends(void) {
    struct pair p = connected(NULL);
    char b[100];
    CHECK(rsend(p.a, "hello", 5, 0) == 5, "send: %m");
    CHECK(rrecv(p.b, b, 3, MSG_PEEK | MSG_WAITALL) == 3 && !memcmp(b, "hel", 3), "peek: %m");
    CHECK(rrecv(p.b, b, sizeof b, 0) == 5 && !memcmp(b, "hello", 5), "receive");
    CHECK(rrecv(p.b, b, sizeof b, MSG_DONTWAIT) < 0 && errno == EAGAIN, "nothing there: %m");
    CHECK(rsend(p.b, "last", 4, 0) == 4 && !rclose(p.b), "the last words: %m");
    wait_for(p.a, POLLIN);
    CHECK(rrecv(p.a, b, sizeof b, MSG_WAITALL) == 4, "what was sent before the close: %m");
    CHECK(rrecv(p.a, b, sizeof b, 0) == 0, "the end: %m");
    struct pollfd f = {.fd = p.a, .events = POLLIN | POLLOUT};
    CHECK(rpoll(&f, 1, 1000) == 1 && (f.revents & POLLHUP) && (f.revents & POLLIN), "poll at the end: %x", f.revents);
    CHECK(rsend(p.a, "x", 1, MSG_NOSIGNAL) < 0 && errno == ECONNRESET, "send to nobody: %m");
    CHECK(!rclose(p.a), "close: %m");
    CHECK(rclose(p.a) < 0 && errno == EBADF, "close twice: %m");
}

static void check_errors(void) {
    struct sockaddr_in at = next_addr();
    char b[10];
    socklen_t n = sizeof(int);
    int v = -1, s = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(rsocket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == ENOTSUP, "AF_UNIX: %m");
    CHECK(rsocket(AF_INET, SOCK_RAW, 0) < 0 && errno == ENOTSUP, "SOCK_RAW: %m");
    CHECK(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP) < 0 && errno == ENOTSUP, "UDP stream: %m");
    CHECK(rsend(s, "x", 1, 0) < 0 && errno == ENOTCONN, "send unconnected: %m");
    CHECK(rrecv(s, b, 1, 0) < 0 && errno == ENOTCONN, "receive unconnected: %m");
    CHECK(raccept(s, NULL, NULL) < 0 && errno == EINVAL, "accept unlistened: %m");
    CHECK(rgetpeername(s, (struct sockaddr *)&at, &n) < 0 && errno == ENOTCONN, "peer of nobody: %m");
    CHECK(rsend(s, "x", 1, MSG_OOB) < 0 && errno == EOPNOTSUPP, "MSG_OOB: %m");
    CHECK(rconnect(s, (struct sockaddr *)&at, 4) < 0 && errno == EINVAL, "short address: %m");
    CHECK(rrecv(999, b, 1, 0) < 0 && errno == EBADF, "no rsocket: %m");
    CHECK(rconnect(s, (struct sockaddr *)&at, sizeof at) < 0 && errno == ECONNREFUSED, "nobody listens: %m");
    CHECK(!rclose(s), "close: %m");
    s = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(rconnect(s, (struct sockaddr *)&at, sizeof at) < 0 && (errno == EINPROGRESS || errno == ECONNREFUSED),
          "connect must not wait: %m");
    if (errno == EINPROGRESS) { /* else the answer was quick */
        wait_for(s, POLLOUT);
        CHECK(!rgetsockopt(s, SOL_SOCKET, SO_ERROR, &v, &n) && v == ECONNREFUSED, "SO_ERROR is %d", v);
    }
    CHECK(!rclose(s), "close: %m");
}

/* The calls with other names; datagrams are udpong's, which needs addresses that the kernel has. */
static void check_calls(void) {
    struct pair p = connected(NULL);
    char b[32] = {0};
    CHECK(rwrite(p.a, "by write", 9) == 9 && rread(p.b, b, sizeof b) == 9 && !strcmp(b, "by write"), "rread: %m");
    struct iovec out = {"by message", 11}, in = {b, sizeof b};
    struct msghdr mo = {.msg_iov = &out, .msg_iovlen = 1}, mi = {.msg_iov = &in, .msg_iovlen = 1};
    CHECK(rsendmsg(p.a, &mo, 0) == 11 && rrecvmsg(p.b, &mi, 0) == 11 && !strcmp(b, "by message"), "rrecvmsg: %m");
    CHECK(rsendto(p.a, "to", 3, 0, NULL, 0) == 3, "rsendto: %m");
    CHECK(rrecvfrom(p.b, b, sizeof b, 0, NULL, NULL) == 3 && !strcmp(b, "to"), "rrecvfrom: %m");
    CHECK(rread(999, b, 1) < 0 && errno == EBADF && rwrite(999, b, 1) < 0 && errno == EBADF, "no rsocket: %m");
    hang_up(p);
    int d = rsocket(AF_INET, SOCK_DGRAM, 0);
    CHECK(d >= 0 && rsendto(d, "to", 3, 0, NULL, 0) < 0 && errno, "a datagram to nowhere");
    CHECK(!rclose(d), "rclose: %m");
}

static void check_options(void) {
    static const struct {
        int level, name, in, out;
    } t[] = {
        {SOL_SOCKET, SO_REUSEADDR, 1, 1},       {SOL_SOCKET, SO_KEEPALIVE, 1, 1},    {SOL_SOCKET, SO_OOBINLINE, 5, 1},
        {SOL_SOCKET, SO_RCVBUF, 50000, 100000}, {SOL_SOCKET, SO_SNDBUF, 3000, 6000}, {IPPROTO_TCP, TCP_NODELAY, 1, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 9, 9},      {SOL_RDMA, RDMA_SQSIZE, 100, 100},   {SOL_RDMA, RDMA_RQSIZE, 3, 16},
        {SOL_RDMA, RDMA_INLINE, 32, 32},        {SOL_RDMA, RDMA_IOMAPSIZE, 300, 256}};
    int s = rsocket(AF_INET, SOCK_STREAM, 0);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int v = t[i].in, got = -1;
        socklen_t n = sizeof got;
        CHECK(!rsetsockopt(s, t[i].level, t[i].name, &v, sizeof v), "set %zu: %m", i);
        CHECK(!rgetsockopt(s, t[i].level, t[i].name, &got, &n) && got == t[i].out, "get %zu: %d", i, got);
    }
    int v = 1;
    CHECK(rsetsockopt(s, SOL_SOCKET, SO_BROADCAST, &v, sizeof v) < 0 && errno == ENOTSUP, "SO_BROADCAST: %m");
    CHECK(rsetsockopt(s, SOL_SOCKET, SO_RCVBUF, &v, 1) < 0 && errno == EINVAL, "short option: %m");
    rclose(s);
}

/* rpoll and rselect of rsockets beside ordinary descriptors, and a connection made without waiting. */
static void check_poll(void) {
    struct sockaddr_in at = next_addr();
    int lis = listen_at(&at), s = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), pipes[2], c;
    MUST(!pipe(pipes), "pipe");
    struct pollfd f[3] = {{lis, POLLIN, 0}, {pipes[0], POLLIN, 0}, {-1, POLLIN, 0}};
    CHECK(rpoll(f, 3, 0) == 0, "nothing yet");
    double start = now_s();
    CHECK(rpoll(f, 3, 120) == 0 && now_s() - start > 0.1, "the timeout took %f s", now_s() - start);
    CHECK(!rfcntl(lis, F_SETFL, O_NONBLOCK) && raccept(lis, NULL, NULL) < 0 && errno == EAGAIN, "nobody there: %m");
    CHECK(!rconnect(s, (struct sockaddr *)&at, sizeof at) || errno == EINPROGRESS, "connect: %m");
    do {
        struct pollfd two[2] = {{lis, POLLIN, 0}, {s, POLLIN, 0}};
        MUST(rpoll(two, 2, 10000) > 0, "nobody comes");
        c = raccept(lis, NULL, NULL);
    } while (c < 0 && errno == EAGAIN);
    CHECK(c >= 0, "accept: %m");
    wait_for(s, POLLOUT);
    MUST(write(pipes[1], "x", 1) == 1, "pipe");
    CHECK(rpoll(f, 3, 1000) == 1 && f[1].revents == POLLIN && !f[0].revents, "the pipe: %x %x", f[0].revents,
          f[1].revents);
    fd_set in, out;
    struct timeval tv = {5, 0};
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(c, &in);
    FD_SET(pipes[0], &in);
    FD_SET(s, &out);
    CHECK(rsend(s, "yz", 2, 0) == 2, "send: %m");
    wait_for(c, POLLIN);
    int top = c > s ? c : s;
    CHECK(rselect((top > pipes[0] ? top : pipes[0]) + 1, &in, &out, NULL, &tv) == 3, "select");
    CHECK(FD_ISSET(c, &in) && FD_ISSET(s, &out) && FD_ISSET(pipes[0], &in), "select's sets");
    close(pipes[0]);
    close(pipes[1]);
    rclose(lis);
    hang_up((struct pair){s, c});
}

static void check_iomap(void) {
    static const struct options_of w = {0, 0, 4, 0};
    struct pair p = connected(&w);
    size_t len = 300000;
    uint8_t *there = calloc(1, len), *src = malloc(len);
    struct rng r;
    char b[4];
    rng_seed(&r, o.seed, 3);
    rng_fill(&r, src, len);
    CHECK(riowrite(p.a, src, 10, 5000, 0) == (size_t)-1 && errno == EFAULT, "nothing is mapped: %m");
    CHECK(riomap(p.b, there, len, PROT_WRITE, 0, 5000) == 5000, "riomap: %m");
    CHECK(riomap(p.b, there, 10, PROT_READ, 0, 0) < 0 && errno == EINVAL, "PROT_READ: %m");
    CHECK(rsend(p.b, "go", 2, 0) == 2 && rrecv(p.a, b, 2, MSG_WAITALL) == 2, "the word: %m");
    CHECK(riowrite(p.a, src, len, 5000, 0) == len, "riowrite: %m");
    CHECK(rsend(p.a, "done", 4, 0) == 4 && rrecv(p.b, b, 4, MSG_WAITALL) == 4, "the word: %m");
    CHECK(!memcmp(src, there, len), "what was written is not there");
    CHECK(riowrite(p.a, src, 100, 5000 + (off_t)len - 40, 0) == 40, "past the end: %m");
    CHECK(!riounmap(p.b, there, len) && riounmap(p.b, there, len) < 0 && errno == EINVAL, "riounmap: %m");
    hang_up(p);
    free(there);
    free(src);
}

/* ----------------------------------------------------------------------------------------------- a hostile peer */

struct conn_data { /* what rsockets exchange; written from the protocol's description */
    uint8_t version, flags;
    uint16_t credits;
    uint8_t rsv[4];
    struct {
        uint64_t addr;
        uint32_t key, length;
    } list, data;
};

/* Connects by hand, then sends these immediate data. The other end must get an error or the end of the stream. */
static void hostile(const char *name, uint8_t version, uint32_t list, const uint32_t *imm, int n, bool refused) {
    struct sockaddr_in at = next_addr();
    int lis = listen_at(&at), got;
    pthread_t t;
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr q = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {64, 64, 1, 1, 0}};
    struct conn_data c = {
        .version = version, .credits = htons(16), .list = {0, 0, htonl(list)}, .data = {0, 0, htonl(4096)}};
    struct rdma_conn_param param = {
        .private_data = &c, .private_data_len = sizeof c, .retry_count = 7, .rnr_retry_count = 7};
    char b[100];

    got = lis;
    CHECK(!rfcntl(lis, F_SETFL, refused ? O_NONBLOCK : 0), "F_SETFL");
    if (!refused)
        MUST(!pthread_create(&t, NULL, accept_one, &got), "thread");
    MUST(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) &&
             !rdma_resolve_route(id, 2000) && !rdma_create_qp(id, NULL, &q),
         "%s: %m", name);
    if (refused) {
        struct rdma_event_channel *ch = rdma_create_event_channel();
        MUST(ch && !rdma_migrate_id(id, ch), "%s: %m", name);
        MUST(!rdma_connect(id, &param), "%s: connect: %m", name);
        struct rdma_cm_event *ev;
        double until = now_s() + scaled(10);
        struct pollfd f = {.fd = ch->fd, .events = POLLIN};
        do
            CHECK(raccept(lis, NULL, NULL) < 0 && errno == EAGAIN, "%s was accepted: %m", name);
        while (poll(&f, 1, 10) == 0 && now_s() < until);
        MUST(!rdma_get_cm_event(ch, &ev), "%s: event: %m", name);
        CHECK(ev->event == RDMA_CM_EVENT_REJECTED, "%s: %s", name, rdma_event_str(ev->event));
        rdma_ack_cm_event(ev);
        rdma_destroy_qp(id);
        rdma_destroy_id(id);
        rdma_destroy_event_channel(ch);
        rclose(lis);
        return;
    }
    CHECK(!rdma_connect(id, &param), "%s: connect: %m", name);
    pthread_join(t, NULL);
    CHECK(got >= 0, "%s: accept: %m", name);
    for (int i = 0; i < n; i++) {
        struct ibv_send_wr w = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(imm[i])}, *bad;
        MUST(!ibv_post_send(id->qp, &w, &bad), "%s: post", name);
    }
    double until = now_s() + scaled(10);
    ssize_t k;
    while ((k = rrecv(got, b, sizeof b, MSG_DONTWAIT)) > 0 || (k < 0 && errno == EAGAIN && now_s() < until))
        ;
    CHECK(k == 0 || (k < 0 && errno == EPROTO), "%s: %zd %m", name, k);
    rclose(got);
    rdma_disconnect(id);
    rdma_destroy_qp(id);
    rdma_destroy_id(id);
    rclose(lis);
}

static void check_hostile(void) {
    static const uint32_t much[] = {0x1fffffff}, more[] = {1000, 131073}, odd[] = {5u << 29}, end[] = {7u << 29};
    uint32_t many[500];
    for (int i = 0; i < 500; i++)
        many[i] = 0; /* messages of no bytes: more than there are credits */
    hostile("a message of half a gigabyte", 1, 2, much, 1, false);
    hostile("more bytes than granted", 1, 2, more, 2, false);
    hostile("an unknown message", 1, 2, odd, 1, false);
    hostile("messages without credit", 1, 2, many, 60, false);
    hostile("a disconnect at once", 1, 2, end, 1, false);
    hostile("another version", 9, 2, NULL, 0, true);
    hostile("a list of nothing", 1, 0, NULL, 0, true);
}

/* A peer that asks to connect and goes away as soon as it is answered: who accepted sees an end. */
static void check_gone(void) {
    struct sockaddr_in at = next_addr();
    int lis = listen_at(&at), got = lis;
    struct rdma_cm_id *id;
    struct rdma_cm_event *ev;
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 32}};
    struct conn_data ours = {.version = 1, .credits = htons(8), .list = {0, 0, htonl(2)}, .data = {0, 0, htonl(4096)}};
    struct rdma_conn_param param = {.private_data = &ours, .private_data_len = sizeof ours, .retry_count = 7};
    pthread_t t;
    uint8_t b;

    MUST(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), "id: %m");
    MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 1000) && !rdma_get_cm_event(ch, &ev), "resolve: %m");
    rdma_ack_cm_event(ev);
    MUST(!rdma_resolve_route(id, 1000) && !rdma_get_cm_event(ch, &ev), "route: %m");
    rdma_ack_cm_event(ev);
    MUST(!rdma_create_qp(id, NULL, &attr), "QP: %m");
    MUST(!pthread_create(&t, NULL, accept_one, &got), "thread");
    MUST(!rdma_connect(id, &param), "connect: %m");
    pthread_join(t, NULL);
    CHECK(got >= 0, "accept: %m");
    rdma_destroy_qp(id); /* CONNECT_RESPONSE is not read, and never answered */
    rdma_destroy_id(id);
    rdma_destroy_event_channel(ch);
    double until = now_s() + scaled(10);
    ssize_t k;
    while ((k = rrecv(got, &b, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN && now_s() < until) {
        struct pollfd f = {.fd = got, .events = POLLIN};
        rpoll(&f, 1, 100);
    }
    CHECK(!k || errno == ECONNRESET, "who accepted is not told that the peer refused the answer: %zd %m", k);
    rclose(got);
    rclose(lis);
}

int main(int argc, char **argv) {
    options_parse(&o, argc, argv, "mr_rsocket: sockets over RDMA, both ends on one NIC");
    double start = now_s();
    find_nic();
    check_errors();
    check_calls();
    check_options();
    check_ends();
    check_poll();
    check_iomap();
    check_hostile();
    check_gone();
    check_bytes();
    printf("mr_rsocket: ok checks=%d seconds=%.1f\n", checks, now_s() - start);
    return 0;
}
