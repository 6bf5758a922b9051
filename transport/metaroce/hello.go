package metaroce

import (
	"math/bits"
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// The handshake, two round trips:
//
//	A: INIT (who, tag for A)            ->
//	                                    <- B: COOKIE (nothing remembered)
//	A: CONFIRM (INIT + cookie)          ->     B has the association
//	                                    <- B: ACCEPT (who, tag for B)
//	A has the association
//
// Everything is idempotent by (NIC id, instance): repeats and simultaneous opens give one association a pair.

// open begins the handshake.
func (a *assoc) open() {
	if a.state == assocUp || a.helloAt != never {
		return
	}
	a.state, a.helloTries, a.openAt = assocOpening, 0, a.e.now
	a.helloTimer()
	a.reschedule()
}

// helloTimer sends INIT, or CONFIRM once there is a cookie, on the next living plane.
func (a *assoc) helloTimer() {
	if a.state == assocUp {
		a.helloAt = never
		return
	}
	if a.helloTries%4 == 3 {
		//= MR-ASC-011
		a.haveCookie = false // the peer's secret may have changed
	}
	stage := wire.HelloInit
	if a.haveCookie {
		stage = wire.HelloConfirm
	}
	plane := a.e.nextPlane(a.helloTries)
	a.e.C.HelloSent++
	a.e.sendHello(a, stage, plane, 0)
	//= MR-ASC-002 MR-ASC-003
	gap := min(helloFirst<<min(a.helloTries, 10), helloMax) + a.e.maxNoise()
	a.helloTries++
	a.helloAt = a.e.now.Add(gap)
}

func (e *Engine) maxNoise() (d mono.Duration) {
	for i := range e.cfg.Planes {
		d = max(d, e.cfg.Planes[i].TimerNoise)
	}
	return d
}

// nextPlane returns the n-th plane whose link is up, round robin; plane n mod all when none is.
func (e *Engine) nextPlane(n int) int {
	for i := range e.planeUp {
		if p := (n + i) % len(e.planeUp); e.planeUp[p] {
			return p
		}
	}
	return n % len(e.planeUp)
}

// sendHello queues a HELLO to the association's peer.
func (e *Engine) sendHello(a *assoc, stage wire.HelloStage, plane int, echo uint32) {
	//= MR-ASC-020 MR-ASC-054
	h := wire.Hello{Stage: stage, VersionMin: wire.Version, VersionMax: wire.Version, NICID: e.cfg.NICID,
		Instance: e.cfg.Instance, Tag: a.rxTag, EchoTag: echo, PathLimit: maxPaths, MaxHold: uint32((e.cfg.AckHold + 15) >> 4)}
	if stage == wire.HelloConfirm {
		h.Cookie = a.cookie
	}
	if stage == wire.HelloAccept {
		h.Chosen = wire.Version
	}
	for i, c := range e.cfg.Planes {
		//= MR-ASC-053
		if c.PacketMax < planeMin {
			continue
		}
		h.NumPlanes++
		h.Planes[h.NumPlanes-1] = wire.HelloPlane{Plane: uint8(i), MTU: uint16(min(c.PacketMax, 65535)), RateMbps: uint32(c.RateBps / 1e6),
			Grant: uint32(e.firstGrant(i)), Addr: a.local.As16()}
	}
	e.queueHello(a.local, a.remote, plane, a.txTag, &h)
}

func (e *Engine) queueHello(src, dst netip.Addr, plane int, tag uint32, h *wire.Hello) {
	c := e.ctl.next()
	if c == nil {
		e.C.CtlOverflow++
		return
	}
	n := h.Put(c.buf[:])
	*c = ctlPacket{src: src, dst: dst, plane: plane, op: wire.OpHello, tag: tag, n: n, buf: c.buf}
}

// onHello handles all four messages. tag is the one in the packet's MPH.
func (e *Engine) onHello(p *pkt.Packet, mph *wire.Header, payload []byte) {
	var h wire.Hello
	if d := wire.DecodeHello(payload, &h); d != 0 {
		e.C.Drop[d]++
		return
	}
	if !e.ownAddr(p.Dst) || e.ownAddr(p.Src) {
		e.C.DropAddr++
		return
	}
	//= MR-ASC-021
	if h.VersionMin > wire.Version || h.VersionMax < wire.Version {
		e.C.HelloVersion++
		return
	}
	if h.Stage != wire.HelloCookie && (h.NumPlanes == 0 || h.Tag == 0) {
		e.C.HelloBad++
		return
	}
	e.C.HelloReceived++
	switch h.Stage {
	case wire.HelloInit:
		//= MR-ASC-004
		r := wire.Hello{Stage: wire.HelloCookie, VersionMin: wire.Version, VersionMax: wire.Version,
			NICID: e.cfg.NICID, Instance: e.cfg.Instance, EchoTag: h.Tag, Cookie: e.makeCookie(p.Src, &h, e.cookieTime())}
		e.queueHello(p.Dst, p.Src, int(p.Plane), h.Tag, &r)
	case wire.HelloCookie:
		e.onHelloCookie(p, &h, mph.TS)
	case wire.HelloConfirm:
		e.onHelloConfirm(p, &h, mph.TS)
	case wire.HelloAccept:
		//= MR-ASC-023
		if h.Chosen != wire.Version {
			e.C.HelloVersion++
			return
		}
		//= MR-ASC-010
		if a := e.byTag[h.EchoTag]; a != nil && a.remote == p.Src && a.state != assocIdle {
			a.takePeer(&h, mph.TS)
			a.firstClock(mph.TS)
		}
	default:
		e.C.HelloBad++
	}
}

func (e *Engine) onHelloCookie(p *pkt.Packet, h *wire.Hello, ts uint32) {
	a := e.byTag[h.EchoTag]
	//= MR-ASC-007
	if a == nil || a.remote != p.Src || a.state != assocOpening {
		return
	}
	a.cookie, a.haveCookie = h.Cookie, true
	a.firstClock(ts)
	a.firstRTT()
	e.sendHello(a, wire.HelloConfirm, int(p.Plane), 0)
	a.helloAt = e.now.Add(helloFirst + e.maxNoise())
	a.reschedule()
}

func (e *Engine) onHelloConfirm(p *pkt.Packet, h *wire.Hello, ts uint32) {
	if !e.cookieRight(p.Src, h) {
		e.C.HelloCookieBad++
		return
	}
	a := e.assocFor(p.Dst, p.Src, false)
	if a == nil {
		e.C.AssocFull++
		return
	}
	e.enliven(a)
	a.lastUse = e.now
	if a.takePeer(h, ts) {
		//= MR-ASC-009
		e.sendHello(a, wire.HelloAccept, int(p.Plane), h.Tag)
		a.firstClock(ts)
	}
}

// firstRTT takes the time from the first INIT to the first COOKIE for the round trip, until data tells it. Too long is
// better than too short: what is called lost before its acknowledgement can come is sent in vain. A peer that was not
// there for longer than round trips are says nothing.
func (a *assoc) firstRTT() {
	if a.openAt != 0 && a.rttvar == 0 && a.helloTries <= 6 {
		a.srtt = min(max(a.srtt, a.e.now.Sub(a.openAt)), rttMax)
	}
	if a.openAt != 0 && a.helloTries <= 1 {
		a.helloRTT = a.e.now.Sub(a.openAt)
	}
	a.openAt = 0
}

// firstClock takes the peer's clock from its HELLO, where nothing else has told it yet.
func (a *assoc) firstClock(ts uint32) {
	if !a.havePeTS {
		a.peerTS, a.havePeTS, a.peerAt, a.leapAt = ts, true, a.e.lastCall, 0
		a.boundLives()
	}
}

// takePeer brings the association up with what the peer said, or recognises a restart. It reports false for what a
// former instance said and the network kept for a while. ts is the HELLO's stamp.
func (a *assoc) takePeer(h *wire.Hello, ts uint32) bool {
	switch {
	case !a.havePeer:
		a.adopt(h)
	//= MR-ASC-047
	case a.peerID == h.NICID && a.formerAt != 0 && a.former == h.Instance && a.e.lastCall.Sub(a.formerAt) < lateWord:
		return false // one that is gone does not come back
	//= MR-ASC-043 MR-ASC-044 MR-ASC-045
	case a.peerID != h.NICID || a.peerInst != h.Instance:
		a.former, a.formerAt = a.peerInst, a.e.lastCall
		a.newTS, a.newAt = ts, a.e.lastCall
		if a.peerID != h.NICID { // two NICs may take turns at an address; their clocks have nothing in common
			a.formerAt, a.newAt = 0, 0
		}
		a.restarted()
		a.adopt(h)
	//= MR-ASC-046
	case a.txTag != h.Tag: // the same instance, which has forgotten the association: its paths begin anew
		a.newTS, a.newAt = ts, a.e.lastCall
		a.rx.init(a)
		a.adopt(h)
	}
	a.up()
	return true
}

// adopt takes over what the peer says of itself. Planes that it does not name are not used.
func (a *assoc) adopt(h *wire.Hello) {
	//= MR-ASC-009
	a.peerID, a.peerInst, a.havePeer, a.txTag = h.NICID, h.Instance, true, h.Tag
	a.hold = min(mono.Duration(h.MaxHold)<<4, 10*mono.Millisecond)
	//= MR-ASC-051
	a.pathLimit = min(max(int(h.PathLimit), 1), maxPaths)
	for i := range a.planes {
		a.planes[i].refresh()
	}
	var named [maxPlanes]bool
	for i := 0; i < int(h.NumPlanes) && i < len(h.Planes); i++ {
		hp := &h.Planes[i]
		if int(hp.Plane) >= len(a.planes) || hp.MTU < planeMin {
			continue
		}
		named[hp.Plane] = true
		pl := &a.planes[hp.Plane]
		//= MR-ASC-050 MR-ASC-053
		pl.packetMax = min(a.e.cfg.Planes[hp.Plane].PacketMax, int(hp.MTU))
		pl.mtu.most = pl.packetMax
		//= MR-CC-008
		pl.peerRate(uint64(hp.RateMbps) * 1e6)
		if hp.Grant > 0 {
			//= MR-ASC-052
			pl.grant = int(min(hp.Grant, 1<<30))
		}
	}
	for i := range a.planes {
		a.planes[i].named(named[i])
		a.planes[i].begin(a.helloRTT)
	}
	a.helloRTT = 0
}

// begin makes the first window a bandwidth-delay product by the round trip of the handshake and somewhat more, where that and the
// rate are known.
func (pl *planeTx) begin(rtt mono.Duration) {
	if rtt > 0 && pl.rate > 0 {
		//= MR-CC-008
		pl.setWindow(min(pl.grant, max(int(startBDP*float64(pl.rate)/8*(rtt+pl.noise).Seconds()), 4*maxPayload)))
	}
}

// named says whether the peer has this plane.
func (pl *planeTx) named(is bool) {
	switch {
	//= MR-ASC-050
	case !is && pl.state != planeAbsent:
		pl.loseAll()
		pl.state, pl.probeAt, pl.probeWant = planeAbsent, never, false
	case is && pl.state == planeAbsent && pl.a.e.planeUp[pl.idx]:
		pl.state = planeActive
	case is && pl.state == planeAbsent:
		pl.state = planeProbing
		pl.a.startProbing(pl)
	}
}

// cookieTime counts the periods of which a cookie bears the number.
func (e *Engine) cookieTime() uint64 { return uint64(e.lastCall) / uint64(cookieAge) }

// cookieRight checks the cookie of a CONFIRM: one of this period or of the last one.
func (e *Engine) cookieRight(src netip.Addr, h *wire.Hello) bool {
	now := e.cookieTime()
	//= MR-ASC-008 MR-ASC-013
	return h.Cookie == e.makeCookie(src, h, now) || h.Cookie == e.makeCookie(src, h, now-1)
}

// makeCookie binds a HELLO to its sender and to a time without remembering it. The key is secret and lives as long as
// the engine.
func (e *Engine) makeCookie(src netip.Addr, h *wire.Hello, period uint64) (c [16]byte) {
	b := src.As16()
	//= MR-ASC-005
	w := [...]uint64{be64(b[:8]), be64(b[8:]), h.NICID, h.Instance, uint64(h.Tag), period}
	lo, hi := sipHash(e.cookie, 0, w[:]), sipHash(e.cookie, 1, w[:])
	for i := range 8 {
		c[i], c[8+i] = byte(lo>>(8*i)), byte(hi>>(8*i))
	}
	return c
}

// sipHash is SipHash-2-4 (Aumasson, Bernstein 2012) over whole words; n tells two uses of one key apart.
func sipHash(key [2]uint64, n uint64, words []uint64) uint64 {
	v0, v1 := key[0]^0x736f6d6570736575, key[1]^0x646f72616e646f6d
	v2, v3 := key[0]^0x6c7967656e657261, key[1]^0x7465646279746573
	round := func() {
		v0 += v1
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v3
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 += v3
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v2 = bits.RotateLeft64(v2, 32)
	}
	add := func(m uint64) {
		v3 ^= m
		round()
		round()
		v0 ^= m
	}
	add(n)
	for _, m := range words {
		add(m)
	}
	add(uint64(8*(len(words)+1)) << 56)
	v2 ^= 0xff
	for range 4 {
		round()
	}
	return v0 ^ v1 ^ v2 ^ v3
}

func be64(b []byte) (v uint64) {
	for i := range 8 {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// onStale: the peer does not know our tag. It only starts a handshake; what it proves decides.
func (e *Engine) onStale(p *pkt.Packet, payload []byte) {
	if len(payload) < 4 {
		return
	}
	tag := uint32(payload[0])<<24 | uint32(payload[1])<<16 | uint32(payload[2])<<8 | uint32(payload[3])
	a := e.byAddr[addrPair{p.Dst, p.Src}]
	//= MR-ASC-042
	if a == nil || a.txTag != tag || a.state != assocUp || a.loopback {
		return
	}
	e.C.StaleReceived++
	e.enliven(a)
	if a.helloAt == never {
		a.reopen()
	}
}

// reopen sends HELLOs while the association stays up: only the cookie round trip may end it.
func (a *assoc) reopen() {
	//= MR-ASC-043
	if a.state != assocUp { // under way
		return
	}
	if a.users == 0 && a.probers == 0 {
		a.rest()
		return
	}
	a.haveCookie, a.helloTries, a.openAt = false, 0, a.e.now
	a.state = assocOpening
	a.helloTimer()
	a.reschedule()
}
