package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
)

var (
	a4, b4, c4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	a6, b6     = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
)

func open(t testing.TB, at string, o Options) *Port {
	t.Helper()
	ap, err := ParseURL(at)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(ap, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

var places byte

// place is a loopback address that no other test, of this or another run, uses.
func place() string {
	places++
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>8&63, pid&255, places)
}

// pair joins two planes, at one address as a rule, by their peer tables.
func pair(t testing.TB, o Options) (a, b *Port) {
	t.Helper()
	at := place()
	a = open(t, fmt.Sprintf("udp:%s:20000", at), o)
	b = open(t, fmt.Sprintf("udp:%s:%d", at, 20000+PortSpan), o)
	a.SetAddrs([]netip.Addr{a4, a6})
	b.SetAddrs([]netip.Addr{b4, b6})
	if err := a.SetPeer(b.LocalAddr(), b4, b6); err != nil {
		t.Fatal(err)
	}
	if err := b.SetPeer(a.LocalAddr(), a4, a6); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func packet(id uint32, n int, src, dst netip.Addr) pkt.Packet {
	b := bytes.Repeat([]byte{byte(id)}, n)
	b[0] = 0xc2
	binary.BigEndian.PutUint32(b[4:], id)
	return pkt.Packet{Data: b, Src: src, Dst: dst, SrcPort: 0xc000, TOS: pkt.ECT0}
}

// collect reads until n packets are there, and copies them.
func collect(t testing.TB, p *Port, n int) []pkt.Packet {
	t.Helper()
	var out []pkt.Packet
	var ps [pkt.Burst]pkt.Packet
	for end := time.Now().Add(5 * time.Second); len(out) < n; {
		k := p.RxBurst(7, ps[:])
		for _, q := range ps[:k] {
			q.Data = append([]byte(nil), q.Data...)
			out = append(out, q)
		}
		if k == 0 {
			if time.Now().After(end) {
				t.Fatalf("%d of %d packets came; %+v", len(out), n, p.Stats())
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	if k := p.RxBurst(7, ps[:]); k != 0 || p.NextWake() != mono.Never {
		t.Fatalf("%d packets too many", k)
	}
	return out
}

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{
		"udp:10.1.2.3": "10.1.2.3:4791", "udp:10.1.2.3:99": "10.1.2.3:99", "udp:fd00::1": "[fd00::1]:4791",
		"udp:[fd00::1]:99": "[fd00::1]:99", "0.0.0.0:1": "0.0.0.0:1", "udp:": "", "udp:host:1": "", "udp:1.2.3.4:": "", "udp:1.2.3.4:70000": "",
	} {
		got, err := ParseURL(url)
		if err == nil && got.String() != want || err != nil && want != "" {
			t.Errorf("%s: %v %v", url, got, err)
		}
	}
}

// Mixed lengths, destinations, entropies and TOS arrive whole; within a flow in order, with the right addresses.
func TestDelivery(t *testing.T) {
	for _, o := range []Options{{}, {NoTrains: true}} {
		t.Run(fmt.Sprintf("trains=%v", !o.NoTrains), func(t *testing.T) {
			a, b := pair(t, o)
			r := rng.New(1, "udp")
			sent := map[uint32]pkt.Packet{}
			var ps []pkt.Packet
			for id := range uint32(300) {
				src, dst := a4, b4
				if r.Chance(.3) {
					src, dst = a6, b6
				}
				q := packet(id, 16+r.IntN(4000), src, dst)
				if r.Chance(.8) {
					q = packet(id, 1052, src, dst)
				}
				q.SrcPort = uint16(0xc000 + r.IntN(3)*1000)
				q.TOS = uint8(r.IntN(3))
				sent[id] = q
				ps = append(ps, q)
			}
			for rest := ps; len(rest) > 0; {
				n := a.TxBurst(0, rest[:min(len(rest), pkt.Burst)])
				rest = rest[n:]
			}
			last := map[[3]any]uint32{}
			for _, q := range collect(t, b, len(ps)) {
				id := binary.BigEndian.Uint32(q.Data[4:])
				want := sent[id]
				if !bytes.Equal(q.Data, want.Data) || q.Src != want.Src || q.Dst != want.Dst || q.TOS != want.TOS || q.Time != 7 || q.Kind != pkt.RoCE {
					t.Fatalf("packet %d: %v → %v, TOS %d, %d bytes; want %v → %v, TOS %d, %d bytes", id, q.Src, q.Dst, q.TOS, len(q.Data), want.Src, want.Dst, want.TOS, len(want.Data))
				}
				flow := [3]any{want.SrcPort, want.Src, want.TOS}
				if l, ok := last[flow]; ok && l > id {
					t.Fatalf("flow %v: %d after %d", flow, id, l)
				}
				last[flow] = id
			}
			if s := a.Stats(); s.TxPackets != 300 || len(s.Drops) != 0 {
				t.Errorf("%+v", s)
			}
			if s := b.Stats(); s.RxPackets != 300 || s.RxBytes != a.Stats().TxBytes {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestIPv6(t *testing.T) {
	base := 15000 + os.Getpid()*(2*PortSpan)%15000
	a, b := open(t, fmt.Sprintf("udp:[::1]:%d", base), Options{}), open(t, fmt.Sprintf("udp:[::1]:%d", base+PortSpan), Options{})
	a.SetAddrs([]netip.Addr{a4})
	b.SetAddrs([]netip.Addr{b4})
	a.SetPeer(b.LocalAddr(), b4)
	b.SetPeer(a.LocalAddr(), a4)
	q := packet(1, 100, a4, b4)
	q.TOS = pkt.CE
	a.TxBurst(0, []pkt.Packet{q, q, q})
	for _, q := range collect(t, b, 3) {
		if q.Src != a4 || q.Dst != b4 || q.TOS != pkt.CE {
			t.Errorf("%+v", q)
		}
	}
	if err := a.SetPeer(netip.MustParseAddrPort("127.0.0.1:1"), c4); err == nil {
		t.Error("a peer of another family")
	}
}

// Without a table the addresses of the NICs are UDP addresses, as in plain RoCEv2.
func TestNoTable(t *testing.T) {
	x, y := netip.MustParseAddr(place()), netip.MustParseAddr(place())
	a, b := open(t, "udp:"+x.String(), Options{}), open(t, "udp:"+y.String(), Options{})
	a.SetAddrs([]netip.Addr{x})
	b.SetAddrs([]netip.Addr{y})
	a.TxBurst(0, []pkt.Packet{packet(1, 100, x, y)})
	if q := collect(t, b, 1)[0]; q.Src != x || q.Dst != y {
		t.Errorf("%v → %v", q.Src, q.Dst)
	}
}

func TestPeerTable(t *testing.T) {
	var p peers
	p.init()
	at := netip.MustParseAddrPort
	p.set(at("127.0.0.1:1000"), rawAddr{}, []netip.Addr{a4, a6})
	p.set(at("127.0.0.1:2000"), rawAddr{}, []netip.Addr{b4})
	p.set(at("127.0.0.2:1000"), rawAddr{}, []netip.Addr{c4})
	for from, want := range map[string]netip.Addr{
		"127.0.0.1:1001": a4, "127.0.0.1:1008": a4, "127.0.0.1:1009": a6, "127.0.0.1:2008": b4,
		"127.0.0.1:9": {}, // one of two, who knows
		"127.0.0.2:9": c4, // the only one there
		"127.0.0.3:9": netip.MustParseAddr("127.0.0.3"),
	} {
		if got := p.source(at(from)); got != want {
			t.Errorf("%s: %v, want %v", from, got, want)
		}
	}
	p.set(at("127.0.0.1:1000"), rawAddr{}, nil)
	if p.to[a4] != nil || p.source(at("127.0.0.1:9")) != b4 || len(p.list) != 2 {
		t.Error("a removed peer stays")
	}
}

func TestDrops(t *testing.T) {
	a, b := pair(t, Options{PacketMax: 1000})
	exact, long := packet(1, 1000, a4, b4), packet(2, 1001, a4, b4)
	group := packet(3, 100, a4, netip.MustParseAddr("239.0.0.1"))
	family := packet(4, 100, a4, netip.MustParseAddr("fd00::77"))
	if n := a.TxBurst(0, []pkt.Packet{long, exact, group, family, {Dst: b4}, exact}); n != 6 {
		t.Error("settled", n)
	}
	collect(t, b, 2)
	if d := a.Stats().Drops; d["too_long"] != 1 || d["address_family"] != 1 || d["short"] != 1 {
		t.Error(d)
	}
	big := open(t, "udp:"+place(), Options{})
	big.SetPeer(b.LocalAddr(), b4)
	big.TxBurst(0, []pkt.Packet{packet(1, 1001, a4, b4)})
	for end := time.Now().Add(time.Second); b.Stats().Drops["too_long"] == 0 && time.Now().Before(end); {
		var ps [4]pkt.Packet
		b.RxBurst(0, ps[:])
	}
	if d := b.Stats().Drops; d["too_long"] != 1 {
		t.Error(d)
	}
	if !a.LinkUp() {
		t.Error("lo is down?")
	}
	a.Close()
	if a.TxBurst(0, []pkt.Packet{exact}) != 1 || a.LinkUp() || a.Stats().Drops["closed"] != 1 {
		t.Error("closed")
	}
	if _, err := Open(b.LocalAddr(), Options{}); err == nil {
		t.Error("a second plane at one port")
	}
	if _, err := Open(netip.MustParseAddrPort("203.0.113.9:1"), Options{}); err == nil {
		t.Error("an address that is not ours")
	}
}

// A full socket holds its packets back, refuses more, and loses nothing.
func TestFullSocket(t *testing.T) {
	a, b := pair(t, Options{NoTrains: true})
	r := rng.New(1, "full")
	a.tx.call = func(fd int, m []mmsghdr) (int, unix.Errno) { // loopback is never full
		if r.Chance(.4) {
			return 0, []unix.Errno{unix.EAGAIN, unix.ENOBUFS}[r.IntN(2)]
		}
		return sendmmsg(fd, m[:1+r.IntN(len(m))])
	}
	var in [pkt.Burst]pkt.Packet
	id, got, refused := uint32(0), 0, 0
	last := map[uint16]uint32{}
	for round := 0; got < 2000 && round < 100_000; round++ {
		var out []pkt.Packet
		for i := range uint32(40) {
			q := packet(id+i, 1000, a4, b4)
			q.SrcPort = uint16(0xc000 + 61*i%5)
			out = append(out, q)
		}
		n := a.TxBurst(0, out)
		if id += uint32(n); n < len(out) {
			refused++
			if a.NextWake() == mono.Never {
				t.Fatal("nobody comes back")
			}
		}
		a.RxBurst(0, in[:])
		if round%3 > 0 {
			continue
		}
		k := b.RxBurst(0, in[:])
		for _, q := range in[:k] {
			if n := binary.BigEndian.Uint32(q.Data[4:]); last[q.SrcPort] > n {
				t.Fatal("order", last[q.SrcPort], n)
			} else {
				last[q.SrcPort] = n
			}
		}
		got += k
	}
	for a.NextWake() != mono.Never {
		got += b.RxBurst(0, in[:])
		a.RxBurst(0, in[:])
	}
	got += len(collect(t, b, int(id)-got))
	if refused == 0 || got != int(id) {
		t.Errorf("refused %d times, %d of %d arrived, %v %v", refused, got, id, a.Stats(), b.Stats())
	}
}

func TestTunnel(t *testing.T) {
	a, b := pair(t, Options{})
	c := open(t, "udp:"+place(), Options{})
	c.SetAddrs([]netip.Addr{c4})
	a.SetPeer(c.LocalAddr(), c4)
	c.SetPeer(a.LocalAddr(), a4)
	frame := func(dst, src byte, n int) pkt.Packet {
		f := append([]byte{2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src, 8, 0}, bytes.Repeat([]byte{9}, n)...)
		return pkt.Packet{Kind: pkt.Ethernet, Data: f}
	}
	for n := range 9 { // every pad
		a.TxBurst(0, []pkt.Packet{packet(1, 50, a4, b4), frame(2, 1, n), packet(2, 50, a4, b4)}) // unknown: to both
		got := collect(t, b, 3)
		if got[0].Kind+got[1].Kind+got[2].Kind != pkt.Ethernet {
			t.Error("kinds")
		}
		for _, q := range got {
			if q.Kind == pkt.Ethernet && !bytes.Equal(q.Data, frame(2, 1, n).Data) {
				t.Errorf("frame of %d bytes came as %d", 14+n, len(q.Data))
			}
		}
		collect(t, c, 1)
	}
	b.TxBurst(0, []pkt.Packet{frame(1, 2, 50)}) // b knows 1 already, a learns 2
	collect(t, a, 1)
	a.TxBurst(0, []pkt.Packet{frame(2, 1, 50)})
	collect(t, b, 1)
	collect(t, c, 0)
	if m := a.FrameMax(); m < 4096+14 {
		t.Error("frame maximum", m)
	}
	a.TxBurst(0, []pkt.Packet{{Kind: pkt.Ethernet, Data: frame(2, 1, a.FrameMax()-14).Data}, {Kind: pkt.Ethernet, Data: frame(2, 1, a.FrameMax()-13).Data}})
	collect(t, b, 1)
	if d := a.Stats().Drops; d["too_long"] != 1 {
		t.Error(d)
	}
	bad := packet(3, 60, a4, b4) // opcode of a tunnel, not sealed
	bad.Data[0] = 0xd8
	a.TxBurst(0, []pkt.Packet{bad, packet(4, 50, a4, b4)})
	if collect(t, b, 1); b.Stats().Drops["bad_tunnel"] != 1 {
		t.Error(b.Stats().Drops)
	}
}

func TestNoAllocation(t *testing.T) {
	for _, o := range []Options{{}, {NoTrains: true}} {
		a, b := pair(t, o)
		var out []pkt.Packet
		for id := range uint32(8) {
			out = append(out, packet(id, 1000, a4, b4))
		}
		out = append(out, pkt.Packet{Kind: pkt.Ethernet, Data: make([]byte, 60)})
		var in [pkt.Burst]pkt.Packet
		if n := testing.AllocsPerRun(100, func() {
			a.TxBurst(0, out)
			for b.RxBurst(0, in[:]) > 0 {
			}
			a.LinkUp()
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// One core does both ends: half of what a pair of cores would do.
func BenchmarkWire(bm *testing.B) {
	for _, o := range []Options{{}, {NoTrains: true}} {
		for _, size := range []int{1052, 4148} {
			for _, flows := range []int{1, 16} { // packets of a burst in one flow, or path after path
				bm.Run(fmt.Sprintf("trains=%v/%d/flows=%d", !o.NoTrains, size, flows), func(bm *testing.B) {
					a, b := pair(bm, o)
					var out, in [pkt.Burst]pkt.Packet
					for i := range out {
						out[i] = packet(uint32(i), size, a4, b4)
						out[i].SrcPort = uint16(0xc000 + i%flows*37)
					}
					bm.SetBytes(int64(size))
					bm.ResetTimer()
					got := 0
					for n := 0; n < bm.N; n += pkt.Burst {
						for rest := out[:]; len(rest) > 0; {
							rest = rest[a.TxBurst(0, rest):]
						}
						for k := b.RxBurst(0, in[:]); k > 0; k = b.RxBurst(0, in[:]) {
							got += k
						}
					}
					bm.ReportMetric(float64(got)*float64(size)*8/1e9/bm.Elapsed().Seconds(), "Gbit/s")
					bm.ReportMetric(float64(got)/float64((bm.N+pkt.Burst-1)/pkt.Burst*pkt.Burst), "arrived")
				})
			}
		}
	}
}

// Everything that waits is read, burst after burst without an empty one between.
func TestBacklog(t *testing.T) {
	for _, o := range []Options{{}, {NoTrains: true}} {
		a, b := pair(t, o)
		var out [pkt.Burst]pkt.Packet
		for i := range out {
			out[i] = packet(uint32(i), 100, a4, b4)
		}
		for range 10 {
			a.TxBurst(0, out[:])
		}
		got := 0
		var in [pkt.Burst - 1]pkt.Packet
		for k := b.RxBurst(0, in[:]); k > 0; k = b.RxBurst(0, in[:]) {
			got += k
		}
		if got != 640 {
			t.Errorf("%+v: %d packets in one go, %v", o, got, b.Stats())
		}
	}
}

// A device that cannot segment: trains end, and nothing is lost.
func TestNoSegmentation(t *testing.T) {
	a, b := pair(t, Options{})
	a.tx.call = func(fd int, m []mmsghdr) (int, unix.Errno) {
		if m[0].hdr.Iovlen > 1 {
			return 0, unix.EIO
		}
		return sendmmsg(fd, m[:1])
	}
	var out []pkt.Packet
	for id := range uint32(20) {
		out = append(out, packet(id, 500, a4, b4))
	}
	if n := a.TxBurst(0, out); n != 20 || a.Trains() {
		t.Error(n, a.Trains())
	}
	collect(t, b, 20)
	if d := a.Stats().Drops; len(d) != 0 {
		t.Error(d)
	}
}
