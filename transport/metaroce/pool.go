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

// setDue says when the association has something to do; never takes it out of the queue.
func (a *assoc) setDue(t mono64) {
	if !a.gone {
		a.e.dues.Set(&a.due, t)
	}
}
