package daemon

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
)

// How the loop idles; tried against the alternatives on shared cores (architecture, decision 4).
const (
	idleSpin   = 50 * mono.Microsecond  // Step and sched_yield for so long before sleeping
	slowYield  = 300 * mono.Microsecond // a yield that took longer gave a spinner a whole slice …
	holdSleep  = 20 * mono.Millisecond  // … so sleep at once for so long: a wake-up preempts, a yield does not
	sleepMax   = 1 * mono.Second
	pollEvery  = 500 * mono.Microsecond // how often to look for programs that died when no wire has a descriptor
	checkEvery = 20 * mono.Millisecond  // how often contexts that the device gave up are closed
)

// loopState is what the loop goroutine owns.
type loopState struct {
	epfd, wakeFD int
	base         time.Time // clock: base + what time.Since says is CLOCK_MONOTONIC
	baseNS       mono.Time
	events       [128]unix.EpollEvent
	ts           unix.Timespec
	noPwait2     bool
	queued       atomic.Uint32
	fds          map[int32]*client // pidfds
	wires        map[int32]wireRef
	steps        uint64
	sleeps       uint64
}

// wireRef names a wire: its NIC and its place there.
type wireRef struct {
	nic *device.NIC
	i   int
}

func (l *loopState) open(d *Daemon) error {
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		unix.Close(l.epfd)
		return err
	}
	l.fds = map[int32]*client{}
	if err := l.watch(l.wakeFD, unix.EPOLLIN|unix.EPOLLET); err != nil {
		unix.Close(l.epfd)
		unix.Close(l.wakeFD)
		return err
	}
	l.wires = map[int32]wireRef{}
	for _, n := range d.nics {
		n.UseReadiness()
		for i, w := range n.Wires() {
			for _, fd := range w.FDs() {
				l.wires[int32(fd)] = wireRef{n, i}
				if err := l.watch(fd, unix.EPOLLIN); err != nil {
					return fmt.Errorf("daemon: %s, wire %d: %w", n.Name(), i, err)
				}
			}
		}
	}
	var ts unix.Timespec
	l.base = time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return err
	}
	l.baseNS = mono.Time(ts.Nano())
	return nil
}

func (l *loopState) close() {
	unix.Close(l.epfd)
	unix.Close(l.wakeFD)
}

func (l *loopState) now() mono.Time { return l.baseNS.Add(mono.Duration(time.Since(l.base))) }

func (l *loopState) watch(fd int, events uint32) error {
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (l *loopState) unwatch(fd int) {
	unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil) //nolint:errcheck // it is gone either way
}

// wake ends the loop's sleep. Any goroutine may call it.
func (l *loopState) wake() {
	one := [8]byte{1}
	unix.Write(l.wakeFD, one[:]) //nolint:errcheck // a full counter wakes too
}

// runLoop is the NICs' thread.
func (d *Daemon) runLoop() {
	defer d.wg.Done()
	defer close(d.loopDone)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its slack with it
	debug.SetPanicOnFault(true)
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) //nolint:errcheck // later wake-ups are all that is lost
	if d.cfg.LoopThread != nil {
		if d.loopErr = d.cfg.LoopThread(); d.loopErr != nil {
			return
		}
	}
	l := &d.loop
	now := l.now()
	lastWork, lastCheck, lastPoll, hold := now, now, now, mono.Time(0)
	for !d.stop.Load() {
		if l.queued.Load() != 0 {
			d.runQueue()
			lastWork = l.now()
		}
		now = l.now()
		if len(l.wires) > 0 || now.Sub(lastPoll) >= pollEvery {
			lastPoll = now
			d.poll(0)
		}
		next, worked := d.step(now)
		if now.Sub(lastCheck) >= checkEvery {
			lastCheck = now
			d.reapDead()
		}
		if worked {
			lastWork = now
			continue
		}
		if d.cfg.BusyPoll {
			continue
		}
		if !d.cfg.NoIdleSpin && now >= hold && now.Sub(lastWork) < idleSpin {
			schedYield()
			if l.now().Sub(now) > slowYield {
				hold = l.now().Add(holdSleep)
			}
			continue
		}
		d.sleep(next)
	}
	d.runQueue()
}

func (d *Daemon) step(now mono.Time) (next mono.Time, worked bool) {
	next = now.Add(sleepMax)
	d.loop.steps++
	if d.cm.NextTimeout() <= now {
		d.cm.HandleTimers(now)
	}
	for _, n := range d.nics {
		t, w := n.Step(now)
		next = mono.Min(next, t)
		worked = worked || w
	}
	next = mono.Min(next, d.cm.NextTimeout())
	return next, worked
}

// sleep waits for a descriptor or until next. Flags first, then one more look at everything that they guard.
func (d *Daemon) sleep(next mono.Time) {
	l := &d.loop
	d.asleep.Store(1)
	work := l.queued.Load() != 0 || d.stop.Load()
	for _, n := range d.nics {
		if n.BeforeSleep() {
			work = true
		}
	}
	if wait := next.Sub(l.now()); !work && wait > 0 {
		l.sleeps++
		d.poll(wait)
	}
	d.asleep.Store(0)
	for _, n := range d.nics {
		n.AfterSleep()
	}
}

// poll looks at the descriptors for up to wait: wires with packets, programs that died. Doorbells only end a sleep.
func (d *Daemon) poll(wait mono.Duration) {
	l := &d.loop
	n := l.epollWait(wait)
	for i := range n {
		fd := l.events[i].Fd
		if w, ok := l.wires[fd]; ok {
			w.nic.Ready(w.i)
		} else if c := l.fds[fd]; c != nil {
			d.programDied(c)
		}
	}
}

// runQueue runs what other goroutines handed over.
func (d *Daemon) runQueue() {
	d.mu.Lock()
	q := d.queue
	d.queue = nil
	d.loop.queued.Store(0)
	d.mu.Unlock()
	for _, f := range q {
		f()
	}
}

// programDied ends a client whose process is no more: at once, so that no DMA goes to whoever gets its pid.
func (d *Daemon) programDied(c *client) {
	d.loop.forget(c)
	c.closeContext(d.loop.now())
	c.closeCM(d.loop.now())
	go c.conn.Close() // its goroutine frees the rest
}

func (l *loopState) forget(c *client) {
	if c.watched {
		c.watched = false
		delete(l.fds, int32(c.pidfd))
		l.unwatch(c.pidfd)
	}
}

// reapDead closes contexts that the device gave up.
func (d *Daemon) reapDead() {
	d.mu.Lock()
	var dead []*client
	for _, c := range d.clients {
		if c.ctx != nil && c.ctx.Dead {
			dead = append(dead, c)
		}
	}
	d.mu.Unlock()
	for _, c := range dead {
		d.log.Info("context ended", "program", c.program, "pid", c.pid, "cause", c.ctx.DeadCause)
		d.programDied(c)
	}
}
