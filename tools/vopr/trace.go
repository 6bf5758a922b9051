package vopr

import (
	"fmt"

	"github.com/metaroce/metaroce/transport/wire"
)

// pair names a link in the event list.
func pair(src, dst, plane int) string { return fmt.Sprintf("n%d>n%d p%d", src, dst, plane) }

// describe is a packet in the event list.
func describe(b []byte) string {
	var h wire.Header
	payload, d := wire.Decode(b, &h)
	if d != wire.Accepted {
		return fmt.Sprintf("%d bytes, %v", len(b), d)
	}
	s := fmt.Sprintf("%v path %#x seq %#x", h.Op, h.Path, h.Seq)
	switch {
	case h.Op.IsData():
		s += fmt.Sprintf(" qp %#x psn %#x %v", h.DestQP, h.PSN, h.Flags)
		if h.Op.IsResponse() {
			return s + fmt.Sprintf(" read %d off %d, %d bytes", h.ReadNo, h.ReadOff, len(payload))
		}
		return s + fmt.Sprintf(" va %#x len %d ssn %d, %d bytes", h.VA, h.Len, h.SSN, len(payload))
	case h.Op == wire.OpAck:
		return s[:len("ACK")] + blocks(payload)
	}
	return s
}

// blocks lists what an acknowledgement says.
func blocks(payload []byte) (s string) {
	var r wire.AckReader
	if r.Init(payload) != wire.Accepted {
		return " bad"
	}
	for t, ok := r.Next(); ok; t, ok = r.Next() {
		switch t {
		case wire.BlockPath:
			var b wire.PathBlock
			r.Path(&b)
			s += fmt.Sprintf(" path %#x up to %#x bits %x", b.Path, b.Highest, b.Bitmap[0])
		case wire.BlockRefusal:
			var b wire.RefusalBlock
			r.Refusal(&b)
			s += fmt.Sprintf(" refused path %#x seq %#x qp %#x psn %#x %v", b.Path, b.Seq, b.QPN, b.PSN, b.Code)
		case wire.BlockQP:
			var b wire.QPBlock
			r.QP(&b)
			s += fmt.Sprintf(" limit qp %#x %d", b.QPN, b.Limit)
		default: // planes: nothing that a program sees depends on them
		}
	}
	return s
}
