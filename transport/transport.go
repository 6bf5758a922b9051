// Package transport holds the words that engines and the device share: work requests, completion statuses, memory
// operations, and the Host interface through which an engine reaches the NIC it lives in. It has no behaviour.
//
// Direction: the device calls the engine (post, packets in, timers, packets out); the engine calls the Host only
// for memory, receives and completions. Both sides run on one goroutine; nothing here locks or allocates.
package transport

import (
	"fmt"
	"net/netip"
)

// Status is the outcome of a work request; the values are those of enum ibv_wc_status.
type Status uint8

// Statuses that this stack produces.
const (
	OK             Status = 0
	LocLenErr      Status = 1
	LocQPOpErr     Status = 2
	LocProtErr     Status = 4
	WRFlushErr     Status = 5
	MWBindErr      Status = 6
	BadRespErr     Status = 7
	LocAccessErr   Status = 8
	RemInvReqErr   Status = 9
	RemAccessErr   Status = 10
	RemOpErr       Status = 11
	RetryExcErr    Status = 12
	RnrRetryExcErr Status = 13
	RemAbortErr    Status = 16
	FatalErr       Status = 19
	RespTimeoutErr Status = 20
	GeneralErr     Status = 21
	statusNames           = "OK,LOC_LEN_ERR,LOC_QP_OP_ERR,,LOC_PROT_ERR,WR_FLUSH_ERR,MW_BIND_ERR,BAD_RESP_ERR,LOC_ACCESS_ERR,REM_INV_REQ_ERR,REM_ACCESS_ERR,REM_OP_ERR,RETRY_EXC_ERR,RNR_RETRY_EXC_ERR,,,REM_ABORT_ERR,,,FATAL_ERR,RESP_TIMEOUT_ERR,GENERAL_ERR"
)

// String returns the name as in ibv_wc_status without its prefix.
func (s Status) String() string { return name(statusNames, int(s)) }

// Op is the kind of a send work request; the values are those of enum ibv_wr_opcode (mr_wr in mr_abi.h).
type Op uint8

// Work request opcodes.
const (
	OpWrite    Op = 0
	OpWriteImm Op = 1
	OpSend     Op = 2
	OpSendImm  Op = 3
	OpRead     Op = 4
	OpCmpSwap  Op = 5
	OpFetchAdd Op = 6
	OpLocalInv Op = 7
	OpBindMW   Op = 8
	OpSendInv  Op = 9
	// OpAtomicWrite is a WRITE of 8 bytes to an aligned address, whose bytes become visible together.
	OpAtomicWrite Op = 15
	opNames          = "WRITE,WRITE_IMM,SEND,SEND_IMM,READ,CMP_SWAP,FETCH_ADD,LOCAL_INV,BIND_MW,SEND_INV,,,,,,ATOMIC_WRITE"
)

// String returns the name as in ibv_wr_opcode.
func (o Op) String() string { return name(opNames, int(o)) }

// IsSend reports whether the request consumes a receive for its data.
func (o Op) IsSend() bool { return o == OpSend || o == OpSendImm || o == OpSendInv }

// IsWrite reports whether the request writes remote memory.
func (o Op) IsWrite() bool { return o == OpWrite || o == OpWriteImm || o == OpAtomicWrite }

// IsAtomic reports whether the request is CMP_SWAP or FETCH_ADD.
func (o Op) IsAtomic() bool { return o == OpCmpSwap || o == OpFetchAdd }

// HasResponse reports whether the request is answered with data.
func (o Op) HasResponse() bool { return o == OpRead || o.IsAtomic() }

// IsLocal reports whether the request is carried out in its own NIC: it takes no packet and no number.
func (o Op) IsLocal() bool { return o == OpLocalInv || o == OpBindMW }

// TakesRecv reports whether the request consumes a receive work request at the other end.
func (o Op) TakesRecv() bool { return o.IsSend() || o == OpWriteImm }

// QPType is the transport service of a QP.
type QPType uint8

// Services.
const (
	RC QPType = iota
	UD
	UC
	XRCSend // XRC's requesting end, and its responding one: every request names the shared receive queue that it is for
	XRCRecv
	qpTypeNames = "RC,UD,UC,XRC_SEND,XRC_RECV"
)

// String returns the service's name.
func (t QPType) String() string { return name(qpTypeNames, int(t)) }

// GRHLen is what a UD receive keeps free in front of its message: the global route header, or for IPv4 20 bytes
// that are not defined and the IPv4 header.
const GRHLen = 40

// UDDest is where a UD message goes: an address handle, resolved by the device, and what the work request adds.
type UDDest struct {
	Local, Remote netip.Addr // Remote may be a multicast address
	QPN, QKey     uint32     // QKey as it goes on the wire (a request's with the top bit: the QP's own)
	FlowLabel     uint32
	TOS, HopLimit uint8
}

// Flags of a send work request; the values are those of enum ibv_send_flags.
const (
	FlagFence     uint16 = 1
	FlagSignaled  uint16 = 2
	FlagSolicited uint16 = 4
	FlagInline    uint16 = 8
)

// SGE is one piece of a program's memory.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a send work request, copied out of the program's queue and checked. It lives in the engine's ring of
// its QP (QP.NextWR, QP.Post) until its completion was reported.
type SendWR struct {
	ID         uint64
	RemoteAddr uint64 // BIND_MW: where the window begins
	Compare    uint64 // CMP_SWAP: compare; FETCH_ADD: the addend; BIND_MW: the window's length
	Swap       uint64 // BIND_MW: the region's lkey, above it the window's access rights
	SGE        []SGE  // local memory; capacity is the QP's max_send_sge and is reused
	Inline     []byte // with FlagInline: the bytes, in the program's queue slot
	Length     uint32 // sum of SGE lengths, or len(Inline)
	RKey       uint32 // BIND_MW: the window's new key
	Imm        uint32 // immediate, the four bytes as verbs has them (be32), or the rkey to invalidate
	Slot       uint32 // index in the send queue, as the program counts
	SRQN       uint32 // XRC: number of the shared receive queue at the other end
	Flags      uint16
	Op         Op
	Fail       Status  // not OK: found bad when fetched; it completes with this status when its turn comes
	Dest       *UDDest // room for it, of UD QPs; else nil
}

// RecvWR is a receive work request, copied out of the program's queue. The device owns it; the engine holds the
// pointer from Host.TakeRecv to Host.RecvDone (or Host.ReturnRecv).
type RecvWR struct {
	ID     uint64
	SGE    []SGE
	Length uint32 // sum of SGE lengths
	Slot   uint32
	Queue  any    // of XRC: the shared receive queue that it is from; the device's
	Place  bool   // its bytes go into memory by DMA, also those that the completion has room for
	Fail   Status // not OK: its list is bad; the SEND that needs it fails (LOC_PROT_ERR here, REM_OP_ERR there)
}

// RecvInfo is what a receive completion says beside the work request.
type RecvInfo struct {
	Status    Status
	Op        Op     // OpSend, OpSendImm, OpSendInv or OpWriteImm
	Length    uint32 // bytes of the message; UD: with the GRHLen bytes in front of it
	Imm       uint32
	SrcQP     uint32
	Solicited bool
	GRH       bool   // UD: the first GRHLen bytes are the route header
	IPv4      bool   // UD: of them the last 20, an IPv4 header
	Inline    []byte // data not yet in memory: travels in the completion (≤ 64 bytes); nil otherwise
}

// MemKind is the kind of a memory operation.
type MemKind uint8

// Memory operations. "Local" lists are those of the QP's own program; remote ones are named by an rkey.
const (
	// MemGather reads Buf from the local list of WR (SGE or Inline) at byte Off.
	MemGather MemKind = iota
	// MemLand writes Buf to the local list of WR at byte Off (READ data, atomic results).
	MemLand
	// MemScatter writes Buf to the list of Recv at byte Off.
	MemScatter
	// MemWrite writes Buf to remote address Addr under RKey; needs the remote-write right. Swap bytes from Addr on are
	// checked where those are more: a packet shows where its whole message ends.
	MemWrite
	// MemRead reads Buf from remote address Addr under RKey; needs the remote-read right.
	MemRead
	// MemCmpSwap and MemFetchAdd act on 8 aligned bytes at Addr under RKey (remote-atomic right); Swap, Compare as
	// in SendWR; Result is the value before.
	MemCmpSwap
	MemFetchAdd
	// MemInvalidate ends RKey (SEND with invalidate): a memory window that the QP may use.
	MemInvalidate
	// MemCheckRead checks what MemRead of Swap bytes at Addr under RKey would: a READ's turn has come, its data is
	// read as it is sent.
	MemCheckRead
	// MemCheckWrite checks what MemWrite of Swap bytes at Addr under RKey would: newer data is there already.
	MemCheckWrite
)

// MemErr is what became of a memory operation.
type MemErr uint8

// Outcomes of a memory operation.
const (
	MemOK      MemErr = iota
	MemAccess         // key unknown, of another PD, out of bounds, or a right missing
	MemFault          // the program's memory is no longer there
	MemSkipped        // an earlier operation of the same chain failed
	MemInvalid        // atomic address not a multiple of 8, or the QP allows no such operation
)

// MemOp is one memory operation; see Host.DMA.
type MemOp struct {
	QP      any // the owner given at QP creation: decides protection domain, rights, program
	WR      *SendWR
	Recv    *RecvWR
	Buf     []byte
	Addr    uint64
	Compare uint64
	Swap    uint64
	Result  uint64
	Off     uint32
	RKey    uint32
	SRQN    uint32 // XRC: remote memory is that of this queue's program
	Chain   uint32 // not 0: once an operation of a chain fails, its later ones in the same call are skipped
	Kind    MemKind
	Err     MemErr // out
}

// Host is what an engine may ask of its NIC.
type Host interface {
	// DMA executes the operations in order, each wholly or with Err set, and goes on after a failure (but see
	// Chain). Writes become visible in order: an observer that sees a later operation's last byte sees all of the
	// earlier ones. Bytes within one operation are written in ascending order, the last 8 bytes last.
	DMA(ops []MemOp)
	// TakeRecv takes the next posted receive of the QP (or of its SRQ), or nil.
	TakeRecv(qp any) *RecvWR
	// ReturnRecv gives a receive back to the head of the SRQ, newest first (reset or destroy only).
	ReturnRecv(qp any, r *RecvWR)
	// RelaxedKey reports whether the memory behind rkey was registered with relaxed ordering.
	RelaxedKey(qp any, rkey uint32) bool
	// KeyOffset is what an address under rkey lacks to the program's own address of the byte; 0 for an unknown key.
	// Two keys may call one byte by different addresses, and two bytes by the same one.
	KeyOffset(qp any, rkey uint32) uint64
	// ShiftedKeys reports whether KeyOffset is not 0 for any key that peers of the QP may use.
	ShiftedKeys(qp any) bool
	// RunLocal carries out a local request (Op.IsLocal), at its turn. What it says is the request's status.
	RunLocal(qp any, wr *SendWR) Status
	// SendDone reports a send work request's end. Called in post order, for unsignalled ones too.
	SendDone(qp any, wr *SendWR, s Status)
	// RecvDone reports a receive's end, in order.
	RecvDone(qp any, r *RecvWR, info RecvInfo)
	// QPError says that the engine put the QP into the error state by itself. Called once, after the completion
	// that carries the cause and before the flushed ones. responder: the fault was found serving the peer (the
	// device raises the async event that verbs prescribes).
	QPError(qp any, responder bool, s Status)
	// Event reports something for people and scripts (plane down, path quarantined, peer restarted).
	Event(e Event)
}

// XRCHost is a Host whose NIC has XRC.
type XRCHost interface {
	// TakeXRC takes the next receive of the shared receive queue of a number, or nil; known is false when there is no such
	// queue in the QP's domain. Host.ReturnRecv and RecvDone take it back.
	TakeXRC(qp any, srqn uint32) (r *RecvWR, known bool)
}

// EventKind names what an Event is about.
type EventKind uint8

// Events.
const (
	EventAssocUp EventKind = iota
	EventAssocRestart
	EventPlaneDown
	EventPlaneUp
	EventPathQuarantined
	EventPathBack
	EventDenyVoid // the peer takes none but denied paths of a plane: they are used
	eventNames    = "assoc-up,assoc-restart,plane-down,plane-up,path-quarantined,path-back,deny-void"
)

// String returns the event's name as in JSON.
func (k EventKind) String() string { return name(eventNames, int(k)) }

// Event is one event; fields that do not apply are 0.
type Event struct {
	Kind  EventKind
	Peer  string
	Plane int
	Path  int
}

func name(list string, i int) string {
	n, start := 0, 0
	for j := 0; j <= len(list); j++ {
		if j == len(list) || list[j] == ',' {
			if n == i && j > start {
				return list[start:j]
			}
			n, start = n+1, j+1
		}
	}
	return fmt.Sprintf("%d", i)
}
