package metaroce

import (
	"math/bits"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// What becomes of a path while it is used:
//   - a mark at low delay lets it rest for a round trip; marks that go on give it another entropy;
//   - loss that stands out beside its plane's makes it suspect: it gets less, and another entropy where that is ours;
//   - losses in a row while others of the plane deliver put it into quarantine, where probes decide.
// Nothing here touches a window: paths only steer.

// pathState is where a path stands.
//
//	active --loss stands out--> suspect --losses in a row--> quarantined --probe answered--> probing --another--> active
type pathState uint8

const (
	pathActive      pathState = iota
	pathSuspect               // gets less
	pathQuarantined           // gets probes only
	pathProbing               // the same, and the last probe was answered
)

var pathStateNames = [...]string{"active", "suspect", "quarantined", "probing"}

func (s pathState) String() string { return pathStateNames[s] }

const (
	rowSuspect    = 6    // losses in a row, without an arrival between them, before a path may be quarantined
	rowOthers     = 16   // packets that others of its plane delivered meanwhile
	rowChance     = 1e-6 // chance, by the loss of its plane, below which a row is no chance
	lossStandsOut = 4    // times the loss of the plane …
	lossMargin    = 0.1  // … and so much more make a path suspect
	shunChance    = 7.0 / 8
	restsToReroll = 4   // rests in a row for marks before another entropy is tried
	marksAll      = 0.5 // share of marked acknowledgements from which marks say nothing about a path
	rerollGap     = 50  // round trips between two re-rolls of a path for loss
	grayTimes     = 4   // a plane's loss stands out above so many times that of the best one …
	grayMargin    = 0.02
	grayShare     = 1.0 / 16 // share of a gray plane's turns that it gets at least: else nobody would see it mend
	grayWeight    = 20.0     // of its loss squared, in the share of turns that it does not get
	pathsMin      = 2        // paths of a plane that quarantine leaves
	baseEvery     = mono.Second
	controlTOS    = 48 << 2 // the control class: DSCP CS6
)

// EntropyMode says where the entropies of a plane's paths come from.
type EntropyMode uint8

// Modes.
const (
	EntropyAuto      EntropyMode = iota // random, changed when a path turns out bad
	EntropyGenerated                    // first, first + step, …; changed likewise, to the next ones
	EntropyExplicit                     // a list; never changed
)

var entropyModeNames = [...]string{"automatic", "generated", "explicit"}

func (m EntropyMode) String() string { return entropyModeNames[m] }

// Entropies are the UDP source ports of a plane's paths.
type Entropies struct {
	Mode  EntropyMode
	List  []uint16 // explicit: one path each
	First uint16   // generated
	Step  uint16   // generated; 0 = 1
	Count int      // paths, 0 = as many as there are
}

// paths is how many paths there can be.
func (s *Entropies) paths() int {
	n := maxPaths
	if s.Mode == EntropyExplicit {
		n = min(n, len(s.List))
	}
	if s.Count > 0 {
		n = min(n, s.Count)
	}
	return n
}

// entropy draws the source port of path i, the gen-th one it gets.
func (pl *planeTx) entropy(i int, gen uint32) uint16 {
	e, s := pl.a.e, &pl.ent
	for try := uint32(0); ; try++ {
		var port uint16
		switch s.Mode {
		case EntropyExplicit:
			return s.List[i%len(s.List)]
		case EntropyGenerated:
			step := max(uint32(s.Step), 1)
			port = 0xC000 | uint16((uint32(s.First)+step*(uint32(i)+(gen+try)*uint32(s.paths())))&0x3FFF)
		default:
			port = 0xC000 | uint16(e.rnd.Uint32()&0x3FFF)
		}
		if !e.portDenied(pl.idx, port) || try > 1000 {
			return port
		}
	}
}

func (e *Engine) portDenied(plane int, port uint16) bool {
	return len(e.denied) > 0 && e.denied[port]>>plane&1 != 0
}

// refresh computes which paths of the plane may carry data.
func (pl *planeTx) refresh() {
	all := pl.whole()
	may := all &^ pl.deny
	for i, p := range pl.paths {
		if p != nil && pl.a.e.portDenied(pl.idx, p.srcPort) {
			may &^= 1 << i
		}
	}
	//= MR-PATH-083
	if void := may == 0; void != pl.denyVoid {
		if pl.denyVoid = void; void {
			pl.a.e.host.Event(transport.Event{Kind: transport.EventDenyVoid, Peer: pl.a.name, Plane: pl.idx})
		}
	}
	if may == 0 {
		may = all
	}
	ok := may
	for i, p := range pl.paths {
		if p != nil && p.state >= pathQuarantined {
			ok &^= 1 << i
		}
	}
	if ok == 0 { // rather a bad path than none
		ok = may
	}
	pl.usable = ok
}

// left reports whether any path of the plane would be left with these entropies, and one more port denied.
func (pl *planeTx) left(s *Entropies, port uint16) bool {
	n := min(pl.a.pathLimit, s.paths())
	for i := range n {
		if pl.deny>>i&1 == 0 && (s.Mode != EntropyExplicit || s.List[i] != port && !pl.a.e.portDenied(pl.idx, s.List[i])) {
			return true
		}
	}
	return false
}

// usableNow reports whether data may go on a path.
func (pl *planeTx) usableNow(p *txPath) bool { return pl.usable>>(p.id&0xff)&1 != 0 }

// randomPath is the index of one of the paths in use.
func (pl *planeTx) randomPath() int {
	n := bits.OnesCount64(pl.usable)
	k := pl.a.e.rnd.IntN(n)
	if pl.usable == ^uint64(0)>>(64-n) { // the first n: the usual case
		return k
	}
	m := pl.usable
	for ; k > 0; k-- {
		m &= m - 1
	}
	return bits.TrailingZeros64(m)
}

// firstPath is the path of packets that belong to none.
func (pl *planeTx) firstPath() *txPath { return pl.path(bits.TrailingZeros64(pl.usable)) }

// ackEntropy is the source port of the next acknowledgement. They take turns over the ways: always on one, that way's
// queue would count for the round trips of every path, and beside others this peer's windows would stay small.
func (pl *planeTx) ackEntropy() uint16 {
	//= MR-PATH-026
	i := pl.randomPath()
	if p := pl.paths[i]; p != nil {
		return p.srcPort
	}
	return pl.entropy(i, 0)
}

// shuns reports whether a random choice passes the path over.
func (p *txPath) shuns() bool {
	e := p.pl.a.e
	//= MR-PATH-023 MR-PATH-014
	return p.restUntil > e.now || p.state == pathSuspect && e.rnd.Chance(shunChance)
}

// marked steers by ECN: ce is whether the newest acknowledgement brought a mark, q its queue delay.
func (p *txPath) marked(ce bool, q float64) {
	pl := p.pl
	a := pl.a
	if !ce {
		pl.markMean -= pl.markMean / 64
		p.rests = 0
		return
	}
	pl.markMean += (1 - pl.markMean) / 64
	//= MR-PATH-023
	if q > max(pl.avgq, float64(a.srtt)/20) || pl.markMean >= marksAll || p.restUntil > a.e.now {
		return
	}
	p.restUntil = a.e.now.Add(a.srtt)
	a.e.C.PathRests++
	//= MR-PATH-015
	if p.rests++; p.rests >= restsToReroll {
		p.reroll()
	}
}

// reroll gives a path another entropy, where they are ours to choose. Path id and sequence go on.
func (p *txPath) reroll() bool {
	pl := p.pl
	if pl.ent.Mode == EntropyExplicit {
		return false
	}
	p.gen++
	p.setPort(pl.entropy(int(p.id&0xff), p.gen))
	pl.a.e.C.PathRerolls++
	return true
}

func (p *txPath) setPort(port uint16) {
	a := p.pl.a
	//= MR-PATH-011 MR-PATH-012
	p.srcPort, p.genStart, p.rolledAt = port, p.next, a.e.now
	p.srtt, p.rttvar, p.tol = 0, 0, gapTolerance
	p.lossMean, p.row, p.rests, p.restUntil = p.pl.lossMean, 0, 0, 0
	//= MR-PATH-053
	p.pl.basePath, p.pl.baseDue = p, a.e.now // another way may be a shorter or longer one
	a.care(a.e.now)
}

// noteLost and noteAcked keep the share that a path loses, and its plane.
func (p *txPath) noteLost() {
	pl := p.pl
	pl.lossMean += (1 - pl.lossMean) / 256
	pl.judgeGray()
	p.lossMean += (1 - p.lossMean) / 32
	if p.row == 0 {
		p.rowAcked = pl.acked
	}
	p.row++
	p.judge()
}

func (p *txPath) noteAcked(late bool) {
	pl := p.pl
	if late { // it was counted as lost
		pl.lossMean = max(0, pl.lossMean-1.0/256)
		p.lossMean = max(0, p.lossMean-1.0/32)
	}
	pl.lossMean -= pl.lossMean / 256
	p.lossMean -= p.lossMean / 32
	p.row = 0
	if pl.gray {
		pl.judgeGray()
	}
	if p.state == pathSuspect && p.lossMean < lossStandsOut/2*pl.lossMean+lossMargin/2 {
		p.state = pathActive
	}
}

// passedOver reports whether a gray plane loses its turn: seldom at a loss of 5 %, which costs less than an idle plane
// would, mostly from 20 % on.
func (pl *planeTx) passedOver() bool {
	//= MR-PATH-016
	return pl.gray && pl.a.e.rnd.Chance(min(1-grayShare, grayWeight*pl.lossMean*pl.lossMean))
}

// judgeGray says whether a plane's loss stands out beside the best plane's.
func (pl *planeTx) judgeGray() {
	a := pl.a
	best := 1.0
	for i := range a.planes {
		if o := &a.planes[i]; o != pl && o.state == planeActive {
			best = min(best, o.lossMean)
		}
	}
	limit := grayTimes*best + grayMargin
	if pl.gray {
		limit /= 2
	}
	//= MR-PATH-016
	if is := pl.lossMean > limit; is != pl.gray {
		pl.gray = is
		if is {
			a.grays++
		} else {
			a.grays--
		}
	}
}

// forgetLoss is for a plane that failed: what was lost then says nothing about its paths.
func (pl *planeTx) forgetLoss() {
	if pl.gray {
		pl.gray = false
		pl.a.grays--
	}
	pl.lossMean, pl.mtu.row = 0, 0
	for _, p := range pl.paths {
		if p != nil {
			p.lossMean, p.row = 0, 0
		}
	}
}

// judge looks at a path that has lost something. Evidence is relative: others of the same plane deliver.
func (p *txPath) judge() {
	pl := p.pl
	a := pl.a
	if p.state >= pathQuarantined || pl.state != planeActive {
		return
	}
	//= MR-PATH-014
	if p.state == pathActive && p.lossMean > lossStandsOut*pl.lossMean+lossMargin {
		p.state = pathSuspect
		a.e.C.PathSuspects++
		if p.rolledAt == 0 || a.e.now.Sub(p.rolledAt) > rerollGap*a.srtt {
			row, at := p.row, p.rowAcked
			if p.reroll() {
				p.row, p.rowAcked = row, at // the same bad luck twice is no luck
			}
		}
	}
	//= MR-PATH-060
	if p.row >= rowSuspect && pl.acked-p.rowAcked >= rowOthers && power(pl.lossMean, p.row) < rowChance {
		p.quarantine()
	}
}

func power(x float64, n int) float64 {
	y := 1.0
	for ; n > 0 && y > 1e-12; n-- {
		y *= x
	}
	return y
}

// quarantine takes a path out of use and has it probed.
func (p *txPath) quarantine() {
	pl := p.pl
	a := pl.a
	//= MR-PATH-061
	if bits.OnesCount64(pl.usable) <= pathsMin {
		return
	}
	p.state, p.answers = pathQuarantined, 0
	p.healthAt, p.healthGap = a.e.now, probeFirst
	pl.refresh()
	a.e.C.PathQuarantines++
	a.e.host.Event(transport.Event{Kind: transport.EventPathQuarantined, Peer: a.name, Plane: pl.idx, Path: int(p.id & 0xff)})
	a.care(a.e.now)
}

// healthAnswer takes in what became of a health probe.
func (p *txPath) healthAnswer(answered bool) {
	pl := p.pl
	if p.state < pathQuarantined {
		return
	}
	//= MR-PATH-062
	if !answered {
		p.state, p.answers = pathQuarantined, 0
		if p.healthGap >= probeMax { // this way stays bad; is there another one?
			p.reroll()
		}
		return
	}
	p.state = pathProbing
	if p.answers++; p.answers < probesGood {
		p.healthAt, p.healthGap = pl.a.e.now, probeFirst
		pl.a.care(p.healthAt)
		return
	}
	p.release()
}

// release puts a path back into service.
func (p *txPath) release() {
	pl := p.pl
	if p.state < pathQuarantined {
		p.state = pathActive
		return
	}
	p.state, p.lossMean, p.row = pathActive, pl.lossMean, 0
	pl.refresh()
	pl.a.e.host.Event(transport.Event{Kind: transport.EventPathBack, Peer: pl.a.name, Plane: pl.idx, Path: int(p.id & 0xff)})
}

// care asks for tend at a time.
func (a *assoc) care(at mono.Time) {
	a.careAt = mono.Min(a.careAt, at)
	a.setDue(mono.Min(a.due.Due(), a.careAt))
}

// tend does what paths need beside data: probes of those in quarantine, the base round trip of planes in use, and the
// largest packets that planes carry.
func (a *assoc) tend() {
	e := a.e
	a.careAt = never
	if a.users == 0 || a.loopback {
		return
	}
	for i := range a.planes {
		pl := &a.planes[i]
		if pl.state == planeAbsent || !pl.linkUp() {
			continue
		}
		pl.tendMTU()
		if pl.state != planeActive {
			continue
		}
		//= MR-PATH-053
		if pl.sent != pl.baseSent || a.rx.planes[i].bytes != pl.baseGot {
			if pl.baseDue <= e.now && e.probes.full() {
				a.care(e.now.Add(mono.Millisecond))
			} else if pl.baseDue <= e.now {
				p := pl.basePath
				if p == nil || !pl.usableNow(p) {
					p = pl.path(pl.randomPath())
				}
				e.probes.start(e, p, probeBase, 0, pl.patience(p))
				pl.baseSent, pl.baseGot, pl.baseDue, pl.basePath = pl.sent, a.rx.planes[i].bytes, e.now.Add(baseEvery), nil
			} else {
				a.care(pl.baseDue)
			}
		}
		for _, p := range pl.paths {
			if p == nil || p.state < pathQuarantined {
				continue
			}
			if p.healthAt <= e.now {
				//= MR-PATH-062 MR-PATH-033
				e.probes.start(e, p, probeHealth, pl.packetMax, pl.patience(p))
				p.healthAt = e.now.Add(max(p.healthGap, pl.patience(p)))
				p.healthGap = min(2*p.healthGap, probeMax)
			}
			a.care(p.healthAt)
		}
	}
}

// wantBase has the base RTT of a plane that is used measured when its time has come.
func (pl *planeTx) wantBase() {
	a := pl.a
	if a.loopback || a.users == 0 || pl.state != planeActive {
		return
	}
	if due := max(pl.baseDue, a.e.now); due < a.careAt {
		a.care(due)
	}
}

func (pl *planeTx) whole() uint64 { return ^uint64(0) >> (64 - min(pl.a.pathLimit, pl.ent.paths())) }

// patience is how long a probe may stay unanswered: the answer comes from a loop that has other things to do.
func (pl *planeTx) patience(p *txPath) mono.Duration {
	return max(2*pl.a.spread(p, pl.noise)+pl.a.hold, 100*mono.Microsecond)
}
