/* SPDX-License-Identifier: Apache-2.0
 *
 * mr.c: registered memory. It belongs to the device, not to a connection, and a region within one that is registered
 * already is the same one: libraries register a buffer once for all and then again and again in parts.
 */
#include "net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static void unregister(struct net_mr *m) {
    for (int i = 0; i < m->dev->ndevs; i++)
        if (m->mr[i] && vb.dereg_mr(m->mr[i]))
            INFO("%s: deregister: %s", m->dev->devs[i]->name, strerror(errno));
    free(m);
}

void mrs_forget(struct vdev *v) {
    while (v->mrs) {
        struct net_mr *m = v->mrs;
        v->mrs = m->next;
        unregister(m);
    }
}

static struct net_mr *find(struct vdev *v, uintptr_t addr, size_t len, int type) {
    for (struct net_mr *m = v->mrs; m; m = m->next)
        if (!m->dmabuf && m->type == type && m->addr <= addr && addr - m->addr <= m->len &&
            len <= m->len - (addr - m->addr))
            return m;
    return NULL;
}

static struct ibv_mr *register_at(struct phys *p, const struct net_mr *m, uint64_t offset, int fd) {
    if (!m->dmabuf)
        return vb.reg_mr(p->pd, (void *)m->addr, m->len, ACCESS);
    errno = EOPNOTSUPP;
    return vb.reg_dmabuf_mr ? vb.reg_dmabuf_mr(p->pd, offset, m->len, m->addr, fd, ACCESS) : NULL;
}

static int add(struct vdev *v, const struct net_mr *want, uint64_t offset, int fd, struct net_mr **out) {
    struct net_mr *m = malloc(sizeof *m);
    if (!m)
        return NN_SYSTEM_ERROR;
    *m = *want;
    m->dev = v;
    m->refs = 1;
    memset(m->mr, 0, sizeof m->mr);
    for (int i = 0; i < v->ndevs; i++) {
        m->mr[i] = register_at(v->devs[i], m, offset, fd);
        if (!m->mr[i]) {
            WARN("%s: cannot register %zu bytes at %p%s: %s", v->devs[i]->name, m->len, (void *)m->addr,
                 m->dmabuf ? " of a dma-buf" : "", strerror(errno));
            unregister(m);
            return NN_SYSTEM_ERROR;
        }
    }
    m->next = v->mrs;
    v->mrs = m;
    *out = m;
    return NN_OK;
}

int net_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
    struct comm *c = comm;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *mhandle = NULL;
    if (!c || !data || !size || (type != NN_PTR_HOST && type != NN_PTR_GPU) ||
        (uintptr_t)data + size - 1 < (uintptr_t)data) {
        WARN("cannot register %zu bytes at %p, kind %d", size, data, type);
        return NN_INTERNAL;
    }
    uintptr_t first = (uintptr_t)data & ~(page - 1), last = ((uintptr_t)data + size - 1) | (page - 1);
    struct net_mr want = {.addr = first, .len = last - first + 1, .type = type};
    pthread_mutex_lock(&net_lock);
    struct net_mr *m = find(c->dev, (uintptr_t)data, size, type);
    int r = NN_OK;
    if (m)
        m->refs++;
    else
        r = add(c->dev, &want, 0, -1, &m);
    pthread_mutex_unlock(&net_lock);
    *mhandle = r ? NULL : m;
    return r;
}

int net_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
    struct comm *c = comm;
    *mhandle = NULL;
    if (!c || !data || !size || fd < 0) {
        WARN("cannot register %zu bytes at %p of dma-buf %d", size, data, fd);
        return NN_INTERNAL;
    }
    struct net_mr want = {.addr = (uintptr_t)data, .len = size, .type = type, .dmabuf = true}, *m = NULL;
    pthread_mutex_lock(&net_lock);
    int r = add(c->dev, &want, offset, fd, &m);
    pthread_mutex_unlock(&net_lock);
    *mhandle = r ? NULL : m;
    return r;
}

int net_dereg_mr(void *comm, void *mhandle) {
    struct comm *c = comm;
    int r = NN_INTERNAL;
    if (!c)
        return NN_INTERNAL;
    pthread_mutex_lock(&net_lock);
    for (struct net_mr **at = &c->dev->mrs; *at; at = &(*at)->next) {
        struct net_mr *m = *at;
        if (m != mhandle)
            continue;
        r = NN_OK;
        if (--m->refs == 0) {
            *at = m->next;
            unregister(m);
        }
        break;
    }
    pthread_mutex_unlock(&net_lock);
    if (r)
        WARN("%p is no registered memory of %s", mhandle, c->dev->name);
    return r;
}
