/* SPDX-License-Identifier: Apache-2.0
 *
 * net.h: what the files of the plugin share.
 *
 *   adapt.c   the tables of versions 6 to 12, thin, over the functions below
 *   device.c  devices: found, merged, described
 *   mr.c      registered memory, with a cache
 *   boot.c    handles, listen, connect, accept: a TCP connection beside each pair of QPs
 *   conn.c    what a connection is made of: QPs, CQs, shared memory; its end
 *   data.c    isend, irecv, iflush, test
 *   verbs.c   libibverbs, by dlopen
 *   param.c   settings, by environment
 *
 * A connection carries data one way. Its receiver writes what it can take (address, key, size, tag: a "clear to send")
 * into a ring of slots in the sender's memory, by RDMA WRITE. The sender answers each slot by WRITEs of the data and a
 * WRITE_WITH_IMM that carries the sizes; its immediate data names the slot. See data.c.
 */
#ifndef MR_NET_H
#define MR_NET_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "mr_net_abi.h"

enum {
    MAX_DEVS = 8, /* devices merged into one: as many as version 12 knows */
    MAX_PHYS = 32,
    MAX_VDEVS = 64,
    MAX_QPS = 32,   /* of a connection */
    MAX_RECVS = 8,  /* grouped receives */
    SLOTS = 32,     /* receives under way in a connection: NN_REQUESTS */
    SQ_SEND = 320,  /* work requests of a sender's QP: all slots with full groups, and the longest messages */
    SQ_RECV = 64,   /* of a receiver's: clear-to-sends and heartbeats */
    CTS_SIGNAL = 8, /* every so many clear-to-sends have a completion */
};
#define CHUNK         (1ull << 30) /* of a WRITE, at most */
#define MAX_P2P_BYTES (32ull << 30)
#define HEARTBEAT_NS  1000000000ll /* silence of a peer after which the network is asked whether it is there */
#define GOODBYE_NS    1000000000ll /* requests live that long after the peer closed in order */
#define CHECK_NS      10000000ll   /* between looks at the socket and at events of the device */
#define CHECK_EVERY   32           /* fruitless polls between looks at the clock */
#define CACHE_LINE    64

/* -------------------------------------------------------------------------------------------------- log */

extern nn_logger net_log; /* the library's; never NULL */
#define WARN(...) net_log(NN_LOG_WARN, ~0ul, __FILE__, __LINE__, "NET/MetaRoCE : " __VA_ARGS__)
#define INFO(...) net_log(NN_LOG_INFO, NN_SUBSYS_NET, __func__, __LINE__, "NET/MetaRoCE : " __VA_ARGS__)
void net_log_to(nn_logger log);

/* -------------------------------------------------------------------------------------------------- settings */

/* Each setting is declared here, once: name, the library's own name for the same where it has one, default, least and
 * greatest value, and what it does. tests/check.sh compares man/mroce-net.7 with it. */
#define PARAMS(X)                                                                                                    \
    X(GID_INDEX, "NCCL_IB_GID_INDEX", -1, -1, 255, "GID of the NICs; -1: the first IPv4 address of RoCE v2")         \
    X(TRAFFIC_CLASS, "NCCL_IB_TC", 0, 0, 255, "traffic class, where a communicator does not choose one")             \
    X(SERVICE_LEVEL, "NCCL_IB_SL", 0, 0, 15, "service level")                                                        \
    X(TIMEOUT, "NCCL_IB_TIMEOUT", 17, 1, 31, "of QPs: 4.096 us times two to this, eight times before an error")      \
    X(RETRY_COUNT, "NCCL_IB_RETRY_CNT", 7, 0, 7, "retries of QPs")                                                   \
    X(QPS, "NCCL_IB_QPS_PER_CONNECTION", 1, 1, 8, "QPs a connection and device")                                     \
    X(SPLIT, "NCCL_IB_SPLIT_DATA_ON_QPS", 0, 0, 1, "1: each message goes over all QPs, 0: over one of them in turn") \
    X(INLINE, "NCCL_IB_USE_INLINE", 1, 0, 1, "1: small control messages travel in the work request")                 \
    X(IMM_BYTES, "NCCL_IB_AR_THRESHOLD", 8192, 0, 1048576, "messages up to this are one WRITE_WITH_IMM")             \
    X(MERGE, NULL, 1, 0, 1, "1: devices with one system GUID (planes of a NIC) are one device")                      \
    X(FLUSH, NULL, 0, 0, 1, "1: iflush reads back host memory, too")                                                 \
    X(DMABUF, NULL, -1, -1, 1, "GPU memory by dma-buf: -1: where the device says so, 0: never, 1: yes")              \
    X(CONNECT_SECONDS, NULL, 30, 1, 3600, "time for a connection to be made once the peer was reached")

#define PARAM_ENUM(name, alias, def, least, most, text) PARAM_##name,
enum param { PARAMS(PARAM_ENUM) PARAM_COUNT };
int param(enum param p);

/* Words: HCA (NCCL_IB_HCA), IFNAME (NCCL_SOCKET_IFNAME), LIB (NCCL_IBVERBS_LIB). NULL where it is not set. */
const char *param_word(const char *name, const char *alias);
/* Is name in a list as those variables have it: prefixes with commas, = in front for whole names, ^ for all but these?
 * A name may have a port behind a colon. */
bool param_match(const char *list, const char *name, int port);

/* -------------------------------------------------------------------------------------------------- verbs */

/* Calls of libibverbs that are exported symbols; posting and polling are inline in its header. */
#define VERBS_REQUIRED(X)                                                                              \
    X(struct ibv_device **, get_device_list, (int *))                                                  \
    X(void, free_device_list, (struct ibv_device **))                                                  \
    X(const char *, get_device_name, (struct ibv_device *))                                            \
    X(struct ibv_context *, open_device, (struct ibv_device *))                                        \
    X(int, close_device, (struct ibv_context *))                                                       \
    X(int, get_async_event, (struct ibv_context *, struct ibv_async_event *))                          \
    X(void, ack_async_event, (struct ibv_async_event *))                                               \
    X(int, query_device, (struct ibv_context *, struct ibv_device_attr *))                             \
    X(int, query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *))                        \
    X(int, query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *))                           \
    X(struct ibv_pd *, alloc_pd, (struct ibv_context *))                                               \
    X(int, dealloc_pd, (struct ibv_pd *))                                                              \
    X(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int))                                 \
    X(int, dereg_mr, (struct ibv_mr *))                                                                \
    X(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
    X(int, destroy_cq, (struct ibv_cq *))                                                              \
    X(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))                        \
    X(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                                    \
    X(int, destroy_qp, (struct ibv_qp *))                                                              \
    X(int, fork_init, (void))                                                                          \
    X(const char *, event_type_str, (enum ibv_event_type))                                             \
    X(const char *, wc_status_str, (enum ibv_wc_status))
#define VERBS_OPTIONAL(X)                                                                                       \
    X(int, _query_gid_ex, (struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t)) \
    X(struct ibv_mr *, reg_dmabuf_mr, (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int))                  \
    X(int, query_port_speed, (struct ibv_context *, uint32_t, uint64_t *))

#define VERBS_POINTER(type, name, args) type(*name) args;
struct verbs {
    VERBS_REQUIRED(VERBS_POINTER)
    VERBS_OPTIONAL(VERBS_POINTER)
};
extern struct verbs vb;
int verbs_load(void);

/* -------------------------------------------------------------------------------------------------- devices */

struct phys { /* a port of a device of libibverbs */
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    char name[IBV_SYSFS_NAME_MAX];
    char *pci_path; /* NULL without sysfs */
    uint64_t system_guid;
    int port, gid_index, speed, max_qp, plane;
    bool dmabuf;
    enum ibv_mtu mtu;
    uint8_t link_layer;
    uint16_t lid;
    uint64_t max_msg;
    union ibv_gid gid;
    _Atomic int fatal; /* an event said so */
};

struct net_mr;

struct vdev { /* what the library sees as a device: one or more of the above */
    char name[160];
    int ndevs;
    struct phys *devs[MAX_DEVS];
    int speed, rail, plane;
    int nparts, parts[MAX_DEVS]; /* as the library named them: itself, or what it made this one of */
    struct net_mr *mrs;
};

extern pthread_mutex_t net_lock; /* devices, pending connects, registered memory */
int devices_open(void);
void devices_close(void);
void devices_hold(int by); /* connections that are alive keep devices open */
struct vdev *device_get(int dev);
int device_events(struct phys *p);

/* -------------------------------------------------------------------------------------------------- memory */

struct net_mr {
    struct net_mr *next;
    struct vdev *dev;
    uintptr_t addr;
    size_t len;
    int type, refs;
    bool dmabuf;
    struct ibv_mr *mr[MAX_DEVS];
};
void mrs_forget(struct vdev *v); /* net_lock is held */

/* -------------------------------------------------------------------------------------------------- connections */

struct cts_entry { /* a receive of a group */
    uint64_t addr, size;
    uint32_t tag, rkey[MAX_DEVS], unused;
};

/* What a receiver writes: the last n entries and what follows them, in one WRITE. The last eight bytes of a message are
 * placed after the others (on hardware: all of it in order), so that who sees idx sees the rest. */
struct cts {
    struct cts_entry entry[MAX_RECVS];
    uint32_t n, unused;
    uint64_t idx; /* counts from 1 */
};

enum req_kind { REQ_FREE, REQ_SEND, REQ_RECV, REQ_FLUSH };

struct req {
    struct comm *comm;
    enum req_kind kind;
    bool done;
    int n, pending;
    uint64_t id;
    uint64_t size[MAX_RECVS];
};

struct send_slot { /* a group that is being sent */
    int n, matched, pending;
    struct req *req[MAX_RECVS];
    struct {
        void *data;
        uint64_t size;
        struct net_mr *mr;
    } part[MAX_RECVS];
    uint16_t wrs[MAX_QPS]; /* posted on each QP */
};

struct peer_qp {
    uint32_t qpn, dev;
};

struct peer_dev {
    union ibv_gid gid;
    uint32_t rkey;
    uint16_t lid;
    uint8_t mtu, link_layer;
};

struct hello { /* what both sides tell each other over TCP */
    uint64_t magic, cookie;
    uint64_t ring; /* address of the sender's slots, or of the receiver's sizes */
    uint32_t ndevs, nqps, split, unused;
    struct peer_dev dev[MAX_DEVS];
    struct peer_qp qp[MAX_QPS];
};

enum stage { ST_CONNECTING, ST_SENDING, ST_READING, ST_LAST_SENDING, ST_LAST_READING, ST_READY };

struct cdev { /* a device of a connection */
    struct phys *phys;
    struct ibv_cq *cq;
    struct ibv_mr *ring_mr;
    struct ibv_qp *flush_qp;
};

struct comm {
    bool sender;
    _Atomic int error; /* once it is set, all calls return it */
    struct vdev *dev;
    int ndevs, nqps, stripes;
    struct cdev devs[MAX_DEVS];
    struct ibv_qp *qp[MAX_QPS];
    int outstanding[MAX_QPS]; /* work requests that hold room in its send queue */
    int cts_unsignalled[MAX_QPS];
    uint32_t inline_bytes;
    int traffic_class;

    /* memory that the peer writes: a sender's slots, a receiver's sizes; then what the NIC reads of ours */
    void *ring;
    size_t ring_len;
    struct cts *cts;              /* sender: written by the peer; receiver: what we write */
    uint64_t (*sizes)[MAX_RECVS]; /* receiver: written by the peer; sender: what we write */
    struct hello peer;

    uint64_t head; /* next slot */
    struct send_slot slot[SLOTS];
    struct req *recv[SLOTS];
    struct req *reqs;
    int nreqs, next_req;

    int fd;
    enum stage stage;
    uint64_t key; /* names a connect that is under way */
    struct comm *next_pending;
    struct hello out;
    size_t moved; /* bytes of a message of the bootstrap */
    int64_t deadline, retry_at;
    struct sockaddr_storage addr;
    char peer_name[80];
    uint64_t cookie;

    bool bye; /* the peer closed in order */
    bool heartbeat;
    int64_t bye_at, checked, last_good;
    unsigned polls;
};

int64_t now_ns(void);
struct comm *comm_new(struct vdev *dev, bool sender, int traffic_class);
int comm_resources(struct comm *c, int peer_devs, int nqps); /* QPs in INIT, and the hello */
int comm_connect_qps(struct comm *c);
int comm_fail(struct comm *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int comm_flush_qp(struct comm *c, int dev);
int comm_close(struct comm *c);
void connects_forget(void);
int comm_check(struct comm *c); /* after a poll that found nothing */

/* -------------------------------------------------------------------------------------------------- the functions */

int net_init(nn_logger log);
int net_devices(int *n);
int net_properties(int dev, struct nn_props_v12 *p);
int net_make_vdevice(int *dev, int n, const int *of);
int net_listen(int traffic_class, int dev, void *handle, void **listen_comm);
int net_connect(int traffic_class, int dev, void *handle, void **send_comm);
int net_accept(void *listen_comm, void **recv_comm);
int net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
int net_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
int net_dereg_mr(void *comm, void *mhandle);
int net_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
int net_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles, void **request);
int net_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
int net_test(void *request, int *done, int *sizes);
int net_close_send(void *comm);
int net_close_recv(void *comm);
int net_close_listen(void *listen_comm);
int net_finalize(void);

#endif
