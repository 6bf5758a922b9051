//go:build live

package live

import (
	"os"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/tests/need"
)

var (
	needRoot    = need.Root
	needProgram = need.Programs
	build       = need.Built
)

// needWire: a lab with TAP wires needs /dev/net/tun; the other wires work for everybody.
func needWire(t testing.TB, wire string) {
	t.Helper()
	if wire == "tap" {
		need.TAP(t)
	}
}

// want reports whether a part of the tests is asked for: MR_LIVE is pairwise (default), full or soak.
func want(level string) bool {
	l := os.Getenv("MR_LIVE")
	return l == level || l == "" && level == "pairwise"
}

const sigterm = syscall.SIGTERM
