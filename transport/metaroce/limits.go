package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/cc"
)

// Specification constants: what two ends must agree on or what a peer may rely on (spec/05-reliability.md).
const (
	ackBits       = 128           // sequences below the highest that an ack block can name
	maxPaths      = 64            // per plane (default of the design; the id allows 256)
	maxPlanes     = 16            // per association
	planeMin      = 1280 - 40 - 8 // BTH … ICRC that a plane carries at least
	gapTolerance  = 3             // later acknowledged packets of a path that make a packet lost
	maxTolerance  = 64            // after doublings for late acks
	ackEvery      = 8             // packets of the association
	ackHeard      = 64            // packets of the association: a plane that had none of them is not chosen for acks
	tailMin       = 64            // bytes that the last packet of a longer WRITE carries at least
	ageLimit      = 250 * mono.Millisecond
	clockTrust    = 10 * mono.Second      // how long stamps of the peer are compared: they wrap, and half of that is 34 s
	leapTime      = 10 * mono.Millisecond // how long a clock that leapt is not believed
	cookieAge     = 32 * mono.Second      // half of the longest life of a cookie
	timeWidenMax  = 4.0                   // the time rule: up to five times its width
	probesGood    = 2                     // answered in a row that bring a path back
	silentLossy   = 0.02                  // share lost from which silence takes four times as many
	silentGrant   = 4 * maxPayload        // a grant below it says that many share the receiver
	silentPatient = 4                     // so many times longer is waited then
	silentPackets = 3                     // packets without any answer that make a plane suspect: one or two get lost by chance
	rdMax         = 128                   // READs and atomics outstanding, largest max_rd_atomic
	defaultWindow = 256 << 10
	defaultRing   = 1 << 20
	startBDP      = 1.25                  // first window where the rate is known, by the round trip of the handshake's short packets
	recycleDelay  = 1.6                   // a path whose queue delay is at most this times the mean is used again …
	recycleShort  = 8                     // … or this part of a round trip
	recycleMax    = 4 * maxPaths          // places in the recycle queue: a path stands there once for each good acknowledgement
	recycleRenew  = 0.01                  // share of recycled paths replaced by a random one
	limitPatience = 20 * mono.Millisecond // least wait before a packet past the limit that may end the QP
	seqSkipChance = 1.0 / (1 << 20)       // a number is skipped now and then: optimistic acks show
)

// Implementation limits: sizes of this code, not of the protocol.
const (
	maxPayload     = 4096 // largest path MTU
	maxAssocs      = 4096 // peers of a NIC
	outstandingMax = 120  // unresolved sequences of a path: all of them can still be acknowledged by one block
	pathRing       = 256  // sequences remembered per path; > outstandingMax + ackBits, power of two
	quantum        = 16   // packets of one QP before the next one's turn
	chainMax       = 64   // packets handled between two DMA calls
	stallThreshold = 200 * mono.Microsecond
	reapAfter      = 30 * mono.Second
	helloFirst     = 2 * mono.Millisecond // first repeat of a HELLO; doubles up to helloMax
	helloMax       = 64 * mono.Millisecond
	probeFirst     = 1 * mono.Millisecond
	probeHasty     = 4  // probes before the time between them doubles, up to probeFirst
	probeEager     = 12 // from then on, probes before the time between them doubles: bursts take several in a row
	probeMax       = 50 * mono.Millisecond
	lateWord       = mono.Second            // how long HELLOs of a former instance may still come
	downMax        = 200 * mono.Millisecond // longest time that a plane stays away which answers probes
	rttMax         = mono.Second
	rttStart       = 500 * mono.Microsecond // before the first sample, plus the wire's noise
	minCharge      = 256                    // bytes a packet counts at least: bounds packets in flight
	ringsMin       = 16                     // first size of a QP's PSN rings; they grow to the window
	basePeriod     = 5 * mono.Second        // the base RTT is the least of two of them
	drainPackets   = 2                      // window while the base RTT is looked for
	drainMost      = 100 * mono.Millisecond // longest of that
	quietLoss      = mono.Second            // without loss for so long: acks are sent once
)

func (c *Config) setDefaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.TxRecords, 32768)
	def(&c.HeldBuffers, 2048)
	def(&c.RespBuffers, 4096)
	def(&c.PSNWindow, 4096)
	if c.AckHold == 0 {
		c.AckHold = 2 * mono.Microsecond
		for i := range c.Planes {
			c.AckHold = max(c.AckHold, c.Planes[i].TimerNoise/8)
		}
	}
	if c.Profile == "" {
		c.Profile = cc.ProfileDelayECN
		if c.FixedWindow > 0 {
			c.Profile = cc.ProfileFixed
		}
	}
	if c.SeqSkip == 0 {
		c.SeqSkip = seqSkipChance
	}
	for i := range c.Planes {
		def(&c.Planes[i].RingBytes, defaultRing)
		def(&c.Planes[i].Burst, 1)
	}
	if len(c.Planes) == 0 || len(c.Planes) > maxPlanes {
		panic("metaroce: 1 to 16 planes")
	}
}
