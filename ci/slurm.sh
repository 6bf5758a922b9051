#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Slurm cluster of one node on this machine for as long as a command runs: munged, slurmctld and slurmd with a configuration, ports, key
# and sockets of their own in a temporary directory. No systemd, no cgroups, no accounting; what a machine's own Slurm has is left alone.
#   ci/slurm.sh [-c CPUS] [-m MAXARRAYSIZE] [-k DIR] COMMAND [ARGUMENT]…
# The command sees SLURM_CONF. The exit code is the command's; 3 where Slurm is not installed, 1 where the cluster did not come up.
# -k keeps the daemons' logs in DIR. MR_SLURM_LIMIT: seconds for the command (default 300).
set -euo pipefail

cpus=4 max_array=1001 keep=
while getopts c:m:k: o; do
    case $o in
    c) cpus=$OPTARG ;;
    m) max_array=$OPTARG ;;
    k) keep=$OPTARG ;;
    *) sed -n '5,7p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '5,7p' "$0" >&2; exit 2; }
PATH=$PATH:/usr/sbin:/sbin
for p in munged slurmctld slurmd sbatch; do
    command -v $p >/dev/null || { echo "slurm.sh: no $p; Debian: apt-get install slurmctld slurmd slurm-client munge" >&2; exit 3; }
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/mroce-slurm.XXXXXX")
chmod 711 "$dir" # munged wants its socket reachable for all, and nothing above it writable
export SLURM_CONF=$dir/slurm.conf
daemons=() # pids, in the order of starting

# ours PID…: those of them that belong to this cluster; slurmstepd and jobs are no children of this shell any more.
ours() {
    local p
    for p in "$@"; do
        ! grep -qazxF "SLURM_CONF=$SLURM_CONF" "/proc/$p/environ" 2>/dev/null || printf '%s\n' "$p"
    done
}

# gone SECONDS PID…: waits until none of them runs.
gone() {
    local left=$(($1 * 10)) p alive
    shift
    while [ $left -gt 0 ]; do
        alive=
        for p in "$@"; do [ ! -d "/proc/$p" ] || alive=1; done
        [ -n "$alive" ] || return 0
        sleep 0.1
        left=$((left - 1))
    done
    return 1
}

finish() {
    local rc=$? p steps
    trap '' INT TERM HUP
    set +e
    if [ ${#daemons[@]} -gt 1 ]; then
        timeout 5 scancel --full --signal=KILL --state=RUNNING --user="$(id -un)" 2>/dev/null
        timeout 5 scancel --user="$(id -un)" 2>/dev/null
    fi
    for p in "${daemons[@]}"; do kill -TERM "$p" 2>/dev/null; done
    (gone 10 "${daemons[@]}") || kill -KILL "${daemons[@]}" 2>/dev/null
    wait "${daemons[@]}" 2>/dev/null
    steps=$(cd /proc && ours $(for p in [0-9]*; do [ "$p" = $$ ] || echo "$p"; done) | grep -vxE "$$|$BASHPID")
    for p in $steps; do
        case $(cat "/proc/$p/comm" 2>/dev/null) in
        slurmstepd* | slurm_script | slurmd | slurmctld) kill -KILL "$p" 2>/dev/null ;;
        esac
    done
    if [ -n "$keep" ]; then mkdir -p "$keep" && cp "$dir"/*.log "$dir/slurm.conf" "$keep" 2>/dev/null; fi
    rm -rf "$dir"
    exit $rc
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# free N: N TCP ports below the range that the kernel gives to others, free now.
free() {
    local n=$1 p
    for p in $(shuf -i 20000-32000 -n 200); do
        [ "$n" -gt 0 ] || return 0
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null; then echo "$p"; n=$((n - 1)); fi
    done
}
mapfile -t ports < <(free 2)
host=$(uname -n) host=${host%%.*} # hostname -s would ask the resolver, which need not know this machine
memory=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024 / 2))

cat >"$SLURM_CONF" <<END
ClusterName=mroce
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=256
ReturnToService=2
MaxArraySize=$max_array
MinJobAge=60
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
NodeName=sim NodeHostname=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory
PartitionName=main Nodes=sim Default=YES MaxTime=INFINITE State=UP
END
mkdir "$dir/state" "$dir/spool"
(umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")

# start NAME COMMAND…: a daemon in the foreground, as a child of this shell.
start() {
    local name=$1
    shift
    "$@" >"$dir/$name.out.log" 2>&1 </dev/null &
    daemons+=($!)
}

# until_ok SECONDS WHAT COMMAND…
until_ok() {
    local left=$(($1 * 5)) what=$2 p
    shift 2
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        for p in "${daemons[@]}"; do [ -d "/proc/$p" ] || left=0; done
        if [ $left -le 0 ]; then
            echo "slurm.sh: $what did not come up; the end of the logs:" >&2
            tail -n 15 "$dir"/*.log >&2
            exit 1
        fi
        sleep 0.2
    done
}

start munged munged --foreground --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" --num-threads=2
until_ok 10 munged munge --socket="$dir/munge.socket" --no-input
start slurmctld slurmctld -D
until_ok 20 slurmctld scontrol ping
start slurmd slurmd -D -N sim
idle() { [ "$(sinfo -h -n sim -o %T)" = idle ]; }
until_ok 40 "node" idle

# In the background, so that a signal ends the wait and the clean-up begins at once.
timeout --foreground "${MR_SLURM_LIMIT:-300}" "$@" <&0 &
command=$!
trap 'kill -TERM $command 2>/dev/null; gone 10 $command; exit 130' INT TERM HUP
rc=0
wait $command || rc=$?
exit $rc
