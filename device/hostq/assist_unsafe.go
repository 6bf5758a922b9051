package hostq

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// AssistMem is the daemon's mapping of a copy thread's memory. What the thread says there is believed only about its own
// program's bytes: places and lengths are the daemon's own.
type AssistMem struct {
	b    []byte
	page *AssistPage
}

// ErrAssistSize says that the memory has not the size agreed.
var ErrAssistSize = errors.New("hostq: the copy thread's memory has another size or alignment")

// NewAssistMem views mapped memory.
func NewAssistMem(b []byte) (*AssistMem, error) {
	if len(b) != AssistBytes || uintptr(unsafe.Pointer(&b[0]))%RingAlign != 0 {
		return nil, ErrAssistSize
	}
	return &AssistMem{b: b, page: (*AssistPage)(unsafe.Pointer(&b[0]))}, nil
}

// assistDataOff is where the data begin.
const assistDataOff = AssistBytes - AssistData

// Put writes descriptor i: n bytes at data offset off, to or from addr in the program. Owner: daemon, until Post.
func (m *AssistMem) Put(i uint32, addr uint64, n, off uint32, write bool, call uint32) (ok bool) {
	defer catch(&ok)
	d := &m.page.Desc[i%AssistDescs]
	d.Addr, d.Len, d.Off, d.Call, d.Write = addr, n, assistDataOff+off, call, 0
	if write {
		d.Write = 1
	}
	atomic.StoreUint32(&d.State, AssistPosted)
	return true
}

// Post moves the producer index; asleep says that the thread must be woken. seq_cst, as in mr_abi.h.
func (m *AssistMem) Post(prod uint32) (asleep, ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&m.page.Prod, prod)
	return atomic.LoadUint32(&m.page.Asleep) != 0, true
}

// State reads how far descriptor i is; acquire.
func (m *AssistMem) State(i uint32) (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&m.page.Desc[i%AssistDescs].State), true
}

// Cancel takes descriptor i back and reports whether the thread had not begun with it.
func (m *AssistMem) Cancel(i uint32) (cancelled, ok bool) {
	defer catch(&ok)
	return atomic.CompareAndSwapUint32(&m.page.Desc[i%AssistDescs].State, AssistPosted, AssistCancelled), true
}

// SetWaiting tells the thread to wake the daemon. Owner: daemon; seq_cst, because it looks at states after it.
func (m *AssistMem) SetWaiting(v uint32) (ok bool) {
	defer catch(&ok)
	atomic.StoreUint32(&m.page.Waiting, v)
	return true
}

// Done reads how many descriptors the thread is through with.
func (m *AssistMem) Done() (v uint32, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&m.page.Done), true
}

// Gone reports that the thread ends.
func (m *AssistMem) Gone() (gone, ok bool) {
	defer catch(&ok)
	return atomic.LoadUint32(&m.page.Gone) != 0, true
}

// Ring counts the thread's bell up.
func (m *AssistMem) Ring() (ok bool) {
	defer catch(&ok)
	atomic.AddUint32(&m.page.Bell, 1)
	return true
}

// Fill copies b into the data at off, and Fetch out of them. The caller keeps off within AssistData.
func (m *AssistMem) Fill(off uint32, b []byte) (ok bool) {
	defer catch(&ok)
	copy(m.b[assistDataOff+off:], b)
	return true
}

// Fetch copies data at off into b.
func (m *AssistMem) Fetch(b []byte, off uint32) (ok bool) {
	defer catch(&ok)
	copy(b, m.b[assistDataOff+off:])
	return true
}

// BellWord and DoneWord are the words that the two sides sleep on. They are only ever given to the kernel.
func (m *AssistMem) BellWord() unsafe.Pointer { return unsafe.Pointer(&m.page.Bell) }

// DoneWord is where the daemon sleeps.
func (m *AssistMem) DoneWord() unsafe.Pointer { return unsafe.Pointer(&m.page.Done) }
