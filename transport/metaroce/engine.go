// Package metaroce is the MetaRoCE engine: associations between NICs over many lossy paths, and the RC semantics of
// verbs on top of them. It does no I/O, reads no clock, starts no goroutine and draws randomness from its seed only.
//
// Contract. One goroutine owns an Engine and everything made from it.
//   - inputs:  HandlePackets (received), HandleTimers (when NextTimeout has come), SetPlane, and the QP's commands;
//   - outputs: Transmit fills packets to send until nothing may go; NextTimeout says when to call HandleTimers;
//     completions, memory and receives go through transport.Host during the input calls and Transmit.
//
// Order within one step of a device: HandlePackets before HandleTimers (what waited in the ring is no silence of
// the peer), then posts, then Transmit. Time never goes back. Spurious calls are harmless.
//
// A packet's way in is in receive.go (assoc and path checks), responder.go or response.go (what it does), ackrx.go
// (acknowledgements); its way out is in send.go (choice of path), requester.go and response.go (content), acktx.go.
package metaroce

import (
	"net/netip"
	"slices"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/internal/serial"
	"github.com/metaroce/metaroce/internal/timerq"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/wire"
)

// PlaneConfig describes one plane of the NIC.
type PlaneConfig struct {
	PacketMax  int           // largest BTH … ICRC
	RateBps    uint64        // 0 = unknown
	TimerNoise mono.Duration // the wire's own timing noise
	RingBytes  int           // what this end can take in before it looks; bounds the grant. 0 = default
	Burst      int           // packets sent on one path before another is chosen (super-packets); 0 = 1
}

// Config makes an Engine. Zero limits mean the defaults of limits.go.
type Config struct {
	NICID, Instance uint64 // HELLO: who, and which incarnation
	Seed            uint64
	Secret          [32]byte     // what nobody may guess comes from it; all 0 = from the seed
	Addrs           []netip.Addr // the NIC's own addresses (GIDs)
	Planes          []PlaneConfig
	FirstSeq        uint32        // first path sequence (tests start near the wrap)
	TxRecords       int           // packets in flight, all peers together
	HeldBuffers     int           // out-of-order tails that wait for their turn
	RespBuffers     int           // READ response packets kept until acknowledged
	PSNWindow       int           // PSNs of a QP between the oldest unacknowledged and the newest
	AckHold         mono.Duration // longest that an ack is held back, announced in HELLO; 0 = by the wires' noise
	AcksWithData    bool          // acknowledgements travel in the class of data, not of control (comparisons)
	SeqSkip         float64       // chance that a path sequence is left out
	FixedWindow     int           // bytes; not 0: no congestion control (tests)
	TrimDSCP        uint8         // class of packets that a switch trimmed; 0 = none
	TrimLastDSCP    uint8         // the same, trimmed on the last hop
	TwinShare       float64       // share of the bytes that second copies of one-packet messages may take; 0 = none are sent
	Profile         string        // of congestion control; "" = the default
	NoICRC          bool          // no checksums, neither written nor looked at: wires that get no bit wrong (simulations)
}

// Engine is the transport of one NIC.
type Engine struct {
	host      transport.Host
	cfg       Config
	secret    *rng.Secret // for what a stranger or a peer may not foresee
	skipIn    int         // transmissions until a path sequence is left out
	rnd       *rng.Source
	now       mono.Time // the engine's clock: the caller's less the time in which the caller's loop stood still
	offset    mono.Duration
	stalledAt mono.Time     // when offset grew last
	lateAt    mono.Time     // the same by the caller's clock
	lateBy    mono.Duration // by how much
	lastCall  mono.Time
	lastNext  mono.Time

	qps       map[uint32]*QP
	former    map[uint32]mono.Time // QP numbers whose life ended of late
	formerMax int
	byTag     map[uint32]*assoc
	lastQP    *QP    // found last: packets come in runs
	lastTag   *assoc // the same by tag
	byAddr    map[addrPair]*assoc
	assocs    []*assoc
	calmAt    mono.Time
	live      []*assoc // without those that sleep: no QP, nothing under way
	hot       []*assoc // that may have something to send
	rr        int      // round robin over hot
	dues      timerq.Queue[assoc]
	late      []*assoc // of HandleTimers: whose time has come
	reapAt    mono.Time
	planeUp   []bool
	busy      uint32 // planes whose queue to the wire is full
	ports     []portRx
	timers    timerq.Queue[QP]

	recs     []txRec
	recFree  int32
	lostHead int32 // lost transmissions, oldest first
	lostTail int32
	held     bufPool
	resp     bufPool
	respWait waitList
	cookie   [2]uint64
	out      rx // scratch of HandlePackets
	ctl      ctlQueue
	probes   probeTable
	trimming bool              // what is called lost now was trimmed
	ents     []Entropies       // by plane, of new associations
	denied   map[uint16]uint16 // planes on which an entropy is not to be used, by bit
	profile  cc.Profile        // of new associations
	C        Counters
}

type addrPair struct{ local, remote netip.Addr }

// New makes an engine. It allocates all that the hot path needs.
func New(cfg Config, host transport.Host) *Engine {
	cfg.setDefaults()
	e := &Engine{host: host, cfg: cfg, rnd: rng.New(cfg.Seed, "engine"), secret: rng.NewSecret(cfg.Secret, cfg.Seed, "engine"),
		qps: map[uint32]*QP{}, former: map[uint32]mono.Time{}, formerMax: formerMin, byTag: map[uint32]*assoc{}, byAddr: map[addrPair]*assoc{},
		planeUp: make([]bool, len(cfg.Planes)), ports: make([]portRx, len(cfg.Planes)),
		recs: make([]txRec, cfg.TxRecords+1), reapAt: never,
		ents: make([]Entropies, len(cfg.Planes)), denied: map[uint16]uint16{}, profile: cc.Profile{Name: cfg.Profile, Window: cfg.FixedWindow}}
	e.probes.due = never
	for i := range e.planeUp {
		e.planeUp[i] = true
		e.ports[i].init(i)
	}
	for i := 1; i < len(e.recs); i++ { // record 0 is "none"
		e.recs[i].next = int32(i + 1)
	}
	e.recs[len(e.recs)-1].next = 0
	e.recFree = 1
	e.held.init(cfg.HeldBuffers, maxPayload)
	e.resp.init(cfg.RespBuffers, maxPayload)
	e.out.init()
	//= MR-ASC-012
	e.cookie = [2]uint64{e.secret.Uint64(), e.secret.Uint64()}
	e.drawSkip()
	return e
}

// tick moves the engine's clock. When the caller comes later than the engine asked for, the excess is time in which
// the loop did not run: it says nothing about the peer, so the clock stands still for it.
func (e *Engine) tick(now mono.Time) {
	if e.lastCall != 0 {
		expected := max(e.lastCall, mono.Min(e.lastNext, now))
		//= MR-PATH-036
		if late := now.Sub(expected); late > stallThreshold {
			e.offset += late
			e.stalledAt, e.lateAt, e.lateBy = e.now, now, late
			e.C.Stalls++
		}
	}
	e.lastCall = now
	//= MR-WIRE-022
	if t := now.Add(-e.offset); t > e.now {
		e.now = t
	}
}

// real turns a time of the engine's clock into the caller's.
func (e *Engine) real(t mono.Time) mono.Time {
	if t == mono.Never {
		return t
	}
	return t.Add(e.offset)
}

// stamp is the engine's clock in units of the wire (16 ns, 32 bit).
func (e *Engine) stamp() uint32 { return uint32(uint64(e.now) >> 4) }

// HandlePackets takes in received RoCE packets. Their bytes are not kept.
func (e *Engine) HandlePackets(now mono.Time, ps []pkt.Packet) {
	e.tick(now)
	for i := range ps {
		e.receive(&ps[i])
		if e.out.full() {
			e.commit()
		}
	}
	e.commit()
}

// HandleTimers runs everything that is due.
func (e *Engine) HandleTimers(now mono.Time) {
	e.tick(now)
	for e.dues.Next() <= e.now { // all of them first: what is late may have something to do at once again
		a := e.dues.First()
		e.late = append(e.late, a)
		a.setDue(never)
	}
	for _, a := range e.late {
		if !a.gone {
			a.onTimer()
		}
	}
	clear(e.late)
	e.late = e.late[:0]
	e.runQPTimers()
	e.probes.expire(e)
	e.reap()
}

// NextTimeout is when HandleTimers should be called next, or mono.Never.
func (e *Engine) NextTimeout() mono.Time {
	t := mono.Min(mono.Min(mono.Min(e.timers.Next(), e.reapAt), e.probes.due), e.dues.Next())
	e.lastNext = e.real(t)
	return e.lastNext
}

// SetBusy says which planes' queues to the wire are full, a bit each: data goes to the others until the next call. The
// driver calls Transmit again when there is room.
func (e *Engine) SetBusy(planes uint32) { e.busy = planes }

// SetPlane reports a change of a plane's link. A plane that goes down gives up what is in flight on it at once.
func (e *Engine) SetPlane(now mono.Time, plane int, up bool) {
	e.tick(now)
	if plane < 0 || plane >= len(e.planeUp) || e.planeUp[plane] == up {
		return
	}
	e.planeUp[plane] = up
	for _, a := range e.assocs {
		if plane >= len(a.planes) || a.loopback {
			continue
		}
		if up {
			a.startProbing(&a.planes[plane])
		} else {
			a.planeFailed(&a.planes[plane], "link down")
		}
	}
}

// CreateQP makes a QP in RESET. qpn is the device's choice, 24 bits, unused, not 0, 1 or 0xFFFFFF.
func (e *Engine) CreateQP(qpn uint32, c QPConfig) *QP {
	//= MR-QP-006
	if _, used := e.qps[qpn]; used || qpn < 2 || qpn >= 0xFFFFFF {
		panic("metaroce: QP number in use or reserved")
	}
	q := newQP(e, qpn, c)
	e.qps[qpn] = q
	return q
}

// QP returns the QP of a number, or nil.
func (e *Engine) QP(qpn uint32) *QP {
	if q := e.lastQP; q != nil && q.qpn == qpn {
		return q
	}
	q := e.qps[qpn]
	if q != nil {
		e.lastQP = q
	}
	return q
}

// tagged returns the association of a tag of ours, or nil.
func (e *Engine) tagged(tag uint32) *assoc {
	if a := e.lastTag; a != nil && a.rxTag == tag {
		return a
	}
	a := e.byTag[tag]
	if a != nil {
		e.lastTag = a
	}
	return a
}

// Addrs returns the NIC's own addresses.
func (e *Engine) Addrs() []netip.Addr { return e.cfg.Addrs }

// SetAddrs changes the NIC's own addresses. Associations stay as they are.
func (e *Engine) SetAddrs(addrs []netip.Addr) { e.cfg.Addrs = addrs }

func (e *Engine) ownAddr(a netip.Addr) bool {
	for _, x := range e.cfg.Addrs {
		if x == a {
			return true
		}
	}
	return false
}

// drawSkip decides when a path sequence is left out next: every 1 / SeqSkip transmissions on average, and at any of twice
// as many.
func (e *Engine) drawSkip() {
	//= MR-ASC-071 MR-SEC-001
	e.skipIn = 1 + e.secret.IntN(int(max(2/e.cfg.SeqSkip, 1)))
}

// newTag draws an association tag that is not 0 and not in use.
func (e *Engine) newTag() uint32 {
	for {
		//= MR-ASC-030 MR-SEC-001
		if t := e.secret.Uint32(); t != 0 && e.byTag[t] == nil {
			return t
		}
	}
}

// assocFor returns the association with a peer, made idle on first use, or nil when there are too many. mine: a QP
// of ours needs it.
func (e *Engine) assocFor(local, remote netip.Addr, mine bool) *assoc {
	key := addrPair{local, remote}
	//= MR-ASC-033
	if a := e.byAddr[key]; a != nil {
		return a
	}
	//= MR-ASC-061 MR-GEN-003 MR-SEC-004
	if len(e.assocs) >= maxAssocs && !(mine && e.evict()) {
		return nil
	}
	a := newAssoc(e, local, remote)
	e.byAddr[key] = a
	e.byTag[a.rxTag] = a
	e.assocs = append(e.assocs, a)
	e.enliven(a)
	e.unused(a)
	if a.loopback && local != remote { // between two of our addresses there are two: what one sends the other one gets
		b := e.assocFor(remote, local, mine)
		if b == nil {
			e.forget(len(e.assocs) - 1)
			return nil
		}
		a.txTag = b.rxTag
	}
	return a
}

// enliven puts an association among those that are looked at all the time. Whoever touches one does this first.
func (e *Engine) enliven(a *assoc) {
	if !a.isLive {
		a.isLive = true
		e.live = append(e.live, a)
	}
}

// calm takes out those that nothing but a packet or a QP of ours can wake: strangers may have opened thousands.
func (e *Engine) calm() {
	if e.now < e.calmAt {
		return
	}
	e.calmAt = e.now.Add(mono.Millisecond)
	keep := e.live[:0]
	for _, a := range e.live {
		if a.isLive = a.users > 0 || a.probers > 0 || a.due.Due() != never || a.rx.ackNow || a.busy(); a.isLive {
			keep = append(keep, a)
		}
	}
	clear(e.live[len(keep):])
	e.live = keep
}

// unused notes that an association may have to go some day.
func (e *Engine) unused(a *assoc) { e.reapAt = mono.Min(e.reapAt, a.lastUse.Add(reapAfter)) }

// reap forgets associations that nobody here needs.
func (e *Engine) reap() {
	if e.now < e.reapAt {
		return
	}
	e.reapAt = never
	for i := 0; i < len(e.assocs); i++ {
		a := e.assocs[i]
		if a.users > 0 || a.probers > 0 || a.loopback {
			continue
		}
		//= MR-ASC-060 MR-ASC-061
		if at := a.lastUse.Add(reapAfter); e.now < at || a.busy() {
			e.reapAt = mono.Min(e.reapAt, max(at, e.now.Add(mono.Second)))
			continue
		}
		e.forget(i)
		i--
	}
}

// evict makes room for a QP of ours: of the associations without any, the one longest unused goes. Strangers can fill
// the table, but must not keep us from our peers.
func (e *Engine) evict() bool {
	oldest := -1
	for i, a := range e.assocs {
		if a.users == 0 && a.probers == 0 && !a.loopback && (oldest < 0 || a.lastUse < e.assocs[oldest].lastUse) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	e.forget(oldest)
	return true
}

func (e *Engine) forget(i int) {
	a := e.assocs[i]
	a.giveUpAll()
	e.probes.drop(a, true)
	a.setDue(never)
	a.gone = true
	if a.isHot {
		a.isHot = false
		e.hot = slices.DeleteFunc(e.hot, func(x *assoc) bool { return x == a })
	}
	if a.isLive {
		a.isLive = false
		e.live = slices.DeleteFunc(e.live, func(x *assoc) bool { return x == a })
	}
	delete(e.byTag, a.rxTag)
	if e.lastTag == a {
		e.lastTag = nil
	}
	delete(e.byAddr, addrPair{a.local, a.remote})
	e.assocs = append(e.assocs[:i], e.assocs[i+1:]...)
}

// sealPacket finishes a packet of hdr + n payload bytes already in place: pad, ICRC, Data.
func (e *Engine) sealPacket(p *pkt.Packet, h *wire.Header, hdrLen, n int) {
	pad := h.PadFor(n)
	h.Pad = uint8(pad)
	h.Put(p.Buf[pkt.Headroom:])
	e.sealTail(p, hdrLen+n, pad)
}

// sealTail finishes a packet whose headers and payload are in place and end at end.
func (e *Engine) sealTail(p *pkt.Packet, end, pad int) {
	b := p.Buf[pkt.Headroom:]
	for i := range pad {
		b[end+i] = 0
	}
	end += pad + wire.ICRCLen
	p.Data = b[:end]
	if !e.cfg.NoICRC {
		wire.Seal(p.Data)
	}
}

func stampSpan(from, to uint32) mono.Duration {
	return mono.Duration(serial.U32(to).Sub(serial.U32(from))) << 4
}
