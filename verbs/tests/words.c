/* SPDX-License-Identifier: Apache-2.0
 *
 * words: what needs no NIC, names of values and rates, against the library that programs were written for.
 *     words OURS STOCK
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef const char *name_of(int);
typedef int number_of(int);

static void *library(const char *path) {
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!h)
        fprintf(stderr, "words: %s\n", dlerror());
    return h;
}

static void *get(void *h, const char *name) {
    return dlvsym(h, name, "IBVERBS_1.1");
}

int main(int argc, char **argv) {
    static const char *const names[] = {"ibv_node_type_str", "ibv_port_state_str", "ibv_event_type_str",
                                        "ibv_wc_status_str"};
    static const char *const numbers[] = {"ibv_rate_to_mult", "mult_to_ibv_rate", "ibv_rate_to_mbps",
                                          "mbps_to_ibv_rate"};
    void *a = argc == 3 ? library(argv[1]) : NULL, *b = argc == 3 ? library(argv[2]) : NULL;
    int checks = 0, failures = 0;
    if (!a || !b || a == b)
        return 2;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        name_of *ours, *stock;
        *(void **)&ours = get(a, names[i]);
        *(void **)&stock = get(b, names[i]);
        if (!ours || !stock || ours == stock)
            return 2;
        for (int v = 0; v < 300; v++, checks++)
            if (strcmp(ours(v), stock(v)) != 0) {
                printf("%s(%d): \"%s\", the stock library says \"%s\"\n", names[i], v, ours(v), stock(v));
                failures++;
            }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        number_of *ours, *stock;
        *(void **)&ours = dlsym(a, numbers[i]); /* some are newer than 1.1 */
        *(void **)&stock = dlsym(b, numbers[i]);
        if (!ours || !stock || ours == stock)
            return 2;
        for (int v = -2; v < 1300000; v++, checks++)
            if (ours(v) != stock(v) && failures++ < 20)
                printf("%s(%d): %d, the stock library says %d\n", numbers[i], v, ours(v), stock(v));
    }
    printf("words: %d checks, %d failures\n", checks, failures);
    return failures != 0;
}
