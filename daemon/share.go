package daemon

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// Programs share a context by handing over the descriptor of its connection (ibv_import_device). Who has it proves that by
// sending a token of his over it, and then asks for the import, with the same token, over a connection of his own: that one
// has its own process, queues and events, but domains, regions and device memory in common with the first. So two processes
// never read replies from one socket, and each one's memory is reached as its own.

const (
	sharesMost = 4               // tokens that a context remembers
	shareWait  = 2 * time.Second // for a token that is on its way
	sharePoll  = 5 * time.Millisecond
	shareMany  = 8 // imports that wait at a time: each looks at all clients again and again
)

// doShare notes a token. It is not answered: the reply would reach whoever reads that socket next.
func doShare(c *client, m *hostq.Share, _ []int) answer {
	if c.opened && m.Token != [2]uint64{} {
		c.d.mu.Lock()
		copy(c.shares[1:], c.shares[:sharesMost-1])
		c.shares[0] = m.Token
		c.d.mu.Unlock()
	}
	return answer{silent: true}
}

// sharer finds the client over whose connection a token came, and takes the token.
func (d *Daemon) sharer(token [2]uint64) *client {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.clients {
		if i := slices.Index(c.shares[:], token); i >= 0 {
			c.shares[i] = [2]uint64{}
			return c
		}
	}
	return nil
}

func doImport(c *client, m *hostq.Import, fds []int) answer {
	if c.opened || len(fds) != 1 || m.Token == [2]uint64{} {
		return answer{err: unix.EINVAL}
	}
	select {
	case c.d.importing <- struct{}{}:
		defer func() { <-c.d.importing }()
	case <-time.After(shareWait):
		return answer{err: unix.EAGAIN}
	}
	from := c.d.sharer(m.Token)
	for end := time.Now().Add(shareWait); from == nil && time.Now().Before(end); from = c.d.sharer(m.Token) {
		time.Sleep(sharePoll)
	}
	if from == nil {
		return answer{err: unix.EBADF}
	}
	return c.openWith(from.nic, from, fds[0], m.ShmBytes)
}

func doImportPD(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if !c.ctx.HasPD(m.Handle) {
		return nil, unix.EINVAL
	}
	return header()
}

func doImportMR(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	mr, err := c.ctx.ImportMR(m.Handle)
	if err != nil {
		return nil, err
	}
	r := hostq.ImportMRReply{LKey: mr.Key(), RKey: mr.Key()}
	r.IOVA, r.Length, r.Access = mr.Describe()
	return hostq.Bytes(&r), nil
}

func doAllocNullMR(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	mr, err := c.ctx.AllocNullMR(m.Handle)
	if err != nil {
		return nil, err
	}
	r := hostq.RegMRReply{Handle: mr.Handle(), LKey: mr.Key(), RKey: mr.Key()}
	return hostq.Bytes(&r), nil
}

// doAllocDM keeps the descriptor of device memory for programs that it will be handed to.
func doAllocDM(c *client, m *hostq.DM, fds []int) (a answer) {
	const page = hostq.RingAlign
	if !c.opened || len(fds) != 1 || m.Length == 0 || m.Length > hostq.CtxBytesMax || checkSealed(fds[0], (m.Length+page-1)/page*page) != nil {
		return answer{err: unix.EINVAL}
	}
	keep, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return answer{err: err}
	}
	a = c.made(func() (h uint32, err error) {
		if h, err = c.ctx.AllocDM(m.Length, keep); err == nil {
			c.dms[h] = keep
		}
		return h, err
	})
	if a.err != nil {
		unix.Close(keep)
	}
	return a
}

func doFreeDM(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.FreeDM(m.Handle); err != nil {
		return nil, err
	}
	unix.Close(c.dms[m.Handle])
	delete(c.dms, m.Handle)
	return header()
}

func doImportDM(c *client, m *hostq.Handle, _ []int) (a answer) {
	if !c.opened {
		return answer{err: unix.EINVAL}
	}
	var r hostq.DM
	fd := -1
	a.err = unix.EIO
	c.loop.do(func(mono.Time) {
		if c.ctx == nil || c.ctx.Dead {
			return
		}
		var keep int
		if r.Length, keep, a.err = c.ctx.ImportDM(m.Handle); a.err == nil {
			fd, a.err = unix.FcntlInt(uintptr(keep), unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if a.err != nil {
		return a
	}
	return answer{msg: hostq.Bytes(&r), fds: []int{fd}}
}

func doModifyCQ(c *client, m *hostq.ModifyCQ, _ mono.Time) ([]byte, error) {
	if err := c.ctx.ModifyCQ(m.Handle, uint32(m.Count), mono.Duration(m.Period)*mono.Microsecond); err != nil {
		return nil, err
	}
	return header()
}
