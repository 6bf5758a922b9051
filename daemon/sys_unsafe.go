package daemon

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/mono"
)

// schedYield cannot block, so the Go scheduler need not hear of it.
func schedYield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// epollWait waits on the loop's descriptors with the kernel's finest timer.
func (l *loop) epollWait(wait mono.Duration) int {
	if l.noPwait2 {
		ms := int((wait + mono.Millisecond - 1) / mono.Millisecond)
		n, err := unix.EpollWait(l.epfd, l.events[:], ms)
		if err != nil {
			return 0
		}
		return n
	}
	l.ts = unix.NsecToTimespec(int64(wait)) // set before every call: the kernel may write the rest into it
	var n uintptr
	var e unix.Errno
	if wait == 0 { // cannot block
		n, _, e = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epfd), uintptr(unsafe.Pointer(&l.events[0])),
			uintptr(len(l.events)), uintptr(unsafe.Pointer(&l.ts)), 0, 0)
	} else {
		n, _, e = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epfd), uintptr(unsafe.Pointer(&l.events[0])),
			uintptr(len(l.events)), uintptr(unsafe.Pointer(&l.ts)), 0, 0)
	}
	if e == unix.ENOSYS { // before 5.11
		l.noPwait2 = true
	}
	if e != 0 {
		return 0
	}
	return int(n)
}

// remoteIovec names memory of another program. It has the layout of an iovec, but the address is a number: the garbage
// collector must not take it for a pointer of ours.
type remoteIovec struct {
	base uint64
	len  uint64
}

// vmCall is process_vm_readv or process_vm_writev. It goes through the scheduler: it can wait in a page fault.
func vmCall(trap uintptr, pid int, local []unix.Iovec, remote []remoteIovec) (int, unix.Errno) {
	n, _, e := unix.Syscall6(trap, uintptr(pid), uintptr(unsafe.Pointer(&local[0])), uintptr(len(local)),
		uintptr(unsafe.Pointer(&remote[0])), uintptr(len(remote)), 0)
	if e != 0 {
		return -1, e
	}
	return int(n), 0
}

// pageAligned reports whether mapped memory begins on a page, as mmap promises.
func pageAligned(b []byte) bool { return uintptr(unsafe.Pointer(&b[0]))%4096 == 0 }

// futexWake and futexWait: on a word in memory that another process has mapped too.
func futexWake(word unsafe.Pointer) {
	const futexWakeOp, all = 1, 1 << 30
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(word), futexWakeOp, all, 0, 0, 0) //nolint:errcheck // nobody sleeps there, then
}

func futexWait(word unsafe.Pointer, value uint32, limit time.Duration) unix.Errno {
	const futexWaitOp = 0
	ts := unix.NsecToTimespec(int64(limit))
	_, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(word), futexWaitOp, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0)
	return e
}
