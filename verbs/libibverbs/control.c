/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c: the connection to the daemon. Finding its socket, HELLO, and one request at a time.
 */
#include "mr.h"

#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER     0x59616d61
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

bool mr_verbose(void) {
    const char *v = getenv("MR_VERBOSE");
    return v && *v && strcmp(v, "0") != 0;
}

void mr_log(const char *fmt, ...) {
    if (!mr_verbose())
        return;
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "libibverbs (mroce): %s\n", line);
}

/* ------------------------------------------------------------------------------------- one request, one reply */

static int send_msg(int fd, void *buf, size_t len, int pass_fd) {
    struct iovec iov = {buf, len};
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } ctl;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        m.msg_control = ctl.buf;
        m.msg_controllen = sizeof ctl.buf;
        memset(&ctl, 0, sizeof ctl);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    for (;;) {
        if (sendmsg(fd, &m, MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno != EINTR)
            return EIO;
    }
}

/* Reads one message; descriptors that come with it go to fds[0..nfds), surplus ones are closed. Returns its length
 * or a negative errno. */
static ssize_t recv_msg(int fd, void *buf, size_t len, int *fds, int nfds) {
    struct iovec iov = {buf, len};
    union {
        char buf[CMSG_SPACE(sizeof(int) * MR_MAX_FDS)];
        struct cmsghdr align;
    } ctl;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf};
    ssize_t n;
    do
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return -EIO; /* hung up, or no answer in time */
    int got = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof one);
            if (got < nfds)
                fds[got++] = one;
            else
                close(one);
        }
    }
    return n;
}

/* After a missing or garbled reply the two sides no longer agree where they are: the connection is over. */
static int lost(struct mr_conn *c) {
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_RDWR);
    return EIO;
}

int mr_conn_call(struct mr_conn *c, uint16_t op, void *req, size_t req_len, int req_fd, void *rep, size_t rep_len,
                 int *fds, int nfds) {
    uint64_t small[128]; /* most replies; a list comes straight into rep */
    struct mr_hdr *h = req;
    uint8_t *buf = rep_len > sizeof small ? rep : (uint8_t *)small;
    size_t buf_len = rep_len > sizeof small ? rep_len : sizeof small;
    int err, cancel;

    for (int i = 0; i < nfds; i++)
        fds[i] = -1;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&c->lock);
    if (c->fd < 0) {
        err = EIO;
        goto out;
    }
    *h = (struct mr_hdr){.op = op, .len = (uint32_t)req_len, .seq = ++c->seq};
    err = send_msg(c->fd, req, req_len, req_fd);
    if (err) {
        lost(c);
        goto out;
    }
    ssize_t n = recv_msg(c->fd, buf, buf_len, fds, nfds);
    const struct mr_hdr *r = (const struct mr_hdr *)buf;
    if (n < (ssize_t)sizeof *r || r->op != op || r->seq != c->seq || !(r->flags & MR_HDR_REPLY)) {
        err = lost(c);
        goto out;
    }
    err = r->status < 0 ? EIO : r->status;
    if (rep && rep_len <= sizeof small) {
        if ((size_t)n >= rep_len)
            memcpy(rep, buf, rep_len);
        else if (!err)
            err = lost(c);
    }
out:
    if (err)
        for (int i = 0; i < nfds; i++)
            if (fds[i] >= 0) {
                close(fds[i]);
                fds[i] = -1;
            }
    pthread_mutex_unlock(&c->lock);
    pthread_setcancelstate(cancel, NULL);
    return err;
}

/* ------------------------------------------------------------------------------------------- connect and HELLO */

/* Yama lets a process be read only by its ancestors, unless it names another one. The daemon reads and writes our
 * memory by process_vm_*, so it must be named before HELLO, whose answer may depend on a first try. */
static void let_daemon_reach_us(int fd) {
    struct ucred cred = {0};
    socklen_t len = sizeof cred;
    unsigned long who = PR_SET_PTRACER_ANY;
    if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && cred.pid > 0)
        who = (unsigned long)cred.pid;
    int saved = errno;
    prctl(PR_SET_PTRACER, who, 0, 0, 0); /* EINVAL without Yama */
    errno = saved;
}

int mr_conn_open(struct mr_conn *c, const char *socket_path, bool with_guard, int timeout_s) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval tv = {.tv_sec = timeout_s};
    int err;

    memset(c, 0, sizeof *c);
    c->fd = -1;
    if (strlen(socket_path) >= sizeof a.sun_path)
        return ENAMETOOLONG;
    strcpy(a.sun_path, socket_path);
    pthread_mutex_init(&c->lock, NULL);
    c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return errno;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    while (connect(c->fd, (struct sockaddr *)&a, sizeof a)) {
        if (errno == EINTR)
            continue;
        err = errno;
        goto fail;
    }
    struct mr_hello h = {.magic = MR_ABI_MAGIC, .abi_major = MR_ABI_MAJOR, .abi_minor = MR_ABI_MINOR, .pid = getpid()};
    strncpy(h.program, program_invocation_short_name, sizeof h.program - 1);
    if (with_guard) {
        let_daemon_reach_us(c->fd);
        mr_guard(&h.guard_addr, &h.guard_nonce);
    }
    err = mr_conn_call(c, MR_OP_HELLO, &h, sizeof h, -1, &c->hello, sizeof c->hello, NULL, 0);
    if (!err && c->hello.abi_major != MR_ABI_MAJOR)
        err = EPROTONOSUPPORT;
    if (err == EPROTONOSUPPORT) /* always said: nobody would guess it */
        fprintf(stderr,
                "libibverbs (mroce): %s: the daemon %.31s speaks ABI %u, this library %u: install both of one "
                "version\n",
                socket_path, c->hello.version, c->hello.abi_major, MR_ABI_MAJOR);
    if (!err)
        return 0;
fail:
    mr_conn_close(c);
    return err;
}

void mr_conn_close(struct mr_conn *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* --------------------------------------------------------------------------------------------- which daemon */

static int try_socket(struct mr_conn *c, const char *path, char out[static 108]) {
    int err = mr_conn_open(c, path, false, MR_LIST_TIMEOUT_S);
    if (err) {
        mr_log("%s: %s", path, strerror(err));
        return err;
    }
    snprintf(out, 108, "%s", path);
    return 0;
}

/* Keeps the reason that says most: a NIC that may not be used is not the same as none. */
static int worse(int a, int b) {
    return b && (a == EACCES || a == EPROTONOSUPPORT) ? a : b;
}

static int try_pattern(struct mr_conn *c, const char *pattern, char out[static 108]) {
    glob_t g;
    int err = ENOENT;
    if (glob(pattern, 0, NULL, &g))
        return ENOENT;
    for (size_t i = 0; err && i < g.gl_pathc; i++)
        err = worse(err, try_socket(c, g.gl_pathv[i], out));
    globfree(&g);
    return err;
}

/* Anybody can make a directory in /tmp; only one of our own is trusted with our memory. */
static bool is_ours(const char *dir) {
    struct stat st;
    return !lstat(dir, &st) && S_ISDIR(st.st_mode) && st.st_uid == getuid();
}

/* The first that answers (a setuid program does not let its caller choose): MR_SOCKET alone if it is set, else the
 * places where daemons put their sockets. */
int mr_find_daemon(struct mr_conn *c, char out[static 108]) {
    const char *named = secure_getenv("MR_SOCKET"), *run = secure_getenv("XDG_RUNTIME_DIR");
    char pattern[PATH_MAX];
    int err = ENOENT;

    if (named && *named)
        return try_socket(c, named, out);
    if (run && *run) {
        snprintf(pattern, sizeof pattern, "%s/mroce/*.sock", run);
        err = try_pattern(c, pattern, out);
    }
    snprintf(pattern, sizeof pattern, "/tmp/mroce-%u", (unsigned)getuid());
    if (err && is_ours(pattern)) {
        strcat(pattern, "/*.sock");
        err = worse(err, try_pattern(c, pattern, out));
    }
    if (err)
        err = worse(err, try_pattern(c, "/run/mroce/*.sock", out));
    return err;
}

/* --------------------------------------------------------------------------------------- calls on a context */

/* Looks whether the daemon has hung up. Replies are read under conn->lock, so what can be seen here outside of a
 * call is only the end of the stream. */
bool mr_probe_gone(struct mr_ctx *ctx) {
    if (mr_is_gone(ctx))
        return true;
    char b;
    ssize_t n = mr_recv_now(ctx->conn.fd, &b, 1, MSG_PEEK);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        atomic_store(&ctx->gone, 1);
        return true;
    }
    return false;
}

int mr_call_fds(struct mr_ctx *ctx, uint16_t op, void *req, size_t req_len, void *rep, size_t rep_len, int *fds,
                int nfds) {
    if (mr_is_gone(ctx))
        return mr_err(EIO);
    int err = mr_conn_call(&ctx->conn, op, req, req_len, -1, rep, rep_len, fds, nfds);
    if (err == EIO)
        mr_probe_gone(ctx);
    return mr_err(err);
}

int mr_call_pass(struct mr_ctx *ctx, uint16_t op, void *req, size_t req_len, int fd, void *rep, size_t rep_len) {
    if (mr_is_gone(ctx))
        return mr_err(EIO);
    int err = mr_conn_call(&ctx->conn, op, req, req_len, fd, rep, rep_len, NULL, 0);
    if (err == EIO)
        mr_probe_gone(ctx);
    return mr_err(err);
}

int mr_call(struct mr_ctx *ctx, uint16_t op, void *req, size_t req_len, void *rep, size_t rep_len) {
    return mr_call_fds(ctx, op, req, req_len, rep, rep_len, NULL, 0);
}

/* Frees a daemon object. When the daemon is gone, so is the object: the program's side of it can be freed too. */
int mr_free_handle(struct mr_ctx *ctx, uint16_t op, uint32_t handle) {
    struct mr_handle req = {.handle = handle};
    struct mr_hdr rep;
    int err = MR_CALL(ctx, op, &req, &rep);
    return err == EIO && mr_is_gone(ctx) ? 0 : err;
}
