package answer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/tests/need"
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

// TestSignals: signals that reach who answers, as Go's runtime sends them to whoever computes for long, change no answer. (A
// descriptor given with its answer in one step is lost by one: the kernel takes it back and answers 0, so that the program
// reads its standard input instead.)
func TestSignals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "class", "infiniband", "mr0", "state")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("4: ACTIVE"), 0o644)); err != nil {
		t.Fatal(err)
	}
	listener, wrong, tid, served := make(chan int), make(chan error, 1), make(chan int), make(chan error, 1)
	var program func()
	program = func() { // never unlocked: the thread under the filter ends with the goroutine, and Serve with it
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the process's first thread would stay
			go program()
			<-t.Context().Done()
			return
		}
		fd, err := Install()
		listener <- fd
		for i := 0; i < 3000 && err == nil; i++ {
			err = readOnce("/sys/class/infiniband/mr0/state", "4: ACTIVE")
		}
		wrong <- err
	}
	go program()
	fd := <-listener
	if fd < 0 {
		need.Skip(t, "a seccomp filter is refused here: %v", <-wrong)
	}
	defer unix.Close(fd)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid <- unix.Gettid()
		served <- (&Server{Dir: dir}).Serve(fd)
	}()
	var stop atomic.Bool
	hammered := make(chan struct{})
	go func() {
		defer close(hammered)
		for who := <-tid; !stop.Load(); {
			_ = unix.Tgkill(os.Getpid(), who, unix.SIGURG) // it may be gone
		}
	}()
	if err := <-wrong; err != nil {
		t.Error(err)
	}
	stop.Store(true)
	<-hammered
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// readOnce opens a file and reads it, by system calls of this thread.
func readOnce(name, want string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if fd <= 2 {
		return fmt.Errorf("open answers %d", fd)
	}
	defer unix.Close(fd)
	var b [64]byte
	if n, err := unix.Read(fd, b[:]); err != nil || string(b[:max(n, 0)]) != want {
		return fmt.Errorf("%q, %w", b[:max(n, 0)], err)
	}
	return nil
}
