package device

import (
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// Kinds of memory windows (enum ibv_mw_type).
const (
	mwType1 = 1 // bound by ibv_bind_mw as often as the program likes; any QP of its domain may use it
	mwType2 = 2 // bound to one QP by a work request with a key of the program's choice, until it is invalidated ("2B")
)

// tagBits are the bits of a window's key that belong to the program.
const tagBits = 0xFF

// MW is a memory window: a key of its own for a part of a region, opened and closed by work requests.
type MW struct {
	ctx    *Context
	handle uint32
	typ    uint32
	key    MR  // what peers find under the window's key; access 0: it shows nothing
	of     *MR // the region it shows a part of; nil: not bound
	qp     *QP // type 2: the one it is bound to
}

// AllocMW makes a window that shows nothing.
func (c *Context) AllocMW(r *hostq.AllocMW) (*MW, error) {
	pd := c.pds.get(r.PD)
	if pd == nil || r.Type != mwType1 && r.Type != mwType2 {
		return nil, syscall.EINVAL
	}
	w := &MW{ctx: c, typ: r.Type, key: MR{pd: pd}}
	w.key.window = w
	if c.nic.C.Live.MWs >= maxMW || !c.nic.keys.put(&w.key) {
		return nil, syscall.ENOMEM
	}
	w.handle = c.mws.put(w)
	pd.refs++
	c.nic.C.Live.MWs++
	return w, nil
}

// FreeMW ends a window, bound or not.
func (c *Context) FreeMW(h uint32) error {
	w := c.mws.get(h)
	if w == nil {
		return syscall.EINVAL
	}
	w.free()
	return nil
}

func (w *MW) free() {
	c := w.ctx
	w.unbind()
	c.mws.del(w.handle)
	c.nic.keys.del(&w.key)
	w.key.pd.refs--
	c.nic.C.Live.MWs--
}

// Handle and Key tell the program what it got.
func (w *MW) Handle() uint32 { return w.handle }

// Key is the window's rkey.
func (w *MW) Key() uint32 { return w.key.key }

// unbind shows nothing any more.
func (w *MW) unbind() {
	if w.of == nil {
		return
	}
	w.ctx.shifted -= w.key.shifted()
	w.of.bound--
	w.of, w.qp = nil, nil
	w.key.ctx, w.key.access, w.key.addr, w.key.iova, w.key.length = nil, 0, 0, 0, 0
}

// opens reports whether peers of q may use the key: a region's always, a window's where it is bound.
func (m *MR) opens(q *QP) bool {
	w := m.window
	return w == nil || w.of != nil && (w.typ == mwType1 || w.qp == q)
}

// tagged returns the entry of a key whatever its last 8 bits say, or nil.
func (t *keyTable) tagged(key uint32) *MR {
	i := key>>keyGenBits ^ t.scramble
	if i >= uint32(len(t.slots)) {
		return nil
	}
	if m := t.slots[i]; m != nil && (m.key^key)&^tagBits == 0 {
		return m
	}
	return nil
}

// RunLocal implements transport.Host.
func (n *NIC) RunLocal(owner any, wr *transport.SendWR) transport.Status {
	q := owner.(*QP)
	if wr.Op == transport.OpBindMW {
		//= MR-VRB-042
		if !q.bind(wr) {
			n.C.BindErrors++
			return transport.MWBindErr
		}
		return transport.OK
	}
	//= MR-VRB-043
	if !q.invalidate(wr.Imm) {
		n.C.BindErrors++
		return transport.LocQPOpErr
	}
	return transport.OK
}

// bind opens a window over a part of a region, or closes one of type 1 (length 0).
func (q *QP) bind(wr *transport.SendWR) bool {
	keys := &q.ctx.nic.keys
	entry := keys.tagged(wr.RKey)
	if entry == nil || entry.window == nil || entry.window.ctx != q.ctx || entry.pd != q.pd {
		return false
	}
	w, length := entry.window, wr.Compare
	if w.typ == mwType2 && (w.of != nil || length == 0 || wr.RKey == entry.key) {
		return false
	}
	if length == 0 {
		w.unbind()
		entry.key = wr.RKey
		return true
	}
	access := uint32(wr.Swap >> 32)
	region := keys.get(uint32(wr.Swap))
	if region == nil || region.null || region.window != nil || region.pd != q.pd || access&^accWindow != 0 ||
		region.access&accMWBind == 0 || access&(accRemoteWrite|accRemoteAtomic) != 0 && region.access&accLocalWrite == 0 ||
		w.typ == mwType1 && (access|region.access)&accZeroBased != 0 {
		return false
	}
	addr, ok := region.at(wr.RemoteAddr, 0)
	if !ok || length > region.length-(wr.RemoteAddr-region.iova) {
		return false
	}
	w.unbind()
	w.of, w.qp = region, q
	region.bound++
	entry.key, entry.ctx, entry.access, entry.addr, entry.iova, entry.length = wr.RKey, region.ctx, access|region.access&accRelaxed, addr, wr.RemoteAddr, length
	if access&accZeroBased != 0 {
		entry.iova = 0
	}
	q.ctx.shifted += entry.shifted()
	return true
}

// invalidate closes a window of type 2 that is bound to the QP; false for every other key.
func (q *QP) invalidate(key uint32) bool {
	m := q.ctx.nic.keys.get(key)
	if m == nil || m.window == nil || m.window.typ != mwType2 || m.pd != q.pd || !m.opens(q) {
		return false
	}
	m.window.unbind()
	return true
}
