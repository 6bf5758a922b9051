package transporttest

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// stream is a script in which node 0 writes to node 1 all the time.
func stream(t *testing.T, c Config, mtu int, size uint32) (*script, *QP) {
	s := newScript(t, c)
	p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: mtu, Timeout: 20})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	post := func() { p.Send(WR{Op: transport.OpWrite, N: size, Key: 7}) }
	p.OnSend = func(c Completion) {
		if c.Status != transport.OK {
			t.Errorf("%+v", c)
			return
		}
		post()
	}
	for range 8 {
		post()
	}
	return s, p
}

func small(c *metaroce.Config) { c.FixedWindow = 64 << 10 }

// TestSpecMarkedPath: a path that is marked at low delay rests, and gets another entropy when that goes on.
func TestSpecMarkedPath(t *testing.T) {
	s, _ := stream(t, Config{Seed: 1, Engine: func(c *metaroce.Config) { small(c); c.SeqSkip = 1e-12 }}, 1024, 4000)
	bad := uint16(0)
	seqs := map[uint16]uint32{}
	var marked, after int
	var last mono.Time
	s.fate = func(x *sent) mono.Duration {
		if x.From != 0 || !x.Op.IsData() {
			return 0
		}
		if was, ok := seqs[x.Header.Path]; ok && x.Seq != was+1 {
			//= MR-PATH-011
			t.Errorf("%v after sequence %d", x, was)
		}
		seqs[x.Header.Path] = x.Seq
		if x.Header.Path != 5 {
			return 0
		}
		if bad == 0 {
			bad = x.SrcPort
		}
		if x.SrcPort != bad {
			after++
			return 0
		}
		x.TOS |= pkt.CE
		if x.At != last {
			//= MR-PATH-023
			if gap := x.At.Sub(last); marked > 0 && gap < 10*mono.Microsecond {
				t.Errorf("used again %v after a mark", gap)
			}
			marked, last = marked+1, x.At
		}
		return 0
	}
	s.run(20 * mono.Millisecond)
	c := s.node(0).E.C
	//= MR-PATH-015
	if c.PathRests < 4 || c.PathRerolls != 1 || after < 10 {
		t.Errorf("%d rests, %d entropies changed, %d packets with the new one", c.PathRests, c.PathRerolls, after)
	}
}

// TestSpecAllMarked: marks that all paths get are no reason to change them.
func TestSpecAllMarked(t *testing.T) {
	s, _ := stream(t, Config{Seed: 1, Engine: small}, 1024, 4000)
	s.fate = func(x *sent) mono.Duration {
		x.TOS |= pkt.CE
		return 0
	}
	s.run(20 * mono.Millisecond)
	c := s.node(0).E.C
	//= MR-PATH-023
	if c.PathRerolls > 0 || c.PathRests > 60 {
		t.Errorf("%d rests, %d entropies changed", c.PathRests, c.PathRerolls)
	}
}

// sickPath loses everything of one path, whatever its entropy, while sick.
func sickPath(s *script, path uint16, sick *bool) {
	s.fate = func(x *sent) mono.Duration {
		if *sick && x.From == 0 && x.Header.Path == path && x.Op != wire.OpAck {
			return lost
		}
		return 0
	}
}

func event(n *Node, k transport.EventKind) (out []transport.Event) {
	for _, e := range n.Log {
		if e.Kind == k {
			out = append(out, e)
		}
	}
	return out
}

// TestSpecQuarantine: a path that loses all while others deliver is given another entropy, then taken out of use and
// probed; two answers bring it back.
func TestSpecQuarantine(t *testing.T) {
	s, _ := stream(t, Config{Seed: 1, Planes: 2, Engine: small}, 4096, 20000)
	sick := true
	sickPath(s, 0x105, &sick)
	n := s.node(0)
	//= MR-PATH-060
	if !s.until(100*mono.Millisecond, func() bool { return len(event(n, transport.EventPathQuarantined)) == 1 }) {
		t.Fatalf("not in quarantine: %+v", n.E.C)
	}
	if e := event(n, transport.EventPathQuarantined)[0]; e.Plane != 1 || e.Path != 5 {
		t.Errorf("%+v", e)
	}
	//= MR-PATH-014
	if n.E.C.PathSuspects == 0 || n.E.C.PathRerolls != 1 {
		t.Errorf("%d suspect, %d entropies changed", n.E.C.PathSuspects, n.E.C.PathRerolls)
	}
	s.run(mono.Millisecond / 10)
	s.log = nil
	s.run(30 * mono.Millisecond)
	probes := 0
	for _, x := range s.log {
		if x.From != 0 || x.Header.Path != 0x105 {
			continue
		}
		//= MR-PATH-060
		if x.Op.IsData() {
			t.Fatalf("%v in quarantine", x)
		}
		//= MR-PATH-062 MR-PATH-033
		if probes++; x.Op != wire.OpProbe || len(x.Data) < 4096+wire.MaxOverhead {
			t.Errorf("%v of %d bytes", x, len(x.Data))
		}
	}
	if probes < 3 || probes > 8 {
		t.Errorf("%d probes in 30 ms", probes)
	}
	sick = false
	//= MR-PATH-062
	if !s.until(200*mono.Millisecond, func() bool { return len(event(n, transport.EventPathBack)) == 1 }) {
		t.Fatal("it does not come back")
	}
	s.log = nil
	s.run(5 * mono.Millisecond)
	for _, x := range data(s.log) {
		if x.From == 0 && x.Header.Path == 0x105 {
			return
		}
	}
	t.Error("it carries no data")
}

// TestSpecQuarantineFloor: two paths of a plane are left in use, however bad they are; with a peer that is dead none is
// put into quarantine.
func TestSpecQuarantineFloor(t *testing.T) {
	s, _ := stream(t, Config{Seed: 2, Engine: small}, 1024, 4000)
	n := s.node(0)
	if err := n.E.SetEntropies(s.w.Now, netip.Addr{}, 0, metaroce.Entropies{Mode: metaroce.EntropyExplicit, List: []uint16{51000, 51001, 51002}}); err != nil {
		t.Fatal(err)
	}
	s.run(mono.Millisecond)
	s.fate = func(x *sent) mono.Duration {
		if x.From == 0 && x.SrcPort > 51000 && x.Op != wire.OpAck {
			return lost
		}
		return 0
	}
	s.run(200 * mono.Millisecond)
	//= MR-PATH-061
	if got := len(event(n, transport.EventPathQuarantined)); got != 1 {
		t.Errorf("%d in quarantine", got)
	}
	r, _ := stream(t, Config{Seed: 3, Engine: small}, 1024, 4000)
	r.run(mono.Millisecond)
	r.fate = func(*sent) mono.Duration { return lost }
	r.run(50 * mono.Millisecond)
	//= MR-PATH-060
	if c := r.node(0).E.C; c.PathQuarantines+c.PathSuspects > 0 {
		t.Errorf("a dead peer: %d suspect, %d in quarantine", c.PathSuspects, c.PathQuarantines)
	}
}

// TestSpecGrayPlane: a plane whose loss stands out gets less where the others have room, and its share when it mends.
func TestSpecGrayPlane(t *testing.T) {
	s, _ := stream(t, Config{Seed: 4, Planes: 4, Engine: func(c *metaroce.Config) { c.FixedWindow = 1 << 20 }}, 4096, 4096)
	every, n := 20, 0 // one of so many is lost
	s.fate = func(x *sent) mono.Duration {
		if x.Plane == 2 && x.Op.IsData() {
			if n++; every > 0 && n%every == 0 {
				return lost
			}
		}
		return 0
	}
	share := func() float64 {
		s.log = nil
		s.run(10 * mono.Millisecond)
		all, there := 0, 0
		for _, x := range data(s.log) {
			if all++; x.Plane == 2 {
				there++
			}
		}
		return float64(there) / float64(all)
	}
	s.run(20 * mono.Millisecond)
	//= MR-PATH-016
	if got := share(); got < 0.2 {
		t.Errorf("a plane that loses 5 %% gets %.2f", got)
	}
	every = 4
	s.run(20 * mono.Millisecond)
	if got := share(); got > 0.08 || got == 0 {
		t.Errorf("the gray plane gets %.2f", got)
	}
	every = 0
	s.run(100 * mono.Millisecond)
	if got := share(); got < 0.2 {
		t.Errorf("mended, it gets %.2f", got)
	}
}

// TestSpecBaseRTT: the base round trip comes from probes in the control class, that wait in no queue of the data's.
func TestSpecBaseRTT(t *testing.T) {
	s := newScript(t, Config{Seed: 5, Engine: small})
	n := s.node(0)
	probes := 0
	s.fate = func(x *sent) mono.Duration {
		//= MR-PATH-054
		if x.Op == wire.OpProbe && x.TOS>>2 == 48 {
			if probes++; len(x.Data) > 100 {
				t.Errorf("a probe of %d bytes", len(x.Data))
			}
			return 0
		}
		if x.Op.IsData() {
			return 50 * mono.Microsecond
		}
		return 0
	}
	p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	p.Send(WR{Op: transport.OpWrite, N: 20000, Key: 7})
	s.done(p, 1)
	//= MR-PATH-053
	if b := plane(s, 0).Base; b > 12*mono.Microsecond || probes != 2 { // one of each end
		t.Errorf("base %v after %d probes", b, probes)
	}
	s.run(3 * second)
	if probes != 2 {
		t.Errorf("%d probes of a plane that carries nothing", probes)
	}
	for range 50 {
		p.Send(WR{Op: transport.OpWrite, N: 20000, Key: 7})
		s.run(100 * mono.Millisecond)
	}
	if probes < 10 || probes > 16 {
		t.Errorf("%d probes in five seconds of use", probes)
	}
	_ = n
}

// TestSpecMTU: a plane that carries only short packets is found out, carries what it can, and is tried again.
func TestSpecMTU(t *testing.T) {
	s, big := stream(t, Config{Seed: 6, Planes: 2, Engine: small}, 4096, 40000)
	p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: 1024, Timeout: 20})
	for range 4 {
		p.Send(WR{Op: transport.OpWrite, N: 40000, Key: 7})
	}
	p.OnSend = func(Completion) { p.Send(WR{Op: transport.OpWrite, N: 40000, Key: 7}) }
	narrow := true
	s.fate = func(x *sent) mono.Duration {
		if narrow && x.Plane == 1 && len(x.Data) > 2200 {
			return lost
		}
		return 0
	}
	//= MR-PATH-071 MR-PATH-072
	if !s.until(100*mono.Millisecond, func() bool { return plane(s, 1).PacketMax == 2048+wire.MaxOverhead }) {
		t.Fatalf("the plane still carries %d bytes: %+v", plane(s, 1).PacketMax, s.node(0).E.C)
	}
	//= MR-PATH-070
	sizes := map[int]bool{}
	for _, x := range of(s.log, wire.OpProbe) {
		if x.Probe.Kind == wire.ProbeMTU {
			sizes[len(x.Data)] = true
		}
	}
	if !sizes[60] || !sizes[2048+wire.MaxOverhead] || len(sizes) != 4 {
		t.Errorf("probes of %v bytes", sizes)
	}
	s.run(mono.Millisecond)
	s.log = nil
	s.run(5 * mono.Millisecond)
	short := 0
	for _, x := range data(s.log) {
		//= MR-PATH-072
		if x.Plane == 1 && len(x.Data) > 2048+wire.MaxOverhead {
			t.Fatalf("%d bytes on it", len(x.Data))
		} else if x.Plane == 1 {
			short++
		}
	}
	if short == 0 {
		t.Error("it carries nothing any more")
	}
	big.OnSend, p.OnSend = nil, nil
	s.run(50 * mono.Millisecond)
	s.log, narrow = nil, false
	//= MR-PATH-073
	if !s.until(70*second, func() bool { s.log = s.log[:0]; return plane(s, 1).PacketMax == PacketMax }) {
		t.Errorf("it stays at %d", plane(s, 1).PacketMax)
	}
}

// TestSpecMTUOfFailed: a plane that failed because nothing long passes comes back with what does.
func TestSpecMTUOfFailed(t *testing.T) {
	s, _ := stream(t, Config{Seed: 7, Planes: 2, Engine: small}, 1024, 4000)
	s.run(mono.Millisecond)
	dead := true
	s.fate = func(x *sent) mono.Duration {
		if x.Plane == 1 && (dead || len(x.Data) > 2200) {
			return lost
		}
		return 0
	}
	s.until(10*mono.Millisecond, func() bool { return plane(s, 1).State == "probing" })
	dead = false
	//= MR-PATH-071 MR-PATH-072
	if !s.until(2*second, func() bool { return plane(s, 1).State == "active" }) || plane(s, 1).PacketMax > 2200 {
		t.Errorf("%+v", plane(s, 1))
	}
}

// TestSpecPeerMoves: a packet from another address does nothing but raise a question; the answer from there moves the
// association.
func TestSpecPeerMoves(t *testing.T) {
	f := newForge(t, Config{Seed: 8})
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	other := netip.MustParseAddr("10.0.7.7")
	p := f.write(q, 0, "TA", 0, 7, bytesOf(9, 100))
	p.Src = other
	xs := f.deliver(p)
	//= MR-ASC-080
	if len(xs) != 1 || xs[0].Op != wire.OpProbe || xs[0].Dst != other || len(xs[0].Data) > len(p.Data) || f.n.Mem[0] != 0 {
		t.Fatalf("answered %v", xs)
	}
	if again := f.deliver(p); len(again) != 0 {
		t.Errorf("and again %v", again)
	}
	tiny := f.packet(to(q, wire.OpSend, 0, "TA"), nil)
	tiny.Src = netip.MustParseAddr("10.0.7.8")
	f.wait(30 * mono.Millisecond)
	//= MR-ASC-080
	if again := f.deliver(tiny); len(again) != 0 {
		t.Errorf("a packet shorter than the probe: %v", again)
	}
	ack := func(x *sent, src netip.Addr) {
		b := make([]byte, 64)
		a := f.packet(wire.Header{Op: wire.OpProbeAck}, b[:wire.PutProbe(b, &x.Probe, wire.ProbeLen)])
		a.Src = src
		f.deliver(a)
	}
	remote := func() string { return f.n.E.Assocs()[0].Remote }
	ack(xs[0], other) // too late
	//= MR-ASC-081
	if remote() != f.addr.String() {
		t.Errorf("a late answer moves it to %s", remote())
	}
	xs = f.deliver(p)
	wrong := *xs[0]
	wrong.Probe.ID++
	ack(&wrong, other)
	ack(xs[0], f.addr)
	//= MR-ASC-081
	if remote() != f.addr.String() {
		t.Errorf("a wrong answer moves it to %s", remote())
	}
	ack(xs[0], other)
	//= MR-ASC-081
	if remote() != other.String() || f.n.E.C.PeerMoves != 1 {
		t.Fatalf("it stays at %s", remote())
	}
	f.addr = other
	w := f.write(q, 0, "TA", 0, 7, bytesOf(9, 100))
	f.want("from the new address", f.deliver(w), w, "ack")
	q.Send(WR{Op: transport.OpSend, N: 10})
	if out := data(f.collect()); len(out) != 1 || out[0].Dst != other {
		t.Errorf("sends %v", out)
	}
}

// TestSpecDeny: paths and entropies that people take out of use carry no data, until they are allowed again.
func TestSpecDeny(t *testing.T) {
	s, _ := stream(t, Config{Seed: 9, Planes: 2, Engine: small}, 1024, 8000)
	n := s.node(0)
	s.run(mono.Millisecond)
	used := func(by func(x *sent) bool) (k int) {
		s.run(100 * mono.Microsecond)
		s.log = nil
		s.run(5 * mono.Millisecond)
		for _, x := range data(s.log) {
			if x.From == 0 && by(x) {
				k++
			}
		}
		return k
	}
	path := func(x *sent) bool { return x.Header.Path == 0x103 }
	if used(path) == 0 {
		t.Fatal("path 3 of plane 1 is not used")
	}
	if k, err := n.E.DenyPaths(s.w.Now, metaroce.PathSel{Plane: 1, Path: 3}); k != 1 || err != nil {
		t.Fatal(k, err)
	}
	//= MR-PATH-080
	if k := used(path); k != 0 {
		t.Errorf("%d packets on a denied path", k)
	}
	if i := plane(s, 1).Paths; !i[3].Denied || i[2].Denied {
		t.Errorf("%+v", i)
	}
	if k, err := n.E.AllowPaths(s.w.Now, metaroce.PathSel{Peer: s.node(1).Addr, Plane: 1, Path: 3}); k != 1 || err != nil || used(path) == 0 {
		t.Error("not allowed again", k, err)
	}
	port := uint16(plane(s, 0).Paths[7].SrcPort)
	has := func(x *sent) bool { return x.SrcPort == port }
	if k, err := n.E.DenyPort(s.w.Now, metaroce.Any, port, true); k != 1 || err != nil {
		t.Fatal(k, err)
	}
	//= MR-PATH-080
	if k := used(has); k != 0 {
		t.Errorf("%d packets with a denied entropy", k)
	}
	if k := used(func(x *sent) bool { return x.Header.Path == 7 }); k == 0 {
		t.Error("its path has no other one")
	}
	for _, x := range []struct {
		sel metaroce.PathSel
		err error
	}{
		{metaroce.PathSel{Plane: 2, Path: 0}, metaroce.ErrNoPlane}, {metaroce.PathSel{Plane: 0, Path: 64}, metaroce.ErrNoPath},
		{metaroce.PathSel{Peer: netip.MustParseAddr("10.9.9.9"), Plane: 0}, metaroce.ErrNoPeer}, {metaroce.PathSel{Path: metaroce.Any}, metaroce.ErrLastPath},
	} {
		if _, err := n.E.DenyPaths(s.w.Now, x.sel); !errors.Is(err, x.err) {
			t.Errorf("%+v: %v", x.sel, err)
		}
	}
	for i := range 63 {
		if _, err := n.E.DenyPaths(s.w.Now, metaroce.PathSel{Plane: 0, Path: i}); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := n.E.DenyPaths(s.w.Now, metaroce.PathSel{Plane: 0, Path: 63}); !errors.Is(err, metaroce.ErrLastPath) {
		t.Error(err)
	}
	if all, last := used(func(x *sent) bool { return x.Plane == 0 }), used(func(x *sent) bool { return x.Header.Path == 63 }); all == 0 || last == 0 {
		t.Errorf("the last path carries %d, its plane %d", last, all)
	}
}

// TestSpecDenyVoid: the peer takes fewer paths than was thought when some were denied. Denies that leave none are passed
// over, and the operator hears of it; those that he himself would make void are refused.
func TestSpecDenyVoid(t *testing.T) {
	f := newStranger(t, Config{Seed: 11, Planes: 2, Engine: small})
	f.hello.PathLimit = 2
	q := f.qp(QPOptions{})
	f.collect() // its own INIT
	e := f.n.E
	for i := range 3 {
		if _, err := e.DenyPaths(f.w.Now, metaroce.PathSel{Plane: 0, Path: i}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.DenyPaths(f.w.Now, metaroce.PathSel{Plane: 1, Path: 0}); err != nil {
		t.Fatal(err)
	}
	if n := len(event(f.n, transport.EventDenyVoid)); n != 0 {
		t.Fatalf("%d events before anything is known", n)
	}
	f.meet()
	f.meet()
	//= MR-PATH-083
	if ev := event(f.n, transport.EventDenyVoid); len(ev) != 1 || ev[0].Plane != 0 || ev[0].Peer != f.addr.String() || ev[0].Kind.String() != "deny-void" {
		t.Errorf("events %+v", ev)
	}
	for range 10 {
		q.Send(WR{Op: transport.OpWrite, N: 1000, Key: 7})
	}
	used := map[uint16]bool{}
	for _, x := range data(f.wait(100 * mono.Microsecond)) {
		used[x.Header.Path] = true
	}
	//= MR-PATH-083 MR-PATH-080
	if used[2] || used[0x100] || !used[0] && !used[1] || !used[0x101] {
		t.Errorf("paths used: %v", used)
	}
	list := metaroce.Entropies{Mode: metaroce.EntropyExplicit, List: []uint16{0xC001, 0xC002}}
	one := metaroce.Entropies{Mode: metaroce.EntropyExplicit, List: []uint16{0xC001}}
	//= MR-PATH-080
	if err := e.SetEntropies(f.w.Now, f.addr, 1, one); !errors.Is(err, metaroce.ErrLastPath) {
		t.Errorf("one entropy, whose path is denied: %v", err)
	}
	if err := e.SetEntropies(f.w.Now, f.addr, 1, list); err != nil {
		t.Error(err)
	}
	//= MR-PATH-080
	if _, err := e.DenyPort(f.w.Now, 1, 0xC002, true); !errors.Is(err, metaroce.ErrLastPath) {
		t.Errorf("the last entropy is denied: %v", err)
	}
	if _, err := e.DenyPort(f.w.Now, 1, 0xC001, true); err != nil {
		t.Error(err)
	}
	if _, err := e.AllowPaths(f.w.Now, metaroce.PathSel{Plane: metaroce.Any, Path: metaroce.Any}); err != nil {
		t.Error(err)
	}
	if _, err := e.DenyPaths(f.w.Now, metaroce.PathSel{Plane: 0, Path: 1}); err != nil {
		t.Error(err)
	}
	f.hello.PathLimit, f.hello.Instance, f.hello.Tag = 1, f.hello.Instance+1, f.hello.Tag+1
	f.meet()
	//= MR-PATH-083
	if ev := event(f.n, transport.EventDenyVoid); len(ev) != 2 || ev[1].Plane != 1 { // path 0 of plane 0 may be used; that of plane 1 has a denied entropy
		t.Errorf("events %+v", ev)
	}
}

// TestSpecEntropies: people may say which entropies paths have.
func TestSpecEntropies(t *testing.T) {
	s, _ := stream(t, Config{Seed: 10, Planes: 2, Engine: small}, 1024, 8000)
	n := s.node(0)
	ports := func(plane uint8) map[uint16]bool {
		s.run(mono.Millisecond)
		s.log = nil
		s.run(10 * mono.Millisecond)
		m := map[uint16]bool{}
		for _, x := range data(s.log) {
			if x.From == 0 && x.Plane == plane {
				m[x.SrcPort] = true
			}
		}
		return m
	}
	set := func(plane int, e metaroce.Entropies) {
		if err := n.E.SetEntropies(s.w.Now, netip.Addr{}, plane, e); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(ports(1)); got != 64 {
		t.Errorf("automatic: %d", got)
	}
	//= MR-PATH-081
	set(1, metaroce.Entropies{Mode: metaroce.EntropyExplicit, List: []uint16{50000, 60000}})
	if got := ports(1); len(got) != 2 || !got[50000] || !got[60000] {
		t.Errorf("explicit: %v", got)
	}
	//= MR-PATH-081
	set(1, metaroce.Entropies{Mode: metaroce.EntropyGenerated, First: 0xC100, Step: 8, Count: 4})
	if got := ports(1); len(got) != 4 || !got[0xC100] || !got[0xC108] || !got[0xC110] || !got[0xC118] {
		t.Errorf("generated: %v", got)
	}
	if got := len(ports(0)); got != 64 {
		t.Errorf("the other plane: %d", got)
	}
	set(metaroce.Any, metaroce.Entropies{})
	if got := len(ports(1)); got != 64 {
		t.Errorf("automatic again: %d", got)
	}
	for _, e := range []metaroce.Entropies{{Mode: 9}, {Mode: metaroce.EntropyExplicit}, {Count: 65}} {
		if n.E.SetEntropies(s.w.Now, netip.Addr{}, 0, e) == nil {
			t.Errorf("%+v is accepted", e)
		}
	}
}

// TestSpecNamedProbe: people may probe a path without any QP.
func TestSpecNamedProbe(t *testing.T) {
	s := newScript(t, Config{Seed: 11, Planes: 2})
	n := s.node(0)
	ask := func(x metaroce.ProbeSpec) metaroce.ProbeInfo {
		t.Helper()
		x.Remote, x.Wait = s.node(1).Addr, 50*mono.Millisecond
		id, err := n.E.StartProbe(s.w.Now, x)
		if err != nil {
			t.Fatal(err)
		}
		var i metaroce.ProbeInfo
		s.until(100*mono.Millisecond, func() bool { i, _ = n.E.ProbeResult(s.w.Now, id); return i.Done })
		return i
	}
	//= MR-PATH-082
	if i := ask(metaroce.ProbeSpec{Plane: 1, Path: 9}); !i.Answered || i.RTT != 10*mono.Microsecond || i.Size != PacketMax {
		t.Errorf("%+v", i)
	}
	if i := ask(metaroce.ProbeSpec{Plane: 0, SrcPort: 0xC123, Size: 500, Control: true}); !i.Answered || i.SrcPort != 0xC123 {
		t.Errorf("%+v", i)
	}
	pr := of(s.log, wire.OpProbe)
	if len(pr) != 2 || pr[0].Plane != 1 || pr[0].Header.Path != 0x109 || len(pr[0].Data) != PacketMax || pr[1].SrcPort != 0xC123 ||
		pr[1].TOS>>2 != 48 || len(pr[1].Data) > 500 || len(pr[1].Data) < 490 {
		t.Errorf("%v", pr)
	}
	s.fate = func(x *sent) mono.Duration {
		if x.Plane == 1 && x.Op == wire.OpProbe || x.Dst != s.node(0).Addr && x.Dst != s.node(1).Addr {
			return lost
		}
		return 0
	}
	if i := ask(metaroce.ProbeSpec{Plane: 1}); !i.Done || i.Answered {
		t.Errorf("%+v", i)
	}
	// a peer that is not there
	id, err := n.E.StartProbe(s.w.Now, metaroce.ProbeSpec{Remote: netip.MustParseAddr("10.0.0.77"), Wait: 20 * mono.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var i metaroce.ProbeInfo
	s.until(100*mono.Millisecond, func() bool { i, _ = n.E.ProbeResult(s.w.Now, id); return i.Done })
	if i.Answered || !i.Done {
		t.Errorf("%+v", i)
	}
	for _, a := range n.E.Assocs() {
		if a.Remote == "10.0.0.77" && a.State != "idle" {
			t.Errorf("%+v", a)
		}
	}
	s.run(40 * second)
	if left := n.E.Assocs(); len(left) != 0 {
		t.Errorf("%d associations stay", len(left))
	}
	if _, ok := n.E.ProbeResult(s.w.Now, id+1); ok {
		t.Error("an unknown probe has a result")
	}
}

// TestSpecProfile: the congestion profile can be changed while data flows.
func TestSpecProfile(t *testing.T) {
	s, p := stream(t, Config{Seed: 12, Planes: 2}, 4096, 100_000)
	n := s.node(0)
	s.run(mono.Millisecond)
	set := func(x cc.Profile) {
		t.Helper()
		if err := n.E.SetProfile(s.w.Now, netip.Addr{}, x); err != nil {
			t.Fatal(err)
		}
		k := len(p.Sends)
		s.run(mono.Millisecond)
		if len(p.Sends) == k {
			t.Errorf("%+v: nothing moves", x)
		}
	}
	//= MR-CC-030
	set(cc.Profile{Name: cc.ProfileFixed, Window: 50_000})
	if w := plane(s, 1); w.Window != 50_000 || w.Profile != "fixed" || w.InFlight > 54_300 {
		t.Errorf("%+v", w)
	}
	//= MR-CC-030
	set(cc.Profile{Name: cc.ProfilePolite})
	if w := plane(s, 1); w.Profile != "polite" || w.Window < 50_000 {
		t.Errorf("%+v", w)
	}
	set(cc.Profile{Name: cc.ProfileDelayECN, Target: mono.Millisecond})
	for _, x := range []cc.Profile{{}, {Name: "cubic"}, {Name: cc.ProfileFixed}, {Name: cc.ProfilePolite, Window: 9}, {Name: cc.ProfileFixed, Window: 9, Target: 9}} {
		if n.E.SetProfile(s.w.Now, netip.Addr{}, x) == nil {
			t.Errorf("%+v is accepted", x)
		}
	}
}

// TestSpecToleranceDecays: a path that was patient once is as quick as the others after a while.
func TestSpecToleranceDecays(t *testing.T) {
	s, _ := stream(t, Config{Seed: 13, Engine: small}, 1024, 4000)
	next := mono.Time(2_000_000)
	s.fate = func(x *sent) mono.Duration {
		if x.From == 0 && x.Op.IsData() && x.At > next { // one now and then, until one was called lost before it came
			next = x.At.Add(200 * mono.Microsecond)
			return 6 * mono.Microsecond
		}
		return 0
	}
	most := func() (m int) {
		for _, p := range plane(s, 0).Paths {
			m = max(m, p.Tolerance)
		}
		return m
	}
	//= MR-REL-043
	if !s.until(5*mono.Millisecond, func() bool { return most() > 3 }) {
		t.Fatalf("late packets leave the tolerance at %d", most())
	}
	next = mono.Never
	s.run(20 * mono.Millisecond)
	//= MR-REL-043
	if most() != 3 {
		t.Errorf("it stays at %d", most())
	}
}
