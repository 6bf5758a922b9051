package wire

import "strconv"

// IsRequest reports whether packets of this opcode count in the request PSN space of their QP.
func (o Opcode) IsRequest() bool { return o >= opBase && opTable[o-opBase].request }

// IsResponse reports whether packets of this opcode count in the response PSN space of their QP.
func (o Opcode) IsResponse() bool { return o >= opBase && opTable[o-opBase].response }

// IsData reports whether packets of this opcode take a number of their path and are acknowledged.
func (o Opcode) IsData() bool { return o.IsRequest() || o.IsResponse() }

// unknown names a value that the spec does not know.
func unknown(kind string, v uint32) string {
	return kind + "(0x" + strconv.FormatUint(uint64(v), 16) + ")"
}

// The numbers in formats.yaml that follow from others.
const (
	_ = uint(MaxOverhead - (BTHLen + MPHLen + RETHLen + SNDHLen + ImmDtLen + ICRCLen))
	_ = uint(BTHLen + MPHLen + RETHLen + SNDHLen + ImmDtLen + ICRCLen - MaxOverhead)
	_ = uint(PlaneOverhead - (40 + 8 + MaxOverhead + 16))
	_ = uint(40 + 8 + MaxOverhead + 16 - PlaneOverhead)
	_ = uint(HelloLen - (helloBase + MaxPlanes*helloPlaneBytes + TLVHeadLen))
	_ = uint(helloBase + MaxPlanes*helloPlaneBytes + TLVHeadLen - HelloLen)
	_ = uint(BitmapBits - 32*maxPathBlockBitmap)
	_ = uint(32*maxPathBlockBitmap - BitmapBits)
)
