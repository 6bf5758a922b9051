/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_net_abi.h: the tables of functions through which NCCL and RCCL use a network, versions 6 to 12.
 *
 * A library looks for the data symbols ncclNetPlugin_v12, _v11, … in the plugin and takes the first that it knows; RCCL
 * looks for the same names. Layouts are facts of those libraries; words and names here are ours, so that nothing of
 * theirs is needed to build. tests/load.c checks each size.
 *
 *   version  first in NCCL   what is new
 *   6        2.15            17 members
 *   7        2.19            device handles in connect and accept; get_device_mr, irecv_consumed; two properties
 *   8        2.21            size_t in reg_mr; reg_is_global
 *   9        2.24            size_t in isend and irecv; make_vdevice; force_flush, the devices of a virtual one, limits
 *   10       2.26            a profiler's callback in init, a configuration in connect, profiler handles in isend,
 * irecv 11       2.28            a context for each communicator; finalize, set_net_attr; max_multi_request_size 12
 * 2.30            eight devices in a virtual one; rail_id, plane_id
 */
#ifndef MR_NET_ABI_H
#define MR_NET_ABI_H

#include <stddef.h>
#include <stdint.h>

/* What every function returns; an int in C. */
enum {
    NN_OK = 0,
    NN_GPU_ERROR = 1,
    NN_SYSTEM_ERROR = 2, /* the kernel, a library or the network failed */
    NN_INTERNAL = 3,     /* the caller did what it may not */
    NN_BAD_ARGUMENT = 4,
    NN_BAD_USAGE = 5, /* the user did: sizes that do not match, settings */
    NN_REMOTE_ERROR = 6,
};

enum {
    NN_HANDLE_BYTES = 128,
    NN_REQUESTS = 32, /* that a library may have under way in a connection */
    NN_PTR_HOST = 1,
    NN_PTR_GPU = 2,
    NN_PTR_DMABUF = 4,
    NN_NO_ID = -1,            /* of rails and planes */
    NN_NO_TRAFFIC_CLASS = -1, /* none was chosen */
};
#define NN_OPTIONAL_RECV ((void *)1) /* in *request of irecv: its completion need not be told (LL, LL128) */

/* Logging: levels and subsystems of the library's own log. */
enum { NN_LOG_WARN = 2, NN_LOG_INFO = 3, NN_LOG_TRACE = 5 };
enum { NN_SUBSYS_INIT = 1, NN_SUBSYS_NET = 16 };
typedef void (*nn_logger)(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);
typedef int (*nn_profiler)(void **event, int type, void *parent, int64_t plugin, void *extra);

struct nn_props_v6 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int speed; /* Mbit/s */
    int port;
    float latency; /* µs */
    int max_comms;
    int max_recvs;
};

struct nn_props_v7 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int device_type; /* 0: the host drives it */
    int device_version;
};

struct nn_props_v8 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int device_type;
    int device_version;
};

struct nn_vdevs4 {
    int ndevs;
    int devs[4];
};

struct nn_props_v9 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int device_type;
    int device_version;
    struct nn_vdevs4 vdevs;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
};

struct nn_props_v11 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int device_type;
    int device_version;
    struct nn_vdevs4 vdevs;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request_size;
};

struct nn_vdevs8 {
    int ndevs;
    int devs[8];
};

struct nn_props_v12 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int device_type;
    int device_version;
    struct nn_vdevs8 vdevs;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request_size;
    int16_t rail_id;
    int16_t plane_id;
};

struct nn_config {
    int traffic_class;
};

struct nn_device_handle { /* for NICs that a GPU's code drives; we have none */
    int device_type;
    int device_version;
    void *handle;
    size_t size;
    int needs_proxy;
};

struct nn_flows {
    int32_t max_peers, min_peers, max_flows, min_flows;
};

struct nn_attr {
    struct nn_flows send, recv;
    uint32_t op, algo, proto;
};

/* Members that did not change. */
#define NN_FLUSH_TEST_CLOSE                                                                          \
    int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request); \
    int (*test)(void *request, int *done, int *sizes);                                               \
    int (*close_send)(void *send_comm);                                                              \
    int (*close_recv)(void *recv_comm);                                                              \
    int (*close_listen)(void *listen_comm);
#define NN_REG_DEREG                                                                                              \
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle); \
    int (*dereg_mr)(void *comm, void *mhandle);
#define NN_DEVICE                                                           \
    int (*get_device_mr)(void *comm, void *mhandle, void **device_mhandle); \
    int (*irecv_consumed)(void *recv_comm, int n, void *request);

struct nn_v6 {
    const char *name;
    int (*init)(nn_logger log);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v6 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, void *handle, void **send_comm);
    int (*accept)(void *listen_comm, void **recv_comm);
    int (*reg_mr)(void *comm, void *data, int size, int type, void **mhandle);
    NN_REG_DEREG
    int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    NN_FLUSH_TEST_CLOSE
};

struct nn_v7 {
    const char *name;
    int (*init)(nn_logger log);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v7 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, int size, int type, void **mhandle);
    NN_REG_DEREG
    int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    NN_FLUSH_TEST_CLOSE
    NN_DEVICE
};

struct nn_v8 {
    const char *name;
    int (*init)(nn_logger log);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v8 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    NN_REG_DEREG
    int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    NN_FLUSH_TEST_CLOSE
    NN_DEVICE
};

struct nn_v9 {
    const char *name;
    int (*init)(nn_logger log);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v9 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    NN_REG_DEREG
    int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
    NN_FLUSH_TEST_CLOSE
    NN_DEVICE
    int (*make_vdevice)(int *dev, struct nn_vdevs4 *of);
};

#define NN_SEND_RECV_10                                                                                            \
    int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request); \
    int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,  \
                 void **request);

struct nn_v10 {
    const char *name;
    int (*init)(nn_logger log, nn_profiler profiler);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v9 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, struct nn_config *config, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    NN_REG_DEREG
    NN_SEND_RECV_10
    NN_FLUSH_TEST_CLOSE
    NN_DEVICE
    int (*make_vdevice)(int *dev, struct nn_vdevs4 *of);
};

struct nn_v11 {
    const char *name;
    int (*init)(void **ctx, uint64_t comm_id, struct nn_config *config, nn_logger log, nn_profiler profiler);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v11 *props);
    int (*listen)(void *ctx, int dev, void *handle, void **listen_comm);
    int (*connect)(void *ctx, int dev, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    NN_REG_DEREG
    NN_SEND_RECV_10
    NN_FLUSH_TEST_CLOSE
    NN_DEVICE
    int (*make_vdevice)(int *dev, struct nn_vdevs4 *of);
    int (*finalize)(void *ctx);
    int (*set_net_attr)(void *ctx, struct nn_attr *attr);
};

struct nn_v12 {
    const char *name;
    int (*init)(void **ctx, uint64_t comm_id, struct nn_config *config, nn_logger log, nn_profiler profiler);
    int (*devices)(int *n);
    int (*get_properties)(int dev, struct nn_props_v12 *props);
    int (*listen)(void *ctx, int dev, void *handle, void **listen_comm);
    int (*connect)(void *ctx, int dev, void *handle, void **send_comm, struct nn_device_handle **device);
    int (*accept)(void *listen_comm, void **recv_comm, struct nn_device_handle **device);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    NN_REG_DEREG
    NN_SEND_RECV_10
    NN_FLUSH_TEST_CLOSE
    NN_DEVICE
    int (*make_vdevice)(int *dev, struct nn_vdevs8 *of);
    int (*finalize)(void *ctx);
    int (*set_net_attr)(void *ctx, struct nn_attr *attr);
};

/* Facts to hold at compile time: sizes of tables in members, of properties in bytes. */
#define NN_MEMBERS(v, n) _Static_assert(sizeof(struct nn_v##v) == (n) * sizeof(void *), "members of version " #v)
NN_MEMBERS(6, 17);
NN_MEMBERS(7, 19);
NN_MEMBERS(8, 19);
NN_MEMBERS(9, 20);
NN_MEMBERS(10, 20);
NN_MEMBERS(11, 22);
NN_MEMBERS(12, 22);
#ifdef __LP64__
_Static_assert(sizeof(struct nn_props_v6) == 48 && sizeof(struct nn_props_v7) == 56, "properties");
_Static_assert(sizeof(struct nn_props_v8) == 64 && sizeof(struct nn_props_v9) == 104, "properties");
_Static_assert(sizeof(struct nn_props_v11) == 112 && sizeof(struct nn_props_v12) == 128, "properties");
_Static_assert(offsetof(struct nn_props_v12, max_p2p_bytes) == 104 && offsetof(struct nn_props_v12, plane_id) == 126,
               "properties");
#endif

#endif
