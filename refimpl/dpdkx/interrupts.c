// clang-format off
//go:build dpdk

// clang-format on
/* SPDX-License-Identifier: Apache-2.0 */

#include <rte_alarm.h>
#include <rte_ethdev.h>

#include "interrupts.h"

static void on_alarm(void *arg) {
    struct mr_turn *t = arg;
    int err = 0;
    if (t->stop)
        rte_eth_dev_stop(t->port);
    if (t->start)
        err = rte_eth_dev_start(t->port);
    __atomic_store_n(&t->state, err ? MR_TURN_FAILED : MR_TURN_DONE, __ATOMIC_RELEASE);
}

int mr_turn_ask(struct mr_turn *t, bool stop, bool start) {
    t->stop = stop;
    t->start = start;
    __atomic_store_n(&t->state, MR_TURN_ASKED, __ATOMIC_RELEASE);
    int err = rte_eal_alarm_set(1, on_alarm, t);
    if (err)
        __atomic_store_n(&t->state, MR_TURN_FAILED, __ATOMIC_RELEASE);
    return err;
}

int mr_turn_state(const struct mr_turn *t) {
    return __atomic_load_n(&t->state, __ATOMIC_ACQUIRE);
}
