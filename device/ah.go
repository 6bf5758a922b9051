package device

import (
	"net/netip"
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// AH is an address handle: where a UD message goes, but for the QP there.
type AH struct {
	pd   *PD
	dest transport.UDDest
}

// CreateAH makes an address handle. The route is checked here, once; a work request only names the handle.
func (c *Context) CreateAH(now mono.Time, r *hostq.CreateAH) (uint32, error) {
	c.nic.now = now
	pd, a := c.pds.get(r.PD), &r.Attr
	if pd == nil || a.PortNum > 1 {
		return 0, syscall.EINVAL
	}
	remote, err := c.nic.route(a)
	if err != nil {
		return 0, err
	}
	if c.nic.C.Live.AHs >= maxAH {
		return 0, syscall.ENOMEM
	}
	h := c.ahs.put(&AH{pd: pd, dest: transport.UDDest{
		Local: c.nic.gidAddr(a.SGIDIndex), Remote: remote, FlowLabel: a.FlowLabel & 0xfffff, TOS: a.TrafficClass, HopLimit: a.HopLimit,
	}})
	pd.refs++
	c.nic.C.Live.AHs++
	c.nic.resolve(c.nic.gidAddr(a.SGIDIndex), remote)
	return h, nil
}

// DestroyAH frees an address handle. Work requests that were fetched keep their destination.
func (c *Context) DestroyAH(h uint32) error {
	a := c.ahs.get(h)
	if a == nil {
		return syscall.EINVAL
	}
	c.freeAH(h, a)
	return nil
}

func (c *Context) freeAH(h uint32, a *AH) {
	c.ahs.del(h)
	a.pd.refs--
	c.nic.C.Live.AHs--
}

// route checks an address vector and returns where it leads.
func (n *NIC) route(a *hostq.AHAttr) (remote netip.Addr, err error) {
	if a.IsGlobal == 0 || !n.gidIndex(a.SGIDIndex) {
		return remote, syscall.EINVAL
	}
	remote = netip.AddrFrom16(a.DGID).Unmap()
	if remote.IsUnspecified() {
		return remote, syscall.EINVAL
	}
	if remote.Is4() != n.gidAddr(a.SGIDIndex).Is4() {
		return remote, syscall.ENETUNREACH
	}
	return remote, nil
}

// qkeyOwn in a work request's Q_Key asks for that of the QP instead (InfiniBand: the controlled keys).
const qkeyOwn = 1 << 31

// checkUD fills in where a message of a UD QP goes, and checks what UD allows.
func (q *QP) checkUD(e *hostq.SQE, wr *transport.SendWR) transport.Status {
	ah, qpn, qkey := e.UD()
	a := q.ctx.ahs.get(ah)
	if wr.Op != transport.OpSend && wr.Op != transport.OpSendImm || a == nil || a.pd != q.pd || qpn > 0xFFFFFF {
		return transport.LocQPOpErr
	}
	*wr.Dest = a.dest
	//= MR-COEX-032
	if wr.Dest.QPN, wr.Dest.QKey = qpn, qkey; qkey&qkeyOwn != 0 {
		wr.Dest.QKey = q.attr.Qkey
	}
	return transport.OK
}

// Multicast.

// GroupQP is an EngineQP whose service has multicast: it is told which groups it takes packets of.
type GroupQP interface {
	Attach(group netip.Addr)
	Detach(group netip.Addr)
}

// group is the multicast group that a GID names.
func group(gid [16]byte) (netip.Addr, error) {
	g := netip.AddrFrom16(gid).Unmap()
	if !g.IsMulticast() {
		return g, syscall.EINVAL
	}
	return g, nil
}

// AttachMcast lets a UD QP receive what is sent to a group. Doing it again changes nothing.
func (c *Context) AttachMcast(r *hostq.Mcast) error {
	q := c.qps.get(r.QP)
	g, err := group(r.GID)
	if q == nil || err != nil {
		return syscall.EINVAL
	}
	eq, ok := q.eng.(GroupQP)
	if !ok || q.typ != transport.UD {
		return syscall.EINVAL
	}
	if q.attached(g) {
		return nil
	}
	n := c.nic
	if len(q.groups) >= maxGroupsQP || n.groups[g] >= maxQPsGroup || n.groups[g] == 0 && len(n.groups) >= maxGroups {
		return syscall.ENOMEM
	}
	q.groups = append(q.groups, g)
	eq.Attach(g)
	if n.groups[g]++; n.groups[g] == 1 {
		n.tellGroups()
	}
	return nil
}

// DetachMcast ends it.
func (c *Context) DetachMcast(r *hostq.Mcast) error {
	q := c.qps.get(r.QP)
	g, err := group(r.GID)
	if q == nil || err != nil || !q.attached(g) {
		return syscall.EINVAL
	}
	q.detach(g)
	return nil
}

func (q *QP) attached(g netip.Addr) bool {
	for _, x := range q.groups {
		if x == g {
			return true
		}
	}
	return false
}

func (q *QP) detach(g netip.Addr) {
	for i, x := range q.groups {
		if x == g {
			q.groups = append(q.groups[:i], q.groups[i+1:]...)
			break
		}
	}
	q.eng.(GroupQP).Detach(g)
	n := q.ctx.nic
	if n.groups[g]--; n.groups[g] == 0 {
		delete(n.groups, g)
		n.tellGroups()
	}
}

// tellGroups tells every wire which groups the NIC is in.
func (n *NIC) tellGroups() {
	list := make([]netip.Addr, 0, len(n.groups))
	for g := range n.groups {
		list = append(list, g)
	}
	for _, p := range n.planes {
		if w, ok := below[GroupPort](p.port); ok {
			w.SetGroups(list)
		}
	}
}

// below finds the wire below its wrappers, if it is a T.
func below[T any](p Port) (t T, ok bool) {
	for {
		if t, ok = p.(T); ok {
			return t, true
		}
		w, more := p.(interface{ Unwrap() Port })
		if !more {
			return t, false
		}
		p = w.Unwrap()
	}
}

// resolve tells the wires that packets will go to an address.
func (n *NIC) resolve(src, dst netip.Addr) {
	if dst.IsMulticast() || n.own(dst) {
		return
	}
	for _, p := range n.planes {
		if w, ok := below[ResolvePort](p.port); ok && p.up {
			w.Resolve(n.now, src, dst)
		}
	}
}
