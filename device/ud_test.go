package device_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

const (
	maskQkey  = 1 << 6
	udToInit  = 1<<0 | 1<<4 | 1<<5 | maskQkey
	udToRTR   = 1 << 0
	udToRTS   = 1<<0 | 1<<16
	testQkey  = 0x11111111
	wcGRH     = 1
	wcWithImm = 2
)

// ud makes a UD QP and takes it up.
func (p *prog) ud() *qpair {
	p.t.Helper()
	q := &qpair{SQ: p.NewQueue(64, 640, p.bell), RQ: p.NewQueue(64, 576, p.bell+1)}
	p.bell += 2
	q.QP = must(p.ctx.CreateQP(&hostq.CreateQP{PD: p.pd, Type: 4, SendCQ: p.cq, RecvCQ: p.cq, SQEntries: 64, SQStride: 640, RQEntries: 64, RQStride: 576,
		MaxSendSGE: 8, MaxRecvSGE: 8, MaxInline: 256, SQRing: q.SQ.Off, RQRing: q.RQ.Off, SQDoorbell: q.SQ.Bell, RQDoorbell: q.RQ.Bell}))(p.t)
	for _, s := range []struct {
		to   device.State
		mask uint32
	}{{device.Init, udToInit}, {device.RTR, udToRTR}, {device.RTS, udToRTS}} {
		if err := p.ctx.ModifyQP(p.nic.Now(), &hostq.ModifyQP{Handle: q.Handle(), Mask: s.mask, QPState: uint32(s.to), PortNum: 1, Qkey: testQkey, SQPSN: 3}); err != nil {
			p.t.Fatalf("to %v: %v", s.to, err)
		}
	}
	return q
}

func (p *prog) ah(to netip.Addr) uint32 {
	p.t.Helper()
	return must(p.ctx.CreateAH(p.nic.Now(), &hostq.CreateAH{PD: p.pd, Attr: hostq.AHAttr{DGID: to.As16(), IsGlobal: 1, PortNum: 1, HopLimit: 9, TrafficClass: 0x40}}))(p.t)
}

// to is a SEND with its UD destination.
func to(id uint64, op uint8, ah, qpn, qkey uint32) hostq.SQE {
	e := hostq.SQE{WRID: id, Opcode: op, Flags: hostq.SendSignaled}
	le := binary.LittleEndian
	le.PutUint32(e.U[0:], ah)
	le.PutUint32(e.U[4:], qpn)
	le.PutUint32(e.U[8:], qkey)
	return e
}

func post(q *qpair, e hostq.SQE, inline []byte, sge ...hostq.SGE) {
	q.SQ.PutSend(e, inline, sge...)
	q.SQ.Ring()
}

func receive(q *qpair, id uint64, sge ...hostq.SGE) {
	q.RQ.PutRecv(id, sge...)
	q.RQ.Ring()
}

func udWorld(t testing.TB) (w *world, a, b *prog, qa, qb *qpair) {
	w = newWorld(t, true)
	a, b = newProg(t, w.nics[0]), newProg(t, w.nics[1])
	return w, a, b, a.ud(), b.ud()
}

// A message arrives behind the route header, in the completion when both are short, in memory otherwise.
func TestUDMessages(t *testing.T) {
	w, a, b, qa, qb := udWorld(t)
	ah := a.ah(b.nic.Addrs()[0])
	for i, n := range []uint32{0, 1, 24, 25, 1000, 1024} {
		id := uint64(i)
		for k := range n {
			a.ram.b[k] = byte(k + n)
		}
		e, imm := to(id, hostq.WRSend, ah, qb.QPN(), testQkey), uint8(0)
		if i%2 == 1 {
			e.Opcode, e.Imm, imm = hostq.WRSendImm, 0x01020304, wcWithImm
		}
		receive(qb, 100+id, b.sge(8000, transport.GRHLen), b.sge(4096, 2000))
		post(qa, e, nil, a.sge(0, n))
		w.want(a, id, transport.OK)
		c := w.want(b, 100+id, transport.OK)
		if c.ByteLen != transport.GRHLen+n || c.SrcQP != qa.QPN() || c.WCFlags != wcGRH|imm || c.Opcode != 128 || c.PkeyIndex != 0 || c.SLID != 0 || c.SL != 2 {
			t.Errorf("%d bytes: %+v", n, c)
		}
		grh, data := b.ram.b[8000:8000+transport.GRHLen], b.ram.b[4096:4096+n]
		if transport.GRHLen+n <= hostq.CQEInline {
			if c.InlineLen != uint16(transport.GRHLen+n) {
				t.Errorf("%d bytes: %d inline", n, c.InlineLen)
			}
			grh, data = c.Data[:transport.GRHLen], c.Data[transport.GRHLen:transport.GRHLen+n]
		} else if c.InlineLen != 0 {
			t.Errorf("%d bytes: %d inline", n, c.InlineLen)
		}
		if grh[20] != 0x45 || !bytes.Equal(data, a.ram.b[:n]) {
			t.Errorf("%d bytes: header %x, data %x", n, grh, data)
		}
	}
	// The QP's own Q_Key, inline data, and nobody there: nothing happens.
	//= MR-COEX-032
	e := to(50, hostq.WRSend, ah, qb.QPN(), 1<<31|5)
	e.Flags |= hostq.SendInline
	receive(qb, 150, b.sge(4096, 2000))
	post(qa, to(49, hostq.WRSend, ah, 0x777, testQkey), nil)
	post(qa, to(48, hostq.WRSend, ah, qb.QPN(), testQkey+1), nil)
	post(qa, e, []byte("abc"))
	w.want(a, 49, transport.OK)
	w.want(a, 48, transport.OK)
	w.want(a, 50, transport.OK)
	w.want(b, 150, transport.OK)
}

// What UD does not have, or what names nothing, is refused with the work request.
func TestUDBadRequests(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a *prog, e *hostq.SQE)
		n      uint32
		want   transport.Status
	}{
		"a write":       {func(_ *prog, e *hostq.SQE) { e.Opcode = hostq.WRWrite }, 8, transport.LocQPOpErr},
		"a read":        {func(_ *prog, e *hostq.SQE) { e.Opcode = hostq.WRRead }, 8, transport.LocQPOpErr},
		"invalidate":    {func(_ *prog, e *hostq.SQE) { e.Opcode = hostq.WRSendInv }, 8, transport.LocQPOpErr},
		"no handle":     {func(_ *prog, e *hostq.SQE) { e.U[0] = 0 }, 8, transport.LocQPOpErr},
		"wild handle":   {func(_ *prog, e *hostq.SQE) { e.U[3] = 0xff }, 8, transport.LocQPOpErr},
		"wide QPN":      {func(_ *prog, e *hostq.SQE) { e.U[7] = 1 }, 8, transport.LocQPOpErr},
		"over the MTU":  {func(_ *prog, e *hostq.SQE) {}, 4097, transport.LocLenErr},
		"another's PD":  {func(a *prog, e *hostq.SQE) { e.U[0] = byte(a.foreignAH()) }, 8, transport.LocQPOpErr},
		"foreign key":   {func(_ *prog, e *hostq.SQE) {}, 2 << 20, transport.LocProtErr},
		"at the border": {func(_ *prog, e *hostq.SQE) {}, 4096, transport.OK},
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b, qa, qb := udWorld(t)
			e := to(1, hostq.WRSend, a.ah(b.nic.Addrs()[0]), qb.QPN(), testQkey)
			c.change(a, &e)
			post(qa, e, nil, a.sge(0, c.n))
			//= MR-COEX-030
			w.want(a, 1, c.want)
		})
	}
}

// foreignAH is a handle of another protection domain.
func (p *prog) foreignAH() uint32 {
	pd := must(p.ctx.AllocPD())(p.t)
	return must(p.ctx.CreateAH(p.nic.Now(), &hostq.CreateAH{PD: pd, Attr: hostq.AHAttr{DGID: p.nic.Addrs()[0].As16(), IsGlobal: 1}}))(p.t)
}

func TestAddressHandles(t *testing.T) {
	w, a, b, _, _ := udWorld(t)
	good := hostq.AHAttr{DGID: b.nic.Addrs()[0].As16(), IsGlobal: 1, PortNum: 1}
	for name, c := range map[string]struct {
		change func(r *hostq.CreateAH)
		want   error
	}{
		"no PD":          {func(r *hostq.CreateAH) { r.PD = 99 }, syscall.EINVAL},
		"no GID":         {func(r *hostq.CreateAH) { r.Attr.IsGlobal = 0 }, syscall.EINVAL},
		"past the table": {func(r *hostq.CreateAH) { r.Attr.SGIDIndex = 1 }, syscall.EINVAL},
		"port 2":         {func(r *hostq.CreateAH) { r.Attr.PortNum = 2 }, syscall.EINVAL},
		"nowhere":        {func(r *hostq.CreateAH) { r.Attr.DGID = [16]byte{} }, syscall.EINVAL},
		"another family": {func(r *hostq.CreateAH) { r.Attr.DGID = netip.MustParseAddr("fd00::1").As16() }, syscall.ENETUNREACH},
		"multicast":      {func(r *hostq.CreateAH) { r.Attr.DGID = netip.MustParseAddr("239.0.0.1").As16() }, nil},
	} {
		r := hostq.CreateAH{PD: a.pd, Attr: good}
		c.change(&r)
		if h, err := a.ctx.CreateAH(w.now, &r); !errors.Is(err, c.want) || err == nil && a.ctx.DestroyAH(h) != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	h := a.ah(b.nic.Addrs()[0])
	if err := a.ctx.FreePD(a.pd); !errors.Is(err, syscall.EBUSY) {
		t.Error("free a PD in use:", err)
	}
	if a.ctx.Info().AHs != 1 || a.ctx.DestroyAH(h) != nil || !errors.Is(a.ctx.DestroyAH(h), syscall.EINVAL) || !errors.Is(a.ctx.DestroyAH(0), syscall.EINVAL) {
		t.Error("destroy")
	}
	a.ah(b.nic.Addrs()[0])
	a.ctx.Close(w.now)
	b.ctx.Close(w.now)
	if w.nics[0].C.Live != (device.Live{}) {
		t.Errorf("left over: %+v", w.nics[0].C.Live)
	}
}

// The attributes that each change of a UD QP's state must, may and must not bring.
func TestUDStates(t *testing.T) {
	_, a, b, _, _ := udWorld(t)
	q := a.ud()
	modify := func(m hostq.ModifyQP) error {
		m.Handle, m.PortNum = q.Handle(), 1
		return a.ctx.ModifyQP(a.nic.Now(), &m)
	}
	set := func(to device.State) { // always allowed
		if err := modify(hostq.ModifyQP{Mask: 1, QPState: uint32(to)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		mask uint32
		to   device.State
		ok   bool
	}{
		{"INIT without Q_Key", 1 | 1<<4 | 1<<5, device.Init, false},
		{"INIT with access", udToInit | 1<<3, device.Init, false},
		{"RTS from RESET", udToRTS, device.RTS, false},
		{"INIT", udToInit, device.Init, true},
		{"INIT again", 1 | maskQkey, device.Init, true},
		{"RTR with a peer", 1 | 1<<7 | 1<<20, device.RTR, false},
		{"RTR with a new Q_Key", 1 | maskQkey, device.RTR, true},
		{"RTS without PSN", 1, device.RTS, false},
		{"RTS with a timeout", udToRTS | 1<<9, device.RTS, false},
		{"RTS", udToRTS, device.RTS, true},
		{"Q_Key in RTS", 1 | maskQkey, device.RTS, true},
		{"access in RTS", 1 | 1<<3, device.RTS, false},
		{"SQD", 1, device.SQD, true},
		{"back", 1, device.RTS, true},
	} {
		if c.name == "INIT without Q_Key" {
			set(device.Reset)
		}
		if err := modify(hostq.ModifyQP{Mask: c.mask, QPState: uint32(c.to), Qkey: 77}); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var r hostq.ModifyQP
	if err := a.ctx.QueryQP(q.Handle(), &r); err != nil || r.Qkey != 77 || device.State(r.QPState) != device.RTS {
		t.Errorf("%+v %v", r, err)
	}
	for _, i := range a.nic.QPInfos() {
		if i.QPN == q.QPN() && (i.Type != "UD" || i.Remote != "" || i.State != device.RTS) {
			t.Errorf("%+v", i)
		}
	}
	_ = b
}

// groupWire is a wire that notes its groups, and whom it is told about.
type groupWire struct {
	device.Port
	groups, near []netip.Addr
}

func (g *groupWire) Resolve(_ mono.Time, src, dst netip.Addr) { g.near = append(g.near, src, dst) }

func (g *groupWire) SetGroups(l []netip.Addr) { g.groups = append(g.groups[:0], l...) }

type wrapper struct{ device.Port }

func (w wrapper) Unwrap() device.Port { return w.Port }

func TestMulticast(t *testing.T) {
	w, a, b, qa, qb := udWorld(t)
	g, other := netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("239.1.1.2")
	join := func(p *prog, q *qpair, g netip.Addr) error {
		return p.ctx.AttachMcast(&hostq.Mcast{QP: q.Handle(), GID: g.As16()})
	}
	leave := func(p *prog, q *qpair, g netip.Addr) error {
		return p.ctx.DetachMcast(&hostq.Mcast{QP: q.Handle(), GID: g.As16()})
	}
	q2 := b.ud()
	for i, err := range []error{join(b, qb, g), join(b, qb, g), join(b, q2, g), join(b, q2, other)} {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	rc := b.qp()
	for name, err := range map[string]error{
		"an RC QP": join(b, rc, g), "no group": join(b, qb, netip.MustParseAddr("10.0.0.1")), "not in it": leave(b, qb, other),
		"no QP": b.ctx.AttachMcast(&hostq.Mcast{QP: 99, GID: g.As16()}),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	receive(qb, 1, b.sge(0, 100))
	receive(q2, 1, b.sge(0, 100))
	post(qa, to(5, hostq.WRSend, a.ah(g), 0xFFFFFF, testQkey), nil, a.sge(0, 10))
	w.want(a, 5, transport.OK)
	w.want(b, 1, transport.OK)
	w.want(b, 1, transport.OK)
	if _, err := b.ctx.DestroyQP(q2.Handle()); !errors.Is(err, syscall.EBUSY) {
		t.Error("destroy a QP in a group:", err)
	}
	if leave(b, q2, g) != nil || leave(b, q2, other) != nil || leave(b, qb, g) != nil {
		t.Error("leave")
	}
	if _, err := b.ctx.DestroyQP(q2.Handle()); err != nil {
		t.Error(err)
	}
}

// Wires are told the groups through their wrappers, once a change; a NIC gets its own multicasts.
func TestGroupsOfWires(t *testing.T) {
	w := newWorld(t, true)
	wire := &groupWire{Port: w.ports[0]}
	n, err := device.New(device.Config{Name: "c/mr0", Dev: "mr0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Ports: []device.Port{wrapper{wrapper{wire}}},
		NewEngine: echoEngine})
	if err != nil {
		t.Fatal(err)
	}
	p := newProg(t, n)
	there := netip.MustParseAddr("10.0.0.9")
	p.ah(there)
	p.ah(n.Addrs()[0]) // ourselves
	p.ah(netip.MustParseAddr("239.0.0.1"))
	p.up(p.qp(), there.Next(), 7)
	if len(wire.near) != 4 || wire.near[0] != n.Addrs()[0] || wire.near[1] != there || wire.near[3] != there.Next() {
		t.Error("told of", wire.near)
	}
	q, r := p.ud(), p.ud()
	g := netip.MustParseAddr("ff0e::7")
	m := func(q *qpair) *hostq.Mcast { return &hostq.Mcast{QP: q.Handle(), GID: g.As16()} }
	if p.ctx.AttachMcast(m(q)) != nil || p.ctx.AttachMcast(m(r)) != nil || len(wire.groups) != 1 || wire.groups[0] != g {
		t.Error(wire.groups)
	}
	n.Step(1)
	if e := n.Engine().(*echo); e.got != 0 {
		t.Error("a multicast came back before it went")
	} else if e.send = g; true {
		n.Step(2)
		if e.got != 1 || n.C.LoopbackPackets != 1 || n.Planes()[0].Device.TxPackets != 1 {
			t.Errorf("%d came back; %+v", e.got, n.Planes()[0].Device)
		}
	}
	if p.ctx.DetachMcast(m(q)) != nil || len(wire.groups) != 1 {
		t.Error(wire.groups)
	}
	p.ctx.Close(3)
	if len(wire.groups) != 0 {
		t.Error(wire.groups)
	}
}

// echo sends one packet to a group and counts what comes.
type echo struct {
	device.Engine
	send netip.Addr
	got  int
}

func echoEngine(c device.EngineConfig, h transport.Host) device.Engine {
	return &echo{Engine: nets.New(c, h)}
}

var nets = devicetest.NewNet()

func (e *echo) HandlePackets(_ mono.Time, ps []pkt.Packet) { e.got += len(ps) }

func (e *echo) Transmit(now mono.Time, b *pkt.Batch) {
	if e.send.IsValid() {
		p := b.Next()
		p.Data = append(p.Data, make([]byte, 40)...)
		p.Src, p.Dst = netip.MustParseAddr("fd00::3"), e.send
		e.send = netip.Addr{}
	}
}

// TestUDDrained: datagrams that the engine holds and has not sent are no reason to wait: SQ_DRAINED comes, and they go
// when the QP goes on.
func TestUDDrained(t *testing.T) {
	w := newWorld(t, false)
	a, b := newProg(t, w.nics[0]), newProg(t, w.nics[1])
	q, other, qb := a.ud(), a.ud(), b.ud()
	ah := a.ah(b.nic.Addrs()[0])
	w.ports[0].Refuse = true
	const n = 60
	for _, q := range []*qpair{other, q} { // the first fills the way out
		for i := range uint64(n) {
			q.SQ.PutSend(to(i, hostq.WRSend, ah, qb.QPN(), testQkey), nil, a.sge(0, 10))
		}
		q.SQ.Ring()
		w.step(3)
	}
	done := 0
	poll := func() {
		for _, ok := a.CQ.Poll(); ok; _, ok = a.CQ.Poll() {
			done++
		}
	}
	poll()
	if done >= 2*n {
		t.Fatal("nothing is held")
	}
	m := attr(q.Handle(), device.SQD, a.nic.Addrs()[0], 0)
	m.Mask, m.EnSQDAsyncNotify = 1|1<<2, 1
	if err := a.ctx.ModifyQP(w.now, m); err != nil {
		t.Fatal(err)
	}
	w.step(3)
	w.ports[0].Refuse = false
	w.step(100)
	poll()
	//= MR-QP-010
	if len(a.ev.async) != 1 || a.ev.async[0].Type != 5 || done >= 2*n {
		t.Errorf("events %+v, %d of %d sent", a.ev.async, done, 2*n)
	}
	var r hostq.ModifyQP
	if err := a.ctx.QueryQP(q.Handle(), &r); err != nil || r.SQDraining != 0 {
		t.Errorf("%v, draining %d", err, r.SQDraining)
	}
	m = attr(q.Handle(), device.RTS, a.nic.Addrs()[0], 0)
	m.Mask = 1
	if err := a.ctx.ModifyQP(w.now, m); err != nil {
		t.Fatal(err)
	}
	w.step(100)
	if poll(); done != 2*n || len(a.ev.async) != 1 {
		t.Errorf("%d of %d sent at last, events %+v", done, 2*n, a.ev.async)
	}
}

// TestResizeCatchesUp: a program that resizes a CQ counts on the completions of what it has posted. The device does so much
// and no more: other programs' queues, and those of other CQs, wait for their turn.
func TestResizeCatchesUp(t *testing.T) {
	w := newWorld(t, false)
	a, b := newProg(t, w.nics[0]), newProg(t, w.nics[0])
	q, other := a.ud(), b.ud()
	second := a.NewQueue(1024, 128, 0)
	cq := must(a.ctx.CreateCQ(&hostq.CreateCQ{Entries: 1024, Ring: second.Off}))(t)
	rc := a.qpOn(cq)
	a.up(rc, w.nics[1].Addrs()[0], 77)
	w.step(10)
	far := w.nics[1].Addrs()[0]
	for range 5 {
		q.SQ.PutSend(to(1, hostq.WRSend, a.ah(far), 99, testQkey), nil, a.sge(0, 10))
		other.SQ.PutSend(to(1, hostq.WRSend, b.ah(far), 99, testQkey), nil, b.sge(0, 10))
		rc.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRSend}, nil, a.sge(0, 10))
	}
	q.SQ.Ring()
	other.SQ.Ring()
	rc.SQ.Ring()
	was := a.nic.C.SendWRs
	next := a.NewQueue(2, 128, 0)
	if err := a.ctx.ResizeCQ(w.now, &hostq.CreateCQ{Handle: a.cq, Entries: 2, Ring: next.Off}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("five completions in a ring of two: %v", err)
	}
	if n := a.nic.C.SendWRs - was; n != 5 {
		t.Errorf("%d work requests were fetched, 5 are of this CQ", n)
	}
	for range 5 {
		if _, ok := a.CQ.Poll(); !ok {
			t.Error("not complete")
		}
	}
	w.step(10) // the others have not lost their turns
	for range 5 {
		w.want(b, 1, transport.OK)
	}
	if n := a.nic.C.SendWRs - was; n < 10 {
		t.Errorf("%d work requests were fetched at last", n)
	}
}
