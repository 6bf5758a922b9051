package rocev2_test

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/transporttest"
)

const (
	packetMax = 4096 + 124
	slots     = 16384
	second    = mono.Second
)

// config makes a world of nodes with real engines and plain memory, in virtual time, driven by one seed.
type config struct {
	seed   uint64
	nodes  int // 2 if 0
	planes int // 1 if 0
	link   link.Spec
	engine func(*rocev2.Config)
	memory int
	v6     bool
}

type world struct {
	now   mono.Time
	nodes []*node
	cfg   config
	links [][][]*hop // [src][dst][plane]
	hash  uint64
	wire  uint64
	tap   func(src, dst, plane int, p *pkt.Packet) bool // false: the packet is lost
}

type hop struct {
	l    *link.Link
	meta []pkt.Packet
	free []link.Handle
}

type node struct {
	w    *world
	i    int
	addr netip.Addr
	e    *rocev2.Engine
	transporttest.Memory
	qps   []*qp
	srqs  queues
	batch *pkt.Batch
	rx    []pkt.Packet
	done  []link.Handle
}

type qp struct {
	*rocev2.QP
	n        *node
	recvs    []*transport.RecvWR
	sends    []completion
	received []completion
	err      transport.Status
	errors   int
	onRecv   func(completion)
	onSend   func(completion)
}

type completion struct {
	id     uint64
	status transport.Status
	op     transport.Op
	n      uint32
	imm    uint32
	src    uint32
	at     mono.Time
	grh    bool
	se     bool
}

func newWorld(c config) *world {
	c.nodes, c.planes, c.memory = max(c.nodes, 2), max(c.planes, 1), max(c.memory, 4<<20)
	w := &world{now: 1_000_000, cfg: c}
	for i := range c.nodes {
		n := &node{w: w, i: i, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Memory: transporttest.Memory{Mem: make([]byte, c.memory), Keys: map[uint32]transporttest.Key{}},
			batch: pkt.NewBatch(pkt.Burst, packetMax), rx: make([]pkt.Packet, 0, pkt.Burst)}
		if c.v6 {
			n.addr = netip.AddrFrom16([16]byte{0xfd, 15: byte(i + 1)})
		}
		n.Keys[7] = transporttest.Key{Lo: 0, Hi: uint64(c.memory), Write: true, Read: true, Atomic: true}
		ec := rocev2.Config{Seed: c.seed, Addrs: []netip.Addr{n.addr}}
		for range c.planes {
			ec.Planes = append(ec.Planes, rocev2.PlaneConfig{PacketMax: packetMax, RateBps: c.link.RateBps})
		}
		if c.engine != nil {
			c.engine(&ec)
		}
		n.e = rocev2.New(ec, host{n})
		w.nodes = append(w.nodes, n)
	}
	for s := range c.nodes {
		w.links = append(w.links, make([][]*hop, c.nodes))
		for d := range c.nodes {
			for p := range c.planes {
				h := &hop{l: link.New(c.seed, fmt.Sprintf("link %d-%d/%d", s, d, p), slots), meta: make([]pkt.Packet, slots)}
				for i := range slots {
					h.free = append(h.free, link.Handle(slots-1-i))
				}
				w.links[s][d] = append(w.links[s][d], h)
			}
		}
	}
	w.setLinks(c.link)
	return w
}

func (w *world) setLinks(s link.Spec) {
	for i := range w.nodes {
		for j := range w.nodes {
			for p := range w.links[i][j] {
				w.setLink(i, j, p, s)
			}
		}
	}
}

func (w *world) setLink(src, dst, plane int, s link.Spec) {
	if err := w.links[src][dst][plane].l.Set(w.now, s); err != nil {
		panic(err)
	}
}

func (w *world) step() {
	for _, n := range w.nodes {
		n.step()
	}
}

func (w *world) advance() {
	next := w.now.Add(mono.Millisecond)
	for i, n := range w.nodes {
		next = mono.Min(next, n.e.NextTimeout())
		for d := range w.nodes {
			for _, h := range w.links[i][d] {
				next = mono.Min(next, h.l.NextWake())
			}
		}
	}
	w.now = max(w.now, next)
}

func (w *world) runUntil(limit mono.Duration, done func() bool) bool {
	for end := w.now.Add(limit); ; w.advance() {
		w.step()
		if done() {
			return true
		}
		if w.now >= end {
			return false
		}
	}
}

func (w *world) run(d mono.Duration) { w.runUntil(d, func() bool { return false }) }

func (n *node) step() {
	w := n.w
	for s := range w.nodes {
		for p, h := range w.links[s][n.i] {
			n.receive(s, p, h)
		}
	}
	n.e.HandleTimers(w.now)
	for range 64 {
		n.batch.Reset()
		n.e.Transmit(w.now, n.batch)
		if n.batch.N == 0 {
			return
		}
		for i := range n.batch.N {
			w.send(n, &n.batch.Pkts[i])
		}
	}
}

func (n *node) receive(src, plane int, h *hop) {
	w := n.w
	n.rx, n.done = n.rx[:0], n.done[:0]
	for {
		o, ok := h.l.Next(w.now)
		if ok && !o.Lost {
			p := h.meta[o.Handle]
			p.Time, p.Plane = w.now, uint8(plane)
			if o.CE {
				p.TOS |= pkt.CE
			}
			if o.Corrupt {
				b := int(o.Bit) % (8 * len(p.Data))
				p.Data = append([]byte(nil), p.Data...)
				p.Data[b/8] ^= 1 << (b % 8)
			}
			if w.tap == nil || w.tap(src, n.i, plane, &p) {
				w.note(src, n.i, plane, &p)
				n.rx = append(n.rx, p)
			}
		}
		if ok && o.Last {
			n.done = append(n.done, o.Handle)
		}
		if !ok || len(n.rx) == cap(n.rx) {
			n.e.HandlePackets(w.now, n.rx)
			n.rx = n.rx[:0]
			h.free = append(h.free, n.done...)
			n.done = n.done[:0]
			if !ok {
				return
			}
		}
	}
}

func (w *world) note(src, dst, plane int, p *pkt.Packet) {
	w.wire++
	x := w.hash ^ uint64(w.now) ^ uint64(src<<16|dst<<8|plane)<<40
	w.hash = (x ^ uint64(crc32.ChecksumIEEE(p.Data))) * 0x100000001b3
}

func (w *world) send(n *node, p *pkt.Packet) {
	for d, m := range w.nodes {
		if m.addr != p.Dst && !(p.Dst.IsMulticast() && d != n.i) {
			continue
		}
		h := w.links[n.i][d][p.Plane]
		if len(h.free) == 0 {
			panic("link has no slot")
		}
		i := h.free[len(h.free)-1]
		if h.l.Send(w.now, i, len(p.Data)+42, p.TOS&pkt.ECNMask != 0) != link.Queued {
			continue
		}
		h.free = h.free[:len(h.free)-1]
		data := append(h.meta[i].Data[:0], p.Data...)
		h.meta[i] = pkt.Packet{Data: data, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TOS: p.TOS, TTL: p.TTL, FlowLabel: p.FlowLabel}
	}
}

// host is a node's memory and queues as the engine sees them.
type host struct{ n *node }

func (h host) DMA(ops []transport.MemOp) { h.n.DMA(ops) }

func (h host) TakeRecv(o any) *transport.RecvWR {
	q := o.(*qp)
	if len(q.recvs) == 0 {
		return nil
	}
	r := q.recvs[0]
	q.recvs = q.recvs[1:]
	return r
}

func (h host) ReturnRecv(o any, r *transport.RecvWR) {
	q := o.(*qp)
	q.recvs = append([]*transport.RecvWR{r}, q.recvs...)
}

func (h host) RelaxedKey(any, uint32) bool  { return false }
func (h host) KeyOffset(any, uint32) uint64 { return 0 }
func (h host) ShiftedKeys(any) bool         { return false }

func (h host) RunLocal(o any, wr *transport.SendWR) transport.Status { return h.n.RunLocal(o, wr) }

func (h host) SendDone(o any, wr *transport.SendWR, s transport.Status) {
	q := o.(*qp)
	c := completion{id: wr.ID, status: s, op: wr.Op, n: wr.Length, at: h.n.w.now}
	if q.onSend != nil {
		q.onSend(c)
		return
	}
	q.sends = append(q.sends, c)
}

func (h host) RecvDone(o any, r *transport.RecvWR, i transport.RecvInfo) {
	q := o.(*qp)
	if i.Inline != nil {
		h.n.Scatter(r.SGE, 0, i.Inline)
	}
	c := completion{id: r.ID, status: i.Status, op: i.Op, n: i.Length, imm: i.Imm, src: i.SrcQP, at: h.n.w.now, grh: i.GRH, se: i.Solicited}
	if q.onRecv != nil {
		q.onRecv(c)
		return
	}
	q.received = append(q.received, c)
}

func (h host) QPError(o any, _ bool, s transport.Status) {
	q := o.(*qp)
	q.err = s
	q.errors++
}

func (h host) Event(transport.Event) {}

// options are what tests vary; zero values are usual ones.
type options struct {
	sq, mtu, rd int
	psn         uint32
	timeout     uint8 // 14 if 0; 255 = none
	retry       uint8 // 7 if 0; 255 = none
	rnrRetry    uint8 // 7 if 0; 255 = none
	minRNR      uint8 // 1 if 0
}

func (o *options) defaults() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.sq, 256)
	set(&o.mtu, 4096)
	set(&o.rd, 16)
	set8 := func(p *uint8, v uint8) {
		switch *p {
		case 0:
			*p = v
		case 255:
			*p = 0
		}
	}
	set8(&o.timeout, 14)
	set8(&o.retry, 7)
	set8(&o.rnrRetry, 7)
	set8(&o.minRNR, 1)
}

func (n *node) newQP(t transport.QPType, o options) *qp {
	q := &qp{n: n}
	q.QP = n.e.CreateQP(uint32(0x100+len(n.qps))|uint32(n.i)<<16, rocev2.QPConfig{Owner: q, Type: t, SQEntries: o.sq, MaxSendSGE: 4, SRQ: t == transport.XRCRecv})
	q.ToInit()
	n.qps = append(n.qps, q)
	return q
}

// connect makes a connected pair of RC QPs.
func (w *world) connect(a, b *node, o options) (*qp, *qp) {
	o.defaults()
	p, q := a.newQP(transport.RC, o), b.newQP(transport.RC, o)
	p.join(q, o)
	q.join(p, o)
	return p, q
}

func (q *qp) join(p *qp, o options) {
	q.ToRTR(q.n.w.now, rocev2.RTRAttr{Local: q.n.addr, Remote: p.n.addr, RemoteQPN: p.Number(), RQPSN: o.psn, PathMTU: o.mtu,
		MaxDestRdAtomic: o.rd, MinRNRTimer: o.minRNR})
	q.ToRTS(q.n.w.now, rocev2.RTSAttr{SQPSN: o.psn, Timeout: o.timeout, RetryCnt: o.retry, RNRRetry: o.rnrRetry, MaxRdAtomic: o.rd})
}

// wr is a send work request as tests write it.
type wr struct {
	id            uint64
	op            transport.Op
	local, remote uint64
	n             uint32
	key           uint32
	imm           uint32
	flags         uint16
	compare, swap uint64
	dest          transport.UDDest
	fail          transport.Status
	srqn          uint32
}

func (q *qp) send(x wr) bool {
	w := q.NextWR()
	if w == nil {
		return false
	}
	w.ID, w.Op, w.RemoteAddr, w.RKey, w.Imm, w.Flags, w.Compare, w.Swap, w.Length = x.id, x.op, x.remote, x.key, x.imm, x.flags, x.compare, x.swap, x.n
	w.Fail, w.SRQN = x.fail, x.srqn
	if w.Dest != nil {
		*w.Dest = x.dest
	}
	if x.n > 0 {
		w.SGE = append(w.SGE, transport.SGE{Addr: x.local, Length: x.n})
	}
	q.Post(q.n.w.now)
	return true
}

func (q *qp) recv(id, addr uint64, n uint32) {
	q.recvs = append(q.recvs, &transport.RecvWR{ID: id, SGE: []transport.SGE{{Addr: addr, Length: n}}, Length: n})
	q.RecvPosted(q.n.w.now, 1)
}

// usual is 100 Gbit/s with a round trip of about 8 µs.
func usual() link.Spec { return link.Spec{RateBps: 100e9, Delay: 3600 * mono.Nanosecond} }

func (w *world) mustRun(t *testing.T, limit mono.Duration, done func() bool) {
	t.Helper()
	if w.runUntil(limit, done) {
		return
	}
	for _, n := range w.nodes {
		for _, q := range n.qps {
			t.Log(q.Dump())
		}
		t.Logf("%+v", n.e.C)
	}
	t.Fatalf("seed %d: not done after %v", w.cfg.seed, limit)
}
