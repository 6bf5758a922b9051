package transporttest

import (
	"fmt"
	"slices"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
)

// Turns makes requests of one QP with local ones among them, and watches from the memory of their NIC when each begins.
type Turns struct {
	All []WR
	Bad string // what was wrong first

	ran    int // local requests below have run: index of the next one in All
	begun  []bool
	owed   []int // WRITEs in front of a local request that ran, whose packets were chosen and whose bytes are still to be read
	bytes  int   // reads since the last of them was noted
	landed []uint32
}

// NewTurns makes n requests: WRITEs and READs under key 7, windows bound and closed, some of these with a fence.
func NewTurns(seed uint64, n int, m *Memory) *Turns {
	t := &Turns{begun: make([]bool, n), landed: make([]uint32, n)}
	r := rng.New(seed, "turns")
	open := uint32(0)
	for i := range n {
		x := WR{ID: uint64(i), Key: 7, Remote: uint64(r.IntN(1 << 20)), Local: uint64(r.IntN(1 << 20))}
		switch k := r.IntN(8); {
		case k < 3:
			x.Op, x.N = transport.OpWrite, uint32(1+r.IntN(20_000))
		case k < 5:
			x.Op, x.N = transport.OpRead, uint32(1+r.IntN(20_000))
		case open == 0 || k == 5:
			open = uint32(0x1000 + i)
			x.Op, x.Key, x.Compare = transport.OpBindMW, open, 4096
		default:
			x.Op, x.Imm, open = transport.OpLocalInv, open, 0
		}
		if x.Op.IsLocal() && r.IntN(3) == 0 {
			x.Flags = transport.FlagFence
		}
		t.All = append(t.All, x)
	}
	t.ran = t.nextLocal(0)
	m.After, m.Local = t.after, t.local
	return t
}

func (t *Turns) nextLocal(i int) int {
	for i < len(t.All) && !t.All[i].Op.IsLocal() {
		i++
	}
	return i
}

func (t *Turns) fail(format string, a ...any) {
	if t.Bad == "" {
		t.Bad = fmt.Sprintf(format, a...)
	}
}

// after sees the bytes of requests come and go.
func (t *Turns) after(op *transport.MemOp) {
	switch {
	case op.WR == nil:
	case op.Kind == transport.MemGather:
		t.begun[op.WR.ID] = true
		t.owed = slices.DeleteFunc(t.owed, func(i int) bool { return t.begun[i] })
		if t.bytes++; len(t.owed) > 0 && t.bytes > pkt.Burst {
			t.fail("request %d has not begun, and a local one behind it has run", t.owed[0])
		}
		if int(op.WR.ID) > t.ran {
			t.fail("request %d goes before %d has run", op.WR.ID, t.ran)
		}
	case op.Kind == transport.MemLand:
		t.landed[op.WR.ID] += uint32(len(op.Buf))
	}
}

// local sees a local request run: it is its turn, once.
func (t *Turns) local(wr *transport.SendWR) {
	if int(wr.ID) != t.ran {
		t.fail("request %d runs, it is the turn of %d", wr.ID, t.ran)
	}
	for i, x := range t.All[:wr.ID] {
		if x.Op == transport.OpWrite && !t.begun[i] {
			t.owed, t.bytes = append(t.owed, i), 0
		}
		if x.Op == transport.OpRead && wr.Flags&transport.FlagFence != 0 && t.landed[i] < x.N {
			t.fail("request %d runs before READ %d is answered, it has a fence", wr.ID, i)
		}
	}
	t.ran = t.nextLocal(t.ran + 1)
}

// Completed looks at a completion as it comes.
func (t *Turns) Completed(id uint64, s transport.Status) {
	if t.All[id].Op.IsLocal() && int(id) >= t.ran {
		t.fail("request %d completes and has not run", id)
	}
	if s != transport.OK {
		t.fail("request %d: %v", id, s)
	}
}

// Done reports whether all local requests have run.
func (t *Turns) Done() bool { return t.ran == len(t.All) }
