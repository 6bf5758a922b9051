package transporttest

import (
	"bytes"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

const second = mono.Second

// usual is a link of 100 Gbit/s with 4 µs of delay.
func usual() link.Spec {
	return link.Spec{RateBps: 100e9, Delay: 4 * mono.Microsecond, Queue: 256 << 10}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i*7) + byte(i>>8)
	}
}

func TestSendRecv(t *testing.T) {
	w := New(Config{Seed: 1, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{})
	sizes := []uint32{0, 1, 64, 65, 4095, 4096, 4097, 100_000}
	off := uint64(0)
	for i, n := range sizes {
		fill(a.Mem[off:off+uint64(n)], byte(i))
		q.Recv(uint64(i), off, n+10)
		p.Send(WR{ID: uint64(i), Op: transport.OpSend, Local: off, N: n})
		off += uint64(n) + 16
	}
	if !w.RunUntil(second, func() bool { return len(p.Sends) == len(sizes) && len(q.Received) == len(sizes) }) {
		t.Fatalf("stuck: %d sends, %d receives; %+v", len(p.Sends), len(q.Received), a.E.C)
	}
	off = 0
	for i, n := range sizes {
		if c := q.Received[i]; c.ID != uint64(i) || c.Len != n || c.Status != transport.OK {
			t.Errorf("receive %d: %+v", i, c)
		}
		if !bytes.Equal(a.Mem[off:off+uint64(n)], b.Mem[off:off+uint64(n)]) {
			t.Errorf("message %d of %d bytes differs", i, n)
		}
		off += uint64(n) + 16
	}
}

func TestWriteReadAtomic(t *testing.T) {
	w := New(Config{Seed: 2, Planes: 4, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{})
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	const n = 300_000
	fill(a.Mem[:n], 3)
	p.Send(WR{ID: 1, Op: transport.OpWrite, Local: 0, Remote: 5, N: n, Key: 7})
	p.Send(WR{ID: 2, Op: transport.OpRead, Local: 1 << 20, Remote: 5, N: n, Key: 7})
	p.Send(WR{ID: 3, Op: transport.OpFetchAdd, Local: 2 << 20, Remote: 1<<20 - 8, N: 8, Key: 7, Compare: 5})
	p.Send(WR{ID: 4, Op: transport.OpCmpSwap, Local: 2<<20 + 8, Remote: 1<<20 - 8, N: 8, Key: 7, Compare: 5, Swap: 99})
	p.Send(WR{ID: 5, Op: transport.OpRead, Local: 2<<20 + 16, Remote: 1<<20 - 8, N: 8, Key: 7, Flags: transport.FlagFence})
	if !w.RunUntil(second, func() bool { return len(p.Sends) == 5 }) {
		t.Fatalf("stuck: %v %+v", p.Sends, a.E.C)
	}
	for i, c := range p.Sends {
		if c.Status != transport.OK || c.ID != uint64(i+1) {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
	if !bytes.Equal(a.Mem[:n], b.Mem[5:5+n]) || !bytes.Equal(a.Mem[:n], a.Mem[1<<20:1<<20+n]) {
		t.Error("data differs")
	}
	if a.Mem[2<<20] != 0 || a.Mem[2<<20+8] != 5 || a.Mem[2<<20+16] != 99 {
		t.Errorf("atomics: %d %d %d", a.Mem[2<<20], a.Mem[2<<20+8], a.Mem[2<<20+16])
	}
}

// goodput moves data one way for a while and returns bytes a second of virtual time.
func goodput(t *testing.T, c Config, d mono.Duration, at func(w *World)) float64 {
	t.Helper()
	w := New(c)
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{SQ: 64})
	b.Keys[7] = Key{0, 4 << 20, true, true, true, false}
	const n = 1 << 20
	post := func() { p.Send(WR{Op: transport.OpWrite, Remote: 0, N: n, Key: 7}) }
	for range 16 {
		post()
	}
	p.OnSend = func(c Completion) {
		if c.Status != transport.OK {
			t.Fatalf("completion %+v", c)
		}
		post()
	}
	w.Run(10 * mono.Millisecond)
	if at != nil {
		at(w)
	}
	first := len(p.Sends)
	start := w.Now
	w.Run(d)
	got := float64(len(p.Sends)-first) * n / w.Now.Sub(start).Seconds()
	t.Logf("goodput %.2f Gbit/s  retransmits %d spurious %d gap %d time %d timeout %d", got*8/1e9, a.E.C.Retransmits, a.E.C.SpuriousLosses,
		a.E.C.LostGap, a.E.C.LostTime, a.E.C.LostTimeout)
	return got
}

func TestGoodputUnderLoss(t *testing.T) {
	base := goodput(t, Config{Seed: 3, Planes: 4, Link: usual()}, 4*mono.Millisecond, nil)
	for _, x := range []struct{ loss, keep float64 }{{0.01, 0.975}, {0.05, 0.935}, {0.10, 0.875}} {
		l := usual()
		l.Loss = x.loss
		got := goodput(t, Config{Seed: 3, Planes: 4, Link: l}, 4*mono.Millisecond, nil)
		t.Logf("loss %.0f %%: %.1f %% kept", x.loss*100, 100*got/base)
		if got < x.keep*base {
			t.Errorf("loss %.0f %%: only %.1f %% of loss-free", x.loss*100, 100*got/base)
		}
	}
	if base < 4*90e9/8*0.9 {
		t.Errorf("loss-free goodput %.2f Gbit/s of 400", base*8/1e9)
	}
}
