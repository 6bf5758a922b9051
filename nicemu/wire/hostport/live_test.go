package hostport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/nicemu/wire/tap"
)

// need leaves a test out when the machine lacks something; with MR_TEST_REQUIRE=all that is a failure.
func need(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("needs %s: %v", what, err)
}

// host is a namespace with its mr0, and a thread that lives there.
type host struct {
	port *Port
	do   chan func()
}

func newHost(t *testing.T, addr string, mac [6]byte) *host {
	t.Helper()
	h := &host{do: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its namespace with it
		ready <- h.enter(addr, mac)
		for f := range h.do {
			f()
		}
	}()
	err := <-ready
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, os.ErrNotExist) {
		need(t, "namespaces and /dev/net/tun", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.port.Close(); close(h.do) })
	return h
}

func (h *host) enter(addr string, mac [6]byte) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	d, err := tap.OpenDevice("mr0", tap.DeviceOptions{MTU: 4100})
	if err != nil {
		return err
	}
	if h.port, err = New(d.FD(), Options{MAC: mac}); err != nil { // with a virtio header, as labs make them
		return err
	}
	l, err := netlink.LinkByName("mr0")
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, a)
}

// on runs f in the host's namespace.
func (h *host) on(f func()) {
	done := make(chan struct{})
	h.do <- func() { f(); close(done) }
	<-done
}

// TCP between two hosts whose ports a goroutine joins: a few megabytes arrive whole.
func TestTCP(t *testing.T) {
	a := newHost(t, "10.0.0.1/24", [6]byte{2, 0, 0, 0, 0, 1})
	b := newHost(t, "10.0.0.2/24", [6]byte{2, 0, 0, 0, 0, 2})
	if a.port.MAC() != [6]byte{2, 0, 0, 0, 0, 1} || !a.port.LinkUp() {
		t.Error(a.port.MAC(), a.port.LinkUp())
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // the device loop, as little of it as there can be
		defer close(stopped)
		var ps [pkt.Burst]pkt.Packet
		for {
			select {
			case <-stop:
				return
			default:
			}
			n := a.port.RxBurst(1, ps[:])
			b.port.TxBurst(1, ps[:n])
			m := b.port.RxBurst(1, ps[:])
			a.port.TxBurst(1, ps[:m])
			if n+m == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()

	var listener, dialled net.Conn
	var l net.Listener
	var err error
	b.on(func() { l, err = net.Listen("tcp", "10.0.0.2:7777") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a.on(func() { dialled, err = net.DialTimeout("tcp", "10.0.0.2:7777", 5*time.Second) })
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	if listener, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	deadline := time.Now().Add(20 * time.Second)
	dialled.SetDeadline(deadline)
	listener.SetDeadline(deadline)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	go func() {
		dialled.Write(sent)
		dialled.Close()
	}()
	if got, err := io.ReadAll(listener); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
	}
}

func TestNoAllocation(t *testing.T) {
	a := newHost(t, "10.0.0.1/24", [6]byte{2, 0, 0, 0, 0, 1})
	out := []pkt.Packet{{Kind: pkt.Ethernet, Data: make([]byte, 64)}, {Kind: pkt.Ethernet, Data: make([]byte, 3)}}
	var in [pkt.Burst]pkt.Packet
	if n := testing.AllocsPerRun(100, func() {
		a.port.TxBurst(1, out)
		a.port.RxBurst(1, in[:])
		a.port.LinkUp()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if d := a.port.Stats().Drops; d["short"] != 101 {
		t.Error(d)
	}
}
