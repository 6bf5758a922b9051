package ideal

// kind of an event; those of one time happen in this order.
type kind uint8

const (
	isReady    kind = iota // a message is posted
	isReceived             // one has come
	isAcked                // its sender hears of it
)

// event is something that happens to a message.
type event struct {
	at, posted pico
	msg        int32
	kind       kind
}

func (e *event) before(f *event) bool {
	switch {
	case e.at != f.at:
		return e.at < f.at
	case e.kind != f.kind:
		return e.kind < f.kind
	case e.msg != f.msg:
		return e.msg < f.msg
	}
	return e.posted < f.posted
}

// at puts an event into the heap.
func (w *World) at(e event) {
	if e.at == never {
		return
	}
	w.timed = append(w.timed, e)
	h := w.timed
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// pop takes the first event out.
func (w *World) pop() event {
	first := w.timed[0]
	n := len(w.timed) - 1
	w.timed[0] = w.timed[n]
	w.timed = w.timed[:n]
	h := w.timed
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return first
		}
		if c+1 < n && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&h[i]) {
			return first
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// ends is a heap of the connections that send, by when their message has left.
type ends struct {
	w     *World
	order []int32
}

func (h *ends) first() pico {
	if len(h.order) == 0 {
		return never
	}
	return h.w.conns[h.order[0]].end
}

func (h *ends) before(a, b int32) bool {
	x, y := h.w.conns[a].end, h.w.conns[b].end
	return x < y || x == y && a < b
}

func (h *ends) put(i int, c int32) {
	h.order[i] = c
	h.w.conns[c].place = int32(i)
}

// set puts a connection where its end belongs.
func (h *ends) set(c int32, end pico) {
	x := &h.w.conns[c]
	x.end = end
	if x.place < 0 {
		h.order = append(h.order, c)
		x.place = int32(len(h.order) - 1)
	}
	h.fix(int(x.place))
}

func (h *ends) remove(c int32) {
	x := &h.w.conns[c]
	if x.place < 0 {
		return
	}
	i, n := int(x.place), len(h.order)-1
	x.place = -1
	last := h.order[n]
	h.order = h.order[:n]
	if i < n {
		h.put(i, last)
		h.fix(i)
	}
}

// fix moves what stands at i up or down.
func (h *ends) fix(i int) {
	c := h.order[i]
	for i > 0 {
		up := (i - 1) / 2
		if !h.before(c, h.order[up]) {
			break
		}
		h.put(i, h.order[up])
		i = up
	}
	n := len(h.order)
	for {
		k := 2*i + 1
		if k >= n {
			break
		}
		if k+1 < n && h.before(h.order[k+1], h.order[k]) {
			k++
		}
		if !h.before(h.order[k], c) {
			break
		}
		h.put(i, h.order[k])
		i = k
	}
	h.put(i, c)
}
