package daemon

import (
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// Requests about objects of a context. They run on the loop of its NIC; the device checks what they say.

func header() ([]byte, error) {
	var r hostq.Hdr
	return hostq.Bytes(&r), nil
}

func handle(h uint32) ([]byte, error) {
	r := hostq.Handle{Handle: h}
	return hostq.Bytes(&r), nil
}

func doQueryPort(c *client, m *hostq.QueryPort, _ mono.Time) ([]byte, error) {
	var r hostq.PortAttr
	if err := c.nic.PortAttr(m.Port, &r); err != nil {
		return nil, err
	}
	return hostq.Bytes(&r), nil
}

const gidRoCEv2 = 2 // enum ibv_gid_type, as ibv_query_gid_ex shows it

func doQueryGID(c *client, m *hostq.QueryGID, _ mono.Time) ([]byte, error) {
	gid, err := c.nic.GID(m.Port, m.Index)
	if err != nil {
		return nil, err
	}
	r := hostq.GIDEntry{GID: gid, Index: m.Index, Port: m.Port, Type: gidRoCEv2}
	return hostq.Bytes(&r), nil
}

func doAllocPD(c *client, _ *hostq.Handle, _ mono.Time) ([]byte, error) {
	h, err := c.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return handle(h)
}

func doFreePD(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.FreePD(m.Handle); err != nil {
		return nil, err
	}
	return header()
}

func doRegMR(c *client, m *hostq.RegMR, _ mono.Time) ([]byte, error) {
	mr, err := c.ctx.RegMR(m)
	if err != nil {
		return nil, err
	}
	r := hostq.RegMRReply{Handle: mr.Handle(), LKey: mr.Key(), RKey: mr.Key()}
	return hostq.Bytes(&r), nil
}

func doReregMR(c *client, m *hostq.RegMR, _ mono.Time) ([]byte, error) {
	mr, err := c.ctx.ReregMR(m)
	if err != nil {
		return nil, err
	}
	r := hostq.RegMRReply{Handle: mr.Handle(), LKey: mr.Key(), RKey: mr.Key()}
	return hostq.Bytes(&r), nil
}

func doDeregMR(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.DeregMR(m.Handle); err != nil {
		return nil, err
	}
	return header()
}

func doAllocMW(c *client, m *hostq.AllocMW, _ mono.Time) ([]byte, error) {
	w, err := c.ctx.AllocMW(m)
	if err != nil {
		return nil, err
	}
	r := hostq.RegMRReply{Handle: w.Handle(), RKey: w.Key()}
	return hostq.Bytes(&r), nil
}

func doFreeMW(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.FreeMW(m.Handle); err != nil {
		return nil, err
	}
	return header()
}

// doCreateChannel makes the socket pair outside of the loop, because its reply carries a descriptor.
func doCreateChannel(c *client, _ *hostq.Handle, _ []int) (a answer) {
	if !c.opened {
		return answer{err: unix.EINVAL}
	}
	ours, theirs, err := eventPair()
	if err != nil {
		return answer{err: err}
	}
	a = c.made(func() (h uint32, err error) {
		if h, err = c.ctx.CreateChannel(); err == nil {
			c.chans[h] = &chanEnd{fd: ours}
		}
		return h, err
	})
	if a.err != nil {
		closeAll([]int{ours, theirs})
		return a
	}
	a.fds = []int{theirs}
	return a
}

// made has an object of the context made, on the loop, and answers with its handle.
func (c *client) made(object func() (uint32, error)) (a answer) {
	var h uint32
	a.err = unix.EIO
	c.loop.do(func(mono.Time) {
		if c.ctx != nil && !c.ctx.Dead {
			h, a.err = object()
		}
	})
	if a.err == nil {
		a.msg, a.err = handle(h)
	}
	return a
}

func doDestroyChannel(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.DestroyChannel(m.Handle); err != nil {
		return nil, err
	}
	unix.Close(c.chans[m.Handle].fd)
	delete(c.chans, m.Handle)
	return header()
}

func doCreateCQ(c *client, m *hostq.CreateCQ, _ mono.Time) ([]byte, error) {
	h, err := c.ctx.CreateCQ(m)
	if err != nil {
		return nil, err
	}
	return handle(h)
}

func doResizeCQ(c *client, m *hostq.CreateCQ, now mono.Time) ([]byte, error) {
	if err := c.ctx.ResizeCQ(now, m); err != nil {
		return nil, err
	}
	return header()
}

func doDestroyCQ(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	comp, async, err := c.ctx.DestroyCQ(m.Handle)
	if err != nil {
		return nil, err
	}
	r := hostq.DestroyReply{CompEvents: comp, AsyncEvents: async}
	return hostq.Bytes(&r), nil
}

func doCreateQP(c *client, m *hostq.CreateQP, _ mono.Time) ([]byte, error) {
	q, err := c.ctx.CreateQP(m)
	if err != nil {
		return nil, err
	}
	r := hostq.CreateQPReply{Handle: q.Handle(), QPN: q.QPN()}
	return hostq.Bytes(&r), nil
}

func doModifyQP(c *client, m *hostq.ModifyQP, now mono.Time) ([]byte, error) {
	if err := c.ctx.ModifyQP(now, m); err != nil {
		return nil, err
	}
	return header()
}

func doQueryQP(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	var r hostq.ModifyQP
	if err := c.ctx.QueryQP(m.Handle, &r); err != nil {
		return nil, err
	}
	return hostq.Bytes(&r), nil
}

func doDestroyQP(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	async, err := c.ctx.DestroyQP(m.Handle)
	if err != nil {
		return nil, err
	}
	r := hostq.DestroyReply{AsyncEvents: async}
	return hostq.Bytes(&r), nil
}

func doCreateSRQ(c *client, m *hostq.CreateSRQ, _ mono.Time) ([]byte, error) {
	h, err := c.ctx.CreateSRQ(m)
	if err != nil {
		return nil, err
	}
	r := hostq.CreateSRQReply{Handle: h, Num: c.ctx.SRQNumber(h)}
	return hostq.Bytes(&r), nil
}

func doModifySRQ(c *client, m *hostq.SRQAttr, _ mono.Time) ([]byte, error) {
	if err := c.ctx.ModifySRQ(m); err != nil {
		return nil, err
	}
	return header()
}

func doQuerySRQ(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	var r hostq.SRQAttr
	if err := c.ctx.QuerySRQ(m.Handle, &r); err != nil {
		return nil, err
	}
	return hostq.Bytes(&r), nil
}

func doDestroySRQ(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	async, err := c.ctx.DestroySRQ(m.Handle)
	if err != nil {
		return nil, err
	}
	r := hostq.DestroyReply{AsyncEvents: async}
	return hostq.Bytes(&r), nil
}

func doCreateAH(c *client, m *hostq.CreateAH, now mono.Time) ([]byte, error) {
	h, err := c.ctx.CreateAH(now, m)
	if err != nil {
		return nil, err
	}
	return handle(h)
}

func doDestroyAH(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.ctx.DestroyAH(m.Handle); err != nil {
		return nil, err
	}
	return header()
}

func doAttachMcast(c *client, m *hostq.Mcast, _ mono.Time) ([]byte, error) {
	if err := c.ctx.AttachMcast(m); err != nil {
		return nil, err
	}
	return header()
}

func doDetachMcast(c *client, m *hostq.Mcast, _ mono.Time) ([]byte, error) {
	if err := c.ctx.DetachMcast(m); err != nil {
		return nil, err
	}
	return header()
}
