package wire

import "encoding/binary"

// RETH says where bytes go (WRITE: those of this very packet) or come from (READ).
//
//	bits RETH
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                                                               |
//	+                              VA                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             RKey                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              Len                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func (h *Header) putRETH(b []byte) {
	_ = b[RETHLen-1]
	binary.BigEndian.PutUint64(b[offRETHVA:], h.VA)
	binary.BigEndian.PutUint32(b[offRETHRKey:], h.RKey)
	binary.BigEndian.PutUint32(b[offRETHLen:], h.Len)
}

func (h *Header) getRETH(b []byte) {
	_ = b[RETHLen-1]
	h.VA = binary.BigEndian.Uint64(b[offRETHVA:])
	h.RKey = binary.BigEndian.Uint32(b[offRETHRKey:])
	h.Len = binary.BigEndian.Uint32(b[offRETHLen:])
}

// SNDH says which receive request takes the bytes, and where in it they begin.
//
//	bits SNDH
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              SSN                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              Off                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func (h *Header) putSNDH(b []byte) {
	_ = b[SNDHLen-1]
	binary.BigEndian.PutUint32(b[offSNDHSSN:], h.SSN)
	binary.BigEndian.PutUint32(b[offSNDHOff:], h.Off)
}

func (h *Header) getSNDH(b []byte) {
	_ = b[SNDHLen-1]
	h.SSN = binary.BigEndian.Uint32(b[offSNDHSSN:])
	h.Off = binary.BigEndian.Uint32(b[offSNDHOff:])
}

// RDRH says which READ or atomic is answered, and where in its data the bytes begin.
//
//	bits RDRH
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            ReadNo                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            ReadOff                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func (h *Header) putRDRH(b []byte) {
	_ = b[RDRHLen-1]
	binary.BigEndian.PutUint32(b[offRDRHReadNo:], h.ReadNo)
	binary.BigEndian.PutUint32(b[offRDRHReadOff:], h.ReadOff)
}

func (h *Header) getRDRH(b []byte) {
	_ = b[RDRHLen-1]
	h.ReadNo = binary.BigEndian.Uint32(b[offRDRHReadNo:])
	h.ReadOff = binary.BigEndian.Uint32(b[offRDRHReadOff:])
}

// AtomicETH is IBTA's: address 64, key 32, swap or add 64, compare 64.
func (h *Header) putAtomicETH(b []byte) {
	_ = b[AtomicETHLen-1]
	binary.BigEndian.PutUint64(b[offAtomicETHVA:], h.VA)
	binary.BigEndian.PutUint32(b[offAtomicETHRKey:], h.RKey)
	binary.BigEndian.PutUint64(b[offAtomicETHSwap:], h.Swap)
	binary.BigEndian.PutUint64(b[offAtomicETHCompare:], h.Compare)
}

func (h *Header) getAtomicETH(b []byte) {
	_ = b[AtomicETHLen-1]
	h.VA = binary.BigEndian.Uint64(b[offAtomicETHVA:])
	h.RKey = binary.BigEndian.Uint32(b[offAtomicETHRKey:])
	h.Swap = binary.BigEndian.Uint64(b[offAtomicETHSwap:])
	h.Compare = binary.BigEndian.Uint64(b[offAtomicETHCompare:])
}
