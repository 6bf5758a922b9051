package transporttest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// traceMTU is the MTU of the trace's QP.
const traceMTU = 1024

// traceWRs are requests of every kind, at the sizes where packets are cut.
func traceWRs() (wrs []WR) {
	add := func(op transport.Op, n uint32, flags uint16) {
		wrs = append(wrs, WR{ID: uint64(len(wrs)), Op: op, Local: 1 << 20, Remote: 4096 + 64*uint64(len(wrs)), N: n, Key: 7,
			Flags: flags, Imm: 0x01020304 + uint32(len(wrs))})
	}
	for _, n := range []uint32{0, 1, 63, 1024, 1025, 1087, 1088, 2048 + 10, 5000} {
		add(transport.OpWrite, n, transport.FlagSolicited)
	}
	for _, op := range []transport.Op{transport.OpSend, transport.OpSendImm, transport.OpSendInv, transport.OpWriteImm} {
		add(op, 0, 0)
		add(op, 1030, transport.FlagSolicited)
		add(op, 3000, 0)
	}
	add(transport.OpRead, 3000, 0)
	add(transport.OpFetchAdd, 8, 0)
	add(transport.OpCmpSwap, 8, 0)
	add(transport.OpRead, 0, 0)
	add(transport.OpWrite, 2000, 0)
	add(transport.OpSend, 100, transport.FlagSolicited)
	return wrs
}

// traced is a run with requests of every kind over two planes that lose every ninth packet of data.
func traced(t *testing.T, seed uint64) (*script, *QP, *QP) {
	s := newScript(t, Config{Seed: seed, Planes: 2})
	o := QPOptions{MTU: traceMTU, SQPSN: 0xFFFFF0, Rd: 4}
	p, q := s.w.Connect(s.node(0), s.node(1), o)
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	n := 0
	s.fate = func(x *sent) mono.Duration {
		if n++; x.Op.IsData() && n%9 == 0 {
			return lost
		}
		return 0
	}
	wrs := traceWRs()
	for i, wr := range wrs {
		q.Recv(uint64(i), 2<<20, 4000)
		p.Send(wr)
	}
	s.done(p, len(wrs))
	s.run(10 * mono.Millisecond)
	for i, c := range p.Sends {
		if c.Status != transport.OK || c.ID != uint64(i) {
			t.Fatalf("completion %d: %+v", i, c)
		}
	}
	return s, p, q
}

// cutsOf says where the packets of a message begin, and where it ends, as spec/06-messages.md has it.
func cutsOf(wr WR) []uint32 {
	cuts := []uint32{0}
	if wr.Op.HasResponse() {
		return append(cuts, wr.N)
	}
	for at := uint32(traceMTU); at < wr.N; at += traceMTU {
		cuts = append(cuts, at)
	}
	if last := len(cuts) - 1; last > 0 && wr.Op.IsWrite() && wr.N-cuts[last] < 64 {
		cuts[last] = wr.N - 64
	}
	return append(cuts, wr.N)
}

// TestSpecRequests compares every packet of the requester with what the spec says of its headers.
func TestSpecRequests(t *testing.T) {
	s, p, q := traced(t, 1)
	first := map[serial.PSN]*sent{}
	for _, x := range s.log {
		if x.Op.IsRequest() && x.DestQP == q.Number() && first[x.PSN] == nil {
			first[x.PSN] = x
		}
	}
	//= MR-REL-053 MR-MSG-010 MR-MSG-011 MR-MSG-012 MR-WIRE-012 MR-WIRE-030 MR-WIRE-031 MR-WIRE-032 MR-WIRE-040 MR-WIRE-041
	psn, ssn := uint32(0xFFFFF0), uint32(0)
	ops := map[transport.Op][2]wire.Opcode{ // of the tail, of the packets before it
		transport.OpWrite: {wire.OpWrite, wire.OpWrite}, transport.OpWriteImm: {wire.OpWriteImm, wire.OpWrite},
		transport.OpSend: {wire.OpSend, wire.OpSend}, transport.OpSendImm: {wire.OpSendImm, wire.OpSend},
		transport.OpSendInv: {wire.OpSendInv, wire.OpSend}, transport.OpRead: {wire.OpRead}, transport.OpFetchAdd: {wire.OpFetchAdd},
		transport.OpCmpSwap: {wire.OpCmpSwap},
	}
	for i, wr := range traceWRs() {
		cuts := cutsOf(wr)
		for k := range len(cuts) - 1 {
			x := first[serialPSN(psn)]
			psn++
			if x == nil {
				t.Fatalf("request %d %v: packet %d was never sent", i, wr.Op, k)
			}
			tail := k == len(cuts)-2
			want := wire.Header{Op: ops[wr.Op][1], Flags: 0, SE: false}
			if tail {
				want.Op, want.Flags = ops[wr.Op][0], wire.FlagTail
				want.SE = wr.Flags&transport.FlagSolicited != 0 && wr.Op.TakesRecv()
			}
			size := int(cuts[k+1] - cuts[k])
			if wr.Op.HasResponse() {
				size = 0
			}
			if x.Op != want.Op || x.Flags&wire.FlagTail != want.Flags || x.SE != want.SE || len(x.Payload) != size {
				t.Errorf("request %d %v of %d: packet %d is %v %v SE %v with %d bytes", i, wr.Op, wr.N, k, x.Op, x.Flags, x.SE, len(x.Payload))
			}
			if wr.Op.IsWrite() && (x.VA != wr.Remote+uint64(cuts[k]) || x.Len != wr.N-cuts[k]) {
				t.Errorf("request %d: VA %#x Len %d", i, x.VA, x.Len)
			}
			if (wr.Op.IsSend() || x.Op == wire.OpWriteImm) && (x.Off != cuts[k] || x.SSN != ssn) {
				t.Errorf("request %d: Off %d SSN %d, want %d %d", i, x.Off, x.SSN, cuts[k], ssn)
			}
			if !tail && !wr.Op.HasResponse() && !(wr.Op.IsWrite() && k == len(cuts)-3) && size != traceMTU {
				t.Errorf("request %d: a packet before the tail has %d bytes", i, size)
			}
		}
		if wr.Op.TakesRecv() {
			ssn++
		}
	}
	if len(first) != int(psn-0xFFFFF0) {
		t.Errorf("%d PSNs were used for %d packets", len(first), psn-0xFFFFF0)
	}
	//= MR-REL-049
	if x := first[serialPSN(psn-1)]; x.Flags&wire.FlagAckReq == 0 {
		t.Errorf("the last packet asks for no acknowledgement: %v", x.Flags)
	}
	_ = p
}

// TestSpecResponses: responses count from 0 without gaps, in the order of execution (an atomic does not wait for an
// earlier READ), and say where they belong.
func TestSpecResponses(t *testing.T) {
	s, p, _ := traced(t, 2)
	//= MR-MSG-070 MR-REL-053 MR-WIRE-031 MR-WIRE-032 MR-MSG-011
	type resp struct {
		no, off uint32
		n       int
		tail    bool
	}
	reads := []resp{{0, 0, 1024, false}, {0, 1024, 1024, false}, {0, 2048, 952, true}, {3, 0, 0, true}}
	atomics := []resp{{1, 0, 0, true}, {2, 0, 0, true}}
	byPSN := map[serial.PSN]*sent{}
	for _, x := range s.log {
		if x.Op.IsResponse() && x.DestQP == p.Number() && byPSN[x.PSN] == nil {
			byPSN[x.PSN] = x
		}
	}
	for psn := range serial.PSN(len(reads) + len(atomics)) {
		x := byPSN[psn]
		if x == nil {
			t.Fatalf("response %d was never sent; there are %d", psn, len(byPSN))
		}
		want := &reads
		if x.Op == wire.OpAtomicResp {
			want = &atomics
		}
		if got := (resp{x.ReadNo, x.ReadOff, len(x.Payload), x.Flags&wire.FlagTail != 0}); len(*want) == 0 || got != (*want)[0] {
			t.Fatalf("response %d: %+v, want %+v", psn, got, *want)
		}
		*want = (*want)[1:]
	}
	if len(byPSN) != 6 {
		t.Errorf("%d response packets", len(byPSN))
	}
}

// TestSpecHeaders looks at what all packets have in common.
func TestSpecHeaders(t *testing.T) {
	s, _, _ := traced(t, 3)
	asked := [2]uint32{} // the tag that each node wants to see
	for _, x := range of(s.log, wire.OpHello) {
		if x.Hello.Tag != 0 {
			asked[x.From] = x.Hello.Tag
		}
	}
	ports := map[[2]int]uint16{}
	distinct := map[uint16]bool{}
	last := [2]uint32{}
	ops := map[wire.Opcode]int{}
	for _, x := range s.log {
		ops[x.Op]++
		//= MR-WIRE-011 MR-WIRE-021 MR-REL-003 MR-ASC-001
		if !x.Op.IsData() && (x.DestQP != 0 || x.PSN != 0 || x.Seq != 0) {
			t.Errorf("%v with QP %#x, sequence %d", x, x.DestQP, x.Seq)
		}
		//= MR-WIRE-020
		if int(x.Header.Path>>8) != int(x.Plane) {
			t.Errorf("%v on plane %d", x, x.Plane)
		}
		//= MR-WIRE-022
		if x.TS != uint32(uint64(x.At)>>4) || int32(x.TS-last[x.From]) < 0 {
			t.Errorf("%v: time stamp %d at %d ns, after %d", x, x.TS, x.At, last[x.From])
		}
		last[x.From] = x.TS
		//= MR-WIRE-002
		if x.Op.IsData() {
			k := [2]int{x.From, int(x.Header.Path)}
			if ports[k] != 0 && ports[k] != x.SrcPort {
				t.Errorf("%v: source port %d, was %d", x, x.SrcPort, ports[k])
			}
			ports[k] = x.SrcPort
			distinct[x.SrcPort] = true
		}
		//= MR-WIRE-005
		if x.TOS&pkt.ECNMask != pkt.ECT0 {
			t.Errorf("%v: TOS %#x", x, x.TOS)
		}
		//= MR-ASC-022 MR-ASC-031
		if x.Op != wire.OpHello && (x.Version != 1 || x.Tag != asked[1-x.From]) {
			t.Errorf("%v: version %d tag %#x, asked for %#x", x, x.Version, x.Tag, asked[1-x.From])
		}
		//= MR-WIRE-034
		if x.Op > wire.OpStale || x.Op > wire.OpAtomicResp && x.Op < wire.OpAck {
			t.Errorf("opcode %v", x.Op)
		}
	}
	if len(distinct) < len(ports)*9/10 {
		t.Errorf("%d paths share %d entropies", len(ports), len(distinct))
	}
	if len(ops) < 12 {
		t.Errorf("only %v were used", ops)
	}
}

// TestSpecTransmissions: every transmission has a number of its own, and what is sent again is the same packet.
func TestSpecTransmissions(t *testing.T) {
	s, _, _ := traced(t, 4)
	next := map[[2]int]uint32{}
	first := map[[3]uint32]*sent{}
	again := 0
	for _, x := range data(s.log) {
		//= MR-REL-001 MR-REL-002
		k := [2]int{x.From, int(x.Header.Path)}
		if n, ok := next[k]; ok && x.Seq-n > 1 { // one may be skipped on purpose
			t.Errorf("%v: sequence %d after %d", x, x.Seq, n-1)
		}
		next[k] = x.Seq + 1
		id := [3]uint32{x.DestQP, uint32(x.PSN), 0}
		if x.Op.IsResponse() {
			id[2] = 1
		}
		f := first[id]
		if f == nil {
			first[id] = x
			//= MR-REL-048
			if x.Flags&(wire.FlagRetransmit|wire.FlagCopy) != 0 {
				t.Errorf("%v is new and has flags %v", x, x.Flags)
			}
			continue
		}
		again++
		//= MR-REL-048
		if x.Flags&wire.FlagRetransmit == 0 {
			t.Errorf("%v: no retransmission flag", x)
		}
		//= MR-REL-047
		const ext = wire.BTHLen + wire.MPHLen
		if x.Op != f.Op || x.SE != f.SE || !bytes.Equal(x.Data[ext:len(x.Data)-wire.ICRCLen], f.Data[ext:len(f.Data)-wire.ICRCLen]) {
			t.Errorf("%v differs from %v", x, f)
		}
	}
	if again < 5 {
		t.Fatalf("only %d retransmissions", again)
	}
	//= MR-REL-002
	other, _, _ := traced(t, 5)
	for _, y := range data(other.log) {
		if i := slices.IndexFunc(data(s.log), func(x *sent) bool { return x.From == y.From && x.Header.Path == y.Header.Path && x.Seq == y.Seq }); i >= 0 {
			t.Fatalf("path %#x begins with the same numbers whatever the seed", y.Header.Path)
		}
	}
}

// TestSpecTolerance: unknown flags and any source port change nothing for the receiver.
func TestSpecTolerance(t *testing.T) {
	s := newScript(t, Config{Seed: 6, Planes: 2})
	p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: traceMTU})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	port := uint16(0)
	s.fate = func(x *sent) mono.Duration {
		//= MR-WIRE-003 MR-WIRE-023
		port += 977
		x.SrcPort = port
		x.Flags |= 0xE0
		x.Put(x.Data)
		wire.Seal(x.Data)
		return 0
	}
	for i, wr := range traceWRs() {
		q.Recv(uint64(i), 2<<20, 4000)
		p.Send(wr)
	}
	s.done(p, len(traceWRs()))
	if c := p.Sends[len(p.Sends)-1]; c.Status != transport.OK || s.node(0).E.C.Retransmits+s.node(1).E.C.Retransmits != 0 {
		t.Errorf("%+v, %d and %d retransmissions", c, s.node(0).E.C.Retransmits, s.node(1).E.C.Retransmits)
	}
}
