package metaroce

import "github.com/metaroce/metaroce/internal/serial"

// bits128 is a bitmap relative to a highest number: bit i stands for highest - i.
type bits128 struct{ lo, hi uint64 }

func (b bits128) shl(n uint32) bits128 {
	switch {
	case n == 0:
		return b
	case n < 64:
		return bits128{b.lo << n, b.hi<<n | b.lo>>(64-n)}
	case n < 128:
		return bits128{0, b.lo << (n - 64)}
	}
	return bits128{}
}

func (b bits128) has(i uint32) bool {
	if i < 64 {
		return b.lo>>i&1 != 0
	}
	return i < 128 && b.hi>>(i-64)&1 != 0
}

func (b *bits128) set(i uint32) {
	if i < 64 {
		b.lo |= 1 << i
	} else if i < 128 {
		b.hi |= 1 << (i - 64)
	}
}

func (b bits128) without(c bits128) bits128 { return bits128{b.lo &^ c.lo, b.hi &^ c.hi} }

// seqWindow remembers which of the last 128 numbers of a path were seen. The zero value has seen nothing.
type seqWindow struct {
	bm  bits128
	hi  uint32
	own uint32 // what its owner wants: there would be padding here
}

// any reports whether a number was seen: then the highest one was.
func (w *seqWindow) any() bool { return w.bm.lo&1 != 0 }

// place says where a number falls: seen before, too old to know, or new.
func (w *seqWindow) place(seq uint32) (dup, old bool) {
	if !w.any() {
		return false, false
	}
	d := serial.U32(w.hi).Sub(serial.U32(seq))
	if d < 0 {
		return false, false
	}
	if d >= ackBits {
		return false, true
	}
	return w.bm.has(uint32(d)), false
}

// add marks a number as seen.
func (w *seqWindow) add(seq uint32) {
	if !w.any() {
		w.bm, w.hi = bits128{1, 0}, seq
		return
	}
	d := serial.U32(seq).Sub(serial.U32(w.hi))
	if d > 0 {
		w.bm = w.bm.shl(uint32(d))
		w.bm.lo |= 1
		w.hi = seq
		return
	}
	w.bm.set(uint32(-d))
}

// merge takes in another view of the same numbers and returns which of its numbers are news, relative to its own
// highest. The caller has checked that hi is a number that exists, and its bit in bm is set.
func (w *seqWindow) merge(hi uint32, bm bits128) (news bits128) {
	if !w.any() {
		w.bm, w.hi = bm, hi
		return bm
	}
	d := serial.U32(hi).Sub(serial.U32(w.hi))
	if d >= 0 {
		known := w.bm.shl(uint32(d))
		news = bm.without(known)
		w.bm = bits128{known.lo | bm.lo, known.hi | bm.hi}
		w.hi = hi
		return news
	}
	if -d >= ackBits {
		return bits128{}
	}
	// an older view: look at the part that overlaps
	n := uint32(-d)
	for i := uint32(0); i+n < ackBits; i++ {
		if bm.has(i) && !w.bm.has(i+n) {
			news.set(i)
			w.bm.set(i + n)
		}
	}
	return news
}
