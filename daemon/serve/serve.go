package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon"
	"github.com/metaroce/metaroce/daemon/capture"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/impair"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
)

// plane is one wire of one NIC with its wrappers: the NIC sees capture, then impairment, then the wire.
type plane struct {
	nic     string
	host    string
	index   int
	base    impair.Spec // of the plane itself: rate, delay, queue, ecn
	impair  *impair.Port
	capture *capture.Port
	timed   map[int]bool // indices of timed impairments that act now
	manual  []string     // words set by command since the start
}

// server is what the management commands of this package work on.
type server struct {
	cfg      *Config
	host     Host
	log      *slog.Logger
	planes   []*plane
	captures map[string]*running // loop only

	capturing atomic.Int32 // how many captures run
}

// Host is what a kind of daemon brings along: how its wires are opened, and what its loop needs.
type Host struct {
	// OpenWire opens plane index of a NIC.
	OpenWire func(n *NIC, index int, w Wire) (device.Port, error)
	// OpenHostPort opens a NIC's interface in the host. nil: there are none.
	OpenHostPort func(n *NIC, w Wire) (device.Port, error)
	// Beside runs beside the daemon until ctx ends. nil: nothing does.
	Beside func(ctx context.Context, cfg *Config, log *slog.Logger)
	// Tune changes how the daemon runs. nil: as usual.
	Tune func(*daemon.Config)
}

// Run is the daemon: it serves a configuration until it is told to end.
func Run(ctx context.Context, cfg *Config, host Host) error {
	signal.Ignore(unix.SIGHUP)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	s := &server{cfg: cfg, host: host, log: slog.New(slog.NewTextHandler(os.Stderr, nil)), captures: map[string]*running{}}
	nics, err := s.build()
	if err != nil {
		return err
	}
	endCapture, err := s.captureAll()
	if err != nil {
		return err
	}
	autogroup()
	go s.schedule(ctx)
	go s.sweep(ctx)
	if host.Beside != nil {
		go host.Beside(ctx, cfg, s.log)
	}
	dc := daemon.Config{
		Socket: cfg.Socket, Group: cfg.Group, NICs: nics, Version: cfg.Version, Log: s.log, Mgmt: s.commands(),
		CopyThreads: cfg.DMA == "assist",
		MemoryLimit: 1<<30 + int64(len(s.planes))*bytesPerPlane,
	}
	if host.Tune != nil {
		host.Tune(&dc)
	}
	return errors.Join(daemon.Run(ctx, dc), endCapture())
}

// bytesPerPlane is what the buffers of a port may take: the ring of a mem wire, and two directions of impairment. They
// live as long as the daemon; the collector must not count them as waste.
const bytesPerPlane = 48 << 20

// autogroup asks for the loop's share of the cores where that is allowed: in a session of its own (made by who
// started us) the daemon otherwise waits behind programs that spin.
func autogroup() { _ = os.WriteFile("/proc/self/autogroup", []byte("-10"), 0) }

// build makes wires, wrappers and NIC configurations.
func (s *server) build() ([]device.Config, error) {
	var nics []device.Config
	for i := range s.cfg.NICs {
		n := &s.cfg.NICs[i]
		host, _, _ := strings.Cut(n.Name, "/")
		nc := device.Config{
			Name: n.Name, Dev: n.Dev, GUID: n.GUID, Addrs: n.Addrs, Seed: s.cfg.Seed + uint64(i)*0x9e3779b97f4a7c15, Version: s.cfg.Version,
		}
		if s.cfg.Private {
			_, _ = rand.Read(nc.Secret[:]) // never fails
		}
		var err error
		if nc.Transport, err = device.ParsePolicy(cmp.Or(n.Transport, s.cfg.Transport)); err != nil {
			return nil, fail.Failf("%s: %w", n.Name, err)
		}
		for index, w := range n.Planes {
			port, err := s.host.OpenWire(n, index, w)
			if err != nil {
				return nil, fmt.Errorf("%s, plane %d: %w", n.Name, index, err)
			}
			port.SetAddrs(n.Addrs)
			base, err := impair.Parse(w.Words)
			if err != nil {
				return nil, err
			}
			p := &plane{nic: n.Name, host: host, index: index, base: base, timed: map[int]bool{}}
			p.impair = impair.Wrap(port, s.cfg.Seed^seedOf(fmt.Sprintf("%s.%d", n.Name, index)))
			p.capture = capture.Wrap(p.impair, fmt.Sprintf("%s plane %d", n.Name, index))
			s.planes = append(s.planes, p)
			nc.Ports = append(nc.Ports, p.capture)
			if err := s.apply(p); err != nil {
				return nil, err
			}
		}
		if n.HostPort != nil {
			if s.host.OpenHostPort == nil {
				return nil, fail.Failf("%s: this daemon has no interfaces in the host", n.Name)
			}
			hp, err := s.host.OpenHostPort(n, *n.HostPort)
			if err != nil {
				return nil, fmt.Errorf("%s, %w", n.Name, err)
			}
			nc.HostPort = hp
		}
		nics = append(nics, nc)
	}
	return nics, nil
}

// seedOf tells ports of the same lab apart.
func seedOf(name string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// PacketMax is the largest BTH … ICRC in an Ethernet link of an MTU; IPv6 takes 20 bytes more.
func PacketMax(mtu int, addrs []netip.Addr) int {
	if mtu == 0 {
		return 0
	}
	for _, a := range addrs {
		if a.Unmap().Is6() {
			return mtu - 48
		}
	}
	return mtu - 28
}

// MAC is a NIC's Ethernet address, on every plane and at its host port: a machine has one behind an IP address.
func MAC(guid uint64) [6]byte {
	return [6]byte{2, byte(guid >> 32), byte(guid >> 24), byte(guid >> 16), byte(guid >> 8), byte(guid)}
}

// now is the loop's clock: CLOCK_MONOTONIC in nanoseconds.
func now() mono.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // cannot fail with this clock
	}
	return mono.Time(ts.Nano())
}

// apply sets what a plane suffers now: its own properties, then the lab's impairments in their order, then what was
// set by command.
func (s *server) apply(p *plane) error {
	spec := p.base
	for i, im := range s.cfg.Impair {
		if !covers(im.Planes, p.index) || !coversName(im.Hosts, p.host) || im.Timed() && !p.timed[i] {
			continue
		}
		var err error
		if spec, err = spec.Parse(im.Words); err != nil {
			return err
		}
	}
	spec, err := spec.Parse(p.manual)
	if err != nil {
		return err
	}
	return p.impair.Set(now(), spec)
}

func covers(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return len(list) == 0
}

func coversName(list []string, v string) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return len(list) == 0
}

// schedule starts and ends the timed impairments of the lab, by the daemon's own command, so that they too are made on
// the loop.
func (s *server) schedule(ctx context.Context) {
	type step struct {
		at    time.Duration
		index int
		on    bool
	}
	var steps []step
	for i, im := range s.cfg.Impair {
		if !im.Timed() {
			continue
		}
		steps = append(steps, step{im.At, i, true})
		if im.For > 0 {
			steps = append(steps, step{im.At + im.For, i, false})
		}
	}
	begin := time.Now()
	for len(steps) > 0 {
		first := 0
		for i := range steps {
			if steps[i].at < steps[first].at {
				first = i
			}
		}
		st := steps[first]
		steps = append(steps[:first], steps[first+1:]...)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(begin.Add(st.at))):
		}
		if err := s.callSelf(ctx, "impair-timed", timedArgs{Index: st.index, On: st.on}); err != nil && !errors.Is(err, context.Canceled) {
			s.log.Error("timed impairment", "err", err)
		}
	}
}
