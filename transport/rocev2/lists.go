package rocev2

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
