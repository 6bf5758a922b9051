/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_assist: a program whose memory the daemon may not touch: a thread of the library copies for it. What that thread
 * must and must not do: exist only then, block all signals, move every byte, answer for memory that is gone without a
 * crash, stay out of forked children, end with the context, and harm nobody when its program is hostile.
 *
 *     mr_assist [--dev NAME] [-n WRITES]      MR_DMA=assist is set here, unless --extra 1: the daemon has no other way
 */
#include "common.h"
#include "../include/mr_abi.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct options o = {.count = 300};
static const struct end_want want = {.wr = 16, .sge = 2, .cqe = 64, .len = 1 << 20, .access = ALL_ACCESS};

static void open_self(struct end *e) {
    struct peer p;
    end_open(e, &o, &want);
    end_describe(e, &p, 7);
    MUST(!qp_to_init(e->qp, ALL_ACCESS), "to INIT: %m");
    qp_connect(e, e->qp, &p, 7, &patient);
}

/* Counts threads of that name; *mask becomes the blocked signals of the last. */
static int copy_threads(uint64_t *mask) {
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    MUST(d, "/proc/self/task: %m");
    for (struct dirent *t; (t = readdir(d));) {
        char path[300], line[200];
        bool ours = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", t->d_name);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            ours |= !strcmp(line, "Name:\tmr-assist\n");
            if (ours && !strncmp(line, "SigBlk:", 7))
                *mask = strtoull(line + 7, NULL, 16);
        }
        if (f)
            fclose(f);
        n += ours;
    }
    closedir(d);
    return n;
}

static void *staging(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[400];
    void *at = NULL;
    while (fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from == MR_ASSIST_BYTES && strstr(line, "memfd:mroce"))
            at = (void *)from;
    }
    fclose(f);
    return at;
}

static int rdma_write(struct end *e, void *from, uint32_t lkey, uint32_t n, void *to, uint32_t rkey) {
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = n, .lkey = lkey};
    struct ibv_send_wr w = {.sg_list = &sge,
                            .num_sge = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED,
                            .wr.rdma = {.remote_addr = (uintptr_t)to, .rkey = rkey}},
                       *bad;
    struct ibv_wc wc;
    MUST(!ibv_post_send(e->qp, &w, &bad), "post: %m");
    MUST(wait_wc(e->cq, &wc, scaled(20)), "no completion");
    return wc.status;
}

static void move_bytes(struct end *e, uint64_t count) {
    struct rng r;
    rng_seed(&r, o.seed, 1);
    size_t half = e->len / 2;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t n = (uint32_t)(i % 5 ? 1 + rng_below(&r, 70000) : 1 + rng_below(&r, 300));
        uint8_t *from = e->buf + rng_below(&r, half - n), *to = e->buf + half + rng_below(&r, half - n);
        rng_fill(&r, from, n);
        int st = rdma_write(e, from, e->mr->lkey, n, to, e->mr->rkey);
        MUST(!st && !memcmp(from, to, n), "write %llu of %u bytes: status %d or wrong bytes", (unsigned long long)i, n,
             st);
    }
}

static void check_thread(void) {
    uint64_t mask = 0, all = ~0ull & ~(1ull << (SIGKILL - 1)) & ~(1ull << (SIGSTOP - 1)) & ~(3ull << 31);
    MUST(copy_threads(&mask) == 1, "%d copy threads", copy_threads(&mask));
    MUST((mask & all) == all, "it blocks only %llx", (unsigned long long)mask);
    MUST(staging(), "no staging memory in /proc/self/maps");
}

/* Memory that went away, or lost its rights, after it was registered. */
static void check_faults(void) {
    static const struct {
        const char *name;
        int prot; /* of the memory when it is used; -1: unmapped */
        bool source;
    } t[] = {{"unmapped, written", -1, false},
             {"unmapped, read", -1, true},
             {"no rights, written", PROT_NONE, false},
             {"no rights, read", PROT_NONE, true},
             {"read-only, written", PROT_READ, false}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct end e;
        open_self(&e);
        uint8_t *m = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct ibv_mr *mr = ibv_reg_mr(e.pd, m, 16384, ALL_ACCESS);
        MUST(mr, "reg_mr: %m");
        MUST(t[i].prot < 0 ? !munmap(m + 8192, 4096) : !mprotect(m + 8192, 4096, t[i].prot), "%s: %m", t[i].name);
        int st = t[i].source ? rdma_write(&e, m + 4096, mr->lkey, 12288, e.buf, e.mr->rkey)
                             : rdma_write(&e, e.buf, e.mr->lkey, 12288, m + 4096, mr->rkey);
        /* the QP is its own peer: what it refuses as one, it flushes as the other */
        MUST(t[i].source ? st == IBV_WC_LOC_PROT_ERR : st == IBV_WC_REM_OP_ERR || st == IBV_WC_WR_FLUSH_ERR,
             "%s: status %d (%s)", t[i].name, st, ibv_wc_status_str((enum ibv_wc_status)st));
        MUST(!ibv_dereg_mr(mr), "dereg_mr: %m");
        munmap(m, 16384);
        end_close(&e);
    }
}

static void check_fork(struct end *e) {
    pid_t pid = fork();
    MUST(pid >= 0, "fork: %m");
    if (!pid) {
        uint64_t mask;
        alarm((unsigned)scaled(20));
        if (copy_threads(&mask) || staging() || ibv_alloc_pd(e->ctx))
            _exit(1);
        struct end own; /* the child may have its own */
        open_self(&own);
        move_bytes(&own, 20);
        end_close(&own);
        ibv_close_device(e->ctx); /* of its parent's it lets go */
        _exit(staging() ? 2 : 0);
    }
    int st;
    move_bytes(e, 20);
    MUST(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && !WEXITSTATUS(st), "the child: status %x", st);
    move_bytes(e, 20);
}

static _Atomic bool enough;

static void *scribble(void *arg) {
    struct mr_assist_page *p = arg;
    struct rng r;
    rng_seed(&r, o.seed, 2);
    while (!atomic_load(&enough)) {
        uint32_t *const words[] = {&p->prod, &p->done, &p->asleep, &p->bell, &p->waiting, &p->magic};
        *(volatile uint32_t *)words[rng_below(&r, 6)] = (uint32_t)rng_next(&r);
        for (uint32_t i = 0; i < MR_ASSIST_DESCS; i++)
            *(volatile uint32_t *)&p->desc[i].state = (uint32_t)rng_below(&r, 8);
        ((volatile uint8_t *)p)[MR_ASSIST_BYTES - 1 - rng_below(&r, MR_ASSIST_DATA)] = (uint8_t)rng_next(&r);
    }
    return NULL;
}

/* In a child: its own bytes and QP may come to grief, the daemon and others not. */
static void check_hostile(struct end *bystander) {
    pid_t pid = fork();
    MUST(pid >= 0, "fork: %m");
    if (!pid) {
        struct end e;
        pthread_t t;
        alarm((unsigned)scaled(60));
        open_self(&e);
        if (pthread_create(&t, NULL, scribble, staging()))
            _exit(1);
        double until = now_s() + 1;
        for (int i = 0; now_s() < until && i < 2000; i++)
            if (rdma_write(&e, e.buf, e.mr->lkey, 5000, e.buf + 65536, e.mr->rkey))
                break;
        atomic_store(&enough, true);
        pthread_join(t, NULL);
        _exit(0);
    }
    int st;
    for (st = 0; waitpid(pid, &st, WNOHANG) == 0;)
        move_bytes(bystander, 1);
    MUST(WIFEXITED(st) && !WEXITSTATUS(st), "the hostile child: status %x", st);
    move_bytes(bystander, 20);
}

int main(int argc, char **argv) {
    struct end e;
    uint64_t mask;
    options_parse(&o, argc, argv, "mr_assist: the copy thread; --extra 1: leave it to the daemon whether there is one");
    if (!o.extra) {
        open_self(&e);
        MUST(!copy_threads(&mask), "a copy thread that nobody asked for");
        end_close(&e);
        setenv("MR_DMA", "assist", 1);
    }
    double start = now_s();
    open_self(&e);
    check_thread();
    move_bytes(&e, o.count);
    check_fork(&e);
    check_faults();
    check_hostile(&e);
    end_close(&e);
    MUST(!copy_threads(&mask) && !staging(), "the copy thread outlived its context");
    printf("mr_assist: ok writes=%llu seconds=%.1f\n", (unsigned long long)o.count, now_s() - start);
    return 0;
}
