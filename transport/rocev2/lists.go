package rocev2

import "github.com/metaroce/metaroce/internal/mono"

// qpRing is a queue of QPs, each at most once. A QP can be in one ring by ringNext and in one by ctlNext.
type qpRing struct {
	head, tail *QP
	n          int
}

func (r *qpRing) push(q *QP) {
	q.inRing, q.ringNext = true, nil
	if r.tail == nil {
		r.head = q
	} else {
		r.tail.ringNext = q
	}
	r.tail = q
	r.n++
}

func (r *qpRing) pushFront(q *QP) {
	q.inRing, q.ringNext = true, r.head
	r.head = q
	if r.tail == nil {
		r.tail = q
	}
	r.n++
}

func (r *qpRing) pop() *QP {
	q := r.head
	if q == nil {
		return nil
	}
	if r.head = q.ringNext; r.head == nil {
		r.tail = nil
	}
	q.inRing, q.ringNext = false, nil
	r.n--
	return q
}

// remove takes a QP out, wherever it is, if it is in this ring.
func (r *qpRing) remove(q *QP) {
	var before *QP
	for x := r.head; x != nil; before, x = x, x.ringNext {
		if x != q {
			continue
		}
		if before == nil {
			r.pop()
			return
		}
		if before.ringNext = q.ringNext; r.tail == q {
			r.tail = before
		}
		q.inRing, q.ringNext = false, nil
		r.n--
		return
	}
}

func (r *qpRing) pushCtl(q *QP) {
	q.inCtl, q.ctlNext = true, nil
	if r.tail == nil {
		r.head = q
	} else {
		r.tail.ctlNext = q
	}
	r.tail = q
	r.n++
}

func (r *qpRing) popCtl() *QP {
	q := r.head
	if q == nil {
		return nil
	}
	if r.head = q.ctlNext; r.head == nil {
		r.tail = nil
	}
	q.inCtl, q.ctlNext = false, nil
	r.n--
	return q
}

func (r *qpRing) removeCtl(q *QP) {
	var before *QP
	for x := r.head; x != nil; before, x = x, x.ctlNext {
		if x != q {
			continue
		}
		if before == nil {
			r.popCtl()
			return
		}
		if before.ctlNext = q.ctlNext; r.tail == q {
			r.tail = before
		}
		q.inCtl, q.ctlNext = false, nil
		r.n--
		return
	}
}

// qpHeap holds the QPs that wait for a time, the next one first.
type qpHeap []*QP

func (h qpHeap) next() mono.Time {
	if len(h) == 0 {
		return never
	}
	return h[0].due
}

// set changes when a QP is due; never takes it out.
func (h *qpHeap) set(q *QP, at mono.Time) {
	switch {
	case at == never && q.heapIdx < 0:
		return
	case at == never:
		i, n := q.heapIdx, len(*h)-1
		h.swap(i, n)
		(*h)[n] = nil
		*h = (*h)[:n]
		q.heapIdx, q.due = -1, never
		if i < n {
			h.up(i)
			h.down(i)
		}
		return
	case q.heapIdx < 0:
		q.heapIdx = len(*h)
		*h = append(*h, q)
	}
	q.due = at
	h.up(q.heapIdx)
	h.down(q.heapIdx)
}

func (h qpHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = i, j
}

// before orders by time, then number: the order of equal times must not depend on history.
func (h qpHeap) before(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].qpn < h[j].qpn
}

func (h qpHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.before(i, p) {
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
		if c+1 < len(h) && h.before(c+1, c) {
			c++
		}
		if !h.before(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
