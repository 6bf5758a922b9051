/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: the verbs contexts of the NICs that IDs are bound to: one for each NIC, opened at first use and kept.
 */
#include "cm.h"

#include <stdlib.h>

/* Needs d->lock. */
static struct cm_dev *dev_open(struct cm_daemon *d, struct ibv_device *ibdev) {
    uint64_t guid = ibv_get_device_guid(ibdev);
    struct ibv_device_attr attr;
    for (struct cm_dev *v = d->devs; v; v = v->next)
        if (v->guid == guid)
            return v;
    struct cm_dev *v = calloc(1, sizeof *v);
    if (!v)
        return mr_null(ENOMEM);
    v->guid = guid;
    v->verbs = ibv_open_device(ibdev);
    if (!v->verbs) {
        free(v);
        return NULL;
    }
    v->max_reads =
        ibv_query_device(v->verbs, &attr) ? 1 : (uint8_t)(attr.max_qp_rd_atom > 255 ? 255 : attr.max_qp_rd_atom);
    v->next = d->devs;
    d->devs = v;
    return v;
}

static struct cm_dev *dev_find(struct cm_daemon *d, uint64_t guid) {
    struct cm_dev *v;
    int n;
    for (v = d->devs; v; v = v->next)
        if (v->guid == guid)
            return v;
    struct ibv_device **list = ibv_get_device_list(&n);
    for (int i = 0; list && i < n && !v; i++)
        if (ibv_get_device_guid(list[i]) == guid)
            v = dev_open(d, list[i]);
    if (list)
        ibv_free_device_list(list);
    return v ? v : mr_null(ENODEV);
}

/* Binds the ID to a NIC: its context, port and default protection domain. */
int cm_use_device(struct cm_id *id, uint64_t guid) {
    int err = 0;
    if (id->dev || !guid)
        return 0;
    pthread_mutex_lock(&id->d->lock);
    struct cm_dev *v = dev_find(id->d, guid);
    if (v && !v->pd)
        v->pd = ibv_alloc_pd(v->verbs);
    if (!v || !v->pd)
        err = errno ? errno : ENODEV;
    else
        v->users++;
    pthread_mutex_unlock(&id->d->lock);
    if (err)
        return mr_minus1(err);
    id->dev = v;
    id->id.verbs = v->verbs;
    id->id.port_num = 1;
    if (!id->id.pd)
        id->id.pd = v->pd;
    return 0;
}

void cm_leave_device(struct cm_id *id) {
    struct cm_dev *v = id->dev;
    if (!v)
        return;
    pthread_mutex_lock(&id->d->lock);
    if (--v->users == 0 && v->pd && !ibv_dealloc_pd(v->pd)) /* EBUSY: the program has something on it */
        v->pd = NULL;
    pthread_mutex_unlock(&id->d->lock);
    id->dev = NULL;
}

MR_EXPORT struct ibv_context **rdma_get_devices(int *num) {
    struct cm_daemon *d = cm_daemon_get();
    struct ibv_context **out = NULL;
    int n = 0, count = 0;

    if (num)
        *num = 0;
    if (!d)
        return NULL;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (list)
        out = calloc((size_t)n + 1, sizeof *out);
    if (list && !out)
        errno = ENOMEM;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; out && i < n; i++) {
        struct cm_dev *v = dev_open(d, list[i]);
        if (v)
            out[count++] = v->verbs;
    }
    pthread_mutex_unlock(&d->lock);
    if (list)
        ibv_free_device_list(list);
    cm_daemon_put(d);
    if (num)
        *num = count;
    return out;
}

MR_EXPORT void rdma_free_devices(struct ibv_context **list) {
    free(list);
}
