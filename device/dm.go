package device

import "syscall"

// DM is device memory. It is memory of the program that asked for it, which maps it and may register it like any other;
// the NIC counts it, and knows by what name it can be handed to another program of the share.
type DM struct {
	ctx    *Context
	handle uint32
	size   uint64
	tag    int
}

// AllocDM takes size bytes of what the NIC has. The tag is the caller's.
func (c *Context) AllocDM(size uint64, tag int) (uint32, error) {
	n := c.nic
	if size == 0 || size > maxDMSize {
		return 0, syscall.EINVAL
	}
	if n.C.Live.DMs >= maxDM || n.dmBytes+size > maxDMSize {
		return 0, syscall.ENOMEM
	}
	d := &DM{ctx: c, size: size, tag: tag}
	d.handle = c.dms.put(d)
	n.dmBytes += size
	n.C.Live.DMs++
	return d.handle, nil
}

// FreeDM gives device memory back. Only who allocated it can.
func (c *Context) FreeDM(h uint32) error {
	d := c.dms.get(h)
	if d == nil || d.ctx != c {
		return syscall.EINVAL
	}
	d.free()
	return nil
}

func (d *DM) free() {
	n := d.ctx.nic
	d.ctx.dms.del(d.handle)
	n.dmBytes -= d.size
	n.C.Live.DMs--
}

// ImportDM finds device memory of the share.
func (c *Context) ImportDM(h uint32) (size uint64, tag int, err error) {
	d := c.dms.get(h)
	if d == nil {
		return 0, 0, syscall.EINVAL
	}
	return d.size, d.tag, nil
}
