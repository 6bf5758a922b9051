package rocev2_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// mix is a random run: both ends of several QPs send everything to each other, against a model of memory.
//
// A node's memory has, for each QP, a source area that nobody writes, a window that the peer's WRITEs go to, in order, a
// slot for each SEND, and a counter for atomics. Each operation has its own place, so that the end state is known.
type mix struct {
	w     *world
	r     *rng.Source
	flows []*flow
	each  func() // called in each step
}

type flow struct {
	p, q    *qp // from p to q
	base    uint64
	posted  int
	model   []byte // what q's window has to hold
	added   uint64
	recvs   []expect
	reads   []readBack
	ops     []transport.Op
	atomics []uint64 // where results land, in order
}

type expect struct {
	op  transport.Op
	n   uint32
	imm uint32
	at  uint64 // where its data landed; 0: none
	src uint64
}

type readBack struct{ local, remote, n uint64 }

const (
	areaSize   = 1 << 19
	areaSource = 0       // of the sender
	areaWindow = 1 << 17 // of the receiver: WRITEs
	areaRecv   = 2 << 17 // of the receiver: SENDs
	areaLand   = 3 << 17 // of the sender: READ data and atomic results
	counterAt  = areaWindow - 8
	opsPerFlow = 60
	maxLen     = 12_000
)

func newMix(seed uint64, l link.Spec, planes, pairs int, o options, engine func(*rocev2.Config)) *mix {
	m := &mix{w: newWorld(config{seed: seed, link: l, planes: planes, memory: (2*pairs + 1) * areaSize, engine: engine}), r: rng.New(seed, "mix")}
	for _, n := range m.w.nodes {
		for i := 0; i < len(n.Mem); i += 8 {
			binary.LittleEndian.PutUint64(n.Mem[i:], m.r.Uint64())
		}
	}
	for i := range pairs {
		p, q := m.w.connect(m.w.nodes[0], m.w.nodes[1], o)
		for j, x := range [][2]*qp{{p, q}, {q, p}} {
			f := &flow{p: x[0], q: x[1], base: uint64(2*i+j) * areaSize}
			f.model = bytes.Clone(f.q.n.Mem[f.base+areaWindow:][:1<<17])
			clear(f.q.n.Mem[f.base+counterAt:][:8])
			m.flows = append(m.flows, f)
		}
	}
	return m
}

// post sends the flow's next operation.
func (m *mix) post(f *flow, rnr bool) {
	n := uint32(m.r.IntN(maxLen))
	switch m.r.IntN(4) {
	case 0:
		n = uint32(m.r.IntN(70))
	case 1:
		n = uint32(m.r.IntN(3)) * 1024
	}
	src := f.base + areaSource + uint64(m.r.IntN(1<<17-maxLen-8))
	x := wr{id: uint64(f.posted), op: transport.Op(m.r.IntN(7)), local: src, n: n, key: 7, imm: m.r.Uint32()}
	if m.r.Chance(0.1) {
		x.flags |= transport.FlagFence
	}
	data := f.p.n.Mem[src : src+uint64(n)]
	at := uint64(m.r.IntN(1<<17 - maxLen))
	land := f.base + areaLand + uint64(f.posted)*2048
	switch {
	case x.op.IsWrite():
		x.remote = f.base + areaWindow + at
		copy(f.model[at:], data)
	case x.op == transport.OpRead: // of what nobody writes
		x.local, x.n = land, min(n, 2048)
		x.remote = f.base + areaSource + uint64(m.r.IntN(1<<16))
		f.reads = append(f.reads, readBack{land, x.remote, uint64(x.n)})
	case x.op.IsAtomic():
		x.op = transport.OpFetchAdd // CMP_SWAP of a running counter is tested by its result in TestAtomics
		x.local, x.n, x.remote, x.compare = land, 8, f.base+counterAt, uint64(1+m.r.IntN(1000))
		f.added += x.compare
		f.atomics = append(f.atomics, land)
	}
	if x.op.TakesRecv() {
		e := expect{op: x.op, n: x.n, at: f.base + areaRecv + uint64(len(f.recvs))*1024, src: src}
		if x.op.IsSend() {
			x.n = min(x.n, 1024)
			e.n = x.n
		} else {
			e.at = 0
		}
		if x.op != transport.OpSend {
			e.imm = x.imm
		}
		f.recvs = append(f.recvs, e)
		if !rnr {
			f.q.recv(uint64(len(f.recvs)-1), f.base+areaRecv+uint64(len(f.recvs)-1)*1024, 1024)
		}
	}
	f.ops = append(f.ops, x.op)
	f.p.send(x)
	f.posted++
}

func (m *mix) run(t *testing.T, rnr bool) {
	t.Helper()
	given := make([]int, len(m.flows))
	done := func() bool {
		if m.each != nil {
			m.each()
		}
		all := true
		for i, f := range m.flows {
			if f.posted < opsPerFlow && f.posted-len(f.p.sends) < 12 {
				m.post(f, rnr)
			}
			if rnr && given[i] < len(f.recvs) && m.r.Chance(0.02) {
				f.q.recv(uint64(given[i]), f.base+areaRecv+uint64(given[i])*1024, 1024)
				given[i]++
			}
			all = all && f.posted == opsPerFlow && len(f.p.sends) == opsPerFlow
		}
		return all
	}
	m.w.mustRun(t, 60*second, done)
	m.check(t)
}

func (m *mix) check(t *testing.T) {
	t.Helper()
	seed := m.w.cfg.seed
	for fi, f := range m.flows {
		for i, c := range f.p.sends {
			if c.id != uint64(i) || c.status != transport.OK || c.op != f.ops[i] {
				t.Fatalf("seed %d flow %d: send %d: %+v", seed, fi, i, c)
			}
		}
		if len(f.q.received) != len(f.recvs) {
			t.Fatalf("seed %d flow %d: %d of %d received", seed, fi, len(f.q.received), len(f.recvs))
		}
		mem := f.q.n.Mem
		for i, c := range f.q.received {
			x := f.recvs[i]
			if c.id != uint64(i) || c.status != transport.OK || c.op != x.op || c.n != x.n || c.imm != x.imm {
				t.Fatalf("seed %d flow %d: receive %d: %+v, want %+v", seed, fi, i, c, x)
			}
			if x.at != 0 && !bytes.Equal(mem[x.at:x.at+uint64(x.n)], f.p.n.Mem[x.src:x.src+uint64(x.n)]) {
				t.Fatalf("seed %d flow %d: receive %d: wrong bytes", seed, fi, i)
			}
		}
		if u64(mem, f.base+counterAt) != f.added {
			t.Fatalf("seed %d flow %d: counter %d, want %d", seed, fi, u64(mem, f.base+counterAt), f.added)
		}
		last := uint64(0)
		for i, at := range f.atomics {
			if v := u64(f.p.n.Mem, at); i > 0 && v <= last || i == 0 && v != 0 {
				t.Fatalf("seed %d flow %d: atomic %d returned %d after %d", seed, fi, i, v, last)
			} else {
				last = v
			}
		}
		if got := mem[f.base+areaWindow:][:1<<17-8]; !bytes.Equal(got, f.model[:1<<17-8]) {
			t.Fatalf("seed %d flow %d: window differs", seed, fi)
		}
		for i, x := range f.reads {
			if !bytes.Equal(f.p.n.Mem[x.local:x.local+x.n], mem[x.remote:x.remote+x.n]) {
				t.Fatalf("seed %d flow %d: READ %d differs", seed, fi, i)
			}
		}
		if f.p.errors != 0 {
			t.Fatalf("seed %d flow %d: %v", seed, fi, f.p.err)
		}
	}
	for _, n := range m.w.nodes {
		if n.e.InFlight() != 0 {
			t.Fatalf("seed %d: %d in flight", seed, n.e.InFlight())
		}
	}
}

func u64(m []byte, at uint64) uint64 {
	var v uint64
	for i := range 8 {
		v |= uint64(m[at+uint64(i)]) << (8 * i)
	}
	return v
}

// TestMix: all opcodes at once over bad links of every kind, the PSN wrapping on the way.
func TestMix(t *testing.T) {
	seeds := 6
	if testing.Short() {
		seeds = 2
	}
	bad := map[string]func(*link.Spec){
		"clean":     func(*link.Spec) {},
		"loss1":     func(s *link.Spec) { s.Loss = 0.01 },
		"loss5":     func(s *link.Spec) { s.Loss = 0.05 },
		"burst":     func(s *link.Spec) { s.Loss, s.Burst = 0.03, 4 },
		"reorder":   func(s *link.Spec) { s.Reorder = 0.02 },
		"duplicate": func(s *link.Spec) { s.Duplicate = 0.1 },
		"corrupt":   func(s *link.Spec) { s.Corrupt = 0.03 },
		"all": func(s *link.Spec) {
			s.Loss, s.Reorder, s.Duplicate, s.Corrupt, s.Jitter = 0.02, 0.02, 0.05, 0.02, 3*mono.Microsecond
		},
	}
	for name, f := range bad {
		for seed := range uint64(seeds) {
			for _, rnr := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/rnr=%v", name, seed, rnr), func(t *testing.T) {
					l := usual()
					f(&l)
					o := options{mtu: []int{256, 1024, 4096}[seed%3], psn: 0xFFFFFF - uint32(seed)*17, rd: []int{1, 2, 16}[seed%3], timeout: 10, retry: 7}
					if name != "clean" {
						o.timeout = 14
					}
					m := newMix(seed, l, 1, 2, o, func(c *rocev2.Config) {
						c.RTOMin = 100 * mono.Microsecond
						c.NAKOnce = seed%2 == 0
						if seed%4 == 3 {
							c.Window = 8192
						}
					})
					m.run(t, rnr)
				})
			}
		}
	}
}

// TestSameTrace: the same seed gives the same packets at the same times.
func TestSameTrace(t *testing.T) {
	l := usual()
	l.Loss, l.Reorder, l.Duplicate = 0.02, 0.01, 0.02
	one := func() (uint64, uint64) {
		m := newMix(5, l, 1, 2, options{mtu: 1024}, nil)
		m.run(t, true)
		return m.w.hash, m.w.wire
	}
	h1, n1 := one()
	if h2, n2 := one(); h1 != h2 || n1 != n2 {
		t.Errorf("%x of %d packets, %x of %d", h1, n1, h2, n2)
	}
}

// TestMixPlanes: planes go down and up all the time, announced to both ends, to one, or to none.
func TestMixPlanes(t *testing.T) {
	for seed := range uint64(8) {
		l := usual()
		l.Loss = 0.005
		m := newMix(seed, l, 3, 3, options{mtu: 1024, rd: 4, timeout: 12}, func(c *rocev2.Config) { c.RTOMin = 50 * mono.Microsecond })
		w := m.w
		down, next := -1, w.now
		tell := func(up bool) {
			for _, n := range w.nodes {
				if up || m.r.Chance(0.6) {
					n.e.SetPlane(w.now, down, up)
				}
			}
		}
		m.each = func() {
			if w.now < next {
				return
			}
			next = w.now.Add(mono.Duration(m.r.IntN(300_000)))
			if down >= 0 {
				w.setLink(0, 1, down, l)
				w.setLink(1, 0, down, l)
				tell(true)
				down = -1
				return
			}
			down = m.r.IntN(3)
			x := l
			x.Down = true
			w.setLink(0, 1, down, x)
			if m.r.Chance(0.7) {
				w.setLink(1, 0, down, x)
			}
			tell(false)
		}
		m.run(t, seed%2 == 0)
	}
}
