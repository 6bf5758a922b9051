package cm

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
)

// State is where an exchange stands.
type State uint8

// States of an exchange. The active side goes REQSent, REPReceived, Established; the passive one REQReceived, REPSent,
// Established; then DREQSent and Timewait. Datagrams: SIDRSent, and SIDRReceived.
const (
	REQSent State = iota
	REQReceived
	REPSent
	REPReceived
	Established
	DREQSent
	Timewait // a tombstone: it repeats the last word to who did not hear it
	SIDRSent
	SIDRReceived
	numStates
)

var stateNames = [numStates]string{"REQ_SENT", "REQ_RCVD", "REP_SENT", "REP_RCVD", "ESTABLISHED", "DREQ_SENT", "TIMEWAIT", "SIDR_SENT", "SIDR_RCVD"}

// String is the state's name.
func (s State) String() string { return stateNames[s] }

// input is what happens to an exchange: a message, its timer, or a command of the program.
type input uint8

const (
	inREQ input = iota // again: the first one makes the exchange
	inMRA
	inREP
	inRTU
	inREJ
	inDREQ
	inDREP
	inSIDRREQ // again
	inSIDRREP
	inTimer
	doAccept
	doReject
	doEstablish
	doDisconnect
	doDestroy
	numInputs
)

var inputNames = [numInputs]string{"REQ", "MRA", "REP", "RTU", "REJ", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "timer", "accept", "reject", "establish", "disconnect", "destroy"}

func (i input) String() string { return inputNames[i] }

// action is a cell of the table. f is nil: nothing is done; drop says that the message is one too many.
type action struct {
	name string
	f    func(c *conn, now mono.Time, msg *Msg)
}

// table is the state machine; what is not in it is not done, a message is dropped and counted.
var table [numStates][numInputs]action

func init() {
	again := action{"repeat", (*conn).repeat}
	wait := action{"MRA", (*conn).sayWait}
	slower := action{"wait", (*conn).wait}
	ignore := action{"-", func(*conn, mono.Time, *Msg) {}}
	resend := action{"resend", (*conn).resend}
	rejected := action{"REJECTED", (*conn).onREJ}
	ended := action{"DREP+DISCONNECTED", (*conn).onDREQ}
	refuse := action{"REJ", (*conn).refuse}
	table = [numStates][numInputs]action{
		REQSent: {inMRA: slower, inREP: {"CONNECT_RESPONSE", (*conn).onREP}, inREJ: rejected, inTimer: resend,
			doDisconnect: ignore, doDestroy: {"REJ timeout", (*conn).abandon}},
		REQReceived: {inREQ: wait, inREJ: rejected, inTimer: ignore,
			doAccept: {"REP", (*conn).sendLast}, doReject: refuse, doDisconnect: ignore, doDestroy: refuse},
		REPSent: {inREQ: again, inMRA: slower, inRTU: {"ESTABLISHED", (*conn).onRTU}, inREJ: rejected, inDREQ: ended, inTimer: resend,
			doReject: refuse, doEstablish: {"ESTABLISHED", (*conn).onRTU}, doDisconnect: {"DREQ", (*conn).disconnect}, doDestroy: refuse},
		REPReceived: {inREP: wait, inREJ: rejected, inDREQ: ended, inTimer: ignore,
			doReject: refuse, doEstablish: {"RTU", (*conn).establish}, doDisconnect: refuse, doDestroy: refuse},
		Established: {inREQ: ignore, inMRA: ignore, inREP: again, inRTU: ignore, inREJ: rejected, inDREQ: ended, inTimer: ignore, doEstablish: ignore,
			doDisconnect: {"DREQ", (*conn).disconnect}, doDestroy: {"DREQ", (*conn).disconnect}},
		DREQSent: {inREP: ignore, inRTU: ignore, inMRA: slower, inREJ: {"DISCONNECTED", (*conn).onDREP}, inDREQ: ended, inDREP: {"DISCONNECTED", (*conn).onDREP},
			inTimer: resend, doDisconnect: ignore, doDestroy: ignore},
		Timewait: {inREQ: again, inREP: {"REJ or repeat", (*conn).lateREP}, inDREQ: {"DREP", (*conn).sayDREP}, inDREP: ignore, inREJ: ignore, inRTU: ignore, inMRA: ignore, inSIDRREQ: again,
			inTimer: {"TIMEWAIT_EXIT", (*conn).exit}, doDisconnect: ignore, doReject: ignore, doDestroy: ignore},
		SIDRSent: {inSIDRREP: {"ESTABLISHED or UNREACHABLE", (*conn).onSIDRREP}, inTimer: resend, doDisconnect: ignore, doDestroy: {"forget", (*conn).forget}},
		SIDRReceived: {inSIDRREQ: ignore, inTimer: ignore, doAccept: {"SIDR_REP", (*conn).answerSIDR}, doReject: {"SIDR_REP", (*conn).answerSIDR},
			doDisconnect: ignore, doDestroy: {"SIDR_REP reject", (*conn).refuseSIDR}},
	}
}

// conn is one exchange with a peer: a connection, or the question for a datagram service.
type conn struct {
	m             *Manager
	id            *ID // nil: its program has let go of it
	listener      *ID // that it waits at, while it counts there
	state         State
	active, ud    bool
	over          bool // the program has been told that it is over
	up            bool // it was established
	nic           int
	local, remote netip.Addr // the NICs' addresses, as messages travel
	comm, peer    uint32     // communication IDs
	tid           uint64
	service       uint64
	guid          uint64 // of the peer
	qpn, peerQPN  uint32
	psn, peerPSN  uint32
	gid           [16]byte // of the peer, for its QP
	mtu           uint8
	respRes       uint8 // READs that we serve
	initDepth     uint8 // READs that we ask for
	retry, rnr    uint8 // of our QP
	uc            bool
	inQP          qpKey
	bound         bool // in byQP

	last     [MADLen]byte // to be repeated
	due      mono.Time
	at       int // place in the heap
	rto      mono.Duration
	began    mono.Time
	sentAt   mono.Time
	deadline mono.Time
	tries    int
	waits    bool // the peer has asked for patience
}

// step does what the table says.
func (c *conn) step(now mono.Time, in input, msg *Msg) bool {
	a := &table[c.state][in]
	if a.f == nil {
		if msg != nil && in < inTimer {
			c.m.S.DropState++
		}
		return false
	}
	a.f(c, now, msg)
	return true
}

func (c *conn) to(s State) { c.state = s }

// bindQP notes which QP of the peer it is with: a new request with the same one ends it.
func (c *conn) bindQP() {
	c.unbindQP()
	c.inQP, c.bound = qpKey{c.remote, c.guid, c.peerQPN}, true
	c.m.byQP[c.inQP] = c
}

func (c *conn) unbindQP() {
	if c.bound && c.m.byQP[c.inQP] == c {
		delete(c.m.byQP, c.inQP)
	}
	c.bound = false
}

// send sends a message that is repeated until it is answered, for at most a time.
func (c *conn) send(now mono.Time, msg *Msg, patience mono.Duration) {
	msg.Put(&c.last)
	c.rto, c.tries, c.sentAt, c.deadline, c.waits = c.m.rto(c.remote), 0, now, now.Add(patience), false
	c.transmit(now)
	c.m.arm(c, now.Add(c.rto))
}

func (c *conn) transmit(now mono.Time) {
	c.tries++
	c.m.S.Tx[Attr(be.Uint16(c.last[16:]))]++
	c.m.cfg.Send(now, c.nic, c.local, c.remote, &c.last)
}

// say sends a message that only answers.
func (c *conn) say(now mono.Time, msg *Msg) {
	c.m.answer(now, c.nic, c.local, c.remote, msg)
}

// answered takes the round trip, where it is sure which of several messages was answered.
func (c *conn) answered(now mono.Time) {
	if c.tries == 1 && !c.waits {
		c.m.learn(c.remote, now.Sub(c.sentAt))
	}
	c.m.arm(c, mono.Never)
}

// unlist takes it off its listener's backlog.
func (c *conn) unlist() {
	if c.listener != nil {
		c.listener.waiting--
		c.listener = nil
	}
}

// bury makes a tombstone of it, with the last word in c.last.
func (c *conn) bury(now mono.Time) {
	c.unlist()
	c.unbindQP()
	c.to(Timewait)
	c.m.arm(c, now.Add(timewait))
}
