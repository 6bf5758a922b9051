#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a Go that can build this tree, or nothing and exit 1. Looks at $GO, at PATH, and at the places
# where Go's own installer, ci/deps.sh and Debian put it, so that a shell without a login profile finds it too.
here=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd) || exit 1
want=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "$here/go.mod")
for go in ${GO:+"$GO"} "$(command -v go)" /usr/local/go/bin/go /usr/local/go1.*/bin/go /usr/lib/go-1.*/bin/go /usr/lib/go/bin/go; do
    [ -n "$go" ] && [ -x "$go" ] || continue
    # Asked inside the module: a Go ≥ 1.21 that may fetch the toolchain named in go.mod answers with that one.
    minor=$(cd "$here" && "$go" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge "$want" ] && echo "$go" && exit 0
done
exit 1
