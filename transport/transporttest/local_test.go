package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// TestLocalTurns: windows are bound and closed at their turn, once, over a good network and a bad one; completions come
// in the order of posting.
func TestLocalTurns(t *testing.T) {
	for name, l := range map[string]link.Spec{"good": usual(), "rough": rough()} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				w := New(Config{Seed: seed, Planes: 2, Link: l})
				a, b := w.Nodes[0], w.Nodes[1]
				p, _ := w.Connect(a, b, QPOptions{SQ: 16})
				b.Keys[7] = Key{0, 2 << 20, true, true, true, false}
				turns := NewTurns(seed, 300, &a.Memory)
				posted := 0
				p.OnSend = func(c Completion) { turns.Completed(c.ID, c.Status) }
				//= MR-VRB-040 MR-VRB-041
				if !w.RunUntil(mono.Second, func() bool {
					for posted < len(turns.All) && p.Send(turns.All[posted]) {
						posted++
					}
					return len(p.Sends) == len(turns.All)
				}) {
					t.Fatalf("seed %d: %d of %d complete", seed, len(p.Sends), len(turns.All))
				}
				if turns.Bad != "" || !turns.Done() {
					t.Fatalf("seed %d: %s", seed, turns.Bad)
				}
				for i, c := range p.Sends {
					if c.ID != uint64(i) {
						t.Fatalf("seed %d: completion %d: %+v", seed, i, c)
					}
				}
			}
		})
	}
}

// TestLocalFails: a local request that cannot be carried out fails at its place; what is before it completes.
func TestLocalFails(t *testing.T) {
	for name, bad := range map[string]struct {
		wr   WR
		want transport.Status
	}{
		"bind":       {WR{Op: transport.OpBindMW, Key: 9}, transport.MWBindErr},
		"invalidate": {WR{Op: transport.OpLocalInv, Imm: 9}, transport.LocQPOpErr},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(Config{Seed: 1, Link: rough()})
			a, b := w.Nodes[0], w.Nodes[1]
			p, _ := w.Connect(a, b, QPOptions{})
			b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
			p.Send(WR{ID: 0, Op: transport.OpWrite, N: 50_000, Key: 7})
			p.Send(WR{ID: 1, Op: transport.OpRead, N: 50_000, Key: 7})
			bad.wr.ID = 2
			p.Send(bad.wr)
			p.Send(WR{ID: 3, Op: transport.OpWrite, N: 10, Key: 7})
			w.RunUntil(mono.Second, func() bool { return len(p.Sends) == 4 })
			for i, want := range []transport.Status{transport.OK, transport.OK, bad.want, transport.WRFlushErr} {
				if i >= len(p.Sends) || p.Sends[i].ID != uint64(i) || p.Sends[i].Status != want {
					t.Fatalf("completions %+v", p.Sends)
				}
			}
		})
	}
}

// TestLocalBeforeBad: a request that was found bad when it was fetched stops the QP at the PSN in front of which local ones
// stand. They run all the same, when their fence lets them.
func TestLocalBeforeBad(t *testing.T) {
	w := New(Config{Seed: 1, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{})
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	p.Send(WR{ID: 0, Op: transport.OpRead, N: 50_000, Key: 7})
	p.Send(WR{ID: 1, Op: transport.OpBindMW, Key: 9, Compare: 10, Flags: transport.FlagFence})
	p.Send(WR{ID: 2, Op: transport.OpLocalInv, Imm: 9})
	wr := p.NextWR()
	wr.ID, wr.Op, wr.Fail = 3, transport.OpWrite, transport.LocProtErr
	p.Post(w.Now)
	w.RunUntil(mono.Second, func() bool { return len(p.Sends) == 4 })
	for i, want := range []transport.Status{transport.OK, transport.OK, transport.OK, transport.LocProtErr} {
		if i >= len(p.Sends) || p.Sends[i].ID != uint64(i) || p.Sends[i].Status != want {
			t.Fatalf("completions %+v", p.Sends)
		}
	}
}

// TestLocalInSQD: nothing local begins in SQD; it does when the QP goes on.
func TestLocalInSQD(t *testing.T) {
	w := New(Config{Seed: 1, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	p, _ := w.Connect(a, b, QPOptions{})
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	p.Send(WR{ID: 0, Op: transport.OpWrite, N: 10, Key: 7})
	w.RunUntil(mono.Second, func() bool { return len(p.Sends) == 1 })
	p.ToSQD()
	p.Send(WR{ID: 1, Op: transport.OpBindMW, Key: 9, Compare: 10})
	w.Run(10 * mono.Millisecond)
	if len(p.Sends) != 1 {
		t.Fatal("it began in SQD")
	}
	p.Resume(w.Now)
	if !w.RunUntil(mono.Second, func() bool { return len(p.Sends) == 2 }) || p.Sends[1].Status != transport.OK {
		t.Fatalf("%+v", p.Sends)
	}
}
