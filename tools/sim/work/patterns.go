package work

import (
	"fmt"
	"math/bits"

	"github.com/metaroce/metaroce/tools/sim/plan"
)

// Bus factors are those of nccl-tests' PERFORMANCE.md: all-reduce 2(n-1)/n, all-gather, reduce-scatter and all-to-all
// (n-1)/n, what goes one way 1.

func (b *builder) set(size int64, factor float64) {
	g := &b.g.Groups[b.group]
	g.Size, g.BusFactor = size, factor
}

// factor is times * (n-1)/n.
func (b *builder) factor(times int) float64 { return float64(times) * float64(b.n-1) / float64(b.n) }

// permutation: member i to (mul*i + add) mod n.
func (b *builder) permutation() {
	b.set(b.w.Size, 1)
	for i := range b.n {
		to := (int64(b.w.Mul)*int64(i) + int64(b.w.Add)) % int64(b.n)
		b.add(i, int(to), b.w.Size, 0)
	}
}

// incast: the first senders that are not the target.
func (b *builder) incast() {
	b.set(int64(b.w.Senders)*b.w.Size, 1)
	b.g.Groups[b.group].Name = fmt.Sprintf("incast %d:1 %s", b.w.Senders, plan.Bytes(b.w.Size))
	b.g.Groups[b.group].Hosts = b.w.Senders + 1
	left := b.w.Senders
	for i, h := range b.hosts {
		if h == b.w.Target || left == 0 {
			continue
		}
		left--
		b.add(i, i, b.w.Size, 0).To = int32(b.w.Target) // the target need not be a member
	}
}

// pairs: member i to i + n/2.
func (b *builder) pairs() {
	b.set(b.w.Size, 1)
	for i := range b.n / 2 {
		b.add(i, i+b.n/2, b.w.Size, 0)
	}
}

// allToAll: to the next host, to the one after, …; with a bound each message waits for the acknowledgement of the one that
// came so many before it.
func (b *builder) allToAll() {
	b.set(int64(b.n)*b.w.Size, b.factor(1))
	for k := 1; k < b.n; k++ {
		for s := range b.n {
			var wait []Edge
			if w := b.w.Outstanding; w > 0 && k > w {
				wait = []Edge{{b.first + int32((k-1-w)*b.n+s), true}}
			}
			b.add(s, (s+k)%b.n, b.w.Size, k-1, wait...)
		}
	}
}

// ring: in step k member i sends chunk i-k on to i+1, which it got from i-1 in the step before. After n-1 steps member i has
// all of chunk i+1 (reduce-scatter); in the next n-1 it goes round (all-gather, which begins with chunk i at i).
func (b *builder) ring(steps, times int) {
	b.set(b.w.Size, b.factor(times))
	for k := range steps {
		for i := range b.n {
			var wait []Edge
			if k > 0 {
				wait = []Edge{{b.first + int32((k-1)*b.n+(i+b.n-1)%b.n), b.w.Acked}}
			}
			c := ((i-k)%b.n + b.n) % b.n
			m := b.add(i, (i+1)%b.n, chunk(b.w.Size, b.n, c), k, wait...)
			m.Chunk, m.Chunks = int32(c), 1
		}
	}
}

func log2(n int) int { return bits.Len(uint(n)) - 1 }

// halving is Rabenseifner's all-reduce. Halving: in step t members that differ in bit q-1-t of their number keep one half
// each of what they still have and send the other; member i ends with chunk i. Doubling: the same pairs in reverse, each
// sends all that it has. Both wait for everything that their host got before.
func (b *builder) halving() {
	b.set(b.w.Size, b.factor(2))
	q := log2(b.n)
	// got[t] is the message that member i receives in step t: its partner's.
	send := func(step, t int) {
		half := b.n >> (t + 1)
		for i := range b.n {
			to := i ^ half
			c := to &^ (half - 1) // halving: the half that the partner keeps
			if step >= q {
				c = i &^ (half - 1) // doubling: what this host has
			}
			wait := make([]Edge, step)
			for s := range wait {
				wait[s] = Edge{b.first + int32(s*b.n+i^(b.n>>(turn(s, q)+1))), b.w.Acked}
			}
			m := b.add(i, to, chunks(b.w.Size, b.n, c, half), step, wait...)
			m.Chunk, m.Chunks = int32(c), int32(half)
		}
	}
	for s := range 2 * q {
		send(s, turn(s, q))
	}
}

// turn is which bit a step of 2q steps is about: 0 … q-1, q-1 … 0.
func turn(step, q int) int {
	if step < q {
		return step
	}
	return 2*q - 1 - step
}

// maxPieces bounds the pipeline of a tree.
const maxPieces = 256

// slices2 cuts the buffer into one half a tree and each half into pieces.
func slices2(w *plan.Work) (pieces [2]int, size [2]int64) {
	for t := range 2 {
		size[t] = chunk(w.Size, 2, t)
		slice := max(1, w.Slice)
		pieces[t] = int(min(maxPieces, max(1, (size[t]+slice-1)/slice)))
	}
	return pieces, size
}

// parents returns a binary tree over n members, -1 for the root's: member 0, whose only child is a power of two; members with
// a low bit set lower stand lower, so that odd members are leaves.
func parents(n int) []int {
	up := make([]int, n)
	up[0] = -1
	for r := 1; r < n; r++ {
		low := r & -r
		up[r] = (r ^ low) | low<<1
		if up[r] >= n {
			up[r] = r ^ low
		}
	}
	return up
}

// second renames the members of the first tree so that who is a leaf in one works in the other (Sanders, Speck, Träff 2009):
// a mirror for even n, a shift by one for odd.
func second(n, r int) int {
	if n%2 == 0 {
		return n - 1 - r
	}
	return (r + 1) % n
}

// tree is an all-reduce over two trees, each for half of the buffer, in pieces: up each member adds what its children sent,
// down each passes on what its parent sent.
func (b *builder) tree() {
	b.set(b.w.Size, b.factor(2))
	pieces, size := slices2(b.w)
	up := parents(b.n)
	kids := make([][]int, b.n)
	for r := 1; r < b.n; r++ {
		kids[up[r]] = append(kids[up[r]], r)
	}
	// Messages of a tree: pieces × (up from members 1 … n-1, then down to members 1 … n-1).
	base := b.first
	for t := range 2 {
		name := func(r int) int {
			if t == 0 {
				return r
			}
			return second(b.n, r)
		}
		for _, down := range []bool{false, true} {
			for s := range pieces[t] {
				for r := 1; r < b.n; r++ {
					b.treeMessage(treeStep{base: base, tree: t, piece: s, pieces: pieces, down: down, up: up[r], r: r, kids: kids, name: name,
						size: chunk(size[t], pieces[t], s)})
				}
			}
		}
		base = int32(len(b.g.Messages))
	}
}

type treeStep struct {
	base        int32
	tree, piece int
	pieces      [2]int
	down        bool
	up, r       int
	kids        [][]int
	name        func(int) int
	size        int64
}

func (b *builder) treeMessage(s treeStep) {
	at := func(down bool, r int) int32 { // the message of this piece on the edge between r and its parent
		block := s.piece
		if down {
			block += s.pieces[s.tree]
		}
		return s.base + int32(block*(b.n-1)+r-1)
	}
	var wait []Edge
	switch {
	case s.down && s.up != 0:
		wait = []Edge{{at(true, s.up), b.w.Acked}}
	case s.down: // the root sends when its only child's piece has come
		for _, k := range s.kids[0] {
			wait = append(wait, Edge{at(false, k), b.w.Acked})
		}
	default:
		for _, k := range s.kids[s.r] {
			wait = append(wait, Edge{at(false, k), b.w.Acked})
		}
	}
	from, to, step := s.r, s.up, s.piece
	if s.down {
		from, to, step = s.up, s.r, s.piece+s.pieces[s.tree]
	}
	m := b.add(s.name(from), s.name(to), s.size, step, wait...)
	m.Chunk, m.Chunks = int32(s.tree*s.pieces[0]+s.piece), 1
}
