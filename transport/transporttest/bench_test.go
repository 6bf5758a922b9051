package transporttest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// nullHost has memory that nothing is copied to or from: what is left is the engine and the packets' checksums.
type nullHost struct{ done int }

func (h *nullHost) DMA(ops []transport.MemOp) {
	for i := range ops {
		ops[i].Err = transport.MemOK
	}
}
func (h *nullHost) TakeRecv(any) *transport.RecvWR                      { return nil }
func (h *nullHost) ReturnRecv(any, *transport.RecvWR)                   {}
func (h *nullHost) RelaxedKey(any, uint32) bool                         { return false }
func (h *nullHost) KeyOffset(any, uint32) uint64                        { return 0 }
func (h *nullHost) SendDone(any, *transport.SendWR, transport.Status)   { h.done++ }
func (h *nullHost) RecvDone(any, *transport.RecvWR, transport.RecvInfo) {}
func (h *nullHost) QPError(any, bool, transport.Status)                 {}
func (h *nullHost) Event(transport.Event)                               {}

// bare is two engines that hand each other their batches, nothing in between.
type bare struct {
	e     [2]*metaroce.Engine
	host  [2]nullHost
	batch [2]*pkt.Batch
	q     *metaroce.QP
	now   mono.Time
}

func newBare(mtu int) *bare {
	w := &bare{now: 1_000_000}
	var qs [2]*metaroce.QP
	addr := [2]netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 1}), netip.AddrFrom4([4]byte{10, 0, 0, 2})}
	for i := range 2 {
		planes := make([]metaroce.PlaneConfig, 4)
		for p := range planes {
			planes[p] = metaroce.PlaneConfig{PacketMax: PacketMax, RateBps: 100e9}
		}
		w.e[i] = metaroce.New(metaroce.Config{NICID: uint64(i + 1), Instance: 1, Seed: uint64(i), Addrs: addr[i : i+1], Planes: planes}, &w.host[i])
		w.batch[i] = pkt.NewBatch(pkt.Burst, PacketMax)
		qs[i] = w.e[i].CreateQP(uint32(0x100+i), metaroce.QPConfig{Owner: i, SQEntries: 64, MaxSendSGE: 1})
		qs[i].ToInit()
	}
	for i, q := range qs {
		q.ToRTR(w.now, metaroce.RTRAttr{Local: addr[i], Remote: addr[1-i], RemoteQPN: uint32(0x101 - i), PathMTU: mtu, MaxDestRdAtomic: 1})
		q.ToRTS(w.now, metaroce.RTSAttr{Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1})
	}
	w.q = qs[0]
	return w
}

func (w *bare) post(n int) {
	for wr := w.q.NextWR(); wr != nil; wr = w.q.NextWR() {
		wr.Op, wr.Length, wr.RKey = transport.OpWrite, uint32(n), 1
		wr.SGE = append(wr.SGE, transport.SGE{Length: uint32(n)})
		w.q.Post(w.now)
	}
}

// round moves one burst from a to b and what b answers back to a.
func (w *bare) round() {
	for i := range 2 {
		w.batch[i].Reset()
		w.e[i].HandleTimers(w.now)
		w.e[i].Transmit(w.now, w.batch[i])
		w.e[1-i].HandlePackets(w.now, w.batch[i].Pkts[:w.batch[i].N])
	}
	w.now = w.now.Add(5 * mono.Microsecond)
}

// BenchmarkEngine gives the time of one data packet in both engines together, its share of acknowledgements and the
// checksums included, without copies of the payload.
func BenchmarkEngine(b *testing.B) {
	for _, mtu := range []int{256, 1024, 4096} {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) {
			w := newBare(mtu)
			for range 200 {
				w.post(64 * mtu)
				w.round()
			}
			b.ReportAllocs()
			b.ResetTimer()
			first, acks := w.e[0].C.TxPackets, w.e[1].C.TxAcks
			for w.e[0].C.TxPackets-first < uint64(b.N) {
				w.post(64 * mtu)
				w.round()
			}
			b.StopTimer()
			n := float64(w.e[0].C.TxPackets - first)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/packet")
			b.ReportMetric(float64(w.e[1].C.TxAcks-acks)/n, "acks/packet")
			if w.host[0].done == 0 {
				b.Fatal("nothing completed")
			}
		})
	}
}
