// SPDX-License-Identifier: Apache-2.0
//
// Collective operations of MPI, every byte of every result checked, at sizes from 8 B to 16 MiB.
//
//   collectives check OPERATION [MAX]             8, 64, 512 … bytes up to MAX
//   collectives time OPERATION SIZE SECONDS       so long; rank 0 prints "OPERATION SIZE seconds-of-one"
//
// A size is that of a block: what each rank contributes to all-reduce, all-gather and broadcast, and what each rank
// has for each other in all-to-all and reduce-scatter.
//
// `check` ends with what the ranks must at least have told each other, so that somebody with the NICs' counters can
// say whether it went through them:
//   out HOST BYTES      that must leave a host, however clever the algorithm
//   between BYTES       that must leave the ranks, all together
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks;
static uint64_t *in, *out;

// One operation on blocks of n 64-bit words. `run` performs it, `want` is the value that word i of the result must
// have. `leave` is how many blocks must leave h of the p ranks together, `each` how many all ranks on their own.
struct operation {
    const char *name;
    int out_blocks; // of the result; 0: one for each rank
    void (*run)(int n, int root);
    uint64_t (*want)(int i, int n, int root);
    int (*leave)(int h, int p, int root_inside);
    int (*each)(int p);
};

// value is word i of what a rank contributes: all words differ, so that a block in the wrong place is seen.
static uint64_t value(int of, int i) {
    uint64_t x = ((uint64_t)of << 32 | (uint32_t)i) + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t sum(int i) {
    uint64_t s = 0;
    for (int r = 0; r < ranks; r++)
        s += value(r, i);
    return s;
}

static void run_allreduce(int n, int root) {
    (void)root;
    MPI_Allreduce(in, out, n, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

static void run_alltoall(int n, int root) {
    (void)root;
    MPI_Alltoall(in, n, MPI_UINT64_T, out, n, MPI_UINT64_T, MPI_COMM_WORLD);
}

static void run_allgather(int n, int root) {
    (void)root;
    MPI_Allgather(in, n, MPI_UINT64_T, out, n, MPI_UINT64_T, MPI_COMM_WORLD);
}

static void run_reducescatter(int n, int root) {
    (void)root;
    MPI_Reduce_scatter_block(in, out, n, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

static void run_broadcast(int n, int root) {
    if (rank == root)
        memcpy(out, in, (size_t)n * 8);
    MPI_Bcast(out, n, MPI_UINT64_T, root, MPI_COMM_WORLD);
}

static uint64_t want_allreduce(int i, int n, int root) {
    return (void)n, (void)root, sum(i);
}
static uint64_t want_alltoall(int i, int n, int root) {
    return (void)root, value(i / n, rank * n + i % n);
}
static uint64_t want_allgather(int i, int n, int root) {
    return (void)root, value(i / n, i % n);
}
static uint64_t want_reducescatter(int i, int n, int root) {
    return (void)root, sum(rank * n + i);
}
static uint64_t want_broadcast(int i, int n, int root) {
    return (void)n, value(root, i);
}

// Two hosts: h ranks here, p-h there.
static int leave_allreduce(int h, int p, int in_) {
    return (void)h, (void)p, (void)in_, 1;
}
static int leave_alltoall(int h, int p, int in_) {
    return (void)in_, h * (p - h);
}
static int leave_allgather(int h, int p, int in_) {
    return (void)p, (void)in_, h;
}
static int leave_reducescatter(int h, int p, int in_) {
    return (void)in_, p - h;
}
static int leave_broadcast(int h, int p, int in_) {
    return (void)h, (void)p, in_;
}
static int each_once(int p) {
    return p;
}
static int each_other(int p) {
    return p * (p - 1);
}
static int each_broadcast(int p) {
    return p - 1;
}

static const struct operation operations[] = {
    {"all-reduce", 1, run_allreduce, want_allreduce, leave_allreduce, each_once},
    {"all-to-all", 0, run_alltoall, want_alltoall, leave_alltoall, each_other},
    {"all-gather", 0, run_allgather, want_allgather, leave_allgather, each_other},
    {"reduce-scatter", 1, run_reducescatter, want_reducescatter, leave_reducescatter, each_other},
    {"broadcast", 1, run_broadcast, want_broadcast, leave_broadcast, each_broadcast},
};

static void fail(const char *what) {
    fprintf(stderr, "collectives: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(const struct operation *op, int n, int root) {
    int words = n * (op->out_blocks ? op->out_blocks : ranks);
    memset(out, 0xee, (size_t)words * 8);
    op->run(n, root);
    for (int i = 0; i < words; i++) {
        uint64_t want = op->want(i, n, root);
        if (out[i] != want) {
            char text[200];
            snprintf(text, sizeof(text), "%s of %d bytes, root %d: word %d is %016" PRIx64 ", not %016" PRIx64,
                     op->name, n * 8, root, i, out[i], want);
            fail(text);
        }
    }
}

#define NAME 64

// report says what must have moved when blocks of so many bytes in all went round, with each root where there is one.
static void report(const struct operation *op, long bytes, int rooted) {
    char own[NAME] = "", *all = malloc((size_t)ranks * NAME);
    if (!all)
        fail("no memory");
    gethostname(own, sizeof(own) - 1);
    MPI_Allgather(own, NAME, MPI_CHAR, all, NAME, MPI_CHAR, MPI_COMM_WORLD);
    for (int r = 0; rank == 0 && r < ranks; r++) {
        int here = 0, first = 1;
        for (int q = 0; q < ranks; q++)
            if (!strcmp(all + q * NAME, all + r * NAME)) {
                here++;
                if (q < r)
                    first = 0;
            }
        if (!first)
            continue;
        long blocks = 0;
        for (int root = 0; root < (rooted ? ranks : 1); root++)
            blocks += op->leave(here, ranks, !strcmp(all + root * NAME, all + r * NAME));
        printf("out %s %ld\n", all + r * NAME, here == ranks ? 0 : bytes * blocks);
    }
    if (rank == 0)
        printf("between %ld\n", bytes * op->each(ranks) * (rooted ? ranks : 1));
    free(all);
}

static void check_all(const struct operation *op, long max) {
    int rooted = op->run == run_broadcast;
    long bytes = 0;
    for (long size = 8; size <= max; size *= 8) {
        for (int root = 0; root < (rooted ? ranks : 1); root++)
            check(op, (int)(size / 8), root);
        bytes += size;
        if (rank == 0)
            printf("%s %ld ok\n", op->name, size);
    }
    report(op, bytes, rooted);
}

// time_one doubles the number of repetitions until they take long enough; the slowest rank counts.
static void time_one(const struct operation *op, long size, double seconds) {
    for (int i = 0; i < 3; i++) // connections, caches
        check(op, (int)(size / 8), 0);
    for (long n = 1;; n *= 2) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (long i = 0; i < n; i++)
            op->run((int)(size / 8), 0);
        double own = MPI_Wtime() - start, most;
        MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (most < seconds)
            continue;
        if (rank == 0)
            printf("%s %ld %.9f\n", op->name, size, most / (double)n);
        return;
    }
}

static const struct operation *find(const char *name) {
    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
        if (!strcmp(operations[i].name, name))
            return &operations[i];
    fail("no such operation");
    return NULL;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3 || (!strcmp(argv[1], "time") && argc < 5))
        fail("usage: collectives check OPERATION [MAX] | time OPERATION SIZE "
             "REPETITIONS");
    const struct operation *op = find(argv[2]);
    long max = argc > 3 ? strtol(argv[3], NULL, 0) : 16 << 20;
    if (max < 8 || max > 16 << 20)
        fail("a size is 8 to 16777216 bytes");
    in = malloc((size_t)max * (size_t)ranks);
    out = malloc((size_t)max * (size_t)ranks);
    if (!in || !out)
        fail("no memory");
    for (int i = 0; i < max / 8 * ranks; i++)
        in[i] = value(rank, i);
    if (!strcmp(argv[1], "time"))
        time_one(op, max, atof(argv[4]));
    else
        check_all(op, max);
    MPI_Finalize();
    return 0;
}
