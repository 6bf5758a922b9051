#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Our own programs against a daemon with two NICs joined by wires in memory, over MetaRoCE and then over RoCEv2 between a
# NIC that has nothing else and one that finds out, and where
# the daemon may not reach programs' memory by itself. The daemon is built here and ends with this script.
#   live.sh LIBDIR BINDIR [quick]
set -euo pipefail
lib=$(realpath "$1") bin=$(realpath "$2") quick=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tmp=$(mktemp -d)
daemon=
end_daemon() {
    [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null; } || true
    daemon=
}
trap 'end_daemon; rm -rf "$tmp"' EXIT

go=$(sh "$root/ci/find-go.sh")
[ -n "$go" ] || { echo "live.sh: no Go to build the daemon with" >&2; exit 3; }
(cd "$root" && CGO_ENABLED=0 "$go" build -buildvcs=false -o "$tmp/devd" ./daemon/internal/devd)
start_daemon() { # TRANSPORT [MODE of DMA: 2 or 3, by refusing it what comes before]
    end_daemon
    rm -f "$tmp/d.sock"
    local as=(); [ -z "${2:-}" ] || as=("$bin/refuse" "$2")
    "${as[@]}" "$tmp/devd" -socket "$tmp/d.sock" -planes 4 -transport "$1" 2>"$tmp/log" &
    daemon=$!
    for _ in $(seq 100); do [ -S "$tmp/d.sock" ] && break; sleep 0.05; done
}
start_daemon auto
export MR_SOCKET=$tmp/d.sock LD_LIBRARY_PATH=$lib

failed=0
run() { # SECONDS COMMAND...
    local limit=$1; shift
    timeout "$limit" "$@" || { echo "FAILED ($?): $*"; failed=1; }
    kill -0 "$daemon" 2>/dev/null || { echo "the daemon died:"; tail -n 40 "$tmp/log"; exit 1; }
}
n=2000; [ -z "$quick" ] || n=300
run 120 "$bin/mr_integrity" --loop -n $n --seed 1
run 120 "$bin/mr_flag" --loop -n $((n * 3)) -s 16K
run 60 "$bin/mr_threads" -n $((n / 10))
run 200 "$bin/mr_errors"
run 60 "$bin/mr_ud" -n $n
run 120 "$bin/mr_srq" --loop -n $((n * 5))
run 120 "$bin/mr_xrc" -n $n
run 100 "$bin/mr_cm" -n $((n / 10))
run 200 "$bin/mr_fuzzring" -n $((n / 5))
run 60 "$bin/mr_assist" -n $n
run 100 "$bin/mr_lifecycle" -n $((n / 2))
run 120 "$bin/mr_rsocket" -n $((n / 10))

for mode in 2 3; do
    echo "DMA mode $mode:"
    start_daemon auto $mode
    run 120 "$bin/mr_integrity" --loop -n $((n / 2)) --seed 3
    run 120 "$bin/mr_flag" --loop -n $((n * 3)) -s 16K
    run 60 "$bin/mr_threads" -n $((n / 10))
    run 200 "$bin/mr_errors"
    run 60 "$bin/mr_ud" -n $n
    run 120 "$bin/mr_srq" --loop -n $((n * 5))
    run 100 "$bin/mr_lifecycle" -n $((n / 20))
done
run 60 "$bin/mr_assist" -n $n --extra 1

echo "RoCEv2:"
start_daemon rocev2,auto
run 120 "$bin/mr_integrity" --loop -n $((n / 4)) --seed 2
run 120 "$bin/mr_flag" --loop -n $n -s 16K
run 120 "$bin/mr_srq" --loop -n $n
run 120 "$bin/mr_xrc" -n $n
run 200 "$bin/mr_errors"
run 100 "$bin/mr_lifecycle" -n $((n / 2))
run 100 "$bin/mr_cm" -n $((n / 20))

echo "The daemon ends:"
timeout 60 "$bin/mr_cm" --removal >"$tmp/removal" &
removal=$!
for _ in $(seq 100); do grep -q ready "$tmp/removal" && break; sleep 0.05; done
end_daemon
wait "$removal" || { echo "FAILED: mr_cm --removal"; failed=1; }

echo "The daemon is killed under a program:"
start_daemon auto
timeout 60 "$bin/mr_lifecycle" --extra "$daemon" || { echo "FAILED: mr_lifecycle --extra"; failed=1; }
exit $failed
