package wire

import "strconv"

// IsRequest reports whether packets of this opcode count in the request PSN space of their QP.
func (o Opcode) IsRequest() bool { return o >= OpWrite && o <= OpFetchAdd }

// IsResponse reports whether packets of this opcode count in the response PSN space of their QP.
func (o Opcode) IsResponse() bool { return o == OpReadResp || o == OpAtomicResp }

// IsData reports whether packets of this opcode take a number of their path and are acknowledged.
func (o Opcode) IsData() bool { return o >= OpWrite && o <= OpAtomicResp }

// hasPayload reports whether bytes may follow the headers.
func (o Opcode) hasPayload() bool {
	switch o {
	case OpRead, OpCmpSwap, OpFetchAdd, OpAtomicResp:
		return false
	}
	return true
}

const (
	opBase  = 0xC0 // the manufacturer range of BTH opcodes
	opSlots = 0x40
)

// extLen is the length of the extension headers, by opcode; -1 where we know no such opcode.
var extLen = func() (t [opSlots]int8) {
	for i := range t {
		t[i] = -1
	}
	t[OpWrite-opBase] = RETHLen
	t[OpWriteImm-opBase] = RETHLen + SNDHLen + ImmDtLen
	t[OpSend-opBase] = SNDHLen
	t[OpSendImm-opBase] = SNDHLen + ImmDtLen
	t[OpSendInv-opBase] = SNDHLen + IETHLen
	t[OpRead-opBase] = RETHLen
	t[OpCmpSwap-opBase] = AtomicETHLen
	t[OpFetchAdd-opBase] = AtomicETHLen
	t[OpReadResp-opBase] = RDRHLen
	t[OpAtomicResp-opBase] = RDRHLen + AtomicAckETHLen
	for _, o := range []Opcode{OpAck, OpHello, OpProbe, OpProbeAck, OpStale, OpEthernet} {
		t[o-opBase] = 0
	}
	return t
}()

// unknown names a value that the spec does not know.
func unknown(kind string, v uint32) string {
	return kind + "(0x" + strconv.FormatUint(uint64(v), 16) + ")"
}
