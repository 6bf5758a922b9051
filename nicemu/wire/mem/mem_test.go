package mem

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("fd00::2")
	group = netip.MustParseAddr("239.1.2.3")
)

func packet(data string, src, dst netip.Addr) pkt.Packet {
	return pkt.Packet{Data: []byte(data), Src: src, Dst: dst, SrcPort: 0xc001, TOS: 2}
}

func frame(dst, src byte) pkt.Packet {
	return pkt.Packet{Kind: pkt.Ethernet, Data: append([]byte{2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src, 8, 0}, "hello"...)}
}

func rx(t *testing.T, p *Port) []string {
	t.Helper()
	var ps [pkt.Burst]pkt.Packet
	var out []string
	for i := range p.RxBurst(7, ps[:]) {
		if ps[i].Time != 7 || int(ps[i].Plane) != p.id {
			t.Errorf("time %d, plane %d", ps[i].Time, ps[i].Plane)
		}
		out = append(out, string(ps[i].Data))
	}
	return out
}

func TestDelivery(t *testing.T) {
	f := NewFabric()
	a, b, c := f.Port(1, "a/mr0", Options{}), f.Port(1, "b/mr0", Options{}), f.Port(2, "b/mr0", Options{})
	a.SetAddrs([]netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")})
	b.SetAddrs([]netip.Addr{addrB})
	c.SetAddrs([]netip.Addr{addrB})

	if a.NextWake() != mono.Never || b.NextWake() != mono.Never {
		t.Error("an idle port wants to be stepped")
	}
	data := []byte("one")
	p := pkt.Packet{Data: data, Src: addrA, Dst: addrB, SrcPort: 0xc001, TOS: 2}
	if n := a.TxBurst(5, []pkt.Packet{p, packet("two", addrA, addrB), packet("x", addrA, group)}); n != 3 {
		t.Fatal("taken", n)
	}
	copy(data, "XXX") // the sender may overwrite at once
	if w := b.NextWake(); w != 5 {
		t.Error("wake", w)
	}
	if got := fmt.Sprint(rx(t, b)); got != "[one two x]" {
		t.Error("b got", got)
	}
	//= MR-PATH-001
	if got := rx(t, c); got != nil {
		t.Error("the other plane got", got)
	}
	if b.TxBurst(5, []pkt.Packet{packet("back", addrB, addrA)}); fmt.Sprint(rx(t, a)) != "[back]" {
		t.Error("nothing came back")
	}

	// An address moves, then nobody has it.
	b.SetAddrs(nil)
	a.TxBurst(5, []pkt.Packet{packet("lost", addrA, addrB)})
	if n := a.Stats().Drops["no_destination"]; n != 1 {
		t.Error("no_destination", n)
	}
	b.Close()
	a.TxBurst(5, []pkt.Packet{packet("x", addrA, group)})
	if b.count != 0 || b.LinkUp() {
		t.Error("a closed port still receives")
	}
	if n := b.TxBurst(5, []pkt.Packet{packet("x", addrB, addrA)}); n != 1 || b.Stats().Drops["closed"] != 1 || a.count != 0 {
		t.Error("a closed port still sends")
	}
}

func TestFrames(t *testing.T) {
	f := NewFabric()
	a, b, c := f.Port(0, "a", Options{}), f.Port(0, "b", Options{}), f.Port(0, "c", Options{})
	a.TxBurst(0, []pkt.Packet{frame(2, 1)}) // unknown: everywhere
	if len(rx(t, a)) != 0 || len(rx(t, b)) != 1 || len(rx(t, c)) != 1 {
		t.Error("flood")
	}
	b.TxBurst(0, []pkt.Packet{frame(1, 2)}) // known: one place
	a.TxBurst(0, []pkt.Packet{frame(2, 1)})
	if len(rx(t, a)) != 1 || len(rx(t, b)) != 1 || len(rx(t, c)) != 0 {
		t.Error("learning")
	}
	c.TxBurst(0, []pkt.Packet{frame(1, 2)}) // the MAC moved
	a.TxBurst(0, []pkt.Packet{frame(2, 1), {Kind: pkt.Ethernet, Data: []byte("short")}})
	if len(rx(t, c)) != 1 || len(rx(t, b)) != 0 || a.Stats().Drops["short_frame"] != 1 {
		t.Error("move")
	}
}

func TestLimits(t *testing.T) {
	f := NewFabric()
	a, b := f.Port(0, "a", Options{PacketMax: 100}), f.Port(0, "b", Options{PacketMax: 100, Ring: 10})
	b.SetAddrs([]netip.Addr{addrB})
	exact := pkt.Packet{Data: make([]byte, 100), Dst: addrB}
	long := pkt.Packet{Data: make([]byte, 101), Dst: addrB}
	a.TxBurst(0, []pkt.Packet{exact, long})
	if a.Stats().Drops["too_long"] != 1 || b.count != 1 {
		t.Error("packet maximum", a.Stats(), b.count)
	}
	for range 20 {
		a.TxBurst(0, []pkt.Packet{exact})
	}
	if n := b.Stats().Drops["ring_full"]; n != 11 || b.count != 10 {
		t.Error("ring_full", n, b.count)
	}
}

// Buffers handed out stay whole until the next RxBurst, whatever arrives meanwhile.
func TestBuffersLive(t *testing.T) {
	f := NewFabric()
	a, b := f.Port(0, "a", Options{}), f.Port(0, "b", Options{Ring: 16})
	b.SetAddrs([]netip.Addr{addrB})
	var held [8]pkt.Packet
	seq := byte(0)
	send := func(n int) {
		for range n {
			seq++
			a.TxBurst(0, []pkt.Packet{{Data: bytes.Repeat([]byte{seq}, 64), Dst: addrB}})
		}
	}
	want := byte(0)
	for round := range 100 {
		send(1 + round%8)
		n := b.RxBurst(0, held[:])
		send(3)
		for i := range n {
			want++
			if !bytes.Equal(held[i].Data, bytes.Repeat([]byte{want}, 64)) {
				t.Fatalf("round %d: packet %d holds %d, want %d", round, i, held[i].Data[0], want)
			}
		}
		for n := b.RxBurst(0, held[:]); n > 0; n = b.RxBurst(0, held[:]) {
			want += byte(n)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	f := NewFabric()
	a, b := f.Port(0, "a", Options{}), f.Port(0, "b", Options{})
	b.SetAddrs([]netip.Addr{addrB})
	out := []pkt.Packet{packet("x", addrA, addrB), packet("y", addrA, group), frame(1, 2)}
	var in [pkt.Burst]pkt.Packet
	if n := testing.AllocsPerRun(100, func() {
		a.TxBurst(0, out)
		b.RxBurst(0, in[:])
		b.TxBurst(0, out)
		a.RxBurst(0, in[:])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWire(bm *testing.B) {
	for _, size := range []int{1024, 4096} {
		bm.Run(fmt.Sprint(size), func(bm *testing.B) {
			f := NewFabric()
			a, b := f.Port(0, "a", Options{}), f.Port(0, "b", Options{})
			b.SetAddrs([]netip.Addr{addrB})
			var out, in [pkt.Burst]pkt.Packet
			for i := range out {
				out[i] = pkt.Packet{Data: make([]byte, size), Dst: addrB}
			}
			bm.SetBytes(int64(size))
			for n := 0; n < bm.N; n += pkt.Burst {
				a.TxBurst(0, out[:])
				b.RxBurst(0, in[:])
			}
		})
	}
}
