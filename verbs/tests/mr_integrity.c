/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_integrity: moves random data by every kind of RC operation and checks each byte. Only the public verbs API.
 *
 * Rounds. In each one end drives and the other serves; they take turns. Both make the same plan from the round's seed:
 * per operation a kind, a size (log-uniform), offsets, a split into pieces. The server fills what will be read and
 * posts receives; the driver fills its sources, posts everything at once and waits; then it sends the SHA-256 of what
 * it wrote or sent, and the server checks its memory, the bytes around each target included. READ data and atomic
 * results are checked by the driver.
 *
 *     mr_integrity -p PORT            mr_integrity -p PORT SERVER            mr_integrity --loop
 */
#include "common.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum kind { WRITE, WRITE_IMM, SEND, SEND_IMM, READ, CAS, FAA, KINDS };
static const char *const kind_names[KINDS] = {"write", "write_imm", "send", "send_imm", "read", "cas", "faa"};

#define BATCH  24u
#define PIECES 4u
#define GAP    64u /* bytes around a target that must not change */
#define CANARY 0xa5

struct op {
    enum kind kind;
    uint32_t size, off_local, off_remote, pieces, cut[PIECES];
    bool inline_data, signaled;
    uint64_t a, b; /* atomics */
};
struct round {
    uint64_t seed, count, last;
};
struct result {
    uint64_t bad;
    char why[120];
};
struct side {
    struct options o;
    struct end e;
    struct peer peer;
    int fd;
    bool first; /* drives the first round */
    uint64_t slot, ops[KINDS], bytes, rounds;
    char why[160];
};

static bool takes_recv(enum kind k) {
    return k == WRITE_IMM || k == SEND || k == SEND_IMM;
}

static bool is_send(enum kind k) {
    return k == SEND || k == SEND_IMM;
}

static bool is_atomic(enum kind k) {
    return k == CAS || k == FAA;
}

/* The same on both ends. */
static void plan(const struct side *s, struct rng *r, struct op *ops, uint64_t n) {
    uint64_t top = s->o.size, bits = 0;
    while (top >> bits)
        bits++;
    for (uint64_t i = 0; i < n; i++) {
        struct op *o = &ops[i];
        memset(o, 0, sizeof *o);
        o->kind = (enum kind)rng_below(r, KINDS);
        uint64_t size = rng_below(r, 1ull << rng_below(r, bits + 1));
        o->size = (uint32_t)(is_atomic(o->kind) ? 8 : size > top ? top : size);
        o->off_local = (uint32_t)rng_below(r, 64);
        o->off_remote = (uint32_t)(GAP + (is_atomic(o->kind) ? 0 : rng_below(r, 64)));
        o->pieces = 1 + (is_atomic(o->kind) ? 0 : (uint32_t)rng_below(r, PIECES));
        uint32_t left = o->size;
        for (uint32_t p = 0; p < o->pieces; p++) {
            o->cut[p] = p == o->pieces - 1 ? left : (uint32_t)rng_below(r, (uint64_t)left + 1);
            left -= o->cut[p];
        }
        o->inline_data = rng_below(r, 2) && o->size <= 220 && (o->kind == WRITE || takes_recv(o->kind));
        o->signaled = rng_below(r, 4) != 0;
        o->a = rng_next(r);
        o->b = rng_next(r);
    }
    ops[n - 1].signaled = true;
}

static uint8_t *slot_of(struct side *s, bool serving, uint64_t i) {
    return s->e.buf + ((serving ? BATCH : 0) + i) * s->slot;
}

static void fill(const struct round *rd, uint64_t i, uint8_t *to, size_t n) {
    struct rng r;
    rng_seed(&r, rd->seed, 1000 + i);
    rng_fill(&r, to, n);
}

static void fail(struct side *s, const struct round *rd, uint64_t i, const struct op *o, const char *what) {
    if (!s->why[0])
        snprintf(s->why, sizeof s->why, "round seed %llu, operation %llu (%s, %u bytes): %s",
                 (unsigned long long)rd->seed, (unsigned long long)i, kind_names[o->kind], o->size, what);
}

/* ------------------------------------------------------------------------------------------------- driving */

static void post_op(struct side *s, const struct op *o, uint64_t i) {
    static const enum ibv_wr_opcode codes[KINDS] = {
        IBV_WR_RDMA_WRITE,         IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_sge sge[PIECES];
    uint8_t *at = slot_of(s, false, i) + GAP + (is_atomic(o->kind) ? 0 : o->off_local);
    uint64_t remote = s->peer.addr + (BATCH + i) * s->slot + o->off_remote;
    for (uint32_t p = 0; p < o->pieces; p++) {
        sge[p] = (struct ibv_sge){.addr = (uintptr_t)at, .length = o->cut[p], .lkey = s->e.mr->lkey};
        at += o->cut[p];
    }
    if (is_atomic(o->kind))
        sge[0].length = 8;
    struct ibv_send_wr wr = {.wr_id = i,
                             .sg_list = sge,
                             .num_sge = (int)o->pieces,
                             .opcode = codes[o->kind],
                             .send_flags = (o->signaled ? (unsigned)IBV_SEND_SIGNALED : 0u) |
                                           (o->inline_data ? (unsigned)IBV_SEND_INLINE : 0u)},
                       *bad;
    wr.imm_data = (__be32)i;
    if (is_atomic(o->kind)) {
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = s->peer.rkey;
        wr.wr.atomic.compare_add = o->a;
        wr.wr.atomic.swap = o->b;
    } else {
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = s->peer.rkey;
    }
    int err = ibv_post_send(s->e.qp, &wr, &bad);
    MUST(!err, "post %s of %u bytes: %s", kind_names[o->kind], o->size, strerror(err));
}

/* What the target of an atomic held before: by the plan, so that CAS hits half the time. */
static uint64_t atomic_start(const struct op *o) {
    return o->kind == CAS && (o->b & 1) ? o->a : o->a ^ 0x5555;
}

static void check_driver(struct side *s, const struct round *rd, const struct op *o, uint64_t i, uint8_t *want) {
    uint8_t *at = slot_of(s, false, i) + GAP, have_sum[32], want_sum[32];
    if (is_atomic(o->kind)) {
        uint64_t got;
        memcpy(&got, at, 8);
        if (got != atomic_start(o))
            fail(s, rd, i, o, "an atomic returned a wrong value");
    } else if (o->kind == READ) {
        fill(rd, i, want, o->size);
        sha256_of(want, o->size, want_sum);
        sha256_of(at + o->off_local, o->size, have_sum);
        if (memcmp(have_sum, want_sum, 32))
            fail(s, rd, i, o, "READ brought wrong data");
        const uint8_t *before = at + o->off_local - GAP, *after = at + o->off_local + o->size;
        for (uint32_t k = 0; k < GAP; k++)
            if (before[k] != CANARY || after[k] != CANARY) {
                fail(s, rd, i, o, "READ wrote outside of its target");
                break;
            }
    }
}

static void drive(struct side *s, const struct round *rd, struct op *ops, uint8_t *scratch) {
    uint8_t sums[BATCH][32], ready;
    uint64_t n = rd->count;
    memset(sums, 0, sizeof sums);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *at = slot_of(s, false, i);
        memset(at, CANARY, s->slot);
        if (ops[i].kind == READ || is_atomic(ops[i].kind))
            continue;
        fill(rd, i, at + GAP + ops[i].off_local, ops[i].size);
        sha256_of(at + GAP + ops[i].off_local, ops[i].size, sums[i]);
    }
    MUST(stream_recv(s->fd, &ready, 1), "the other end is gone");
    for (uint64_t i = 0; i < n; i++)
        post_op(s, &ops[i], i);
    for (uint64_t next = 0; next < n;) {
        struct ibv_wc wc;
        MUST(wait_wc(s->e.cq, &wc, 20), "no completion for 20 s (operation %llu of round seed %llu)",
             (unsigned long long)next, (unsigned long long)rd->seed);
        MUST(wc.status == IBV_WC_SUCCESS, "operation %llu: %s", (unsigned long long)wc.wr_id,
             ibv_wc_status_str(wc.status));
        while (!ops[next].signaled)
            next++;
        if (wc.wr_id != next)
            fail(s, rd, next, &ops[next], "completions out of order");
        next++;
    }
    stream_send(s->fd, sums, sizeof sums);
    for (uint64_t i = 0; i < n; i++)
        check_driver(s, rd, &ops[i], i, scratch);
    struct result res;
    MUST(stream_recv(s->fd, &res, sizeof res), "the other end is gone");
    if (res.bad && !s->why[0])
        snprintf(s->why, sizeof s->why, "%.*s", (int)sizeof res.why - 1, res.why);
}

/* ------------------------------------------------------------------------------------------------- serving */

static void prepare(struct side *s, const struct round *rd, const struct op *ops) {
    for (uint64_t i = 0; i < rd->count; i++) {
        uint8_t *at = slot_of(s, true, i);
        const struct op *o = &ops[i];
        memset(at, CANARY, s->slot);
        if (o->kind == READ)
            fill(rd, i, at + o->off_remote, o->size);
        if (is_atomic(o->kind)) {
            uint64_t v = atomic_start(o);
            memcpy(at + o->off_remote, &v, 8);
        }
        if (!takes_recv(o->kind))
            continue;
        /* a SEND lands in two pieces, cut elsewhere than its source */
        uint32_t first = o->size / 3;
        struct ibv_sge sge[2] = {
            {.addr = (uintptr_t)(at + o->off_remote), .length = first, .lkey = s->e.mr->lkey},
            {.addr = (uintptr_t)(at + o->off_remote + first), .length = o->size - first, .lkey = s->e.mr->lkey}};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = sge, .num_sge = is_send(o->kind) ? 2 : 0}, *bad;
        int err = ibv_post_recv(s->e.qp, &wr, &bad);
        MUST(!err, "post receive: %s", strerror(err));
    }
}

static void await_receives(struct side *s, const struct round *rd, const struct op *ops) {
    for (uint64_t i = 0; i < rd->count; i++) {
        const struct op *o = &ops[i];
        struct ibv_wc wc;
        if (!takes_recv(o->kind))
            continue;
        MUST(wait_wc(s->e.cq, &wc, 20), "no receive completion for 20 s");
        MUST(wc.status == IBV_WC_SUCCESS, "receive %llu: %s", (unsigned long long)wc.wr_id,
             ibv_wc_status_str(wc.status));
        if (wc.wr_id != i)
            fail(s, rd, i, o, "receives out of order");
        if (wc.byte_len != o->size)
            fail(s, rd, i, o, "wrong byte_len");
        if (wc.opcode != (o->kind == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
            fail(s, rd, i, o, "wrong opcode in the completion");
        bool imm = o->kind != SEND;
        if (!!(wc.wc_flags & IBV_WC_WITH_IMM) != imm || (imm && wc.imm_data != (__be32)i))
            fail(s, rd, i, o, "wrong immediate data");
    }
}

static void check_server(struct side *s, const struct round *rd, const struct op *o, uint64_t i, const uint8_t *sum) {
    uint8_t *at = slot_of(s, true, i), have[32];
    if (is_atomic(o->kind)) {
        uint64_t got, was = atomic_start(o);
        memcpy(&got, at + o->off_remote, 8);
        if (got != (o->kind == FAA ? was + o->a : was == o->a ? o->b : was))
            fail(s, rd, i, o, "an atomic left a wrong value");
    } else if (o->kind != READ) {
        sha256_of(at + o->off_remote, o->size, have);
        if (memcmp(have, sum, 32))
            fail(s, rd, i, o, "wrong data arrived");
    }
    uint64_t end = o->off_remote + (uint64_t)o->size;
    for (uint64_t k = 0; k < s->slot; k++)
        if ((k < o->off_remote || k >= end) && at[k] != CANARY) {
            fail(s, rd, i, o, "bytes around the target changed");
            break;
        }
}

static void serve(struct side *s, const struct round *rd, const struct op *ops) {
    uint8_t sums[BATCH][32], ready = 1;
    struct result res = {0};
    prepare(s, rd, ops);
    stream_send(s->fd, &ready, 1);
    await_receives(s, rd, ops);
    MUST(stream_recv(s->fd, sums, sizeof sums), "the other end is gone");
    for (uint64_t i = 0; i < rd->count; i++)
        check_server(s, rd, &ops[i], i, sums[i]);
    res.bad = s->why[0] != 0;
    memcpy(res.why, s->why, sizeof res.why - 1);
    stream_send(s->fd, &res, sizeof res);
}

/* ---------------------------------------------------------------------------------------------------- rounds */

static void settle(struct side *s) {
    struct peer me;
    uint64_t mine[3] = {s->o.size, s->o.count, s->o.seed}, theirs[3];
    struct end_want w = {.wr = BATCH * 2, .sge = PIECES, .inline_bytes = 220, .cqe = BATCH * 4, .access = ALL_ACCESS};
    /* who drives first decides sizes and seed */
    if (s->first)
        stream_send(s->fd, mine, sizeof mine);
    else {
        MUST(stream_recv(s->fd, theirs, sizeof theirs), "the other end is gone");
        s->o.size = theirs[0];
        s->o.count = theirs[1];
        s->o.seed = theirs[2];
    }
    s->slot = (s->o.size + 4 * GAP + 127) & ~63ull;
    w.len = 2 * BATCH * s->slot;
    end_open(&s->e, &s->o, &w);
    MUST(!qp_to_init(s->e.qp, ALL_ACCESS), "to INIT: %m");
    end_describe(&s->e, &me, 0x123456);
    stream_send(s->fd, &me, sizeof me);
    MUST(stream_recv(s->fd, &s->peer, sizeof s->peer), "the other end is gone");
    qp_connect(&s->e, s->e.qp, &s->peer, me.psn, &patient);
    uint8_t b = 1; /* both are ready to receive */
    stream_send(s->fd, &b, 1);
    MUST(stream_recv(s->fd, &b, 1), "the other end is gone");
}

static void *run(void *arg) {
    struct side *s = arg;
    struct op ops[BATCH];
    struct rng seeds;
    settle(s);
    uint8_t *scratch = malloc(s->o.size + 1);
    double start = now_s();
    uint64_t done = 0;
    rng_seed(&seeds, s->o.seed, s->first);
    for (bool driving = s->first;; driving = !driving) {
        struct round rd;
        if (driving) {
            bool timed = s->o.seconds > 0;
            uint64_t left = s->o.count > done ? s->o.count - done : BATCH;
            rd.count = s->first && !timed && left < BATCH ? left : BATCH;
            rd.seed = rng_next(&seeds);
            /* the first driver ends the run, after one of its own rounds */
            rd.last = s->first && (timed ? now_s() - start > s->o.seconds : done + rd.count >= s->o.count);
            stream_send(s->fd, &rd, sizeof rd);
        } else {
            MUST(stream_recv(s->fd, &rd, sizeof rd), "the other end is gone");
            MUST(rd.count >= 1 && rd.count <= BATCH, "the other end sent nonsense");
        }
        struct rng r;
        rng_seed(&r, rd.seed, 0);
        plan(s, &r, ops, rd.count);
        if (driving)
            drive(s, &rd, ops, scratch);
        else
            serve(s, &rd, ops);
        for (uint64_t i = 0; i < rd.count; i++) {
            s->ops[ops[i].kind]++;
            s->bytes += ops[i].size;
        }
        done += rd.count;
        s->rounds++;
        if (rd.last || s->why[0])
            break;
    }
    free(scratch);
    end_close(&s->e);
    return NULL;
}

static int report(const struct side *s, double seconds) {
    printf("mr_integrity: %s rounds=%llu", s->why[0] ? "FAILED" : "ok", (unsigned long long)s->rounds);
    for (int k = 0; k < KINDS; k++)
        printf(" %s=%llu", kind_names[k], (unsigned long long)s->ops[k]);
    printf(" bytes=%llu seconds=%.1f seed=%llu%s%s\n", (unsigned long long)s->bytes, seconds,
           (unsigned long long)s->o.seed, s->why[0] ? " " : "", s->why);
    return s->why[0] != 0;
}

int main(int argc, char **argv) {
    struct side a = {.first = true}, b = {0};
    a.o = (struct options){.size = 1 << 20, .count = 1000, .seed = (uint64_t)(now_s() * 1e6)};
    options_parse(&a.o, argc, argv, "mr_integrity: random RC traffic, every byte checked");
    MUST(a.o.size >= 8 && a.o.size <= 64 << 20 && a.o.count >= 1, "--size 8 to 64M, --count at least 1");
    double start = now_s();
    if (a.o.loop) {
        int fds[2];
        pthread_t t;
        MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "socketpair: %m");
        b.o = a.o;
        a.fd = fds[0];
        b.fd = fds[1];
        MUST(!pthread_create(&t, NULL, run, &b), "thread");
        run(&a);
        pthread_join(t, NULL);
        if (b.why[0] && !a.why[0])
            memcpy(a.why, b.why, sizeof a.why);
        return report(&a, now_s() - start);
    }
    a.first = !a.o.server; /* the client drives first */
    a.fd = a.o.server ? stream_listen(a.o.port) : stream_connect(a.o.client, a.o.port, 10);
    start = now_s();
    run(&a);
    return report(&a, now_s() - start);
}
