/* SPDX-License-Identifier: Apache-2.0
 *
 * mr.h: what the files of this library share. A call of the program becomes either a message to the daemon
 * (control.c) or entries in the shared memory of its context (shm.c; layout in mr_abi.h).
 *
 * Locks, outermost first:
 *   list_lock (control.c: open contexts, for fork)   ctx->table_lock (qpn and cookie tables, CQ clean-up)
 *   cq->lock (consumer side of a CQ), cq->arm_lock   qp->sq.lock, qp->rq.lock (producer sides)
 *   conn->lock (one request and its reply), arena->lock: leaves.
 */
#ifndef MR_H
#define MR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#include "../include/mr_abi.h"

/* verbs.h hides these exported functions behind macros of the same name. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define MR_EXPORT        __attribute__((visibility("default")))
#define MR_HIDDEN_INLINE static inline __attribute__((always_inline))

/* Entries of a ring for n. Not fewer than 16: over several paths an answer may be there before the acknowledgement of
 * what it answers, so that a program's next request comes before it has polled the completion of the last one
 * (perftest -e with a queue of one polls once and goes on). */
MR_HIDDEN_INLINE uint32_t mr_ring_size(uint32_t n) {
    uint32_t p = 16;
    while (p < n)
        p <<= 1;
    return p;
}

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* ------------------------------------------------------------------------------------------- device list ---- */

/* Stock providers look at ibv_device through a larger struct of rdma-core (verbs_device, 712 bytes). Its tail
 * must exist, and its ops must not be theirs, or they read past the end of our devices. */
struct mr_dev {
    struct ibv_device ibv;  /* @0 */
    const void *ops;        /* @664 */
    uint32_t refcount, pad; /* @672 */
    void *list[2];          /* @680 */
    void *sysfs;            /* @696 */
    uint64_t core_support;  /* @704 */

    struct mr_dev *next;
    struct mr_nic nic;
    char socket[108];
    struct mr_device_attr attr; /* filled when it is first opened */
    bool have_attr;
};

/* ------------------------------------------------------------------------------- control connection (control.c) */

struct mr_conn {
    pthread_mutex_t lock; /* one request at a time */
    int fd;               /* -1: gone */
    uint32_t seq;
    struct mr_hello_reply hello;
};

/* Timeouts: a listing must not hang a program that only asks whether there is a NIC; a request on an open
 * context may wait for a daemon that is starved of CPU, but not for ever. */
#define MR_LIST_TIMEOUT_S 5
#define MR_CALL_TIMEOUT_S 60

int mr_conn_open(struct mr_conn *c, const char *socket, bool with_guard, int timeout_s);
void mr_conn_close(struct mr_conn *c);
/* One request, one reply. Returns 0 or an errno; EIO when the connection is gone. `rep` may be NULL. */
int mr_conn_call(struct mr_conn *c, uint16_t op, void *req, size_t req_len, int req_fd, void *rep, size_t rep_len,
                 int *fds, int nfds);
int mr_find_daemon(struct mr_conn *c, char socket[static 108]);
bool mr_verbose(void);
/* One line on stderr, only with MR_VERBOSE=1. */
void mr_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ------------------------------------------------------------------------------------ shared memory (shm.c) */

struct mr_extent {
    uint64_t off, len;
    struct mr_extent *next;
};
struct mr_arena {
    pthread_mutex_t lock;
    uint8_t *base;
    uint64_t bytes;
    int fd; /* the memfd, kept to give pages back */
    struct mr_extent *free;
    uint64_t *bells; /* bitmap of doorbell numbers in use */
};

int mr_arena_make(struct mr_arena *a);
void mr_arena_drop(struct mr_arena *a);
uint64_t mr_arena_alloc(struct mr_arena *a, uint64_t len); /* offset, 0 = full; zeroed */
void mr_arena_free(struct mr_arena *a, uint64_t off, uint64_t len);
int mr_bell_alloc(struct mr_arena *a, uint32_t *bell);
void mr_bell_free(struct mr_arena *a, uint32_t bell);
int mr_memfd(uint64_t bytes, void **map); /* a sealed one, mapped; negative errno */

/* ---------------------------------------------------------------------------------------------- context ---- */

#define MR_QPN_BITS  24
#define MR_LEAF_BITS 10
#define MR_LEAVES    (1u << (MR_QPN_BITS - MR_LEAF_BITS))

/* Objects that events name: looked up by cookie, so that an event that was still in the pipe when its object was
 * destroyed is recognised and dropped. */
enum mr_kind { MR_KIND_CQ = 1, MR_KIND_QP, MR_KIND_SRQ };
struct mr_named {
    uint64_t cookie;
    enum mr_kind kind;
    struct mr_named *next;
};
#define MR_NAMED_BUCKETS 1024u
#define MR_KEY_BUCKETS   1024u /* regions by lkey */

struct mr_qp;
struct mr_assist_thread;
struct mr_ctx {
    struct mr_conn conn;
    struct mr_assist_thread *assist; /* NULL: the daemon reaches our memory itself */
    struct mr_arena arena;
    struct mr_ctx_page *page;
    struct mr_dev *dev;
    struct mr_device_attr attr;
    int bell_fd;
    _Atomic int gone;     /* the daemon is gone, or this is a forked child */
    bool forked;          /* a forked child: its parent owns everything; locks may be held by nobody */
    bool fatal_delivered; /* IBV_EVENT_DEVICE_FATAL was given out */
    bool closed;          /* (table_lock) */
    int users;            /* threads that wait for an event or close it (table_lock) */

    pthread_mutex_t table_lock;
    _Atomic(struct mr_qp *) *_Atomic qpn[MR_LEAVES];
    struct mr_named *named[MR_NAMED_BUCKETS];
    uint64_t next_cookie;

    pthread_mutex_t mr_lock;
    struct mr_mr *moved; /* regions whose iova is not their address */
    struct mr_mr *keys[MR_KEY_BUCKETS];

    struct mr_ctx *next;
    struct verbs_context v; /* last: it ends with the ibv_context that the program holds */
};

MR_HIDDEN_INLINE struct mr_ctx *to_ctx(struct ibv_context *c) {
    return container_of(c, struct mr_ctx, v.context);
}

int mr_call(struct mr_ctx *ctx, uint16_t op, void *req, size_t req_len, void *rep, size_t rep_len);
int mr_call_fds(struct mr_ctx *ctx, uint16_t op, void *req, size_t req_len, void *rep, size_t rep_len, int *fds,
                int nfds);
/* The same, with a descriptor of ours. */
int mr_call_pass(struct mr_ctx *ctx, uint16_t op, void *req, size_t req_len, int fd, void *rep, size_t rep_len);
#define MR_CALL(ctx, op, req, rep) mr_call((ctx), (op), (req), sizeof *(req), (rep), sizeof *(rep))
int mr_free_handle(struct mr_ctx *ctx, uint16_t op, uint32_t handle); /* mr_handle -> mr_hdr */
/* True when the daemon has hung up or given up this context; looks at the socket, so not for every call. */
bool mr_probe_gone(struct mr_ctx *ctx);
MR_HIDDEN_INLINE bool mr_is_gone(struct mr_ctx *ctx) {
    return __builtin_expect(atomic_load_explicit(&ctx->gone, memory_order_relaxed) ||
                                __atomic_load_n(&ctx->page->dead, __ATOMIC_RELAXED),
                            0);
}

/* Opens a context as the daemon says it with op OPEN or IMPORT; device.c. */
struct mr_ctx *mr_ctx_open(const char *socket, struct mr_dev *d, const uint64_t *token, int *err);
bool mr_ctx_leave(struct mr_ctx *ctx);
void mr_fill_ops(struct verbs_context *v); /* ops.c: every entry of the tables a program can jump through */
uint64_t mr_name_add(struct mr_ctx *ctx, struct mr_named *n, enum mr_kind kind); /* needs table_lock */
void mr_name_del(struct mr_ctx *ctx, struct mr_named *n);                        /* needs table_lock */
struct mr_named *mr_name_find(struct mr_ctx *ctx, uint64_t cookie);              /* needs table_lock */

/* Verbs are no cancellation points, but for the wait in the two ibv_get_*_event: a thread that were cancelled within
 * ours would leave locks behind. So what does not wait goes around the C library, where the calls are none. */
MR_HIDDEN_INLINE ssize_t mr_recv_now(int fd, void *buf, size_t len, int flags) {
    return syscall(SYS_recvfrom, fd, buf, len, flags | MSG_DONTWAIT, NULL, NULL);
}

/* fork.c */
void mr_fork_watch(void);
extern pthread_mutex_t mr_devices_lock; /* device.c */
void mr_fork_add(struct mr_ctx *ctx);
void mr_fork_del(struct mr_ctx *ctx);
void mr_guard(uint64_t *addr, uint64_t *nonce);
void mr_guard_forget(void);

/* assist.c: a thread that copies for a daemon which may not reach our memory */
int mr_assist_start(struct mr_ctx *ctx);
void mr_assist_stop(struct mr_ctx *ctx);
void mr_assist_settle(struct mr_ctx *ctx);
void mr_assist_forked(struct mr_ctx *ctx);

/* Error returns: errno is always set as well (some programs look only there). */
MR_HIDDEN_INLINE int mr_err(int e) {
    if (e)
        errno = e;
    return e;
}
MR_HIDDEN_INLINE void *mr_null(int e) {
    errno = e;
    return NULL;
}
MR_HIDDEN_INLINE int mr_minus1(int e) {
    errno = e;
    return -1;
}

/* --------------------------------------------------------------------------------------------- objects ---- */

struct mr_pd {
    struct ibv_pd ibv;
    _Atomic int refs;    /* parent domains of this one; of a parent domain: objects with memory of its allocator */
    struct mr_pd *below; /* a parent domain: the one it stands for */
    bool single_threaded, allocates;
    void *(*alloc)(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type);
    void (*free)(struct ibv_pd *pd, void *context, void *p, uint64_t type);
    void *context;
};
/* Zeroed memory for an object of a domain, by the program's own allocator where it gave one. The object remembers in
 * *from what mr_pd_release must be told: NULL = the default. */
enum mr_resource { MR_RESOURCE_QP = 1, MR_RESOURCE_CQ, MR_RESOURCE_SRQ };
void *mr_pd_alloc(struct ibv_pd *pd, size_t size, enum mr_resource type, struct mr_pd **from);
void mr_pd_release(struct mr_pd *from, void *p, enum mr_resource type);

struct mr_dm {
    struct ibv_dm ibv;
    uint8_t *base;
    uint64_t length, mapped;
    _Atomic int refs; /* regions registered over it, and an importer's handle */
    bool imported;
    struct ibv_context *own; /* of a forked child, which has no part in ibv.context */
};

enum mr_mr_kind { MR_MR_PLAIN, MR_MR_NULL, MR_MR_DM, MR_MR_MAPPED, MR_MR_IMPORTED };
struct mr_mr {
    struct ibv_mr ibv;
    void *mem; /* where it is in this program */
    uint64_t iova;
    uint32_t access;
    enum mr_mr_kind kind;
    struct mr_mr *next;   /* in ctx->moved */
    struct mr_mr *by_key; /* in ctx->keys */
    struct mr_dm *dm;     /* MR_MR_DM */
    void *map;            /* MR_MR_MAPPED: what was mapped for it */
    size_t map_len;
};
void mr_dm_put(struct mr_dm *dm);
struct ibv_mr *mr_reg(struct ibv_pd *pd, const struct mr_mr *want, unsigned access);
/* An address of a work request as a pointer of this program; NULL when the key is not known here. */
void *mr_sge_pointer(struct mr_ctx *ctx, uint32_t lkey, uint64_t addr);
int mr_check_range(const void *addr, size_t len, bool write); /* vma.c: 0 or EFAULT */
int mr_check_huge(const void *addr, size_t len);              /* 0 or EINVAL */

struct mr_channel {
    struct ibv_comp_channel ibv;
    uint32_t handle;
    pthread_mutex_t lock; /* taking a record and counting it is one step */
};

struct mr_cq {
    struct ibv_cq_ex ibv; /* every CQ has this size: programs cast freely between the two */
    pthread_mutex_t lock;
    pthread_mutex_t arm_lock; /* arming, and moving to another ring; taken after lock */
    struct mr_ring *ring;
    uint8_t *entries;
    uint32_t mask;
    _Atomic uint32_t cons; /* the owner's copy of ring->cons */
    _Atomic uint32_t empty_polls;
    struct mr_cqe *cur; /* extended polling: the entry that the read_* calls look at */
    struct mr_cqe cur_copy;
    bool single_threaded;
    struct mr_srq *xrc;           /* shared receive queues of XRC domains that complete here (lock) */
    uint32_t comp_got, async_got; /* events the program has been given (table_lock) */
    uint64_t ring_off, ring_len;
    struct mr_pd *from; /* whose memory this is, see mr_pd_alloc */
    struct mr_named name;
};
MR_HIDDEN_INLINE struct mr_cq *to_cq(struct ibv_cq *c) {
    return (struct mr_cq *)c;
}

/* One work queue as its producer sees it. */
struct mr_wq {
    pthread_mutex_t lock;
    struct mr_ring *ring;
    uint8_t *slots;
    uint32_t mask, stride, limit; /* limit: requests that may be outstanding (granted max_wr) */
    uint32_t head;                /* next index to write */
    _Atomic uint32_t tail;        /* all below have been completed and polled */
    uint32_t max_sge, bell;
    uint64_t ring_off, ring_len;
};

struct mr_qp {
    struct ibv_qp_ex ibv; /* + room: newer headers have more wr_* pointers behind it */
    void (*trap[16])(void);
    struct mr_ctx *ctx;
    struct mr_wq sq, rq;
    uint32_t max_inline;
    bool sig_all, is_ex;
    uint64_t send_ops;
    struct ibv_qp_cap cap;
    /* wr_start … wr_complete */
    uint32_t ex_first;
    int ex_err;
    struct mr_sqe *ex_wqe;
    uint32_t async_got;
    struct mr_pd *from; /* whose memory this is, see mr_pd_alloc */
    struct mr_named name;
};
MR_HIDDEN_INLINE struct mr_qp *to_qp(struct ibv_qp *q) {
    return (struct mr_qp *)q;
}

struct mr_srq {
    struct ibv_srq ibv;
    struct mr_ctx *ctx;
    pthread_mutex_t lock; /* taken after a CQ's */
    struct mr_ring *ring;
    uint32_t *index; /* which slot the n-th posted receive is in */
    uint8_t *slots;
    uint32_t mask, stride, limit, max_sge, head;
    uint32_t *free, nfree; /* slots that hold no receive: a stack */
    struct mr_cq *cq;      /* XRC: where its receives complete, */
    struct mr_srq *next;   /* the next one there, */
    uint32_t num;          /* and its number as peers name it */
    uint64_t ring_off, ring_len, slots_off, slots_len;
    uint32_t async_got;
    struct mr_pd *from; /* whose memory this is, see mr_pd_alloc */
    struct mr_named name;
};
MR_HIDDEN_INLINE struct mr_srq *to_srq(struct ibv_srq *s) {
    return (struct mr_srq *)s;
}

struct mr_xrcd {
    struct ibv_xrcd ibv;
    uint32_t handle;
};
MR_HIDDEN_INLINE struct mr_xrcd *to_xrcd(struct ibv_xrcd *x) {
    return (struct mr_xrcd *)x;
}

struct mr_ah {
    struct ibv_ah ibv;
};

/* cq.c, poll.c */
int mr_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc);
int mr_req_notify_cq(struct ibv_cq *ibcq, int solicited_only);
void mr_cq_clean(struct mr_cq *cq, struct mr_qp *qp);       /* drops what a QP left in it; needs the lock */
void mr_cq_clean_srq(struct mr_cq *cq, struct mr_srq *srq); /* the same of an SRQ of an XRC domain */
void mr_cq_ex_fill(struct mr_cq *cq, uint64_t wc_flags);
int mr_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
struct ibv_cq_ex *mr_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
void mr_wait_acked(pthread_mutex_t *m, pthread_cond_t *cond, uint32_t *completed, uint32_t got);

/* qp.c, post.c, qp_ex.c */
int mr_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int mr_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int mr_put_recv(uint8_t *to, uint32_t max_sge, const struct ibv_recv_wr *wr);
struct ibv_qp *mr_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
void mr_qp_ex_fill(struct mr_qp *qp);
struct mr_qp *mr_qp_find(struct mr_ctx *ctx, uint32_t qpn);
void mr_ring_bell(struct mr_ctx *ctx, uint32_t bell);

/* query.c */
int mr_query_port_len(struct ibv_context *c, uint8_t port, void *attr, size_t len);
int mr_query_port_op(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t len);
int mr_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a,
                       size_t len);
int mr_query_rt_values(struct ibv_context *c, struct ibv_values_ex *v);
int mr_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type);
int mr_gid(struct ibv_context *c, uint32_t port, uint32_t index, struct mr_gid_entry *out);

/* xrc.c */
struct ibv_xrcd *mr_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a);
int mr_close_xrcd(struct ibv_xrcd *xrcd);
struct ibv_qp *mr_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a);

/* ah.c, srq.c */
void mr_srq_retire(struct mr_srq *srq, uint32_t slot);
int mr_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_srq *mr_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int mr_get_srq_num(struct ibv_srq *srq, uint32_t *num);
void mr_ah_to_abi(struct mr_ah_attr *to, const struct ibv_ah_attr *from);
void mr_ah_from_abi(struct ibv_ah_attr *to, const struct mr_ah_attr *from);

/* mr.c, dm.c, domain.c */
struct ibv_mr *mr_alloc_null_mr(struct ibv_pd *pd);
int mr_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list, uint32_t n);
struct ibv_dm *mr_alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr);
int mr_free_dm(struct ibv_dm *dm);
struct ibv_mr *mr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned access);
struct ibv_td *mr_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int mr_dealloc_td(struct ibv_td *td);
struct ibv_pd *mr_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);
struct ibv_mw *mr_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int mr_dealloc_mw(struct ibv_mw *mw);
int mr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

#endif
