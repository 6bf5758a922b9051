package tap

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Bytes from the wire never panic, whatever they claim.
func FuzzFrame(f *testing.F) {
	for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		q := &pkt.Packet{Src: d[0], Dst: d[1], SrcPort: 7}
		b := make([]byte, ether.HeadersLen(d[1])+40)
		ether.PutHeaders(b[:ether.HeadersLen(d[1])], ether.MAC{2}, ether.MAC{4}, q, 40, false)
		f.Add(b, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		f.Add(b, []byte{1, 5, 42, 0, 10, 0, 34, 0, 6, 0})
	}
	var frames [][]byte
	out := func(b []byte) { frames = append(frames, append([]byte(nil), b...)) }
	var n, other ether.Neighbours
	n.Init(ether.MAC{2}, 100, out)
	n.SetAddrs([]netip.Addr{a4, a6})
	other.Init(ether.MAC{4}, 100, out)
	other.SetAddrs([]netip.Addr{b4, b6})
	other.Lookup(0, b4, a4)
	other.Lookup(0, b6, a6)
	for _, b := range frames {
		f.Add(b, []byte{1, 0, 0, 0, 0, 0, 14, 0, 2, 0})
	}
	f.Fuzz(func(t *testing.T, frame, vnet []byte) {
		none := func(int, []unix.Iovec) unix.Errno { return 0 }
		p := &Port{dev: &Device{fd: -1, vnet: len(vnet) == vnetHdrLen, writev: none}, mtu: 1500}
		p.near.Init(ether.MAC{2}, 1500, func([]byte) {})
		p.near.SetAddrs([]netip.Addr{a4, a6})
		p.rx.init()
		if len(vnet) != vnetHdrLen {
			vnet = nil
		}
		if len(frame) > readMax-vnetHdrLen {
			return
		}
		b := p.rx.arena[vnetHdrLen:][:copy(p.rx.arena[vnetHdrLen:], frame)]
		var q pkt.Packet
		if p.handle(5, b, vnet, &q) && q.Kind == pkt.RoCE {
			for n := len(q.Data); p.rx.pending(); n += len(q.Data) {
				p.nextSegment(&q)
				if len(q.Data) == 0 || n > len(frame) {
					t.Fatal("segments")
				}
			}
		}
		p.near.Tick(mono.Time(10 * mono.Second))
	})
}

// A kernel that refuses super-packets gets single frames, and every packet goes once.
func TestTrainsRefused(t *testing.T) {
	p := &Port{dev: &Device{fd: 1 << 20, vnet: true, trains: true}, mtu: 1500}
	p.near.Init(ether.MAC{2}, 1500, func([]byte) {})
	p.near.SetAddrs([]netip.Addr{a4})
	p.near.Learn(0, b4, ether.MAC{4}, true)
	frames := 0
	p.dev.writev = func(_ int, v []unix.Iovec) unix.Errno {
		if len(v) > 2 {
			return unix.EINVAL
		}
		frames++
		return 0
	}
	var ps []pkt.Packet
	for id := range uint32(10) {
		ps = append(ps, packet(id, 100, a4, b4))
	}
	if n := p.TxBurst(0, ps); n != 10 || frames != 10 || p.stats.TxPackets != 10 || p.dev.trains {
		t.Error(n, frames, p.stats)
	}
}

func TestNoAllocation(t *testing.T) {
	for _, m := range modes[:2] {
		t.Run(m.name, func(t *testing.T) {
			space(t, 4300)
			m.a.MTU, m.b.MTU = 4300, 4300
			a, b := plug(t, "ta", m.a, a4, a6), plug(t, "tb", m.b, b4, b6)
			meet(t, a, b)
			var out []pkt.Packet
			for id := range uint32(10) {
				out = append(out, packet(id, 1000, a4, b4))
			}
			out = append(out, pkt.Packet{Kind: pkt.Ethernet, Data: make([]byte, 60)})
			var in [pkt.Burst]pkt.Packet
			T := now()
			if n := testing.AllocsPerRun(100, func() {
				a.TxBurst(T, out)
				for b.RxBurst(T, in[:]) > 0 {
				}
				a.LinkUp()
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// One core does both ends and the bridge.
func BenchmarkWire(bm *testing.B) {
	for _, m := range modes[:3] {
		for _, size := range []int{1076, 4172} {
			for _, flows := range []int{1, 16} {
				bm.Run(fmt.Sprintf("%s/%d/flows=%d", m.name, size, flows), func(bm *testing.B) {
					space(bm, 4300)
					m.a.MTU, m.b.MTU = 4300, 4300
					a, b := plug(bm, "ta", m.a, a4, a6), plug(bm, "tb", m.b, b4, b6)
					meet(bm, a, b)
					var out, in [pkt.Burst]pkt.Packet
					for i := range out {
						out[i] = packet(uint32(i), size, a4, b4)
						out[i].SrcPort = uint16(0xc000 + i%flows)
					}
					bm.SetBytes(int64(size))
					bm.ResetTimer()
					got, sent := 0, 0
					for n := 0; n < bm.N; n += pkt.Burst {
						sent += a.TxBurst(1, out[:])
						for k := b.RxBurst(1, in[:]); k > 0; k = b.RxBurst(1, in[:]) {
							got += k
						}
					}
					bm.ReportMetric(float64(got)*float64(size)*8/1e9/bm.Elapsed().Seconds(), "Gbit/s")
					bm.ReportMetric(float64(got)/float64(sent), "arrived")
				})
			}
		}
	}
}
