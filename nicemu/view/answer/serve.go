package answer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Server answers for one listener.
type Server struct {
	// Dir has the tree: Dir/class/infiniband… and Dir/dev/infiniband/uverbsN, links to /dev/null.
	Dir string
	// Fresh is called before a file of a port is opened; it may bring the tree up to date.
	Fresh func()

	fd   int
	note notif
	path [unix.PathMax]byte
}

// word is in the path of all that is shown, and in hardly any other.
var word = []byte("infiniband")

// Serve answers until nobody under the filter lives.
func (s *Server) Serve(listener int) error {
	s.fd = listener
	poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(poll, -1)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("cannot wait for system calls: %w", err)
		case poll[0].Revents&unix.POLLIN == 0: // nobody is left
			return nil
		}
		if err := receive(listener, &s.note); err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // who asked is gone
				continue
			}
			return fmt.Errorf("cannot receive a system call: %w", err)
		}
		s.answer()
	}
}

// carryOn lets the kernel do the call.
var errCarryOn = errors.New("not ours")

// errGiven says that the answer has been given.
var errGiven = errors.New("answered")

// answer answers one call. A call whose program died meanwhile takes no answer.
func (s *Server) answer() {
	val, err := s.work()
	var no unix.Errno
	switch {
	case errors.Is(err, errGiven):
	case err == nil:
		_ = send(s.fd, &response{id: s.note.id, val: val})
	case errors.As(err, &no):
		_ = send(s.fd, &response{id: s.note.id, error: -int32(no)})
	default:
		_ = send(s.fd, &response{id: s.note.id, flags: flagContinue})
	}
}

func (s *Server) work() (int64, error) {
	n := &s.note
	c, ok := calls[uint32(n.nr)]
	if !ok {
		return 0, errCarryOn
	}
	got := s.path[:readMemory(n.pid, n.args[c.path], s.path[:])]
	end := bytes.IndexByte(got, 0)
	if end < 0 || !bytes.Contains(got[:end], word) || !valid(s.fd, n.id) {
		return 0, errCarryOn
	}
	at, dir, ok := s.local(string(got[:end]), c)
	if !ok {
		return 0, errCarryOn
	}
	switch c.kind {
	case open:
		return s.open(at, dir, n.args[c.a])
	case open2:
		var how [8]byte // of struct open_how: the flags
		if readMemory(n.pid, n.args[c.a], how[:]) != len(how) {
			return 0, unix.EFAULT
		}
		return s.open(at, dir, binary.NativeEndian.Uint64(how[:]))
	case stat:
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			return 0, err
		}
		return 0, s.write(n.args[c.a], bytesOf(&st))
	case statx:
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, at, 0, int(n.args[c.a]), &st); err != nil {
			return 0, err
		}
		return 0, s.write(n.args[c.b], bytesOf(&st))
	case access:
		mode := uint32(n.args[c.a])
		if dir != devDir && mode&unix.W_OK != 0 {
			return 0, unix.EACCES
		}
		return 0, unix.Access(at, mode)
	case readlink: // nothing is a link, as far as programs know
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			return 0, err
		}
		return 0, unix.EINVAL
	case xattr:
		return 0, unix.EOPNOTSUPP
	}
	return 0, errCarryOn
}

const (
	devDir   = "/dev/infiniband"
	classDir = "/sys/class"
)

// classes are the directories of the tree.
var classes = []string{classDir + "/infiniband", classDir + "/infiniband_verbs", classDir + "/infiniband_mad"}

// local finds the file behind a path of the program: where it is here, and below which directory there.
func (s *Server) local(name string, c call) (at, dir string, ok bool) {
	if !path.IsAbs(name) {
		base := "cwd"
		if c.dir >= 0 {
			if fd := int32(s.note.args[c.dir]); fd != unix.AT_FDCWD {
				base = fmt.Sprintf("fd/%d", fd)
			}
		}
		from, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", s.note.pid, base))
		if err != nil || strings.HasPrefix(from+"/", s.Dir+"/") { // below a directory that came from us the kernel finds it
			return "", "", false
		}
		name = from + "/" + name
	}
	whole := path.Clean(name)
	if below(whole, devDir) {
		return s.Dir + whole, devDir, true
	}
	for _, d := range classes {
		if below(whole, d) {
			return s.Dir + strings.TrimPrefix(whole, "/sys"), classDir, true
		}
	}
	for _, d := range append(classes, devDir) { // in by our names and out again by ..
		if strings.HasPrefix(name, d+"/") {
			return s.Dir + "/nothing", classDir, true // not to be opened here: the rights of who asks are others, and so may be its root
		}
	}
	return "", "", false
}

func below(name, dir string) bool {
	return strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}

// open opens here and gives the program the descriptor.
func (s *Server) open(at, dir string, flags uint64) (int64, error) {
	const making = unix.O_CREAT | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY
	if dir != devDir && (flags&unix.O_ACCMODE != unix.O_RDONLY || flags&making != 0) {
		return 0, unix.EACCES
	}
	if dir == classDir && s.Fresh != nil && strings.Contains(at, "/ports/") {
		s.Fresh()
	}
	fd, err := unix.Open(at, int(flags)&^(making|unix.O_NOFOLLOW)|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := give(s.fd, s.note.id, fd, flags&unix.O_CLOEXEC != 0); err != nil {
		if errors.Is(err, unix.ENOENT) { // who asked is gone
			return 0, errGiven
		}
		return 0, err
	}
	return 0, errGiven
}

// MayRead reports why the memory of a process cannot be read, without which nothing can be answered.
func MayRead(pid int) error {
	fd, err := memory(uint32(pid), unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("cannot read the program's memory: %w", err)
	}
	return unix.Close(fd)
}

func memory(pid uint32, flags int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d/mem", pid), flags|unix.O_CLOEXEC, 0)
}

// write stores an answer in the program's memory. The file is opened first and the call looked at then: what it leads to
// is this program's memory or none.
func (s *Server) write(at uint64, b []byte) error {
	fd, err := memory(s.note.pid, unix.O_WRONLY)
	if err != nil {
		return errCarryOn
	}
	defer unix.Close(fd)
	if !valid(s.fd, s.note.id) {
		return errGiven
	}
	if n, err := unix.Pwrite(fd, b, int64(at)); err != nil || n != len(b) {
		return unix.EFAULT
	}
	return nil
}
