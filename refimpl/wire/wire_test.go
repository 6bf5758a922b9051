//go:build dpdk

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/yerden/go-dpdk/eal"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

var (
	a4, b4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	a6, b6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")

	memory *Memory
)

const mtu = 4300

func TestMain(m *testing.M) {
	os.Exit(func() int {
		// a runtime directory of our own, so that nothing is left behind
		dir, err := os.MkdirTemp("", "mr-wire")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		scratch = dir
		args := []string{"test", "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--file-prefix", filepath.Base(dir), "-l", "0", "--log-level", "*:error"}
		defer os.RemoveAll(filepath.Join("/var/run/dpdk", filepath.Base(dir)))
		if _, err := eal.Init(args); err != nil {
			panic(err)
		}
		if memory, err = NewMemory(4, mtu, 2); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

func open(t testing.TB, url string, addrs ...netip.Addr) *Port {
	t.Helper()
	p, err := Open(url, Options{MTU: mtu, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	p.SetAddrs(addrs)
	return p
}

// vdev is a wire of a driver under a name that was never used.
func vdev(driver string) string {
	vdevs++ // 0 and 1 are of plug
	return fmt.Sprintf("dpdk:%s%d", driver, vdevs)
}

var vdevs = 1

func now() mono.Time { return mono.Time(time.Since(begin)) + 1 }

var begin = time.Now()

// plug gives the two ports at the ends of a memif, empty. They live as long as the process: DPDK 22.11's driver keeps pointers
// to ports that are closed, and follows them when the next is made. (A daemon makes its ports once.)
func plug(t testing.TB) (a, b *Port) {
	t.Helper()
	if ends[0] == nil {
		socket := filepath.Join(scratch, "m.sock")
		for i, role := range []string{"server", "client"} {
			p, err := Open(fmt.Sprintf("dpdk:net_memif%d,role=%s,socket=%s", i, role, socket), Options{MTU: mtu, Memory: memory})
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = p
		}
	}
	a, b = ends[0], ends[1]
	for start := time.Now(); !a.LinkUp() || !b.LinkUp(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 5*time.Second {
			t.Fatal("no link")
		}
	}
	receive(b, 1<<20) // a memif's client makes room for the server's frames when it asks for them
	receive(a, 1<<20)
	a.near, b.near = ether.Neighbours{}, ether.Neighbours{}
	for i, p := range ends {
		p.near.Init([6]byte{2, byte(i)}, mtu, p.control)
	}
	a.SetAddrs([]netip.Addr{a4, a6})
	b.SetAddrs([]netip.Addr{b4, b6})
	return a, b
}

var (
	ends    [2]*Port
	scratch string
)

// meet lets both learn where the other's addresses are.
func meet(t testing.TB, a, b *Port) {
	t.Helper()
	var ps [pkt.Burst]pkt.Packet
	a.Resolve(now(), a4, b4)
	b.Resolve(now(), b4, a4)
	a.Resolve(now(), a6, b6)
	b.Resolve(now(), b6, a6)
	for range 100 {
		a.RxBurst(now(), ps[:])
		b.RxBurst(now(), ps[:])
	}
	for _, x := range []struct {
		p        *Port
		src, dst netip.Addr
	}{{a, a4, b4}, {a, a6, b6}, {b, b4, a4}, {b, b6, a6}} {
		if !x.p.near.Lookup(now(), x.src, x.dst).Known {
			t.Fatalf("%v is not known to %v", x.dst, x.src)
		}
	}
}

// lent is a packet of n bytes in a buffer of the port.
func lent(t testing.TB, p *Port, id uint32, n int, src, dst netip.Addr) pkt.Packet {
	t.Helper()
	buf := p.TxBuffer(n)
	if buf == nil {
		t.Fatal("no buffer")
	}
	q := pkt.Packet{Buf: buf, Src: src, Dst: dst, SrcPort: 0xc000 + uint16(id), TOS: pkt.ECT0}
	q.Data = buf[pkt.Headroom : pkt.Headroom+n]
	fill(q.Data, id)
	return q
}

func fill(b []byte, id uint32) {
	for i := range b {
		b[i] = byte(id)
	}
	b[0] = 0xc2
	binary.BigEndian.PutUint32(b[4:], id)
}

func receive(p *Port, n int) (got []pkt.Packet) {
	var ps [pkt.Burst]pkt.Packet
	for idle := 0; len(got) < n && idle < 1000; idle++ {
		for _, q := range ps[:p.RxBurst(now(), ps[:])] {
			if q.Kind != pkt.RoCE {
				continue
			}
			q.Data = bytes.Clone(q.Data)
			got = append(got, q)
			idle = 0
		}
	}
	return got
}

// Packets arrive whole and in order whatever their length up to the exact maximum, from buffers of the wire (which changes
// them for others) and from memory of somebody else.
func TestCarries(t *testing.T) {
	a, b := plug(t)
	meet(t, a, b)
	for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		exact := mtu - ether.HeadersLen(d[1]) + ether.HeadLen
		for _, n := range []int{16, 64, 1500, 4096, exact} {
			var ps []pkt.Packet
			for id := range uint32(20) {
				q := lent(t, a, id, n, d[0], d[1])
				if id%3 == 2 { // a copy elsewhere, as impairments hand over
					own := make([]byte, pkt.Headroom+n)
					copy(own[pkt.Headroom:], q.Data)
					a.q.Return(q.Buf)
					q.Buf, q.Data = own, own[pkt.Headroom:]
				}
				ps = append(ps, q)
			}
			before := make([]*byte, len(ps))
			for i := range ps {
				before[i] = &ps[i].Buf[0]
			}
			if k := a.TxBurst(now(), ps); k != len(ps) {
				t.Fatalf("%d of %d taken", k, len(ps))
			}
			for i := range ps {
				if swapped := before[i] != &ps[i].Buf[0]; swapped == (i%3 == 2) {
					t.Errorf("packet %d of %d bytes: exchanged %v", i, n, swapped)
				}
			}
			got := receive(b, len(ps))
			if len(got) != len(ps) {
				t.Fatalf("%d of %d packets of %d bytes arrived; %+v", len(got), len(ps), n, b.Stats())
			}
			for i, q := range got {
				want := make([]byte, n)
				fill(want, uint32(i))
				if !bytes.Equal(q.Data, want) || q.Src != d[0] || q.Dst != d[1] || q.SrcPort != 0xc000+uint16(i) || q.TOS != pkt.ECT0 || q.TTL != 64 {
					t.Fatalf("packet %d of %d bytes: %v → %v, port %d, TOS %d, %d bytes", i, n, q.Src, q.Dst, q.SrcPort, q.TOS, len(q.Data))
				}
			}
			giveBack(a, ps)
		}
		q := lent(t, a, 0, exact+1, d[0], d[1])
		if a.TxBurst(now(), []pkt.Packet{q}); a.Stats().Drops["too_long"] == 0 {
			t.Error("a packet beyond the MTU was sent")
		}
		a.q.Return(q.Buf)
	}
}

func giveBack(p *Port, ps []pkt.Packet) {
	for i := range ps {
		if p.mem.pool.Owns(ps[i].Buf) {
			p.q.Return(ps[i].Buf)
		}
	}
}

// Nothing of the pool is lost by traffic or by a full ring.
func TestNoBufferLost(t *testing.T) {
	a, b := plug(t)
	meet(t, a, b)
	lost := func() int { return memory.InUse() - a.q.Spares() - b.q.Spares() }
	before := lost()
	var ps []pkt.Packet
	for id := range uint32(50) { // so that spares are filled up in the middle, too
		ps = append(ps, lent(t, a, id, 1000, a4, b4))
	}
	refused := 0
	for range 200 { // nobody receives for a while: the ring is full, and refuses
		refused += len(ps) - a.TxBurst(now(), ps)
	}
	if refused == 0 {
		t.Error("a full ring took everything")
	}
	if got := receive(b, 1<<20); len(got) < 512 {
		t.Errorf("%d packets arrived", len(got))
	}
	giveBack(a, ps)
	if after := lost(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

// An empty pool refuses packets, counts that, and goes on when there are buffers again.
func TestPoolEmpty(t *testing.T) {
	a, b := plug(t)
	meet(t, a, b)
	ps := []pkt.Packet{lent(t, a, 1, 100, a4, b4)}
	var all [][]byte
	for buf := a.TxBuffer(100); buf != nil; buf = a.TxBuffer(100) {
		all = append(all, buf)
	}
	for b.q.Spares() > 0 {
		all = append(all, b.q.Take())
	}
	if k := a.TxBurst(now(), ps); k != 0 {
		t.Errorf("%d sent without a buffer to give for it", k)
	}
	if d := a.Stats().Drops; d["no_buffers"] == 0 || d["pool_empty"] == 0 {
		t.Errorf("not counted: %v", d)
	}
	for _, buf := range all { // more than a queue has place for: by ports that are closed at the end
		a.q.Return(buf)
	}
	if k := a.TxBurst(now(), ps); k != 1 || len(receive(b, 1)) != 1 {
		t.Error("does not recover")
	}
	giveBack(a, ps)
}

// What arrives before its destination is known waits for the answer.
func TestFirstPackets(t *testing.T) {
	a, b := plug(t)
	ps := []pkt.Packet{lent(t, a, 1, 100, a4, b4), lent(t, a, 2, 100, a4, b4)}
	if k := a.TxBurst(now(), ps); k != 2 {
		t.Fatalf("%d taken", k)
	}
	var rx [pkt.Burst]pkt.Packet
	b.RxBurst(now(), rx[:]) // the question
	a.RxBurst(now(), rx[:]) // the answer
	if got := receive(b, 2); len(got) != 2 || got[0].SrcPort != 0xc001 || got[1].SrcPort != 0xc002 {
		t.Errorf("%d packets: %+v", len(got), b.Stats())
	}
	giveBack(a, ps)
}

func TestNoAllocation(t *testing.T) {
	a, b := plug(t)
	meet(t, a, b)
	var ps, rx [32]pkt.Packet
	for i := range ps {
		ps[i] = lent(t, a, uint32(i), 1000, a4, b4)
	}
	T := now()
	if n := testing.AllocsPerRun(100, func() {
		a.TxBurst(T, ps[:])
		for b.RxBurst(T, rx[:]) > 0 {
		}
		a.LinkUp()
		a.NextWake()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	giveBack(a, ps[:])
}

// What is wrong is said, and nothing stays behind.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	live := filepath.Join(dir, "live")
	lis, err := net.Listen("unixpacket", live)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	before := memory.InUse()
	for _, c := range []struct {
		url  string
		mtu  int
		want error
		text string
	}{
		{"tap:x", mtu, ErrURL, "dpdk:PORT"},
		{"dpdk:", mtu, ErrURL, ""},
		{"dpdk:17", mtu, ErrNoDevice, "EAL found"},
		{"dpdk:net_nonsense0", mtu, ErrNoDevice, "no driver"},
		{"dpdk:0000:99:00.0", mtu, ErrNoDevice, ""},
		{vdev("net_memif") + ",role=nobody", mtu, ErrNoDevice, ""},
		{vdev("net_memif") + ",role=server,socket=" + plain, mtu, nil, "no socket"},
		{vdev("net_memif") + ",role=server,socket=" + live, mtu, nil, "another process serves"},
		{vdev("net_null"), 100, nil, "MTU"},
		{vdev("net_null"), mtu + 1, nil, "buffers"},
	} {
		p, err := Open(c.url, Options{MTU: c.mtu, Memory: memory})
		if err == nil {
			_ = p.Close()
			t.Errorf("%s: opened", c.url)
			continue
		}
		if c.want != nil && !errors.Is(err, c.want) || !bytes.Contains([]byte(err.Error()), []byte(c.text)) {
			t.Errorf("%s: %v", c.url, err)
		}
	}
	if after := memory.InUse(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

// A socket that a killed daemon left behind is in nobody's way.
func TestStaleSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	lis, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	lis.SetUnlinkOnClose(false)
	lis.Close()
	note := ""
	plug(t) // before: see there
	p, err := Open(vdev("net_memif")+",role=server,socket="+socket, Options{MTU: mtu, Memory: memory, Note: func(s string) { note = s }})
	if err != nil {
		t.Fatal(err)
	}
	if note == "" || p.LinkUp() {
		t.Error("nothing said about the removed socket, or a link without a peer")
	}
}

// Other drivers without hardware.
func TestDrivers(t *testing.T) {
	ring := open(t, vdev("net_ring"), a4) // sends to itself
	var ps []pkt.Packet
	ring.near.Learn(now(), b4, ring.near.MAC, true)
	for id := range uint32(8) {
		ps = append(ps, lent(t, ring, id, 500, a4, b4))
	}
	ring.SetAddrs([]netip.Addr{b4})
	if k, got := ring.TxBurst(now(), ps), receive(ring, 8); k != 8 || len(got) != 8 || got[7].SrcPort != 0xc007 {
		t.Errorf("net_ring: %d sent, %d received", k, len(got))
	}
	giveBack(ring, ps)

	null := open(t, vdev("net_null")+",no-rx=1", a4)
	null.near.Learn(now(), b4, ether.MAC{2}, true)
	q := []pkt.Packet{lent(t, null, 1, 500, a4, b4)}
	if k := null.TxBurst(now(), q); k != 1 || null.Stats().TxPackets != 1 {
		t.Errorf("net_null: %d sent", k)
	}
	giveBack(null, q)
}

// The NIC's batch lies in buffers of its wires.
func TestDeviceBorrows(t *testing.T) {
	a, _ := plug(t)
	n, err := device.New(device.Config{Name: "a/mr0", Dev: "mr0", GUID: 1, Addrs: []netip.Addr{a4}, Ports: []device.Port{a}})
	if err != nil {
		t.Fatal(err)
	}
	if !n.Borrows() {
		t.Error("the device makes its own buffers")
	}
}

func BenchmarkWire(bm *testing.B) {
	for _, size := range []int{64, 1076, 4172} {
		bm.Run(fmt.Sprint(size), func(bm *testing.B) {
			a, b := plug(bm)
			meet(bm, a, b)
			var ps, rx [32]pkt.Packet
			for i := range ps {
				ps[i] = lent(bm, a, uint32(i), size, a4, b4)
			}
			bm.SetBytes(int64(size))
			bm.ResetTimer()
			for n := 0; n < bm.N; n += len(ps) {
				a.TxBurst(1, ps[:])
				for b.RxBurst(1, rx[:]) > 0 {
				}
			}
			giveBack(a, ps[:])
		})
	}
}
