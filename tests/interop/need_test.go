//go:build interop

package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// skip leaves a test out because this machine cannot run it. CI sets MR_TEST_REQUIRE=all: there it is a failure.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("would skip, and MR_TEST_REQUIRE=all asks for every test: "+format, args...)
	}
	t.Skipf(format, args...)
}

// needMachine: namespaces, TAPs and captures on them are root's.
func needMachine(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		skip(t, "needs root, for a TAP of the VM")
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		skip(t, "no TAP: %v", err)
	}
	f.Close()
	for _, n := range []string{"ip", "nsenter", "dumpcap", "tshark", "ib_write_bw", "ibv_rc_pingpong"} {
		if _, err := exec.LookPath(n); err != nil {
			skip(t, "needs %s; ci/deps.sh test installs it", n)
		}
	}
}

// built returns a path below build/.
func built(t testing.TB, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%v: run make first", err)
	}
	return p
}
