/* SPDX-License-Identifier: Apache-2.0
 *
 * rs.h: what the files of rsockets share. Sockets over RDMA on top of the public rdma_cm and verbs calls, with the wire
 * protocol of rdma-core's rsockets (its protocol notes call it version 1), so that either end may be theirs.
 *
 * A stream is an RC connection. Each side has a receive buffer in two halves and tells the other, by RDMA WRITE into a
 * list of two entries (the target list), which half may be filled; data are WRITEs with immediate data that say how
 * many bytes came. Credits bound the messages that may be under way. A datagram socket is a UDP socket, over which the
 * two sides learn each other's UD queue pairs, and a UD queue pair for each local address.
 *
 * Locks: rs->lock guards everything of a socket. Nobody sleeps with it: who waits gives it up (rs_wait). One waiter at
 * a time, the leader, sleeps on the descriptors; the others on the condition.
 */
#ifndef MR_RS_H
#define MR_RS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <limits.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define RS_EXPORT __attribute__((visibility("default")))

/* ------------------------------------------------------------------------------------------------- on the wire ---- */

struct rs_sge {
    uint64_t addr;
    uint32_t key, length;
};
struct rs_iomap {
    uint64_t offset;
    struct rs_sge sge;
};
/* Private data of the connection request and its reply; integers in network order. */
struct rs_conn_data {
    uint8_t version, flags; /* RS_CONN_* */
    uint16_t credits;
    uint8_t rsv[3];
    uint8_t iomap_size; /* rs_scaled */
    struct rs_sge list; /* target list: address, key, number of entries; the iomap follows it */
    struct rs_sge data; /* the first half of the receive buffer */
};
_Static_assert(sizeof(struct rs_conn_data) == 40, "rs_conn_data");
#define RS_VERSION     1
#define RS_CONN_BIG    1u /* the sender's memory is big-endian */
#define RS_CONN_IOMAP  2u
#define RS_LIST_LENGTH 2u

/* Immediate data: what happened in the upper 3 bits, how much in the rest. */
enum rs_op { RS_OP_DATA = 0, RS_OP_LIST = 4, RS_OP_IOMAP = 6, RS_OP_CTRL = 7 };
enum rs_ctrl { RS_CTRL_DISCONNECT = 0, RS_CTRL_KEEPALIVE = 1, RS_CTRL_SHUTDOWN = 2 };
#define RS_IMM(op, data) ((uint32_t)(op) << 29 | ((uint32_t)(data)&0x1fffffffu))

/* ------------------------------------------------------------------------------------------------------- limits ----
 */

#define RS_LOWAT       2048u  /* room worth waiting for; the largest datagram, header included */
#define RS_CHUNK_FIRST 2048u  /* a long send begins with a short piece, */
#define RS_CHUNK_MOST  65536u /* and each piece is twice the one before, so that copying and sending overlap */
#define RS_QUEUE_LEAST 16u
#define RS_QUEUE_MOST  0xfffeu
#define RS_CTRL_SLOTS  4u /* of the send queue, for messages that need no credit */
#define RS_SPIN_US     10

enum rs_state { RS_NEW, RS_LISTENING, RS_RESOLVING, RS_ROUTING, RS_CONNECTING, RS_OPEN, RS_CLOSED, RS_FAILED };

/* Options besides those that are fields. */
enum rs_opt { RS_SO_REUSEADDR, RS_SO_KEEPALIVE, RS_SO_OOBINLINE, RS_TCP_NODELAY, RS_V6ONLY, RS_OPTS };

struct rs_map { /* of riomap: our memory, for the peer to write to or for ourselves */
    struct ibv_mr *mr;
    uint64_t offset;
    int index; /* in the peer's table; -1: local */
    bool told;
    struct rs_map *next;
};

struct rs_dgram;
struct rsock {
    int fd, type, domain;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool leader; /* somebody sleeps on epfd */
    enum rs_state state;
    int err;   /* of a connection that failed */
    int flags; /* O_NONBLOCK */
    bool opts[RS_OPTS];
    struct linger linger;
    int keepidle;
    int epfd; /* readable when there may be news */
    uint32_t sq_size, rq_size, inline_max, sbuf_size, rbuf_size;
    struct rs_dgram *dgram;

    /* stream */
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct sockaddr_storage peer;
    struct ibv_comp_channel *comp;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    bool armed;
    bool read_open, write_open, we_shut; /* halves of the connection */
    bool opened;                         /* it was connected once */
    bool told;                           /* the peer was told that we have shut ours */
    bool broken;                         /* the peer went without a word */

    /* sending */
    struct ibv_mr *smr;
    uint8_t *sbuf;
    uint32_t s_head, s_free; /* a ring of bytes, given back in order */
    uint32_t sqe_avail, ctrl_avail, ctrl_at;
    uint16_t sent, may_send; /* messages, mod 2^16: credits are the difference */
    struct rs_target {       /* the peer writes it */
        struct rs_sge list[RS_LIST_LENGTH];
        struct rs_iomap iomap[];
    } * target;
    struct ibv_mr *tmr;
    uint32_t target_at, iomap_size; /* of our table, which the peer fills */

    /* receiving */
    struct ibv_mr *rmr;
    uint8_t *rbuf;
    uint32_t *lens; /* messages that came: a ring of rq_size + 1 */
    uint32_t len_head, len_tail;
    uint32_t r_at;                /* next byte to read */
    uint32_t r_spare, r_spare_at; /* bytes of the buffer that the peer does not have, and where they begin */
    uint32_t granted;             /* bytes that the peer may still write */
    uint16_t taken, tell_at;      /* messages that the program has read; when to tell the peer */
    struct rs_sge peer_list;      /* where the peer's target list is */
    uint32_t peer_list_at;
    struct rs_sge peer_iomap;
    bool swap;
    struct rs_map *maps;
    bool maps_untold;
};

/* rs_core.c */
struct rsock *rs_find(int fd); /* NULL: errno is EBADF */
struct rsock *rs_alloc(const struct rsock *like, int domain, int type);
int rs_publish(struct rsock *rs, int fd); /* 0 or errno */
void rs_free(struct rsock *rs);
int rs_watch(struct rsock *rs, int fd);
int rs_err(int e); /* sets errno, returns -1 */
uint64_t rs_now_us(void);
bool rs_nonblocking(const struct rsock *rs, int flags);
/* Waits until ready says so; the lock is held before and after. 0, EAGAIN (nonblock), ETIMEDOUT (limit_ms >= 0). */
int rs_wait(struct rsock *rs, bool (*ready)(struct rsock *), bool nonblock, int limit_ms);
void rs_progress(struct rsock *rs); /* completions */
void rs_drain(struct rsock *rs);    /* events of its descriptors */
void rs_arm(struct rsock *rs);
socklen_t rs_addr_len(const struct sockaddr *a);
void rs_addr_out(struct sockaddr *to, socklen_t *len, const struct sockaddr *from);

/* rs_conn.c */
void rs_cm_progress(struct rsock *rs);
int rs_shut(struct rsock *rs, int how, int limit_ms);
int rs_finish_connect(struct rsock *rs, bool nonblock);
bool rs_settled(struct rsock *rs);
uint8_t rs_scaled(uint32_t v);
uint32_t rs_unscaled(uint8_t v);

/* rs_stream.c */
int rs_stream_setup(struct rsock *rs); /* queue pair and buffers */
void rs_stream_drop(struct rsock *rs);
void rs_conn_data_ours(struct rsock *rs, struct rs_conn_data *c);
int rs_conn_data_theirs(struct rsock *rs, const void *data, size_t len);
void rs_stream_open(struct rsock *rs);
void rs_stream_progress(struct rsock *rs);
int rs_send_ctrl(struct rsock *rs, enum rs_ctrl what);
void rs_fail(struct rsock *rs, int err);
bool rs_have_data(struct rsock *rs);
bool rs_can_send(struct rsock *rs);
bool rs_all_sent(struct rsock *rs);
ssize_t rs_stream_send(struct rsock *rs, const struct iovec *iov, int n, int flags);
ssize_t rs_stream_recv(struct rsock *rs, const struct iovec *iov, int n, int flags);
int rs_post_write(struct rsock *rs, int opcode, const void *data, uint32_t n, uint32_t imm, uint64_t addr,
                  uint32_t key);

/* rs_iomap.c */
int rs_tell_maps(struct rsock *rs, int flags);
void rs_drop_maps(struct rsock *rs);

/* rs_dgram.c */
int rs_dgram_make(struct rsock *rs);
void rs_dgram_drop(struct rsock *rs);
void rs_dgram_progress(struct rsock *rs);
void rs_dgram_drain(struct rsock *rs);
void rs_dgram_arm(struct rsock *rs);
int rs_dgram_connect(struct rsock *rs, const struct sockaddr *to, socklen_t len);
bool rs_dgram_readable(struct rsock *rs);
bool rs_dgram_writable(struct rsock *rs);
bool rs_dgram_all_sent(struct rsock *rs);
ssize_t rs_dgram_send(struct rsock *rs, const struct iovec *iov, int n, int flags, const struct sockaddr *to,
                      socklen_t len);
ssize_t rs_dgram_recv(struct rsock *rs, const struct iovec *iov, int n, int flags, struct sockaddr *from,
                      socklen_t *len, int *msg_flags);

/* rs_poll.c */
short rs_revents(struct rsock *rs, short events);

#endif
