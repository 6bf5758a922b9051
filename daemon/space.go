package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
)

// space is a way into a program's memory. It belongs to one goroutine at a time: the connection's until the context is
// open, then the loop.
type space interface {
	device.Space
	prove() error
	dma() (mode uint32, why error) // why: what kept the daemon from the first mode
	close()
}

// procSpace reaches the memory of one process. Every call begins with the guard: 8 bytes on a page that the program
// mapped at a random address. A call resolves its address space once, so when the pid was used again, or the program
// exec'd, the guard faults before a byte of a stranger moves.
type procSpace struct {
	pid   int // thread that leads to the memory: the process, or another thread when its first one has exited
	tgid  int
	guard uint64
	nonce [8]byte
	mode  uint32
	why   error    // why it is not process_vm
	mem   *os.File // mode MR_DMA_PROC_MEM: opened at connect, so it stays with the address space it was opened on

	local  []unix.Iovec
	remote []remoteIovec
	check  [8]byte
}

// spaceSegs is the largest number of segments in a call, guard included; the kernel's own limit is 1024.
const spaceSegs = 512

// openSpace finds a way into a process by trying, and proves the guard.
func openSpace(pid int, guard uint64, nonce uint64) (*procSpace, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("the program is in a pid namespace that this daemon does not see")
	}
	s := &procSpace{pid: pid, tgid: pid, guard: guard, local: make([]unix.Iovec, 0, spaceSegs), remote: make([]remoteIovec, 0, spaceSegs)}
	for i := range s.nonce {
		s.nonce[i] = byte(nonce >> (8 * i))
	}
	s.mode = hostq.DMAProcessVM
	err := s.prove()
	if err == nil {
		return s, nil
	}
	f, ferr := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/mem", os.O_RDWR, 0)
	if ferr != nil {
		return nil, fmt.Errorf("process_vm_readv: %w; /proc/PID/mem: %w", err, ferr)
	}
	s.mode, s.mem, s.why = hostq.DMAProcMem, f, err
	if ferr = s.prove(); ferr != nil {
		f.Close()
		return nil, fmt.Errorf("process_vm_readv: %w; /proc/PID/mem: %w", err, ferr)
	}
	return s, nil
}

// prove reads the guard once, and writes it back.
func (s *procSpace) prove() error {
	if s.mode == hostq.DMAProcMem {
		if n, err := unix.Pread(int(s.mem.Fd()), s.check[:], int64(s.guard)); n != 8 {
			return fmt.Errorf("guard: %w", orFault(err))
		}
		if s.check != s.nonce {
			return errNonce
		}
		return nil
	}
	for _, trap := range []uintptr{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV} {
		s.begin(trap)
		n, e := s.vm(trap)
		if n != 8 {
			return fmt.Errorf("guard: %w", orFault(e))
		}
		if trap == unix.SYS_PROCESS_VM_READV && s.check != s.nonce {
			return errNonce
		}
	}
	return nil
}

var errNonce = fmt.Errorf("guard: the page holds something else")

func orFault(err error) error {
	if err == nil || errors.Is(err, unix.Errno(0)) {
		return unix.EFAULT
	}
	return err
}

func (s *procSpace) dma() (mode uint32, why error) { return s.mode, s.why }

func (s *procSpace) close() {
	if s.mem != nil {
		s.mem.Close()
	}
}

// begin starts a call with the guard.
func (s *procSpace) begin(trap uintptr) {
	buf := &s.check
	if trap == unix.SYS_PROCESS_VM_WRITEV {
		buf = &s.nonce
	}
	s.local = append(s.local[:0], unix.Iovec{Base: &buf[0], Len: 8})
	s.remote = append(s.remote[:0], remoteIovec{s.guard, 8})
}

// vm makes the call. When the process's first thread has exited its pid leads nowhere: another thread does.
func (s *procSpace) vm(trap uintptr) (int, unix.Errno) {
	n, e := vmCall(trap, s.pid, s.local, s.remote)
	if e != unix.ESRCH {
		return n, e
	}
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(s.tgid) + "/task")
	if err != nil {
		return n, e
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil || tid == s.pid {
			continue
		}
		if n, e = vmCall(trap, tid, s.local, s.remote); e != unix.ESRCH {
			s.pid = tid
			return n, e
		}
	}
	return n, e
}

// Read implements device.Space.
func (s *procSpace) Read(segs []device.Seg) (int, error) {
	if s.mode == hostq.DMAProcMem {
		return s.memCall(segs, unix.Pread)
	}
	return s.call(unix.SYS_PROCESS_VM_READV, segs)
}

// Write implements device.Space.
func (s *procSpace) Write(segs []device.Seg) (int, error) {
	if s.mode == hostq.DMAProcMem {
		return s.memCall(segs, unix.Pwrite)
	}
	return s.call(unix.SYS_PROCESS_VM_WRITEV, segs)
}

// call moves all segments, in as few system calls as their number allows.
func (s *procSpace) call(trap uintptr, segs []device.Seg) (int, error) {
	for done := 0; done < len(segs); {
		part := segs[done:min(len(segs), done+spaceSegs-1)]
		k, err := s.one(trap, part)
		done += k
		if err != nil {
			return done, err
		}
	}
	return len(segs), nil
}

func (s *procSpace) one(trap uintptr, segs []device.Seg) (int, error) {
	s.begin(trap)
	total := 8
	for i := range segs {
		g := &segs[i]
		total += len(g.Buf)
		s.local = append(s.local, unix.Iovec{Base: &g.Buf[0], Len: uint64(len(g.Buf))})
		// what follows in the program's memory joins the last piece: its pages are looked up once
		if r := &s.remote[len(s.remote)-1]; len(s.remote) > 1 && r.base+r.len == g.Addr {
			r.len += uint64(len(g.Buf))
		} else {
			s.remote = append(s.remote, remoteIovec{g.Addr, uint64(len(g.Buf))})
		}
	}
	n, _ := s.vm(trap)
	switch {
	case n < 8: // not even the guard: another address space, or none
		return 0, device.ErrGone
	case trap == unix.SYS_PROCESS_VM_READV && s.check != s.nonce:
		return 0, device.ErrGone
	case n == total:
		return len(segs), nil
	}
	n -= 8
	for i := range segs {
		if n -= len(segs[i].Buf); n < 0 {
			return i, device.ErrFault
		}
	}
	return len(segs), nil
}

// memCall uses /proc/PID/mem: one call a segment. The descriptor is bound to the address space it was opened on, so
// it needs no guard; after exec or exit it gives 0 bytes.
func (s *procSpace) memCall(segs []device.Seg, f func(int, []byte, int64) (int, error)) (int, error) {
	fd := int(s.mem.Fd())
	for i := range segs {
		n, err := f(fd, segs[i].Buf, int64(segs[i].Addr))
		if n == len(segs[i].Buf) {
			continue
		}
		if n == 0 && err == nil {
			return i, device.ErrGone
		}
		return i, device.ErrFault
	}
	return len(segs), nil
}
