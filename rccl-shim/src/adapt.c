/* SPDX-License-Identifier: Apache-2.0
 *
 * adapt.c: the tables of all versions, over one set of functions. What an older version has not is left out or given
 * its default; nothing happens here.
 */
#include "net.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "MetaRoCE";

/* ---------------------------------------------------------------------------------------------------- contexts */

struct ctx { /* of a communicator, version 11 and later */
    int traffic_class;
};

static int contexts;
static bool for_ever; /* versions before 11 never say that they are done */

static int class_of(const struct nn_config *config) {
    return config && config->traffic_class != NN_NO_TRAFFIC_CLASS ? config->traffic_class & 0xff
                                                                  : param(PARAM_TRAFFIC_CLASS);
}

static int init6(nn_logger log) {
    for_ever = true;
    return net_init(log);
}

static int init10(nn_logger log, nn_profiler profiler) {
    (void)profiler; /* we have no events of our own */
    return init6(log);
}

static int init11(void **out, uint64_t comm_id, struct nn_config *config, nn_logger log, nn_profiler profiler) {
    (void)comm_id, (void)profiler;
    *out = NULL;
    int r = net_init(log);
    struct ctx *c = r ? NULL : calloc(1, sizeof *c);
    if (r || !c)
        return r ? r : NN_SYSTEM_ERROR;
    c->traffic_class = class_of(config);
    pthread_mutex_lock(&net_lock);
    contexts++;
    pthread_mutex_unlock(&net_lock);
    *out = c;
    return NN_OK;
}

static int finalize(void *ctx) {
    pthread_mutex_lock(&net_lock);
    bool last = ctx && --contexts == 0 && !for_ever;
    pthread_mutex_unlock(&net_lock);
    free(ctx);
    return last ? net_finalize() : NN_OK;
}

static int set_net_attr(void *ctx, struct nn_attr *attr) {
    (void)ctx, (void)attr; /* a hint of how much will be under way; the NIC finds out by itself */
    return NN_OK;
}

/* -------------------------------------------------------------------------------------------------- properties */

/* The members that all versions have. */
#define COMMON(to, from)                         \
    do {                                         \
        (to)->name = (from)->name;               \
        (to)->pci_path = (from)->pci_path;       \
        (to)->guid = (from)->guid;               \
        (to)->ptr_support = (from)->ptr_support; \
        (to)->speed = (from)->speed;             \
        (to)->port = (from)->port;               \
        (to)->latency = (from)->latency;         \
        (to)->max_comms = (from)->max_comms;     \
        (to)->max_recvs = (from)->max_recvs;     \
    } while (0)

static int properties6(int dev, struct nn_props_v6 *p) {
    struct nn_props_v12 all;
    int r = net_properties(dev, &all);
    if (!r)
        COMMON(p, &all);
    return r;
}

static int properties7(int dev, struct nn_props_v7 *p) {
    struct nn_props_v12 all;
    int r = net_properties(dev, &all);
    if (r)
        return r;
    COMMON(p, &all);
    p->device_type = all.device_type;
    p->device_version = all.device_version;
    return NN_OK;
}

static int properties8(int dev, struct nn_props_v8 *p) {
    struct nn_props_v12 all;
    int r = net_properties(dev, &all);
    if (r)
        return r;
    COMMON(p, &all);
    p->reg_is_global = all.reg_is_global;
    p->device_type = all.device_type;
    p->device_version = all.device_version;
    return NN_OK;
}

static int properties11(int dev, struct nn_props_v11 *p) {
    struct nn_props_v12 all;
    int r = net_properties(dev, &all);
    if (r)
        return r;
    COMMON(p, &all);
    p->reg_is_global = all.reg_is_global;
    p->force_flush = all.force_flush;
    p->device_type = all.device_type;
    p->device_version = all.device_version;
    p->vdevs.ndevs = all.vdevs.ndevs > 4 ? 4 : all.vdevs.ndevs;
    memcpy(p->vdevs.devs, all.vdevs.devs, sizeof p->vdevs.devs);
    p->max_p2p_bytes = all.max_p2p_bytes;
    p->max_coll_bytes = all.max_coll_bytes;
    p->max_multi_request_size = all.max_multi_request_size;
    return NN_OK;
}

static int properties9(int dev, struct nn_props_v9 *p) { /* all of 11 but its last member */
    struct nn_props_v11 all;
    int r = properties11(dev, &all);
    if (!r)
        memcpy(p, &all, offsetof(struct nn_props_v11, max_multi_request_size));
    return r;
}
_Static_assert(offsetof(struct nn_props_v11, max_multi_request_size) == sizeof(struct nn_props_v9), "9 begins 11");

/* -------------------------------------------------------------------------------------------------- connections */

static int connect6(int dev, void *handle, void **send_comm) {
    return net_connect(param(PARAM_TRAFFIC_CLASS), dev, handle, send_comm);
}

static int no_device(struct nn_device_handle **device) { /* nothing of ours runs on a GPU */
    if (device)
        *device = NULL;
    return NN_OK;
}

static int connect7(int dev, void *handle, void **send_comm, struct nn_device_handle **device) {
    no_device(device);
    return connect6(dev, handle, send_comm);
}

static int connect10(int dev, struct nn_config *config, void *handle, void **send_comm,
                     struct nn_device_handle **device) {
    no_device(device);
    return net_connect(class_of(config), dev, handle, send_comm);
}

static int connect11(void *ctx, int dev, void *handle, void **send_comm, struct nn_device_handle **device) {
    no_device(device);
    int class = ctx ? ((struct ctx *)ctx)->traffic_class : param(PARAM_TRAFFIC_CLASS);
    return net_connect(class, dev, handle, send_comm);
}

static int listen6(int dev, void *handle, void **listen_comm) {
    return net_listen(param(PARAM_TRAFFIC_CLASS), dev, handle, listen_comm);
}

static int listen11(void *ctx, int dev, void *handle, void **listen_comm) {
    int class = ctx ? ((struct ctx *)ctx)->traffic_class : param(PARAM_TRAFFIC_CLASS);
    return net_listen(class, dev, handle, listen_comm);
}

static int accept7(void *listen_comm, void **recv_comm, struct nn_device_handle **device) {
    no_device(device);
    return net_accept(listen_comm, recv_comm);
}

static int vdevice4(int *dev, struct nn_vdevs4 *of) {
    return net_make_vdevice(dev, of->ndevs > 4 ? 4 : of->ndevs, of->devs);
}

static int vdevice8(int *dev, struct nn_vdevs8 *of) {
    return net_make_vdevice(dev, of->ndevs, of->devs);
}

/* ---------------------------------------------------------------------------------------------------- the data */

static int reg_mr6(void *comm, void *data, int size, int type, void **mhandle) {
    return size < 0 ? NN_INTERNAL : net_reg_mr(comm, data, (size_t)size, type, mhandle);
}

static int isend6(void *comm, void *data, int size, int tag, void *mhandle, void **request) {
    return size < 0 ? NN_INTERNAL : net_isend(comm, data, (size_t)size, tag, mhandle, request);
}

static int isend10(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
    (void)phandle;
    return net_isend(comm, data, size, tag, mhandle, request);
}

static int irecv6(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request) {
    size_t wide[MAX_RECVS];
    for (int i = 0; i < n && i < MAX_RECVS; i++) {
        if (sizes[i] < 0)
            return NN_INTERNAL;
        wide[i] = (size_t)sizes[i];
    }
    return net_irecv(comm, n, data, wide, tags, mhandles, request);
}

static int irecv9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request) {
    return net_irecv(comm, n, data, sizes, tags, mhandles, request);
}

static int irecv10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                   void **request) {
    (void)phandles;
    return net_irecv(comm, n, data, sizes, tags, mhandles, request);
}

static int get_device_mr(void *comm, void *mhandle, void **device_mhandle) {
    (void)comm, (void)mhandle;
    *device_mhandle = NULL;
    return NN_INTERNAL;
}

static int irecv_consumed(void *comm, int n, void *request) {
    (void)comm, (void)n, (void)request;
    return NN_OK;
}

/* ------------------------------------------------------------------------------------------------------ tables */

#define REG .reg_mr_dmabuf = net_reg_mr_dmabuf, .dereg_mr = net_dereg_mr
#define END                                                                                             \
    .iflush = net_iflush, .test = net_test, .close_send = net_close_send, .close_recv = net_close_recv, \
    .close_listen = net_close_listen
#define DEVICE .get_device_mr = get_device_mr, .irecv_consumed = irecv_consumed
#define EXPORT __attribute__((visibility("default")))
#define TABLE(v)                                    \
    extern const struct nn_v##v ncclNetPlugin_v##v; \
    EXPORT const struct nn_v##v ncclNetPlugin_v##v

TABLE(6) = {name,       init6,   net_devices, properties6,     listen6,         connect6,
            net_accept, reg_mr6, REG,         .isend = isend6, .irecv = irecv6, END};
TABLE(7) = {name,    init6, net_devices,     properties7,     listen6, connect7, accept7,
            reg_mr6, REG,   .isend = isend6, .irecv = irecv6, END,     DEVICE};
TABLE(8) = {name,       init6, net_devices,     properties8,     listen6, connect7, accept7,
            net_reg_mr, REG,   .isend = isend6, .irecv = irecv6, END,     DEVICE};
TABLE(9) = {name,       init6, net_devices,        properties9,     listen6, connect7, accept7,
            net_reg_mr, REG,   .isend = net_isend, .irecv = irecv9, END,     DEVICE,   .make_vdevice = vdevice4};
TABLE(10) = {name,       init10, net_devices,      properties9,      listen6, connect10, accept7,
             net_reg_mr, REG,    .isend = isend10, .irecv = irecv10, END,     DEVICE,    .make_vdevice = vdevice4};
TABLE(11) = {name,
             init11,
             net_devices,
             properties11,
             listen11,
             connect11,
             accept7,
             net_reg_mr,
             REG,
             .isend = isend10,
             .irecv = irecv10,
             END,
             DEVICE,
             .make_vdevice = vdevice4,
             .finalize = finalize,
             .set_net_attr = set_net_attr};
TABLE(12) = {name,
             init11,
             net_devices,
             net_properties,
             listen11,
             connect11,
             accept7,
             net_reg_mr,
             REG,
             .isend = isend10,
             .irecv = irecv10,
             END,
             DEVICE,
             .make_vdevice = vdevice8,
             .finalize = finalize,
             .set_net_attr = set_net_attr};
