/* SPDX-License-Identifier: Apache-2.0
 *
 * coll.h: a rank of collbench: collectives through a net plugin's table of functions, as the proxy thread of RCCL and
 * NCCL calls it, with the host's processor in the place of the GPU. `mroce collbench` starts the ranks.
 *
 *   main.c     settings, one measurement after the other, results as JSON from rank 0
 *   boot.c     ranks find each other over TCP: barriers, and handles out of band
 *   net.c      the table: a plugin's, or socknet.c's
 *   plan.c     collectives as lanes of actions
 *   engine.c   lanes (the GPU's kernel) and connections (the proxy): 8 steps under way, 512 KiB slices
 *   data.c     what is sent, what must arrive, sums
 *   storm.c    thousands of connections
 *   socknet.c  a net of several TCP sockets a connection, as the libraries' socket transport, to compare with
 */
#ifndef COLL_H
#define COLL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/mr_net_abi.h"

enum {
    RANKS_MAX = 16,
    CHANNELS_MAX = 4,
    STEPS = 8, /* under way in a connection, as in the libraries */
    GROUP_MAX = 8,
    FAN_MAX = 3, /* neighbours in a tree */
};

enum type { TYPE_FLOAT, TYPE_DOUBLE, TYPE_INT32, TYPE_UINT8 };

struct options {
    int rank, ranks, channels, group, iters, warmup, table, connections;
    const char *root, *net, *colls;
    uint64_t min, max, slice;
    double factor, seconds;
    enum type type;
    bool check, flush;
};
extern struct options opt;

void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
double now_s(void);

/* ------------------------------------------------------------------------------------------------------- boot */

void boot_open(void);
void boot_close(void);
/* Every rank gives n bytes; all get all of them, in order of ranks. */
void boot_allgather(const void *mine, size_t n, void *all);
void boot_barrier(void);
void boot_check(void);

/* -------------------------------------------------------------------------------------------------------- net */

struct net { /* the functions of version 12, whatever version the table has */
    const char *name;
    void *ctx;
    int (*devices)(int *n);
    int (*listen)(void *ctx, int dev, void *handle, void **listen_comm);
    int (*connect)(void *ctx, int dev, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*dereg_mr)(void *comm, void *mhandle);
    int (*isend)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
    int (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                 void **request);
    int (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*close_send)(void *comm);
    int (*close_recv)(void *comm);
    int (*close_listen)(void *comm);
    int (*finalize)(void *ctx);
    int max_recvs, dev;
    char device[64];
};
extern struct net net;
void net_open(void);
const char *net_error(int code);
extern const struct nn_v12 socknet;

/* ----------------------------------------------------------------------------------------------------- engine */

struct conn { /* one way between two ranks in a channel */
    int peer;
    bool sends;
    void *listen, *comm, *mh;
    char handle[NN_HANDLE_BYTES];
    char *buf; /* STEPS slots of a slice each */
    uint64_t target;
    /* Steps, each counter at most STEPS behind the one before it.
     *   sends     filled (by the lane) >= posted (to the net) >= done
     *   receives  posted >= received >= flushed >= used (by the lane) */
    uint64_t filled, posted, done, received, flushed, used;
    size_t size[STEPS];
    void *req[STEPS][GROUP_MAX];
    uint8_t parts[STEPS]; /* of a group, posted so far */
};
extern struct conn *conns[2][CHANNELS_MAX][RANKS_MAX]; /* [sends][channel][peer] */

/* An action of a lane: what comes from `recv` (summed up, with src too, where reduce says so), or src where nothing
 * comes, goes to dst and to `send`. Slice by slice. */
struct action {
    struct conn *recv[FAN_MAX], *send[FAN_MAX];
    int nrecv, nsend;
    const char *src;
    char *dst;
    size_t bytes;
    bool reduce;
};

struct lane {
    struct action *actions;
    int n, max, at;
    size_t offset;
};

struct plan {
    struct lane lanes[4 * RANKS_MAX * CHANNELS_MAX];
    int n;
};

void engine_connect(bool (*needed)(int from, int to, int channel));
void engine_close(void);
/* Runs the lanes to their end. */
void engine_run(struct plan *p);

/* ------------------------------------------------------------------------------------------------------- plan */

struct coll {
    const char *name, *algo;
    bool (*needed)(int from, int to, int channel);
    void (*plan)(struct plan *p, char *src, char *dst, size_t count);
    void (*sizes)(size_t size, size_t *src, size_t *dst, size_t *count); /* in bytes; count in elements, of a rank */
    double (*bus)(int n);                                                /* bus bandwidth by algorithm's bandwidth */
    double (*expected)(int rank, size_t i, size_t count);
    bool sums, rooted;
};
extern const struct coll colls[];
extern const int ncolls;
const struct coll *coll_find(const char *name, size_t len);
void plan_free(struct plan *p);

/* ------------------------------------------------------------------------------------------------------- data */

size_t type_size(void);
extern const char *const type_names[];
double value(int rank, size_t i); /* of element i that a rank sends */
void data_fill(char *src, size_t count);
size_t data_wrong(const struct coll *c, const char *dst, size_t bytes, size_t count);
void data_add(void *to, const void *from, size_t bytes);

void storm(void);

#endif
