package cm

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

// world is daemons with managers, and a network between them in virtual time that loses, repeats and delays.
type world struct {
	t     *testing.T
	now   mono.Time
	rnd   *rng.Source
	nodes []*node
	sent  []parcel
	loss  float64
	dup   float64
	most  mono.Duration // of the delay; a parcel may overtake another
	cut   map[[2]int]bool
	onMAD func(from int, m *Msg) bool // false: lost
}

type parcel struct {
	at       mono.Time
	from, to int
	src, dst netip.Addr
	mad      [MADLen]byte
}

type node struct {
	w    *world
	i    int
	m    *Manager
	addr netip.Addr
	p    *Program
	ch   *Channel
	got  []Event
}

func addrOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

func newWorld(t *testing.T, seed uint64, n int) *world {
	w := &world{t: t, now: 1000, rnd: rng.New(seed, "net"), most: 50 * mono.Microsecond, cut: map[[2]int]bool{}}
	for i := range n {
		nd := &node{w: w, i: i, addr: addrOf(i)}
		nd.start(seed)
		w.nodes = append(w.nodes, nd)
	}
	return w
}

// start gives the node a daemon, a new one if it had one.
func (n *node) start(seed uint64) {
	w := n.w
	n.m = New(Config{Seed: seed*100 + uint64(n.i) + uint64(w.now), NICs: []NIC{{Name: fmt.Sprintf("h%d/mr0", n.i), GUID: uint64(n.i + 1),
		Addrs: []netip.Addr{n.addr, netip.AddrFrom16([16]byte{0xfd, 15: byte(n.i + 1)})}, MTU: 3, Reads: 16}},
		Send: func(now mono.Time, _ int, src, dst netip.Addr, mad *[MADLen]byte) { w.carry(n.i, src, dst, mad) }})
	n.program()
}

func (n *node) program() {
	n.p = n.m.NewProgram([]int{0})
	n.ch, _ = n.p.NewChannel(func() bool { return true })
}

func (w *world) carry(from int, src, dst netip.Addr, mad *[MADLen]byte) {
	var m Msg
	if !Parse(mad[:], &m) {
		w.t.Fatalf("node %d sends what it would not read", from)
	}
	if w.onMAD != nil && !w.onMAD(from, &m) {
		return
	}
	to := int(dst.AsSlice()[len(dst.AsSlice())-1]) - 1
	if to < 0 || to >= len(w.nodes) || w.cut[[2]int{from, to}] {
		return
	}
	for range 2 {
		if !w.rnd.Chance(w.loss) {
			w.sent = append(w.sent, parcel{w.now.Add(mono.Duration(1 + w.rnd.IntN(int(w.most)))), from, to, src, dst, *mad})
		}
		if !w.rnd.Chance(w.dup) {
			return
		}
	}
}

// step goes to the next thing that happens.
func (w *world) step() bool {
	next, k := mono.Never, -1
	for i := range w.sent {
		if w.sent[i].at < next {
			next, k = w.sent[i].at, i
		}
	}
	for _, n := range w.nodes {
		if t := n.m.NextTimeout(); t < next {
			next, k = t, -1
		}
	}
	if next == mono.Never {
		return false
	}
	w.now = max(w.now, next)
	if k >= 0 {
		p := w.sent[k]
		w.sent = append(w.sent[:k], w.sent[k+1:]...)
		w.nodes[p.to].m.HandleMAD(w.now, 0, p.src, p.dst, p.mad[:])
	}
	for _, n := range w.nodes {
		n.m.HandleTimers(w.now)
		for {
			e, ok := n.ch.Get()
			if !ok {
				break
			}
			n.got = append(n.got, e)
		}
	}
	return true
}

// until runs until done, at most for a time. It reports whether it is done.
func (w *world) until(most mono.Duration, done func() bool) bool {
	for end := w.now.Add(most); w.now <= end; {
		if done() {
			return true
		}
		if !w.step() {
			break
		}
	}
	return done()
}

// take waits for the node's next event and checks it.
func (n *node) take(kind EventKind) Event {
	n.w.t.Helper()
	if !n.w.until(20*mono.Second, func() bool { return n.peek() || len(n.got) > 0 }) {
		n.w.t.Fatalf("node %d: no event %d", n.i, kind)
	}
	e := n.got[0]
	n.got = n.got[1:]
	if e.Kind != kind {
		n.w.t.Fatalf("node %d: event %d (status %d), want %d", n.i, e.Kind, e.Status, kind)
	}
	return e
}

func (n *node) peek() bool {
	e, ok := n.ch.Get()
	if ok {
		n.got = append(n.got, e)
	}
	return ok
}

func (n *node) id(ps PortSpace, typ uint8) *ID {
	id, err := n.p.NewID(n.ch.Handle, ps, typ)
	if err != nil {
		n.w.t.Fatal(err)
	}
	return id
}

func (n *node) listen(port uint16) *ID { return n.listenAt(netip.IPv4Unspecified(), port, PSTCP, qpRC) }

func (n *node) listenAt(a netip.Addr, port uint16, ps PortSpace, typ uint8) *ID {
	n.w.t.Helper()
	l := n.id(ps, typ)
	if err := l.Bind(netip.AddrPortFrom(a, port)); err != nil {
		n.w.t.Fatal(err)
	}
	if err := l.Listen(0); err != nil {
		n.w.t.Fatal(err)
	}
	return l
}

// dial resolves and asks for a connection.
func (n *node) dial(to netip.Addr, port uint16, ps PortSpace, typ uint8, private string) *ID {
	n.w.t.Helper()
	id := n.id(ps, typ)
	if err := id.ResolveAddr(n.w.now, netip.AddrPort{}, netip.AddrPortFrom(to, port)); err != nil {
		n.w.t.Fatal(err)
	}
	n.take(EvAddrResolved)
	if err := id.ResolveRoute(); err != nil {
		n.w.t.Fatal(err)
	}
	n.take(EvRouteResolved)
	if err := id.Connect(n.w.now, Param{QPN: 0x11 + id.Handle, RespRes: 4, InitDepth: 7, Retry: 7, RNR: 6, Flow: true}, []byte(private)); err != nil {
		n.w.t.Fatal(err)
	}
	return id
}

// pair makes a connection from node 0 to a listener of node 1.
func (w *world) pair(port uint16) (a, b *ID) {
	w.t.Helper()
	x, y := w.nodes[0], w.nodes[1]
	a = x.dial(y.addr, port, PSTCP, qpRC, "hello")
	b = y.take(EvConnectRequest).ID
	if err := b.Accept(w.now, Param{QPN: 0x21 + b.Handle, RespRes: 7, InitDepth: 4, RNR: 5}, []byte("welcome")); err != nil {
		w.t.Fatal(err)
	}
	x.take(EvConnectResponse)
	if err := a.Establish(w.now); err != nil {
		w.t.Fatal(err)
	}
	y.take(EvEstablished)
	return a, b
}
