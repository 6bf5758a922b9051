package rocev2

import (
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// XRC is RC with its two ends in QPs of their own: XRCSend begins requests and is answered, XRCRecv carries them out.
// Every request names a shared receive queue at the other end: receives are taken from it, and keys are its program's.

// overheadOf is what a service's packets have around the payload, at most.
func overheadOf(t transport.QPType) int {
	if t == transport.XRCSend || t == transport.XRCRecv {
		return ib.XRCOverhead
	}
	return ib.MaxOverhead
}

// nextRecv takes the next receive for a request. known is false when it names a queue that there is not.
func (e *Engine) nextRecv(q *QP, h *ib.Header) (r *transport.RecvWR, known bool) {
	if q.typ != transport.XRCRecv {
		return e.host.TakeRecv(q.owner), true
	}
	//= MR-COEX-061
	return e.xrc.TakeXRC(q.owner, h.SRQN)
}
