// Package dpdk tests the reference implementation with daemons of its own: mroce-dpdk over memif without huge pages, with
// programs of Debian and our own, at loss, with planes that fail, with kills, and beside nicemu. Build tag dpdk; ci/run.sh dpdk
// (MR_DPDK=smoke) and full_dpdk (MR_DPDK=full) run it.
package dpdk
