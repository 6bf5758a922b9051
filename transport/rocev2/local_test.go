package rocev2_test

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/transporttest"
)

// TestLocalTurns: windows are bound and closed at their turn, once, however often the QP goes back.
func TestLocalTurns(t *testing.T) {
	bad := usual()
	bad.Loss, bad.Reorder, bad.ReorderBy = 0.02, 0.02, 20*mono.Microsecond
	for name, l := range map[string]link.Spec{"good": usual(), "bad": bad} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				w := newWorld(config{seed: seed, link: l})
				a, b := w.nodes[0], w.nodes[1]
				p, _ := w.connect(a, b, options{sq: 16})
				turns := transporttest.NewTurns(seed, 300, &a.Memory)
				posted := 0
				p.onSend = func(c completion) {
					turns.Completed(c.id, c.status)
					p.sends = append(p.sends, c)
				}
				//= MR-VRB-040 MR-VRB-041
				w.mustRun(t, 20*mono.Second, func() bool {
					for posted < len(turns.All) {
						x := turns.All[posted]
						if !p.send(wr{id: x.ID, op: x.Op, local: x.Local, remote: x.Remote, n: x.N, key: x.Key, imm: x.Imm, flags: x.Flags, compare: x.Compare}) {
							break
						}
						posted++
					}
					return len(p.sends) == len(turns.All)
				})
				if turns.Bad != "" || !turns.Done() {
					t.Fatalf("seed %d: %s", seed, turns.Bad)
				}
				for i, c := range p.sends {
					if c.id != uint64(i) {
						t.Fatalf("seed %d: completion %d: %+v", seed, i, c)
					}
				}
			}
		})
	}
}

// TestLocalFails: a local request that cannot be carried out fails at its place; what is before it completes.
func TestLocalFails(t *testing.T) {
	w := newWorld(config{seed: 1, link: usual()})
	p, _ := w.connect(w.nodes[0], w.nodes[1], options{})
	p.send(wr{id: 0, op: transport.OpWrite, n: 50_000, key: 7})
	p.send(wr{id: 1, op: transport.OpRead, n: 50_000, key: 7})
	p.send(wr{id: 2, op: transport.OpLocalInv, imm: 9})
	p.send(wr{id: 3, op: transport.OpWrite, n: 10, key: 7})
	w.mustRun(t, mono.Second, func() bool { return len(p.sends) == 4 })
	for i, want := range []transport.Status{transport.OK, transport.OK, transport.LocQPOpErr, transport.WRFlushErr} {
		if p.sends[i].id != uint64(i) || p.sends[i].status != want {
			t.Fatalf("completions %+v", p.sends)
		}
	}
}

// TestLocalBeforeBad: a request that was found bad when it was fetched stops the QP at the PSN in front of which local ones
// stand. They run all the same, when their fence lets them.
func TestLocalBeforeBad(t *testing.T) {
	w := newWorld(config{seed: 1, link: usual()})
	p, _ := w.connect(w.nodes[0], w.nodes[1], options{})
	p.send(wr{id: 0, op: transport.OpRead, n: 50_000, key: 7})
	p.send(wr{id: 1, op: transport.OpBindMW, key: 9, compare: 10, flags: transport.FlagFence})
	p.send(wr{id: 2, op: transport.OpLocalInv, imm: 9})
	p.send(wr{id: 3, op: transport.OpWrite, fail: transport.LocProtErr})
	w.mustRun(t, mono.Second, func() bool { return len(p.sends) == 4 })
	for i, want := range []transport.Status{transport.OK, transport.OK, transport.OK, transport.LocProtErr} {
		if p.sends[i].id != uint64(i) || p.sends[i].status != want {
			t.Fatalf("completions %+v", p.sends)
		}
	}
}

// TestLocalBegun: a QP that has run a local request has begun, completed or not: no other engine may run it again.
func TestLocalBegun(t *testing.T) {
	w := newWorld(config{seed: 1, link: link.Spec{RateBps: 1e9, Delay: mono.Millisecond}})
	p, _ := w.connect(w.nodes[0], w.nodes[1], options{})
	p.send(wr{id: 0, op: transport.OpWrite, n: 10, key: 7})
	if p.Begun() {
		t.Error("begun, nothing local")
	}
	p.send(wr{id: 1, op: transport.OpBindMW, key: 9, compare: 10})
	w.run(100 * mono.Microsecond)
	if len(p.sends) != 0 || !p.Begun() {
		t.Errorf("%d complete, begun %v", len(p.sends), p.Begun())
	}
	p.Reset(w.now)
	if p.Begun() {
		t.Error("begun after RESET")
	}
}
