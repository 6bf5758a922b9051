package transporttest

import (
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// meddler lives between two nodes, sees everything, and injects what its bytes tell it to: packets made up, or seen
// before and changed, always with the right tag and checksum.
type meddler struct {
	*script
	in  []byte
	a   [2]*QP // connected to each other
	tag [2]uint32
	was [2][]*sent // what each node has sent, the newest last
}

func (m *meddler) byte() (v byte) {
	if len(m.in) > 0 {
		v, m.in = m.in[0], m.in[1:]
	}
	return v
}

func (m *meddler) u32() uint32 {
	return uint32(m.byte())<<24 | uint32(m.byte())<<16 | uint32(m.byte())<<8 | uint32(m.byte())
}

func (m *meddler) take(n int) []byte {
	b := make([]byte, n)
	m.in = m.in[copy(b, m.in):]
	return b
}

func newMeddler(t *testing.T, in []byte) *meddler {
	m := &meddler{script: newScript(t, Config{Seed: 1, Planes: 2, Memory: 1 << 18, Engine: func(c *metaroce.Config) {
		c.HeldBuffers, c.RespBuffers, c.TxRecords = 8, 16, 512
	}}), in: in}
	m.fate = func(x *sent) mono.Duration {
		if x.Op != wire.OpHello {
			m.tag[1-x.From] = x.Tag
		}
		m.was[x.From] = append(m.was[x.From], x)
		m.log = m.log[:0]
		return 0
	}
	p, q := m.w.Connect(m.node(0), m.node(1), QPOptions{MTU: 1024, SQ: 64})
	m.a = [2]*QP{p, q}
	for i, x := range m.a {
		m.node(i).Keys[7] = Key{0, 1 << 17, true, true, true, false}
		for k := range uint64(8) {
			x.Recv(k, 1<<17, 3000)
		}
		x.Send(WR{Op: transport.OpSend, N: 10})
	}
	m.until(mono.Millisecond, func() bool { return len(p.Sends) > 0 && len(q.Sends) > 0 })
	return m
}

// work posts a mixture of everything at both ends.
func (m *meddler) work() {
	for _, x := range m.a {
		if x.State() != metaroce.StateRTS {
			continue
		}
		for k := range uint64(4) {
			x.Recv(100+k, 1<<17, 3000)
		}
		x.Send(WR{Op: transport.OpWrite, N: 5000, Key: 7})
		x.Send(WR{Op: transport.OpFetchAdd, N: 8, Remote: 64, Key: 7})
		x.Send(WR{Op: transport.OpSend, N: 2500})
		x.Send(WR{Op: transport.OpRead, N: 5000, Key: 7})
		x.Send(WR{Op: transport.OpWriteImm, N: 1200, Key: 7})
		x.Send(WR{Op: transport.OpSendInv, N: 8, Imm: 9})
	}
}

// inject hands a packet to a node as if the other one had sent it.
func (m *meddler) inject(to int, plane uint8, b []byte) {
	n := m.node(to)
	p := pkt.Packet{Data: b, Src: m.node(1 - to).Addr, Dst: n.Addr, Plane: plane, TOS: pkt.ECT0, Time: m.w.Now}
	n.E.HandlePackets(m.w.Now, []pkt.Packet{p})
}

var madeOps = []wire.Opcode{wire.OpWrite, wire.OpWriteImm, wire.OpSend, wire.OpSendImm, wire.OpSendInv, wire.OpRead, wire.OpCmpSwap,
	wire.OpFetchAdd, wire.OpReadResp, wire.OpAtomicResp, wire.OpAck, wire.OpHello, wire.OpProbe, wire.OpProbeAck, wire.OpStale, wire.OpEthernet}

// made builds a packet whose fields are near what is right.
func (m *meddler) made(to int) []byte {
	var last wire.Header
	if xs := m.was[1-to]; len(xs) > 0 {
		last = xs[len(xs)-1-int(m.byte())%len(xs)].Header
	}
	near := func(v uint32) uint32 {
		switch d := m.byte(); {
		case d < 200:
			return v + uint32(int8(d))%16
		case d < 230:
			return v + uint32(int8(m.byte()))<<(d%24)
		default:
			return m.u32()
		}
	}
	h := wire.Header{Op: madeOps[int(m.byte())%len(madeOps)], DestQP: m.a[to].Number(), PSN: serial.PSN(near(uint32(last.PSN)) & serial.PSNMask),
		Tag: m.tag[to], Path: last.Path ^ uint16(m.byte()&3), Flags: wire.Flags(m.byte()), Seq: near(last.Seq), TS: last.TS,
		VA: uint64(near(1000)), RKey: 7 + uint32(m.byte()>>7), SSN: near(last.SSN), Off: near(last.Off),
		ReadNo: near(last.ReadNo), ReadOff: near(last.ReadOff), Imm: 5, Inv: near(9), Swap: 1}
	if m.byte() == 255 {
		h.TS = m.u32()
	}
	n := int(m.byte()) * 5
	h.Len = near(uint32(n))
	payload := make([]byte, n)
	switch h.Op {
	case wire.OpAck:
		payload = m.madeAck(to)
	case wire.OpProbe, wire.OpProbeAck:
		pr := wire.Probe{Kind: wire.ProbeKind(m.byte() % 4), Plane: m.byte() % 3, ID: near(1), QPN: m.a[to].Number(), PeerQPN: m.a[1-to].Number(),
			ReadNo: near(0), PSN: near(uint32(last.PSN)), Answer: wire.Answer(m.byte() % 6), Code: wire.RefusalCode(m.byte())}
		payload = make([]byte, wire.ProbeLen)
		wire.PutProbe(payload, &pr, wire.ProbeLen)
	case wire.OpHello, wire.OpStale, wire.OpEthernet:
		payload = m.take(int(m.byte()))
	case wire.OpRead, wire.OpCmpSwap, wire.OpFetchAdd, wire.OpAtomicResp:
		payload = nil
	default:
	}
	pad := h.PadFor(len(payload))
	b := make([]byte, h.Size()+len(payload)+pad+wire.ICRCLen)
	h.Put(b)
	copy(b[h.Size():], payload)
	return b
}

// madeAck reports, limits and refuses what the receiver of it has sent.
func (m *meddler) madeAck(to int) []byte {
	b := make([]byte, 1000)
	var w wire.AckWriter
	w.Init(b)
	xs := m.was[to]
	for range m.byte() % 6 {
		var h wire.Header
		if len(xs) > 0 {
			h = xs[len(xs)-1-int(m.byte())%len(xs)].Header
		}
		switch m.byte() % 4 {
		case 0:
			w.Path(&wire.PathBlock{Path: h.Path, Highest: h.Seq + uint32(int8(m.byte()))/32, Echo: h.TS + uint32(m.byte()), Hold: uint32(m.byte()),
				Bitmap: [2]uint64{uint64(m.u32()), uint64(m.byte())}})
		case 1:
			w.Plane(&wire.PlaneBlock{Plane: m.byte() % 3, Bytes: m.u32(), Grant: m.u32()})
		case 2:
			w.QP(&wire.QPBlock{QPN: m.a[to].Number(), Limit: m.u32() >> (m.byte() % 32)})
		default:
			codes := []wire.RefusalCode{wire.RefuseRNR, wire.RefuseLater, wire.RefuseNoQP, wire.RefuseInvalid, wire.RefuseAccess, wire.RefuseOp, 5, 0x50, 0x90}
			w.Refusal(&wire.RefusalBlock{Path: h.Path, Seq: h.Seq, QPN: m.a[to].Number(), PSN: serial.PSN(uint32(h.PSN)+uint32(int8(m.byte()))) & serial.PSNMask,
				Code: codes[int(m.byte())%len(codes)], Timer: m.byte() % 16, InOrder: m.byte()&1 != 0})
		}
	}
	return b[:w.Finish()]
}

// run lets the bytes speak.
func (m *meddler) meddle() {
	m.work()
	for steps := 0; len(m.in) > 0 && steps < 400; steps++ {
		c := m.byte()
		to := int(c >> 7)
		switch c & 7 {
		case 0, 1: // time passes
			m.until(mono.Duration(c>>3)*mono.Microsecond, func() bool { return false })
		case 2: // raw bytes
			b := m.take(4 * int(m.byte()))
			if len(b) >= wire.MinPacket {
				b[0] |= 0xC0
				b[1] &^= 0x0F
				b[wire.BTHLen+7] = wire.Version<<4 | b[wire.BTHLen+7]&15
				copy(b[wire.BTHLen:], []byte{byte(m.tag[to] >> 24), byte(m.tag[to] >> 16), byte(m.tag[to] >> 8), byte(m.tag[to])})
				wire.Seal(b)
			}
			m.inject(to, c>>6&1, b)
		case 3, 4: // seen before, changed
			xs := m.was[1-to]
			if len(xs) == 0 {
				continue
			}
			x := xs[len(xs)-1-int(m.byte())%len(xs)]
			b := append([]byte(nil), x.Data...)
			for range m.byte() % 4 {
				b[int(m.byte())%len(b)] ^= m.byte()
			}
			const ts = wire.BTHLen + wire.MPHLen - 4
			if m.byte() != 255 {
				copy(b[ts:ts+4], x.Data[ts:])
			}
			wire.Seal(b)
			m.inject(to, c>>6&1, b)
		case 5, 6: // made up
			b := m.made(to)
			wire.Seal(b)
			m.inject(to, c>>6&1, b)
		default:
			m.work()
		}
		for i := range m.was {
			if n := len(m.was[i]); n > 256 {
				m.was[i] = m.was[i][n-256:]
			}
		}
	}
}

// check looks whether the engines are still of use: what is posted ends, or the QPs can be replaced by ones that work.
func (m *meddler) check() error {
	done := func() bool {
		for _, x := range m.a {
			if !x.Drained() {
				return false
			}
		}
		return true
	}
	m.until(100*mono.Millisecond, done)
	for _, x := range m.a {
		x.Destroy(m.w.Now)
	}
	m.node(0).Keys[7] = Key{0, 1 << 17, true, true, true, false}
	m.node(1).Keys[7] = Key{0, 1 << 17, true, true, true, false}
	// Made-up time stamps make true ones look old for a while, and made-up sequences true ones acknowledged: a few tries.
	for try := 0; ; try++ {
		p, q := m.w.Connect(m.node(0), m.node(1), QPOptions{})
		q.Recv(1, 1<<17, 100)
		p.Send(WR{Op: transport.OpSend, N: 100})
		q.Send(WR{Op: transport.OpWrite, N: 100, Key: 7})
		ok := m.until(4*second, func() bool { return len(p.Sends) == 1 && len(q.Received) == 1 && len(q.Sends) == 1 })
		if !ok && try == 8 {
			return fmt.Errorf("a new QP does not work:\n%s\n%s\n%+v\n%+v", p.Dump(), q.Dump(), m.node(0).E.C, m.node(1).E.C)
		}
		p.Destroy(m.w.Now)
		q.Destroy(m.w.Now)
		if ok {
			break
		}
	}
	for i := range 2 {
		e := m.node(i).E
		if !m.until(5*second, func() bool { return e.InFlight() == 0 }) {
			return fmt.Errorf("node %d: %d transmissions never end", i, e.InFlight())
		}
		if l := e.Leaks(); l != "" {
			return fmt.Errorf("node %d leaks %s", i, l)
		}
	}
	return nil
}

// FuzzPackets: whatever a peer sends, no panic, no leak, and the engine goes on.
func FuzzPackets(f *testing.F) {
	for seed := range uint64(40) {
		r := rng.New(seed, "packets")
		b := make([]byte, 200+r.IntN(2000))
		for i := range b {
			b[i] = byte(r.Uint64())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m := newMeddler(t, in)
		m.meddle()
		if err := m.check(); err != nil {
			t.Error(err)
		}
	})
}

// TestMeddler is the same with random bytes, for every run of the tests.
func TestMeddler(t *testing.T) {
	for i := range *seeds {
		seed := *seed0 + uint64(i)
		r := rng.New(seed, "meddler")
		b := make([]byte, 200+r.IntN(4000))
		for k := range b {
			b[k] = byte(r.Uint64())
		}
		m := newMeddler(t, b)
		m.meddle()
		if err := m.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
