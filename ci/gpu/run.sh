#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nccl-tests or rccl-tests with the real library over an emulated NIC, on a machine with one GPU: two processes on two "hosts" of a
# lab, which the library takes for two machines (NCCL_HOSTID).
#   ci/gpu/run.sh [--way plugin|ib] [--tests DIR] [PROGRAM]...     default: both ways; all_reduce_perf alltoall_perf
# DIR holds the programs, built with MPI=1; default: those in PATH. MAX=64M is the largest size, LOSS=0 that of the planes (1%).
# Exit 3: this machine lacks something, and what. MR_GPU_NONE=1 does without a GPU, for trying the script with other programs.
# Nobody has run it on a GPU yet: see docs/rccl.md.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
ways="plugin ib" tests=
programs=()
while [ $# -gt 0 ]; do
    case $1 in
    --way) ways=${2:?--way plugin or ib}; shift 2 ;;
    --tests) tests=$(cd "${2:?--tests DIR}" && pwd); shift 2 ;;
    -h | --help) sed -n '3,8p' "$0"; exit 0 ;;
    -*) echo "run.sh: no option $1" >&2; exit 2 ;;
    *) programs+=("$1"); shift ;;
    esac
done
[ ${#programs[@]} -gt 0 ] || programs=(all_reduce_perf alltoall_perf)
for w in $ways; do case $w in plugin | ib) ;; *) echo "run.sh: --way plugin or ib" >&2; exit 2 ;; esac; done
[ -z "$tests" ] || PATH=$tests:$PATH

lacks() { echo "run.sh: $*" >&2; exit 3; }
gpu() { { command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU; } || { command -v rocminfo >/dev/null && rocminfo | grep -q 'Device Type: *GPU'; }; }
gpu || [ -n "${MR_GPU_NONE:-}" ] || lacks "no GPU: neither nvidia-smi nor rocminfo shows one"
[ -x "$root/build/bin/nicemu" ] && [ -x "$root/build/bin/mroce" ] || lacks "build this tree first: make"
command -v mpirun.openmpi >/dev/null || lacks "no mpirun.openmpi (Debian: openmpi-bin)"
for p in "${programs[@]}"; do
    command -v "$p" >/dev/null || lacks "no $p in PATH; build nccl-tests or rccl-tests with MPI=1 and give --tests DIR"
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/mr-gpu.XXXXXX")
export XDG_RUNTIME_DIR=$dir MR_LAB=gpu NICEMU=$root/build/bin/nicemu MROCE=$root/build/bin/mroce
trap '"$NICEMU" lab down gpu >/dev/null 2>&1 || true; rm -rf "$dir"' EXIT
cat >"$dir/lab.yaml" <<LAB
name: gpu
planes: 4
hosts:
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
impair:
  - {loss: ${LOSS:-0}}
LAB
"$NICEMU" lab up "$dir/lab.yaml"

# What mpirun starts in place of ssh, and what it starts there: the environment of a way, for this host.
cat >"$dir/agent" <<'AGENT'
#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
exec "$NICEMU" lab exec "$host" -- sh -c "$*"
AGENT
cat >"$dir/rank" <<'RANK'
#!/bin/sh
eval "$("$MROCE" rccl env --way "$WAY" --one-gpu --host "$(hostname)")"
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
exec "$@"
RANK
chmod +x "$dir/agent" "$dir/rank"

failed=0
for WAY in $ways; do
    export WAY
    for p in "${programs[@]}"; do
        log=$dir/$WAY-$p.log
        echo "=== $p, $WAY"
        "$NICEMU" lab exec a -- env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 600 \
            mpirun.openmpi -H a:1,b:1 -n 2 --bind-to none --mca plm_rsh_agent "$dir/agent" --mca pml ob1 --mca btl self,tcp \
            --mca btl_tcp_if_include mr0 --mca oob_tcp_if_include mr0 -x PATH -x WAY -x MROCE \
            "$dir/rank" "$p" -b 8 -e "${MAX:-64M}" -f 2 -g 1 -c 1 >"$log" 2>&1 || { echo "   failed"; failed=1; }
        grep -E '^ +[0-9]+ +[0-9]+ |^# (Out of bounds|Avg bus)' "$log" || tail -n 20 "$log"
        # the right net, and nothing else
        case $WAY in plugin) net=MetaRoCE ;; ib) net=IB ;; esac
        grep -qE "(via|Using network|using network) .*$net" "$log" || { echo "   the log does not say that $net was used"; failed=1; }
        grep -q 'Out of bounds values : 0 OK' "$log" || { echo "   not all values were right"; failed=1; }
    done
done
exit $failed
