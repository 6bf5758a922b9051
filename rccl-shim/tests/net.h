/* SPDX-License-Identifier: Apache-2.0
 *
 * net.h: what the tests of the plugin share: checks, and a connection whose two ends are in this process.
 */
#ifndef MR_NET_TEST_H
#define MR_NET_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/mr_net_abi.h"

extern int failures, checks, log_lines;
extern char last_log[512];
extern const char *current;
extern const struct nn_v12 *net;
extern void *plugin, *ctx;

#define CHECK(cond, ...)                                             \
    do {                                                             \
        checks++;                                                    \
        if (!(cond)) {                                               \
            failures++;                                              \
            printf("  %s, line %d: %s: ", current, __LINE__, #cond); \
            printf(__VA_ARGS__);                                     \
            printf("\n");                                            \
        }                                                            \
    } while (0)
#define MUST(cond, ...)                                            \
    do {                                                           \
        if (!(cond)) {                                             \
            printf("%s, line %d: %s: ", current, __LINE__, #cond); \
            printf(__VA_ARGS__);                                   \
            printf("; last line of the log: %s\n", last_log);      \
            exit(1);                                               \
        }                                                          \
    } while (0)

void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);
double now_s(void);

struct pair {
    void *listen, *send, *recv;
    char handle[NN_HANDLE_BYTES];
};

#define HALF (8u << 20)
extern char *memory; /* two halves: sent from the first, received into the second */

void pair_open(struct pair *p, int from, int to);
void pair_close(struct pair *p);
void *reg(void *comm, void *at, size_t n);
/* Calls test until it is done or failed; what it returned. */
int wait_for(void *request, int *sizes, double seconds);
/* irecv and isend until a request is there. */
int receive(void *comm, int n, void **at, size_t *sizes, int *tags, void **mh, void **request);
int send_one(void *comm, void *at, size_t size, int tag, void *mh, void **request);
/* One message; checked. */
void transfer(struct pair *p, void *smh, void *rmh, size_t size);

void properties(void);
void sizes_of_messages(void);
void many_under_way(void);
void grouped(void);
void groups_mixed_up(void);
void too_many_groups(void);
void bad_handles(void);
void bad_registration(void);
void registration_cache(void);
void dmabuf(void);
void too_long(void);
void closed_under_requests(void);
void stranger_at_the_door(void);
void nobody_listens(void);
void flush(void);
void merged_device(void);
void threads(void);
void contexts(void);
void old_versions(void);
void huge(void);
void traffic_class(void);
void many_connections(void);

#endif
