// Package answertest makes the surroundings for which package answer is there: a process that may make neither
// namespaces nor mounts, as in a container under Docker's own profile.
package answertest

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Refuse puts a filter on the calling thread, which must be locked and then become another program: unshare, setns,
// mount and umount, and clone with new namespaces, fail with EPERM; clone3 with ENOSYS, so that libraries take clone.
func Refuse() error {
	const load, jumpEqual, jumpSet, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
		unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const newAny = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	p := []unix.SockFilter{{Code: load}} // the number
	for _, nr := range []uint32{unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT} {
		p = append(p, unix.SockFilter{Code: jumpEqual, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	p = append(p,
		unix.SockFilter{Code: jumpEqual, K: unix.SYS_CLONE3, Jf: 1}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		unix.SockFilter{Code: jumpEqual, K: unix.SYS_CLONE, Jf: 3},
		unix.SockFilter{Code: load, K: 16}, // its flags
		unix.SockFilter{Code: jumpSet, K: newAny, Jf: 1}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}
