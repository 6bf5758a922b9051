/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: devices. An emulated NIC has all its planes within one device of libibverbs, and so has a multi-plane NIC
 * that sprays by itself; where a NIC shows a device for each plane (one system GUID), they are merged here. Libraries
 * from version 9 on may merge further, by make_vdevice.
 */
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t net_lock = PTHREAD_MUTEX_INITIALIZER;

static struct phys physical[MAX_PHYS];
static struct vdev virtual[MAX_VDEVS];
static int nphys, nvdevs, holds;
static bool closing;

static void quiet(int level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
    (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

nn_logger net_log = quiet;

void net_log_to(nn_logger log) {
    if (log)
        net_log = log;
}

/* ------------------------------------------------------------------------------------------------ physical */

static bool mapped_v4(const union ibv_gid *g) {
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return !memcmp(g->raw, prefix, sizeof prefix);
}

static bool zero_gid(const union ibv_gid *g) {
    static const union ibv_gid zero;
    return !memcmp(g, &zero, sizeof zero);
}

/* The first IPv4 address of RoCE v2, else of any RoCE, else the first GID. Types are told by ibv_query_gid_ex only. */
static int choose_gid(struct ibv_context *ctx, int port, int table, union ibv_gid *gid) {
    int best = 0, best_rank = -1;
    for (int i = 0; i < table; i++) {
        struct ibv_gid_entry e = {.gid_type = IBV_GID_TYPE_ROCE_V2};
        union ibv_gid g;
        if (vb.query_gid(ctx, (uint8_t)port, i, &g) || zero_gid(&g))
            continue;
        if (vb._query_gid_ex && vb._query_gid_ex(ctx, (uint32_t)port, (uint32_t)i, &e, 0, sizeof e))
            e.gid_type = IBV_GID_TYPE_ROCE_V2;
        int rank = 2 * mapped_v4(&g) + (e.gid_type == IBV_GID_TYPE_ROCE_V2);
        if (rank > best_rank) {
            best_rank = rank;
            best = i;
            *gid = g;
        }
    }
    return best_rank < 0 ? -1 : best;
}

/* Mbit/s: as the port says, else width times the speed of a lane. */
static int port_speed(struct ibv_context *ctx, int port, const struct ibv_port_attr *a) {
    static const int widths[] = {1, 4, 8, 12, 2};
    static const int lanes[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000};
    uint64_t hundreds;
    if (vb.query_port_speed && !vb.query_port_speed(ctx, (uint32_t)port, &hundreds) && hundreds)
        return hundreds * 100 > INT_MAX ? INT_MAX : (int)(hundreds * 100);
    int w = a->active_width ? __builtin_ctz(a->active_width) : 0,
        s = a->active_speed ? __builtin_ctz(a->active_speed) : 0;
    return (w < 5 ? widths[w] : 1) * (s < 8 ? lanes[s] : 2500);
}

static char *pci_path(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", name);
    return realpath(path, NULL);
}

/* The question that the libraries ask: whether the call exists for this device at all. */
static bool dmabuf_offered(struct ibv_context *ctx) {
    if (!vb.reg_dmabuf_mr || param(PARAM_DMABUF) == 0)
        return false;
    if (param(PARAM_DMABUF) == 1)
        return true;
    struct ibv_pd *pd = vb.alloc_pd(ctx);
    if (!pd)
        return false;
    errno = 0;
    struct ibv_mr *mr = vb.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0);
    bool is = errno != EOPNOTSUPP && errno != EPROTONOSUPPORT;
    if (mr)
        vb.dereg_mr(mr);
    vb.dealloc_pd(pd);
    return is;
}

static bool port_usable(const struct ibv_port_attr *a) {
    return a->state == IBV_PORT_ACTIVE &&
           (a->link_layer == IBV_LINK_LAYER_ETHERNET || a->link_layer == IBV_LINK_LAYER_INFINIBAND);
}

/* One context a port, so that an event of a device has one owner. */
static bool phys_open(struct ibv_device *dev, int port) {
    struct phys *p = &physical[nphys];
    struct ibv_device_attr attr;
    struct ibv_port_attr a;
    const char *name = vb.get_device_name(dev);
    struct ibv_context *ctx = vb.open_device(dev);
    memset(&a, 0, sizeof a);
    if (!ctx) {
        WARN("cannot open %s: %s", name, strerror(errno));
        return false;
    }
    if (vb.query_device(ctx, &attr) || vb.query_port(ctx, (uint8_t)port, &a) || !port_usable(&a))
        goto no;
    memset(p, 0, sizeof *p);
    p->gid_index = param(PARAM_GID_INDEX);
    if (p->gid_index < 0)
        p->gid_index = choose_gid(ctx, port, a.gid_tbl_len, &p->gid);
    else if (vb.query_gid(ctx, (uint8_t)port, p->gid_index, &p->gid))
        p->gid_index = -1;
    if (p->gid_index < 0 && a.link_layer == IBV_LINK_LAYER_ETHERNET) {
        WARN("%s port %d has no GID to use", name, port);
        goto no;
    }
    snprintf(p->name, sizeof p->name, "%s", name);
    p->ctx = ctx;
    p->port = port;
    p->system_guid = attr.sys_image_guid;
    p->max_qp = attr.max_qp;
    p->mtu = a.active_mtu;
    p->link_layer = a.link_layer;
    p->lid = a.lid;
    p->max_msg = a.max_msg_sz && a.max_msg_sz < CHUNK ? a.max_msg_sz : CHUNK;
    p->speed = port_speed(ctx, port, &a);
    p->pci_path = pci_path(name);
    p->dmabuf = dmabuf_offered(ctx);
    if (fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK))
        INFO("%s: events stay blocking: %s", name, strerror(errno));
    nphys++;
    return true;
no:
    vb.close_device(ctx);
    return false;
}

static int ports_of(struct ibv_device *dev) {
    struct ibv_device_attr attr;
    struct ibv_context *ctx = vb.open_device(dev);
    int n = ctx && !vb.query_device(ctx, &attr) ? attr.phys_port_cnt : 0;
    if (ctx)
        vb.close_device(ctx);
    return n;
}

/* ------------------------------------------------------------------------------------------------- virtual */

static void vdev_add(struct vdev *v, struct phys *p) {
    size_t n = strlen(v->name);
    snprintf(v->name + n, sizeof v->name - n, "%s%s", n ? "+" : "", p->name);
    v->devs[v->ndevs++] = p;
    v->speed = v->speed > INT_MAX - p->speed ? INT_MAX : v->speed + p->speed;
}

/* Ports of one system GUID are planes of one NIC. Rails are numbered as NICs are found: the third NIC of each host is
 * on rail 2. A device that holds all planes has no number of its own among them. */
static void merge_planes(void) {
    for (int i = 0; i < nphys; i++) {
        struct vdev *v = NULL;
        int rail = 0, planes = 0;
        for (int k = 0; k < nvdevs; k++) {
            if (virtual[k].devs[0]->system_guid != physical[i].system_guid) {
                rail = virtual[k].rail >= rail ? virtual[k].rail + 1 : rail;
                continue;
            }
            v = &virtual[k];
            rail = v->rail;
            planes += v->ndevs;
            if (param(PARAM_MERGE) && v->ndevs < MAX_DEVS)
                break;
        }
        physical[i].plane = planes;
        if (!v || !param(PARAM_MERGE) || v->ndevs == MAX_DEVS) {
            v = &virtual[nvdevs];
            memset(v, 0, sizeof *v);
            v->rail = rail;
            v->plane = NN_NO_ID;
            v->nparts = 1;
            v->parts[0] = nvdevs++;
        }
        vdev_add(v, &physical[i]);
    }
    for (int k = 0; k < nvdevs && !param(PARAM_MERGE); k++)
        for (int o = 0; o < nvdevs; o++)
            if (o != k && virtual[o].rail == virtual[k].rail)
                virtual[k].plane = virtual[k].devs[0]->plane;
}

/* net_lock is held. */
int devices_open(void) {
    int n = 0, r = nphys ? NN_OK : verbs_load();
    closing = false;
    if (nphys || r)
        return r;
    struct ibv_device **list = vb.get_device_list(&n);
    const char *wanted = param_word("MR_NET_HCA", "NCCL_IB_HCA");
    if (!list || !n) {
        INFO("no RDMA device: %s", list ? "the list is empty" : strerror(errno));
        if (list)
            vb.free_device_list(list);
        return NN_SYSTEM_ERROR;
    }
    for (int i = 0; i < n; i++)
        for (int port = 1, ports = ports_of(list[i]); port <= ports && nphys < MAX_PHYS; port++)
            if (param_match(wanted, vb.get_device_name(list[i]), port))
                phys_open(list[i], port);
    vb.free_device_list(list);
    if (!nphys) {
        INFO("none of %d RDMA devices can be used%s%s", n, wanted ? ", or is one of " : "", wanted ? wanted : "");
        return NN_SYSTEM_ERROR;
    }
    merge_planes();
    for (int i = 0; i < nvdevs; i++)
        INFO("device %d: %s, %d Mbit/s, rail %d", i, virtual[i].name, virtual[i].speed, virtual[i].rail);
    return NN_OK;
}

static void close_now(void) {
    for (int i = 0; i < nvdevs; i++)
        if (virtual[i].mrs)
            mrs_forget(&virtual[i]);
    for (int i = 0; i < nphys; i++) {
        struct phys *p = &physical[i];
        if (p->pd && vb.dealloc_pd(p->pd))
            INFO("%s: protection domain: %s", p->name, strerror(errno));
        if (vb.close_device(p->ctx))
            INFO("%s: close: %s", p->name, strerror(errno));
        free(p->pci_path);
    }
    nphys = nvdevs = 0;
    closing = false;
}

/* net_lock is held. Connections that outlive the library's last context keep the devices. */
void devices_close(void) {
    closing = true;
    if (!holds)
        close_now();
}

/* net_lock is held. */
void devices_hold(int by) {
    holds += by;
    if (!holds && closing)
        close_now();
    else if (by > 0)
        closing = false;
}

/* net_lock is held. */
struct vdev *device_get(int dev) {
    if (dev < 0 || dev >= nvdevs) {
        WARN("there is no device %d, there are %d", dev, nvdevs);
        return NULL;
    }
    return &virtual[dev];
}

/* -------------------------------------------------------------------------------------------------- events */

static void event(struct phys *p, const struct ibv_async_event *e) {
    struct comm *c = NULL;
    switch (e->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        atomic_store(&p->fatal, NN_SYSTEM_ERROR);
        break;
    case IBV_EVENT_CQ_ERR:
        c = e->element.cq->cq_context;
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        c = e->element.qp->qp_context;
        break;
    default:
        INFO("%s: %s", p->name, vb.event_type_str(e->event_type));
        return;
    }
    WARN("%s: %s%s%s", p->name, vb.event_type_str(e->event_type), c ? ", connection with " : "", c ? c->peer_name : "");
    if (c)
        atomic_store(&c->error, NN_REMOTE_ERROR);
}

/* Whoever looks first tells the others: an event of a queue ends its connection, one of the device all of them. */
int device_events(struct phys *p) {
    struct ibv_async_event e;
    if (pthread_mutex_trylock(&net_lock))
        return atomic_load(&p->fatal); /* somebody looks, or makes something */
    while (!vb.get_async_event(p->ctx, &e)) {
        event(p, &e);
        vb.ack_async_event(&e);
    }
    pthread_mutex_unlock(&net_lock);
    return atomic_load(&p->fatal);
}

/* ----------------------------------------------------------------------------------------------- functions */

int net_init(nn_logger log) {
    net_log_to(log);
    pthread_mutex_lock(&net_lock);
    int r = devices_open();
    pthread_mutex_unlock(&net_lock);
    return r;
}

int net_finalize(void) {
    connects_forget();
    pthread_mutex_lock(&net_lock);
    devices_close();
    pthread_mutex_unlock(&net_lock);
    return NN_OK;
}

int net_devices(int *n) {
    pthread_mutex_lock(&net_lock);
    *n = nvdevs;
    pthread_mutex_unlock(&net_lock);
    return NN_OK;
}

int net_properties(int dev, struct nn_props_v12 *p) {
    pthread_mutex_lock(&net_lock);
    struct vdev *v = device_get(dev);
    pthread_mutex_unlock(&net_lock);
    if (!v)
        return NN_INTERNAL;
    const struct phys *first = v->devs[0];
    memset(p, 0, sizeof *p);
    p->name = v->name;
    p->pci_path = first->pci_path;
    p->guid = first->system_guid + (uint64_t)first->plane;
    p->ptr_support = NN_PTR_HOST;
    p->max_comms = INT_MAX;
    bool dmabuf = true;
    for (int i = 0; i < v->ndevs; i++) {
        dmabuf &= v->devs[i]->dmabuf;
        p->max_comms = v->devs[i]->max_qp < p->max_comms ? v->devs[i]->max_qp : p->max_comms;
    }
    if (dmabuf)
        p->ptr_support |= NN_PTR_GPU | NN_PTR_DMABUF;
    p->reg_is_global = 1;
    p->speed = v->speed;
    p->port = first->port;
    p->max_recvs = MAX_RECVS;
    p->vdevs.ndevs = v->nparts;
    memcpy(p->vdevs.devs, v->parts, sizeof v->parts);
    p->max_p2p_bytes = p->max_coll_bytes = MAX_P2P_BYTES;
    p->max_multi_request_size = 1;
    p->rail_id = (int16_t)v->rail;
    p->plane_id = (int16_t)v->plane;
    return NN_OK;
}

static int make_vdevice(int *dev, int n, const int *of) {
    struct vdev v = {.plane = NN_NO_ID};
    if (n < 1 || n > MAX_DEVS || nvdevs == MAX_VDEVS) {
        WARN("%d devices cannot be merged: 1 to %d can, into %d at most", n, MAX_DEVS, MAX_VDEVS);
        return NN_BAD_USAGE;
    }
    for (int i = 0; i < n; i++) {
        struct vdev *part = device_get(of[i]);
        if (!part)
            return NN_BAD_USAGE;
        if (v.ndevs + part->ndevs > MAX_DEVS) {
            WARN("merged, these devices would be more than %d", MAX_DEVS);
            return NN_BAD_USAGE;
        }
        for (int k = 0; k < part->ndevs; k++) {
            for (int o = 0; o < v.ndevs; o++)
                if (v.devs[o] == part->devs[k]) {
                    WARN("%s is merged with itself", part->name);
                    return NN_BAD_USAGE;
                }
            vdev_add(&v, part->devs[k]);
        }
        v.rail = i ? v.rail : part->rail;
        v.parts[v.nparts++] = of[i];
    }
    virtual[ *dev = nvdevs++] = v;
    INFO("device %d: %s, %d Mbit/s", *dev, v.name, v.speed);
    return NN_OK;
}

int net_make_vdevice(int *dev, int n, const int *of) {
    pthread_mutex_lock(&net_lock);
    int r = make_vdevice(dev, n, of);
    pthread_mutex_unlock(&net_lock);
    return r;
}
