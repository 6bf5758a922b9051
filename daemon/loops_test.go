package daemon

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/cm"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"golang.org/x/sys/unix"
)

// testLoops is how many loops start gives its daemons.
var testLoops = 1

// sharedWire is an end of a wire whose ends belong to different loops.
type sharedWire struct {
	*devicetest.Wire
	mu  *sync.Mutex // of both ends
	now mono.Time
}

func newSharedWire(packetMax int) (a, b *sharedWire) {
	x, y := devicetest.NewWire(packetMax)
	mu := &sync.Mutex{}
	return &sharedWire{Wire: x, mu: mu}, &sharedWire{Wire: y, mu: mu}
}

func (w *sharedWire) RxBurst(now mono.Time, ps []pkt.Packet) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = now
	return w.Wire.RxBurst(now, ps)
}

func (w *sharedWire) TxBurst(now mono.Time, ps []pkt.Packet) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Wire.TxBurst(now, ps)
}

// NextWake: nobody wakes a loop whose wire has no descriptor.
func (w *sharedWire) NextWake() mono.Time {
	if testLoops == 1 {
		return w.Wire.NextWake()
	}
	return w.now.Add(100 * mono.Microsecond)
}

// TestTwoLoops: what holds for a daemon with one loop holds for one whose NICs have a loop each.
func TestTwoLoops(t *testing.T) {
	testLoops = 2
	defer func() { testLoops = 1 }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"traffic", TestTraffic}, {"unmapped", TestUnmapped}, {"mgmt", TestMgmt}, {"mgmt_paths", TestMgmtPaths}, {"stop", TestStop}, {"kill", TestKill},
		{"kill_with_child", TestKillWithChild}, {"share", TestShare}, {"dm", TestDMDescriptors}, {"xrcd", TestXRCDFiles}, {"malformed", TestMalformed},
		{"open_fails", TestOpenFails}, {"cm_hostile", TestCMHostile}, {"connect", TestConnect},
	} {
		t.Run(c.name, c.test)
	}
}

// TestOnLoopHolds: while OnLoop runs, no loop steps.
func TestOnLoopHolds(t *testing.T) {
	d := start(t, func(c *Config) { c.Loops = 2 })
	if len(d.loops) != 2 || d.loops[1].nics[0] != d.nics[1] {
		t.Fatal("a NIC is on the wrong loop")
	}
	for range 50 {
		if !d.OnLoop(func(mono.Time) {
			before := d.loops[1].steps
			time.Sleep(time.Millisecond)
			if d.loops[1].steps != before {
				t.Error("a loop went on")
			}
		}) {
			t.Fatal("did not run")
		}
		time.Sleep(time.Millisecond)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		var before, after uint64
		d.OnLoop(func(mono.Time) { before = d.loops[1].steps })
		d.OnLoop(func(mono.Time) { after = d.loops[1].steps })
		if after > before {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a loop stands still")
		}
	}
}

// TestLoopThreadFails: a thread that cannot be what it should ends the daemon, whichever it is.
func TestLoopThreadFails(t *testing.T) {
	for bad := range 2 {
		why := errors.New("no such core")
		d := start(t, func(c *Config) {
			c.Loops = 2
			c.LoopThread = func(i int) error {
				if i == bad {
					return why
				}
				return nil
			}
		})
		select {
		case <-d.loopsDone:
		case <-time.After(10 * time.Second):
			t.Fatal("it goes on")
		}
		if err := d.failed.Load(); err == nil || !errors.Is(*err, why) {
			t.Errorf("loop %d: %v", bad, err)
		}
		d.Stop()
	}
}

// TestMADsBound: datagrams for connection management that are on their way between loops are bounded.
func TestMADsBound(t *testing.T) {
	d := start(t, func(c *Config) { c.Loops = 2 })
	var mad [cm.MADLen]byte
	d.OnLoop(func(now mono.Time) { // nothing is taken meanwhile
		for range madsMost + 10 {
			d.gotMAD(now, 1, addrB, addrA, mad[:])
		}
	})
	var bad uint64
	for end := time.Now().Add(5 * time.Second); bad < madsMost && time.Now().Before(end); time.Sleep(time.Millisecond) {
		d.OnLoop(func(mono.Time) { bad = d.cm.S.DropMad })
	}
	if bad != madsMost || d.madsLost.Load() != 10 {
		t.Errorf("%d arrived, %d were lost", bad, d.madsLost.Load())
	}
}

// cmProg is a program that connects.
type cmProg struct {
	*prog
	t       *testing.T
	channel uint32
	tick    int
}

func newCMProg(t *testing.T, d *Daemon) *cmProg {
	p := &cmProg{prog: cmHello(t, d), t: t}
	t.Cleanup(p.prog.close)
	var r hostq.Hdr
	cmCall(p, hostq.OpCMSetup, &hostq.CMSetup{}, &r)
	var h hostq.Handle
	fds := cmCall(p, hostq.OpCMCreateChannel, &hostq.Handle{}, &h)
	p.channel, p.tick = h.Handle, fds[0]
	t.Cleanup(func() { unix.Close(p.tick) })
	return p
}

func cmCall[Q, R hostq.Plain](p *cmProg, op hostq.Op, q *Q, r *R) []int {
	p.t.Helper()
	fds, err := call(p.prog, op, q, r)
	if err != nil {
		p.t.Fatalf("operation %d: %v", op, err)
	}
	return fds
}

// id makes an ID of the TCP port space.
func (p *cmProg) id() uint32 {
	var h hostq.Handle
	cmCall(p, hostq.OpCMCreateID, &hostq.CMCreate{Channel: p.channel, PS: uint32(cm.PSTCP), QPType: 2}, &h)
	return h.Handle
}

// event waits for the next event, which must be of a kind.
func (p *cmProg) event(want cm.EventKind) (e hostq.CMEvent) {
	p.t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.tick), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 10_000); n != 1 {
		p.t.Fatalf("no event: %v", err)
	}
	var rec [16]byte
	unix.Read(p.tick, rec[:])
	cmCall(p, hostq.OpCMGetEvent, &hostq.Handle{Handle: p.channel}, &e)
	if cm.EventKind(e.Event) != want {
		p.t.Fatalf("event %d, status %d; want %d", e.Event, e.Status, want)
	}
	return e
}

func cmAddr(last byte, port uint16) hostq.CMAddr {
	a := hostq.CMAddr{Family: unix.AF_INET, Port: port}
	copy(a.Addr[10:], []byte{0xff, 0xff, 10, 0, 0, last})
	return a
}

// TestConnect: two programs on two NICs find each other by address, talk, and hear of the end.
func TestConnect(t *testing.T) {
	d := start(t, nil)
	s, c := newCMProg(t, d), newCMProg(t, d)
	var r hostq.Hdr
	lis := s.id()
	cmCall(s, hostq.OpCMBind, &hostq.CMAddrs{ID: lis, Src: cmAddr(2, 7471)}, &r)
	cmCall(s, hostq.OpCMListen, &hostq.CMArg{ID: lis, Arg: 8}, &r)
	for i := range 5 {
		id := c.id()
		cmCall(c, hostq.OpCMResolveAddr, &hostq.CMAddrs{ID: id, TimeoutMs: 2000, Dst: cmAddr(2, 7471)}, &r)
		c.event(cm.EvAddrResolved)
		cmCall(c, hostq.OpCMResolveRoute, &hostq.Handle{Handle: id}, &r)
		c.event(cm.EvRouteResolved)
		m := hostq.CMConn{ID: id, Param: hostq.CMParam{QPN: 0x100 + uint32(i), RetryCount: 7, RNRRetryCount: 7, PrivateLen: 5}}
		copy(m.PrivateData[:], "hello")
		cmCall(c, hostq.OpCMConnect, &m, &r)
		e := s.event(cm.EvConnectRequest)
		if e.ListenID != lis || !strings.HasPrefix(string(e.PrivateData[:]), "hello") || e.Param.QPN != 0x100+uint32(i) {
			t.Fatalf("request %+v", e)
		}
		cmCall(s, hostq.OpCMAccept, &hostq.CMConn{ID: e.ID, Param: hostq.CMParam{QPN: 0x200}}, &r)
		if got := c.event(cm.EvConnectResponse); got.Param.QPN != 0x200 {
			t.Fatalf("response %+v", got)
		}
		cmCall(c, hostq.OpCMEstablish, &hostq.Handle{Handle: id}, &r)
		s.event(cm.EvEstablished)
		cmCall(c, hostq.OpCMDisconnect, &hostq.Handle{Handle: id}, &r)
		s.event(cm.EvDisconnected)
		cmCall(s, hostq.OpCMDisconnect, &hostq.Handle{Handle: e.ID}, &r)
		c.event(cm.EvDisconnected)
	}
}
