package device

import (
	"strconv"

	"github.com/metaroce/metaroce/transport"
)

// State is a QP's state; values of enum ibv_qp_state.
type State uint8

// States.
const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
	numStates
)

var stateNames = [numStates]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String is the state's name without IBV_QPS_.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return strconv.Itoa(int(s))
}

// Attribute masks: enum ibv_qp_attr_mask.
const (
	maskState     = 1 << 0
	maskCurState  = 1 << 1
	maskSQDNotify = 1 << 2
	maskAccess    = 1 << 3
	maskPkey      = 1 << 4
	maskPort      = 1 << 5
	maskQkey      = 1 << 6
	maskAV        = 1 << 7
	maskPathMTU   = 1 << 8
	maskTimeout   = 1 << 9
	maskRetry     = 1 << 10
	maskRNRRetry  = 1 << 11
	maskRQPSN     = 1 << 12
	maskMaxRd     = 1 << 13
	maskAltPath   = 1 << 14
	maskMinRNR    = 1 << 15
	maskSQPSN     = 1 << 16
	maskMaxDestRd = 1 << 17
	maskMigState  = 1 << 18
	maskCap       = 1 << 19
	maskDestQPN   = 1 << 20
	maskRateLimit = 1 << 25
)

// transition says which attributes a change of state must and may bring (InfiniBand, modify QP; ibv_modify_qp(3)).
type transition struct {
	valid              bool
	required, optional uint32
}

// rcTransitions is the state machine of an RC QP, [from][to].
var rcTransitions = [numStates][numStates]transition{
	Reset: {
		Reset: {valid: true},
		Init:  {true, maskPkey | maskPort | maskAccess, 0},
	},
	Init: {
		Reset: {valid: true},
		Init:  {true, 0, maskPkey | maskPort | maskAccess},
		RTR: {true, maskAV | maskPathMTU | maskDestQPN | maskRQPSN | maskMaxDestRd | maskMinRNR,
			maskAltPath | maskAccess | maskPkey},
		Err: {valid: true},
	},
	RTR: {
		Reset: {valid: true},
		RTS: {true, maskTimeout | maskRetry | maskRNRRetry | maskSQPSN | maskMaxRd,
			maskCurState | maskAltPath | maskAccess | maskMinRNR | maskMigState | maskRateLimit},
		Err: {valid: true},
	},
	RTS: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMinRNR | maskMigState | maskRateLimit},
		SQD:   {true, 0, maskSQDNotify},
		Err:   {valid: true},
	},
	SQD: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAltPath | maskAccess | maskMinRNR | maskMigState},
		SQD: {true, 0, maskPkey | maskPort | maskAV | maskTimeout | maskRetry | maskRNRRetry | maskMaxRd |
			maskMaxDestRd | maskAltPath | maskAccess | maskMinRNR | maskMigState},
		Err: {valid: true},
	},
	SQE: { // never entered by RC; here so that the table is whole
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskAccess},
		Err:   {valid: true},
	},
	Err: {
		Reset: {valid: true},
		Err:   {valid: true},
	},
}

// udTransitions is the state machine of a UD QP: no peer, no timers, a Q_Key instead.
var udTransitions = [numStates][numStates]transition{
	Reset: {
		Reset: {valid: true},
		Init:  {true, maskPkey | maskPort | maskQkey, 0},
	},
	Init: {
		Reset: {valid: true},
		Init:  {true, 0, maskPkey | maskPort | maskQkey},
		RTR:   {true, 0, maskPkey | maskQkey},
		Err:   {valid: true},
	},
	RTR: {
		Reset: {valid: true},
		RTS:   {true, maskSQPSN, maskCurState | maskQkey | maskRateLimit},
		Err:   {valid: true},
	},
	RTS: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskQkey | maskRateLimit},
		SQD:   {true, 0, maskSQDNotify},
		Err:   {valid: true},
	},
	SQD: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskQkey},
		SQD:   {true, 0, maskPkey | maskQkey},
		Err:   {valid: true},
	},
	SQE: {
		Reset: {valid: true},
		RTS:   {true, 0, maskCurState | maskQkey},
		Err:   {valid: true},
	},
	Err: {
		Reset: {valid: true},
		Err:   {valid: true},
	},
}

// checkTransition reports whether mask may take a QP of a service from one state to another.
func checkTransition(typ transport.QPType, from, to State, mask uint32) bool {
	if from >= numStates || to >= numStates {
		return false
	}
	t := &transitionsOf(typ)[from][to]
	mask &^= maskState
	return t.valid && mask&t.required == t.required && mask&^(t.required|t.optional) == 0
}
