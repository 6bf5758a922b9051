package tap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls on the data path are raw: on a non-blocking TAP they cannot block (host-trials.md, rule 7b).

func readNow(fd int, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

func writevNow(fd int, v []unix.Iovec) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
	return e
}

func pollNow(p []unix.PollFd) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(unsafe.Pointer(&unix.Timespec{})), 0, 0, 0)
	return int(n), e
}

func ioctlBytes(fd int, req uint, b []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(unsafe.Pointer(&b[0]))); e != 0 {
		return e
	}
	return nil
}
