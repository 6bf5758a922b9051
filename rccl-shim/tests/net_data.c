/* SPDX-License-Identifier: Apache-2.0
 *
 * net_data.c: cases of mr_net in which all goes well.
 */
#include "net.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

void properties(void) {
    struct nn_props_v12 p, q;
    int n = 0;
    CHECK(net->devices(&n) == NN_OK && n >= 2, "%d devices", n);
    memset(&p, 0xff, sizeof p);
    CHECK(net->get_properties(0, &p) == NN_OK && net->get_properties(1, &q) == NN_OK, "properties");
    CHECK(p.name && strstr(p.name, "mr0") && p.speed >= 1000 && p.port == 1, "%s %d %d", p.name, p.speed, p.port);
    CHECK(p.guid && p.guid != q.guid && p.rail_id == 0 && q.rail_id == 1 && p.plane_id == NN_NO_ID, "%d %d %d",
          p.rail_id, q.rail_id, p.plane_id);
    CHECK(p.ptr_support == NN_PTR_HOST, "kinds of pointers: %d", p.ptr_support); /* our NIC reaches no GPU */
    CHECK(p.max_recvs == 8 && p.max_comms >= 1000 && p.reg_is_global == 1 && p.device_type == 0 && p.vdevs.ndevs == 1,
          "%d %d", p.max_recvs, p.max_comms);
    CHECK(p.vdevs.devs[0] == 0 && q.vdevs.devs[0] == 1 && p.max_p2p_bytes > 2ull << 30, "limits");
    CHECK(net->get_properties(-1, &p) == NN_INTERNAL && net->get_properties(n, &p) == NN_INTERNAL, "no such device");
}

void sizes_of_messages(void) {
    static const size_t sizes[] = {
        0, 1, 7, 8, 63, 64, 65, 4095, 4096, 8191, 8192, 8193, 65536, 1 << 20, 0, (1 << 20) + 1, 3 << 20, HALF - 1};
    struct pair p;
    pair_open(&p, 0, 1);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            transfer(&p, s, r, sizes[i]);
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
}

/* As many receives as a library may have, sends that come later, many rounds: slots are used again and again. */
void many_under_way(void) {
    struct pair p;
    enum { N = NN_REQUESTS, EACH = 20000, ROUNDS = 40 };
    void *rr[N], *sr[N];
    pair_open(&p, 1, 0);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    for (int round = 0; round < ROUNDS; round++) {
        size_t room = EACH;
        int tag = 0;
        for (int i = 0; i < N; i++) {
            void *at = memory + HALF + i * EACH;
            memset(memory + i * EACH, round * N + i, EACH);
            MUST(!receive(p.recv, 1, &at, &room, &tag, &r, &rr[i]) && rr[i], "irecv %d", i);
        }
        void *one_more = &one_more, *at = memory + HALF;
        CHECK(net->irecv(p.recv, 1, &at, &room, &tag, &r, NULL, &one_more) == NN_OK && !one_more, "one too many");
        for (int i = 0; i < N; i++)
            MUST(!send_one(p.send, memory + i * EACH, (size_t)(EACH - i), tag, s, &sr[i]) && sr[i], "isend %d", i);
        for (int i = N; i--;) { /* tested in another order than posted */
            int got = 0;
            CHECK(wait_for(rr[i], &got, 20) == NN_OK && got == EACH - i, "%d: %d", i, got);
            CHECK(wait_for(sr[i], &got, 20) == NN_OK && got == EACH - i, "%d: %d", i, got);
            CHECK(!memcmp(memory + i * EACH, memory + HALF + i * EACH, (size_t)(EACH - i)), "bytes");
        }
    }
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
}

/* Groups of every size, sent in another order than received; sizes from nothing to a mebibyte. */
void grouped(void) {
    struct pair p;
    pair_open(&p, 0, 1);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    for (int n = 1; n <= 8; n++)
        for (int turn = 0; turn < 8; turn++) {
            void *at[8], *mh[8], *rr, *sr[8];
            size_t room[8], each = 1u << 20;
            int tags[8], got[8];
            for (int i = 0; i < n; i++) {
                at[i] = memory + HALF + i * each;
                mh[i] = r;
                room[i] = each;
                tags[i] = 100 + i;
                memset(memory + i * each, turn * 8 + i, each);
                got[i] = -1;
            }
            MUST(!receive(p.recv, n, at, room, tags, mh, &rr) && rr, "irecv of %d", n);
            for (int k = 0; k < n; k++) {
                int i = (k * 3 + turn) % n;
                if (n % 3 == 0)
                    i = (k + turn) % n;
                size_t size = (size_t)(i * turn) % 8 * (each / 8);
                MUST(!send_one(p.send, memory + i * each, size, tags[i], s, &sr[k]) && sr[k], "isend %d of %d", i, n);
            }
            for (int k = 0; k < n; k++)
                CHECK(wait_for(sr[k], NULL, 20) == NN_OK, "send");
            CHECK(wait_for(rr, got, 20) == NN_OK, "receive");
            for (int i = 0; i < n; i++) {
                size_t size = (size_t)(i * turn) % 8 * (each / 8);
                CHECK((size_t)got[i] == size && !memcmp(memory + i * each, at[i], size), "part %d of %d: %d", i, n,
                      got[i]);
            }
        }
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
}

/* Sends whose tags are of two groups: each waits for its own. Two with one tag are taken in order. */
void groups_mixed_up(void) {
    struct pair p;
    pair_open(&p, 0, 1);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    void *at[2] = {memory + HALF, memory + HALF + 64}, *mh[2] = {r, r}, *first, *second, *sr[4], *none;
    size_t room[2] = {64, 64};
    int a[2] = {1, 1}, b[2] = {2, 3}, got[2];
    memset(memory, 1, 64);
    memset(memory + 64, 2, 64);
    MUST(!receive(p.recv, 2, at, room, a, mh, &first) && first, "irecv");
    MUST(!receive(p.recv, 2, at, room, b, mh, &second) && second, "irecv");
    MUST(!send_one(p.send, memory, 64, 1, s, &sr[0]) && sr[0], "isend");
    CHECK(net->isend(p.send, memory, 64, 3, s, NULL, &none) == NN_OK && !none, "tag 3 is of the next group");
    MUST(!send_one(p.send, memory + 64, 63, 1, s, &sr[1]) && sr[1], "isend");
    CHECK(wait_for(first, got, 10) == NN_OK && got[0] == 64 && got[1] == 63 && memory[HALF] == 1 &&
              memory[HALF + 64] == 2,
          "%d %d", got[0], got[1]);
    MUST(!send_one(p.send, memory, 64, 3, s, &sr[2]) && sr[2], "isend");
    MUST(!send_one(p.send, memory + 64, 0, 2, s, &sr[3]) && sr[3], "isend");
    CHECK(wait_for(second, got, 10) == NN_OK && got[0] == 0 && got[1] == 64, "%d %d", got[0], got[1]);
    for (int i = 0; i < 4; i++)
        CHECK(wait_for(sr[i], NULL, 10) == NN_OK, "send");
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
}

/* Without GPU memory there is nothing to flush, unless MR_NET_FLUSH asks for it. */
void flush(void) {
    struct pair p;
    pair_open(&p, 0, 1);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF), *at = memory + HALF, *request = &p;
    int size = 4096, zero = 0;
    bool forced = getenv("MR_NET_FLUSH") != NULL;
    for (int i = 0; i < 50; i++) {
        transfer(&p, s, r, 4096);
        CHECK(net->iflush(p.recv, 1, &at, &size, &r, &request) == NN_OK && !request == !forced, "iflush: %p", request);
        if (request)
            CHECK(wait_for(request, NULL, 10) == NN_OK, "flush");
        CHECK(net->iflush(p.recv, 1, &at, &zero, &r, &request) == NN_OK && !request, "a flush of nothing");
    }
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
}

void merged_device(void) {
    struct nn_vdevs8 both = {.ndevs = 2, .devs = {0, 1}}, twice = {.ndevs = 2, .devs = {0, 0}}, none = {.ndevs = 0},
                     far = {.ndevs = 1, .devs = {77}};
    struct nn_props_v12 p, q;
    struct pair c;
    int dev = -1;
    CHECK(net->make_vdevice(&dev, &twice) == NN_BAD_USAGE && net->make_vdevice(&dev, &none) == NN_BAD_USAGE &&
              net->make_vdevice(&dev, &far) == NN_BAD_USAGE,
          "what cannot be merged");
    MUST(net->make_vdevice(&dev, &both) == NN_OK && dev >= 2, "merge");
    CHECK(!net->get_properties(dev, &p) && !net->get_properties(0, &q) && p.speed == 2 * q.speed &&
              p.vdevs.ndevs == 2 && p.vdevs.devs[1] == 1,
          "speed %d of %d", p.speed, q.speed);
    static const int ends[][2] = {{0, 0}, {0, 2}, {2, 0}};
    for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) { /* merged at both ends, at one of them */
        pair_open(&c, ends[e][0] ? 0 : dev, ends[e][1] ? 1 : dev);
        void *s = reg(c.send, memory, HALF), *r = reg(c.recv, memory + HALF, HALF);
        for (size_t size = 0; size < 1 << 20; size = size * 5 + 1)
            transfer(&c, s, r, size);
        CHECK(net->dereg_mr(c.send, s) == NN_OK && net->dereg_mr(c.recv, r) == NN_OK, "deregister");
        pair_close(&c);
    }
}

/* Communicators come and go: devices are closed with the last of them, but not under a connection, and not when another
 * communicator has begun meanwhile. */
void contexts(void) {
    struct nn_config config = {.traffic_class = NN_NO_TRAFFIC_CLASS};
    struct pair p;
    int n = -1;
    pair_open(&p, 0, 1);
    CHECK(net->finalize(ctx) == NN_OK, "finalize");
    MUST(net->init(&ctx, 3, &config, logger, NULL) == NN_OK && ctx, "init while a connection lives on");
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    transfer(&p, s, r, 100000);
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
    CHECK(net->devices(&n) == NN_OK && n >= 2, "the new communicator has %d devices", n);
    pair_open(&p, 1, 0);
    pair_close(&p);
    struct nn_device_handle *none;
    p.send = NULL; /* a connect that is never finished, as when the library gives up */
    MUST(net->listen(ctx, 1, p.handle, &p.listen) == NN_OK, "listen");
    for (int i = 0; i < 20; i++)
        CHECK(net->connect(ctx, 0, p.handle, &p.send, &none) == NN_OK && !p.send, "connect");
    CHECK(net->close_listen(p.listen) == NN_OK, "close");
    CHECK(net->finalize(ctx) == NN_OK && net->devices(&n) == NN_OK && n == 0, "%d devices after the last one", n);
    MUST(net->init(&ctx, 4, &config, logger, NULL) == NN_OK && ctx, "init");
}

/* A communicator's proxy is a thread; there may be several, and buffers are registered by others meanwhile. */
static void *one_thread(void *number) {
    enum { EACH = 64 << 10 };
    int me = *(int *)number;
    char *mine = memory + (size_t)me * 2 * EACH;
    struct pair p;
    pair_open(&p, me % 2, 1 - me % 2);
    for (int i = 0; i < 300; i++) {
        void *s = reg(p.send, mine, EACH), *r = reg(p.recv, mine + EACH, EACH), *at = mine + EACH, *rr, *sr;
        size_t room = EACH, size = (size_t)(i * 331 % EACH);
        int tag = me, got = -1;
        memset(mine, me + i, size);
        MUST(!receive(p.recv, 1, &at, &room, &tag, &r, &rr) && rr && !send_one(p.send, mine, size, tag, s, &sr) && sr,
             "post");
        MUST(!wait_for(sr, NULL, 20) && !wait_for(rr, &got, 20) && (size_t)got == size, "thread %d: %d", me, got);
        MUST(!memcmp(mine, at, size), "thread %d: other bytes", me);
        MUST(!net->dereg_mr(p.send, s) && !net->dereg_mr(p.recv, r), "deregister");
    }
    MUST(!net->close_send(p.send) && !net->close_recv(p.recv) && !net->close_listen(p.listen), "close");
    return NULL;
}

void threads(void) {
    enum { N = 6 };
    pthread_t t[N];
    int number[N];
    for (int i = 0; i < N; i++) {
        number[i] = i;
        MUST(!pthread_create(&t[i], NULL, one_thread, &number[i]), "thread");
    }
    for (int i = 0; i < N; i++)
        CHECK(!pthread_join(t[i], NULL), "join");
}

/* One message by the functions of a version; types of sizes are all that differs. */
#define VERSION(v, INIT, LISTEN, CONNECT, ACCEPT, SIZE, SEND, RECV)                                              \
    do {                                                                                                         \
        const struct nn_v##v *t = dlsym(plugin, "ncclNetPlugin_v" #v);                                           \
        struct nn_props_##v props;                                                                               \
        void *l = NULL, *s = NULL, *r = NULL, *sm, *rm, *sr = NULL, *rr = NULL, *at = memory + HALF;             \
        struct nn_device_handle *dh = NULL;                                                                      \
        SIZE room = 4096;                                                                                        \
        int tag = v, got = 0, n = 0;                                                                             \
        (void)dh;                                                                                                \
        MUST(t->init INIT == NN_OK && t->devices(&n) == NN_OK && n >= 2, "init");                                \
        CHECK(t->get_properties(1, &props) == NN_OK && props.max_recvs == 8 && props.speed, "properties");       \
        MUST(t->listen LISTEN == NN_OK && l, "listen");                                                          \
        while (!s || !r) {                                                                                       \
            MUST(s || t->connect CONNECT == NN_OK, "connect");                                                   \
            MUST(r || t->accept ACCEPT == NN_OK, "accept");                                                      \
        }                                                                                                        \
        MUST(!t->reg_mr(s, memory, HALF, NN_PTR_HOST, &sm) && !t->reg_mr(r, at, HALF, NN_PTR_HOST, &rm), "reg"); \
        memset(memory, v, 4096);                                                                                 \
        memset(at, 0, 4096);                                                                                     \
        MUST(t->irecv RECV == NN_OK && rr, "irecv");                                                             \
        while (!sr)                                                                                              \
            MUST(t->isend SEND == NN_OK, "isend");                                                               \
        CHECK(wait_for(sr, NULL, 10) == NN_OK && wait_for(rr, &got, 10) == NN_OK && got == 4000, "%d", got);     \
        CHECK(memory[HALF + 3999] == v && memory[HALF + 4000] == 0, "bytes");                                    \
        CHECK(!t->dereg_mr(s, sm) && !t->dereg_mr(r, rm) && !t->close_send(s) && !t->close_recv(r), "close");    \
        CHECK(!t->close_listen(l), "close");                                                                     \
    } while (0)
#define nn_props_6  nn_props_v6
#define nn_props_7  nn_props_v7
#define nn_props_8  nn_props_v8
#define nn_props_9  nn_props_v9
#define nn_props_10 nn_props_v9
#define nn_props_11 nn_props_v11

void old_versions(void) {
    char h[NN_HANDLE_BYTES];
    struct nn_config config = {.traffic_class = NN_NO_TRAFFIC_CLASS};
    void *context = NULL;
    VERSION(6, (logger), (1, h, &l), (0, h, &s), (l, &r), int, (s, memory, 4000, tag, sm, &sr),
            (r, 1, &at, &room, &tag, &rm, &rr));
    VERSION(7, (logger), (1, h, &l), (0, h, &s, &dh), (l, &r, &dh), int, (s, memory, 4000, tag, sm, &sr),
            (r, 1, &at, &room, &tag, &rm, &rr));
    VERSION(8, (logger), (1, h, &l), (0, h, &s, &dh), (l, &r, &dh), int, (s, memory, 4000, tag, sm, &sr),
            (r, 1, &at, &room, &tag, &rm, &rr));
    VERSION(9, (logger), (1, h, &l), (0, h, &s, &dh), (l, &r, &dh), size_t, (s, memory, 4000, tag, sm, &sr),
            (r, 1, &at, &room, &tag, &rm, &rr));
    VERSION(10, (logger, NULL), (1, h, &l), (0, &config, h, &s, &dh), (l, &r, &dh), size_t,
            (s, memory, 4000, tag, sm, NULL, &sr), (r, 1, &at, &room, &tag, &rm, NULL, &rr));
    VERSION(11, (&context, 5, &config, logger, NULL), (context, 1, h, &l), (context, 0, h, &s, &dh), (l, &r, &dh),
            size_t, (s, memory, 4000, tag, sm, NULL, &sr), (r, 1, &at, &room, &tag, &rm, NULL, &rr));
    const struct nn_v11 *v11 = dlsym(plugin, "ncclNetPlugin_v11");
    CHECK(v11->set_net_attr(context, NULL) == NN_OK && v11->finalize(context) == NN_OK, "finalize");
}

/* More than 2 GiB in one message, and in a part of a group: several WRITEs. Only when it is named: it takes 5 GiB. */
void huge(void) {
    const size_t size = (2ull << 30) + (256 << 20) + 4321;
    char *big = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct pair p;
    MUST(big != MAP_FAILED, "no memory");
    pair_open(&p, 0, 1);
    void *s = reg(p.send, big, size), *r = reg(p.recv, big + size, size), *rr, *sr,
         *at[2] = {big + size, memory + HALF};
    void *mh[2] = {r, reg(p.recv, memory + HALF, HALF)};
    size_t room[2] = {size, HALF};
    int tags[2] = {1, 2}, got[2] = {0, 0};
    for (int grouped_too = 0; grouped_too < 2; grouped_too++) {
        for (size_t i = 0; i < size; i += 4096)
            *(size_t *)(big + (i & ~7ull)) = i * 31 + (size_t)grouped_too;
        MUST(!receive(p.recv, 1 + grouped_too, at, room, tags, mh, &rr) && rr, "irecv");
        void *small = NULL;
        MUST(!send_one(p.send, big, size, 1, s, &sr) && sr, "isend: %s", last_log);
        if (grouped_too)
            MUST(!send_one(p.send, big, 100, 2, s, &small) && small, "isend");
        CHECK(wait_for(sr, NULL, 60) == NN_OK && (!small || wait_for(small, NULL, 60) == NN_OK), "%s", last_log);
        CHECK(wait_for(rr, got, 60) == NN_OK && got[0] == (int)size, "%d",
              got[0]); /* an int, as the libraries have it */
        CHECK(!memcmp(big, big + size, size), "other bytes");
    }
    CHECK(!net->dereg_mr(p.send, s) && !net->dereg_mr(p.recv, r) && !net->dereg_mr(p.recv, mh[1]), "deregister");
    pair_close(&p);
    munmap(big, 2 * size);
}

void traffic_class(void) {
    struct nn_config config = {.traffic_class = 96};
    void *usual = ctx, *other = NULL;
    struct pair p;
    MUST(net->init(&other, 2, &config, logger, NULL) == NN_OK && other && other != ctx, "init");
    ctx = other;
    pair_open(&p, 0, 1);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    transfer(&p, s, r, 100000);
    CHECK(net->dereg_mr(p.send, s) == NN_OK && net->dereg_mr(p.recv, r) == NN_OK, "deregister");
    pair_close(&p);
    CHECK(net->finalize(other) == NN_OK, "finalize");
    ctx = usual;
}

/* Many at once, each used, all of them closed; more in the storm of collbench. */
void many_connections(void) {
    enum { N = 100 };
    static struct pair p[N];
    for (int i = 0; i < N; i++)
        pair_open(&p[i], i % 2, 1 - i % 2);
    void *s = reg(p[0].send, memory, HALF), *r = reg(p[0].recv, memory + HALF, HALF);
    void *s1 = reg(p[1].send, memory, HALF), *r1 = reg(p[1].recv, memory + HALF, HALF);
    for (int i = 0; i < N; i++) /* what is registered belongs to the device, not to a connection */
        transfer(&p[i], i % 2 ? s1 : s, i % 2 ? r1 : r, (size_t)i * 97);
    CHECK(!net->dereg_mr(p[0].send, s) && !net->dereg_mr(p[0].recv, r), "deregister");
    CHECK(!net->dereg_mr(p[1].send, s1) && !net->dereg_mr(p[1].recv, r1), "deregister");
    for (int i = 0; i < N; i++)
        pair_close(&p[i]);
}
