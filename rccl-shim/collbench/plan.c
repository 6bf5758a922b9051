/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: collectives as lanes of actions, by the algorithms that the libraries use between machines: rings, a binary
 * tree a channel, and messages between pairs. A lane is in order; lanes run side by side.
 */
#include "coll.h"

#include <stdlib.h>
#include <string.h>

static struct lane *lane(struct plan *p) {
    if (p->n == (int)(sizeof p->lanes / sizeof *p->lanes))
        die("more lanes than there is room for");
    struct lane *l = &p->lanes[p->n++];
    memset(l, 0, sizeof *l);
    return l;
}

static struct action *act(struct lane *l, const char *src, char *dst, size_t bytes) {
    if (l->n == l->max) {
        l->max = l->max ? 2 * l->max : 8;
        l->actions = realloc(l->actions, (size_t)l->max * sizeof *l->actions);
        if (!l->actions)
            die("no memory");
    }
    struct action *a = &l->actions[l->n++];
    *a = (struct action){.src = src, .dst = dst, .bytes = bytes};
    return a;
}

static void from(struct action *a, int channel, int peer, bool reduce) {
    a->recv[a->nrecv++] = conns[0][channel][peer];
    a->reduce = reduce;
}

static void to(struct action *a, int channel, int peer) {
    a->send[a->nsend++] = conns[1][channel][peer];
}

void plan_free(struct plan *p) {
    for (int i = 0; i < p->n; i++)
        free(p->lanes[i].actions);
    p->n = 0;
}

/* Part i of n of count elements: where it begins, in bytes, and its bytes. */
struct part {
    size_t at, bytes;
};

static struct part part(size_t count, int n, int i) {
    size_t each = (count + (size_t)n - 1) / (size_t)n, at = each * (size_t)i;
    if (at > count)
        at = count;
    size_t len = count - at < each ? count - at : each;
    return (struct part){at * type_size(), len * type_size()};
}

static int prev_of(int r) {
    return (r + opt.ranks - 1) % opt.ranks;
}

static int next_of(int r) {
    return (r + 1) % opt.ranks;
}

/* ------------------------------------------------------------------------------------------------------- rings */

static bool ring_needed(int a, int b, int channel) {
    (void)channel;
    return b == next_of(a);
}

/* Data go round in chunks of half the slots, as in the libraries: were they longer, each rank could fill its own slots
 * and its successor's before it takes what its predecessor sent, and all would wait. In elements. */
static size_t chunk_max(void) {
    return STEPS / 2 * opt.slice / type_size();
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Chunk numbers as they pass a rank: it sends its predecessor's first, and its own comes round last, summed up. */
static void ring_reduce(struct lane *l, int c, char *src, size_t count, size_t base, char *own, bool go_on) {
    int n = opt.ranks, r = opt.rank;
    for (int j = 1; j <= n; j++) {
        int chunk = (r + n - j) % n;
        struct part p = part(count, n, chunk);
        struct action *a = act(l, src + base + p.at, j == n ? own : NULL, p.bytes);
        if (j > 1)
            from(a, c, prev_of(r), true);
        if (j < n || go_on)
            to(a, c, next_of(r));
    }
}

static void ring_spread(struct lane *l, int c, char *dst, size_t count, size_t base) {
    int n = opt.ranks, r = opt.rank;
    for (int j = 1; j < n; j++) {
        struct part p = part(count, n, (r + n - j) % n);
        struct action *a = act(l, NULL, dst + base + p.at, p.bytes);
        from(a, c, prev_of(r), false);
        if (j < n - 1)
            to(a, c, next_of(r));
    }
}

static void ring_all_reduce(struct plan *p, char *src, char *dst, size_t count) {
    for (int c = 0; c < opt.channels; c++) {
        struct lane *l = lane(p);
        struct part mine = part(count, opt.channels, c);
        size_t n = mine.bytes / type_size(), loop = chunk_max() * (size_t)opt.ranks, at = 0;
        do {
            size_t now = least(n - at, loop), base = mine.at + at * type_size();
            ring_reduce(l, c, src, now, base, dst + base + part(now, opt.ranks, opt.rank).at, true);
            ring_spread(l, c, dst, now, base);
            at += now;
        } while (at < n);
    }
}

/* The pieces of a channel's part of what each rank has; at is within it, in bytes. */
static void ring_pieces(struct plan *p, size_t count, void (*turn)(struct lane *l, int c, struct part piece)) {
    for (int c = 0; c < opt.channels; c++) {
        struct lane *l = lane(p);
        struct part mine = part(count, opt.channels, c);
        size_t at = 0;
        do {
            size_t now = least(mine.bytes - at, chunk_max() * type_size());
            turn(l, c, (struct part){mine.at + at, now});
            at += now;
        } while (at < mine.bytes);
    }
}

static char *from_here, *to_here; /* of the plan that is made, and the bytes of a rank */
static size_t rank_bytes;

static void scatter_turn(struct lane *l, int c, struct part piece) {
    int n = opt.ranks, r = opt.rank;
    for (int j = 1; j <= n; j++) {
        size_t at = (size_t)((r + n - j) % n) * rank_bytes + piece.at;
        struct action *a = act(l, from_here + at, j == n ? to_here + piece.at : NULL, piece.bytes);
        if (j > 1)
            from(a, c, prev_of(r), true);
        if (j < n)
            to(a, c, next_of(r));
    }
}

static void gather_turn(struct lane *l, int c, struct part piece) {
    int n = opt.ranks, r = opt.rank;
    for (int j = 0; j < n; j++) {
        size_t at = (size_t)((r + n - j) % n) * rank_bytes + piece.at;
        struct action *a = act(l, j ? NULL : from_here + piece.at, to_here + at, piece.bytes);
        if (j)
            from(a, c, prev_of(r), false);
        if (j < n - 1)
            to(a, c, next_of(r));
    }
}

/* count: elements of one rank; the others' lie one behind the other. */
static void ring_reduce_scatter(struct plan *p, char *src, char *dst, size_t count) {
    from_here = src, to_here = dst, rank_bytes = count * type_size();
    ring_pieces(p, count, scatter_turn);
}

static void ring_all_gather(struct plan *p, char *src, char *dst, size_t count) {
    from_here = src, to_here = dst, rank_bytes = count * type_size();
    ring_pieces(p, count, gather_turn);
}

static void ring_broadcast(struct plan *p, char *src, char *dst, size_t count) {
    for (int c = 0; c < opt.channels; c++) {
        struct part mine = part(count, opt.channels, c);
        struct action *a = act(lane(p), opt.rank ? NULL : src + mine.at, dst + mine.at, mine.bytes);
        if (opt.rank)
            from(a, c, prev_of(opt.rank), false);
        if (opt.rank < opt.ranks - 1)
            to(a, c, next_of(opt.rank));
    }
}

/* -------------------------------------------------------------------------------------------------------- tree */

/* A binary tree; another rank is its root in each channel, so that leaves of one are not leaves of all. */
static int tree_parent(int r, int channel) {
    int at = (r + channel) % opt.ranks;
    return at ? ((at - 1) / 2 + opt.ranks - channel % opt.ranks) % opt.ranks : -1;
}

static bool tree_needed(int a, int b, int channel) {
    return tree_parent(a, channel) == b || tree_parent(b, channel) == a;
}

static void children(struct action *a, int c, bool up) {
    for (int r = 0; r < opt.ranks; r++)
        if (tree_parent(r, c) == opt.rank)
            up ? from(a, c, r, true) : to(a, c, r);
}

static void tree_all_reduce(struct plan *p, char *src, char *dst, size_t count) {
    for (int c = 0; c < opt.channels; c++) {
        int parent = tree_parent(opt.rank, c);
        struct part mine = part(count, opt.channels, c);
        struct action *a = act(lane(p), src + mine.at, parent < 0 ? dst + mine.at : NULL, mine.bytes);
        children(a, c, true);
        if (parent < 0) { /* the root sends down what it has summed up */
            children(a, c, false);
            continue;
        }
        to(a, c, parent);
        a = act(lane(p), NULL, dst + mine.at, mine.bytes);
        from(a, c, parent, false);
        children(a, c, false);
    }
}

/* ------------------------------------------------------------------------------------------------------- pairs */

static bool pair_needed(int a, int b, int channel) {
    (void)channel;
    return a != b;
}

static void pair_all_to_all(struct plan *p, char *src, char *dst, size_t count) {
    for (int c = 0; c < opt.channels; c++)
        for (int i = 0; i < opt.ranks; i++) {
            int peer = (opt.rank + i) % opt.ranks, other = (opt.rank + opt.ranks - i) % opt.ranks;
            struct part mine = part(count, opt.channels, c);
            size_t at = (size_t)peer * count * type_size() + mine.at,
                   back = (size_t)other * count * type_size() + mine.at;
            if (!i) {
                act(lane(p), src + at, dst + at, mine.bytes);
                continue;
            }
            to(act(lane(p), src + at, NULL, mine.bytes), c, peer);
            from(act(lane(p), NULL, dst + back, mine.bytes), c, other, false);
        }
}

static void pair_send_recv(struct plan *p, char *src, char *dst, size_t count) {
    for (int c = 0; c < opt.channels; c++) {
        struct part mine = part(count, opt.channels, c);
        to(act(lane(p), src + mine.at, NULL, mine.bytes), c, next_of(opt.rank));
        from(act(lane(p), NULL, dst + mine.at, mine.bytes), c, prev_of(opt.rank), false);
    }
}

/* ------------------------------------------------------------------------------------------------------- table */

static void sizes_same(size_t size, size_t *src, size_t *dst, size_t *count) {
    *count = size / type_size();
    *src = *dst = *count * type_size();
}

static void sizes_gather(size_t size, size_t *src, size_t *dst, size_t *count) {
    *count = size / type_size() / (size_t)opt.ranks;
    *src = *count * type_size();
    *dst = *src * (size_t)opt.ranks;
}

static void sizes_scatter(size_t size, size_t *src, size_t *dst, size_t *count) {
    sizes_gather(size, dst, src, count);
}

static void sizes_all(size_t size, size_t *src, size_t *dst, size_t *count) {
    sizes_gather(size, src, dst, count);
    *src = *dst;
}

static double bus_reduce(int n) {
    return 2.0 * (n - 1) / n;
}

static double bus_part(int n) {
    return (double)(n - 1) / n;
}

static double bus_one(int n) {
    (void)n;
    return 1;
}

static double sum_at(size_t i) {
    double s = 0;
    for (int r = 0; r < opt.ranks; r++)
        s += value(r, i);
    return s;
}

static double want_sum(int rank, size_t i, size_t count) {
    (void)rank, (void)count;
    return sum_at(i);
}

static double want_part_of_sum(int rank, size_t i, size_t count) {
    return sum_at((size_t)rank * count + i);
}

static double want_gathered(int rank, size_t i, size_t count) {
    (void)rank;
    return value((int)(i / count), i % count);
}

static double want_roots(int rank, size_t i, size_t count) {
    (void)rank, (void)count;
    return value(0, i);
}

static double want_exchanged(int rank, size_t i, size_t count) {
    return value((int)(i / count), (size_t)rank * count + i % count);
}

static double want_previous(int rank, size_t i, size_t count) {
    (void)count;
    return value(prev_of(rank), i);
}

const struct coll colls[] = {
    {"all-reduce", "ring", ring_needed, ring_all_reduce, sizes_same, bus_reduce, want_sum, true, false},
    {"all-reduce-tree", "tree", tree_needed, tree_all_reduce, sizes_same, bus_reduce, want_sum, true, false},
    {"all-gather", "ring", ring_needed, ring_all_gather, sizes_gather, bus_part, want_gathered, false, false},
    {"reduce-scatter", "ring", ring_needed, ring_reduce_scatter, sizes_scatter, bus_part, want_part_of_sum, true,
     false},
    {"broadcast", "ring", ring_needed, ring_broadcast, sizes_same, bus_one, want_roots, false, true},
    {"all-to-all", "pairs", pair_needed, pair_all_to_all, sizes_all, bus_part, want_exchanged, false, false},
    {"send-recv", "pairs", ring_needed, pair_send_recv, sizes_same, bus_one, want_previous, false, false},
};
const int ncolls = sizeof colls / sizeof *colls;

const struct coll *coll_find(const char *name, size_t len) {
    for (int i = 0; i < ncolls; i++)
        if (strlen(colls[i].name) == len && !memcmp(colls[i].name, name, len))
            return &colls[i];
    return NULL;
}
