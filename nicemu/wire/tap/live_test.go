package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
)

var (
	a4, b4, c4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	a6, b6     = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
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

// space moves the test's thread into a network namespace of its own, with a bridge br0 of the MTU.
func space(t testing.TB, mtu int) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		home.Close()
		runtime.UnlockOSThread()
		need(t, "a network namespace", err)
	}
	t.Cleanup(func() {
		if err := netns.Set(home); err != nil {
			return // the thread stays locked, and ends with the test's goroutine
		}
		ns.Close()
		home.Close()
		runtime.UnlockOSThread()
	})
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	need(t, "/dev/net/tun", err)
	unix.Close(fd)
	// The plane has no hosts of its own: without IPv6 the bridge is silent.
	os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", MTU: mtu}}
	if err := netlink.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		t.Fatal(err)
	}
}

func plug(t testing.TB, name string, o Options, addrs ...netip.Addr) *Port {
	t.Helper()
	o.Bridge = "br0"
	p, err := Open(name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	p.SetAddrs(addrs)
	return p
}

func now() mono.Time {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return mono.Time(ts.Nano())
}

func packet(id uint32, n int, src, dst netip.Addr) pkt.Packet {
	b := bytes.Repeat([]byte{byte(id)}, n)
	b[0] = 0xc2
	binary.BigEndian.PutUint32(b[4:], id)
	return pkt.Packet{Data: b, Src: src, Dst: dst, SrcPort: 0xc000, TOS: pkt.ECT0}
}

// collect reads from p until n packets of a kind are there, and copies them. The others are stepped meanwhile.
func collect(t testing.TB, n int, kind pkt.Kind, p *Port, others ...*Port) []pkt.Packet {
	t.Helper()
	var out []pkt.Packet
	var ps [pkt.Burst]pkt.Packet
	idle := 0
	for end := time.Now().Add(5 * time.Second); len(out) < n || idle < 3; {
		for _, o := range others {
			o.RxBurst(now(), ps[:])
		}
		k := p.RxBurst(now(), ps[:])
		idle++
		for _, q := range ps[:k] {
			foreign := kind == pkt.Ethernet && ether.MAC(q.Data[6:12]) != (ether.MAC{2, 0, 0, 0, 0, 1}) // the bridge's own
			if q.Kind == kind && !foreign {
				q.Data = append([]byte(nil), q.Data...)
				out = append(out, q)
				idle = 0
			}
		}
		if k == 0 {
			if time.Now().After(end) {
				t.Fatalf("%d of %d packets came; %+v", len(out), n, p.Stats())
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
	if len(out) != n {
		t.Fatalf("%d packets, want %d", len(out), n)
	}
	return out
}

// meet lets the ports find each other's addresses.
func meet(t testing.TB, a, b *Port) {
	t.Helper()
	for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		a.TxBurst(now(), []pkt.Packet{packet(1, 100, d[0], d[1])})
		collect(t, 1, pkt.RoCE, b, a)
		b.TxBurst(now(), []pkt.Packet{packet(1, 100, d[1], d[0])})
		collect(t, 1, pkt.RoCE, a, b)
	}
}

var modes = []struct {
	name string
	a, b Options
}{
	{"plain", Options{Plain: true}, Options{Plain: true}},
	{"trains", Options{}, Options{}},
	{"trains to plain", Options{}, Options{Plain: true}},
	{"plain to trains", Options{Plain: true}, Options{}},
}

// Both directions, IPv4 and IPv6, mixed lengths, entropies, TOS and opcodes: whole, and in order within a flow.
func TestBridge(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			space(t, 4300)
			m.a.MTU, m.b.MTU = 4300, 4300
			a, b := plug(t, "ta", m.a, a4, a6), plug(t, "tb", m.b, b4, b6)
			if !a.LinkUp() || a.Caps().PacketMax != 4300-48 {
				t.Error(a.Caps(), a.LinkUp())
			}
			meet(t, a, b)
			exchange(t, a, b, [][2]netip.Addr{{a4, b4}, {a6, b6}})
			exchange(t, b, a, [][2]netip.Addr{{b4, a4}, {b6, a6}})
			if m.name == "trains" && !(a.Trains() && b.Trains()) {
				need(t, "UDP segmentation on TAPs", errors.New("the kernel has none"))
			}
			for _, p := range []*Port{a, b} {
				if d := p.Stats().Drops; len(d) != 0 {
					t.Error(d)
				}
			}
		})
	}
}

func exchange(t *testing.T, a, b *Port, pairs [][2]netip.Addr) {
	t.Helper()
	r := rng.New(1, "tap")
	const n = 300
	sent := map[uint32]pkt.Packet{}
	for id := uint32(0); id < n; {
		var ps []pkt.Packet
		for range min(1+r.IntN(pkt.Burst), n-int(id)) {
			d := pairs[r.IntN(2)]
			q := packet(id, 12+r.IntN(4200), d[0], d[1])
			if r.Chance(.8) {
				q = packet(id, 1076, d[0], d[1])
			}
			if r.Chance(.1) {
				q.Data[0] = 0x04 // plain RoCEv2: never in a super-packet
			}
			q.SrcPort = uint16(0xc000 + r.IntN(3))
			q.TOS = uint8(r.IntN(2) + 1)
			sent[id] = q
			ps = append(ps, q)
			id++
		}
		if k := a.TxBurst(now(), ps); k != len(ps) {
			t.Fatal("taken", k)
		}
		last := map[[3]any]uint32{}
		for _, q := range collect(t, len(ps), pkt.RoCE, b) {
			got := binary.BigEndian.Uint32(q.Data[4:])
			want := sent[got]
			if !bytes.Equal(q.Data, want.Data) || q.Src != want.Src || q.Dst != want.Dst || q.SrcPort != want.SrcPort || q.TOS != want.TOS {
				t.Fatalf("packet %d: %v:%d → %v TOS %d, %d bytes; want %v:%d → %v TOS %d, %d bytes", got, q.Src, q.SrcPort, q.Dst, q.TOS, len(q.Data), want.Src, want.SrcPort, want.Dst, want.TOS, len(want.Data))
			}
			flow := [3]any{q.Src, q.SrcPort, q.TOS}
			if l, ok := last[flow]; ok && l > got {
				t.Fatalf("flow %v: %d after %d", flow, got, l)
			}
			last[flow] = got
		}
	}
}

// The exact maximum passes, one byte more is counted by name, never cut.
func TestMTU(t *testing.T) {
	for _, mtu := range []int{1500, 4200, 9000} {
		for _, m := range modes {
			t.Run(fmt.Sprintf("%d/%s", mtu, m.name), func(t *testing.T) {
				space(t, mtu)
				m.a.MTU, m.b.MTU = mtu, mtu
				a, b := plug(t, "ta", m.a, a4, a6), plug(t, "tb", m.b, b4, b6)
				meet(t, a, b)
				for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
					exact := mtu - ether.HeadersLen(d[1]) + ether.HeadLen
					one, two, long := packet(1, exact, d[0], d[1]), packet(2, exact, d[0], d[1]), packet(3, exact+1, d[0], d[1])
					a.TxBurst(now(), []pkt.Packet{one, long, two})
					for i, q := range collect(t, 2, pkt.RoCE, b) {
						if len(q.Data) != exact || q.Data[4+3] != byte(i+1) {
							t.Errorf("%d bytes of %d", len(q.Data), exact)
						}
					}
				}
				if d := a.Stats().Drops; d["too_long"] != 2 || len(d) != 1 {
					t.Error(d)
				}
				frame := append([]byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, mtu+1)...)
				a.TxBurst(now(), []pkt.Packet{{Kind: pkt.Ethernet, Data: frame}, {Kind: pkt.Ethernet, Data: frame[:14+mtu]}})
				//= MR-WIRE-095
				if q := collect(t, 1, pkt.Ethernet, b)[0]; !bytes.Equal(q.Data, frame[:14+mtu]) {
					t.Error("frame of", len(q.Data))
				}
				if d := a.Stats().Drops; d["too_long"] != 3 {
					t.Error(d)
				}
				tagged := append([]byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 5, 0x88, 0xb5}, make([]byte, mtu+1)...)
				a.TxBurst(now(), []pkt.Packet{{Kind: pkt.Ethernet, Data: tagged}, {Kind: pkt.Ethernet, Data: tagged[:18+mtu]}})
				if q := collect(t, 1, pkt.Ethernet, b)[0]; !bytes.Equal(q.Data, tagged[:18+mtu]) {
					t.Error("tagged frame of", len(q.Data))
				}
				if d := a.Stats().Drops; d["too_long"] != 4 {
					t.Error(d)
				}
				// A plane whose ends disagree: the longer packet is counted where it does not fit.
				b.mtu = mtu - 100
				a.TxBurst(now(), []pkt.Packet{packet(1, mtu-48, a4, b4)})
				for end := now().Add(mono.Second); b.Stats().Drops["rx_too_long"] == 0 && now() < end; {
					var ps [4]pkt.Packet
					b.RxBurst(now(), ps[:])
				}
				if d := b.Stats().Drops; d["rx_too_long"] != 1 {
					t.Error(d)
				}
			})
		}
	}
}

// The kernel's own IP stack as the other end: it resolves us, and we it; its frames with unfinished checksums are
// finished for the host port.
func TestKernelPeer(t *testing.T) {
	space(t, 4300)
	os.WriteFile("/proc/sys/net/ipv6/conf/br0/disable_ipv6", []byte("0"), 0)
	br, err := netlink.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"10.0.0.3/24", "fd00::3/64"} {
		addr, _ := netlink.ParseAddr(s)
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(br, addr); err != nil {
			t.Fatal(err)
		}
	}
	a, T := plug(t, "ta", Options{MTU: 4300}, a4, a6), 0
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		ours, theirs := []netip.Addr{a4, a6}[i], []netip.Addr{c4, netip.MustParseAddr("fd00::3")}[i]
		s, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(s)
		sa := func(a netip.Addr, port int) unix.Sockaddr {
			if a.Is4() {
				return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
			}
			return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
		}
		if err := unix.Bind(s, sa(theirs, 4791)); err != nil {
			t.Fatal(err)
		}
		// It asks for us first, then we for it.
		if err := unix.Sendto(s, []byte("hello from the kernel"), 0, sa(ours, 4791)); err != nil {
			t.Fatal(err)
		}
		//= MR-PATH-001
		if q := collect(t, 1, pkt.RoCE, a)[0]; string(q.Data) != "hello from the kernel" || q.Src != theirs || q.Dst != ours {
			t.Errorf("%q from %v", q.Data, q.Src)
		}
		var ps []pkt.Packet
		for id := range uint32(5) {
			ps = append(ps, packet(id, 1000, ours, theirs)) // segmented and summed by the kernel
		}
		a.TxBurst(now(), ps)
		for id := range uint32(5) {
			var buf [2000]byte
			if n, _, err := unix.Recvfrom(s, buf[:], 0); err != nil || !bytes.Equal(buf[:n], ps[id].Data) {
				t.Errorf("%v: packet %d: %d bytes, %v", theirs, id, n, err)
			}
		}
		// Not the RoCE port: a frame for the host port, its checksum complete.
		if err := unix.Sendto(s, []byte("odd"), 0, sa(ours, 99)); err != nil {
			t.Fatal(err)
		}
		for found := false; !found; { // the kernel also says other things
			var one [1]pkt.Packet
			if a.RxBurst(now(), one[:]) == 0 {
				if T++; T > 2000 {
					t.Fatal("the frame does not come")
				}
				time.Sleep(time.Millisecond)
				continue
			}
			q := one[0]
			l4 := q.Data[min(len(q.Data), ether.HeadersLen(ours)-ether.UDPLen):]
			if found = len(l4) >= ether.UDPLen+3 && string(l4[ether.UDPLen:ether.UDPLen+3]) == "odd"; !found {
				continue
			}
			sum := ether.Add(unix.IPPROTO_UDP+uint32(len("odd")+ether.UDPLen), l4[:len("odd")+ether.UDPLen])
			ip := q.Data[ether.HeadLen:]
			if sum = ether.Add(sum, ip[12:20]); ours.Is6() {
				sum = ether.Add(ether.Add(unix.IPPROTO_UDP+uint32(len("odd")+ether.UDPLen), l4[:len("odd")+ether.UDPLen]), ip[8:40])
			}
			if ether.Fold(sum) != 0xffff {
				t.Errorf("%v: checksum %#x", theirs, ether.Fold(sum))
			}
		}
	}
	if d := a.Stats().Drops; len(d) != 0 {
		t.Error(d)
	}
}

// An address that nobody has: the first packets wait a while, the others are counted.
func TestUnresolved(t *testing.T) {
	space(t, 1500)
	a := plug(t, "ta", Options{}, a4)
	T := now()
	var burst [ether.HeldEach + 2]pkt.Packet
	for i := range burst {
		burst[i] = packet(uint32(i), 100, a4, c4)
	}
	a.TxBurst(T, burst[:])
	if d := a.Stats().Drops; d["unresolved"] != 2 {
		t.Error(d)
	}
	asks := 0
	var ps [8]pkt.Packet
	for w := a.NextWake(); w != mono.Never && asks < 20; w = a.NextWake() {
		a.RxBurst(w, ps[:])
		asks++
	}
	if d := a.Stats().Drops; d["unresolved"] != uint64(len(burst)) || asks < 3 || asks > 5 {
		t.Error(d, asks)
	}
	// It comes up later: what is sent then waits for the answer and goes.
	c := plug(t, "tc", Options{}, c4)
	a.TxBurst(T.Add(5*mono.Second), burst[:ether.HeldEach])
	for i, q := range collect(t, ether.HeldEach, pkt.RoCE, c, a) {
		if int(q.Data[7]) != i {
			t.Fatal("order", i, q.Data[7])
		}
	}
}

func TestVLANAndMulticast(t *testing.T) {
	space(t, 4300)
	a, b := plug(t, "ta", Options{MTU: 4300}, a4), plug(t, "tb", Options{MTU: 4300}, b4)
	q := packet(7, 100, a4, netip.MustParseAddr("239.1.2.3"))
	a.TxBurst(now(), []pkt.Packet{packet(7, 100, a4, netip.MustParseAddr("239.1.2.3"))})
	collect(t, 0, pkt.RoCE, b) // in no group: the host's
	if s := b.Stats(); s.RxPackets == 0 || len(s.Drops) > 0 {
		t.Errorf("%+v", s)
	}
	b.SetGroups([]netip.Addr{q.Dst})
	a.TxBurst(now(), []pkt.Packet{q, q})
	for _, g := range collect(t, 2, pkt.RoCE, b) {
		if g.Dst != q.Dst || !bytes.Equal(g.Data, q.Data) {
			t.Error(g.Dst)
		}
	}
	// Somebody else's tagged RoCE frame.
	h := make([]byte, ether.HeadersLen(b4))
	ether.PutHeaders(h, b.MAC(), a.MAC(), &pkt.Packet{Src: a4, Dst: b4, SrcPort: 5}, len(q.Data), false)
	f := append(append([]byte{}, h[:12]...), 0x81, 0, 0, 5)
	f = append(append(f, h[12:]...), q.Data...)
	a.TxBurst(now(), []pkt.Packet{{Kind: pkt.Ethernet, Data: f}})
	if g := collect(t, 1, pkt.RoCE, b)[0]; !bytes.Equal(g.Data, q.Data) || g.SrcPort != 5 {
		t.Errorf("%+v", g)
	}
	// A wrong header checksum is counted. (With bridge-nf-call-iptables the bridge drops it: then it never comes.)
	f[4+ether.HeadLen+10] ^= 1
	a.TxBurst(now(), []pkt.Packet{{Kind: pkt.Ethernet, Data: f}})
	collect(t, 0, pkt.RoCE, b)
	if d := b.Stats().Drops; d["bad_headers"] > 1 {
		t.Error(d)
	}
}

// Pre-made TAPs: other flags work or are named.
func TestPremade(t *testing.T) {
	space(t, 4300)
	b := plug(t, "tb", Options{MTU: 4300}, b4, b6)
	for i, flags := range []netlink.TuntapFlag{0, netlink.TUNTAP_NO_PI, netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, netlink.TUNTAP_MULTI_QUEUE_DEFAULTS, netlink.TUNTAP_MULTI_QUEUE_DEFAULTS | netlink.TUNTAP_VNET_HDR} {
		name := fmt.Sprintf("pre%d", i)
		l := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 4300}, Mode: netlink.TUNTAP_MODE_TAP, Flags: flags}
		if flags&netlink.TUNTAP_MULTI_QUEUE != 0 {
			l.Queues = 1
		}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		for _, f := range l.Fds {
			f.Close()
		}
		netlink.LinkSetMTU(l, 4300)
		a := plug(t, name, Options{}, a4, a6)
		if a.mtu != 4300 || !a.LinkUp() {
			t.Errorf("flags %#x: MTU %d", flags, a.mtu)
		}
		meet(t, a, b)
		if _, err := Open(name, Options{}); flags&netlink.TUNTAP_MULTI_QUEUE == 0 && !errors.Is(err, unix.EBUSY) {
			t.Errorf("a second user: %v", err)
		}
		a.Close()
		if a.LinkUp() {
			t.Error("closed and up")
		}
		if err := netlink.LinkDel(l); err != nil { // ours stayed, as the administrator made it
			t.Errorf("flags %#x: %v", flags, err)
		}
	}
	if _, err := Open("br0", Options{}); err == nil || !strings.Contains(err.Error(), "no TAP") {
		t.Error(err)
	}
	if _, err := Open("tx", Options{Bridge: "nobridge"}); err == nil || !strings.Contains(err.Error(), "ip link add nobridge type bridge") {
		t.Error(err)
	}
	if _, err := netlink.LinkByName("tx"); err == nil {
		t.Error("a TAP that failed stays")
	}
}

// An ordinary user opens the TAP that an administrator made for him, and is told what is missing else.
func TestOwner(t *testing.T) {
	if name := os.Getenv("MR_TEST_TAP_OWNER"); name != "" {
		p, err := Open(name, Options{})
		if err != nil {
			fmt.Println("ERROR", err)
			return
		}
		p.SetAddrs([]netip.Addr{a4})
		p.TxBurst(now(), []pkt.Packet{packet(1, 100, a4, netip.MustParseAddr("239.0.0.1"))})
		fmt.Println("OPENED", p.Trains(), p.Stats().TxPackets)
		return
	}
	space(t, 1500)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "mroce-owner") // not t.TempDir: that is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	exe := filepath.Join(dir, "test")
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		owner      int
		up         bool
	}{{"mine", "OPENED true 1", 1000, true}, {"down", "ERROR tap: down: cannot set it up", 1000, false}, {"other", "ERROR tap: no right to the TAP other", 1001, true}, {"none", "no right to the TAP none", -1, false}} {
		if c.owner > 0 {
			l := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: c.name}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI, Owner: uint32(c.owner), Group: uint32(c.owner)}
			if err := netlink.LinkAdd(l); err != nil {
				t.Fatal(err)
			}
			for _, f := range l.Fds {
				f.Close()
			}
			if c.up {
				netlink.LinkSetUp(l)
			}
		}
		// forked from this thread, so in its network namespace; with a /dev/net/tun of its own that is open to users
		cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs tmpfs /mnt && mknod /mnt/tun c 10 200 && chmod 666 /mnt/tun &&
			mount --bind /mnt/tun /dev/net/tun && exec setpriv --reuid 1000 --regid 1000 --clear-groups "$0" "$@"`, exe, "-test.run", "^TestOwner$")
		cmd.Env = []string{"MR_TEST_TAP_OWNER=" + c.name, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "/dev/net/tun may not be opened") {
			need(t, "/dev/net/tun open to users", errors.New("it is not"))
		}
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v %s, want %q", c.name, err, out, c.want)
		}
	}
}

func TestFDAndLink(t *testing.T) {
	space(t, 4300)
	d, err := OpenDevice("td", DeviceOptions{MTU: 4300, Bridge: "br0"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(d.FD(), Options{MTU: 4300}) // as if it had been passed
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.SetAddrs([]netip.Addr{a4, a6})
	b := plug(t, "tb", Options{MTU: 4300}, b4, b6)
	meet(t, p, b)
	want := ether.MAC{2, 1, 2, 3, 4, 5}
	if err := p.dev.SetMAC(want); err != nil {
		t.Fatal(err)
	}
	if m, err := p.dev.MAC(); err != nil || m != want {
		t.Error(m, err)
	}
	l, _ := netlink.LinkByName("td")
	netlink.LinkSetDown(l)
	if p.LinkUp() {
		t.Error("down and up")
	}
	p.TxBurst(now(), []pkt.Packet{packet(1, 100, a4, b4)})
	if p.Stats().Drops["link_down"] != 1 {
		t.Error(p.Stats().Drops)
	}
	netlink.LinkSetUp(l)
	if !p.LinkUp() {
		t.Error("up and down")
	}
	netlink.LinkDel(l)
	if p.LinkUp() {
		t.Error("gone and up")
	}
	if _, err := New(0, Options{}); err == nil {
		t.Error("standard input is a TAP?")
	}
}
