#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What can be checked without a daemon: exported names, loading, layouts; with the fake daemon: Debian's own tools.
#   check.sh LIBDIR BINDIR
set -eu
lib=$1 bin=$2
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
say() { printf '%-44s %s\n' "$1" "$2"; [ "$2" = ok ] || failed=1; }

nm -D --with-symbol-versions --defined-only "$lib/libibverbs.so.1" | awk '{print $3}' | LC_ALL=C sort >"$tmp/symbols"
if diff -u "$here/symbols.txt" "$tmp/symbols"; then say "exported names" ok; else say "exported names" differ; fi
if [ "$(stat -L -c %i "$lib/libibverbs.so")" = "$(stat -L -c %i "$lib/libibverbs.so.1")" ]; then
    say "libibverbs.so is the same file" ok; else say "libibverbs.so is the same file" no; fi

nm -D --with-symbol-versions --defined-only "$lib/librdmacm.so.1" | awk '{print $3}' | LC_ALL=C sort >"$tmp/symbols"
if diff -u "$here/symbols-rdmacm.txt" "$tmp/symbols"; then say "exported names of librdmacm" ok; else say "exported names of librdmacm" differ; fi
if LD_LIBRARY_PATH=$lib "$bin/layout_cm" "$lib/librdmacm.so.1" "$here/symbols-rdmacm.txt"; then
    say "layout and loading of librdmacm" ok; else say "layout and loading of librdmacm" no; fi

# Every name that a program may use stands in a test of ours; the rest are for provider libraries and for the stock librdmacm.
untested=$(sed -n 's/@.*//p' "$here/symbols.txt" "$here/symbols-rdmacm.txt" | LC_ALL=C sort -u |
    grep -vE '^(ibv_cmd_|ibv_copy_|.*comp_cntr|verbs_|_verbs_|__|execute_ioctl|ibv_(read_|query_gid_type|get_sysfs_path|dofork|dontfork|dmabuf_heap|get_fw_ver|register_driver|wr_opcode_str|resolve_eth_l2))' |
    while read -r name; do grep -qwE "$name|${name#_}" "$here"/*.c || printf '%s ' "$name"; done)
if [ -z "$untested" ]; then say "every call is in a test" ok; else echo "in no test: $untested"; say "every call is in a test" no; fi
stock=$(ldconfig -p | awk '/libibverbs.so.1 .*x86-64/ {print $NF; exit}')
if [ -z "$stock" ]; then
    [ "${MR_TEST_REQUIRE:-}" = all ] && failed=1
    echo "SKIP needs-library libibverbs.so.1 of Debian: apt-get install libibverbs1"
elif "$bin/words" "$lib/libibverbs.so.1" "$stock"; then say "names and rates are the stock library's" ok
else say "names and rates are the stock library's" no; fi

# MR_PRELOAD: a sanitizer's runtime, for programs that were not built with it
fake() { timeout 60 /usr/bin/python3 "$here/fake_daemon.py" "$tmp/s" "$@"; }
if fake -- "$bin/layout" "$lib/libibverbs.so.1" device; then say "layout and loading" ok; else say "layout and loading" no; fi

# Debian's programs, bound to our library by LD_LIBRARY_PATH
LD_LIBRARY_PATH=$lib
export LD_LIBRARY_PATH
if ! command -v ibv_devinfo >/dev/null; then
    [ "${MR_TEST_REQUIRE:-}" = all ] && failed=1
    echo "SKIP needs-program ibv_devinfo: apt-get install ibverbs-utils"
else
    if fake -- ibv_devices | grep -q 'mr0.*020000fffe000001'; then say ibv_devices ok; else say ibv_devices no; fi
    if fake --nics a/mr0,b/mr0 -- ibv_devices | grep -q 'b-mr0'; then say "two hosts visible at once" ok; else say "two hosts" no; fi
    if MR_NIC=b fake --nics a/mr0,b/mr0 -- ibv_devices | grep -q '^ *mr0'; then say "MR_NIC chooses a host" ok; else say MR_NIC no; fi
    if fake -- ibv_devinfo -v >"$tmp/info" && grep -q 'board_id:.*MROCE_FAKE' "$tmp/info" &&
        grep -q 'GID\[  0\]:.*::ffff:10.0.0.1, RoCE v2' "$tmp/info"; then say "ibv_devinfo -v" ok; else say "ibv_devinfo -v" no; fi
    fake --abi 99 -- ibv_devices >"$tmp/out" 2>&1 || true
    if grep -q 'the daemon fake speaks ABI 99, this library 1' "$tmp/out" && grep -q 'Protocol not supported' "$tmp/out"
    then say "another version says so" ok; else cat "$tmp/out"; say "another version says so" no; fi
    if LD_PRELOAD=${MR_PRELOAD:-} MR_SOCKET=$tmp/none ibv_devices >"$tmp/out" 2>&1; then say "no daemon: silent ENOSYS" no; else
        if [ "$(cat "$tmp/out")" = "Failed to get IB devices list: Function not implemented" ]; then
            say "no daemon: silent ENOSYS" ok; else cat "$tmp/out"; say "no daemon: silent ENOSYS" no; fi; fi
fi
exit $failed
