/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: the library loads from plain C with everything resolved, every version node that programs ask for is there,
 * and the structs that programs reach into lie where they expect them. With a daemon (a fake one will do) it also looks
 * at the objects that the library hands out.
 *
 *     layout LIBRARY [device]
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <infiniband/verbs.h>

#define AT(type, member, off) _Static_assert(offsetof(struct type, member) == (off), #type "." #member)
#define SIZE(type, n)         _Static_assert(sizeof(struct type) == (n), #type)
AT(ibv_device, node_type, 16);
AT(ibv_device, transport_type, 20);
AT(ibv_device, name, 24);
AT(ibv_device, dev_name, 88);
AT(ibv_device, dev_path, 152);
AT(ibv_device, ibdev_path, 408);
SIZE(ibv_device, 664);
AT(ibv_context, ops, 8);
AT(ibv_context, ops.alloc_mw, 8 + 56);
AT(ibv_context, ops.bind_mw, 8 + 64);
AT(ibv_context, ops.dealloc_mw, 8 + 72);
AT(ibv_context, ops.poll_cq, 8 + 88);
AT(ibv_context, ops.req_notify_cq, 8 + 96);
AT(ibv_context, ops.post_srq_recv, 8 + 160);
AT(ibv_context, ops.post_send, 8 + 200);
AT(ibv_context, ops.post_recv, 8 + 208);
AT(ibv_context, cmd_fd, 264);
AT(ibv_context, async_fd, 268);
AT(ibv_context, num_comp_vectors, 272);
AT(ibv_context, mutex, 280);
AT(ibv_context, abi_compat, 320);
SIZE(ibv_context, 328);
SIZE(verbs_context, 648);
#define BEFORE(member, n) AT(verbs_context, member, offsetof(struct verbs_context, context) - (n))
BEFORE(sz, 8);
BEFORE(close_xrcd, 24);
BEFORE(create_srq_ex, 40);
BEFORE(create_qp_ex, 56);
BEFORE(query_device_ex, 104);
BEFORE(priv, 112);
BEFORE(create_cq_ex, 120);
BEFORE(query_rt_values, 128);
BEFORE(alloc_dm, 256);
BEFORE(advise_mr, 312);
BEFORE(query_port, 320);
SIZE(ibv_qp, 160);
AT(ibv_qp_ex, comp_mask, 160);
AT(ibv_qp_ex, wr_id, 168);
AT(ibv_qp_ex, wr_flags, 176);
AT(ibv_qp_ex, wr_atomic_cmp_swp, 184);
AT(ibv_qp_ex, wr_send, 240);
AT(ibv_qp_ex, wr_set_ud_addr, 272);
AT(ibv_qp_ex, wr_start, 320);
AT(ibv_qp_ex, wr_abort, 336);
SIZE(ibv_qp_ex, 352);
SIZE(ibv_cq, 128);
AT(ibv_cq_ex, status, 132);
AT(ibv_cq_ex, wr_id, 136);
AT(ibv_cq_ex, start_poll, 144);
AT(ibv_cq_ex, read_completion_wallclock_ns, 280);
SIZE(ibv_cq_ex, 288);
SIZE(ibv_pd, 16);
SIZE(ibv_mr, 48);
SIZE(ibv_mw, 32);
SIZE(ibv_ah, 24);
SIZE(ibv_srq, 128);
SIZE(ibv_comp_channel, 16);
SIZE(ibv_wc, 48);
SIZE(ibv_send_wr, 128);
SIZE(ibv_recv_wr, 32);
SIZE(ibv_sge, 16);
SIZE(ibv_qp_attr, 144);
SIZE(ibv_qp_init_attr, 64);
SIZE(ibv_qp_init_attr_ex, 136);
SIZE(ibv_device_attr, 232);
SIZE(ibv_async_event, 16);
SIZE(ibv_gid_entry, 32);

static int failures;
#define CHECK(cond, ...)                                           \
    do {                                                           \
        if (!(cond)) {                                             \
            failures++;                                            \
            fprintf(stderr, "layout.c:%d: %s: ", __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                          \
            fprintf(stderr, "\n");                                 \
        }                                                          \
    } while (0)

/* What NCCL and others look up, by name and node (dlvsym). */
static const struct {
    const char *name, *node;
} wanted[] = {
    {"ibv_get_device_list", "IBVERBS_1.1"},
    {"ibv_free_device_list", "IBVERBS_1.1"},
    {"ibv_get_device_name", "IBVERBS_1.1"},
    {"ibv_open_device", "IBVERBS_1.1"},
    {"ibv_close_device", "IBVERBS_1.1"},
    {"ibv_get_async_event", "IBVERBS_1.1"},
    {"ibv_ack_async_event", "IBVERBS_1.1"},
    {"ibv_query_device", "IBVERBS_1.1"},
    {"ibv_query_port", "IBVERBS_1.1"},
    {"ibv_query_gid", "IBVERBS_1.1"},
    {"ibv_query_qp", "IBVERBS_1.1"},
    {"ibv_alloc_pd", "IBVERBS_1.1"},
    {"ibv_dealloc_pd", "IBVERBS_1.1"},
    {"ibv_reg_mr", "IBVERBS_1.1"},
    {"ibv_dereg_mr", "IBVERBS_1.1"},
    {"ibv_create_cq", "IBVERBS_1.1"},
    {"ibv_destroy_cq", "IBVERBS_1.1"},
    {"ibv_create_qp", "IBVERBS_1.1"},
    {"ibv_modify_qp", "IBVERBS_1.1"},
    {"ibv_destroy_qp", "IBVERBS_1.1"},
    {"ibv_fork_init", "IBVERBS_1.1"},
    {"ibv_event_type_str", "IBVERBS_1.1"},
    {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
    {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
    {"ibv_query_ece", "IBVERBS_1.10"},
    {"ibv_set_ece", "IBVERBS_1.10"},
    {"ibv_query_port_speed", "IBVERBS_1.16"},
    {"ibv_create_comp_channel", "IBVERBS_1.0"},
    {"ibv_destroy_comp_channel", "IBVERBS_1.0"},
    {"ibv_query_gid_type", "IBVERBS_PRIVATE_34"},
    {"ibv_query_gid_type", "IBVERBS_PRIVATE_57"},
    {"ibv_query_gid_type", "IBVERBS_PRIVATE_59"},
    {"ibv_query_gid_type", "IBVERBS_PRIVATE_64"},
    {"ibv_query_gid_type", "IBVERBS_PRIVATE_65"},
    {"ibv_cmd_reg_mr", "IBVERBS_PRIVATE_34"},
    {"ibv_cmd_reg_mr", "IBVERBS_PRIVATE_65"},
    {"verbs_register_driver_59", "IBVERBS_PRIVATE_59"},
};

/* rdma-core's struct around ibv_device, which stock providers look at. */
struct tail {
    struct ibv_device device;
    const void *ops;
    int refcount;
    void *list[2], *sysfs;
    uint64_t core_support;
};

static void look_at_ports(void *lib, struct ibv_context *c) {
    int (*query_port_48)(struct ibv_context *, uint8_t, void *) = dlvsym(lib, "ibv_query_port", "IBVERBS_1.1");
    struct verbs_context *v = verbs_get_ctx(c);
    unsigned char buf[64];

    CHECK(v && v->sz == sizeof *v, "verbs_context.sz");
    for (size_t len = 48; len <= 56; len += 4) {
        memset(buf, 0xaa, sizeof buf);
        int err = len == 48 ? query_port_48(c, 1, buf) : v->query_port(c, 1, (struct ibv_port_attr *)buf, len);
        CHECK(!err, "query_port of %zu bytes: %d", len, err);
        CHECK(buf[len] == 0xaa && buf[sizeof buf - 1] == 0xaa, "%zu bytes asked for, more written", len);
        CHECK(((struct ibv_port_attr *)buf)->state == IBV_PORT_ACTIVE, "state");
        CHECK(((struct ibv_port_attr *)buf)->link_layer == IBV_LINK_LAYER_ETHERNET, "link layer");
    }
    CHECK(query_port_48(c, 2, buf), "port 2 exists?");
}

static void look_at_device(void *lib, struct ibv_context *c) {
    int (*query)(struct ibv_context *, struct ibv_device_attr *) = dlsym(lib, "ibv_query_device");
    struct {
        struct ibv_device_attr a;
        unsigned char after[8];
    } old;
    struct ibv_device_attr_ex ex;
    memset(&old, 0xaa, sizeof old);
    CHECK(!query(c, &old.a) && old.after[0] == 0xaa, "ibv_query_device writes 232 bytes");
    memset(&ex, 0xaa, sizeof ex);
    CHECK(!verbs_get_ctx(c)->query_device_ex(c, NULL, &ex, sizeof ex), "query_device_ex");
    CHECK(ex.phys_port_cnt_ex == old.a.phys_port_cnt && old.a.phys_port_cnt >= 1, "ports");
    CHECK(!memcmp(&ex.orig_attr, &old.a, sizeof old.a), "both queries say the same");
    memset(&ex, 0xaa, sizeof ex);
    CHECK(!verbs_get_ctx(c)->query_device_ex(c, NULL, &ex, 240) && ((unsigned char *)&ex)[240] == 0xaa, "attr_size");
}

/* Every pointer through which verbs.h jumps without looking. */
static void look_at_ops(struct ibv_context *c) {
    CHECK(c->ops.poll_cq && c->ops.req_notify_cq && c->ops.post_send && c->ops.post_recv && c->ops.post_srq_recv,
          "data path");
    CHECK(c->ops.bind_mw && c->ops.dealloc_mw && c->ops._compat_query_device && c->ops._compat_query_port, "others");
    CHECK(c->num_comp_vectors >= 1 && c->async_fd >= 0 && c->abi_compat == (void *)UINTPTR_MAX, "fields");
}

static int lines_of(const char *path, bool directory) {
    int n = 0, c;
    if (directory) {
        DIR *d = opendir(path);
        while (d && readdir(d))
            n++;
        if (d)
            closedir(d);
        return n;
    }
    FILE *f = fopen(path, "r");
    while (f && (c = fgetc(f)) != EOF)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

/* Plugins open and close it again and again: nothing may be left behind. */
static void open_often(struct ibv_context *(*open_device)(struct ibv_device *),
                       int (*close_device)(struct ibv_context *), struct ibv_device *dev) {
    int fds = 0, maps = 0;
    for (int i = 0; i < 30; i++) {
        struct ibv_context *c = open_device(dev);
        CHECK(c && !close_device(c), "open %d: %m", i);
        if (i != 5)
            continue;
        fds = lines_of("/proc/self/fd", true);
        maps = lines_of("/proc/self/maps", false);
    }
    CHECK(lines_of("/proc/self/fd", true) == fds, "descriptors are left open");
    CHECK(lines_of("/proc/self/maps", false) <= maps + 1, "mappings are left");
}

static void look_at_objects(void *lib) {
    struct ibv_device **(*get_list)(int *) = dlsym(lib, "ibv_get_device_list");
    void (*free_list)(struct ibv_device **) = dlsym(lib, "ibv_free_device_list");
    struct ibv_context *(*open_device)(struct ibv_device *) = dlsym(lib, "ibv_open_device");
    int (*close_device)(struct ibv_context *) = dlsym(lib, "ibv_close_device");
    int n = 0;
    struct ibv_device **list = get_list(&n);

    CHECK(list && n >= 1 && !list[n], "device list");
    if (!list || n < 1)
        return;
    struct tail *t = (struct tail *)list[0];
    CHECK(!t->device._ops._dummy1 && !t->device._ops._dummy2, "_ops stay NULL");
    CHECK(t->ops && !t->sysfs, "tail of verbs_device");
    struct ibv_context *c = open_device(list[0]);
    CHECK(c, "open: %m");
    if (c) {
        look_at_ops(c);
        look_at_ports(lib, c);
        look_at_device(lib, c);
        CHECK(!close_device(c), "close");
        open_often(open_device, close_device, list[0]);
    }
    free_list(list);
}

int main(int argc, char **argv) {
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!lib) {
        fprintf(stderr, "layout: %s\n", argc > 1 ? dlerror() : "usage: layout LIBRARY [device]");
        return 1;
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        CHECK(dlvsym(lib, wanted[i].name, wanted[i].node), "%s@%s", wanted[i].name, wanted[i].node);
    if (argc > 2)
        look_at_objects(lib);
    dlclose(lib);
    dlclose(dlopen(argv[1], RTLD_NOW)); /* plugins load and unload it again and again */
    printf("layout: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
