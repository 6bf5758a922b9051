package cm

import (
	"net/netip"
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

const (
	qpRC = 2 // enum ibv_qp_type
	qpUC = 3
	qpUD = 4

	qpXRCSend = 9
	qpXRCRecv = 10

	ackDefault = 14 // 67 ms
	ackMost    = 31
	udQKey     = 0x01234567 // RDMA_UDP_QKEY
	groupQPN   = 0xffffff
	minRNR     = 12 // 0.64 ms; a kernel's default is 655 ms
	retryMost  = 7
)

type idState uint8

const (
	idIdle idState = iota
	idBound
	idAddr
	idRoute
	idListening
	idConnecting
	idConnected
	idOver
)

var idStateNames = [...]string{"idle", "bound", "resolved", "routed", "listening", "connecting", "connected", "over"}

// String is the ID's state.
func (id *ID) String() string { return idStateNames[id.state] }

// ID is what a program knows as its rdma_cm_id.
type ID struct {
	prog       *Program
	ch         *Channel
	Handle     uint32
	ps         PortSpace
	qpType     uint8
	state      idState
	nic        int // -1: none yet
	src, dst   netip.AddrPort
	v6         bool // the program speaks of it with IPv6 addresses
	child      bool // made for a request
	reuse      bool
	afOnly     bool
	tos        uint8
	ackTimeout uint8
	ackSet     bool
	qkey       uint32
	held       []*host // where its port is taken
	conn       *conn
	backlog    int
	waiting    int // requests not yet accepted or rejected
	taken      uint32
	groups     map[uint32]netip.Addr
}

// Taken is how many of the ID's events the program was given.
func (id *ID) Taken() uint32 { return id.taken }

func (id *ID) ud() bool { return id.qpType == qpUD }

func (id *ID) gidIndex() uint8 {
	if id.nic >= 0 {
		for i, a := range id.prog.m.cfg.NICs[id.nic].Addrs {
			if a == id.src.Addr() {
				return uint8(i)
			}
		}
	}
	return 0
}

// Bind gives an ID its local address; port 0 is any free one.
func (id *ID) Bind(a netip.AddrPort) error {
	if id.state != idIdle || !a.IsValid() {
		return syscall.EINVAL
	}
	ip := a.Addr().Unmap().WithZone("")
	v6 := !a.Addr().Is4()
	switch {
	case ip.IsUnspecified():
	case ip.IsLoopback():
		if id.nic, ip = id.prog.route(ip, -1); id.nic < 0 {
			return syscall.ENODEV
		}
	default:
		if id.nic = id.prog.ownNIC(ip); id.nic < 0 {
			return syscall.ENODEV
		}
	}
	id.src, id.v6 = netip.AddrPortFrom(ip, 0), v6
	if err := id.takePort(a.Port()); err != nil {
		id.nic, id.src = -1, netip.AddrPort{}
		return err
	}
	id.state = idBound
	return nil
}

// ResolveAddr finds the NIC that leads to an address. The event comes at once.
func (id *ID) ResolveAddr(now mono.Time, src, dst netip.AddrPort) error {
	if id.state != idIdle && id.state != idBound || !dst.IsValid() {
		return syscall.EINVAL
	}
	if src.IsValid() && id.state == idIdle {
		if err := id.Bind(src); err != nil {
			return err
		}
	}
	d := dst.Addr().Unmap().WithZone("")
	if d.IsUnspecified() { // this host, as everywhere
		d = netip.IPv6Loopback()
		if dst.Addr().Is4() {
			d = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
	}
	nic, from := id.prog.route(d, id.nic)
	if nic < 0 {
		return syscall.ENETUNREACH
	}
	if id.nic >= 0 && !id.src.Addr().IsUnspecified() {
		if from = id.src.Addr(); from.Is4() != d.Is4() {
			return syscall.EINVAL
		}
	}
	if d.IsLoopback() {
		d = from
	}
	port := id.src.Port()
	id.dropPort()
	id.nic, id.src, id.dst = nic, netip.AddrPortFrom(from, 0), netip.AddrPortFrom(d, dst.Port())
	id.v6 = id.v6 || !dst.Addr().Is4()
	if err := id.takePort(port); err != nil {
		return err
	}
	id.state = idAddr
	if id.prog.m.cfg.Resolve != nil {
		id.prog.m.cfg.Resolve(now, nic, from, d)
	}
	id.ch.post(Event{ID: id, Kind: EvAddrResolved})
	return nil
}

// ResolveRoute has nothing to find out: a RoCE route is its addresses.
func (id *ID) ResolveRoute() error {
	if id.state != idAddr {
		return syscall.EINVAL
	}
	id.state = idRoute
	id.ch.post(Event{ID: id, Kind: EvRouteResolved})
	return nil
}

// Listen lets requests come.
func (id *ID) Listen(backlog int) error {
	if id.state == idIdle {
		if err := id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.state != idBound {
		return syscall.EINVAL
	}
	for _, h := range id.held {
		for _, o := range h.ports[portKey{id.ps, id.src.Port()}] {
			if o != id && o.state == idListening && overlap(id, o) {
				return syscall.EADDRINUSE
			}
		}
	}
	if backlog <= 0 || backlog > backlogMost {
		backlog = backlogMost
	}
	id.backlog, id.state = backlog, idListening
	return nil
}

// Connect asks the peer for a connection, or for its datagram service.
func (id *ID) Connect(now mono.Time, p Param, private []byte) error {
	m := id.prog.m
	most := PrivateLen(REQ) - ipHeaderLen
	if id.ud() {
		most = PrivateLen(SIDRREQ) - ipHeaderLen
	}
	if id.state != idRoute || len(private) > most || p.RespRes > m.cfg.NICs[id.nic].Reads || p.InitDepth > m.cfg.NICs[id.nic].Reads {
		return syscall.EINVAL
	}
	c := m.newConn(now, id.nic, id.src.Addr(), id.dst.Addr())
	if c == nil {
		return syscall.ENOMEM
	}
	nic := &m.cfg.NICs[id.nic]
	c.id, id.conn, c.active, c.ud, c.tid, c.qpn = id, c, true, id.ud(), m.tid(), p.QPN
	c.service, c.gid, c.mtu, c.retry, c.rnr = service(id.ps, id.dst.Port()), id.dst.Addr().As16(), nic.MTU, min(p.Retry, retryMost), min(p.RNR, retryMost)
	c.respRes, c.initDepth, c.uc = p.RespRes, p.InitDepth, id.qpType == qpUC
	id.state = idConnecting
	msg := Msg{TID: c.tid, Local: c.comm, Service: c.service, PKey: pkey}
	putIPHeader(msg.Private[:], id.src, id.dst)
	copy(msg.Private[ipHeaderLen:], private)
	if c.ud {
		msg.Attr = SIDRREQ
		c.to(SIDRSent)
		c.send(now, &msg, connectFor)
		return nil
	}
	msg.Attr, msg.GUID, msg.QPN, msg.PSN, msg.RespRes, msg.InitDepth = REQ, nic.GUID, p.QPN, c.psn, p.RespRes, p.InitDepth
	msg.LocalTimeout, msg.RemoteTimeout, msg.MaxRetries, msg.Flow = codeCM, codeCM, 15, p.Flow
	msg.Retry, msg.RNR, msg.MTU, msg.SRQ = c.retry, c.rnr, c.mtu, p.SRQ
	if c.uc {
		msg.Transport = 1
	}
	msg.Path = Path{Local: id.src.Addr().As16(), Remote: c.gid, LocalLID: lidNone, RemoteLID: lidNone, Rate: 3, TClass: id.tos, HopLimit: hopLimit, AckTimeout: id.ackTimeout}
	c.to(REQSent)
	c.send(now, &msg, connectFor)
	return nil
}

// Accept answers a request.
func (id *ID) Accept(now mono.Time, p Param, private []byte) error {
	c := id.conn
	if c == nil || c.state != REQReceived && c.state != SIDRReceived {
		return syscall.EINVAL
	}
	nic := &id.prog.m.cfg.NICs[id.nic]
	if c.ud {
		if len(private) > PrivateLen(SIDRREP) {
			return syscall.EINVAL
		}
		if p.QKey == 0 {
			p.QKey = id.key()
		}
		msg := Msg{Attr: SIDRREP, TID: c.tid, Local: c.peer, Status: sidrOK, QPN: p.QPN, QKey: p.QKey, Service: c.service}
		copy(msg.Private[:], private)
		id.state = idConnected
		c.step(now, doAccept, &msg)
		return nil
	}
	if len(private) > PrivateLen(REP) || p.RespRes > nic.Reads || p.InitDepth > nic.Reads {
		return syscall.EINVAL
	}
	c.qpn, c.respRes, c.initDepth = p.QPN, p.RespRes, p.InitDepth
	msg := Msg{Attr: REP, TID: c.tid, Local: c.comm, Remote: c.peer, QPN: p.QPN, PSN: c.psn, RespRes: p.RespRes, InitDepth: p.InitDepth,
		Flow: p.Flow, RNR: min(p.RNR, retryMost), SRQ: p.SRQ, GUID: nic.GUID, AckDelay: 15}
	copy(msg.Private[:], private)
	c.step(now, doAccept, &msg)
	return nil
}

// Reject refuses a request, or a reply.
func (id *ID) Reject(now mono.Time, reason uint16, private []byte) error {
	c := id.conn
	if c == nil {
		return syscall.EINVAL
	}
	if reason == 0 {
		reason = RejectConsumer
	}
	msg := Msg{Attr: REJ, Reason: reason}
	if c.ud {
		msg = Msg{Attr: SIDRREP, TID: c.tid, Local: c.peer, Status: sidrReject, Service: c.service}
	}
	if len(private) > PrivateLen(msg.Attr) {
		return syscall.EINVAL
	}
	copy(msg.Private[:], private)
	if c.over {
		return nil
	}
	id.state = idOver
	if !c.step(now, doReject, &msg) {
		return syscall.EINVAL
	}
	return nil
}

// Establish says that our QP is ready: of the active side after CONNECT_RESPONSE, of the passive one when something has
// come before the peer's word.
func (id *ID) Establish(now mono.Time) error {
	c := id.conn
	if c == nil || !c.step(now, doEstablish, nil) {
		return syscall.EINVAL
	}
	id.state = idConnected
	return nil
}

// Disconnect ends a connection. Doing it again, or after the peer did, is no error.
func (id *ID) Disconnect(now mono.Time) error {
	switch {
	case id.conn != nil:
		id.conn.step(now, doDisconnect, nil)
	case id.state != idOver && id.state != idConnected:
		return syscall.EINVAL
	}
	return nil
}

// Destroy ends an ID. signals: of events that nobody will take now.
func (id *ID) Destroy(now mono.Time) (taken uint32, signals int) {
	signals = id.end(now)
	return id.taken, signals
}

func (id *ID) end(now mono.Time) (signals int) {
	p := id.prog
	if p.ids[id.Handle] != id {
		return 0
	}
	var orphans []*ID
	signals = id.ch.remove(func(e *Event) bool {
		if e.Listen == id {
			orphans = append(orphans, e.ID)
		}
		return e.ID == id || e.Listen == id
	})
	id.dropPort()
	p.forget(id)
	if c := id.conn; c != nil {
		id.conn, c.id = nil, nil
		c.unlist()
		c.step(now, doDestroy, nil)
	}
	if id.waiting > 0 {
		for _, c := range p.m.byComm {
			if c.listener == id {
				c.listener = nil
			}
		}
	}
	for _, o := range orphans { // the program never heard of them
		signals += o.end(now)
	}
	return signals
}

// Set sets an option (rdma_set_option, level ID).
func (id *ID) Set(option, value uint32) error {
	switch option {
	case 0:
		id.tos = uint8(value)
	case 1, 2:
		if id.state != idIdle && (id.state != idBound || option == 2) {
			return syscall.EINVAL
		}
		if option == 1 {
			id.reuse = value != 0
		} else {
			id.afOnly = value != 0
		}
	case 3:
		if value > ackMost || id.ud() {
			return syscall.EINVAL
		}
		id.ackTimeout, id.ackSet = uint8(value), true
	default:
		return syscall.ENOSYS
	}
	return nil
}

func (id *ID) key() uint32 {
	if id.qkey == 0 {
		return udQKey
	}
	return id.qkey
}

// Join makes an ID a member of an IP multicast group; its library attaches the QP.
func (id *ID) Join(group netip.Addr) (uint32, error) {
	group = group.Unmap()
	if id.nic < 0 || !id.ud() || !group.IsMulticast() {
		return 0, syscall.EINVAL
	}
	if len(id.groups) >= groupsMost || len(id.ch.queue) >= eventsMost {
		return 0, syscall.ENOMEM
	}
	if id.groups == nil {
		id.groups = map[uint32]netip.Addr{}
	}
	h := id.prog.handle()
	for id.groups[h].IsValid() {
		h = id.prog.handle()
	}
	id.groups[h] = group
	id.ch.post(Event{ID: id, Kind: EvMulticastJoin, Group: h, Param: Param{QPN: groupQPN, QKey: id.key(), UD: true, GID: group.As16()}})
	return h, nil
}

// Leave ends a membership. signals: of events that nobody will take now.
func (id *ID) Leave(h uint32) (signals int, err error) {
	if !id.groups[h].IsValid() {
		return 0, syscall.EINVAL
	}
	delete(id.groups, h)
	return id.ch.remove(func(e *Event) bool { return e.ID == id && e.Group == h }), nil
}

// Attributes of a QP (enum ibv_qp_attr_mask, ibv_access_flags).
const (
	attrState, attrAccess, attrPkey, attrPort, attrQkey = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 6
	attrAV, attrMTU, attrTimeout, attrRetry, attrRNR    = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11
	attrRQPSN, attrReads, attrMinRNR, attrSQPSN         = 1 << 12, 1 << 13, 1 << 15, 1 << 16
	attrDestReads, attrDest                             = 1 << 17, 1 << 20

	accessWrite, accessRead, accessAtomic = 2, 4, 8
)

// QPAttr fills in with what a QP of the ID goes to a state: INIT 1, RTR 2, RTS 3.
func (id *ID) QPAttr(state uint32, a *hostq.ModifyQP) error {
	if id.nic < 0 {
		return syscall.EINVAL
	}
	*a = hostq.ModifyQP{QPState: state, Mask: attrState, PortNum: 1}
	switch {
	case state == 1 && id.ud():
		a.Mask |= attrPkey | attrPort | attrQkey
		a.Qkey = id.key()
	case state == 1:
		a.Mask |= attrPkey | attrPort | attrAccess
		a.QPAccessFlags = accessWrite
		if id.conn != nil && id.conn.respRes > 0 {
			a.QPAccessFlags |= accessRead | accessAtomic
		}
	case id.ud() && state == 2:
	case id.ud() && state == 3:
		a.Mask |= attrSQPSN
	case id.conn == nil || id.conn.peerQPN == 0:
		return syscall.EINVAL
	case state == 2:
		id.rtr(a)
	case state == 3:
		id.rts(a)
	default:
		return syscall.EINVAL
	}
	return nil
}

func (id *ID) rtr(a *hostq.ModifyQP) {
	c := id.conn
	a.Mask |= attrAV | attrMTU | attrDest | attrRQPSN
	if !c.uc {
		a.Mask |= attrDestReads | attrMinRNR
	}
	// The PSN that a side announces is the one from which it wants to receive.
	a.PathMTU, a.DestQPNum, a.RQPSN = uint32(c.mtu), c.peerQPN, c.psn
	a.MaxDestRdAtomic, a.MinRNRTimer = min(c.respRes, id.prog.m.cfg.NICs[id.nic].Reads), minRNR
	a.AH = hostq.AHAttr{DGID: c.gid, SGIDIndex: id.gidIndex(), HopLimit: hopLimit, TrafficClass: id.tos, IsGlobal: 1, PortNum: 1}
}

func (id *ID) rts(a *hostq.ModifyQP) {
	c := id.conn
	a.Mask |= attrSQPSN
	if !c.uc {
		a.Mask |= attrTimeout | attrRetry | attrRNR | attrReads
	}
	a.SQPSN, a.Timeout, a.RetryCnt, a.RNRRetry = c.peerPSN, id.ackTimeout, c.retry, c.rnr
	a.MaxRdAtomic = min(c.initDepth, id.prog.m.cfg.NICs[id.nic].Reads)
}
