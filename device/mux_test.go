package device

// In package device: it builds a mux of doubles.

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// side engines of the test: they note what they are told, and complete what they are asked to.
type noteEngine struct {
	name     string
	host     transport.Host
	qps      map[uint32]*noteQP
	packets  int
	fill     int // packets that it sends in a Transmit
	answered bool
	tries    int
	full     bool // no room for peers
	heard    int  // how often it was asked
}

type noteQP struct {
	e     *noteEngine
	cfg   EngineQPConfig
	state State
	rtr   RTRAttr
	rts   RTSAttr
	recvs uint32
	ring  [4]transport.SendWR
	n     int
}

func (e *noteEngine) Heard(_, _ netip.Addr) (bool, int)          { e.heard++; return e.answered, e.tries }
func (e *noteEngine) HandlePackets(_ mono.Time, ps []pkt.Packet) { e.packets += len(ps) }
func (e *noteEngine) HandleTimers(mono.Time)                     {}
func (e *noteEngine) NextTimeout() mono.Time                     { return mono.Never }
func (e *noteEngine) SetPlane(mono.Time, int, bool)              {}
func (e *noteEngine) SetBusy(uint32)                             {}
func (e *noteEngine) CountersJSON() any                          { return map[string]any{e.name: 1} }
func (q *noteQP) ToInit()                                        { q.state = Init }
func (q *noteQP) ToRTS(_ mono.Time, a RTSAttr)                   { q.state, q.rts = RTS, a }
func (q *noteQP) ToSQD()                                         { q.state = SQD }
func (q *noteQP) Resume(mono.Time)                               { q.state = RTS }
func (q *noteQP) SetQKey(uint32)                                 {}
func (q *noteQP) Reset(mono.Time)                                { q.state, q.n, q.recvs = Reset, 0, 0 }
func (q *noteQP) ToError(mono.Time)                              { q.state, q.n = Err, 0 }
func (q *noteQP) Post(mono.Time)                                 { q.n++ }
func (q *noteQP) RecvPosted(_ mono.Time, n uint32)               { q.recvs += n }
func (q *noteQP) ToRTR(_ mono.Time, a RTRAttr) bool              { q.state, q.rtr = RTR, a; return !q.e.full }
func (q *noteQP) Change(_ mono.Time, a RTRAttr, s RTSAttr) bool {
	if !q.e.full {
		q.rtr, q.rts = a, s
	}
	return !q.e.full
}
func (e *noteEngine) CreateQP(n uint32, c EngineQPConfig) EngineQP {
	if c.Type == transport.UD && e.name == "mr" {
		return nil
	}
	q := &noteQP{e: e, cfg: c}
	e.qps[n] = q
	return q
}

func (e *noteEngine) Transmit(_ mono.Time, b *pkt.Batch) {
	for i := 0; i < e.fill && !b.Full(); i++ {
		p := b.Next()
		p.Data = append(p.Data, e.name[0])
		p.Dst = netip.MustParseAddr("10.9.9.9")
	}
}

func (q *noteQP) Destroy(mono.Time) {
	for n, x := range q.e.qps {
		if x == q {
			delete(q.e.qps, n)
		}
	}
}

func (q *noteQP) NextWR() *transport.SendWR {
	if q.n == len(q.ring) {
		return nil
	}
	return &q.ring[q.n]
}

// bench is a NIC over a mux of two notes, with a program.
type bench struct {
	t      *testing.T
	now    mono.Time
	nic    *NIC
	m      *mux
	mr, ib *noteEngine
	prog   *hostqtest.Prog
	ctx    *Context
	pd, cq uint32
	cqe    *hostqtest.Queue
	bell   uint32
	there  netip.Addr // peer of the QPs
}

type nothing struct{}

func (nothing) CompEvent(uint32, hostq.CompEvent) bool { return true }
func (nothing) AsyncEvent(hostq.AsyncEvent) bool       { return true }

type noPort struct{ sent []byte }

func (*noPort) Caps() PortCaps                      { return PortCaps{PacketMax: 4300} }
func (*noPort) SetAddrs([]netip.Addr)               {}
func (*noPort) RxBurst(mono.Time, []pkt.Packet) int { return 0 }
func (*noPort) LinkUp() bool                        { return true }
func (*noPort) NextWake() mono.Time                 { return mono.Never }
func (*noPort) FDs() []int                          { return nil }
func (*noPort) Stats() PortStats                    { return PortStats{} }
func (*noPort) Close() error                        { return nil }
func (p *noPort) TxBurst(_ mono.Time, ps []pkt.Packet) int {
	for i := range ps {
		p.sent = append(p.sent, ps[i].Data[0])
	}
	return len(ps)
}

var (
	muxHere  = netip.MustParseAddr("10.0.0.1")
	muxThere = netip.MustParseAddr("10.0.0.2")
)

func newBench(t *testing.T, p Policy) *bench {
	b := &bench{t: t, now: 1e9, there: muxThere}
	n, err := New(Config{Name: "a/mr0", Dev: "mr0", Addrs: []netip.Addr{muxHere}, Ports: []Port{&noPort{}}, Transport: p,
		NewEngine: func(c EngineConfig, h transport.Host) Engine {
			b.mr, b.ib = &noteEngine{name: "mr", host: h, qps: map[uint32]*noteQP{}}, &noteEngine{name: "ib", host: h, qps: map[uint32]*noteQP{}}
			var mr Engine = b.mr
			if c.Policy == OnlyRoCEv2 {
				mr = nil
			}
			b.m = newMux(c.Policy, mr, b.ib, c.Addrs)
			return b.m
		}})
	if err != nil {
		t.Fatal(err)
	}
	mem := hostq.NewTestMem(8 << 20)
	b.nic, b.prog = n, hostqtest.New(mem)
	b.ctx = n.OpenContext(ContextConfig{Mem: mem, Notifier: nothing{}})
	b.pd, _ = b.ctx.AllocPD()
	b.cqe = b.prog.NewQueue(64, 128, 0)
	b.cq, err = b.ctx.CreateCQ(&hostq.CreateCQ{Entries: 64, Ring: b.cqe.Off})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type benchQP struct {
	*QP
	b      *bench
	sq, rq *hostqtest.Queue
}

func (b *bench) qp() *benchQP {
	b.t.Helper()
	q := &benchQP{b: b, sq: b.prog.NewQueue(16, 128, b.bell), rq: b.prog.NewQueue(16, 64, b.bell+1)}
	b.bell += 2
	var err error
	q.QP, err = b.ctx.CreateQP(&hostq.CreateQP{PD: b.pd, Type: 2, SendCQ: b.cq, RecvCQ: b.cq, SQEntries: 16, SQStride: 128, RQEntries: 16, RQStride: 64,
		MaxSendSGE: 1, MaxRecvSGE: 1, SQRing: q.sq.Off, RQRing: q.rq.Off, SQDoorbell: q.sq.Bell, RQDoorbell: q.rq.Bell})
	if err != nil {
		b.t.Fatal(err)
	}
	q.to(Init, 0)
	for range 3 {
		q.rq.PutRecv(9)
	}
	q.rq.Ring()
	b.step()
	q.to(RTR, 0)
	q.to(RTS, 0)
	return q
}

func (q *benchQP) to(s State, extra uint32) {
	q.b.t.Helper()
	mask := map[State]uint32{Init: maskPkey | maskPort | maskAccess, RTR: maskAV | maskPathMTU | maskDestQPN | maskRQPSN | maskMaxDestRd | maskMinRNR,
		RTS: maskTimeout | maskRetry | maskRNRRetry | maskSQPSN | maskMaxRd, Reset: 0}[s] | maskState | extra
	err := q.b.ctx.ModifyQP(q.b.now, &hostq.ModifyQP{Handle: q.Handle(), Mask: mask, QPState: uint32(s), PortNum: 1, PathMTU: 3, DestQPNum: 0x55,
		AH: hostq.AHAttr{DGID: q.b.there.As16(), IsGlobal: 1}, RQPSN: 0xfffff0, SQPSN: 0x200})
	if err != nil {
		q.b.t.Fatal(s, err)
	}
}

func (q *benchQP) post(n int) {
	for range n {
		q.sq.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRSend, Flags: hostq.SendSignaled}, nil)
	}
	q.sq.Ring()
	q.b.step()
}

// step also makes the engines' timers due.
func (b *bench) step() {
	b.now = b.now.Add(lookGap)
	b.nic.Step(b.now)
	b.m.HandleTimers(b.now)
	b.nic.Step(b.now)
}

// hello is a HELLO of the peer.
func (b *bench) hello() {
	b.m.HandlePackets(b.now, []pkt.Packet{{Data: []byte{byte(wire.OpHello)}, Src: muxThere, Dst: muxHere}})
}

// is checks where a QP lives, how much it was given and that the other engine has none of it.
func (q *benchQP) is(e *noteEngine, posted int) {
	q.b.t.Helper()
	other := q.b.mr
	if e == other {
		other = q.b.ib
	}
	x := e.qps[q.QPN()]
	if x == nil || other.qps[q.QPN()] != nil {
		q.b.t.Fatalf("not (only) in %s", e.name)
	}
	if x.n != posted || x.state != q.state || x.recvs != 3 || x.rtr.RemoteQPN != 0x55 || q.state == RTS && x.rts.SQPSN != 0x200 {
		q.b.t.Fatalf("in %s: %d posted, want %d; %+v", e.name, x.n, posted, x)
	}
}

// packet is a RoCEv2 packet to the QP.
func (q *benchQP) packet(op ib.Opcode, psn uint32) pkt.Packet {
	h := ib.Header{Op: op, PKey: ib.PKeyDefault, DestQP: q.QPN(), PSN: serial.PSN(psn & 0xffffff)}
	p := pkt.Packet{Data: make([]byte, h.Size()+ib.ICRCLen), Src: muxThere, Dst: muxHere, SrcPort: 0xc000}
	h.Put(p.Data)
	var s ib.Summer
	s.Seal(&p)
	return p
}

// An undecided QP posts nothing; when the peer speaks, all goes to MetaRoCE.
func TestMuxSpeaks(t *testing.T) {
	b := newBench(t, Auto)
	q := b.qp()
	q.post(2)
	//= MR-COEX-021
	q.is(b.mr, 0)
	b.mr.tries, b.mr.answered = 3, true
	b.step()
	q.is(b.mr, 2)
	// One that was heard never falls back, not even for a QP that begins when it is silent.
	b.mr.tries, b.mr.answered = 99, false
	r := b.qp()
	r.post(1)
	r.is(b.mr, 1)
}

// A QP that waits for its peer is given another one in SQD: what is known of that one counts.
func TestMuxNewPeer(t *testing.T) {
	there := netip.MustParseAddr("10.0.0.3")
	for name, c := range map[string]struct {
		known func(m *mux)
		ib    bool
		now   int // posted at once
	}{
		"unknown": {func(*mux) {}, false, 0},
		"silent":  {func(m *mux) { m.silent[there] = 1e9 }, true, 2},
		"spoke":   {func(m *mux) { m.spoke[there] = true }, false, 2},
	} {
		b := newBench(t, Auto)
		c.known(b.m)
		q := b.qp()
		q.post(2)
		q.is(b.mr, 0)
		q.to(SQD, 0)
		b.there = there
		//= MR-QP-012
		q.to(SQD, maskAV)
		q.b.step()
		if err := b.ctx.ModifyQP(b.now, &hostq.ModifyQP{Handle: q.Handle(), Mask: maskState, QPState: uint32(RTS)}); err != nil {
			t.Fatal(name, err)
		}
		b.step()
		e := b.mr
		if c.ib {
			e = b.ib
		}
		q.is(e, c.now)
		if w := b.m.open[addrPair{muxHere, there}]; (w != nil) != (name != "spoke") || b.m.open[addrPair{muxHere, muxThere}] != nil {
			t.Errorf("%s: waits for %v", name, b.m.open)
		}
		if x := e.qps[q.QPN()]; x.rtr.RemoteAddr != there {
			t.Errorf("%s: the peer is %v", name, x.rtr.RemoteAddr)
		}
	}
}

// A silent peer: the QP moves with all that was posted, later QPs begin there, for a while.
func TestMuxSilent(t *testing.T) {
	b := newBench(t, Auto)
	q := b.qp()
	q.post(3)
	b.mr.tries = silentTries
	b.step()
	q.is(b.mr, 0)
	b.mr.tries++
	b.step()
	q.is(b.ib, 3)
	b.mr.tries = 0
	r := b.qp()
	r.post(1)
	r.is(b.ib, 1)
	// It speaks after all: what has received nothing returns, with all that was posted.
	b.m.HandlePackets(b.now, []pkt.Packet{r.packet(ib.Ack, 0x200)})
	b.mr.answered = true
	b.hello()
	b.step()
	q.is(b.mr, 3)
	r.is(b.ib, 1)
	//= MR-COEX-022 MR-COEX-026
	if b.m.C.Fallbacks != 1 || b.m.C.Returns != 1 || b.m.on != [2]int{1, 1} || len(b.m.open) != 0 {
		t.Errorf("%+v %v %d", b.m.C, b.m.on, len(b.m.open))
	}
	b.mr.answered = false
	b.m.spoke = map[netip.Addr]bool{}
	b.m.silent[muxThere] = b.now
	b.now = b.now.Add(silentFor)
	s := b.qp()
	s.is(b.mr, 0)
}

// A QP follows its peer: to a packet that is right in every respect, and to no other.
func TestMuxFollows(t *testing.T) {
	for name, c := range map[string]struct {
		op     ib.Opcode
		psn    uint32
		change func(p *pkt.Packet)
		moves  bool
	}{
		"first request":     {ib.SendOnly, 0xfffff0, nil, true},
		"a later one":       {ib.WriteOnly, 0xfffff0 + 100, nil, true}, // beyond the wrap
		"an acknowledgment": {ib.Ack, 0x203, nil, true},
		"a PSN before":      {ib.SendOnly, 0xffffef, nil, false},
		"a PSN far ahead":   {ib.SendOnly, 0xfffff0 + followWindow, nil, false},
		"ack of the other":  {ib.Ack, 0xfffff0, nil, false},
		"a stranger":        {ib.SendOnly, 0xfffff0, func(p *pkt.Packet) { p.Src = netip.MustParseAddr("10.0.0.3") }, false},
		"not whole":         {ib.SendOnly, 0xfffff0, func(p *pkt.Packet) { p.Data[len(p.Data)-1] ^= 1 }, false},
		"short":             {ib.SendOnly, 0xfffff0, func(p *pkt.Packet) { p.Data = p.Data[:9] }, false},
		"a datagram":        {ib.UDSend, 0xfffff0, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Auto)
			q := b.qp()
			q.post(1)
			p := q.packet(c.op, c.psn)
			if c.change != nil {
				c.change(&p)
			}
			b.m.HandlePackets(b.now, []pkt.Packet{p})
			b.step()
			//= MR-COEX-024
			if c.moves {
				q.is(b.ib, 1)
			} else {
				q.is(b.mr, 0)
			}
			if b.ib.packets != 1 {
				t.Error("the packet did not reach its engine")
			}
		})
	}
	// It follows even from MetaRoCE, as long as nothing was carried out there.
	b := newBench(t, Auto)
	b.mr.answered = true
	q, r := b.qp(), b.qp()
	q.post(1)
	r.post(1)
	b.nic.SendDone(r.QP, &transport.SendWR{}, transport.OK)
	b.m.HandlePackets(b.now, []pkt.Packet{q.packet(ib.SendOnly, 0xfffff0), r.packet(ib.SendOnly, 0xfffff0)})
	b.step()
	q.is(b.ib, 1)
	r.is(b.mr, 1)
}

// What a QP's life brings while it is undecided.
func TestMuxLife(t *testing.T) {
	b := newBench(t, Auto)
	q := b.qp()
	q.post(2)
	q.to(Reset, 0)
	if len(b.m.open) != 0 {
		t.Error("a QP in RESET waits")
	}
	b.mr.tries = 99
	b.step()
	q.to(Init, 0)
	for range 3 {
		q.rq.PutRecv(9)
	}
	q.rq.Ring()
	b.step()
	b.mr.tries = 0
	q.to(RTR, 0)
	q.is(b.mr, 0)
	b.mr.tries = 6
	b.step()
	q.is(b.ib, 0) // moved in RTR
	q.to(RTS, 0)
	q.post(1)
	q.is(b.ib, 1)
	// Flushed in error, although no engine ever had it.
	b2 := newBench(t, Auto)
	q = b2.qp()
	q.post(2)
	if err := b2.ctx.ModifyQP(b2.now, &hostq.ModifyQP{Handle: q.Handle(), Mask: maskState, QPState: uint32(Err)}); err != nil {
		t.Fatal(err)
	}
	b2.step()
	for i := range 5 {
		if e, ok := b2.cqe.Poll(); !ok || transport.Status(e.Status) != transport.WRFlushErr {
			t.Error(i, e.Status, ok)
		}
	}
	b2.mr.answered = true
	b2.step()
	if _, err := b2.ctx.DestroyQP(q.Handle()); err != nil || b2.m.on != [2]int{} || len(b2.m.qps)+len(b2.m.open) != 0 {
		t.Error("left over", err)
	}
	// No room for the peer in the other engine.
	b3 := newBench(t, Auto)
	q = b3.qp()
	b3.ib.full, b3.mr.tries = true, 9
	b3.step()
	if b3.step(); q.state != Err {
		t.Error(q.state)
	}
}

func TestMuxPolicies(t *testing.T) {
	b := newBench(t, OnlyMetaRoCE)
	q := b.qp()
	b.mr.tries = 99
	q.post(1)
	b.m.HandlePackets(b.now, []pkt.Packet{q.packet(ib.SendOnly, 0xfffff0)})
	q.is(b.mr, 1)

	b = newBench(t, OnlyRoCEv2)
	q = b.qp()
	q.post(1)
	q.is(b.ib, 1)
	b.m.HandlePackets(b.now, []pkt.Packet{{Data: []byte{0xc0}}, q.packet(ib.SendOnly, 0xfffff0)})
	//= MR-COEX-002 MR-COEX-020
	if b.m.C.DropMetaRoCE != 1 || b.ib.packets != 1 {
		t.Errorf("%+v", b.m.C)
	}
	for _, s := range []string{"auto", "metaroce", "rocev2", ""} {
		if p, err := ParsePolicy(s); err != nil || s != "" && p.String() != s {
			t.Error(s, p, err)
		}
	}
	if _, err := ParsePolicy("tcp"); err == nil {
		t.Error("tcp")
	}
}

// Each engine gets its packets, and half of what can be sent.
func TestMuxShares(t *testing.T) {
	b := newBench(t, Auto)
	ps := []pkt.Packet{{Data: []byte{0xc0}}, {Data: []byte{0xff}}, {Data: []byte{0x64}}, {}, {Data: []byte{0xc1}}, {Data: []byte{0x81}}}
	b.m.HandlePackets(1, ps)
	//= MR-COEX-001
	if b.mr.packets != 3 || b.ib.packets != 3 {
		t.Error(b.mr.packets, b.ib.packets)
	}
	for _, c := range [][3]int{{100, 100, pkt.Burst / 2}, {100, 0, pkt.Burst}, {0, 100, 0}, {3, 5, 3}, {100, 5, pkt.Burst - 5}, {5, 100, 5}} {
		b.mr.fill, b.ib.fill = c[0], c[1]
		for range 2 {
			batch := pkt.NewBatch(pkt.Burst, 100)
			b.m.Transmit(1, batch)
			mr := 0
			for _, p := range batch.Pkts[:batch.N] {
				if p.Data[0] == 'm' {
					mr++
				}
			}
			if mr != c[2] || batch.N != min(pkt.Burst, c[0]+c[1]) {
				t.Errorf("%v: %d of %d", c, mr, batch.N)
			}
		}
	}
	b.mr.fill, b.ib.fill = 0, 0
	batch := pkt.NewBatch(pkt.Burst, 100)
	if n := testing.AllocsPerRun(100, func() {
		b.m.HandlePackets(1, ps)
		b.m.HandleTimers(1)
		b.m.Transmit(1, batch)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	all := b.m.CountersJSON().(map[string]any)
	if all["mr"] != 1 || all["ib"] != 1 || all["mroce_fallbacks_total"] != uint64(0) {
		t.Error(all)
	}
}

// TestMuxIdle: who fell back, or waits, costs nothing on the way of other packets, and next to nothing as time goes by.
func TestMuxIdle(t *testing.T) {
	b := newBench(t, Auto)
	const peers = 300
	var qs []*benchQP
	for i := range peers {
		b.there = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		qs = append(qs, b.qp())
	}
	if b.m.NextTimeout() == mono.Never {
		t.Error("nobody looks whether they are silent")
	}
	b.mr.heard = 0
	data := []pkt.Packet{{Data: []byte{0xc0}, Src: muxThere, Dst: muxHere}, {Data: []byte{byte(wire.OpHello)}, Src: muxThere, Dst: muxHere}}
	for range 100 {
		b.m.HandlePackets(b.now, data)
		b.m.HandleTimers(b.now)
	}
	if b.mr.heard > 2*peers {
		t.Errorf("undecided: asked %d times", b.mr.heard)
	}
	b.mr.tries = silentTries + 1
	b.step()
	for _, q := range qs {
		q.is(b.ib, 0)
	}
	b.mr.heard = 0
	for range 100 {
		b.m.HandlePackets(b.now, data)
		b.step()
	}
	if b.mr.heard > 0 || b.m.NextTimeout() != mono.Never {
		t.Errorf("fallen back: asked %d times, next at %v", b.mr.heard, b.m.NextTimeout())
	}
	// One of them speaks; another QP of an old peer begins again, and one ends.
	b.mr.answered, b.mr.tries = true, 0
	b.m.HandlePackets(b.now, []pkt.Packet{{Data: []byte{byte(wire.OpHello)}, Src: b.there, Dst: muxHere}})
	b.step()
	qs[peers-1].is(b.mr, 0)
	qs[0].is(b.ib, 0)
	qs[1].to(Reset, 0)
	if len(b.m.open) != peers-2 {
		t.Errorf("%d wait", len(b.m.open))
	}
}

// TestMuxReopened: a QP that ended while it was undecided leaves nothing behind that harms the next one to the same peer.
func TestMuxReopened(t *testing.T) {
	b := newBench(t, Auto)
	q := b.qp()
	r := b.qp()
	q.to(Reset, 0)
	r.to(Reset, 0)
	s := b.qp()
	s.post(1)
	s.is(b.mr, 0)
	b.mr.answered = true
	b.step()
	s.is(b.mr, 1)
	if len(b.m.open)+len(b.m.asked) != 0 {
		t.Error(len(b.m.open), len(b.m.asked))
	}
}
