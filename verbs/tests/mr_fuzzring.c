/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_fuzzring: a hostile program. It speaks mr_abi.h itself, without the library, and does what the library never
 * would: corrupt work requests written straight into the rings, absurd ring indices, bad control messages, a memfd that
 * can be truncated. After every attack the daemon must be alive and serve others; the attacker must get an error that
 * it can see: an errno, an error completion, a QP in error, or its own context declared dead.
 *
 *     mr_fuzzring [--seed N] [--count N]      MR_SOCKET names the daemon
 */
#include "fuzz.h"

int attacks, failures, quiet_ok;
const char *current;

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
