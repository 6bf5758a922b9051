package metaroce

import (
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// Bugs that take more than a line; see internal/planted. No other build than those with its tag calls them.

// plantAtomicAgain runs a copy of an atomic that has run.
func (q *QP) plantAtomicAgain(h *wire.Header) {
	op := [1]transport.MemOp{{Kind: transport.MemFetchAdd, QP: q.owner, Addr: h.VA, RKey: h.RKey, Swap: h.Swap, Compare: h.Compare}}
	if h.Op == wire.OpCmpSwap {
		op[0].Kind = transport.MemCmpSwap
	}
	q.e.host.DMA(op[:])
}

// plantBind takes a receive for one send number alone.
func (q *QP) plantBind(ssn uint64) *transport.RecvWR {
	s := &q.rsp
	s.bound.extend(ssn)
	s.nbind = max(s.nbind, ssn+1)
	if *s.bound.at(ssn) == nil {
		*s.bound.at(ssn) = q.e.host.TakeRecv(q.owner)
	}
	return *s.bound.at(ssn)
}
