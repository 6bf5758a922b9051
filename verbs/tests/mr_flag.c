/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_flag: who sees the flag must see the data (field case F40). The writer sends a block by WRITE and then says so, in
 * one of three ways that real programs use; the reader only looks at memory. It never uses a completion.
 *
 *   slot % 3 == 0   block, then an 8-byte WRITE of the flag
 *   slot % 3 == 1   block, then a FETCH_ADD on the flag
 *   slot % 3 == 2   the flag is the last word of the block itself
 *
 * Every word of a block is the number of its iteration, so one old or torn word shows. The reader gives slots back by a
 * WRITE of its count into the writer's memory.
 *
 *     mr_flag -p PORT      mr_flag -p PORT SERVER      mr_flag --loop        --extra 1: relaxed ordering (must not
 * matter for a flag by FETCH_ADD; checks only those)
 */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#define SLOTS       15u /* a multiple of the three kinds */
#define FLAG_STRIDE 64u

struct side {
    struct options o;
    struct end e;
    struct peer peer;
    int fd;
    uint64_t violations, done;
    char why[120];
};

/* Layout of the reader's region: SLOTS blocks, then SLOTS flags on lines of their own, then room. The writer's: blocks
 * to send from, the reader's count, results of atomics. */
static uint64_t block_off(const struct side *s, uint64_t slot) {
    return slot * s->o.size;
}
static uint64_t flag_off(const struct side *s, uint64_t slot) {
    return SLOTS * s->o.size + slot * FLAG_STRIDE;
}
static uint64_t count_off(const struct side *s) {
    return SLOTS * s->o.size + SLOTS * FLAG_STRIDE;
}

static uint64_t load(const uint8_t *p) {
    return __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_ACQUIRE);
}

/* Spins on memory, politely: on few cores the NIC needs one. */
static void wait_word(struct side *s, const uint8_t *p, uint64_t at_least, const char *what) {
    double until = 0;
    for (uint64_t i = 0; load(p) < at_least; i++) {
        if (i < 256)
            continue;
        sched_yield();
        if (i % 4096 == 0) {
            if (!until)
                until = now_s() + scaled(60);
            MUST(now_s() < until, "%s did not come for 60 s (iteration %llu)", what, (unsigned long long)s->done);
        }
    }
}

static void post(struct side *s, enum ibv_wr_opcode op, const uint8_t *from, uint32_t n, uint64_t remote, bool signal) {
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = n, .lkey = s->e.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = op,
                             .send_flags = signal ? (unsigned)IBV_SEND_SIGNALED : 0u},
                       *bad;
    if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = s->peer.addr + remote;
        wr.wr.atomic.rkey = s->peer.rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = s->peer.addr + remote;
        wr.wr.rdma.rkey = s->peer.rkey;
    }
    int err = ibv_post_send(s->e.qp, &wr, &bad);
    MUST(!err, "post: %s", strerror(err));
}

static void reap(struct side *s, uint64_t *outstanding, uint64_t most) {
    while (*outstanding > most) {
        struct ibv_wc wc;
        MUST(wait_wc(s->e.cq, &wc, 60), "no completion for 60 s (iteration %llu)", (unsigned long long)s->done);
        MUST(wc.status == IBV_WC_SUCCESS, "iteration %llu: %s", (unsigned long long)s->done,
             ibv_wc_status_str(wc.status));
        --*outstanding;
    }
}

static void write_all(struct side *s) {
    const uint8_t *credit = s->e.buf + count_off(s);
    uint64_t outstanding = 0, words = s->o.size / 8;
    for (uint64_t i = 0; i < s->o.count; i++, s->done++) {
        uint64_t slot = i % SLOTS, round = i / SLOTS + 1, kind = slot % 3;
        if (i >= SLOTS)
            wait_word(s, credit, i - SLOTS + 1, "the reader's count");
        reap(s, &outstanding, SLOTS - 1); /* the block of this slot has left our memory: its flag was signalled */
        uint8_t *block = s->e.buf + block_off(s, slot);
        for (uint64_t w = 0; w < words; w++)
            ((uint64_t *)(void *)block)[w] = i + 1;
        uint8_t *flag = s->e.buf + flag_off(s, slot);
        if (kind == 2) {
            ((uint64_t *)(void *)block)[words - 1] = round;
            post(s, IBV_WR_RDMA_WRITE, block, (uint32_t)s->o.size, block_off(s, slot), true);
        } else {
            post(s, IBV_WR_RDMA_WRITE, block, (uint32_t)s->o.size, block_off(s, slot), false);
            if (kind == 0)
                *(uint64_t *)(void *)flag = round;
            post(s, kind == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_ATOMIC_FETCH_AND_ADD, flag, 8, flag_off(s, slot), true);
        }
        outstanding++;
    }
    reap(s, &outstanding, 0);
    wait_word(s, credit, s->o.count, "the reader's count");
}

static void read_all(struct side *s) {
    uint64_t words = s->o.size / 8, outstanding = 0;
    uint8_t *mine = s->e.buf + count_off(s);
    for (uint64_t i = 0; i < s->o.count; i++, s->done++) {
        uint64_t slot = i % SLOTS, round = i / SLOTS + 1, kind = slot % 3;
        uint8_t *block = s->e.buf + block_off(s, slot);
        uint8_t *flag = kind == 2 ? block + s->o.size - 8 : s->e.buf + flag_off(s, slot);
        if (kind == 2) { /* the word held a number of the round before, or nothing */
            for (uint64_t k = 0; load(flag) != round; k++)
                if (k >= 256)
                    wait_word(s, flag, round, "the flag");
        } else {
            wait_word(s, flag, round, "the flag");
        }
        for (uint64_t w = 0; w < words - (kind == 2); w++) {
            uint64_t got = ((volatile uint64_t *)(void *)block)[w];
            if (got == i + 1 || (s->o.extra == 1 && kind != 1))
                continue;
            if (!s->violations++)
                snprintf(s->why, sizeof s->why, "iteration %llu (kind %llu): word %llu is %llu, not %llu",
                         (unsigned long long)i, (unsigned long long)kind, (unsigned long long)w,
                         (unsigned long long)got, (unsigned long long)(i + 1));
            break;
        }
        reap(s, &outstanding, 1);
        *(uint64_t *)(void *)mine = i + 1;
        post(s, IBV_WR_RDMA_WRITE, mine, 8, count_off(s), true);
        outstanding++;
    }
    reap(s, &outstanding, 0);
}

static void *run(void *arg) {
    struct side *s = arg;
    struct peer me;
    uint64_t same[3] = {s->o.size, s->o.count, (uint64_t)s->o.extra};
    bool writer = !s->o.server;
    if (writer)
        stream_send(s->fd, same, sizeof same);
    else
        MUST(stream_recv(s->fd, same, sizeof same), "the other end is gone");
    s->o.size = same[0];
    s->o.count = same[1];
    s->o.extra = (int)same[2];
    struct end_want w = {.wr = 4 * SLOTS,
                         .sge = 1,
                         .cqe = 8 * SLOTS,
                         .len = SLOTS * (s->o.size + FLAG_STRIDE) + 4096,
                         .access = ALL_ACCESS | (s->o.extra == 1 ? (int)IBV_ACCESS_RELAXED_ORDERING : 0)};
    end_open(&s->e, &s->o, &w);
    MUST(!qp_to_init(s->e.qp, ALL_ACCESS), "to INIT: %m");
    end_describe(&s->e, &me, 77);
    stream_send(s->fd, &me, sizeof me);
    MUST(stream_recv(s->fd, &s->peer, sizeof s->peer), "the other end is gone");
    qp_connect(&s->e, s->e.qp, &s->peer, me.psn, &patient);
    uint8_t b = 1;
    stream_send(s->fd, &b, 1);
    MUST(stream_recv(s->fd, &b, 1), "the other end is gone");
    if (writer)
        write_all(s);
    else
        read_all(s);
    uint64_t v = s->violations; /* the reader tells */
    if (writer)
        MUST(stream_recv(s->fd, &v, sizeof v) && stream_recv(s->fd, s->why, sizeof s->why), "the other end is gone");
    else {
        stream_send(s->fd, &v, sizeof v);
        stream_send(s->fd, s->why, sizeof s->why);
    }
    s->violations = v;
    stream_send(s->fd, &b, 1);
    stream_recv(s->fd, &b, 1);
    end_close(&s->e);
    return NULL;
}

int main(int argc, char **argv) {
    struct side a = {0}, b;
    a.o = (struct options){.size = 64 << 10, .count = 10000};
    options_parse(&a.o, argc, argv, "mr_flag: who sees the flag must see the data");
    MUST(a.o.size >= 64 && a.o.size % 8 == 0, "--size: a multiple of 8, at least 64");
    double start = now_s();
    if (a.o.loop) {
        int fds[2];
        pthread_t t;
        MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "socketpair: %m");
        b = a;
        b.o.server = true;
        a.fd = fds[0];
        b.fd = fds[1];
        MUST(!pthread_create(&t, NULL, run, &b), "thread");
        run(&a);
        pthread_join(t, NULL);
    } else {
        a.fd = a.o.server ? stream_listen(a.o.port) : stream_connect(a.o.client, a.o.port, 10);
        start = now_s();
        run(&a);
    }
    printf("mr_flag: %s iterations=%llu size=%llu violations=%llu seconds=%.1f%s%s\n", a.violations ? "FAILED" : "ok",
           (unsigned long long)a.done, (unsigned long long)a.o.size, (unsigned long long)a.violations, now_s() - start,
           a.violations ? " " : "", a.why);
    return a.violations != 0;
}
