package metaroce

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/timerq"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
)

type mono64 = mono.Time

const never = mono.Never

// assocState is where an association stands.
//
//	idle --first use--> opening --ACCEPT or CONFIRM--> up
//	up --restart of the peer, protocol violation--> opening
type assocState uint8

const (
	assocIdle assocState = iota
	assocOpening
	assocUp
)

var assocStateNames = [...]string{"idle", "opening", "up"}

func (s assocState) String() string { return assocStateNames[s] }

// assoc is the state that all QPs between two NICs share: paths, round trips, windows, loss detection, acks.
type assoc struct {
	e             *Engine
	local, remote netip.Addr
	name          string // of the peer, for events
	loopback      bool   // with ourselves: no handshake
	state         assocState
	users         int       // QPs bound to it
	probers       int       // named probes under way
	moveAt        mono.Time // not before this another probe there
	careAt        mono.Time // when tend has something to do
	qps           []*QP
	due           timerq.Node[assoc]
	lastUse       mono.Time
	gone          bool            // forgotten: nothing is due any more
	isHot         bool            // among those that may have something to send
	isLive        bool            // among those that are looked at all the time
	sends         [maxPlanes]bool // among the senders of a port

	// handshake
	rxTag, txTag     uint32
	peerID, peerInst uint64
	havePeer         bool
	former           uint64    // instance of the same NIC before this one
	formerAt         mono.Time // when it was replaced, by the caller's clock; 0 = there was none
	newTS            uint32    // of the HELLO that told of the present instance or tag
	newAt            mono.Time // when it came, by the caller's clock; 0 = long ago, or there was none before
	cookie           [16]byte
	haveCookie       bool
	helloTries       int
	helloAt          mono.Time
	helloRTT         mono.Duration // of the first INIT, until the association is up
	openAt           mono.Time     // first INIT of this handshake; 0 = it was answered

	// sending
	planes     []planeTx
	rrPlane    int
	grays      int     // planes whose loss stands out
	twinCredit float64 // bytes that second copies may take
	active     qpRing  // QPs with something to send
	srtt       mono.Duration
	rttvar     mono.Duration
	hold       mono.Duration // longest ack hold the peer announced
	pathLimit  int           // path indexes below it may be used
	widen      float64       // of the time rule, after spurious losses
	widenAt    mono.Time
	rackT      mono.Time // when the newest acknowledged packet was sent
	lastHeard  mono.Time
	heardUp    mono.Time // the same, of the instance that we know
	lastLoss   mono.Time

	// receiving
	rx       assocRx
	peerTS   uint32 // newest clock of the peer that was seen
	havePeTS bool
	peerAt   mono.Time // when that was, by the caller's clock
	ceilTS   uint32    // the peer's clock showed this at most …
	ceilAt   mono.Time // … at this time, by the caller's clock; 0 = nothing is known
	leapTS   uint32    // a stamp too far ahead to be believed
	leapAt   mono.Time // when the first of them came, by the caller's clock; 0 = the last packet was none
}

// planeState is where a plane of an association stands.
type planeState uint8

const (
	planeActive  planeState = iota
	planeProbing            // failed or link down; probes decide
	planeAbsent             // the peer does not have it
)

// planeTx is the sending side of one plane: a window, its packets in flight in order of sending, its paths.
type planeTx struct {
	a          *assoc
	idx        int
	state      planeState
	win        cc.Controller
	cwnd       int       // its window: each packet sent asks for it
	grant      int       // the receiver's; in bytes
	grantTS    uint32    // the peer's clock when it was given
	grantAt    mono.Time // when it came, by the caller's clock; 0 = it is HELLO's
	inflight   int
	head, tail int32 // records in flight, oldest first
	paths      [maxPaths]*txPath
	usable     uint64 // paths that may carry data, by index
	deny       uint64 // paths that people took out of use
	denyVoid   bool   // that would be all: they are used nevertheless
	ent        Entropies
	profile    cc.Profile
	lossMean   float64 // share of packets lost, mean of about 256
	gray       bool    // it stands out beside the other planes
	markMean   float64 // share of acknowledgements that brought marks
	baseDue    mono.Time
	baseSent   uint64  // packets sent when the base was measured last
	baseGot    uint32  // bytes received then
	basePath   *txPath // to be measured: it has a new entropy
	mtu        mtuTx
	recycle    fifo
	cur        *txPath
	curLeft    int
	packetMax  int
	rate       uint64 // of the slower end's port, bits a second; 0 = unknown
	noise      mono.Duration
	lastHeard  mono.Time
	nextSend   mono.Time     // where a window below one packet is paced
	dither     int           // bytes of the next packet that must have room: a part of the last one, drawn anew for each
	asked      int           // packets sent since the plane was heard
	askedAt    mono.Time     // first packet sent since the plane was heard, 0 = none
	base       mono.Duration // smallest round trip of the last two periods
	baseNext   mono.Duration
	baseAt     mono.Time
	drain      mono.Time // until then the window is small, so that our own queue is not taken for the base RTT; 0 = it is not
	avgq       float64   // mean queue delay of its paths, ns
	timeouts   int
	failedAt   mono.Time
	vain       int // returns into service without any data delivered since

	probeID    uint32
	probeAt    mono.Time // when the next probe is due
	probeGap   mono.Duration
	probeTries int
	probeOut   uint64 // bit i: probe number probeID - i was sent and is not answered
	probeSeen  uint64 // bit i: it was answered
	probeWant  bool   // a probe waits to be sent

	sent, acked, lost, spurious, timedOut, failures uint64
}

// txPath is the sending side of one path: one entropy on one plane. What each packet and each acknowledgement of it need
// stands in front: there are thousands of paths, and the processor's cache is small.
type txPath struct {
	pl        *planeTx
	id        uint16
	srcPort   uint16
	genStart  uint32 // first sequence of the present entropy
	next, una uint32 // next to send; oldest that may be unresolved
	known     seqWindow
	srtt      mono.Duration
	rttvar    mono.Duration

	tol       uint32
	ce        uint32
	skipped   uint32 // the newest number that was left out
	hasSkip   bool
	state     pathState
	lossMean  float64   // share of its packets lost, mean of about 32
	restUntil mono.Time // passed over until then
	row       int       // losses in a row
	rests     int       // in a row
	sent      uint64
	tolAt     mono.Time // when tol changed last

	rowAcked  uint64 // what its plane had delivered when they began
	rolledAt  mono.Time
	gen       uint32 // entropies it had before the present one
	healthAt  mono.Time
	healthGap mono.Duration
	answers   int // health probes answered in a row
	lostCnt   uint64
	ring      [pathRing]int32 // records by sequence
}

func newAssoc(e *Engine, local, remote netip.Addr) *assoc {
	a := &assoc{e: e, local: local, remote: remote, name: remote.String(), rxTag: e.newTag(),
		careAt: never, lastUse: e.now, helloAt: never, pathLimit: maxPaths, planes: make([]planeTx, len(e.cfg.Planes))}
	a.due.Init(a, a.rxTag)
	a.rx.init(a)
	for i := range a.planes {
		pl := &a.planes[i]
		c := e.cfg.Planes[i]
		*pl = planeTx{a: a, idx: i, grant: defaultWindow, packetMax: c.PacketMax, noise: c.TimerNoise, probeAt: never,
			ent: e.ents[i], profile: e.profile, mtu: mtuTx{most: c.PacketMax}}
		pl.refresh()
		if !e.planeUp[i] {
			pl.state = planeProbing
			pl.probeAt, pl.probeGap = e.now, probeFirst
		}
		pl.rate = c.RateBps
		pl.newWindow()
	}
	a.resetRTT()
	if a.loopback = e.ownAddr(remote); a.loopback { // over a wire inside, which no link failure concerns
		for i := range a.planes {
			a.planes[i].state, a.planes[i].probeAt = planeActive, never
		}
		a.txTag, a.peerID, a.peerInst, a.havePeer, a.state = a.rxTag, e.cfg.NICID, e.cfg.Instance, true, assocUp
		a.hold = e.cfg.AckHold
	}
	return a
}

// newWindow makes the controller anew.
func (pl *planeTx) newWindow() {
	c := pl.a.e.cfg.Planes[pl.idx]
	//= MR-CC-006 MR-CC-008
	pl.win = pl.profile.Make(cc.Limits{Packet: min(c.PacketMax, maxPayload+128), Start: defaultWindow, Max: 4 << 20, Target: pl.delayFloor(),
		Rate: float64(pl.rate) / 8e9, Noise: c.TimerNoise})
	pl.cwnd = pl.win.Window()
}

func (pl *planeTx) setWindow(w int) {
	pl.win.Reset(w)
	pl.cwnd = pl.win.Window()
}

// delayFloor is the least queue delay that says something on this wire: a quarter of its noise, which is that of single round
// trips, as the window looks at a mean over all of its packets (docs/adr/0022).
func (pl *planeTx) delayFloor() mono.Duration {
	return max(pl.a.e.cfg.Planes[pl.idx].TimerNoise/4, 6*mono.Microsecond)
}

// delayTarget is the queue delay that the window stays under; 0 when its profile looks at none.
func (pl *planeTx) delayTarget() mono.Duration {
	switch {
	case pl.profile.Name == cc.ProfileFixed:
		return 0
	case pl.profile.Target > 0:
		return max(pl.profile.Target, pl.base/8)
	}
	return max(pl.delayFloor(), pl.base/8)
}

// peerRate takes in the rate of the peer's port: the lower one of the two bounds the window. 0 = it has none.
func (pl *planeTx) peerRate(bps uint64) {
	r := pl.a.e.cfg.Planes[pl.idx].RateBps
	if bps > 0 && (r == 0 || bps < r) {
		r = bps
	}
	if r != pl.rate {
		w := pl.cwnd
		pl.rate = r
		pl.newWindow()
		pl.setWindow(w)
	}
}

func (a *assoc) resetRTT() {
	a.srtt, a.rttvar, a.widen = rttStart, 0, 0 // no sample yet
	for i := range a.planes {
		a.srtt = max(a.srtt, rttStart+a.planes[i].noise)
	}
}

// busy reports whether the association has anything under way.
func (a *assoc) busy() bool {
	if a.active.n > 0 {
		return true
	}
	for i := range a.planes {
		if a.planes[i].head != 0 {
			return true
		}
	}
	return false
}

// attach binds a QP to the association.
func (a *assoc) attach(q *QP) {
	if a.users++; a.users == 1 {
		for i := range a.planes { // what is left from former users counts no more
			a.planes[i].askedAt, a.planes[i].asked, a.planes[i].timeouts = 0, 0, 0
		}
	}
	q.boundAt = a.e.now
	a.e.enliven(a)
	a.qps = append(a.qps, q)
	a.lastUse = a.e.now
	if a.state == assocIdle {
		a.open()
	}
	for i := range a.planes {
		a.startProbing(&a.planes[i])
	}
	a.care(a.e.now)
}

func (a *assoc) detach(q *QP) {
	for i, x := range a.qps {
		if x == q {
			a.qps = append(a.qps[:i], a.qps[i+1:]...)
			a.users--
			break
		}
	}
	a.active.remove(q)
	a.lastUse = a.e.now
	if a.users == 0 {
		a.e.unused(a)
		if a.state == assocOpening && a.probers == 0 {
			a.rest()
		}
	}
}

// rest ends a handshake that nobody needs any more. Without an association nothing in flight would ever end.
func (a *assoc) rest() {
	//= MR-ASC-002
	a.state, a.helloAt, a.helloTries, a.haveCookie = assocIdle, never, 0, false
	a.giveUpAll()
	a.reschedule()
}

// up is called when both tags are known.
func (a *assoc) up() {
	a.e.enliven(a)
	first := a.state != assocUp
	a.state, a.helloAt, a.helloTries, a.haveCookie = assocUp, never, 0, false
	a.heard()
	if first {
		a.e.C.AssocUp++
		a.e.host.Event(transport.Event{Kind: transport.EventAssocUp, Peer: a.name})
	}
	for _, q := range a.qps {
		q.wake()
	}
	a.reschedule()
}

// heard notes a sign of life of the peer.
func (a *assoc) heard() {
	a.lastHeard = a.e.now
	if a.state == assocUp { // while opening, it may be a new instance that has our tag from our CONFIRM
		a.heardUp = a.e.now
	}
}

// restarted is called when a HELLO proved a new incarnation of the peer: what was under way is lost for ever.
func (a *assoc) restarted() {
	a.e.C.AssocRestarts++
	a.e.host.Event(transport.Event{Kind: transport.EventAssocRestart, Peer: a.name})
	a.renew()
	// QPs bound to the old instance end; QPs that have not heard of it since they were bound wait for the new one.
	for _, q := range append([]*QP(nil), a.qps...) {
		//= MR-ASC-044
		if q.talked || q.boundAt < a.heardUp { // also one in the error state: the new one may have READs to be answered
			q.peerGone()
			a.detach(q)
		}
	}
}

// renew forgets everything that was agreed with the former instance. What QPs have in flight goes again: they are
// ended by the caller, or were bound since the peer's restart. The tag stays: the new instance may have it already,
// from our CONFIRM.
func (a *assoc) renew() {
	for i := range a.planes {
		a.planes[i].loseAll()
	}
	a.giveUpAll()
	a.e.probes.drop(a, false)
	a.rx.init(a)
	for i := range a.planes {
		pl := &a.planes[i]
		//= MR-ASC-044
		pl.paths = [maxPaths]*txPath{}
		pl.recycle.clear()
		pl.forgetLoss()
		pl.basePath, pl.baseDue, pl.markMean = nil, 0, 0
		pl.mtu = mtuTx{most: pl.mtu.most}
		pl.refresh()
		pl.cur, pl.curLeft, pl.grant, pl.grantAt = nil, 0, defaultWindow, 0
		pl.setWindow(defaultWindow)
		pl.nextSend = 0
	}
	a.resetRTT()
	a.havePeTS, a.ceilAt, a.lastLoss = false, 0, 0
	for _, q := range a.qps {
		q.haveMinTS = false
		if q.rsp.posted > 0 && !q.srq && q.state >= StateRTR && q.state != StateErr {
			a.rx.noteLimit(q)
		}
	}
}

// giveUpAll takes everything out of flight without resending it.
func (a *assoc) giveUpAll() {
	for i := range a.planes {
		pl := &a.planes[i]
		for pl.head != 0 {
			a.e.dropRec(pl.head)
		}
		for _, p := range pl.paths {
			if p != nil {
				a.e.forgetPath(p)
				p.una = p.next
			}
		}
	}
}

// reschedule computes when onTimer has something to do.
func (a *assoc) reschedule() {
	t := mono.Min(a.helloAt, a.rx.ackDue)
	if a.rx.ackNow {
		t = a.e.now
	}
	if a.state == assocUp {
		t = mono.Min(t, a.careAt)
		for i := range a.planes {
			pl := &a.planes[i]
			if pl.head != 0 {
				t = mono.Min(t, pl.lossDue())
			}
			if pl.asked >= pl.silentAfter() && pl.state == planeActive && len(a.planes) > 1 {
				if due := pl.askedAt.Add(pl.silence()); due > a.e.now { // later only an arrival can decide
					t = mono.Min(t, due)
				}
			}
			if pl.state == planeProbing && !pl.probeWant {
				t = mono.Min(t, pl.probeAt)
			}
			if pl.nextSend > a.e.now && pl.inflight == 0 && a.active.n > 0 {
				t = mono.Min(t, pl.nextSend)
			}
		}
	}
	a.setDue(t)
}

func (a *assoc) onTimer() {
	now := a.e.now
	if a.helloAt <= now {
		a.helloTimer()
	}
	if a.rx.ackDue <= now {
		a.rx.wantAck()
		a.rx.ackDue = never
	}
	if a.state == assocUp {
		a.silentPlanes()
		a.timeRule()
		for i := range a.planes {
			a.planes[i].onTimer()
		}
		if a.careAt <= now {
			a.tend()
		}
	}
	a.reschedule()
}

// qpRing is a queue of QPs that want to send; a QP stands in it at most once.
type qpRing struct {
	head, tail *QP
	n          int
}

func (r *qpRing) push(q *QP) {
	if q.inRing {
		return
	}
	q.inRing, q.ringNext = true, nil
	if r.tail == nil {
		r.head = q
	} else {
		r.tail.ringNext = q
	}
	r.tail = q
	r.n++
}

func (r *qpRing) pop() *QP {
	q := r.head
	if q == nil {
		return nil
	}
	r.head = q.ringNext
	if r.head == nil {
		r.tail = nil
	}
	q.inRing, q.ringNext = false, nil
	r.n--
	return q
}

func (r *qpRing) remove(q *QP) {
	if !q.inRing {
		return
	}
	for n := r.n; n > 0; n-- {
		if x := r.pop(); x != q {
			r.push(x)
		}
	}
}
