#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs rdma-core's own pyverbs tests, as Debian ships them, against our library and an emulated NIC: a judge that we did not
# write. Server and client live in one process there, on one NIC.
#   ci/pyverbs.sh [-v] [MODULE | MODULE.CLASS | MODULE.CLASS.TEST]…
# Without names: the modules below. A test that is skipped there is one for another vendor or for a feature our NIC says
# it does not have; the count is shown. Debian's python3, since pyverbs is built for it.
set -euo pipefail
cd "$(dirname "$0")/.."
modules=(test_device test_pd test_addr test_mr test_cq test_cq_events test_cqex test_fork test_qp test_qpex test_atomic test_relaxed_ordering)
verbose=()
[ "${1:-}" = -v ] && { verbose=(-v); shift; }
[ $# -gt 0 ] && modules=("$@")

nicemu=$PWD/build/bin/nicemu
[ -x "$nicemu" ] || { echo "pyverbs.sh: run make first" >&2; exit 2; }
/usr/bin/python3 -c 'import pyverbs.device' 2>/dev/null ||
    { echo "pyverbs.sh: no python3-pyverbs; ci/deps.sh test installs it" >&2; exit 3; }

work=$(mktemp -d)
cleanup() {
    "$nicemu" down >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

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
"$nicemu" up --addr 10.0.0.1/24 --wire mem:
cd "$work"
# The library makes room for the whole NIC's tests in one process; ten minutes bound a hang.
timeout 600 "$nicemu" run -- /usr/bin/python3 tests/run_tests.py --dev mr0 "${verbose[@]}" $(printf 'tests.%s ' "${modules[@]}")
