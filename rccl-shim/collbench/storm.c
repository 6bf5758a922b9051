/* SPDX-License-Identifier: Apache-2.0
 *
 * storm.c: as many connections as communicators times channels of a large job: each rank opens them to the next, sends
 * a message over each, checks what came, and closes them.
 */
#include "coll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, BATCH = 100 };

struct link {
    void *listen, *send, *recv, *smh, *rmh, *sreq, *rreq;
    char handle[NN_HANDLE_BYTES];
};

static struct link *links;
static char *memory; /* BYTES to send and BYTES to receive for each */
static int prev, next;

static void ok(int code, const char *what, int i) {
    if (code)
        die("connection %d: %s: %s (%d)", i, what, net_error(code), code);
}

static char *out(int i) {
    return memory + (size_t)i * 2 * BYTES;
}

/* Connections first to first + n; handles of a batch go out of band together. */
static void open_batch(int first, int n) {
    struct nn_device_handle *none = NULL;
    char *mine = calloc((size_t)n, NN_HANDLE_BYTES), *all = calloc((size_t)(n * opt.ranks), NN_HANDLE_BYTES);
    if (!mine || !all)
        die("no memory");
    for (int i = 0; i < n; i++)
        ok(net.listen(net.ctx, net.dev, mine + (size_t)i * NN_HANDLE_BYTES, &links[first + i].listen), "listen",
           first + i);
    boot_allgather(mine, (size_t)n * NN_HANDLE_BYTES, all);
    for (int i = 0; i < n; i++)
        memcpy(links[first + i].handle, all + (size_t)(next * n + i) * NN_HANDLE_BYTES, NN_HANDLE_BYTES);
    double until = now_s() + 60;
    for (int left = 1; left;) {
        left = 0;
        boot_check();
        for (int i = first; i < first + n; i++) {
            struct link *l = &links[i];
            if (!l->send)
                ok(net.connect(net.ctx, net.dev, l->handle, &l->send, &none), "connect", i);
            if (!l->recv)
                ok(net.accept(l->listen, &l->recv, &none), "accept", i);
            left += !l->send + !l->recv;
        }
        if (left && now_s() > until)
            die("%d of %d connections were not made in 60 s", left, 2 * n);
    }
    for (int i = first; i < first + n; i++) {
        struct link *l = &links[i];
        ok(net.close_listen(l->listen), "close the listener", i);
        ok(net.reg_mr(l->send, out(i), BYTES, NN_PTR_HOST, &l->smh), "register", i);
        ok(net.reg_mr(l->recv, out(i) + BYTES, BYTES, NN_PTR_HOST, &l->rmh), "register", i);
    }
    free(mine);
    free(all);
}

static void use(int i) {
    struct link *l = &links[i];
    void *at = out(i) + BYTES;
    size_t room = BYTES;
    int tag = i, done[2] = {0, 0}, size = 0, unused;
    memset(out(i), (opt.rank + i) & 0xff, BYTES);
    while (!done[0] || !done[1]) {
        if (!l->rreq)
            ok(net.irecv(l->recv, 1, &at, &room, &tag, &l->rmh, NULL, &l->rreq), "irecv", i);
        if (!l->sreq)
            ok(net.isend(l->send, out(i), BYTES, tag, l->smh, NULL, &l->sreq), "isend", i);
        if (l->sreq && !done[0])
            ok(net.test(l->sreq, &done[0], &unused), "send", i);
        if (l->rreq && !done[1])
            ok(net.test(l->rreq, &done[1], &size), "receive", i);
    }
    if (size != BYTES || *(uint8_t *)at != ((prev + i) & 0xff) || memcmp(at, (char *)at + 1, BYTES - 1))
        die("connection %d: other bytes arrived, %d of them", i, size);
}

void storm(void) {
    int n = opt.connections;
    double start = now_s(), opened, used;
    next = (opt.rank + 1) % opt.ranks;
    prev = (opt.rank + opt.ranks - 1) % opt.ranks;
    links = calloc((size_t)n, sizeof *links);
    memory = calloc((size_t)n, 2 * BYTES);
    if (!links || !memory)
        die("no memory");
    for (int i = 0; i < n; i += BATCH)
        open_batch(i, n - i < BATCH ? n - i : BATCH);
    boot_barrier();
    opened = now_s();
    for (int i = 0; i < n; i++)
        use(i);
    boot_barrier();
    used = now_s();
    for (int i = 0; i < n; i++) {
        ok(net.dereg_mr(links[i].send, links[i].smh), "deregister", i);
        ok(net.dereg_mr(links[i].recv, links[i].rmh), "deregister", i);
        ok(net.close_send(links[i].send), "close", i);
        ok(net.close_recv(links[i].recv), "close", i);
    }
    if (!opt.rank)
        printf("{\"connections\":%d,\"open_seconds\":%.3f,\"use_seconds\":%.3f,\"close_seconds\":%.3f}\n", n,
               opened - start, used - opened, now_s() - used);
    fflush(stdout);
    free(links);
    free(memory);
}
