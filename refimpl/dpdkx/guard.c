// clang-format off
//go:build dpdk

// clang-format on
/* SPDX-License-Identifier: Apache-2.0 */

#define _GNU_SOURCE
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard.h"

int mr_bursts;

int munmap(void *addr, size_t len);

/* In place of libc's, for the drivers, which are loaded after us. */
int munmap(void *addr, size_t len) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    while (__atomic_load_n(&mr_bursts, __ATOMIC_SEQ_CST) > 0)
        sched_yield();
    return (int)syscall(SYS_munmap, addr, len);
}
