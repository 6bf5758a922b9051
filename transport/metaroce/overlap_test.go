package metaroce

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport"
)

// shifts is a NIC with keys that name memory by other addresses.
type shifts struct {
	nobody
	by map[uint32]uint64
}

func (h shifts) KeyOffset(_ any, rkey uint32) uint64 { return h.by[rkey] }
func (shifts) DMA([]transport.MemOp)                 {}

// ahead makes a responder to which n WRITE packets have come ahead of their turn.
func ahead(h transport.Host, n int, draw func(i uint64) slot) *QP {
	addr := netip.MustParseAddr("10.0.0.1")
	e := New(Config{NICID: 1, Addrs: []netip.Addr{addr}, Planes: []PlaneConfig{{PacketMax: 4220}}}, h)
	q := e.CreateQP(5, QPConfig{SQEntries: 1, MaxSendSGE: 1})
	q.ToRTR(1_000_000, RTRAttr{Local: addr, Remote: netip.MustParseAddr("10.0.0.2"), RemoteQPN: 6, PathMTU: 1024})
	s := &q.rsp
	for i := range uint64(n) {
		psn := s.exp + 1 + i
		s.slots.extend(psn)
		x := draw(i)
		*s.slots.at(psn) = x
		s.top = psn + 1
		if x.write && x.n > 0 {
			s.noteWrite(psn, &x)
		}
	}
	return q
}

// TestWroteOver: every packet that may have placed some of the bytes is among those that are looked at.
func TestWroteOver(t *testing.T) {
	r := rng.New(1, "overlap")
	h := shifts{by: map[uint32]uint64{1: 0, 2: 5000, 3: ^uint64(999), 4: 1 << 63}}
	for range 300 {
		keys, near := 1+r.IntN(4), r.IntN(3) > 0
		q := ahead(h, 1+r.IntN(1000), func(i uint64) slot {
			x := slot{st: slotPlaced, addr: 10_000 + i*100, rkey: 1, n: uint32(r.IntN(101)), write: r.IntN(8) > 0}
			if r.IntN(50) == 0 {
				x.rkey, x.addr = uint32(1+r.IntN(keys)), r.Uint64()
			}
			if !near {
				x.rkey, x.addr = uint32(1+r.IntN(keys)), uint64(r.IntN(200_000))
			}
			return x
		})
		s := &q.rsp
		for range 50 {
			psn := s.exp + uint64(r.IntN(int(s.top-s.exp)))
			lo, key := uint64(r.IntN(120_000)), uint32(1+r.IntN(keys))
			end := lo + 1 + uint64(r.IntN(500))
			from, to := q.wroteOver(psn, lo, end, key)
			for n := psn + 1; n < s.top; n++ {
				y := s.slots.at(n)
				at := y.addr + h.by[y.rkey] - h.by[key]
				//= MR-MSG-025
				if y.write && y.n > 0 && at < end && lo < at+uint64(y.n) && (n < from || n >= to) {
					t.Fatalf("packet %d at %d under key %d is not among [%d, %d) for [%d, %d) under key %d", n, y.addr, y.rkey, from, to, lo, end, key)
				}
			}
		}
	}
}

// BenchmarkLate is a packet of a stream that comes late, behind thousands that came in time.
func BenchmarkLate(b *testing.B) {
	q := ahead(shifts{}, 4000, func(i uint64) slot {
		return slot{st: slotPlaced, addr: (i + 1) << 10, rkey: 1, n: 1 << 10, write: true}
	})
	data := make([]byte, 1<<10)
	x := slot{rkey: 1, n: 1 << 10}
	b.ReportAllocs()
	for b.Loop() {
		q.e.out.ops = q.e.out.ops[:0]
		var j job
		q.place(&j.nops, &x, q.rsp.exp, data, x.n, 0, true)
	}
}
