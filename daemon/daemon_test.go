package daemon

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/api"
	mgmt "github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

var addrA, addrB = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

// pair connects a program on each NIC.
func pair(t *testing.T, d *Daemon) (a, b *verbs) {
	t.Helper()
	var err error
	if a, err = objects(d.cfg.Socket, "a/mr0"); err != nil {
		t.Fatal(err)
	}
	if b, err = objects(d.cfg.Socket, "b/mr0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	t.Cleanup(b.close)
	if err := a.connect(addrB, b.qpn); err != nil {
		t.Fatal(err)
	}
	if err := b.connect(addrA, a.qpn); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// TestTraffic moves messages between two programs through the whole daemon, and wakes one by an event.
func TestTraffic(t *testing.T) {
	for _, spin := range []bool{true, false} {
		d := start(t, func(c *Config) { c.NoIdleSpin = !spin })
		a, b := pair(t, d)
		for i := range 200 {
			copy(a.buf, fmt.Sprintf("message %d", i))
			b.CQ.Arm(hostq.ArmNext)
			b.RQ.PutRecv(uint64(i), b.sge(4096, 4096))
			b.RQ.Ring()
			a.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil, a.sge(0, 3000))
			a.SQ.Ring()
			var rec [8]byte
			if n, err := unix.Read(b.chanFD, rec[:]); n != 8 || err != nil || rec[0] != 0xc {
				t.Fatalf("event: %d %v %v", n, err, rec)
			}
			if e, err := b.poll(); err != nil || e.Status != 0 || e.WRID != uint64(i) || e.ByteLen != 3000 {
				t.Fatalf("%v %+v", err, e)
			}
			if got := string(b.buf[4096 : 4096+len(fmt.Sprintf("message %d", i))]); got != fmt.Sprintf("message %d", i) {
				t.Fatalf("got %q", got)
			}
			if e, err := a.poll(); err != nil || e.Status != 0 {
				t.Fatalf("%v %+v", err, e)
			}
			if i%50 == 0 {
				time.Sleep(5 * time.Millisecond) // let the loop sleep
			}
		}
	}
}

// TestUnmapped: memory that went after it was registered fails the message, not the daemon; punched shared memory
// neither.
func TestUnmapped(t *testing.T) {
	d := start(t, nil)
	a, b := pair(t, d)
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	var mr hostq.RegMRReply
	addr := addrOf(gone)
	if _, err := call(b.prog, hostq.OpRegMR, &hostq.RegMR{PD: b.pd, Addr: addr, IOVA: addr, Length: 4096, Access: 15}, &mr); err != nil {
		t.Fatal(err)
	}
	unix.Munmap(gone)
	a.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: mr.RKey, RemoteAddr: addr}, nil, a.sge(0, 64))
	a.SQ.Ring()
	if e, err := a.poll(); err != nil || e.Status != 10 {
		t.Fatalf("%v %+v", err, e)
	}
	if err := unix.Fallocate(a.memFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, shmBytes); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(a.memFD, 4096); err == nil {
		t.Error("a sealed file was truncated")
	}
	a.SQ.Ring()
	a.RQ.Ring()
	time.Sleep(20 * time.Millisecond)
	if _, err := open(d.cfg.Socket, "a/mr0"); err != nil {
		t.Errorf("the daemon is not well: %v", err)
	}
}

// TestMgmt asks every built-in command.
func TestMgmt(t *testing.T) {
	d := start(t, func(c *Config) {
		c.Mgmt = map[string]MgmtFunc{"big": func(json.RawMessage) (any, error) { return strings.Repeat("x", 200_000), nil }}
	})
	pair(t, d)
	c, err := mgmt.Dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Version != "test" || c.PID != os.Getpid() {
		t.Errorf("version %q pid %d", c.Version, c.PID)
	}
	var s api.Status
	if err := c.Mgmt("status", nil, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.NICs) != 2 || s.NICs[0].Objects.QPs != 1 || s.NICs[0].QPs[0].State != "RTS" || s.NICs[0].Contexts[0].Program != "prog" ||
		len(s.NICs[0].Planes) != 2 || s.NICs[0].ActiveMTU != 4096 || s.Daemon.Clients != 3 {
		t.Errorf("status %+v", s)
	}
	if p := s.NICs[0].Planes[0]; p.Noise != 2e-3 || p.Receive == nil || p.Receive.Factor < 1.2 || p.Receive.Factor > 2.5 {
		t.Errorf("plane %+v, receives %+v", p, p.Receive)
	}
	var st api.Stats
	if err := c.MgmtNIC("stats", "b/mr0", nil, &st); err != nil || len(st.NICs) != 1 || st.NICs[0].Counters["mroce_qps"] != 1 {
		t.Errorf("stats %v %+v", err, st)
	}
	var po api.Ports
	if err := c.Mgmt("ports", nil, &po); err != nil || len(po.NICs) != 2 || po.Version != "test" {
		t.Errorf("ports %v %+v", err, po)
	}
	if p := po.NICs[0]; p.Name != "a/mr0" || p.Dev != "mr0" || !p.Up || len(p.GUID) != 16 || len(p.Addrs) != 1 || p.Rate != "100 Gb/sec (4X EDR)" || len(p.Counters) < 20 ||
		len(p.HWCounters) < 30 {
		t.Errorf("port %+v", p)
	}
	if err := c.MgmtNIC("addresses", "a/mr0", api.AddressesArgs{Addrs: append(po.NICs[0].Addrs, "10.9.9.9")}, &po); err != nil || len(po.NICs[0].Addrs) != 2 {
		t.Errorf("addresses %v %+v", err, po)
	}
	if err := c.MgmtNIC("addresses", "a/mr0", api.AddressesArgs{Addrs: po.NICs[0].Addrs[:1]}, &po); err != nil || po.NICs[0].Addrs[1] != "" {
		t.Errorf("addresses %v %+v", err, po)
	}
	for _, bad := range []any{nil, api.AddressesArgs{Addrs: []string{"x"}}, api.AddressesArgs{Addrs: []string{"::"}}} {
		if err := c.MgmtNIC("addresses", "b/mr0", bad, nil); err == nil {
			t.Errorf("addresses %v: taken", bad)
		}
	}
	if err := c.Mgmt("addresses", api.AddressesArgs{}, nil); err == nil {
		t.Error("addresses of no NIC: taken")
	}
	if err := c.MgmtNIC("plane", "a/mr0", api.PlaneArgs{Plane: 1}, &s); err != nil || s.NICs[0].Planes[1].Admin != "down" {
		t.Errorf("plane %v %+v", err, s)
	}
	var ev api.Events
	if err := c.Mgmt("events", nil, &ev); err != nil || len(ev.Events) == 0 || ev.Next < uint64(len(ev.Events)) {
		t.Errorf("events %v %+v", err, ev)
	}
	if last := ev.Events[len(ev.Events)-1]; last.Kind != "plane-down" || last.NIC != "a/mr0" || last.Plane != 1 || last.Peer != "" {
		t.Errorf("event %+v", last)
	}
	if err := c.Mgmt("events", api.EventsArgs{Since: ev.Next}, &ev); err != nil || len(ev.Events) != 0 {
		t.Errorf("no new events: %v %+v", err, ev)
	}
	var p api.Paths
	if err := c.Mgmt("paths", nil, &p); err != nil || len(p.NICs) != 2 {
		t.Errorf("paths %v %+v", err, p)
	}
	var big string
	if err := c.Mgmt("big", nil, &big); err != nil || len(big) != 200_000 {
		t.Errorf("big %v, %d bytes", err, len(big))
	}
	for _, bad := range []struct {
		cmd, nic string
		args     any
		code     string
	}{{"nonsense", "", nil, api.CodeUnknownCommand}, {"status", "z/mr0", nil, api.CodeUnknownNIC}, {"status", "mr0", nil, api.CodeUnknownNIC},
		{"plane", "a/mr0", map[string]any{"plan": 1}, api.CodeBadRequest}, {"plane", "a/mr0", api.PlaneArgs{Plane: 9}, api.CodeBadRequest}} {
		var e *api.Error
		if err := c.MgmtNIC(bad.cmd, bad.nic, bad.args, nil); !errors.As(err, &e) || e.Code != bad.code {
			t.Errorf("%s %s: %v, want code %s", bad.cmd, bad.nic, err, bad.code)
		}
	}
}

// TestStop: stopping with programs connected tells them, frees everything and leaves no goroutine.
func TestStop(t *testing.T) {
	before := goleak.IgnoreCurrent()
	d := start(t, nil)
	a, b := pair(t, d)
	d.Stop()
	for _, n := range d.nics {
		if n.C.Live != (device.Live{}) || n.Contexts() != 0 {
			t.Errorf("left over: %+v", n.C.Live)
		}
	}
	if a.Page().Dead != 1 || b.Page().Dead != 1 {
		t.Error("the programs were not told")
	}
	if d.OnLoop(func(mono.Time) { t.Error("ran") }) {
		t.Error("the loop took work")
	}
	if _, err := dial(d.cfg.Socket); err == nil {
		t.Error("somebody answers")
	}
	goleak.VerifyNone(t, before)
}

// TestTwoDaemons: a socket in use is not taken over, one left over is.
func TestTwoDaemons(t *testing.T) {
	d := start(t, nil)
	d2, err := New(Config{Socket: d.cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	if err := d2.Start(); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("second daemon: %v", err)
	}
	left := filepath.Join(t.TempDir(), "left.sock")
	fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: left}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	d3 := start(t, func(c *Config) { c.Socket = left })
	fi, err := os.Stat(left)
	if err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	_ = d3
}

// spawn runs this test binary as a program of its own and waits until it says ready.
func spawn(t *testing.T, role string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "MR_TEST_ROLE="+role), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	if !strings.HasPrefix(line, "ready") {
		t.Fatalf("%s: %q", role, line)
	}
	return cmd
}

// helper is the other process of a test.
func helper(role string) error {
	socket := os.Getenv("MR_TEST_SOCKET")
	switch role {
	case "busy", "fork": // objects, and a QP that writes to itself without end
		v, err := objects(socket, "a/mr0")
		if err != nil {
			return err
		}
		if err := v.connect(addrA, v.qpn); err != nil {
			return err
		}
		if role == "fork" { // a child that outlives us holds the connection
			f, err := v.conn.File()
			if err != nil {
				return err
			}
			c := exec.Command("sleep", "1")
			c.ExtraFiles = []*os.File{f}
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := c.Start(); err != nil {
				return err
			}
		}
		fmt.Println("ready")
		for sent, done := 0, 0; ; {
			for ; sent-done < 32; sent++ {
				v.SQ.PutSend(hostq.SQE{Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: v.key, RemoteAddr: addrOf(v.buf) + 65536}, nil, v.sge(0, 8192))
			}
			v.SQ.Ring()
			if e, err := v.poll(); err != nil || e.Status != 0 {
				return fmt.Errorf("%w %+v", err, e)
			}
			done++
		}
	case "exec": // opens, and becomes sleep when told
		go_ := make(chan os.Signal, 1)
		signal.Notify(go_, syscall.SIGUSR1)
		if _, err := objects(socket, "a/mr0"); err != nil {
			return err
		}
		fmt.Println("ready")
		<-go_
		sleep, err := exec.LookPath("sleep")
		if err != nil {
			return err
		}
		return syscall.Exec(sleep, []string{"sleep", "5"}, nil)
	}
	return fmt.Errorf("no role %s", role)
}

// waitFree waits until NIC a holds nothing.
func waitFree(t *testing.T, d *Daemon, within time.Duration) {
	t.Helper()
	var live device.Live
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		contexts := 0
		d.OnLoop(func(mono.Time) { live, contexts = d.nics[0].C.Live, d.nics[0].Contexts() })
		d.mu.Lock()
		clients := len(d.clients)
		d.mu.Unlock()
		if live == (device.Live{}) && contexts == 0 && clients == 0 {
			return
		}
	}
	t.Errorf("left over after %v: %+v", within, live)
}

// TestKill: a program killed in full flight leaves nothing, and the next one works at once.
func TestKill(t *testing.T) {
	d := start(t, nil)
	for range 3 {
		cmd := spawn(t, "busy", "MR_TEST_SOCKET="+d.cfg.Socket)
		time.Sleep(30 * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		waitFree(t, d, 2*time.Second)
	}
	if d.nics[0].C.CQEs == 0 {
		t.Error("nothing moved")
	}
}

// TestKillWithChild: a child that still holds the connection does not keep a killed program's context alive.
func TestKillWithChild(t *testing.T) {
	d := start(t, nil)
	cmd := spawn(t, "fork", "MR_TEST_SOCKET="+d.cfg.Socket)
	time.Sleep(20 * time.Millisecond)
	cmd.Process.Kill()
	cmd.Wait()
	waitFree(t, d, 700*time.Millisecond) // the child holds on for a second
}
