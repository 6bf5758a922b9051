/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.c: how connections begin. The library carries a handle from the listener to who connects; in it is a TCP
 * address. Over that connection both sides tell each other their QPs and memory:
 *
 *   sender     hello ->        <- hello      ready ->
 *
 * Nothing here waits: connect and accept do what can be done now and are called again. The TCP connection stays; when
 * it ends without the byte that says goodbye, the peer is gone.
 */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC        0x313054454e434d52ull /* and the version of what follows */
#define REFUSED_NS   2000000000ll          /* a listener that is not there yet, or no more */
#define UNREACHED_NS 10000000000ll         /* a network that loses packets */
#define RETRY_NS     20000000ll
enum { CANDIDATES = 16 };

struct handle { /* what the library carries; key is of the end that connects */
    uint64_t magic, cookie, key;
    uint32_t ndevs, check;
    uint16_t family, port;
    uint32_t scope;
    uint8_t addr[16];
};
_Static_assert(sizeof(struct handle) <= NN_HANDLE_BYTES, "handle");

struct listener {
    struct vdev *dev;
    int fd, traffic_class;
    uint64_t cookie;
    struct comm *cand[CANDIDATES]; /* connected by TCP, not ready yet */
};

/* ------------------------------------------------------------------------------------------------- addresses */

/* Better interfaces have higher ranks: the one with the NIC's own address, then any, then the loopback. */
static int rank_of(const struct ifaddrs *a, const struct phys *p, const char *wanted) {
    if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || !(a->ifa_flags & IFF_RUNNING))
        return -1;
    int family = a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6)
        return -1;
    if (wanted)
        return param_match(wanted, a->ifa_name, -1) ? 10 + (family == AF_INET) : -1;
    if (a->ifa_flags & IFF_LOOPBACK)
        return family == AF_INET;
    if (family == AF_INET6)
        return IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)a->ifa_addr)->sin6_addr) ? -1 : 4;
    if (!memcmp(&((struct sockaddr_in *)a->ifa_addr)->sin_addr, p->gid.raw + 12, 4))
        return 9;
    return strncmp(a->ifa_name, "docker", 6) ? 5 : 3;
}

static int own_address(const struct phys *p, struct sockaddr_storage *out) {
    struct ifaddrs *list;
    int best = -1;
    const char *wanted = param_word("MR_NET_IFNAME", "NCCL_SOCKET_IFNAME");
    if (getifaddrs(&list))
        return -1;
    for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
        int rank = rank_of(a, p, wanted);
        if (rank <= best)
            continue;
        best = rank;
        memcpy(out, a->ifa_addr,
               a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    }
    freeifaddrs(list);
    if (best < 0)
        WARN("no network interface%s%s for the addresses of connections", wanted ? " among " : "",
             wanted ? wanted : "");
    return best < 0 ? -1 : 0;
}

static socklen_t address_len(const struct sockaddr_storage *a) {
    return a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static uint32_t checksum(const struct handle *h) { /* FNV-1a of all but key and check */
    struct handle copy = *h;
    uint32_t sum = 2166136261u;
    copy.key = copy.check = 0;
    for (size_t i = 0; i < sizeof copy; i++)
        sum = (sum ^ ((const uint8_t *)&copy)[i]) * 16777619u;
    return sum;
}

static void handle_write(struct handle *h, const struct sockaddr_storage *a, uint64_t cookie, int ndevs) {
    memset(h, 0, sizeof *h);
    h->magic = MAGIC;
    h->cookie = cookie;
    h->ndevs = (uint32_t)ndevs;
    h->family = a->ss_family;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;
        h->port = v4->sin_port;
        memcpy(h->addr, &v4->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *v6 = (const void *)a;
        h->port = v6->sin6_port;
        h->scope = v6->sin6_scope_id;
        memcpy(h->addr, &v6->sin6_addr, 16);
    }
    h->check = checksum(h);
}

static bool handle_read(const struct handle *h, struct sockaddr_storage *a) {
    memset(a, 0, sizeof *a);
    if (h->magic != MAGIC || h->check != checksum(h) || h->ndevs < 1 || h->ndevs > MAX_DEVS ||
        (h->family != AF_INET && h->family != AF_INET6))
        return false;
    a->ss_family = h->family;
    if (h->family == AF_INET) {
        struct sockaddr_in *v4 = (void *)a;
        v4->sin_port = h->port;
        memcpy(&v4->sin_addr, h->addr, 4);
    } else {
        struct sockaddr_in6 *v6 = (void *)a;
        v6->sin6_port = h->port;
        v6->sin6_scope_id = h->scope;
        memcpy(&v6->sin6_addr, h->addr, 16);
    }
    return true;
}

static void name_peer(struct comm *c) {
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const void *)&c->addr;
    const struct sockaddr_in6 *v6 = (const void *)&c->addr;
    bool is4 = c->addr.ss_family == AF_INET;
    inet_ntop(c->addr.ss_family, is4 ? (const void *)&v4->sin_addr : &v6->sin6_addr, host, sizeof host);
    snprintf(c->peer_name, sizeof c->peer_name, "%s port %d", host, ntohs(is4 ? v4->sin_port : v6->sin6_port));
}

/* --------------------------------------------------------------------------------------------------- sockets */

static void socket_options(int fd) {
    int one = 1, idle = 5, every = 2, times = 8;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

/* Moves what the socket takes or has: 1 all of it, 0 not yet, -1 the peer is gone. */
static int move(struct comm *c, void *data, size_t len, bool out) {
    while (c->moved < len) {
        char *at = (char *)data + c->moved;
        ssize_t n = out ? send(c->fd, at, len - c->moved, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : recv(c->fd, at, len - c->moved, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0) {
            if (!n)
                errno = ECONNRESET;
            return -1;
        }
        c->moved += (size_t)n;
    }
    c->moved = 0;
    return 1;
}

static bool hello_good(const struct comm *c) {
    const struct hello *h = &c->peer;
    bool good = h->magic == MAGIC && h->cookie == c->cookie && h->ndevs >= 1 && h->ndevs <= MAX_DEVS && h->nqps >= 1 &&
                h->nqps <= MAX_QPS && (!c->sender || h->nqps == (uint32_t)c->nqps);
    for (uint32_t q = 0; good && q < h->nqps; q++)
        good = h->qp[q].dev < h->ndevs;
    return good;
}

static void hello_fill(struct comm *c) {
    c->out.magic = MAGIC;
    c->out.cookie = c->cookie;
    c->out.split = (uint32_t)param(PARAM_SPLIT);
}

static int expired(struct comm *c) {
    if (now_ns() < c->deadline)
        return NN_OK;
    return comm_fail(c, NN_REMOTE_ERROR, "no connection within %d s", param(PARAM_CONNECT_SECONDS));
}

static int gone(struct comm *c) {
    return comm_fail(c, NN_REMOTE_ERROR, "the peer went away while connecting: %s", strerror(errno));
}

/* ---------------------------------------------------------------------------------------------------- connect */

static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *pending;

/* The connect that a handle belongs to; keys are random and never addresses, as a handle may hold anything. */
static struct comm *pending_take(uint64_t key) {
    struct comm *c = NULL;
    pthread_mutex_lock(&pending_lock);
    for (struct comm **at = &pending; *at; at = &(*at)->next_pending)
        if ((*at)->key == key) {
            c = *at;
            *at = c->next_pending;
            break;
        }
    pthread_mutex_unlock(&pending_lock);
    return c;
}

static void pending_put(struct comm *c) {
    pthread_mutex_lock(&pending_lock);
    c->next_pending = pending;
    pending = c;
    pthread_mutex_unlock(&pending_lock);
}

/* Connects that nobody will finish: the library gave up, and its last communicator is gone. */
void connects_forget(void) {
    pthread_mutex_lock(&pending_lock);
    struct comm *list = pending;
    pending = NULL;
    pthread_mutex_unlock(&pending_lock);
    while (list) {
        struct comm *c = list;
        list = c->next_pending;
        comm_close(c);
    }
}

static uint64_t random64(void) {
    uint64_t v = 0;
    while (!v)
        if (getrandom(&v, sizeof v, 0) != sizeof v)
            v = (uint64_t)now_ns();
    return v;
}

/* Failures that pass: nobody listens yet, or, where the sockets' network loses packets as ours do, the kernel got no
 * answer to three questions for the peer's link address. */
static bool passes(const struct comm *c, int e, int64_t now) {
    int64_t tried = now - (c->deadline - (int64_t)param(PARAM_CONNECT_SECONDS) * 1000000000);
    if (e == ECONNREFUSED)
        return tried < REFUSED_NS;
    return (e == EHOSTUNREACH || e == ENETUNREACH || e == ETIMEDOUT) && tried < UNREACHED_NS && now < c->deadline;
}

static int tcp_start(struct comm *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = socket(c->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return comm_fail(c, NN_SYSTEM_ERROR, "socket: %s", strerror(errno));
    socket_options(c->fd);
    if (!connect(c->fd, (struct sockaddr *)&c->addr, address_len(&c->addr)) || errno == EINPROGRESS)
        return NN_OK;
    int e = errno;
    int64_t now = now_ns();
    if (!passes(c, e, now))
        return comm_fail(c, NN_REMOTE_ERROR, "connect: %s", strerror(e));
    c->retry_at = now + RETRY_NS;
    return NN_OK;
}

/* 1 connected, 0 not yet, -1 failed. */
static int tcp_wait(struct comm *c) {
    struct pollfd p = {.events = POLLOUT};
    int e = 0;
    socklen_t len = sizeof e;
    int64_t now = now_ns();
    if (c->retry_at) {
        if (now < c->retry_at)
            return 0;
        c->retry_at = 0;
        if (tcp_start(c))
            return -1;
        if (c->retry_at)
            return 0;
    }
    p.fd = c->fd; /* another one after a new start */
    if (poll(&p, 1, 0) != 1)
        return expired(c) ? -1 : 0;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len))
        e = errno;
    if (!e && p.revents & POLLHUP)
        e = ECONNREFUSED;
    if (!e)
        return 1;
    if (passes(c, e, now)) {
        c->retry_at = now + RETRY_NS;
        return 0;
    }
    comm_fail(c, NN_REMOTE_ERROR, "connect: %s", strerror(e));
    return -1;
}

static int connect_step(struct comm *c, int peer_devs) {
    static uint64_t ready = MAGIC;
    int r = 0;
    switch (c->stage) {
    case ST_CONNECTING:
        r = tcp_wait(c);
        if (r <= 0)
            return r ? atomic_load(&c->error) : NN_OK;
        hello_fill(c);
        if (comm_resources(c, peer_devs, 0))
            return atomic_load(&c->error);
        c->stage = ST_SENDING;
        __attribute__((fallthrough));
    case ST_SENDING:
        r = move(c, &c->out, sizeof c->out, true);
        if (r <= 0)
            return r ? gone(c) : expired(c);
        c->stage = ST_READING;
        __attribute__((fallthrough));
    case ST_READING:
        r = move(c, &c->peer, sizeof c->peer, false);
        if (r <= 0)
            return r ? gone(c) : expired(c);
        if (!hello_good(c))
            return comm_fail(c, NN_REMOTE_ERROR, "the peer does not speak as we do");
        if (comm_connect_qps(c))
            return atomic_load(&c->error);
        c->stage = ST_LAST_SENDING;
        __attribute__((fallthrough));
    case ST_LAST_SENDING:
        r = move(c, &ready, sizeof ready, true);
        if (r <= 0)
            return r ? gone(c) : expired(c);
        c->stage = ST_READY;
        __attribute__((fallthrough));
    default:
        return NN_OK;
    }
}

static struct comm *connect_begin(int traffic_class, struct vdev *dev, const struct handle *h,
                                  const struct sockaddr_storage *addr) {
    struct comm *c = comm_new(dev, true, traffic_class);
    if (!c)
        return NULL;
    c->addr = *addr;
    c->cookie = h->cookie;
    c->deadline = now_ns() + (int64_t)param(PARAM_CONNECT_SECONDS) * 1000000000;
    name_peer(c);
    c->key = random64();
    tcp_start(c);
    return c;
}

int net_connect(int traffic_class, int dev, void *handle, void **send_comm) {
    struct handle h;
    struct sockaddr_storage addr;
    *send_comm = NULL;
    memcpy(&h, handle, sizeof h);
    if (!handle_read(&h, &addr)) {
        WARN("this is no handle of a listener of this plugin");
        return NN_INTERNAL;
    }
    struct comm *c = h.key ? pending_take(h.key) : NULL;
    if (!c && h.key) {
        WARN("the handle names a connect that is not under way");
        return NN_INTERNAL;
    }
    if (!c) {
        pthread_mutex_lock(&net_lock);
        struct vdev *v = device_get(dev);
        pthread_mutex_unlock(&net_lock);
        c = v ? connect_begin(traffic_class, v, &h, &addr) : NULL;
        if (!c)
            return v ? NN_SYSTEM_ERROR : NN_INTERNAL;
        memcpy((char *)handle + offsetof(struct handle, key), &c->key, sizeof c->key);
    }
    int r = atomic_load(&c->error);
    if (!r)
        r = connect_step(c, (int)h.ndevs);
    if (!r && c->stage != ST_READY) {
        pending_put(c);
        return NN_OK;
    }
    memset((char *)handle + offsetof(struct handle, key), 0, sizeof c->key);
    if (r) {
        comm_close(c);
        return r;
    }
    *send_comm = c;
    return NN_OK;
}

/* ----------------------------------------------------------------------------------------------------- accept */

int net_listen(int traffic_class, int dev, void *handle, void **listen_comm) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    *listen_comm = NULL;
    pthread_mutex_lock(&net_lock);
    struct vdev *v = device_get(dev);
    pthread_mutex_unlock(&net_lock);
    if (!v)
        return NN_INTERNAL;
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return NN_SYSTEM_ERROR;
    l->dev = v;
    l->traffic_class = traffic_class;
    l->cookie = random64();
    l->fd = -1;
    memset(&a, 0, sizeof a);
    if (own_address(v->devs[0], &a))
        goto failed;
    l->fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (a.ss_family == AF_INET)
        ((struct sockaddr_in *)&a)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)&a)->sin6_port = 0;
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, address_len(&a)) || listen(l->fd, 128) ||
        getsockname(l->fd, (struct sockaddr *)&a, &len)) {
        WARN("cannot listen: %s", strerror(errno));
        goto failed;
    }
    memset(handle, 0, NN_HANDLE_BYTES);
    handle_write(handle, &a, l->cookie, v->ndevs);
    pthread_mutex_lock(&net_lock);
    devices_hold(1);
    pthread_mutex_unlock(&net_lock);
    *listen_comm = l;
    return NN_OK;
failed:
    if (l->fd >= 0)
        close(l->fd);
    free(l);
    return NN_SYSTEM_ERROR;
}

static void take_candidates(struct listener *l) {
    for (int i = 0; i < CANDIDATES; i++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof a;
        if (l->cand[i])
            continue;
        int fd = accept4(l->fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct comm *c = comm_new(l->dev, false, l->traffic_class);
        if (!c) {
            close(fd);
            return;
        }
        socket_options(fd);
        c->fd = fd;
        c->addr = a;
        c->cookie = l->cookie;
        c->deadline = now_ns() + (int64_t)param(PARAM_CONNECT_SECONDS) * 1000000000;
        c->stage = ST_READING;
        name_peer(c);
        l->cand[i] = c;
    }
}

/* Whoever does not speak the right words is nobody's peer, and dropped without a failure: ports are scanned. */
static int accept_hello(struct comm *c, bool *stranger) {
    int r = move(c, &c->peer, sizeof c->peer, false);
    if (r > 0 && hello_good(c)) {
        hello_fill(c);
        if (comm_resources(c, (int)c->peer.ndevs, (int)c->peer.nqps) || comm_connect_qps(c))
            return atomic_load(&c->error);
        c->stage = ST_SENDING;
        return NN_OK;
    }
    if (r || now_ns() > c->deadline) {
        INFO("dropped a connection from %s, which is no peer", c->peer_name);
        *stranger = true;
    }
    return NN_OK;
}

static int accept_step(struct comm *c, bool *stranger) {
    uint64_t ready = 0;
    int r = 0;
    if (c->stage == ST_READING) {
        r = accept_hello(c, stranger);
        if (r || c->stage == ST_READING)
            return r;
    }
    if (c->stage == ST_SENDING) {
        r = move(c, &c->out, sizeof c->out, true);
        if (r <= 0)
            return r ? gone(c) : expired(c);
        c->stage = ST_LAST_READING;
    }
    r = (int)recv(c->fd, &ready, sizeof ready, MSG_DONTWAIT | MSG_PEEK);
    if (r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR))
        return gone(c);
    if (r < (int)sizeof ready)
        return expired(c);
    (void)!recv(c->fd, &ready, sizeof ready, MSG_DONTWAIT);
    if (ready != MAGIC)
        return comm_fail(c, NN_REMOTE_ERROR, "the peer does not speak as we do");
    c->stage = ST_READY;
    return NN_OK;
}

int net_accept(void *listen_comm, void **recv_comm) {
    struct listener *l = listen_comm;
    *recv_comm = NULL;
    if (!l)
        return NN_INTERNAL;
    take_candidates(l);
    for (int i = 0; i < CANDIDATES; i++) {
        struct comm *c = l->cand[i];
        bool stranger = false;
        if (!c)
            continue;
        int r = accept_step(c, &stranger);
        if (!r && !stranger && c->stage != ST_READY)
            continue;
        l->cand[i] = NULL;
        if (!r && !stranger) {
            *recv_comm = c;
            return NN_OK;
        }
        comm_close(c);
        if (r)
            return r;
    }
    return NN_OK;
}

int net_close_listen(void *listen_comm) {
    struct listener *l = listen_comm;
    if (!l)
        return NN_OK;
    for (int i = 0; i < CANDIDATES; i++)
        comm_close(l->cand[i]);
    close(l->fd);
    free(l);
    pthread_mutex_lock(&net_lock);
    devices_hold(-1);
    pthread_mutex_unlock(&net_lock);
    return NN_OK;
}
