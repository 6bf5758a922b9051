package answer

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structures of linux/seccomp.h.
type notif struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

type addFD struct {
	id                       uint64
	flags, src, dst, dstFlag uint32
}

const (
	ioctlRecv  = 0xc0502100
	ioctlSend  = 0xc0182101
	ioctlValid = 0x40082102
	ioctlAddFD = 0x40182103

	flagContinue = 1 // of a response
)

// The sizes are part of the ioctl numbers.
var _ = [1]struct{}{}[unsafe.Sizeof(notif{})-80+unsafe.Sizeof(response{})-24+unsafe.Sizeof(addFD{})-24]

func setFilter(flags uintptr, p []unix.SockFilter) (int, error) {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

func ioctl(fd int, op uintptr, arg unsafe.Pointer) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), op, uintptr(arg))
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

func receive(fd int, n *notif) error {
	*n = notif{} // the kernel asks for zeros
	_, err := ioctl(fd, ioctlRecv, unsafe.Pointer(n))
	return err
}

func send(fd int, r *response) error {
	_, err := ioctl(fd, ioctlSend, unsafe.Pointer(r))
	return err
}

// valid reports whether the call still waits: then the number of the process is still its own.
func valid(fd int, id uint64) bool {
	_, err := ioctl(fd, ioctlValid, unsafe.Pointer(&id))
	return err == nil
}

// give puts a copy of our descriptor into the program and answers with its number, in two steps. Linux can do both in one
// (SECCOMP_ADDFD_FLAG_SEND), but a signal that reaches us on the way, as those of Go's runtime may, makes it take the
// descriptor back and yet let the call end, with 0: the program would read its standard input.
func give(fd int, id uint64, src int, cloexec bool) error {
	a := addFD{id: id, src: uint32(src)}
	if cloexec {
		a.dstFlag = unix.O_CLOEXEC
	}
	there, err := ioctl(fd, ioctlAddFD, unsafe.Pointer(&a))
	for errors.Is(err, unix.EINTR) { // nothing was given
		there, err = ioctl(fd, ioctlAddFD, unsafe.Pointer(&a))
	}
	if err != nil {
		return err
	}
	return send(fd, &response{id: id, val: int64(there)})
}

var pageSize = uint64(os.Getpagesize())

// readMemory reads up to len(b) bytes and stops at the first page that is not there.
func readMemory(pid uint32, at uint64, b []byte) int {
	first := min(int(pageSize-at%pageSize), len(b))
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	remote := []unix.RemoteIovec{{Base: uintptr(at), Len: first}}
	if first < len(b) {
		remote = append(remote, unix.RemoteIovec{Base: uintptr(at) + uintptr(first), Len: len(b) - first})
	}
	n, err := unix.ProcessVMReadv(int(pid), local, remote, 0)
	if err == unix.ENOSYS || err == unix.EPERM { // some containers refuse this call, and allow the file
		if f, e := memory(pid, unix.O_RDONLY); e == nil {
			n, _ = unix.Pread(f, b, int64(at))
			unix.Close(f)
		}
	}
	return max(n, 0)
}

// bytesOf is the memory of a plain structure.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }
