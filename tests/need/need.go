// Package need says what tests on this machine lack. CI sets MR_TEST_REQUIRE=all: there a test that would be left out fails.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Skip leaves a test out because this machine cannot run it.
func Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("would skip, and MR_TEST_REQUIRE=all asks for every test: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Programs of Debian packages.
func Programs(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			Skip(t, "needs %s; ci/deps.sh test installs it", n)
		}
	}
}

// Root, for namespaces and devices.
func Root(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		Skip(t, "needs root")
	}
}

// TAP devices.
func TAP(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		Skip(t, "no TAP: %v", err)
	}
	f.Close()
}

// Built returns a path below build/, for a test two folders below the project's root.
func Built(t testing.TB, path string) string {
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
