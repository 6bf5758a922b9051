/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_net: the plugin's functions against a daemon, both ends of each connection in this process.
 *   mr_net PLUGIN [CASE]...
 */
#include "net.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>

int failures, checks, log_lines;
char last_log[512];
const char *current = "start";
const struct nn_v12 *net;
void *plugin, *ctx;
char *memory;

void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    (void)flags, (void)file, (void)line;
    va_start(ap, fmt);
    if (level <= NN_LOG_WARN) {
        log_lines++;
        vsnprintf(last_log, sizeof last_log, fmt, ap);
    }
    if (getenv("MR_VERBOSE")) {
        vfprintf(stderr, fmt, ap);
        fprintf(stderr, "\n");
    }
    va_end(ap);
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void pair_open(struct pair *p, int from, int to) {
    double until = now_s() + 30;
    memset(p, 0, sizeof *p);
    MUST(net->listen(ctx, to, p->handle, &p->listen) == NN_OK && p->listen, "listen");
    while (!p->send || !p->recv) {
        struct nn_device_handle *dev = NULL;
        if (!p->send)
            MUST(net->connect(ctx, from, p->handle, &p->send, &dev) == NN_OK, "connect");
        if (!p->recv)
            MUST(net->accept(p->listen, &p->recv, &dev) == NN_OK, "accept");
        MUST(now_s() < until, "no connection in 30 s");
    }
}

void pair_close(struct pair *p) {
    CHECK(!p->send || net->close_send(p->send) == NN_OK, "close");
    CHECK(!p->recv || net->close_recv(p->recv) == NN_OK, "close");
    CHECK(net->close_listen(p->listen) == NN_OK, "close");
}

void *reg(void *comm, void *at, size_t n) {
    void *mh = NULL;
    MUST(net->reg_mr(comm, at, n, NN_PTR_HOST, &mh) == NN_OK && mh, "register");
    return mh;
}

int wait_for(void *request, int *sizes, double seconds) {
    double until = now_s() + seconds;
    int done = 0, r = NN_OK;
    while (!done && !r) {
        r = net->test(request, &done, sizes);
        if (!done && !r && now_s() > until)
            return -1;
    }
    return r;
}

int receive(void *comm, int n, void **at, size_t *sizes, int *tags, void **mh, void **request) {
    double until = now_s() + 10;
    int r = NN_OK;
    for (*request = NULL; !*request && !r && now_s() < until;)
        r = net->irecv(comm, n, at, sizes, tags, mh, NULL, request);
    return r;
}

int send_one(void *comm, void *at, size_t size, int tag, void *mh, void **request) {
    double until = now_s() + 10;
    int r = NN_OK;
    for (*request = NULL; !*request && !r && now_s() < until;)
        r = net->isend(comm, at, size, tag, mh, NULL, request);
    return r;
}

void transfer(struct pair *p, void *smh, void *rmh, size_t size) {
    void *at = memory + HALF, *rr, *sr;
    size_t room = HALF - 1;
    int tag = 7, got = -1;
    static unsigned seed;
    for (size_t i = 0; i < size; i += 509)
        memory[i] = (char)(seed = seed * 1103515245 + 12345);
    if (size)
        memory[size - 1] = (char)(seed >> 8);
    memory[HALF + size] = 0x55; /* beyond the message */
    MUST(!receive(p->recv, 1, &at, &room, &tag, &rmh, &rr) && rr, "irecv");
    MUST(!send_one(p->send, memory, size, tag, smh, &sr) && sr, "isend");
    CHECK(wait_for(sr, NULL, 20) == NN_OK, "send of %zu: %s", size, last_log);
    CHECK(wait_for(rr, &got, 20) == NN_OK && (size_t)got == size, "%d of %zu arrived: %s", got, size, last_log);
    CHECK(!memcmp(memory, memory + HALF, size), "other bytes, size %zu", size);
    CHECK(memory[HALF + size] == 0x55, "more than %zu bytes were written", size);
}

#define CASE(f) \
    { #f, f }
static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    CASE(properties),
    CASE(sizes_of_messages),
    CASE(many_under_way),
    CASE(grouped),
    CASE(groups_mixed_up),
    CASE(too_many_groups),
    CASE(bad_handles),
    CASE(bad_registration),
    CASE(registration_cache),
    CASE(dmabuf),
    CASE(too_long),
    CASE(closed_under_requests),
    CASE(stranger_at_the_door),
    CASE(nobody_listens),
    CASE(flush),
    CASE(merged_device),
    CASE(threads),
    CASE(contexts),
    CASE(old_versions),
    CASE(traffic_class),
    CASE(many_connections),
    CASE(huge),
};

int main(int argc, char **argv) {
    int ran = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    MUST(plugin, "%s", argc > 1 ? dlerror() : "usage: mr_net PLUGIN [CASE]...");
    net = dlsym(plugin, "ncclNetPlugin_v12");
    memory = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct nn_config config = {.traffic_class = NN_NO_TRAFFIC_CLASS};
    MUST(net && memory != MAP_FAILED && net->init(&ctx, 1, &config, logger, NULL) == NN_OK && ctx, "init");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool wanted = argc <= 2 && cases[i].run != huge;
        for (int k = 2; k < argc; k++)
            wanted |= !strcmp(argv[k], cases[i].name);
        if (!wanted)
            continue;
        int before = failures;
        current = cases[i].name;
        cases[i].run();
        ran++;
        printf("%-32s %s\n", current, failures == before ? "ok" : "FAILED");
    }
    current = "end";
    CHECK(net->finalize(ctx) == NN_OK, "finalize");
    printf("mr_net: %s cases=%d checks=%d failures=%d\n", failures || !ran ? "FAILED" : "ok", ran, checks, failures);
    return failures || !ran;
}
