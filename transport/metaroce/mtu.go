package metaroce

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/wire"
)

// The largest packet that a plane carries is what both ends said in HELLO, until large packets get lost in a row while
// short probes arrive: then it is the largest size that a probe of that size has proved, and from time to time the
// first one is tried again.

const (
	mtuRow    = 8 // large packets lost in a row that raise the question
	mtuMisses = 3 // probes of a size in a row without an answer, while short ones are answered, that rule it out
	mtuAgain  = 60 * mono.Second
	mtuPlane  = 10 // unanswered probes of a failed plane before the question is asked there
)

// mtuTx is what a plane knows of the sizes it carries.
type mtuTx struct {
	most    int // what both ends can take in
	row     int // large packets lost in a row
	rowAt   mono.Time
	size    int // under trial; 0 = none
	missed  int
	out     int // probes under way
	short   bool
	raising bool
	again   mono.Time // when the largest size is tried again
	silent  int       // unanswered probes of the failed plane in a row
}

// noteSize counts large packets that get lost or arrive.
func (pl *planeTx) noteSize(size int, lost bool) {
	m := &pl.mtu
	if size <= planeMin || pl.state != planeActive {
		return
	}
	if !lost {
		m.row = 0
		//= MR-PATH-072
		if m.size == pl.packetMax && size > smaller(m.size) { // data of the size in question arrives
			m.size = 0
		}
		return
	}
	if m.row++; m.row == 1 {
		m.rowAt = pl.a.e.now
	}
	//= MR-PATH-071
	if m.row >= mtuRow && pl.a.lastHeard > m.rowAt { // else it is the peer that says nothing
		m.row = 0
		pl.checkMTU()
	}
}

// checkMTU begins a trial of the present size.
func (pl *planeTx) checkMTU() {
	m := &pl.mtu
	if m.size != 0 || pl.packetMax <= planeMin {
		return
	}
	m.size, m.missed, m.raising = pl.packetMax, 0, false
	pl.a.care(pl.a.e.now)
}

// tendMTU sends the probes of a trial: one of the size in question, and a short one beside it, that tells a size that
// does not pass from a plane on which nothing does.
func (pl *planeTx) tendMTU() {
	m, e := &pl.mtu, pl.a.e
	if m.size == 0 && pl.packetMax < m.most {
		//= MR-PATH-073
		if m.again > e.now {
			pl.a.care(m.again)
			return
		}
		m.size, m.missed, m.raising = m.most, 0, true
	}
	if m.size == 0 || m.out > 0 {
		return
	}
	m.short, m.out = false, 2
	p := pl.path(pl.randomPath())
	//= MR-PATH-070
	e.probes.start(e, p, probeMTU, m.size, pl.patience(p))
	e.probes.start(e, p, probeMTU, 0, pl.patience(p))
}

// mtuAnswer takes in what became of one of the two.
func (pl *planeTx) mtuAnswer(size int, answered bool) {
	m, e := &pl.mtu, pl.a.e
	m.out = max(m.out-1, 0)
	if size != 0 && size == m.size && answered {
		//= MR-PATH-072
		pl.settleMTU(size)
		return
	}
	m.short = m.short || size == 0 && answered
	if m.out > 0 || m.size == 0 {
		return
	}
	if !m.short { // nothing gets through: no question of size
		m.size, m.again = 0, e.now.Add(mtuAgain)
		return
	}
	m.missed++
	switch {
	case m.missed < mtuMisses:
	case m.raising:
		m.size, m.again = 0, e.now.Add(mtuAgain)
	default:
		//= MR-PATH-072
		m.missed = 0
		if m.size = smaller(m.size); m.size <= planeMin {
			pl.settleMTU(planeMin)
		}
	}
	pl.a.care(e.now)
}

// smaller is the next size to try: that of the next IB MTU with all its headers.
func smaller(size int) int {
	for _, m := range [...]int{4096, 2048, 1024} {
		if m+wire.MaxOverhead < size {
			return max(m+wire.MaxOverhead, planeMin)
		}
	}
	return planeMin
}

func (pl *planeTx) settleMTU(size int) {
	m, e := &pl.mtu, pl.a.e
	m.size, m.row, m.again = 0, 0, e.now.Add(mtuAgain)
	if size == pl.packetMax {
		return
	}
	pl.packetMax = size
	e.C.MTUChanges++
	for _, q := range pl.a.qps {
		q.wake()
	}
	if pl.state == planeProbing {
		pl.a.startProbing(pl)
	}
	pl.a.care(m.again)
}
