package device

import (
	"github.com/metaroce/metaroce/transport"
)

// Services of QPs, by enum ibv_qp_type.
const (
	qpTypeRC      = 2
	qpTypeUC      = 3
	qpTypeUD      = 4
	qpTypeXRCSend = 9
	qpTypeXRCRecv = 10
)

// serviceOf is the service that a program asks for; false: this NIC has it not.
func serviceOf(qpType uint32) (transport.QPType, bool) {
	switch qpType {
	case qpTypeRC:
		return transport.RC, true
	case qpTypeUC:
		return transport.UC, true
	case qpTypeUD:
		return transport.UD, true
	case qpTypeXRCSend:
		return transport.XRCSend, true
	case qpTypeXRCRecv:
		return transport.XRCRecv, true
	}
	return 0, false
}

// offers reports whether the QP's service has an operation.
func (q *QP) offers(o transport.Op) bool {
	return q.typ != transport.UC || o != transport.OpSendInv && o != transport.OpAtomicWrite && !o.HasResponse()
}

// ucTransitions is the state machine of a UC QP: a peer, and nothing that has to do with its answers.
var ucTransitions = [numStates][numStates]transition{
	Reset: rcTransitions[Reset],
	Init: {
		Reset: {valid: true},
		Init:  {true, 0, maskPkey | maskPort | maskAccess},
		RTR:   {true, maskAV | maskPathMTU | maskDestQPN | maskRQPSN, maskAltPath | maskAccess | maskPkey},
		Err:   {valid: true},
	},
	RTR: {
		Reset: {valid: true},
		RTS:   {true, maskSQPSN, maskCurState | maskAltPath | maskAccess | maskMigState | maskRateLimit},
		Err:   {valid: true},
	},
	RTS: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMigState | maskRateLimit},
		SQD:   {true, 0, maskSQDNotify},
		Err:   {valid: true},
	},
	SQD: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMigState},
		SQD:   {true, 0, maskAV | maskAltPath | maskAccess | maskPkey | maskMigState},
		Err:   {valid: true},
	},
	SQE: rcTransitions[SQE],
	Err: rcTransitions[Err],
}

// xrcSendTransitions is the state machine of XRC's requesting end: as RC's, without what the responding end needs.
var xrcSendTransitions = [numStates][numStates]transition{
	Reset: rcTransitions[Reset],
	Init: {
		Reset: {valid: true},
		Init:  {true, 0, maskPkey | maskPort | maskAccess},
		RTR:   {true, maskAV | maskPathMTU | maskDestQPN | maskRQPSN, maskAltPath | maskAccess | maskPkey},
		Err:   {valid: true},
	},
	RTR: {
		Reset: {valid: true},
		RTS: {true, maskTimeout | maskRetry | maskRNRRetry | maskSQPSN | maskMaxRd,
			maskCurState | maskAltPath | maskAccess | maskMigState | maskRateLimit},
		Err: {valid: true},
	},
	RTS: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMigState | maskRateLimit},
		SQD:   {true, 0, maskSQDNotify},
		Err:   {valid: true},
	},
	SQD: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMigState},
		SQD: {true, 0, maskPkey | maskPort | maskAV | maskTimeout | maskRetry | maskRNRRetry | maskMaxRd |
			maskAltPath | maskAccess | maskMigState},
		Err: {valid: true},
	},
	SQE: rcTransitions[SQE],
	Err: rcTransitions[Err],
}

// xrcRecvTransitions is that of its responding end, which sends nothing but answers.
var xrcRecvTransitions = [numStates][numStates]transition{
	Reset: rcTransitions[Reset],
	Init:  rcTransitions[Init],
	RTR: {
		Reset: {valid: true},
		RTS:   {true, maskTimeout | maskSQPSN, maskCurState | maskAltPath | maskAccess | maskMinRNR | maskMigState | maskRateLimit},
		Err:   {valid: true},
	},
	RTS: rcTransitions[RTS],
	SQD: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMinRNR | maskMigState},
		SQD:   {true, 0, maskPkey | maskPort | maskAV | maskTimeout | maskMaxDestRd | maskAltPath | maskAccess | maskMinRNR | maskMigState},
		Err:   {valid: true},
	},
	SQE: rcTransitions[SQE],
	Err: rcTransitions[Err],
}

// notOf are attributes of the other end of XRC, which programs may name at both, and which count for nothing there.
func notOf(t transport.QPType) uint32 {
	switch t {
	case transport.XRCSend:
		return maskMaxDestRd | maskMinRNR
	case transport.XRCRecv:
		return maskMaxRd | maskRetry | maskRNRRetry
	case transport.RC, transport.UC, transport.UD:
	}
	return 0
}

// transitionsOf is the state machine of a service.
func transitionsOf(t transport.QPType) *[numStates][numStates]transition {
	switch t {
	case transport.RC:
		return &rcTransitions
	case transport.UC:
		return &ucTransitions
	case transport.UD:
		return &udTransitions
	case transport.XRCSend:
		return &xrcSendTransitions
	case transport.XRCRecv:
		return &xrcRecvTransitions
	}
	return &rcTransitions
}
