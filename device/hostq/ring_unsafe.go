package hostq

import (
	"errors"
	"unsafe"
)

// Mem is the daemon's mapping of one context's memory.
type Mem struct {
	b    []byte
	page *CtxPage
}

// Errors of memory layout.
var (
	ErrMemSize   = errors.New("hostq: memory has a size or alignment that cannot be")
	ErrRingPlace = errors.New("hostq: ring does not fit into the memory, is not aligned, or has a size that is no power of two")
)

// NewMem views mapped memory. b must stay mapped while any Ring of it is used.
func NewMem(b []byte) (*Mem, error) {
	if len(b) < CtxBytesMin || uint64(len(b)) > CtxBytesMax || uintptr(unsafe.Pointer(&b[0]))%RingAlign != 0 {
		return nil, ErrMemSize
	}
	return &Mem{b: b, page: (*CtxPage)(unsafe.Pointer(&b[0]))}, nil
}

// Len is the size of the memory.
func (m *Mem) Len() uint64 { return uint64(len(m.b)) }

// Ring is a view of one ring. The zero Ring has no entries.
type Ring struct {
	hdr    *RingHeader
	slots  []byte
	n      uint32 // entries, a power of two
	stride uint32
}

// Ring views a ring of n entries of stride bytes at off, after checking that it lies within the memory.
func (m *Mem) Ring(off uint64, n, stride, maxEntries uint32) (Ring, error) {
	if n == 0 || n&(n-1) != 0 || n > maxEntries || stride == 0 || stride > 4096 || stride%16 != 0 ||
		off%RingAlign != 0 || off < CtxPageBytes || off > uint64(len(m.b)) ||
		RingHdr+uint64(n)*uint64(stride) > uint64(len(m.b))-off {
		return Ring{}, ErrRingPlace
	}
	end := off + RingHdr + uint64(n)*uint64(stride)
	return Ring{
		hdr:    (*RingHeader)(unsafe.Pointer(&m.b[off])),
		slots:  m.b[off+RingHdr : end : end],
		n:      n,
		stride: stride,
	}, nil
}

// SharedRing is a view of a shared receive queue: a ring that says which slot is the n-th posted receive, and the slots.
type SharedRing struct {
	Ring  // its slots are the receives; entry i is slot i
	index []uint32
}

// SharedRing views the ring of n slot numbers at off and n slots of stride bytes at slots, after checking that both lie
// within the memory.
func (m *Mem) SharedRing(off, slots uint64, n, stride, maxEntries uint32) (SharedRing, error) {
	if n < 4 || stride < 64 || stride%64 != 0 || slots%64 != 0 || slots < CtxPageBytes || slots > uint64(len(m.b)) ||
		uint64(n)*uint64(stride) > uint64(len(m.b))-slots {
		return SharedRing{}, ErrRingPlace
	}
	r, err := m.Ring(off, n/4, 16, maxEntries)
	if err != nil || n != 4*r.n || n > maxEntries {
		return SharedRing{}, ErrRingPlace
	}
	s := SharedRing{Ring: r, index: unsafe.Slice((*uint32)(unsafe.Pointer(&r.slots[0])), n)}
	s.slots, s.n, s.stride = m.b[slots:slots+uint64(n)*uint64(stride):slots+uint64(n)*uint64(stride)], n, stride
	return s, nil
}

// NewTestMem makes memory on the heap, aligned as a mapping would be.
func NewTestMem(size int) *Mem {
	b := make([]byte, size+RingAlign)
	skip := -uintptr(unsafe.Pointer(&b[0])) % RingAlign
	m, err := NewMem(b[skip : int(skip)+size : int(skip)+size])
	if err != nil {
		panic(err)
	}
	return m
}

// Bytes is the memory itself, for tests that play the program. The daemon reads it only through a Ring.
func (m *Mem) Bytes() []byte { return m.b }
