/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: which NICs there are, opening and closing one.
 */
#include "mr.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(offsetof(struct mr_dev, ops) == 664, "tail of verbs_device");
_Static_assert(offsetof(struct mr_dev, refcount) == 672, "tail of verbs_device");
_Static_assert(offsetof(struct mr_dev, list) == 680, "tail of verbs_device");
_Static_assert(offsetof(struct mr_dev, sysfs) == 696, "tail of verbs_device");
_Static_assert(offsetof(struct mr_dev, core_support) == 704, "tail of verbs_device");
_Static_assert(offsetof(struct mr_dev, next) == 712, "tail of verbs_device");

static const char our_ops[] = "mroce"; /* its address is what no stock provider has */

/* Every NIC ever seen, by socket and name. Never freed: programs keep device pointers longer than they should, and
 * there are few. */
static struct mr_dev *devices;
pthread_mutex_t mr_devices_lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------------------------------------- choosing */

/* MR_NIC: a comma-separated list of "host/dev", "host" or "dev"; empty = all. */
static bool wanted(const struct mr_nic *n) {
    const char *list = getenv("MR_NIC");
    if (!list || !*list)
        return true;
    const char *slash = strchr(n->name, '/');
    size_t host = slash ? (size_t)(slash - n->name) : 0;
    while (*list) {
        size_t len = strcspn(list, ",");
        if ((len == strlen(n->name) && !strncmp(list, n->name, len)) ||
            (len == strlen(n->dev) && !strncmp(list, n->dev, len)) ||
            (host && len == host && !strncmp(list, n->name, len)))
            return true;
        list += len;
        list += *list == ',';
    }
    return false;
}

static void terminate(struct mr_nic *n) {
    n->name[sizeof n->name - 1] = 0;
    n->dev[sizeof n->dev - 1] = 0;
}

/* Asks for the whole list. *out is malloc'd; returns 0 or errno. */
static int ask_list(struct mr_conn *c, struct mr_nic **out, uint32_t *count) {
    uint8_t *buf = malloc(MR_MSG_BYTES);
    struct mr_nic *all = NULL;
    uint32_t n = 0;
    int err = buf ? 0 : ENOMEM;

    while (!err) {
        struct mr_list req = {.first = n};
        struct mr_list_reply *rep = (void *)buf;
        memset(buf, 0, sizeof *rep);
        err = mr_conn_call(c, MR_OP_LIST, &req, sizeof req, -1, buf, MR_MSG_BYTES, NULL, 0);
        if (err || !rep->count)
            break;
        uint32_t fit = (MR_MSG_BYTES - sizeof *rep) / sizeof(struct mr_nic);
        uint32_t got = rep->count < fit ? rep->count : fit;
        struct mr_nic *more = realloc(all, (n + (size_t)got) * sizeof *all);
        if (!more) {
            err = ENOMEM;
            break;
        }
        all = more;
        memcpy(all + n, buf + sizeof *rep, got * sizeof *all);
        n += got;
        if (n >= rep->total)
            break;
    }
    free(buf);
    if (err) {
        free(all);
        return err;
    }
    for (uint32_t i = 0; i < n; i++)
        terminate(&all[i]);
    *out = all;
    *count = n;
    return 0;
}

/* The name a program sees: "mr0"; when NICs of several hosts are visible at once, "a-mr0". */
static void program_name(char out[static IBV_SYSFS_NAME_MAX], const struct mr_nic *n, const struct mr_nic *all,
                         uint32_t count) {
    bool unique = true;
    for (uint32_t i = 0; i < count; i++)
        if (&all[i] != n && !strcmp(all[i].dev, n->dev))
            unique = false;
    snprintf(out, IBV_SYSFS_NAME_MAX, "%s", unique ? n->dev : n->name);
    for (char *p = out; *p; p++)
        if (*p == '/')
            *p = '-';
}

/* Finds or makes the device; needs mr_devices_lock. */
static struct mr_dev *device_for(const struct mr_nic *n, const char *socket) {
    struct mr_dev *d;
    for (d = devices; d; d = d->next)
        if (!strcmp(d->nic.name, n->name) && !strcmp(d->socket, socket))
            break;
    if (!d) {
        d = calloc(1, sizeof *d);
        if (!d)
            return NULL;
        snprintf(d->socket, sizeof d->socket, "%s", socket);
        d->ibv.node_type = IBV_NODE_CA;
        d->ibv.transport_type = IBV_TRANSPORT_IB;
        d->ops = our_ops;
        d->refcount = 1;
        d->nic = *n;
        d->next = devices;
        devices = d;
    }
    if (memcmp(&d->nic, n, sizeof *n)) /* other threads may be reading: change only what changed */
        d->nic = *n;
    return d;
}

static void put_text(char *to, size_t size, const char *text) {
    size_t n = strnlen(text, size - 1);
    if (!strncmp(to, text, size - 1))
        return;
    memcpy(to, text, n);
    to[n] = 0;
}

static void describe(struct mr_dev *d, const char *name, unsigned number) {
    const char *override = getenv("MR_DEV_NAME"); /* e.g. ../null where /dev/infiniband cannot be had */
    char text[IBV_SYSFS_PATH_MAX];

    put_text(d->ibv.name, sizeof d->ibv.name, name);
    snprintf(text, sizeof text, "uverbs%u", number);
    put_text(d->ibv.dev_name, sizeof d->ibv.dev_name, override && *override ? override : text);
    snprintf(text, sizeof text, "/sys/class/infiniband_verbs/uverbs%u", number);
    put_text(d->ibv.dev_path, sizeof d->ibv.dev_path, text);
    snprintf(text, sizeof text, "/sys/class/infiniband/%s", name);
    put_text(d->ibv.ibdev_path, sizeof d->ibv.ibdev_path, text);
}

MR_EXPORT struct ibv_device **ibv_get_device_list(int *num) {
    struct mr_conn c;
    struct mr_nic *all = NULL;
    struct ibv_device **list = NULL;
    char socket[108];
    uint32_t count = 0, shown = 0;
    int err;

    if (num)
        *num = 0;
    mr_fork_watch();
    err = mr_find_daemon(&c, socket);
    if (err == EACCES || err == EPROTONOSUPPORT)
        return mr_null(err); /* the program's own message will say it */
    if (err) {
        mr_log("no daemon answers (MR_SOCKET, $XDG_RUNTIME_DIR/mroce, /tmp/mroce-%u, /run/mroce): start `nicemu up`",
               (unsigned)getuid());
        return mr_null(ENOSYS); /* as the stock library without kernel support: callers fall through quietly */
    }
    err = ask_list(&c, &all, &count);
    mr_conn_close(&c);
    if (err)
        return mr_null(err);
    for (uint32_t i = 0; i < count; i++)
        if (wanted(&all[i]))
            all[shown++] = all[i];
    list = calloc((size_t)shown + 1, sizeof *list);
    err = list ? 0 : ENOMEM;
    pthread_mutex_lock(&mr_devices_lock);
    for (uint32_t i = 0; !err && i < shown; i++) {
        struct mr_dev *d = device_for(&all[i], socket);
        char name[IBV_SYSFS_NAME_MAX];
        if (!d) {
            err = ENOMEM;
            break;
        }
        program_name(name, &all[i], all, shown);
        describe(d, name, i);
        list[i] = &d->ibv;
    }
    pthread_mutex_unlock(&mr_devices_lock);
    free(all);
    if (err) {
        free(list);
        return mr_null(err);
    }
    if (num)
        *num = (int)shown;
    return list;
}

MR_EXPORT void ibv_free_device_list(struct ibv_device **list) {
    free(list);
}

MR_EXPORT const char *ibv_get_device_name(struct ibv_device *d) {
    return d->name;
}

MR_EXPORT __be64 ibv_get_device_guid(struct ibv_device *d) {
    return ((struct mr_dev *)d)->nic.guid;
}

MR_EXPORT int ibv_get_device_index(struct ibv_device *d) {
    return (int)((struct mr_dev *)d)->nic.index + 1; /* the kernel's begin at 1 too */
}

/* ------------------------------------------------------------------------------------------------- open, close */

/* What the daemon answers to OPEN and IMPORT; the NIC is told to importers only. */
union opened {
    struct mr_open_reply open;
    struct mr_import_reply import;
};
_Static_assert(offsetof(struct mr_open_reply, attr) == offsetof(struct mr_import_reply, attr), "replies begin alike");

static int send_open(struct mr_ctx *ctx, struct mr_dev *d, const uint64_t *token, union opened *rep, int fds[2]) {
    struct mr_open req = {.shm_bytes = ctx->arena.bytes};
    struct mr_import import = {.shm_bytes = ctx->arena.bytes};
    int err;
    if (token) {
        memcpy(import.token, token, sizeof import.token);
        err = mr_conn_call(&ctx->conn, MR_OP_IMPORT, &import, sizeof import, ctx->arena.fd, &rep->import,
                           sizeof rep->import, fds, 2);
    } else {
        pthread_mutex_lock(&mr_devices_lock);
        memcpy(req.name, d->nic.name, sizeof req.name);
        pthread_mutex_unlock(&mr_devices_lock);
        err =
            mr_conn_call(&ctx->conn, MR_OP_OPEN, &req, sizeof req, ctx->arena.fd, &rep->open, sizeof rep->open, fds, 2);
    }
    if (!err && (fds[0] < 0 || fds[1] < 0)) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        err = EIO;
    }
    return err;
}

/* A daemon that cannot reach our memory is offered a thread that copies. One that does not know of that refuses the
 * OPEN, with a better errno than ours would be. */
static int reach(struct mr_ctx *ctx) {
    const char *mode = getenv("MR_DMA");
    bool forced = mode && !strcmp(mode, "assist");
    if (ctx->conn.hello.dma_mode != MR_DMA_NONE && !forced)
        return 0;
    int err = mr_assist_start(ctx);
    return err == EOPNOTSUPP && !forced ? 0 : err;
}

static struct mr_dev *imported_device(struct mr_nic *n, const char *socket) {
    terminate(n);
    pthread_mutex_lock(&mr_devices_lock);
    struct mr_dev *d = device_for(n, socket);
    if (d && !d->ibv.name[0])
        describe(d, n->dev, n->index);
    pthread_mutex_unlock(&mr_devices_lock);
    return d;
}

/* Fills what the program holds. */
static void make_context(struct mr_ctx *ctx, struct mr_dev *d, const struct mr_device_attr *attr, const int fds[2]) {
    ctx->dev = d;
    ctx->attr = *attr;
    ctx->attr.fw_ver[sizeof ctx->attr.fw_ver - 1] = 0;
    ctx->attr.board_id[sizeof ctx->attr.board_id - 1] = 0;
    pthread_mutex_lock(&mr_devices_lock);
    d->attr = ctx->attr;
    d->have_attr = true;
    pthread_mutex_unlock(&mr_devices_lock);
    ctx->bell_fd = fds[0];
    ctx->next_cookie = 1;
    pthread_mutex_init(&ctx->table_lock, NULL);
    pthread_mutex_init(&ctx->mr_lock, NULL);

    struct ibv_context *c = &ctx->v.context;
    mr_fill_ops(&ctx->v);
    c->device = &d->ibv;
    c->cmd_fd = ctx->conn.fd;
    c->async_fd = fds[1];
    c->num_comp_vectors = ctx->attr.num_comp_vectors ? (int)ctx->attr.num_comp_vectors : 1;
    pthread_mutex_init(&c->mutex, NULL);
    c->abi_compat = __VERBS_ABI_IS_EXTENDED;
}

/* Opens a NIC; with a token, the one of the program that shared its context. */
struct mr_ctx *mr_ctx_open(const char *socket, struct mr_dev *d, const uint64_t *token, int *err) {
    struct mr_ctx *ctx = calloc(1, sizeof *ctx);
    union opened rep;
    int fds[2] = {-1, -1};

    if (!ctx) {
        *err = ENOMEM;
        return NULL;
    }
    ctx->conn.fd = -1;
    *err = mr_arena_make(&ctx->arena);
    if (*err)
        goto fail;
    ctx->page = (struct mr_ctx_page *)ctx->arena.base;
    ctx->page->magic = MR_ABI_MAGIC;
    ctx->page->abi_major = MR_ABI_MAJOR;
    *err = mr_conn_open(&ctx->conn, socket, true, MR_CALL_TIMEOUT_S);
    if (!*err)
        *err = reach(ctx);
    if (!*err)
        *err = send_open(ctx, d, token, &rep, fds);
    if (*err)
        goto fail;
    if (token)
        d = imported_device(&rep.import.nic, socket);
    if (!d) {
        close(fds[0]);
        close(fds[1]);
        *err = ENOMEM;
        goto fail;
    }
    make_context(ctx, d, &rep.open.attr, fds);
    mr_fork_watch();
    mr_fork_add(ctx);
    return ctx;
fail:
    mr_conn_close(&ctx->conn);
    mr_assist_stop(ctx);
    mr_arena_drop(&ctx->arena);
    free(ctx);
    return NULL;
}

MR_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device) {
    int err;
    struct mr_dev *d = (struct mr_dev *)device;
    struct mr_ctx *ctx = mr_ctx_open(d->socket, d, NULL, &err);
    if (!ctx) {
        mr_log("open %s: %s", device->name, strerror(err));
        return mr_null(err);
    }
    return &ctx->v.context;
}

/* A random token goes over the descriptor that the program was given; whoever shows the same one to the daemon on a
 * connection of its own has the descriptor, and shares the domains and regions of that context. The new connection
 * takes the descriptor's place: it belongs to the context from here on, as cmd_fd. */
MR_EXPORT struct ibv_context *ibv_import_device(int cmd_fd) {
    struct sockaddr_un a = {0};
    socklen_t len = sizeof a, size = sizeof(int);
    struct mr_share share = {.hdr = {.op = MR_OP_SHARE, .len = sizeof share}};
    char socket[108] = "";
    int type = 0, err;

    if (getsockopt(cmd_fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_SEQPACKET ||
        getpeername(cmd_fd, (struct sockaddr *)&a, &len) || a.sun_family != AF_UNIX || !a.sun_path[0])
        return mr_null(EBADF);
    snprintf(socket, sizeof socket, "%.*s", (int)sizeof a.sun_path - 1, a.sun_path);
    if (getrandom(share.token, sizeof share.token, 0) != sizeof share.token)
        return mr_null(EIO);
    if (send(cmd_fd, &share, sizeof share, MSG_NOSIGNAL) != sizeof share)
        return mr_null(EIO);
    mr_fork_watch();
    struct mr_ctx *ctx = mr_ctx_open(socket, NULL, share.token, &err);
    if (!ctx)
        return mr_null(err);
    int own = ctx->conn.fd;
    if (dup3(own, cmd_fd, O_CLOEXEC) == cmd_fd) {
        ctx->conn.fd = ctx->v.context.cmd_fd = cmd_fd;
        close(own);
    }
    return &ctx->v.context;
}

/* Programs close a device while a thread of theirs waits for its events: the last one out frees it. True when it was
 * closed. */
bool mr_ctx_leave(struct mr_ctx *ctx) {
    pthread_mutex_lock(&ctx->table_lock);
    bool closed = ctx->closed, last = --ctx->users == 0;
    pthread_mutex_unlock(&ctx->table_lock);
    if (closed && last) {
        for (uint32_t i = 0; i < MR_LEAVES; i++)
            free(atomic_load_explicit(&ctx->qpn[i], memory_order_relaxed));
        free(ctx);
    }
    return closed;
}

MR_EXPORT int ibv_close_device(struct ibv_context *c) {
    struct mr_ctx *ctx = to_ctx(c);

    mr_fork_del(ctx);
    pthread_mutex_lock(&ctx->table_lock);
    ctx->closed = true;
    ctx->users++;
    if (!ctx->forked) /* else its parent has the same socket */
        shutdown(c->async_fd, SHUT_RDWR);
    close(c->async_fd);
    pthread_mutex_unlock(&ctx->table_lock);
    mr_conn_close(&ctx->conn); /* the daemon frees whatever is left */
    close(ctx->bell_fd);
    mr_assist_stop(ctx);
    mr_arena_drop(&ctx->arena);
    mr_ctx_leave(ctx);
    return 0;
}
