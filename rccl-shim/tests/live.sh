#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plugin, and the sequence of the libraries' own IB transport, against a daemon with two NICs joined by wires in
# memory. The daemon is built here and ends with this script.
#   live.sh LIBDIR BINDIR [quick|huge]     huge: one message of more than 2 GiB, 5 GiB of memory
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
start_daemon() { # TRANSPORT
    end_daemon
    rm -f "$tmp/d.sock"
    "$tmp/devd" -socket "$tmp/d.sock" -planes 4 -transport "$1" 2>"$tmp/log" &
    daemon=$!
    for _ in $(seq 100); do [ -S "$tmp/d.sock" ] && break; sleep 0.05; done
}
export MR_SOCKET=$tmp/d.sock LD_LIBRARY_PATH=$lib

failed=0
run() { # COMMAND...
    timeout 120 "$@" || { echo "FAILED ($?): $*"; failed=1; }
    kill -0 "$daemon" 2>/dev/null || { echo "the daemon died:"; tail -n 40 "$tmp/log"; exit 1; }
}
net="$bin/mr_net $lib/librccl-net.so"
good="sizes_of_messages many_under_way grouped groups_mixed_up flush merged_device"

start_daemon metaroce
[ "$quick" != huge ] || { run $net huge; exit $failed; }
run "$bin/ib_sequence"
run $net
MR_NET_FLUSH=1 run $net flush
echo "four QPs, in turn and split:"
MR_NET_QPS=4 run $net $good
MR_NET_QPS=4 MR_NET_SPLIT=1 run $net $good closed_under_requests too_long
[ -n "$quick" ] && exit $failed
echo "no inline data, no short messages, a GID by number:"
MR_NET_INLINE=0 MR_NET_IMM_BYTES=0 NCCL_IB_GID_INDEX=0 run $net $good
echo "RoCEv2:"
start_daemon rocev2
run "$bin/ib_sequence"
run $net
exit $failed
