/* SPDX-License-Identifier: Apache-2.0
 *
 * socknet.c: a net over TCP, to compare with. As in the libraries' socket transport, a connection has several data
 * sockets and one for control: the size of each message goes over the latter, the message is cut into pieces of 64 KiB
 * at least, and pieces take the sockets in turn. Theirs may have helper threads; here the caller moves the bytes, as
 * theirs does with no helper. SOCKNET_SOCKETS (4) data sockets; NCCL_SOCKET_IFNAME chooses the interface by prefix.
 */
#include "coll.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SOCKETS_MAX = 16, REQS = NN_REQUESTS, PIECE_MIN = 64 << 10 };

struct sock_handle {
    uint64_t magic;
    struct sockaddr_in addr;
    int sockets;
};

struct sreq {
    struct sconn *c;
    bool busy, sized;
    uint64_t size, header, left; /* left: bytes that are not moved yet */
    char *data;
    size_t header_moved;
};

struct piece {
    struct sreq *req;
    char *at;
    size_t left;
};

struct sconn {
    bool sends;
    int n, fd[SOCKETS_MAX + 1]; /* the last is for control */
    int connected, next, index[SOCKETS_MAX + 1];
    struct sreq reqs[REQS];
    uint64_t head, sized; /* requests: taken, told the size of */
    struct {
        struct piece p[REQS];
        unsigned head, tail;
    } queue[SOCKETS_MAX];
};

struct slisten {
    int fd;
    struct sconn *c;
};

static const uint64_t magic = 0x54454e4b434f53ull;

static int sockets(void) {
    const char *s = getenv("SOCKNET_SOCKETS");
    int n = s ? atoi(s) : 4;
    return n < 1 ? 1 : n > SOCKETS_MAX ? SOCKETS_MAX : n;
}

static int interface(struct sockaddr_in *out) {
    struct ifaddrs *list;
    const char *want = getenv("NCCL_SOCKET_IFNAME");
    int best = -1;
    if (getifaddrs(&list))
        return NN_SYSTEM_ERROR;
    for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || !(a->ifa_flags & IFF_UP))
            continue;
        int rank = want && *want ? (strncmp(a->ifa_name, want, strlen(want)) ? -1 : 2) : !(a->ifa_flags & IFF_LOOPBACK);
        if (rank > best) {
            best = rank;
            memcpy(out, a->ifa_addr, sizeof *out);
        }
    }
    freeifaddrs(list);
    return best < 0 ? NN_SYSTEM_ERROR : NN_OK;
}

/* ------------------------------------------------------------------------------------------------------- devices */

static int s_init(void **ctx, uint64_t id, struct nn_config *config, nn_logger log, nn_profiler profiler) {
    struct sockaddr_in a;
    (void)id, (void)config, (void)log, (void)profiler;
    *ctx = NULL;
    return interface(&a);
}

static int s_devices(int *n) {
    *n = 1;
    return NN_OK;
}

static int s_properties(int dev, struct nn_props_v12 *p) {
    (void)dev;
    memset(p, 0, sizeof *p);
    p->name = (char *)(uintptr_t) "tcp";
    p->ptr_support = NN_PTR_HOST;
    p->speed = 10000;
    p->max_comms = 65536;
    p->max_recvs = 1;
    p->vdevs.ndevs = 1;
    p->max_p2p_bytes = p->max_coll_bytes = 1ull << 40;
    p->rail_id = p->plane_id = NN_NO_ID;
    return NN_OK;
}

/* --------------------------------------------------------------------------------------------------- connections */

static int s_close(void *comm) {
    struct sconn *c = comm;
    for (int i = 0; c && i < c->connected; i++)
        close(c->fd[i]);
    free(c);
    return NN_OK;
}

static int s_listen(void *ctx, int dev, void *handle, void **out) {
    struct sock_handle h = {.magic = magic, .sockets = sockets()};
    struct slisten *l = calloc(1, sizeof *l);
    socklen_t len = sizeof h.addr;
    (void)ctx, (void)dev;
    if (!l || interface(&h.addr))
        return NN_SYSTEM_ERROR;
    h.addr.sin_port = 0;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&h.addr, len) || listen(l->fd, 64) ||
        getsockname(l->fd, (struct sockaddr *)&h.addr, &len))
        return NN_SYSTEM_ERROR;
    memset(handle, 0, NN_HANDLE_BYTES);
    memcpy(handle, &h, sizeof h);
    *out = l;
    return NN_OK;
}

static int opened(struct sconn *c, int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
        return NN_SYSTEM_ERROR;
    c->index[c->connected] = -1;
    c->fd[c->connected++] = fd;
    return NN_OK;
}

/* Each socket begins with its number. The listener's backlog takes them all, so that nothing waits for the far end. */
static int s_connect(void *ctx, int dev, void *handle, void **out, struct nn_device_handle **device) {
    struct sock_handle h;
    (void)ctx, (void)dev, (void)device;
    *out = NULL;
    memcpy(&h, handle, sizeof h);
    if (h.magic != magic || h.sockets < 1 || h.sockets > SOCKETS_MAX)
        return NN_INTERNAL;
    struct sconn *c = calloc(1, sizeof *c);
    if (!c)
        return NN_SYSTEM_ERROR;
    c->sends = true;
    c->n = h.sockets;
    for (int i = 0; i <= c->n; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        char index = (char)i;
        if (fd < 0 || connect(fd, (struct sockaddr *)&h.addr, sizeof h.addr) ||
            send(fd, &index, 1, MSG_NOSIGNAL) != 1 || opened(c, fd)) {
            s_close(c);
            return NN_REMOTE_ERROR;
        }
    }
    *out = c;
    return NN_OK;
}

/* 1 when every socket has said its number, and lies at it. */
static int numbered(struct sconn *c) {
    int fd[SOCKETS_MAX + 1];
    for (int i = 0; i < c->connected; i++) {
        char index = 0;
        if (c->index[i] >= 0)
            continue;
        if (recv(c->fd[i], &index, 1, 0) != 1)
            return errno == EAGAIN ? 0 : -1;
        if (index < 0 || index > c->n)
            return -1;
        c->index[i] = index;
    }
    if (c->connected <= c->n)
        return 0;
    for (int i = 0; i <= c->n; i++)
        fd[c->index[i]] = c->fd[i];
    memcpy(c->fd, fd, sizeof fd);
    return 1;
}

static int s_accept(void *listen_comm, void **out, struct nn_device_handle **device) {
    struct slisten *l = listen_comm;
    (void)device;
    *out = NULL;
    if (!l->c) {
        l->c = calloc(1, sizeof *l->c);
        if (!l->c)
            return NN_SYSTEM_ERROR;
        l->c->n = sockets();
    }
    while (l->c->connected <= l->c->n) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            break;
        if (opened(l->c, fd))
            return NN_SYSTEM_ERROR;
    }
    int r = numbered(l->c);
    if (r > 0) {
        *out = l->c;
        l->c = NULL;
    }
    return r < 0 ? NN_REMOTE_ERROR : NN_OK;
}

static int s_close_listen(void *comm) {
    struct slisten *l = comm;
    s_close(l->c);
    close(l->fd);
    free(l);
    return NN_OK;
}

/* ------------------------------------------------------------------------------------------------------ the data */

static int s_reg(void *comm, void *data, size_t size, int type, void **mh) {
    (void)comm, (void)size, (void)type;
    *mh = data;
    return NN_OK;
}

static int s_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mh) {
    (void)comm, (void)data, (void)size, (void)type, (void)offset, (void)fd, (void)mh;
    return NN_INTERNAL;
}

static int s_dereg(void *comm, void *mh) {
    (void)comm, (void)mh;
    return NN_OK;
}

static void cut(struct sconn *c, struct sreq *r) {
    uint64_t each = (r->size + (uint64_t)c->n - 1) / (uint64_t)c->n;
    if (each < PIECE_MIN)
        each = PIECE_MIN;
    r->left = r->size;
    for (uint64_t at = 0; at < r->size; at += each) {
        int q = c->next++ % c->n;
        struct piece *p = &c->queue[q].p[c->queue[q].tail++ % REQS];
        *p = (struct piece){.req = r, .at = r->data + at, .left = r->size - at < each ? r->size - at : each};
    }
}

/* Bytes moved, 0 when the socket would wait, -1 when the peer is gone. */
static ssize_t shift(const struct sconn *c, int fd, void *at, size_t n) {
    ssize_t r = c->sends ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, n, MSG_DONTWAIT);
    if (r > 0)
        return r;
    return r < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int tell_sizes(struct sconn *c) {
    while (c->sized < c->head) {
        struct sreq *r = &c->reqs[c->sized % REQS];
        ssize_t n = shift(c, c->fd[c->n], (char *)&r->header + r->header_moved, sizeof r->header - r->header_moved);
        if (n <= 0)
            return n ? NN_REMOTE_ERROR : NN_OK;
        r->header_moved += (size_t)n;
        if (r->header_moved < sizeof r->header)
            return NN_OK;
        if (r->header > r->size)
            return NN_BAD_USAGE;
        r->size = r->header;
        r->sized = true;
        c->sized++;
        cut(c, r);
    }
    return NN_OK;
}

static int s_progress(struct sconn *c) {
    int r = tell_sizes(c);
    for (int q = 0; q < c->n && !r; q++)
        while (c->queue[q].head != c->queue[q].tail) {
            struct piece *p = &c->queue[q].p[c->queue[q].head % REQS];
            ssize_t n = shift(c, c->fd[q], p->at, p->left);
            if (n <= 0) {
                r = n ? NN_REMOTE_ERROR : NN_OK;
                break;
            }
            p->at += n;
            p->left -= (size_t)n;
            p->req->left -= (uint64_t)n;
            c->queue[q].head += !p->left;
        }
    return r;
}

static int s_post(struct sconn *c, void *data, size_t size, void **request) {
    struct sreq *r = &c->reqs[c->head % REQS];
    *request = NULL;
    if (r->busy)
        return s_progress(c);
    *r = (struct sreq){.c = c, .busy = true, .size = size, .header = size, .data = data};
    c->head++;
    *request = r;
    return s_progress(c);
}

static int s_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
    (void)tag, (void)mh, (void)ph;
    return s_post(comm, data, size, request);
}

static int s_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mh, void **ph, void **request) {
    (void)tags, (void)mh, (void)ph;
    return n == 1 ? s_post(comm, data[0], sizes[0], request) : NN_INTERNAL;
}

static int s_iflush(void *comm, int n, void **data, int *sizes, void **mh, void **request) {
    (void)comm, (void)n, (void)data, (void)sizes, (void)mh;
    *request = NULL;
    return NN_OK;
}

/* Nothing here waits in the kernel; on a machine with more ranks than cores, others must have their turn. */
static int s_test(void *request, int *done, int *sizes) {
    static unsigned idle;
    struct sreq *r = request;
    int e = s_progress(r->c);
    *done = !e && r->sized && !r->left;
    if (*done) {
        if (sizes)
            sizes[0] = (int)r->size;
        r->busy = false;
        idle = 0;
    } else if (++idle > 256) {
        sched_yield();
    }
    return e;
}

static int s_device_mr(void *comm, void *mh, void **out) {
    (void)comm, (void)mh, (void)out;
    return NN_INTERNAL;
}

static int s_consumed(void *comm, int n, void *request) {
    (void)comm, (void)n, (void)request;
    return NN_OK;
}

static int s_vdevice(int *dev, struct nn_vdevs8 *of) {
    (void)dev, (void)of;
    return NN_BAD_USAGE;
}

static int s_finalize(void *ctx) {
    (void)ctx;
    return NN_OK;
}

static int s_attr(void *ctx, struct nn_attr *attr) {
    (void)ctx, (void)attr;
    return NN_OK;
}

const struct nn_v12 socknet = {"Socket",   s_init,    s_devices,    s_properties, s_listen,       s_connect,
                               s_accept,   s_reg,     s_reg_dmabuf, s_dereg,      s_isend,        s_irecv,
                               s_iflush,   s_test,    s_close,      s_close,      s_close_listen, s_device_mr,
                               s_consumed, s_vdevice, s_finalize,   s_attr};
