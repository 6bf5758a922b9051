package metaroce

import "github.com/metaroce/metaroce/transport/wire"

// The overlap rule asks for each late packet which later ones of its QP have placed some of its bytes. Most often none
// has, and there may be thousands. So the addresses of what arrived ahead of its turn are kept by blocks of PSNs, too:
// a block that lies elsewhere need not be looked through. In a stream of WRITEs that loses packets, few do not.

const wroteShift = 6 // PSNs of a block, as a power of two

// wroteBlock covers the WRITE packets of one block of PSNs that arrived ahead of their turn.
type wroteBlock struct {
	lo, hi uint64 // addresses under rkey; none: lo == hi
	rkey   uint32
	any    bool // more than one key, or an address that wraps: it may be anywhere
}

// noteWrite adds a WRITE packet that was placed ahead of its turn.
func (s *responder) noteWrite(psn uint64, x *slot) {
	r, n := &s.wrote, psn>>wroteShift
	if at := s.exp >> wroteShift; r.lo < at { // what lies below has had its turn
		r.lo, r.hi = at, max(at, r.hi)
	}
	r.extend(n)
	b := r.at(n)
	end := x.addr + uint64(x.n)
	switch {
	case end < x.addr || b.lo != b.hi && b.rkey != x.rkey:
		b.any = true
	case b.lo == b.hi:
		b.lo, b.hi, b.rkey = x.addr, end, x.rkey
	default:
		b.lo, b.hi = min(b.lo, x.addr), max(b.hi, end)
	}
}

// wroteOver narrows the PSNs from psn + 1 on, less top, to those among which are all that may have placed bytes of
// [lo, end) under a key. from == to: there are none.
func (q *QP) wroteOver(psn, lo, end uint64, rkey uint32) (from, to uint64) {
	s := &q.rsp
	r := &s.wrote
	first := psn + 1
	key, shift := rkey, uint64(0)
	for n := max(first>>wroteShift, r.lo); n < r.hi; n++ {
		b := r.at(n)
		if !b.any {
			if b.lo == b.hi {
				continue
			}
			if b.rkey != key { // the same memory may have another address there
				key = b.rkey
				shift = q.e.host.KeyOffset(q.owner, key) - q.e.host.KeyOffset(q.owner, rkey)
			}
			if x, y := b.lo+shift, b.hi+shift; x <= y && (end <= x || y <= lo) {
				continue
			}
		}
		if to == 0 {
			from = max(first, n<<wroteShift)
		}
		to = (n + 1) << wroteShift
	}
	return from, min(to, s.top)
}

// overBusy reports whether a later packet of this burst writes some of the same bytes. Whether it may is known when it
// is done, and only then it is newer data.
func (q *QP) overBusy(psn uint64, h *wire.Header, n int) bool {
	s := &q.rsp
	if !q.touched || n == 0 || h.Op != wire.OpWrite && h.Op != wire.OpWriteImm || psn+1 >= s.top {
		return false
	}
	for k, to := q.wroteOver(psn, h.VA, h.VA+uint64(n), h.RKey); k < to; k++ {
		//= MR-MSG-025
		y := s.slots.at(k)
		if y.st != slotBusy || !y.write || y.buf != 0 {
			continue
		}
		at := y.addr
		if y.rkey != h.RKey {
			at += q.e.host.KeyOffset(q.owner, y.rkey) - q.e.host.KeyOffset(q.owner, h.RKey)
		}
		if at < h.VA+uint64(n) && h.VA < at+uint64(y.n) {
			return true
		}
	}
	return false
}
