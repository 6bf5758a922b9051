package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device/hostq"
)

// TestXRCDFiles: a domain belongs to who has opened its file. Whoever has only found it, or passes something else, gets none.
func TestXRCDFiles(t *testing.T) {
	d := start(t, nil)
	p, err := objects(d.cfg.Socket, "a/mr0")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "domain")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(flags int, name string) int {
		t.Helper()
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(pair[:])
	for what, c := range map[string]struct {
		fd   int
		want error
	}{
		"its file":    {open(unix.O_RDONLY, name), nil},
		"a place":     {open(unix.O_PATH, name), unix.EBADF},
		"a directory": {open(unix.O_RDONLY, filepath.Dir(name)), unix.EBADF},
		"a socket":    {pair[0], unix.EBADF},
		"a device":    {open(unix.O_RDONLY, "/dev/null"), unix.EBADF},
	} {
		var h hostq.Handle
		if _, err := call(p.prog, hostq.OpOpenXRCD, &hostq.OpenXRCD{Flags: unix.O_CREAT}, &h, c.fd); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}
