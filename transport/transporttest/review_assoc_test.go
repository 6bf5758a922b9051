package transporttest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// noDrops sends messages both ways and fails when the receivers threw any packet away.
func noDrops(t *testing.T, w *World, p, q *QP, what string) {
	t.Helper()
	for i := range 60 {
		ping(t, w, p, q, fmt.Sprintf("%s, message %d", what, i))
		ping(t, w, q, p, fmt.Sprintf("%s, message %d back", what, i))
	}
	for _, n := range []*Node{p.N, q.N} {
		if c := n.E.C; c.DropOld+c.DropDup+c.DropAge+c.DropStaleQP+c.DropTag+c.DropAddr > 0 {
			t.Errorf("%s: node %d: old %d dup %d age %d stale %d tag %d addr %d", what, n.I, c.DropOld, c.DropDup, c.DropAge, c.DropStaleQP, c.DropTag, c.DropAddr)
		}
	}
}

// TestRestartUnseen: the peer restarts while no QP is there to notice. New QPs must work whoever speaks first.
func TestRestartUnseen(t *testing.T) {
	for _, first := range []int{0, 1} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			w := New(Config{Seed: 1, Planes: 2, Link: usual()})
			a, b := w.Nodes[0], w.Nodes[1]
			p, q := w.Connect(a, b, QPOptions{})
			noDrops(t, w, p, q, "before")
			p.Destroy(w.Now)
			w.Now = w.Now.Add(second)
			b.Start(77)
			p, q = w.Connect(a, b, QPOptions{})
			if first == 0 {
				ping(t, w, p, q, "a first")
			} else {
				ping(t, w, q, p, "b first")
			}
			a.E.C, b.E.C = metaroce.Counters{}, metaroce.Counters{}
			noDrops(t, w, p, q, "after")
		})
	}
}

// TestReapOneSide: one side forgets the association, the other one remembers it.
func TestReapOneSide(t *testing.T) {
	for _, first := range []int{0, 1} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			w := New(Config{Seed: 3, Planes: 2, Link: usual()})
			a, b := w.Nodes[0], w.Nodes[1]
			p, q := w.Connect(a, b, QPOptions{})
			noDrops(t, w, p, q, "before")
			p.Destroy(w.Now) // q stays
			w.Run(mono.Millisecond)
			for range 40 {
				w.Now = w.Now.Add(second)
				a.E.HandleTimers(w.Now)
				a.E.NextTimeout()
			}
			if n := len(a.E.Assocs()); n != 0 {
				t.Fatalf("%d associations", n)
			}
			p, q = w.Connect(a, b, QPOptions{})
			if first == 0 {
				ping(t, w, p, q, "a first")
			} else {
				ping(t, w, q, p, "b first")
			}
			a.E.C, b.E.C = metaroce.Counters{}, metaroce.Counters{}
			noDrops(t, w, p, q, "after")
		})
	}
}

// TestReapTakesNoTimer: associations that nobody uses go although nothing else happens.
func TestReapTakesNoTimer(t *testing.T) {
	w := New(Config{Seed: 3, Planes: 2, Link: usual()})
	p, q := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{})
	ping(t, w, p, q, "first")
	p.Destroy(w.Now)
	q.Destroy(w.Now)
	for range 50 { // as a device does: it looks at NextTimeout, and at its ports now and then
		for _, n := range w.Nodes {
			if n.E.NextTimeout() <= w.Now {
				n.E.HandleTimers(w.Now)
			}
			n.batch.Reset()
			n.E.Transmit(w.Now, n.batch)
		}
		w.Now = w.Now.Add(second)
	}
	for i, n := range w.Nodes {
		if k := len(n.E.Assocs()); k != 0 {
			t.Errorf("node %d still has %d associations", i, k)
		}
	}
}

// TestIdleInFlight: a handshake that is begun again and never ends leaves nothing behind when its QPs go.
func TestIdleInFlight(t *testing.T) {
	w := New(Config{Seed: 3, Planes: 2, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, q := w.Connect(a, b, QPOptions{Timeout: 255})
	ping(t, w, p, q, "first")
	b.Start(9)
	a.E.C.StaleReceived = 0
	for range 64 {
		p.Send(WR{Op: transport.OpWrite, N: 100_000, Key: 7})
	}
	w.RunUntil(second, func() bool {
		if a.E.C.StaleReceived > 0 {
			d := usual()
			d.Down = true
			w.SetLinks(d)
			return true
		}
		return false
	})
	p.Destroy(w.Now)
	if n := a.E.InFlight(); n != 0 {
		t.Errorf("%d in flight", n)
	}
	for range 40 {
		w.Now = w.Now.Add(second)
		a.E.HandleTimers(w.Now)
		a.E.NextTimeout()
	}
	if n := len(a.E.Assocs()); n != 0 {
		t.Errorf("%d associations", n)
	}
}

// TestTooManyStrangers: strangers may fill the table of associations, but not keep the NIC's own QPs out.
func TestTooManyStrangers(t *testing.T) {
	f := newStranger(t, Config{Seed: 1, Planes: 1})
	for i := range 4200 {
		f.addr = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		h := f.hello
		h.Stage, h.NICID = wire.HelloInit, uint64(i)
		for _, x := range f.deliver(f.helloPacket(h, 0)) {
			h.Stage, h.Cookie = wire.HelloConfirm, x.Hello.Cookie
			f.deliver(f.helloPacket(h, 0))
		}
	}
	if n := len(f.n.E.Assocs()); n > 4096 {
		t.Errorf("%d associations", n)
	}
	q := f.n.NewQP(QPOptions{})
	//= MR-SEC-004
	if !q.ToRTR(f.w.Now, metaroce.RTRAttr{Local: f.n.Addr, Remote: netip.MustParseAddr("10.0.9.9"), RemoteQPN: 5, PathMTU: 1024}) {
		t.Error("no room for a QP")
	}
}

// TestHelloLost loses one message after the other of the handshake, on every plane, in both directions.
func TestHelloLost(t *testing.T) {
	for _, both := range []bool{false, true} {
		for st := wire.HelloInit; st <= wire.HelloAccept; st++ {
			for from := range 2 {
				for count := 1; count <= 4; count++ {
					s := newScript(t, Config{Seed: 4, Planes: 2})
					n := 0
					s.fate = func(x *sent) mono.Duration {
						if x.Op == wire.OpHello && x.Hello.Stage == st && x.From == from && n < count {
							n++
							return lost
						}
						return 0
					}
					p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{})
					q.Recv(1, 0, 100)
					p.Recv(1, 0, 100)
					p.Send(WR{Op: transport.OpSend, N: 10})
					if both {
						q.Send(WR{Op: transport.OpSend, N: 10})
					}
					if !s.until(second, func() bool { return len(p.Sends) == 1 && len(q.Received) == 1 && (!both || len(q.Sends) == 1) }) {
						t.Errorf("%v %d times from %d, both %v: stuck\n%s\n%s", st, count, from, both, p.Dump(), q.Dump())
						continue
					}
					if p.Sends[0].Status != transport.OK {
						t.Errorf("%v %d times from %d: %+v", st, count, from, p.Sends)
					}
				}
			}
		}
	}
}

// TestSelf: a QP connected to itself, and two QPs of one NIC.
func TestSelf(t *testing.T) {
	for _, planes := range []int{1, 4} {
		w := New(Config{Seed: 5, Nodes: 1, Planes: planes, Link: usual()})
		a := w.Nodes[0]
		a.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		p := a.NewQP(QPOptions{})
		p.Join(p, QPOptions{})
		ping(t, w, p, p, "itself")
		selfWork(t, w, p)
		x, y := w.Connect(a, a, QPOptions{})
		ping(t, w, x, y, "two")
		selfWork(t, w, x)
		x.Send(WR{ID: 9, Op: transport.OpWrite, N: 10, Key: 8})
		w.RunUntil(second, func() bool { return x.Failed && y.Failed })
		if c := x.Sends[len(x.Sends)-1]; c.Status != transport.RemAccessErr {
			t.Errorf("%+v", c)
		}
		p.Send(WR{ID: 9, Op: transport.OpWrite, N: 10, Key: 8})
		w.RunUntil(second, func() bool { return p.Failed })
		if p.Errors != 1 {
			t.Errorf("%d errors of a QP that refuses itself", p.Errors)
		}
		if x.Send(WR{Op: transport.OpSend}); x.Sends[len(x.Sends)-1].Status != transport.WRFlushErr {
			t.Error("no flush")
		}
		w.RunUntil(second, func() bool { return a.E.InFlight() == 0 })
		if f := a.E.InFlight(); f != 0 {
			t.Errorf("%d in flight", f)
		}
		for _, q := range a.QPs {
			q.Destroy(w.Now)
		}
		if l := a.E.Leaks(); l != "" {
			t.Error(l)
		}
	}
}

func selfWork(t *testing.T, w *World, p *QP) {
	t.Helper()
	n := len(p.Sends)
	fill(p.N.Mem[:100_000], byte(n))
	p.Send(WR{ID: 1, Op: transport.OpWrite, N: 100_000, Remote: 200_000, Key: 7})
	p.Send(WR{ID: 2, Op: transport.OpRead, Local: 2 << 20, N: 100_000, Remote: 200_000, Key: 7})
	p.Send(WR{ID: 3, Op: transport.OpFetchAdd, Local: 3 << 20, N: 8, Remote: 1<<20 - 8, Compare: 1, Key: 7})
	if !w.RunUntil(second, func() bool { return len(p.Sends) == n+3 }) {
		t.Fatalf("stuck: %s", p.Dump())
	}
	for _, c := range p.Sends[n:] {
		if c.Status != transport.OK {
			t.Fatalf("%+v", c)
		}
	}
	if string(p.N.Mem[:100_000]) != string(p.N.Mem[2<<20:2<<20+100_000]) {
		t.Error("data differs")
	}
}

// TestSelfWithoutLinks: what a NIC says to itself needs no wire.
func TestSelfWithoutLinks(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		w := New(Config{Seed: 5, Nodes: 1, Planes: 2, Link: usual()})
		a := w.Nodes[0]
		down := func() {
			a.E.SetPlane(w.Now, 0, false)
			a.E.SetPlane(w.Now, 1, false)
		}
		if when == "before" {
			down()
		}
		x, y := w.Connect(a, a, QPOptions{})
		if when == "after" {
			ping(t, w, x, y, "up")
			down()
		}
		ping(t, w, x, y, when)
	}
}

// TestTwoAddresses: QPs of one NIC that use two of its addresses.
func TestTwoAddresses(t *testing.T) {
	other := netip.MustParseAddr("10.0.0.99")
	w := New(Config{Seed: 6, Nodes: 1, Planes: 2, Link: usual(), Engine: func(c *metaroce.Config) { c.Addrs = append(c.Addrs, other) }})
	a := w.Nodes[0]
	p, q := a.NewQP(QPOptions{}), a.NewQP(QPOptions{})
	o := QPOptions{}
	o.defaults()
	for _, x := range []struct {
		me, peer      *QP
		local, remote netip.Addr
	}{{p, q, a.Addr, other}, {q, p, other, a.Addr}} {
		x.me.ToRTR(w.Now, metaroce.RTRAttr{Local: x.local, Remote: x.remote, RemoteQPN: x.peer.Number(), PathMTU: 1024, MaxDestRdAtomic: 4})
		x.me.ToRTS(w.Now, metaroce.RTSAttr{Timeout: o.Timeout, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4})
	}
	q.Recv(1, 0, 100)
	p.Recv(1, 0, 100)
	p.Send(WR{Op: transport.OpSend, N: 10})
	q.Send(WR{Op: transport.OpSend, N: 10})
	for range 100 { // the device hands packets to its own addresses back
		a.E.HandleTimers(w.Now)
		a.batch.Reset()
		a.E.Transmit(w.Now, a.batch)
		for i := range a.batch.N {
			a.batch.Pkts[i].Time = w.Now
		}
		a.E.HandlePackets(w.Now, append([]pkt.Packet(nil), a.batch.Pkts[:a.batch.N]...))
		w.Now = w.Now.Add(100 * mono.Microsecond)
	}
	if len(p.Sends) != 1 || len(q.Sends) != 1 || len(p.Received) != 1 || p.Sends[0].Status != transport.OK {
		t.Errorf("%v %v, dropped for the address: %d", p.Sends, q.Sends, a.E.C.DropAddr)
	}
}

// TestAddressesOfNobody: a handshake for an address that is not the NIC's makes nothing.
func TestAddressesOfNobody(t *testing.T) {
	f := newStranger(t, Config{Seed: 1, Planes: 2})
	h := f.hello
	h.Stage = wire.HelloInit
	p := f.helloPacket(h, 0)
	p.Dst = netip.MustParseAddr("10.9.9.9")
	for _, x := range f.deliver(p) {
		h.Stage, h.Cookie = wire.HelloConfirm, x.Hello.Cookie
		p = f.helloPacket(h, 0)
		p.Dst = netip.MustParseAddr("10.9.9.9")
		f.deliver(p)
	}
	if n := len(f.n.E.Assocs()); n != 0 {
		t.Errorf("%d associations", n)
	}
}

// TestStrangersAreCheap: thousands of associations that strangers have opened do not make every packet dear.
func TestStrangersAreCheap(t *testing.T) {
	cost := func(strangers int) time.Duration {
		f := newForge(t, Config{Seed: 1, Planes: 4})
		addr, tag := f.addr, f.tag
		for i := range strangers {
			f.addr = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			h := f.hello
			h.Stage, h.NICID = wire.HelloInit, uint64(i)
			for _, x := range f.deliver(f.helloPacket(h, 0)) {
				h.Stage, h.Cookie = wire.HelloConfirm, x.Hello.Cookie
				f.deliver(f.helloPacket(h, 0))
			}
		}
		f.addr, f.tag = addr, tag
		q := f.qp(QPOptions{})
		f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		f.wait(2 * mono.Millisecond)
		best := time.Hour
		psn := uint32(0)
		for range 20 {
			var ps []pkt.Packet
			for range 64 {
				ps = append(ps, f.write(q, psn, "T", 0, 7, bytesOf(1, 100)))
				psn++
			}
			start := time.Now()
			f.n.E.HandlePackets(f.w.Now, ps)
			f.n.E.HandleTimers(f.w.Now)
			f.n.batch.Reset()
			f.n.E.Transmit(f.w.Now, f.n.batch)
			f.n.E.NextTimeout()
			best = min(best, time.Since(start))
			f.w.Now++
		}
		return best
	}
	if few, many := cost(1), cost(4000); many > 10*few {
		t.Errorf("64 packets cost %v, with 4000 strangers %v", few, many)
	}
}
