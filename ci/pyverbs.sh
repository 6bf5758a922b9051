#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs rdma-core's own pyverbs tests, as Debian ships them, against our library and an emulated NIC: a judge that we did not
# write. Server and client live in one process there, on one NIC.
#   ci/pyverbs.sh [-v] [-w mem|tap|dpdk] [MODULE | MODULE.CLASS | MODULE.CLASS.TEST]…
# Without names: the whole generic set, 171 tests; what it leaves out must be what ci/pyverbs-skips.txt lists, with a reason
# each. -w tap (root only): in a network namespace of its own, the wire is a TAP, and the NIC has a network interface, which
# test_rdmacm wants. -w dpdk: the daemon is mroce-dpdk, without huge pages. Debian's python3, since pyverbs is built for it.
set -euo pipefail
cd "$(dirname "$0")/.."
generic=(test_device test_pd test_addr test_mr test_cq test_cq_events test_cqex test_fork test_qp test_qpex test_atomic test_relaxed_ordering
    test_odp test_parent_domain test_shared_pd test_rdmacm test_flow test_rss_traffic test_tag_matching test_cuda_dmabuf)
verbose=no wire=mem
self=$PWD/ci/pyverbs.sh
while getopts vw: o; do
    case $o in
    v) verbose=yes ;;
    w) wire=$OPTARG ;;
    *) exit 2 ;;
    esac
done
case $wire in
mem | dpdk) ;;
tap) [ "${MR_PYVERBS_NETNS:-}" ] || MR_PYVERBS_NETNS=1 exec unshare -n bash "$self" "$@" ;;
*) exit 2 ;;
esac
shift $((OPTIND - 1))
modules=("$@")
[ $# -gt 0 ] || modules=("${generic[@]}")

nicemu=$PWD/build/bin/nicemu dpdk=$PWD/build/bin/mroce-dpdk skips=$PWD/ci/pyverbs-skips.txt
[ -x "$nicemu" ] || { echo "pyverbs.sh: run make first" >&2; exit 2; }
/usr/bin/python3 -c 'import pyverbs.device' 2>/dev/null ||
    { echo "pyverbs.sh: no python3-pyverbs; ci/deps.sh test installs it" >&2; exit 3; }

work=$(mktemp -d)
pages=
cleanup() {
    "$nicemu" down >/dev/null 2>&1 || true
    [ $wire != dpdk ] || "$dpdk" down >/dev/null 2>&1 || true
    [ -z "$pages" ] || echo "$pages" >/proc/sys/vm/nr_hugepages 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# Three tests want huge pages. They are there for who may ask for them, and where memory is not in pieces.
# One run at a time has them: who ends takes them away.
huge=/proc/sys/vm/nr_hugepages
{ exec 9>/run/mroce-hugepages.lock; } 2>/dev/null && flock 9
if [ "$(cat $huge 2>/dev/null)" = 0 ] && echo 16 2>/dev/null >$huge; then
    pages=0
    [ "$(cat $huge)" -ge 12 ] || echo 0 >$huge
fi

# The tests are documentation to Debian: on images that leave /usr/share/doc out they come from the package itself.
src=/usr/share/doc/rdma-core/tests
if [ ! -d $src ]; then
    (cd "$work" && apt-get download -q python3-pyverbs >/dev/null 2>&1 && dpkg-deb -x python3-pyverbs_*.deb deb) ||
        { echo "pyverbs.sh: cannot fetch Debian's python3-pyverbs for its tests" >&2; exit 3; }
    src=$work/deb/usr/share/doc/rdma-core/tests
fi
cp -r "$src" "$work/tests"
find "$work/tests" -name '*.gz' -exec gunzip {} +

export XDG_RUNTIME_DIR=$work
case $wire in
mem) "$nicemu" up --addr 10.0.0.1/24 --wire mem: ;;
tap) "$nicemu" up --addr 10.0.0.1/24 --wire tap:mrpv0 --netdev mr0 ;;
dpdk) "$dpdk" up --addr 10.0.0.1/24 --wire dpdk:net_ring0 -- --no-huge -m 256 ;;
esac
cd "$work"
# The library makes room for the whole NIC's tests in one process; ten minutes bound a hang.
rc=0
timeout 600 "$nicemu" run -- /usr/bin/python3 -W ignore tests/run_tests.py --dev mr0 -v $(printf 'tests.%s ' "${modules[@]}") >log 2>&1 || rc=$?
if [ $verbose = yes ] || [ $rc != 0 ]; then cat log; else grep -E '^(Ran|OK|FAILED)' log; fi
[ $rc = 0 ] || exit 1
[ $# = 0 ] || exit 0

# Every test that was left out, against the list: NAME WHEN REASON. WHEN is "always", or "maybe" for what depends on the
# machine.
awk 'match($0, /\(tests\.[A-Za-z0-9_.]+\)/) { name = substr($0, RSTART + 7, RLENGTH - 8) } /\.\.\. skipped / { print name }' log |
    LC_ALL=C sort >skipped
awk '!/^(#|$)/ { print $1 }' "$skips" | LC_ALL=C sort >listed
awk '!/^(#|$)/ && $2 == "always" { print $1 }' "$skips" | LC_ALL=C sort >always
LC_ALL=C comm -23 skipped listed >unlisted
LC_ALL=C comm -13 skipped always >passed
[ ! -s unlisted ] || { echo "pyverbs.sh: left out, and not in ci/pyverbs-skips.txt:"; cat unlisted; exit 1; }
[ ! -s passed ] || { echo "pyverbs.sh: ran, but listed in ci/pyverbs-skips.txt:"; cat passed; exit 1; }
