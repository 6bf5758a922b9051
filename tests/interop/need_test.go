//go:build interop

package interop

import (
	"testing"

	"github.com/metaroce/metaroce/tests/need"
)

var (
	skip  = need.Skip
	built = need.Built
)

// needMachine: namespaces, TAPs and captures on them are root's.
func needMachine(t testing.TB) {
	t.Helper()
	need.Root(t)
	need.TAP(t)
	need.Programs(t, "ip", "nsenter", "dumpcap", "tshark", "ib_write_bw", "ibv_rc_pingpong")
}
