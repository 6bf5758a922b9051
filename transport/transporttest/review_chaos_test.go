package transporttest

import (
	"fmt"
	"testing"

	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// chaos is a world in which everything that can end ends at bad times: QPs, planes, whole nodes.
type chaos struct {
	w     *World
	r     *rng.Source
	l     link.Spec
	pairs []*pair
	insts []uint64
	up    []bool
	err   error
}

// pair is two connected QPs and what was posted to each.
type pair struct {
	q      [2]*QP
	o      QPOptions
	posted [2]int // since the last reset
	recvs  [2]int
	seen   [2]int // completions checked
	seenR  [2]int
	bad    [2]bool // a completion was not OK
	badR   [2]bool
	gone   [2]bool
}

func newChaos(seed uint64) *chaos {
	r := rng.New(seed, "chaos")
	planes, l := badNetwork(r)
	if r.IntN(10) == 0 {
		planes = 16
	}
	c := &chaos{r: r, l: l, insts: []uint64{1, 2, 3}, up: make([]bool, planes)}
	for i := range c.up {
		c.up[i] = true
	}
	small := r.IntN(2) == 0
	c.w = New(Config{Seed: seed, Nodes: 3, Planes: planes, Link: l, Engine: func(e *metaroce.Config) {
		e.HeldBuffers, e.RespBuffers, e.TxRecords = 64, 64, 2000
		if small {
			e.HeldBuffers, e.RespBuffers, e.TxRecords, e.PSNWindow = 3, 4, 100, 256
		}
	}})
	for _, n := range c.w.Nodes {
		n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	}
	return c
}

func (c *chaos) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *chaos) connect() {
	i := c.r.IntN(3)
	a, b := c.w.Nodes[i], c.w.Nodes[(i+c.r.IntN(3))%3]
	p := &pair{o: QPOptions{SQ: 32, MTU: 256 << c.r.IntN(5), Rd: 1 + c.r.IntN(16), SQPSN: uint32(c.r.IntN(2)) * 0xFFFFF0, Timeout: 12, RNRRetry: 1 + uint8(c.r.IntN(6)), MinRNR: 1 + uint8(c.r.IntN(12))}}
	p.q[0], p.q[1] = c.w.Connect(a, b, p.o)
	c.pairs = append(c.pairs, p)
}

// post draws a request or some receives.
func (c *chaos) post(p *pair, i int) {
	q := p.q[i]
	if p.gone[i] {
		return
	}
	if c.r.IntN(2) == 0 {
		for range c.r.IntN(6) {
			if p.recvs[i]-len(q.Received) < 200 {
				p.recvs[i]++
				q.Recv(uint64(p.recvs[i]), 2<<20, 20_000)
			}
		}
		return
	}
	x := WR{ID: uint64(p.posted[i] + 1), Op: transport.Op(c.r.IntN(7)), Local: 1 << 20, Remote: uint64(c.r.IntN(100_000)) &^ 7, Key: 7, N: uint32(c.r.IntN(20_000))}
	if c.r.IntN(3) == 0 {
		x.N = uint32(c.r.IntN(100))
	}
	if x.Op.IsAtomic() {
		x.N = 8
	}
	if c.r.IntN(6) == 0 {
		x.Flags = transport.FlagFence
	}
	if c.r.IntN(60) == 0 {
		x.Key = 8
	}
	p.posted[i]++ // completions may come within the call
	if !q.Send(x) {
		p.posted[i]--
	}
}

// check looks at what completed since the last look: in order, once, nothing good after something bad.
func (c *chaos) check(p *pair) {
	for i, q := range p.q {
		if p.gone[i] {
			continue
		}
		for ; p.seen[i] < len(q.Sends); p.seen[i]++ {
			d := q.Sends[p.seen[i]]
			if d.ID != uint64(p.seen[i]+1) || p.seen[i] >= p.posted[i] {
				c.fail("send completion %d of %d posted is %+v", p.seen[i], p.posted[i], d)
			}
			if p.bad[i] && d.Status != transport.WRFlushErr {
				c.fail("%+v after a failure", d)
			}
			p.bad[i] = p.bad[i] || d.Status != transport.OK
		}
		for ; p.seenR[i] < len(q.Received); p.seenR[i]++ {
			d := q.Received[p.seenR[i]]
			if d.ID != uint64(p.seenR[i]+1) || p.seenR[i] >= p.recvs[i] {
				c.fail("receive completion %d of %d posted is %+v", p.seenR[i], p.recvs[i], d)
			}
			if p.badR[i] && d.Status == transport.OK {
				c.fail("%+v after a failure", d)
			}
			p.badR[i] = p.badR[i] || d.Status != transport.OK
		}
		if q.Errors > 1 {
			c.fail("QPError called %d times", q.Errors)
		}
	}
}

// again resets both ends of a pair and connects them anew, with the same numbers.
func (c *chaos) again(p *pair) {
	if p.gone[0] || p.gone[1] {
		return
	}
	for i, q := range p.q {
		q.Reset(c.w.Now)
		q.Recvs, q.Sends, q.Received, q.Failed, q.Errors, q.Err = nil, nil, nil, false, 0, 0
		p.posted[i], p.recvs[i], p.seen[i], p.seenR[i], p.bad[i], p.badR[i] = 0, 0, 0, 0, false, false
		q.ToInit()
	}
	if c.r.IntN(2) == 0 {
		c.w.Run(mono.Duration(c.r.IntN(100)) * mono.Microsecond)
	}
	p.q[0].Join(p.q[1], p.o)
	p.q[1].Join(p.q[0], p.o)
}

func (c *chaos) destroy(p *pair, i int) {
	if !p.gone[i] {
		p.gone[i] = true
		p.q[i].Destroy(c.w.Now)
	}
}

func (c *chaos) restart(i int) {
	n := c.w.Nodes[i]
	c.insts[i] += 10
	n.Start(c.insts[i])
	for k, up := range c.up {
		n.E.SetPlane(c.w.Now, k, up)
	}
	for _, p := range c.pairs {
		for k := range p.q {
			if p.q[k].N == n {
				p.gone[k] = true
			}
		}
	}
}

func (c *chaos) plane(k int, up, told bool) {
	s := c.l
	s.Down = !up
	c.w.SetPlane(k, s)
	if told || up {
		c.up[k] = up
		for _, n := range c.w.Nodes {
			n.E.SetPlane(c.w.Now, k, up)
		}
	}
}

func (c *chaos) act() {
	if len(c.pairs) < 3 || len(c.pairs) < 12 && c.r.IntN(10) == 0 {
		c.connect()
	}
	k := c.r.IntN(len(c.pairs))
	p, i := c.pairs[k], c.r.IntN(2)
	switch v := c.r.IntN(400); {
	case v < 3:
		c.destroy(p, i)
	case v < 6:
		c.destroy(p, 0)
		c.destroy(p, 1)
		c.pairs = append(c.pairs[:k], c.pairs[k+1:]...)
	case v < 10:
		c.again(p)
	case v < 13:
		if !p.gone[i] {
			p.q[i].ToError(c.w.Now)
		}
	case v < 18:
		if !p.gone[i] {
			p.q[i].ToSQD()
		}
	case v < 30:
		if !p.gone[i] {
			p.q[i].Resume(c.w.Now)
		}
	case v < 40:
		c.plane(c.r.IntN(len(c.up)), c.r.IntN(2) == 0, c.r.IntN(2) == 0)
	case v < 42:
		c.restart(c.r.IntN(3))
	case v < 45:
		c.w.Now = c.w.Now.Add(mono.Duration(c.r.IntN(20)) * mono.Millisecond) // everybody stands still
	case v < 60:
		c.w.Run(mono.Duration(c.r.IntN(3000)) * mono.Microsecond)
	case v < 130:
		c.w.Run(mono.Duration(c.r.IntN(50)) * mono.Microsecond)
	default:
		for range c.r.IntN(4) {
			c.post(p, i)
		}
	}
	for _, p := range c.pairs {
		c.check(p)
	}
}

// settle heals the network; then everything that was posted must end, and new QPs must work.
func (c *chaos) settle() {
	for k := range c.up {
		c.plane(k, true, true)
	}
	c.w.SetLinks(usual())
	for _, p := range c.pairs {
		for i, q := range p.q {
			if p.gone[i] {
				continue
			}
			q.Resume(c.w.Now)
			for range 40 {
				p.recvs[i]++
				q.Recv(uint64(p.recvs[i]), 2<<20, 20_000)
			}
		}
	}
	idle := func() bool {
		for _, p := range c.pairs {
			for i, q := range p.q {
				if !p.gone[i] && !q.Drained() {
					return false
				}
			}
		}
		return true
	}
	if !c.w.RunUntil(3*second, idle) {
		for k, p := range c.pairs {
			for i, q := range p.q {
				if !p.gone[i] && !q.Drained() {
					c.fail("pair %d end %d hangs, peer gone %v\n%s\n%s", k, i, p.gone[1-i], q.Dump(), p.q[1-i].Dump())
				}
			}
		}
	}
	for _, p := range c.pairs {
		c.check(p)
		for i, q := range p.q {
			if !p.gone[i] && len(q.Sends) != p.posted[i] {
				c.fail("%d of %d sends completed", len(q.Sends), p.posted[i])
			}
		}
	}
	for i := range 3 {
		for k := range 3 {
			p, q := c.w.Connect(c.w.Nodes[i], c.w.Nodes[k], QPOptions{})
			q.Recv(1, 2<<20, 100)
			p.Send(WR{Op: transport.OpSend, N: 100})
			if !c.w.RunUntil(second, func() bool { return len(p.Sends) == 1 && len(q.Received) == 1 }) || p.Sends[0].Status != transport.OK {
				c.fail("new QPs between %d and %d do not work: %v\n%s\n%s", i, k, p.Sends, p.Dump(), q.Dump())
			}
			p.Destroy(c.w.Now)
			q.Destroy(c.w.Now)
		}
	}
	for _, p := range c.pairs {
		c.destroy(p, 0)
		c.destroy(p, 1)
	}
	for i, n := range c.w.Nodes {
		if !c.w.RunUntil(second, func() bool { return n.E.InFlight() == 0 }) {
			c.fail("node %d: %d transmissions never end", i, n.E.InFlight())
		}
		if l := n.E.Leaks(); l != "" {
			c.fail("node %d leaks %s", i, l)
		}
	}
}

// TestChaos ends QPs, planes and nodes at random times under load.
func TestChaos(t *testing.T) {
	for i := range *seeds {
		seed := *seed0 + uint64(i)
		c := newChaos(seed)
		for range 600 {
			if c.act(); c.err != nil {
				break
			}
		}
		if c.err == nil {
			c.settle()
		}
		if c.err != nil {
			t.Errorf("seed %d: %v\n  again: go test ./transport/transporttest -run 'TestChaos$' -seeds 1 -seed %d", seed, c.err, seed)
		}
	}
}
