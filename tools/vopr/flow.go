package vopr

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// conn is a pair of connected QPs; it may live several times, with the same numbers or others.
type conn struct {
	id   int
	slot [2]*slot
	end  [2]*end   // of the present life
	at   mono.Time // when it may be connected again, 0 = it is
	life int
}

// slot is a QP of a NIC; an end is one life of it between two RESETs.
type slot struct {
	n     *node
	qp    QP
	num   uint32
	srq   bool
	there bool // it was not destroyed
	end   *end
}

// end is one end of a connection in one life: what its program has posted and what it was told.
type end struct {
	c       *conn
	s       *slot
	n       *node
	peer    *end
	num     uint32 // the QP's number in this life: what the peer was told
	psn     uint32 // first, of what it sends
	out, in *flow
	up      bool // connected
	sqd     bool
	errored bool // the program knows that it is in the error state
	over    bool // reset, destroyed or its NIC restarted: nothing more may come
	srq     *srq
	rq      []*recv // posted and not taken by the NIC
	recvs   []*recv // all of this life, in the order of posting
	nextRcv int     // the next one to complete
	rcvBad  bool    // one completed with an error
}

// alive reports whether the program may go on using the end.
func (e *end) alive() bool { return !e.over && !e.errored }

// recv is a receive request.
type recv struct {
	wr     transport.RecvWR
	reg    *region
	end    *end // nil: of an SRQ
	srq    *srq
	seq    int
	posted mono.Time
	done   bool
	used   bool // it came back to its SRQ: some bytes may have come for another QP
}

// srq is a node's shared receive queue. Its program posts again only what has completed.
type srq struct {
	n    *node
	q    []*recv
	pool int
	out  int // posted and not completed
}

// sharedCells are counters that many QPs add to at once.
type sharedCells struct {
	reg   *region
	rkey  uint32
	olds  [2][]uint64
	maybe [2]int // additions whose fate nobody knows
}

type badKind uint8

const (
	fine      badKind = iota
	badAccess         // a wrong key, or out of bounds
	badInv            // longer than the receive, or an atomic off its alignment
	badLocal          // the program's own memory is not there
	badFetch          // found bad when it was fetched
	badBind           // a window that cannot be bound or closed
)

// op is a send request.
type op struct {
	idx, n, off int
	kind        transport.Op
	flow        *flow
	z           *zone
	local       *region
	inline      []byte
	bad         badKind
	fence       bool
	solicited   bool
	writes      bool // some bytes of z show it
	shared      bool
	cell        int
	imm         uint32
	want        uint64  // an atomic's answer by program order
	exp         []uint8 // a READ's bytes: at least these requests
	unshown     int     // bytes that show neither it nor a later one
	known       int     // newest request that was complete when it was posted
	recvNo      int     // of those that take a receive
	posted      mono.Time
	arrived     mono.Time // when its receive completed
	done        bool
	delivered   bool
	ran         bool // local: carried out
	landed      int  // READ: bytes of the answer that are there, counting what came twice
	rnrFailed   bool
}

// flow is one direction of a connection in one life: requests of one end, the memory and receives of the other.
type flow struct {
	w        *World
	id       int
	req, rsp *end
	ops      []*op
	takers   []*op // those that take a receive
	done     int   // completed
	ndeliv   int   // receives completed with success
	shownTo  int   // all requests below show
	ranTo    int   // all local requests below have run
	failed   bool
	fell     int    // first request that failed
	mustFail int    // first request that must fail
	poison   int    // first request that fails before anything behind it runs
	maxTail  int    // newest request whose last byte showed, or whose receive completed
	excuse   string // why RETRY_EXC is right; "" = it is not
	zones    []*zone
}

const never = 1 << 30

// opsMax is how many requests one life of a flow has: memory tells them apart by one byte.
const opsMax = 240

type zoneKind uint8

const (
	zoneMain zoneKind = iota
	zoneRelaxed
	zoneMortal // its key is invalidated or deregistered some day
)

// zone is remote memory of one flow. Each byte tells which request wrote it: 0 what was there, else index + 1, plus a
// pattern of its address, so that a byte at the wrong place shows as well.
type zone struct {
	flow     *flow
	kind     zoneKind
	reg      *region
	pat      []uint8
	val      []uint8 // what memory shows
	prog     []uint8 // what it must show when everything posted is done
	lastRead []uint8
	rkey     [2]uint32
	shift    [2]uint64
	killer   int // request that invalidates the key; never = none
	dead     bool
	dereg    bool
	shut     bool
}

func (w *World) newZone(f *flow, kind zoneKind, size int) *zone {
	n := f.rsp.n
	z := &zone{flow: f, kind: kind, reg: n.alloc(size), pat: make([]uint8, size), val: make([]uint8, size), prog: make([]uint8, size),
		lastRead: make([]uint8, size), killer: never}
	z.reg.zone = z
	salt := uint32(f.id*7+int(kind)) * 0x9E3779B9
	for i := range z.pat {
		x := (uint32(i) + salt) * 2654435761
		z.pat[i] = uint8(x >> 24)
		z.reg.b[i] = z.pat[i]
	}
	for i := range z.rkey {
		if i == 1 && kind == zoneMortal { // one key, so that its end is the zone's
			z.rkey[1] = z.rkey[0]
			continue
		}
		w.nextKey++
		z.rkey[i] = w.nextKey
		if i == 1 && w.plan.has(Alias) { // a second key may call the same bytes by other addresses
			z.shift[i] = uint64(w.rnd.IntN(3)) * 4096
		}
		n.keys[z.rkey[i]] = &key{reg: z.reg, shift: z.shift[i], write: true, read: true, atomic: true, relaxed: kind == zoneRelaxed}
	}
	f.zones = append(f.zones, z)
	return z
}

// word is what the bytes at off … off+8 show when request v - 1 wrote them all.
func (z *zone) word(off int, v uint8) (x uint64) {
	for i := 7; i >= 0; i-- {
		x = x<<8 | uint64(z.pat[off+i]+v)
	}
	return x
}

// progWord is the same by program order.
func (z *zone) progWord(off int) (x uint64) {
	for i := 7; i >= 0; i-- {
		x = x<<8 | uint64(z.pat[off+i]+z.prog[off+i])
	}
	return x
}
