package udp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

var group4, group6 = netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff0e::1:2:3")

// plain is a UD packet of RoCEv2 with n bytes of payload.
func plain(t testing.TB, n int, src, dst netip.Addr, port uint16) pkt.Packet {
	t.Helper()
	h := ib.Header{Op: ib.UDSend, PKey: ib.PKeyDefault, DestQP: 17}
	k := h.Size()
	q := pkt.Packet{Data: make([]byte, k+(n+3)&^3+icrcLen), Src: src, Dst: dst, SrcPort: port, TOS: 2}
	h.PadFor(n)
	h.Put(q.Data)
	var s ib.Summer
	s.Seal(&q)
	return q
}

// The ICRC fits what the receiver sees, whichever socket the packet left from, and a packet that a full socket refused
// is as good as another.
func TestPlainRoCE(t *testing.T) {
	a, b := pair(t, Options{})
	var out []pkt.Packet
	for i := range 40 {
		src, dst := a4, b4
		if i%2 == 1 {
			src, dst = a6, b6
		}
		out = append(out, plain(t, 1000, src, dst, uint16(0xc000+i*7)))
	}
	before := append([]byte(nil), out[3].Data...)
	full := 3
	send := a.tx.call
	a.tx.call = func(fd int, m []mmsghdr) (int, unix.Errno) {
		if full--; full == 0 {
			return 0, unix.EAGAIN
		}
		for i := range m { // each is a datagram of its own, with the ICRC apart
			//= MR-COEX-012
			if m[i].hdr.Iovlen != 2 {
				t.Errorf("%d pieces", m[i].hdr.Iovlen)
			}
		}
		return send(fd, m)
	}
	if n := a.TxBurst(0, out); n != len(out) {
		t.Fatal(n)
	}
	if string(before) != string(out[3].Data) {
		t.Error("the wire wrote into the packet")
	}
	a.RxBurst(0, make([]pkt.Packet, 1)) // tries what is held
	var s ib.Summer
	for _, q := range collect(t, b, len(out)) {
		if !s.Good(&q) {
			t.Errorf("ICRC of %v → %v from port %d", q.Src, q.Dst, q.SrcPort)
		}
		if q.TTL != 64 || q.IPID != 0 || q.NoDF {
			t.Errorf("%+v", q)
		}
	}
	broken := plain(t, 100, a4, b4, 0xc001)
	broken.Data[20] ^= 1
	a.TxBurst(0, []pkt.Packet{broken})
	if q := collect(t, b, 1)[0]; s.Good(&q) {
		t.Error("a broken packet was mended")
	}
}

// Multicast goes to every peer that is in the group, with all that the ICRC covers; others hand it to their host.
func TestMulticast(t *testing.T) {
	a, b := pair(t, Options{})
	p4, p6 := plain(t, 4096, a4, group4, 0xc123), plain(t, 999, a6, group6, 0xc123)
	p6.FlowLabel, p6.TTL = 0x12345, 3
	var s ib.Summer
	s.Seal(&p6)
	a.TxBurst(0, []pkt.Packet{p4})
	if q := collect(t, b, 1)[0]; q.Kind != pkt.Ethernet {
		t.Errorf("%+v", q)
	}
	b.SetGroups([]netip.Addr{group4, group6})
	a.TxBurst(0, []pkt.Packet{p4, p6, plain(t, 10, a4, netip.MustParseAddr("239.9.9.9"), 1)})
	got := collect(t, b, 3)
	for i, want := range []pkt.Packet{p4, p6} {
		q := got[i]
		if want.TTL == 0 {
			want.TTL = 64
		}
		if q.Kind != pkt.RoCE || q.Src != want.Src || q.Dst != want.Dst || q.TTL != want.TTL || q.FlowLabel != want.FlowLabel ||
			q.SrcPort != 0xc123 || q.TOS != want.TOS || string(q.Data) != string(want.Data) || !s.Good(&q) {
			t.Errorf("%+v", q)
		}
	}
	if got[2].Kind != pkt.Ethernet {
		t.Errorf("%+v", got[2])
	}
	one := []pkt.Packet{p4}
	if n := testing.AllocsPerRun(100, func() { a.TxBurst(0, one) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A datagram does not say which of a NIC's addresses it is for. Plain RoCEv2 to another than the first of its family arrives
// all the same, with all that the ICRC covers.
func TestPlainRoCESecondAddress(t *testing.T) {
	a, b := pair(t, Options{})
	d4, e4, d6 := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8"), netip.MustParseAddr("fd00::7")
	b.SetAddrs([]netip.Addr{b4, d4, b6, e4, d6})
	a.SetAddrs([]netip.Addr{a4, a6, c4})
	if err := a.SetPeer(b.LocalAddr(), b4, d4, b6, e4, d6); err != nil {
		t.Fatal(err)
	}
	if err := b.SetPeer(a.LocalAddr(), a4, a6, c4); err != nil {
		t.Fatal(err)
	}
	long := func(src, dst netip.Addr) pkt.Packet { // the longest that there is
		h := ib.Header{Op: ib.WriteOnlyImm, PKey: ib.PKeyDefault, DestQP: 17, Len: 4096}
		k := h.Size()
		q := pkt.Packet{Data: make([]byte, k+4096+icrcLen), Src: src, Dst: dst, SrcPort: 0xc077, TOS: 2, TTL: 9}
		h.Put(q.Data)
		var s ib.Summer
		s.Seal(&q)
		return q
	}
	out := []pkt.Packet{plain(t, 1000, a4, b4, 0xc001), plain(t, 1000, a4, d4, 0xc002), plain(t, 64, c4, e4, 0xc003), plain(t, 1000, a6, b6, 0xc004),
		plain(t, 4096, a6, d6, 0xc005), long(a4, d4), long(a6, d6), plain(t, 1000, a4, b4, 0xc006)}
	if n := a.TxBurst(0, out); n != len(out) {
		t.Fatal(n)
	}
	left := map[netip.Addr]int{}
	for _, q := range out {
		left[q.Dst]++
	}
	var s ib.Summer
	for _, q := range collect(t, b, len(out)) {
		if left[q.Dst]--; q.Kind != pkt.RoCE || !s.Good(&q) || q.TOS != 2 {
			t.Errorf("kind %v, %v → %v, TOS %d, ICRC good: %v", q.Kind, q.Src, q.Dst, q.TOS, s.Good(&q))
		}
	}
	for d, n := range left {
		if n != 0 {
			t.Errorf("%d too few to %v", n, d)
		}
	}
	one := []pkt.Packet{out[0]}
	if n := testing.AllocsPerRun(100, func() { a.TxBurst(0, one) }); n != 0 {
		t.Errorf("%v allocations, directly", n)
	}
	one[0] = out[1]
	if n := testing.AllocsPerRun(100, func() { a.TxBurst(0, one) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The same for MetaRoCE, whose associations are between two addresses: it never came up with another than the first.
func TestMetaRoCESecondAddress(t *testing.T) {
	a, b := pair(t, Options{})
	d4, d6 := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")
	b.SetAddrs([]netip.Addr{b4, d4, b6, d6})
	a.SetAddrs([]netip.Addr{a4, c4, a6})
	if err := a.SetPeer(b.LocalAddr(), b4, d4, b6, d6); err != nil {
		t.Fatal(err)
	}
	if err := b.SetPeer(a.LocalAddr(), a4, c4, a6); err != nil {
		t.Fatal(err)
	}
	hello, control := packet(3, 600, a4, d4), packet(6, 64, a6, d6)
	hello.Data[0], control.TOS = byte(wire.OpHello), 48<<2|pkt.ECT0
	marked := packet(7, 64, c4, d4)
	marked.TOS = pkt.CE
	out := []pkt.Packet{packet(0, 1052, a4, b4), packet(1, 1052, a4, d4), packet(2, DefaultPacketMax, c4, d4), hello, packet(4, 1052, a6, b6),
		packet(5, DefaultPacketMax, a6, d6), control, marked}
	if n := a.TxBurst(0, out); n != len(out) {
		t.Fatal(n)
	}
	left := map[uint32]pkt.Packet{}
	for _, q := range out {
		left[binary.BigEndian.Uint32(q.Data[4:])] = q
	}
	for _, q := range collect(t, b, len(out)) {
		id := binary.BigEndian.Uint32(q.Data[4:])
		want := left[id]
		if q.Kind != pkt.RoCE || q.Src != want.Src || q.Dst != want.Dst || q.TOS != want.TOS || !bytes.Equal(q.Data, want.Data) {
			t.Errorf("packet %d: kind %v, %v → %v, TOS %d; want %v → %v, TOS %d", id, q.Kind, q.Src, q.Dst, q.TOS, want.Src, want.Dst, want.TOS)
		}
		delete(left, id)
	}
	a.TxBurst(0, []pkt.Packet{control})
	if collect(t, b, 1); b.rx.head.TOS != control.TOS {
		t.Errorf("TOS %d around TOS %d", b.rx.head.TOS, control.TOS)
	}
	one := []pkt.Packet{out[1]}
	if n := testing.AllocsPerRun(100, func() { a.TxBurst(0, one) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A mark on the datagram is a mark on what is inside, where that takes marks.
func TestMarkInside(t *testing.T) {
	f := make([]byte, etherLen+ipv4Len+udpLen+64)
	for tos, want := range map[uint8]uint8{pkt.ECT0: pkt.CE, 0: 0, 48<<2 | pkt.ECT0: 48<<2 | pkt.CE} {
		in := packet(1, 64, a4, b4)
		in.TOS = tos
		putFrame(f, etherLen+ipv4Len+udpLen, &in)
		p := &Port{addrs: []netip.Addr{b4}}
		p.caps.PacketMax = DefaultPacketMax
		p.rx.head.TOS = pkt.CE
		var q pkt.Packet
		if !p.inside(f, &q) || q.TOS != want {
			t.Errorf("TOS %d became %d, want %d", tos, q.TOS, want)
		}
	}
}

// Frames of strangers never panic.
func FuzzMulticast(f *testing.F) {
	for _, d := range [][2]netip.Addr{{a4, group4}, {a6, group6}, {b4, a4}, {b6, a6}} {
		q := pkt.Packet{Src: d[0], Dst: d[1], Data: make([]byte, 40)}
		head := etherLen + ipv4Len + udpLen
		if d[1].Is6() {
			head = etherLen + ipv6Len + udpLen
		}
		b := make([]byte, head+40)
		putFrame(b, head, &q)
		f.Add(b)
	}
	p := &Port{addrs: []netip.Addr{a4, a6}}
	p.caps.PacketMax = DefaultPacketMax
	p.SetGroups([]netip.Addr{group4, group6})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var q pkt.Packet
		if p.inside(frame, &q) && (len(q.Data) == 0 || len(q.Data) > len(frame)) {
			t.Error("data")
		}
	})
}
