// Package daemon is what every program that serves NICs shares: the control socket, the loop that steps the NICs, the
// ways into a program's memory, and the management commands.
//
// Threads: one goroutine, locked to its thread, runs Step of every NIC and owns everything in package device (loop.go).
// Each connection has a goroutine that reads requests, checks their form, and hands a closure to the loop (server.go).
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
	BusyPoll    bool                // never sleep: the loop has a core of its own
	LoopThread  func() error        // runs first on the loop's thread; an error ends the daemon
}

// Daemon serves NICs to programs.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	nics    []*device.NIC
	cm      *cm.Manager // loop only
	started time.Time
	lis     *net.UnixListener
	lockFD  int

	mu        sync.Mutex
	queue     []func() // for the loop
	closed    bool     // the loop takes no more
	clients   map[uint64]*client
	importing chan struct{} // a place for each import that waits for its token
	nextID    uint64

	asleep   atomic.Uint32 // the loop sleeps or is about to; seq_cst with queue, as in mr_abi.h
	stop     atomic.Bool
	stopOnce sync.Once
	wg       sync.WaitGroup
	loopDone chan struct{}
	loopErr  error // of LoopThread; read after loopDone
	loop     loopState
	events   eventLog
	stats    controlStats
}

// New checks the configuration and makes the NICs. Nothing runs yet.
func New(cfg Config) (*Daemon, error) {
	if cfg.Mode == 0 {
		cfg.Mode = 0o660
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{cfg: cfg, log: cfg.Log, clients: map[uint64]*client{}, loopDone: make(chan struct{}), lockFD: -1, importing: make(chan struct{}, shareMany)}
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
		d.nics = append(d.nics, n)
	}
	d.newCM(seed)
	return d, nil
}

// NICs are the daemon's NICs. They belong to the loop: touch them in OnLoop only.
func (d *Daemon) NICs() []*device.NIC { return d.nics }

// Start opens the socket and starts the loop.
func (d *Daemon) Start() error {
	if err := d.loop.open(d); err != nil {
		return err
	}
	if err := d.listen(); err != nil {
		d.loop.close()
		return err
	}
	d.started = time.Now()
	d.wg.Add(1)
	go d.runLoop()
	go d.accept()
	return nil
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
	d.stop.Store(true)
	d.loop.wake()
	<-d.loopDone
	d.wg.Wait()
	d.loop.close()
}

// waitConns lets the connections free what they own, on the loop.
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

// Run serves until ctx ends. It tunes the process for the loop: call it from a program that does nothing else.
func Run(ctx context.Context, cfg Config) error {
	stopGuard := guardMemory(cfg.MemoryLimit)
	defer stopGuard()
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
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
	case <-d.loopDone:
		if d.loopErr != nil {
			return d.loopErr
		}
		return errors.New("daemon: the loop ended by itself")
	}
}

// OnLoop runs f on the loop goroutine and waits for it. False: the daemon is stopping, f did not run.
func (d *Daemon) OnLoop(f func(now mono.Time)) bool {
	done := make(chan struct{})
	ok := d.post(func() {
		defer close(done)
		f(d.loop.now())
	})
	if !ok {
		return false
	}
	select {
	case <-done:
		return true
	case <-d.loopDone:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// post hands f to the loop.
func (d *Daemon) post(f func()) bool {
	if d.stop.Load() {
		return false
	}
	d.mu.Lock()
	d.queue = append(d.queue, f)
	d.loop.queued.Store(1)
	d.mu.Unlock()
	if d.asleep.Load() != 0 {
		d.loop.wake()
	}
	return true
}
