#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Our own programs against a daemon with two NICs joined by wires in memory; the daemon is built here and lives as long
# as this script.
#   live.sh LIBDIR BINDIR [quick]
set -euo pipefail
lib=$(realpath "$1") bin=$(realpath "$2") quick=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tmp=$(mktemp -d)
daemon=
finish() {
    [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null; } || true
    rm -rf "$tmp"
}
trap finish EXIT

go=$(sh "$root/ci/find-go.sh")
[ -n "$go" ] || { echo "live.sh: no Go to build the daemon with" >&2; exit 3; }
(cd "$root" && CGO_ENABLED=0 "$go" build -buildvcs=false -o "$tmp/devd" ./daemon/internal/devd)
"$tmp/devd" -socket "$tmp/d.sock" -planes 4 2>"$tmp/log" &
daemon=$!
for _ in $(seq 100); do [ -S "$tmp/d.sock" ] && break; sleep 0.05; done
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
run 200 "$bin/mr_fuzzring" -n $((n / 5))
exit $failed
