package hostq

import "sync/atomic"

// All atomics here are sequentially consistent (Go has no others). Where less would do, the comment says what is
// needed; the doorbell and arm words need seq_cst (mr_abi.h says why).

// catch turns a fault on mapped memory into ok = false: a punched or vanished page must not end the daemon. The
// goroutine must have called debug.SetPanicOnFault. Anything else goes on panicking.
func catch(ok *bool) {
	e := recover()
	if e == nil {
		return
	}
	if _, fault := e.(interface{ Addr() uintptr }); !fault {
		panic(e)
	}
	*ok = false
}

// SetAsleep tells clients whether a doorbell must be followed by a write to the eventfd. Owner: daemon; seq_cst,
// because the daemon looks at the doorbells after it.
func (m *Mem) SetAsleep(v uint32) (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&m.page.Asleep, v)
	return true
}

// SetDead tells the client that its context is gone. Owner: daemon; release.
func (m *Mem) SetDead() (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&m.page.Dead, 1)
	return true
}

// PeekSummary reports whether any of the first n summary words has a bit.
func (m *Mem) PeekSummary(n int) (any, ok bool) {
	defer catch(&ok)
	for i := range m.page.Summary[:n] {
		if atomic.LoadUint64(&m.page.Summary[i]) != 0 {
			return true, true
		}
	}
	return false, true
}

// TakeSummary takes the bits of summary word i. Owner of set bits: client; the exchange is seq_cst.
func (m *Mem) TakeSummary(i int) (bits uint64, ok bool) {
	defer catch(&ok)
	if atomic.LoadUint64(&m.page.Summary[i&63]) == 0 {
		return 0, true
	}
	return atomic.SwapUint64(&m.page.Summary[i&63], 0), true
}

// TakeBell takes the bits of doorbell word i. Owner of set bits: client; the exchange is seq_cst.
func (m *Mem) TakeBell(i int) (bits uint64, ok bool) {
	defer catch(&ok)
	return atomic.SwapUint64(&m.page.Bell[i&4095], 0), true
}

// Entries is the ring's size.
func (r *Ring) Entries() uint32 { return r.n }

// Prod reads the producer index. SQ, RQ: written by the client with release; acquire here.
func (r *Ring) Prod() (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&r.hdr.Prod), true
}

// Cons reads the consumer index. CQ: written by the client; acquire, so that a slot is not written before it was read.
func (r *Ring) Cons() (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&r.hdr.Cons), true
}

// SetProd moves the producer index of a CQ. Owner: daemon; seq_cst, because Arm is looked at after it.
func (r *Ring) SetProd(v uint32) (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&r.hdr.Prod, v)
	return true
}

// SetCons moves the consumer index of an SQ or RQ, for information. Owner: daemon; release.
func (r *Ring) SetCons(v uint32) (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&r.hdr.Cons, v)
	return true
}

// Armed reads the arm word. Owner: client sets, daemon clears; seq_cst after SetProd.
func (r *Ring) Armed() (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&r.hdr.Arm), true
}

// TakeArm clears the arm word and returns what it was; seq_cst exchange, so that one arming gives one event.
func (r *Ring) TakeArm() (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.SwapUint32(&r.hdr.Arm, 0), true
}

// SetFlags sets the ring's flags. Owner: daemon; release.
func (r *Ring) SetFlags(v uint32) (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&r.hdr.Flags, v)
	return true
}

// slot is the memory of entry i. i is masked: there is no index outside.
func (r *Ring) slot(i uint32) []byte {
	o := uint64(i&(r.n-1)) * uint64(r.stride)
	return r.slots[o : o+uint64(r.stride) : o+uint64(r.stride)]
}

// SendPayload views what follows the SQE of entry i: n bytes of inline data. nil when they do not fit the slot.
// The bytes stay the client's: read them only with CopyIn.
func (r *Ring) SendPayload(i, n uint32) []byte {
	s := r.slot(i)[sqeBytes:]
	if uint64(n) > uint64(len(s)) {
		return nil
	}
	return s[:n:n]
}

const (
	sqeBytes = 64
	rqeBytes = 16
	sgeBytes = 16
)

// CopySQE copies entry i out of an SQ, and as many SGEs as fit sge and the slot.
func (r *Ring) CopySQE(i uint32, e *SQE, sge []SGE) (n int, ok bool) {
	defer catch(&ok)
	s := r.slot(i)
	copy(Bytes(e), s)
	return r.copySGEs(s[sqeBytes:], int(e.NumSGE), sge), true
}

// CopyRQE copies entry i out of an RQ, and as many SGEs as fit sge and the slot.
func (r *Ring) CopyRQE(i uint32, e *RQE, sge []SGE) (n int, ok bool) {
	defer catch(&ok)
	s := r.slot(i)
	copy(Bytes(e), s)
	return r.copySGEs(s[rqeBytes:], int(min(e.NumSGE, MaxSGE)), sge), true
}

func (r *Ring) copySGEs(s []byte, want int, sge []SGE) int {
	n := min(want, len(sge), len(s)/sgeBytes)
	copy(sges(sge[:n]), s)
	return n
}

// Slot reads which slot the receive at index i is in. Written by the client before the producer index; any value may be
// there.
func (r *SharedRing) Slot(i uint32) (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&r.index[i&(r.n-1)]), true
}

// PutCQE writes entry i of a CQ.
func (r *Ring) PutCQE(i uint32, e *CQE) (ok bool) {
	defer catch(&ok)
	copy(r.slot(i), Bytes(e)[:cqeBytes-CQEInline+int(e.InlineLen)])
	return true
}

// CopyCQE copies entry i out of a CQ (resize).
func (r *Ring) CopyCQE(i uint32, e *CQE) (ok bool) {
	defer catch(&ok)
	copy(Bytes(e), r.slot(i))
	return true
}

const cqeBytes = 128

// CopyIn copies bytes of mapped memory out of it.
func CopyIn(dst, src []byte) (ok bool) {
	defer catch(&ok)
	copy(dst, src)
	return true
}

// SetArm carries an arming over to another ring (resize). Owner: as TakeArm.
func (r *Ring) SetArm(v uint32) (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&r.hdr.Arm, v)
	return true
}
