/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h: what the files of mr_fuzzring share: a connection made by hand, a QP to spoil, and the question whether the
 * daemon is still alive.
 */
#ifndef MR_TEST_FUZZ_H
#define MR_TEST_FUZZ_H

#include "common.h"
#include "../include/mr_abi.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

extern int attacks, failures, quiet_ok;
extern const char *current;

#define FAIL(...)                  \
    do {                           \
        failures++;                \
        printf("  %s: ", current); \
        printf(__VA_ARGS__);       \
        printf("\n");              \
    } while (0)

struct raw {
    int fd, bell, async, memfd;
    uint32_t seq;
    uint8_t *shm;
    size_t bytes;
    struct mr_ctx_page *page;
    uint64_t *guard;
    char nic[MR_NAME_BYTES];
};
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SHM_BYTES (8u << 20)
int dial(void);
int push(int fd, const void *msg, size_t n, const int *fds, int nfds);
/* Returns the length, 0 when the daemon hung up, -1 when it says nothing. */
ssize_t pull(int fd, void *buf, size_t n, int *fds);
/* One well-formed exchange; returns the status, or -1 when the connection ended. */
int ask(struct raw *r, uint16_t op, void *req, size_t n, int pass, void *rep, size_t rep_len, int *fds);
int hello(struct raw *r);
int sealed(size_t bytes, int seals);
void raw_open(struct raw *r);
void raw_close(struct raw *r);

/* A working QP, connected to itself. */
#define ENTRIES 16u
#define STRIDE  576u /* 32 pieces */
#define CQ_AT   65536u
#define SQ_AT   131072u
#define RQ_AT   196608u
#define SQ_BELL 5u
#define RQ_BELL 6u

struct victim {
    struct raw r;
    uint32_t pd, cq, qp, qpn, lkey, rkey;
    struct mr_ring *cqr, *sqr, *rqr;
    uint8_t *mem;
};
void victim_open(struct victim *v);
void victim_close(struct victim *v);
void ring(struct victim *v, uint32_t bell);
struct mr_sqe *good_sqe(struct victim *v, uint32_t slot);
/* What became of the attack: a completion's status (0 is a success), 100 = ring or context marked, -1 = silence. */
int outcome(struct victim *v, double seconds);

extern struct victim bystander;
void alive(void);
void judge(struct victim *v, bool may_succeed, double seconds);

void attack_messages(void);
void attack_open(void);
void attack_queues(void);

#endif
