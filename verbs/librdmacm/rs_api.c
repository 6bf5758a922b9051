/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_api.c: the calls that move data, and names of the two ends.
 */
#include "rs.h"

static ssize_t recv_all(int fd, const struct iovec *iov, int n, int flags, struct sockaddr *from, socklen_t *len,
                        int *msg_flags) {
    struct rsock *rs = rs_find(fd);
    ssize_t got;
    if (!rs)
        return -1;
    if (n < 0 || n > IOV_MAX)
        return rs_err(EINVAL);
    if (flags & ~(MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_NOSIGNAL | MSG_TRUNC))
        return rs_err(EOPNOTSUPP);
    pthread_mutex_lock(&rs->lock);
    if (rs->type == SOCK_DGRAM) {
        got = rs_dgram_recv(rs, iov, n, flags, from, len, msg_flags);
    } else {
        got = rs_stream_recv(rs, iov, n, flags);
        if (got > 0)
            rs_addr_out(from, len, (struct sockaddr *)&rs->peer);
    }
    pthread_mutex_unlock(&rs->lock);
    return got;
}

static ssize_t send_all(int fd, const struct iovec *iov, int n, int flags, const struct sockaddr *to, socklen_t len) {
    struct rsock *rs = rs_find(fd);
    ssize_t sent;
    if (!rs)
        return -1;
    if (n < 0 || n > IOV_MAX)
        return rs_err(EINVAL);
    if (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_WAITALL))
        return rs_err(EOPNOTSUPP);
    pthread_mutex_lock(&rs->lock);
    if (rs->type == SOCK_DGRAM)
        sent = rs_dgram_send(rs, iov, n, flags & ~(MSG_MORE | MSG_WAITALL), to, len);
    else if (to)
        sent = rs_err(EISCONN);
    else
        sent = rs_stream_send(rs, iov, n, flags);
    pthread_mutex_unlock(&rs->lock);
    return sent;
}

RS_EXPORT ssize_t rrecv(int fd, void *buf, size_t len, int flags) {
    struct iovec v = {buf, len};
    return recv_all(fd, &v, 1, flags, NULL, NULL, NULL);
}

RS_EXPORT ssize_t rrecvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *from_len) {
    struct iovec v = {buf, len};
    return recv_all(fd, &v, 1, flags, from, from_len, NULL);
}

RS_EXPORT ssize_t rrecvmsg(int fd, struct msghdr *m, int flags) {
    socklen_t len = m->msg_namelen;
    m->msg_flags = 0;
    ssize_t n = recv_all(fd, m->msg_iov, (int)m->msg_iovlen, flags, m->msg_name, &len, &m->msg_flags);
    m->msg_controllen = 0; /* there are none */
    if (m->msg_name && n >= 0)
        m->msg_namelen = len;
    return n;
}

RS_EXPORT ssize_t rread(int fd, void *buf, size_t len) {
    return rrecv(fd, buf, len, 0);
}

RS_EXPORT ssize_t rreadv(int fd, const struct iovec *iov, int n) {
    return recv_all(fd, iov, n, 0, NULL, NULL, NULL);
}

RS_EXPORT ssize_t rsend(int fd, const void *buf, size_t len, int flags) {
    struct iovec v = {(void *)(uintptr_t)buf, len};
    return send_all(fd, &v, 1, flags, NULL, 0);
}

RS_EXPORT ssize_t rsendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to, socklen_t to_len) {
    struct iovec v = {(void *)(uintptr_t)buf, len};
    return send_all(fd, &v, 1, flags, to, to_len);
}

RS_EXPORT ssize_t rsendmsg(int fd, const struct msghdr *m, int flags) {
    if (m->msg_control && m->msg_controllen)
        return rs_err(ENOTSUP);
    return send_all(fd, m->msg_iov, (int)m->msg_iovlen, flags, m->msg_name, m->msg_namelen);
}

RS_EXPORT ssize_t rwrite(int fd, const void *buf, size_t len) {
    return rsend(fd, buf, len, 0);
}

RS_EXPORT ssize_t rwritev(int fd, const struct iovec *iov, int n) {
    return send_all(fd, iov, n, 0, NULL, 0);
}

RS_EXPORT int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (rs->type == SOCK_DGRAM)
        return getpeername(fd, addr, len);
    if (rs->state < RS_OPEN)
        return rs_err(ENOTCONN);
    rs_addr_out(addr, len, (struct sockaddr *)&rs->peer);
    return 0;
}

RS_EXPORT int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    if (rs->type == SOCK_DGRAM)
        return getsockname(fd, addr, len);
    struct sockaddr_storage none = {.ss_family = (sa_family_t)rs->domain};
    const struct sockaddr *a = rdma_get_local_addr(rs->id);
    rs_addr_out(addr, len, a->sa_family ? a : (const struct sockaddr *)&none);
    return 0;
}
