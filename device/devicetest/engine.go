// Package devicetest holds doubles for tests of the device and of what is above it.
package devicetest

import (
	"net/netip"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

// Net joins loop engines: a QP finds its peer by address and number. All of them must run on one goroutine.
type Net struct{ engines map[netip.Addr]*Engine }

// NewNet makes an empty network.
func NewNet() *Net { return &Net{engines: map[netip.Addr]*Engine{}} }

// Engine is a device.Engine without a wire: a posted request is carried out at once, in the peer's engine, within
// the next Transmit. Errors and receives that are missing behave as in verbs, retries are not modelled: a peer that
// is not there is RETRY_EXC at once.
type Engine struct {
	net  *Net
	host transport.Host
	qps  map[uint32]*QP
	work []*QP
	buf  [transport.GRHLen + 4096]byte
}

// New is a device.NewEngineFunc.
func (n *Net) New(c device.EngineConfig, h transport.Host) device.Engine {
	e := &Engine{net: n, host: h, qps: map[uint32]*QP{}}
	for _, a := range c.Addrs {
		n.engines[a] = e
	}
	return e
}

// QP is a queue pair of an Engine.
type QP struct {
	e        *Engine
	qpn      uint32
	owner    any
	state    device.State
	rtr      device.RTRAttr
	typ      transport.QPType
	qkey     uint32
	groups   []netip.Addr
	ring     []transport.SendWR
	head, n  int
	queued   bool
	RecvSeen uint32         // receives announced by RecvPosted
	Told     device.RTSAttr // by Change
}

// HandlePackets, HandleTimers and SetPlane do nothing: there are no packets.
func (e *Engine) HandlePackets(mono.Time, []pkt.Packet) {}

// HandleTimers does nothing.
func (e *Engine) HandleTimers(mono.Time) {}

// SetPlane does nothing.
func (e *Engine) SetPlane(mono.Time, int, bool) {}

// SetBusy implements device.Engine.
func (e *Engine) SetBusy(uint32) {}

// NextTimeout is at once while requests wait for a receive.
func (e *Engine) NextTimeout() mono.Time {
	if len(e.work) > 0 {
		return 0
	}
	return mono.Never
}

// Transmit carries out what was posted.
func (e *Engine) Transmit(mono.Time, *pkt.Batch) {
	work := e.work
	e.work = nil
	for _, q := range work {
		q.queued = false
		q.run()
	}
}

// CreateQP makes a QP.
func (e *Engine) CreateQP(qpn uint32, c device.EngineQPConfig) device.EngineQP {
	q := &QP{e: e, qpn: qpn, typ: c.Type, owner: c.Owner, ring: make([]transport.SendWR, c.SQEntries)}
	for i := range q.ring {
		q.ring[i].SGE = make([]transport.SGE, 0, c.MaxSendSGE)
		if c.Type == transport.UD {
			q.ring[i].Dest = new(transport.UDDest)
		}
	}
	e.qps[qpn] = q
	return q
}

// ToInit enters INIT.
func (q *QP) ToInit() { q.state = device.Init }

// ToRTR enters RTR.
func (q *QP) ToRTR(_ mono.Time, a device.RTRAttr) bool {
	q.state, q.rtr = device.RTR, a
	return true
}

// ToRTS enters RTS.
func (q *QP) ToRTS(mono.Time, device.RTSAttr) {
	q.state = device.RTS
	q.queue()
}

// ToSQD enters SQD.
func (q *QP) ToSQD() { q.state = device.SQD }

// Resume leaves SQD.
func (q *QP) Resume(mono.Time) {
	q.state = device.RTS
	q.queue()
}

// Change takes over the addresses: nothing waits here.
func (q *QP) Change(_ mono.Time, a device.RTRAttr, s device.RTSAttr) bool {
	q.rtr, q.Told = a, s
	return true
}

// SetQKey implements device.EngineQP.
func (q *QP) SetQKey(k uint32) { q.qkey = k }

// ToError flushes what is posted.
func (q *QP) ToError(mono.Time) {
	q.state = device.Err
	for q.n > 0 {
		q.done(transport.WRFlushErr)
	}
}

// Reset forgets what is posted.
func (q *QP) Reset(mono.Time) { q.state, q.n, q.RecvSeen = device.Reset, 0, 0 }

// Destroy ends the QP.
func (q *QP) Destroy(now mono.Time) {
	q.Reset(now)
	delete(q.e.qps, q.qpn)
}

// NextWR returns a free slot.
func (q *QP) NextWR() *transport.SendWR {
	if q.n == len(q.ring) {
		return nil
	}
	return &q.ring[(q.head+q.n)%len(q.ring)]
}

// Post commits it.
func (q *QP) Post(mono.Time) {
	q.n++
	q.queue()
}

// RecvPosted wakes the peer, which may wait for a receive.
func (q *QP) RecvPosted(_ mono.Time, n uint32) {
	q.RecvSeen += n
	if p := q.peer(); p != nil {
		p.queue()
	}
}

func (q *QP) queue() {
	if !q.queued && q.n > 0 {
		q.queued = true
		q.e.work = append(q.e.work, q)
	}
}

func (q *QP) peer() *QP {
	e := q.e.net.engines[q.rtr.RemoteAddr]
	if e == nil {
		return nil
	}
	return e.qps[q.rtr.RemoteQPN]
}

func (q *QP) done(s transport.Status) {
	wr := &q.ring[q.head]
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	q.e.host.SendDone(q.owner, wr, s)
}

// run carries out requests until one must wait.
func (q *QP) run() {
	for q.state == device.RTS && q.n > 0 {
		wr := &q.ring[q.head]
		s, wait := wr.Fail, false
		if s == transport.OK {
			s, wait = q.execute(wr)
		}
		if wait {
			return
		}
		q.done(s)
		if s != transport.OK {
			q.state = device.Err
			q.e.host.QPError(q.owner, false, s)
			q.ToError(0)
		}
	}
}

// execute moves the bytes of one request. wait: no receive is there yet.
func (q *QP) execute(wr *transport.SendWR) (s transport.Status, wait bool) {
	if q.typ == transport.UD {
		return q.datagram(wr), false
	}
	p := q.peer()
	if p == nil || p.state != device.RTR && p.state != device.RTS || p.rtr.RemoteQPN != q.qpn {
		return transport.RetryExcErr, false
	}
	var r *transport.RecvWR
	if wr.Op.TakesRecv() {
		if r = p.e.host.TakeRecv(p.owner); r == nil {
			return transport.OK, true
		}
		if r.Fail != transport.OK || wr.Op.IsSend() && r.Length < wr.Length {
			p.fail(r, transport.LocLenErr)
			return transport.RemInvReqErr, false
		}
	}
	switch {
	case wr.Op.IsAtomic():
		s = q.atomic(p, wr)
	case wr.Op == transport.OpRead:
		s = q.move(p, wr, r, p.e.host, p.owner, transport.MemRead, q.e.host, q.owner, transport.MemLand)
	case wr.Op.IsWrite():
		s = q.move(p, wr, r, q.e.host, q.owner, transport.MemGather, p.e.host, p.owner, transport.MemWrite)
	default:
		s = q.move(p, wr, r, q.e.host, q.owner, transport.MemGather, p.e.host, p.owner, transport.MemScatter)
	}
	if s == transport.OK && r != nil {
		p.e.host.RecvDone(p.owner, r, transport.RecvInfo{Op: wr.Op, Length: wr.Length, Imm: wr.Imm, SrcQP: q.qpn, Solicited: wr.Flags&transport.FlagSolicited != 0})
	}
	return s, false
}

// fail ends p, which found a fault serving q.
func (p *QP) fail(r *transport.RecvWR, s transport.Status) {
	p.state = device.Err
	if r != nil {
		p.e.host.RecvDone(p.owner, r, transport.RecvInfo{Status: s})
	}
	p.e.host.QPError(p.owner, true, s)
	p.ToError(0)
}

// move copies a message, 4 KiB at a time, from one host's memory to another's.
func (q *QP) move(p *QP, wr *transport.SendWR, r *transport.RecvWR, from transport.Host, fromQP any, get transport.MemKind, to transport.Host, toQP any, put transport.MemKind) transport.Status {
	var op [1]transport.MemOp
	for off := uint32(0); off < wr.Length; {
		b := q.e.buf[:min(uint32(len(q.e.buf)), wr.Length-off)]
		for _, step := range []struct {
			host transport.Host
			qp   any
			kind transport.MemKind
		}{{from, fromQP, get}, {to, toQP, put}} {
			op[0] = transport.MemOp{QP: step.qp, WR: wr, Recv: r, Buf: b, Off: off, Addr: wr.RemoteAddr + uint64(off), RKey: wr.RKey, Kind: step.kind}
			step.host.DMA(op[:])
			if op[0].Err == transport.MemOK {
				continue
			}
			if step.qp == q.owner {
				return transport.LocProtErr
			}
			p.fail(r, transport.RemAccessErr)
			return transport.RemAccessErr
		}
		off += uint32(len(b))
	}
	return transport.OK
}

func (q *QP) atomic(p *QP, wr *transport.SendWR) transport.Status {
	kind := transport.MemFetchAdd
	if wr.Op == transport.OpCmpSwap {
		kind = transport.MemCmpSwap
	}
	op := []transport.MemOp{{QP: p.owner, Kind: kind, Addr: wr.RemoteAddr, RKey: wr.RKey, Compare: wr.Compare, Swap: wr.Swap}}
	p.e.host.DMA(op)
	switch op[0].Err {
	case transport.MemOK:
	case transport.MemInvalid:
		p.fail(nil, transport.RemInvReqErr)
		return transport.RemInvReqErr
	case transport.MemAccess, transport.MemFault, transport.MemSkipped:
		p.fail(nil, transport.RemAccessErr)
		return transport.RemAccessErr
	}
	for i := range 8 {
		q.e.buf[i] = byte(op[0].Result >> (8 * i))
	}
	land := []transport.MemOp{{QP: q.owner, WR: wr, Buf: q.e.buf[:8], Kind: transport.MemLand}}
	q.e.host.DMA(land)
	if land[0].Err != transport.MemOK {
		return transport.LocProtErr
	}
	return transport.OK
}
