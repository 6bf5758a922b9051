package transporttest

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// The tests in spec_*_test.go prove single requirements of spec/. They come in two styles:
//   - script: two nodes, a test that sees every packet sent and decides its fate;
//   - forge: one node, and a peer whose every packet the test writes by hand.

// sent is a packet as tests see it. The headers' fields stand beside those of the packet.
type sent struct {
	pkt.Packet
	wire.Header
	Payload []byte
	From    int
	At      mono.Time
	Hello   wire.Hello
	Probe   wire.Probe
	Ack     acked
}

// acked is the content of an ACK.
type acked struct {
	Paths    []wire.PathBlock
	Planes   []wire.PlaneBlock
	QPs      []wire.QPBlock
	Refusals []wire.RefusalBlock
	Trims    []wire.TrimBlock
}

// read decodes a packet that an engine sent; engines must not send what cannot be decoded.
func read(t *testing.T, p *pkt.Packet, from int, at mono.Time) *sent {
	t.Helper()
	x := &sent{Packet: *p, From: from, At: at}
	x.Data = slices.Clone(p.Data)
	payload, d := wire.Decode(x.Data, &x.Header)
	if d == wire.Accepted {
		x.Payload = payload
		switch x.Op {
		case wire.OpHello:
			d = wire.DecodeHello(payload, &x.Hello)
		case wire.OpProbe, wire.OpProbeAck:
			d = wire.DecodeProbe(payload, &x.Probe)
		case wire.OpAck:
			d = x.Ack.read(payload)
		default:
		}
	}
	if d != wire.Accepted {
		t.Fatalf("the engine sent a bad packet: %v, %x", d, x.Data)
	}
	return x
}

func (a *acked) read(payload []byte) wire.Drop {
	var r wire.AckReader
	if d := r.Init(payload); d != wire.Accepted {
		return d
	}
	for b, ok := r.Next(); ok; b, ok = r.Next() {
		switch b {
		case wire.BlockPath:
			a.Paths = append(a.Paths, wire.PathBlock{})
			r.Path(&a.Paths[len(a.Paths)-1])
		case wire.BlockPlane:
			a.Planes = append(a.Planes, wire.PlaneBlock{})
			r.Plane(&a.Planes[len(a.Planes)-1])
		case wire.BlockQP:
			a.QPs = append(a.QPs, wire.QPBlock{})
			r.QP(&a.QPs[len(a.QPs)-1])
		case wire.BlockRefusal:
			a.Refusals = append(a.Refusals, wire.RefusalBlock{})
			r.Refusal(&a.Refusals[len(a.Refusals)-1])
		case wire.BlockTrim:
			a.Trims = append(a.Trims, wire.TrimBlock{})
			r.Trim(&a.Trims[len(a.Trims)-1])
		}
	}
	return wire.Accepted
}

// names reports whether a path block says that a sequence arrived.
func names(b *wire.PathBlock, seq uint32) bool {
	d := b.Highest - seq
	return d == 0 || d-1 < wire.BitmapBits && b.Bitmap[(d-1)/64]>>((d-1)%64)&1 != 0
}

// of picks packets by opcode.
func of(xs []*sent, ops ...wire.Opcode) (out []*sent) {
	for _, x := range xs {
		if slices.Contains(ops, x.Op) {
			out = append(out, x)
		}
	}
	return out
}

// data picks the packets that take a path sequence.
func data(xs []*sent) (out []*sent) {
	for _, x := range xs {
		if x.Op.IsData() {
			out = append(out, x)
		}
	}
	return out
}

// drain lets an engine send what it has.
func drain(t *testing.T, n *Node) (out []*sent) {
	t.Helper()
	for range 1000 {
		n.batch.Reset()
		n.E.Transmit(n.W.Now, n.batch)
		if n.batch.N == 0 {
			return out
		}
		for i := range n.batch.N {
			out = append(out, read(t, &n.batch.Pkts[i], n.I, n.W.Now))
		}
	}
	t.Fatal("the engine never stops sending")
	return nil
}

// script is a network without rates: every packet takes the same time, unless the test says otherwise.
type script struct {
	*testing.T
	w     *World
	delay mono.Duration
	log   []*sent                     // everything that was sent
	fate  func(x *sent) mono.Duration // extra delay, or lost; the packet may be changed
	line  []*flight
}

type flight struct {
	x  *sent
	at mono.Time
}

const lost = mono.Duration(-1)

func newScript(t *testing.T, c Config) *script {
	c.Link = usual()
	return &script{T: t, w: New(c), delay: 5 * mono.Microsecond}
}

func (s *script) node(i int) *Node { return s.w.Nodes[i] }

// step delivers what is due, in bursts, and lets everybody send.
func (s *script) step() {
	w := s.w
	for _, n := range w.Nodes {
		var rx []pkt.Packet
		s.line = slices.DeleteFunc(s.line, func(f *flight) bool {
			if f.at > w.Now || f.x.Dst != n.Addr {
				return false
			}
			f.x.Packet.Time = w.Now
			rx = append(rx, f.x.Packet)
			return true
		})
		for len(rx) > 0 {
			k := min(len(rx), pkt.Burst)
			n.E.HandlePackets(w.Now, rx[:k])
			rx = rx[k:]
		}
		n.E.HandleTimers(w.Now)
		for _, x := range drain(s.T, n) {
			s.log = append(s.log, x)
			extra := mono.Duration(0)
			if s.fate != nil {
				extra = s.fate(x)
			}
			if extra != lost {
				s.line = append(s.line, &flight{x, w.Now.Add(s.delay + extra)})
			}
		}
	}
	slices.SortStableFunc(s.line, func(a, b *flight) int { return int(a.at - b.at) })
}

// until goes on until done, at most for a span; it reports whether it got there.
func (s *script) until(limit mono.Duration, done func() bool) bool {
	for end := s.w.Now.Add(limit); ; {
		s.step()
		if done() {
			return true
		}
		if s.w.Now >= end {
			return false
		}
		next := mono.Min(end, s.w.Now.Add(mono.Millisecond))
		for _, n := range s.w.Nodes {
			next = mono.Min(next, n.E.NextTimeout())
		}
		if len(s.line) > 0 {
			next = mono.Min(next, s.line[0].at)
		}
		s.w.Now = max(next, s.w.Now+1)
	}
}

func (s *script) run(d mono.Duration) { s.until(d, func() bool { return false }) }

// done waits for n send completions.
func (s *script) done(q *QP, n int) {
	s.Helper()
	if !s.until(2*second, func() bool { return len(q.Sends) >= n }) {
		s.Fatalf("stuck at %d of %d completions: %s\n%s", len(q.Sends), n, q.Dump(), q.Peer.Dump())
	}
}

// forge is a node and a peer that exists only in the test's hands.
type forge struct {
	*testing.T
	w     *World
	n     *Node
	addr  netip.Addr
	hello wire.Hello // what the peer says of itself
	tag   uint32     // what the node wants to see
	seq   map[uint16]uint32
	log   []*sent
}

const (
	peerQPN = 0x77
	peerTag = 0xABCD1234
)

// newForge makes a node with an association that the peer has opened.
func newForge(t *testing.T, c Config) *forge {
	t.Helper()
	f := newStranger(t, c)
	f.meet()
	return f
}

// newStranger makes a node that does not know the peer yet.
func newStranger(t *testing.T, c Config) *forge {
	c.Nodes, c.Link = 1, usual()
	w := New(c)
	f := &forge{T: t, w: w, n: w.Nodes[0], addr: netip.MustParseAddr("10.0.9.9"), seq: map[uint16]uint32{}}
	f.hello = wire.Hello{VersionMin: 1, VersionMax: 1, NICID: 0x1111, Instance: 0x2222, Tag: peerTag, PathLimit: 64, MaxHold: 625}
	for i := range max(1, c.Planes) {
		f.hello.Planes[i] = wire.HelloPlane{Plane: uint8(i), MTU: PacketMax, Grant: 256 << 10}
		f.hello.NumPlanes++
	}
	return f
}

// meet goes through the handshake as the one who opens.
func (f *forge) meet() *sent {
	f.Helper()
	c := of(f.say(wire.HelloInit, 0), wire.OpHello)
	if len(c) != 1 || c[0].Hello.Stage != wire.HelloCookie {
		f.Fatalf("INIT is answered by %v", c)
	}
	f.hello.Cookie = c[0].Hello.Cookie
	a := of(f.say(wire.HelloConfirm, 0), wire.OpHello)
	if len(a) != 1 || a[0].Hello.Stage != wire.HelloAccept {
		f.Fatalf("CONFIRM is answered by %v", a)
	}
	f.tag = a[0].Hello.Tag
	return a[0]
}

// helloPacket is a HELLO of the peer.
func (f *forge) helloPacket(h wire.Hello, plane int) pkt.Packet {
	b := make([]byte, wire.HelloLen)
	return f.packet(wire.Header{Op: wire.OpHello, Path: uint16(plane) << 8}, b[:h.Put(b)])
}

// say sends a HELLO with what the peer is and returns what the node answers.
func (f *forge) say(stage wire.HelloStage, plane int) []*sent {
	h := f.hello
	h.Stage = stage
	return f.deliver(f.helloPacket(h, plane))
}

// qp makes a QP of the node that is connected to the peer's QP.
func (f *forge) qp(o QPOptions) *QP {
	o.defaults()
	q := f.n.NewQP(o)
	f.join(q, o)
	return q
}

func (f *forge) join(q *QP, o QPOptions) {
	o.defaults()
	q.ToRTR(f.w.Now, metaroce.RTRAttr{Local: f.n.Addr, Remote: f.addr, RemoteQPN: peerQPN, RQPSN: o.SQPSN, PathMTU: o.MTU,
		MaxDestRdAtomic: o.Rd, MinRNRTimer: o.MinRNR})
	q.ToRTS(f.w.Now, metaroce.RTSAttr{SQPSN: o.SQPSN, Timeout: o.Timeout, RetryCnt: o.Retry, RNRRetry: o.RNRRetry, MaxRdAtomic: o.Rd})
}

// ts is the peer's clock: it runs as the node's, from another start.
func (f *forge) ts() uint32 { return uint32(uint64(f.w.Now)>>4) + 0x0F000000 }

// packet seals what the peer sends. Tag, time and path sequence are filled in where they are 0.
func (f *forge) packet(h wire.Header, payload []byte) pkt.Packet {
	if h.Tag == 0 && h.Op != wire.OpHello {
		h.Tag = f.tag
	}
	if h.TS == 0 {
		h.TS = f.ts()
	}
	if h.Seq == 0 && h.Op.IsData() {
		if f.seq[h.Path] == 0 {
			f.seq[h.Path] = 1000
		}
		f.seq[h.Path]++
		h.Seq = f.seq[h.Path]
	}
	pad := h.PadFor(len(payload))
	b := make([]byte, h.Size()+len(payload)+pad+wire.ICRCLen)
	h.Put(b)
	copy(b[h.Size():], payload)
	wire.Seal(b)
	return pkt.Packet{Data: b, Src: f.addr, Dst: f.n.Addr, SrcPort: 0xC001, TOS: pkt.ECT0, Plane: uint8(h.Path >> 8), Time: f.w.Now}
}

// deliver hands packets to the node in one burst and returns what it sends at once.
func (f *forge) deliver(ps ...pkt.Packet) []*sent {
	f.Helper()
	f.n.E.HandlePackets(f.w.Now, ps)
	return f.collect()
}

func (f *forge) collect() []*sent {
	f.Helper()
	f.n.E.HandleTimers(f.w.Now)
	out := drain(f.T, f.n)
	f.log = append(f.log, out...)
	return out
}

// wait lets time pass and returns what the node sends meanwhile.
func (f *forge) wait(d mono.Duration) (out []*sent) {
	f.Helper()
	for end := f.w.Now.Add(d); ; {
		out = append(out, f.collect()...)
		if f.w.Now >= end {
			return out
		}
		f.w.Now = mono.Min(end, max(f.n.E.NextTimeout(), f.w.Now+1))
	}
}

// ack seals an ACK of the peer.
func (f *forge) ack(a acked) pkt.Packet {
	b := make([]byte, 4000)
	var w wire.AckWriter
	w.Init(b)
	for i := range a.Refusals {
		w.Refusal(&a.Refusals[i])
	}
	for i := range a.Trims {
		w.Trim(&a.Trims[i])
	}
	for i := range a.Planes {
		w.Plane(&a.Planes[i])
	}
	for i := range a.QPs {
		w.QP(&a.QPs[i])
	}
	for i := range a.Paths {
		w.Path(&a.Paths[i])
	}
	return f.packet(wire.Header{Op: wire.OpAck}, b[:w.Finish()])
}

// acks acknowledges packets of the node, all of them in blocks of their own.
func (f *forge) acks(xs ...*sent) pkt.Packet {
	var a acked
	for _, x := range xs {
		a.Paths = append(a.Paths, wire.PathBlock{Path: x.Path, Highest: x.Seq, Echo: x.TS})
	}
	return f.ack(a)
}

// refuses is a refusal of a packet of the node, for the requester's QP q.
func refuses(x *sent, q *QP, code wire.RefusalCode) wire.RefusalBlock {
	return wire.RefusalBlock{Path: x.Path, Seq: x.Seq, QPN: q.Number(), PSN: x.PSN, Code: code, InOrder: true}
}

// answer says what the node told the peer about one of its packets: "", "ack", or the refusal's name.
func answer(xs []*sent, p pkt.Packet) string {
	var h wire.Header
	wire.Decode(p.Data, &h)
	for _, x := range xs {
		for i := range x.Ack.Refusals {
			if r := &x.Ack.Refusals[i]; r.Path == h.Path && r.Seq == h.Seq {
				return r.Code.String()
			}
		}
		for i := range x.Ack.Paths {
			if b := &x.Ack.Paths[i]; b.Path == h.Path && names(b, h.Seq) {
				return "ack"
			}
		}
	}
	return ""
}

// want compares the answer to a packet.
func (f *forge) want(what string, xs []*sent, p pkt.Packet, want string) {
	f.Helper()
	if got := answer(xs, p); got != want {
		f.Errorf("%s: answered %q, want %q", what, got, want)
	}
}

// to makes the header of a request packet to a QP. flags: T tail, A ack-requested, P atomic-pending.
func to(q *QP, op wire.Opcode, psn uint32, flags string) wire.Header {
	h := wire.Header{Op: op, DestQP: q.Number(), PSN: serialPSN(psn)}
	for _, c := range flags {
		h.Flags |= map[rune]wire.Flags{'T': wire.FlagTail, 'A': wire.FlagAckReq, 'P': wire.FlagAtomicPending}[c]
	}
	return h
}

// write is a WRITE packet; the tail flag says whether more of the message follows.
func (f *forge) write(q *QP, psn uint32, flags string, addr uint64, key uint32, b []byte) pkt.Packet {
	h := to(q, wire.OpWrite, psn, flags)
	h.VA, h.RKey, h.Len = addr, key, uint32(len(b))
	if h.Flags&wire.FlagTail == 0 {
		h.Len += 100
	}
	return f.packet(h, b)
}

// send is a SEND packet.
func (f *forge) send(q *QP, psn uint32, flags string, ssn, off uint32, b []byte) pkt.Packet {
	h := to(q, wire.OpSend, psn, flags)
	h.SSN, h.Off = ssn, off
	return f.packet(h, b)
}

// read is a READ, atomic a FETCH_ADD.
func (f *forge) read(q *QP, psn uint32, addr uint64, key, n uint32) pkt.Packet {
	h := to(q, wire.OpRead, psn, "TA")
	h.VA, h.RKey, h.Len = addr, key, n
	return f.packet(h, nil)
}

func (f *forge) atomic(q *QP, psn uint32, addr uint64, key uint32, add uint64) pkt.Packet {
	h := to(q, wire.OpFetchAdd, psn, "TA")
	h.VA, h.RKey, h.Swap = addr, key, add
	return f.packet(h, nil)
}

// bytesOf makes n bytes of one value.
func bytesOf(v byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = v
	}
	return b
}

func (x *sent) String() string {
	return fmt.Sprintf("%v psn %d path %#x seq %d at %d", x.Op, x.PSN, x.Path, x.Seq, x.At)
}

func serialPSN(n uint32) serial.PSN { return serial.PSN(n & serial.PSNMask) }
