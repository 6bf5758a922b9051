package scale

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// nobody is the NIC of an engine that never does anything.
type nobody struct{ transport.Host }

func heapInUse() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// TestSizes measures with the engines what the tables say of a QP with an association of its own.
func TestSizes(t *testing.T) {
	const many, planes, sq = 1000, 8, 128
	c := metaroce.Config{NICID: 1, Addrs: []netip.Addr{address(0)}, TxRecords: 64, HeldBuffers: 1, RespBuffers: 1}
	for range planes {
		c.Planes = append(c.Planes, metaroce.PlaneConfig{PacketMax: 4096 + 124})
	}
	e := metaroce.New(c, nobody{})
	before := heapInUse()
	for k := range many {
		q := e.CreateQP(uint32(100+k), metaroce.QPConfig{SQEntries: sq, MaxSendSGE: 1})
		q.ToInit()
		q.ToRTR(1, metaroce.RTRAttr{Local: address(0), Remote: address(1 + k), RemoteQPN: 5, PathMTU: 4096, MaxDestRdAtomic: 16})
		q.ToRTS(1, metaroce.RTSAttr{MaxRdAtomic: 16})
	}
	got := (heapInUse() - before) / many
	near(t, "QP and association", got, qpBytes+placeBytes*sq+assocBytes+planeBytes*(planes-1), 0.1)
	runtime.KeepAlive(e)

	r := rocev2.New(rocev2.Config{Seed: 1, Addrs: []netip.Addr{address(0)}, Planes: []rocev2.PlaneConfig{{PacketMax: 4096 + 124}}}, nobody{})
	var sizes [2]float64
	for i, sq := range []int{1, 129} { // 129 places become 256
		before = heapInUse()
		for k := range many {
			q := r.CreateQP(uint32(100+2000*i+k), rocev2.QPConfig{SQEntries: sq, MaxSendSGE: 1})
			q.ToInit()
		}
		sizes[i] = (heapInUse() - before) / many
	}
	t.Logf("rocev2: QP %.0f, place %.0f", sizes[0], (sizes[1]-sizes[0])/255)
	near(t, "rocev2: place in the send queue", roceWQE, (sizes[1]-sizes[0])/255, 0.1)
	near(t, "rocev2: QP", roceQPBytes, sizes[0]-(sizes[1]-sizes[0])/255, 0.1)
	runtime.KeepAlive(r)
}

// TestState: the rows of appendix A2.2: one QP for each of 4,000 endpoints, 8 planes.
func TestState(t *testing.T) {
	topo, err := Design(4096, 8, 1, 800e9)
	if err != nil {
		t.Fatal(err)
	}
	topo.Delay = mono.Microsecond
	m := model(t, topo, plan.MetaRoCE, 0)
	s := m.State(Collective{Kind: AllToAll, Size: 1 << 30})
	n := 4095.0
	near(t, "associations", s.AssocBytes/n, 12698, 1e-9)
	near(t, "QPs", s.QPBytes/n, 2015+185*128, 1e-3)
	near(t, "paths", s.PathBytes/n, 700.4e3, 1e-3)
	near(t, "probes", s.Probes, 8*n, 1e-9)
	if s.Peers != 4095 || s.Over {
		t.Errorf("peers %d, over %v", s.Peers, s.Over)
	}
	ring := m.State(Collective{Kind: Ring, Size: 1 << 30})
	if ring.Peers != 2 || ring.Probes != 16 || ring.PlaneRTTs > 10 || ring.SpineRTTs > 10 || ring.PlaneRecovery >= s.PlaneRecovery {
		t.Errorf("ring: %+v", ring)
	}
	// 64 KiB messages at line rate: an acknowledgement for each 8 packets.
	ring = m.State(Collective{Kind: Permutation, Size: 64 << 10})
	near(t, "acks", ring.Acks, 100e9/(16*4210)*2, 1e-3)
	r := model(t, topo, plan.RoCEv2, 0)
	r.T.QPs = 4
	if s := r.State(Collective{Kind: Halving, Size: 1 << 20}); s.QPs != 48 || s.PlaneRecovery < 0.134 || s.Associations != 0 {
		t.Errorf("rocev2: %+v", s)
	}
}
