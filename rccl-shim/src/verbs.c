/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.c: libibverbs, by dlopen: ours for an emulated NIC, rdma-core's for a real one. Only public calls.
 */
#include "net.h"

#include <dlfcn.h>

struct verbs vb;

/* Exported under the version in which rdma-core first had them. */
static void *symbol(void *lib, const char *name) {
    static const char *const nodes[] = {"IBVERBS_1.1", "IBVERBS_1.11", "IBVERBS_1.12", "IBVERBS_1.16"};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        void *s = dlvsym(lib, name, nodes[i]);
        if (s)
            return s;
    }
    return NULL;
}

int verbs_load(void) {
    const char *name = param_word("MR_NET_LIB", "NCCL_IBVERBS_LIB");
    if (!name)
        name = "libibverbs.so.1";
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL); /* stays: other threads of the process may be in it */
    if (!lib) {
        INFO("no libibverbs: %s", dlerror());
        return NN_SYSTEM_ERROR;
    }
#define TAKE(type, call, args) *(void **)&vb.call = symbol(lib, #call[0] == '_' ? "_ibv" #call : "ibv_" #call);
#define MUST_HAVE(type, call, args)         \
    TAKE(type, call, args) if (!vb.call) {  \
        WARN("%s has no ibv_" #call, name); \
        return NN_SYSTEM_ERROR;             \
    }
    VERBS_REQUIRED(MUST_HAVE)
    VERBS_OPTIONAL(TAKE)
    if (vb.fork_init() == -1) /* others are no error, as with the libraries themselves */
        INFO("ibv_fork_init failed");
    return NN_OK;
}
