package fabric

import (
	"math/bits"

	"github.com/metaroce/metaroce/internal/mono"
)

// event is something that happens at a time. Events of one time happen in the order of their keys, which say what the event
// is and are the same however the world is divided among threads.
type event struct {
	at  mono.Time
	key uint64
	p   *Packet // arrivals
	arg int32
}

// Keys: the kind above, below it whom it is for and, where that one may have several at a time, a sequence number.
const (
	keyArrive  = uint64(0) << 60 // port << 24 | sequence
	keyTxDone  = uint64(1) << 60 // port
	keyPause   = uint64(2) << 60 // port << 24 | sequence
	keyTrigger = uint64(3) << 60 // host << 24 | sequence
	keyWake    = uint64(4) << 60 // host
	keyKind    = uint64(15) << 60
	keySeq     = 1<<24 - 1
)

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.key < f.key }

// The calendar: buckets of 1 to 32 ns for what is near, a heap for what is far. The bucket that time is in is a heap, as
// traffic in step puts many events into one.
const (
	bucketBits = 5 // of ns, at most
	buckets    = 8192
)

// bitsFor keeps buckets short in large networks: what is in one goes through a heap.
func bitsFor(ports int) uint {
	return uint(max(0, bucketBits-bits.Len(uint(ports/1024))))
}

type cell struct {
	e    event
	next int32
}

// queue holds the events of a domain. Nothing allocates once it has grown.
type queue struct {
	n     int
	bits  uint    // of ns in a bucket
	cur   []event // heap: all before the bucket `at`+1
	at    int64   // number of the bucket that cur is
	heads [buckets]int32
	used  [buckets / 64]uint64
	cells []cell
	free  int32
	far   []event // heap: beyond the last bucket
}

func newQueue(bits uint) *queue {
	q := &queue{bits: bits, free: -1}
	for i := range q.heads {
		q.heads[i] = -1
	}
	return q
}

func (q *queue) push(e event) {
	q.n++
	b := int64(e.at) >> q.bits
	switch {
	case b <= q.at:
		q.cur = heapPush(q.cur, e)
	case b < q.at+buckets:
		q.put(b, e)
	default:
		q.far = heapPush(q.far, e)
	}
}

func (q *queue) put(b int64, e event) {
	c := q.free
	if c < 0 {
		q.cells = append(q.cells, cell{})
		c = int32(len(q.cells) - 1)
	} else {
		q.free = q.cells[c].next
	}
	i := b & (buckets - 1)
	q.cells[c] = cell{e, q.heads[i]}
	q.heads[i] = c
	q.used[i>>6] |= 1 << (i & 63)
}

// next is when the first event happens, or Never.
func (q *queue) next() mono.Time {
	if len(q.cur) == 0 && !q.advance() {
		return mono.Never
	}
	return q.cur[0].at
}

// pop takes the first event; there must be one.
func (q *queue) pop() event {
	e := q.cur[0]
	q.cur = heapPop(q.cur)
	q.n--
	return e
}

// advance makes the next bucket that holds anything the current one.
func (q *queue) advance() bool {
	if q.n == 0 {
		return false
	}
	near := q.nearest()
	if len(q.far) > 0 && (near < 0 || int64(q.far[0].at)>>q.bits <= near) {
		near = int64(q.far[0].at) >> q.bits
	}
	q.at = near
	i := near & (buckets - 1)
	for c := q.heads[i]; c >= 0; {
		next := q.cells[c].next
		q.cur = heapPush(q.cur, q.cells[c].e)
		q.cells[c].e.p = nil
		q.cells[c].next, q.free = q.free, c
		c = next
	}
	q.heads[i] = -1
	q.used[i>>6] &^= 1 << (i & 63)
	for len(q.far) > 0 {
		b := int64(q.far[0].at) >> q.bits
		if b >= q.at+buckets {
			break
		}
		if e := q.far[0]; b <= q.at {
			q.cur = heapPush(q.cur, e)
		} else {
			q.put(b, e)
		}
		q.far = heapPop(q.far)
	}
	return true
}

// nearest is the number of the next bucket in use, or -1.
func (q *queue) nearest() int64 {
	from := (q.at + 1) & (buckets - 1)
	w := from >> 6
	m := q.used[w] &^ (1<<(from&63) - 1)
	for k := 0; k <= buckets/64; k++ {
		if m != 0 {
			i := w<<6 + int64(bits.TrailingZeros64(m))
			return q.at + 1 + (i-from)&(buckets-1)
		}
		w = (w + 1) & (buckets/64 - 1)
		m = q.used[w]
	}
	return -1
}

func heapPush(h []event, e event) []event {
	h = append(h, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	return h
}

func heapPop(h []event) []event {
	n := len(h) - 1
	e := h[n]
	h[n].p = nil
	h = h[:n]
	if n == 0 {
		return h
	}
	i := 0
	for {
		c := 4*i + 1
		if c >= n {
			break
		}
		best := c
		for k := c + 1; k < min(c+4, n); k++ {
			if h[k].before(&h[best]) {
				best = k
			}
		}
		if !h[best].before(&e) {
			break
		}
		h[i] = h[best]
		i = best
	}
	h[i] = e
	return h
}
