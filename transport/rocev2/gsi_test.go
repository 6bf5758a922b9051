package rocev2_test

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// TestMAD: what is sent to QP 1 arrives there, over every plane in turn, and the queue is bounded.
func TestMAD(t *testing.T) {
	w := newWorld(config{link: usual(), planes: 3})
	a, b := w.nodes[0], w.nodes[1]
	var got [][]byte
	planes := map[uint8]int{}
	w.tap = func(_, _, _ int, p *pkt.Packet) bool { planes[p.Plane]++; return true }
	b.e.OnMAD(func(_ mono.Time, src, dst netip.Addr, mad []byte) {
		if src != a.addr || dst != b.addr {
			t.Errorf("from %v to %v", src, dst)
		}
		got = append(got, append([]byte(nil), mad...))
	})
	var mad [rocev2.MADLen]byte
	for i := range 600 {
		mad[0], mad[255] = byte(i), byte(i>>8)
		//= MR-COEX-036
		if ok := a.e.SendMAD(a.addr, b.addr, &mad); ok != (i < 512) {
			t.Fatalf("MAD %d: queued %v", i, ok)
		}
	}
	w.mustRun(t, mono.Millisecond, func() bool { return len(got) == 512 })
	for i, m := range got {
		if m[0] != byte(i) && len(planes) == 1 {
			t.Fatalf("MAD %d is %d", i, m[0])
		}
	}
	//= MR-COEX-037
	if len(planes) != 3 {
		t.Errorf("planes %v, want all three", planes)
	}
	if c := &a.e.C; c.TxMad != 512 || c.DropMadTx != 88 || b.e.C.RxMad != 512 {
		t.Errorf("counters: %d sent, %d dropped, %d received", c.TxMad, c.DropMadTx, b.e.C.RxMad)
	}
	for p := range 3 {
		a.e.SetPlane(w.now, p, false)
	}
	a.e.SendMAD(a.addr, b.addr, &mad)
	w.run(mono.Millisecond)
	if a.e.C.DropMadTx != 89 || a.e.NextTimeout() != mono.Never {
		t.Errorf("no plane: %d dropped, next at %v", a.e.C.DropMadTx, a.e.NextTimeout())
	}
}

// TestMADRefused: what is no MAD, or comes where nobody listens, is dropped and counted.
func TestMADRefused(t *testing.T) {
	w := newWorld(config{link: usual()})
	b := w.nodes[1]
	send := func(op ib.Opcode, key uint32, n int) {
		p := pkt.Packet{Src: w.nodes[0].addr, Dst: b.addr, TTL: 64, SrcPort: 0xc000}
		h := ib.Header{Op: op, PKey: ib.PKeyDefault, DestQP: 1, SrcQP: 1, QKey: key}
		buf := make([]byte, h.Size()+n+ib.ICRCLen)
		h.Put(buf)
		p.Data = buf
		var s ib.Summer
		s.Seal(&p)
		b.e.HandlePackets(w.now, []pkt.Packet{p})
	}
	const key = 0x8001_0000
	send(ib.UDSend, key, 256)
	if b.e.C.DropMadRx != 1 {
		t.Fatalf("nobody listens: %d dropped", b.e.C.DropMadRx)
	}
	heard := 0
	b.e.OnMAD(func(mono.Time, netip.Addr, netip.Addr, []byte) { heard++ })
	//= MR-COEX-036
	for i, c := range []struct {
		op   ib.Opcode
		key  uint32
		n    int
		want bool
	}{{ib.UDSend, key, 256, true}, {ib.UDSend, key, 252, false}, {ib.UDSend, key, 260, false}, {ib.UDSend, 1, 256, false}, {ib.UDSendImm, key, 256, false},
		{ib.SendOnly, key, 256, false}} {
		before := heard
		send(c.op, c.key, c.n)
		if (heard > before) != c.want {
			t.Errorf("%d: %+v: heard %v", i, c, heard > before)
		}
	}
	if b.e.C.DropMadRx != 6 {
		t.Errorf("%d dropped", b.e.C.DropMadRx)
	}
}

func TestMADAllocs(t *testing.T) {
	w := newWorld(config{link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	b.e.OnMAD(func(mono.Time, netip.Addr, netip.Addr, []byte) {})
	var mad [rocev2.MADLen]byte
	batch := pkt.NewBatch(pkt.Burst, 4200)
	a.e.SendMAD(a.addr, b.addr, &mad)
	if n := testing.AllocsPerRun(100, func() {
		a.e.SendMAD(a.addr, b.addr, &mad)
		batch.Reset()
		a.e.Transmit(w.now, batch)
		b.e.HandlePackets(w.now, batch.Pkts[:batch.N])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
