package transporttest

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

var (
	seeds = flag.Int("seeds", 60, "number of random runs")
	seed0 = flag.Uint64("seed", 1, "first seed")
)

// badNetwork draws a network: planes, loss, reordering, duplicates, corruption, a plane that comes and goes.
func badNetwork(r *rng.Source) (planes int, l link.Spec) {
	l = link.Spec{RateBps: 10e9 * uint64(1+r.IntN(10)), Delay: mono.Duration(1+r.IntN(20)) * mono.Microsecond, Queue: 64<<10 + r.IntN(256<<10)}
	pick := func(p *float64, most float64) {
		if r.IntN(2) == 0 {
			*p = most * r.Float64()
		}
	}
	pick(&l.Loss, 0.12)
	pick(&l.Reorder, 0.2)
	pick(&l.Duplicate, 0.1)
	pick(&l.Corrupt, 0.05)
	if r.IntN(4) == 0 {
		l.Burst = 1 + 6*r.Float64()
	}
	l.ReorderBy = mono.Duration(1+r.IntN(60)) * mono.Microsecond
	if r.IntN(3) == 0 {
		l.Jitter = mono.Duration(r.IntN(30)) * mono.Microsecond
	}
	return 1 + r.IntN(4), l
}

// model is what a QP's peer memory must be in the end: the requests applied one after the other.
type model struct {
	p, q   *QP
	region []byte // remote region of this QP, at base in q's node
	base   uint64
	sum    uint64 // of the atomic cell, the last 8 bytes of the region
	posted int
	recvs  []string // what each receive must hold
	src    uint64   // next local source address
	reads  map[uint64][]byte
	readAt map[uint64]uint64
	faa    map[uint64]uint64

	nextRecv, seenR, seenS int
}

const region = 64 << 10

// post draws one request. It reports false when the ring is full.
func (m *model) post(r *rng.Source) bool {
	a := m.p.N
	n := uint32(r.IntN(3000))
	switch r.IntN(6) {
	case 0:
		n = uint32(r.IntN(20))
	case 1:
		n = uint32(r.IntN(20000))
	}
	if m.src+uint64(n)+64 > m.base/region*(1<<20)+2<<20 {
		return false
	}
	src := m.src
	for i := range a.Mem[src : src+uint64(n)] {
		a.Mem[src+uint64(i)] = byte(r.Uint64())
	}
	id := uint64(m.posted)
	w := WR{ID: id, Local: src, N: n, Key: 9, Imm: uint32(id)}
	off := uint64(r.IntN(region - 8 - int(n)))
	w.Remote = m.base + off
	if r.IntN(8) == 0 {
		w.Flags = transport.FlagFence
	}
	switch k := r.IntN(10); {
	case k < 4:
		w.Op = transport.OpWrite
	case k < 5:
		w.Op = transport.OpWriteImm
	case k < 8:
		w.Op = transport.OpSend + transport.Op(r.IntN(2))
	case k < 9:
		w.Op, w.N, w.Remote, w.Compare = transport.OpFetchAdd, 8, m.base+region-8, uint64(1+r.IntN(5))
	default:
		w.Op = transport.OpRead
		w.Flags = transport.FlagFence
	}
	if !m.p.Send(w) {
		return false
	}
	m.src += uint64(n) + 64
	m.posted++
	switch {
	case w.Op.IsWrite():
		copy(m.region[off:], a.Mem[src:src+uint64(n)])
		if w.Op == transport.OpWriteImm {
			m.recvs = append(m.recvs, "")
		}
	case w.Op.IsSend():
		m.recvs = append(m.recvs, string(a.Mem[src:src+uint64(n)]))
	case w.Op == transport.OpFetchAdd:
		m.faa[id] = m.sum
		m.readAt[id] = src
		m.sum += w.Compare
		binary.LittleEndian.PutUint64(m.region[region-8:], m.sum)
	case w.Op == transport.OpRead:
		m.reads[id] = append([]byte(nil), m.region[off:off+uint64(n)]...)
		m.readAt[id] = src
	}
	return true
}

// TestRandom runs random programs of several QPs in both directions over random bad networks and compares everything
// that a program could see with the requests applied one after the other.
func TestRandom(t *testing.T) {
	for i := range *seeds {
		seed := *seed0 + uint64(i)
		if err := randomRun(seed, nil); err != nil {
			t.Errorf("%v\n  again: go test ./transport/transporttest -run 'TestRandom$' -seeds 1 -seed %d", err, seed)
		}
	}
}

// TestCanary plants faults that the checks of TestRandom must see: a byte that a WRITE leaves wrong, a SEND's byte, an
// atomic that runs twice, a receive that is reported twice.
func TestCanary(t *testing.T) {
	wrongByte := func(kind transport.MemKind) func(*World) {
		return func(w *World) {
			n, k := w.Nodes[1], 0
			n.After = func(op *transport.MemOp) {
				if op.Kind == kind && op.Err == transport.MemOK && len(op.Buf) > 0 {
					if k++; k == 5 && kind == transport.MemWrite {
						n.Mem[region-9] ^= 1 // under the atomic's cell, which ends the region
					} else if k == 5 {
						n.Mem[op.Recv.SGE[0].Addr+uint64(op.Off)] ^= 1
					}
				}
			}
		}
	}
	for name, plant := range map[string]func(*World){
		"byte of a WRITE": wrongByte(transport.MemWrite),
		"byte of a SEND":  wrongByte(transport.MemScatter),
		"atomic twice": func(w *World) {
			n, k := w.Nodes[1], 0
			n.After = func(op *transport.MemOp) {
				if k++; op.Kind == transport.MemFetchAdd && op.Err == transport.MemOK {
					n.Mem[op.Addr] += byte(op.Swap)
				}
			}
		},
		"receive twice": func(w *World) {
			for _, q := range w.Nodes[1].QPs {
				once := false
				q.OnRecv = func(c Completion) {
					if !once {
						once = true
						q.Received = append(q.Received, c)
					}
				}
			}
		},
	} {
		seen := 0
		for seed := range uint64(8) {
			if randomRun(1000+seed, plant) != nil {
				seen++
			}
		}
		if seen < 4 {
			t.Errorf("%s: seen in %d of 8 runs", name, seen)
		}
	}
}

// randomRun is one run; plant, where given, puts a fault into the world.
func randomRun(seed uint64, plant func(*World)) error {
	r := rng.New(seed, "random")
	planes, l := badNetwork(r)
	w := New(Config{Seed: seed, Planes: planes, Link: l, Engine: func(c *metaroce.Config) {
		if r.IntN(2) == 0 {
			c.FirstSeq = 0xFFFFFF00
		}
		if r.IntN(3) == 0 {
			c.HeldBuffers = 4
		}
		if r.IntN(3) == 0 {
			c.RespBuffers = 8
		}
		if r.IntN(3) == 0 {
			c.PSNWindow = 256
		}
	}})
	flap := planes > 1 && r.IntN(3) == 0
	var ms []*model
	nqp := 1 + r.IntN(4)
	for i := range nqp {
		a, b := w.Nodes[i%2], w.Nodes[1-i%2]
		o := QPOptions{SQ: 64, MTU: 256 << r.IntN(5), Rd: 1 + r.IntN(16), SQPSN: uint32(r.IntN(2)) * 0xFFFFF0, Timeout: 22, MinRNR: 1 + uint8(r.IntN(8))}
		p, q := w.Connect(a, b, o)
		m := &model{p: p, q: q, region: make([]byte, region), base: uint64(i/2) * region, src: 1<<20 + uint64(i/2)*(1<<20),
			reads: map[uint64][]byte{}, readAt: map[uint64]uint64{}, faa: map[uint64]uint64{}}
		b.Keys[9] = Key{0, 1 << 20, true, true, true, false}
		ms = append(ms, m)
	}
	for _, n := range w.Nodes {
		n.Mem = append(n.Mem, make([]byte, 4<<20)...)
	}
	if plant != nil {
		plant(w)
	}
	total := 60 + r.IntN(100)
	done := func() bool {
		for _, m := range ms {
			// keep up to 8 receives ahead, sometimes none, so that RNR happens
			for m.nextRecv < len(m.recvs)+4 && m.nextRecv-len(m.q.Received) < 60 && r.IntN(4) != 0 {
				m.q.Recv(uint64(m.nextRecv), m.recvAt(uint64(m.nextRecv)), 20000)
				m.nextRecv++
			}
			if err := m.drain(); err != nil {
				panic(err)
			}
			for m.posted < total && m.posted-len(m.p.Sends) < 32 && r.IntN(3) != 0 && len(m.recvs)-len(m.q.Received) < 40 {
				if !m.post(r) {
					break
				}
			}
		}
		for _, m := range ms {
			if m.posted < total && m.src+30000 < m.base/region*(1<<20)+2<<20 || len(m.p.Sends) < m.posted || len(m.q.Received) < len(m.recvs) {
				return false
			}
		}
		return true
	}
	var failure error
	ok := func() (ok bool) {
		defer func() {
			if e := recover(); e != nil {
				if err, is := e.(error); is {
					failure = err
					return
				}
				panic(e)
			}
		}()
		next := w.Now
		return w.RunUntil(4*second, func() bool {
			if flap && w.Now > next {
				s := l
				s.Down = r.IntN(2) == 0
				w.SetPlane(r.IntN(planes-1), s)
				next = w.Now.Add(mono.Duration(1+r.IntN(5)) * mono.Millisecond)
			}
			return done()
		})
	}()
	if failure != nil {
		return fmt.Errorf("seed %d: %w", seed, failure)
	}
	if !ok {
		s := fmt.Sprintf("seed %d: stuck, planes %d link %+v", seed, planes, l)
		for i, m := range ms {
			s += fmt.Sprintf("; qp %d: %d posted %d done %d of %d received %s", i, m.posted, len(m.p.Sends), len(m.q.Received), len(m.recvs), m.p.State())
			if len(m.p.Sends) < m.posted {
				s += "\n  " + m.p.Dump() + "\n  " + m.q.Dump()
			}
		}
		return fmt.Errorf("%s\n%+v\n%+v", s, w.Nodes[0].E.C, w.Nodes[1].E.C)
	}
	for i, m := range ms {
		if !bytes.Equal(m.region, m.q.N.Mem[m.base:m.base+region]) {
			k := 0
			for m.region[k] == m.q.N.Mem[m.base+uint64(k)] {
				k++
			}
			return fmt.Errorf("seed %d: qp %d: memory differs from byte %d on", seed, i, k)
		}
		for j, c := range m.p.Sends {
			if c.Status != transport.OK || c.ID != uint64(j) {
				return fmt.Errorf("seed %d: qp %d: completion %d is %+v", seed, i, j, c)
			}
		}
	}
	return quiet(w, seed)
}

// recvAt is where receive k puts its data: 64 buffers for each QP at the end of memory.
func (m *model) recvAt(k uint64) uint64 {
	return uint64(len(m.q.N.Mem)) - (k%64+1)*24000 - m.base/region*64*24000
}

// drain checks what has completed since the last look.
func (m *model) drain() error {
	for ; m.seenR < len(m.q.Received); m.seenR++ {
		c := m.q.Received[m.seenR]
		if c.Status != transport.OK || c.ID != uint64(m.seenR) {
			return fmt.Errorf("receive %d is %+v", m.seenR, c)
		}
		if m.seenR >= len(m.recvs) {
			return fmt.Errorf("receive %d of nothing: %+v", m.seenR, c)
		}
		want := m.recvs[m.seenR]
		if c.Op.IsSend() && (string(m.q.N.Mem[m.recvAt(c.ID):m.recvAt(c.ID)+uint64(c.Len)]) != want) {
			return fmt.Errorf("receive %d: %d bytes differ from the %d sent", m.seenR, c.Len, len(want))
		}
	}
	for ; m.seenS < len(m.p.Sends); m.seenS++ {
		c := m.p.Sends[m.seenS]
		at := m.readAt[c.ID]
		if want, ok := m.reads[c.ID]; ok && m.seenS == m.posted-1 && !bytes.Equal(want, m.p.N.Mem[at:at+uint64(len(want))]) {
			return fmt.Errorf("READ %d differs", c.ID)
		}
		if want, ok := m.faa[c.ID]; ok {
			if got := binary.LittleEndian.Uint64(m.p.N.Mem[at:]); got != want {
				return fmt.Errorf("FETCH_ADD %d returned %d, not %d", c.ID, got, want)
			}
		}
	}
	return nil
}

// quiet lets everything settle and checks that nothing is held any more.
func quiet(w *World, seed uint64) error {
	w.SetLinks(usual())
	w.RunUntil(second, func() bool { return w.Nodes[0].E.InFlight() == 0 && w.Nodes[1].E.InFlight() == 0 })
	for i, n := range w.Nodes {
		if f := n.E.InFlight(); f != 0 {
			return fmt.Errorf("seed %d: node %d: %d transmissions never end", seed, i, f)
		}
		for _, q := range n.QPs {
			q.Destroy(w.Now)
		}
		if l := n.E.Leaks(); l != "" {
			return fmt.Errorf("seed %d: node %d leaks %s", seed, i, l)
		}
	}
	return nil
}
