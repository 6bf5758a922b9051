/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a driver unmaps is not in use by a burst.
 *
 * When a memif's peer goes, EAL's interrupt thread marks the port as not connected and unmaps the memory that both
 * shared, without looking whether a burst on the loop's thread is still copying there (DPDK 22.11): the process would
 * die with its peer. Bursts begun after the mark touch nothing, so it is enough to wait for those that are under way:
 * munmap of this program does. */
#ifndef MR_DPDKX_GUARD_H
#define MR_DPDKX_GUARD_H

#include <stdint.h>

#define MR_GUARDS 64 /* queues at once; further ones share the last slot, and go unguarded */

/* One for each queue: odd while a burst of it is under way. Only the queue's thread writes it. */
struct mr_guard {
    uint32_t seq;
    uint32_t taken;
} __attribute__((aligned(64)));

struct mr_guard *mr_guard_take(void);
void mr_guard_give(struct mr_guard *g);

static inline void mr_burst_begin(struct mr_guard *g) {
    __atomic_store_n(&g->seq, g->seq + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* before the burst looks at the mark */
}

static inline void mr_burst_end(struct mr_guard *g) {
    __atomic_store_n(&g->seq, g->seq + 1, __ATOMIC_RELEASE);
}

#endif
