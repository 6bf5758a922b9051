package wire

import (
	"encoding/binary"

	"github.com/metaroce/metaroce/internal/serial"
)

// The payload of an ACK is a header of one word, then blocks. Every block begins with a word of its own:
//
//	+---------------+-----------------------------------------------+
//	| block count   |                    reserved                   |
//	+---------------+---------------+-------------------------------+
//	|     type      | length, words |    16 bits of the block's     |
//	+---------------+---------------+-------------------------------+

// BitmapBits is the number of path sequences below the highest that a PathBlock reports.
const BitmapBits = 128

// bitmapWords is the number of 32-bit words that hold them.
const bitmapWords = BitmapBits / 32

// MaxPathBlock and the others are the largest lengths of blocks, for those who fit acks into packets.
const (
	AckHLen       = ackHLen
	MaxPathBlock  = blkPathLen + bitmapWords*4
	PlaneBlockLen = blkPlaneLen
	QPBlockLen    = blkQPLen
	RefusalLen    = blkRefusalLen
)

// maxBlocks is what the 8-bit count can say.
const maxBlocks = 255

// PathBlock reports what arrived on one path.
//
//	+---------------+---------------+-------------------------------+
//	|    type 1     |  length 5-9   |            path id            |
//	+---------------+---------------+-------------------------------+
//	|                    highest path sequence                      |
//	+---------------------------------------------------------------+
//	|                   timestamp echoed, 16 ns units               |
//	+---------------------------------------------------------------+
//	|                       hold time, 16 ns units                  |
//	+---------------------------------------------------------------+
//	|                CE-marked packets, cumulative                  |
//	+---------------------------------------------------------------+
//	|  0-4 words: bit i of word w = highest - 1 - (32w + i) arrived |
//	+---------------------------------------------------------------+
type PathBlock struct {
	Path    uint16
	Highest uint32
	Echo    uint32
	Hold    uint32
	CE      uint32
	Bitmap  [2]uint64 // bit i of word i/64: sequence Highest-1-i was received
}

// Len returns the block's length on the wire.
func (p *PathBlock) Len() int { return blkPathLen + 4*p.words() }

func (p *PathBlock) words() int {
	switch {
	case p.Bitmap[1]>>32 != 0:
		return 4
	case p.Bitmap[1] != 0:
		return 3
	case p.Bitmap[0]>>32 != 0:
		return 2
	case p.Bitmap[0] != 0:
		return 1
	}
	return 0
}

// PlaneBlock reports what arrived on one plane and what may be in flight there.
//
//	+---------------+---------------+---------------+---------------+
//	|    type 2     |   length 3    |     plane     |   reserved    |
//	+---------------+---------------+---------------+---------------+
//	|              bytes received, cumulative, wraps                |
//	+---------------------------------------------------------------+
//	|                         grant, bytes                          |
//	+---------------------------------------------------------------+
type PlaneBlock struct {
	Plane uint8
	Bytes uint32
	Grant uint32
}

// QPBlock tells a requester how far its sends may go.
//
//	+---------------+---------------+-------------------------------+
//	|    type 3     |   length 3    |           reserved            |
//	+---------------+---------------+-------------------------------+
//	|   reserved    |      QP number, of the ack's receiver         |
//	+---------------+-----------------------------------------------+
//	|        receive limit: send numbers below it may be sent       |
//	+---------------------------------------------------------------+
type QPBlock struct {
	QPN   uint32
	Limit uint32
}

// RefusalBlock says that a packet arrived and was not accepted.
//
//	+---------------+---------------+-------------------------------+
//	|    type 4     |   length 4    |            path id            |
//	+---------------+---------------+-------------------------------+
//	|                         path sequence                         |
//	+---------------+-----------------------------------------------+
//	|     code      |  QP number, of the ack's receiver; 0 unknown  |
//	+-+---+---------+-----------------------------------------------+
//	|O|rsv|RNR timer|                      PSN                      |
//	+-+---+---------+-----------------------------------------------+
type RefusalBlock struct {
	Path    uint16
	Seq     uint32
	QPN     uint32
	PSN     serial.PSN
	Code    RefusalCode
	Timer   uint8 // IBTA's RNR timer code, 0 to 31
	InOrder bool  // its PSN was the next in order
}

// AckWriter builds the payload of an ACK. The zero value is useless; call Init.
type AckWriter struct {
	b []byte
	n int
	c int
}

// Init begins an ACK in b, which must have room for AckHLen bytes.
func (w *AckWriter) Init(b []byte) {
	_ = b[ackHLen-1]
	w.b, w.n, w.c = b, ackHLen, 0
}

// Len returns the payload's length so far.
func (w *AckWriter) Len() int { return w.n }

// Blocks returns the number of blocks written so far.
func (w *AckWriter) Blocks() int { return w.c }

// Finish writes the block count and returns the payload's length.
func (w *AckWriter) Finish() int {
	binary.BigEndian.PutUint32(w.b, uint32(w.c)<<24)
	return w.n
}

// block takes room for a block of n bytes and writes its first word; nil where there is no room.
func (w *AckWriter) block(t BlockType, n int, own uint16) []byte {
	if w.n+n > len(w.b) || w.c == maxBlocks {
		return nil
	}
	b := w.b[w.n : w.n+n]
	w.n += n
	w.c++
	b[offBlkType] = byte(t)
	b[offBlkWords] = byte(n / 4)
	binary.BigEndian.PutUint16(b[offBlkOwn:], own)
	return b
}

// Path adds a path block; false = no room.
func (w *AckWriter) Path(p *PathBlock) bool {
	b := w.block(BlockPath, p.Len(), p.Path)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offPathHighest:], p.Highest)
	binary.BigEndian.PutUint32(b[offPathEcho:], p.Echo)
	binary.BigEndian.PutUint32(b[offPathHold:], p.Hold)
	binary.BigEndian.PutUint32(b[offPathCE:], p.CE)
	for i := 0; offPathBitmap+4*i < len(b); i++ {
		binary.BigEndian.PutUint32(b[offPathBitmap+4*i:], uint32(p.Bitmap[i/2]>>(i%2*32)))
	}
	return true
}

// Plane adds a plane block; false = no room.
func (w *AckWriter) Plane(p *PlaneBlock) bool {
	b := w.block(BlockPlane, blkPlaneLen, uint16(p.Plane)<<8)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offPlaneBytes:], p.Bytes)
	binary.BigEndian.PutUint32(b[offPlaneGrant:], p.Grant)
	return true
}

// QP adds a QP block; false = no room.
func (w *AckWriter) QP(q *QPBlock) bool {
	b := w.block(BlockQP, blkQPLen, 0)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offQPQPN-1:], q.QPN&Mask24)
	binary.BigEndian.PutUint32(b[offQPLimit:], q.Limit)
	return true
}

// Refusal adds a refusal block; false = no room.
func (w *AckWriter) Refusal(r *RefusalBlock) bool {
	b := w.block(BlockRefusal, blkRefusalLen, r.Path)
	if b == nil {
		return false
	}
	bits := r.Timer & maskRefusalTimer
	if r.InOrder {
		bits |= maskRefusalOrder
	}
	binary.BigEndian.PutUint32(b[offRefusalSeq:], r.Seq)
	binary.BigEndian.PutUint32(b[offRefusalCode:], uint32(r.Code)<<24|r.QPN&Mask24)
	binary.BigEndian.PutUint32(b[offRefusalBits:], uint32(bits)<<24|uint32(r.PSN)&Mask24)
	return true
}

// AckReader walks over the blocks of an ACK. Init checks everything; what follows cannot fail.
type AckReader struct {
	b       []byte // from the next block on
	cur     []byte // the block that Next found
	Unknown int    // blocks of unknown type, skipped
}

// blockLens are the smallest and largest lengths in words, by type. Longer blocks of the fixed kinds are let
// through, their end unread: later versions may add to them.
var blockLens = [...][2]int{
	BlockPath:    {blkPathLen / 4, MaxPathBlock / 4},
	BlockPlane:   {blkPlaneLen / 4, 255},
	BlockQP:      {blkQPLen / 4, 255},
	BlockRefusal: {blkRefusalLen / 4, 255},
}

// Init checks the structure of an ACK's payload and begins the walk.
func (r *AckReader) Init(payload []byte) Drop {
	*r = AckReader{}
	if len(payload) < ackHLen {
		return DropAckLength
	}
	count, rest := int(payload[0]), payload[ackHLen:]
	b := rest
	for range count {
		if len(b) < blkHeadLen {
			return DropAckBlock
		}
		t, words := int(b[offBlkType]), int(b[offBlkWords])
		if words == 0 || 4*words > len(b) {
			return DropAckBlock
		}
		if t < len(blockLens) && t != 0 && (words < blockLens[t][0] || words > blockLens[t][1]) {
			return DropAckBlock
		}
		b = b[4*words:]
	}
	if len(b) != 0 {
		return DropAckLength
	}
	r.b = rest
	return Accepted
}

// Next moves to the next block of a known type; false at the end.
func (r *AckReader) Next() (BlockType, bool) {
	for len(r.b) > 0 {
		n := 4 * int(r.b[offBlkWords])
		r.cur, r.b = r.b[:n], r.b[n:]
		if t := BlockType(r.cur[offBlkType]); t >= BlockPath && t <= BlockRefusal {
			return t, true
		}
		r.Unknown++
	}
	return 0, false
}

// Path reads the block that Next found, of type BlockPath.
func (r *AckReader) Path(p *PathBlock) {
	b := r.cur
	_ = b[blkPathLen-1]
	*p = PathBlock{
		Path:    binary.BigEndian.Uint16(b[offBlkOwn:]),
		Highest: binary.BigEndian.Uint32(b[offPathHighest:]),
		Echo:    binary.BigEndian.Uint32(b[offPathEcho:]),
		Hold:    binary.BigEndian.Uint32(b[offPathHold:]),
		CE:      binary.BigEndian.Uint32(b[offPathCE:]),
	}
	for i := 0; offPathBitmap+4*i < len(b); i++ {
		p.Bitmap[i/2] |= uint64(binary.BigEndian.Uint32(b[offPathBitmap+4*i:])) << (i % 2 * 32)
	}
}

// Plane reads the block that Next found, of type BlockPlane.
func (r *AckReader) Plane(p *PlaneBlock) {
	b := r.cur
	_ = b[blkPlaneLen-1]
	p.Plane = b[offBlkOwn]
	p.Bytes = binary.BigEndian.Uint32(b[offPlaneBytes:])
	p.Grant = binary.BigEndian.Uint32(b[offPlaneGrant:])
}

// QP reads the block that Next found, of type BlockQP.
func (r *AckReader) QP(q *QPBlock) {
	b := r.cur
	_ = b[blkQPLen-1]
	q.QPN = be24(b[offQPQPN-1:])
	q.Limit = binary.BigEndian.Uint32(b[offQPLimit:])
}

// Refusal reads the block that Next found, of type BlockRefusal.
func (r *AckReader) Refusal(f *RefusalBlock) {
	b := r.cur
	_ = b[blkRefusalLen-1]
	*f = RefusalBlock{
		Path:    binary.BigEndian.Uint16(b[offBlkOwn:]),
		Seq:     binary.BigEndian.Uint32(b[offRefusalSeq:]),
		Code:    RefusalCode(b[offRefusalCode]),
		QPN:     be24(b[offRefusalQPN-1:]),
		PSN:     serial.PSN(be24(b[offRefusalPSN-1:])),
		Timer:   b[offRefusalBits] & maskRefusalTimer,
		InOrder: b[offRefusalBits]&maskRefusalOrder != 0,
	}
}
