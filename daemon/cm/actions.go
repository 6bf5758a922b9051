package cm

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
)

// Reasons of a REJ.
const (
	RejectTimeout    = 4
	RejectUnsup      = 5
	RejectBadComm    = 6
	RejectBadService = 8
	RejectStale      = 10
	RejectMTU        = 26
	RejectConsumer   = 28
)

const (
	etimedout  = -110
	econnreset = -104
	codeWait   = 20 // 4.3 s: how long a program may take, told to a peer that asks again
	codeCM     = 15 // 134 ms: how long a peer should wait before it repeats
	pkey       = 0xffff
	lidNone    = 0xffff
	hopLimit   = 64
)

// Statuses of a SIDR_REP.
const (
	sidrOK          = 0
	sidrUnsupported = 1
	sidrReject      = 2
)

// handleRequest takes a REQ or SIDR_REQ: one had before, or a new one for a listener.
func (m *Manager) handleRequest(now mono.Time, nic int, src, dst netip.Addr, msg *Msg) {
	sidr, in := msg.Attr == SIDRREQ, inREQ
	if sidr {
		in = inSIDRREQ
	}
	if c := m.byRemote[remoteKey{src, msg.Local, sidr}]; c != nil {
		c.step(now, in, msg)
		return
	}
	gid := -1
	for i, a := range m.cfg.NICs[nic].Addrs {
		if a == dst {
			gid = i
		}
	}
	if gid < 0 || netip.AddrFrom16(msg.Path.Local).Unmap().IsMulticast() {
		m.S.DropNoTarget++
		return
	}
	if !sidr {
		m.endStale(now, qpKey{src, msg.GUID, msg.QPN})
	}
	from, ok := parseIPHeader(msg.Private[:])
	to := netip.AddrPortFrom(dst, uint16(msg.Service))
	l := m.listenerFor(nic, msg.Service, dst)
	reason := m.unfit(nic, msg)
	if !ok || l == nil || l.ud() != sidr {
		reason = RejectBadService
	}
	if reason != 0 {
		m.refuseRequest(now, nic, dst, src, msg, reason)
		return
	}
	if l.waiting >= l.backlog {
		m.S.DropBacklog++
		return
	}
	m.admit(now, l, nic, dst, src, msg, from, to)
}

// endStale ends a connection with a QP of the peer that it uses for a new one: the old one is gone there.
func (m *Manager) endStale(now mono.Time, k qpKey) {
	if c := m.byQP[k]; c != nil {
		m.S.Stale++
		c.finish(Event{Kind: EvDisconnected, Status: econnreset})
		(&Msg{Attr: DREP, TID: c.tid, Local: c.comm, Remote: c.peer}).Put(&c.last)
		c.bury(now)
	}
}

// unfit is the reason why a REQ cannot be served, or 0.
func (m *Manager) unfit(nic int, msg *Msg) uint16 {
	switch {
	case msg.Attr == SIDRREQ:
		return 0
	case msg.Transport > 1 || msg.ExtTransport != 0 || msg.QPN == 0:
		return RejectUnsup
	case msg.MTU == 0 || msg.MTU > m.cfg.NICs[nic].MTU:
		return RejectMTU
	}
	return 0
}

// refuseRequest refuses a request that has no ID. A tombstone stays, where there are not too many: a repetition on its way
// must not come to a listener that begins meanwhile, after the peer has given up.
func (m *Manager) refuseRequest(now mono.Time, nic int, local, remote netip.Addr, msg *Msg, reason uint16) {
	sidr := msg.Attr == SIDRREQ
	r := &Msg{Attr: REJ, TID: msg.TID, Remote: msg.Local, Reason: reason}
	if reason == RejectMTU { // what would do is said, and the peer tries it
		r.InfoLen, r.Info[0] = 1, m.cfg.NICs[nic].MTU<<4
	}
	if sidr {
		r = &Msg{Attr: SIDRREP, TID: msg.TID, Local: msg.Local, Status: sidrUnsupported, Service: msg.Service}
	}
	if reason == RejectMTU || len(m.byComm) >= refusedMost {
		m.answer(now, nic, local, remote, r)
		return
	}
	c := m.newConn(now, nic, local, remote)
	c.peer, c.tid, c.ud, c.over = msg.Local, msg.TID, sidr, true
	m.byRemote[remoteKey{remote, c.peer, sidr}] = c
	m.S.Rejected++
	r.Put(&c.last)
	c.transmit(now)
	c.bury(now)
}

// lateREP: a reply to a request that is over here.
func (c *conn) lateREP(now mono.Time, msg *Msg) {
	if c.peer == 0 {
		c.say(now, &Msg{Attr: REJ, TID: msg.TID, Local: c.comm, Remote: msg.Local, Which: 1, Reason: RejectConsumer})
		return
	}
	c.repeat(now, msg)
}

// admit makes an ID for a request and tells the listener.
func (m *Manager) admit(now mono.Time, l *ID, nic int, local, remote netip.Addr, msg *Msg, from, to netip.AddrPort) {
	id := l.prog.addID(l.ch, l.ps, l.qpType)
	if id == nil {
		m.S.DropLimit++
		return
	}
	c := m.newConn(now, nic, local, remote)
	if c == nil {
		l.prog.forget(id)
		return
	}
	id.nic, id.src, id.dst, id.tos, id.ackTimeout, id.state, id.child = nic, to, from, l.tos, l.ackTimeout, idConnecting, true
	id.v6 = l.v6 || from.Addr().Is6()
	id.conn, c.id, c.listener = c, id, l
	l.waiting++
	c.peer, c.tid, c.service, c.guid, c.ud = msg.Local, msg.TID, msg.Service, msg.GUID, msg.Attr == SIDRREQ
	m.byRemote[remoteKey{remote, c.peer, c.ud}] = c
	e := Event{ID: id, Listen: l, Kind: EvConnectRequest}
	if c.ud {
		c.gid = remote.As16()
		c.to(SIDRReceived)
		e.Private = msg.Private[ipHeaderLen:PrivateLen(SIDRREQ)]
	} else {
		c.to(REQReceived)
		c.peerQPN, c.peerPSN, c.mtu, c.gid, c.uc = msg.QPN, msg.PSN, msg.MTU, msg.Path.Local, msg.Transport == 1
		c.respRes, c.initDepth, c.retry, c.rnr = msg.InitDepth, msg.RespRes, msg.Retry, msg.RNR
		e.Param = Param{QPN: msg.QPN, RespRes: msg.InitDepth, InitDepth: msg.RespRes, Flow: msg.Flow, Retry: msg.Retry, RNR: msg.RNR, SRQ: msg.SRQ}
		e.Private = msg.Private[ipHeaderLen:PrivateLen(REQ)]
		c.bindQP()
	}
	l.ch.post(e)
}

// finish tells the program how its exchange ended, once.
func (c *conn) finish(e Event) {
	if c.over {
		return
	}
	c.over = true
	if e.ID = c.id; e.ID != nil {
		e.ID.state = idOver
		e.ID.ch.post(e)
	}
}

// repeat says the last word again.
func (c *conn) repeat(now mono.Time, _ *Msg) {
	c.m.S.Retransmits++
	c.transmit(now)
}

// resend repeats what was not answered, ever more slowly, until the time is up.
func (c *conn) resend(now mono.Time, _ *Msg) {
	if now >= c.deadline {
		c.giveUp(now)
		return
	}
	c.m.S.Retransmits++
	c.transmit(now)
	if !c.waits {
		c.rto = min(2*c.rto, rtoMost)
	}
	c.m.arm(c, now.Add(c.rto))
}

func (c *conn) giveUp(now mono.Time) {
	c.m.S.Timeouts++
	switch c.state {
	case DREQSent:
		c.finish(Event{Kind: EvDisconnected, Status: etimedout})
	case SIDRSent:
		c.finish(Event{Kind: EvUnreachable, Status: etimedout})
		c.m.drop(c)
		return
	default:
		c.finish(Event{Kind: EvUnreachable, Status: etimedout})
		c.rejectWith(now, RejectTimeout, nil)
	}
	c.bury(now)
}

// sayWait tells a peer that repeats itself that the program has not answered yet.
func (c *conn) sayWait(now mono.Time, msg *Msg) {
	which := uint8(0)
	if c.state == REPReceived {
		which = 1
	}
	c.say(now, &Msg{Attr: MRA, TID: msg.TID, Local: c.comm, Remote: c.peer, Which: which, Service5: codeWait})
}

// wait: the peer's program takes its time. It is asked again now and then, as it may die meanwhile.
func (c *conn) wait(now mono.Time, _ *Msg) {
	c.waits, c.rto = true, waitAgain
	c.deadline = mono.Min(now.Add(waitFor), c.began.Add(waitMost))
	c.m.arm(c, now.Add(c.rto))
}

// sendLast sends what the program's command left in c.last, until it is answered.
func (c *conn) sendLast(now mono.Time, msg *Msg) {
	c.unlist()
	c.to(REPSent)
	c.send(now, msg, connectFor)
}

func (c *conn) onREP(now mono.Time, msg *Msg) {
	c.answered(now)
	c.peer, c.peerQPN, c.peerPSN, c.guid = msg.Local, msg.QPN, msg.PSN, msg.GUID
	c.respRes, c.initDepth, c.rnr = msg.InitDepth, msg.RespRes, msg.RNR
	c.to(REPReceived)
	c.bindQP()
	if c.id == nil {
		c.refuse(now, msg)
		return
	}
	c.id.ch.post(Event{ID: c.id, Kind: EvConnectResponse, Private: msg.Private[:PrivateLen(REP)],
		Param: Param{QPN: msg.QPN, RespRes: msg.InitDepth, InitDepth: msg.RespRes, Flow: msg.Flow, Retry: c.retry, RNR: msg.RNR, SRQ: msg.SRQ}})
}

// establish sends the RTU; it is repeated when the REP is.
func (c *conn) establish(now mono.Time, _ *Msg) {
	c.to(Established)
	c.up = true
	c.m.S.Established++
	(&Msg{Attr: RTU, TID: c.tid, Local: c.comm, Remote: c.peer}).Put(&c.last)
	c.tries = 0
	c.transmit(now)
}

func (c *conn) onRTU(now mono.Time, msg *Msg) {
	c.answered(now)
	c.to(Established)
	c.up = true
	c.m.S.Established++
	if c.id != nil {
		e := Event{ID: c.id, Kind: EvEstablished, Param: Param{QPN: c.peerQPN}}
		if msg != nil {
			e.Private = msg.Private[:PrivateLen(RTU)]
		}
		c.id.state = idConnected
		c.id.ch.post(e)
	}
}

func (c *conn) onREJ(now mono.Time, msg *Msg) {
	c.m.arm(c, mono.Never)
	if c.state == REQSent && msg.Reason == RejectMTU && msg.InfoLen >= 1 {
		if mtu := msg.Info[0] >> 4; mtu >= 1 && mtu < c.mtu {
			c.mtu = mtu
			var again Msg
			Parse(c.last[:], &again)
			again.MTU = mtu
			again.TID = c.m.tid()
			c.tid = again.TID
			c.send(now, &again, connectFor)
			return
		}
	}
	kind := Event{Kind: EvRejected, Status: int32(msg.Reason), Private: msg.Private[:PrivateLen(REJ)]}
	if c.state == Established {
		kind = Event{Kind: EvDisconnected, Status: int32(msg.Reason)}
	}
	c.finish(kind)
	(&Msg{Attr: REJ, TID: c.tid, Local: c.comm, Remote: c.peer, Reason: RejectConsumer}).Put(&c.last)
	c.bury(now)
}

// rejectWith leaves a REJ as the last word and says it.
func (c *conn) rejectWith(now mono.Time, reason uint16, private []byte) {
	m := &Msg{Attr: REJ, TID: c.tid, Local: c.comm, Remote: c.peer, Reason: reason}
	if c.active {
		m.Which = 1
	}
	if c.peer == 0 { // found by who we are
		m.Which, m.InfoLen = 2, 8
		be.PutUint64(m.Info[:], c.m.cfg.NICs[c.nic].GUID)
	}
	copy(m.Private[:PrivateLen(REJ)], private)
	m.Put(&c.last)
	c.m.S.Rejected++
	c.tries = 0
	c.transmit(now)
}

// refuse ends an exchange that is not a connection yet. msg has the program's reason, if it gave one.
func (c *conn) refuse(now mono.Time, msg *Msg) {
	reason, private := uint16(RejectConsumer), []byte(nil)
	if msg != nil && msg.Attr == REJ {
		reason, private = msg.Reason, msg.Private[:]
	}
	c.over = true
	c.rejectWith(now, reason, private)
	c.bury(now)
}

// abandon: the program does not wait for the answer any more.
func (c *conn) abandon(now mono.Time, _ *Msg) {
	c.over = true
	c.rejectWith(now, RejectTimeout, nil)
	c.bury(now)
}

func (c *conn) disconnect(now mono.Time, _ *Msg) {
	c.unlist()
	c.to(DREQSent)
	c.tid = c.m.tid()
	c.send(now, &Msg{Attr: DREQ, TID: c.tid, Local: c.comm, Remote: c.peer, QPN: c.peerQPN}, dreqFor)
}

func (c *conn) onDREQ(now mono.Time, msg *Msg) {
	c.m.arm(c, mono.Never)
	c.finish(Event{Kind: EvDisconnected})
	c.sayDREP(now, msg)
	c.bury(now)
}

func (c *conn) sayDREP(now mono.Time, msg *Msg) {
	c.tid = msg.TID
	(&Msg{Attr: DREP, TID: msg.TID, Local: c.comm, Remote: c.peer}).Put(&c.last)
	c.tries = 0
	c.transmit(now)
}

func (c *conn) onDREP(now mono.Time, _ *Msg) {
	c.answered(now)
	c.finish(Event{Kind: EvDisconnected})
	(&Msg{Attr: DREP, TID: c.tid, Local: c.comm, Remote: c.peer}).Put(&c.last)
	c.bury(now)
}

// exit ends a tombstone.
func (c *conn) exit(mono.Time, *Msg) {
	if c.id != nil && c.up {
		c.id.ch.post(Event{ID: c.id, Kind: EvTimewaitExit})
	}
	c.m.drop(c)
}

func (c *conn) forget(mono.Time, *Msg) { c.m.drop(c) }

func (c *conn) onSIDRREP(now mono.Time, msg *Msg) {
	c.answered(now)
	e := Event{Kind: EvUnreachable, Status: int32(msg.Status), Private: msg.Private[:PrivateLen(SIDRREP)]}
	if msg.Status == sidrOK {
		e = Event{Kind: EvEstablished, Param: Param{QPN: msg.QPN, QKey: msg.QKey, UD: true, GID: c.gid}, Private: msg.Private[:PrivateLen(SIDRREP)]}
		c.m.S.Established++
	}
	id := c.id
	c.finish(e)
	if id != nil && e.Kind == EvEstablished {
		id.state = idConnected
	}
	c.m.drop(c)
}

// answerSIDR sends what the program's command made and repeats it when asked again.
func (c *conn) answerSIDR(now mono.Time, msg *Msg) {
	msg.Put(&c.last)
	c.tries = 0
	c.transmit(now)
	c.bury(now)
}

func (c *conn) refuseSIDR(now mono.Time, _ *Msg) {
	c.answerSIDR(now, &Msg{Attr: SIDRREP, TID: c.tid, Local: c.peer, Status: sidrReject, Service: c.service})
}
