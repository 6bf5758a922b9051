package daemon

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
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
	pollEvery  = 500 * mono.Microsecond // how often to look for programs that died when no wire tells by a descriptor that it has packets
	checkEvery = 20 * mono.Millisecond  // how often contexts that the device gave up are closed
)

// clock is CLOCK_MONOTONIC without a system call.
type clock struct {
	base   time.Time // baseNS + what time.Since says
	baseNS mono.Time
}

func (c *clock) start() error {
	var ts unix.Timespec
	c.base = time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return err
	}
	c.baseNS = mono.Time(ts.Nano())
	return nil
}

func (c *clock) now() mono.Time { return c.baseNS.Add(mono.Duration(time.Since(c.base))) }

// loop is a goroutine, locked to its thread, that steps NICs. What has no other remark is its own.
type loop struct {
	d            *Daemon
	index        int
	nics         []*device.NIC
	epfd, wakeFD int
	events       [128]unix.EpollEvent
	ts           unix.Timespec
	noPwait2     bool
	fds          map[int32]*client // pidfds
	open         map[*client]bool  // clients with a context on one of nics
	wires        map[int32]wireRef
	watchful     bool // descriptors tell of packets, awake or not
	steps        uint64
	sleeps       uint64

	mu     sync.Mutex
	queue  []func()      // from anywhere
	queued atomic.Uint32 // there are some
	asleep atomic.Uint32 // it sleeps or is about to; seq_cst with queued, as in mr_abi.h
	done   chan struct{} // closed at its end
}

// wireRef names a wire: its NIC and its place there.
type wireRef struct {
	nic *device.NIC
	i   int
}

func newLoop(d *Daemon, index int) *loop {
	return &loop{d: d, index: index, epfd: -1, wakeFD: -1, fds: map[int32]*client{}, open: map[*client]bool{}, wires: map[int32]wireRef{}, done: make(chan struct{})}
}

// start makes the loop's descriptors and watches those of its wires. The caller closes it, even if that fails.
func (l *loop) start() error {
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	if err := l.watch(l.wakeFD, unix.EPOLLIN|unix.EPOLLET); err != nil {
		return err
	}
	for _, n := range l.nics {
		n.UseReadiness()
		l.watchful = l.watchful || n.Readiness()
		for i, w := range n.Wires() {
			for _, fd := range w.FDs() {
				l.wires[int32(fd)] = wireRef{n, i}
				if err := l.watch(fd, unix.EPOLLIN); err != nil {
					return fmt.Errorf("daemon: %s, wire %d: %w", n.Name(), i, err)
				}
			}
		}
	}
	return nil
}

func (l *loop) close() {
	closeAll([]int{l.epfd, l.wakeFD})
	l.epfd, l.wakeFD = -1, -1
}

func (l *loop) now() mono.Time { return l.d.clock.now() }

func (l *loop) watch(fd int, events uint32) error {
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (l *loop) unwatch(fd int) {
	unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil) //nolint:errcheck // it is gone either way
}

// wake ends the loop's sleep. Any goroutine may call it.
func (l *loop) wake() {
	one := [8]byte{1}
	unix.Write(l.wakeFD, one[:]) //nolint:errcheck // a full counter wakes too
}

// post hands f to the loop. False: the daemon is stopping.
func (l *loop) post(f func()) bool {
	if l.d.stop.Load() {
		return false
	}
	l.mu.Lock()
	l.queue = append(l.queue, f)
	l.queued.Store(1)
	l.mu.Unlock()
	if l.asleep.Load() != 0 {
		l.wake()
	}
	return true
}

// do runs f on the loop and waits for it. False: the daemon is stopping and the loop has ended, f did not run.
func (l *loop) do(f func(now mono.Time)) bool {
	ran := make(chan struct{})
	if !l.post(func() {
		defer close(ran)
		f(l.now())
	}) {
		<-l.done
		return false
	}
	select {
	case <-ran:
		return true
	case <-l.done:
		select {
		case <-ran:
			return true
		default:
			return false
		}
	}
}

// run is the thread.
func (l *loop) run() {
	d := l.d
	defer d.wg.Done()
	defer func() {
		close(l.done)
		if d.running.Add(-1) == 0 {
			close(d.loopsDone)
		}
	}()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its slack with it
	debug.SetPanicOnFault(true)
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) //nolint:errcheck // later wake-ups are all that is lost
	if d.cfg.LoopThread != nil {
		if err := d.cfg.LoopThread(l.index); err != nil {
			d.failed.CompareAndSwap(nil, &err)
			d.end()
			return
		}
	}
	now := l.now()
	lastWork, lastCheck, lastPoll, hold := now, now, now, mono.Time(0)
	for !d.stop.Load() {
		if l.queued.Load() != 0 {
			l.runQueue()
			lastWork = l.now()
		}
		now = l.now()
		if l.watchful || now.Sub(lastPoll) >= pollEvery {
			lastPoll = now
			l.poll(0)
		}
		next, worked := l.step(now)
		if now.Sub(lastCheck) >= checkEvery {
			lastCheck = now
			l.reapDead()
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
		l.sleep(next)
	}
	l.runQueue()
}

func (l *loop) step(now mono.Time) (next mono.Time, worked bool) {
	next = now.Add(sleepMax)
	l.steps++
	first := l.index == 0
	if first && l.d.cm.NextTimeout() <= now {
		l.d.cm.HandleTimers(now)
	}
	for _, n := range l.nics {
		t, w := n.Step(now)
		next = mono.Min(next, t)
		worked = worked || w
	}
	if first {
		next = mono.Min(next, l.d.cm.NextTimeout())
	}
	return next, worked
}

// sleep waits for a descriptor or until next. Flags first, then one more look at everything that they guard.
func (l *loop) sleep(next mono.Time) {
	l.asleep.Store(1)
	work := l.queued.Load() != 0 || l.d.stop.Load()
	for _, n := range l.nics {
		if n.BeforeSleep() {
			work = true
		}
	}
	if wait := next.Sub(l.now()); !work && wait > 0 {
		l.sleeps++
		l.poll(wait)
	}
	l.asleep.Store(0)
	for _, n := range l.nics {
		n.AfterSleep()
	}
}

// poll looks at the descriptors for up to wait: wires with packets, programs that died. Doorbells only end a sleep.
func (l *loop) poll(wait mono.Duration) {
	n := l.epollWait(wait)
	for i := range n {
		fd := l.events[i].Fd
		if w, ok := l.wires[fd]; ok {
			w.nic.Ready(w.i)
		} else if c := l.fds[fd]; c != nil {
			l.programDied(c)
		}
	}
}

// runQueue runs what other goroutines handed over.
func (l *loop) runQueue() {
	l.mu.Lock()
	q := l.queue
	l.queue = nil
	l.queued.Store(0)
	l.mu.Unlock()
	for _, f := range q {
		f()
	}
}

// watchProgram lets the loop hear of the end of a client's process.
func (l *loop) watchProgram(c *client) {
	if c.pidfd >= 0 && l.fds[int32(c.pidfd)] == nil && l.watch(c.pidfd, unix.EPOLLIN) == nil {
		l.fds[int32(c.pidfd)] = c
	}
}

// programDied ends a client whose process is no more: at once, so that no DMA goes to whoever gets its pid.
func (l *loop) programDied(c *client) {
	l.forget(c)
	go c.conn.Close() // its goroutine frees the rest, and what other loops have of it
}

// forget frees what the loop has of a client. It may be called again.
func (l *loop) forget(c *client) {
	if fd := int32(c.pidfd); c.pidfd >= 0 && l.fds[fd] == c {
		delete(l.fds, fd)
		l.unwatch(c.pidfd)
	}
	if l.open[c] {
		delete(l.open, c)
		c.closeContext(l)
	}
	if l.index == 0 {
		c.closeCM(l.now())
	}
}

// reapDead closes contexts that the device gave up.
func (l *loop) reapDead() {
	for c := range l.open {
		if c.ctx.Dead {
			l.d.log.Info("context ended", "program", c.program, "pid", c.pid, "cause", c.ctx.DeadCause)
			l.programDied(c)
		}
	}
}
