// clang-format off
//go:build dpdk

// clang-format on
/* SPDX-License-Identifier: Apache-2.0 */

#define _GNU_SOURCE
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"

static struct mr_guard guards[MR_GUARDS + 1];

struct mr_guard *mr_guard_take(void) {
    for (int i = 0; i < MR_GUARDS; i++)
        if (__atomic_exchange_n(&guards[i].taken, 1, __ATOMIC_ACQ_REL) == 0)
            return &guards[i];
    return &guards[MR_GUARDS];
}

void mr_guard_give(struct mr_guard *g) {
    __atomic_store_n(&g->taken, 0, __ATOMIC_RELEASE);
}

/* Bursts take microseconds; a queue whose thread is held for so long has its peer's memory taken away all the same. */
static const double patience = 2;

static double seconds(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void await(const struct mr_guard *g) {
    uint32_t seq = __atomic_load_n(&g->seq, __ATOMIC_ACQUIRE);

    if (seq % 2 == 0)
        return;
    for (double end = seconds() + patience; __atomic_load_n(&g->seq, __ATOMIC_ACQUIRE) == seq && seconds() < end;)
        sched_yield();
}

int munmap(void *addr, size_t len);

/* In place of libc's, for the drivers, which are loaded after us. */
int munmap(void *addr, size_t len) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < MR_GUARDS; i++)
        await(&guards[i]);
    return (int)syscall(SYS_munmap, addr, len);
}
