/* SPDX-License-Identifier: Apache-2.0
 *
 * layout_cm.c: the structs of rdma_cma.h have the sizes and offsets that programs were built with, and the library
 * loads with all symbols bound at once, each in its version node. layout_cm librdmacm.so.1 symbols-rdmacm.txt
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <rdma/rdma_cma.h>

#define AT(type, member, off) _Static_assert(offsetof(struct type, member) == (off), #type "." #member)
#define SIZE(type, n)         _Static_assert(sizeof(struct type) == (n), #type)

SIZE(rdma_event_channel, 4);
SIZE(rdma_cm_id, 416);
AT(rdma_cm_id, verbs, 0);
AT(rdma_cm_id, channel, 8);
AT(rdma_cm_id, context, 16);
AT(rdma_cm_id, qp, 24);
AT(rdma_cm_id, route, 32);
AT(rdma_cm_id, route.addr.dst_storage, 32 + 128);
AT(rdma_cm_id, route.addr.addr, 32 + 256);
AT(rdma_cm_id, route.path_rec, 32 + 296);
AT(rdma_cm_id, route.num_paths, 32 + 304);
AT(rdma_cm_id, ps, 344);
AT(rdma_cm_id, port_num, 348);
AT(rdma_cm_id, event, 352);
AT(rdma_cm_id, send_cq_channel, 360);
AT(rdma_cm_id, send_cq, 368);
AT(rdma_cm_id, recv_cq_channel, 376);
AT(rdma_cm_id, recv_cq, 384);
AT(rdma_cm_id, srq, 392);
AT(rdma_cm_id, pd, 400);
AT(rdma_cm_id, qp_type, 408);
SIZE(rdma_cm_event, 80);
AT(rdma_cm_event, id, 0);
AT(rdma_cm_event, listen_id, 8);
AT(rdma_cm_event, event, 16);
AT(rdma_cm_event, status, 20);
AT(rdma_cm_event, param, 24);
SIZE(rdma_conn_param, 24);
SIZE(rdma_ud_param, 56);
SIZE(rdma_addrinfo, 96);

int main(int argc, char **argv) {
    char name[128];
    int n = 0;
    if (argc != 3)
        return 2;
    void *lib = dlopen(argv[1], RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FILE *f = fopen(argv[2], "r");
    while (f && fgets(name, sizeof name, f)) {
        name[strcspn(name, "\n")] = 0;
        char *at = strstr(name, "@@");
        if (!at)
            continue;
        *at = 0;
        if (!dlvsym(lib, name, at + 2)) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        n++;
    }
    if (f)
        fclose(f);
    const char *(*str)(enum rdma_cm_event_type) =
        (const char *(*)(enum rdma_cm_event_type))dlsym(lib, "rdma_event_str");
    return n == 68 && str && !strcmp(str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT") ? 0 : 1;
}
