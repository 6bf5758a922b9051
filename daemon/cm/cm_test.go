package cm

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// TestConnect: what each side says arrives at the other, and the QPs get what fits together.
func TestConnect(t *testing.T) {
	w := newWorld(t, 1, 2)
	x, y := w.nodes[0], w.nodes[1]
	psn := map[Attr]uint32{}
	w.onMAD = func(_ int, m *Msg) bool {
		psn[m.Attr] = m.PSN
		return true
	}
	l := y.listen(7174)
	a := x.dial(y.addr, 7174, PSTCP, qpRC, "hello")
	e := y.take(EvConnectRequest)
	b := e.ID
	if e.Listen != l || string(e.Private[:5]) != "hello" || len(e.Private) != 56 || e.Param.RespRes != 7 || e.Param.InitDepth != 4 || e.Param.QPN != 0x11+a.Handle {
		t.Errorf("request %+v", e)
	}
	if i := b.Info(); i.Src != netip.AddrPortFrom(y.addr, 7174) || i.Dst != a.Info().Src || i.NIC != 0 || i.DGID != x.addr.As16() {
		t.Errorf("passive side: %+v", i)
	}
	if err := b.Accept(w.now, Param{QPN: 77, RespRes: 6, InitDepth: 3, RNR: 5}, []byte("welcome")); err != nil {
		t.Fatal(err)
	}
	e = x.take(EvConnectResponse)
	if string(e.Private[:7]) != "welcome" || len(e.Private) != 196 || e.Param.RespRes != 3 || e.Param.InitDepth != 6 || e.Param.QPN != 77 {
		t.Errorf("response %+v", e)
	}
	checkQPs(t, a, b)
	var r, s hostq.ModifyQP
	if err := errors.Join(a.QPAttr(2, &r), a.QPAttr(3, &s)); err != nil || r.RQPSN != psn[REQ] || s.SQPSN != psn[REP] {
		t.Errorf("%v: receives from %#x, sends from %#x; REQ had %#x, REP %#x", err, r.RQPSN, s.SQPSN, psn[REQ], psn[REP])
	}
	if err := a.Establish(w.now); err != nil {
		t.Fatal(err)
	}
	y.take(EvEstablished)
	if err := a.Disconnect(w.now); err != nil {
		t.Fatal(err)
	}
	y.take(EvDisconnected)
	x.take(EvDisconnected)
	if err := errors.Join(b.Disconnect(w.now), a.Disconnect(w.now)); err != nil {
		t.Errorf("again: %v", err)
	}
	x.take(EvTimewaitExit)
	y.take(EvTimewaitExit)
	if x.m.Conns()+y.m.Conns() != 0 {
		t.Errorf("%d and %d exchanges are left", x.m.Conns(), y.m.Conns())
	}
}

func checkQPs(t *testing.T, a, b *ID) {
	t.Helper()
	var ra, sa, rb, sb hostq.ModifyQP
	for _, err := range []error{a.QPAttr(2, &ra), a.QPAttr(3, &sa), b.QPAttr(2, &rb), b.QPAttr(3, &sb)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if ra.RQPSN != sb.SQPSN || rb.RQPSN != sa.SQPSN || ra.PathMTU != 3 || rb.PathMTU != 3 || ra.DestQPNum != 77 || rb.DestQPNum != 0x11+a.Handle {
		t.Errorf("PSNs, MTUs or numbers: %+v %+v %+v %+v", ra, sa, rb, sb)
	}
	if ra.MaxDestRdAtomic != 3 || sa.MaxRdAtomic != 6 || rb.MaxDestRdAtomic != 6 || sb.MaxRdAtomic != 3 {
		t.Errorf("READs: %d %d, %d %d", ra.MaxDestRdAtomic, sa.MaxRdAtomic, rb.MaxDestRdAtomic, sb.MaxRdAtomic)
	}
	if sa.RNRRetry != 5 || sb.RNRRetry != 6 || sa.RetryCnt != 7 || ra.AH.DGID != b.src.Addr().As16() || rb.AH.DGID != a.src.Addr().As16() {
		t.Errorf("retries or addresses: %+v %+v", sa, sb)
	}
}

// TestLoss: connecting and disconnecting on a network that loses, repeats and reorders takes well under a second.
func TestLoss(t *testing.T) {
	var worst mono.Duration
	for seed := range uint64(300) {
		w := newWorld(t, seed, 2)
		w.loss, w.dup, w.most = 0.10, 0.05, mono.Millisecond
		y := w.nodes[1]
		l := y.listen(1)
		start := w.now
		a, b := w.pair(1)
		worst = max(worst, w.now.Sub(start))
		if seed%2 == 0 {
			a, b = b, a
		}
		a.Destroy(w.now)
		if err := b.Disconnect(w.now); err != nil {
			t.Fatal(err)
		}
		w.until(5*mono.Second, func() bool { return false })
		b.Destroy(w.now)
		l.Destroy(w.now)
		for w.step() {
		}
		for _, n := range w.nodes {
			if n.m.Conns() != 0 || n.m.IDs != 0 || len(n.m.byRemote)+len(n.m.byQP)+len(n.m.timers) != 0 {
				t.Fatalf("seed %d: node %d keeps %d exchanges, %d IDs, %d %d %d", seed, n.i, n.m.Conns(), n.m.IDs, len(n.m.byRemote), len(n.m.byQP), len(n.m.timers))
			}
			for _, h := range n.m.hosts {
				if len(h.ports) != 0 {
					t.Fatalf("seed %d: ports %v", seed, h.ports)
				}
			}
		}
	}
	if worst > 600*mono.Millisecond {
		t.Errorf("the slowest connection took %v", worst)
	}
}

// TestReject: no listener, a program's refusal with its words, a listener that ends with requests waiting, a lost REJ.
func TestReject(t *testing.T) {
	w := newWorld(t, 3, 2)
	x, y := w.nodes[0], w.nodes[1]
	x.dial(y.addr, 9, PSTCP, qpRC, "")
	if e := x.take(EvRejected); e.Status != RejectBadService {
		t.Errorf("no listener: status %d", e.Status)
	}
	l := y.listen(9)
	lost := 0
	w.onMAD = func(_ int, m *Msg) bool {
		if m.Attr == REJ {
			lost++
			return lost > 1
		}
		return true
	}
	x.dial(y.addr, 9, PSTCP, qpRC, "")
	b := y.take(EvConnectRequest).ID
	if err := b.Reject(w.now, 0, []byte("no")); err != nil {
		t.Fatal(err)
	}
	if e := x.take(EvRejected); e.Status != RejectConsumer || string(e.Private[:2]) != "no" || len(e.Private) != 148 {
		t.Errorf("refused: %+v", e)
	}
	unread, _ := y.p.NewChannel(func() bool { return true })
	l.Migrate(unread)
	x.dial(y.addr, 9, PSTCP, qpRC, "")
	w.until(mono.Second, func() bool { return l.waiting == 1 })
	l.Destroy(w.now)
	if e := x.take(EvRejected); e.Status != RejectConsumer {
		t.Errorf("listener gone: status %d", e.Status)
	}
}

// TestSlowProgram: a program that does not answer for a minute is waited for, as its daemon lives; one whose daemon is
// silent is not.
func TestSlowProgram(t *testing.T) {
	w := newWorld(t, 4, 2)
	x, y := w.nodes[0], w.nodes[1]
	y.listen(9)
	x.dial(y.addr, 9, PSTCP, qpRC, "")
	b := y.take(EvConnectRequest).ID
	w.until(100*mono.Second, func() bool { return len(x.got) > 0 })
	if len(x.got) > 0 {
		t.Fatalf("gave up after %v: %+v", w.now, x.got[0])
	}
	if err := b.Accept(w.now, Param{QPN: 5}, nil); err != nil {
		t.Fatal(err)
	}
	x.take(EvConnectResponse)
	w.until(30*mono.Second, func() bool { return len(y.got) > 0 }) // now the active program is slow
	if len(y.got) > 0 {
		t.Fatalf("gave up: %+v", y.got[0])
	}
	w.cut[[2]int{0, 1}], w.cut[[2]int{1, 0}] = true, true
	start := w.now
	x.dial(y.addr, 9, PSTCP, qpRC, "")
	if e := x.take(EvUnreachable); e.Status != etimedout || w.now.Sub(start) > 10*mono.Second {
		t.Errorf("silent: %+v after %v", e, w.now.Sub(start))
	}
}

// TestDeath: a program that dies lets go of its port at once; its peers are told, and the next one connects.
func TestDeath(t *testing.T) {
	w := newWorld(t, 5, 2)
	x, y := w.nodes[0], w.nodes[1]
	for i := range 50 {
		y.listen(7174)
		w.pair(7174)
		if i%2 == 0 { // the server dies
			y.p.Close(w.now)
			y.program()
			x.take(EvDisconnected)
		} else {
			x.p.Close(w.now)
			x.program()
			y.take(EvDisconnected)
			y.p.Close(w.now)
			y.program()
		}
		x.got, y.got = nil, nil
	}
	// A daemon that dies says nothing; its successor's QP has the same number.
	y.listen(7174)
	w.pair(7174)
	x.start(99)
	x.p.next = 1 << 8
	w.pair(7174)
	if y.m.S.Stale != 0 {
		t.Error("another number is no stale connection")
	}
	k := qpKey{x.addr, 1, 0x11 + x.p.next}
	for k.qpn = range uint32(1 << 10) {
		if y.m.byQP[k] != nil {
			break
		}
	}
	x.start(77)
	x.dial(y.addr, 7174, PSTCP, qpRC, "")
	w.until(mono.Second, func() bool { return len(y.got) > 0 })
	if y.m.S.Stale > 1 {
		t.Errorf("%d stale", y.m.S.Stale)
	}
}

// TestStale: a request with the QP of a connection ends the old one, which is gone at the peer.
func TestStale(t *testing.T) {
	w := newWorld(t, 6, 2)
	x, y := w.nodes[0], w.nodes[1]
	y.listen(1)
	a, b := w.pair(1)
	handle := a.Handle
	w.cut[[2]int{0, 1}] = true
	x.p.Close(w.now)
	delete(w.cut, [2]int{0, 1})
	w.sent = nil
	x.start(1234)
	x.p.next = handle - 1
	if c := x.dial(y.addr, 1, PSTCP, qpRC, ""); c.Handle != handle {
		t.Fatalf("handle %d, want %d", c.Handle, handle)
	}
	if e := y.take(EvDisconnected); e.ID != b || e.Status != econnreset {
		t.Errorf("%+v", e)
	}
	y.take(EvConnectRequest)
	if y.m.S.Stale != 1 {
		t.Errorf("%d stale", y.m.S.Stale)
	}
}

// TestLateRequest: a request that was refused does not come, repeated, to a listener that began meanwhile.
func TestLateRequest(t *testing.T) {
	w := newWorld(t, 10, 2)
	w.dup = 1
	x, y := w.nodes[0], w.nodes[1]
	for port, ps := range map[uint16]PortSpace{1: PSTCP, 2: PSUDP} {
		typ, want := uint8(qpRC), EvRejected
		if ps == PSUDP {
			typ, want = qpUD, EvUnreachable
		}
		x.dial(y.addr, port, ps, typ, "")
		for w.sent[0].from == 0 || len(w.sent) == 2 { // until the first one is refused
			w.step()
			if len(y.got) > 0 {
				t.Fatal("no listener, and yet a request")
			}
			if len(x.got) > 0 {
				break
			}
		}
		y.listenAt(netip.IPv4Unspecified(), port, ps, typ)
		x.take(want)
		w.until(500*mono.Millisecond, func() bool { return len(y.got) > 0 })
		if len(y.got) > 0 {
			t.Errorf("%+v", y.got[0])
		}
	}
}

// TestMTU: a peer with a smaller MTU says so, and the connection is made with it.
func TestMTU(t *testing.T) {
	w := newWorld(t, 7, 2)
	w.nodes[0].m.cfg.NICs[0].MTU = 5
	w.nodes[1].listen(1)
	a, b := w.pair(1)
	if a.Info().MTU != 3 || b.Info().MTU != 3 {
		t.Errorf("MTU %d and %d", a.Info().MTU, b.Info().MTU)
	}
}

// TestDatagrams: SIDR, accepted and refused, with loss.
func TestDatagrams(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(t, seed, 2)
		w.loss, w.dup = 0.2, 0.1
		x, y := w.nodes[0], w.nodes[1]
		y.listenAt(netip.IPv4Unspecified(), 5, PSUDP, qpUD)
		x.dial(y.addr, 5, PSUDP, qpUD, "who")
		e := y.take(EvConnectRequest)
		if string(e.Private[:3]) != "who" || len(e.Private) != 180 {
			t.Fatalf("%+v", e)
		}
		if err := e.ID.Accept(w.now, Param{QPN: 99}, []byte("me")); err != nil {
			t.Fatal(err)
		}
		if e := x.take(EvEstablished); e.Param.QPN != 99 || e.Param.QKey != udQKey || e.Param.GID != y.addr.As16() || string(e.Private[:2]) != "me" {
			t.Fatalf("%+v", e)
		}
		x.dial(y.addr, 5, PSUDP, qpUD, "")
		if err := y.take(EvConnectRequest).ID.Reject(w.now, 0, nil); err != nil {
			t.Fatal(err)
		}
		if e := x.take(EvUnreachable); e.Status != sidrReject {
			t.Fatalf("%+v", e)
		}
		x.dial(y.addr, 6, PSUDP, qpUD, "")
		if e := x.take(EvUnreachable); e.Status != sidrUnsupported {
			t.Fatalf("%+v", e)
		}
	}
}

// TestAddresses: who may bind what, and which NIC a destination leads to.
func TestAddresses(t *testing.T) {
	ap := netip.MustParseAddrPort
	m := New(Config{NICs: []NIC{
		{Name: "a/mr0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}},
		{Name: "a/mr1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}},
		{Name: "b/mr0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
	}, Send: func(mono.Time, int, netip.Addr, netip.Addr, *[MADLen]byte) {}})
	prog := func(nics ...int) func() *ID {
		p := m.NewProgram(nics)
		ch, _ := p.NewChannel(func() bool { return true })
		return func() *ID {
			id, _ := p.NewID(ch.Handle, PSTCP, qpRC)
			return id
		}
	}
	a, b, all := prog(0, 1), prog(2), prog(0, 1, 2)
	first := a()
	for _, c := range []struct {
		what string
		id   *ID
		at   string
		want error
	}{
		{"any address", first, "0.0.0.0:7", nil}, {"again", first, "0.0.0.0:8", syscall.EINVAL}, {"the same port", a(), "0.0.0.0:7", syscall.EADDRINUSE},
		{"one address of it", a(), "10.0.0.1:7", syscall.EADDRINUSE}, {"another host", b(), "0.0.0.0:7", nil}, {"both hosts", all(), "0.0.0.0:7", syscall.EADDRINUSE},
		{"its other NIC", a(), "10.1.0.1:9", nil}, {"same port, other NIC", a(), "10.0.0.1:9", nil}, {"a NIC not ours", a(), "10.0.0.2:1", syscall.ENODEV},
		{"no NIC's", a(), "10.9.9.9:1", syscall.ENODEV}, {"this host", a(), "127.0.0.1:11", nil}, {"IPv6", a(), "[fd00::1]:7", nil}, {"any IPv6", a(), "[::]:7", syscall.EADDRINUSE},
	} {
		if err := c.id.Bind(ap(c.at)); !errors.Is(err, c.want) {
			t.Errorf("%s: bind %s: %v, want %v", c.what, c.at, err, c.want)
		}
	}
	for _, c := range []struct{ dst, src string }{
		{"10.0.0.2:1", "10.0.0.1"}, {"10.1.77.2:1", "10.1.0.1"}, {"10.1.0.1:1", "10.1.0.1"}, {"[fd00::2]:1", "fd00::1"}, {"224.0.0.7:1", "10.0.0.1"}, {"127.0.0.1:5", "10.0.0.1"},
	} {
		id := a()
		if err := id.ResolveAddr(1, netip.AddrPort{}, ap(c.dst)); err != nil || id.src.Addr().String() != c.src || id.src.Port() < ephemeralLo {
			t.Errorf("to %s from %v: %v", c.dst, id.src, err)
		}
	}
	if err := b().ResolveAddr(1, netip.AddrPort{}, ap("[fd00::1]:1")); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("no IPv6 there: %v", err)
	}
	ids := map[uint16]bool{}
	for range 1000 {
		id := a()
		if err := id.Bind(ap("0.0.0.0:0")); err != nil || ids[id.src.Port()] {
			t.Fatalf("port %v twice or %v", id.src, err)
		}
		ids[id.src.Port()] = true
	}
}

// TestAnyFamily: a listener at any IPv6 address hears IPv4 as well, unless it said that it does not want to.
func TestAnyFamily(t *testing.T) {
	w := newWorld(t, 11, 2)
	x, y := w.nodes[0], w.nodes[1]
	y.listenAt(netip.IPv6Unspecified(), 5, PSTCP, qpRC)
	only := y.id(PSTCP, qpRC)
	if err := errors.Join(only.Set(2, 1), only.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 6)), only.Listen(0)); err != nil {
		t.Fatal(err)
	}
	six := netip.AddrFrom16([16]byte{0xfd, 15: 2})
	for _, c := range []struct {
		to    netip.Addr
		port  uint16
		heard bool
	}{{y.addr, 5, true}, {six, 5, true}, {six, 6, true}, {y.addr, 6, false}} {
		x.dial(c.to, c.port, PSTCP, qpRC, "")
		if !c.heard {
			x.take(EvRejected)
			continue
		}
		if e := y.take(EvConnectRequest); e.ID.Info().Src.Addr().Unmap() != c.to || e.ID.Info().Src.Addr().Is4() {
			t.Errorf("to %v: %v", c.to, e.ID.Info().Src)
		}
	}
	again := y.id(PSTCP, qpRC)
	if err := again.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 6)); err != nil {
		t.Errorf("IPv4 beside IPv6 only: %v", err)
	}
}

// TestBacklog: a listener that is behind loses nothing but time.
func TestBacklog(t *testing.T) {
	w := newWorld(t, 8, 2)
	x, y := w.nodes[0], w.nodes[1]
	l := y.id(PSTCP, qpRC)
	if err := errors.Join(l.Bind(netip.AddrPortFrom(y.addr, 3)), l.Listen(2)); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		x.dial(y.addr, 3, PSTCP, qpRC, "")
	}
	w.until(100*mono.Millisecond, func() bool { return false })
	for range 5 {
		if err := y.take(EvConnectRequest).ID.Accept(w.now, Param{QPN: 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		x.take(EvConnectResponse)
	}
	if y.m.S.DropBacklog == 0 {
		t.Error("nothing had to wait")
	}
}

// TestMigrate: events that wait go with their ID; so do signals that were not given.
func TestMigrate(t *testing.T) {
	w := newWorld(t, 9, 2)
	x := w.nodes[0]
	room, signals := 1, 0
	full, _ := x.p.NewChannel(func() bool {
		if room == 0 {
			return false
		}
		room--
		signals++
		return true
	})
	var ids []*ID
	for range 3 {
		id, _ := x.p.NewID(full.Handle, PSTCP, qpRC)
		if err := id.ResolveAddr(w.now, netip.AddrPort{}, netip.AddrPortFrom(w.nodes[1].addr, 1)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if signals != 1 || full.owed != 2 {
		t.Fatalf("%d signals, %d owed", signals, full.owed)
	}
	if back := ids[1].Migrate(x.ch); back != 0 || full.owed != 1 {
		t.Errorf("%d to take back, %d owed", back, full.owed)
	}
	if e := x.take(EvAddrResolved); e.ID != ids[1] {
		t.Error("another ID's event")
	}
	room = 1
	if e, ok := full.Get(); !ok || e.ID != ids[0] || signals != 2 {
		t.Errorf("%+v, %d signals", e, signals)
	}
	if _, back := ids[2].Destroy(w.now); back != 1 {
		t.Errorf("%d to take back", back)
	}
	if err := x.p.CloseChannel(full.Handle); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a channel with an ID: %v", err)
	}
}

// TestTable prints the whole state machine: what is new in it is meant.
func TestTable(t *testing.T) {
	var b strings.Builder
	for s := range numStates {
		for in := range numInputs {
			if a := table[s][in]; a.f != nil {
				b.WriteString(s.String() + " " + in.String() + " -> " + a.name + "\n")
			}
		}
	}
	checkGolden(t, "testdata/table.txt", b.String())
}

// TestKinds: which QPs an ID may be for.
func TestKinds(t *testing.T) {
	w := newWorld(t, 1, 1)
	n := w.nodes[0]
	for typ, want := range map[uint8]error{qpRC: nil, qpUC: nil, qpUD: nil, qpXRCSend: syscall.EOPNOTSUPP, qpXRCRecv: syscall.EOPNOTSUPP, 0: syscall.EINVAL, 8: syscall.EINVAL} {
		if _, err := n.p.NewID(n.ch.Handle, PSTCP, typ); !errors.Is(err, want) {
			t.Errorf("type %d: %v, want %v", typ, err, want)
		}
	}
}
