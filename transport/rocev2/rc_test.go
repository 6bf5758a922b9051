package rocev2_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/transporttest"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// TestAtomics: of many QPs that add and swap over a bad network each operation happens once.
func TestAtomics(t *testing.T) {
	l := usual()
	l.Loss, l.Duplicate, l.Reorder = 0.1, 0.1, 0.05
	w := newWorld(config{seed: 3, link: l, engine: func(c *rocev2.Config) { c.RTOMin = 50 * mono.Microsecond }})
	a, b := w.nodes[0], w.nodes[1]
	var qs []*qp
	const each = 60
	for i := range 4 {
		p, _ := w.connect(a, b, options{rd: 1 + i*3, psn: 0xFFFFF0})
		qs = append(qs, p)
		for k := range each {
			x := wr{id: uint64(k), op: transport.OpFetchAdd, n: 8, local: uint64(0x10000*(i+1) + 8*k), remote: 0x100, key: 7, compare: 1}
			if i == 3 { // from one value to the next: fails for ever if one is done twice or not at all
				x.op, x.remote, x.compare, x.swap = transport.OpCmpSwap, 0x200, uint64(k), uint64(k+1)
			}
			p.send(x)
		}
	}
	w.mustRun(t, 10*second, func() bool {
		for _, q := range qs {
			if len(q.sends) < each {
				return false
			}
		}
		return true
	})
	if n := u64(b.Mem, 0x100); n != 3*each {
		t.Errorf("counter %d, want %d", n, 3*each)
	}
	if n := u64(b.Mem, 0x200); n != each {
		t.Errorf("swapped up to %d, want %d", n, each)
	}
	seen := map[uint64]bool{}
	for i := range 3 {
		for k := range each {
			v := u64(a.Mem, uint64(0x10000*(i+1)+8*k))
			if seen[v] || v >= 3*each {
				t.Fatalf("value %d seen twice or never was", v)
			}
			seen[v] = true
		}
	}
}

// TestStates: SQD, fence, flush, reset with an SRQ, and another life of the same number.
func TestStates(t *testing.T) {
	w := newWorld(config{link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	p, q := w.connect(a, b, options{})
	for i := range 10 {
		q.recv(uint64(i), 0, 1<<20)
	}
	// SQD: what is begun finishes, what is not waits.
	p.send(wr{id: 1, op: transport.OpSend, n: 400_000})
	w.run(10 * mono.Microsecond)
	p.send(wr{id: 2, op: transport.OpSend, n: 10})
	p.ToSQD()
	w.run(mono.Millisecond)
	if len(p.sends) != 1 || p.State() != rocev2.StateSQD {
		t.Fatalf("in SQD: %+v", p.sends)
	}
	p.Resume(w.now)
	w.mustRun(t, mono.Millisecond, func() bool { return len(p.sends) == 2 })

	// Fence: the SEND is not begun before the READ has come.
	a.Keys[7] = transporttest.Key{Lo: 0, Hi: 4 << 20, Write: true, Read: true, Atomic: true}
	var first [2]mono.Time
	w.tap = func(src, _, _ int, x *pkt.Packet) bool {
		var h ib.Header
		ib.Decode(x.Data, &h)
		if h.Op == ib.ReadRespOnly {
			first[0] = w.now
		} else if h.Op == ib.SendOnly {
			first[1] = w.now
		}
		return true
	}
	p.send(wr{id: 3, op: transport.OpRead, n: 8, key: 7})
	p.send(wr{id: 4, op: transport.OpSend, n: 8, flags: transport.FlagFence})
	w.mustRun(t, mono.Millisecond, func() bool { return len(p.sends) == 4 })
	if first[1].Sub(first[0]) < 3*mono.Microsecond {
		t.Errorf("READ came at %v, fenced SEND arrived at %v", first[0], first[1])
	}
	w.tap = nil

	// Error at will: everything posted is flushed, in order.
	q.recvs = nil
	p.send(wr{id: 5, op: transport.OpSend, n: 8})
	p.send(wr{id: 6, op: transport.OpSend, n: 8})
	q.recv(20, 0, 10_000)
	q.recv(21, 0, 10_000)
	p.ToError(w.now)
	q.ToError(w.now)
	if n := len(p.sends); n != 6 || p.sends[4].status != transport.WRFlushErr || p.sends[5].id != 6 || p.errors != 0 {
		t.Errorf("%+v", p.sends)
	}
	if n := len(q.received); q.received[n-1].id != 21 || q.received[n-1].status != transport.WRFlushErr || q.received[n-2].id != 20 {
		t.Errorf("%+v", q.received)
	}
	p.send(wr{id: 7, op: transport.OpSend, n: 8})
	q.recv(22, 0, 10)
	if p.sends[6].status != transport.WRFlushErr || q.received[len(q.received)-1].id != 22 {
		t.Error("posted in the error state and not flushed")
	}

	// Another life: nothing is left of the first.
	o := options{psn: 77}
	o.defaults()
	for _, x := range [][2]*qp{{p, q}, {q, p}} {
		x[0].Reset(w.now)
		x[0].ToInit()
		x[0].join(x[1], o)
		x[0].sends, x[0].received = nil, nil
	}
	q.recv(1, 0, 100)
	p.send(wr{id: 9, op: transport.OpSend, n: 100})
	w.mustRun(t, mono.Millisecond, func() bool { return len(p.sends) == 1 && len(q.received) == 1 && p.sends[0].status == transport.OK })

	// An SRQ gets its receive back when the QP is reset in the middle of a message.
	s := &qp{n: b}
	s.QP = b.e.CreateQP(0x7000, rocev2.QPConfig{Owner: s, SQEntries: 4, MaxSendSGE: 1, SRQ: true})
	s.ToInit()
	r := a.newQP(transport.RC, o)
	s.join(r, o)
	r.join(s, o)
	s.recv(31, 0, 1<<20)
	s.recv(32, 0, 1<<20)
	r.send(wr{op: transport.OpSend, n: 1 << 20})
	w.run(20 * mono.Microsecond)
	if len(s.recvs) != 1 {
		t.Fatalf("%d receives left", len(s.recvs))
	}
	s.Reset(w.now)
	if len(s.recvs) != 2 || s.recvs[0].ID != 31 {
		t.Errorf("receives after reset: %d", len(s.recvs))
	}
	s.Destroy(w.now)
	if b.e.QP(0x7000) != nil {
		t.Error("still there")
	}
	w.run(mono.Millisecond)
}

// TestPlanes: QPs spread over the planes, keep to one each, move away from one that goes down and come back; a plane that is
// dead at the other end only is left after timeouts.
func TestPlanes(t *testing.T) {
	l := link.Spec{RateBps: 25e9, Delay: 3 * mono.Microsecond}
	w := newWorld(config{link: l, planes: 4})
	a, b := w.nodes[0], w.nodes[1]
	var qs []*qp
	var at [4]int
	for range 64 {
		p, _ := w.connect(a, b, options{sq: 4})
		at[p.Plane()]++
		qs = append(qs, p)
		post := func() { p.send(wr{op: transport.OpWrite, n: 50_000, key: 7}) }
		done := 0
		p.onSend = func(c completion) {
			if c.status != transport.OK {
				t.Fatalf("%v", c.status)
			}
			done++
			p.sends = append(p.sends, c)
			post()
		}
		post()
		post()
	}
	for i, n := range at {
		if n < 6 {
			t.Errorf("%d of 64 QPs on plane %d", n, i)
		}
	}
	w.run(2 * mono.Millisecond)
	home := make([]int, len(qs))
	for i, q := range qs {
		home[i] = q.Plane()
	}
	for _, e := range []*rocev2.Engine{a.e, b.e} {
		e.SetPlane(w.now, 2, false)
	}
	for i, q := range qs {
		if home[i] != 2 && q.Plane() != home[i] || q.Plane() == 2 {
			t.Errorf("QP %d moved from %d to %d", i, home[i], q.Plane())
		}
		q.sends = nil
	}
	w.setLink(0, 1, 2, link.Spec{Down: true})
	w.setLink(1, 0, 2, link.Spec{Down: true})
	w.run(20 * mono.Millisecond)
	for i, q := range qs {
		if len(q.sends) < 10 {
			t.Errorf("QP %d: %d messages after its plane went down: %s", i, len(q.sends), q.Dump())
		}
	}
	// Plane 1 dies silently.
	w.setLink(0, 1, 1, link.Spec{Down: true})
	w.setLink(1, 0, 1, link.Spec{Down: true})
	for _, e := range []*rocev2.Engine{a.e, b.e} {
		e.SetPlane(w.now, 2, true)
	}
	w.setLink(0, 1, 2, l)
	w.setLink(1, 0, 2, l)
	for i, q := range qs {
		if q.Plane() != home[i] {
			t.Errorf("QP %d is on %d, not back on %d", i, q.Plane(), home[i])
		}
		q.sends = nil
	}
	w.run(80 * mono.Millisecond)
	for i, q := range qs {
		if len(q.sends) < 10 || q.Plane() == 1 {
			t.Errorf("QP %d: %d messages, on plane %d: %s", i, len(q.sends), q.Plane(), q.Dump())
		}
	}
}

// TestDCQCN: eight senders into one port share it without loss where ECN marks come before the queue is full, and lose
// much without congestion control.
func TestDCQCN(t *testing.T) {
	run := func(c rocev2.CC) (goodput, fair float64, dropped uint64, w *world) {
		w = newWorld(config{link: usual(), nodes: 9, memory: 1 << 20, engine: func(x *rocev2.Config) { x.CC = c }})
		b := w.nodes[8]
		// The senders' packets meet in front of one port: a link in common, modelled by one node that all send through.
		bytes := make([]int, 8)
		last := link.New(1, "port", slots)
		if err := last.Set(w.now, link.Spec{RateBps: 100e9, Queue: 1 << 20, ECNMin: 100 << 10, ECNMax: 400 << 10}); err != nil {
			t.Fatal(err)
		}
		type parked struct{ p pkt.Packet }
		var inPort [slots]parked
		var free []link.Handle
		for i := range slots {
			free = append(free, link.Handle(i))
		}
		w.tap = func(src, dst, plane int, p *pkt.Packet) bool {
			if dst != 8 {
				return true
			}
			i := free[len(free)-1]
			if last.Send(w.now, i, len(p.Data)+42, p.TOS&pkt.ECNMask != 0) != link.Queued {
				dropped++
				return false
			}
			free = free[:len(free)-1]
			inPort[i].p = *p
			inPort[i].p.Data = append([]byte(nil), p.Data...)
			return false
		}
		for i := range 8 {
			p, _ := w.connect(w.nodes[i], b, options{sq: 8})
			post := func() { p.send(wr{op: transport.OpWrite, n: 250_000, key: 7}) }
			p.onSend = func(c completion) {
				if bytes[i] += 250_000; c.status == transport.OK {
					post()
				}
			}
			for range 4 {
				post()
			}
		}
		pump := func(d mono.Duration) {
			for end := w.now.Add(d); w.now < end; {
				for {
					o, ok := last.Next(w.now)
					if !ok {
						break
					}
					p := inPort[o.Handle].p
					if o.CE {
						p.TOS |= pkt.CE
					}
					b.e.HandlePackets(w.now, []pkt.Packet{p})
					free = append(free, o.Handle)
				}
				w.step()
				next := last.NextWake()
				was := w.now
				if w.advance(); next < w.now {
					w.now = max(next, was)
				}
			}
		}
		pump(3 * mono.Millisecond)
		clear(bytes)
		dropped = 0
		pump(5 * mono.Millisecond)
		sum, sq := 0.0, 0.0
		for _, n := range bytes {
			sum += float64(n)
			sq += float64(n) * float64(n)
		}
		return sum * 8 / 0.005 / 100e9, sum * sum / (8 * sq), dropped, w
	}
	g, fair, dropped, w := run(rocev2.CCDCQCN)
	t.Logf("DCQCN: %.1f %% of the port, fairness %.2f, %d dropped, %d CNPs", 100*g, fair, dropped, w.nodes[8].e.C.TxCNP)
	if g < 0.7 || fair < 0.7 || dropped > 100 || w.nodes[8].e.C.TxCNP == 0 || w.nodes[0].e.C.RxCNP == 0 {
		t.Error("DCQCN does not control")
	}
	g0, fair0, dropped0, _ := run(rocev2.CCNone)
	t.Logf("none: %.1f %% of the port, fairness %.2f, %d dropped", 100*g0, fair0, dropped0)
	if dropped0 < 10*dropped || g0 > g {
		t.Error("without congestion control it is no worse")
	}
}

// TestFair: QPs of a port share it, whatever their messages' lengths.
func TestFair(t *testing.T) {
	w := newWorld(config{link: usual()})
	bytes := make([]int, 6)
	for i := range bytes {
		p, _ := w.connect(w.nodes[0], w.nodes[1], options{sq: 512})
		n := []uint32{8192, 100_000, 1 << 20}[i%3]
		op := []transport.Op{transport.OpWrite, transport.OpRead}[i/3]
		if op == transport.OpRead {
			p, _ = w.connect(w.nodes[1], w.nodes[0], options{sq: 512, rd: 64})
		}
		post := func() { p.send(wr{op: op, n: n, key: 7}) }
		p.onSend = func(completion) { bytes[i] += int(n); post() }
		for range 1 + 1<<20/n {
			post()
		}
	}
	w.run(10 * mono.Millisecond)
	sum := 0
	for i, n := range bytes {
		sum += n
		if n < 10e9/8*9.5/1000 { // 100 Gbit/s · 10 ms / 6 = 21 MB each
			t.Errorf("QP %d: %d bytes", i, n)
		}
	}
	if float64(sum)*8/0.01 < 95e9 {
		t.Errorf("%d bytes together", sum)
	}
}

// TestLoopback: a QP of the NIC's own address.
func TestLoopback(t *testing.T) {
	w := newWorld(config{link: link.Spec{}})
	a := w.nodes[0]
	p, q := w.connect(a, a, options{})
	q.recv(1, 0x100000, 100_000)
	copy(a.Mem, "to ourselves")
	p.send(wr{id: 1, op: transport.OpSend, n: 100_000})
	w.mustRun(t, mono.Millisecond, func() bool { return len(p.sends) == 1 && len(q.received) == 1 })
	if !bytes.Equal(a.Mem[:100_000], a.Mem[0x100000:0x100000+100_000]) {
		t.Error("wrong bytes")
	}
}

// TestReadWindow: READs ask for no more at a time than the window takes, on wires without a rate.
func TestReadWindow(t *testing.T) {
	w := newWorld(config{link: link.Spec{Delay: 5 * mono.Microsecond}})
	p, _ := w.connect(w.nodes[0], w.nodes[1], options{})
	most := uint32(0)
	w.tap = func(src, _, _ int, x *pkt.Packet) bool {
		var h ib.Header
		if ib.Decode(x.Data, &h); h.Op == ib.ReadRequest {
			most = max(most, h.Len)
		}
		return true
	}
	for i := range 4 {
		p.send(wr{id: uint64(i), op: transport.OpRead, n: 3 << 20, key: 7, local: 0})
	}
	w.mustRun(t, 10*mono.Millisecond, func() bool { return len(p.sends) == 4 })
	if most > 128<<10 {
		t.Errorf("asked for %d bytes at once", most)
	}
}

// TestRawPackets feeds random packets with right ICRCs to QPs in every state: nothing may panic or touch what it may not.
func TestRawPackets(t *testing.T) {
	r := rng.New(9, "raw")
	codes := []ib.Opcode{}
	for o := range 256 {
		if ib.Opcode(o).Known() {
			codes = append(codes, ib.Opcode(o))
		}
	}
	for seed := range uint64(40) {
		w := newWorld(config{seed: seed, link: usual(), memory: 1 << 16})
		b := w.nodes[1]
		p, q := w.connect(w.nodes[0], b, options{mtu: 256, rd: 3, timeout: 8, sq: 16})
		u := b.newUD(qkey)
		b.Keys[7] = transporttest.Key{Lo: 0x1000, Hi: 0x2000, Write: true, Read: true, Atomic: true}
		for i := range 5 {
			q.recv(uint64(i), 0x8000, 500)
			u.recv(uint64(i), 0x9000, 500)
			q.send(wr{id: uint64(i), op: transport.Op(r.IntN(7)), n: uint32(r.IntN(900)), key: 7, local: 0xA000, remote: 0x100})
		}
		for range 300 {
			h := ib.Header{Op: codes[r.IntN(len(codes))], PKey: ib.PKeyDefault, DestQP: q.Number(), PSN: serial.Trunc(1<<24 - 1 + uint64(r.IntN(8))),
				AckReq: r.Chance(0.5), Len: uint32(r.IntN(1000)), VA: 0x1000 + uint64(r.IntN(0x1400)), RKey: 7, QKey: qkey,
				Syndrome: ib.Syndrome(r.Uint32()), Swap: r.Uint64(), Imm: r.Uint32(), Inv: 7}
			if !h.Op.IsRequest() && !h.Op.IsResponse() && r.Chance(0.8) {
				h.DestQP = u.Number()
			}
			n := 0
			if h.Op.IsSend() || h.Op.IsWrite() || h.Op == ib.UDSend || h.Op == ib.UDSendImm || h.Op >= ib.ReadRespFirst && h.Op <= ib.ReadRespOnly {
				n = []int{0, r.IntN(256), 256, 256, 300}[r.IntN(5)]
			}
			x := craft(w, q, h, n)
			if r.Chance(0.02) {
				x.TOS = pkt.CE
			}
			b.e.HandlePackets(w.now, []pkt.Packet{x})
			if r.Chance(0.3) {
				w.step()
				w.advance()
			}
		}
		w.run(20 * mono.Millisecond)
		q.Reset(w.now)
		u.Destroy(w.now)
		p.ToError(w.now)
		w.run(mono.Millisecond)
		for i := 0x3000; i < 0x8000; i++ {
			if b.Mem[i] != 0 {
				t.Fatalf("seed %d: byte %#x written", seed, i)
			}
		}
		if b.e.InFlight() != 0 {
			t.Fatalf("seed %d: in flight", seed)
		}
	}
}

// TestMarks: a notification leaves at most each 50 µs, whatever comes marked, and lowers the sender's rate.
func TestMarks(t *testing.T) {
	w := newWorld(config{link: usual()})
	p, q := w.connect(w.nodes[0], w.nodes[1], options{})
	w.tap = func(_, dst, _ int, x *pkt.Packet) bool {
		if dst == 1 {
			if x.TOS&pkt.ECNMask != pkt.ECT0 {
				t.Error("data is not ECN-capable")
			}
			x.TOS |= pkt.CE
		} else if x.Data[0] == byte(ib.CNP) && (x.TOS != 48<<2 || len(x.Data) != 32 || binary.BigEndian.Uint32(x.Data[4:]) != 0x40000000|p.Number()) {
			t.Errorf("CNP %x, TOS %x", x.Data, x.TOS)
		}
		return true
	}
	for i := range 100 {
		p.send(wr{id: uint64(i), op: transport.OpWrite, n: 1 << 20, key: 7})
	}
	w.run(500 * mono.Microsecond)
	if c := q.n.e.C.TxCNP; c < 8 || c > 10 {
		t.Errorf("%d CNPs in 500 µs", c)
	}
	if r := p.n.e.QPs()[0].RateBps; r == 0 || r > 5e9 {
		t.Errorf("rate %v", r)
	}
}

// TestNoPlane: an MTU that no plane carries fails what is posted; planes that are down at first do not.
func TestNoPlane(t *testing.T) {
	w := newWorld(config{link: usual(), planes: 2, engine: func(c *rocev2.Config) { c.Planes[0].PacketMax, c.Planes[1].PacketMax = 1100, 2100 }})
	a, b := w.nodes[0], w.nodes[1]
	p, _ := w.connect(a, b, options{mtu: 4096})
	p.send(wr{op: transport.OpWrite, n: 8, key: 7})
	if len(p.sends) != 1 || p.sends[0].status != transport.RetryExcErr {
		t.Errorf("%+v", p.sends)
	}
	for range 8 {
		if p, _ := w.connect(a, b, options{mtu: 2048}); p.Plane() != 1 {
			t.Errorf("packets of 2048 on plane %d", p.Plane())
		}
	}
	for i := range 2 {
		a.e.SetPlane(w.now, i, false)
		b.e.SetPlane(w.now, i, false)
	}
	p, _ = w.connect(a, b, options{mtu: 1024})
	p.send(wr{op: transport.OpWrite, n: 8, key: 7})
	for i := range 2 {
		a.e.SetPlane(w.now, i, true)
		b.e.SetPlane(w.now, i, true)
	}
	w.mustRun(t, second, func() bool { return len(p.sends) == 1 && p.sends[0].status == transport.OK })
}

// TestChange: timers, limits and the address that are changed hold; remembered answers stay when there is room for fewer
// or more.
func TestChange(t *testing.T) {
	w := newWorld(config{seed: 3, nodes: 3, link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	p, q := w.connect(a, b, options{rd: 1})
	change := func(x *qp, to *node, timeout, retry uint8, rd int) {
		x.Change(w.now, rocev2.RTRAttr{Local: x.n.addr, Remote: to.addr, MaxDestRdAtomic: rd, MinRNRTimer: 1, HopLimit: 9},
			rocev2.RTSAttr{Timeout: timeout, RetryCnt: retry, RNRRetry: 7, MaxRdAtomic: rd})
	}
	n := 0
	for _, rd := range []int{1, 8, 2, 16, 1} {
		change(q, a, 14, 7, rd)
		change(p, b, 14, 7, rd)
		for i := range uint64(20) {
			p.send(wr{op: transport.OpFetchAdd, local: 4096 + 8*i, remote: 64, n: 8, key: 7, compare: 1})
		}
		n += 20
		w.mustRun(t, mono.Second, func() bool { return len(p.sends) == n })
	}
	if v := binary.LittleEndian.Uint64(b.Mem[64:]); v != uint64(n) {
		t.Errorf("%d after %d additions", v, n)
	}
	change(p, w.nodes[2], 10, 0, 1) // there is no such QP
	p.send(wr{op: transport.OpWrite, n: 8, key: 7})
	began := w.now
	w.mustRun(t, mono.Second, func() bool { return len(p.sends) > n })
	if c := p.sends[n]; c.status != transport.RetryExcErr || w.now.Sub(began) > 50*mono.Millisecond {
		t.Errorf("%+v after %v", c, w.now.Sub(began))
	}
}
