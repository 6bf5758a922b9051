package device_test

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// TestF38GIDs: an address that goes away leaves its index empty and gets it back, programs hear of each change once, and
// whatever else there is keeps its index.
func TestF38GIDs(t *testing.T) {
	w := newWorld(t, false)
	n := w.nics[0]
	p := newProg(t, n)
	addr := netip.MustParseAddr
	first := n.Addrs()[0]
	events := 0
	for i, step := range []struct {
		addrs  []netip.Addr
		table  []netip.Addr
		change int
		fails  bool
	}{
		{[]netip.Addr{first}, []netip.Addr{first}, 0, false},
		{[]netip.Addr{addr("10.0.0.7"), first}, []netip.Addr{first, addr("10.0.0.7")}, 1, false},
		{[]netip.Addr{addr("10.0.0.7"), addr("10.0.0.7")}, []netip.Addr{{}, addr("10.0.0.7")}, 1, false},
		{[]netip.Addr{addr("10.0.0.7"), addr("10.0.0.8"), first}, []netip.Addr{first, addr("10.0.0.7"), addr("10.0.0.8")}, 2, false},
		{[]netip.Addr{first, addr("fd00::1")}, []netip.Addr{first, {}, {}}, 2, true}, // the NIC began without IPv6
		{[]netip.Addr{first, addr("224.0.0.1"), {}}, []netip.Addr{first, {}, {}}, 0, true},
		{[]netip.Addr{first, addr("::ffff:10.0.0.8")}, []netip.Addr{first, {}, addr("10.0.0.8")}, 1, false},
	} {
		if err := n.SetAddrs(w.now, step.addrs); (err != nil) != step.fails {
			t.Fatalf("step %d: %v", i, err)
		}
		if got := n.GIDTable(); !slices.Equal(got, step.table) {
			t.Fatalf("step %d: table %v, want %v", i, got, step.table)
		}
		events += step.change
		if len(p.ev.async) != events {
			t.Fatalf("step %d: %d events, want %d", i, len(p.ev.async), events)
		}
		for _, e := range p.ev.async {
			if e.Type != 18 || e.Port != 1 {
				t.Fatalf("step %d: event %+v", i, e)
			}
		}
	}
	if _, err := n.GID(1, 1); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("an empty entry: %v", err)
	}
	if _, err := n.GID(1, 3); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("behind the table: %v", err)
	}
	var port hostq.PortAttr
	if err := n.PortAttr(1, &port); err != nil || port.GIDTblLen != 3 {
		t.Errorf("table of %d entries: %v", port.GIDTblLen, err)
	}
	// An empty entry serves no new connection.
	q := p.qp()
	m := attr(q.Handle(), device.Init, first, 0)
	m.Mask = toInit
	if err := p.ctx.ModifyQP(w.now, m); err != nil {
		t.Fatal(err)
	}
	m = attr(q.Handle(), device.RTR, w.nics[1].Addrs()[0], 5)
	m.Mask, m.AH.SGIDIndex = toRTR, 1
	if err := p.ctx.ModifyQP(w.now, m); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTR with an empty GID: %v", err)
	}
}

// TestGIDTableFull: the table has an end.
func TestGIDTableFull(t *testing.T) {
	w := newWorld(t, true)
	n := w.nics[0]
	addrs := []netip.Addr{n.Addrs()[0]}
	for i := range 256 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}))
	}
	if err := n.SetAddrs(w.now, addrs[:256]); err != nil {
		t.Fatal(err)
	}
	if err := n.SetAddrs(w.now, addrs); err == nil || len(n.GIDTable()) != 256 {
		t.Errorf("%v, %d entries", err, len(n.GIDTable()))
	}
}

// TestGIDConnections: a connection over an address that was added works, and one whose address goes and comes back goes on,
// with both protocols.
func TestGIDConnections(t *testing.T) {
	for name, policy := range map[string]device.Policy{"metaroce": device.OnlyMetaRoCE, "rocev2": device.OnlyRoCEv2} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, false, policy)
			first, second := w.nics[0].Addrs()[0], netip.MustParseAddr("10.0.0.7")
			if err := w.nics[0].SetAddrs(w.now, []netip.Addr{first, second}); err != nil {
				t.Fatal(err)
			}
			a, b := newProg(t, w.nics[0]), newProg(t, w.nics[1])
			qa, qb := a.qp(), b.qp()
			a.upFrom(qa, 1, b.nic.Addrs()[0], qb.QPN())
			b.up(qb, second, qa.QPN())
			write := func(id uint64) {
				qa.SQ.PutSend(hostq.SQE{WRID: id, Opcode: hostq.WRWrite, RKey: b.mr.Key(), RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, 100))
				qa.SQ.Ring()
			}
			write(1)
			w.want(a, 1, transport.OK)
			for i, list := range [][]netip.Addr{{first}, {first, second}} {
				if err := w.nics[0].SetAddrs(w.now, list); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					w.step(10)
				}
			}
			write(2)
			w.want(a, 2, transport.OK)
		})
	}
}
