package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// flying is what the node has in flight on a plane, in bytes.
func (f *forge) flying(plane int) int { return f.n.E.Assocs()[0].Planes[plane].InFlight }

// writes posts n WRITEs of one packet and returns the packets sent.
func (f *forge) writes(q *QP, n int) []*sent {
	f.Helper()
	for range n {
		q.Send(WR{ID: uint64(len(q.Sends)), Op: transport.OpWrite, N: 1000})
	}
	xs := data(f.collect())
	if len(xs) != n {
		f.Fatalf("%d packets for %d WRITEs", len(xs), n)
	}
	return xs
}

// TestSpecInFlight: bytes count from sending to the end of the transmission, whatever it is, and no longer.
func TestSpecInFlight(t *testing.T) {
	f, q := receiver(t, Config{Seed: 1})
	x := f.writes(q, 1)[0]
	//= MR-REL-005
	if n := f.flying(0); n != len(x.Data) {
		t.Errorf("%d bytes in flight, the packet has %d", n, len(x.Data))
	}
	f.deliver(f.acks(x))
	if n := f.flying(0); n != 0 {
		t.Errorf("%d bytes in flight after the acknowledgement", n)
	}
	xs := f.writes(q, 2)
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{refuses(xs[1], q, wire.RefuseRNR)}}))
	//= MR-REL-005 MR-MSG-063 MR-MSG-089
	if n := f.flying(0); n != len(xs[0].Data) {
		t.Errorf("%d bytes in flight after a refusal", n)
	}
	q.Reset(f.w.Now)
	//= MR-REL-004
	if n := f.flying(0); n != len(xs[0].Data) || f.n.E.InFlight() != 1 {
		t.Errorf("%d bytes in flight after the QP was reset", n)
	}
	f.deliver(f.acks(xs[0]))
	if n := f.flying(0); n != 0 {
		t.Errorf("%d bytes in flight after the last acknowledgement", n)
	}
}

// TestSpecBothArrive: a packet called lost is sent again; its PSN is done by either, and each transmission has an end
// of its own.
func TestSpecBothArrive(t *testing.T) {
	f, q := receiver(t, Config{Seed: 2})
	first := f.writes(q, 1)[0]
	second := data(f.wait(2 * mono.Millisecond))
	//= MR-REL-042 MR-REL-045 MR-REL-048
	if len(second) == 0 || second[0].PSN != first.PSN || second[0].Flags&wire.FlagRetransmit == 0 || second[0].Flags&wire.FlagCopy != 0 {
		t.Fatalf("after the probe time: %v", second)
	}
	if n := f.flying(0); n != len(first.Data) {
		t.Errorf("%d bytes in flight", n)
	}
	n := len(f.log)
	f.deliver(f.acks(first))
	//= MR-REL-004 MR-REL-005
	if len(q.Sends) != 1 || f.flying(0) != len(first.Data) {
		t.Errorf("done %d, %d bytes in flight after the late acknowledgement of a lost one", len(q.Sends), f.flying(0))
	}
	f.deliver(f.acks(second[len(second)-1]))
	if f.flying(0) != 0 {
		t.Errorf("%d bytes in flight", f.flying(0))
	}
	//= MR-REL-045
	if xs := data(append(f.log[n:], f.wait(100*mono.Millisecond)...)); len(xs) != 0 {
		t.Errorf("sent again after it was acknowledged: %v", xs)
	}
}

// TestSpecProbeTime: the only packet of a QP goes again soon after a round trip, the spread and the peer's MaxHold.
func TestSpecProbeTime(t *testing.T) {
	f, q := receiver(t, Config{Seed: 3, Planes: 2})
	const rtt = 100 * mono.Microsecond
	for range 200 {
		x := f.writes(q, 1)[0]
		f.w.Now = f.w.Now.Add(rtt)
		f.deliver(f.acks(x))
	}
	x := f.writes(q, 1)[0]
	again := data(f.wait(mono.Millisecond))
	limit := rtt + rtt/8 + mono.Duration(f.hello.MaxHold)<<4 + 3*mono.Microsecond
	//= MR-REL-042
	if len(again) == 0 || again[0].At.Sub(x.At) > limit || again[0].At.Sub(x.At) < rtt || again[0].Plane == x.Plane {
		t.Errorf("sent again %v later, on plane %d after %d", again[0].At.Sub(x.At), again[0].Plane, x.Plane)
	}
}

// TestSpecAcks: what the sender makes of path blocks.
func TestSpecAcks(t *testing.T) {
	f, q := receiver(t, Config{Seed: 4})
	f.deliver(f.acks(f.writes(q, 1)...))
	xs := f.writes(q, 12)
	byPath := map[uint16][]*sent{}
	for _, x := range xs {
		byPath[x.Header.Path] = append(byPath[x.Header.Path], x)
	}
	// newest first, and the first ACK of all last
	//= MR-REL-030
	for i := len(xs) - 1; i >= 0; i-- {
		f.deliver(f.acks(xs[i]))
		f.deliver(f.acks(xs[len(xs)-1])) // old news again
	}
	if len(q.Sends) != 13 || f.flying(0) != 0 {
		t.Errorf("%d completions, %d bytes in flight", len(q.Sends), f.flying(0))
	}
	// bits of numbers never sent: the path's first packet, with a bitmap of all ones
	x := f.writes(q, 1)[0]
	b := wire.PathBlock{Path: x.Header.Path, Highest: x.Seq, Echo: x.TS, Bitmap: [2]uint64{^uint64(0), ^uint64(0)}}
	//= MR-REL-031
	f.deliver(f.ack(acked{Paths: []wire.PathBlock{b}}))
	if len(q.Sends) != 14 || f.flying(0) != 0 {
		t.Errorf("%d completions, %d bytes in flight", len(q.Sends), f.flying(0))
	}
	// a number that was never sent
	y := f.writes(q, 1)[0]
	bad := wire.PathBlock{Path: y.Header.Path, Highest: y.Seq + 2, Echo: y.TS, Bitmap: [2]uint64{3}}
	out := f.deliver(f.ack(acked{Paths: []wire.PathBlock{bad}}))
	//= MR-REL-031 MR-ASC-070
	if len(q.Sends) != 14 || f.flying(0) != len(y.Data) || len(of(out, wire.OpHello)) != 1 {
		t.Errorf("%d completions, %d bytes in flight, sends %v", len(q.Sends), f.flying(0), out)
	}
}

// TestSpecRoundTrips: what counts as a round trip.
func TestSpecRoundTrips(t *testing.T) {
	f, q := receiver(t, Config{Seed: 5})
	const rtt = 160 * mono.Microsecond
	for range 300 {
		x := f.writes(q, 1)[0]
		f.w.Now = f.w.Now.Add(rtt + 8*mono.Microsecond)
		f.deliver(f.ack(acked{Paths: []wire.PathBlock{{Path: x.Header.Path, Highest: x.Seq, Echo: x.TS, Hold: 8000 / 16}}}))
	}
	srtt := func() mono.Duration { return f.n.E.Assocs()[0].SRTT }
	//= MR-REL-032
	if d := srtt() - rtt; d > mono.Microsecond || d < -mono.Microsecond {
		t.Errorf("smoothed round trip %v, not %v", srtt(), rtt)
	}
	xs := f.writes(q, 1)
	before := srtt()
	for name, b := range map[string]wire.PathBlock{
		"negative":   {Hold: 1 << 20},
		"in future":  {Echo: 1 << 24},
		"too long":   {Echo: ^uint32(1<<30 - 1)},
		"zero":       {Echo: 0},
		"two minute": {Echo: ^uint32(0x7FFFFF00)},
	} {
		b.Path, b.Highest, b.Echo = xs[0].Header.Path, xs[0].Seq, b.Echo+xs[0].TS
		f.deliver(f.ack(acked{Paths: []wire.PathBlock{b}}))
		//= MR-REL-032
		if srtt() != before {
			t.Errorf("%s: round trip %v became %v", name, before, srtt())
		}
		xs = f.writes(q, 1)
	}
	x := xs[0]
	f.w.Now = f.w.Now.Add(rtt)
	f.deliver(f.acks(x))
	before = srtt()
	f.wait(10 * mono.Millisecond)
	f.deliver(f.acks(x)) // nothing new
	//= MR-REL-032
	if srtt() != before {
		t.Errorf("old news make %v of %v", srtt(), before)
	}
}

// TestSpecFormerLife: what belongs to a former life of a QP number means nothing to the present one.
func TestSpecFormerLife(t *testing.T) {
	f, q := receiver(t, Config{Seed: 6})
	old := f.writes(q, 3)
	q.Recv(1, 0, 100)
	oldLimit := f.ack(acked{QPs: []wire.QPBlock{{QPN: q.Number(), Limit: 50}}})
	oldRequest := f.write(q, 0, "TA", 0, 7, bytesOf(7, 8))
	oldRequest2 := f.write(q, 1, "TA", 0, 7, bytesOf(7, 8))
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	f.deliver(f.write(q, 0, "TA", 100, 7, bytesOf(1, 8))) // the newest that was heard
	f.w.Now = f.w.Now.Add(5 * mono.Microsecond)
	oldRequest3 := f.write(q, 0, "TA", 0, 7, bytesOf(7, 8))
	q.Reset(f.w.Now)
	q.ToInit()
	f.join(q, QPOptions{Timeout: 22})
	q.Sends = nil
	now := f.writes(q, 3)
	//= MR-REL-033 MR-MSG-096
	f.deliver(f.acks(old[0], old[1]))
	f.deliver(f.ack(acked{Refusals: []wire.RefusalBlock{refuses(old[2], q, wire.RefuseRNR)}}))
	if len(q.Sends) != 0 || q.Failed {
		t.Errorf("completed by the past: %+v", q.Sends)
	}
	f.deliver(oldLimit)
	if xs := f.collect(); len(xs) != 0 {
		t.Errorf("sends %v", xs)
	}
	q.Send(WR{Op: transport.OpSend, N: 10}) // not limited: no limit of this life is known
	if xs := data(f.collect()); len(xs) != 1 {
		t.Errorf("an old limit holds a SEND back: %v", xs)
	}
	//= MR-MSG-095
	f.want("an old request", f.deliver(oldRequest), oldRequest, "LATER")
	f.want("an old request", f.deliver(oldRequest2), oldRequest2, "LATER")
	f.want("one sent after the newest that was heard", f.deliver(oldRequest3), oldRequest3, "LATER")
	if f.n.Mem[0] != 0 {
		t.Error("an old request writes")
	}
	f.w.Now = f.w.Now.Add(15 * mono.Millisecond) // no round trip is known
	p := f.write(q, 0, "TA", 0, 7, bytesOf(2, 8))
	f.want("a new request", f.deliver(p), p, "ack")
	//= MR-REL-033
	f.deliver(f.ack(acked{QPs: []wire.QPBlock{{QPN: 0x999, Limit: 5}}, Refusals: []wire.RefusalBlock{{Path: 0xFFFF, QPN: 0x999, Code: wire.RefuseOp}}}))
	f.deliver(f.acks(now...))
	if len(q.Sends) != 3 || q.Sends[2].Status != transport.OK {
		t.Errorf("%+v", q.Sends)
	}
}

// TestSpecFormerLifeNewClock: nothing is known of the peer's clock when the life of a number begins that ended just now;
// what the peer sent before still does not belong to it.
func TestSpecFormerLifeNewClock(t *testing.T) {
	f, q := receiver(t, Config{Seed: 6})
	f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 8)))
	f.hello.Instance++
	f.seq = map[uint16]uint32{0: 500}
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	f.hello.Cookie = of(f.say(wire.HelloInit, 0), wire.OpHello)[0].Hello.Cookie
	confirm := f.hello
	confirm.Stage = wire.HelloConfirm
	hello := f.helloPacket(confirm, 0)
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	old := f.write(q, 0, "TA", 8, 7, bytesOf(7, 8)) // the new instance is up already
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	q.Reset(f.w.Now)
	q.ToInit()
	f.join(q, QPOptions{Timeout: 22})
	f.deliver(hello)
	//= MR-MSG-095
	f.want("an old request", f.deliver(old), old, "LATER")
	if f.n.Mem[8] != 0 {
		t.Error("an old request writes")
	}
	f.w.Now = f.w.Now.Add(15 * mono.Millisecond)
	p := f.write(q, 0, "TA", 8, 7, bytesOf(2, 8))
	f.want("a new request", f.deliver(p), p, "ack")
}

// TestSpecOldFailure: a failure is repeated, but not once its QP has ended: the peer's number may have a new life by then.
func TestSpecOldFailure(t *testing.T) {
	f, q := receiver(t, Config{Seed: 6})
	xs := f.deliver(f.write(q, 0, "TA", 0, 99, bytesOf(1, 8)))
	if a := of(xs, wire.OpAck); len(a) == 0 || a[0].Ack.Refusals[0].Code != wire.RefuseAccess {
		t.Fatalf("it says %v", xs)
	}
	q.Reset(f.w.Now)
	said := 0
	for _, x := range of(f.wait(5*mono.Millisecond), wire.OpAck) {
		for _, r := range x.Ack.Refusals {
			said++
			//= MR-MSG-097
			if r.Code != wire.RefuseNoQP {
				t.Errorf("after the end of the QP it says %v", r.Code)
			}
		}
	}
	if said == 0 {
		t.Error("the repeat is gone")
	}
}

// TestSpecStaleLimit: a limit from before a QP's present life is not its limit.
func TestSpecStaleLimit(t *testing.T) {
	f, q := receiver(t, Config{Seed: 6})
	old := f.ack(acked{QPs: []wire.QPBlock{{QPN: q.Number(), Limit: 0}}})
	f.w.Now = f.w.Now.Add(mono.Microsecond)
	f.deliver(f.write(q, 0, "TA", 100, 7, bytesOf(1, 8)))
	q.Reset(f.w.Now)
	q.ToInit()
	f.join(q, QPOptions{Timeout: 22})
	f.deliver(old)
	q.Send(WR{Op: transport.OpSend, N: 10})
	//= MR-MSG-096
	if xs := data(f.collect()); len(xs) != 1 {
		t.Errorf("an old limit holds a SEND back: %v", xs)
	}
}

// TestSpecWindows: one window for each plane, for everything, bounded by the grant.
func TestSpecWindows(t *testing.T) {
	const window = 50_000
	f := newStranger(t, Config{Seed: 7, Planes: 2, Engine: func(c *metaroce.Config) { c.FixedWindow = window }})
	f.hello.PathLimit = 1
	f.meet()
	q := f.qp(QPOptions{MTU: 1024, Timeout: 22})
	q.Send(WR{Op: transport.OpWrite, N: 1 << 20})
	f.collect()
	most := 4096 + wire.MaxOverhead
	check := func(what string, plane, limit int) {
		t.Helper()
		//= MR-CC-001 MR-CC-003 MR-CC-011
		if n := f.flying(plane); n == 0 || n <= limit-most || n >= max(limit, most)+most {
			t.Errorf("%s: %d bytes in flight on plane %d, limit %d", what, n, plane, limit)
		}
	}
	//= MR-CC-002
	check("one path has the whole window", 0, window)
	check("one path has the whole window", 1, window)
	f.wait(5 * mono.Millisecond) // everything is lost and goes again
	check("retransmissions", 0, window)
	check("retransmissions", 1, window)

	f, q = receiver(t, Config{Seed: 7, Engine: func(c *metaroce.Config) { c.FixedWindow = window }})
	q.Send(WR{Op: transport.OpWrite, N: 1 << 20})
	for _, grant := range []uint32{20_000, 1, 30_000, 10_000} {
		f.deliver(f.ack(acked{Planes: []wire.PlaneBlock{{Plane: 0, Grant: grant}}}))
		f.wait(mono.Millisecond)
		if grant != 30_000 {
			check("grant", 0, max(int(grant), 256))
		}
	}
}

// TestSpecPatient: where the receiver grants little, a plane may be silent for longer: its queue is full for many senders.
func TestSpecPatient(t *testing.T) {
	silence := func(grant uint32) (d mono.Duration) {
		f := newStranger(t, Config{Seed: 7, Planes: 2, Engine: func(c *metaroce.Config) { c.FixedWindow = 50_000 }})
		f.meet()
		q := f.qp(QPOptions{MTU: 1024, Timeout: 22})
		for range 16 {
			q.Send(WR{Op: transport.OpWrite, N: 1 << 20})
		}
		const rtt = 8 * mono.Microsecond
		xs := f.collect()
		round := func(dead int) {
			f.w.Now = f.w.Now.Add(rtt)
			var heard []*sent
			for _, x := range data(xs) {
				if int(x.Plane) != dead {
					heard = append(heard, x)
				}
			}
			a := acked{Planes: []wire.PlaneBlock{{Plane: 0, Grant: grant}, {Plane: 1, Grant: grant}}}
			for _, x := range heard {
				a.Paths = append(a.Paths, wire.PathBlock{Path: x.Path, Highest: x.Seq, Echo: x.TS})
			}
			xs = f.deliver(f.ack(a))
		}
		for range 60 { // until round trips are known well
			round(-1)
		}
		for f.n.E.Assocs()[0].Planes[1].State == "active" && d < mono.Millisecond {
			round(1)
			d += rtt
		}
		return d
	}
	much, little := silence(100_000), silence(16_000)
	//= MR-PATH-030
	if much < 8*mono.Microsecond || much > 80*mono.Microsecond || little < 3*much || little > 6*much {
		t.Errorf("a silent plane fails after %v, with a small grant after %v", much, little)
	}
}

// TestSpecTurns: QPs are served in turn, a few packets each, and one that may not send holds nobody up.
func TestSpecTurns(t *testing.T) {
	f, _ := receiver(t, Config{Seed: 8, Engine: func(c *metaroce.Config) { c.FixedWindow = 1 << 20 }})
	f.deliver(f.ack(acked{Planes: []wire.PlaneBlock{{Plane: 0, Grant: 1 << 20}}}))
	var qs []*QP
	for range 4 {
		qs = append(qs, f.qp(QPOptions{MTU: 1024, Timeout: 22}))
	}
	f.deliver(f.ack(acked{QPs: []wire.QPBlock{{QPN: qs[0].Number(), Limit: 0}}}))
	qs[0].Send(WR{Op: transport.OpSend, N: 100_000}) // no receive
	qs[1].Send(WR{Op: transport.OpRead, N: 10})
	qs[1].Send(WR{Op: transport.OpWrite, N: 100_000, Flags: transport.FlagFence})
	for i, q := range qs[2:] {
		q.Send(WR{Op: transport.OpWrite, Remote: uint64(i) << 32, N: 200_000})
	}
	last, run, longest := pktQP(0), 0, 0
	count := map[pktQP]int{}
	for i, x := range data(f.collect()) {
		w := writerOf(qs, x)
		count[w]++
		if w == last {
			run++
		} else {
			last, run = w, 1
		}
		if i < 300 {
			longest = max(longest, run)
		}
	}
	//= MR-CC-020
	if longest > 16 {
		t.Errorf("%d packets of one QP in a row", longest)
	}
	//= MR-MSG-018
	if count[2] < 190 || count[3] < 190 || count[0] != 0 {
		t.Errorf("packets by QP: %v", count)
	}
}

type pktQP int

// writerOf tells the QPs of a test apart by what they send: all have the same peer QP.
func writerOf(qs []*QP, x *sent) pktQP {
	switch {
	case x.Op == wire.OpSend:
		return 0
	case x.Op == wire.OpRead:
		return 1
	}
	return pktQP(2 + x.VA>>32)
}

// TestSpecLateCE: marks are counts; a mark reported late or twice is the same mark.
func TestSpecLateCE(t *testing.T) {
	s := newScript(t, Config{Seed: 9, Planes: 2})
	p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	n := 0
	marked := map[uint16]uint32{}
	s.fate = func(x *sent) mono.Duration {
		if n++; x.Op == wire.OpWrite && n%5 == 0 {
			x.TOS |= pkt.CE
			marked[x.Header.Path]++
		}
		if x.Op == wire.OpAck && n%3 == 0 {
			return lost
		}
		return 0
	}
	for range 20 {
		p.Send(WR{Op: transport.OpWrite, N: 50_000, Key: 7})
	}
	s.done(p, 20)
	told := map[uint16]uint32{}
	for _, x := range of(s.log, wire.OpAck) {
		for _, b := range x.Ack.Paths {
			//= MR-REL-025
			if b.CE < told[b.Path] {
				t.Errorf("path %#x: %d marks after %d", b.Path, b.CE, told[b.Path])
			}
			told[b.Path] = b.CE
		}
	}
	for path, m := range marked {
		if told[path] != m {
			t.Errorf("path %#x: %d of %d marks were told", path, told[path], m)
		}
	}
	_ = q
}

// TestSpecPsnWindow: no PSN goes out a window or more after the oldest that is not acknowledged, in both spaces.
func TestSpecPsnWindow(t *testing.T) {
	const window = 256
	s := newScript(t, Config{Seed: 10, Engine: func(c *metaroce.Config) { c.PSNWindow, c.FixedWindow = window, 4<<20 }})
	p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: 256, SQPSN: 0xFFFFF0})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	grow := true
	highest := map[bool]uint32{}
	s.fate = func(x *sent) mono.Duration {
		if !x.Op.IsData() {
			return 0
		}
		n := uint32(x.PSN)
		if x.Op.IsRequest() {
			n = uint32(serialPSN(n - 0xFFFFF0))
		}
		highest[x.Op.IsRequest()] = max(highest[x.Op.IsRequest()], n)
		if grow && n == 1 { // the second packet gets lost again and again
			return lost
		}
		return 0
	}
	check := func(requests bool) {
		t.Helper()
		s.run(5 * mono.Millisecond)
		//= MR-REL-050
		if h := highest[requests]; h > window || h < window/4 {
			t.Errorf("requests %v: PSN 1 is missing, %d was sent", requests, h)
		}
		grow = false
		s.done(p, len(p.Sends)+1)
		grow = true
	}
	p.Send(WR{Op: transport.OpWrite, N: 100_000, Key: 7})
	check(true)
	p.Send(WR{Op: transport.OpRead, N: 100_000, Key: 7})
	check(false)
}
