package metaroce

import (
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// slotState is what became of one PSN that has arrived.
type slotState uint8

const (
	slotEmpty  slotState = iota
	slotBusy             // its memory operation runs in this call
	slotPlaced           // in memory; nothing to do when its turn comes but to count it
	slotHeld             // tail of a WRITE that waits for its turn
	slotQueued           // READ or atomic that waits for its turn
	slotBad              // arrived, will fail when its turn comes; no answer before
)

// slot is one PSN ahead of the responder's cumulative point.
type slot struct {
	addr, swap, cmp uint64 // swap of a WRITE: bytes to the end of its message
	ssn             uint64
	inline          []byte // data of a short SEND, valid within the call that brought it
	rkey, n, off    uint32
	imm, inv        uint32
	buf             int32 // held data
	op              wire.Opcode
	code            wire.RefusalCode
	status          transport.Status // local, with slotBad
	st              slotState
	tail, se        bool
	write           bool // its bytes count for the overlap rule
}

// responder is the receiving half of a QP.
type responder struct {
	exp    uint64 // lowest PSN that has not arrived and been committed
	arr    uint64 // within a call: all below have arrived and are in memory, or will be by operations already queued in order
	top    uint64 // one past the highest PSN that arrived
	slots  ring[slot]
	wrote  ring[wroteBlock]        // where the WRITEs among them went
	bound  ring[*transport.RecvWR] // by send number; lo = lowest not completed
	nbind  uint64                  // next send number without a receive
	posted uint64                  // receives posted since RESET
	told   uint64                  // posted, as last told to the peer

	inSend   bool   // a SEND is committed in part
	sendOff  uint32 // where its next packet begins
	nrd      uint64 // number of the next READ or atomic in order
	maxRd    int
	waiting  int     // READs and atomics that arrived and have not had their turn
	reads    []rdReq // a ring, a power of two
	readHead uint64
	nreads   int
	resps    ring[respPkt]
	respNext uint64
	rrtx     fifo
	bufs     int // response buffers it holds

	minRNR   uint8
	fatal    wire.RefusalCode
	fatalPSN uint64
}

func (s *responder) start(psn0 uint64, maxRd int, minRNR uint8) {
	s.exp, s.arr, s.top = psn0, psn0, psn0
	s.slots.init(psn0)
	s.wrote.init(psn0 >> wroteShift)
	s.resps.init(firstResp)
	s.respNext = firstResp
	s.nrd = firstSSN
	s.maxRd = min(max(maxRd, 0), rdMax)
	s.reads = roomFor(s.reads, s.readHead, s.maxRd)
	s.minRNR = minRNR
}

// read is the i-th oldest accepted READ.
func (s *responder) read(i uint64) *rdReq { return &s.reads[(s.readHead+i)&uint64(len(s.reads)-1)] }

func (s *responder) oldestRead() *rdReq { return s.read(0) }

// drop forgets what arrived and has not had its turn. Accepted READs go on when the QP failed by a peer's fault.
func (s *responder) drop(e *Engine) {
	for n := s.slots.lo; n < s.slots.hi; n++ {
		x := s.slots.at(n)
		e.held.put(x.buf)
		*x = slot{}
	}
	s.slots.lo, s.slots.hi = s.exp, s.exp
	s.arr, s.top, s.waiting = s.exp, s.exp, 0
	if s.fatal == 0 {
		s.nreads = 0
		s.dropResponses(e, s.resps.lo)
	}
}

// dropResponses frees the response packets from number n on.
func (s *responder) dropResponses(e *Engine, n uint64) {
	for i := n; i < s.resps.hi; i++ {
		s.putResp(e, s.resps.at(i))
	}
	s.resps.hi = max(n, s.resps.lo)
	s.respNext = min(s.respNext, s.resps.hi)
}

// free gives back every buffer.
func (s *responder) free(e *Engine) {
	s.fatal = 0
	s.drop(e)
}

// onRequest handles one request packet: checks, binding, and the memory operation that places it.
func (e *Engine) onRequest(a *assoc, rp *rxPath, h *wire.Header, payload []byte, p *pkt.Packet) {
	q := e.QP(h.DestQP)
	//= MR-MSG-087 MR-ASC-073 MR-QP-002 MR-QP-003 MR-QP-004
	if q == nil || q.a != a || q.state < StateRTR {
		e.C.RefusedNoQP++
		if q != nil && q.state < StateRTR {
			e.endLife(q.qpn)
		}
		if planted.Is(planted.UnknownQPSilent) {
			return
		}
		a.refuse(rp, h, p, wire.RefusalBlock{PSN: h.PSN, Code: wire.RefuseNoQP})
		return
	}
	//= MR-MSG-095
	if q.before(h.TS) && !planted.Is(planted.OldRequestsRun) {
		e.C.DropStaleQP++
		a.refuse(rp, h, p, wire.RefusalBlock{QPN: q.remoteQPN, PSN: h.PSN, Code: wire.RefuseLater})
		return
	}
	s := &q.rsp
	psn := h.PSN.Expand(s.exp)
	if q.state == StateErr {
		q.answerFailed(a, rp, h, p)
		return
	}
	switch {
	//= MR-MSG-045 MR-REL-052
	case psn < s.exp:
		e.C.DupPSN++
		if planted.Is(planted.AtomicTwice) && waitsForTurn(h.Op) && h.Op != wire.OpRead {
			q.plantAtomicAgain(h)
		}
		if planted.Is(planted.DuplicateNotAcked) {
			return
		}
		a.accept(rp, h, p)
		return
	//= MR-REL-016 MR-REL-051
	case psn >= s.exp+uint64(e.cfg.PSNWindow):
		e.C.DropAhead++
		return
	}
	if psn < s.slots.hi {
		switch s.slots.at(psn).st {
		case slotEmpty:
		//= MR-MSG-042 MR-MSG-043
		case slotBusy, slotBad: // its original is in work, or will fail when its turn comes: no answer before
			e.C.DropBusy++
			return
		default:
			e.C.DupPSN++
			a.accept(rp, h, p)
			return
		}
	}
	if e.out.opsLeft() < opsPerPacket {
		e.C.DropOps++
		return
	}
	q.talked, q.served = q.talked || a.state == assocUp, true
	if q.overBusy(psn, h, len(payload)) {
		e.commit()
		e.onRequest(a, rp, h, payload, p)
		return
	}
	q.take(a, rp, h, payload, p, psn)
}

// answerFailed: a failed QP answers every packet, or the loss of its one answer would hang the peer or lie to it.
func (q *QP) answerFailed(a *assoc, rp *rxPath, h *wire.Header, p *pkt.Packet) {
	s := &q.rsp
	if s.fatal == 0 {
		q.e.C.RefusedNoQP++
		//= MR-MSG-087 MR-QP-023
		a.refuse(rp, h, p, wire.RefusalBlock{QPN: q.remoteQPN, PSN: h.PSN, Code: wire.RefuseNoQP})
		return
	}
	if planted.Is(planted.FatalRefusalOnce) && q.e.C.RefusedFatal > 0 {
		return
	}
	//= MR-MSG-083
	a.refuse(rp, h, p, q.fatalBlock()) // cumulative: right for PSNs before the failed one, too
}

func (q *QP) fatalBlock() wire.RefusalBlock {
	q.e.C.RefusedFatal++
	//= MR-MSG-081
	return wire.RefusalBlock{QPN: q.remoteQPN, PSN: serial.Trunc(q.rsp.fatalPSN), Code: q.rsp.fatal, InOrder: true}
}

// relaxes reports whether the last packet of a WRITE need not wait for its turn: its region says so, and no atomic may be
// met.
func (q *QP) relaxes(h *wire.Header, n uint32, inTurn bool) bool {
	//= MR-MSG-022
	return n > 0 && (h.Flags&wire.FlagAtomicPending == 0 || planted.Is(planted.RelaxedBypassesAtomic)) && h.Flags&wire.FlagTail != 0 && !inTurn &&
		q.e.host.RelaxedKey(q.owner, h.RKey)
}

// holds reports whether a packet of a WRITE waits for its turn: the last one of a message, and each where the peer cannot
// see whether it meets an atomic that has not run. Those that relaxes names do not come here.
func (q *QP) holds(h *wire.Header, inTurn bool) bool {
	if inTurn {
		return false
	}
	//= MR-MSG-037
	if h.Flags&wire.FlagAtomicPending != 0 && !planted.Is(planted.AliasBypassesAtomic) && q.e.host.ShiftedKeys(q.owner) {
		return true
	}
	return h.Flags&wire.FlagTail != 0 && !planted.Is(planted.TailEarly)
}

// keep copies a payload that waits for its turn, and returns its buffer; 0 when there is none, which the peer is told.
func (q *QP) keep(a *assoc, rp *rxPath, h *wire.Header, payload []byte, p *pkt.Packet) int32 {
	e := q.e
	//= MR-MSG-027 MR-MSG-028
	held := e.held.get()
	switch {
	case held != 0:
		copy(e.held.bytes(held), payload)
		e.C.HeldPackets++
	case planted.Is(planted.HeldFullAcked):
		e.C.HeldFull++
		a.accept(rp, h, p)
	default:
		e.C.HeldFull++
		e.C.RefusedLater++
		a.refuse(rp, h, p, wire.RefusalBlock{QPN: q.remoteQPN, PSN: h.PSN, Code: wire.RefuseLater})
	}
	return held
}

// take accepts a packet that is new.
func (q *QP) take(a *assoc, rp *rxPath, h *wire.Header, payload []byte, p *pkt.Packet, psn uint64) {
	e, s := q.e, &q.rsp
	n := uint32(len(payload))
	tail := h.Flags&wire.FlagTail != 0
	var recv *transport.RecvWR
	var ssn uint64
	var code wire.RefusalCode
	var held int32
	takes := h.Op == wire.OpSend || h.Op == wire.OpSendImm || h.Op == wire.OpSendInv || h.Op == wire.OpWriteImm
	if takes {
		ssn = serial.Expand32(h.SSN, s.bound.lo)
		if ssn < s.bound.lo || ssn >= s.bound.lo+uint64(e.cfg.PSNWindow) {
			code = wire.RefuseInvalid
		} else if recv = q.bind(ssn); recv == nil {
			//= MR-MSG-044 MR-MSG-052 MR-MSG-067
			e.C.RefusedRNR++
			a.refuse(rp, h, p, wire.RefusalBlock{QPN: q.remoteQPN, PSN: h.PSN, Code: wire.RefuseRNR, Timer: s.minRNR, InOrder: s.inOrder(psn)})
			return
		}
	}
	inTurn := psn == s.arr
	write := h.Op == wire.OpWrite || h.Op == wire.OpWriteImm
	relaxed := write && q.relaxes(h, n, inTurn)
	hold := write && !relaxed && q.holds(h, inTurn)
	if hold && n > 0 && code == 0 {
		if held = q.keep(a, rp, h, payload, p); held == 0 {
			return
		}
	}
	if planted.Is(planted.InvalidateAtArrival) && h.Op == wire.OpSendInv {
		e.invalidate(q, h.Inv)
	}
	s.slots.extend(psn)
	x := s.slots.at(psn) // empty: all zero
	x.st, x.op, x.addr, x.rkey, x.n, x.off, x.imm, x.inv, x.tail = slotBusy, h.Op, h.VA, h.RKey, n, h.Off, h.Imm, h.Inv, tail
	//= MR-WIRE-023
	x.se, x.ssn, x.code, x.buf = h.SE && !planted.Is(planted.SolicitedLost), ssn, code, held
	j := e.out.job(jobRequest, q, a, rp, h, p)
	j.psn = psn
	chain := uint32(0)
	if inTurn {
		chain = q.qpn
	}
	switch {
	case x.code == 0 && write:
		q.takeWrite(x, h, payload, j, hold, relaxed, chain)
	case x.code == 0 && takes:
		q.takeSend(x, recv, payload, j, inTurn, chain)
	case x.code == 0:
		q.takeRead(x, h)
	}
	if takes && !q.srq && h.Flags&wire.FlagAckReq != 0 { // the peer may have stopped because word of the limit was lost
		a.rx.noteLimit(q)
	}
	s.top = max(s.top, psn+1)
	if x.write && x.buf == 0 && x.n > 0 && !inTurn {
		s.noteWrite(psn, x)
	}
	//= MR-MSG-054
	if inTurn && !waitsForTurn(h.Op) && h.Op != wire.OpSendInv && x.code == 0 { // what follows an invalidation waits for it
		q.arrive()
	}
}

// inOrder reports whether a PSN is the lowest that has not arrived.
func (s *responder) inOrder(psn uint64) bool {
	//= MR-MSG-067
	for n := s.exp; n < psn; n++ {
		if n >= s.slots.hi || s.slots.at(n).st == slotEmpty {
			return false
		}
	}
	return true
}

// arrive moves arr past a packet whose operation is queued in its turn, and past what is in memory behind it.
func (q *QP) arrive() {
	s := &q.rsp
	s.arr++
	for s.arr < s.slots.hi {
		if x := s.slots.at(s.arr); x.st != slotPlaced || x.op == wire.OpSendInv {
			return
		}
		s.arr++
	}
}

// takeWrite places the bytes of a WRITE packet, unless they are held for their turn.
func (q *QP) takeWrite(x *slot, h *wire.Header, payload []byte, j *job, hold, relaxed bool, chain uint32) {
	if x.tail {
		q.e.C.RxWrites++
	}
	if len(payload) > q.mtuMax() || h.Len < uint32(len(payload)) || x.tail != (h.Len == uint32(len(payload))) {
		x.code = wire.RefuseInvalid
		return
	}
	//= MR-MSG-026
	x.write = !relaxed
	x.swap = uint64(h.Len) // when its turn comes, all of its message must be in bounds still
	//= MR-MSG-020 MR-MSG-021 MR-MSG-022 MR-VRB-005
	if !hold && len(payload) > 0 {
		q.place(&j.nops, x, j.psn, payload, h.Len, chain, !relaxed)
	}
}

func (q *QP) mtuMax() int { return maxPayload }

// takeSend places the bytes of a SEND packet in its receive; a short one whose turn it is travels in the completion.
func (q *QP) takeSend(x *slot, recv *transport.RecvWR, payload []byte, j *job, inTurn bool, chain uint32) {
	switch {
	case recv.Fail != transport.OK:
		x.code, x.status = wire.RefuseOp, recv.Fail
	//= MR-MSG-053
	case uint64(x.off)+uint64(x.n) > uint64(recv.Length) && !planted.Is(planted.ReceiveUnbounded):
		x.code, x.status = wire.RefuseInvalid, transport.LocLenErr
	case x.n == 0:
	case inTurn && x.tail && x.off == 0 && x.n <= inlineMax && !recv.Place:
		x.inline = payload
	default:
		op := q.e.out.op(&j.nops, transport.MemScatter, q)
		//= MR-MSG-050
		op.Recv, op.Off, op.Buf, op.Chain = recv, x.off, payload, chain
	}
}

// inlineMax is what a receive completion can carry (MR_CQE_INLINE).
const inlineMax = 64

// takeRead notes a READ or an atomic; it runs when its turn comes.
func (q *QP) takeRead(x *slot, h *wire.Header) {
	if h.Op == wire.OpRead {
		q.e.C.RxReads++
	} else {
		q.e.C.RxAtomics++
	}
	s := &q.rsp
	x.n, x.swap, x.cmp = h.Len, h.Swap, h.Compare
	if h.Op != wire.OpRead {
		x.n = 8
	}
	//= MR-MSG-034 MR-VRB-006
	if s.waiting+s.nreads >= s.maxRd || planted.Is(planted.KeptResultsCount) && s.waiting+s.nreads+int(s.resps.hi-s.resps.lo) >= s.maxRd || h.Op == wire.OpRead && h.Len > 1<<31 {
		x.code = wire.RefuseInvalid
		return
	}
	s.waiting++
}

// bind gives receives to every unbound earlier send number first, then to ssn.
func (q *QP) bind(ssn uint64) *transport.RecvWR {
	s := &q.rsp
	if planted.Is(planted.BindAtArrival) {
		return q.plantBind(ssn)
	}
	//= MR-MSG-051 MR-MSG-052
	for s.nbind <= ssn {
		r := q.e.host.TakeRecv(q.owner)
		if r == nil {
			return nil
		}
		s.bound.extend(s.nbind)
		*s.bound.at(s.nbind) = r
		s.nbind++
	}
	return *s.bound.at(ssn)
}

// place queues the writes of one packet, leaving out bytes that a later packet of the QP has already placed. reach is
// how far its message goes from its address on: nothing of one that ends out of bounds is written.
func (q *QP) place(nops *int32, x *slot, psn uint64, data []byte, reach, chain uint32, check bool) {
	e, s := q.e, &q.rsp
	if planted.Is(planted.OwnBytesChecked) {
		reach = uint32(len(data))
	}
	all := uint64(reach) + x.addr
	lo, end := x.addr, x.addr+uint64(len(data))
	if end < lo { // wraps around the address space: let the key check refuse it
		check = false
	}
	if check && psn+1 < s.top && !planted.Is(planted.NoOverlapCheck) {
		key, shift, skipped := x.rkey, uint64(0), false
		from, to := q.wroteOver(psn, lo, end, key)
		for lo < end && *nops < opsPerPacket-1 {
			// the next piece that nothing later covers
			cut, skip := end, lo
			for n := from; n < to; n++ {
				y := s.slots.at(n)
				//= MR-MSG-025
				if !y.write || (y.st != slotPlaced || y.buf != 0) && !planted.Is(planted.HeldCountsAsPlaced) {
					continue
				}
				if y.rkey != key { // is it the same memory?
					key = y.rkey
					shift = e.host.KeyOffset(q.owner, key) - e.host.KeyOffset(q.owner, x.rkey)
				}
				a, b := y.addr+shift, y.addr+shift+uint64(y.n)
				if a <= skip && skip < b {
					skip = b
				} else if a > lo && a < cut {
					cut = a
				}
			}
			if skip > lo {
				skipped = true
				e.C.OverlapSkipped += min(skip, end) - lo
				lo = min(skip, end)
				continue
			}
			op := e.out.op(nops, transport.MemWrite, q)
			//= MR-MSG-036
			op.Addr, op.RKey, op.Buf, op.Swap, op.Chain = lo, x.rkey, data[lo-x.addr:cut-x.addr], all-lo, chain
			lo = cut
		}
		if skipped { // the key must be good for what is left out, too
			op := e.out.op(nops, transport.MemCheckWrite, q)
			op.Addr, op.RKey, op.Swap, op.Chain = x.addr, x.rkey, uint64(reach), chain
		}
		if lo < end { // too many pieces: packets as long as the MTU cannot make so many; it costs too much to go on
			x.code = wire.RefuseInvalid
		}
		return
	}
	op := e.out.op(nops, transport.MemWrite, q)
	op.Addr, op.RKey, op.Buf, op.Swap, op.Chain = x.addr, x.rkey, data, uint64(reach), chain
}

// waitsForTurn reports whether a request does nothing before its turn comes.
func waitsForTurn(o wire.Opcode) bool {
	return o == wire.OpRead || o == wire.OpCmpSwap || o == wire.OpFetchAdd
}

// codeOf is the refusal that a memory error of the requester's making becomes.
func codeOf(err transport.MemErr) wire.RefusalCode {
	//= MR-WIRE-043
	if err == transport.MemInvalid {
		return wire.RefuseInvalid
	}
	return wire.RefuseAccess
}
