/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a driver unmaps is not in use by a burst.
 *
 * When a memif's peer goes, EAL's interrupt thread marks the port as not connected and unmaps the memory that both
 * shared, without looking whether a burst on the loop's thread is still copying there (DPDK 22.11): the process would
 * die with its peer. Bursts begun after the mark touch nothing, so it is enough to wait for the one that may be under
 * way: munmap of this program does. */
#ifndef MR_DPDKX_GUARD_H
#define MR_DPDKX_GUARD_H

extern int mr_bursts; /* under way */

static inline void mr_burst_begin(void) {
    __atomic_fetch_add(&mr_bursts, 1, __ATOMIC_SEQ_CST);
}

static inline void mr_burst_end(void) {
    __atomic_fetch_sub(&mr_bursts, 1, __ATOMIC_SEQ_CST);
}

#endif
