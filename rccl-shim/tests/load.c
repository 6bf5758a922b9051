/* SPDX-License-Identifier: Apache-2.0
 *
 * load: the plugin is loaded as the libraries load it, from plain C with RTLD_NOW; every version's table is complete.
 * No device is needed: init must then fail, with a code and without a crash.
 *   load PLUGIN
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../include/mr_net_abi.h"

static int failures, lines;

#define CHECK(cond, ...)                              \
    do {                                              \
        if (!(cond)) {                                \
            failures++;                               \
            printf("line %d: %s: ", __LINE__, #cond); \
            printf(__VA_ARGS__);                      \
            printf("\n");                             \
        }                                             \
    } while (0)

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    (void)flags, (void)file, (void)line;
    va_start(ap, fmt);
    lines++;
    printf("  log %d: ", level);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

/* A table is a name and pointers to functions; none may be missing. */
static void table(void *lib, int version, size_t members) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    void *const *t = dlsym(lib, symbol);
    CHECK(t, "%s", dlerror());
    for (size_t i = 0; t && i < members; i++)
        CHECK(t[i], "version %d has no member %zu", version, i);
    if (t)
        CHECK(!strcmp(t[0], "MetaRoCE"), "its name is %s", (const char *)t[0]);
}

int main(int argc, char **argv) {
    void *ctx = &failures;
    int n = -1;
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!lib) {
        printf("%s\n", argc > 1 ? dlerror() : "usage: load PLUGIN");
        return 2;
    }
    table(lib, 6, sizeof(struct nn_v6) / sizeof(void *));
    table(lib, 7, sizeof(struct nn_v7) / sizeof(void *));
    table(lib, 8, sizeof(struct nn_v8) / sizeof(void *));
    table(lib, 9, sizeof(struct nn_v9) / sizeof(void *));
    table(lib, 10, sizeof(struct nn_v10) / sizeof(void *));
    table(lib, 11, sizeof(struct nn_v11) / sizeof(void *));
    table(lib, 12, sizeof(struct nn_v12) / sizeof(void *));
    CHECK(!dlsym(lib, "ncclNetPlugin_v5") && !dlsym(lib, "ncclNetPlugin_v13"), "versions that are none");
    CHECK(!dlsym(lib, "net_init"), "an inner name is exported");

    const struct nn_v12 *v12 = dlsym(lib, "ncclNetPlugin_v12");
    const struct nn_v6 *v6 = dlsym(lib, "ncclNetPlugin_v6");
    int r = v12->init(&ctx, 1, NULL, logger, NULL);
    CHECK(r == NN_SYSTEM_ERROR && !ctx, "init without a device: %d", r);
    CHECK(lines == 1, "%d lines were logged", lines);
    CHECK(v6->init(NULL) == NN_SYSTEM_ERROR, "without a logger");
    CHECK(v12->devices(&n) == NN_OK && n == 0, "%d devices", n);
    CHECK(v12->get_properties(0, &(struct nn_props_v12){.port = 0}) == NN_INTERNAL, "properties of no device");
    CHECK(v12->finalize(NULL) == NN_OK, "finalize");
    CHECK(!dlclose(lib), "%s", dlerror());
    printf("load: %s\n", failures ? "FAILED" : "ok");
    return failures > 0;
}
