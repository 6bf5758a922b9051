#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what this project needs on a Debian machine: packages by name, and a Go new enough for go.mod. Idempotent; touches
# nothing that is already there.
#   ci/deps.sh [--check] [build|demo|test|all]     default: all
# build: compile everything · demo: build + the programs that `make demo` runs · test: demo + what the tests compare with
# As an ordinary user it changes nothing, prints the command an administrator has to run, and exits 3.
# --check only says what is missing: exit 0 nothing, 3 something.
set -euo pipefail
cd "$(dirname "$0")/.."

go_version=1.26.8 # installed when the machine has none that is new enough

# What is needed, per set: Debian package, then a probe: a command, or a file pattern when it begins with /. Probing instead of asking
# dpkg lets other distributions pass when they have the same things under other names.
build="
gcc             gcc
libc6-dev       /usr/include/stdio.h
make            make
git             git
ca-certificates /etc/ssl/certs/ca-certificates.crt
libibverbs-dev  /usr/include/infiniband/verbs.h
librdmacm-dev   /usr/include/rdma/rdma_cma.h
"
demo="$build
ibverbs-utils   ibv_rc_pingpong
perftest        ib_write_bw
iproute2        ip
procps          ps
"
test="$demo
pkgconf         pkg-config
libdpdk-dev     /usr/lib/*/pkgconfig/libdpdk.pc
dpdk-dev        dpdk-testpmd
ethtool         ethtool
python3         python3
python3-pyverbs /usr/lib/python3/dist-packages/pyverbs/device.*
iperf3          iperf3
tshark          tshark
clang-format    clang-format
util-linux      setpriv
infiniband-diags ibstat
rdmacm-utils    rping
ucx-utils       ucx_info
qemu-system-x86 qemu-system-x86_64
busybox-static  busybox
cpio            cpio
rdmacm-utils    rping
infiniband-diags ibstat
ucx-utils       ucx_perftest
openmpi-bin     mpirun.openmpi
libopenmpi-dev  mpicc.openmpi
mpich           mpirun.mpich
libmpich-dev    mpicc.mpich
libfabric-bin   fi_pingpong
qperf           qperf
fio             fio
munge           munged
slurmctld       slurmctld
slurmd          slurmd
slurm-client    sbatch
"
all=$test

check=0
[ "${1:-}" = --check ] && { check=1; shift; }
set_name=${1:-all}
case $set_name in
build | demo | test | all) ;;
-h | --help) sed -n '3,9p' "$0"; exit 0 ;;
*) echo "deps.sh: no set \"$set_name\"; there are build, demo, test, all" >&2; exit 2 ;;
esac

have() { # PROBE
    case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
    esac
}

missing() {
    local package probe
    while read -r package probe; do
        [ -z "$package" ] || have "$probe" || echo "$package"
    done <<<"${!set_name}"
}

mapfile -t packages < <(missing)
go=$(sh ci/find-go.sh || true)
if [ ${#packages[@]} = 0 ] && [ -n "$go" ]; then
    [ $check = 1 ] || echo "deps: nothing missing for \"$set_name\" ($("$go" env GOVERSION))"
    exit 0
fi

wanted="${packages[*]}"
[ -n "$go" ] || wanted="${wanted:+$wanted, }Go ≥ $(sed -n 's/^go \(1\.[0-9]*\).*/\1/p' go.mod)"
if [ $check = 1 ] || [ "$(id -u)" != 0 ]; then
    echo "deps: missing: $wanted" >&2
    echo "deps: an administrator installs it with:  sudo bash $PWD/ci/deps.sh $set_name" >&2
    exit 3
fi
if ! command -v apt-get >/dev/null; then
    echo "deps: missing: $wanted" >&2
    echo "deps: this is no Debian system; install these (or what your system calls them) and run again" >&2
    exit 3
fi

export DEBIAN_FRONTEND=noninteractive # tshark would ask whether users may capture; the answer that changes nothing is taken
if [ -z "$go" ] && ! command -v go >/dev/null; then packages+=(golang-go); fi
if [ ${#packages[@]} -gt 0 ]; then
    echo "deps: installing ${packages[*]}"
    log=$(mktemp)
    { apt-get update -q && apt-get install -y -q --no-install-recommends "${packages[@]}"; } >"$log" 2>&1 </dev/null ||
        { tail -n 20 "$log" >&2; rm -f "$log"; echo "deps: apt-get failed, see above" >&2; exit 1; }
    rm -f "$log"
fi

# The Go project's module proxy serves its toolchains as a module, checked against its checksum database, and any Go that knows
# modules can fetch one. So the distribution's old Go is enough to get a new one, without another download site.
install_go() {
    local arch dest work dir
    case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) echo "deps: install Go ≥ $go_version from go.dev/dl for $(uname -m)" >&2; exit 3 ;;
    esac
    dest=/usr/local/go
    [ -e $dest ] && dest=/usr/local/go$go_version # an older one of the administrator's stays as it is
    work=$(mktemp -d)
    trap 'chmod -R u+w "$work"; rm -rf "$work"' RETURN
    echo "deps: installing Go $go_version into $dest"
    (
        cd "$work"
        echo "module fetch" >go.mod
        GOPATH=$work/path GOFLAGS=-mod=mod GOTOOLCHAIN=local go mod download "golang.org/toolchain@v0.0.1-go$go_version.linux-$arch"
    )
    dir=$work/path/pkg/mod/golang.org/toolchain@v0.0.1-go$go_version.linux-$arch
    rm -rf "$dest.new"
    cp -r "$dir" "$dest.new"
    # Modules carry no modes: readable for all, and the programs executable.
    chmod -R u+w,a+rX "$dest.new"
    chmod a+x "$dest.new"/bin/* "$dest.new"/pkg/tool/*/*
    mv "$dest.new" "$dest"
    [ -e /usr/local/bin/go ] || ln -s "$dest/bin/go" /usr/local/bin/go
    [ -e /usr/local/bin/gofmt ] || ln -s "$dest/bin/gofmt" /usr/local/bin/gofmt
}
[ -n "$go" ] || install_go

mapfile -t packages < <(missing)
go=$(sh ci/find-go.sh || true)
if [ ${#packages[@]} -gt 0 ] || [ -z "$go" ]; then
    echo "deps: still missing after the installation: ${packages[*]} ${go:-Go}" >&2
    exit 1
fi
echo "deps: ready for \"$set_name\" ($("$go" env GOVERSION) at $go)"
