// Package timerq orders things by when something is due at them. Each carries its place in the queue, so that its time can be
// changed at once; nothing allocates once the queue has grown.
package timerq

import "github.com/metaroce/metaroce/internal/mono"

// Node is a thing's place in a Queue. It is a field of the thing; Init comes before anything else.
type Node[T any] struct {
	of  *T
	due mono.Time
	tie uint32
	at  int32 // place in the queue, from 1 on; 0 = not in it
}

// Init says whose node it is. Of equal times the lower tie comes first: the order must not depend on history.
func (n *Node[T]) Init(of *T, tie uint32) { *n = Node[T]{of: of, due: mono.Never, tie: tie} }

// Due is when something is due, or mono.Never.
func (n *Node[T]) Due() mono.Time { return n.due }

// Queue is a binary heap of nodes. The zero value is empty.
type Queue[T any] struct {
	h    []*Node[T]
	next mono.Time // of h[0], which is asked for all the time and may be far in memory
}

// Next is when the first thing is due, or mono.Never.
func (q *Queue[T]) Next() mono.Time {
	if len(q.h) == 0 {
		return mono.Never
	}
	return q.next
}

// First is what is due first, or nil.
func (q *Queue[T]) First() *T {
	if len(q.h) == 0 {
		return nil
	}
	return q.h[0].of
}

// Set changes when something is due; mono.Never takes it out.
func (q *Queue[T]) Set(n *Node[T], at mono.Time) {
	if at == n.due {
		return
	}
	earlier := at < n.due
	n.due = at
	switch {
	case at == mono.Never:
		q.remove(n)
	case n.at == 0:
		q.h = append(q.h, n)
		n.at = int32(len(q.h))
		q.up(len(q.h) - 1)
	case earlier:
		q.up(int(n.at) - 1)
	default:
		q.down(int(n.at) - 1)
	}
	if len(q.h) > 0 {
		q.next = q.h[0].due
	}
}

func (q *Queue[T]) remove(n *Node[T]) {
	i, last := int(n.at)-1, len(q.h)-1
	m := q.h[last]
	q.h[last] = nil
	q.h = q.h[:last]
	n.at = 0
	if i < last {
		q.h[i], m.at = m, int32(i)+1
		q.up(i)
		q.down(int(m.at) - 1)
	}
}

func (n *Node[T]) before(m *Node[T]) bool { return n.due < m.due || n.due == m.due && n.tie < m.tie }

func (q *Queue[T]) up(i int) {
	n := q.h[i]
	for i > 0 {
		p := (i - 1) / 2
		if !n.before(q.h[p]) {
			break
		}
		q.h[i] = q.h[p]
		q.h[i].at = int32(i) + 1
		i = p
	}
	q.h[i], n.at = n, int32(i)+1
}

func (q *Queue[T]) down(i int) {
	n := q.h[i]
	for {
		c := 2*i + 1
		if c >= len(q.h) {
			break
		}
		if c+1 < len(q.h) && q.h[c+1].before(q.h[c]) {
			c++
		}
		if !q.h[c].before(n) {
			break
		}
		q.h[i] = q.h[c]
		q.h[i].at = int32(i) + 1
		i = c
	}
	q.h[i], n.at = n, int32(i)+1
}
