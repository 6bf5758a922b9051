package transporttest

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// nullHost has memory that nothing is copied to or from: what is left is the engine and the packets' checksums. It
// lists the QPs of which something completed.
type nullHost struct {
	n    int
	done []int
}

func (h *nullHost) DMA(ops []transport.MemOp) {
	for i := range ops {
		ops[i].Err = transport.MemOK
	}
}
func (h *nullHost) TakeRecv(any) *transport.RecvWR                   { return nil }
func (h *nullHost) ReturnRecv(any, *transport.RecvWR)                {}
func (h *nullHost) RelaxedKey(any, uint32) bool                      { return false }
func (h *nullHost) KeyOffset(any, uint32) uint64                     { return 0 }
func (h *nullHost) ShiftedKeys(any) bool                             { return false }
func (h *nullHost) RunLocal(any, *transport.SendWR) transport.Status { return transport.OK }
func (h *nullHost) SendDone(owner any, _ *transport.SendWR, s transport.Status) {
	if s == transport.OK {
		h.n++
		h.done = append(h.done, owner.(*place).i)
	}
}
func (h *nullHost) RecvDone(any, *transport.RecvWR, transport.RecvInfo) {}
func (h *nullHost) QPError(any, bool, transport.Status)                 { panic("a QP failed") }
func (h *nullHost) Event(transport.Event)                               {}

// place is the owner of a QP: its index.
type place struct{ i int }

// benchEngine is what a loop calls of either engine.
type benchEngine interface {
	HandlePackets(now mono.Time, ps []pkt.Packet)
	HandleTimers(now mono.Time)
	Transmit(now mono.Time, b *pkt.Batch)
}

type benchQP interface {
	NextWR() *transport.SendWR
	Post(now mono.Time)
}

// bare is two engines that hand each other their batches, nothing in between.
type bare struct {
	e     [2]benchEngine
	host  [2]nullHost
	batch [2]*pkt.Batch
	qs    []benchQP
	seal  func(p *pkt.Packet)
	sent  func() (packets, acks uint64)
	now   mono.Time
	size  int // of a message
	spent spent
}

// spent is where the time of some packets went.
type spent struct {
	send, receive, icrc time.Duration
	packets             int
}

func newBare() *bare {
	w := &bare{now: 1_000_000}
	for i := range 2 {
		w.batch[i] = pkt.NewBatch(pkt.Burst, PacketMax)
		w.host[i].done = make([]int, 0, 1<<16)
	}
	return w
}

var benchAddr = [2]netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 1}), netip.AddrFrom4([4]byte{10, 0, 0, 2})}

// bareMetaRoCE is a pair of MetaRoCE engines over four planes, with some QPs between them.
func bareMetaRoCE(mtu, size, qps, depth int) *bare {
	w := newBare()
	w.size = size
	var es [2]*metaroce.Engine
	for i := range es {
		planes := make([]metaroce.PlaneConfig, 4)
		for p := range planes {
			planes[p] = metaroce.PlaneConfig{PacketMax: PacketMax, RateBps: 100e9}
		}
		es[i] = metaroce.New(metaroce.Config{NICID: uint64(i + 1), Instance: 1, Seed: uint64(i), Addrs: benchAddr[i : i+1], Planes: planes}, &w.host[i])
		w.e[i] = es[i]
		for k := range qps {
			q := es[i].CreateQP(uint32(0x100+k), metaroce.QPConfig{Owner: &place{k}, SQEntries: depth, MaxSendSGE: 1})
			q.ToInit()
			q.ToRTR(w.now, metaroce.RTRAttr{Local: benchAddr[i], Remote: benchAddr[1-i], RemoteQPN: uint32(0x100 + k), PathMTU: mtu, MaxDestRdAtomic: 1})
			q.ToRTS(w.now, metaroce.RTSAttr{Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1})
			if i == 0 {
				w.qs = append(w.qs, q)
			}
		}
	}
	w.seal = func(p *pkt.Packet) { wire.Seal(p.Data) }
	w.sent = func() (uint64, uint64) { return es[0].C.TxPackets, es[1].C.TxAcks }
	return w
}

// bareRoCEv2 is a pair of RoCEv2 engines over one plane. Nothing paces them.
func bareRoCEv2(mtu, size, qps, depth int) *bare {
	w := newBare()
	w.size = size
	var es [2]*rocev2.Engine
	for i := range es {
		es[i] = rocev2.New(rocev2.Config{Seed: uint64(i), Addrs: benchAddr[i : i+1], Planes: []rocev2.PlaneConfig{{PacketMax: PacketMax}}, Window: 1 << 22,
			CC: rocev2.CCNone}, &w.host[i])
		w.e[i] = es[i]
		for k := range qps {
			q := es[i].CreateQP(uint32(0x100+k), rocev2.QPConfig{Owner: &place{k}, SQEntries: depth, MaxSendSGE: 1})
			q.ToInit()
			q.ToRTR(w.now, rocev2.RTRAttr{Local: benchAddr[i], Remote: benchAddr[1-i], RemoteQPN: uint32(0x100 + k), PathMTU: mtu, MaxDestRdAtomic: 1})
			q.ToRTS(w.now, rocev2.RTSAttr{Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1})
			if i == 0 {
				w.qs = append(w.qs, q)
			}
		}
	}
	s := new(ib.Summer)
	w.seal = s.Seal
	w.sent = func() (uint64, uint64) { return es[0].C.TxPackets, es[1].C.TxAcks }
	return w
}

// fill posts until the send queue of a QP is full.
func (w *bare) fill(i int) {
	q := w.qs[i]
	for wr := q.NextWR(); wr != nil; wr = q.NextWR() {
		wr.Op, wr.Length, wr.RKey = transport.OpWrite, uint32(w.size), 1
		wr.SGE = append(wr.SGE, transport.SGE{Length: uint32(w.size)})
		q.Post(w.now)
	}
}

// round posts, moves one burst from a to b, and what b answers back to a. All that a does counts as sending (posting,
// acknowledgements and completions, too), all that b does as receiving. The checksum is timed by writing it once more. A
// round trip is 4 µs of virtual time, or there would be no samples.
func (w *bare) round() {
	a, b := w.e[0], w.e[1]
	data, acks := w.batch[0], w.batch[1]
	t0 := time.Now()
	for _, i := range w.host[0].done {
		w.fill(i)
	}
	w.host[0].done = w.host[0].done[:0]
	data.Reset()
	a.HandleTimers(w.now)
	a.Transmit(w.now, data)
	t1 := time.Now()
	for i := range data.N {
		w.seal(&data.Pkts[i])
	}
	w.now = w.now.Add(2 * mono.Microsecond)
	t2 := time.Now()
	b.HandlePackets(w.now, data.Pkts[:data.N])
	acks.Reset()
	b.HandleTimers(w.now)
	b.Transmit(w.now, acks)
	t3 := time.Now()
	w.now = w.now.Add(2 * mono.Microsecond)
	a.HandlePackets(w.now, acks.Pkts[:acks.N])
	t4 := time.Now()
	w.spent.send += t1.Sub(t0) + t4.Sub(t3)
	w.spent.icrc += t2.Sub(t1)
	w.spent.receive += t3.Sub(t2)
	w.spent.packets += data.N
	w.now = w.now.Add(mono.Microsecond)
}

// blockRounds are the rounds of which one figure is made: half a millisecond or so.
const blockRounds = 16

// bench reports nanoseconds a data packet: at the sender and at the receiver, with and without the checksum of the packet,
// and as ns/op what both take together. No payload is copied; the harness does not count. All figures are medians over
// blocks of some rounds: where something else wants the processor, a mean would tell of that.
func (w *bare) bench(b *testing.B) {
	for i := range w.qs {
		w.fill(i)
	}
	for range 200 + 4*len(w.qs)/pkt.Burst {
		w.round()
	}
	blocks := make([]spent, 0, b.N/blockRounds+1)
	b.ReportAllocs()
	b.ResetTimer()
	packets, acks := w.sent()
	for n := 0; n < b.N; n += w.spent.packets {
		w.spent = spent{}
		for range blockRounds {
			w.round()
		}
		blocks = append(blocks, w.spent)
	}
	b.StopTimer()
	p, k := w.sent()
	report := func(unit string, of func(s spent) time.Duration) {
		ns := make([]float64, len(blocks))
		for i, s := range blocks {
			ns[i] = float64(of(s).Nanoseconds()) / float64(s.packets)
		}
		slices.Sort(ns)
		b.ReportMetric(ns[len(ns)/2], unit)
	}
	report("ns/send", func(s spent) time.Duration { return s.send })
	report("ns/receive", func(s spent) time.Duration { return s.receive })
	report("ns/send-no-icrc", func(s spent) time.Duration { return s.send - s.icrc })
	report("ns/receive-no-icrc", func(s spent) time.Duration { return s.receive - s.icrc })
	report("ns/op", func(s spent) time.Duration { return s.send + s.receive })
	b.ReportMetric(float64(k-acks)/float64(p-packets), "acks/packet")
	if w.host[0].n == 0 {
		b.Fatal("nothing completed")
	}
}

var benchMTUs = []int{256, 1024, 4096}

// BenchmarkEngine is one QP that writes messages of 64 packets.
func BenchmarkEngine(b *testing.B) {
	for _, mtu := range benchMTUs {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) { bareMetaRoCE(mtu, 64*mtu, 1, 64).bench(b) })
	}
}

// BenchmarkOnePacket is one QP that writes messages of one packet: posting and completing count in each.
func BenchmarkOnePacket(b *testing.B) {
	for _, mtu := range benchMTUs {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) { bareMetaRoCE(mtu, mtu, 1, 256).bench(b) })
	}
}

// BenchmarkRoCEv2 is BenchmarkEngine with the other engine.
func BenchmarkRoCEv2(b *testing.B) {
	for _, mtu := range benchMTUs {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) { bareRoCEv2(mtu, 64*mtu, 1, 64).bench(b) })
	}
}

// BenchmarkQPs is as many QPs of one association, all of which always have something to send: 16 packets each.
func BenchmarkQPs(b *testing.B) {
	for _, n := range []int{1, 64, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { bareMetaRoCE(1024, 16*1024, n, max(2, 64/n)).bench(b) })
	}
}
