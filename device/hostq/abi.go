// Package hostq is the Go mirror of verbs/include/mr_abi.h: what a program's libibverbs and the daemon say to each
// other on the control socket, and the queues in the memory that they share.
//
// That memory belongs to a stranger. So: a descriptor is copied out and then the copy is checked; every index is
// masked; every touch of mapped bytes goes through a function that survives a fault and reports it (see catch).
// A test compiles the header and compares every size, offset and constant with the ones here.
package hostq

// Version and limits of the layout (not of a NIC).
const (
	ABIMajor = 1
	ABIMinor = 0
	Magic    = 0x4345524d // "MREC" in memory

	CtxBytesMax  = 1 << 40
	CtxBytesMin  = 1 << 20
	RingAlign    = 4096
	MaxSGE       = 32
	MaxInline    = 256
	CQEInline    = 64
	MaxDoorbells = 1 << 18
	NameBytes    = 64
	MsgBytes     = 65536
	MaxFDs       = 4
	CtxPageBytes = 36864
	RingHdr      = 256
)

// Flags of Hdr.
const (
	HdrReply = 1
	HdrMore  = 2
)

// Op is the operation of a control message (enum mr_op).
type Op uint16

// Control operations.
const (
	OpHello     Op = 1
	OpList      Op = 2
	OpOpen      Op = 3
	OpQueryPort Op = 4
	OpQueryGID  Op = 5
	OpMgmt      Op = 6

	OpAllocPD Op = 16
	OpFreePD  Op = 17
	OpRegMR   Op = 18
	OpDeregMR Op = 19
	OpReregMR Op = 20
	OpAllocMW Op = 21
	OpFreeMW  Op = 22

	OpCreateChannel  Op = 24
	OpDestroyChannel Op = 25
	OpCreateCQ       Op = 26
	OpDestroyCQ      Op = 27
	OpResizeCQ       Op = 28
	OpCreateSRQ      Op = 29
	OpModifySRQ      Op = 30
	OpQuerySRQ       Op = 31
	OpDestroySRQ     Op = 32

	OpCreateQP    Op = 40
	OpModifyQP    Op = 41
	OpQueryQP     Op = 42
	OpDestroyQP   Op = 43
	OpCreateAH    Op = 44
	OpDestroyAH   Op = 45
	OpAttachMcast Op = 46
	OpDetachMcast Op = 47
	OpOpenXRCD    Op = 48
	OpCloseXRCD   Op = 49
	OpOpenQP      Op = 50
	OpAllocNullMR Op = 56
	OpShare       Op = 57
	OpImport      Op = 58
	OpImportPD    Op = 59
	OpImportMR    Op = 60
	OpAllocDM     Op = 61
	OpFreeDM      Op = 62
	OpImportDM    Op = 63
	OpModifyCQ    Op = 64

	OpAssist Op = 72

	OpCMSetup          Op = 80
	OpCMCreateChannel  Op = 81
	OpCMDestroyChannel Op = 82
	OpCMGetEvent       Op = 83
	OpCMCreateID       Op = 84
	OpCMDestroyID      Op = 85
	OpCMBind           Op = 86
	OpCMResolveAddr    Op = 87
	OpCMResolveRoute   Op = 88
	OpCMQuery          Op = 89
	OpCMListen         Op = 90
	OpCMConnect        Op = 91
	OpCMAccept         Op = 92
	OpCMReject         Op = 93
	OpCMEstablish      Op = 94
	OpCMDisconnect     Op = 95
	OpCMQPAttr         Op = 96
	OpCMSetOption      Op = 97
	OpCMMigrate        Op = 98
	OpCMJoin           Op = 99
	OpCMLeave          Op = 100
)

// How the daemon reaches a program's memory (enum mr_dma).
const (
	DMANone      = 0
	DMAProcessVM = 1
	DMAProcMem   = 2
	DMAAssist    = 3
)

// CQIgnoreOverrun lets a CQ overwrite what was not polled (CreateCQ.Flags).
const CQIgnoreOverrun = 1

// Arming of a CQ and flags of a ring.
const (
	ArmNext      = 1
	ArmSolicited = 2
	RingOverrun  = 1
	RingError    = 2
)

// Work request opcodes (enum mr_wr, enum ibv_wr_opcode).
const (
	WRWrite       = 0
	WRWriteImm    = 1
	WRSend        = 2
	WRSendImm     = 3
	WRRead        = 4
	WRCmpSwap     = 5
	WRFetchAdd    = 6
	WRLocalInv    = 7
	WRBindMW      = 8
	WRSendInv     = 9
	WRTSO         = 10
	WRAtomicWrite = 15
)

// Flags of a send work request (enum ibv_send_flags).
const (
	SendFence     = 1
	SendSignaled  = 2
	SendSolicited = 4
	SendInline    = 8
	SendIPCsum    = 16
)

// Flags of a CQE.
const (
	CQESend = 1
	CQESRQ  = 2
	CQEXRC  = 4
)

// Memory of the copy thread, and states of its descriptors.
const (
	AssistDescs     = 512
	AssistData      = 1 << 20
	AssistBytes     = 20480 + AssistData
	AssistPosted    = 1
	AssistTaken     = 2
	AssistDone      = 3
	AssistFault     = 4
	AssistSkipped   = 5
	AssistCancelled = 6
)
