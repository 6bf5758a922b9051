package daemon

import (
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// doOpenXRCD opens the XRC domain of a file: who can open the file may share the domain. The descriptor is kept, so that
// the file's number is nobody else's as long as the domain is open.
func doOpenXRCD(c *client, m *hostq.OpenXRCD, fds []int) (a answer) {
	if !c.opened || len(fds) > 1 {
		return answer{err: unix.EINVAL}
	}
	key, keep := device.Inode{}, -1
	if len(fds) == 1 {
		var st unix.Stat_t
		if err := unix.Fstat(fds[0], &st); err != nil || st.Ino == 0 {
			return answer{err: unix.EBADF}
		}
		flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_PATH != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG { // to have found a file is not to have opened it
			return answer{err: unix.EBADF}
		}
		key = device.Inode{Dev: st.Dev, Ino: st.Ino}
		fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return answer{err: err}
		}
		keep = fd
	}
	a = c.made(func() (h uint32, err error) {
		if h, err = c.ctx.OpenXRCD(m, key); err == nil {
			c.xrcds[h] = keep
		}
		return h, err
	})
	if a.err != nil {
		closeAll([]int{keep})
	}
	return a
}

func doCloseXRCD(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.CloseXRCD(m.Handle); err != nil {
		return nil, err
	}
	go closeAll([]int{c.xrcds[m.Handle]}) // a stranger's file system may take its time
	delete(c.xrcds, m.Handle)
	return header()
}

func doOpenQP(c *client, m *hostq.OpenQP, _ mono.Time) ([]byte, error) {
	q, err := c.ctx.OpenQP(m)
	if err != nil {
		return nil, err
	}
	r := hostq.CreateQPReply{Handle: q.Handle(), QPN: q.QPN()}
	return hostq.Bytes(&r), nil
}
