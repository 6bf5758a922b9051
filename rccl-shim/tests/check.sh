#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What can be checked of the plugin without a daemon: exported names, loading, dependencies, the man page's settings.
#   check.sh LIBDIR BINDIR
set -eu
lib=$1 bin=$2
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
say() { printf '%-44s %s\n' "$1" "$2"; [ "$2" = ok ] || failed=1; }

names=$(nm -D --defined-only "$lib/librccl-net.so" | awk '$3 !~ /^__odr_asan/ {print $2 $3}' | LC_ALL=C sort | tr '\n' ' ')
want="DncclNetPlugin_v10 DncclNetPlugin_v11 DncclNetPlugin_v12 DncclNetPlugin_v6 DncclNetPlugin_v7 DncclNetPlugin_v8 DncclNetPlugin_v9 "
if [ "$names" = "$want" ]; then say "the seven tables and nothing else" ok; else echo "$names"; say "exported names" differ; fi
if [ "$(stat -L -c %i "$lib/libnccl-net.so")" = "$(stat -L -c %i "$lib/librccl-net.so")" ]; then
    say "libnccl-net.so is the same file" ok; else say "libnccl-net.so is the same file" no; fi
if readelf -d "$lib/librccl-net.so" | grep NEEDED | grep -vqE 'libc\.so|libasan|libubsan|libgcc_s|ld-linux'; then
    say "needs libc only" no; else say "needs libc only" ok; fi
if LD_PRELOAD=${MR_PRELOAD:-} MR_SOCKET=$tmp/none "$bin/net_load" "$lib/librccl-net.so" >"$tmp/out"; then
    say "loading, tables, no device" ok; else cat "$tmp/out"; say "loading, tables, no device" no; fi

# Every setting with its other name and its default stands in the man page, and nothing else does.
awk '/^#define PARAMS/,/[^\\]$/' "$here/../src/net.h" |
    sed -nE 's/^ *X\(([A-Z_]+), ("([A-Z_]*)"|NULL), (-?[0-9]+), .*/MR_NET_\1 \3 \4/p' >"$tmp/code"
printf '%s\n' "MR_NET_HCA NCCL_IB_HCA" "MR_NET_IFNAME NCCL_SOCKET_IFNAME" "MR_NET_LIB NCCL_IBVERBS_LIB" >>"$tmp/code"
sed -nE 's/^\.BR? (MR_NET_[A-Z_]+)( .*)?$/\1/p' "$here/../man/mroce-net.7" | LC_ALL=C sort -u >"$tmp/man"
cut -d' ' -f1 "$tmp/code" | LC_ALL=C sort >"$tmp/names"
if diff -u "$tmp/names" "$tmp/man"; then say "settings in the man page" ok; else say "settings in the man page" differ; fi
while read -r name alias default; do
    text=$(awk -v n="$name" '$0 ~ "^\\.BR? " n "( |$)" {p = 1} /^\.TP/ {p = 0} p' "$here/../man/mroce-net.7")
    for word in $alias $default; do
        case $text in *"$word"*) ;; *) echo "$name: the man page does not say $word"; failed=1 ;; esac
    done
done <"$tmp/code"
exit $failed
