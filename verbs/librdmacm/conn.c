/* SPDX-License-Identifier: Apache-2.0
 *
 * conn.c: the connection to the daemon. libibverbs/control.c is linked in: finding the daemon and one call at a time.
 */
#include "cm.h"

#include <stdlib.h>
#include <sys/time.h>

static pthread_mutex_t cm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cm_daemon *current, *all;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* control.c asks for the guard of a connection whose memory the daemon reaches; ours is none. */
void mr_guard(uint64_t *addr, uint64_t *nonce) {
    *addr = *nonce = 0;
}

static void before(void) {
    pthread_mutex_lock(&cm_lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&cm_lock);
}

/* A child has its parent's sockets: it must not speak on them. It may begin for itself. */
static void in_child(void) {
    for (struct cm_daemon *d = all; d; d = d->next) {
        atomic_store(&d->gone, 1);
        if (d->conn.fd >= 0)
            close(d->conn.fd);
        d->conn.fd = -1;
        pthread_mutex_init(&d->conn.lock, NULL);
        pthread_mutex_init(&d->lock, NULL);
    }
    current = NULL;
    pthread_mutex_init(&cm_lock, NULL);
}

static void watch(void) {
    pthread_atfork(before, in_parent, in_child);
}

/* Says which NICs we may use: those that libibverbs shows. */
static int setup(struct cm_daemon *d) {
    struct mr_cm_setup req = {.hdr = {0}};
    struct mr_hdr rep;
    const char *nics = getenv("MR_NIC");
    struct timeval tv = {.tv_sec = MR_CALL_TIMEOUT_S};

    if (nics && strlen(nics) >= sizeof req.nics)
        return E2BIG;
    if (nics)
        strcpy(req.nics, nics);
    setsockopt(d->conn.fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(d->conn.fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    return mr_conn_call(&d->conn, MR_OP_CM_SETUP, &req, sizeof req, -1, &rep, sizeof rep, NULL, 0);
}

static struct cm_daemon *start(void) {
    char socket[108];
    struct cm_daemon *d = calloc(1, sizeof *d);
    if (!d)
        return mr_null(ENOMEM);
    d->conn.fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    int err = mr_find_daemon(&d->conn, socket);
    if (!err) {
        err = setup(d);
        if (err)
            mr_conn_close(&d->conn);
    }
    if (err) {
        free(d);
        return mr_null(err == ENOENT || err == ECONNREFUSED ? ENODEV : err);
    }
    d->refs = 1;
    d->next = all;
    all = d;
    return d;
}

/* Unlinks and frees; its devices stay open, as a program may still hold them. Needs cm_lock. */
static void drop(struct cm_daemon *d) {
    if (--d->refs)
        return;
    for (struct cm_daemon **p = &all; *p; p = &(*p)->next)
        if (*p == d) {
            *p = d->next;
            break;
        }
    mr_conn_close(&d->conn);
    while (d->devs) {
        struct cm_dev *dev = d->devs;
        d->devs = dev->next;
        free(dev);
    }
    free(d);
}

struct cm_daemon *cm_daemon_get(void) {
    char b;
    pthread_once(&watch_once, watch);
    pthread_mutex_lock(&cm_lock);
    if (current && !atomic_load(&current->gone)) { /* it may have hung up since */
        ssize_t n = mr_recv_now(current->conn.fd, &b, 1, MSG_PEEK);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            atomic_store(&current->gone, 1);
    }
    if (current && atomic_load(&current->gone)) {
        drop(current);
        current = NULL;
    }
    if (!current)
        current = start();
    struct cm_daemon *d = current;
    if (d)
        d->refs++;
    pthread_mutex_unlock(&cm_lock);
    return d;
}

void cm_daemon_put(struct cm_daemon *d) {
    pthread_mutex_lock(&cm_lock);
    drop(d);
    pthread_mutex_unlock(&cm_lock);
}

int cm_call(struct cm_daemon *d, uint16_t op, void *req, size_t req_len, void *rep, size_t rep_len) {
    if (atomic_load(&d->gone))
        return mr_minus1(EIO);
    int err = mr_conn_call(&d->conn, op, req, req_len, -1, rep, rep_len, NULL, 0);
    if (err == EIO)
        atomic_store(&d->gone, 1);
    return err ? mr_minus1(err) : 0;
}

int cm_simple(struct cm_id *id, uint16_t op) {
    struct mr_handle req = {.handle = id->handle};
    struct mr_hdr rep;
    return CM_CALL(id->d, op, &req, &rep);
}

int cm_arg(struct cm_id *id, uint16_t op, uint32_t arg) {
    struct mr_cm_arg req = {.id = id->handle, .arg = arg};
    struct mr_hdr rep;
    return CM_CALL(id->d, op, &req, &rep);
}
