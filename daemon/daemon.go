// Package daemon is what every program that serves NICs shares: the control socket, the loop that steps the NICs, the
// ways into a program's memory, and the management commands.
//
// Threads: loops, goroutines locked to their threads, run Step of the NICs and own everything in package device (loop.go).
// A NIC belongs to one loop, and so does what programs make of it; there is one loop unless Config.Loops says otherwise.
// The first loop also has connection management, and what is about the whole daemon runs there while the others hold
// still (OnLoop). Each connection has a goroutine that reads requests, checks their form, and hands a closure to the loop
// that they are for (server.go).
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/cm"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
)

// Config describes a daemon.
type Config struct {
	Socket      string      // path of the control socket
	Mode        os.FileMode // of the socket; 0 = 0660
	Group       string      // who else may use it: name or number; "" = the caller's group
	NICs        []device.Config
	Version     string
	Log         *slog.Logger        // nil: silent
	Mgmt        map[string]MgmtFunc // commands besides the built-in ones
	MemoryLimit int64               // Run: bytes at which the garbage collector starts; 0 = an eighth of the memory, at most 1 GiB
	CopyThreads bool                // programs copy by themselves, although the daemon could reach their memory
	NoIdleSpin  bool                // sleep at once when there is nothing to do (tests on shared machines)
	BusyPoll    bool                // never sleep: each loop has a core of its own
	Loops       int                 // NIC i belongs to loop i % Loops; 0 = 1. Wires of NICs on several loops share nothing that is not safe for it
	LoopThread  func(i int) error   // runs first on the thread of loop i; an error ends the daemon
}

// Daemon serves NICs to programs.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	nics    []*device.NIC
	loops   []*loop
	cm      *cm.Manager // first loop only
	started time.Time
	lis     *net.UnixListener
	lockFD  int

	mu        sync.Mutex
	closed    bool // no more connections
	clients   map[uint64]*client
	importing chan struct{} // a place for each import that waits for its token
	nextID    uint64

	clock     clock
	stop      atomic.Bool
	stopOnce  sync.Once
	wg        sync.WaitGroup
	running   atomic.Int32  // loops
	loopsDone chan struct{} // none runs any more
	failed    atomic.Pointer[error]
	events    eventLog
	stats     controlStats
	madsOut   atomic.Int32 // on their way between loops
	madsLost  atomic.Uint64
}

// New checks the configuration and makes the NICs. Nothing runs yet.
func New(cfg Config) (*Daemon, error) {
	if cfg.Mode == 0 {
		cfg.Mode = 0o660
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{cfg: cfg, log: cfg.Log, clients: map[uint64]*client{}, loopsDone: make(chan struct{}), lockFD: -1, importing: make(chan struct{}, shareMany)}
	for i := range min(max(cfg.Loops, 1), max(len(cfg.NICs), 1)) {
		d.loops = append(d.loops, newLoop(d, i))
	}
	names, seed := map[string]bool{}, uint64(0)
	for _, nc := range cfg.NICs {
		if names[nc.Name] {
			return nil, fmt.Errorf("daemon: two NICs are named %s", nc.Name)
		}
		names[nc.Name] = true
		if nc.Version == "" {
			nc.Version = cfg.Version
		}
		if nc.Instance == 0 {
			nc.Instance = uint64(time.Now().UnixNano())
		}
		seed = seed*31 + (nc.Seed ^ nc.Instance) // of the connection manager: another one in each life of the daemon
		n, err := device.New(nc)
		if err != nil {
			return nil, err
		}
		n.OnEvent(d.events.sink(nc.Name))
		l := d.loopAt(len(d.nics))
		l.nics = append(l.nics, n)
		d.nics = append(d.nics, n)
	}
	d.newCM(seed)
	return d, nil
}

// NICs are the daemon's NICs. They belong to the loops: touch them in OnLoop only.
func (d *Daemon) NICs() []*device.NIC { return d.nics }

// loopAt is the loop of NIC i.
func (d *Daemon) loopAt(i int) *loop { return d.loops[i%len(d.loops)] }

func (d *Daemon) loopOf(n *device.NIC) *loop { return d.loopAt(slices.Index(d.nics, n)) }

// Start opens the socket and starts the loops.
func (d *Daemon) Start() error {
	err := d.clock.start()
	for _, l := range d.loops {
		if err == nil {
			err = l.start()
		}
	}
	if err == nil {
		err = d.listen()
	}
	if err != nil {
		d.closeLoops()
		return err
	}
	d.started = time.Now()
	d.running.Store(int32(len(d.loops)))
	for _, l := range d.loops {
		d.wg.Add(1)
		go l.run()
	}
	go d.accept()
	return nil
}

func (d *Daemon) closeLoops() {
	for _, l := range d.loops {
		l.close()
	}
}

// end tells all loops to end.
func (d *Daemon) end() {
	d.stop.Store(true)
	for _, l := range d.loops {
		l.wake()
	}
}

// listen makes the socket. A socket file that nobody answers on is left over and replaced.
func (d *Daemon) listen() error {
	path := d.cfg.Socket
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("daemon: %w", err)
	}
	if c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"}); err == nil {
		c.Close()
		return fmt.Errorf("daemon: another daemon answers on %s", path)
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket != 0 {
		os.Remove(path)
	}
	old := unix.Umask(0o177) // never open wider than asked for, not even for a moment
	lis, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	unix.Umask(old)
	if err != nil {
		return fmt.Errorf("daemon: control socket: %w", err)
	}
	if d.cfg.Group != "" {
		gid, err := groupID(d.cfg.Group)
		if err == nil {
			err = os.Chown(path, -1, gid)
		}
		if err != nil {
			lis.Close()
			return fmt.Errorf("daemon: group %s of the control socket: %w", d.cfg.Group, err)
		}
	}
	if err := os.Chmod(path, d.cfg.Mode); err != nil {
		lis.Close()
		return fmt.Errorf("daemon: control socket: %w", err)
	}
	d.lis = lis
	return nil
}

func groupID(g string) (int, error) {
	if n, err := strconv.Atoi(g); err == nil {
		return n, nil
	}
	e, err := user.LookupGroup(g)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(e.Gid)
}

// Stop ends the daemon: programs see their contexts go. It returns when nothing of it runs any more.
func (d *Daemon) Stop() { d.stopOnce.Do(d.shutdown) }

func (d *Daemon) shutdown() {
	d.lis.Close()
	d.mu.Lock()
	conns := make([]*client, 0, len(d.clients))
	for _, c := range d.clients {
		conns = append(conns, c)
	}
	d.closed = true // connections accepted now are turned away
	d.mu.Unlock()
	for _, c := range conns {
		c.conn.Close()
	}
	d.waitConns()
	d.end()
	<-d.loopsDone
	d.wg.Wait()
	d.closeLoops()
}

// waitConns lets the connections free what they own, on its loop.
func (d *Daemon) waitConns() {
	for {
		d.mu.Lock()
		n := len(d.clients)
		d.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Run serves until ctx ends. It tunes the process for the loops: call it from a program that does nothing else.
func Run(ctx context.Context, cfg Config) error {
	stopGuard := guardMemory(cfg.MemoryLimit)
	defer stopGuard()
	runtime.GOMAXPROCS(max(3+max(cfg.Loops, 1), runtime.NumCPU()))
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil && lim.Cur < lim.Max {
		lim.Cur = lim.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &lim) //nolint:errcheck // more descriptors are a wish, not a need
	}
	d, err := New(cfg)
	if err != nil {
		return err
	}
	if err := d.Start(); err != nil {
		return err
	}
	defer d.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-d.loopsDone:
		if err := d.failed.Load(); err != nil {
			return *err
		}
		return errors.New("daemon: the loops ended by themselves")
	}
}

// OnLoop runs f on the first loop while all others hold still, and waits for it: f may touch anything of the daemon.
// False: the daemon is stopping, f did not run.
func (d *Daemon) OnLoop(f func(now mono.Time)) bool {
	return d.loops[0].do(func(now mono.Time) {
		letGo := d.holdOthers()
		defer letGo()
		f(now)
	})
}

// holdOthers makes every loop but the first wait between two steps, until letGo. On the first loop, which nobody waits for.
func (d *Daemon) holdOthers() (letGo func()) {
	others := d.loops[1:]
	if len(others) == 0 {
		return func() {}
	}
	release := make(chan struct{})
	held := make([]chan struct{}, len(others))
	for i, l := range others {
		arrived := make(chan struct{})
		held[i] = arrived
		if !l.post(func() { close(arrived); <-release }) {
			held[i] = l.done // it is ending
		}
	}
	for i, l := range others {
		select {
		case <-held[i]:
		case <-l.done: // and what was posted may never run
		}
	}
	return func() { close(release) }
}
