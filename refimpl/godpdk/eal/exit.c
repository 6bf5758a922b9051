// clang-format off
//go:build dpdk

// clang-format on
/* SPDX-License-Identifier: Apache-2.0 */

// EAL calls exit(3) where it prints its usage and, from DPDK 25.11 on, for arguments that it does not take. A daemon
// whose start fails owes its user the reason: while EAL starts, exit(3) goes no further than the handler here.
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "_cgo_export.h"

void mr_eal_starts(bool on); // called from Go

static bool starts;
static pthread_t starter;

static void exits(void) {
    if (starts && pthread_equal(starter, pthread_self())) {
        starts = false;
        mrEALExits();
    }
}

void mr_eal_starts(bool on) {
    static bool registered;

    if (!registered)
        registered = atexit(exits) == 0;
    starter = pthread_self();
    starts = on;
}
