/* SPDX-License-Identifier: Apache-2.0
 *
 * cm_parts.h: what the files of mr_cm share.
 */
#ifndef CM_PARTS_H
#define CM_PARTS_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

extern int failed;

#define CHECK(what)                                                                                        \
    do {                                                                                                   \
        if (!(what)) {                                                                                     \
            fprintf(stderr, "%s:%d: not so: %s (errno %s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
            failed = 1;                                                                                    \
        }                                                                                                  \
    } while (0)
#define OK(call)                                                                            \
    do {                                                                                    \
        if (call) {                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, strerror(errno)); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)
/* It must fail with -1 and this errno. */
#define ERR(call, want)                                                                                 \
    do {                                                                                                \
        errno = 0;                                                                                      \
        int got_ = (call);                                                                              \
        if (got_ != -1 || errno != (want)) {                                                            \
            fprintf(stderr, "%s:%d: %s: %d, errno %s instead of %s\n", __FILE__, __LINE__, #call, got_, \
                    strerrorname_np(errno), strerrorname_np(want));                                     \
            failed = 1;                                                                                 \
        }                                                                                               \
    } while (0)

struct sockaddr *at(struct sockaddr_in *s, const char *ip, int port);
struct rdma_cm_event *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type want);
void swallow(struct rdma_event_channel *ch, enum rdma_cm_event_type want);
struct rdma_cm_id *listener(struct rdma_event_channel *ch, enum rdma_port_space ps, const char *ip, int port);
struct rdma_cm_id *routed(struct rdma_event_channel *ch, enum rdma_port_space ps, const char *ip, int port);
struct ibv_qp_init_attr queues(enum ibv_qp_type type);

void api_errors(void);
void shared_queues(void);
void endpoints(void);
void migration(void);
void acknowledged(void);
void datagrams(void);
void groups(void);
void many(void);
void forked(void);

#endif
