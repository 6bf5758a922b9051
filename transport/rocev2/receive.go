package rocev2

// The way in:
//  1. receive: decode, ICRC, partition, QP, peer; notifications of congestion are served at once;
//  2. what the packet asks for becomes a job with memory operations, in order of arrival;
//  3. commit, after the burst: one DMA call, then job by job what became of it.
// What a QP expects next moves on in step 2, so that a burst needs one DMA call; when an operation fails, the later jobs
// of its QP are void (their operations were skipped, being of one chain).

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

type jobKind uint8

const (
	jobRequest  jobKind = iota // at the responder, in order
	jobAck                     // at the requester
	jobResponse                // at the requester, in order
	jobGap                     // a response beyond a gap
	jobDatagram
	jobUC
)

// job is one packet between its arrival and what becomes of it.
type job struct {
	q        *QP
	recv     *transport.RecvWR
	inline   []byte // data of a short SEND, valid within the call
	psn      uint64
	res      uint64 // number of the READ or atomic
	op, nops int32
	inc      uint32
	length   uint32 // of the message so far
	imm      uint32
	srcQP    uint32
	kind     jobKind
	msg      uint8 // UC: which message
	wrOp     transport.Op
	status   transport.Status // why the receive fails
	syndrome ib.Syndrome      // jobAck: received; jobRequest: found bad at arrival
	last     bool             // ends its message
	se       bool
	ackReq   bool
	read     bool // READ or atomic
	bad      bool
	scratch  [8]byte
	grh      [ib.GRHLen]byte
}

// rx is the scratch of HandlePackets.
type rx struct {
	jobs     []job
	ops      []transport.MemOp
	settling int // jobs below are settled
	plane    int // that the packet came from
}

func (o *rx) init() {
	o.jobs = make([]job, 0, jobsMax)
	o.ops = make([]transport.MemOp, 0, opsPerJob*jobsMax)
}

func (o *rx) job(kind jobKind, q *QP) *job {
	o.jobs = o.jobs[:len(o.jobs)+1]
	j := &o.jobs[len(o.jobs)-1]
	j.q, j.recv, j.inline, j.op, j.nops, j.inc, j.kind = q, nil, nil, int32(len(o.ops)), 0, q.inc, kind
	j.msg, j.psn, j.res, j.length, j.imm, j.srcQP, j.wrOp, j.status, j.syndrome = 0, 0, 0, 0, 0, 0, transport.OpSend, transport.OK, 0
	j.last, j.se, j.ackReq, j.read, j.bad = false, false, false, false, false
	return j
}

func (o *rx) op(j *job) *transport.MemOp {
	o.ops = o.ops[:len(o.ops)+1]
	j.nops++
	return &o.ops[len(o.ops)-1]
}

// HandlePackets takes in received packets. Their bytes are not kept.
func (e *Engine) HandlePackets(now mono.Time, ps []pkt.Packet) {
	e.tick(now)
	for i := range ps {
		e.receive(&ps[i])
		// What follows an invalidation may need the key that ends there; of UC a WRITE may need no receive in the end.
		if n := len(e.in.jobs); n == cap(e.in.jobs) || n > 0 && (e.in.jobs[n-1].wrOp == transport.OpSendInv ||
			e.in.jobs[n-1].wrOp == transport.OpWriteImm && e.in.jobs[n-1].kind == jobUC) {
			e.commit()
		}
	}
	e.commit()
}

func (e *Engine) receive(p *pkt.Packet) {
	var h ib.Header
	payload, d := ib.Decode(p.Data, &h)
	//= MR-COEX-011
	if d == ib.Accepted && !e.cfg.NoICRC && !e.sum.Good(p) {
		d = ib.DropICRC
	}
	if d != ib.Accepted {
		e.C.Drop[d]++
		return
	}
	e.C.RxPackets++
	e.C.RxBytes += uint64(len(p.Data))
	// The default partition: we are a full member, so that limited members are heard, too.
	if h.Op != ib.CNP && h.PKey&0x7FFF != ib.PKeyDefault&0x7FFF {
		e.C.DropPKey++
		return
	}
	if h.DestQP == ib.MulticastQPN {
		e.onMulticast(p, &h, payload)
		return
	}
	q := e.qps[h.DestQP]
	if q == nil && h.DestQP == gsiQPN {
		e.onMAD(p, &h, payload)
		return
	}
	if q == nil {
		e.C.DropQPN++
		return
	}
	ud := h.Op == ib.UDSend || h.Op == ib.UDSendImm
	switch {
	case ud != (q.typ == transport.UD), h.Op != ib.CNP && h.Service != serviceOf(q.typ):
		e.C.DropType++
		return
	case ud:
		e.onDatagram(q, p, &h, payload)
		return
	case q.state < StateRTR:
		e.C.DropState++
		return
	case p.Src != q.remote || p.Dst != q.local:
		e.C.DropPeer++
		return
	}
	e.in.plane = int(p.Plane)
	if p.TOS&pkt.ECNMask == pkt.CE && len(payload) > 0 {
		q.marked()
	}
	switch {
	case h.Op == ib.CNP:
		e.C.RxCNP++
		if e.cfg.CC == CCDCQCN && q.plane >= 0 {
			q.flow.OnCNP(e.now)
		}
	case q.typ == transport.UC:
		e.onUC(q, &h, payload)
	case q.typ == transport.XRCSend && h.Op.IsRequest(), q.typ == transport.XRCRecv && h.Op.IsResponse():
		e.C.DropType++
	case h.Op == ib.Ack:
		e.onAck(q, &h)
	case h.Op.IsResponse():
		e.onResponse(q, &h, payload)
	default:
		e.onRequest(q, &h, payload)
	}
}

// marked notes that a packet met congestion: the sender is told, but not too often.
func (q *QP) marked() {
	e := q.e
	e.C.RxMarked++
	if q.cnpAt != 0 && e.now.Sub(q.cnpAt) < e.cfg.CNPSpacing {
		return
	}
	q.cnpAt, q.cnpDue = e.now, true
	q.answerSoon()
}

// commit ends the work of a burst: memory first, then in order what became of each packet.
func (e *Engine) commit() {
	o := &e.in
	if len(o.jobs) == 0 {
		return
	}
	if len(o.ops) > 0 {
		e.host.DMA(o.ops)
	}
	for i := range o.jobs {
		o.settling = i
		e.settle(&o.jobs[i])
	}
	for i := range o.jobs { // keep nothing of the packets and programs
		j := &o.jobs[i]
		j.q, j.recv, j.inline = nil, nil, nil
	}
	clear(o.ops)
	o.jobs, o.ops, o.settling = o.jobs[:0], o.ops[:0], 0
}

func (e *Engine) settle(j *job) {
	q := j.q
	if q.inc != j.inc || q.state == StateErr {
		return
	}
	err := transport.MemOK
	for i := j.op; i < j.op+j.nops; i++ {
		if x := e.in.ops[i].Err; x != transport.MemOK && err == transport.MemOK {
			err = x
		}
	}
	switch j.kind {
	case jobRequest:
		q.settleRequest(j, err)
	case jobAck:
		q.settleAck(j)
	case jobResponse:
		q.settleResponse(j, err)
	case jobGap:
		q.settleGap(j)
	case jobUC:
		q.settleUC(j, err)
	case jobDatagram:
		q.settleDatagram(j, err)
	}
}
