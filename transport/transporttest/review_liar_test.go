package transporttest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// liar is a peer with a right handshake that acknowledges, refuses, answers and asks what it likes.
type liar struct {
	*forge
	r    *rng.Source
	q    *QP
	seen []*sent
	rd   uint32 // next response number
	psn  uint32
	ssn  uint32
}

func (l *liar) pick() *sent { return l.seen[l.r.IntN(len(l.seen))] }

func (l *liar) some(n int) uint32 { return uint32(l.r.IntN(n)) }

// ack reports any of what was seen, and some that was not.
func (l *liar) ack() pkt.Packet {
	var a acked
	for range 1 + l.r.IntN(4) {
		x := l.pick()
		switch l.r.IntN(5) {
		case 0, 1:
			b := wire.PathBlock{Path: x.Path, Highest: x.Seq, Echo: x.TS - l.some(100), Hold: l.some(1 << l.r.IntN(31)), CE: l.some(5)}
			if l.r.IntN(3) == 0 {
				b.Bitmap = [2]uint64{l.r.Uint64(), l.r.Uint64()}
			}
			if l.r.IntN(20) == 0 {
				b.Highest += l.some(3)
			}
			a.Paths = append(a.Paths, b)
		case 2:
			a.Planes = append(a.Planes, wire.PlaneBlock{Plane: uint8(l.r.IntN(4)), Grant: l.some(1 << l.r.IntN(31))})
		case 3:
			a.QPs = append(a.QPs, wire.QPBlock{QPN: l.q.Number(), Limit: l.some(1 << l.r.IntN(31))})
		default:
			f := refuses(x, l.q, wire.RefusalCode(l.r.IntN(256)))
			if l.r.IntN(2) == 0 {
				f.Code = []wire.RefusalCode{wire.RefuseRNR, wire.RefuseLater, wire.RefuseNoQP}[l.r.IntN(3)]
			}
			f.PSN = serialPSN(uint32(x.PSN) + l.some(3) - l.some(3))
			f.Timer, f.InOrder = uint8(l.r.IntN(16)), l.r.IntN(2) == 0
			a.Refusals = append(a.Refusals, f)
		}
	}
	return l.forge.ack(a)
}

// responds answers READs and atomics that may or may not have been sent, with numbers near the right ones.
func (l *liar) responds() pkt.Packet {
	h := wire.Header{Op: wire.OpReadResp, DestQP: l.q.Number(), PSN: serialPSN(l.rd + l.some(2)), ReadNo: l.some(6), ReadOff: l.some(3) * 1024}
	n := 1024
	if l.r.IntN(4) == 0 {
		h.Op, n = wire.OpAtomicResp, 0
	}
	l.rd++
	return l.packet(h, make([]byte, n))
}

// asks sends requests of its own, in and out of order.
func (l *liar) asks() pkt.Packet {
	psn := l.psn + l.some(3)
	if l.r.IntN(3) > 0 {
		psn = l.psn
		l.psn++
	}
	ops := []wire.Opcode{wire.OpWrite, wire.OpWriteImm, wire.OpSend, wire.OpSendImm, wire.OpSendInv, wire.OpRead, wire.OpCmpSwap, wire.OpFetchAdd}
	h := to(l.q, ops[l.r.IntN(len(ops))], psn, []string{"", "T", "TA", "P", "TP"}[l.r.IntN(5)])
	n := uint32(l.r.IntN(1500))
	h.VA, h.RKey, h.Len, h.SSN, h.Off = uint64(l.some(9000)), 7, n+l.some(2)*100, l.ssn+l.some(2), l.some(2)*n
	if h.Op >= wire.OpSend && h.Op <= wire.OpSendInv && l.r.IntN(2) == 0 {
		l.ssn++
	}
	if h.Op == wire.OpRead || h.Op == wire.OpCmpSwap || h.Op == wire.OpFetchAdd {
		return l.packet(h, nil)
	}
	return l.packet(h, make([]byte, n))
}

func (l *liar) probe() pkt.Packet {
	op := wire.OpProbe + wire.Opcode(l.r.IntN(2))
	pr := wire.Probe{Kind: wire.ProbeKind(l.r.IntN(5)), Plane: uint8(l.r.IntN(3)), ID: l.some(8), QPN: peerQPN, PeerQPN: l.q.Number(), ReadNo: l.some(8),
		PSN: l.some(20), Answer: wire.Answer(l.r.IntN(6)), Code: wire.RefusalCode(l.r.IntN(256))}
	if op == wire.OpProbe {
		pr.QPN, pr.PeerQPN = pr.PeerQPN, pr.QPN
	}
	b := make([]byte, wire.ProbeLen)
	wire.PutProbe(b, &pr, wire.ProbeLen)
	return l.packet(wire.Header{Op: op, Path: uint16(pr.Plane&1) << 8}, b)
}

func lie(t *testing.T, seed uint64) error {
	r := rng.New(seed, "liar")
	f := newForge(t, Config{Seed: seed, Planes: 2, Memory: 1 << 16, Engine: func(c *metaroce.Config) {
		c.HeldBuffers, c.RespBuffers, c.TxRecords = 8, 16, 256
	}})
	f.n.Keys[7] = Key{0, 1 << 15, true, true, true, false}
	o := QPOptions{MTU: 1024, SQ: 32, Rd: 4, Timeout: 10, RNRRetry: 1 + uint8(r.IntN(7))}
	o.defaults()
	l := &liar{forge: f, r: r, q: f.qp(o)}
	l.seen = []*sent{{}}
	posted := 0
	for range 400 {
		if l.q.State() == metaroce.StateErr { // begin again
			if len(l.q.Sends) != posted {
				return fmt.Errorf("failed with %d of %d completed", len(l.q.Sends), posted)
			}
			l.q.Reset(f.w.Now)
			l.q.Recvs, l.q.Sends, l.q.Received, l.q.Errors, posted = nil, nil, nil, 0, 0
			l.q.ToInit()
			f.join(l.q, o)
			l.rd, l.psn, l.ssn = 0, 0, 0
		}
		for range r.IntN(3) {
			x := WR{ID: uint64(posted), Op: transport.Op(r.IntN(7)), N: uint32(r.IntN(5000)), Key: 7}
			if x.Op.IsAtomic() {
				x.N = 8
			}
			posted++ // it may complete within the call
			if !l.q.Send(x) {
				posted--
			}
		}
		if len(l.q.Recvs) < 50 {
			l.q.Recv(1, 1<<15, 2000)
		}
		l.seen = append(l.seen, data(f.wait(mono.Duration(r.IntN(50))*mono.Microsecond))...)
		l.seen = l.seen[max(0, len(l.seen)-100):]
		var ps []pkt.Packet
		for range 1 + r.IntN(6) {
			switch r.IntN(8) {
			case 0, 1, 2:
				ps = append(ps, l.ack())
			case 3, 4:
				ps = append(ps, l.responds())
			case 5, 6:
				ps = append(ps, l.asks())
			default:
				ps = append(ps, l.probe())
			}
		}
		for _, x := range f.deliver(ps...) {
			if x.Op.IsData() {
				l.seen = append(l.seen, x)
			}
		}
		if again := of(f.log, wire.OpHello); wantsHello(again) { // a lie was found out: shake hands once more
			f.meet()
		}
		f.log = f.log[:0]
		if n := f.n.E.InFlight(); n > 256 {
			return fmt.Errorf("%d in flight", n)
		}
	}
	// the liar falls silent: what it was owed ends, and others are served
	f.wait(second)
	if len(l.q.Sends) != posted {
		return fmt.Errorf("%d of %d completed\n%s", len(l.q.Sends), posted, l.q.Dump())
	}
	l.q.Destroy(f.w.Now)
	f.wait(20 * second) // round trips were lied about, too
	if n := f.n.E.InFlight(); n != 0 {
		return fmt.Errorf("%d in flight for ever", n)
	}
	if s := f.n.E.Leaks(); s != "" {
		return fmt.Errorf("leaks %s", s)
	}
	g := *f
	g.addr, g.seq = netip.MustParseAddr("10.0.9.10"), map[uint16]uint32{}
	g.meet()
	q := g.qp(o)
	g.n.Mem[0] = 0
	p := g.write(q, 0, "TA", 0, 7, bytesOf(9, 8))
	if answer(g.deliver(p), p) != "ack" || g.n.Mem[0] != 9 {
		return fmt.Errorf("an honest peer is not served")
	}
	return nil
}

// wantsHello reports whether the node begins a handshake.
func wantsHello(xs []*sent) bool {
	for _, x := range xs {
		if x.Hello.Stage == wire.HelloInit {
			return true
		}
	}
	return false
}

// TestLiar: a peer that tells nonsense harms nobody but itself.
func TestLiar(t *testing.T) {
	for i := range *seeds {
		seed := *seed0 + uint64(i)
		if err := lie(t, seed); err != nil {
			t.Errorf("seed %d: %v\n  again: go test ./transport/transporttest -run 'TestLiar$' -seeds 1 -seed %d", seed, err, seed)
		}
	}
}
