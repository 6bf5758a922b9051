/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.c: connections and lanes.
 *
 * A connection does what the proxy thread of the libraries does with it: it posts receives for as many steps as there
 * are slots, tests them in order, flushes what came, and hands the slot to the lane; it sends the slots that the lane
 * filled, asks again where the net takes nothing now, and tests. A lane is the kernel on the GPU: it waits for slots,
 * sums up, copies on. With groups, each step is posted in several parts with a tag each, as one proxy does for several
 * GPUs behind it.
 */
#include "coll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct conn *conns[2][CHANNELS_MAX][RANKS_MAX];

static void check(const struct conn *c, const char *what, int code) {
    if (code)
        die("%s %s rank %d: %s (%d)", what, c->sends ? "to" : "from", c->peer, net_error(code), code);
}

/* -------------------------------------------------------------------------------------------------- connecting */

static struct conn *conn_new(int peer, bool sends) {
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        die("no memory");
    c->peer = peer;
    c->sends = sends;
    c->buf = mmap(NULL, STEPS * opt.slice, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->buf == MAP_FAILED)
        die("no memory for %zu bytes", (size_t)(STEPS * opt.slice));
    return c;
}

/* What to do for every connection, in both directions. */
static void each(void (*what)(struct conn *c)) {
    for (int s = 0; s < 2; s++)
        for (int ch = 0; ch < opt.channels; ch++)
            for (int r = 0; r < opt.ranks; r++)
                if (conns[s][ch][r])
                    what(conns[s][ch][r]);
}

static int missing;

static void connect_more(struct conn *c) {
    struct nn_device_handle *none = NULL;
    if (c->comm)
        return;
    int r =
        c->sends ? net.connect(net.ctx, net.dev, c->handle, &c->comm, &none) : net.accept(c->listen, &c->comm, &none);
    check(c, c->sends ? "connect" : "accept", r);
    if (!c->comm) {
        missing++;
        return;
    }
    check(c, "register", net.reg_mr(c->comm, c->buf, STEPS * opt.slice, NN_PTR_HOST, &c->mh));
    if (!c->sends)
        check(c, "close the listener", net.close_listen(c->listen));
    c->listen = NULL;
}

/* Handles go out of band: each rank listens once for each peer and channel, and everybody gets all handles. */
void engine_connect(bool (*needed)(int from, int to, int channel)) {
    size_t mine_n = (size_t)opt.channels * (size_t)opt.ranks * NN_HANDLE_BYTES;
    char *mine = calloc(1, mine_n), *all = calloc((size_t)opt.ranks, mine_n);
    if (!mine || !all)
        die("no memory");
    for (int ch = 0; ch < opt.channels; ch++)
        for (int r = 0; r < opt.ranks; r++) {
            if (r == opt.rank)
                continue;
            if (needed(r, opt.rank, ch)) {
                struct conn *c = conns[0][ch][r] = conn_new(r, false);
                check(c, "listen", net.listen(net.ctx, net.dev, c->handle, &c->listen));
                memcpy(mine + ((size_t)ch * (size_t)opt.ranks + (size_t)r) * NN_HANDLE_BYTES, c->handle,
                       NN_HANDLE_BYTES);
            }
            if (needed(opt.rank, r, ch))
                conns[1][ch][r] = conn_new(r, true);
        }
    boot_allgather(mine, mine_n, all);
    for (int ch = 0; ch < opt.channels; ch++)
        for (int r = 0; r < opt.ranks; r++)
            if (conns[1][ch][r])
                memcpy(conns[1][ch][r]->handle,
                       all + (size_t)r * mine_n + ((size_t)ch * (size_t)opt.ranks + (size_t)opt.rank) * NN_HANDLE_BYTES,
                       NN_HANDLE_BYTES);
    double until = now_s() + 60;
    do {
        missing = 0;
        each(connect_more);
        boot_check();
        if (missing && now_s() > until)
            die("%d connections were not made in 60 s", missing);
    } while (missing);
    free(mine);
    free(all);
}

static void conn_close(struct conn *c) {
    check(c, "deregister", net.dereg_mr(c->comm, c->mh));
    check(c, "close", c->sends ? net.close_send(c->comm) : net.close_recv(c->comm));
    munmap(c->buf, STEPS * opt.slice);
    free(c);
}

void engine_close(void) {
    each(conn_close);
    memset(conns, 0, sizeof conns);
}

/* -------------------------------------------------------------------------------------------------- the proxy */

/* Part i of a step of `size` bytes. */
static size_t group_part(size_t size, int i, size_t *at) {
    size_t full = (size + (size_t)opt.group - 1) / (size_t)opt.group;
    *at = full * (size_t)i < size ? full * (size_t)i : size;
    return size - *at < full ? size - *at : full;
}

static bool progress_send(struct conn *c) {
    bool moved = false;
    if (c->posted < c->filled) {
        /* parts of a step may go in any order: the last tag first */
        int slot = (int)(c->posted % STEPS), i = opt.group - 1 - c->parts[slot];
        size_t at, n = group_part(c->size[slot], i, &at);
        void **req = &c->req[slot][i];
        *req = NULL;
        check(c, "isend", net.isend(c->comm, c->buf + (size_t)slot * opt.slice + at, n, i, c->mh, NULL, req));
        if (*req) {
            moved = true;
            if (++c->parts[slot] == opt.group)
                c->posted++;
        }
    }
    if (c->done < c->posted) {
        int slot = (int)(c->done % STEPS);
        for (int i = 0; i < opt.group; i++) {
            int done = 0, size = 0;
            if (!c->req[slot][i])
                continue;
            check(c, "send", net.test(c->req[slot][i], &done, &size));
            if (!done)
                return moved;
            c->req[slot][i] = NULL;
        }
        c->parts[slot] = 0;
        c->done++;
        moved = true;
    }
    return moved;
}

static bool post_recv(struct conn *c) {
    int slot = (int)(c->posted % STEPS), tags[GROUP_MAX];
    size_t sizes[GROUP_MAX];
    void *at[GROUP_MAX], *mh[GROUP_MAX], *ph[GROUP_MAX] = {NULL};
    for (int i = 0; i < opt.group; i++) { /* the parts of a full slice; those of a shorter one may be shorter */
        size_t off, n = group_part(opt.slice, i, &off);
        at[i] = c->buf + (size_t)slot * opt.slice + off;
        sizes[i] = n;
        tags[i] = i;
        mh[i] = c->mh;
    }
    c->req[slot][0] = NULL;
    check(c, "irecv", net.irecv(c->comm, opt.group, at, sizes, tags, mh, ph, &c->req[slot][0]));
    if (!c->req[slot][0])
        return false;
    c->posted++;
    return true;
}

/* Parts of a step that was no full slice lie apart: they are moved together. */
static size_t join_parts(struct conn *c, int slot, const int *sizes) {
    char *base = c->buf + (size_t)slot * opt.slice;
    size_t sum = 0;
    for (int i = 0; i < opt.group; i++) {
        size_t off;
        group_part(opt.slice, i, &off);
        if (off != sum)
            memmove(base + sum, base + off, (size_t)sizes[i]);
        sum += (size_t)sizes[i];
    }
    return sum;
}

static void flush(struct conn *c, int slot, int *sizes) {
    void *at[GROUP_MAX], *mh[GROUP_MAX];
    for (int i = 0; i < opt.group; i++) {
        size_t off;
        group_part(opt.slice, i, &off);
        at[i] = c->buf + (size_t)slot * opt.slice + off;
        mh[i] = c->mh;
    }
    check(c, "iflush", net.iflush(c->comm, opt.group, at, sizes, mh, &c->req[slot][0]));
}

static bool progress_recv(struct conn *c) {
    bool moved = false;
    if (c->posted < c->target && c->posted < c->used + STEPS)
        moved = post_recv(c);
    if (c->received < c->posted) {
        int slot = (int)(c->received % STEPS), done = 0, sizes[GROUP_MAX] = {0};
        check(c, "receive", net.test(c->req[slot][0], &done, sizes));
        if (done) {
            c->req[slot][0] = NULL;
            if (opt.flush)
                flush(c, slot, sizes);
            c->size[slot] = join_parts(c, slot, sizes);
            c->received++;
            moved = true;
        }
    }
    if (c->flushed < c->received) {
        int slot = (int)(c->flushed % STEPS), done = 1;
        if (c->req[slot][0])
            check(c, "flush", net.test(c->req[slot][0], &done, NULL));
        if (done) {
            c->req[slot][0] = NULL;
            c->flushed++;
            moved = true;
        }
    }
    return moved;
}

/* --------------------------------------------------------------------------------------------------- the kernel */

static bool ready(const struct action *a) {
    for (int i = 0; i < a->nrecv; i++)
        if (a->recv[i]->used == a->recv[i]->flushed)
            return false;
    for (int i = 0; i < a->nsend; i++)
        if (a->send[i]->filled == a->send[i]->done + STEPS)
            return false;
    return true;
}

static char *slot_of(struct conn *c, uint64_t step) {
    return c->buf + step % STEPS * opt.slice;
}

/* One slice: from the slots that came and src, into dst and the slots that go. */
static void slice(struct action *a, size_t offset, size_t n) {
    char *to = a->dst ? a->dst + offset : a->nsend ? slot_of(a->send[0], a->send[0]->filled) : NULL;
    int first = 0;
    if (!a->nrecv || a->reduce)
        memcpy(to, a->src + offset, n);
    for (int i = 0; i < a->nrecv; i++) {
        struct conn *c = a->recv[i];
        const char *came = slot_of(c, c->used);
        if (c->size[c->used % STEPS] != n)
            die("%zu bytes came from rank %d, expected are %zu", c->size[c->used % STEPS], c->peer, n);
        if (a->reduce)
            data_add(to, came, n);
        else
            memcpy(to, came, n);
        c->used++;
    }
    if (!a->dst && a->nsend)
        first = 1;
    for (int i = 0; i < a->nsend; i++) {
        struct conn *c = a->send[i];
        if (i >= first)
            memcpy(slot_of(c, c->filled), to, n);
        c->size[c->filled % STEPS] = n;
        c->filled++;
    }
}

static bool progress_lane(struct lane *l) {
    if (l->at == l->n)
        return false;
    struct action *a = &l->actions[l->at];
    if (!ready(a))
        return false;
    size_t left = a->bytes - l->offset, n = left < opt.slice ? left : opt.slice;
    slice(a, l->offset, n);
    l->offset += n;
    if (l->offset == a->bytes) {
        l->at++;
        l->offset = 0;
    }
    return true;
}

static uint64_t steps(size_t bytes) {
    return bytes ? (bytes + opt.slice - 1) / opt.slice : 1;
}

/* Connections of a plan, and how many steps each will receive. */
static int enlist(struct plan *p, struct conn **list) {
    int n = 0;
    for (int s = 0; s < 2; s++)
        for (int ch = 0; ch < opt.channels; ch++)
            for (int r = 0; r < opt.ranks; r++)
                if (conns[s][ch][r])
                    list[n++] = conns[s][ch][r];
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->lanes[i].n; k++)
            for (int f = 0; f < p->lanes[i].actions[k].nrecv; f++)
                p->lanes[i].actions[k].recv[f]->target += steps(p->lanes[i].actions[k].bytes);
    return n;
}

void engine_run(struct plan *p) {
    struct conn *list[2 * CHANNELS_MAX * RANKS_MAX];
    int n = enlist(p, list);
    for (bool busy = true; busy;) {
        busy = false;
        for (int i = 0; i < p->n; i++) {
            progress_lane(&p->lanes[i]);
            busy |= p->lanes[i].at < p->lanes[i].n;
        }
        for (int i = 0; i < n; i++) { /* after the lanes: what they filled last must go, too */
            struct conn *c = list[i];
            c->sends ? progress_send(c) : progress_recv(c);
            busy |= c->sends && c->done < c->filled;
        }
    }
}
