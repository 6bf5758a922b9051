package rocev2_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// TestDestroyCost: what a QP costs to destroy does not grow with the groups that others joined, nor with the QPs that wait
// to send.
func TestDestroyCost(t *testing.T) {
	const many, groups, busy = 2000, 20_000, 4000
	once := func(groups, busy int) time.Duration {
		w := newWorld(config{link: link.Spec{RateBps: 1e9, Delay: mono.Microsecond}})
		n := w.nodes[0]
		u := n.newQP(transport.UD, options{sq: 1})
		for i := range groups {
			var a [16]byte
			a[0], a[1] = 0xff, 0x0e
			binary.BigEndian.PutUint32(a[12:], uint32(i))
			n.e.Attach(u.QP, netip.AddrFrom16(a))
		}
		var qs []*qp
		for range many {
			p, _ := w.connect(n, w.nodes[1], options{sq: 1, rd: 1})
			qs = append(qs, p)
		}
		w.run(mono.Millisecond) // they have looked once whether there is something to send
		for range busy {
			p, _ := w.connect(n, w.nodes[1], options{sq: 1, rd: 1})
			p.send(wr{op: transport.OpWrite, n: 8, key: 7})
		}
		begin := time.Now()
		for _, q := range qs {
			q.Destroy(w.now)
		}
		return time.Since(begin)
	}
	cost := func(groups, busy int) time.Duration {
		return min(once(groups, busy), once(groups, busy), once(groups, busy))
	}
	base := max(cost(0, 0), 500*time.Microsecond)
	if c := cost(groups, 0); c > 20*base {
		t.Errorf("%v beside %d groups, %v without", c, groups, base)
	}
	if c := cost(0, busy); c > 20*base {
		t.Errorf("%v beside %d busy QPs, %v without", c, busy, base)
	}
}

// TestDestroyLeavesNothing: a QP that is destroyed is in no group and no list, wherever it was.
func TestDestroyLeavesNothing(t *testing.T) {
	w := newWorld(config{link: usual()})
	a, b := w.nodes[0], w.nodes[1]
	g, h := netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("239.1.1.2")
	u, v := b.newQP(transport.UD, options{sq: 1}), b.newQP(transport.UD, options{sq: 1})
	for _, x := range []netip.Addr{g, h} {
		b.e.Attach(u.QP, x)
		b.e.Attach(v.QP, x)
	}
	b.e.Detach(u.QP, g)
	if b.e.Detach(u.QP, g) || b.e.Attach(v.QP, g) {
		t.Error("joined twice, or left twice")
	}
	u.Destroy(w.now)
	if b.e.Attach(v.QP, h) || b.e.Detach(u.QP, h) {
		t.Error("the wrong QP left")
	}
	// In the middle, at the head and at the tail of those that wait to send and to answer.
	var ps, qs []*qp
	for range 7 {
		p, q := w.connect(a, b, options{})
		p.send(wr{op: transport.OpWrite, n: 100, key: 7})
		ps, qs = append(ps, p), append(qs, q)
	}
	for _, i := range []int{3, 0, 6} {
		ps[i].Destroy(w.now)
		ps[i].Destroy(w.now)
	}
	w.mustRun(t, second, func() bool {
		return len(ps[1].sends) == 1 && len(ps[5].sends) == 1 && len(ps[4].sends) == 1 && len(ps[2].sends) == 1
	})
	for i, q := range qs {
		if n := len(ps[i].sends); n != 0 && (i == 3 || i == 0 || i == 6) {
			t.Errorf("QP %d: %d completions", i, n)
		}
		q.Destroy(w.now)
	}
	w.run(mono.Millisecond)
}
