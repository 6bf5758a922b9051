package transporttest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestSpecChecks: each packet of a WRITE is checked before a byte of it is written.
func TestSpecChecks(t *testing.T) {
	for name, c := range map[string]struct {
		addr uint64
		key  uint32
		n    int
		want string
	}{
		"good": {4000, 8, 96, "ack"}, "one byte too far": {4000, 8, 97, "ACCESS"}, "before": {^uint64(0) - 3, 8, 8, "ACCESS"},
		"no key": {0, 99, 8, "ACCESS"}, "no right": {0, 9, 8, "ACCESS"}, "wraps": {^uint64(0) - 3, 7, 8, "ACCESS"},
	} {
		f, q := receiver(t, Config{Seed: 1})
		f.n.Keys[8] = Key{0, 4096, true, false, false, false}
		f.n.Keys[9] = Key{0, 4096, false, true, true, false}
		first := f.write(q, 0, "", 100, 7, bytesOf(1, 8))
		p := f.write(q, 1, "TA", c.addr, c.key, bytesOf(1, c.n))
		xs := f.deliver(first, p)
		//= MR-MSG-020
		f.want(name, xs, p, c.want)
		if n := bytes.Count(f.n.Mem, []byte{1}); c.want != "ack" && n != 8 {
			t.Errorf("%s: %d bytes were written", name, n-8)
		}
	}
}

// TestSpecWholeMessage: a packet that is in bounds of a message that is not places nothing, in whatever order they come,
// with later packets in its way and under relaxed keys, too.
func TestSpecWholeMessage(t *testing.T) {
	for name, relaxed := range map[string]bool{"strict": false, "relaxed": true} {
		for _, over := range []bool{false, true} {
			f, q := receiver(t, Config{Seed: 1})
			f.n.Keys[8] = Key{0, 4096, true, true, false, relaxed}
			if over {
				f.deliver(f.write(q, 2, "A", 3900, 8, bytesOf(2, 50)))
			}
			h := to(q, wire.OpWrite, 1, "A")
			h.VA, h.RKey, h.Len = 3840, 8, 257
			second := f.packet(h, bytesOf(1, 256))
			f.deliver(second)
			h.PSN, h.VA, h.Len = 0, 3584, 513
			first := f.packet(h, bytesOf(1, 256))
			//= MR-MSG-036
			f.want(name, f.deliver(first), first, "ACCESS")
			if n := bytes.Count(f.n.Mem, []byte{1}); n != 0 || !q.Failed {
				t.Errorf("%s, over others %v: %d bytes were written, failed %v", name, over, n, q.Failed)
			}
		}
	}
}

// TestSpecTails: a tail waits for its turn, but not in regions with relaxed ordering, unless an atomic is pending.
func TestSpecTails(t *testing.T) {
	for _, c := range []struct {
		relaxed bool
		flags   string
		early   bool
	}{{false, "TA", false}, {true, "TA", true}, {true, "TAP", false}, {false, "A", true}} {
		f, q := receiver(t, Config{Seed: 2})
		f.n.Keys[7] = Key{0, 1 << 20, true, true, true, c.relaxed}
		late := f.write(q, 0, "TA", 100, 7, bytesOf(1, 8))
		p := f.write(q, 1, c.flags, 200, 7, bytesOf(2, 8))
		xs := f.deliver(p)
		//= MR-MSG-022 MR-MSG-021 MR-MSG-040
		f.want("ahead of its turn", xs, p, "ack")
		if got := f.n.Mem[200] == 2; got != c.early {
			t.Errorf("relaxed %v, flags %s: written ahead of its turn: %v", c.relaxed, c.flags, got)
		}
		f.deliver(late)
		if f.n.Mem[200] != 2 {
			t.Errorf("relaxed %v, flags %s: not written in its turn", c.relaxed, c.flags)
		}
	}
}

// TestSpecTailLast: a tail's bytes come after everything before it in the QP.
func TestSpecTailLast(t *testing.T) {
	f, q := receiver(t, Config{Seed: 3})
	q.Recv(1, 3000, 100)
	q.Recv(2, 3100, 100)
	var order []uint64
	f.n.After = func(op *transport.MemOp) {
		if op.Kind == transport.MemScatter {
			order = append(order, 3000)
		} else {
			order = append(order, op.Addr)
		}
	}
	ps := []pkt.Packet{
		f.write(q, 0, "", 0, 7, bytesOf(1, 100)), f.write(q, 1, "TA", 100, 7, bytesOf(1, 100)), f.atomic(q, 2, 800, 7, 1),
		f.send(q, 3, "TA", 0, 0, bytesOf(1, 100)), f.write(q, 4, "TA", 900, 7, bytesOf(1, 8)),
	}
	f.deliver(ps[4], ps[2], ps[1], ps[3], ps[0])
	pos := map[uint64]int{}
	for i, a := range order {
		pos[a] = i
	}
	//= MR-MSG-023 MR-MSG-030 MR-MSG-031
	if pos[100] < pos[0] || pos[800] < pos[100] || pos[900] < pos[800] || pos[900] < pos[3000] || len(order) != 5 {
		t.Errorf("memory was touched in the order %v", order)
	}
}

// TestSpecHeldKey: the key of a held tail is checked again when its turn comes.
func TestSpecHeldKey(t *testing.T) {
	f, q := receiver(t, Config{Seed: 4})
	f.n.Keys[8] = Key{0, 4096, true, false, false, false}
	late := f.write(q, 0, "TA", 100, 7, bytesOf(1, 8))
	p := f.write(q, 1, "TA", 200, 8, bytesOf(2, 8))
	f.want("held", f.deliver(p), p, "ack")
	delete(f.n.Keys, 8)
	xs := f.deliver(late)
	//= MR-MSG-024 MR-MSG-083 MR-MSG-081
	f.want("what released it", xs, late, "ACCESS")
	for _, r := range of(xs, wire.OpAck)[0].Ack.Refusals {
		if r.PSN != 1 || r.QPN != peerQPN {
			t.Errorf("refused %+v", r)
		}
	}
	if f.n.Mem[100] != 1 || f.n.Mem[200] != 0 || !q.Failed {
		t.Errorf("memory %d %d, failed %v", f.n.Mem[100], f.n.Mem[200], q.Failed)
	}
}

// TestSpecAliases: two keys call one cell by different addresses, so the requester lets a WRITE go that meets an atomic
// which has not run. The responder holds it, and the atomic sees the value before it.
func TestSpecAliases(t *testing.T) {
	for _, flags := range []string{"AP", "TAP", "A"} {
		f, q := receiver(t, Config{Seed: 5})
		f.n.Keys[8], f.n.Shift = Key{5000, 6000, true, true, true, true}, map[uint32]uint64{8: ^uint64(4999)}
		f.n.Mem[64] = 5
		late := f.write(q, 0, "TA", 9000, 7, bytesOf(9, 8))
		w, at := f.write(q, 2, flags, 5064, 8, bytesOf(2, 8)), f.atomic(q, 1, 64, 7, 1)
		f.want("WRITE", f.deliver(w), w, "ack")
		//= MR-MSG-037
		if early := f.n.Mem[64] == 2; early != (flags == "A") {
			t.Errorf("%s: written ahead of its turn: %v", flags, early)
		}
		f.want("atomic", f.deliver(at), at, "ack")
		xs := of(f.deliver(late), wire.OpAtomicResp)
		//= MR-MSG-037
		if len(xs) != 1 || flags != "A" && xs[0].Result != 5 || flags != "A" && !bytes.Equal(f.n.Mem[64:72], bytesOf(2, 8)) {
			t.Errorf("%s: the atomic saw %v, memory is %v", flags, xs, f.n.Mem[64:72])
		}
	}
}

// TestSpecOverlap: a later packet's bytes stay, once they are placed; what is held, missing or refused does not count.
func TestSpecOverlap(t *testing.T) {
	old, now := bytesOf(1, 100), bytesOf(2, 100)
	for _, c := range []struct {
		name  string
		later func(f *forge, q *QP) pkt.Packet // PSN 2
		want  byte
	}{
		{"placed", func(f *forge, q *QP) pkt.Packet { return f.write(q, 2, "A", 0, 7, now) }, 2},
		{"another address under another key", func(f *forge, q *QP) pkt.Packet { return f.write(q, 2, "A", 5000, 8, now) }, 2},
		{"other memory under another key", func(f *forge, q *QP) pkt.Packet { return f.write(q, 2, "A", 0, 9, now) }, 1},
		{"held", func(f *forge, q *QP) pkt.Packet { return f.write(q, 2, "TA", 0, 7, now) }, 1},
		{"refused", func(f *forge, q *QP) pkt.Packet {
			h := to(q, wire.OpWriteImm, 2, "TA")
			h.RKey, h.Len = 7, 100
			return f.packet(h, now)
		}, 1},
	} {
		f, q := receiver(t, Config{Seed: 5})
		f.n.Keys[8], f.n.Shift = Key{5000, 6000, true, true, true, false}, map[uint32]uint64{8: ^uint64(4999), 9: 20_000}
		f.n.Keys[9] = Key{0, 1000, true, true, true, false}
		f.deliver(c.later(f, q))
		p := f.write(q, 1, "A", 0, 7, old)
		//= MR-MSG-025 MR-MSG-026
		f.want(c.name, f.deliver(p), p, "ack")
		if f.n.Mem[50] != c.want {
			t.Errorf("%s: the byte is %d, want %d", c.name, f.n.Mem[50], c.want)
		}
	}
	// the same when a held tail is written, in pieces around what was placed
	f, q := receiver(t, Config{Seed: 6})
	tail := f.write(q, 1, "TA", 0, 7, old)
	f.deliver(tail, f.write(q, 2, "", 10, 7, now[:20]), f.write(q, 4, "", 60, 7, now[:80]))
	f.deliver(f.write(q, 0, "TA", 9000, 7, old))
	want := append(append(append(bytesOf(1, 10), bytesOf(2, 20)...), bytesOf(1, 30)...), bytesOf(2, 80)...)
	//= MR-MSG-025 MR-MSG-026
	if !bytes.Equal(f.n.Mem[:140], want) {
		t.Errorf("memory is %v", f.n.Mem[:140])
	}
}

// TestSpecHeldMemory: where the memory for held tails is used up, tails are refused as LATER, but never the one whose
// turn it is, nor the tail of a SEND.
func TestSpecHeldMemory(t *testing.T) {
	f, q := receiver(t, Config{Seed: 7, Engine: func(c *metaroce.Config) { c.HeldBuffers = 1 }})
	for i := range uint64(3) {
		q.Recv(i, 10_000+i*1000, 100)
	}
	p := f.write(q, 5, "TA", 500, 7, bytesOf(5, 8))
	f.want("the first", f.deliver(p), p, "ack")
	p = f.write(q, 4, "TA", 400, 7, bytesOf(4, 8))
	//= MR-MSG-027
	f.want("no memory", f.deliver(p), p, "LATER")
	//= MR-MSG-044
	if f.n.Mem[400] != 0 {
		t.Error("a refused packet left a trace")
	}
	p = f.send(q, 3, "TA", 0, 0, bytesOf(3, 100))
	//= MR-MSG-028
	f.want("the tail of a SEND", f.deliver(p), p, "ack")
	for psn := range uint32(3) {
		p = f.write(q, psn, "TA", uint64(psn)*100, 7, bytesOf(9, 8))
		//= MR-MSG-027
		f.want("its turn", f.deliver(p), p, "ack")
	}
	p = f.write(q, 4, "TA", 400, 7, bytesOf(4, 8))
	f.want("refused before", f.deliver(p), p, "ack")
	if f.n.Mem[400] != 4 || f.n.Mem[500] != 5 || len(q.Received) != 1 {
		t.Errorf("memory %d %d, %d received", f.n.Mem[400], f.n.Mem[500], len(q.Received))
	}
}

// TestSpecCopies: what a copy of a packet is told, by what became of the original.
func TestSpecCopies(t *testing.T) {
	f, q := receiver(t, Config{Seed: 8})
	q.Recv(0, 10_000, 100)
	kinds := map[string]func(psn uint32) pkt.Packet{
		"bulk":   func(psn uint32) pkt.Packet { return f.write(q, psn, "A", 100, 7, bytesOf(1, 8)) },
		"tail":   func(psn uint32) pkt.Packet { return f.write(q, psn, "TA", 200, 7, bytesOf(1, 8)) },
		"send":   func(psn uint32) pkt.Packet { return f.send(q, psn, "TA", 0, 0, bytesOf(1, 8)) },
		"atomic": func(psn uint32) pkt.Packet { return f.atomic(q, psn, 800, 7, 3) },
		"read":   func(psn uint32) pkt.Packet { return f.read(q, psn, 0, 7, 8) },
	}
	psn := uint32(1)
	for _, kind := range []string{"bulk", "tail", "send", "atomic", "read"} {
		a, b, c := kinds[kind](psn), kinds[kind](psn), kinds[kind](psn)
		psn++
		xs := f.deliver(a, b) // b comes while a is in work
		//= MR-MSG-042 MR-MSG-040
		f.want(kind, xs, a, "ack")
		f.want(kind+" in work", xs, b, "")
		//= MR-MSG-045
		f.want(kind+" done", f.deliver(c), c, "ack")
	}
	// the original is done and has made others possible that are in work in the same burst
	a, b := f.write(q, 0, "TA", 0, 7, bytesOf(1, 8)), f.write(q, 0, "TA", 0, 7, bytesOf(1, 8))
	xs := f.deliver(a, b)
	//= MR-MSG-042 MR-MSG-041
	f.want("what released all", xs, a, "ack")
	f.want("its copy", xs, b, "")
	//= MR-MSG-031 MR-MSG-045
	if v := binary.LittleEndian.Uint64(f.n.Mem[800:]); v != 3 || len(q.Received) != 1 {
		t.Errorf("the cell is %d, %d received", v, len(q.Received))
	}
	for old := range psn {
		p := kinds["tail"](old)
		//= MR-MSG-045
		f.want("committed", f.deliver(p), p, "ack")
	}
	//= MR-MSG-045
	if v := binary.LittleEndian.Uint64(f.n.Mem[800:]); v != 3 {
		t.Errorf("the cell is %d", v)
	}
}

// TestSpecAckAfterCommit: when an ACK is made, everything that it says is in memory.
func TestSpecAckAfterCommit(t *testing.T) {
	s := newScript(t, Config{Seed: 9})
	p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: 1024})
	a, b := s.node(0), s.node(1)
	b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	n, looked := 0, 0
	byNo := map[[2]uint32]*sent{}
	s.fate = func(x *sent) mono.Duration {
		if x.Op.IsRequest() {
			byNo[[2]uint32{uint32(x.Header.Path), x.Seq}] = x
			if n++; n%5 == 0 {
				return mono.Duration(n%50) * mono.Microsecond
			}
			return 0
		}
		for i := range x.Ack.Paths {
			blk := &x.Ack.Paths[i]
			for d := range uint32(129) {
				y := byNo[[2]uint32{uint32(blk.Path), blk.Highest - d}]
				if y == nil || !names(blk, blk.Highest-d) || y.Flags&wire.FlagTail != 0 && y.PSN != 0 {
					continue
				}
				looked++
				//= MR-REL-012 MR-MSG-040 MR-MSG-041
				if len(y.Payload) > 0 && !bytes.Equal(b.Mem[y.VA:y.VA+uint64(len(y.Payload))], y.Payload) {
					t.Errorf("%v is acknowledged and not in memory", y)
				}
			}
		}
		return 0
	}
	fill(a.Mem[:300_000], 1)
	for i := range uint64(30) {
		p.Send(WR{Op: transport.OpWrite, Local: i * 10_000, Remote: i * 10_000, N: 10_000, Key: 7})
	}
	s.done(p, 30)
	if looked < 300 {
		t.Errorf("looked at %d packets only", looked)
	}
	_ = q
}

// TestSpecBadWaits: what will fail is neither acknowledged nor refused before its turn, nor does it stop what is before.
func TestSpecBadWaits(t *testing.T) {
	for name, bad := range map[string]func(f *forge, q *QP) pkt.Packet{
		"key":        func(f *forge, q *QP) pkt.Packet { return f.write(q, 1, "A", 0, 99, bytesOf(1, 8)) },
		"receive":    func(f *forge, q *QP) pkt.Packet { return f.send(q, 1, "TA", 0, 0, bytesOf(1, 101)) },
		"misaligned": func(f *forge, q *QP) pkt.Packet { return f.atomic(q, 1, 4, 7, 1) },
	} {
		f, q := receiver(t, Config{Seed: 10})
		q.Recv(1, 10_000, 100)
		early := bad(f, q)
		xs := f.deliver(early)
		xs = append(xs, f.wait(20*mono.Millisecond)...)
		copyOf := bad(f, q)
		xs = append(xs, f.deliver(copyOf)...)
		//= MR-MSG-043 MR-MSG-080
		if name != "misaligned" { // an atomic is queued: nobody looks at it before its turn
			f.want(name, xs, early, "")
			f.want(name, xs, copyOf, "")
		}
		if q.Failed {
			t.Errorf("%s: the QP fails before the turn", name)
		}
		before := f.write(q, 0, "TA", 500, 7, bytesOf(5, 8))
		xs = f.deliver(before)
		//= MR-MSG-080 MR-MSG-003
		if f.n.Mem[500] != 5 || !q.Failed || answer(xs, before) == "ack" || answer(xs, before) == "" {
			t.Errorf("%s: memory %d, failed %v, %q", name, f.n.Mem[500], q.Failed, answer(xs, before))
		}
	}
}

// TestSpecAtomics: atomics of all QPs of a NIC, from several peers, on one cell.
func TestSpecAtomics(t *testing.T) {
	w := New(Config{Seed: 11, Nodes: 4, Planes: 2, Link: rough()})
	target := w.Nodes[0]
	target.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	const each = 60
	var qs []*QP
	for i := range 6 {
		p, _ := w.Connect(w.Nodes[1+i%3], target, QPOptions{Rd: 8})
		qs = append(qs, p)
		for k := range uint64(each) {
			p.Send(WR{Op: transport.OpFetchAdd, Local: uint64(i/3)*1024 + 8*k, Remote: 64, N: 8, Key: 7, Compare: 1})
		}
	}
	w.RunUntil(5*second, func() bool {
		for _, q := range qs {
			if len(q.Sends) < each {
				return false
			}
		}
		return true
	})
	seen := map[uint64]bool{}
	for i, q := range qs {
		for k := range uint64(each) {
			v := binary.LittleEndian.Uint64(q.N.Mem[uint64(i/3)*1024+8*k:])
			//= MR-MSG-033 MR-MSG-031
			if seen[v] {
				t.Errorf("two atomics got %d", v)
			}
			seen[v] = true
		}
	}
	//= MR-MSG-033 MR-MSG-031
	if v := binary.LittleEndian.Uint64(target.Mem[64:]); v != 6*each {
		t.Errorf("the cell is %d after %d additions", v, 6*each)
	}
}

// TestSpecReadOrder: READs run in order, after what precedes them; an atomic does not wait for them.
func TestSpecReadOrder(t *testing.T) {
	f, q := receiver(t, Config{Seed: 12})
	first := f.write(q, 0, "TA", 0, 7, bytesOf(1, 64))
	r1, r2 := f.read(q, 1, 0, 7, 64), f.read(q, 3, 0, 7, 64)
	at := f.atomic(q, 2, 0, 7, 1)
	xs := f.deliver(r2, at, r1)
	//= MR-MSG-032
	if n := len(data(xs)); n != 0 || f.n.Mem[0] != 0 {
		t.Errorf("%d responses before their turn", n)
	}
	xs = data(f.deliver(first))
	if len(xs) != 3 {
		t.Fatalf("responses %v", xs)
	}
	var reads []byte
	for _, x := range xs {
		if x.Op == wire.OpReadResp {
			reads = append(reads, byte(x.ReadNo), x.Payload[0])
		} else if x.Result != 0x0101010101010101 {
			t.Errorf("the atomic saw %#x", x.Result)
		}
	}
	//= MR-MSG-032 MR-MSG-031
	if !bytes.Equal(reads, []byte{0, 2, 2, 2}) { // the atomic ran first: READ bytes are read as they are sent
		t.Errorf("number and first byte of the READs: %v", reads)
	}
}

// TestSpecTooManyReads: more unexecuted READs and atomics than agreed are invalid; executed ones do not count.
func TestSpecTooManyReads(t *testing.T) {
	begin := func() (*forge, *QP) {
		f := newForge(t, Config{Seed: 13})
		f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		return f, f.qp(QPOptions{Rd: 2, Timeout: 22})
	}
	f, q := begin()
	for psn := range uint32(5) { // none of the responses is acknowledged
		p := f.read(q, psn, 0, 7, 8)
		//= MR-MSG-034
		f.want("one after the other", f.deliver(p), p, "ack")
	}
	f, q = begin()
	ps := []pkt.Packet{f.read(q, 1, 0, 7, 8), f.atomic(q, 2, 0, 7, 1), f.read(q, 3, 0, 7, 8), f.write(q, 0, "TA", 8, 7, nil)}
	f.deliver(ps[:3]...)
	xs := f.deliver(ps[3])
	//= MR-MSG-034
	f.want("three at a time", xs, ps[3], "INVALID")
	if !q.Failed {
		t.Error("the QP goes on")
	}
}
