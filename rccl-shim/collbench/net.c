/* SPDX-License-Identifier: Apache-2.0
 *
 * net.c: the table of functions, of the version that was asked for. The libraries do the same: they call version 12's
 * functions and adapt older tables to them.
 */
#include "coll.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct net net;
static const void *table;

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
    static int verbose = -1;
    va_list ap;
    (void)flags, (void)file, (void)line;
    if (verbose < 0)
        verbose = getenv("MR_VERBOSE") && atoi(getenv("MR_VERBOSE"));
    if (level > (verbose ? NN_LOG_INFO : NN_LOG_WARN))
        return;
    va_start(ap, fmt);
    flockfile(stderr);
    fprintf(stderr, "rank %d: ", opt.rank);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    funlockfile(stderr);
    va_end(ap);
}

const char *net_error(int code) {
    static const char *const names[] = {"success",          "GPU error",     "system error", "internal error",
                                        "invalid argument", "invalid usage", "remote error"};
    return code >= 0 && code < 7 ? names[code] : "unknown error";
}

/* ------------------------------------------------------------------------------------------- older versions */

#define T(v) ((const struct nn_v##v *)table)

static int listen8(void *ctx, int dev, void *handle, void **comm) {
    (void)ctx;
    return T(8)->listen(dev, handle, comm);
}

static int connect8(void *ctx, int dev, void *handle, void **comm, struct nn_device_handle **device) {
    (void)ctx;
    return T(8)->connect(dev, handle, comm, device);
}

static int connect10(void *ctx, int dev, void *handle, void **comm, struct nn_device_handle **device) {
    struct nn_config config = {.traffic_class = NN_NO_TRAFFIC_CLASS};
    (void)ctx;
    return T(10)->connect(dev, &config, handle, comm, device);
}

static int isend8(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
    (void)ph;
    return T(8)->isend(comm, data, (int)size, tag, mh, request);
}

static int irecv8(void *comm, int n, void **data, size_t *sizes, int *tags, void **mh, void **ph, void **request) {
    int narrow[GROUP_MAX];
    (void)ph;
    for (int i = 0; i < n; i++)
        narrow[i] = (int)sizes[i];
    return T(8)->irecv(comm, n, data, narrow, tags, mh, request);
}

static int isend9(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
    (void)ph;
    return T(9)->isend(comm, data, size, tag, mh, request);
}

static int irecv9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mh, void **ph, void **request) {
    (void)ph;
    return T(9)->irecv(comm, n, data, sizes, tags, mh, request);
}

#define SAME(t)                                                                                                     \
    net.name = (t)->name, net.devices = (t)->devices, net.accept = (t)->accept, net.reg_mr = (t)->reg_mr,           \
    net.dereg_mr = (t)->dereg_mr, net.iflush = (t)->iflush, net.test = (t)->test, net.close_send = (t)->close_send, \
    net.close_recv = (t)->close_recv, net.close_listen = (t)->close_listen
#define SEND_RECV(s, r) net.isend = (s), net.irecv = (r)

static int use8(void) {
    SAME(T(8));
    SEND_RECV(isend8, irecv8);
    net.listen = listen8;
    net.connect = connect8;
    return T(8)->init(logger);
}

static int use9(void) {
    SAME(T(9));
    SEND_RECV(isend9, irecv9);
    net.listen = listen8;
    net.connect = connect8;
    return T(9)->init(logger);
}

static int use10(void) {
    SAME(T(10));
    SEND_RECV(T(10)->isend, T(10)->irecv);
    net.listen = listen8;
    net.connect = connect10;
    return T(10)->init(logger, NULL);
}

static int use12(void) { /* 11 differs in properties only */
    struct nn_config config = {.traffic_class = NN_NO_TRAFFIC_CLASS};
    SAME(T(12));
    SEND_RECV(T(12)->isend, T(12)->irecv);
    net.listen = T(12)->listen;
    net.connect = T(12)->connect;
    net.finalize = T(12)->finalize;
    return T(12)->init(&net.ctx, 1, &config, logger, NULL);
}

/* ------------------------------------------------------------------------------------------------------- loading */

static const void *find_table(void) {
    char symbol[32];
    if (!strcmp(opt.net, "socket")) {
        if (opt.table != 12)
            die("the socket net has version 12 only");
        return &socknet;
    }
    void *lib = dlopen(opt.net, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        die("%s", dlerror());
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", opt.table);
    const void *t = dlsym(lib, symbol);
    if (!t)
        die("%s", dlerror());
    return t;
}

static void describe(void) {
    union {
        struct nn_props_v8 v8;
        struct nn_props_v9 v9;
        struct nn_props_v11 v11;
        struct nn_props_v12 v12;
    } p = {.v12 = {.name = NULL}};
    int r = opt.table == 8    ? T(8)->get_properties(net.dev, &p.v8)
            : opt.table == 9  ? T(9)->get_properties(net.dev, &p.v9)
            : opt.table == 10 ? T(10)->get_properties(net.dev, &p.v9)
            : opt.table == 11 ? T(11)->get_properties(net.dev, &p.v11)
                              : T(12)->get_properties(net.dev, &p.v12);
    if (r)
        die("properties of device %d: %s", net.dev, net_error(r));
    net.max_recvs = opt.table == 8 ? p.v8.max_recvs : p.v9.max_recvs;
    snprintf(net.device, sizeof net.device, "%s", p.v8.name); /* it begins all of them */
}

void net_open(void) {
    int n = 0, r = NN_INTERNAL;
    table = find_table();
    switch (opt.table) {
    case 8:
        r = use8();
        break;
    case 9:
        r = use9();
        break;
    case 10:
        r = use10();
        break;
    case 11:
    case 12:
        r = use12();
        break;
    default:
        die("--table %d: 8 to 12", opt.table);
    }
    if (r)
        die("%s has no device that can be used: %s", net.name, net_error(r));
    if (net.devices(&n) || n < 1)
        die("%s has no device", net.name);
    net.dev = opt.rank % n; /* ranks of a host share its NICs */
    describe();
    if (opt.group > net.max_recvs)
        die("groups of %d: %s takes %d", opt.group, net.name, net.max_recvs);
}
