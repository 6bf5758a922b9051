// clang-format off
//go:build dpdk

// clang-format on
/* SPDX-License-Identifier: Apache-2.0 */

#define ALLOW_EXPERIMENTAL_API /* what describes an interrupt: rte_intr_instance_alloc and its kin */

#include <sys/eventfd.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>

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

static int parked;

static void park(void *arg) {
    (void)arg;
    __atomic_store_n(&parked, 1, __ATOMIC_RELEASE);
    for (;;)
        pause();
}

/* By an interrupt of its own: the end of the environment waits for alarms to come to an end. */
int mr_park_ask(void) {
    static const uint64_t one = 1;
    struct rte_intr_handle *h = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int err = -1;

    if (h != NULL && fd >= 0 && rte_intr_fd_set(h, fd) == 0 && rte_intr_type_set(h, RTE_INTR_HANDLE_EXT) == 0)
        err = rte_intr_callback_register(h, park, NULL);
    if (err == 0 && write(fd, &one, sizeof(one)) != sizeof(one))
        err = -1;
    return err;
}

bool mr_parked(void) {
    return __atomic_load_n(&parked, __ATOMIC_ACQUIRE) != 0;
}
