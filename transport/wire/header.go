package wire

import (
	"encoding/binary"

	"github.com/metaroce/metaroce/internal/planted"
	"github.com/metaroce/metaroce/internal/serial"
)

// Sizes that follow from the headers.
const (
	// MinPacket is the length of a packet without extension headers and payload.
	MinPacket = BTHLen + MPHLen + ICRCLen
	// Mask24 keeps the 24 bits of a QPN or PSN.
	Mask24 = 1<<24 - 1
)

// Header is all that the headers of one packet say. Which of the fields below TS are on the wire depends on Op.
type Header struct {
	// BTH
	Op        Opcode
	SE        bool       // solicited event
	Pad       uint8      // bytes of zero behind the payload, 0 to 3
	PKey      uint16     // 0 is sent as PKeyDefault
	DestQP    uint32     // 24 bits
	BTHAckReq bool       // for the eyes of RoCE tools; ours is FlagAckReq
	PSN       serial.PSN // requests and responses count apart

	// MPH
	Tag     uint32 // association tag, chosen by the receiver of the packet
	Path    uint16
	Flags   Flags
	Version uint8  // 0 is sent as Version
	Seq     uint32 // path sequence
	TS      uint32 // transmit time in units of 16 ns

	// RETH, AtomicETH
	VA   uint64
	RKey uint32
	Len  uint32 // RETH: bytes from here to the end of the message (READ: of the whole READ)

	// SNDH
	SSN uint32 // send number: which receive request
	Off uint32 // of this packet's bytes in the message

	// RDRH
	ReadNo  uint32
	ReadOff uint32

	Imm uint32 // ImmDt: the four bytes as they lie in memory, so the value is that of the machine's byte order
	Inv uint32 // IETH: the key to invalidate

	Swap    uint64 // AtomicETH: new value, or what to add
	Compare uint64
	Result  uint64 // AtomicAckETH: the value before
}

// Size returns the length of all headers: where the payload begins.
func (h *Header) Size() int {
	n := BTHLen + MPHLen
	if h.Op >= opBase {
		n += int(opTable[h.Op-opBase].ext)
	}
	return n
}

// PadFor sets Pad for a payload of n bytes and returns it.
//
// = MR-WIRE-050
func (h *Header) PadFor(n int) int {
	h.Pad = uint8(-n & 3)
	return int(h.Pad)
}

// Put writes the headers to b, which must have room for Size bytes, and returns Size.
//
// Base transport header:
//
//	bits BTH
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|    Opcode     |S|M|Pad| TVer  |             PKey              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   reserved    |                    DestQP                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|A|     rsv     |                      PSN                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// MetaRoCE path header:
//
//	bits MPH
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              Tag                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|             Path              |     Flags     |  Ver  |  rsv  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              Seq                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              TS                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func (h *Header) Put(b []byte) int {
	n := h.Size()
	b = b[:n]
	h.putBTH(b)
	h.putMPH(b[BTHLen:])
	h.putExt(b[BTHLen+MPHLen:])
	return n
}

func (h *Header) putBTH(b []byte) {
	_ = b[BTHLen-1]
	bits := byte(maskBTHMigReq) | h.Pad<<shiftBTHPad&maskBTHPad
	if h.SE {
		bits |= maskBTHSE
	}
	//= MR-WIRE-010
	pkey := h.PKey
	if pkey == 0 {
		pkey = PKeyDefault
	}
	var ar uint32
	if h.BTHAckReq {
		ar = maskBTHAckReq << 24
	}
	b[offBTHOpcode] = byte(h.Op)
	b[offBTHSE] = bits
	binary.BigEndian.PutUint16(b[offBTHPKey:], pkey)
	binary.BigEndian.PutUint32(b[offBTHDestQP-1:], h.DestQP&Mask24)
	binary.BigEndian.PutUint32(b[offBTHPSN-1:], ar|uint32(h.PSN)&Mask24)
}

func (h *Header) putMPH(b []byte) {
	_ = b[MPHLen-1]
	v := h.Version
	if v == 0 {
		v = Version
	}
	//= MR-WIRE-006
	binary.BigEndian.PutUint32(b[offMPHTag:], h.Tag)
	binary.BigEndian.PutUint16(b[offMPHPath:], h.Path)
	b[offMPHFlags] = byte(h.Flags)
	//= MR-WIRE-007
	b[offMPHVersion] = v << shiftMPHVersion
	binary.BigEndian.PutUint32(b[offMPHSeq:], h.Seq)
	binary.BigEndian.PutUint32(b[offMPHTS:], h.TS)
}

func (h *Header) putExt(b []byte) {
	switch h.Op {
	case OpWrite, OpRead:
		h.putRETH(b)
	case OpWriteImm:
		h.putRETH(b)
		h.putSNDH(b[RETHLen:])
		//= MR-WIRE-042
		binary.NativeEndian.PutUint32(b[RETHLen+SNDHLen:], h.Imm)
	case OpSend:
		h.putSNDH(b)
	case OpSendImm:
		h.putSNDH(b)
		binary.NativeEndian.PutUint32(b[SNDHLen:], h.Imm)
	case OpSendInv:
		h.putSNDH(b)
		binary.BigEndian.PutUint32(b[SNDHLen:], h.Inv)
	case OpCmpSwap, OpFetchAdd:
		h.putAtomicETH(b)
	case OpReadResp:
		h.putRDRH(b)
	case OpAtomicResp:
		h.putRDRH(b)
		binary.BigEndian.PutUint64(b[RDRHLen:], h.Result)
	default: // nothing behind MPH
	}
}

// DecodeTrimmed reads what is left of a data packet that a switch trimmed: BTH and MPH. There is no checksum.
func DecodeTrimmed(b []byte, h *Header) bool {
	*h = Header{}
	if len(b) < BTHLen+MPHLen || b[offBTHSE]&maskBTHTVer != 0 {
		return false
	}
	//= MR-REL-060
	h.getBTH(b)
	h.getMPH(b[BTHLen:])
	return h.Version == Version && h.Op.IsData()
}

// Decode checks a whole packet and fills h. It returns the payload without the pad, which shares memory with b.
// When d is not Accepted, h may be half filled and must not be used (but for counting by h.Op after DropICRC).
func Decode(b []byte, h *Header) (payload []byte, d Drop) { return decode(b, h, true) }

// DecodeTrusted is Decode without a look at the ICRC: where no bit can be wrong, as in a simulation.
func DecodeTrusted(b []byte, h *Header) (payload []byte, d Drop) { return decode(b, h, false) }

func decode(b []byte, h *Header, check bool) (payload []byte, d Drop) {
	*h = Header{}
	//= MR-WIRE-060 MR-WIRE-061
	if len(b) < MinPacket || len(b)&3 != 0 {
		return nil, DropLength
	}
	if b[offBTHSE]&maskBTHTVer != 0 {
		return nil, DropTVer
	}
	h.getBTH(b)
	h.getMPH(b[BTHLen:])
	//= MR-WIRE-024
	if h.Version != Version && h.Op != OpHello {
		return nil, DropVersion
	}
	if h.Op < opBase || !opTable[h.Op-opBase].known {
		return nil, DropOpcode
	}
	n := h.Size()
	end := len(b) - ICRCLen
	if n > end {
		return nil, DropExtension
	}
	end -= int(h.Pad)
	if n > end {
		return nil, DropPad
	}
	//= MR-WIRE-033
	if n != end && !opTable[h.Op-opBase].payload {
		return nil, DropPayload
	}
	//= MR-WIRE-052
	if check && !sealed(b) && !planted.Is(planted.NoICRC) {
		return nil, DropICRC
	}
	h.getExt(b[BTHLen+MPHLen : n])
	return b[n:end], Accepted
}

func (h *Header) getBTH(b []byte) {
	_ = b[BTHLen-1]
	h.Op = Opcode(b[offBTHOpcode])
	h.SE = b[offBTHSE]&maskBTHSE != 0
	h.Pad = b[offBTHSE] & maskBTHPad >> shiftBTHPad
	h.PKey = binary.BigEndian.Uint16(b[offBTHPKey:])
	h.DestQP = be24(b[offBTHDestQP-1:])
	h.BTHAckReq = b[offBTHAckReq]&maskBTHAckReq != 0
	h.PSN = serial.PSN(be24(b[offBTHPSN-1:]))
}

func (h *Header) getMPH(b []byte) {
	_ = b[MPHLen-1]
	h.Tag = binary.BigEndian.Uint32(b[offMPHTag:])
	h.Path = binary.BigEndian.Uint16(b[offMPHPath:])
	h.Flags = Flags(b[offMPHFlags])
	//= MR-WIRE-007
	h.Version = b[offMPHVersion] & maskMPHVersion >> shiftMPHVersion
	h.Seq = binary.BigEndian.Uint32(b[offMPHSeq:])
	h.TS = binary.BigEndian.Uint32(b[offMPHTS:])
}

func (h *Header) getExt(b []byte) {
	switch h.Op {
	case OpWrite, OpRead:
		h.getRETH(b)
	case OpWriteImm:
		h.getRETH(b)
		h.getSNDH(b[RETHLen:])
		h.Imm = binary.NativeEndian.Uint32(b[RETHLen+SNDHLen:])
	case OpSend:
		h.getSNDH(b)
	case OpSendImm:
		h.getSNDH(b)
		h.Imm = binary.NativeEndian.Uint32(b[SNDHLen:])
	case OpSendInv:
		h.getSNDH(b)
		h.Inv = binary.BigEndian.Uint32(b[SNDHLen:])
	case OpCmpSwap, OpFetchAdd:
		h.getAtomicETH(b)
	case OpReadResp:
		h.getRDRH(b)
	case OpAtomicResp:
		h.getRDRH(b)
		h.Result = binary.BigEndian.Uint64(b[RDRHLen:])
	default: // nothing behind MPH
	}
}

// be24 reads the low 24 bits of a 32-bit word.
func be24(b []byte) uint32 { return binary.BigEndian.Uint32(b) & Mask24 }
