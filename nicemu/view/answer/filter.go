// Package answer shows a program the files of the view where neither mounts nor namespaces are allowed: the kernel is
// told, by a seccomp filter, to ask a supervisor about every system call that names a file, and the supervisor answers
// those about our files itself. It needs no rights, reaches static programs and children, and costs some tens of microseconds
// for every such call.
//
// The order:
//  1. The supervisor starts a child of this same binary.
//  2. The child installs the filter (Install), sends the listener over a socket, and becomes the program.
//  3. The supervisor answers (Serve) until nobody under the filter lives. It has to be an ancestor of the program, or
//     Yama would not let it read the path, and it outlives the program's first process: when it ends, the kernel
//     answers ENOSYS to whoever is left.
//
// Nothing here protects anything. The path is read from memory that another thread may change before the kernel reads it
// again, so a program that wants to can get past the view, in both directions; it gets what it could get without.
// What the view does not cover: chdir into it, statfs, inotify, io_uring; and listing /sys/class or /dev does not
// show it.
package answer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// kind is what a system call wants to know of a path.
type kind uint8

const (
	open kind = iota + 1
	open2
	stat
	statx
	access
	readlink
	xattr
)

// call says where a system call has its arguments; -1: it has none.
type call struct {
	kind      kind
	dir, path int8
	a, b      int8 // open: flags; open2: how; stat: buffer; statx: mask, buffer; access: mode; readlink: buffer, size
}

// program is the filter: a notification for each of calls, everything else as before. Calls of another architecture (32-bit
// programs) are left alone.
func program() []unix.SockFilter {
	const load, jumpEqual, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const offNr, offArch = 0, 4 // in struct seccomp_data
	n := len(calls)
	p := []unix.SockFilter{
		{Code: load, K: offArch},
		{Code: jumpEqual, K: arch, Jt: 0, Jf: uint8(n + 1)},
		{Code: load, K: offNr},
	}
	left := n
	for nr := range calls {
		left--
		p = append(p, unix.SockFilter{Code: jumpEqual, K: nr, Jt: uint8(left + 1)})
	}
	return append(p, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_USER_NOTIF})
}

// Install puts the filter on the calling thread, which must be the one that then becomes the program, and returns the
// listener. From here on no system call of that thread may name a file until somebody answers. Programs with the set-user-ID
// bit get no other rights afterwards.
func Install() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("cannot give up new privileges: %w", err)
	}
	const newListener, waitKillable = 1 << 3, 1 << 5
	// Where the kernel knows how, a signal (Go's runtime sends many) does not end a call that is being answered.
	listener, err = setFilter(newListener|waitKillable, program())
	if errors.Is(err, unix.EINVAL) {
		listener, err = setFilter(newListener, program())
	}
	if err != nil {
		return -1, fmt.Errorf("a seccomp filter with notifications is refused: %w", err)
	}
	return listener, nil
}
