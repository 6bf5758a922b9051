package metaroce

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// nobody is a NIC without memory or queues.
type nobody struct{ transport.Host }

func (nobody) Event(transport.Event) {}

// TestGapAcrossEntropies: ten transmissions of one path; only the last one is acknowledged. A gap counts among the
// transmissions of one entropy: those before a change say nothing about each other's order with those after it.
func TestGapAcrossEntropies(t *testing.T) {
	for _, c := range []struct {
		change int // transmissions before the entropy changed
		lost   uint64
	}{{0, 7}, {4, 3}, {8, 0}, {10, 0}} {
		e := New(Config{NICID: 1, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Planes: []PlaneConfig{{PacketMax: 4220}}}, nobody{})
		e.tick(1_000_000)
		a := e.assocFor(e.cfg.Addrs[0], netip.MustParseAddr("10.0.0.2"), true)
		q := e.CreateQP(5, QPConfig{SQEntries: 1, MaxSendSGE: 1})
		p := a.planes[0].path(0)
		for n := range 10 {
			if n == c.change {
				p.genStart = p.next
			}
			e.newRec(p, q, txRequest, uint64(n), 1000)
		}
		if c.change == 10 {
			p.genStart = p.next
		}
		q.inc++ // nobody's packets any more
		a.onPathBlock(&wire.PathBlock{Path: p.id, Highest: p.next - 1, Echo: e.stamp()})
		//= MR-PATH-012
		if e.C.LostGap != c.lost {
			t.Errorf("entropy changed after %d: %d called lost, want %d", c.change, e.C.LostGap, c.lost)
		}
	}
}

// TestFirstGuess: a port goes by the first guess of a round trip, which is long, no longer than until one was measured.
func TestFirstGuess(t *testing.T) {
	e := New(Config{NICID: 1, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Planes: []PlaneConfig{{PacketMax: 4220, RateBps: 100e9}}}, nobody{})
	e.tick(1_000_000)
	a := e.assocFor(e.cfg.Addrs[0], netip.MustParseAddr("10.0.0.2"), true)
	a.users, a.state = 1, assocUp
	e.enliven(a)
	if got := e.ports[0].roundTrip(e); got != rttStart {
		t.Fatalf("before anything is measured: %v, want %v", got, rttStart)
	}
	e.tick(1_020_000)
	a.planes[0].base = 9 * mono.Microsecond
	if got := e.ports[0].roundTrip(e); got != 9*mono.Microsecond {
		t.Errorf("once it is measured: %v", got)
	}
}
