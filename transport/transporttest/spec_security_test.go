package transporttest

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// another makes one more peer of the forge's node.
func (f *forge) another(i byte) *forge {
	g := &forge{T: f.T, w: f.w, n: f.n, addr: netip.AddrFrom4([4]byte{10, 0, 8, i}), seq: map[uint16]uint32{}, hello: f.hello}
	g.hello.NICID += uint64(i) + 1
	g.hello.Tag += uint32(i) + 1
	g.meet()
	return g
}

// TestSpecOtherPeer: a peer with an association of its own cannot reach the requests of another's QP.
func TestSpecOtherPeer(t *testing.T) {
	f, q := receiver(t, Config{Seed: 1})
	g := f.another(1)
	q.Send(WR{Op: transport.OpWrite, N: 8})
	q.Send(WR{Op: transport.OpRead, N: 8})
	xs := data(f.collect())
	for range 3 {
		g.deliver(g.acks(xs...))
		g.deliver(g.ack(acked{
			Refusals: []wire.RefusalBlock{refuses(xs[0], q, wire.RefuseAccess), refuses(xs[1], q, wire.RefuseNoQP),
				{Path: 0xFFFF, QPN: q.Number(), Code: wire.RefuseInvalid}},
			QPs: []wire.QPBlock{{QPN: q.Number(), Limit: 0}}}))
		g.respond(q, 0, 0, 0, true, bytesOf(1, 8))
		for _, a := range []wire.Answer{wire.AnswerUnknown, wire.AnswerFailed} {
			b := make([]byte, wire.ProbeLen)
			n := wire.PutProbe(b, &wire.Probe{Kind: wire.ProbeQP, Answer: a, Code: wire.RefuseOp, QPN: peerQPN, PeerQPN: q.Number(), PSN: 1}, wire.ProbeLen)
			g.deliver(g.packet(wire.Header{Op: wire.OpProbeAck}, b[:n]))
		}
	}
	//= MR-SEC-006
	if len(q.Sends) != 0 || q.Failed {
		t.Fatalf("another peer's packets: %+v, failed %v", q.Sends, q.Failed)
	}
	q.Send(WR{Op: transport.OpSend, N: 8})
	ys := data(f.collect())
	//= MR-SEC-006
	if len(ys) != 1 || ys[0].Op != wire.OpSend {
		t.Errorf("another peer's limit: %v is sent", ys)
	}
	f.deliver(f.acks(append(xs, ys...)...))
	f.respond(q, 0, 0, 0, true, bytesOf(1, 8))
	if got := statuses(q.Sends); len(got) != 3 || got[2] != transport.OK {
		t.Errorf("the real peer: %v", got)
	}
}

// TestSpecSharesOfStrangers: those whom no QP here uses do not make the grants of others small.
func TestSpecSharesOfStrangers(t *testing.T) {
	f, q := receiver(t, Config{Seed: 2})
	grant := func(xs []*sent) (g uint32) {
		for _, x := range of(xs, wire.OpAck) {
			for _, b := range x.Ack.Planes {
				g = b.Grant
			}
		}
		return g
	}
	lone := grant(f.deliver(f.write(q, 0, "TA", 0, 7, bytesOf(1, 8))))
	var gs []*forge
	for i := range byte(8) {
		gs = append(gs, f.another(i))
	}
	for range 5 {
		for _, g := range gs {
			g.deliver(g.write(q, 0, "TA", 0, 7, bytesOf(1, 1000)))
		}
		f.wait(10 * mono.Microsecond)
	}
	//= MR-SEC-003
	if got := grant(f.deliver(f.write(q, 1, "TA", 0, 7, bytesOf(1, 8)))); got != lone || lone == 0 {
		t.Errorf("alone it is granted %d, beside strangers %d", lone, got)
	}
	for i := range gs { // with QPs of their own they count
		p := f.n.NewQP(QPOptions{})
		gs[i].join(p, QPOptions{})
		gs[i].deliver(gs[i].write(p, 0, "TA", 0, 7, bytesOf(1, 1000)))
	}
	if got := grant(f.deliver(f.write(q, 2, "TA", 0, 7, bytesOf(1, 8)))); got >= lone {
		t.Errorf("beside eight peers in use it is granted %d, alone %d", got, lone)
	}
}

// TestSpecSecret: what nobody may guess comes from the secret alone, and everything else from the seed alone.
func TestSpecSecret(t *testing.T) {
	tags, cookies := map[uint32]bool{}, map[[16]byte]bool{}
	for i := range byte(3) {
		f := newForge(t, Config{Seed: 7, Engine: func(c *metaroce.Config) { c.Secret[3] = i / 2 }}) // 0 is no secret: twice the same
		tags[f.tag], cookies[f.hello.Cookie] = true, true
	}
	//= MR-SEC-001
	if len(tags) != 2 || len(cookies) != 2 {
		t.Errorf("%d tags and %d cookies of two secrets", len(tags), len(cookies))
	}
}
