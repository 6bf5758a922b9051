package vopr

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

// Feature is one thing that a seed may contain. Each seed has some of them only (swarm testing): a world that does
// everything digs into nothing.
type Feature uint64

// Features of the program, of its failures, and of the network.
const (
	Send Feature = 1 << iota
	Imm
	Read
	Atomic
	Relaxed
	Overlap // all requests into few bytes
	SRQ
	Inv
	Dereg
	Bad   // keys, bounds, alignment, lengths
	Local // memory of the program's own that is not there
	Fence
	Late // receives are posted when the program gets round to it
	Shared
	Inline
	Zero
	Big
	SQD
	RNRFinite
	QPError
	QPGone
	Reconnect
	Restart
	Self // QPs between two of one NIC
	Skew // ends connect at different times

	Loss
	Burst
	Jitter
	Reorder
	Duplicate
	Corrupt
	Slow // links have a rate and a short queue
	ECN
	Trim // a full queue takes the payload away, not the packet
	Asymmetric
	Flap
	Blackout // all planes at once
	Told     // link changes are reported
	LateLoop
	Small  // few buffers, small windows
	Wrap   // counters and clocks start near their wrap
	Alias  // keys that call the same bytes by other addresses
	Window // requests of one's own NIC among the others: windows bound and closed
	Reuse  // connections that end begin again at once, with the same QP and packet numbers
	features
)

var featureNames = [...]string{"send", "imm", "read", "atomic", "relaxed", "overlap", "srq", "inv", "dereg", "bad", "local", "fence", "late", "shared",
	"inline", "zero", "big", "sqd", "rnr", "qp-error", "qp-gone", "reconnect", "restart", "self", "skew",
	"loss", "burst", "jitter", "reorder", "duplicate", "corrupt", "slow", "ecn", "trim", "asymmetric", "flap", "blackout", "told", "late-loop", "small", "wrap", "alias", "window", "reuse"}

// String lists the features.
func (f Feature) String() string {
	var s []string
	for i, n := range featureNames {
		if f&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, " ")
}

// Plan is what a seed stands for before the first event.
type Plan struct {
	Seed          uint64
	Nodes, Planes int
	Conns         int
	Acts          int
	Features      Feature
	Link          link.Spec
	MTU           int
	Depth         int // requests outstanding
	Zone          int // bytes of remote memory of a flow's main zone
	RecvSize      int
	SRQPool       int
	Rd            int
	Timeout       uint8
	Retry         uint8
	RNR           uint8
	MinRNR        uint8
	Pause         mono.Duration // between two acts, at most, usually
	Tune          Tuning
}

// String is one line for people.
func (p Plan) String() string {
	return fmt.Sprintf("%d NICs, %d planes, %d connections, mtu %d, zone %d, depth %d, rd %d, rnr %d, timeout %d, retry %d, loss %.3g burst %.2g delay %v: %v",
		p.Nodes, p.Planes, p.Conns, p.MTU, p.Zone, p.Depth, p.Rd, p.RNR, p.Timeout, p.Retry, p.Link.Loss, p.Link.Burst, p.Link.Delay, p.Features)
}

func (p *Plan) has(f Feature) bool { return p.Features&f != 0 }

// ParseFeatures reads names separated by commas.
func ParseFeatures(list string) (f Feature, err error) {
	for _, n := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		i := slices.Index(featureNames[:], n)
		if i < 0 {
			return 0, fmt.Errorf("no feature %q; there are %s", n, strings.Join(featureNames[:], " "))
		}
		f |= 1 << i
	}
	return f, nil
}

// NewPlan draws the plan of a seed; with are features that it has in any case.
func NewPlan(seed uint64, with Feature) Plan {
	r := rng.New(seed, "plan")
	p := Plan{Seed: seed, Nodes: 2, Planes: 1 + r.IntN(4), Acts: 300 + r.IntN(1200)}
	if r.IntN(3) == 0 {
		p.Nodes += 1 + r.IntN(3)
	}
	p.Conns = p.Nodes - 1 + r.IntN(3)
	often, now, then := Feature(r.Uint64()), Feature(r.Uint64()), Feature(r.Uint64())
	p.Features = (often | now&then) & (features - 1) // five in eight
	drop := func(chance float64, f Feature) {
		if r.Chance(chance) {
			p.Features &^= f
		}
	}
	drop(0.6, Dereg|QPError|QPGone|Restart|Blackout)
	drop(0.7, Bad|Local)
	drop(0.7, Inv)
	drop(0.7, RNRFinite)
	drop(0.6, Restart)
	drop(0.7, Blackout)
	drop(0.7, SQD|Self)
	drop(0.5, Flap)
	drop(0.5, Reuse)
	drop(0.5, LateLoop)
	drop(0.15, Loss|Burst|Jitter|Reorder|Duplicate|Corrupt|Slow|ECN|Flap|Blackout|Restart|LateLoop) // a network without fault
	p.Features |= with
	if p.has(Bad|Local|Dereg|Inv|QPError|QPGone|RNRFinite) && r.IntN(4) > 0 { // a QP dies once a life
		p.Features |= Reconnect
	}
	if p.Planes == 1 {
		p.Features &^= Flap
	}
	if with&Reuse != 0 {
		p.Features |= Reconnect
	}
	p.sizes(r)
	p.network(r)
	p.Pause = mono.Duration(1+r.IntN(8))*mono.Microsecond + p.Link.Delay/mono.Duration(1+r.IntN(8))
	p.engine(r)
	return p
}

func (p *Plan) sizes(r *rng.Source) {
	p.MTU = 256 << min(r.IntN(6), r.IntN(5))
	p.Depth = 4 + r.IntN(28)
	p.Zone = 16 * (4 + r.IntN(p.MTU*4/16))
	if p.has(Overlap) {
		p.Zone = 8*p.MTU/4 + 16*r.IntN(16)
	}
	if p.has(Slow) && !p.has(Overlap) { // enough to fill queues
		p.Zone, p.Depth = 4*p.Zone, p.Depth+16
	}
	p.RecvSize = 64 + r.IntN(4*p.MTU)
	p.SRQPool = 1 + r.IntN(8)
	p.Rd = 1 + r.IntN(1+r.IntN(16))
	p.RNR, p.MinRNR = 7, uint8(1+r.IntN(8))
	if p.has(RNRFinite) {
		p.RNR = uint8(r.IntN(4))
	}
	p.Timeout, p.Retry = uint8(15+r.IntN(3)), uint8(3+r.IntN(5)) // 134 ms … 537 ms
	if p.has(Blackout) {
		p.Timeout, p.Retry = uint8(13+r.IntN(3)), uint8(1+r.IntN(3))
	}
}

func (p *Plan) network(r *rng.Source) {
	l := &p.Link
	l.Delay = mono.Duration(200+r.IntN(15000)) * mono.Nanosecond
	if r.IntN(12) == 0 {
		l.Delay *= 20
	}
	set := func(f Feature, v *float64, most float64) {
		if x := r.Float64(); p.has(f) {
			*v = most * x * x
		}
	}
	set(Loss, &l.Loss, 0.2)
	if r.IntN(8) == 0 {
		l.Loss *= 2.5
	}
	set(Reorder, &l.Reorder, 0.6)
	set(Duplicate, &l.Duplicate, 0.25)
	set(Corrupt, &l.Corrupt, 0.08)
	l.ReorderBy = mono.Duration(1+r.IntN(60)) * mono.Microsecond
	if p.has(Burst) {
		l.Burst = 1 + 7*r.Float64()
	}
	if p.has(Jitter) {
		l.Jitter = mono.Duration(r.IntN(30)) * mono.Microsecond
	}
	if p.has(Slow) {
		l.RateBps, l.Queue = uint64(1+r.IntN(200))*1e8, 4300+(p.MTU+128)*r.IntN(24)
		if p.has(Trim) {
			p.Tune.TrimDSCP, p.Tune.TrimLastDSCP = 4, 5
		}
		if p.has(ECN) {
			l.ECNMin, l.ECNMax = l.Queue/8, l.Queue/2
		}
	}
}

func (p *Plan) engine(r *rng.Source) {
	t := &p.Tune
	*t = Tuning{TrimDSCP: t.TrimDSCP, TrimLastDSCP: t.TrimLastDSCP, Planes: p.Planes, PacketMax: 4096 + 124, TxRecords: 4096, HeldBuffers: 256, RespBuffers: 256, Window: 1024, RateBps: p.Link.RateBps}
	if p.has(Small) {
		t.HeldBuffers, t.RespBuffers, t.TxRecords, t.Window = 1+r.IntN(8), 1+r.IntN(8), 64+r.IntN(200), 256
	}
	if p.has(Wrap) {
		t.FirstSeq = 0xFFFFFFFF - uint32(r.IntN(64))
	}
	if r.IntN(3) == 0 {
		t.SeqSkip = 0.02
	}
	if r.IntN(4) == 0 {
		t.Noise = mono.Duration(r.IntN(200)) * mono.Microsecond
	}
}
