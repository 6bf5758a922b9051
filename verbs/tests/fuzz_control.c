/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_control.c: attacks of mr_fuzzring on the control socket.
 */
#include "fuzz.h"

#include <sys/socket.h>

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

void attack_messages(void) {
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
    static const uint16_t ops[] = {0, 7, 15, 23, 33, 55, 255, 0x7fff, 0x8000, 0xffff};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        raw_open(&r);
        struct mr_handle m = {.handle = 1};
        expect_refused(&r, ask(&r, ops[i], &m, sizeof m, -1, NULL, 0, NULL), "an operation that does not exist");
    }
    /* every operation with a body too short, with handles of nothing, and before OPEN */
    for (uint16_t op = 16; op <= MR_OP_OPEN_QP; op++) {
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

void attack_open(void) {
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
void attack_queues(void) {
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
