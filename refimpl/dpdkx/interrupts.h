/* SPDX-License-Identifier: Apache-2.0 */
/* Ports that are stopped and started on EAL's interrupt thread.
 *
 * A memif's driver takes its connection apart on that thread when the peer goes, and on the caller's when the port is
 * stopped, with a lock around the first half only (DPDK 22.11): both at once close file descriptors twice, which are
 * other connections' by then, and free the control channel under a callback that stays registered and is called for
 * ever. On the one thread they come one after the other. */
#ifndef MR_DPDKX_INTERRUPTS_H
#define MR_DPDKX_INTERRUPTS_H

#include <stdbool.h>
#include <stdint.h>

enum mr_turn_state { MR_TURN_IDLE, MR_TURN_ASKED, MR_TURN_DONE, MR_TURN_FAILED };

struct mr_turn {
    int state; /* enum mr_turn_state; the interrupt thread's while asked */
    uint16_t port;
    bool stop, start; /* what is to be done, in this order */
};

int mr_turn_ask(struct mr_turn *t, bool stop, bool start);
int mr_turn_state(const struct mr_turn *t);

/* The interrupt thread stays for good where nothing can happen to it: rte_eal_cleanup unmaps the memory that its
 * descriptions of interrupts lie in, and does not end it (DPDK 22.11). */
int mr_park_ask(void);
bool mr_parked(void);

#endif
