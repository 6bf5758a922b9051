package metaroce

import (
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// commit ends the work of a burst: memory first, then in PSN order what has become possible, then the answers. An
// answer leaves only after everything that the arrival unblocked is in memory (spec/06-messages.md).
func (e *Engine) commit() {
	o := &e.out
	if len(o.jobs) == 0 {
		return
	}
	o.committing = true
	if len(o.ops) > 0 {
		//= MR-REL-012 MR-MSG-040 MR-MSG-041
		e.host.DMA(o.ops)
	}
	for i := range o.jobs {
		e.settle(&o.jobs[i])
	}
	o.ops = o.ops[:0]
	for _, q := range o.touched {
		q.touched = false
		q.runChain()
	}
	for i := range o.jobs {
		e.answer(&o.jobs[i])
	}
	var last *assoc
	for i := range o.jobs {
		if a := o.jobs[i].a; a != last { // most bursts come from one peer
			a.reschedule()
			last = a
		}
	}
	clear(o.jobs)
	o.jobs, o.touched = o.jobs[:0], o.touched[:0]
	o.committing = false
}

// commitFirst ends the work of the burst so far, if there is any: before a QP is flushed, what came for it is in memory.
// Afterwards its buffers are the program's.
func (e *Engine) commitFirst() bool {
	if e.out.committing || len(e.out.jobs) == 0 {
		return false
	}
	e.commit()
	return true
}

// settle notes what the memory operations of a job came to.
func (e *Engine) settle(j *job) {
	if j.q.inc != j.inc {
		return
	}
	err := transport.MemOK
	for i := j.op; i < j.op+j.nops; i++ {
		if x := e.out.ops[i].Err; x != transport.MemOK && err == transport.MemOK {
			err = x
		}
	}
	if j.kind == jobResponse {
		j.q.landed(j, err == transport.MemOK)
		return
	}
	s := &j.q.rsp
	if j.q.state == StateErr || j.psn < s.slots.lo || j.psn >= s.slots.hi {
		return
	}
	x := s.slots.at(j.psn)
	switch {
	case err == transport.MemSkipped:
		// an earlier operation of the QP failed: the QP ends before this one's turn
		e.held.put(x.buf)
		*x = slot{}
		j.abandoned = true
	//= MR-MSG-043 MR-MSG-080
	case x.code != 0:
		x.st = slotBad
	case err != transport.MemOK && x.op >= wire.OpSend && x.op <= wire.OpSendInv:
		x.st, x.code, x.status = slotBad, wire.RefuseOp, transport.LocProtErr
	case err != transport.MemOK:
		x.st, x.code = slotBad, codeOf(err)
		if planted.Is(planted.FatalAtArrival) {
			j.q.enterFatal(j.psn, x.code, transport.RemAccessErr)
		}
	case waitsForTurn(x.op):
		x.st = slotQueued
	case x.write && j.nops == 0 && (x.buf != 0 || x.tail && x.n == 0):
		x.st = slotHeld
	default:
		x.st = slotPlaced
	}
}

// chainStep is one PSN whose turn has come and that needs memory.
type chainStep struct {
	psn      uint64
	op, nops int32
}

// runChain commits in PSN order everything whose turn has come.
func (q *QP) runChain() {
	e, s := q.e, &q.rsp
	if q.state < StateRTR || q.state == StateErr {
		return
	}
	for q.state != StateErr {
		o := &e.out
		o.chain, o.ops = o.chain[:0], o.ops[:0]
		// collect a run of steps; those without memory operations are part of it, to keep the order
		//= MR-MSG-030 MR-MSG-031
		for psn := s.exp; psn < s.slots.hi && len(o.chain) < cap(o.chain) && o.opsLeft() >= opsPerPacket; psn++ {
			x := s.slots.at(psn)
			if x.st == slotEmpty || x.st == slotBusy {
				break
			}
			c := chainStep{psn: psn, op: int32(len(o.ops))}
			//= MR-MSG-022 MR-MSG-023 MR-MSG-024 MR-VRB-031
			if x.st == slotHeld && x.n > 0 {
				q.place(&c.nops, x, psn, e.held.bytes(x.buf)[:x.n], uint32(x.swap), q.qpn, !planted.Is(planted.NoOverlapCheckAtCommit))
			} else if x.st == slotQueued && x.op != wire.OpRead {
				q.atomicOp(&c.nops, x)
			} else if x.st == slotQueued && x.n > 0 { // a READ that may not read ends the QP before anything later runs
				op := o.op(&c.nops, transport.MemCheckRead, q)
				op.Addr, op.RKey, op.Swap, op.Chain = x.addr, x.rkey, uint64(x.n), q.qpn
			}
			if x.code != 0 && x.st == slotHeld { // found bad just now
				e.held.put(x.buf)
				x.st, x.buf = slotBad, 0
				o.ops = o.ops[:c.op]
				c.nops = 0
			}
			o.chain = append(o.chain, c)
			if x.st == slotBad || x.op == wire.OpSendInv { // what follows may need the key that ends here
				break
			}
		}
		if len(o.chain) == 0 {
			break
		}
		if len(o.ops) > 0 {
			e.host.DMA(o.ops)
		}
		for i := range o.chain {
			if q.state == StateErr || !q.step(&o.chain[i]) {
				break
			}
		}
	}
	s.arr = s.exp
	e.out.ops = e.out.ops[:0]
}

func (q *QP) atomicOp(n *int32, x *slot) {
	op := q.e.out.op(n, transport.MemFetchAdd, q)
	//= MR-MSG-033
	op.Addr, op.RKey, op.Swap, op.Compare, op.Chain = x.addr, x.rkey, x.swap, x.swap, q.qpn
	if x.op == wire.OpCmpSwap {
		op.Kind, op.Compare = transport.MemCmpSwap, x.cmp
	}
}

// step ends one PSN: its memory is done. It reports false when the QP failed.
func (q *QP) step(c *chainStep) bool {
	e, s := q.e, &q.rsp
	x := s.slots.at(c.psn)
	if x.st == slotBad {
		st := x.status
		if st == transport.OK {
			st = transport.RemAccessErr
			if x.code == wire.RefuseInvalid {
				st = transport.RemInvReqErr
			}
		}
		q.enterFatal(c.psn, x.code, st)
		return false
	}
	for i := c.op; i < c.op+c.nops; i++ {
		//= MR-MSG-024
		if err := e.out.ops[i].Err; err != transport.MemOK && !planted.Is(planted.NoKeyRecheck) {
			code, st := codeOf(err), transport.RemAccessErr
			if code == wire.RefuseInvalid {
				st = transport.RemInvReqErr
			}
			q.enterFatal(c.psn, code, st)
			return false
		}
	}
	if takesRecv(x.op) && x.ssn != s.bound.lo { // not the receive whose turn it is: the peer counts wrongly
		q.enterFatal(c.psn, wire.RefuseInvalid, transport.RemInvReqErr)
		return false
	}
	if !s.follows(x) {
		q.enterFatal(c.psn, wire.RefuseInvalid, transport.RemInvReqErr)
		return false
	}
	if x.st == slotQueued && !q.queueRead(x, c) {
		q.enterFatal(c.psn, wire.RefuseInvalid, transport.RemInvReqErr)
		return false
	}
	if x.op == wire.OpSendInv {
		//= MR-MSG-054
		if err := e.invalidate(q, x.inv); err != transport.MemOK { // the peer may still use the key: nobody is told that it is dead
			q.enterFatal(c.psn, wire.RefuseAccess, transport.RemAccessErr)
			return false
		}
	}
	if !planted.Is(planted.HeldLeak) {
		e.held.put(x.buf)
	}
	s.exp++
	s.slots.lo = s.exp
	//= MR-MSG-051 MR-VRB-030
	if x.tail && takesRecv(x.op) {
		y := *x
		*x = slot{}
		q.completeRecv(&y)
		return true
	}
	*x = slot{}
	return true
}

// follows reports whether a packet continues the SEND under way, or begins one when there is none. A peer that leaves
// something out would have a receive complete with bytes in it that were never sent. WRITEs say for each packet where
// its bytes go; there nothing can be missing without the program's knowing.
func (s *responder) follows(x *slot) bool {
	send := x.op >= wire.OpSend && x.op <= wire.OpSendInv
	//= MR-MSG-035
	if !send {
		return !s.inSend
	}
	if x.off != s.sendOff || !x.tail && x.op != wire.OpSend {
		return false
	}
	if s.inSend, s.sendOff = !x.tail, x.off+x.n; x.tail {
		s.sendOff = 0
	}
	return true
}

// queueRead gives a READ its place in the order of responses; an atomic has run already. It reports false when more
// answers are kept than a peer that keeps to its window can leave untaken.
func (q *QP) queueRead(x *slot, c *chainStep) bool {
	s := &q.rsp
	s.waiting--
	//= MR-MSG-072
	q.forgetAnswered(s.nrd - min(s.nrd, uint64(s.maxRd)))
	if x.op == wire.OpRead {
		//= MR-MSG-032
		*s.read(uint64(s.nreads)) = rdReq{psn: c.psn, n: s.nrd, addr: x.addr, rkey: x.rkey, length: x.n}
		s.nreads++
	} else {
		n := s.resps.hi
		if n-s.resps.lo >= uint64(q.e.cfg.PSNWindow) {
			return false
		}
		s.resps.extend(n)
		*s.resps.at(n) = respPkt{n: s.nrd, psn: c.psn, atomic: true, last: true, result: q.e.out.ops[c.op].Result}
	}
	s.nrd++
	q.wake()
	return true
}

// forgetAnswered drops kept responses up to READ number n: a later request proves that the requester has them.
func (q *QP) forgetAnswered(n uint64) {
	s := &q.rsp
	for i := s.resps.lo; i < s.resps.hi; i++ {
		p := s.resps.at(i)
		if p.n > n || !p.sent {
			return
		}
		if !p.acked {
			p.acked = true
			s.putResp(q.e, p)
		}
		s.resps.lo = i + 1
	}
}

func takesRecv(o wire.Opcode) bool {
	return o == wire.OpSend || o == wire.OpSendImm || o == wire.OpSendInv || o == wire.OpWriteImm
}

// completeRecv reports the end of a message that took a receive.
func (q *QP) completeRecv(x *slot) {
	s := &q.rsp
	r := *s.bound.at(x.ssn)
	*s.bound.at(x.ssn) = nil
	for s.bound.lo < s.bound.hi && *s.bound.at(s.bound.lo) == nil {
		s.bound.lo++
	}
	//= MR-VRB-004
	info := transport.RecvInfo{Op: transport.OpSend, Length: x.off + x.n, SrcQP: q.remoteQPN, Solicited: x.se, Inline: x.inline}
	if planted.Is(planted.LengthOfLastPacket) {
		info.Length = x.n
	}
	switch x.op {
	case wire.OpSendImm:
		info.Op, info.Imm = transport.OpSendImm, x.imm
	case wire.OpSendInv:
		info.Op, info.Imm = transport.OpSendInv, x.inv
	case wire.OpWriteImm:
		info.Op, info.Imm = transport.OpWriteImm, x.imm
	default: // a plain SEND
	}
	q.e.host.RecvDone(q.owner, r, info)
}

func (e *Engine) invalidate(q *QP, rkey uint32) transport.MemErr {
	op := &e.out.inv // a slice of its own would be made with each call
	op[0] = transport.MemOp{Kind: transport.MemInvalidate, QP: q.owner, RKey: rkey}
	e.host.DMA(op[:])
	return op[0].Err
}

// enterFatal: the request at psn fails; everything before it is committed, READs before it still run.
func (q *QP) enterFatal(psn uint64, code wire.RefusalCode, st transport.Status) {
	s := &q.rsp
	//= MR-MSG-082
	if s.fatal == 0 || psn < s.fatalPSN {
		s.fatal, s.fatalPSN = code, psn
	}
	if q.state == StateErr {
		return
	}
	q.state = StateErr
	if psn >= s.slots.lo && psn < s.slots.hi {
		//= MR-QP-032
		if x := s.slots.at(psn); takesRecv(x.op) && x.status != transport.OK && x.ssn < s.bound.hi && x.ssn >= s.bound.lo {
			if r := *s.bound.at(x.ssn); r != nil {
				if !planted.Is(planted.ReceiveTwice) {
					*s.bound.at(x.ssn) = nil
				}
				q.e.host.RecvDone(q.owner, r, transport.RecvInfo{Status: x.status, SrcQP: q.remoteQPN})
			}
		}
	}
	//= MR-QP-022
	q.e.host.QPError(q.owner, true, st)
	q.flush()
	//= MR-MSG-084
	q.wake() // earlier READs
}

// answer acknowledges or refuses a job's packet.
func (e *Engine) answer(j *job) {
	q := j.q
	if j.kind == jobResponse {
		//= MR-REL-017
		j.a.acceptSeq(j.rp, j.seq, j.ts, j.flags, j.ce)
		return
	}
	if q.inc != j.inc {
		return
	}
	s := &q.rsp
	switch {
	//= MR-MSG-081 MR-MSG-083
	case q.state == StateErr && s.fatal != 0 && !planted.Is(planted.AckWhatReleased):
		// what released a failure is not acknowledged: a held packet of the failed request may have been, and the
		// acknowledgement would complete it. The refusal says that everything before was executed.
		j.a.refuseSeq(j.rp, j.seq, j.ce, q.fatalBlock())
	case q.state == StateErr && s.fatal == 0:
		e.C.RefusedNoQP++
		j.a.refuseSeq(j.rp, j.seq, j.ce, wire.RefusalBlock{QPN: q.remoteQPN, PSN: serial.Trunc(j.psn), Code: wire.RefuseNoQP})
	//= MR-REL-017
	case j.abandoned: // no room to work on it in this burst
		e.C.RefusedLater++
		j.a.refuseSeq(j.rp, j.seq, j.ce, wire.RefusalBlock{QPN: q.remoteQPN, PSN: serial.Trunc(j.psn), Code: wire.RefuseLater})
	case j.psn >= s.exp && j.psn < s.slots.hi && s.slots.at(j.psn).st == slotBad:
		// it fails when its turn comes; nothing is said before
	default:
		j.a.acceptSeq(j.rp, j.seq, j.ts, j.flags, j.ce)
	}
}
