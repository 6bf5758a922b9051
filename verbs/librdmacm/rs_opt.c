/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_opt.c: options and flags.
 */
#include "rs.h"

#include <netinet/tcp.h>
#include <stdarg.h>

static bool *flag_of(struct rsock *rs, int level, int name) {
    if (level == SOL_SOCKET && name == SO_REUSEADDR)
        return &rs->opts[RS_SO_REUSEADDR];
    if (level == SOL_SOCKET && name == SO_KEEPALIVE)
        return &rs->opts[RS_SO_KEEPALIVE];
    if (level == SOL_SOCKET && name == SO_OOBINLINE)
        return &rs->opts[RS_SO_OOBINLINE];
    if (level == IPPROTO_TCP && name == TCP_NODELAY)
        return &rs->opts[RS_TCP_NODELAY];
    if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY)
        return &rs->opts[RS_V6ONLY];
    return NULL;
}

/* Those that the connection manager must know. It may be too late for it: the option is kept all the same. */
static void tell_cm(struct rsock *rs, int level, int name, int on) {
    if (rs->type != SOCK_STREAM)
        return;
    if (level == SOL_SOCKET && name == SO_REUSEADDR)
        rdma_set_option(rs->id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
    if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY)
        rdma_set_option(rs->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on);
}

static int set_rdma(struct rsock *rs, int name, uint32_t v) {
    if (rs->type == SOCK_STREAM ? rs->state > RS_LISTENING : rs->dgram && rs->state != RS_OPEN)
        return EINVAL;
    switch (name) {
    case RDMA_SQSIZE:
        rs->sq_size = v > RS_QUEUE_MOST ? RS_QUEUE_MOST : v < RS_QUEUE_LEAST ? RS_QUEUE_LEAST : v;
        return 0;
    case RDMA_RQSIZE:
        rs->rq_size = v > RS_QUEUE_MOST ? RS_QUEUE_MOST : v < RS_QUEUE_LEAST ? RS_QUEUE_LEAST : v;
        return 0;
    case RDMA_INLINE:
        rs->inline_max = v > RS_QUEUE_MOST ? RS_QUEUE_MOST : v;
        return 0;
    case RDMA_IOMAPSIZE:
        rs->iomap_size = rs_unscaled(rs_scaled(v));
        return 0;
    default:
        return ENOTSUP;
    }
}

static int set_int(struct rsock *rs, int level, int name, int v) {
    bool *flag = flag_of(rs, level, name);
    if (flag) {
        *flag = v != 0;
        tell_cm(rs, level, name, v);
        return 0;
    }
    if (level == SOL_RDMA)
        return set_rdma(rs, name, (uint32_t)v);
    if (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF)) {
        if (v < 0)
            return EINVAL;
        uint32_t size = v > 1 << 28 ? 1u << 29 : 2 * (uint32_t)v; /* doubled, as the kernel does */
        if (!rs->qp)
            *(name == SO_RCVBUF ? &rs->rbuf_size : &rs->sbuf_size) = size < 2 * RS_LOWAT ? 2 * RS_LOWAT : size;
        return 0;
    }
    if (level == IPPROTO_TCP && name == TCP_KEEPIDLE) {
        rs->keepidle = v;
        return v > 0 ? 0 : EINVAL;
    }
    if (level == IPPROTO_TCP && (name == TCP_KEEPCNT || name == TCP_KEEPINTVL || name == TCP_MAXSEG))
        return 0; /* the connection is a reliable one */
    return ENOTSUP;
}

RS_EXPORT int rsetsockopt(int fd, int level, int name, const void *val, socklen_t len) {
    struct rsock *rs = rs_find(fd);
    int v, err;
    if (!rs)
        return -1;
    if (!val || len < sizeof v)
        return rs_err(EINVAL);
    if (rs->type == SOCK_DGRAM && level != SOL_RDMA)
        return setsockopt(fd, level, name, val, len);
    memcpy(&v, val, sizeof v);
    pthread_mutex_lock(&rs->lock);
    if (level == SOL_SOCKET && name == SO_LINGER) {
        err = len < sizeof rs->linger ? EINVAL : 0;
        if (!err)
            memcpy(&rs->linger, val, sizeof rs->linger);
    } else {
        err = set_int(rs, level, name, v);
    }
    pthread_mutex_unlock(&rs->lock);
    return err ? rs_err(err) : 0;
}

static int mss(struct rsock *rs) {
    struct ibv_port_attr port;
    if (rs->qp && !ibv_query_port(rs->id->verbs, rs->id->port_num ? rs->id->port_num : 1, &port))
        return 128 << port.active_mtu;
    return RS_LOWAT;
}

static int get_int(struct rsock *rs, int level, int name, int *v) {
    bool *flag = flag_of(rs, level, name);
    if (flag) {
        *v = *flag;
        return 0;
    }
    if (level == SOL_SOCKET && name == SO_ERROR) {
        rs_cm_progress(rs);
        *v = rs->err;
        rs->err = 0;
    } else if (level == SOL_SOCKET && name == SO_RCVBUF) {
        *v = (int)rs->rbuf_size;
    } else if (level == SOL_SOCKET && name == SO_SNDBUF) {
        *v = (int)rs->sbuf_size;
    } else if (level == SOL_SOCKET && name == SO_TYPE) {
        *v = rs->type;
    } else if (level == IPPROTO_TCP && name == TCP_KEEPIDLE) {
        *v = rs->keepidle ? rs->keepidle : 7200;
    } else if (level == IPPROTO_TCP && (name == TCP_KEEPCNT || name == TCP_KEEPINTVL)) {
        *v = 1;
    } else if (level == IPPROTO_TCP && name == TCP_MAXSEG) {
        *v = mss(rs);
    } else if (level == SOL_RDMA && name == RDMA_SQSIZE) {
        *v = (int)rs->sq_size;
    } else if (level == SOL_RDMA && name == RDMA_RQSIZE) {
        *v = (int)rs->rq_size;
    } else if (level == SOL_RDMA && name == RDMA_INLINE) {
        *v = (int)rs->inline_max;
    } else if (level == SOL_RDMA && name == RDMA_IOMAPSIZE) {
        *v = (int)rs->iomap_size;
    } else {
        return ENOTSUP;
    }
    return 0;
}

/* Programs that show what TCP did get zeros rather than what was on their stack. */
static int get_tcp_info(struct rsock *rs, void *val, socklen_t *len) {
    struct tcp_info t = {.tcpi_state = rs->state == RS_OPEN ? TCP_ESTABLISHED : TCP_CLOSE};
    t.tcpi_snd_mss = t.tcpi_rcv_mss = (uint32_t)mss(rs);
    if (*len > sizeof t)
        *len = sizeof t;
    memcpy(val, &t, *len);
    return 0;
}

RS_EXPORT int rgetsockopt(int fd, int level, int name, void *val, socklen_t *len) {
    struct rsock *rs = rs_find(fd);
    int v = 0, err;
    if (!rs)
        return -1;
    if (!val || !len)
        return rs_err(EFAULT);
    if (rs->type == SOCK_DGRAM && level != SOL_RDMA)
        return getsockopt(fd, level, name, val, len);
    pthread_mutex_lock(&rs->lock);
    if (level == SOL_SOCKET && name == SO_LINGER) {
        err = *len < sizeof rs->linger ? EINVAL : 0;
        if (!err) {
            memcpy(val, &rs->linger, sizeof rs->linger);
            *len = sizeof rs->linger;
        }
    } else if (level == IPPROTO_TCP && name == TCP_INFO) {
        err = get_tcp_info(rs, val, len);
    } else {
        err = *len < sizeof v ? EINVAL : get_int(rs, level, name, &v);
        if (!err) {
            memcpy(val, &v, sizeof v);
            *len = sizeof v;
        }
    }
    pthread_mutex_unlock(&rs->lock);
    return err ? rs_err(err) : 0;
}

RS_EXPORT int rfcntl(int fd, int cmd, ...) {
    struct rsock *rs = rs_find(fd);
    va_list args;
    va_start(args, cmd);
    int v = va_arg(args, int);
    va_end(args);
    if (!rs)
        return -1;
    switch (cmd) {
    case F_GETFL:
        return O_RDWR | rs->flags;
    case F_SETFL:
        rs->flags = v & O_NONBLOCK;
        return 0;
    case F_GETFD:
        return fcntl(fd, F_GETFD);
    case F_SETFD:
        return fcntl(fd, F_SETFD, v);
    default:
        return rs_err(ENOTSUP);
    }
}
