//go:build live

package live

import (
	"os"
	"os/exec"
	"syscall"
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

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		skip(t, "needs root")
	}
}

func needProgram(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			skip(t, "needs %s; ci/deps.sh test installs it", n)
		}
	}
}

// needWire: a lab with TAP wires needs /dev/net/tun; the other wires work for everybody.
func needWire(t testing.TB, wire string) {
	t.Helper()
	if wire != "tap" {
		return
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		skip(t, "no TAP: %v", err)
	}
	f.Close()
}

// want reports whether a part of the tests is asked for: MR_LIVE is pairwise (default), full or soak.
func want(level string) bool {
	l := os.Getenv("MR_LIVE")
	return l == level || l == "" && level == "pairwise"
}

const sigterm = syscall.SIGTERM
