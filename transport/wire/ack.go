package wire

import (
	"encoding/binary"
	"math/bits"

	"github.com/metaroce/metaroce/internal/serial"
)

// The payload of an ACK is a header of one word, then blocks, each of which begins with a word that tells its type
// and length.
//
//	bits AckH
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Count     |                   reserved                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	bits BlockHead
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Type      |     Words     |              Own              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

// MaxPathBlock is the length of a path block with its whole bitmap.
const MaxPathBlock = PathBlockLen + 4*maxPathBlockBitmap

// maxBlocks is what the 8-bit count can say.
const maxBlocks = 255

// PathBlock reports what arrived on one path.
//
//	bits PathBlock
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 1    |   Words 5-9   |             Path              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Highest                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Echo                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Hold                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              CE                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Bitmap (0 to 4 words)                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type PathBlock struct {
	Path    uint16
	Highest uint32
	Echo    uint32
	Hold    uint32
	CE      uint32
	Bitmap  [2]uint64 // bit i of word i/64: sequence Highest-1-i was accepted
}

// Len returns the block's length on the wire.
func (p *PathBlock) Len() int { return PathBlockLen + 4*p.words() }

// words returns how many bitmap words are not left out.
//
// = MR-WIRE-074
func (p *PathBlock) words() int {
	n := bits.Len64(p.Bitmap[0])
	if p.Bitmap[1] != 0 {
		n = 64 + bits.Len64(p.Bitmap[1])
	}
	return (n + 31) / 32
}

// PlaneBlock reports what arrived on one plane and what may be in flight there.
//
//	bits PlaneBlock
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 2    |   Words = 3   |     Plane     |   reserved    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Bytes                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Grant                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type PlaneBlock struct {
	Plane uint8
	Bytes uint32
	Grant uint32
}

// QPBlock tells a requester how far its sends may go.
//
//	bits QPBlock
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 3    |   Words = 3   |           reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   reserved    |                      QPN                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Limit                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type QPBlock struct {
	QPN   uint32
	Limit uint32
}

// RefusalBlock says that a packet arrived and was not accepted.
//
//	bits RefusalBlock
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 4    |   Words = 4   |             Path              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              Seq                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Code      |                      QPN                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|O|rsv|  Timer  |                      PSN                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type RefusalBlock struct {
	Path    uint16
	Seq     uint32
	QPN     uint32
	PSN     serial.PSN
	Code    RefusalCode
	Timer   uint8 // IBTA's RNR timer code, 0 to 31
	InOrder bool  // its PSN was the next in order
}

// TrimBlock says that a packet arrived without its payload.
//
//	bits TrimBlock
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Type = 5    |   Words = 3   |             Path              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              Seq                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|L|     rsv     |                   reserved                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type TrimBlock struct {
	Path    uint16
	Seq     uint32
	LastHop bool // trimmed before the port of the receiver
}

// AckWriter builds the payload of an ACK. The zero value is useless; call Init.
type AckWriter struct {
	b []byte
	n int
	c int
}

// Init begins an ACK in b, which must have room for AckHLen bytes.
func (w *AckWriter) Init(b []byte) {
	_ = b[AckHLen-1]
	w.b, w.n, w.c = b, AckHLen, 0
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
	b[offBlockHeadType] = byte(t)
	b[offBlockHeadWords] = byte(n / 4)
	binary.BigEndian.PutUint16(b[offBlockHeadOwn:], own)
	return b
}

// Path adds a path block; false = no room.
func (w *AckWriter) Path(p *PathBlock) bool {
	b := w.block(BlockPath, p.Len(), p.Path)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offPathBlockHighest:], p.Highest)
	binary.BigEndian.PutUint32(b[offPathBlockEcho:], p.Echo)
	binary.BigEndian.PutUint32(b[offPathBlockHold:], p.Hold)
	binary.BigEndian.PutUint32(b[offPathBlockCE:], p.CE)
	if all := w.b[w.n-len(b):]; len(all) >= MaxPathBlock { // how many words there are no processor foresees: all go, what is beyond is written over
		all = all[offPathBlockBitmap:MaxPathBlock]
		binary.BigEndian.PutUint64(all, bits.RotateLeft64(p.Bitmap[0], 32))
		binary.BigEndian.PutUint64(all[8:], bits.RotateLeft64(p.Bitmap[1], 32))
		return true
	}
	b = b[offPathBlockBitmap:]
	for i := 0; 4*i < len(b); i++ {
		binary.BigEndian.PutUint32(b[4*i:], uint32(p.Bitmap[i/2]>>(i%2*32)))
	}
	return true
}

// Plane adds a plane block; false = no room.
func (w *AckWriter) Plane(p *PlaneBlock) bool {
	b := w.block(BlockPlane, PlaneBlockLen, uint16(p.Plane)<<8)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offPlaneBlockBytes:], p.Bytes)
	binary.BigEndian.PutUint32(b[offPlaneBlockGrant:], p.Grant)
	return true
}

// QP adds a QP block; false = no room.
func (w *AckWriter) QP(q *QPBlock) bool {
	b := w.block(BlockQP, QPBlockLen, 0)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offQPBlockQPN-1:], q.QPN&Mask24)
	binary.BigEndian.PutUint32(b[offQPBlockLimit:], q.Limit)
	return true
}

// Refusal adds a refusal block; false = no room.
func (w *AckWriter) Refusal(r *RefusalBlock) bool {
	b := w.block(BlockRefusal, RefusalBlockLen, r.Path)
	if b == nil {
		return false
	}
	bits := r.Timer & maskRefusalBlockTimer
	if r.InOrder {
		bits |= maskRefusalBlockInOrder
	}
	binary.BigEndian.PutUint32(b[offRefusalBlockSeq:], r.Seq)
	binary.BigEndian.PutUint32(b[offRefusalBlockCode:], uint32(r.Code)<<24|r.QPN&Mask24)
	binary.BigEndian.PutUint32(b[offRefusalBlockInOrder:], uint32(bits)<<24|uint32(r.PSN)&Mask24)
	return true
}

// Trim adds a trim block; false = no room.
func (w *AckWriter) Trim(t *TrimBlock) bool {
	b := w.block(BlockTrim, TrimBlockLen, t.Path)
	if b == nil {
		return false
	}
	binary.BigEndian.PutUint32(b[offTrimBlockSeq:], t.Seq)
	clear(b[offTrimBlockLastHop:])
	if t.LastHop {
		b[offTrimBlockLastHop] = maskTrimBlockLastHop
	}
	return true
}

// AckReader walks over the blocks of an ACK. Init checks everything; what follows cannot fail.
type AckReader struct {
	all     []byte // the blocks
	cur     []byte // the one that Next found …
	at      int    // … and where it begins
	next    int    // where the next one does
	kinds   uint8  // known types that there are, by bit
	Unknown int    // blocks of unknown type, skipped
}

// blockLens are the smallest and largest lengths in words, by type. Longer blocks of the fixed kinds are let
// through, their end unread: later versions may add to them.
//
// = MR-WIRE-072
var blockLens = [...][2]int{
	BlockPath:    {PathBlockLen / 4, MaxPathBlock / 4},
	BlockPlane:   {PlaneBlockLen / 4, 255},
	BlockQP:      {QPBlockLen / 4, 255},
	BlockRefusal: {RefusalBlockLen / 4, 255},
	BlockTrim:    {TrimBlockLen / 4, 255},
}

// Init checks the structure of an ACK's payload and begins the walk.
func (r *AckReader) Init(payload []byte) Drop {
	*r = AckReader{}
	if len(payload) < AckHLen {
		return DropAckLength
	}
	//= MR-WIRE-070 MR-WIRE-073
	count, rest := int(payload[0]), payload[AckHLen:]
	b := rest
	for range count {
		if len(b) < BlockHeadLen {
			return DropAckBlock
		}
		t, words := int(b[offBlockHeadType]), int(b[offBlockHeadWords])
		if words == 0 || 4*words > len(b) {
			return DropAckBlock
		}
		if t < len(blockLens) && t != 0 {
			if words < blockLens[t][0] || words > blockLens[t][1] {
				return DropAckBlock
			}
			r.kinds |= 1 << t
		}
		b = b[4*words:]
	}
	if len(b) != 0 {
		return DropAckLength
	}
	r.all = rest
	return Accepted
}

// Has reports whether there are blocks of a known type.
func (r *AckReader) Has(t BlockType) bool { return r.kinds>>t&1 != 0 }

// Rewind begins the walk anew.
func (r *AckReader) Rewind() { r.next, r.Unknown = 0, 0 }

// Next moves to the next block of a known type; false at the end.
func (r *AckReader) Next() (BlockType, bool) {
	for r.next < len(r.all) {
		b := r.all[r.next:]
		n := 4 * int(b[offBlockHeadWords])
		r.cur, r.at, r.next = b[:n], r.next, r.next+n
		if t := BlockType(r.cur[offBlockHeadType]); t >= BlockPath && t <= BlockTrim {
			return t, true
		}
		r.Unknown++ // skipped
		//= MR-WIRE-071
	}
	return 0, false
}

// Path reads the block that Next found, of type BlockPath.
func (r *AckReader) Path(p *PathBlock) {
	b := r.cur
	_ = b[PathBlockLen-1]
	p.Path = binary.BigEndian.Uint16(b[offBlockHeadOwn:])
	p.Highest = binary.BigEndian.Uint32(b[offPathBlockHighest:])
	p.Echo = binary.BigEndian.Uint32(b[offPathBlockEcho:])
	p.Hold = binary.BigEndian.Uint32(b[offPathBlockHold:])
	p.CE = binary.BigEndian.Uint32(b[offPathBlockCE:])
	n := 8 * (len(b) - offPathBlockBitmap)             // bits
	if all := r.all[r.at:]; len(all) >= MaxPathBlock { // as in writing: all words, and then those that are not ours go
		all = all[offPathBlockBitmap:MaxPathBlock]
		lo, hi := bits.RotateLeft64(binary.BigEndian.Uint64(all), 32), bits.RotateLeft64(binary.BigEndian.Uint64(all[8:]), 32)
		p.Bitmap[0], p.Bitmap[1] = lo&^(^uint64(0)<<uint(n)), hi&^(^uint64(0)<<uint(max(n-64, 0)))
		return
	}
	p.Bitmap[0], p.Bitmap[1] = 0, 0
	b = b[offPathBlockBitmap:]
	for i := 0; 4*i < len(b); i++ {
		p.Bitmap[i/2] |= uint64(binary.BigEndian.Uint32(b[4*i:])) << (i % 2 * 32)
	}
}

// Plane reads the block that Next found, of type BlockPlane.
func (r *AckReader) Plane(p *PlaneBlock) {
	b := r.cur
	_ = b[PlaneBlockLen-1]
	p.Plane = b[offPlaneBlockPlane]
	p.Bytes = binary.BigEndian.Uint32(b[offPlaneBlockBytes:])
	p.Grant = binary.BigEndian.Uint32(b[offPlaneBlockGrant:])
}

// QP reads the block that Next found, of type BlockQP.
func (r *AckReader) QP(q *QPBlock) {
	b := r.cur
	_ = b[QPBlockLen-1]
	q.QPN = be24(b[offQPBlockQPN-1:])
	q.Limit = binary.BigEndian.Uint32(b[offQPBlockLimit:])
}

// Refusal reads the block that Next found, of type BlockRefusal.
func (r *AckReader) Refusal(f *RefusalBlock) {
	b := r.cur
	_ = b[RefusalBlockLen-1]
	*f = RefusalBlock{
		Path:    binary.BigEndian.Uint16(b[offBlockHeadOwn:]),
		Seq:     binary.BigEndian.Uint32(b[offRefusalBlockSeq:]),
		Code:    RefusalCode(b[offRefusalBlockCode]),
		QPN:     be24(b[offRefusalBlockQPN-1:]),
		PSN:     serial.PSN(be24(b[offRefusalBlockPSN-1:])),
		Timer:   b[offRefusalBlockInOrder] & maskRefusalBlockTimer,
		InOrder: b[offRefusalBlockInOrder]&maskRefusalBlockInOrder != 0,
	}
}

// Trim reads the block that Next found, of type BlockTrim.
func (r *AckReader) Trim(t *TrimBlock) {
	b := r.cur
	_ = b[TrimBlockLen-1]
	*t = TrimBlock{
		Path:    binary.BigEndian.Uint16(b[offBlockHeadOwn:]),
		Seq:     binary.BigEndian.Uint32(b[offTrimBlockSeq:]),
		LastHop: b[offTrimBlockLastHop]&maskTrimBlockLastHop != 0,
	}
}
