package device

import (
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/rng"
)

// Access rights of a region (enum ibv_access_flags).
const (
	accLocalWrite   = 1 << 0
	accRemoteWrite  = 1 << 1
	accRemoteRead   = 1 << 2
	accRemoteAtomic = 1 << 3
	accMWBind       = 1 << 4
	accZeroBased    = 1 << 5
	accOnDemand     = 1 << 6
	accHugeTLB      = 1 << 7
	accRelaxed      = 1 << 20
	accOptional     = 0x3ff << 20 // may be ignored by who does not know them
	accKnown        = accLocalWrite | accRemoteWrite | accRemoteRead | accRemoteAtomic | accMWBind | accZeroBased | accOnDemand | accHugeTLB
	accWindow       = accLocalWrite | accRemoteWrite | accRemoteRead | accRemoteAtomic | accZeroBased // of a window; the first says nothing
	accQP           = accLocalWrite | accRemoteWrite | accRemoteRead | accRemoteAtomic | accMWBind
)

// What IBV_REREG_MR changes.
const (
	reregTranslation = 1
	reregPD          = 2
	reregAccess      = 4
)

// MR is registered memory, or what a memory window shows of it. Nothing is pinned: a page that is gone when DMA comes fails
// the message.
type MR struct {
	ctx    *Context // whose memory it is
	pd     *PD
	handle uint32
	key    uint32 // lkey and rkey
	access uint32
	addr   uint64 // in the program
	iova   uint64 // as work requests name it
	length uint64
	window *MW  // of which this is the key; nil: a region
	bound  int  // windows that show a part of this region
	null   bool // no memory at all: reads give zeros, writes go nowhere; local only
}

// everything is the length of a region that is the whole of a program's memory (implicit on-demand paging).
const everything = 1<<64 - 1

// at translates n bytes at address a of the region; false when they are not all inside.
func (m *MR) at(a uint64, n uint32) (uint64, bool) {
	off := a - m.iova
	if a < m.iova || off > m.length || uint64(n) > m.length-off {
		return 0, false
	}
	return m.addr + off, true
}

// keyTable finds regions by key. A key is 20 bits of index, scrambled, and 12 bits of generation that start at
// random and move on with every use of the index; indices are used again first in, first out. So a key that was
// given up hits nothing until its index has been through 4,096 regions. Bits 0 … 7 are left to the program where
// verbs says so (memory windows).
type keyTable struct {
	slots    []*MR
	gen      []uint16
	free     []uint32 // ring of indices
	head, n  int
	scramble uint32
}

const (
	keyGenBits  = 12
	keyIndexMax = 1 << 20
	keyReserve  = 1024 // indices that wait at least, before one is used again
)

func (t *keyTable) init(r *rng.Source) {
	t.scramble = r.Uint32() & (keyIndexMax - 1)
	t.grow(r.Uint32())
}

func (t *keyTable) grow(seed uint32) {
	old := len(t.slots)
	size := max(2*keyReserve, 2*old)
	t.slots = append(t.slots, make([]*MR, size-old)...)
	free := make([]uint32, size)
	for i := range t.n {
		free[i] = t.free[(t.head+i)%len(t.free)]
	}
	for i := old; i < size; i++ {
		seed = seed*1664525 + 1013904223
		t.gen = append(t.gen, uint16(seed>>16)&(1<<keyGenBits-1))
		free[t.n] = uint32(i)
		t.n++
	}
	t.free, t.head = free, 0
}

func (t *keyTable) put(m *MR) bool {
	if t.n <= keyReserve {
		if len(t.slots) >= keyIndexMax {
			return false
		}
		t.grow(uint32(t.gen[0]) + uint32(len(t.slots)))
	}
	i := t.free[t.head]
	t.head = (t.head + 1) % len(t.free)
	t.n--
	t.skipTags(i, m)
	//= MR-SEC-002
	t.gen[i] = (t.gen[i] + 1) & (1<<keyGenBits - 1)
	if (i^t.scramble)<<keyGenBits|uint32(t.gen[i]) == 0 { // 0 is no key
		t.gen[i] = 1
	}
	m.key = (i^t.scramble)<<keyGenBits | uint32(t.gen[i])
	t.slots[i] = m
	return true
}

// skipTags has a window begin, and whoever comes after it, beyond all keys that its program can choose.
func (t *keyTable) skipTags(i uint32, m *MR) {
	if m.window != nil {
		t.gen[i] |= tagBits
	}
}

func (t *keyTable) del(m *MR) {
	i := m.key>>keyGenBits ^ t.scramble
	if t.slots[i] != m {
		panic("device: key freed twice")
	}
	t.skipTags(i, m)
	t.slots[i] = nil
	t.free[(t.head+t.n)%len(t.free)] = i
	t.n++
}

// get returns the region of a key, or nil.
func (t *keyTable) get(key uint32) *MR {
	i := key>>keyGenBits ^ t.scramble
	if i >= uint32(len(t.slots)) {
		return nil
	}
	m := t.slots[i]
	if m == nil || m.key != key {
		return nil
	}
	return m
}

func checkAccess(a uint32) error {
	if a&^(accKnown|accOptional) != 0 || a&(accRemoteWrite|accRemoteAtomic) != 0 && a&accLocalWrite == 0 {
		return syscall.EINVAL
	}
	return nil
}

// checkRange checks where a region is. One that is everything is for on-demand paging only, and neither moved nor cut.
func checkRange(access uint32, addr, iova, length uint64) error {
	if length == everything && access&accOnDemand != 0 && addr == 0 && iova == 0 {
		return nil
	}
	if length > maxMRSize || addr+length < addr || iova+length < iova {
		return syscall.EINVAL
	}
	return nil
}

// RegMR registers memory. That the range is mapped with the rights it needs was checked in the program; DMA finds
// out for itself.
func (c *Context) RegMR(r *hostq.RegMR) (*MR, error) {
	pd := c.pds.get(r.PD)
	if pd == nil {
		return nil, syscall.EINVAL
	}
	if err := checkAccess(r.Access); err != nil {
		return nil, err
	}
	if err := checkRange(r.Access, r.Addr, r.IOVA, r.Length); err != nil {
		return nil, err
	}
	return c.addMR(&MR{ctx: c, pd: pd, access: r.Access, addr: r.Addr, iova: r.IOVA, length: r.Length})
}

// AllocNullMR makes a region without memory.
func (c *Context) AllocNullMR(pd uint32) (*MR, error) {
	p := c.pds.get(pd)
	if p == nil {
		return nil, syscall.EINVAL
	}
	return c.addMR(&MR{ctx: c, pd: p, access: accLocalWrite, length: everything, null: true})
}

func (c *Context) addMR(m *MR) (*MR, error) {
	if c.nic.C.Live.MRs >= maxMR || !c.nic.keys.put(m) {
		return nil, syscall.ENOMEM
	}
	m.handle = c.mrs.put(m)
	c.shifted += m.shifted()
	c.special += m.special()
	m.pd.refs++
	c.nic.C.Live.MRs++
	return m, nil
}

// ReregMR changes a registration; the keys stay.
func (c *Context) ReregMR(r *hostq.RegMR) (*MR, error) {
	m := c.mrs.get(r.Handle)
	if m == nil || m.null || r.Rereg == 0 || r.Rereg&^(reregTranslation|reregPD|reregAccess) != 0 {
		return nil, syscall.EINVAL
	}
	if m.bound > 0 {
		return nil, syscall.EBUSY
	}
	pd := m.pd
	if r.Rereg&reregPD != 0 {
		if pd = c.pds.get(r.PD); pd == nil {
			return nil, syscall.EINVAL
		}
	}
	access := m.access
	if r.Rereg&reregAccess != 0 {
		if err := checkAccess(r.Access); err != nil {
			return nil, err
		}
		access = r.Access
	}
	if r.Rereg&reregTranslation != 0 {
		if m.ctx != c { // what is meant is the memory of who asks
			return nil, syscall.EINVAL
		}
		if err := checkRange(access, r.Addr, r.IOVA, r.Length); err != nil {
			return nil, err
		}
		c.shifted -= m.shifted()
		m.addr, m.iova, m.length = r.Addr, r.IOVA, r.Length
		c.shifted += m.shifted()
	}
	c.special -= m.special()
	m.access = access
	c.special += m.special()
	m.pd.refs--
	m.pd = pd
	pd.refs++
	return m, nil
}

// DeregMR ends a registration. Operations in flight that need it fail.
func (c *Context) DeregMR(h uint32) error {
	m := c.mrs.get(h)
	if m == nil {
		return syscall.EINVAL
	}
	if m.bound > 0 {
		return syscall.EBUSY
	}
	m.free()
	return nil
}

func (m *MR) free() {
	c := m.ctx
	c.mrs.del(m.handle)
	c.nic.keys.del(m)
	c.shifted -= m.shifted()
	c.special -= m.special()
	m.pd.refs--
	c.nic.C.Live.MRs--
}

// shifted is 1 for a region whose bytes have other addresses than in the program.
func (m *MR) shifted() int {
	if m.addr != m.iova {
		return 1
	}
	return 0
}

// special is 1 for a region whose bytes only the NIC may put in place: the program that polls a completion has no such
// memory, or would die of it.
func (m *MR) special() int {
	if m.null || m.access&accOnDemand != 0 {
		return 1
	}
	return 0
}

// ImportMR finds a region that another program of the same share may have made.
func (c *Context) ImportMR(h uint32) (*MR, error) {
	m := c.mrs.get(h)
	if m == nil || m.null {
		return nil, syscall.EINVAL
	}
	return m, nil
}

// Describe says where the region is and what it allows.
func (m *MR) Describe() (iova, length uint64, access uint32) { return m.iova, m.length, m.access }

// Handle and Key tell the program what it got.
func (m *MR) Handle() uint32 { return m.handle }

// Key is the lkey and the rkey.
func (m *MR) Key() uint32 { return m.key }
