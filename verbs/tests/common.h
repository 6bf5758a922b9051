/* SPDX-License-Identifier: Apache-2.0
 *
 * common.h: what the test programs share: one end of an RC connection over the public verbs API, a byte stream between
 * the two ends to agree over, random numbers that both ends can repeat, SHA-256.
 */
#ifndef MR_TEST_COMMON_H
#define MR_TEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

/* Ends the program: a test that cannot go on has failed. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
#define MUST(cond, ...)       \
    do {                      \
        if (!(cond))          \
            die(__VA_ARGS__); \
    } while (0)

/* ---- numbers ---- */
struct rng {
    uint64_t s[4];
};
void rng_seed(struct rng *r, uint64_t seed, uint64_t stream);
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* 0 … n-1 */
void rng_fill(struct rng *r, void *to, size_t n);
double now_s(void);

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
};
void sha256_of(const void *data, size_t n, uint8_t out[32]);

/* ---- the byte stream ---- */
int stream_listen(int port); /* accepts one connection */
int stream_connect(const char *host, int port, int patience_s);
void stream_send(int fd, const void *data, size_t n);
bool stream_recv(int fd, void *data, size_t n); /* false: the other end is gone */

/* ---- one end ---- */
struct options {
    const char *dev, *client;
    int port, gid, mtu;
    uint64_t size, count, seed;
    double seconds;
    bool server, loop;
    int extra; /* per program */
};
/* Parses the options common to all programs; `about` is printed by --help. Sets the defaults first. */
void options_parse(struct options *o, int argc, char **argv, const char *about);
double scaled(double seconds); /* times MR_TEST_SLOW, for machines under load or sanitizers */

struct end {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *buf;
    size_t len;
    union ibv_gid gid;
    int gid_index, mtu;
    struct ibv_device_attr attr;
};
struct peer {
    uint32_t qpn, psn, rkey, pad;
    uint64_t addr, len;
    union ibv_gid gid;
};
struct end_want {
    uint32_t wr, sge, inline_bytes, cqe;
    size_t len;
    int access;
    bool events;
};
struct ibv_context *open_named(const char *name);
void end_open(struct end *e, const struct options *o, const struct end_want *w);
struct ibv_qp *end_qp(struct end *e, const struct end_want *w);
void end_close(struct end *e);
void end_describe(const struct end *e, struct peer *p, uint32_t psn);
struct connect_attr {
    uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer;
};
extern const struct connect_attr patient; /* retries for long: wires that lose */
int qp_to_init(struct ibv_qp *qp, int access);
void qp_connect(const struct end *e, struct ibv_qp *qp, const struct peer *p, uint32_t psn,
                const struct connect_attr *c);
/* Waits for one completion; false after `seconds`. */
bool wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, double seconds);

#define ALL_ACCESS \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

#endif
