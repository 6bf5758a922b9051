package metaroce

import (
	"net/netip"
	"reflect"
	"runtime"
	"testing"
)

// heapInUse is what is left after everything that is garbage was collected.
func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestStateSizes measures what state costs with the real engine, in bytes. Appendix A2 of the spec calculates with
// these figures (`-v` prints them). The bounds are above them by a quarter or so: what costs more has to change the
// appendix, too.
func TestStateSizes(t *testing.T) {
	const planes = 4
	check := func(what string, got, bound int) {
		t.Helper()
		t.Logf("%-60s %8d", what, got)
		if got > bound {
			t.Errorf("%s: %d bytes, appendix A2 allows %d", what, got, bound)
		}
	}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	config := func(n int) (c Config) {
		c = Config{NICID: 1, Addrs: []netip.Addr{addr(0)}, TxRecords: 64, HeldBuffers: 1, RespBuffers: 1}
		for range n {
			c.Planes = append(c.Planes, PlaneConfig{PacketMax: maxPayload + 124})
		}
		return c
	}
	size := func(x any) int { return int(reflect.TypeOf(x).Size()) }

	before := heapInUse()
	whole := config(planes)
	whole.TxRecords, whole.HeldBuffers, whole.RespBuffers = 0, 0, 0
	e := New(whole, nobody{})
	check("engine with its default pools", heapInUse()-before, 34<<20)
	runtime.KeepAlive(e)

	const many = 1000
	var assocs [2]int
	for i, n := range []int{1, planes} {
		e = New(config(n), nobody{})
		e.tick(1)
		e.assocFor(addr(0), addr(1), false)
		before = heapInUse()
		for k := range many {
			e.assocFor(addr(0), addr(2+k), false)
		}
		assocs[i] = (heapInUse() - before) / many
		runtime.KeepAlive(e)
	}
	check("association, 1 plane, no path", assocs[0], 4000)
	check("  each further plane", (assocs[1]-assocs[0])/(planes-1), 1500)

	before = heapInUse()
	for _, a := range e.assocs[:100] {
		for i := range a.planes {
			for k := range maxPaths {
				a.planes[i].path(k)
			}
		}
	}
	check("path at the sender", (heapInUse()-before)/(100*planes*maxPaths), 1700)
	runtime.KeepAlive(e)
	before = heapInUse()
	for _, a := range e.assocs[:100] {
		for p := range planes {
			for k := range maxPaths {
				a.rx.path(uint16(p<<8 | k))
			}
		}
	}
	check("path at the receiver", (heapInUse()-before)/(100*planes*maxPaths), 160)
	runtime.KeepAlive(e)
	check("transmission in flight", size(txRec{}), 112)

	qps := func(e *Engine, first, n, sq int) int {
		before := heapInUse()
		for k := range n {
			q := e.CreateQP(uint32(first+k), QPConfig{SQEntries: sq, MaxSendSGE: 1})
			q.ToInit()
			q.ToRTR(1, RTRAttr{Local: addr(0), Remote: addr(1), RemoteQPN: 5, PathMTU: maxPayload, MaxDestRdAtomic: 16})
			q.ToRTS(1, RTSAttr{MaxRdAtomic: 16})
		}
		return (heapInUse() - before) / n
	}
	e = New(config(planes), nobody{})
	one := qps(e, 100, 4000, 1)
	more := qps(e, 10_000, 1000, 65)
	check("QP, connected, send queue of 1, nothing posted", one, 2_500)
	check("  each place in the send queue, 1 SGE", (more-one)/127, 230) // 65 places become 128
	check("QP: request PSN sent and not acknowledged", size(pst{}), 48)
	check("QP: request PSN arrived ahead of its turn", size(slot{}), 160)
	check("QP: response PSN kept or awaited", size(respPkt{})+size(false), 112)
	check("held tail, kept READ response: payload of", maxPayload, maxPayload)
	check("QP: READ or atomic outstanding (in the figures above)", size(rdReq{}), 64)
	runtime.KeepAlive(e)
}
