package daemon

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// answer is what a request leads to: a reply with its header still empty, descriptors for it, or an error.
type answer struct {
	msg []byte
	fds []int
	err error

	silent bool // no reply
}

type handler func(c *client, b []byte, fds []int) answer

// errPart says that the two sides cannot go on: the reply is sent, then the connection ends.
var errPart = errors.New("daemon: the two sides part")

// decoded wraps a handler of one kind of request: exactly its size, or EINVAL.
func decoded[T hostq.Plain](f func(c *client, m *T, fds []int) answer) handler {
	return func(c *client, b []byte, fds []int) answer {
		var m T
		if !hostq.Decode(b, &m) {
			c.d.stats.malformed.Add(1)
			return answer{err: unix.EINVAL}
		}
		return f(c, &m, fds)
	}
}

// inContext wraps a handler that runs on the NIC's loop and needs an open context. It returns the reply or an error.
func inContext[T hostq.Plain](f func(c *client, m *T, now mono.Time) ([]byte, error)) handler {
	return decoded(func(c *client, m *T, _ []int) (a answer) {
		if !c.opened {
			return answer{err: unix.EINVAL}
		}
		a.err = unix.EIO // stopping, or the context is gone
		c.loop.do(func(now mono.Time) {
			if c.ctx != nil && !c.ctx.Dead {
				a.msg, a.err = f(c, m, now)
			}
		})
		return a
	})
}

var handlers = map[hostq.Op]handler{
	hostq.OpHello:          decoded(doHello),
	hostq.OpList:           decoded(doList),
	hostq.OpOpen:           decoded(doOpen),
	hostq.OpAssist:         decoded(doAssist),
	hostq.OpQueryPort:      inContext(doQueryPort),
	hostq.OpQueryGID:       inContext(doQueryGID),
	hostq.OpMgmt:           doMgmt,
	hostq.OpAllocPD:        inContext(doAllocPD),
	hostq.OpFreePD:         inContext(doFreePD),
	hostq.OpRegMR:          inContext(doRegMR),
	hostq.OpReregMR:        inContext(doReregMR),
	hostq.OpDeregMR:        inContext(doDeregMR),
	hostq.OpAllocMW:        inContext(doAllocMW),
	hostq.OpFreeMW:         inContext(doFreeMW),
	hostq.OpCreateChannel:  decoded(doCreateChannel),
	hostq.OpDestroyChannel: inContext(doDestroyChannel),
	hostq.OpCreateCQ:       inContext(doCreateCQ),
	hostq.OpResizeCQ:       inContext(doResizeCQ),
	hostq.OpDestroyCQ:      inContext(doDestroyCQ),
	hostq.OpCreateQP:       inContext(doCreateQP),
	hostq.OpModifyQP:       inContext(doModifyQP),
	hostq.OpQueryQP:        inContext(doQueryQP),
	hostq.OpDestroyQP:      inContext(doDestroyQP),
	hostq.OpCreateSRQ:      inContext(doCreateSRQ),
	hostq.OpModifySRQ:      inContext(doModifySRQ),
	hostq.OpQuerySRQ:       inContext(doQuerySRQ),
	hostq.OpDestroySRQ:     inContext(doDestroySRQ),
	hostq.OpCreateAH:       inContext(doCreateAH),
	hostq.OpDestroyAH:      inContext(doDestroyAH),
	hostq.OpAttachMcast:    inContext(doAttachMcast),
	hostq.OpDetachMcast:    inContext(doDetachMcast),
	hostq.OpOpenXRCD:       decoded(doOpenXRCD),
	hostq.OpCloseXRCD:      inContext(doCloseXRCD),
	hostq.OpOpenQP:         inContext(doOpenQP),
	hostq.OpAllocNullMR:    inContext(doAllocNullMR),
	hostq.OpShare:          decoded(doShare),
	hostq.OpImport:         decoded(doImport),
	hostq.OpImportPD:       inContext(doImportPD),
	hostq.OpImportMR:       inContext(doImportMR),
	hostq.OpAllocDM:        decoded(doAllocDM),
	hostq.OpFreeDM:         inContext(doFreeDM),
	hostq.OpImportDM:       decoded(doImportDM),
	hostq.OpModifyCQ:       inContext(doModifyCQ),
}

// handle does one request and answers it. False ends the connection.
func (c *client) handle(b []byte, fds []int) bool {
	a, ok := c.answer(b, fds)
	if ok && a.silent {
		return true
	}
	return ok && c.reply(a.msg, a.fds...) && !errors.Is(a.err, errPart)
}

// answer does one request. False: whatever this is, it does not speak our protocol.
func (c *client) answer(b []byte, fds []int) (a answer, ok bool) {
	var h hostq.Hdr
	if len(b) < hostq.Size[hostq.Hdr]() || len(b) > hostq.MsgBytes || !hostq.Decode(b[:hostq.Size[hostq.Hdr]()], &h) || int64(h.Len) != int64(len(b)) {
		return a, false
	}
	a.err = unix.EOPNOTSUPP
	if f := handlers[hostq.Op(h.Op)]; f != nil {
		if c.hello || hostq.Op(h.Op) == hostq.OpHello {
			a = f(c, b, fds)
		} else {
			a.err = unix.EPROTO
		}
	}
	if len(a.msg) < hostq.Size[hostq.Hdr]() {
		a.msg = make([]byte, hostq.Size[hostq.Hdr]())
	}
	sealReply(a.msg, &h, errno(a.err))
	return a, true
}

// sealReply writes the header of a reply.
func sealReply(msg []byte, req *hostq.Hdr, status int32) {
	le := binary.LittleEndian
	le.PutUint16(msg[0:], req.Op)
	le.PutUint16(msg[2:], hostq.HdrReply)
	le.PutUint32(msg[4:], uint32(len(msg)))
	le.PutUint32(msg[8:], req.Seq)
	le.PutUint32(msg[12:], uint32(status))
}

func errno(err error) int32 {
	var e unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errPart):
		return int32(unix.EPROTONOSUPPORT)
	case errors.As(err, &e):
		return int32(e)
	}
	return int32(unix.EIO)
}

// text is a fixed-size string of the ABI, up to its first zero. It is shown on terminals, so nothing in it may move a
// cursor there.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func doHello(c *client, m *hostq.Hello, _ []int) answer {
	d := c.d
	if m.Magic != hostq.Magic || c.hello {
		return answer{err: unix.EINVAL}
	}
	r := hostq.HelloReply{ABIMajor: hostq.ABIMajor, ABIMinor: hostq.ABIMinor, DaemonPID: int32(os.Getpid()), NICs: uint32(len(d.nics))}
	copy(r.Version[:len(r.Version)-1], d.cfg.Version)
	c.program = text(m.Program[:])
	if m.ABIMajor != hostq.ABIMajor {
		d.log.Warn("a client speaks another ABI", "program", c.program, "pid", c.pid, "theirs", m.ABIMajor, "ours", hostq.ABIMajor)
		return answer{msg: hostq.Bytes(&r), err: errPart}
	}
	if c.pid == 0 { // it is in a pid namespace that is not below ours, so it does not see us either
		r.DaemonPID = 0
	}
	c.hello = true
	c.guard = [2]uint64{m.GuardAddr, m.GuardNonce}
	if c.reach() {
		r.DMAMode, _ = c.space.dma()
	}
	return answer{msg: hostq.Bytes(&r)}
}

// reach finds a way into the program's memory. It is tried at HELLO, whose answer tells the program whom to allow or that
// it must copy by itself (ASSIST), and once more at OPEN.
func (c *client) reach() bool {
	if c.guard[0] == 0 {
		return false
	}
	if c.d.cfg.CopyThreads {
		c.noWay = errCopyThreads
		return false
	}
	s, err := openSpace(c.pid, c.guard[0], c.guard[1])
	if err != nil {
		c.noWay = err
		return false
	}
	c.space = s
	if s.why != nil {
		c.d.log.Warn("reaching a program through /proc/PID/mem: slower, and read-only memory of it is not honoured", "program", c.program, "pid", c.pid, "process_vm", s.why)
	}
	return true
}

var errCopyThreads = errors.New("this daemon is told to leave it to programs")

// doAssist takes a copy thread as the way into the program's memory.
func doAssist(c *client, m *hostq.Assist, fds []int) answer {
	if c.opened || len(fds) != 1 || c.guard[0] == 0 || m.Bytes != hostq.AssistBytes {
		return answer{err: unix.EINVAL}
	}
	raw, err := mapMemory(fds[0], m.Bytes)
	if err != nil {
		c.d.log.Warn("a copy thread's memory refused", "program", c.program, "pid", c.pid, "err", err)
		return answer{err: unix.EINVAL}
	}
	mem, err := hostq.NewAssistMem(raw)
	if err == nil {
		var s *assistSpace
		if s, err = newAssistSpace(mem, raw, c); err == nil {
			c.adopt(s)
			return answer{}
		}
	}
	unix.Munmap(raw) //nolint:errcheck // it was mapped
	c.d.log.Warn("a copy thread does not copy", "program", c.program, "pid", c.pid, "err", err)
	return answer{err: unix.EPERM}
}

// adopt makes s the way into the program's memory, instead of what there was.
func (c *client) adopt(s space) {
	if c.space != nil {
		c.space.close()
	}
	c.space = s
	c.d.log.Info("a thread of the program copies for the daemon", "program", c.program, "pid", c.pid, "why", c.noWay)
}

func doList(c *client, m *hostq.List, _ []int) answer {
	nics := c.d.nics
	room := (hostq.MsgBytes - hostq.Size[hostq.ListReply]()) / hostq.Size[hostq.NIC]()
	first := min(int(m.First), len(nics))
	list := nics[first:min(len(nics), first+room)]
	r := hostq.ListReply{Count: uint32(len(list)), Total: uint32(len(nics))}
	msg := append([]byte(nil), hostq.Bytes(&r)...)
	for i, n := range list {
		e := describe(n, first+i)
		msg = append(msg, hostq.Bytes(&e)...)
	}
	return answer{msg: msg}
}

func describe(n *device.NIC, index int) hostq.NIC {
	e := hostq.NIC{GUID: bigEndian(n.GUID()), Index: uint32(index), NumPorts: 1}
	copy(e.Name[:len(e.Name)-1], n.Name())
	copy(e.Dev[:len(e.Dev)-1], n.Dev())
	return e
}

// bigEndian returns v so that its bytes in memory are big-endian.
func bigEndian(v uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return binary.NativeEndian.Uint64(b[:])
}

// findNIC finds a NIC by name; without one, the only one; by its device name where that is unique.
func (d *Daemon) findNIC(name string) (*device.NIC, error) {
	var found *device.NIC
	for _, n := range d.nics {
		if n.Name() == name {
			return n, nil
		}
		if name == "" || n.Dev() == name {
			if found != nil {
				return nil, unix.ENODEV
			}
			found = n
		}
	}
	if found == nil {
		return nil, unix.ENODEV
	}
	return found, nil
}

func doOpen(c *client, m *hostq.Open, fds []int) answer {
	if c.opened || len(fds) != 1 {
		return answer{err: unix.EINVAL}
	}
	n, err := c.d.findNIC(text(m.Name[:]))
	if err != nil {
		return answer{err: err}
	}
	return c.openWith(n, nil, fds[0], m.ShmBytes)
}

// openWith opens a NIC with the shared memory that the program made; with from's objects in common, unless it is nil.
func (c *client) openWith(n *device.NIC, from *client, fd int, size uint64) answer {
	if c.space == nil && !c.reach() {
		c.d.log.Warn("no way into a program's memory", "program", c.program, "pid", c.pid, "err", c.noWay)
		return answer{err: unix.EPERM}
	}
	if err := c.space.prove(); err != nil {
		return answer{err: unix.EPERM}
	}
	mem, err := mapMemory(fd, size)
	if err != nil {
		c.d.log.Warn("shared memory refused", "program", c.program, "pid", c.pid, "err", err)
		return answer{err: unix.EINVAL}
	}
	c.mem = mem
	a := c.open(n, from)
	if a.err != nil { // it may ask again: nothing of this try must stay
		unix.Munmap(c.mem) //nolint:errcheck // it was mapped
		closeAll([]int{c.bell, c.async})
		c.mem, c.bell, c.async = nil, -1, -1
	}
	return a
}

// open makes the descriptors and the context.
func (c *client) open(n *device.NIC, from *client) (a answer) {
	view, err := hostq.NewMem(c.mem)
	if err != nil {
		return answer{err: unix.EINVAL}
	}
	bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return answer{err: err}
	}
	theirBell, err := unix.FcntlInt(uintptr(bell), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(bell)
		return answer{err: err}
	}
	ours, theirs, err := eventPair()
	if err != nil {
		closeAll([]int{bell, theirBell})
		return answer{err: err}
	}
	l := c.d.loopOf(n)
	c.bell, c.async, c.nic, c.loop = bell, ours, n, l
	var r hostq.OpenReply
	a.err = unix.EIO
	mode, _ := c.space.dma()
	l.do(func(mono.Time) {
		var common *device.Context
		if from != nil {
			if common = from.ctx; common == nil || common.Dead {
				a.err = unix.ENODEV
				return
			}
		}
		if a.err = l.watch(bell, unix.EPOLLIN|unix.EPOLLET); a.err != nil {
			return
		}
		l.watchProgram(c)
		l.open[c] = true
		c.ctx = n.ImportContext(device.ContextConfig{Mem: view, Space: c.space, Notifier: c, Program: c.program, PID: c.pid, DMA: dmaName(mode)}, common)
		r.Ctx = c.ctx.ID()
		n.Attr(&r.Attr)
	})
	if a.err != nil {
		closeAll([]int{theirBell, theirs})
		return a
	}
	c.opened = true
	if from != nil {
		im := hostq.ImportReply{Ctx: r.Ctx, Attr: r.Attr, NIC: describe(n, slices.Index(c.d.nics, n))}
		return answer{msg: hostq.Bytes(&im), fds: []int{theirBell, theirs}}
	}
	return answer{msg: hostq.Bytes(&r), fds: []int{theirBell, theirs}}
}

func dmaName(mode uint32) string {
	switch mode {
	case hostq.DMAProcessVM:
		return "process_vm"
	case hostq.DMAProcMem:
		return "proc_mem"
	case hostq.DMAAssist:
		return "assist"
	}
	return "none"
}

// eventPair makes a socket pair for records; ours never blocks.
func eventPair() (ours, theirs int, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return p[0], p[1], err
}

// checkSealed checks that a client's memfd can never shrink under whoever maps it: sealed, of the size promised, and
// really on tmpfs.
func checkSealed(fd int, size uint64) error {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&seals != seals || have&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return errors.New("not a memfd sealed against shrinking, growing and sealing")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != int64(size) {
		return errors.New("its size is another one")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return errors.New("not on tmpfs")
	}
	return nil
}

// mapMemory maps a client's memfd.
func mapMemory(fd int, size uint64) ([]byte, error) {
	if size < hostq.CtxBytesMin || size > hostq.CtxBytesMax || size%hostq.RingAlign != 0 {
		return nil, errors.New("size out of bounds")
	}
	if err := checkSealed(fd, size); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	if !pageAligned(b) {
		panic("daemon: mmap gave memory that does not begin on a page")
	}
	unix.Madvise(b, unix.MADV_DONTDUMP) //nolint:errcheck // a core dump without strangers' memory is a wish
	unix.Madvise(b, unix.MADV_DONTFORK) //nolint:errcheck // so is a child without it
	return b, nil
}
