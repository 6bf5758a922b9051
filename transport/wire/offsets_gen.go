package wire

// Version is the protocol version in MPH.
const Version = 1

// UDPPort is the UDP destination port.
const UDPPort = 4791

// Header lengths in bytes.
const (
	BTHLen          = 12
	MPHLen          = 16
	RETHLen         = 16
	SNDHLen         = 8
	RDRHLen         = 8
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	ImmDtLen        = 4
	IETHLen         = 4
	ICRCLen         = 4
)

const (
	offBTHOpcode  = 0
	offBTHBits    = 1
	offBTHPKey    = 2
	offBTHDestQP  = 5
	offBTHAckReq  = 8
	offBTHPSN     = 9
	maskBTHSE     = 0x80
	maskBTHMigReq = 0x40
	maskBTHPad    = 0x30
	shiftBTHPad   = 4
	maskBTHTVer   = 0x0f
	maskBTHAckReq = 0x80

	offMPHTag       = 0
	offMPHPath      = 4
	offMPHFlags     = 6
	offMPHVersion   = 7
	maskMPHVersion  = 0xf0
	shiftMPHVersion = 4
	offMPHSeq       = 8
	offMPHTS        = 12

	offRETHVA   = 0
	offRETHRKey = 8
	offRETHLen  = 12

	offSNDHSSN = 0
	offSNDHOff = 4

	offRDRHReadNo  = 0
	offRDRHReadOff = 4

	offAtomicETHVA      = 0
	offAtomicETHRKey    = 8
	offAtomicETHSwap    = 12
	offAtomicETHCompare = 20
)

// Opcode is the BTH opcode; ours lie in the manufacturer range.
type Opcode uint8

// Opcodes.
const (
	OpWrite      Opcode = 0xC0
	OpWriteImm   Opcode = 0xC1
	OpSend       Opcode = 0xC2
	OpSendImm    Opcode = 0xC3
	OpSendInv    Opcode = 0xC4
	OpRead       Opcode = 0xC5
	OpCmpSwap    Opcode = 0xC6
	OpFetchAdd   Opcode = 0xC7
	OpReadResp   Opcode = 0xC8
	OpAtomicResp Opcode = 0xC9
	OpAck        Opcode = 0xD0
	OpHello      Opcode = 0xD1
	OpProbe      Opcode = 0xD2
	OpProbeAck   Opcode = 0xD3
	OpStale      Opcode = 0xD4
	OpEthernet   Opcode = 0xD8
)

// String returns the opcode's name in the spec.
func (o Opcode) String() string {
	switch o {
	case OpWrite:
		return "WRITE"
	case OpWriteImm:
		return "WRITE_IMM"
	case OpSend:
		return "SEND"
	case OpSendImm:
		return "SEND_IMM"
	case OpSendInv:
		return "SEND_INV"
	case OpRead:
		return "READ"
	case OpCmpSwap:
		return "CMP_SWAP"
	case OpFetchAdd:
		return "FETCH_ADD"
	case OpReadResp:
		return "READ_RESP"
	case OpAtomicResp:
		return "ATOMIC_RESP"
	case OpAck:
		return "ACK"
	case OpHello:
		return "HELLO"
	case OpProbe:
		return "PROBE"
	case OpProbeAck:
		return "PROBE_ACK"
	case OpStale:
		return "STALE"
	case OpEthernet:
		return "ETHERNET"
	}
	return unknown("op", uint32(o))
}

// Flags are the flags of MPH.
type Flags uint8

// Flags.
const (
	FlagRetransmit    Flags = 0x01
	FlagTail          Flags = 0x02
	FlagAckReq        Flags = 0x04
	FlagAtomicPending Flags = 0x08
	FlagCopy          Flags = 0x10
)

// BlockType is the type of an acknowledgement block.
type BlockType uint8

// Block types.
const (
	BlockPath    BlockType = 1
	BlockPlane   BlockType = 2
	BlockQP      BlockType = 3
	BlockRefusal BlockType = 4
)

const (
	ackHLen           = 4
	blkHeadLen        = 4
	blkPathLen        = 20
	blkPlaneLen       = 12
	blkQPLen          = 12
	blkRefusalLen     = 16
	offBlkType        = 0
	offBlkWords       = 1
	offBlkOwn         = 2
	offPathHighest    = 4
	offPathEcho       = 8
	offPathHold       = 12
	offPathCE         = 16
	offPathBitmap     = 20
	offPlaneBytes     = 4
	offPlaneGrant     = 8
	offQPQPN          = 5
	offQPLimit        = 8
	offRefusalSeq     = 4
	offRefusalCode    = 8
	offRefusalQPN     = 9
	offRefusalBits    = 12
	offRefusalPSN     = 13
	maskRefusalOrder  = 0x80
	maskRefusalTimer  = 0x1f
	shiftRefusalTimer = 0
)

// RefusalCode says why a packet was refused; its range says how to react (Reaction).
type RefusalCode uint8

// Refusal codes.
const (
	RefuseRNR     RefusalCode = 0x20
	RefuseLater   RefusalCode = 0x21
	RefuseNoQP    RefusalCode = 0x22
	RefuseInvalid RefusalCode = 0x61
	RefuseAccess  RefusalCode = 0x62
	RefuseOp      RefusalCode = 0x63
)

// Stages of the HELLO exchange.
const (
	HelloInit    HelloStage = 1
	HelloCookie  HelloStage = 2
	HelloConfirm HelloStage = 3
	HelloAccept  HelloStage = 4
)

// TLV types of HELLO.
const (
	tlvPadding  = 0
	tlvNIC      = 1
	tlvTags     = 2
	tlvCookie   = 3
	tlvLimits   = 4
	tlvFeatures = 5
	tlvPlane    = 6
	tlvMust     = 0x8000
)

// Kinds of PROBE.
const (
	ProbePath ProbeKind = 1
	ProbeMTU  ProbeKind = 2
	ProbeQP   ProbeKind = 3
)

// Answers to a ProbeQP.
const (
	AnswerNone     Answer = 0
	AnswerPending  Answer = 1
	AnswerExecuted Answer = 2
	AnswerFailed   Answer = 3
	AnswerUnknown  Answer = 4
)

// HelloStage is the stage of a HELLO message.
type HelloStage uint8

// ProbeKind is what a PROBE asks.
type ProbeKind uint8

// Answer is what a PROBE-ACK says about a READ or atomic.
type Answer uint8
