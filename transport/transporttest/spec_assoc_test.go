package transporttest

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// stage picks the HELLOs of one stage.
func stage(xs []*sent, s wire.HelloStage) (out []*sent) {
	for _, x := range of(xs, wire.OpHello) {
		if x.Hello.Stage == s {
			out = append(out, x)
		}
	}
	return out
}

// TestSpecCookie: INIT is answered on the spot and leaves nothing behind; the cookie binds all that it has to.
func TestSpecCookie(t *testing.T) {
	f := newStranger(t, Config{Seed: 1, Planes: 2})
	cookie := func(src string, change func(h *wire.Hello)) [16]byte {
		h := f.hello
		h.Stage = wire.HelloInit
		if change != nil {
			change(&h)
		}
		p := f.helloPacket(h, 1)
		p.Src = netip.MustParseAddr(src)
		xs := f.deliver(p)
		//= MR-ASC-004 MR-ASC-006
		if len(xs) != 1 || xs[0].Hello.Stage != wire.HelloCookie || xs[0].Plane != 1 || xs[0].Dst != p.Src || len(xs[0].Data) > len(p.Data) {
			t.Fatalf("INIT is answered by %v", xs)
		}
		if xs[0].Tag != h.Tag || xs[0].Hello.EchoTag != h.Tag {
			t.Errorf("COOKIE with tag %#x echo %#x", xs[0].Tag, xs[0].Hello.EchoTag)
		}
		return xs[0].Hello.Cookie
	}
	//= MR-ASC-005
	first := cookie("10.0.9.9", nil)
	if cookie("10.0.9.9", nil) != first {
		t.Error("the same INIT gets another cookie")
	}
	for name, c := range map[string][16]byte{
		"address":  cookie("10.0.9.8", nil),
		"NIC":      cookie("10.0.9.9", func(h *wire.Hello) { h.NICID++ }),
		"instance": cookie("10.0.9.9", func(h *wire.Hello) { h.Instance++ }),
		"tag":      cookie("10.0.9.9", func(h *wire.Hello) { h.Tag++ }),
	} {
		if c == first {
			t.Errorf("another %s gets the same cookie", name)
		}
	}
	if g := newStranger(t, Config{Seed: 2}); of(g.say(wire.HelloInit, 0), wire.OpHello)[0].Hello.Cookie == first {
		t.Error("another NIC makes the same cookie")
	}
	//= MR-ASC-004
	if as := f.n.E.Assocs(); len(as) != 0 {
		t.Errorf("INIT left %+v", as)
	}
}

// TestSpecConfirm: only a CONFIRM with the cookie of its own content makes an association, always the same one.
func TestSpecConfirm(t *testing.T) {
	f := newStranger(t, Config{Seed: 1})
	f.hello.Cookie = stage(f.say(wire.HelloInit, 0), wire.HelloCookie)[0].Hello.Cookie
	for name, change := range map[string]func(h *wire.Hello){
		"cookie":   func(h *wire.Hello) { h.Cookie[3] ^= 1 },
		"NIC":      func(h *wire.Hello) { h.NICID++ },
		"instance": func(h *wire.Hello) { h.Instance++ },
		"tag":      func(h *wire.Hello) { h.Tag++ },
	} {
		h := f.hello
		h.Stage = wire.HelloConfirm
		change(&h)
		//= MR-ASC-008
		if xs := f.deliver(f.helloPacket(h, 0)); len(xs) != 0 || len(f.n.E.Assocs()) != 0 {
			t.Errorf("another %s: answered %v", name, xs)
		}
	}
	//= MR-ASC-009
	a := stage(f.say(wire.HelloConfirm, 0), wire.HelloAccept)
	f.wait(20 * mono.Millisecond)
	b := stage(f.say(wire.HelloConfirm, 0), wire.HelloAccept)
	if len(a) != 1 || len(b) != 1 || !bytes.Equal(a[0].Payload, b[0].Payload) || a[0].Hello.EchoTag != peerTag || a[0].Tag != peerTag {
		t.Fatalf("ACCEPTs %v %v", a, b)
	}
	//= MR-ASC-033
	if as := f.n.E.Assocs(); len(as) != 1 || as[0].State != "up" || as[0].PeerID != f.hello.NICID {
		t.Errorf("%+v", as)
	}
	//= MR-ASC-021
	h := f.hello
	h.Stage, h.VersionMin, h.VersionMax = wire.HelloInit, 2, 9
	if xs := f.deliver(f.helloPacket(h, 0)); len(xs) != 0 {
		t.Errorf("versions 2 to 9: answered %v", xs)
	}
}

// opener is a node that opens an association with the peer.
func opener(t *testing.T, c Config) (*forge, *QP) {
	f := newStranger(t, c)
	return f, f.qp(QPOptions{Timeout: 22})
}

// reply answers the node's last HELLO.
func (f *forge) reply(st wire.HelloStage, echo uint32, src netip.Addr) []*sent {
	h := f.hello
	h.Stage, h.EchoTag = st, echo
	if st == wire.HelloAccept {
		h.Chosen = 1
	}
	p := f.helloPacket(h, 0)
	p.Src = src
	return f.deliver(p)
}

// TestSpecOpen: the opening side, step by step.
func TestSpecOpen(t *testing.T) {
	f, q := opener(t, Config{Seed: 3, Planes: 2})
	init := stage(f.wait(200*mono.Millisecond), wire.HelloInit)
	//= MR-ASC-002 MR-ASC-003
	planes := map[uint8]bool{}
	for i, x := range init {
		planes[x.Plane] = true
		if i > 0 {
			if gap, want := x.At.Sub(init[i-1].At), mono.Duration(min(2<<(i-1), 64))*mono.Millisecond; gap != want {
				t.Errorf("INIT %d after %v, want %v", i, gap, want)
			}
		}
	}
	if len(init) < 7 || len(planes) != 2 {
		t.Fatalf("%d INITs over planes %v", len(init), planes)
	}
	tag := init[0].Hello.Tag
	f.hello.Cookie = [16]byte{1, 2, 3}
	other := netip.MustParseAddr("10.0.9.1")
	//= MR-ASC-007
	for name, xs := range map[string][]*sent{"wrong echo": f.reply(wire.HelloCookie, tag+1, f.addr), "another address": f.reply(wire.HelloCookie, tag, other)} {
		if len(xs) != 0 {
			t.Errorf("COOKIE with %s: answered %v", name, xs)
		}
	}
	c := stage(f.reply(wire.HelloCookie, tag, f.addr), wire.HelloConfirm)
	if len(c) != 1 || c[0].Hello.Cookie != f.hello.Cookie || c[0].Hello.Tag != tag || c[0].Hello.Instance != init[0].Hello.Instance {
		t.Fatalf("COOKIE is answered by %v", c)
	}
	//= MR-ASC-006
	if len(c[0].Payload) != wire.HelloLen || len(init[0].Payload) != wire.HelloLen {
		t.Errorf("INIT has %d bytes, CONFIRM %d", len(init[0].Payload), len(c[0].Payload))
	}
	//= MR-ASC-011
	if again := stage(f.wait(500*mono.Millisecond), wire.HelloInit); len(again) == 0 {
		t.Error("CONFIRM is never given up")
	}
	//= MR-ASC-010
	f.reply(wire.HelloAccept, tag+1, f.addr)
	f.reply(wire.HelloAccept, tag, other)
	if st := f.n.E.Assocs()[0].State; st != "opening" {
		t.Errorf("a wrong ACCEPT makes it %s", st)
	}
	f.reply(wire.HelloAccept, tag, f.addr)
	if st := f.n.E.Assocs()[0].State; st != "up" {
		t.Errorf("after ACCEPT it is %s", st)
	}
	//= MR-ASC-002
	if xs := f.wait(second); len(xs) != 0 {
		t.Errorf("it still sends %v", xs)
	}
	//= MR-ASC-020
	for _, x := range of(f.log, wire.OpHello) {
		if h := x.Hello; h.VersionMin != 1 || h.VersionMax != 1 || h.Chosen != 0 {
			t.Errorf("%v: versions %d to %d, chosen %d", h.Stage, h.VersionMin, h.VersionMax, h.Chosen)
		}
	}
	if a := newStranger(t, Config{Seed: 1}).meet(); a.Hello.Chosen != 1 || a.Hello.VersionMin != 1 || a.Hello.VersionMax != 1 {
		t.Errorf("ACCEPT %+v", a.Hello)
	}
	_ = q
}

// TestSpecOpenEnds: nobody waits any more, nothing is sent any more.
func TestSpecOpenEnds(t *testing.T) {
	f, q := opener(t, Config{Seed: 3})
	f.wait(10 * mono.Millisecond)
	q.Destroy(f.w.Now)
	//= MR-ASC-002
	if xs := f.wait(second); len(xs) != 0 {
		t.Errorf("it still sends %v", xs)
	}
}

// TestSpecTags: tags are random, never 0 and all different; a packet has to match its association.
func TestSpecTags(t *testing.T) {
	f := newForge(t, Config{Seed: 4})
	tags := map[uint32]bool{0: true, f.tag: true}
	var sum uint64
	const n = 300
	for i := range n {
		g := &forge{T: t, w: f.w, n: f.n, addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), seq: map[uint16]uint32{}, hello: f.hello}
		g.hello.NICID = uint64(5000 + i)
		g.meet()
		//= MR-ASC-030
		if tags[g.tag] {
			t.Fatalf("tag %#x is 0 or used twice", g.tag)
		}
		tags[g.tag] = true
		sum += uint64(g.tag)
	}
	//= MR-ASC-030
	if mean := sum / n; mean < 1<<30 || mean > 3<<30 {
		t.Errorf("mean of %d tags: %#x", n, mean)
	}
	if g := newForge(t, Config{Seed: 5}); g.tag == f.tag {
		t.Error("two NICs begin with the same tag")
	}

	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	good := f.write(q, 0, "TA", 0, 7, bytesOf(1, 64))
	//= MR-ASC-032
	for name, change := range map[string]func(p *pkt.Packet){
		"source":      func(p *pkt.Packet) { p.Src = netip.MustParseAddr("10.0.9.1") },
		"destination": func(p *pkt.Packet) { p.Dst = netip.MustParseAddr("10.0.0.99") },
		"tag":         func(p *pkt.Packet) { p.Data[wire.BTHLen] ^= 1; wire.Seal(p.Data) },
	} {
		p := good
		p.Data = append([]byte(nil), good.Data...)
		change(&p)
		if xs := of(f.deliver(p), wire.OpAck); len(xs) != 0 || f.n.Mem[0] != 0 {
			t.Errorf("wrong %s: answered %v, memory %d", name, xs, f.n.Mem[0])
		}
	}
	f.want("the right one", f.deliver(good), good, "ack")
}

// TestSpecStale: an unknown tag gets a small, rare STALE and nothing else; who gets one only begins a handshake.
func TestSpecStale(t *testing.T) {
	f := newStranger(t, Config{Seed: 1})
	stale := 0
	for range 5000 {
		p := f.packet(wire.Header{Op: wire.OpSend, Tag: 0x5555, DestQP: 0x100, Flags: wire.FlagTail}, bytesOf(1, 20))
		for _, x := range f.deliver(p) {
			stale++
			//= MR-ASC-040 MR-ASC-041 MR-SEC-005
			if tag, d := wire.DecodeStale(x.Payload); x.Op != wire.OpStale || d != 0 || tag != 0x5555 || len(x.Data) > len(p.Data) {
				t.Fatalf("answered %v", x)
			}
		}
		f.w.Now = f.w.Now.Add(200 * mono.Microsecond)
	}
	//= MR-ASC-040
	if stale == 0 || stale > 1001 {
		t.Errorf("%d STALEs in a second", stale)
	}
	//= MR-ASC-072
	g := newStranger(t, Config{Seed: 1})
	b := make([]byte, 64)
	n := wire.PutProbe(b, &wire.Probe{Kind: wire.ProbePath, ID: 7}, wire.ProbeLen)
	if xs := of(g.deliver(g.packet(wire.Header{Op: wire.OpProbe, Tag: 0x5555}, b[:n])), wire.OpProbeAck); len(xs) != 0 {
		t.Errorf("a PROBE without association is answered: %v", xs)
	}
}

// TestSpecStaleReceived: STALE does nothing but begin a handshake, and the same instance changes nothing.
func TestSpecStaleReceived(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{Timeout: 22})
	q.Send(WR{Op: transport.OpSend, N: 100})
	f.collect()
	before := fmt.Sprintf("%+v", f.n.E.Assocs()[0].Planes[0].InFlight)
	stale := func(tag uint32, src netip.Addr) []*sent {
		b := make([]byte, 8)
		p := f.packet(wire.Header{Op: wire.OpStale, Tag: 1}, b[:wire.PutStale(b, tag)])
		p.Src = src
		return f.deliver(p)
	}
	//= MR-ASC-042
	if xs := append(stale(peerTag+1, f.addr), stale(peerTag, netip.MustParseAddr("10.0.9.1"))...); len(xs) != 0 {
		t.Errorf("a STALE of somebody else: sends %v", xs)
	}
	xs := stale(peerTag, f.addr)
	if len(xs) != 1 || xs[0].Hello.Stage != wire.HelloInit {
		t.Fatalf("STALE: sends %v", xs)
	}
	//= MR-ASC-043
	if now := fmt.Sprintf("%+v", f.n.E.Assocs()[0].Planes[0].InFlight); now != before || q.Failed || len(q.Sends) != 0 {
		t.Errorf("STALE changed the association: %s in flight, was %s", now, before)
	}
	//= MR-ASC-045
	p := data(f.log)[0]
	f.reply(wire.HelloAccept, xs[0].Hello.Tag, f.addr)
	f.say(wire.HelloConfirm, 0) // repeats
	f.reply(wire.HelloAccept, xs[0].Hello.Tag, f.addr)
	if now := fmt.Sprintf("%+v", f.n.E.Assocs()[0].Planes[0].InFlight); now != before || q.Failed {
		t.Errorf("the same instance: %s in flight, was %s", now, before)
	}
	f.deliver(f.acks(p))
	if len(q.Sends) != 1 || q.Sends[0].Status != transport.OK {
		t.Errorf("the acknowledgement does not count any more: %+v", q.Sends)
	}
}

// TestSpecSimultaneous: both ends open at the same moment, HELLOs get lost and doubled: one association each.
func TestSpecSimultaneous(t *testing.T) {
	for seed := range uint64(20) {
		s := newScript(t, Config{Seed: seed, Planes: 2})
		n := 0
		s.fate = func(x *sent) mono.Duration {
			if x.Op != wire.OpHello {
				return 0
			}
			n++
			s.line = append(s.line, &flight{x, s.w.Now.Add(mono.Duration(n*37%11) * mono.Microsecond)})
			if n%3 == int(seed%3) {
				return lost
			}
			return mono.Duration(n*53%29) * mono.Microsecond
		}
		p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{Timeout: 22})
		q.Recv(1, 0, 100)
		p.Recv(1, 0, 100)
		p.Send(WR{Op: transport.OpSend, N: 10})
		q.Send(WR{Op: transport.OpSend, N: 10})
		s.done(p, 1)
		s.done(q, 1)
		s.run(50 * mono.Millisecond)
		//= MR-ASC-033 MR-ASC-045
		for i := range 2 {
			if as := s.node(i).E.Assocs(); len(as) != 1 || as[0].State != "up" || s.node(i).E.C.AssocRestarts != 0 {
				t.Errorf("seed %d: %+v", seed, as)
			}
		}
		if p.Sends[0].Status != transport.OK || q.Sends[0].Status != transport.OK {
			t.Errorf("seed %d: %+v %+v", seed, p.Sends, q.Sends)
		}
	}
}

// TestSpecRestart: a proven new instance ends what the old one had, and everything begins anew.
func TestSpecRestart(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	q := f.qp(QPOptions{Timeout: 22})
	for range 200 {
		q.Send(WR{Op: transport.OpSend, N: 100})
	}
	old := data(f.collect())
	f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 10)))

	f.hello.Instance++
	f.seq = map[uint16]uint32{0: 1000 - 500} // far behind the old one's: would be too old on its path
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	f.meet()
	//= MR-ASC-044
	if st := fmt.Sprint(q.State()); st != "ERR" || q.Err != transport.RetryExcErr || q.Sends[0].Status != transport.RetryExcErr || q.Sends[1].Status != transport.WRFlushErr {
		t.Errorf("QP of the old instance: %s, %+v", st, q.Sends)
	}
	if n := f.n.E.InFlight(); n != 0 {
		t.Errorf("%d transmissions are still in flight", n)
	}
	q2 := f.qp(QPOptions{Timeout: 22})
	p := f.write(q2, 0, "TA", 0, 7, bytesOf(2, 10))
	f.want("the first packet of the new instance", f.deliver(p), p, "ack")
	for range 200 {
		q2.Send(WR{Op: transport.OpSend, N: 100})
	}
	for _, x := range data(f.collect()) {
		for _, y := range old {
			if x.Path == y.Path && x.Seq-y.Seq < 1000 {
				t.Errorf("path %#x goes on with sequence %d after %d", x.Path, x.Seq, y.Seq)
			}
		}
	}
}

// TestSpecFormerPackets: what the peer sent before the HELLO that told of its new instance or tag is dropped: it would be
// taken for the beginning of the new one's paths.
func TestSpecFormerPackets(t *testing.T) {
	for _, restart := range []bool{true, false} {
		f := newForge(t, Config{Seed: 1})
		f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		q := f.qp(QPOptions{Timeout: 22})
		f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 10)))
		f.seq = map[uint16]uint32{0: 1 << 31}
		late := []pkt.Packet{f.write(q, 1, "TA", 0, 7, bytesOf(2, 10)), f.ack(acked{})}
		f.seq = map[uint16]uint32{0: 1000}
		if restart {
			f.hello.Instance++
		} else {
			f.hello.Tag++
		}
		f.w.Now = f.w.Now.Add(mono.Microsecond)
		f.meet()
		psn := uint32(1)
		if restart {
			q, psn = f.qp(QPOptions{Timeout: 22}), 0
		}
		//= MR-ASC-048
		if xs := of(f.deliver(late...), wire.OpAck); len(xs) != 0 || f.n.E.C.DropFormer != 2 || f.n.Mem[0] == 2 {
			t.Errorf("restart %v: %d dropped, answers %v", restart, f.n.E.C.DropFormer, xs)
		}
		p := f.write(q, psn, "TA", 0, 7, bytesOf(3, 10))
		f.want("the first packet after it", f.deliver(p), p, "ack")
	}
}

// TestSpecLateWord: a HELLO of the instance that is gone, held back by the network, brings nothing back.
func TestSpecLateWord(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	old := f.hello
	f.hello.Instance++
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	f.meet()
	q := f.qp(QPOptions{Timeout: 22})
	again := f.hello
	f.hello = old
	xs := f.say(wire.HelloConfirm, 0)
	//= MR-ASC-047
	if as := f.n.E.Assocs(); len(xs) != 0 || q.Failed || as[0].PeerInstance != again.Instance {
		t.Errorf("answered %v, QP failed %v, instance %#x", xs, q.Failed, as[0].PeerInstance)
	}
}

// TestSpecRestartBehindUs: a QP that was made since the peer's restart survives the proof of it, and what it had
// sent to the old tag goes again.
func TestSpecRestartBehindUs(t *testing.T) {
	s := newScript(t, Config{Seed: 7})
	a, b := s.node(0), s.node(1)
	p, q := s.w.Connect(a, b, QPOptions{})
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	for range 300 { // all paths of the old instance are known
		p.Send(WR{Op: transport.OpRead, Key: 7, N: 10})
		s.done(p, len(p.Sends)+1)
	}
	p.Destroy(s.w.Now)
	_ = q
	b.Start(99)
	p2, q2 := s.w.Connect(a, b, QPOptions{})
	q2.Recv(1, 0, 100)
	p2.Send(WR{ID: 1, Op: transport.OpSend, N: 100})
	for range 100 {
		p2.Send(WR{ID: 2, Op: transport.OpRead, Key: 7, N: 10})
		s.done(p2, len(p2.Sends)+1)
	}
	//= MR-ASC-044
	if c := p2.Sends[len(p2.Sends)-1]; c.Status != transport.OK || a.E.C.DropOld+a.E.C.DropAge != 0 {
		t.Errorf("%+v, %d and %d packets were taken for old ones", c, a.E.C.DropOld, a.E.C.DropAge)
	}
}

// TestSpecForgotten: the same instance comes with another tag: it has forgotten the association, and its paths begin
// anew.
func TestSpecForgotten(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	q := f.qp(QPOptions{Timeout: 22})
	f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 10)))
	f.seq = map[uint16]uint32{0: 500}
	f.hello.Tag = peerTag + 77
	f.meet()
	p := f.write(q, 1, "TA", 0, 7, bytesOf(2, 10))
	xs := f.deliver(p)
	//= MR-ASC-046
	f.want("the first packet under the new tag", xs, p, "ack")
	if xs[0].Tag != peerTag+77 || q.Failed {
		t.Errorf("tag %#x, failed %v", xs[0].Tag, q.Failed)
	}
}

// TestSpecAdopt: what HELLO says of planes, paths, grants and holds is kept to.
func TestSpecAdopt(t *testing.T) {
	f := newStranger(t, Config{Seed: 9, Planes: 3, Engine: func(c *metaroce.Config) { c.Planes[1].PacketMax = 1000 }})
	f.hello.NumPlanes = 2 // plane 2 is not named, plane 1 takes small packets only
	f.hello.Planes[0].MTU, f.hello.Planes[1].MTU = 2048+100, 1300
	f.hello.Planes[0].Grant = 10_000
	f.hello.PathLimit = 2
	accept := f.meet()
	//= MR-ASC-053
	for i := range accept.Hello.NumPlanes {
		if p := accept.Hello.Planes[i]; p.MTU < 1280-48 {
			t.Errorf("plane %d is offered with %d bytes", p.Plane, p.MTU)
		}
	}
	if accept.Hello.NumPlanes != 2 {
		t.Errorf("%d planes", accept.Hello.NumPlanes)
	}
	q := f.qp(QPOptions{MTU: 2048, Timeout: 22})
	q.Send(WR{Op: transport.OpWrite, N: 1 << 20})
	flying := 0
	for _, x := range data(f.collect()) {
		flying += len(x.Data)
	}
	//= MR-ASC-052
	if flying >= 10_000+2200 || flying <= 10_000-2200 { // less than a packet beside it: the rest counts by chance
		t.Errorf("%d bytes in flight under a first grant of 10,000", flying)
	}
	f.deliver(f.ack(acked{Planes: []wire.PlaneBlock{{Plane: 0, Grant: 1 << 20}}}))
	f.wait(5 * mono.Millisecond)
	if n := len(data(f.log)); n < 50 {
		t.Fatalf("only %d packets", n)
	}
	for _, x := range f.log {
		//= MR-ASC-050
		if x.Op != wire.OpHello && (x.Plane != 0 || len(x.Data) > 2148) {
			t.Errorf("%v: %d bytes on plane %d", x, len(x.Data), x.Plane)
		}
		//= MR-ASC-051
		if x.Header.Path&0xff >= 2 {
			t.Errorf("%v: path index above the limit", x)
		}
	}
}

// TestSpecTooLarge: a QP whose packets fit no plane of the peer ends, and does not keep others from sending.
func TestSpecTooLarge(t *testing.T) {
	f := newStranger(t, Config{Seed: 9})
	f.hello.Planes[0].MTU = 2048 + 100
	f.meet()
	big := f.qp(QPOptions{MTU: 4096, Timeout: 22})
	small := f.qp(QPOptions{MTU: 2048, Timeout: 22})
	big.Send(WR{Op: transport.OpWrite, N: 10})
	small.Send(WR{Op: transport.OpWrite, N: 10})
	xs := data(f.wait(100 * mono.Microsecond))
	//= MR-ASC-050 MR-MSG-019
	if len(big.Sends) != 1 || big.Sends[0].Status == transport.OK || small.Failed || len(xs) != 1 {
		t.Errorf("%+v, sent %v", big.Sends, xs)
	}
}

// TestSpecMaxHold: no acknowledgement is held longer than HELLO said.
func TestSpecMaxHold(t *testing.T) {
	f := newStranger(t, Config{Seed: 1, Engine: func(c *metaroce.Config) { c.AckHold = 7 * mono.Microsecond }})
	named := mono.Duration(f.meet().Hello.MaxHold) << 4
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	p := f.write(q, 0, "", 0, 7, bytesOf(1, 100))
	t0 := f.w.Now
	if xs := of(f.deliver(p), wire.OpAck); len(xs) != 0 {
		t.Fatalf("no hold at all: %v", xs)
	}
	xs := of(f.wait(mono.Millisecond), wire.OpAck)
	//= MR-ASC-054 MR-REL-021
	if len(xs) == 0 || xs[0].At.Sub(t0) > named || named > 500*mono.Microsecond {
		t.Errorf("ACK after %v, MaxHold %v", xs[0].At.Sub(t0), named)
	}
}

// TestSpecReap: an association that nobody uses goes; one that is used stays.
func TestSpecReap(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	f.wait(31 * second)
	//= MR-ASC-060 MR-ASC-061
	if as := f.n.E.Assocs(); len(as) != 0 {
		t.Errorf("still there: %+v", as)
	}
	f.meet()
	f.qp(QPOptions{})
	f.wait(31 * second)
	if len(f.n.E.Assocs()) != 1 {
		t.Error("forgotten in use")
	}
}

// TestSpecForeignQP: a QP belongs to one association.
func TestSpecForeignQP(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	g := &forge{T: t, w: f.w, n: f.n, addr: netip.MustParseAddr("10.0.9.1"), seq: map[uint16]uint32{}, hello: f.hello}
	g.hello.NICID++
	g.meet()
	p := g.write(q, 0, "TA", 0, 7, bytesOf(1, 10))
	//= MR-ASC-073 MR-MSG-087
	g.want("a stranger's request", g.deliver(p), p, "NO_QP")
	if f.n.Mem[0] != 0 {
		t.Error("a stranger writes")
	}
}
