// Package ib holds the codecs of RoCEv2 packets as IBTA defines them for RC, UC, XRC and UD: from BTH to ICRC.
//
// Every function works on bytes of the caller and allocates nothing. Bytes from the network never cause a panic: what
// is wrong with them is a Drop reason, to be counted by the caller.
//
//	+--------+--------------------+---------+---------+------+
//	| BTH 12 | extension headers  | payload | pad 0-3 | ICRC |
//	+--------+--------------------+---------+---------+------+
//
// To send: fill a Header, call PadFor with the payload's length, Put, copy the payload behind it, zero the pad, leave
// ICRCLen bytes, and call Summer.Seal on the pkt.Packet. To receive: Decode, then Summer.Good.
package ib

import (
	"encoding/binary"

	"github.com/metaroce/metaroce/internal/serial"
)

// Lengths in bytes.
const (
	BTHLen       = 12
	XRCETHLen    = 4
	DETHLen      = 8
	RETHLen      = 16
	AtomicETHLen = 28
	AETHLen      = 4
	AtomicAckLen = 8
	ImmDtLen     = 4
	IETHLen      = 4
	ICRCLen      = 4
	CNPPayload   = 16 // zeros behind the BTH of a CNP

	MinPacket   = BTHLen + ICRCLen
	MaxOverhead = BTHLen + RETHLen + ImmDtLen + ICRCLen // around the payload, at most
	XRCOverhead = MaxOverhead + XRCETHLen
	UDOverhead  = BTHLen + DETHLen + ImmDtLen + ICRCLen
)

var extLens = [...]uint8{XRCETHLen, DETHLen, RETHLen, AtomicETHLen, AETHLen, AtomicAckLen, ImmDtLen, IETHLen}

// Fields of BTH.
const (
	offFlags = 1 // SE, MigReq, pad count, TVer
	offPKey  = 2
	offECN   = 4 // FECN, BECN
	offQP    = 5
	offAck   = 8
	offPSN   = 9

	bitSE     = 0x80
	bitMig    = 0x40
	shiftPad  = 4
	maskTVer  = 0x0f
	bitFECN   = 0x80
	bitBECN   = 0x40
	bitAckReq = 0x80

	mask24 = 1<<24 - 1
)

// PKeyDefault is the partition that RoCE uses: the default one, full member.
const PKeyDefault = 0xFFFF

// MulticastQPN is the destination of multicast packets.
const MulticastQPN = 0xFFFFFF

// Header is all that the headers of one packet say. Which of the fields below PSN are on the wire depends on Op.
type Header struct {
	Op      Opcode
	Service Service
	SE      bool
	NoMig   bool  // MigReq is sent as 1, which hardware expects, unless this is set
	Pad     uint8 // bytes of zero behind the payload, 0 to 3
	FECN    bool
	BECN    bool
	AckReq  bool
	PKey    uint16
	DestQP  uint32
	PSN     serial.PSN

	SRQN     uint32   // XRCETH, 24 bits
	Syndrome Syndrome // AETH
	MSN      uint32   // AETH, 24 bits
	VA       uint64   // RETH, AtomicETH
	RKey     uint32
	Len      uint32 // RETH: bytes of the whole message
	Imm      uint32 // ImmDt: the four bytes as they lie in memory, so the value is that of the machine's byte order
	Inv      uint32 // IETH
	QKey     uint32 // DETH
	SrcQP    uint32
	Swap     uint64 // AtomicETH: new value, or what to add
	Compare  uint64
	Result   uint64 // AtomicAckETH: the value before
}

// Size returns the length of all headers: where the payload begins.
func (h *Header) Size() int { return BTHLen + int(ops[h.code()].len) }

// code is the opcode on the wire.
func (h *Header) code() uint8 { return uint8(h.Op) | uint8(h.Service) }

// PadFor sets Pad for a payload of n bytes and returns it.
func (h *Header) PadFor(n int) int {
	h.Pad = uint8(-n & 3)
	return int(h.Pad)
}

// Put writes the headers to b, which must have room for Size bytes, and returns Size.
func (h *Header) Put(b []byte) int {
	n := h.Size()
	b = b[:n]
	flags := h.Pad << shiftPad & 0x30
	if h.SE {
		flags |= bitSE
	}
	if !h.NoMig {
		flags |= bitMig
	}
	var ecn uint32
	if h.FECN {
		ecn |= bitFECN << 24
	}
	if h.BECN {
		ecn |= bitBECN << 24
	}
	var ack uint32
	if h.AckReq {
		ack = bitAckReq << 24
	}
	b[0], b[offFlags] = h.code(), flags
	binary.BigEndian.PutUint16(b[offPKey:], h.PKey)
	binary.BigEndian.PutUint32(b[offECN:], ecn|h.DestQP&mask24)
	binary.BigEndian.PutUint32(b[offAck:], ack|uint32(h.PSN)&mask24)
	h.putExt(b[BTHLen:])
	return n
}

func (h *Header) putExt(b []byte) {
	e := ops[h.code()].ext
	if e&extXRC != 0 {
		binary.BigEndian.PutUint32(b, h.SRQN&mask24)
		b = b[XRCETHLen:]
	}
	if e&extDETH != 0 {
		binary.BigEndian.PutUint32(b, h.QKey)
		binary.BigEndian.PutUint32(b[4:], h.SrcQP&mask24)
		b = b[DETHLen:]
	}
	if e&extRETH != 0 {
		binary.BigEndian.PutUint64(b, h.VA)
		binary.BigEndian.PutUint32(b[8:], h.RKey)
		binary.BigEndian.PutUint32(b[12:], h.Len)
		b = b[RETHLen:]
	}
	if e&extAtomic != 0 {
		binary.BigEndian.PutUint64(b, h.VA)
		binary.BigEndian.PutUint32(b[8:], h.RKey)
		binary.BigEndian.PutUint64(b[12:], h.Swap)
		binary.BigEndian.PutUint64(b[20:], h.Compare)
		b = b[AtomicETHLen:]
	}
	if e&extAETH != 0 {
		binary.BigEndian.PutUint32(b, uint32(h.Syndrome)<<24|h.MSN&mask24)
		b = b[AETHLen:]
	}
	if e&extAtomicAck != 0 {
		binary.BigEndian.PutUint64(b, h.Result)
		b = b[AtomicAckLen:]
	}
	if e&extImm != 0 {
		binary.NativeEndian.PutUint32(b, h.Imm)
		b = b[ImmDtLen:]
	}
	if e&extInv != 0 {
		binary.BigEndian.PutUint32(b, h.Inv)
	}
}

// Decode checks the form of a packet, all but its ICRC, and fills h. It returns the payload without the pad, which
// shares memory with b. When d is not Accepted, h may be half filled.
func Decode(b []byte, h *Header) (payload []byte, d Drop) {
	*h = Header{}
	if len(b) < MinPacket || len(b)&3 != 0 {
		return nil, DropLength
	}
	flags := b[offFlags]
	if flags&maskTVer != 0 {
		return nil, DropTVer
	}
	i := &ops[b[0]]
	if !i.known {
		return nil, DropOpcode
	}
	h.Op, h.Service = i.op, i.service
	h.SE, h.NoMig, h.Pad = flags&bitSE != 0, flags&bitMig == 0, flags>>shiftPad&3
	h.PKey = binary.BigEndian.Uint16(b[offPKey:])
	h.FECN, h.BECN = b[offECN]&bitFECN != 0, b[offECN]&bitBECN != 0
	h.DestQP = binary.BigEndian.Uint32(b[offECN:]) & mask24
	h.AckReq = b[offAck]&bitAckReq != 0
	h.PSN = serial.PSN(binary.BigEndian.Uint32(b[offAck:]) & mask24)
	n, end := BTHLen+int(i.len), len(b)-ICRCLen
	if n > end {
		return nil, DropExtension
	}
	if end -= int(h.Pad); n > end {
		return nil, DropPad
	}
	if n != end && !i.payload {
		return nil, DropPayload
	}
	h.getExt(b[BTHLen:n])
	return b[n:end], Accepted
}

func (h *Header) getExt(b []byte) {
	e := ops[h.code()].ext
	if e&extXRC != 0 {
		h.SRQN = binary.BigEndian.Uint32(b) & mask24
		b = b[XRCETHLen:]
	}
	if e&extDETH != 0 {
		h.QKey = binary.BigEndian.Uint32(b)
		h.SrcQP = binary.BigEndian.Uint32(b[4:]) & mask24
		b = b[DETHLen:]
	}
	if e&extRETH != 0 {
		h.VA = binary.BigEndian.Uint64(b)
		h.RKey = binary.BigEndian.Uint32(b[8:])
		h.Len = binary.BigEndian.Uint32(b[12:])
		b = b[RETHLen:]
	}
	if e&extAtomic != 0 {
		h.VA = binary.BigEndian.Uint64(b)
		h.RKey = binary.BigEndian.Uint32(b[8:])
		h.Swap = binary.BigEndian.Uint64(b[12:])
		h.Compare = binary.BigEndian.Uint64(b[20:])
		b = b[AtomicETHLen:]
	}
	if e&extAETH != 0 {
		v := binary.BigEndian.Uint32(b)
		h.Syndrome, h.MSN = Syndrome(v>>24), v&mask24
		b = b[AETHLen:]
	}
	if e&extAtomicAck != 0 {
		h.Result = binary.BigEndian.Uint64(b)
		b = b[AtomicAckLen:]
	}
	if e&extImm != 0 {
		h.Imm = binary.NativeEndian.Uint32(b)
		b = b[ImmDtLen:]
	}
	if e&extInv != 0 {
		h.Inv = binary.BigEndian.Uint32(b)
	}
}
