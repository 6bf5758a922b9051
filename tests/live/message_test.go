//go:build live

package live

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMessages: mistakes and missing things get one line that says what, why and what to do, and the exit code of its kind.
func TestMessages(t *testing.T) {
	l := station(t)
	file := func(text string) string {
		p := filepath.Join(l.dir, "bad.yaml")
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		name string
		args []string
		want []string // in the output; the last is the exit code
	}{
		{"yaml syntax", []string{"lab", "up", file("name: x\nhosts: [")}, []string{"bad.yaml:", "exit 2"}},
		{"no lab file", []string{"lab", "up", filepath.Join(l.dir, "none.yaml")}, []string{"none.yaml", "exit 2"}},
		{"no such lab", []string{"lab", "up", "two-host"}, []string{"two-hosts", "exit 2"}},
		{"nothing is up", []string{"lab", "exec", "a", "--", "true"}, []string{"nicemu lab up", "exit 1"}},
		{"no daemon", []string{"status"}, []string{"exit 1"}},
		{"no such command", []string{"statsu"}, []string{"exit 2"}},
		{"no such wire", []string{"up", "--addr", "10.0.0.1/24", "--wire", "tup:x"}, []string{"tup", "tap", "exit 2"}},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, l.try(10*time.Second, c.args...), c.want) })
	}
	t.Run("unknown key", func(t *testing.T) {
		bad := file("name: x\nhosts:\n  a: {addr: 10.0.0.1/24}\nplane: {rat: 1Gbit}\n")
		expect(t, l.try(10*time.Second, "lab", "up", bad), []string{"bad.yaml:4:", `"rat"`, "rate", "exit 2"})
	})
	t.Run("program not found", func(t *testing.T) {
		l := oneNIC(t)
		expect(t, l.try(10*time.Second, "run", "--", "no-such-program"), []string{"no-such-program", "exit 127"})
		expect(t, l.try(10*time.Second, "run", "--", "sh", "-c", "exit 41"), []string{"exit 41"})
	})
}

// TestNoTAP: an ordinary user who may not open /dev/net/tun is told so, when he asked for TAP; with wire: auto he gets a lab.
func TestNoTAP(t *testing.T) {
	needRoot(t)
	needProgram(t, "unshare", "ib_write_bw")
	l := userStation(t)
	// Where the device is open to everybody, a mount namespace with a closed one shows the other machines' case.
	closed := filepath.Join(t.TempDir(), "tun")
	if err := os.WriteFile(closed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.prefix = append([]string{"unshare", "-m", "sh", "-c", "mount --bind " + closed + ` /dev/net/tun && exec "$@"`, "--"}, l.prefix...)
	l.env = append(l.env, "MR_LAB=live")
	file := filepath.Join(l.dir, "lab.yaml")
	if err := os.WriteFile(file, []byte(spec{wire: "tap"}.yaml()), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, l.try(20*time.Second, "lab", "up", file), []string{"/dev/net/tun", "exit 3"})
	if err := os.WriteFile(file, []byte(spec{wire: "auto"}.yaml()), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, l.try(30*time.Second, "lab", "up", file), []string{"exit 0"})
	t.Cleanup(func() { expect(t, l.try(30*time.Second, "lab", "down", "live"), []string{"exit 0"}) })
	l.pair(t, 30*time.Second, "a", "b", "ib_write_bw", "-n", "200")
}

func expect(t testing.TB, out string, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("want %q in:\n%s", w, out)
		}
	}
	if strings.Contains(out, "goroutine ") || strings.Contains(out, "panic:") {
		t.Errorf("a stack trace for a user's mistake:\n%s", out)
	}
}
