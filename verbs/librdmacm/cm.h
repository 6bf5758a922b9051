/* SPDX-License-Identifier: Apache-2.0
 *
 * cm.h: what the files of this library share. Connection management is the daemon's work (daemon/cm); this library
 * turns calls into control messages (mr_abi.h, MR_OP_CM_*) and takes QPs through their states with libibverbs.
 *
 * A process has one connection to the daemon for this, made at first use. When the daemon ends, channels become
 * readable for ever: their IDs get RDMA_CM_EVENT_DEVICE_REMOVAL, and what is made afterwards asks for a daemon anew.
 *
 * Locks, outermost first: cm_lock (the current daemon), d->lock (IDs and devices), id->lock (events), conn->lock (a
 * call).
 */
#ifndef CM_H
#define CM_H

#include "../libibverbs/mr.h"

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

struct cm_dev {
    struct ibv_context *verbs;
    struct ibv_pd *pd; /* the default one, while IDs use it */
    uint64_t guid;
    uint32_t users;
    uint8_t max_reads;
    struct cm_dev *next;
};

#define CM_BUCKETS 1024u

struct cm_id;
struct cm_daemon {
    struct mr_conn conn;
    _Atomic int gone;
    uint32_t refs;        /* channels, and being the current one (cm_lock) */
    pthread_mutex_t lock; /* ids, devs */
    struct cm_id *ids[CM_BUCKETS];
    struct cm_dev *devs;
    struct cm_daemon *next; /* of all, for fork */
};

struct cm_chan {
    struct rdma_event_channel ev; /* first: what the program holds */
    uint32_t handle;
    struct cm_daemon *d;
    pthread_mutex_t lock;
    pthread_mutex_t order; /* events are taken and looked up in turn; taken before id->lock */
    uint32_t readers;      /* threads that wait for an event */
    int32_t over;          /* datagrams to be taken back less those that a reader took for nothing */
    bool closed;           /* with readers: they never come back, as from a kernel's file that is closed under them */
};
MR_HIDDEN_INLINE struct cm_chan *to_chan(struct rdma_event_channel *c) {
    return (struct cm_chan *)c;
}

struct cm_group {
    struct sockaddr_storage addr;
    void *context;
    uint32_t handle;
    uint32_t got, completed; /* events (id->lock) */
    union ibv_gid mgid;
    bool attached, send_only;
    struct cm_group *next;
};

struct cm_id {
    struct rdma_cm_id id; /* first: what the program holds */
    struct cm_daemon *d;
    struct cm_dev *dev;
    uint32_t handle;
    bool sync;          /* it has a channel of its own and waits for the end of each call */
    bool connect_error; /* its QP could not be made ready: later events of the attempt are not shown */
    bool removed;       /* DEVICE_REMOVAL was given out */
    uint8_t initiator_depth, responder_resources;
    struct ibv_ece local_ece, remote_ece;
    struct ibv_qp_init_attr *ep_attr; /* of rdma_create_ep: for the QPs of requests */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t completed; /* events acknowledged */
    struct cm_group *groups;
    struct cm_id *next; /* in d->ids */
};
MR_HIDDEN_INLINE struct cm_id *to_id(struct rdma_cm_id *id) {
    return (struct cm_id *)id;
}

struct cm_event {
    struct rdma_cm_event ev; /* first: what the program holds */
    struct cm_id *owner;     /* that waits for it to be acknowledged */
    struct cm_group *group;
    uint8_t private_data[256];
};

/* conn.c */
struct cm_daemon *cm_daemon_get(void); /* the current one, made if need be; NULL and errno */
void cm_daemon_put(struct cm_daemon *d);
int cm_call(struct cm_daemon *d, uint16_t op, void *req, size_t req_len, void *rep,
            size_t rep_len); /* 0 or -1, errno */
#define CM_CALL(d, op, req, rep) cm_call((d), (op), (req), sizeof *(req), (rep), sizeof *(rep))
int cm_simple(struct cm_id *id, uint16_t op);
int cm_arg(struct cm_id *id, uint16_t op, uint32_t arg);

/* device.c */
int cm_use_device(struct cm_id *id, uint64_t guid);
void cm_leave_device(struct cm_id *id);

/* id.c */
struct cm_id *cm_id_alloc(struct rdma_event_channel *ch, void *context, enum rdma_port_space ps, enum ibv_qp_type type);
void cm_id_free(struct cm_id *id);
void cm_id_insert(struct cm_id *id, uint32_t handle);
struct cm_id *cm_id_find(struct cm_daemon *d, uint32_t handle);
int cm_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **out, void *context, enum rdma_port_space ps,
                 enum ibv_qp_type type);
int cm_query(struct cm_id *id); /* addresses and device from the daemon */
int cm_addr_to_abi(struct mr_cm_addr *to, const struct sockaddr *from);
socklen_t cm_addr_len(const struct sockaddr *a);

/* event.c */
int cm_complete(struct cm_id *id); /* waits for the end of a call on a sync ID */
void cm_drain(struct rdma_event_channel *ch, uint32_t signals);

/* qp.c */
int cm_qp_ready(struct cm_id *id, uint8_t responder_resources, uint8_t initiator_depth);
int cm_qp_error(struct cm_id *id);
MR_HIDDEN_INLINE bool cm_is_ud(const struct cm_id *id) {
    return id->id.qp_type == IBV_QPT_UD;
}

#endif
