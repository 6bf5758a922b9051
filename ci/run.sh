#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check of this project, one function per job; docs/ci.md says what each is for. Runs on any machine:
#   ci/run.sh JOB…      jobs in the order given, all of them even when one fails; minutes and counts at the end
#   ci/run.sh list      the jobs
# "test" stands for the jobs of `make test`, "full" for the full suites, "rotate" for the one full suite whose turn it is.
# MR_TEST_REQUIRE=all (set by .ci/run) turns every skip into a failure. MR_TEST_RESUME=1 leaves out full suites that
# passed on this very commit already.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/ci

test_jobs="build generated unit race verbs asan fuzz sim simulator slurm planted pyverbs live dpdk clients interop rccl lint"
full_jobs="full_tap full_udp full_mem full_field full_clients_a full_clients_b full_dpdk full_rccl full_sim full_soak"

# ---------------------------------------------------------------- words the jobs use
say() { printf '%s\n' "$*"; }

# absent THING: the job has nothing to work on yet. No skip: nothing was left out.
absent() { say "   nothing to do: no $1 in this tree yet"; exit 0; }

# skip REASON: the machine cannot do it. Counted, listed at the end, a failure where CI asks for everything.
skip() {
    printf '0 0 1\nskip: %s: %s\n' "$job" "$1" >>"$MR_COUNTS"
    say "   skipped: $1"
    [ "${MR_TEST_REQUIRE:-}" != all ] || { say "   MR_TEST_REQUIRE=all: a skip is a failure"; exit 1; }
}

# fails TEXT…: what failed, a line each; repeated at the end, where the reader of a long log looks first.
fails() { printf 'fail: %s: %s\n' "$job" "$*" >>"$MR_COUNTS"; }

# count PASSED FAILED: for checks that are not Go tests.
count() { printf '%s %s 0\n' "$1" "$2" >>"$MR_COUNTS"; }

gotest() { "$go" run ./ci/gotest -go "$go" -counts "$MR_COUNTS" -- "$@"; }

refimpl() { sh ci/refimpl.sh "$@"; }
has_dpdk() { pkg-config --exists libdpdk 2>/dev/null; }

# Packages with a goroutine of their own, in tests or out: the race detector has nothing to find elsewhere.
with_goroutines() {
    git grep -lE '(^|[[:space:]{;])go (func|[a-zA-Z_][a-zA-Z_.0-9]*)\(|\.Go\(' -- '*.go' ':!refimpl' ':!ci/lint' |
        xargs -r -n1 dirname | sort -u | sed 's|^|./|'
}

# ---------------------------------------------------------------- jobs
job_deps() { bash ci/deps.sh all; }

job_build() {
    CGO_ENABLED=0 "$go" build ./...
    CGO_ENABLED=0 "$go" vet -tags live,interop,clients,slurm,dpdk ./...
    CGO_ENABLED=0 "$go" vet -tags planted ./transport/... ./tools/...
    [ -d nicemu ] && [ -e verbs/Makefile ] || absent "nicemu and verbs/Makefile"
    make -s build
    GOARCH=arm64 CGO_ENABLED=0 "$go" build ./...
    (cd refimpl && CGO_ENABLED=0 "$go" vet ./...) # without DPDK: a program that says so
    has_dpdk || { skip "no libdpdk (Debian: libdpdk-dev)"; return 0; }
    refimpl "$go" vet -tags dpdk ./... && count 1 0
}

# What is derived or has one right form: run its maker again and compare.
job_generated() {
    local bad
    bad=$("$(dirname "$go")/gofmt" -l $(git ls-files '*.go'))
    [ -z "$bad" ] || { say "gofmt wants to change: $bad"; fails "gofmt wants to change $bad"; exit 1; }
    "$go" mod verify >/dev/null
    [ -d tools/specgen ] && "$go" run ./tools/specgen -check
    count 2 0
    mapfile -t c < <(git ls-files 'verbs/*.c' 'verbs/*.h' 'rccl-shim/*.c' 'rccl-shim/*.h' 'tests/*.c' 'refimpl/*.h' 'refimpl/*.c' ':!verbs/include/mr_abi.h') # a table for readers, aligned by hand
    [ ${#c[@]} -gt 0 ] || return 0
    if ! command -v clang-format >/dev/null; then skip "no clang-format (Debian: clang-format)"; return 0; fi
    case $(clang-format --version) in
    *version\ 14.*) clang-format --style=file:verbs/.clang-format --dry-run -Werror "${c[@]}" && count 1 0 ;;
    *) skip "clang-format is not version 14, whose formatting the tree has" ;;
    esac
}

# Own module, so that the linter's dependencies are not the project's; the binary is kept in build/.
job_lint() {
    say "   (the first build of golangci-lint takes some minutes)"
    mkdir -p build/bin
    (cd ci/lint && "$go" build -o ../../build/bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
    build/bin/golangci-lint run --timeout 10m ./...
    count 1 0
    has_dpdk || { skip "no libdpdk to look at refimpl with (Debian: libdpdk-dev)"; return 0; }
    refimpl "$PWD/build/bin/golangci-lint" run --config ../.golangci.yml --build-tags dpdk --timeout 10m ./... && count 1 0
}

job_unit() { gotest -shuffle=on -timeout 10m ./...; }

job_race() {
    mapfile -t pkgs < <(with_goroutines)
    [ ${#pkgs[@]} -gt 0 ] || absent "package with goroutines"
    # without this each process sleeps a second at its end, and tests of commands start hundreds
    GORACE=atexit_sleep_ms=0 gotest -race -short -timeout 15m "${pkgs[@]}"
}

# The C library: exported names and layouts, then its test programs over an emulated NIC.
job_verbs() {
    [ -e verbs/Makefile ] || absent "verbs/Makefile"
    make --no-print-directory -C verbs check live
    count 2 0
}

job_asan() {
    [ -e verbs/Makefile ] || absent "verbs/Makefile"
    make --no-print-directory -C verbs asan-test
    make --no-print-directory -C rccl-shim asan-test
    count 2 0
}

# The plugin of RCCL and NCCL over an emulated NIC, and collectives through it.
rccl() { MR_LIVE=$1 gotest -tags live -count=1 -timeout "$2" ./tests/rccl; }
job_rccl() {
    [ -x build/bin/nicemu ] || absent "build/bin/nicemu"
    make --no-print-directory -C rccl-shim check live
    count 2 0
    rccl pairwise 10m
}
job_full_rccl() {
    rccl-shim/tests/live.sh build/lib build/tests huge
    count 1 0
    rccl full 40m
}

# fuzz PACKAGE TARGET. Go's fuzzer can lose a race with its own clock when the time is up (go.dev/issue/75804): it fails then with
# "context deadline exceeded" and names no input. Such a run counts for nothing and is made again; what names an input is a failure.
# Making the inputs that were found smaller would take most of the time.
fuzz() {
    local try
    for try in 1 2 3; do
        "$go" test -run '^$' -fuzz "^$2\$" -fuzztime "${MR_FUZZ_TIME:-20s}" -fuzzminimizetime 1s -timeout 5m "$1" >"$out/fuzz.log" 2>&1 && return
        grep -qE 'Failing input|panic|fuzzing process|_test.go:' "$out/fuzz.log" && return 1
        grep -qE '^ +context deadline exceeded$' "$out/fuzz.log" || return 1
        say "   again ($try): the fuzzer missed its own deadline"
    done
    return 1
}

# Each fuzz target for 20 seconds: long enough to catch what a change broke, no search for deep bugs.
job_fuzz() {
    local pkg name list n=0
    while read -r pkg; do
        list=$("$go" test -list '^Fuzz' "$pkg") || { say "$list"; count 0 1; exit 1; }
        for name in $(grep '^Fuzz' <<<"$list" || true); do
            say "   $pkg $name"
            fuzz "$pkg" "$name" || { tail -n 40 "$out/fuzz.log"; count 0 1; exit 1; }
            n=$((n + 1))
        done
    done < <(git grep -l '^func Fuzz' -- '*_test.go' | xargs -r -n1 dirname | sort -u | sed 's|^|./|')
    [ $n -ge 10 ] || { say "only $n fuzz targets were found"; count 0 1; exit 1; }
    count $n 0
}

# Random programs over random bad networks in virtual time; other seeds with every commit. A failure prints its rerun.
job_sim() {
    local first=$(($(git rev-list --count HEAD) * 2000))
    say "   seeds from $first on"
    mkdir -p build/bin
    "$go" build -o build/bin/mroce ./tools/mroce
    local t
    for t in "2000 metaroce" "500 rocev2"; do
        build/bin/mroce vopr --seeds "${t% *}" --seed "$first" --transport "${t#* }" 2>&1 | tee "$out/vopr.log" && continue
        grep -aE '^seed |^ +again:' "$out/vopr.log" | cut -c-300 | while IFS= read -r line; do fails "$line"; done
        count 0 1
        exit 1
    done
    count 2 0
    gotest -timeout 15m -count=1 -run 'TestRandom$' ./transport/transporttest -args -seeds 500 -seed "$first"
}

# The simulator's plans beside their goals. A goal that is missed is told; worse than before is a failure.
gates() { # ARGUMENTS
    mkdir -p build/bin
    "$go" build -o build/bin/mroce ./tools/mroce
    build/bin/mroce sim check "$@" && count 1 0 || { fails "mroce sim check $*"; count 0 1; exit 1; }
}

job_simulator() {
    gates --smoke
    rm -rf build/figures-quick # every plot and table of docs/results, of small networks: the runs anew
    timeout 120 build/bin/mroce sim figures --quick --work build/figures-quick --out build/figures-quick/results && count 1 0 || { fails "mroce sim figures --quick"; count 0 1; exit 1; }
}

# Sweeps through a real Slurm of one node, which lives as long as the job.
job_slurm() {
    local rc=0
    "$go" test -tags slurm -run '^$' ./tools/sim/sweep ./tools/mroce >/dev/null # so that the cluster need not wait for the compiler
    # -m 4: more points than an array may have are nothing out of the way
    bash ci/slurm.sh -m 4 -k "$out/slurm" "$go" run ./ci/gotest -go "$go" -counts "$MR_COUNTS" -- \
        -tags slurm -count=1 -timeout 4m -run TestSlurm ./tools/sim/sweep ./tools/mroce || rc=$?
    [ $rc != 3 ] || { skip "no Slurm (Debian: slurmctld slurmd slurm-client munge)"; return 0; }
    return $rc
}

# Bugs planted in the core, one at a time: the checkers of job_sim must catch each.
job_planted() { gotest -tags planted -timeout 15m -count=1 -run TestPlanted ./tools/vopr; }

job_live() {
    [ -x build/bin/nicemu ] || absent "build/bin/nicemu"
    MR_LIVE=pairwise gotest -tags live -count=1 -timeout 20m ./tests/live
}

# Debian's programs of all kinds against the table in docs/compatibility.md: one row of each.
clients() { # LEVEL LIMIT
    local rc=0
    [ -x build/bin/nicemu ] || absent "build/bin/nicemu"
    rm -f build/clients/table.txt
    MR_CLIENTS=$1 gotest -tags clients -count=1 -timeout "$2" -run 'Plan|Clients' ./tests/clients || rc=$?
    [ ! -e build/clients/table.txt ] || cat build/clients/table.txt
    return $rc
}
job_clients() { clients smoke 10m; }

# Soft-RoCE of a Linux kernel in a VM as the peer.
job_interop() {
    [ -x build/bin/nicemu ] || absent "build/bin/nicemu"
    gotest -tags interop -count=1 -timeout 15m ./tests/interop
}

# The reference implementation on DPDK: its own tests, then daemons over memif with programs of Debian, without huge pages.
dpdk() { # LEVEL LIMIT
    has_dpdk || { skip "no libdpdk (Debian: libdpdk-dev)"; return 0; }
    [ -x build/bin/mroce-dpdk ] || absent "build/bin/mroce-dpdk"
    MR_DPDK=$1 gotest -tags dpdk -count=1 -timeout "$2" ./tests/dpdk
}
job_dpdk() {
    has_dpdk || { skip "no libdpdk (Debian: libdpdk-dev)"; return 0; }
    "$go" build -o $out/gotest ./ci/gotest
    refimpl "$PWD/$out/gotest" -go "$go" -counts "$MR_COUNTS" -- -tags dpdk -count=1 -timeout 5m ./...
    dpdk smoke 10m
    pyverbs dpdk || { count 0 1; exit 1; } # the table of verbs is that of nicemu
    count "${ran:-0}" 0
}
job_full_dpdk() { dpdk full 25m; }

# rdma-core's own tests. Most skips there are for other vendors and for what our NIC does not offer yet; the floor below
# is what it does offer.
job_pyverbs() {
    local w ran=0
    for w in mem tap; do
        [ $w = mem ] || [ "$(id -u)" = 0 ] || { say "   over tap: needs root"; continue; }
        pyverbs $w || { count $ran 1; exit 1; }
    done
    count $ran 0
}
# pyverbs WIRE: of the 171 so many run where there is no GPU and huge pages may not be reserved, over tap with the connection manager's
# ten; ci/pyverbs-skips.txt says why not the rest
pyverbs() {
    local rc=0 n skipped least=131
    [ "$1" != tap ] || least=141
    bash ci/pyverbs.sh -w "$1" 2>&1 | tee "$out/pyverbs-$1.log" || rc=$?
    [ $rc != 3 ] || { skip "no Debian package python3-pyverbs with its tests"; return 0; }
    [ $rc = 0 ] || return 1
    n=$(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$out/pyverbs-$1.log")
    skipped=$(sed -n 's/^.*skipped=\([0-9]*\).*/\1/p' "$out/pyverbs-$1.log")
    n=$((n - ${skipped:-0})) ran=$((${ran:-0} + n))
    [ $n -ge $least ] || { say "only $n of rdma-core's tests ran over $1, $least did before"; return 1; }
}

# Full suites, half an hour each at most.
full() { MR_LIVE=$1 gotest -tags live -count=1 -timeout 40m -run "$2" ./tests/live; }
job_full_tap() { full full TestMatrix/tap; }
job_full_udp() { full full TestMatrix/udp; }
job_full_mem() { full full TestMatrix/mem; }
job_full_field() { full full 'Test([^M]|Me)'; }
job_full_clients_a() { clients a 25m; }
job_full_clients_b() { clients b 25m; }
job_full_sim() { gates; }

job_full_soak() {
    full soak Soak
    gotest -tags clients -count=1 -timeout 20m -run Soak ./tests/clients
}

# ---------------------------------------------------------------- running them
expand() {
    local j
    for j in "$@"; do
        case $j in
        test) say $test_jobs ;;
        full) say $full_jobs ;;
        rotate)
            local suites=(${full_jobs/full_soak/}) # soaks are for test-all
            say "${suites[$(($(git rev-list --count HEAD) % ${#suites[@]}))]}"
            ;;
        *) say "$j" ;;
        esac
    done
}

# done_mark JOB: where a full suite notes that it passed on this commit; nothing with uncommitted changes.
done_mark() {
    case $1 in full_*) [ -n "$(git status --porcelain 2>/dev/null)" ] || say "$out/passed/$(git rev-parse HEAD)/$1" ;; esac
}

main() {
    local j start began=$SECONDS failed=() rows=() mark rc
    mkdir -p $out
    export MR_COUNTS=$PWD/$out/counts
    : >"$MR_COUNTS"
    for j in $(expand "$@"); do
        declare -F "job_$j" >/dev/null || { say "ci/run.sh: no job \"$j\"; see ci/run.sh list" >&2; exit 2; }
    done
    for j in $(expand "$@"); do
        mark=$(done_mark "$j")
        if [ "${MR_TEST_RESUME:-}" = 1 ] && [ -n "$mark" ] && [ -e "$mark" ]; then
            rows+=("$(printf '%-14s %8s' "$j" 'passed before')")
            continue
        fi
        say "=== $j"
        start=$SECONDS rc=0
        bash ci/run.sh --job "$j" || rc=$? # a process each: `set -e` works in it, and it cannot disturb the next
        rows+=("$(printf '%-14s %6d:%02d  %s' "$j" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)) "$([ $rc = 0 ] && say ok || say "FAILED ($rc)")")")
        if [ $rc != 0 ]; then failed+=("$j"); elif [ -n "$mark" ]; then mkdir -p "$(dirname "$mark")" && : >"$mark"; fi
    done
    say "=== minutes"
    printf '%s\n' "${rows[@]}"
    grep -a '^skip:' "$MR_COUNTS" | sort -u || true
    grep -a '^fail:' "$MR_COUNTS" || true
    # In the words of the usual test runners, so that people and programs find it.
    awk -v jobs_failed=${#failed[@]} -v secs=$((SECONDS - began)) '/^[0-9]/ {p += $1; f += $2; s += $3}
        END {if (f < jobs_failed) f = jobs_failed; printf "=== %d passed, %d failed, %d skipped in %d.00s ===\n", p, f, s, secs}' "$MR_COUNTS"
    [ ${#failed[@]} = 0 ] || { say "FAIL: ${failed[*]}"; exit 1; }
}

case ${1:-list} in
list) declare -F | sed -n 's/^declare -f job_//p'; say "groups: test = $test_jobs; full = $full_jobs; rotate = one of full" ;;
--job)
    job=$2
    # Found again here: `deps` may just have installed it.
    go=$(sh ci/find-go.sh) || [ "$job" = deps ] || { say "no Go; run: sudo bash ci/deps.sh build" >&2; exit 3; }
    "job_$job"
    ;;
*) main "$@" ;;
esac
