/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: one rank. Rank 0 writes a JSON object a line for each measurement; all say on standard error what failed.
 *
 *   collbench-rank --rank R --ranks N --root HOST:PORT --net PLUGIN|socket [--colls all-reduce,…] …
 */
#include "coll.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct options opt = {.ranks = 1,
                      .channels = 1,
                      .group = 1,
                      .iters = 20,
                      .warmup = 1,
                      .table = 12,
                      .root = "127.0.0.1:18700",
                      .net = "librccl-net.so",
                      .colls = "all-reduce",
                      .min = 8,
                      .max = 1 << 20,
                      .slice = 512 << 10,
                      .factor = 4,
                      .check = true,
                      .flush = true};

/* No goodbye: what dies in the middle of a collective leaves its peers an error, not a wait. */
void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    flockfile(stderr);
    fprintf(stderr, "rank %d: ", opt.rank);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    funlockfile(stderr);
    va_end(ap);
    _exit(1);
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ------------------------------------------------------------------------------------------------------ settings */

static uint64_t number(const char *name, const char *s, uint64_t least, uint64_t most) {
    char *end;
    errno = 0;
    uint64_t v = strtoull(s, &end, 10);
    if (errno || end == s || *end || v < least || v > most || *s == '-') {
        fprintf(stderr, "--%s %s: a number from %llu to %llu is wanted\n", name, s, (unsigned long long)least,
                (unsigned long long)most);
        exit(2);
    }
    return v;
}

static enum type type_named(const char *s) {
    for (int i = 0; i < 4; i++)
        if (!strcmp(s, type_names[i]))
            return (enum type)i;
    fprintf(stderr, "--type %s: float, double, int32 or uint8\n", s);
    exit(2);
}

static const struct option longs[] = {
    {"rank", 1, 0, 'r'},   {"ranks", 1, 0, 'n'},    {"root", 1, 0, 'R'},        {"net", 1, 0, 'N'},
    {"table", 1, 0, 't'},  {"colls", 1, 0, 'c'},    {"min", 1, 0, 'b'},         {"max", 1, 0, 'e'},
    {"factor", 1, 0, 'f'}, {"iters", 1, 0, 'i'},    {"warmup", 1, 0, 'w'},      {"seconds", 1, 0, 's'},
    {"type", 1, 0, 'd'},   {"channels", 1, 0, 'C'}, {"group", 1, 0, 'g'},       {"slice", 1, 0, 'S'},
    {"check", 1, 0, 'k'},  {"flush", 1, 0, 'F'},    {"connections", 1, 0, 'x'}, {0, 0, 0, 0}};

static void set(int c, const char *name, const char *arg) {
    switch (c) {
    case 'R':
        opt.root = arg;
        break;
    case 'N':
        opt.net = arg;
        break;
    case 'c':
        opt.colls = arg;
        break;
    case 'd':
        opt.type = type_named(arg);
        break;
    case 'f':
        opt.factor = strtod(arg, NULL);
        break;
    case 's':
        opt.seconds = strtod(arg, NULL);
        break;
    case 'b':
        opt.min = number(name, arg, 0, 1ull << 40);
        break;
    case 'e':
        opt.max = number(name, arg, 0, 1ull << 40);
        break;
    case 'S':
        opt.slice = number(name, arg, 64, 1u << 30);
        break;
    default: {
        static const struct {
            int c, *to;
            uint64_t least, most;
        } ints[] = {{'r', &opt.rank, 0, RANKS_MAX - 1}, {'n', &opt.ranks, 1, RANKS_MAX},
                    {'t', &opt.table, 8, 12},           {'i', &opt.iters, 1, 1000000},
                    {'w', &opt.warmup, 0, 1000},        {'C', &opt.channels, 1, CHANNELS_MAX},
                    {'g', &opt.group, 1, GROUP_MAX},    {'x', &opt.connections, 1, 100000}};
        for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
            if (ints[i].c == c)
                *ints[i].to = (int)number(name, arg, ints[i].least, ints[i].most);
    }
    }
}

static void parse(int argc, char **argv) {
    int c, at = 0;
    while ((c = getopt_long(argc, argv, "", longs, &at)) != -1) {
        if (c == '?')
            exit(2);
        if (c == 'k' || c == 'F')
            *(c == 'k' ? &opt.check : &opt.flush) = number(longs[at].name, optarg, 0, 1);
        else
            set(c, longs[at].name, optarg);
    }
    if (opt.rank >= opt.ranks || opt.ranks < 2 || opt.min > opt.max || !(opt.factor > 1) || opt.slice % 64 ||
        optind < argc) {
        fprintf(
            stderr,
            "collbench-rank: 2 ranks at least, --rank below --ranks, --min not above --max, --factor above 1, --slice a multiple of 64\n");
        exit(2);
    }
}

/* ---------------------------------------------------------------------------------------------------- measuring */

struct bench {
    const struct coll *c;
    size_t size, src_bytes, dst_bytes, count;
    char *src, *dst;
};

static void once(const struct bench *b) {
    static struct plan p;
    p.n = 0;
    b->c->plan(&p, b->src, b->dst, b->count);
    engine_run(&p);
    plan_free(&p);
}

static double most(double mine) {
    double all[RANKS_MAX], m = 0;
    boot_allgather(&mine, sizeof mine, all);
    for (int r = 0; r < opt.ranks; r++)
        m = all[r] > m ? all[r] : m;
    return m;
}

static double mean(double mine) {
    double all[RANKS_MAX], sum = 0;
    boot_allgather(&mine, sizeof mine, all);
    for (int r = 0; r < opt.ranks; r++)
        sum += all[r];
    return sum / opt.ranks;
}

/* The first run is checked on every rank; results are wiped before it. */
static size_t checked(const struct bench *b) {
    memset(b->dst, 0xa5, b->dst_bytes);
    once(b);
    size_t wrong = opt.check ? data_wrong(b->c, b->dst, b->dst_bytes, b->count) : 0;
    uint64_t mine = wrong, all[RANKS_MAX];
    boot_allgather(&mine, sizeof mine, all);
    wrong = 0;
    for (int r = 0; r < opt.ranks; r++)
        wrong += all[r];
    return wrong;
}

static void measure(const struct bench *b) {
    size_t wrong = checked(b);
    double start = now_s();
    for (int i = 0; i < opt.warmup; i++)
        once(b);
    double each = most(opt.warmup ? (now_s() - start) / opt.warmup : 0);
    int iters = opt.iters;
    if (opt.seconds > 0 && each > 0 && each * iters > opt.seconds)
        iters = each >= opt.seconds ? 1 : (int)(opt.seconds / each);
    boot_barrier();
    start = now_s();
    for (int i = 0; i < iters; i++)
        once(b);
    double t = mean((now_s() - start) / iters);
    if (opt.rank)
        return;
    size_t bytes = b->src_bytes > b->dst_bytes ? b->src_bytes : b->dst_bytes;
    double alg = (double)bytes / t;
    printf(
        "{\"collective\":\"%s\",\"algorithm\":\"%s\",\"size_bytes\":%zu,\"count\":%zu,\"type\":\"%s\",\"redop\":\"%s\","
        "\"root\":%d,\"iterations\":%d,\"time_seconds\":%.9f,\"algbw_bytes_per_second\":%.0f,"
        "\"busbw_bytes_per_second\":%.0f,\"wrong\":%lld}\n",
        b->c->name, b->c->algo, bytes, bytes / type_size(), type_names[opt.type], b->c->sums ? "sum" : "none",
        b->c->rooted ? 0 : -1, iters, t, alg, alg * b->c->bus(opt.ranks), opt.check ? (long long)wrong : -1);
    fflush(stdout);
}

static void sizes(const struct coll *c) {
    struct bench b = {.c = c};
    size_t most_bytes = 2 * opt.max + 4096;
    b.src = mmap(NULL, most_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    b.dst = mmap(NULL, most_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.src == MAP_FAILED || b.dst == MAP_FAILED)
        die("no memory for messages of %llu bytes", (unsigned long long)opt.max);
    engine_connect(c->needed);
    double next = (double)opt.min;
    for (uint64_t s = opt.min; s <= opt.max; s = (uint64_t)next) {
        b.size = s;
        c->sizes(s, &b.src_bytes, &b.dst_bytes, &b.count);
        data_fill(b.src, b.src_bytes / type_size());
        measure(&b);
        next = next * opt.factor < (double)s + 1 ? (double)s + 1 : next * opt.factor;
        if (s < opt.max && next > (double)opt.max)
            next = (double)opt.max; /* the last is always there */
    }
    boot_barrier();
    engine_close();
    munmap(b.src, most_bytes);
    munmap(b.dst, most_bytes);
}

int main(int argc, char **argv) {
    struct rlimit files;
    parse(argc, argv);
    if (!getrlimit(RLIMIT_NOFILE, &files)) { /* a socket a connection */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (const char *s = opt.colls; *s && !opt.connections; s += strcspn(s, ","), s += *s == ',')
        if (!coll_find(s, strcspn(s, ","))) {
            fprintf(stderr, "there is no collective \"%.*s\"\n", (int)strcspn(s, ","), s);
            return 2;
        }
    boot_open();
    net_open();
    if (!opt.rank)
        printf(
            "{\"net\":\"%s\",\"device\":\"%s\",\"table\":%d,\"ranks\":%d,\"channels\":%d,\"group\":%d,\"slice_bytes\":%llu}\n",
            net.name, net.device, opt.table, opt.ranks, opt.channels, opt.group, (unsigned long long)opt.slice);
    fflush(stdout);
    if (opt.connections)
        storm();
    for (const char *s = opt.colls; *s && !opt.connections; s += strcspn(s, ","), s += *s == ',')
        sizes(coll_find(s, strcspn(s, ",")));
    boot_barrier();
    if (net.finalize && net.finalize(net.ctx))
        die("finalize failed");
    boot_close();
    return 0;
}
