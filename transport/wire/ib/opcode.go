package ib

import "strconv"

// Opcode is the BTH opcode, for a connected service without the bits that say which: all have RC's operations.
type Opcode uint8

// Service is the connected service of a packet: what its opcode on the wire has above that of RC.
type Service uint8

// Services. UD and CNP have opcodes of their own, and Service RC.
const (
	RC  Service = 0x00
	UC  Service = 0x20
	XRC Service = 0xA0
)

// Opcodes of RC and UD, and the congestion notification packet.
const (
	SendFirst     Opcode = 0x00
	SendMiddle    Opcode = 0x01
	SendLast      Opcode = 0x02
	SendLastImm   Opcode = 0x03
	SendOnly      Opcode = 0x04
	SendOnlyImm   Opcode = 0x05
	WriteFirst    Opcode = 0x06
	WriteMiddle   Opcode = 0x07
	WriteLast     Opcode = 0x08
	WriteLastImm  Opcode = 0x09
	WriteOnly     Opcode = 0x0A
	WriteOnlyImm  Opcode = 0x0B
	ReadRequest   Opcode = 0x0C
	ReadRespFirst Opcode = 0x0D
	ReadRespMid   Opcode = 0x0E
	ReadRespLast  Opcode = 0x0F
	ReadRespOnly  Opcode = 0x10
	Ack           Opcode = 0x11
	AtomicAck     Opcode = 0x12
	CmpSwap       Opcode = 0x13
	FetchAdd      Opcode = 0x14
	SendLastInv   Opcode = 0x16
	SendOnlyInv   Opcode = 0x17
	UDSend        Opcode = 0x64
	UDSendImm     Opcode = 0x65
	CNP           Opcode = 0x81
)

// ext is a set of extension headers; on the wire they come in the order of the bits.
type ext uint8

const (
	extXRC ext = 1 << iota
	extDETH
	extRETH
	extAtomic
	extAETH
	extAtomicAck
	extImm
	extInv
)

// Positions of a packet in its message.
const (
	posFirst = 1 << iota
	posLast
	posOnly = posFirst | posLast
)

type opInfo struct {
	name    string
	op      Opcode // of RC
	service Service
	ext     ext
	len     uint8 // of the extension headers
	pos     uint8
	known   bool
	payload bool
	request bool
	resp    bool
}

// opTable has what is to be known of every opcode, by its value on the wire.
type opTable [256]opInfo

var ops = makeOps()

func makeOps() (t opTable) {
	set := func(o Opcode, name string, e ext, pos uint8, payload bool) {
		i := opInfo{name: name, op: o, ext: e, pos: pos, known: true, payload: payload, len: e.len()}
		i.resp = o >= ReadRespFirst && o <= AtomicAck
		i.request = o < 0x20 && !i.resp
		t[o] = i
	}
	set(SendFirst, "SEND_FIRST", 0, posFirst, true)
	set(SendMiddle, "SEND_MIDDLE", 0, 0, true)
	set(SendLast, "SEND_LAST", 0, posLast, true)
	set(SendLastImm, "SEND_LAST_IMM", extImm, posLast, true)
	set(SendOnly, "SEND_ONLY", 0, posOnly, true)
	set(SendOnlyImm, "SEND_ONLY_IMM", extImm, posOnly, true)
	set(WriteFirst, "WRITE_FIRST", extRETH, posFirst, true)
	set(WriteMiddle, "WRITE_MIDDLE", 0, 0, true)
	set(WriteLast, "WRITE_LAST", 0, posLast, true)
	set(WriteLastImm, "WRITE_LAST_IMM", extImm, posLast, true)
	set(WriteOnly, "WRITE_ONLY", extRETH, posOnly, true)
	set(WriteOnlyImm, "WRITE_ONLY_IMM", extRETH|extImm, posOnly, true)
	set(ReadRequest, "READ_REQUEST", extRETH, posOnly, false)
	set(ReadRespFirst, "READ_RESP_FIRST", extAETH, posFirst, true)
	set(ReadRespMid, "READ_RESP_MIDDLE", 0, 0, true)
	set(ReadRespLast, "READ_RESP_LAST", extAETH, posLast, true)
	set(ReadRespOnly, "READ_RESP_ONLY", extAETH, posOnly, true)
	set(Ack, "ACK", extAETH, posOnly, false)
	set(AtomicAck, "ATOMIC_ACK", extAETH|extAtomicAck, posOnly, false)
	set(CmpSwap, "CMP_SWAP", extAtomic, posOnly, false)
	set(FetchAdd, "FETCH_ADD", extAtomic, posOnly, false)
	set(SendLastInv, "SEND_LAST_INV", extInv, posLast, true)
	set(SendOnlyInv, "SEND_ONLY_INV", extInv, posOnly, true)
	set(UDSend, "UD_SEND", extDETH, posOnly, true)
	set(UDSendImm, "UD_SEND_IMM", extDETH|extImm, posOnly, true)
	set(CNP, "CNP", 0, posOnly, true)
	for o := range CNP {
		t.derive(o)
	}
	return t
}

// derive sets what the other connected services have of an opcode of RC: UC what needs no answer and no key at the other
// end to end, XRC everything, its requests with the number of a shared receive queue.
func (t *opTable) derive(o Opcode) {
	i := t[o]
	if !i.request && !i.resp {
		return
	}
	if o <= WriteOnlyImm {
		u := i
		u.name, u.service = "UC_"+i.name, UC
		t[uint8(o)|uint8(UC)] = u
	}
	i.name, i.service = "XRC_"+i.name, XRC
	if i.request {
		i.ext |= extXRC
		i.len = i.ext.len()
	}
	t[uint8(o)|uint8(XRC)] = i
}

// len is the length of extension headers.
func (e ext) len() (n uint8) {
	for b, l := range extLens {
		if e>>b&1 != 0 {
			n += l
		}
	}
	return n
}

// Known reports whether the opcode is one of those above.
func (o Opcode) Known() bool { return ops[o].known }

// IsRequest reports whether packets of this opcode are requests of RC.
func (o Opcode) IsRequest() bool { return ops[o].request }

// IsResponse reports whether packets of this opcode answer requests of RC.
func (o Opcode) IsResponse() bool { return ops[o].resp }

// First reports whether the packet begins a message.
func (o Opcode) First() bool { return ops[o].pos&posFirst != 0 }

// Last reports whether the packet ends a message.
func (o Opcode) Last() bool { return ops[o].pos&posLast != 0 }

// IsSend reports whether the packet belongs to a SEND of RC.
func (o Opcode) IsSend() bool { return o <= SendOnlyImm || o == SendLastInv || o == SendOnlyInv }

// IsWrite reports whether the packet belongs to a WRITE of RC.
func (o Opcode) IsWrite() bool { return o >= WriteFirst && o <= WriteOnlyImm }

// HasImm reports whether the packet carries immediate data.
func (o Opcode) HasImm() bool { return ops[o].ext&extImm != 0 }

// HasInv reports whether the packet carries a key to invalidate.
func (o Opcode) HasInv() bool { return ops[o].ext&extInv != 0 }

// String returns the opcode's name.
func (o Opcode) String() string {
	if ops[o].known {
		return ops[o].name
	}
	return "opcode(0x" + strconv.FormatUint(uint64(o), 16) + ")"
}
