package hostq

import "encoding/binary"

// Hdr begins every control message (struct mr_hdr).
type Hdr struct {
	Op     uint16
	Flags  uint16
	Len    uint32
	Seq    uint32
	Status int32
}

// Hello is the first request of a connection.
type Hello struct {
	Hdr
	Magic      uint32
	ABIMajor   uint16
	ABIMinor   uint16
	PID        int32
	Rsv        uint32
	GuardAddr  uint64
	GuardNonce uint64
	Program    [32]byte
}

// HelloReply answers Hello.
type HelloReply struct {
	Hdr
	ABIMajor  uint16
	ABIMinor  uint16
	DaemonPID int32
	NICs      uint32
	DMAMode   uint32
	Version   [32]byte
}

// Assist brings the memory of the program's copy thread, as fd 0.
type Assist struct {
	Hdr
	Bytes uint64
}

// AssistDesc is a descriptor of the copy thread.
type AssistDesc struct {
	Addr                              uint64
	Len, Off, Write, Call, State, Rsv uint32
}

// AssistPage begins the copy thread's memory.
type AssistPage struct {
	Magic   uint32
	Rsv0    [60]byte
	Prod    uint32
	Rsv1    [60]byte
	Done    uint32
	Rsv2    [60]byte
	Asleep  uint32
	Rsv3    [60]byte
	Bell    uint32
	Rsv4    [60]byte
	Waiting uint32
	Rsv5    [60]byte
	Gone    uint32
	Rsv6    [3708]byte
	Desc    [AssistDescs]AssistDesc
}

// List asks for the NICs from index First on.
type List struct {
	Hdr
	First uint32
	Rsv   uint32
}

// NIC is one entry of a ListReply.
type NIC struct {
	Name     [NameBytes]byte
	Dev      [32]byte
	GUID     uint64
	Index    uint32
	NumPorts uint32
}

// ListReply is followed by Count times NIC.
type ListReply struct {
	Hdr
	Count uint32
	Total uint32
}

// Open opens a context on a NIC; the memfd comes as fd 0.
type Open struct {
	Hdr
	ShmBytes uint64
	Name     [NameBytes]byte
}

// DeviceAttr is the device as ibv_query_device(_ex) shows it.
type DeviceAttr struct {
	NodeGUID, SysImageGUID                                         uint64
	MaxMRSize, PageSizeCap                                         uint64
	DeviceCapFlags                                                 uint64
	VendorID, VendorPartID, HWVer                                  uint32
	MaxQP, MaxQPWR, MaxSGE, MaxSGERd, MaxCQ, MaxCQE, MaxMR, MaxPD  uint32
	MaxQPRdAtom, MaxQPInitRdAtom, MaxResRdAtom, AtomicCap          uint32
	MaxSRQ, MaxSRQWR, MaxSRQSGE, MaxAH, MaxMW                      uint32
	MaxMcastGrp, MaxMcastQPAttach, MaxXRCD                         uint32
	MaxPkeys, LocalCAAckDelay, NumPorts, NumCompVectors, MaxInline uint32
	MaxDMKiB                                                       uint32
	Rsv                                                            uint32
	FWVer                                                          [64]byte
	BoardID                                                        [64]byte
}

// OpenReply answers Open; fd 0 is the doorbell eventfd, fd 1 the asynchronous events.
type OpenReply struct {
	Hdr
	Ctx  uint32
	Rsv  uint32
	Attr DeviceAttr
}

// QueryPort asks for PortAttr.
type QueryPort struct {
	Hdr
	Port uint32
	Rsv  uint32
}

// PortAttr is the port as ibv_query_port shows it.
type PortAttr struct {
	Hdr
	State, MaxMTU, ActiveMTU                                          uint32
	GIDTblLen, PortCapFlags, MaxMsgSz                                 uint32
	PkeyTblLen, ActiveWidth, ActiveSpeed, PhysState, LinkLayer, Flags uint32
	SpeedMbps                                                         uint64
	Planes, PlanesUp                                                  uint32
}

// QueryGID asks for GIDEntry.
type QueryGID struct {
	Hdr
	Port  uint32
	Index uint32
}

// GIDEntry is one entry of the GID table.
type GIDEntry struct {
	Hdr
	GID               [16]byte
	Index, Port, Type uint32
	NdevIfindex       uint32
}

// Handle is the simplest request and reply: one object by number.
type Handle struct {
	Hdr
	Handle uint32
	Rsv    uint32
}

// DestroyReply says how many events were delivered for the object.
type DestroyReply struct {
	Hdr
	CompEvents  uint32
	AsyncEvents uint32
}

// RegMR registers memory, or changes a registration.
type RegMR struct {
	Hdr
	Handle uint32
	PD     uint32
	Addr   uint64
	IOVA   uint64
	Length uint64
	Access uint32
	Rereg  uint32
}

// RegMRReply answers RegMR and AllocMW.
type RegMRReply struct {
	Hdr
	Handle uint32
	LKey   uint32
	RKey   uint32
	Rsv    uint32
}

// AllocMW makes a memory window.
type AllocMW struct {
	Hdr
	PD   uint32
	Type uint32
}

// CreateCQ makes or resizes a completion queue.
type CreateCQ struct {
	Hdr
	Handle     uint32
	Entries    uint32
	Ring       uint64
	Cookie     uint64
	Channel    uint32
	CompVector uint32
	Flags      uint32
	Want       uint32
}

// CreateSRQ makes a shared receive queue.
type CreateSRQ struct {
	Hdr
	PD       uint32
	Type     uint32
	Entries  uint32
	MaxSGE   uint32
	Stride   uint32
	Limit    uint32
	Ring     uint64
	Slots    uint64
	Cookie   uint64
	CQ, XRCD uint32
}

// CreateSRQReply answers CreateSRQ.
type CreateSRQReply struct {
	Hdr
	Handle uint32
	Num    uint32
}

// OpenXRCD opens an XRC domain: that of the file that comes as fd 0, or a new one.
type OpenXRCD struct {
	Hdr
	Flags uint32
	Rsv   uint32
}

// OpenQP opens a QP of an XRC domain that another program has made.
type OpenQP struct {
	Hdr
	XRCD   uint32
	QPN    uint32
	Cookie uint64
}

// SRQAttr changes or tells the attributes of a shared receive queue.
type SRQAttr struct {
	Hdr
	Handle, Mask  uint32
	MaxWR, MaxSGE uint32
	Limit         uint32
	Rsv           uint32
}

// CreateQP makes a queue pair.
type CreateQP struct {
	Hdr
	PD                                uint32
	Type                              uint32
	SendCQ, RecvCQ, SRQ, XRCD         uint32
	SQEntries, SQStride               uint32
	RQEntries, RQStride               uint32
	MaxSendSGE, MaxRecvSGE, MaxInline uint32
	SQSigAll                          uint32
	SQRing                            uint64
	RQRing                            uint64
	Cookie                            uint64
	SQDoorbell                        uint32
	RQDoorbell                        uint32
	CreateFlags                       uint64
}

// CreateQPReply answers CreateQP.
type CreateQPReply struct {
	Hdr
	Handle uint32
	QPN    uint32
}

// AHAttr is struct ibv_ah_attr.
type AHAttr struct {
	DGID                                        [16]byte
	FlowLabel                                   uint32
	SGIDIndex, HopLimit, TrafficClass, IsGlobal uint8
	DLID                                        uint16
	SL, SrcPathBits, StaticRate, PortNum        uint8
	Rsv                                         uint16
}

// ModifyQP carries struct ibv_qp_attr and its mask.
type ModifyQP struct {
	Hdr
	Handle                                                     uint32
	Mask                                                       uint32
	QPState, CurQPState, PathMTU, PathMigState                 uint32
	Qkey, RQPSN, SQPSN, DestQPNum, QPAccessFlags               uint32
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline    uint32
	AH, AltAH                                                  AHAttr
	PkeyIndex, AltPkeyIndex                                    uint16
	EnSQDAsyncNotify, SQDraining, MaxRdAtomic, MaxDestRdAtomic uint8
	MinRNRTimer, PortNum, Timeout, RetryCnt                    uint8
	RNRRetry, AltPortNum, AltTimeout, Rsv0                     uint8
	RateLimit                                                  uint32
	Rsv1                                                       uint32
}

// CreateAH makes an address handle.
type CreateAH struct {
	Hdr
	PD   uint32
	Rsv  uint32
	Attr AHAttr
}

// Mcast attaches a QP to a multicast group, or detaches it.
type Mcast struct {
	Hdr
	QP  uint32
	Rsv uint32
	GID [16]byte
}

// CompEvent is one record on a completion channel.
type CompEvent struct {
	Cookie uint64
}

// AsyncEvent is one record on the asynchronous event socket.
type AsyncEvent struct {
	Cookie uint64
	Type   uint32
	Port   uint32
}

// CtxPage begins a context's memory. Summary and Bell are the doorbells; Asleep and Dead are the daemon's.
type CtxPage struct {
	Magic    uint32
	ABIMajor uint32
	Rsv0     [56]byte
	Asleep   uint32
	Rsv1     [60]byte
	Dead     uint32
	Rsv2     [60]byte
	Rsv3     [320]byte
	Summary  [64]uint64
	Rsv4     [3072]byte
	Bell     [4096]uint64
}

// RingHeader begins a ring (struct mr_ring).
type RingHeader struct {
	Prod  uint32
	Rsv0  [60]byte
	Cons  uint32
	Rsv1  [60]byte
	Arm   uint32
	Rsv2  [60]byte
	Flags uint32
	Rsv3  [60]byte
}

// SGE is one piece of a program's memory.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SQE is a send work request; SGEs or inline bytes follow it in its slot.
type SQE struct {
	WRID       uint64
	Opcode     uint8
	NumSGE     uint8
	Flags      uint16
	Imm        uint32
	RemoteAddr uint64
	RKey       uint32
	InlineLen  uint32
	U          [16]byte
	XRCSRQN    uint32
	Rsv        [3]uint32
}

// CompareAdd is the operand of an atomic (u.atomic.compare_add).
func (e *SQE) CompareAdd() uint64 { return binary.LittleEndian.Uint64(e.U[0:]) }

// Swap is the second operand of CMP_SWAP (u.atomic.swap).
func (e *SQE) Swap() uint64 { return binary.LittleEndian.Uint64(e.U[8:]) }

// SetBind fills in what a BIND_MW shows of a region (u.bind).
func (e *SQE) SetBind(length uint64, lkey, access uint32) {
	le := binary.LittleEndian
	le.PutUint64(e.U[0:], length)
	le.PutUint32(e.U[8:], lkey)
	le.PutUint32(e.U[12:], access)
}

// UD is where a UD message goes (u.ud).
func (e *SQE) UD() (ah, qpn, qkey uint32) {
	le := binary.LittleEndian
	return le.Uint32(e.U[0:]), le.Uint32(e.U[4:]), le.Uint32(e.U[8:])
}

// RQE is a receive work request; SGEs follow it in its slot.
type RQE struct {
	WRID   uint64
	NumSGE uint32
	Rsv    uint32
}

// CQE is a completion.
type CQE struct {
	WRID            uint64
	QPN             uint32
	ByteLen         uint32
	Imm             uint32
	SrcQP           uint32
	Status          uint8
	Opcode          uint8
	WCFlags         uint8
	Flags           uint8
	VendorErr       uint32
	Slot            uint32
	PkeyIndex, SLID uint16
	SL, PathBits    uint8
	InlineLen       uint16
	SRQ             uint32
	Timestamp       uint64
	Rsv1            uint64
	Data            [CQEInline]byte
}

// ImportMRReply describes a region of another program.
type ImportMRReply struct {
	Hdr
	LKey   uint32
	RKey   uint32
	IOVA   uint64
	Length uint64
	Access uint32
	Rsv    uint32
}

// DM is device memory.
type DM struct {
	Hdr
	Length uint64
}

// Share lets who knows the token import the context of this connection.
type Share struct {
	Hdr
	Token [2]uint64
}

// Import opens a NIC together with a program that shared it.
type Import struct {
	Hdr
	Token    [2]uint64
	ShmBytes uint64
}

// ImportReply answers Import.
type ImportReply struct {
	Hdr
	Ctx  uint32
	Rsv  uint32
	Attr DeviceAttr
	NIC  NIC
}

// ModifyCQ sets the moderation of a CQ: microseconds.
type ModifyCQ struct {
	Hdr
	Handle uint32
	Count  uint16
	Period uint16
}
