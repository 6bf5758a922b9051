package nic

import (
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// conn is a host's connection to another one: one QP, or several that its messages are cut over.
type conn struct {
	h    *host
	peer int32
	qps  []*lane
	err  transport.Status
}

// lane is one QP of a connection, and what waits for a place in its send queue. It is the QP's owner.
type lane struct {
	c     *conn
	qp    qp
	wait  []part // from head on
	head  int
	slots int  // free in the send queue
	since fifo // of a steady run: when the requests in the send queue were posted
	freed bool // in the host's list of those that may post

	// with a whole NIC
	dq  *device.QP
	sq  *hostqtest.Queue
	num uint32
	key uint32 // of the peer's region
}

// part is a message, or what of it goes over one QP.
type part struct {
	msg  int32
	size uint32
}

// fifo is times, oldest first.
type fifo struct {
	at   []mono.Time
	head int
}

func (f *fifo) push(t mono.Time) { f.at = append(f.at, t) }

func (f *fifo) pop() mono.Time {
	t := f.at[f.head]
	if f.head++; 2*f.head > len(f.at) {
		f.at = f.at[:copy(f.at, f.at[f.head:])]
		f.head = 0
	}
	return t
}

// partMost is the longest WRITE; longer messages are cut.
const partMost = 1 << 30

// sqEntries is the length of a send queue; more messages wait in front of it.
const sqEntries = 32

// message is what has become of one; each field belongs to one host.
type message struct {
	posted   mono.Time // of the sender
	acked    mono.Time
	received mono.Time // of the receiver
	pending  int32     // what it still waits for; of the sender
	toAck    int32     // parts without a completion; of the sender
	toCome   int32     // parts that have not come; of the receiver
	failed   bool      // of the sender
}

// fulfil counts one thing that a message of this host waited for. What is ready is posted by the next Step, which follows at
// once: engines are not asked for something within their own calls.
func (h *host) fulfil(now mono.Time, msg int32) {
	s := &h.w.msgs[msg]
	if s.pending--; s.pending > 0 {
		return
	}
	if d := h.w.graph.Messages[msg].Start; d > 0 {
		h.pushTimed(timed{now.Add(mono.Duration(d)), msg})
		return
	}
	h.ready = append(h.ready, msg)
}

// postAll posts what has become ready: messages, and what had no place in a send queue.
func (h *host) postAll(now mono.Time) {
	for i := 0; i < len(h.ready); i++ { // the end of a calculation may add more
		h.begin(now, h.ready[i])
	}
	h.ready = h.ready[:0]
	for _, l := range h.freed {
		l.freed = false
		l.post(now)
	}
	h.freed = h.freed[:0]
}

// begin posts a message, or ends it where it is a calculation: its time is over.
func (h *host) begin(now mono.Time, msg int32) {
	m, s := &h.w.graph.Messages[msg], &h.w.msgs[msg]
	s.posted = now
	if m.From == m.To {
		s.acked, s.received = now, now
		h.s.ended++
		h.ended(now, msg, false)
		h.ended(now, msg, true)
		return
	}
	c := h.conns[m.To]
	if c.err != 0 {
		h.failed(msg)
		return
	}
	n := h.w.parts(m.Size)
	s.toAck = int32(n)
	per := (m.Size + int64(n) - 1) / int64(n)
	left := m.Size
	for i := range n {
		size := min(per, left)
		left -= size
		l := c.qps[(i+int(msg))%len(c.qps)]
		l.wait = append(l.wait, part{msg, uint32(size)})
		l.post(now)
	}
}

// parts is how many WRITEs a message is cut into: one for each QP, and none longer than partMost.
func (w *World) parts(size int64) int {
	n := max(1, int((size+partMost-1)/partMost))
	if k := w.tx.p.Transport.QPs; k > n {
		n = max(1, min(k, int(size/int64(w.tx.p.Topology.MTU))))
	}
	return n
}

// post hands requests to the QP while its send queue has room.
func (l *lane) post(now mono.Time) {
	if l.sq != nil {
		l.put(now)
	}
	for l.head < len(l.wait) && l.slots > 0 {
		wr := l.qp.NextWR()
		if wr == nil {
			return
		}
		p := l.wait[l.head]
		l.head++
		wr.ID, wr.Op, wr.Length, wr.Imm, wr.RKey = uint64(p.msg), transport.OpWriteImm, p.size, uint32(p.msg), 1
		wr.RemoteAddr = l.c.h.posted << 31 // memory of its own for each
		wr.Flags = transport.FlagSignaled
		if p.size > 0 {
			wr.SGE = append(wr.SGE[:0], transport.SGE{Length: p.size})
		} else {
			wr.SGE = wr.SGE[:0]
		}
		l.c.h.posted++
		l.slots--
		if l.c.h.w.steady {
			l.since.push(now)
		}
		l.qp.Post(now)
	}
	if l.head == len(l.wait) {
		l.wait, l.head = l.wait[:0], 0
	}
}

// ended lets the messages go on that waited for one: received where it was for this host, acknowledged where it was sent by it.
func (h *host) ended(now mono.Time, msg int32, acked bool) {
	w := h.w
	for _, d := range w.next[w.nextAt[msg]:w.nextAt[msg+1]] {
		if d.Acked != acked {
			continue
		}
		if o := w.graph.Messages[d.Msg].From; o == h.id {
			h.fulfil(now, d.Msg)
		} else {
			w.net.Trigger(now, h.id, o, d.Msg)
		}
	}
}

// failed: it will not end.
func (h *host) failed(msg int32) {
	s := &h.w.msgs[msg]
	if !s.failed {
		s.failed = true
		h.s.ended++
	}
}

// DMA implements transport.Host: there is no memory, and everything may be done to it. What arrives is counted.
func (h *host) DMA(ops []transport.MemOp) {
	for i := range ops {
		o := &ops[i]
		o.Err = transport.MemOK
		if o.Kind == transport.MemWrite {
			h.placed += uint64(len(o.Buf))
		}
	}
}

// TakeRecv implements transport.Host: there is always one.
func (h *host) TakeRecv(any) *transport.RecvWR {
	s := h.s
	if n := len(s.recv); n > 0 {
		r := s.recv[n-1]
		s.recv = s.recv[:n-1]
		return r
	}
	return &transport.RecvWR{}
}

// ReturnRecv implements transport.Host.
func (h *host) ReturnRecv(_ any, r *transport.RecvWR) { h.s.recv = append(h.s.recv, r) }

// RecvDone implements transport.Host: a part of a message has come.
func (h *host) RecvDone(_ any, r *transport.RecvWR, i transport.RecvInfo) {
	h.s.recv = append(h.s.recv, r)
	if i.Status == transport.OK {
		h.came(h.now, int32(i.Imm))
	}
}

// came counts a part of a message that has come.
func (h *host) came(now mono.Time, msg int32) {
	if h.w.warming || h.w.steady {
		return
	}
	s := &h.w.msgs[msg]
	if s.toCome--; s.toCome == 0 {
		s.received = now
		h.ended(now, msg, false)
	}
}

// SendDone implements transport.Host: a part of a message is acknowledged.
func (h *host) SendDone(owner any, wr *transport.SendWR, st transport.Status) {
	h.sent(owner.(*lane), int32(wr.ID), wr.Length, st)
}

// sent counts a part of a message that is acknowledged, or has failed.
func (h *host) sent(l *lane, msg int32, length uint32, st transport.Status) {
	l.slots++
	if h.w.warming {
		h.s.ended++
		return
	}
	if st != transport.OK {
		h.broken(l, st)
		h.failed(msg)
		return
	}
	s := &h.w.msgs[msg]
	if h.w.steady {
		h.s.ended++
		if at := l.since.pop(); h.now >= h.w.warmAt {
			h.took = append(h.took, h.now.Sub(at))
		}
		l.wait = append(l.wait, part{msg, length})
	} else if s.toAck--; s.toAck == 0 {
		s.acked = h.now
		h.s.ended++
		h.ended(h.now, msg, true)
	}
	if !l.freed && l.head < len(l.wait) {
		l.freed = true
		h.freed = append(h.freed, l)
	}
}

// QPError implements transport.Host.
func (h *host) QPError(owner any, _ bool, st transport.Status) { h.broken(owner.(*lane), st) }

// broken: a QP carries nothing any more, and what waits for it will not end.
func (h *host) broken(l *lane, st transport.Status) {
	if l.c.err == 0 {
		l.c.err = st
	}
	for _, p := range l.wait[l.head:] {
		h.failed(p.msg)
	}
	l.wait, l.head = l.wait[:0], 0
}

// Event implements transport.Host.
func (h *host) Event(transport.Event) {}

// RelaxedKey implements transport.Host.
func (h *host) RelaxedKey(any, uint32) bool { return false }

// KeyOffset implements transport.Host.
func (h *host) KeyOffset(any, uint32) uint64 { return 0 }

// ShiftedKeys implements transport.Host.
func (h *host) ShiftedKeys(any) bool { return false }

// RunLocal implements transport.Host: there are no windows.
func (h *host) RunLocal(any, *transport.SendWR) transport.Status { return transport.LocQPOpErr }
