package cm

import "encoding/binary"

// Messages of the connection manager: management datagrams of 256 bytes, a header of 24 and the message (InfiniBand
// Architecture, volume 1, chapters 12 and 13.4).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  version 1    |  class 7      | class version |  method 3     |
//	|            status             |         class specific        |
//	|                     transaction ID (64)                       |
//	|           attribute           |           reserved            |
//	|                      attribute modifier                       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

// MADLen is the length of every message.
const MADLen = 256

const (
	madHdr      = 24
	madVersion  = 1
	madClass    = 7
	madClassVer = 2
	madSend     = 3
)

// Attr is the kind of a message.
type Attr uint16

// Messages.
const (
	REQ     Attr = 0x10
	MRA     Attr = 0x11
	REJ     Attr = 0x12
	REP     Attr = 0x13
	RTU     Attr = 0x14
	DREQ    Attr = 0x15
	DREP    Attr = 0x16
	SIDRREQ Attr = 0x17
	SIDRREP Attr = 0x18
)

var attrNames = map[Attr]string{REQ: "REQ", MRA: "MRA", REJ: "REJ", REP: "REP", RTU: "RTU", DREQ: "DREQ", DREP: "DREP", SIDRREQ: "SIDR_REQ", SIDRREP: "SIDR_REP"}

// String is the message's name in the specification.
func (a Attr) String() string {
	if n, ok := attrNames[a]; ok {
		return n
	}
	return "unknown"
}

// privateAt and privateLen say where a message has its private data.
var privateAt = map[Attr][2]int{REQ: {140, 92}, MRA: {10, 222}, REJ: {84, 148}, REP: {36, 196}, RTU: {8, 224}, DREQ: {12, 220}, DREP: {8, 224},
	SIDRREQ: {16, 216}, SIDRREP: {96, 136}}

// Path is the path record in a REQ.
type Path struct {
	Local, Remote       [16]byte // GIDs as the sender of the REQ has them
	LocalLID, RemoteLID uint16
	FlowLabel           uint32
	Rate, SL            uint8
	TClass, HopLimit    uint8
	SubnetLocal         bool
	AckTimeout          uint8
}

// Msg is a message. Which fields mean something depends on Attr.
type Msg struct {
	Attr          Attr
	TID           uint64
	Local, Remote uint32 // communication IDs as the sender has them; Local is the request ID of SIDR
	Private       [224]byte

	Service, GUID  uint64
	QKey, QPN, PSN uint32
	RespRes        uint8
	InitDepth      uint8
	RemoteTimeout  uint8
	LocalTimeout   uint8
	Transport      uint8 // 0 RC, 1 UC
	Flow           bool
	Retry          uint8
	RNR            uint8
	PKey           uint16
	MTU            uint8
	MaxRetries     uint8
	SRQ            bool
	ExtTransport   uint8
	Path           Path

	AckDelay uint8 // REP
	Which    uint8 // MRA, REJ: of which message
	Service5 uint8 // MRA: how long it may take, coded
	Reason   uint16
	InfoLen  uint8
	Info     [72]byte
	Status   uint8 // SIDR_REP
}

// PrivateLen is the room for private data in a message.
func PrivateLen(a Attr) int { return privateAt[a][1] }

var be = binary.BigEndian

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }
func get24(b []byte) uint32    { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func bit(v bool, n int) byte {
	if v {
		return 1 << n
	}
	return 0
}

// Put writes the message.
func (m *Msg) Put(out *[MADLen]byte) {
	*out = [MADLen]byte{madVersion, madClass, madClassVer, madSend}
	be.PutUint64(out[8:], m.TID)
	be.PutUint16(out[16:], uint16(m.Attr))
	b := out[madHdr:]
	be.PutUint32(b, m.Local)
	switch m.Attr {
	case REQ:
		m.putREQ(b)
	case REP:
		be.PutUint32(b[4:], m.Remote)
		be.PutUint32(b[8:], m.QKey)
		put24(b[12:], m.QPN)
		put24(b[20:], m.PSN)
		b[24], b[25] = m.RespRes, m.InitDepth
		b[26] = m.AckDelay<<3 | bit(m.Flow, 0)
		b[27] = m.RNR<<5 | bit(m.SRQ, 4)
		be.PutUint64(b[28:], m.GUID)
	case RTU, DREP:
		be.PutUint32(b[4:], m.Remote)
	case DREQ:
		be.PutUint32(b[4:], m.Remote)
		put24(b[8:], m.QPN)
	case MRA:
		be.PutUint32(b[4:], m.Remote)
		b[8], b[9] = m.Which<<6, m.Service5<<3
	case REJ:
		be.PutUint32(b[4:], m.Remote)
		b[8], b[9] = m.Which<<6, m.InfoLen<<1
		be.PutUint16(b[10:], m.Reason)
		copy(b[12:84], m.Info[:])
	case SIDRREQ:
		be.PutUint16(b[4:], m.PKey)
		be.PutUint64(b[8:], m.Service)
	case SIDRREP:
		b[4], b[5] = m.Status, m.InfoLen
		put24(b[8:], m.QPN)
		be.PutUint64(b[12:], m.Service)
		be.PutUint32(b[20:], m.QKey)
		copy(b[24:96], m.Info[:])
	}
	at := privateAt[m.Attr]
	copy(b[at[0]:at[0]+at[1]], m.Private[:])
}

func (m *Msg) putREQ(b []byte) {
	be.PutUint64(b[8:], m.Service)
	be.PutUint64(b[16:], m.GUID)
	be.PutUint32(b[28:], m.QKey)
	put24(b[32:], m.QPN)
	b[35] = m.RespRes
	b[39] = m.InitDepth
	b[43] = m.RemoteTimeout<<3 | m.Transport<<1 | bit(m.Flow, 0)
	put24(b[44:], m.PSN)
	b[47] = m.LocalTimeout<<3 | m.Retry&7
	be.PutUint16(b[48:], m.PKey)
	b[50] = m.MTU<<4 | m.RNR&7
	b[51] = m.MaxRetries<<4 | bit(m.SRQ, 3) | m.ExtTransport&7
	p := &m.Path
	be.PutUint16(b[52:], p.LocalLID)
	be.PutUint16(b[54:], p.RemoteLID)
	copy(b[56:72], p.Local[:])
	copy(b[72:88], p.Remote[:])
	be.PutUint32(b[88:], p.FlowLabel<<12|uint32(p.Rate&0x3f))
	b[92], b[93] = p.TClass, p.HopLimit
	b[94] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[95] = p.AckTimeout << 3
}

// Parse reads a message. False: it is none of ours to read.
func Parse(in []byte, m *Msg) bool {
	if len(in) != MADLen || in[0] != madVersion || in[1] != madClass || in[2] != madClassVer || in[3] != madSend {
		return false
	}
	*m = Msg{Attr: Attr(be.Uint16(in[16:])), TID: be.Uint64(in[8:])}
	at, ok := privateAt[m.Attr]
	if !ok {
		return false
	}
	b := in[madHdr:]
	copy(m.Private[:], b[at[0]:at[0]+at[1]])
	m.Local = be.Uint32(b)
	m.Remote = be.Uint32(b[4:])
	switch m.Attr {
	case REQ:
		m.Remote = 0
		m.getREQ(b)
	case REP:
		m.QKey, m.QPN, m.PSN = be.Uint32(b[8:]), get24(b[12:]), get24(b[20:])
		m.RespRes, m.InitDepth, m.AckDelay, m.Flow = b[24], b[25], b[26]>>3, b[26]&1 != 0
		m.RNR, m.SRQ, m.GUID = b[27]>>5, b[27]&0x10 != 0, be.Uint64(b[28:])
	case DREQ:
		m.QPN = get24(b[8:])
	case MRA:
		m.Which, m.Service5 = b[8]>>6, b[9]>>3
	case REJ:
		m.Which, m.InfoLen, m.Reason = b[8]>>6, b[9]>>1, be.Uint16(b[10:])
		copy(m.Info[:], b[12:84])
	case SIDRREQ:
		m.Remote, m.PKey, m.Service = 0, be.Uint16(b[4:]), be.Uint64(b[8:])
	case SIDRREP:
		m.Remote, m.Status, m.InfoLen = 0, b[4], b[5]
		m.QPN, m.Service, m.QKey = get24(b[8:]), be.Uint64(b[12:]), be.Uint32(b[20:])
		copy(m.Info[:], b[24:96])
	case RTU, DREP:
	}
	return true
}

func (m *Msg) getREQ(b []byte) {
	m.Service, m.GUID, m.QKey, m.QPN = be.Uint64(b[8:]), be.Uint64(b[16:]), be.Uint32(b[28:]), get24(b[32:])
	m.RespRes, m.InitDepth = b[35], b[39]
	m.RemoteTimeout, m.Transport, m.Flow = b[43]>>3, b[43]>>1&3, b[43]&1 != 0
	m.PSN, m.LocalTimeout, m.Retry = get24(b[44:]), b[47]>>3, b[47]&7
	m.PKey, m.MTU, m.RNR = be.Uint16(b[48:]), b[50]>>4, b[50]&7
	m.MaxRetries, m.SRQ, m.ExtTransport = b[51]>>4, b[51]&8 != 0, b[51]&7
	p := &m.Path
	p.LocalLID, p.RemoteLID = be.Uint16(b[52:]), be.Uint16(b[54:])
	copy(p.Local[:], b[56:72])
	copy(p.Remote[:], b[72:88])
	v := be.Uint32(b[88:])
	p.FlowLabel, p.Rate, p.TClass, p.HopLimit = v>>12, uint8(v&0x3f), b[92], b[93]
	p.SL, p.SubnetLocal, p.AckTimeout = b[94]>>4, b[94]&8 != 0, b[95]>>3
}
