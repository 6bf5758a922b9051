package metaroce

// bufPool is a fixed set of buffers, named by number. Number 0 is "none". Beyond the set there are spare ones, made
// when they are first needed, for those who must not wait.
type bufPool struct {
	mem   []byte
	free  []int32
	size  int
	out   []bool
	spare [][]byte // number len(free of the beginning) + 1 + i
	idle  []int32  // spare ones that are free
}

func (p *bufPool) init(n, size int) {
	p.mem, p.size = make([]byte, n*size), size
	p.free, p.out = make([]int32, n), make([]bool, n+1)
	for i := range p.free {
		p.free[i] = int32(n - i)
	}
}

// get returns a free buffer, or 0.
func (p *bufPool) get() int32 {
	if len(p.free) == 0 {
		return 0
	}
	b := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.out[b] = true
	return b
}

// getSpare returns a spare buffer.
func (p *bufPool) getSpare() int32 {
	if len(p.idle) == 0 {
		p.spare = append(p.spare, make([]byte, p.size))
		p.out = append(p.out, false)
		p.idle = append(p.idle, int32(len(p.out)-1))
	}
	b := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	p.out[b] = true
	return b
}

func (p *bufPool) put(b int32) {
	if b == 0 {
		return
	}
	if !p.out[b] {
		panic("metaroce: buffer freed twice")
	}
	p.out[b] = false
	if int(b) > p.fixed() {
		p.idle = append(p.idle, b)
		return
	}
	p.free = append(p.free, b)
}

// fixed is the number of buffers without the spare ones.
func (p *bufPool) fixed() int { return len(p.mem) / p.size }

func (p *bufPool) bytes(b int32) []byte {
	if i := int(b) - 1 - p.fixed(); i >= 0 {
		return p.spare[i]
	}
	o := int(b-1) * p.size
	return p.mem[o : o+p.size : o+p.size]
}

func (p *bufPool) avail() int { return len(p.free) }

// used is the number of buffers that somebody has.
func (p *bufPool) used() int { return p.fixed() + len(p.spare) - len(p.free) - len(p.idle) }

// ring is a growable window of T indexed by a running number. It grows by doubling up to the window's size, so that
// an idle QP costs little; in steady state it does not allocate.
type ring[T any] struct {
	s  []T
	lo uint64 // oldest number in use
	hi uint64 // one past the newest
}

func (r *ring[T]) init(at uint64) { r.lo, r.hi = at, at }

// at returns the entry of number n, lo ≤ n < hi.
func (r *ring[T]) at(n uint64) *T { return &r.s[n&uint64(len(r.s)-1)] }

// extend makes numbers up to and including n valid, zeroed.
func (r *ring[T]) extend(n uint64) {
	if n < r.hi {
		return
	}
	if need := n - r.lo + 1; need > uint64(len(r.s)) {
		size := uint64(max(len(r.s), ringsMin))
		for size < need {
			size *= 2
		}
		s := make([]T, size)
		for i := r.lo; i < r.hi; i++ {
			s[i&(size-1)] = *r.at(i)
		}
		r.s = s
	}
	var zero T
	for ; r.hi <= n; r.hi++ {
		*r.at(r.hi) = zero
	}
}

// roomFor returns a slice for entries that are indexed by running numbers from lo on: s where it has room for n, else a
// longer one with the same entries. Its length is a power of two.
func roomFor[T any](s []T, lo uint64, n int) []T {
	size := max(len(s), 1)
	for size < n {
		size *= 2
	}
	if size == len(s) {
		return s
	}
	r := make([]T, size)
	for i := lo; i < lo+uint64(len(s)); i++ {
		r[i&uint64(size-1)] = s[i&uint64(len(s)-1)]
	}
	return r
}

// fifo is a growable queue of numbers.
type fifo struct {
	s          []uint64
	head, tail uint64
}

func (f *fifo) len() int { return int(f.tail - f.head) }

func (f *fifo) push(v uint64) {
	if f.tail-f.head == uint64(len(f.s)) {
		n := max(16, 2*len(f.s))
		s := make([]uint64, n)
		for i := f.head; i < f.tail; i++ {
			s[i&uint64(n-1)] = f.s[i&uint64(len(f.s)-1)]
		}
		f.s = s
	}
	f.s[f.tail&uint64(len(f.s)-1)] = v
	f.tail++
}

func (f *fifo) peek() uint64 { return f.s[f.head&uint64(len(f.s)-1)] }
func (f *fifo) pop()         { f.head++ }
func (f *fifo) clear()       { f.head, f.tail = 0, 0 }

// qpHeap orders QPs by their next timer.
type qpHeap []*QP

func (h qpHeap) next() mono64 {
	if len(h) == 0 {
		return never
	}
	return h[0].due
}

func (h qpHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = i, j
}

func (h qpHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].due <= h[i].due {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h qpHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].due < h[c].due {
			c++
		}
		if h[i].due <= h[c].due {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// set gives q a new due time; never takes it out.
func (h *qpHeap) set(q *QP, t mono64) {
	if q.heapIdx < 0 {
		if t == never {
			q.due = t
			return
		}
		q.heapIdx = len(*h)
		*h = append(*h, q)
	}
	i := q.heapIdx
	q.due = t
	if t == never {
		last := len(*h) - 1
		h.swap(i, last)
		*h = (*h)[:last]
		q.heapIdx = -1
		if i < last {
			h.up(i)
			h.down(i)
		}
		return
	}
	h.up(i)
	h.down(i)
}

// assocHeap orders associations by when something is due.
type assocHeap []*assoc

func (h assocHeap) next() mono64 {
	if len(h) == 0 {
		return never
	}
	return h[0].due
}

// take moves those whose time has come to a list. Each is due never, until it is rescheduled.
func (h *assocHeap) take(now mono64, late *[]*assoc) {
	for len(*h) > 0 && (*h)[0].due <= now {
		a := (*h)[0]
		*late = append(*late, a)
		a.setDue(never)
	}
}

func (h assocHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dueIdx, h[j].dueIdx = i, j
}

func (h assocHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].due <= h[i].due {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h assocHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].due < h[c].due {
			c++
		}
		if h[i].due <= h[c].due {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// setDue says when the association has something to do; never takes it out.
func (a *assoc) setDue(t mono64) {
	if t == a.due || a.gone {
		return
	}
	h := &a.e.dues
	was := a.due
	a.due = t
	i := a.dueIdx
	switch {
	case i < 0:
		a.dueIdx = len(*h)
		*h = append(*h, a)
		h.up(a.dueIdx)
	case t == never:
		n := len(*h) - 1
		h.swap(i, n)
		(*h)[n] = nil
		*h = (*h)[:n]
		a.dueIdx = -1
		if i < n {
			h.up(i)
			h.down(i)
		}
	case t < was:
		h.up(i)
	default:
		h.down(i)
	}
}
