package transporttest

import (
	"runtime"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// receiver is a node with a QP and a region of memory under key 7, and the peer that sends to it.
func receiver(t *testing.T, c Config) (*forge, *QP) {
	f := newForge(t, c)
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	return f, f.qp(QPOptions{Timeout: 22})
}

// again is the same transmission once more.
func again(p pkt.Packet) pkt.Packet {
	p.Data = append([]byte(nil), p.Data...)
	return p
}

// TestSpecOnce: a transmission is processed once, and reported again when it comes again.
func TestSpecOnce(t *testing.T) {
	f, q := receiver(t, Config{Seed: 1})
	p := f.atomic(q, 0, 0, 7, 5)
	f.want("first", f.deliver(p), p, "ack")
	//= MR-REL-010 MR-REL-013 MR-MSG-031
	f.want("second", f.deliver(again(p)), p, "ack")
	f.want("two in one burst", f.deliver(again(p), again(p)), p, "ack")
	if f.n.Mem[0] != 5 {
		t.Errorf("the cell is %d", f.n.Mem[0])
	}
	// one that was refused is not processed either, although it could be now
	s := f.send(q, 1, "TA", 0, 0, bytesOf(9, 100))
	f.want("no receive", f.deliver(s), s, "RNR")
	q.Recv(1, 1000, 200)
	f.deliver(again(s))
	//= MR-REL-010
	if len(q.Received) != 0 || f.n.Mem[1000] != 0 {
		t.Error("a refused transmission was processed when it came again")
	}
	s = f.send(q, 1, "TA", 0, 0, bytesOf(9, 100))
	f.want("a new transmission", f.deliver(s), s, "ack")
}

// TestSpecReports: what a path block says.
func TestSpecReports(t *testing.T) {
	f, q := receiver(t, Config{Seed: 2})
	for psn := range uint32(20) {
		if psn%3 != 1 { // sequences with gaps
			f.deliver(f.write(q, psn, "", uint64(psn), 7, bytesOf(1, 1)))
		} else {
			f.seq[0]++
		}
	}
	f.wait(mono.Millisecond)
	acks := of(f.log, wire.OpAck)
	last := acks[len(acks)-1].Ack
	//= MR-REL-011
	var b *wire.PathBlock
	for i := range acks {
		for k := range acks[i].Ack.Paths {
			b = &acks[i].Ack.Paths[k]
		}
	}
	for psn := range uint32(20) {
		if got, want := names(b, 1001+psn), psn%3 != 1; got != want {
			t.Errorf("the last block says %v of PSN %d: %+v", got, psn, last)
		}
	}
	if names(b, 1000) || names(b, 999) {
		t.Errorf("what was never received is reported: %+v", b)
	}
}

// TestSpecTooOld: what lies too far behind, by sequence or by time, is dropped without a word.
func TestSpecTooOld(t *testing.T) {
	f, q := receiver(t, Config{Seed: 3})
	at := func(seq, ts, psn uint32) pkt.Packet {
		h := to(q, wire.OpWrite, psn, "A")
		h.Seq, h.TS, h.RKey, h.VA, h.Len = seq, ts, 7, uint64(psn), 100
		return f.packet(h, bytesOf(1, 1))
	}
	check := func(what string, p pkt.Packet, psn int, want string) {
		t.Helper()
		f.want(what, f.deliver(p), p, want)
		if f.n.Mem[psn] == 1 != (want == "ack") {
			t.Errorf("%s: written %d", what, f.n.Mem[psn])
		}
	}
	f.deliver(at(5000, 0, 0))
	for i, c := range []struct {
		seq  uint32
		want string
	}{{5000 - 127, "ack"}, {5000 - 128, ""}, {5000 - 129, ""}, {5000 - 4999, ""}, {5000 - 126, "ack"}} {
		//= MR-REL-014
		check("behind", at(c.seq, 0, uint32(i+1)), i+1, c.want)
	}
	const ageLimit = 250 * 1000 * 1000 / 16
	now := f.ts()
	f.seq[0] = 5000
	for i, c := range []struct {
		age  uint32
		want string
	}{{ageLimit - 10, "ack"}, {ageLimit + 10, ""}, {1 << 30, ""}, {0, "ack"}} {
		//= MR-REL-015
		check("old", at(0, now-c.age, uint32(i+20)), i+20, c.want)
	}
}

// TestSpecWindow: PSNs up to the window's end are taken, those ahead are dropped, those behind are acknowledged.
func TestSpecWindow(t *testing.T) {
	f, q := receiver(t, Config{Seed: 4, Engine: func(c *metaroce.Config) { c.PSNWindow = 4096 }})
	for _, c := range []struct {
		psn  uint32
		want string
	}{{4096, ""}, {5000, ""}, {1 << 22, ""}, {4095, "ack"}, {0, "ack"}, {4096, "ack"}, {4097, ""}, {0, "ack"}, {0xFFFFFF, "ack"}, {0xFFFFFF - 1000, "ack"}} {
		p := f.write(q, c.psn, "A", 0, 7, bytesOf(byte(c.psn), 1))
		//= MR-REL-016 MR-REL-051 MR-REL-052
		f.want("PSN", f.deliver(p), p, c.want)
	}
	// response PSNs have the same window
	q.Send(WR{Op: transport.OpRead, N: 4096 * 100, Local: 1 << 20})
	f.collect()
	for _, c := range []struct {
		psn  uint32
		want string
	}{{4096, ""}, {4095, "ack"}, {0, "ack"}, {4096, "ack"}, {4095, "ack"}, {0, "ack"}} {
		h := wire.Header{Op: wire.OpReadResp, Flags: wire.FlagAckReq, DestQP: q.Number(), PSN: serialPSN(c.psn), ReadOff: c.psn}
		p := f.packet(h, bytesOf(1, 1))
		//= MR-REL-051 MR-REL-052
		f.want("response PSN", f.deliver(p), p, c.want)
	}
}

// TestSpecNothingUnsaid: what is dropped for a fault of the peer's program is answered all the same.
func TestSpecNothingUnsaid(t *testing.T) {
	f, q := receiver(t, Config{Seed: 5})
	resp := func(no, off uint32, psn uint32) pkt.Packet {
		return f.packet(wire.Header{Op: wire.OpReadResp, Flags: wire.FlagTail | wire.FlagAckReq, DestQP: q.Number(), PSN: serialPSN(psn), ReadNo: no, ReadOff: off}, bytesOf(1, 8))
	}
	//= MR-REL-017
	p := resp(7, 0, 0)
	f.want("a response to no READ", f.deliver(p), p, "ack")
	p = f.write(q, 0, "TA", 0, 99, bytesOf(1, 8))
	f.want("a bad key", f.deliver(p), p, "ACCESS")
	p = f.write(q, 1, "TA", 0, 7, bytesOf(1, 8))
	f.want("a failed QP", f.deliver(p), p, "ACCESS")
	p = resp(0, 0, 1)
	//= MR-MSG-074
	f.want("a response to a failed QP", f.deliver(p), p, "ack")
	q.Destroy(f.w.Now)
	p = f.write(q, 2, "TA", 0, 7, bytesOf(1, 8))
	f.want("no QP", f.deliver(p), p, "NO_QP")
	p = resp(0, 0, 2)
	f.want("a response to no QP", f.deliver(p), p, "ack")
	r := f.qp(QPOptions{})
	r.Send(WR{Op: transport.OpRead, N: 8})
	f.collect()
	q = r
	p = resp(0, 100, 0)
	f.want("a response that does not fit", f.deliver(p), p, "ack")
}

// TestSpecAckTimes: which packets are acknowledged at once, and which may wait for how long.
func TestSpecAckTimes(t *testing.T) {
	f, q := receiver(t, Config{Seed: 6, Engine: func(c *metaroce.Config) { c.AckHold = 30 * mono.Microsecond }})
	psn := uint32(0)
	bulk := func(flags string) pkt.Packet {
		psn++
		return f.write(q, psn-1, flags, 0, 7, bytesOf(1, 1))
	}
	settle := func() { f.wait(10 * mono.Millisecond) }
	//= MR-REL-020
	p := bulk("A")
	f.want("ack requested", f.deliver(p), p, "ack")
	settle()
	p = bulk("")
	p.TOS = pkt.CE
	f.want("CE", f.deliver(p), p, "ack")
	settle()
	p = f.send(q, psn, "T", 0, 0, nil)
	f.want("refusal", f.deliver(p), p, "RNR")
	settle()
	for i := range 8 {
		p = bulk("")
		want := ""
		if i == 7 {
			want = "ack"
		}
		f.want("one of eight", f.deliver(p), p, want)
	}
	settle()
	// nothing special: an eighth of the round trip, at most MaxHold
	for _, c := range []struct {
		rtt  mono.Duration
		hold mono.Duration
	}{{80 * mono.Microsecond, 10 * mono.Microsecond}, {10 * mono.Millisecond, 30 * mono.Microsecond}} {
		for range 100 { // the node learns the round trip
			q.Send(WR{Op: transport.OpWrite, N: 1})
			xs := data(f.collect())
			f.w.Now = f.w.Now.Add(c.rtt)
			f.deliver(f.acks(xs...))
		}
		settle()
		p = bulk("")
		t0 := f.w.Now
		xs := append(f.deliver(p), f.wait(10*mono.Millisecond)...)
		//= MR-REL-021
		if a := of(xs, wire.OpAck); len(a) == 0 || a[0].At.Sub(t0) > c.hold || a[0].At.Sub(t0) < c.hold*3/4 {
			t.Errorf("round trip %v: the ACK comes after %v", c.rtt, a[0].At.Sub(t0))
		}
	}
}

// TestSpecEcho: an ACK's times and counts are right in every copy.
func TestSpecEcho(t *testing.T) {
	f, q := receiver(t, Config{Seed: 7, Planes: 2, Engine: func(c *metaroce.Config) { c.AckHold = 40 * mono.Microsecond }})
	f.wait(2 * second)
	f.seq[0] = 100
	f.deliver(f.write(q, 0, "A", 0, 7, bytesOf(1, 1)))
	f.seq[0] += 5 // a gap: the next news are told twice
	f.wait(100 * mono.Microsecond)

	p := f.write(q, 1, "", 0, 7, bytesOf(1, 1))
	p.TOS = pkt.CE
	ts, at := f.ts(), f.w.Now
	n := len(f.log)
	f.deliver(p)
	f.wait(50 * mono.Microsecond)
	older := f.write(q, 2, "A", 0, 7, bytesOf(1, 1))
	_ = older // lost
	f.wait(400 * mono.Microsecond)
	copies := 0
	for _, x := range of(f.log[n:], wire.OpAck) {
		for _, b := range x.Ack.Paths {
			copies++
			//= MR-REL-022
			if b.Echo != ts || b.Hold != uint32(x.At.Sub(at))>>4 {
				t.Errorf("%v after the packet: echo %d (want %d), hold %d", x.At.Sub(at), b.Echo, ts, b.Hold)
			}
			//= MR-REL-025
			if b.CE != 1 {
				t.Errorf("%d CE marks", b.CE)
			}
		}
	}
	//= MR-REL-023
	if copies < 2 {
		t.Errorf("the news were told %d times", copies)
	}
	// counts go on from where they were
	p = f.write(q, 3, "A", 0, 7, bytesOf(1, 1))
	p.TOS = pkt.CE
	a := of(f.deliver(p), wire.OpAck)[0].Ack
	//= MR-REL-025
	if a.Paths[0].CE != 2 || a.Planes[0].Bytes != 3*uint32(len(p.Data)) {
		t.Errorf("CE %d, bytes %d", a.Paths[0].CE, a.Planes[0].Bytes)
	}
	// the newest of a burst counts, although an older one comes behind it
	x := f.write(q, 4, "A", 0, 7, bytesOf(1, 1))
	f.w.Now = f.w.Now.Add(mono.Millisecond)
	y := f.write(q, 5, "A", 0, 7, bytesOf(1, 1))
	//= MR-REL-022
	if b := of(f.deliver(y, x), wire.OpAck)[0].Ack.Paths[0]; b.Echo != f.ts() || b.Hold != 0 {
		t.Errorf("echo %d, want %d", b.Echo, f.ts())
	}
}

// TestSpecPlaneBlocks: every plane that data came on is told its grant.
func TestSpecPlaneBlocks(t *testing.T) {
	f, q := receiver(t, Config{Seed: 8, Planes: 3})
	on := func(psn uint32, plane int, flags string) pkt.Packet {
		h := to(q, wire.OpWrite, psn, flags)
		h.Path, h.RKey = uint16(plane)<<8, 7
		return f.packet(h, nil)
	}
	xs := f.deliver(on(0, 2, ""), on(1, 0, ""), on(2, 2, ""), on(3, 0, "A"))
	got := map[uint8]uint32{}
	for _, x := range of(xs, wire.OpAck) {
		//= MR-CC-010
		if len(x.Ack.Planes) == 0 {
			t.Error("an ACK without a plane block")
		}
		for _, b := range x.Ack.Planes {
			got[b.Plane] = b.Grant
		}
	}
	//= MR-CC-010 MR-REL-026
	if len(got) != 2 || got[0] == 0 || got[2] == 0 {
		t.Errorf("grants %v", got)
	}
}

// TestSpecAckPlanes: under loss ACKs alternate between planes, but leave out one that the peer has left out for a while: who only
// receives would never hear that it carries nothing.
func TestSpecAckPlanes(t *testing.T) {
	f, q := receiver(t, Config{Seed: 8, Planes: 3})
	var early, late [3]int
	for psn := range uint32(200) {
		if psn == 2 {
			f.seq[0]++ // a gap
		}
		h := to(q, wire.OpWrite, psn, "A")
		h.Path, h.RKey = uint16(psn%2*2)<<8, 7
		for _, x := range of(f.deliver(f.packet(h, nil)), wire.OpAck) {
			if psn < 50 {
				early[x.Plane]++
			} else if psn >= 100 {
				late[x.Plane]++
			}
		}
	}
	//= MR-REL-024
	if early[1] < 10 {
		t.Errorf("at first: ACKs by plane %v", early)
	}
	//= MR-PATH-027
	if late[1] != 0 || late[0] < 50 || late[2] < 50 {
		t.Errorf("plane 1 was silent: ACKs by plane %v", late)
	}
}

// TestSpecLimits: when a receive limit is told, and to whom.
func TestSpecLimits(t *testing.T) {
	f, q := receiver(t, Config{Seed: 9})
	limits := func(xs []*sent) (out []uint32) {
		for _, x := range of(xs, wire.OpAck) {
			for _, b := range x.Ack.QPs {
				if b.QPN == peerQPN {
					out = append(out, b.Limit)
				}
			}
		}
		return out
	}
	//= MR-REL-027 MR-MSG-060
	q.Recv(0, 0, 100)
	if got := limits(f.collect()); len(got) == 0 || got[0] != 1 { // the peer knows of none
		t.Errorf("the first limit: %v", got)
	}
	for i := range uint64(40) {
		q.Recv(i+1, 0, 100)
	}
	f.wait(10 * mono.Millisecond)
	if got := limits(f.log); len(got) == 0 || got[len(got)-1] > 41 {
		t.Errorf("limits %v", got)
	}
	p := f.write(q, 0, "TA", 0, 7, nil)
	q.Recv(99, 0, 100)
	if got := limits(f.deliver(p)); len(got) == 0 || got[0] != 42 { // with the next ACK
		t.Errorf("after %d receives the limit is %v", 42, got)
	}
	for i := range uint32(42) { // used up
		f.deliver(f.send(q, 1+i, "TA", i, 0, nil))
	}
	q.Recv(100, 0, 100)
	if got := limits(f.collect()); len(got) == 0 || got[0] != 43 {
		t.Errorf("used up: %v", got)
	}
	// receives posted before the QP could receive count
	r := f.n.NewQP(QPOptions{})
	r.Recv(1, 0, 100)
	r.Recv(2, 0, 100)
	f.join(r, QPOptions{})
	if got := limits(f.collect()); len(got) == 0 || got[0] != 2 {
		t.Errorf("posted in INIT: %v", got)
	}
}

// TestSpecManyNews: what does not fit one ACK goes into further ones.
func TestSpecManyNews(t *testing.T) {
	f, q := receiver(t, Config{Seed: 10, Planes: 2, Engine: func(c *metaroce.Config) { c.Planes[0].PacketMax, c.Planes[1].PacketMax = 1300, 1300 }})
	var ps []pkt.Packet
	for i := range 100 {
		h := to(q, wire.OpSend, uint32(i), "TA")
		if i%2 == 0 {
			h.Op, h.RKey = wire.OpWrite, 7
		}
		h.Path = uint16(i%50 | i/50<<8)
		ps = append(ps, f.packet(h, nil))
	}
	xs := f.deliver(ps...)
	//= MR-REL-028 MR-MSG-091
	for i, p := range ps {
		f.want("one of many", xs, p, map[bool]string{true: "ack", false: "RNR"}[i%2 == 0])
	}
	if n := len(of(xs, wire.OpAck)); n < 2 {
		t.Errorf("%d ACKs", n)
	}
	for _, x := range xs {
		//= MR-ASC-050
		if len(x.Data) > 1300 {
			t.Errorf("an ACK of %d bytes", len(x.Data))
		}
	}
}

// TestSpecAllocation: what a peer names does not decide how much memory is taken.
func TestSpecAllocation(t *testing.T) {
	f, q := receiver(t, Config{Seed: 11, Planes: 2})
	q.Recv(1, 0, 100)
	var ps []pkt.Packet
	for i := range uint32(20) {
		huge := uint32(0xFFFFFFF0) + i
		for _, op := range []wire.Opcode{wire.OpWrite, wire.OpWriteImm, wire.OpSend, wire.OpRead, wire.OpReadResp} {
			h := to(q, op, 0x3FF0+i*4000, "TA") // ahead, behind, far away
			h.Len, h.Off, h.SSN, h.ReadNo, h.ReadOff, h.VA, h.RKey = huge, huge, huge/(i+1), huge, huge, 1<<63, huge
			h.Path = uint16(i * 13)
			ps = append(ps, f.packet(h, nil))
		}
		h := f.hello
		h.Stage, h.PathLimit, h.MaxHold, h.Tag = wire.HelloInit, 0xFFFF, huge, huge
		h.Planes[0].Grant, h.Planes[0].MTU = huge, 0xFFFF
		ps = append(ps, f.helloPacket(h, 0))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, p := range ps {
		f.n.E.HandlePackets(f.w.Now, []pkt.Packet{p})
	}
	runtime.ReadMemStats(&after)
	//= MR-GEN-002 MR-GEN-003
	if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

// TestSpecBadPackets: a packet that cannot be read is not answered and changes nothing.
func TestSpecBadPackets(t *testing.T) {
	f, q := receiver(t, Config{Seed: 12})
	q.Recv(1, 0, 100)
	f.wait(10 * mono.Millisecond)
	good := f.write(q, 0, "TA", 0, 7, bytesOf(1, 8))
	var bad []pkt.Packet
	spoil := func(change func(b []byte) []byte, seal bool) {
		p := again(good)
		p.Data = change(p.Data)
		if seal {
			wire.Seal(p.Data)
		}
		bad = append(bad, p)
	}
	for n := 0; n < len(good.Data); n += 3 {
		spoil(func(b []byte) []byte { return b[:n] }, false)
		spoil(func(b []byte) []byte { b[n] ^= 0x10; return b }, false)
	}
	spoil(func(b []byte) []byte { b[1] |= 1; return b }, true)                       // transport version
	spoil(func(b []byte) []byte { b[wire.BTHLen+7] ^= 0x30; return b }, true)        // version
	spoil(func(b []byte) []byte { b[0] = 0xCF; return b }, true)                     // opcode
	spoil(func(b []byte) []byte { b[0] = byte(wire.OpAck); return b }, true)         // no ACK
	spoil(func(b []byte) []byte { b[0] = byte(wire.OpProbe); return b[:40] }, false) // no PROBE
	for _, op := range []wire.Opcode{wire.OpAck, wire.OpProbe, wire.OpProbeAck, wire.OpHello, wire.OpStale} {
		bad = append(bad, f.packet(wire.Header{Op: op}, nil))
	}
	before := f.n.E.Assocs()
	xs := append(f.deliver(bad...), f.wait(mono.Millisecond)...)
	//= MR-WIRE-062 MR-GEN-002
	if len(xs) != 0 || f.n.Mem[0] != 0 {
		t.Errorf("answered %v", xs)
	}
	if after := f.n.E.Assocs(); len(after) != 1 || after[0].State != before[0].State || after[0].SRTT != before[0].SRTT {
		t.Errorf("%+v became %+v", before, after)
	}
	f.want("the good one", f.deliver(good), good, "ack")
}

// TestSpecManyRefusals: every refusal of a call is told, however many there are.
func TestSpecManyRefusals(t *testing.T) {
	f, q := receiver(t, Config{Seed: 13, Planes: 4})
	var ps []pkt.Packet
	for i := range 1000 {
		h := to(q, wire.OpSend, uint32(i), "T")
		h.Path, h.SSN = uint16(i%4)<<8, uint32(i)
		ps = append(ps, f.packet(h, nil))
	}
	xs := f.deliver(ps...)
	told := map[[2]uint32]bool{}
	for _, x := range xs {
		for _, r := range x.Ack.Refusals {
			told[[2]uint32{uint32(r.Path), r.Seq}] = true
		}
	}
	//= MR-MSG-091 MR-REL-028
	if len(told) != len(ps) {
		t.Errorf("%d of %d refusals were told", len(told), len(ps))
	}
}
