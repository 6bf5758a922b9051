/* SPDX-License-Identifier: Apache-2.0
 *
 * preload.c: librspreload.so.1. With it in LD_PRELOAD the IPv4 and IPv6 sockets of a program become rsockets, where a
 * NIC has the address; where none has (loopback, other interfaces), bind and connect make them the kernel's again.
 *
 * A descriptor of an rsocket is a number of the kernel's too, so nothing is translated: a table says which numbers are
 * rsockets. While a call of rsockets runs, its own calls of the C library go straight through.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* the functions that it redirects are the ones made here */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <rdma/rsocket.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST   (1 << 20)

/* What a descriptor is: 0 is none of ours. Untouched pages of it cost nothing. */
static struct slot {
    _Atomic uint8_t rs;
    uint8_t type;
    uint8_t domain;
    bool reuse;
} slots[MOST];

static __thread int inside __attribute__((tls_model("initial-exec")));

/* The names behind ours. */
static struct {
    int (*socket)(int, int, int);
    int (*bind)(int, const struct sockaddr *, socklen_t);
    int (*listen)(int, int);
    int (*accept)(int, struct sockaddr *, socklen_t *);
    int (*accept4)(int, struct sockaddr *, socklen_t *, int);
    int (*connect)(int, const struct sockaddr *, socklen_t);
    int (*shutdown)(int, int);
    int (*close)(int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
    ssize_t (*read)(int, void *, size_t);
    ssize_t (*readv)(int, const struct iovec *, int);
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*writev)(int, const struct iovec *, int);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
    int (*getpeername)(int, struct sockaddr *, socklen_t *);
    int (*getsockname)(int, struct sockaddr *, socklen_t *);
    int (*setsockopt)(int, int, int, const void *, socklen_t);
    int (*getsockopt)(int, int, int, void *, socklen_t *);
    int (*fcntl)(int, int, ...);
    int (*dup)(int);
    int (*dup2)(int, int);
    ssize_t (*sendfile)(int, int, off_t *, size_t);
} real;
static pthread_once_t found = PTHREAD_ONCE_INIT;

static void find_one(void *where, const char *name) {
    void *f = dlsym(RTLD_NEXT, name);
    memcpy(where, &f, sizeof f);
}
#define FIND(name) find_one(&real.name, #name)

static void find_all(void) {
    FIND(socket), FIND(bind), FIND(listen), FIND(accept), FIND(accept4), FIND(connect), FIND(shutdown), FIND(close);
    FIND(recv), FIND(recvfrom), FIND(recvmsg), FIND(read), FIND(readv);
    FIND(send), FIND(sendto), FIND(sendmsg), FIND(write), FIND(writev);
    FIND(poll), FIND(select), FIND(getpeername), FIND(getsockname), FIND(setsockopt), FIND(getsockopt);
    FIND(fcntl), FIND(dup), FIND(dup2), FIND(sendfile);
}

/* True: fd is an rsocket, and this is the program's own call. */
static bool ours(int fd) {
    pthread_once(&found, find_all);
    return !inside && fd >= 0 && fd < MOST && atomic_load_explicit(&slots[fd].rs, memory_order_acquire);
}

#define INSIDE(call)                \
    ({                              \
        inside++;                   \
        __typeof__(call) r_ = call; \
        inside--;                   \
        r_;                         \
    })

static void mark(int fd, int domain, int type) {
    if (fd < 0 || fd >= MOST)
        return;
    slots[fd].domain = (uint8_t)domain;
    slots[fd].type = (uint8_t)type;
    slots[fd].reuse = false;
    atomic_store_explicit(&slots[fd].rs, 1, memory_order_release);
}

static void unmark(int fd) {
    atomic_store_explicit(&slots[fd].rs, 0, memory_order_release);
}

/* -------------------------------------------------------------------------------------------- beginning and ending */

EXPORT int socket(int domain, int type, int protocol) {
    int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC), fd = -1;
    pthread_once(&found, find_all);
    if (!inside && (domain == AF_INET || domain == AF_INET6) && (kind == SOCK_STREAM || kind == SOCK_DGRAM)) {
        fd = INSIDE(rsocket(domain, type, protocol));
        if (fd >= 0)
            mark(fd, domain, kind);
    }
    return fd >= 0 ? fd : real.socket(domain, type, protocol);
}

/* Makes a socket of the kernel of an rsocket that has no address yet. */
static int give_back(int fd) {
    struct slot *s = &slots[fd];
    int one = 1, flags = INSIDE(rfcntl(fd, F_GETFL));
    int fresh = real.socket(s->domain, s->type | (flags > 0 && (flags & O_NONBLOCK) ? SOCK_NONBLOCK : 0), 0);
    if (fresh < 0)
        return -1;
    if (s->reuse)
        real.setsockopt(fresh, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    unmark(fd);
    INSIDE(rclose(fd));
    int r = real.dup2(fresh, fd);
    real.close(fresh);
    return r < 0 ? -1 : 0;
}

EXPORT int bind(int fd, const struct sockaddr *addr, socklen_t len) {
    if (!ours(fd))
        return real.bind(fd, addr, len);
    int r = INSIDE(rbind(fd, addr, len));
    if (!r || errno == EADDRINUSE || errno == EINVAL)
        return r;
    return give_back(fd) ? -1 : real.bind(fd, addr, len);
}

EXPORT int connect(int fd, const struct sockaddr *addr, socklen_t len) {
    if (!ours(fd))
        return real.connect(fd, addr, len);
    int r = INSIDE(rconnect(fd, addr, len));
    if (!r || errno == EINPROGRESS || errno == EALREADY || errno == EISCONN)
        return r;
    return give_back(fd) ? -1 : real.connect(fd, addr, len);
}

EXPORT int listen(int fd, int backlog) {
    return ours(fd) ? INSIDE(rlisten(fd, backlog)) : real.listen(fd, backlog);
}

EXPORT int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags) {
    if (!ours(fd))
        return real.accept4(fd, addr, len, flags);
    int got = INSIDE(raccept(fd, addr, len));
    if (got >= 0) {
        mark(got, slots[fd].domain, SOCK_STREAM);
        if (flags & SOCK_NONBLOCK)
            INSIDE(rfcntl(got, F_SETFL, O_NONBLOCK));
    }
    return got;
}

EXPORT int accept(int fd, struct sockaddr *addr, socklen_t *len) {
    return ours(fd) ? accept4(fd, addr, len, 0) : real.accept(fd, addr, len);
}

EXPORT int shutdown(int fd, int how) {
    return ours(fd) ? INSIDE(rshutdown(fd, how)) : real.shutdown(fd, how);
}

EXPORT int close(int fd) {
    if (!ours(fd))
        return real.close(fd);
    unmark(fd);
    return INSIDE(rclose(fd));
}

/* --------------------------------------------------------------------------------------------------- moving data */

EXPORT ssize_t recv(int fd, void *buf, size_t len, int flags) {
    return ours(fd) ? INSIDE(rrecv(fd, buf, len, flags)) : real.recv(fd, buf, len, flags);
}

EXPORT ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *n) {
    return ours(fd) ? INSIDE(rrecvfrom(fd, buf, len, flags, from, n)) : real.recvfrom(fd, buf, len, flags, from, n);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
    return ours(fd) ? INSIDE(rrecvmsg(fd, m, flags)) : real.recvmsg(fd, m, flags);
}

EXPORT ssize_t read(int fd, void *buf, size_t len) {
    return ours(fd) ? INSIDE(rread(fd, buf, len)) : real.read(fd, buf, len);
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int n) {
    return ours(fd) ? INSIDE(rreadv(fd, iov, n)) : real.readv(fd, iov, n);
}

EXPORT ssize_t send(int fd, const void *buf, size_t len, int flags) {
    return ours(fd) ? INSIDE(rsend(fd, buf, len, flags)) : real.send(fd, buf, len, flags);
}

EXPORT ssize_t sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to, socklen_t n) {
    return ours(fd) ? INSIDE(rsendto(fd, buf, len, flags, to, n)) : real.sendto(fd, buf, len, flags, to, n);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
    return ours(fd) ? INSIDE(rsendmsg(fd, m, flags)) : real.sendmsg(fd, m, flags);
}

EXPORT ssize_t write(int fd, const void *buf, size_t len) {
    return ours(fd) ? INSIDE(rwrite(fd, buf, len)) : real.write(fd, buf, len);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int n) {
    return ours(fd) ? INSIDE(rwritev(fd, iov, n)) : real.writev(fd, iov, n);
}

static ssize_t send_file(int out, int in, off_t *offset, size_t count) {
    char b[65536];
    size_t done = 0;
    while (done < count) {
        size_t want = count - done < sizeof b ? count - done : sizeof b;
        off_t at = offset ? *offset : lseek(in, 0, SEEK_CUR);
        ssize_t n = pread(in, b, want, at), k = n > 0 ? INSIDE(rsend(out, b, (size_t)n, 0)) : n;
        if (k <= 0)
            return done ? (ssize_t)done : k;
        if (offset)
            *offset += k;
        else
            lseek(in, k, SEEK_CUR);
        done += (size_t)k;
        if (k < n)
            break;
    }
    return (ssize_t)done;
}

EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    return ours(out) ? send_file(out, in, offset, count) : real.sendfile(out, in, offset, count);
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) {
    return sendfile(out, in, (off_t *)offset, count);
}

/* --------------------------------------------------------------------------------------------------- waiting */

EXPORT int poll(struct pollfd *fds, nfds_t n, int timeout) {
    bool any = false;
    pthread_once(&found, find_all);
    for (nfds_t i = 0; !inside && i < n; i++)
        any |= ours(fds[i].fd);
    return any ? INSIDE(rpoll(fds, n, timeout)) : real.poll(fds, n, timeout);
}

EXPORT int select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout) {
    bool any = false;
    pthread_once(&found, find_all);
    for (int fd = 0; !inside && fd < n && fd < FD_SETSIZE; fd++)
        any |= ((in && FD_ISSET(fd, in)) || (out && FD_ISSET(fd, out)) || (except && FD_ISSET(fd, except))) && ours(fd);
    return any ? INSIDE(rselect(n, in, out, except, timeout)) : real.select(n, in, out, except, timeout);
}

/* --------------------------------------------------------------------------------------------------- the rest */

EXPORT int getpeername(int fd, struct sockaddr *addr, socklen_t *len) {
    return ours(fd) ? INSIDE(rgetpeername(fd, addr, len)) : real.getpeername(fd, addr, len);
}

EXPORT int getsockname(int fd, struct sockaddr *addr, socklen_t *len) {
    return ours(fd) ? INSIDE(rgetsockname(fd, addr, len)) : real.getsockname(fd, addr, len);
}

EXPORT int setsockopt(int fd, int level, int name, const void *val, socklen_t len) {
    if (!ours(fd))
        return real.setsockopt(fd, level, name, val, len);
    if (level == SOL_SOCKET && name == SO_REUSEADDR && len >= sizeof(int))
        slots[fd].reuse = *(const int *)val != 0;
    return INSIDE(rsetsockopt(fd, level, name, val, len));
}

EXPORT int getsockopt(int fd, int level, int name, void *val, socklen_t *len) {
    return ours(fd) ? INSIDE(rgetsockopt(fd, level, name, val, len)) : real.getsockopt(fd, level, name, val, len);
}

EXPORT int fcntl(int fd, int cmd, ...) {
    va_list args;
    va_start(args, cmd);
    void *arg = va_arg(args, void *);
    va_end(args);
    if (!ours(fd))
        return real.fcntl(fd, cmd, arg);
    return INSIDE(rfcntl(fd, cmd, (int)(intptr_t)arg));
}

EXPORT int fcntl64(int fd, int cmd, ...);
EXPORT int fcntl64(int fd, int cmd, ...) {
    va_list args;
    va_start(args, cmd);
    void *arg = va_arg(args, void *);
    va_end(args);
    return fcntl(fd, cmd, arg);
}

/* An rsocket has one number: a second one would be closed with the first. */
EXPORT int dup(int fd) {
    if (!ours(fd))
        return real.dup(fd);
    errno = EOPNOTSUPP;
    return -1;
}

EXPORT int dup2(int fd, int to) {
    if (ours(fd)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (ours(to) && fd != to)
        close(to);
    return real.dup2(fd, to);
}

/* What hardened programs call instead. */
EXPORT ssize_t __read_chk(int fd, void *buf, size_t len, size_t room);
EXPORT ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags);
EXPORT ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags, struct sockaddr *from,
                              socklen_t *n);
EXPORT int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room);

ssize_t __read_chk(int fd, void *buf, size_t len, size_t room) {
    if (len > room)
        abort();
    return read(fd, buf, len);
}

ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags) {
    if (len > room)
        abort();
    return recv(fd, buf, len, flags);
}

ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags, struct sockaddr *from, socklen_t *n) {
    if (len > room)
        abort();
    return recvfrom(fd, buf, len, flags, from, n);
}

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room) {
    if (n > room / sizeof *fds)
        abort();
    return poll(fds, n, timeout);
}
