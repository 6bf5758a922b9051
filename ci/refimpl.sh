#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs its arguments in refimpl/, with what cgo needs to build on the DPDK that pkg-config finds:
#     sh ci/refimpl.sh go test -tags dpdk ./...
# A DPDK of your own: PKG_CONFIG_PATH=/opt/dpdk/lib/pkgconfig before it.
cd "$(dirname "$0")/../refimpl" || exit 1
libdir=$(pkg-config --variable=libdir libdpdk) || exit 1
export CGO_ENABLED=1 CGO_CFLAGS_ALLOW='.*' CGO_LDFLAGS_ALLOW='.*' # pkg-config's flags are beyond what cgo lets through
# Nothing reads the macro: it makes Go's build cache see another release of DPDK, as what pkg-config answers is no part of
# the cache's key.
export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g} -DLIBDPDK=$(pkg-config --modversion libdpdk)"
case $libdir in
/usr/lib/* | /lib/*) ;;
# Where the loader does not look by itself; an RPATH, as a RUNPATH does not hold for the libraries that DPDK loads of itself.
*) export CGO_LDFLAGS="${CGO_LDFLAGS:--O2 -g} -Wl,--disable-new-dtags,-rpath,$libdir" ;;
esac
exec "$@"
