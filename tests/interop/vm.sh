#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what the tests here boot: build/interop/vmlinuz and initrd, from Debian's kernel package and this machine's own programs.
# Nothing is installed; the package is only unpacked. Prints what it made; exits with 3 where the machine lacks something.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/build/interop
# What a virtio machine needs, soft-RoCE, and a channel for commands. What these depend on is found.
modules="virtio_pci virtio_net virtio_console crc32_generic crc32c_generic rdma_rxe ib_uverbs rdma_ucm ib_umad"
programs="ibv_rc_pingpong ibv_ud_pingpong ibv_uc_pingpong ibv_devinfo rdma ip
rping ucmatose udaddy
ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw ib_write_lat ib_read_lat ib_send_lat ib_atomic_lat"
provider=$(compgen -G "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so" || true)
unset LD_LIBRARY_PATH # the VM gets Debian's libibverbs, not ours
PATH=$PATH:/usr/sbin:/sbin

lacks() { echo "vm.sh: $*" >&2; exit 3; }

[ "$(uname -m)" = x86_64 ] || lacks "the VM is made of this machine's own programs, and only for x86_64"
for p in qemu-system-x86_64 busybox cpio dpkg apt-get $programs; do
    command -v $p >/dev/null || lacks "no $p; ci/deps.sh test installs it"
done
[ -n "$provider" ] || lacks "no provider of libibverbs for rxe (Debian: ibverbs-providers)"
! ldd "$(command -v busybox)" >/dev/null 2>&1 || lacks "busybox is not static (Debian: busybox-static)"
busybox=$(command -v busybox)

mkdir -p "$out"
exec 9>"$out/lock"
flock 9 # two runs at once would unpack into each other

# The package: what is there already, else what Debian's current kernel is.
if ! deb=$(ls -t "$out"/linux-image-*_amd64.deb 2>/dev/null | head -n 1) || [ -z "$deb" ]; then
    name=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$name" ] || lacks "apt knows no linux-image-amd64; apt-get update"
    # Elsewhere first: one that was cut short must not be taken for the package.
    mkdir -p "$out/download"
    (cd "$out/download" && timeout 300 apt-get -q -o APT::Sandbox::User= -o Acquire::Retries=3 download "$name") >"$out/download.log" 2>&1 ||
        lacks "cannot download $name in 5 minutes: $(tail -n 1 "$out/download.log")"
    mv "$out"/download/linux-image-*_amd64.deb "$out/"
    rm -r "$out/download"
    deb=$(ls -t "$out"/linux-image-*_amd64.deb | head -n 1)
fi

if [ "$out/initrd" -nt "$deb" ] && [ "$out/initrd" -nt tests/interop/vm.sh ] && [ "$out/initrd" -nt tests/interop/init ]; then
    echo "vm.sh: $out/initrd is up to date"
    exit 0
fi

work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Only what is wanted: the whole package is 400 MB.
dpkg --fsys-tarfile "$deb" | tar -x -C "$work" --wildcards './boot/vmlinuz-*' \
    './lib/modules/*/kernel/'{arch,crypto,drivers/{char,infiniband,net,virtio},fs,lib,net}'/*'
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,modules,etc/libibverbs.d,usr/lib/x86_64-linux-gnu,usr/lib64,usr/bin,usr/sbin}
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"

# Modules in an order in which each finds what it needs.
declare -A done_already
order=()
add_module() { # NAME
    local file dep
    [ -z "${done_already[$1]:-}" ] || return 0
    done_already[$1]=1
    file=$(find "$work/lib/modules" \( -name "$1.ko" -o -name "${1//_/-}.ko" \) -print -quit)
    [ -n "$file" ] || return 0 # part of the kernel itself
    for dep in $(tr '\0' '\n' <"$file" | LC_ALL=C sed -n 's/^depends=//p' | tr , ' '); do add_module "$dep"; done
    cp "$file" "$root/modules/$1.ko"
    order+=("$1")
}
for m in $modules; do add_module "$m"; done
[ -n "${done_already[rdma_rxe]:-}" ] && [ -e "$root/modules/rdma_rxe.ko" ] || { echo "vm.sh: no rdma_rxe.ko in $deb" >&2; exit 1; }
printf '%s\n' "${order[@]}" >"$root/modules/order"

# Programs, their libraries and the dynamic linker.
add_file() { # FILE [PLACE]: a link's target takes the link's name
    local to=$root${2:-$1}
    [ -e "$to" ] || { mkdir -p "${to%/*}" && cp -L "$1" "$to"; }
}
add_program() { # FILE [PLACE]
    local lib
    add_file "$@"
    for lib in $(ldd "$1" | sed -n 's|^[^/]*\(/[^ ]*\) (0x.*|\1|p'); do add_file "$lib"; done
}
for p in $programs; do add_program "$(command -v $p)" /usr/bin/$p; done
add_program $provider
add_file "$(ldconfig -p | sed -n 's|.*libgcc_s.so.1.* => ||p' | head -n 1)" /usr/lib/x86_64-linux-gnu/libgcc_s.so.1 # pthread_exit loads it by name
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
cp "$busybox" "$root/bin/busybox"
echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
install -m 755 tests/interop/init "$root/init"

(cd "$root" && find . -print0 | cpio --quiet --null --create --format=newc --owner=0:0) >"$work/initrd"
cp "$work"/boot/vmlinuz-* "$out/vmlinuz"
mv "$work/initrd" "$out/initrd"
echo "vm.sh: $(basename "$deb" .deb), ${#order[@]} modules, initrd of $(du -m "$out/initrd" | cut -f1) MB"
