package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
)

// TestMigrateChild: what is said of a request that nobody has read yet goes with its listener, in order.
func TestMigrateChild(t *testing.T) {
	w := newWorld(t, 11, 2)
	x, y := w.nodes[0], w.nodes[1]
	l := y.listen(9)
	unread, _ := y.p.NewChannel(func() bool { return true })
	l.Migrate(unread)
	a := x.dial(y.addr, 9, PSTCP, qpRC, "")
	w.until(mono.Second, func() bool { return l.waiting == 1 })
	a.Destroy(w.now)
	w.until(mono.Second, func() bool { return len(unread.queue) == 2 })
	to, _ := y.p.NewChannel(func() bool { return true })
	if back := l.Migrate(to); back != 2 || len(unread.queue) != 0 {
		t.Fatalf("%d to take back, %d stay", back, len(unread.queue))
	}
	first, _ := to.Get()
	second, _ := to.Get()
	if first.Kind != EvConnectRequest || second.Kind != EvRejected || first.ID != second.ID || first.ID.ch != to {
		t.Errorf("%+v, %+v", first, second)
	}
	first.ID.Destroy(w.now)
	l.Destroy(w.now)
	for _, ch := range []*Channel{unread, to} {
		if err := y.p.CloseChannel(ch.Handle); err != nil {
			t.Errorf("channel %d: %v", ch.Handle, err)
		}
	}
}

// TestSetAddrs: the manager follows the addresses of a NIC; indices stay, an empty place is nobody's address.
func TestSetAddrs(t *testing.T) {
	w := newWorld(t, 12, 2)
	x, y := w.nodes[0], w.nodes[1]
	fresh := netip.MustParseAddr("10.0.9.2")
	old := y.addr
	y.m.SetAddrs(0, []netip.Addr{{}, netip.AddrFrom16([16]byte{0xfd, 15: 2}), fresh})
	if err := y.id(PSTCP, qpRC).Bind(netip.AddrPortFrom(old, 9)); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("an address that is gone: %v", err)
	}
	l := y.listenAt(fresh, 9, PSTCP, qpRC)
	if l.gidIndex() != 2 {
		t.Errorf("GID index %d", l.gidIndex())
	}
	x.dial(fresh, 9, PSTCP, qpRC, "")
	if e := y.take(EvConnectRequest); e.ID.src.Addr() != fresh {
		t.Errorf("%v", e.ID.src)
	}
	b := y.id(PSTCP, qpRC)
	if err := b.ResolveAddr(w.now, netip.AddrPort{}, netip.AddrPortFrom(x.addr, 9)); err != nil || b.src.Addr() != fresh {
		t.Errorf("from %v: %v", b.src, err)
	}
}

// TestEventsBound: a program that never reads gets no more memberships.
func TestEventsBound(t *testing.T) {
	w := newWorld(t, 13, 1)
	x := w.nodes[0]
	joined := 0
	var err error
	for err == nil && joined <= eventsMost {
		id := x.id(PSUDP, qpUD)
		if err := id.Set(1, 1); err != nil {
			t.Fatal(err)
		}
		if err := id.Bind(netip.AddrPortFrom(x.addr, 7000)); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < groupsMost && err == nil; i++ {
			if _, err = id.Join(netip.AddrFrom4([4]byte{239, 0, 0, byte(i)})); err == nil {
				joined++
			}
		}
	}
	if joined != eventsMost || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d joined, %v", joined, err)
	}
	x.p.Close(w.now)
	if x.m.IDs != 0 {
		t.Errorf("%d IDs left", x.m.IDs)
	}
}
