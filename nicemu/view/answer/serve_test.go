package answer

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLocal: which paths of a program are answered from the view, and that none leads out of it.
func TestLocal(t *testing.T) {
	s := &Server{Dir: t.TempDir()}
	for name, want := range map[string]string{
		"/sys/class/infiniband":                           "/class/infiniband",
		"/sys/class/infiniband/mr0/ports/1/state":         "/class/infiniband/mr0/ports/1/state",
		"/sys/class/../class/infiniband/mr0":              "/class/infiniband/mr0",
		"/dev/infiniband/uverbs0":                         "/dev/infiniband/uverbs0",
		"/sys/class/infiniband/../../../etc/passwd":       "/nothing",
		"/dev/infiniband/../../proc/self/environ":         "/nothing",
		"/sys/class/infiniband/mr0/../../net":             "/nothing",
		"/sys/class/infiniband_verbs/../infiniband/mr0/x": "/class/infiniband/mr0/x",
		"/sys/class/net":                                  "",
		"/etc/passwd":                                     "",
		"/dev/infinibandish":                              "",
	} {
		at, _, ok := s.local(name, call{dir: -1})
		if ok != (want != "") || ok && at != s.Dir+want {
			t.Errorf("%s: %q %v, want %q", name, at, ok, want)
		}
	}
}

// TestNothing: what leads out of the view is not there, whatever the rights of who answers.
func TestNothing(t *testing.T) {
	s := &Server{Dir: t.TempDir()}
	at, dir, _ := s.local("/dev/infiniband/../../"+filepath.Join("etc", "passwd"), call{dir: -1})
	if _, err := s.open(at, dir, unix.O_RDONLY); !errors.Is(err, unix.ENOENT) {
		t.Errorf("open: %v", err)
	}
}
