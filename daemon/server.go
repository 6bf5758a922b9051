package daemon

import (
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// Bounds on what strangers may make the daemon hold.
const (
	maxClients = 4096
	fdSlots    = 16 // descriptors accepted with one message; more are an error
)

// controlStats count control messages. Connections' goroutines touch them.
type controlStats struct {
	connections, requests, malformed, refused atomic.Uint64
}

// client is one connection: a program, or somebody who manages.
type client struct {
	d       *Daemon
	id      uint64
	conn    *net.UnixConn
	pid     int
	uid     int
	pidfd   int
	program string
	hello   bool
	opened  bool
	guard   [2]uint64 // address and nonce
	space   space
	noWay   error       // why there is none
	hungUp  atomic.Bool // the connection has ended
	since   time.Time

	// Of the connection's goroutine, set before the context is opened. "Loop only" below means this loop.
	nic  *device.NIC
	loop *loop

	ctx   *device.Context // loop only
	mem   []byte
	bell  int                 // doorbell eventfd, the daemon's end
	async int                 // asynchronous events, the daemon's end
	chans map[uint32]*chanEnd // completion channels by handle; loop only
	xrcds map[uint32]int      // files of XRC domains by handle, -1 for none; loop only
	dms   map[uint32]int      // descriptors of device memory by handle; loop only

	shares [sharesMost][2]uint64 // tokens by which this context may be imported (d.mu)

	cm      cmClient        // first loop only
	comp    hostq.CompEvent // scratch of the loop
	asyncEv hostq.AsyncEvent
}

// chanEnd is the daemon's end of a completion channel.
type chanEnd struct{ fd int }

func newClient(d *Daemon, conn *net.UnixConn) *client {
	return &client{
		d: d, conn: conn, pidfd: -1, bell: -1, async: -1, since: time.Now(),
		chans: map[uint32]*chanEnd{}, dms: map[uint32]int{}, xrcds: map[uint32]int{},
	}
}

func (d *Daemon) accept() {
	for {
		conn, err := d.lis.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			d.log.Warn("accept", "err", err)
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some close
			continue
		}
		d.stats.connections.Add(1)
		c := newClient(d, conn)
		d.mu.Lock()
		refuse := d.closed || len(d.clients) >= maxClients
		if !refuse {
			d.nextID++
			c.id = d.nextID
			d.clients[c.id] = c
		}
		d.mu.Unlock()
		if refuse {
			d.stats.refused.Add(1)
			conn.Close()
			continue
		}
		d.wg.Add(1)
		go c.serve()
	}
}

// serve reads requests until the client hangs up or breaks the protocol.
func (c *client) serve() {
	defer c.d.wg.Done()
	defer c.teardown()
	if err := c.identify(); err != nil {
		c.d.log.Warn("client refused", "err", err)
		return
	}
	debug.SetPanicOnFault(true) // see hostq
	buf := make([]byte, hostq.MsgBytes+1)
	oob := make([]byte, unix.CmsgSpace(4*fdSlots))
	for {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		fds := parseFDs(oob[:oobn])
		c.d.stats.requests.Add(1)
		ok := false
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 {
			ok = c.handle(buf[:n], fds)
		}
		closeAll(fds)
		if !ok {
			c.d.stats.malformed.Add(1)
			return
		}
	}
}

// identify asks the kernel who is at the other end.
func (c *client) identify() error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr != nil {
			return
		}
		if p, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil { // 6.5
			c.pidfd = p
		}
	}); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("SO_PEERCRED: %w", cerr)
	}
	c.pid, c.uid = int(cred.Pid), int(cred.Uid)
	if c.pidfd < 0 && c.pid > 0 {
		if c.pidfd, err = unix.PidfdOpen(c.pid, 0); err != nil {
			c.pidfd = -1 // gone already, or an old kernel: the socket will tell
		}
	}
	return nil
}

func parseFDs(oob []byte) []int {
	var fds []int
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		f, err := unix.ParseUnixRights(&msgs[i])
		if err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// teardown frees everything of the connection: on the loops what they own, then memory and descriptors.
func (c *client) teardown() {
	c.hungUp.Store(true)
	first := c.d.loops[0]
	if c.loop != nil && c.loop != first {
		c.loop.do(func(mono.Time) { c.loop.forget(c) })
	}
	first.do(func(mono.Time) { first.forget(c) })
	if c.mem != nil {
		unix.Munmap(c.mem) //nolint:errcheck // it was mapped
	}
	closeAll([]int{c.bell, c.async, c.pidfd})
	if c.space != nil {
		c.space.close()
	}
	c.conn.Close()
	c.d.mu.Lock()
	delete(c.d.clients, c.id)
	c.d.mu.Unlock()
}

// closeContext frees the context and its channels.
func (c *client) closeContext(l *loop) {
	c.ctx.Close(l.now())
	c.ctx = nil
	l.unwatch(c.bell)
	for h, fd := range c.xrcds {
		go closeAll([]int{fd}) // a stranger's file system may take its time
		delete(c.xrcds, h)
	}
	for h, ch := range c.chans {
		unix.Close(ch.fd)
		delete(c.chans, h)
	}
	for h, fd := range c.dms {
		unix.Close(fd)
		delete(c.dms, h)
	}
}

// reply sends one message, with descriptors if there are any. The descriptors are closed here either way.
func (c *client) reply(msg []byte, fds ...int) bool {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.conn.WriteMsgUnix(msg, oob, nil)
	closeAll(fds)
	return err == nil
}

// CompEvent implements device.Notifier.
func (c *client) CompEvent(channel uint32, e hostq.CompEvent) bool {
	ch := c.chans[channel]
	c.comp = e
	return ch == nil || sendRecord(ch.fd, hostq.Bytes(&c.comp))
}

// AsyncEvent implements device.Notifier.
func (c *client) AsyncEvent(e hostq.AsyncEvent) bool {
	c.asyncEv = e
	return sendRecord(c.async, hostq.Bytes(&c.asyncEv))
}

// sendRecord reports whether the record is gone: sent, or nobody will ever read it.
func sendRecord(fd int, b []byte) bool {
	err := unix.Send(fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err != unix.EAGAIN && err != unix.ENOBUFS
}
